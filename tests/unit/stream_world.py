"""Stream with simulated time, threads and sockets.

Belongs here: a world in which a test decides when the event loop's turn ends and when the disk answers, so that
operations in flight can be observed. Hub, store, group and stream are the real ones; the store is in a temporary
directory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from lakestream.log.format.files import Brief, Files, Io
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import SingleSink, Subscription
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Single
from lakestream.stream.assembly import FEATURES, MakeFeature, Stream
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import CreateStream, decode_operation
from lakestream.stream.core.pipeline import Uncommitted
from lakestream.stream.core.proposer import BufferLimits
from lakestream.stream.core.state import StreamState

T = TypeVar("T")
CLIENT = ClientInfo(id=1, host="127.0.0.1", account="$G")


class ManualTimer:
    """Timer of `ManualClock`."""

    def __init__(self, due: int, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """`Clock` whose time stands still until `advance`, and whose turns end at `turn`."""

    def __init__(self) -> None:
        self.time = time.time_ns()
        self.stepped = 0
        """Sum of the steps of the system clock, in ns."""
        self.soon: list[Callable[[], None]] = []
        self.timers: list[ManualTimer] = []

    def now(self) -> int:
        return self.time + self.stepped

    def steady(self) -> int:
        return self.time

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    call_with_output = call_soon

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self.time + delay_ns, callback)
        self.timers.append(timer)
        return timer

    def spawn(self, awaitable: Any) -> None:
        try:
            awaitable.send(None)
        except StopIteration:
            return
        raise AssertionError("in this world nothing is awaited: all messages are in the log")

    def turn(self) -> None:
        while self.soon:
            soon, self.soon = self.soon, []
            for callback in soon:
                callback()

    def advance(self, ns: int) -> None:
        self.time += ns
        due = [timer for timer in self.timers if timer.due <= self.time]
        self.timers = [timer for timer in self.timers if timer.due > self.time]
        for timer in sorted(due, key=lambda each: each.due):
            if not timer.cancelled:
                timer.callback()
        self.turn()


class ManualIo(Io):
    """`Io` that works when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self.waiting.append((work, done))

    def work(self) -> None:
        """Do one piece of work and deliver its result."""
        work, done = self.waiting.pop(0)
        try:
            result = work()
        except BaseException as error:
            done(None, error)
        else:
            done(result, None)


class Inbox(SingleSink):
    """Sink that keeps what it receives, and counts as a client."""

    congested = False
    echo = True

    def __init__(self) -> None:
        self.got: list[tuple[bytes, bytes]] = []

    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        self.got.append((message.subject, message.payload))


class World:
    """One stream and one client.

    Args:
        directory: directory of the store; an existing store is recovered.
        config: fields of the stream's configuration.
        files: the log's file layer, for faults.
        clock: clock of an earlier world, so that time continues.
        options: of the log.
        features: of the stream, instead of those of every stream.
        buffer, uncommitted: limits of publishes that wait for the log.
    """

    def __init__(
        self,
        directory: str,
        files: Files | None = None,
        clock: ManualClock | None = None,
        options: LogOptions | None = None,
        features: Sequence[MakeFeature] = FEATURES,
        buffer: BufferLimits | None = None,
        uncommitted: Uncommitted | None = None,
        **config: Any,
    ) -> None:
        self.clock, self.io = clock or ManualClock(), ManualIo()
        self.hub = Hub(Turn(self.clock.call_soon), Logger())
        self.inbox = Inbox()
        self.hub.join(Subscription(self.inbox, b"_INBOX.me.*", b"", b"1"))
        self._number = 0
        self._parts = {"features": features, "buffer": buffer, "uncommitted": uncommitted}
        store = open_store(directory, self.io, options or LogOptions(), uid="u1", files=files, now=self.clock.now)
        self.stream = self._recover(store) or self._create(store, config)

    def _stream(self, create: CreateStream, store: Store) -> Stream:
        return Stream(create, store, self.hub, self.clock, self.io, **self._parts)  # type: ignore[arg-type]

    def _create(self, store: Store, config: dict[str, Any]) -> Stream:
        fields: dict[str, Any] = {
            "name": "S",
            "subjects": ["s.>"],
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "duplicate_window": 120_000_000_000,
        }
        body = json.dumps(fields | config).encode()
        settled = msgspec.json.encode(msgspec.json.decode(body, type=StreamConfig))
        create = CreateStream("u1", "$G", settled, self.clock.now())
        stream = self._stream(create, store)
        stream.propose(create)
        self.stream = stream
        self.settle()
        self._serve(stream)
        return stream

    def _recover(self, store: Store) -> Stream | None:
        frames = store.replay()
        if store.extra:
            state = msgspec.msgpack.decode(store.extra, type=StreamState)
            stream = self._stream(state.create, store)
            stream.load(store.extra)
        else:
            first = next(frames, None)
            if first is None:
                return None
            create = decode_operation(first[0].body)
            assert isinstance(create, CreateStream)
            stream = self._stream(create, store)
            stream.apply_frame(*first)
        for frame, at in frames:
            stream.apply_frame(frame, at)
        self._serve(stream)
        return stream

    def _serve(self, stream: Stream) -> None:
        for subject in stream.config.subjects or []:
            self.hub.subscribe(subject.encode(), stream.proposer.take)
        stream.start()

    def publish(self, subject: str, data: bytes = b"", **headers: str) -> bytes:
        """Publish with a reply without ending the turn; return the reply subject. `Nats_Msg_Id="a"` sets a header."""
        self._number += 1
        reply = b"_INBOX.me.%d" % self._number
        block = b""
        if headers:
            lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
            block = f"NATS/1.0\r\n{lines}\r\n".encode()
        self.hub.route(None, CLIENT, Single(subject.encode(), reply, block, data))
        return reply

    def settle(self) -> None:
        """End the turn and complete disk operations until nothing is left to do."""
        self.clock.turn()
        while self.io.waiting:
            self.io.work()
            self.clock.turn()

    def answer(self, reply: bytes) -> dict[str, Any] | None:
        """Return the pub ack to a reply subject; None while there is none."""
        for subject, payload in self.inbox.got:
            if subject == reply:
                answer: dict[str, Any] = json.loads(payload)
                return answer
        return None

    def acked(self, subject: str, data: bytes = b"", **headers: str) -> dict[str, Any]:
        """Publish, settle, and return the answer."""
        reply = self.publish(subject, data, **headers)
        self.settle()
        answer = self.answer(reply)
        assert answer is not None, f"no answer to a publish on {subject}"
        return answer

    def content(self) -> list[tuple[int, bytes, bytes]]:
        """Return (seq, subject, data) of every message in the stream."""
        records = self.stream.store.read_run(1, 1 << 30, 1 << 40)
        return [(record.seq, record.subject, record.data) for record in records]
