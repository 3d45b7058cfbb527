"""Users of a program with an HTTP port, which are those of the NATS server.

Belongs here: what the field `authorization` means for NATS, the check of a login by connecting with it, and what the
user may ask for. A login that was accepted counts for `REMEMBERED_S`.

    Basic <user>:<password>      a user with a password
    Bearer <token>               one that `oauth/tokens` returned for user and password, or the server's `token`
    Bearer <JWT>                 a user of operator mode whose token is a bearer token

Source: ADR-14 (JWT claims); Iceberg REST catalog, "OAuth2".
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from lakestream.lake.flush import plain_url
from lakestream.protocol import nkeys
from lakestream.protocol.client import sees_everything
from lakestream.protocol.subjects import matches
from lakestream_client.gateway import connect_user, is_user_jwt, signed_login

REMEMBERED_S = 30.0
"""Time for which an accepted login is not asked for again: a user that was removed ends that late."""
TOKEN_S = 3600
"""Life of a token (1 h)."""
MAX_REMEMBERED = 1_000
"""Logins, and tokens, that are remembered; the oldest goes."""
MAX_ASKED = 4
"""Logins that the server is asked for at the same time; others wait. Each is a connection, and wrong ones come without
end."""
ANSWER_S = 5.0
"""Time for the server's answer about a user."""


class Rejected(Exception):
    """Raised for a login that the server rejects."""


class HttpUser(msgspec.Struct, frozen=True):
    """A user: its account, and its rules for publishing and subscribing as `$SYS.REQ.USER.INFO` shows them (None:
    everything)."""

    account: str
    publish: dict[str, Any] | None = None
    subscribe: dict[str, Any] | None = None

    def may_read(self, stream: str) -> bool:
        """Return True if the user may get messages of a stream by sequence, and subscribe to each of them."""
        return sees_everything(self.subscribe) and self.may_publish(f"$JS.API.STREAM.MSG.GET.{stream}")

    def may_publish(self, to: str) -> bool:
        """Return True if the user may publish to a subject."""
        if self.publish is None:
            return True
        subject = to.encode()
        allow, deny = self.publish.get("allow"), self.publish.get("deny") or ()
        if allow and not any(matches(each.split()[0].encode(), subject) for each in allow):
            return False
        return not any(matches(each.split()[0].encode(), subject) for each in deny)


def basic_login(authorization: str) -> tuple[str, str]:
    """Return user and password of a field `authorization` of the kind Basic. Raises Rejected."""
    kind, _, value = authorization.strip().partition(" ")
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Rejected from None
    if kind.lower() != "basic" or not colon:
        raise Rejected
    return user, password


class HttpUsers:
    """Logs users in at a server.

    Args:
        server: its URL. A login in it is the program's own, and nobody else's.
        name: of the connections by which logins are checked.
    """

    def __init__(self, server: str, name: str) -> None:
        self._server, self._name = plain_url(server), name
        self._asking = asyncio.Semaphore(MAX_ASKED)
        self._known: OrderedDict[bytes, tuple[HttpUser, float]] = OrderedDict()
        self._tokens: OrderedDict[str, tuple[dict[str, Any], float]] = OrderedDict()

    async def find(self, authorization: str) -> HttpUser:
        """Return the user of a request's field `authorization`; "" is a user without a login.

        Raises:
            Rejected: the server rejects the login.
            OSError: the server cannot be reached.
        """
        return await self._log_in(self._login(authorization))

    async def issue(self, user: str, password: str) -> str:
        """Return a token for user and password. Raises as `find` does."""
        login = {"user": user, "password": password}
        await self._log_in(login)
        token = secrets.token_urlsafe(32)
        self._tokens[token] = login, time.monotonic() + TOKEN_S
        _bound(self._tokens)
        return token

    def _login(self, authorization: str) -> dict[str, Any]:
        kind, _, value = authorization.strip().partition(" ")
        if kind.lower() == "basic":
            user, password = basic_login(authorization)
            return {"user": user, "password": password}
        if kind.lower() != "bearer":
            if authorization:
                raise Rejected
            return {}
        login, until = self._tokens.get(value, ({}, 0.0))
        if until > time.monotonic():
            return login
        if is_user_jwt(value):
            # The server does not verify the signature of a bearer token's user, but the client has to make one.
            return signed_login(value, nkeys.new_seed())
        return {"token": value}

    async def _log_in(self, login: Mapping[str, Any]) -> HttpUser:
        digest = hashlib.sha256(repr(sorted((key, str(value)) for key, value in login.items())).encode()).digest()
        user, until = self._known.get(digest, (None, 0.0))
        if user is not None and until > time.monotonic():
            return user
        async with self._asking:
            user = await self._asked(login)
        self._known[digest] = user, time.monotonic() + REMEMBERED_S
        _bound(self._known)
        return user

    async def _asked(self, login: Mapping[str, Any]) -> HttpUser:
        from nats.errors import Error, NoServersError

        try:
            connection = await connect_user(self._name, self._server, False, login)
        except (NoServersError, OSError, TimeoutError) as error:
            raise OSError(f"the NATS server at {self._server} cannot be reached: {error}") from None
        except (Error, ValueError):
            raise Rejected from None
        try:
            answer = await connection.request("$SYS.REQ.USER.INFO", b"", timeout=ANSWER_S)
            found = json.loads(answer.data)["data"]
            rules = found.get("permissions") or {}
            return HttpUser(str(found["account"]), rules.get("publish"), rules.get("subscribe"))
        except (Error, TimeoutError, KeyError, ValueError):
            raise Rejected from None  # without its permissions nothing can be shown
        finally:
            await asyncio.shield(connection.close())


def _bound(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > MAX_REMEMBERED:
        kept.popitem(last=False)
