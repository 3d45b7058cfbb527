"""Authentication of clients.

Belongs here: the credentials of a connection, and the ways in which they are checked, in their order, which determines
the account and the user. Permissions of a user are in permissions.py, decisions about tokens in operators.py.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from lakestream.config.account_options import (
    CalloutOptions,
    Permissions,
    SubjectRule,
    User,
)
from lakestream.config.options import STANDARD, Options
from lakestream.ports import Clock, Timer
from lakestream.protocol import nkeys
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT

if TYPE_CHECKING:
    from lakestream.net.tls import PeerCertificate, TlsState
    from lakestream.protocol import jwt  # with time zones, which a server without tokens does without

_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")

_NONCE_BYTES = 11

LOGIN_CHECK_NS = 3_600_000_000_000
"""Longest time between two looks at the end of a login (1 hour)."""

EXPIRED = ("User Authentication Expired", "Authentication Expired")
"""Text of -ERR and close reason at the end of a login."""

REDACTED = "[REDACTED]"
"""Shown in the place of a token."""

CALLOUT_SUBJECT = b"$SYS.REQ.USER.AUTH"
"""Requests to a service that decides about logins. In its account nobody else may publish there."""

CALLOUT_ANSWERS = "$SYS._INBOX.>"
"""Subjects at which nats-server's callouts are answered."""


def new_nonce() -> str:
    """Return the text that a connection is to sign: 15 letters."""
    return base64.urlsafe_b64encode(os.urandom(_NONCE_BYTES)).rstrip(b"=").decode()


def is_hashed(stored: str) -> bool:
    """Return True if a configured secret is a bcrypt hash (as nats-server's `mkpasswd` makes them)."""
    return stored.startswith(_BCRYPT)


def has_plain_passwords(options: Options) -> bool:
    """Return True if clients log in with a password that the configuration has as it is, or with none."""
    mapped = options.tls is not None and options.tls.verify_and_map  # certificates tell the users
    needless = mapped or options.single_user  # of a single user nats-server does not notice that it has no password
    users = itertools.chain(options.users, *(account.users for account in options.accounts))
    return any(not is_hashed(user.password) and (user.password or not needless) for user in users if not user.nkey)


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


# ---------------------------------------------------------------------- what is given, and what comes of it


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of a connection; "" where it gave none.

    Attributes:
        user, password, token, nkey, jwt, signature, proxy_signature: of CONNECT. The signatures are of `nonce`, which
            INFO showed, by the client and by a proxy before it.
        proxy: the key of the trusted proxy that signed, once that is checked; "": none did.
        kind: the connection type, as `allowed_connection_types` names it.
        host, id: its address and number.
        tls: of the connection; None: plain text.
        certificate: the client's, verified; None: it showed none.
        connect: all options of CONNECT.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    jwt: str = ""
    signature: str = ""
    proxy_signature: str = ""
    proxy: str = ""
    nonce: str = ""
    kind: str = STANDARD
    host: str = ""
    id: int = 0
    tls: TlsState | None = None
    certificate: PeerCertificate | None = None
    connect: Mapping[str, Any] = {}

    @classmethod
    def of(cls, connect: Mapping[str, Any], **known: Any) -> Credentials:
        """Return the credentials of a CONNECT with these options. `known`: the attributes that are not of CONNECT."""
        given: dict[str, Any] = {name: str(connect.get(key) or "") for name, key in _GIVEN.items()}
        return cls(**given, connect=connect, **known)

    @property
    def name(self) -> str:
        """Return the name or key of the user as monitoring and events show it; a token is not shown."""
        return self.nkey or self.user or (REDACTED if self.token else "")

    def shown(self, known_jwt: str = "") -> str:
        """Return the name of the user in the log, the most telling one as in nats-server; secrets are not shown.

        Args:
            known_jwt: the key of the user whose token was accepted before.
        """
        if self.nkey:
            return f'Nkey "{self.nkey}"'
        if known_jwt and self.jwt:
            return f'JWT User "{known_jwt}"'
        if self.user:
            return f'User "{self.user}"'
        return f'Token "{REDACTED}"' if self.token else ""


_GIVEN = {
    "user": "user",
    "password": "pass",
    "token": "auth_token",
    "nkey": "nkey",
    "jwt": "jwt",
    "signature": "sig",
    "proxy_signature": "proxy_sig",
}


class Login(msgspec.Struct, frozen=True):
    """The account and user of a client.

    Attributes:
        user: None: anonymous.
        expires_ns: end of the connection, ns since the epoch; 0: none.
        proxy: the key of the trusted proxy before the client; "": none.
        called_out: a service decided (net/accounts/callout.py).
        sentinel: the token with which the client came before the service; None: that of `user`, if there is one.
        answer: the token that the service gave; None: that of `user`, if there is one.
    """

    account: str
    user: User | None = None
    expires_ns: int = 0
    proxy: str = ""
    called_out: bool = False
    sentinel: jwt.Token[jwt.UserClaims] | None = None
    answer: jwt.Token[jwt.UserClaims] | None = None

    @property
    def described_by(self) -> jwt.Token[jwt.UserClaims] | None:
        """Return the token whose name, tags and limits are the client's."""
        return self.answer or (self.user.token if self.user is not None else None)

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the name of the user, and the tags of its token, each with `tag:` before it; none for anonymous."""
        tags = self.described_by.nats.tags if self.described_by is not None else ()
        return () if self.user is None else (self.user.name, *(f"tag:{tag}" for tag in tags))

    @property
    def token(self) -> jwt.Token[jwt.UserClaims] | None:
        """Return the token that CONNECT had; None: none that counts."""
        return self.sentinel or (self.user.token if self.user is not None else None)


class Refusal(msgspec.Struct, frozen=True):
    """Credentials that are refused.

    Attributes:
        reason: for the debug log; "": there is no more to say.
        errors: for the log, of the connection; `warnings`: of the server.
        shown: the user in the log; "": as `Credentials.shown` says.
        close: the close reason.
    """

    reason: str = ""
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    shown: str = ""
    close: str = "Authentication Failure"


Outcome = Login | Refusal
Done = Callable[[Outcome], None]


class LoginEnd:
    """The timer of one connection's login."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: Timer | None = None

    def watch(self, login: Login, ended: Callable[[], None]) -> None:
        """Wait for the end of this login instead of an earlier one, and call back."""
        self.cancel()
        if not login.expires_ns:
            return
        wait = login.expires_ns - self._clock.now()
        if wait <= 0:
            ended()
        else:  # not for long at a time, as clocks are set
            self._timer = self._clock.call_later(min(wait, LOGIN_CHECK_NS), lambda: self.watch(login, ended))

    def cancel(self) -> None:
        """Wait no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Later(msgspec.Struct, frozen=True):
    """A decision that takes time. `start` begins to make it and calls back in the event loop, once."""

    start: Callable[[Done], None]


Ask = Callable[[Credentials, Done], None]
"""Asks a service about a login and calls back, once."""

Way = Callable[[Credentials], Login | Refusal | Later | None]
"""One way of logging in. Returns None for credentials that it does not judge."""

ANYBODY = Login(GLOBAL_ACCOUNT)
REFUSED = Refusal()
NO_PROXY = Refusal("proxy connection required", close="Proxy Required")
UNTRUSTED_PROXY = Refusal("proxy is not trusted", close="Proxy Not Trusted")


# ---------------------------------------------------------------------- ways


class Secrets:
    """Comparison of a given secret with the configured one, plain or hashed."""

    def __init__(self, checks: HashChecks) -> None:
        self._checks = checks

    def compared(self, login: Login, given: str, stored: str) -> Login | Refusal | Later:
        """Return the login if the secret is right."""
        if not is_hashed(stored):
            return login if same_text(given, stored) else REFUSED
        return Later(lambda done: self._checks.check(given, stored, lambda good: done(login if good else REFUSED)))


def proxy_of(credentials: Credentials, trusted: Sequence[str]) -> str | None:
    """Return the key of the trusted proxy that signed the nonce; "": no proxy did, None: one that is not trusted."""
    if not credentials.proxy_signature or not trusted:
        return ""
    signature, nonce = nkeys.signature_of(credentials.proxy_signature), credentials.nonce.encode()
    if signature is None or not nonce:
        return None
    return next((key for key in trusted if nkeys.verify(key, nonce, signature)), None)


def signature_error(public: str, credentials: Credentials) -> str:
    """Return why the signature of the nonce is not by the owner of this key, in nats-server's words; "": it is."""
    if not credentials.signature:
        return "Signature missing"
    signature = nkeys.signature_of(credentials.signature)
    if signature is None:
        return "Signature not valid base64"
    good = bool(credentials.nonce) and nkeys.verify(public, credentials.nonce.encode(), signature)
    return "" if good else "Signature not verified"


def by_token(token: str, secrets: Secrets) -> Way:
    """Return the way for the one token of the server. No other way is open then."""
    return lambda credentials: secrets.compared(ANYBODY, credentials.token, token)


def by_callout(callout: CalloutOptions, ask: Ask) -> Way:
    """Return the way for everybody but the users of the service that decides; the configured ones are no exception."""

    def way(credentials: Credentials) -> Later | None:
        if credentials.user in callout.users or credentials.nkey in callout.users:
            return None
        return Later(lambda done: ask(credentials, done))

    return way


def kept_from_callouts(user: User, default: Permissions | None, *, called_out: bool = False) -> User:
    """Return the user without the right to publish what the server asks the service of its account.

    Args:
        default: permissions of users without permissions of their own.
        called_out: the user is not of the service: what it is asked and answers is not to be heard or answered either.
    """
    permissions = user.permissions or default or Permissions()
    denied = (CALLOUT_SUBJECT.decode(), CALLOUT_ANSWERS) if called_out else (CALLOUT_SUBJECT.decode(),)
    publish = permissions.publish or SubjectRule()
    permissions = replace(permissions, publish=replace(publish, deny=(*publish.deny, *denied)))
    if called_out:
        subscribe = permissions.subscribe or SubjectRule()
        permissions = replace(permissions, subscribe=replace(subscribe, deny=(*subscribe.deny, *denied)))
    return replace(user, permissions=permissions)


def anonymously(login: Login) -> Way:
    """Return the way for clients without credentials. A JWT or a signature without a key is none, as in nats-server."""

    def way(given: Credentials) -> Login | Refusal | None:
        if given.user or given.password or given.token or given.nkey:
            return None
        return login if _may_use(login, given) else REFUSED

    return way


def by_nkey(logins: Mapping[str, Login]) -> Way:
    """Return the way for users with keys."""

    def way(credentials: Credentials) -> Login | Refusal | None:
        if not credentials.nkey:
            return None
        login = logins.get(credentials.nkey)
        if login is None or not _may_use(login, credentials):
            return REFUSED
        error = signature_error(credentials.nkey, credentials)
        return Refusal(error) if error else login

    return way


def by_password(logins: Mapping[str, Login], secrets: Secrets) -> Way:
    """Return the way for users with passwords."""

    def way(credentials: Credentials) -> Login | Refusal | Later | None:
        login = logins.get(credentials.user)
        if login is None or login.user is None or not _may_use(login, credentials):
            return REFUSED
        return secrets.compared(login, credentials.password, login.user.password)

    return way


def by_certificate(logins: Mapping[str, Login], secrets: Secrets) -> Way:
    """Return the way for users that a client certificate names (verify_and_map)."""
    from lakestream.net.accounts.certificates import user_of  # with TLS, which few servers have

    def way(credentials: Credentials) -> Login | Refusal | Later:
        user = user_of(credentials.certificate, logins) if credentials.certificate is not None else None
        login = logins[user] if user is not None and credentials.user in ("", user) else None
        if login is None or login.user is None or not _may_use(login, credentials):
            return REFUSED
        return secrets.compared(login, credentials.password, login.user.password)

    return way


def _may_use(login: Login, credentials: Credentials) -> bool:
    """Return True if the user may log in over a connection of this type."""
    types = login.user.connection_types if login.user is not None else ()
    return not types or credentials.kind in types


class Authenticator:
    """Judges credentials by the ways of logging in that the settings open.

    Args:
        ask: asks the service of the auth callout about a login; None where there is no callout.
        shown: INFO says that credentials are required even where a `no_auth_user` makes them optional.
        signed: the way of users with tokens, of operator mode. No other way is open then.

    Attributes:
        callout: a service decides about logins.
        by_certificate: client certificates tell the users (verify_and_map).
        configured: credentials are configured; INFO says so once a client is in.
        anonymous: the login of clients without credentials; None: they are rejected.
        required: the first INFO says that credentials are required. As in nats-server that is so even where only the
            system account has users, and clients without credentials are in the global account.
        challenges: INFO has a nonce, which users sign.
    """

    def __init__(
        self,
        options: Options,
        checks: HashChecks,
        *,
        shown: bool = False,
        ask: Ask | None = None,
        signed: Way | None = None,
    ) -> None:
        self._token = options.token if signed is None else ""
        self._proxies, self._needs_proxy = options.proxies, options.proxy_required and bool(self._token)
        self.callout, self._ask = options.callout, ask
        logins = list(_logins(options)) if signed is None else []
        self._logins = {login.user.name: login for login in logins if login.user is not None}
        system = options.system_account or SYSTEM_ACCOUNT
        only_the_system = bool(options.accounts) and all(account.name == system for account in options.accounts)
        self.by_certificate = options.tls is not None and options.tls.verify_and_map and bool(self._logins)
        self.configured = bool(self._token or self._logins or self.callout) or only_the_system or signed is not None
        self.anonymous = self._anonymous(options) if signed is None else None
        self.required = self.configured and (shown or self.callout is not None or not options.no_auth_user)
        keys = {name: login for name, login in self._logins.items() if login.user is not None and login.user.nkey}
        self.challenges = bool(keys or options.proxies) or signed is not None
        self._ways = list(self._configured(keys, Secrets(checks))) if signed is None else [signed]

    def _configured(self, keys: Mapping[str, Login], secrets: Secrets) -> Iterable[Way]:
        """Return the ways for the users of the configuration."""
        if self.callout is not None and self._ask is not None:
            yield by_callout(self.callout, self._ask)
        if self._token:
            yield by_token(self._token, secrets)
        elif not self._logins:
            yield lambda credentials: self.anonymous
        else:
            if keys:
                yield by_nkey(keys)
            if self.by_certificate:
                yield by_certificate(self._logins, secrets)
                return
            if self.anonymous is not None:
                yield anonymously(self.anonymous)
            yield by_password({name: one for name, one in self._logins.items() if name not in keys}, secrets)

    @property
    def by_token(self) -> bool:
        """Return True if clients authenticate with a token, so that all have the same login."""
        return bool(self._token)

    def same_token(self, other: Authenticator) -> bool:
        """Return True if another configuration has the same token."""
        return self._token == other._token

    def login_of(self, user: str) -> Login | None:
        """Return the login of a user, by its name or key; None: no such user."""
        return self._logins.get(user)

    def _anonymous(self, options: Options) -> Login | None:
        if self.by_certificate or self.callout is not None:
            return None
        if options.no_auth_user:
            return self._logins[options.no_auth_user]
        # Users of the system account alone do not require authentication in the global account.
        system = options.system_account or SYSTEM_ACCOUNT
        if self._token or any(login.account != system for login in self._logins.values()):
            return None
        return ANYBODY

    def check(self, credentials: Credentials) -> Login | Refusal | Later:
        """Return what comes of these credentials by the first way that judges them."""
        proxy = proxy_of(credentials, self._proxies)
        if proxy is None:
            return UNTRUSTED_PROXY
        named = self._logins.get(credentials.name)
        if not proxy and (self._needs_proxy or (named is not None and _needs_proxy(named))):
            return NO_PROXY  # before a password is looked at
        if proxy:
            credentials = replace(credentials, proxy=proxy)
        for way in self._ways:
            outcome = way(credentials)
            if outcome is not None:
                return _through(outcome, proxy)
        return REFUSED


def _needs_proxy(login: Login) -> bool:
    return login.user is not None and login.user.proxy_required


def _through(outcome: Login | Refusal | Later, proxy: str) -> Login | Refusal | Later:
    """Return the same as `through`, also for a decision that takes time."""
    if isinstance(outcome, Later):
        return Later(lambda done: outcome.start(lambda late: done(through(late, proxy))))
    return through(outcome, proxy)


def through(outcome: Outcome, proxy: str) -> Outcome:
    """Return what comes of a decision for a client that came through this proxy, "": none."""
    if isinstance(outcome, Refusal) or not (proxy or _needs_proxy(outcome)):
        return outcome
    return replace(outcome, proxy=proxy) if proxy else NO_PROXY


def _logins(options: Options) -> Iterable[Login]:
    """Return the login of every configured user."""
    asking = options.callout.account if options.callout is not None else None
    for user in options.users:
        yield Login(GLOBAL_ACCOUNT, kept_from_callouts(user, None) if asking == GLOBAL_ACCOUNT else user)
    for account in options.accounts:
        for user in account.users:
            if asking == account.name:
                user = kept_from_callouts(user, account.default_permissions)
            yield Login(account.name, user)
