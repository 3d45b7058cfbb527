"""The effect of a reload on accounts and clients.

Belongs here: applying the accounts, imports and JetStream limits of a new configuration to a running server, and
deciding which clients stay. What a reload may change at all is in config/loading.py and config/accounts.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakestream.config.options import Options
from lakestream.net.accounts.auth import ANYBODY, Authenticator, Login

if TYPE_CHECKING:
    from lakestream.net.accounts.accounts import Accounts
    from lakestream.net.accounts.imports import AccountImports
    from lakestream.net.connection import Connection
    from lakestream.server.jetstream import JetStream

AFFECTED_BY = frozenset({"accounts", "mappings", "users", "token", "max_payload", "max_subscriptions"})
"""Options that change who may connect, or what clients may do."""


def reload_accounts(options: Options, accounts: Accounts, links: AccountImports, jetstream: JetStream | None) -> None:
    """Apply the configured accounts, with their imports, exports and JetStream limits."""
    before = _shared(accounts)
    accounts.configure(options)
    if _shared(accounts) != before:
        links.connect()
    if jetstream is not None:
        jetstream.configure()


def _shared(accounts: Accounts) -> dict[str, object]:
    """Return the exports and imports of each account; connecting them takes long where there are many."""
    return {account.name: (account.options.exports, account.options.imports) for account in accounts}


def reload_clients(
    connections: Iterable[Connection], authenticator: Authenticator, *, same_token: bool, accounts: Accounts
) -> None:
    """Close the connections that would not be accepted now; apply limits and permissions to the others.

    As in nats-server: a client whose account changed or whose user is gone is just closed; one that would need another
    password gets -ERR. A password counts as changed when it is written differently, for instance hashed anew, also for
    clients by `no_auth_user`. An account whose max_connections shrinks keeps its oldest clients.
    """
    for connection in list(connections):
        if not connection.ready or connection.close_reason:
            continue
        login, is_known = _login(connection, authenticator, same_token)
        if login is not None and login.account == connection.login.account:
            connection.login = login
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


def _login(connection: Connection, authenticator: Authenticator, same_token: bool) -> tuple[Login | None, bool]:
    """Return the new login of a client (None: not allowed any more), and whether it authenticated by itself and gets no
    -ERR."""
    before = connection.login
    if before.user is None:
        if authenticator.by_token:
            return (ANYBODY if same_token else None), False
        return authenticator.anonymous, False
    now = authenticator.login_of(before.user.user)
    if now is None or now.user is None or now.account != before.account:
        return None, True
    return (now if now.user.password == before.user.password else None), False
