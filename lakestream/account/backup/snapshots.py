"""Sending a stream as a backup: `$JS.API.STREAM.SNAPSHOT`.

Belongs here: the contents of a snapshot (state, consumers and messages as of the request, from the log and the lake),
and the flow of its chunks to the client (docs/internals/api.md#backups). archive.py has the archive's format.

A message that is removed during the snapshot may be missing in it; the state at its beginning still counts it, as in
nats-server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from lakestream.account.backup import archive
from lakestream.account.backup.events import BackupEvents
from lakestream.account.engine import Engine
from lakestream.log.format.errors import LogError
from lakestream.log.format.record import Record
from lakestream.ports import ClientInfo, Single, singly
from lakestream.protocol import s2
from lakestream.protocol.api.errors import api_error, for_clients
from lakestream.protocol.api.jsonio import Int, dumps, shown
from lakestream.protocol.api.request import Request
from lakestream.protocol.nuid import nuid
from lakestream.protocol.subjects import is_reserved, publishable
from lakestream.stream.assembly import Stream
from lakestream.stream.awaiting import Signal, in_thread
from lakestream.stream.consumer.consumer import Consumer
from lakestream.stream.core.reader import HistoryUnavailableError
from lakestream.stream.info import config_shown, state_shown

CHUNK_BYTES, CHUNK_LEAST, CHUNK_MOST = 128 << 10, 1 << 10, 1 << 20
"""Bytes in a chunk: default (128 KiB), and the bounds to which a request's `chunk_size` is clamped."""
WINDOW_BYTES, WINDOW_LEAST, WINDOW_MOST = 8 << 20, 1 << 10, 32 << 20
"""Bytes sent without an ack: default (8 MiB), and the bounds of `window_size`."""
FLOW_WAIT_NS = 5_000_000_000
"""Longest wait of a snapshot for an ack when its window is full (5 s); then it ends with 408."""
INTEREST_WAIT_NS = 2_000_000_000
"""Longest wait for a subscription to exactly the deliver subject (2 s); nats-server waits as long. The `nats` command
subscribes after the response, to a subject that another subscription of it receives already and ignores."""
MAX_SNAPSHOTS = 64
"""Concurrent snapshots on one server; further ones fail with 10064."""
READ_BYTES = 1 << 20
READ_MSGS = 8192
"""Limits of one read of the stream: bytes and messages."""


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.SNAPSHOT. `jsck` (check the messages first) has no effect: every read checks them."""

    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: Int = 0
    window_size: Int = 0
    jsck: bool = False


class SnapshotFailed(Exception):
    """Raised when a snapshot cannot continue; the text is the status of the last message."""


class Snapshots:
    """The snapshots that this server sends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running = 0

    def begin(self, request: Request, asked: SnapshotRequest, stream: Stream) -> None:
        """Respond with configuration and state, and start sending the archive. Raise ApiError 10015, 10064."""
        to = asked.deliver_subject.encode()
        if not to or not publishable(to) or is_reserved(to):
            raise api_error(10015)
        if self._running >= MAX_SNAPSHOTS:
            raise api_error(10064, err=f"{MAX_SNAPSHOTS} snapshots are being sent already")
        engine = self._engine
        events = BackupEvents(engine, "SNAPSHOT", stream.name, request)
        sending = _Sending(engine, stream, asked)
        request.respond({"config": config_shown(stream.config, versions=False), "state": sending.state})
        events.begun(state=sending.state)
        self._running += 1
        engine.clock.spawn(self._run(sending, events))

    async def _run(self, sending: _Sending, events: BackupEvents) -> None:
        try:
            error = await sending.run()
            events.ended(error=error)
        finally:
            self._running -= 1


class _Sending:
    """Sends one snapshot."""

    def __init__(self, engine: Engine, stream: Stream, asked: SnapshotRequest) -> None:
        self._bus, self._io, self._clock, self._stream = engine.bus, engine.io, engine.clock, stream
        self._to = asked.deliver_subject.encode()
        self._chunk = min(max(asked.chunk_size or CHUNK_BYTES, CHUNK_LEAST), CHUNK_MOST)
        self._window = min(max(asked.window_size or WINDOW_BYTES, WINDOW_LEAST), WINDOW_MOST)
        self._acks = f"$JS.SNAPSHOT.ACK.{stream.name}.{nuid()}"
        self._unacked: dict[int, int] = {}
        self._acked = Signal(engine.clock)
        # State, consumers and the range of messages are as of now; later changes of the stream do not count.
        now = engine.clock.now()
        # Consumers of mirrors and sources, and of the registry, are made again by these; nats-server restores none.
        consumers = [] if asked.no_consumers else [each for each in stream.consumers.values() if not each.config.direct]
        self.state = state_shown(stream)
        inside = {**self.state, "consumer_count": len(consumers)}
        entries = [archive.entry(archive.STATE_NAME, now, body=dumps(inside))]
        entries += [_consumer(each, now) for each in consumers]
        self._head = archive.MAGIC + b"".join(entries)
        self._first, self._last = stream.store.first_seq, stream.store.last_seq

    async def run(self) -> str:
        """Send the archive; return the error, or ""."""
        subscription = self._bus.subscribe(f"{self._acks}.>".encode(), singly(self._ack))
        status, error, index = "", "", 0
        try:
            await self._receiver()
            buffer = bytearray()
            async for piece in self._pieces():
                buffer += piece
                while len(buffer) >= self._chunk:
                    index += 1
                    await self._send(bytes(buffer[: self._chunk]), index)
                    status = "204"
                    del buffer[: self._chunk]
            if buffer:
                self._bus.send(Single(self._to, payload=bytes(buffer)))
        except SnapshotFailed as failure:
            status = error = str(failure)
        except (HistoryUnavailableError, LogError) as failure:
            status, error = f"500 {for_clients(failure)}", for_clients(failure)
        except Exception as failure:  # an unexpected error: report it to the client, and log it
            self._end(f"500 {for_clients(failure)}")
            raise
        finally:
            subscription.cancel()
        self._end(status)
        return error

    async def _receiver(self) -> None:
        """Wait for the subscription that takes the chunks, for a limited time; then they are sent in any case."""
        if self._bus.bound(self._to):
            return
        subscribed = Signal(self._clock)
        watch = self._bus.watch_interest(self._to, b"", lambda bound: subscribed.happened() if bound else None)
        try:
            await subscribed.wait(INTEREST_WAIT_NS)
        finally:
            watch.cancel()

    def _end(self, status: str) -> None:
        header = f"NATS/1.0 {' '.join(status.split())}\r\n\r\n" if status else ""
        self._bus.send(Single(self._to, header=header.encode()))

    async def _send(self, chunk: bytes, index: int) -> None:
        """Send a full chunk once the window has room for it. Raise SnapshotFailed."""
        while self._unacked and sum(self._unacked.values()) + len(chunk) > self._window:
            if not await self._acked.wait(FLOW_WAIT_NS):
                raise SnapshotFailed("408 No Flow Response")
        self._unacked[index] = len(chunk)
        if not self._bus.send(Single(self._to, f"{self._acks}.{len(chunk)}.{index}".encode(), payload=chunk)):
            raise SnapshotFailed("408 No Interest")

    def _ack(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        index = subject.rpartition(b".")[2]
        if index.isdigit() and len(index) < 20 and self._unacked.pop(int(index), 0):
            self._acked.happened()

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the pieces of the S2 stream. Raise SnapshotFailed, HistoryUnavailableError, LogError."""
        yield s2.MAGIC
        stream, raw, seq = self._stream, self._head, self._first
        while seq and seq <= self._last:
            if stream.closed or not stream.leading:
                raise SnapshotFailed("500 the stream is not here any more")
            found = await stream.reader.fetch_run(seq, READ_MSGS, READ_BYTES)
            records = [record for record in found if record.seq <= self._last]
            if not records:
                break
            seq = records[-1].seq + 1
            yield await self._encoded(raw, records)
            raw = b""
        yield await in_thread(self._io, lambda: s2.encode(raw + archive.END))

    async def _encoded(self, raw: bytes, records: Sequence[Record]) -> bytes:
        return await in_thread(self._io, lambda: s2.encode(raw + archive.messages(records)))


def _consumer(consumer: Consumer, now: int) -> bytes:
    """Encode a consumer's entry, as of now."""
    ledger, ack_wait = consumer.ledger, consumer.config.ack_wait
    sent = ledger.last_delivered_ns  # in place of the delivery times of messages without a deadline
    pending = {
        str(seq): archive.Pending(first, (ledger.deadline[seq] or sent) - ack_wait)
        for seq, first in ledger.pending.items()
    }
    state = archive.ConsumerState(
        archive.ConsumerPosition(ledger.delivered_consumer, ledger.delivered_stream),
        archive.ConsumerPosition(*ledger.floor()),
        pending,
        {str(seq): count for seq, count in ledger.redelivered.items()},
    )
    config = shown(consumer.config)
    if consumer.config.priority_policy == "none":
        config.pop("priority_policy", None)
    return archive.consumer(consumer.name, now, dumps(config), state)
