"""Logins of gateways: programs on the server's machine that connect as each of their users.

Belongs here: what a login in another protocol means for NATS, and the connection of one user. Flight SQL and the
protocol of Postgres are such gateways; how a login reaches them is up to each.

Source: ADR-14 (JWT claims).
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lakestream.protocol import jwt
from lakestream.protocol.jwt import JwtError

LOGIN_S = 10
"""Time for a login at the server, in seconds."""


def is_user_jwt(text: str) -> bool:
    """Return True for the token of a user of NATS; other services have tokens of that form too."""
    try:
        return jwt.kind_of(text) == "user"
    except JwtError:
        return False


def signed_login(token: str, seed: str) -> dict[str, Any]:
    """Return the arguments of a connection for the JWT of a user and the seed of its key."""
    from nats.aio.client import RawCredentials

    parts = (("NATS USER JWT", token.strip()), ("USER NKEY SEED", seed.strip()))
    blocks = (f"-----BEGIN {name}-----\n{text}\n------END {name}------\n" for name, text in parts)
    return {"user_credentials": RawCredentials("\n".join(blocks))}


async def connect_user(
    name: str,
    server: str,
    secure: bool,
    login: Mapping[str, Any],
    ended: Callable[[], Awaitable[None]] | None = None,
) -> Any:
    """Return a connection for a user, which is not made again once it breaks.

    Args:
        name: of the connection.
        server: address of the server, which started this program and told it.
        secure: its port for clients has TLS; the certificate is not looked at.
        login: arguments of the connection.
        ended: called when it has broken.

    Raises:
        Exception: of nats-py, if the server rejects the login or cannot be reached.
    """
    from nats.aio.client import Client

    client, is_made = Client(), False

    async def quiet(_: Exception) -> None:
        return  # failures are reported by the calls

    async def closed() -> None:
        if ended is not None and is_made:
            await ended()

    options: dict[str, Any] = dict(login)
    if secure:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        options["tls"] = context
    try:
        await client.connect(
            server,
            name=name,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=LOGIN_S,
            error_cb=quiet,
            closed_cb=closed,
            **options,
        )
        is_made = True
    finally:
        if not is_made:
            await client.close()  # nats-py leaves the socket of a login open that is rejected
    return client
