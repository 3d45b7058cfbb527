"""Restoring a backup: `$JS.API.STREAM.RESTORE`.

Belongs here: receiving the chunks that a client sends (docs/internals/api.md#backups), and converting their archive
into entries of a stream's log. archive.py has the archive's format, restore_target.py the new stream, which is hidden
until it is complete.

The chunks are staged in an unnamed file, which ends with the process in any case; only a complete transfer is read.
So the client waits for the restore at the end of its transfer, as with nats-server.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any

import msgspec
from msgspec.structs import replace

from lakestream.account.backup.archive import Archive, ArchivedConsumer, ArchivedState, ArchiveError, decoded
from lakestream.account.backup.archive_tar import TAR_HEADER, TarArchive, is_tar
from lakestream.account.backup.events import BackupEvents
from lakestream.account.backup.restore_target import RestorePart, RestoreTarget, RestoreTargets
from lakestream.account.engine import Engine
from lakestream.log.format.frame import Kind
from lakestream.log.format.record import Record, encode_record
from lakestream.meta.shared import RESTORES_AHEAD
from lakestream.ports import ClientInfo, ListedMessages, Single, singly
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import dumps, parse
from lakestream.protocol.api.request import TYPE_PREFIX, Request
from lakestream.protocol.nuid import nuid
from lakestream.protocol.subjects import finished, matches, valid_subject
from lakestream.stream.awaiting import in_thread
from lakestream.stream.consumer import rules as consumer_rules
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.ledger import Delta, encode_delta
from lakestream.stream.core.config import LAST_SEQ, StreamConfig
from lakestream.stream.core.operations import ConsumerProgress, CreateConsumer, Operation, Skip, encode

STALL_NS = 5_000_000_000
"""A restore without a chunk for this long (5 s) is canceled without a response, as in nats-server."""
MAX_RESTORES = 64
"""Concurrent restores on one server; further ones fail with 10062."""
MAX_AHEAD = 32 << 20
"""Received bytes that are not staged yet (32 MiB); beyond it the restore fails: the client does not wait for acks."""
READ_BYTES = 64 << 10
"""Bytes of the staged archive that are read at a time."""
PART_BYTES = 1 << 20
PART_MSGS = 2048
"""Maximum size and number of messages in one log entry, which is applied in one turn of the event loop."""
MAX_SUBJECT = 4096
"""Maximum size of a message's subject, that of a publish."""


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.RESTORE: the response to the STREAM.SNAPSHOT that made the archive."""

    config: StreamConfig = StreamConfig()
    state: ArchivedState = ArchivedState()


class Restores:
    """The restores whose clients are connected to this server."""

    def __init__(self, engine: Engine, targets: RestoreTargets) -> None:
        self._engine, self._targets = engine, targets
        self._running = 0

    def begin(self, request: Request, config: StreamConfig, state: ArchivedState) -> None:
        """Respond with the subject for the chunks, and receive them. Raise ApiError 10062.

        `state`: the state in the request.
        """
        if self._running >= MAX_RESTORES:
            raise api_error(10062, err=f"{MAX_RESTORES} restores are going on already")
        engine = self._engine
        try:
            staged = engine.shared.stores.files.scratch(engine.options.spool_dir)
        except OSError as error:
            raise api_error(10062, err=f"no file can be made for it: {for_clients(error)}") from None
        events = BackupEvents(engine, "RESTORE", config.name, request)
        self._running += 1
        transfer = _Transfer(engine, config.name, staged)

        def ended(reply: bytes | None) -> None:
            """End the transfer. `reply`: the subject for the outcome; None if no client waits for it."""
            if reply is None:
                self._running -= 1
                engine.io.submit(staged.close, lambda _, __: None)
            else:
                filling = Filling(engine, RestoreTarget(self._targets, config), config, staged, state)
                engine.clock.spawn(self._finish(filling, transfer, events, reply))

        transfer.begin(ended)
        request.respond({"deliver_subject": transfer.subject})
        events.begun()

    async def _finish(self, filling: Filling, transfer: _Transfer, events: BackupEvents, reply: bytes) -> None:
        engine = self._engine
        answer: dict[str, Any] = {"type": f"{TYPE_PREFIX}stream_create_response"}
        try:
            if transfer.failure:
                raise ArchiveError(transfer.failure)
            async with engine.shared.restores.reading:
                answer |= await filling.run()
        except (ArchiveError, OSError, ApiError) as error:
            engine.log.warn(f"stream {transfer.stream}: restore failed: {error}")
            answer["error"] = api_error(10062, err=for_clients(error)).as_dict()
        except BaseException:  # cancellation at shutdown, too
            answer["error"] = api_error(10062, err="internal error").as_dict()
            raise
        finally:
            self._running -= 1
            engine.io.submit(transfer.staged.close, lambda _, __: None)
            events.ended(bytes=transfer.size)
            engine.bus.send(Single(reply, payload=dumps(answer)))


class _Transfer:
    """Receives chunks and writes them to the file `staged`."""

    def __init__(self, engine: Engine, stream: str, staged: IO[bytes]) -> None:
        self._engine, self.stream, self.staged = engine, stream, staged
        self.subject = f"$JS.SNAPSHOT.RESTORE.{stream}.{nuid()}"
        self.size = 0
        """Bytes received."""
        self.failure = ""
        self._chunks: deque[tuple[bytes, bytes]] = deque()
        self._ahead = 0
        self._being_written = 0
        self._room = engine.shared.restores
        self._writing = self._closed = False
        self._last_ns = engine.clock.steady()

    def begin(self, ended: Callable[[bytes | None], None]) -> None:
        """Subscribe; call `ended` once, see `Restores.begin`."""
        self._ended = ended
        self._subscription = self._engine.bus.subscribe(self.subject.encode(), singly(self._on_chunk))
        self._engine.clock.call_later(STALL_NS, self._check_stalled)

    def _check_stalled(self) -> None:
        if self._closed:
            return
        left = self._last_ns + STALL_NS - self._engine.clock.steady()
        if left > 0 or self._writing:
            self._engine.clock.call_later(max(left, STALL_NS // 10), self._check_stalled)
            return
        self._engine.log.warn(f"stream {self.stream}: restore canceled: no chunk received for 5 s")
        self._end(None)

    def _on_chunk(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        if self._closed:
            return
        self._last_ns = self._engine.clock.steady()
        if not reply:
            self._engine.log.warn(f"stream {self.stream}: restore canceled: a chunk has no reply subject")
            self._end(None)
            return
        self.size += len(body)
        self._ahead += len(body)
        self._room.ahead += len(body)
        most = self._engine.options.max_file
        if 0 < most < self.size:
            self.failure = str(api_error(10023))
        elif self._ahead > MAX_AHEAD or self._room.ahead > RESTORES_AHEAD:
            self.failure = "chunks come faster than they are acknowledged"
        if self.failure:
            self._end(reply)
            return
        self._chunks.append((body, reply))
        self._write()

    def _write(self) -> None:
        """Write the received chunks; end the transfer at an empty chunk, once those before it are written."""
        if self._writing or not self._chunks:
            return
        some: list[tuple[bytes, bytes]] = []
        while self._chunks and self._chunks[0][0]:
            some.append(self._chunks.popleft())
        if not some:
            self._end(self._chunks.popleft()[1])
            return

        self._being_written = size = sum(len(body) for body, _ in some)

        def written(_: object, error: BaseException | None) -> None:
            self._writing = False
            self._last_ns = self._engine.clock.steady()
            self._being_written = 0
            self._no_longer_ahead(size)
            if self._closed:
                return
            if error is not None:
                self.failure = f"storage failure during restore: {for_clients(error)}"
                self._end(some[-1][1])
                return
            self._engine.bus.send(ListedMessages([Single(reply) for _, reply in some]))
            self._write()

        self._writing = True
        self._engine.io.submit(lambda: self.staged.writelines(body for body, _ in some), written)

    def _no_longer_ahead(self, size: int) -> None:
        """Subtract bytes that were written or dropped from the received ones."""
        self._ahead -= size
        self._room.ahead -= size

    def _end(self, reply: bytes | None) -> None:
        self._closed = True
        self._chunks.clear()
        self._no_longer_ahead(self._ahead - self._being_written)
        self._subscription.cancel()
        self._ended(reply)


class Filling:
    """Writes a staged archive into the log of a new stream."""

    def __init__(
        self, engine: Engine, target: RestoreTarget, config: StreamConfig, staged: IO[bytes], state: ArchivedState
    ) -> None:
        self._engine, self._target, self._config, self._staged = engine, target, config, staged
        self._state = state
        self._last_seq = self._last_time = 0

    async def run(self) -> dict[str, Any]:
        """Create the stream; return its StreamInfo. Raise ArchiveError, ApiError, OSError; then no stream remains."""
        io, now = self._engine.io, self._engine.clock.now()
        archive = await in_thread(io, self._open)
        consumers = [(each, self._consumer(each)) for each in archive.consumers]
        records = self._checked(archive, self._done_with(consumers), now)
        # Read the first part before the stream is created: an archive invalid from its beginning creates none.
        part = await in_thread(io, lambda: self._part(records))
        target = self._target
        try:
            await target.begin()
        except ApiError as error:
            raise ArchiveError(f"error adding stream: {_with_code(error)}") from None
        try:
            await self._operation(Skip(max(archive.state.first_seq, self._config.first_seq, 1) - 1, 0))
            for saved, config in consumers:
                name = config.durable_name or config.name or saved.name
                start = saved.state.delivered.stream_seq + 1
                await self._operation(CreateConsumer(name, msgspec.json.encode(config), now, start))
            while part is not None:
                await target.put(part)
                part = await in_thread(io, lambda: self._part(records))
            progress = [_progress(saved, config) for saved, config in consumers]
            if progress:
                await target.put(RestorePart(Kind.PROGRESS, encode(progress)))
            await self._operation(Skip(max(archive.state.last_seq, self._last_seq), now))
            return await target.finish()
        except Exception:  # not on cancellation at shutdown: the next start removes it
            with contextlib.suppress(ApiError):
                await target.abandon()
            raise

    async def _operation(self, operation: Operation) -> None:
        await self._target.put(RestorePart(Kind.OPERATION, encode(operation)))

    def _pieces(self) -> Iterator[bytes]:
        """Iterate over the decompressed archive from its beginning. In a thread."""
        self._staged.seek(0)
        return decoded(iter(lambda: self._staged.read(READ_BYTES), b""), self._engine.options.max_file)

    def _open(self) -> Archive | TarArchive:
        """Detect the format and open the archive. In a thread."""
        beginning = b""
        for piece in self._pieces():
            beginning += piece
            if len(beginning) >= TAR_HEADER:
                break
        if is_tar(beginning):
            return TarArchive(self._pieces, self._state)
        return Archive(self._pieces())

    def _done_with(self, consumers: list[tuple[ArchivedConsumer, ConsumerConfig]]) -> Callable[[Record], bool]:
        """Return a predicate for messages that the stream's retention removes: acked by all consumers that match them.
        Messages that match no consumer stay, so that consumers may be created after the stream."""
        if self._config.retention == "limits" or not consumers:
            return lambda record: False
        known = [(config, saved.state, {int(seq) for seq in saved.state.pending}) for saved, config in consumers]

        def done(record: Record) -> bool:
            had = False
            for config, state, pending in known:
                if config.filters and not any(matches(each, record.subject) for each in config.filters):
                    continue
                if record.seq > state.delivered.stream_seq or record.seq in pending:
                    return False
                had = True
            return had

        return done

    def _checked(
        self, archive: Archive | TarArchive, done_with: Callable[[Record], bool], now: int
    ) -> Iterator[Record]:
        """Iterate over the messages to store. Raise ArchiveError."""
        most, first = self._config.max_msg_size, self._config.first_seq
        for record in archive.messages():
            if 0 < most < len(record.header) + len(record.data):
                raise ArchiveError(f"message sequence {record.seq} exceeds maximum message size")
            if record.seq < first:
                why = "expected sequence does not match store"
                raise ArchiveError(f"failed to store message sequence {record.seq}: {why}")
            if record.seq > LAST_SEQ:
                raise ArchiveError(f"message sequence {record.seq} is too large")
            if not _storable(record.subject):
                raise ArchiveError(f"message sequence {record.seq} has an invalid subject")
            # Invariant 5: times never go backwards in a stream, and none is later than now.
            self._last_time = min(max(record.time_ns, self._last_time), now)
            self._last_seq = record.seq
            if done_with(record):
                continue
            yield replace(record, time_ns=self._last_time)

    def _part(self, records: Iterator[Record]) -> RestorePart | None:
        """Return the next messages as one entry, or None after the last. In a thread."""
        encoded: list[bytes] = []
        size = 0
        for record in records:
            encoded.append(encode_record(record.seq, record.time_ns, record.subject, record.header, record.data))
            size += len(encoded[-1])
            if size >= PART_BYTES or len(encoded) == PART_MSGS:
                break
        return RestorePart(Kind.MESSAGES, b"".join(encoded), len(encoded)) if encoded else None

    def _consumer(self, saved: ArchivedConsumer) -> ConsumerConfig:
        """Return the configuration of an archived consumer. Raise ArchiveError."""
        options = self._engine.options
        caps = consumer_rules.ConsumerCaps(
            max_ack_pending=options.max_ack_pending, max_request_batch=options.max_request_batch
        )
        try:
            read = parse(saved.config, ConsumerConfig, strict=False)
            config = consumer_rules.completed(read, self._config, caps, False)
            consumer_rules.check(config, self._config, caps, finished(consumer_rules.check_filters(config)))
        except JsonError as error:
            raise ArchiveError(f'failed to decode consumer "{saved.name}" state: {error}') from None
        except ApiError as error:
            raise ArchiveError(f'failed to add consumer "{saved.name}": {_with_code(error)}') from None
        return config


def _with_code(error: ApiError) -> str:
    return f"{error} ({error.err_code})"


def _storable(subject: bytes) -> bool:
    """Return True if a message of this subject can be delivered."""
    blank = any(each in subject for each in (b" ", b"\t", b"\r", b"\n"))
    return not blank and len(subject) <= MAX_SUBJECT and valid_subject(subject)


def _progress(saved: ArchivedConsumer, config: ConsumerConfig) -> ConsumerProgress:
    """Return the progress of an archived consumer for a log entry."""
    state = saved.state
    timed = config.ack_policy != "flow_control"  # which has no ack deadlines
    pending = sorted(
        (int(seq), each.sequence, each.timestamp + config.ack_wait if timed else 0)
        for seq, each in state.pending.items()
    )
    whole = Delta(
        epoch=0,
        delivered_consumer=state.delivered.consumer_seq,
        delivered_stream=state.delivered.stream_seq,
        floor_consumer=state.ack_floor.consumer_seq,
        floor_stream=state.ack_floor.stream_seq,
        next_seq=state.delivered.stream_seq + 1,
        last_delivered_ns=0,
        last_ack_ns=0,
        pending=pending,
        redelivered=sorted((int(seq), count) for seq, count in state.redelivered.items()),
        gone=[],
        whole=True,
    )
    return ConsumerProgress(config.durable_name or config.name or saved.name, encode_delta(whole))
