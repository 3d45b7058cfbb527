"""Logins of Flight SQL: connections to the server, kept by tokens.

Belongs here: the field `authorization` of calls, what it means for NATS, and the connections of the users. program.py
answers the calls.

    Basic <user>:<password>          a user with a password
    Basic <JWT>:<seed>               a user of operator mode, with the seed of its key (SU…)
    Basic <public key>:<seed>        a user with an nkey
    Bearer <JWT>                     a user of operator mode whose token is a bearer token
    Bearer <token>                   one that an earlier call returned, or the server's `token`

Source: ADR-14 (JWT claims), "bearer_token"; Flight's documentation, "Authentication".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
import time
from typing import Any

import msgspec
from pyarrow import flight

from lakestream.loop_thread import LoopThread
from lakestream.protocol import nkeys
from lakestream.protocol.nkeys import BadKeyError
from lakestream_client.gateway import connect_user, is_user_jwt, signed_login

MAX_SESSIONS = 256
"""Logins at the same time; the one that was not used for longest ends."""
IDLE_S = 1800.0
"""Time after which a login ends that is not used (30 min)."""


class Settings(msgspec.Struct, frozen=True):
    """The first line of the input. `certificate`: PEM files of certificate and key; () without TLS. `secure`: the
    server's port for clients has TLS."""

    host: str
    port: int
    server: str
    certificate: tuple[str, ...] = ()
    secure: bool = False


class _Session:
    """A login: a connection to the server."""

    def __init__(self, nats: Any) -> None:
        self.nats = nats
        self.used = time.monotonic()


class _Sessions:
    """The logins, by tokens that are made here."""

    def __init__(self, settings: Settings, thread: LoopThread) -> None:
        self._settings, self._thread = settings, thread
        self._by_token: dict[str, _Session] = {}
        self._tokens: dict[bytes, str] = {}
        """Tokens by the digest of the credentials that a client sends with each call."""
        self._lock = threading.Lock()

    def find(self, authorization: str) -> tuple[str, _Session]:
        """Return token and session for the field `authorization` of a call.

        Raises:
            FlightUnauthenticatedError: the server rejects the login, or the session has ended.
        """
        kind, _, value = authorization.partition(" ")
        bearer = value if kind.lower() == "bearer" else ""
        digest = hashlib.sha256(authorization.encode()).digest()
        with self._lock:
            token = bearer if bearer in self._by_token else self._tokens.get(digest, "")
            session = self._by_token.get(token)
            if session is not None and not session.nats.is_closed:
                session.used = time.monotonic()
                return token, session
        login = _bearer(bearer) if bearer else _basic(value) if kind.lower() == "basic" else {}
        session = _Session(self._connect(login))
        with self._lock:
            first = self._tokens.get(digest, "")
            if first in self._by_token and not self._by_token[first].nats.is_closed:  # of another call at the same time
                self._thread.submit(session.nats.close())
                return first, self._by_token[first]
            token = secrets.token_urlsafe(32)
            self._by_token[token] = session
            self._tokens[digest] = token
            self._clean()
        return token, session

    def _connect(self, login: dict[str, Any]) -> Any:
        settings = self._settings
        try:
            return self._thread.run(connect_user("lakestream flight", settings.server, settings.secure, login))
        except Exception:
            raise flight.FlightUnauthenticatedError("the server rejects the login") from None

    def _clean(self) -> None:
        """End logins that are too old, too many or closed."""
        now = time.monotonic()
        by_use = sorted(self._by_token.items(), key=lambda item: item[1].used, reverse=True)
        for number, (token, session) in enumerate(by_use):
            if number >= MAX_SESSIONS or now - session.used > IDLE_S or session.nats.is_closed:
                del self._by_token[token]
                self._thread.submit(session.nats.close())
        self._tokens = {digest: token for digest, token in self._tokens.items() if token in self._by_token}


def _basic(value: str) -> dict[str, Any]:
    """Return the arguments of a connection for user and password, in base64.

    Raises:
        FlightUnauthenticatedError: they are no text, or the password of a user with a key is no seed of it.
    """
    try:
        user, _, password = base64.b64decode(value + "=" * (-len(value) % 4), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise flight.FlightUnauthenticatedError("the login is not valid") from None
    if not (is_user_jwt(user) or nkeys.is_public(user, nkeys.USER)):
        return {"user": user, "password": password}
    try:
        pair = nkeys.key_pair(password)
    except BadKeyError:
        raise flight.FlightUnauthenticatedError("the password of a user with a key is its seed (SU…)") from None
    if is_user_jwt(user):
        return signed_login(user, password)
    if pair.public != user:
        raise flight.FlightUnauthenticatedError("the seed is that of another key")
    return {"nkeys_seed_str": password}


def _bearer(token: str) -> dict[str, Any]:
    """Return the arguments of a connection for a token."""
    if not is_user_jwt(token):
        return {"token": token}
    # The server does not verify the signature of a bearer token's user, but the client has to make one.
    return signed_login(token, nkeys.new_seed())


class FlightLogin(flight.ServerMiddleware):  # type: ignore[misc]
    """The login of a call, to which its token is returned."""

    def __init__(self, token: str, session: _Session) -> None:
        self._token, self.session = token, session

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


class FlightLogins(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Finds the login of each call; `FlightLogin.session.nats` is its connection."""

    def __init__(self, settings: Settings, thread: LoopThread) -> None:
        self._sessions = _Sessions(settings, thread)

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> FlightLogin:
        given = next((values for name, values in headers.items() if name.lower() == "authorization"), [""])
        return FlightLogin(*self._sessions.find(given[0]))
