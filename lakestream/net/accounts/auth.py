"""Authentication of clients.

Belongs here: comparing the credentials of a CONNECT with the configured token or users, which determines the account.
Permissions of a user are in permissions.py.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from lakestream.config.options import Options, User
from lakestream.net.accounts.certificates import user_of
from lakestream.net.tls import PeerCertificate
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT

_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")


def is_hashed(stored: str) -> bool:
    """Return True if a configured secret is a bcrypt hash (as nats-server's `mkpasswd` makes them)."""
    return stored.startswith(_BCRYPT)


def same_text(given: str, stored: str) -> bool:
    """Compare a secret with a plain text in constant time."""
    return hmac.compare_digest(given.encode(), stored.encode())


def _same_hash(given: str, stored: str) -> bool:
    import bcrypt  # only needed with hashed secrets

    try:
        return bcrypt.checkpw(given.encode(), stored.encode())
    except ValueError:
        return False


class HashChecks:
    """Comparisons of secrets with bcrypt hashes. Each takes a core for 50 ms to 1 s: one thread does all of them."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="lakestream-login")

    def check(self, given: str, stored: str, done: Callable[[bool], None]) -> None:
        """Compare in the thread, then call back in the event loop."""
        work = asyncio.get_running_loop().run_in_executor(self._executor, _same_hash, given, stored)
        work.add_done_callback(lambda work: done(not work.cancelled() and work.exception() is None and work.result()))

    def close(self) -> None:
        """Cancel waiting comparisons."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Login(NamedTuple):
    """The account and user of a client. `user` None: anonymous."""

    account: str
    user: User | None = None

    def admits(self, kind: str) -> bool:
        """Return True if the user may connect as this kind of client."""
        return self.user is None or not self.user.connection_types or kind in self.user.connection_types


class HashedLogin(NamedTuple):
    """A login that is good if the given secret matches the stored hash."""

    login: Login
    given: str
    stored: str


ANYBODY = Login(GLOBAL_ACCOUNT)


class Authenticator:
    """Checks CONNECT options against the server's token or users.

    Args:
        shown: INFO says that credentials are required even where a `no_auth_user` makes them optional.

    Attributes:
        by_certificate: client certificates tell the users (verify_and_map).
        configured: credentials are configured; INFO says so once a client is in.
        anonymous: the login of clients without credentials; None: they are rejected.
        required: the first INFO says that credentials are required. As in nats-server that is so even where only the
            system account has users, and clients without credentials are in the global account.
    """

    def __init__(self, options: Options, *, shown: bool = False) -> None:
        self._token = options.token
        self._logins = {user.user: Login(GLOBAL_ACCOUNT, user) for user in options.users}
        for account in options.accounts:
            self._logins |= {user.user: Login(account.name, user) for user in account.users}
        system = options.system_account or SYSTEM_ACCOUNT
        only_the_system = bool(options.accounts) and all(account.name == system for account in options.accounts)
        self.by_certificate = options.tls is not None and options.tls.verify_and_map and bool(self._logins)
        self.configured = bool(self._token or self._logins) or only_the_system
        self.anonymous = self._anonymous(options)
        self.required = self.configured and (shown or not options.no_auth_user)

    @property
    def by_token(self) -> bool:
        """Return True if clients authenticate with a token, so that all have the same login."""
        return bool(self._token)

    def same_token(self, other: Authenticator) -> bool:
        """Return True if another configuration has the same token."""
        return self._token == other._token

    def login_of(self, user: str) -> Login | None:
        """Return the login of a user; None: no such user."""
        return self._logins.get(user)

    def _anonymous(self, options: Options) -> Login | None:
        if self.by_certificate:
            return None
        if options.no_auth_user:
            return self._logins[options.no_auth_user]
        # Users of the system account alone do not require authentication in the global account.
        system = options.system_account or SYSTEM_ACCOUNT
        if self._token or any(login.account != system for login in self._logins.values()):
            return None
        return ANYBODY

    def check(self, connect: dict[str, Any], certificate: PeerCertificate | None = None) -> Login | HashedLogin | None:
        """Return the login of a client with these CONNECT options and this certificate; None: wrong credentials."""
        if self._token:
            return _compared(ANYBODY, str(connect.get("auth_token") or ""), self._token)
        user = str(connect.get("user") or "")
        if self.by_certificate:
            mapped = user_of(certificate, self._logins) if certificate is not None else None
            if mapped is None or user not in ("", mapped):
                return None
            user = mapped
        elif not self._logins or (self.anonymous is not None and not user and not connect.get("auth_token")):
            return self.anonymous
        login = self._logins.get(user)
        if login is None or login.user is None:
            return None
        return _compared(login, str(connect.get("pass") or ""), login.user.password)


def _compared(login: Login, given: str, stored: str) -> Login | HashedLogin | None:
    if is_hashed(stored):
        return HashedLogin(login, given, stored)
    return login if same_text(given, stored) else None
