"""Issuing, listing and revoking tokens.

Belongs here: the entries of tokens in the bucket, written and read over NATS with the rights of whoever does it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.protocol.client import sees_everything
from lakestream_client.direct_get import PAGE_MESSAGES, DirectGets
from lakestream_client.errors import ClientError, NoAnswer, NoSuchStream
from lakestream_sharing import grants
from lakestream_sharing.access import TIMEOUT_S, entries
from lakestream_sharing.grants import DAY_NS, EVERY, Grant

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats

MARKER_TTL_S = 3600
"""Time for which the mark of a revoked entry stays in the bucket."""
ID_LENGTH = 12
"""Digits of a token's hash by which commands name it."""
_MISFITS = "_misfits"


class IssueFailed(Exception):
    """Raised when a token cannot be issued, listed or revoked; the text says why and what to do."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token in the bucket. `id`: the beginning of its hash."""

    id: str
    recipient: str
    share: str
    streams: list[str]
    history: bool
    expires: str
    expired: bool
    keys: list[str]


class Profile(msgspec.Struct, frozen=True, rename="camel"):
    """Profile file of a recipient.

    Source: Delta Sharing protocol, "Profile File Format".
    """

    endpoint: str
    bearer_token: str
    expiration_time: str
    share_credentials_version: int = 1


class Issuer:
    """Tokens of one account.

    Args:
        connection: of a user of the account.
    """

    def __init__(self, connection: Nats) -> None:
        self._connection = connection
        self._gets = DirectGets(connection, "$JS.API", TIMEOUT_S)

    async def issue(
        self, recipient: str, share: str, streams: Sequence[str], days: float, *, history: bool, endpoint: str
    ) -> Profile:
        """Return the profile of a new token.

        Args:
            streams: names, or `*` alone for every stream.
            days: life of the token.

        Raises:
            IssueFailed: an argument is invalid, or the server does not take an entry.
        """
        for name, value in (("recipient", recipient), ("share", share)):
            if not grants.NAME.fullmatch(value):
                raise IssueFailed(f"{name} {value!r}: letters, digits, _ and -, 64 at most")
        if not 0 < days <= grants.MAX_LIFETIME_DAYS:
            raise IssueFailed(f"a token is valid for at most {grants.MAX_LIFETIME_DAYS} days")
        if not streams or len(streams) > grants.MAX_STREAMS:
            raise IssueFailed(f"name 1 to {grants.MAX_STREAMS:,} streams, or all of them")
        if not await self._sees_everything():
            raise IssueFailed(
                "a share hands out the files of whole streams, and this user may not subscribe to every subject: issue "
                "the token as a user without such restrictions"
            )
        for stream in streams:
            await self._check_stream(stream)
        token = grants.new_token()
        token_hash = grants.hash_of(token)
        life_ns = int(days * DAY_NS)
        grant = Grant(recipient, share, time.time_ns() + life_ns, history)
        for stream in streams:
            await self._put(grants.key(stream, token_hash), msgspec.json.encode(grant), life_ns // 1_000_000_000 + 1)
        return Profile(endpoint.rstrip("/"), token, _shown(grant.expires_ns))

    async def tokens(self) -> list[Token]:
        """Return the tokens of the account, the one that ends first being the first. Raises IssueFailed."""
        found: dict[str, list[tuple[str, grants.Shared]]] = {}
        request: dict[str, Any] = {"batch": PAGE_MESSAGES, "seq": 1, "next_by_subj": grants.subject("*.*")}
        try:
            while True:
                page = await self._gets.page(grants.STREAM, **request)
                for message in page.messages:
                    for shared in entries([message]):
                        key = message.subject.removeprefix(grants.subject(""))
                        found.setdefault(key.rpartition(".")[2], []).append((key, shared))
                if not page.messages or not page.pending:
                    break
                request["seq"] = page.messages[-1].seq + 1
        except NoSuchStream:
            return []
        except ClientError as error:
            raise IssueFailed(str(error)) from None
        tokens = [_token(token_hash, some) for token_hash, some in found.items()]
        return sorted(tokens, key=lambda token: (token.expires, token.id))

    async def revoke(self, wanted: str) -> list[Token]:
        """Revoke the tokens of a recipient, or the one with an id; return them. Raises IssueFailed."""
        tokens = [each for each in await self.tokens() if wanted in (each.recipient, each.id)]
        if not tokens:
            raise IssueFailed(f"there is no token for recipient {wanted}, and none with that id")
        for token in tokens:
            for key in token.keys:
                await self._publish(
                    grants.subject(key), b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}, MARKER_TTL_S
                )
        return tokens

    # ------------------------------------------------------------------ parts
    async def _sees_everything(self) -> bool:
        """Return True if the server says that no message is hidden from the user. Raise IssueFailed if it says
        nothing."""
        from nats.errors import Error

        try:
            answer = await self._connection.request("$SYS.REQ.USER.INFO", b"", timeout=TIMEOUT_S)
            return sees_everything((json.loads(answer.data)["data"].get("permissions") or {}).get("subscribe"))
        except (Error, OSError, TimeoutError, KeyError, ValueError) as error:
            raise IssueFailed(
                "the server does not tell which subjects this user may subscribe to: may it publish to "
                "$SYS.REQ.USER.INFO?"
            ) from error

    async def _check_stream(self, stream: str) -> None:
        if stream == EVERY:
            return
        if not stream or any(char in stream for char in ". *>/\\\t\r\n"):
            raise IssueFailed(f"{stream!r} is not a valid stream name")
        try:
            await self._gets.stream(stream)
        except NoSuchStream as error:
            if not stream.endswith(_MISFITS):
                raise IssueFailed(str(error)) from None
        except NoAnswer:
            return  # the user may issue tokens, but not look at streams
        except ClientError as error:
            raise IssueFailed(str(error)) from None

    async def _put(self, key: str, value: bytes, ttl_s: int) -> None:
        from nats.js.errors import NoStreamResponseError

        try:
            await self._publish(grants.subject(key), value, {}, ttl_s)
        except NoStreamResponseError:
            await self._create()
            await self._publish(grants.subject(key), value, {}, ttl_s)

    async def _publish(self, subject: str, value: bytes, headers: dict[str, str], ttl_s: int) -> None:
        from nats.errors import Error
        from nats.js.errors import APIError, NoStreamResponseError

        try:
            await self._connection.jetstream(timeout=TIMEOUT_S).publish(
                subject, value, stream=grants.STREAM, headers=dict(headers), msg_ttl=ttl_s
            )
        except NoStreamResponseError:
            raise
        except APIError as error:
            raise IssueFailed(f"the server refused the entry: {error.description}") from None
        except (Error, OSError, TimeoutError):
            raise IssueFailed(f"the entry was not stored: may the user publish to {subject}?") from None

    async def _create(self) -> None:
        """Make the bucket, with three replicas in a cluster."""
        from nats.errors import Error

        answer: dict[str, Any] = {}
        for replicas in (3, 1):
            body = json.dumps(grants.bucket_config(replicas)).encode()
            subject = f"$JS.API.STREAM.CREATE.{grants.STREAM}"
            try:
                answer = json.loads((await self._connection.request(subject, body, timeout=TIMEOUT_S)).data)
            except (Error, OSError, TimeoutError):
                raise IssueFailed(f"the bucket cannot be made: may the user publish to {subject}?") from None
            if "error" not in answer:
                return
        raise IssueFailed(f"the bucket cannot be made: {answer['error'].get('description')}")


def _token(token_hash: str, some: Sequence[tuple[str, grants.Shared]]) -> Token:
    first = some[0][1].grant
    return Token(
        id=token_hash[:ID_LENGTH],
        recipient=first.recipient,
        share=first.share,
        streams=sorted(shared.stream for _, shared in some),
        history=first.history,
        expires=_shown(first.expires_ns),
        expired=first.expires_ns <= time.time_ns(),
        keys=[key for key, _ in some],
    )


def _shown(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
