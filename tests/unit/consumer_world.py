"""Engine with its API on virtual time, for tests of consumers.

Belongs here: a world in which only the clock, the threads (work is done within the turn) and the sockets are simulated.
Streams are in memory, or in a directory if a test kills and recovers the server.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lakestream.account.api.subjects import Api
from lakestream.account.engines import Engines
from lakestream.log.format.files import Brief, Files, Io
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.logging import Logger
from lakestream.meta.shared import EngineOptions, Shared
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import SingleSink, Subscription
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Single
from lakestream.stream.consumer.consumer import Consumer

T = TypeVar("T")
MS = 1_000_000
SECOND = 1000 * MS
START = 1_700_000_000 * SECOND
CLIENT = ClientInfo(id=1, host="127.0.0.1", account="$G")


class VirtualTimer:
    """Pending call of `VirtualClock`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """`Clock` whose time passes only in `advance`, timer by timer."""

    def __init__(self) -> None:
        self.time = START
        self.stepped = 0
        """Sum of the steps of the system clock, in ns."""
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, VirtualTimer]] = []
        self._order = itertools.count()
        self.failures: list[Exception] = []

    def now(self) -> int:
        return self.time + self.stepped

    def steady(self) -> int:
        return self.time

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    call_with_output = call_soon

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(callback)
        heapq.heappush(self._timers, (self.time + max(delay_ns, 0), next(self._order), timer))
        return timer

    def spawn(self, awaitable: Coroutine[Any, Any, Any]) -> None:
        """Run the coroutine in the next turn; its awaits are answered at once."""

        def run() -> None:
            try:
                awaitable.send(None)
            except StopIteration:
                return
            except Exception as error:
                self.failures.append(error)
                return
            raise AssertionError("in this world everything that is awaited answers at once")

        self.call_soon(run)

    def turn(self) -> None:
        """Run everything that needs no time."""
        while self._soon:
            self._soon.popleft()()

    def advance(self, ns: int) -> None:
        """Advance the time, firing timers in order."""
        end = self.time + ns
        self.turn()
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self.time = max(self.time, due)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
            self.turn()
        self.time = end


class InlineIo(Io):
    """`Io` that works within the turn."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self._clock.call_soon(run)


class MemoryStores:
    """Stores in memory, for the duration of the test."""

    deleted: Sequence[tuple[str, str, str]] = ()
    files = Files()
    """For the archives of restores, which wait in a file."""

    def __init__(self, io: InlineIo) -> None:
        self._io = io

    def create(self, account: str, name: str, uid: str, creation: bytes, *, memory: bool) -> Store:
        return MemoryStore(uid)

    def found(self, tell: Callable[[str], None]) -> list[tuple[str, str]]:
        return []

    def open(self, account: str, name: str) -> Store:
        raise AssertionError("nothing to open")


class DirectoryStores:
    """Stores in a directory."""

    deleted: Sequence[tuple[str, str, str]] = ()
    files = Files()

    def __init__(self, io: InlineIo, root: Path) -> None:
        self._io, self._root = io, root

    def create(self, account: str, name: str, uid: str, creation: bytes, *, memory: bool) -> Store:
        return open_store(str(self._root / name), self._io, LogOptions(), uid=uid)

    def found(self, tell: Callable[[str], None]) -> list[tuple[str, str]]:
        return [("$G", path.name) for path in sorted(self._root.iterdir())]

    def open(self, account: str, name: str) -> Store:
        return open_store(str(self._root / name), self._io, LogOptions())


class Message(NamedTuple):
    """Message that a client received."""

    subject: str
    reply: str
    header: str
    data: bytes

    @property
    def status(self) -> str:
        """Return the status line without the version, "" for a message."""
        line = self.header.split("\r\n", 1)[0]
        return line.removeprefix("NATS/1.0").strip()

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Return delivery count, stream sequence, consumer sequence and pending count of the ack subject."""
        tokens = self.reply.split(".")
        return int(tokens[4]), int(tokens[5]), int(tokens[6]), int(tokens[8])

    @property
    def seq(self) -> int:
        return self.numbers[1]


class Client(SingleSink):
    """Sink that keeps what it receives."""

    echo = True

    def __init__(self, world: World) -> None:
        self._world = world
        self.congested = False
        self.got: list[Message] = []
        self._drained: list[Callable[[], None]] = []

    def subscribe(self, subject: str, queue: str = "") -> Callable[[], None]:
        """Subscribe; return the unsubscribing function."""
        sub = Subscription(self, subject.encode(), queue.encode(), b"1")
        graph = self._world.hub.interest_graph
        graph.insert(sub)
        self._world.clock.turn()
        return lambda: graph.remove(sub)

    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        shown = message.subject.decode(), message.reply.decode(), message.header.decode()
        self.got.append(Message(*shown, message.payload))

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        self.got.append(Message(reply.decode(), "", f"NATS/1.0 503\r\nNats-Subject: {subject.decode()}\r\n\r\n", b""))

    def on_drain(self, callback: Callable[[], None]) -> None:
        if self.congested:
            self._drained.append(callback)
        else:
            callback()

    def drain(self) -> None:
        """End the congestion."""
        self.congested = False
        drained, self._drained = self._drained, []
        for callback in drained:
            callback()
        self._world.clock.turn()

    def taken(self) -> list[Message]:
        """Return the messages since the last call."""
        self._world.clock.turn()
        got, self.got = self.got, []
        return got


class World:
    """A server's engine and one client with an inbox.

    Args:
        directory: directory of the streams, from which existing ones are recovered; in memory if None.
    """

    def __init__(self, directory: Path | None = None, **options: Any) -> None:
        self.clock = VirtualClock()
        self.hub = Hub(Turn(self.clock.call_soon), Logger())
        io = InlineIo(self.clock)
        stores = DirectoryStores(io, directory) if directory is not None else MemoryStores(io)
        fields = EngineOptions(server_name="test", server_id="ID", **options)
        engines = Engines(Shared(self.clock, io, stores, fields, Logger(), lambda account: self.hub))
        self.engine = engines.serve("$G")
        engines.recover()
        self.api = Api(self.engine)
        self.client = Client(self)
        self.client.subscribe("_INBOX.me.*")
        self._number = itertools.count(1)
        self.clock.turn()

    # ------------------------------------------------------------------ client
    def publish(self, subject: str, data: bytes = b"", reply: str = "", header: str = "") -> None:
        """Publish without ending the turn."""
        self.hub.route(None, CLIENT, Single(subject.encode(), reply.encode(), header.encode(), data))

    def inbox(self) -> str:
        return f"_INBOX.me.{next(self._number)}"

    def request(self, subject: str, data: bytes = b"", header: str = "") -> Message:
        """Publish with a reply subject and return the answer; other messages stay to be taken.

        An answer that takes many steps comes some ms later.
        """
        reply = self.inbox()
        self.publish(subject, data, reply, header)
        self.clock.turn()
        for _ in range(100):
            for at, message in enumerate(self.client.got):
                if message.subject == reply:
                    return self.client.got.pop(at)
            self.clock.advance(1_000_000)
        raise AssertionError(f"no answer to {subject}")

    def ask(self, subject: str, body: Any = None, header: str = "") -> dict[str, Any]:
        """Return the answer to an API request."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        answer: dict[str, Any] = json.loads(self.request("$JS.API." + subject, data, header).data)
        return answer

    # ------------------------------------------------------------------ shorthands
    def stream(self, name: str = "S", **config: Any) -> None:
        """Create a stream on `<name in lower case>.>`."""
        answer = self.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"], **config})
        assert "error" not in answer, answer

    def store(self, *subjects: str, data: bytes = b"x") -> None:
        """Publish a message on each subject."""
        for subject in subjects:
            self.publish(subject, data)
        self.clock.turn()

    def consumer(self, name: str = "c", stream: str = "S", **config: Any) -> Consumer:
        """Create a consumer: by default a durable pull consumer with explicit acks."""
        fields: dict[str, Any] = {"name": name, "ack_policy": "explicit"}
        if "inactive_threshold" not in config and "mem_storage" not in config:
            fields["durable_name"] = name
        body = {"stream_name": stream, "config": fields | config}
        answer = self.ask(f"CONSUMER.CREATE.{stream}.{name}", body)
        assert "error" not in answer, answer
        return self.engine.streams[stream].consumers[name]

    def info(self, name: str = "c", stream: str = "S") -> dict[str, Any]:
        return self.ask(f"CONSUMER.INFO.{stream}.{name}")

    def numbers(self, name: str = "c") -> tuple[tuple[int, int], tuple[int, int], int, int, int]:
        """Return (delivered, ack floor, ack pending, redelivered, pending) of a consumer."""
        info = self.info(name)
        delivered, floor = info["delivered"], info["ack_floor"]
        return (
            (delivered["consumer_seq"], delivered["stream_seq"]),
            (floor["consumer_seq"], floor["stream_seq"]),
            info["num_ack_pending"],
            info["num_redelivered"],
            info["num_pending"],
        )

    def next(self, body: Any = None, name: str = "c", stream: str = "S") -> str:
        """Send a pull request; return its reply subject."""
        reply = self.inbox()
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", data, reply)
        self.clock.turn()
        return reply

    def pull(self, batch: int = 1, name: str = "c", **fields: Any) -> list[Message]:
        """Send a pull request; return the messages and statuses that arrive at once."""
        self.next({"batch": batch, **fields}, name)
        return self.client.taken()

    def ack(self, message: Message | str, payload: bytes = b"+ACK", reply: str = "") -> None:
        """Publish to an ack subject."""
        self.publish(message if isinstance(message, str) else message.reply, payload, reply)
        self.clock.turn()

    def crash(self, directory: Path, **options: Any) -> World:
        """Return a new server on the same store. Unwritten data is lost: nothing of this server runs any more."""
        after = World.__new__(World)
        later = self.clock.time
        World.__init__(after, directory, **options)
        after.clock.time = max(after.clock.time, later)
        return after
