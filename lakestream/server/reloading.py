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
    from lakestream.net.accounts.imports import AccountLinks
    from lakestream.net.connection import Connection
    from lakestream.server.jetstream import JetStream

AFFECTED_BY = frozenset({"accounts", "mappings", "users", "token", "max_payload", "max_subscriptions"})
"""Options that change who may connect, or what clients may do."""


def reload_accounts(options: Options, accounts: Accounts, links: AccountLinks, jetstream: JetStream | None) -> None:
    """Have the accounts that are configured now, with what they give each other and store."""
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
    """Close the connections of those who would not be let in as they are now; the others get what they may do now.

    As in nats-server: who is in another account now, or nobody any more, is just closed, as it would have to come again
    anyway; who would have to say another password is told. A password counts as another one when it is written
    differently, hashed anew for instance; for those who are that user by `no_auth_user`, too. An account that may have
    fewer connections keeps its oldest.
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
