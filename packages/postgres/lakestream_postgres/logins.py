"""Logins: a user of Postgres' protocol is a user of the server.

Belongs here: which authentication a client is asked for, and the connection to the server that each login gets.

    SCRAM-SHA-256       a user whose password the configuration has in plain text
    password, in clear  other users, inside TLS or from this machine:
                        a password, which may be hashed in the configuration, or be checked by an auth callout
                        the text of a credentials file, or <JWT>:<seed>, of a user of operator mode; a bearer's JWT
                        the seed of an nkey (SU…)
                        the server's `token`, with any user name
    none                a server without authentication; the user `no_auth_user`
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import msgspec

from lakestream.protocol import nkeys
from lakestream_client.gateway import connect_user, is_user_jwt, signed_login
from lakestream_postgres import wire
from lakestream_postgres.errors import PgError
from lakestream_postgres.listener import Connection
from lakestream_postgres.scram import MECHANISM, BadScram, ScramServer

_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+")
_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")


class Settings(msgspec.Struct, frozen=True):
    """A line of the input: the first one, and one after each reload.

    `certificate`: PEM files of certificate and key; () without TLS. `secure`: the server's port for clients has TLS.
    `is_open`: the server has no authentication. `users`: passwords in plain text by user; `is_plain`: there are no
    other users. `token`: the server has one. `max_connections`: of this listener.
    """

    host: str
    port: int
    server: str
    certificate: tuple[str, ...] = ()
    secure: bool = False
    is_open: bool = False
    users: dict[str, str] = {}
    is_plain: bool = False
    token: bool = False
    no_auth_user: str = ""
    max_connections: int = 64


async def log_in(connection: Connection, user: str, settings: Settings) -> Any:
    """Return a connection to the server for a client, which was asked to prove who it is.

    Raises:
        PgError: it is not that user.
        BadMessage, ConnectionError.
    """
    if settings.is_open or (user and user == settings.no_auth_user):
        login: dict[str, Any] = {}
    elif user in settings.users or settings.is_plain:
        login = await _scram(connection, user, settings.users.get(user))
    elif not (connection.is_encrypted or connection.is_local):
        raise PgError("28000", "this user's password goes over TLS only: sslmode=require", is_fatal=True)
    else:
        connection.write(wire.WANT_PASSWORD)
        login = _login(user, (await _answer(connection)).rstrip(b"\0").decode(errors="replace"), settings)
    found = await _connect(connection, login, user, settings)
    connection.write(wire.LOGGED_IN)
    return found


async def _answer(connection: Connection) -> bytes:
    await connection.drain()
    message = await connection.next()
    if not isinstance(message, wire.Password):
        raise wire.BadMessage("a password is expected")
    return message.body


def _rejected(user: str) -> PgError:
    return PgError("28P01", f'password authentication failed for user "{user}"', is_fatal=True)


async def _scram(connection: Connection, user: str, password: str | None) -> dict[str, Any]:
    """Ask for a proof of the password; of an unknown user as well."""
    server = ScramServer(password or secrets.token_hex(), secrets.token_bytes(16), secrets.token_urlsafe(18))
    connection.write(wire.want_sasl([MECHANISM]))
    mechanism, first = wire.sasl_first(await _answer(connection))
    if mechanism != MECHANISM:
        raise wire.BadMessage(f"the only mechanism is {MECHANISM}")
    try:
        connection.write(wire.sasl(server.challenge(first), is_final=False))
        outcome = server.verify(await _answer(connection))
    except BadScram:
        raise _rejected(user) from None
    if password is None:
        raise _rejected(user)
    connection.write(wire.sasl(outcome, is_final=True))
    return {"user": user, "password": password}


def _login(user: str, password: str, settings: Settings) -> dict[str, Any]:
    """Return the arguments of a connection for user and password."""
    token, seed = _JWT.search(password), _SEED.search(password)
    if token is not None and is_user_jwt(token[0]):
        # Of a bearer the server wants no signature of its key, but the client has to make one.
        return signed_login(token[0], seed[0] if seed is not None else nkeys.new_seed())
    if seed is not None and seed[0] == password.strip():
        return {"nkeys_seed_str": seed[0]}
    return {"token": password} if settings.token else {"user": user, "password": password}


async def _connect(connection: Connection, login: dict[str, Any], user: str, settings: Settings) -> Any:
    async def ended() -> None:
        if connection.is_served:
            connection.write(PgError("57P01", "the server has ended the login", is_fatal=True).encode())
            connection.close()

    try:
        return await connect_user("lakestream postgres", settings.server, settings.secure, login, ended)
    except Exception:
        raise _rejected(user) from None
