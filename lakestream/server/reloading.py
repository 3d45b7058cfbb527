"""The effect of a reload on accounts and clients.

Belongs here: what a new configuration changes for TLS, and which clients stay. Accounts tell their imports and
JetStream themselves that they changed. What a reload may change at all is in config/loading.py and config/accounts.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING

from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, Options, TlsOptions
from lakestream.net.accounts.auth import ANYBODY, Authenticator, Login, through
from lakestream.net.connection import TOO_MANY
from lakestream.net.identity import advertised
from lakestream.protocol.durations import format_duration

if TYPE_CHECKING:
    from lakestream.logging import Logger
    from lakestream.net.accounts.accounts import Account, Accounts
    from lakestream.net.connection import Connection
    from lakestream.net.tls import ServerContext

AFFECTED_BY = frozenset({"accounts", "mappings", "users", "token", "tls", "server_tags"})
"""Options that change who may connect, or what clients may do. Services of auth callouts are told the server's tags."""

LIMITS = frozenset({"max_payload", "max_subscriptions", "max_control_line"})
"""Options that change the limits of connected clients."""


def limit_changes(options: Options, changed: Iterable[str]) -> list[str]:
    """Return the lines for the log about changed limits, as nats-server writes them."""
    values = {
        "max_connections": str(options.max_connections),
        "max_control_line": str(options.max_control_line),
        "max_payload": str(options.max_payload),
        "ping_interval_ns": format_duration(options.ping_interval_ns),
        "ping_max": str(options.ping_max),
        "write_deadline_ns": format_duration(options.write_deadline_ns),
        "client_advertise": options.client_advertise,
    }
    return [f"{name.removesuffix('_ns')} = {values[name]}" for name in changed if name in values]


def tls_changes(before: Options, now: Options) -> list[str]:
    """Return the lines for the log about TLS. Certificates are always read again, from files of the same names too."""
    old, new = before.tls or TlsOptions(), now.tls or TlsOptions()
    lines = []
    if before.auth_timeout_ns != now.auth_timeout_ns:
        lines.append(f"authorization timeout = {now.auth_timeout_ns / SECOND:g}")
    if old.timeout_ns != new.timeout_ns:
        lines.append(f"tls timeout = {new.timeout_ns / SECOND:g}")
    if before.tls is not None or now.tls is not None:
        lines.append(f"tls = {'disabled' if now.tls is None else 'enabled'}")
    if old.first != new.first:
        lines.append(f"Client TLS handshake first: {str(new.first).lower()}")
    if old.fallback_ns != new.fallback_ns and new.first:
        lines.append(f"Client TLS handshake first fallback delay: {format_duration(new.fallback_ns)}")
    if old.pinned_certs != new.pinned_certs:
        lines.append(f"{len(new.pinned_certs)} pinned_certs")
    return lines


def check_advertised(options: Options) -> None:
    """Check the address that clients shall be told. Raises StartError."""
    try:
        advertised(options.client_advertise, options.port)
    except ValueError as error:
        raise StartError(f"invalid ClientAdvertise value of {options.client_advertise}, err={error}") from error


def close_unpinned(connections: Iterable[Connection], server: ServerContext, log: Logger) -> None:
    """Close the connections whose certificate is not pinned any more."""
    closed = 0
    for connection in list(connections):
        if not connection.close_reason and not server.is_pinned(connection.tls.chain if connection.tls else ()):
            connection.close("TLS Handshake Failure")
            closed += 1
    if closed:
        log.info(f"Disconnect {closed} clients due to pinned certs reload")


def close_surplus(connections: Iterable[Connection], limit: int, log: Logger) -> None:
    """Close the newest connections over a lower max_connections."""
    surplus = [connection for connection in connections if not connection.close_reason][limit:]
    for connection in surplus:
        connection.turn_away(TOO_MANY, "Maximum Connections Exceeded")
    if surplus:
        log.error(f"{surplus[0].described()} - {TOO_MANY} - Account:{surplus[0].account.name}")
        log.info(f"Closed {len(surplus)} connections to fall within max_connections")


def limit_clients(connections: Iterable[Connection]) -> None:
    """Apply changed limits to connected clients."""
    for connection in list(connections):
        if connection.ready and not connection.close_reason:
            connection.limit()


def is_asked_again(before: Options, now: Options) -> bool:
    """Return True if what an auth callout is asked about, or by whom it is passed by, has changed."""
    return _callout_inputs(before) != _callout_inputs(now)


def _callout_inputs(options: Options) -> tuple[object, ...]:
    tls = options.tls or TlsOptions()
    listed = [("", options.users), *((account.name, account.users) for account in options.accounts)]
    users = {(name, each.name, each.password, each.connection_types) for name, users in listed for each in users}
    return options.server_tags, options.token, tls.verify, tls.verify_and_map, users


def reload_clients(
    connections: Iterable[Connection],
    before: Mapping[str, Authenticator],
    after: Mapping[str, Authenticator],
    accounts: Accounts,
    undecided: Container[Account],
) -> None:
    """Close the connections that would not be accepted now; apply limits and permissions to the others.

    As in nats-server: a client whose account changed or whose user is gone is just closed; one that would need another
    password gets -ERR. A client with a token stays. A password counts as changed when it is written differently, for
    instance hashed anew, also for clients by `no_auth_user`. An account whose max_connections shrinks keeps its oldest
    clients.

    Args:
        before, after: the checks of credentials by kind of client.
        undecided: accounts of which those are closed, too, whom the service of an auth callout let in: it is asked
            again when they come back.
    """
    for connection in list(connections):
        if not connection.ready or connection.close_reason:
            continue
        authenticator = after[connection.kind]
        login, is_known = _login(
            connection, authenticator, authenticator.same_token(before[connection.kind]), undecided
        )
        kept = through(login, connection.login.proxy) if login is not None else None
        if isinstance(kept, Login) and kept.account == connection.login.account:
            connection.login = kept
            connection.limit()
            connection.permit()
        elif is_known:
            connection.close("Client Closed")
        else:
            connection.turn_away("Authorization Violation", "Authentication Failure")
    for account in accounts:
        limit = account.options.limits.max_connections
        for client in list(account.connections.values())[limit:] if limit >= 0 else ():
            client.turn_away("maximum account active connections exceeded", "Maximum Account Connections Exceeded")


def _login(
    connection: Connection, authenticator: Authenticator, same_token: bool, undecided: Container[Account]
) -> tuple[Login | None, bool]:
    """Return the new login of a client (None: not allowed any more), and whether it authenticated by itself and gets no
    -ERR."""
    before = connection.login
    if before.token is not None:
        return before, True  # its account and its operators decide, not the configuration
    if before.called_out:
        return (None if connection.account in undecided else before), True
    if before.user is None:
        if authenticator.by_token:
            return (ANYBODY if same_token else None), False
        return authenticator.anonymous, False
    now = authenticator.login_of(before.user.name)
    if now is None or now.user is None or now.account != before.account:
        return None, True
    return (now if now.user.password == before.user.password else None), False
