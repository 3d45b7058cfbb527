"""Auth callout: a service decides about logins (ADR-26).

Belongs here: the request about a login, the judgement of the answer, and the requests under way. Who is asked about is
decided in auth.py. What users and services see is nats-server's, with its texts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from lakestream.config.account_options import CalloutOptions, User
from lakestream.config.options import CLIENT_TYPES, Options
from lakestream.logging import Logger
from lakestream.net.accounts.auth import (
    CALLOUT_SUBJECT,
    REFUSED,
    Credentials,
    Done,
    Later,
    Login,
    Outcome,
    Refusal,
    kept_from_callouts,
)
from lakestream.net.accounts.operators import connect_until, may_come_from, permissions_of
from lakestream.net.hub import Hub
from lakestream.net.identity import Identity
from lakestream.net.tls import TlsState
from lakestream.ports import ClientInfo, Clock, Single, Subscribed, Timer, singly
from lakestream.protocol import headers, jwt
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.goquote import quoted
from lakestream.protocol.nkeys import SERVER, USER, BadKeyError, CurveKey, KeyPair, is_public, new_key
from lakestream.protocol.nuid import nuid

MAX_CALLOUTS = 4096
"""Logins that wait for an answer at a time (default 4,096); further ones are refused at once."""

MAX_ANSWER_BYTES = 256 << 10
"""Longest answer (default 256 KiB). A longer one is a refusal."""

XKEY_HEADER = b"Nats-Server-Xkey"

_AUDIENCE = "nats-authorization-request"
_BOX = b"xkv1"
_SECOND = 1_000_000_000
_OPTIONS = ("nkey", "sig", "auth_token", "user", "pass", "name", "lang", "version", "protocol")
"""Fields of CONNECT that the service is told as they are."""


class Ruling(Protocol):
    """Rules of the account whose service decides.

    Attributes:
        account: its name.
        subject: its key, to which requests are addressed.
        xkey: the service's curve key; "": requests are not encrypted.
        sentinel: the token that let the client come this far; None: the configuration has users, not an operator.
    """

    account: str
    subject: str
    xkey: str
    sentinel: jwt.Token[jwt.UserClaims] | None

    def is_issuer(self, key: str) -> bool:
        """Return True if this key may sign answers."""

    def login(self, token: jwt.Token[jwt.UserClaims], given: Credentials, now_ns: int) -> Outcome | Later:
        """Return the login that a user token in an answer describes. Its own claims have been checked."""


class ConfiguredRuling:
    """Rules of `auth_callout` in the configuration: one issuer, and tokens whose audience is the name of an account."""

    sentinel: jwt.Token[jwt.UserClaims] | None = None

    def __init__(self, callout: CalloutOptions, options: Options) -> None:
        self.account, self.subject, self.xkey = callout.account, callout.issuer, callout.xkey
        self._defaults = {account.name: account.default_permissions for account in options.accounts}
        for name in (GLOBAL_ACCOUNT, options.system_account or SYSTEM_ACCOUNT):
            self._defaults.setdefault(name, None)

    def is_issuer(self, key: str) -> bool:
        return key == self.subject

    def login(self, token: jwt.Token[jwt.UserClaims], given: Credentials, now_ns: int) -> Outcome:
        where = f"on account {quoted(self.account)}"
        if token.iss != self.subject:
            expected = f"expected {quoted(self.subject)} got {quoted(token.iss)}"
            return warned(f"Wrong issuer for auth callout response {where}, {expected}")
        if token.nats.issuer_account:
            return warned(f"Error non operator mode account {quoted(self.account)}: attempted to use issuer_account")
        if token.aud not in self._defaults:
            return warned(f"No valid account {quoted(token.aud)} for auth callout response {where}: account missing")
        if (refusal := misplaced(self.account, token.nats, given)) is not None:
            return refusal
        until_ns = connect_until(token.nats, now_ns)
        if until_ns < 0:
            error = f"Authorized user {where} outside of valid connect times"
            return Refusal(errors=("Outside connect times",), warnings=(error,))
        user = User(
            given.nkey or given.user or token.name,
            "",
            permissions_of(token.nats),
            max_subscriptions=token.nats.subs,
            max_payload=token.nats.payload,
            proxy_required=token.nats.proxy_required,
        )
        if token.aud == self.account:
            user = kept_from_callouts(user, self._defaults[token.aud], called_out=True)
        ends = [time for time in (token.exp * _SECOND, until_ns) if time]
        return Login(token.aud, user, expires_ns=min(ends, default=0), called_out=True, answer=token)


def misplaced(account: str, limits: jwt.UserLimits, given: Credentials) -> Refusal | None:
    """Return the refusal of a user whose limits exclude its address or its kind of connection; None if they do not.

    account: of the service.
    """
    refused = f"Authorized user on account {quoted(account)} not allowed"
    if not may_come_from(limits, given.host):
        warning = f"{refused} from source {quoted(given.host)}"
        return Refusal(errors=(f"Bad src Ip {given.host}",), warnings=(warning,))
    kinds = [kind.upper() for kind in limits.allowed_connection_types]
    return warned(f"{refused} to use connection type") if kinds and given.kind not in kinds else None


def warned(text: str) -> Refusal:
    """Return a refusal with one warning."""
    return Refusal(warnings=(text,))


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """The server as requests show it. `key` signs them; answers are encrypted to `xkey`."""

    identity: Identity
    key: KeyPair
    xkey: CurveKey
    cluster: str = ""
    tags: tuple[str, ...] = ()


class CalloutRequest(msgspec.Struct, frozen=True):
    """A request about one login. `user`: the key made for it, which the answer has to be about."""

    user: str
    header: bytes
    payload: bytes


# ---------------------------------------------------------------------- the request


def request_of(ruling: Ruling, asker: Asker, given: Credentials, now_ns: int, timeout_ns: int) -> CalloutRequest:
    """Return the request about these credentials, which the service has to answer within `timeout_ns`."""
    user, now_s, sealed = new_key(USER).public, now_ns // _SECOND, bool(ruling.xkey)
    nats: dict[str, Any] = {
        "server_id": _server(asker, sealed),
        "user_nkey": user,
        "client_info": _client(ruling, given),
        "connect_opts": _options(ruling, given),
    }
    if given.tls is not None:
        nats["client_tls"] = _tls(given.tls)
    claims = {"aud": _AUDIENCE, "iat": now_s, "exp": now_s + max(1, timeout_ns // _SECOND)}
    payload = jwt.encode(asker.key, ruling.subject, "authorization_request", nats, **claims).encode()
    if not sealed:
        return CalloutRequest(user, b"", payload)
    header = headers.build([(XKEY_HEADER, asker.xkey.public.encode())])
    return CalloutRequest(user, header, asker.xkey.seal(payload, ruling.xkey))


def _server(asker: Asker, sealed: bool) -> dict[str, Any]:
    identity = asker.identity
    page: dict[str, Any] = {
        "name": identity.server_name,
        "host": identity.host,
        "id": identity.server_id,
        "version": NATS_VERSION,
        "cluster": asker.cluster,
        "tags": asker.tags,
        "xkey": asker.xkey.public if sealed else "",
    }
    return _without_empty(page)


def _client(ruling: Ruling, given: Credentials) -> dict[str, Any]:
    user, client = given.nkey or given.user, given.kind in CLIENT_TYPES
    sentinel = ruling.sentinel
    if not user:
        user = sentinel.sub if sentinel is not None else "[REDACTED]" if given.token else ""
    page: dict[str, Any] = {
        "host": given.host,
        "id": given.id,
        "user": user,
        "name": given.connect.get("name"),
        "name_tag": sentinel.name if sentinel is not None else "",
        "kind": "Client" if client else "Leafnode",
        "type": CLIENT_TYPES.get(given.kind, ""),
        "nonce": given.nonce if given.signature else "",
    }
    return _without_empty(page)


def _options(ruling: Ruling, given: Credentials) -> dict[str, Any]:
    token = ruling.sentinel.text if ruling.sentinel is not None else ""
    return _without_empty({"jwt": token} | {key: given.connect.get(key) for key in _OPTIONS})


def _tls(tls: TlsState) -> dict[str, Any]:
    chains = [[certificate.pem for certificate in tls.chain]] if tls.chain else []
    return _without_empty({"version": tls.version, "cipher": tls.cipher, "verified_chains": chains})


def _without_empty(page: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in page.items() if value}


# ---------------------------------------------------------------------- the answer


def judged(
    ruling: Ruling, asker: Asker, given: Credentials, request: CalloutRequest, answer: bytes, now_ns: int
) -> Outcome | Later:
    """Return what comes of the answer to a request."""
    if not answer:
        return warned(f'Auth callout violation: "no reason supplied" on account {quoted(ruling.account)}')
    if len(answer) > MAX_ANSWER_BYTES:
        return warned(f"Auth callout violation: the answer is longer than {MAX_ANSWER_BYTES} bytes")
    if ruling.xkey and answer.startswith(_BOX):
        try:
            answer = asker.xkey.open(answer, ruling.xkey)
        except BadKeyError:
            return REFUSED
    try:
        response = jwt.decode(answer.decode("utf-8", "replace"), jwt.Response)
        if text := _response_error(ruling, asker, request, response, now_ns // _SECOND):
            return warned(text)
        token = jwt.decode(response.nats.jwt, jwt.UserClaims)
    except jwt.JwtError as error:
        return warned(f"{str(error)[:1].upper()}{str(error)[1:]}")
    if issues := [*token.time_issues(now_ns // _SECOND), *jwt.user_issues(token.nats)]:
        return warned(f"Error validating user JWT: {issues[0]}")
    if token.sub != request.user:
        got = f"{quoted(request.user)} but got {quoted(token.sub)}"
        return warned(f"Expected authorized user of {got} on account {quoted(ruling.account)}")
    return ruling.login(token, given, now_ns)


def _response_error(
    ruling: Ruling, asker: Asker, request: CalloutRequest, response: jwt.Token[jwt.Response], now_s: int
) -> str:
    """Return why an answer whose signature is good does not count, or the error that it has; "": it has a token."""
    if not ruling.is_issuer(response.iss):
        return "Auth callout signing key is unknown"
    nats, invalid = response.nats, response.time_issues(now_s)
    if not is_public(response.sub, USER):
        invalid.append("Subject must be a user public key")
    if not is_public(response.aud, SERVER):
        invalid.append("Audience must be a server public key")
    if nats.error and nats.jwt:
        invalid.append("Only Error or Jwt can be set")
    elif not nats.error and not nats.jwt:
        invalid.append("Error or Jwt is required")
    if invalid:
        return f"Authorization response had validation errors: {invalid[0]}"
    if response.sub != request.user:
        return "Auth callout violation: auth callout response is not for expected user"
    if response.aud != asker.identity.server_id:
        return "Auth callout violation: auth callout response is not for server"
    return f"Auth callout service returned an error: {nats.error}" if nats.error else ""


# ---------------------------------------------------------------------- requests under way


class _Pending(msgspec.Struct):
    judge: Callable[[bytes], Outcome | Later]
    done: Done
    timer: Timer


class Callouts:
    """The requests of this server that wait for an answer.

    Args:
        hub_of: returns the hub of an account.
        asker: returns this server as it is at the moment.
        timeout_ns: returns the time that a service has.
    """

    def __init__(
        self,
        hub_of: Callable[[str], Hub],
        asker: Callable[[], Asker],
        timeout_ns: Callable[[], int],
        clock: Clock,
        log: Logger,
    ) -> None:
        self._hub_of, self._asker, self._timeout_ns = hub_of, asker, timeout_ns
        self._clock, self._log = clock, log
        self._inbox = f"$SYS._INBOX.{nuid()[-8:]}".encode()
        self._listening: dict[str, Subscribed] = {}
        """Subscriptions to answers, by account: one for all requests, so that other nodes learn of it once."""
        self._pending: dict[bytes, _Pending] = {}

    def ask(self, ruling: Ruling, given: Credentials, done: Done) -> None:
        """Ask the service of an account about a login, and call back with the outcome, once."""
        if len(self._pending) >= MAX_CALLOUTS:
            self._log.warn(f"Auth callout: {MAX_CALLOUTS} logins wait for an answer already, one more is refused")
            done(REFUSED)
            return
        hub, asker, timeout_ns = self._hub_of(ruling.account), self._asker(), self._timeout_ns()
        if ruling.account not in self._listening:
            self._listening[ruling.account] = hub.subscribe(self._inbox + b".*", singly(self._answered))
        request = request_of(ruling, asker, given, self._clock.now(), timeout_ns)
        number = nuid()[-8:].encode()
        self._pending[number] = _Pending(
            lambda answer: judged(ruling, asker, given, request, answer, self._clock.now()),
            done,
            self._clock.call_later(timeout_ns, partial(self._end, number, REFUSED)),
        )
        hub.send(Single(CALLOUT_SUBJECT, self._inbox + b"." + number, request.header, request.payload))

    def _answered(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        number = subject.rpartition(b".")[2]
        if number in self._pending:  # else it comes late, or another one came before
            self._end(number, self._pending[number].judge(payload))

    def _end(self, number: bytes, outcome: Outcome | Later) -> None:
        pending = self._pending.pop(number)
        pending.timer.cancel()
        if isinstance(outcome, Later):
            outcome.start(pending.done)
        else:
            pending.done(outcome)
