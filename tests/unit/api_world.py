"""Engine with simulated time, threads, disks and sockets, and a client of its API.

Belongs here: the fixtures of the tests of the API and of direct gets. Everything else is real. Stores are in memory;
the lake is a list of records to which tests move messages.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lakestream.account.api.subjects import Api
from lakestream.account.engines import Engines
from lakestream.log.format.files import Files
from lakestream.log.format.record import Record
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.store import Store
from lakestream.logging import Logger
from lakestream.meta.shared import EngineOptions, Shared
from lakestream.meta.stores import FileStores
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import SingleSink, Subscription
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Single
from lakestream.protocol.subjects import matches
from lakestream.stream.assembly import Stream
from tests.unit.stream_world import CLIENT, ManualClock, ManualIo

Got = tuple[bytes, bytes, bytes]
"""(reply subject, header block, payload)."""


class Client(SingleSink):
    """Sink that keeps what it receives, with header blocks."""

    echo = True

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.congested = False
        self.drained: list[Callable[[], None]] = []

    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        self.got.append((message.subject, message.header, message.payload))

    def on_drain(self, callback: Callable[[], None]) -> None:
        self.drained.append(callback)


class KeptLog(Logger):
    """Logger that keeps errors and warnings instead of writing them."""

    __slots__ = ("errors", "warnings")

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def error(self, text: str) -> None:
        self.errors.append(text)

    def exception(self, text: str, error: BaseException) -> None:
        self.errors.append(f"{text}: {error!r}")


class MemoryStores:
    """`Stores` in memory."""

    deleted: Sequence[tuple[str, str, str]] = ()
    files = Files()
    """For the archives of restores, which wait in a file."""

    def __init__(self, io: ManualIo) -> None:
        self._io = io

    def create(self, account: str, name: str, uid: str, creation: bytes, *, memory: bool) -> Store:
        return MemoryStore(uid)

    def found(self, tell: Callable[[str], None]) -> list[tuple[str, str]]:
        return []

    def open(self, account: str, name: str) -> Store:
        raise AssertionError("nothing is stored")

    def remove(self, account: str, name: str, note: bytes = b"") -> str:
        return ""


class WaitingClock(ManualClock):
    """`ManualClock` whose coroutines run when `ApiWorld.awaited` is awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.spawned: list[Awaitable[Any]] = []

    def spawn(self, awaitable: Awaitable[Any]) -> None:
        self.spawned.append(awaitable)


class Lake:
    """`History` over a list, which counts its reads."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.reads: list[tuple[int, int]] = []
        self.asked: list[list[int]] = []
        self.before: Callable[[], None] = lambda: None

    async def read(
        self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None = None, max_bytes: int = 0
    ) -> list[Record]:
        self.reads.append((first, last))
        await asyncio.sleep(0)
        self.before()
        found = [record for record in self.records if first <= record.seq <= last]
        if subjects is not None:
            found = [record for record in found if any(matches(one, record.subject) for one in subjects)]
        found = found[:limit]
        sizes = itertools.accumulate(len(each.subject) + len(each.header) + len(each.data) for each in found)
        fit = sum(size <= max_bytes for size in sizes) if max_bytes else limit
        return found[: max(fit, 1)]

    async def read_many(self, seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> list[Record]:
        self.asked.append(list(seqs))
        await asyncio.sleep(0)
        self.before()
        found = [record for record in self.records if record.seq in seqs]
        return [record for record in found if subjects is None or record.subject in subjects]

    def forget(self) -> bool:
        return False

    async def first_at(self, time_ns: int) -> int:
        await asyncio.sleep(0)
        return next((record.seq for record in self.records if record.time_ns >= time_ns), 0)


class ApiWorld:
    """One engine, its API and one client.

    Args:
        stores: makes the stores; in memory if None.
        options: fields of EngineOptions that override the defaults.
    """

    def __init__(self, *, stores: Callable[[ManualIo], FileStores] | None = None, **options: Any) -> None:
        self.clock, self.io = WaitingClock(), ManualIo()
        self.log = KeptLog()
        self.hub = Hub(Turn(self.clock.call_soon), self.log)
        self.client = Client()
        self.hub.join(Subscription(self.client, b"_INBOX.me.*", b"", b"1"))
        named = EngineOptions(**{"server_name": "srv", "server_id": "NSRV", **options})
        made: Any = MemoryStores(self.io) if stores is None else stores(self.io)
        self.engines = Engines(Shared(self.clock, self.io, made, named, self.log, lambda account: self.hub))
        self.engine = self.engines.serve("$G")
        self.api = Api(self.engine)
        self._number = 0

    # ------------------------------------------------------------------ requests
    def send(self, subject: str, body: Any = b"", header: bytes = b"") -> bytes:
        """Publish with a reply subject without ending the turn; return the reply subject."""
        self._number += 1
        reply = b"_INBOX.me.%d" % self._number
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        found = self.hub.route(None, CLIENT, Single(subject.encode(), reply, header, data))
        if not found:
            self.client.got.append((reply, b"503", b""))
        return reply

    def settle(self) -> None:
        """End the turn and complete disk operations until nothing is left to do."""
        self.clock.turn()
        while self.io.waiting:
            self.io.work()
            self.clock.turn()

    async def awaited(self) -> None:
        """Settle, and run spawned coroutines, until nothing is left to do."""
        self.settle()
        while self.clock.spawned:
            await self.clock.spawned.pop(0)
            self.settle()

    def answers(self, reply: bytes) -> list[tuple[bytes, bytes]]:
        """Return (header block, payload) of everything sent to a reply subject so far."""
        return [(header, payload) for subject, header, payload in self.client.got if subject == reply]

    def raw(self, subject: str, body: Any = b"", header: bytes = b"") -> bytes | None:
        """Return the answer to an API request (subject without `$JS.API.`) as bytes; None if there is none."""
        reply = self.send("$JS.API." + subject, body, header)
        self.settle()
        answers = self.answers(reply)
        assert len(answers) <= 1
        return answers[0][1] if answers else None

    def ask(self, subject: str, body: Any = b"", header: bytes = b"") -> dict[str, Any]:
        """Return the answer to an API request."""
        answer = self.raw(subject, body, header)
        assert answer is not None, f"no answer on {subject}"
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def error(self, subject: str, body: Any = b"") -> tuple[int, int, str]:
        """Return (code, err_code, description) of a refused API request."""
        error = self.ask(subject, body)["error"]
        return error["code"], error.get("err_code", 0), error["description"]

    def direct(self, subject: str, body: Any = b"", header: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Return all answers to a direct get (subject without `$JS.API.DIRECT.GET.`)."""
        reply = self.send("$JS.API.DIRECT.GET." + subject, body, header)
        self.settle()
        return self.answers(reply)

    # ------------------------------------------------------------------ streams
    def create(self, name: str, **config: Any) -> dict[str, Any]:
        """Create a stream; assert success."""
        answer = self.ask(f"STREAM.CREATE.{name}", {"name": name, **config})
        assert "error" not in answer, answer
        return answer

    def stream(self, name: str) -> Stream:
        """Return the stream object."""
        return self.engine.streams[name]

    def publish(self, subject: str, data: bytes = b"", **headers: str) -> dict[str, Any]:
        """Publish and return the pub ack."""
        block = b""
        if headers:
            lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
            block = f"NATS/1.0\r\n{lines}\r\n".encode()
        reply = self.send(subject, data, block)
        self.settle()
        decoded: dict[str, Any] = json.loads(self.answers(reply)[0][1])
        return decoded

    def fill(self, count: int = 10, **config: Any) -> None:
        """Create stream A on `a.>` with `count` messages on a.1, a.2, a.0, a.1 …; every odd one has a header."""
        self.create("A", subjects=["a.>"], allow_direct=True, **config)
        for number in range(1, count + 1):
            headers = {"K": str(number)} if number % 2 else {}
            self.publish(f"a.{number % 3}", b"m%d" % number, **headers)
            self.clock.advance(1)  # each message has a time of its own

    def state(self, name: str, **asked: Any) -> dict[str, Any]:
        """Return the state of a stream, without times."""
        state: dict[str, Any] = self.ask(f"STREAM.INFO.{name}", asked or b"")["state"]
        return {key: value for key, value in state.items() if not key.endswith("_ts")}

    def to_lake(self, name: str, through: int) -> Lake:
        """Move the messages through sequence `through` to a lake, out of the log."""
        stream = self.stream(name)
        lake = Lake()
        lake.records = stream.store.read_run(1, 1 << 20, 1 << 40)
        stream.reader.history = lake
        rows: Any = stream.store._rows
        rows.local_floor = through + 1
        rows.read = _refusing(rows.read, through)
        return lake


def _refusing(read: Callable[[int], Record], through: int) -> Callable[[int], Record]:
    def checked(seq: int) -> Record:
        assert seq > through, f"{seq} is in the lake only"
        return read(seq)

    return checked


_TIME = re.compile(rb'"\d{4}-\d\d-\d\dT[^"]*Z"')
_STAMP = re.compile(rb"Nats-Time-Stamp: [^\r]*")


def timeless(text: bytes | None) -> bytes:
    """Return JSON with every time except the zero time replaced by T."""
    assert text is not None
    return _TIME.sub(lambda found: found[0] if found[0].startswith(b'"0001-') else b'"T"', text)


def stampless(block: bytes) -> bytes:
    """Return a direct get's header block without the value of its time stamp."""
    return _STAMP.sub(b"Nats-Time-Stamp:", block)
