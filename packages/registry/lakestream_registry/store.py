"""The buckets of the registry over NATS.

Belongs here: reading both buckets up to now, and writing to them only if they are as they were read. Every request of a
client reads what is new first, so that it sees what others registered by the server's own API or another process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.account.schemas import bucket
from lakestream.account.schemas.bucket import MARKER, RegisteredSchemas
from lakestream.protocol import headers
from lakestream_client.bucket import OPERATION
from lakestream_client.direct_get import DirectGets
from lakestream_client.errors import ClientError, NoSuchStream
from lakestream_registry import settings
from lakestream_registry.errors import unavailable
from lakestream_registry.settings import NOTHING, RegistrySettings

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats

    from lakestream_client.messages import Message

TIMEOUT_S = 5.0
"""Time for the server's answer."""
BATCH = 1_000
"""Messages of one page."""
CLUSTER_REPLICAS = 3
WRONG_LAST_SEQUENCE = (10071, 10164)


class _Bucket:
    """Reader of a bucket's stream, which continues where it ended."""

    def __init__(self, name: str, take: Callable[[Message], None], clear: Callable[[], None]) -> None:
        self._name, self._take, self._clear = name, take, clear
        self._created, self._count, self.last_seq = "", 0, 0

    async def read(self, gets: DirectGets) -> None:
        """Read what is new; all of it if messages were removed, or the bucket is another one."""
        try:
            info = await gets.stream(self._name)
        except NoSuchStream:
            self._forget("")
            return
        if info["created"] != self._created or info["state"]["last_seq"] < self.last_seq:
            self._forget(info["created"])
        await self._read_on(gets, info["state"])
        if self._count != info["state"]["messages"]:
            self._forget(info["created"])
            await self._read_on(gets, info["state"])

    def _forget(self, created: str) -> None:
        self._created, self._count, self.last_seq = created, 0, 0
        self._clear()

    async def _read_on(self, gets: DirectGets, state: dict[str, Any]) -> None:
        while self.last_seq < state["last_seq"]:
            page = await gets.page(self._name, seq=self.last_seq + 1, batch=BATCH, next_by_subj=">")
            for message in page.messages:
                self._take(message)
                self.last_seq = message.seq
                self._count += 1
            if not page.messages:
                self.last_seq = state["last_seq"]  # its last messages were removed


class RegistryStore:
    """The registry of the account of a connection.

    Attributes: `schemas`: the schemas; `entries`: the settings by key.
    """

    def __init__(self, connection: Nats) -> None:
        self._connection = connection
        self._gets = DirectGets(connection, "$JS.API", TIMEOUT_S)
        self.schemas = RegisteredSchemas()
        self.entries: dict[str, RegistrySettings] = {}
        self._schemas = _Bucket(bucket.STREAM, self._schema, self.schemas.clear)
        self._settings = _Bucket(settings.STREAM, self._entry, self.entries.clear)
        self._turn = asyncio.Lock()

    @property
    def last_seq(self) -> int:
        """Return the last sequence of the bucket of schemas."""
        return self._schemas.last_seq

    async def refresh(self) -> None:
        """Read both buckets up to now. Raises RegistryError 50001."""
        async with self._turn:
            try:
                await self._schemas.read(self._gets)
                await self._settings.read(self._gets)
            except (ClientError, OSError) as error:
                raise unavailable(str(error)) from None

    def _schema(self, message: Message) -> None:
        operation = message.header(OPERATION)
        header = b"" if operation is None else headers.build([(MARKER, operation.encode())])
        self.schemas.apply(message.seq, message.subject.encode(), header, message.data)

    def _entry(self, message: Message) -> None:
        key = message.subject.removeprefix(settings.SUBJECTS)
        self.entries[key] = NOTHING if message.header(OPERATION) else settings.entry_of(message.data)

    async def put_schema(self, name: str, document: bytes) -> bool:
        """Write a document; return False if the bucket has changed since it was read. Raises RegistryError 50001."""
        subject, expected = f"{bucket.SUBJECTS}{name}", str(self._schemas.last_seq)
        return await self._put(subject, document, expected, bucket.stream_config)

    async def put_entry(self, key: str, entry: RegistrySettings) -> bool:
        """Write an entry, as `put_schema`."""
        subject, expected = f"{settings.SUBJECTS}{key}", str(self._settings.last_seq)
        return await self._put(subject, msgspec.json.encode(entry), expected, settings.stream_config)

    async def _put(self, subject: str, data: bytes, expected: str, config: Callable[[int], dict[str, Any]]) -> bool:
        answer = await self._ask(subject, data, {"Nats-Expected-Last-Sequence": expected})
        if answer is None:
            await self._create(config)
            answer = await self._ask(subject, data, {"Nats-Expected-Last-Sequence": expected})
        error = (answer or {"error": {"description": "nothing takes it"}}).get("error")
        if error is None:
            return True
        if error.get("err_code") in WRONG_LAST_SEQUENCE:
            return False
        raise unavailable(f"the bucket takes nothing: {error.get('description')}")

    async def _create(self, config: Callable[[int], dict[str, Any]]) -> None:
        """Create a bucket: with replicas if the server is one of a cluster that has room for them."""
        for replicas in (CLUSTER_REPLICAS, 1):
            wanted = config(replicas)
            answer = await self._ask(f"$JS.API.STREAM.CREATE.{wanted['name']}", json.dumps(wanted).encode(), None)
            error = (answer or {}).get("error")
            if answer is not None and (error is None or error.get("err_code") == 10058):
                return
        raise unavailable("the bucket cannot be created")

    async def _ask(self, subject: str, data: bytes, header: dict[str, str] | None) -> dict[str, Any] | None:
        """Return an answer; None if nothing listens to the subject."""
        from nats.errors import Error, NoRespondersError

        try:
            answer = await self._connection.request(subject, data, timeout=TIMEOUT_S, headers=header)
            return dict(json.loads(answer.data))
        except NoRespondersError:
            return None
        except (Error, OSError, TimeoutError, ValueError) as error:
            raise unavailable(str(error) or "no answer came in time") from None


async def account_of(connection: Nats) -> str:
    """Return the account of a connection. Raises RegistryError 50001."""
    from nats.errors import Error

    try:
        answer = await connection.request("$SYS.REQ.USER.INFO", b"", timeout=TIMEOUT_S)
        return str(json.loads(answer.data)["data"]["account"])
    except (Error, OSError, TimeoutError, KeyError, ValueError):
        raise unavailable("the account of the login is unknown: may it publish to $SYS.REQ.USER.INFO?") from None
