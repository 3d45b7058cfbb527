"""Direct gets that are answered with several messages.

Belongs here: the header blocks of direct gets, and sending a run of messages in pieces: at most one piece in an
event-loop turn, no faster than the client reads, from the log and the lake without a gap, closed by the 204 status
(ADR-31).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from lakestream import native
from lakestream.log.format.errors import LogError
from lakestream.log.format.record import Record
from lakestream.log.format.records import Records, chosen, seqs_of
from lakestream.ports import ListedMessages, MessageBlock, PastUnavailableError, Single
from lakestream.protocol.api.errors import for_clients
from lakestream.protocol.gotime import Stamps
from lakestream.stream.core.reader import HistoryUnavailableError

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.features.time_travel import PastMessages


PIECE: Final = 1024
"""Maximum number of messages sent in one event-loop turn."""

PIECE_BYTES: Final = 4 << 20
"""A piece, and one read of the lake, end with the message that reaches this size (4 MiB)."""

DENSE: Final = 8
"""Messages in the lake are read as a range if at least one in this many is wanted, else by their sequences."""

_LINES: Final = b"%b%b%b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
_SINGLE: Final = _LINES + b"\r\n"
_NUMBERED: Final = _LINES + b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
_NUMBERED_NS: Final = _NUMBERED.replace(b"Time-Stamp: %b", b"Time-Stamp: %b.%09dZ")
"""For times with all nine digits of ns, as nine of ten have."""


def status(code: int, text: bytes, lines: bytes = b"") -> bytes:
    """Return a header block with a status; `lines` are whole header lines."""
    return b"NATS/1.0 %d %b\r\n%b\r\n" % (code, text, lines)


def unreadable(error: Exception) -> bytes:
    """Return the status for a message that exists but cannot be read now, with the time of the next attempt if it is
    known."""
    # Not 503: clients take that for a request that nobody answers.
    retry_s = error.retry_s if isinstance(error, HistoryUnavailableError) else 0
    lines = b"Nats-Retry-After: %d\r\n" % retry_s if retry_s else b""
    return status(500, for_clients(error).replace("\r", " ").replace("\n", " ").encode(), lines)


class MessageHeaders:
    """Builds the header blocks of one stream's direct gets: the stored headers, then those of the server."""

    __slots__ = ("_fixed", "_stamps", "stream")

    def __init__(self, stream: str) -> None:
        self.stream = b"Nats-Stream: %b\r\n" % stream.encode()
        self._fixed = self.stream + b"Nats-Subject: "
        self._stamps = Stamps()

    def second(self, time_ns: int) -> bytes:
        """Return the second of a time as text."""
        return self._stamps.second(time_ns)[0]

    def single(self, record: Record) -> bytes:
        """Return the header block of a single message. Hot."""
        return _SINGLE % (
            _opening(record.header) if record.header else b"NATS/1.0\r\n",
            self._fixed,
            record.subject,
            record.seq,
            self._stamps.format(record.time_ns),
        )

    def numbered(self, reply: bytes, records: Sequence[Record], pending: int, last_seq: int) -> MessageBlock:
        """Return the messages to `reply`; `pending` more follow, `last_seq` is the one before the first. Hot."""
        if isinstance(records, Records):
            return GetAnswers(self, records, pending + len(records) - 1, last_seq, to=reply)
        return ListedMessages(self.each(reply, records, pending + len(records) - 1, last_seq), to=reply)

    def each(self, reply: bytes, records: Sequence[Record], pending: int, last_seq: int) -> list[Single]:
        """Return the messages one by one; `pending` follow the first one."""
        fixed, stamps, pending = self._fixed, self._stamps, pending + 1
        messages: list[Single] = []
        append = messages.append
        begin = end = 0  # bounds of the second whose text is `prefix`
        prefix = b""
        for record in records:
            pending -= 1
            seq, time_ns, header = record.seq, record.time_ns, record.header
            if not begin <= time_ns < end:
                prefix, begin, end = stamps.second(time_ns)
            nanos = time_ns - begin
            opening = _opening(header) if header else b"NATS/1.0\r\n"
            if nanos % 10:
                header = _NUMBERED_NS % (opening, fixed, record.subject, seq, prefix, nanos, pending, last_seq)
            else:
                stamp = stamps.format(time_ns)
                header = _NUMBERED % (opening, fixed, record.subject, seq, stamp, pending, last_seq)
            append(Single(reply, b"", header, record.data))
            last_seq = seq
        return messages


class GetAnswers(MessageBlock, gc=False):
    """Messages of a direct get to one reply subject, with the header blocks of `headers`.

    Attributes:
        pending: messages that follow the first one.
        last_seq: sequence of the message before the first one.
    """

    headers: MessageHeaders
    records: Records
    pending: int
    last_seq: int

    def make(self) -> list[Single]:
        return self.headers.each(self.to, self.records, self.pending, self.last_seq)

    def __len__(self) -> int:
        return len(self.records)

    def frames(self, sid: bytes, begin: int, end: int) -> tuple[bytes, int, int, int]:
        it, headers = self.records, self.headers
        if begin or end < len(it):
            return super().frames(sid, begin, end)
        asked = sid, self.to, headers.stream, self.pending, self.last_seq, headers.second
        frames, size = native.frame_direct(it.buf, it.offsets, it.lengths, 0, end, *asked)
        return frames, end, size, end


def _opening(header: bytes) -> bytes:
    """Return a stored header block without its end, so that lines can be appended."""
    if header.endswith(b"\r\n\r\n"):
        return header[:-2]
    return header if header.endswith(b"\r\n") else header + b"\r\n"


def piece_size(limit: int) -> int:
    """Return the number of sequences that are looked for at once, for a run of at most `limit` messages."""
    return max(1, min(PIECE, limit))


class GetRun:
    """Sends a run of messages to one reply subject.

    Args:
        pieces: the requested sequences, ascending, `piece_size` or more at once except the last ones; those deleted
            meanwhile are skipped.
        pending: number of messages that match the request, these included.
        limit: maximum number of messages to send.
        max_bytes: stop after the message with which subjects, headers and payloads reach this size.
        done: called at the end.
        bare: payloads only.
        through: of a multi_last request: the sequence up to which messages count; else 0.
        past: the state of the stream in the past from which the messages are read.
    """

    def __init__(
        self,
        stream: Stream,
        headers: MessageHeaders,
        reply: bytes,
        pieces: Iterator[Sequence[int]],
        pending: int,
        limit: int,
        max_bytes: int,
        done: Callable[[], None],
        *,
        bare: bool = False,
        through: int = 0,
        past: PastMessages | None = None,
    ) -> None:
        self._stream, self._headers, self.reply, self._pieces, self._done = stream, headers, reply, pieces, done
        self._rest: Sequence[int] = ()  # of the present piece
        self._piece_size, self._is_last = piece_size(limit), False
        self._pending, self._left, self._bytes_left, self._bare = pending, limit, max_bytes, bare
        self._last_seq, self._through, self._past = 0, through, past

    def start(self) -> None:
        """Send the next piece; called again in later turns until all are sent."""
        stream = self._stream
        if stream.closed:
            self._done()
            return
        if not stream.bus.writable(self.reply):
            stream.bus.when_writable(self.reply, self.start)
            return
        if not self._rest:
            self._rest = next(self._pieces, ())
            self._is_last = len(self._rest) < self._piece_size
        rest = self._rest
        seqs = rest[: max(min(PIECE, self._left), 0)]
        self._rest = rest[len(seqs) :]
        if seqs and self._past is not None:
            stream.clock.spawn(self._send_from_past(self._past, seqs))
            return
        try:
            if seqs and seqs[0] < stream.store.local_floor:
                stream.clock.spawn(self._send_from_lake(seqs, rest))
                return
            records = stream.store.records_of(seqs, PIECE_BYTES)
        except LogError as error:
            self._break_off(error)
            return
        if records:
            self._rest = rest[bisect_right(rest, records.seqs[-1]) :]  # they did not fit into this piece
        self._deliver(records)

    async def _send_from_lake(self, seqs: Sequence[int], rest: Sequence[int]) -> None:
        """Send a piece with messages that only the lake has."""
        try:
            records, through = await _fetch(self._stream, seqs)
        except Exception as error:
            self._break_off(error)
            raise
        self._rest = rest[bisect_right(rest, through) :]
        if self._stream.closed:
            self._done()
        else:
            self._deliver(records)

    async def _send_from_past(self, past: PastMessages, seqs: Sequence[int]) -> None:
        try:
            records = await past.read(seqs, PIECE_BYTES)
        except Exception as error:
            self._break_off(error)
            if isinstance(error, PastUnavailableError):
                return
            raise
        if self._stream.closed:
            self._done()
        elif records:
            self._rest = [*seqs[bisect_right(seqs, records[-1].seq) :], *self._rest]
            self._deliver(records)
        else:
            self._break_off(PastUnavailableError(f"sequence {seqs[0]} can not be read any more"))

    def _deliver(self, records: Sequence[Record]) -> None:
        """Send these records, then the next piece if there is one, else the end of the batch. Hot."""
        bus, reply, more = self._stream.bus, self.reply, bool(self._rest) or not self._is_last
        if isinstance(records, Records):
            sizes = native.delivery_sizes(records.buf, records.offsets, records.lengths, 0, len(records), b"", 0, 0)
        else:
            sizes = [len(record.subject) + len(record.header) + len(record.data) for record in records]
        if (total := sum(sizes)) >= self._bytes_left:
            keep = bisect_left(list(accumulate(sizes)), self._bytes_left) + 1  # with the one that reaches the limit
            records, more = records[:keep], False
        self._bytes_left -= total
        if self._bare:  # the pending count at the end is then the initial one, as in nats-server
            messages: MessageBlock = ListedMessages(
                [Single(reply, payload=record.data) for record in records], to=reply
            )
        else:
            self._pending -= len(records)
            messages = self._headers.numbered(reply, records, self._pending, self._last_seq)
        if records:
            self._last_seq = seqs_of(records)[-1]
        self._left -= len(messages)
        if messages and not bus.send(messages):
            self._done()  # no subscriber any more
            return
        if more and self._left > 0:
            bus.when_writable(reply, self.start)
            return
        lines = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (self._pending, self._last_seq)
        if self._through:
            lines += b"Nats-UpTo-Sequence: %d\r\n" % self._through
        bus.send(ListedMessages([Single(reply, header=status(204, b"EOB", lines))], to=reply))
        self._done()

    def _break_off(self, error: Exception) -> None:
        self._stream.bus.send(Single(self.reply, header=unreadable(error)))
        self._done()


async def _fetch(stream: Stream, seqs: Sequence[int]) -> tuple[Sequence[Record], int]:
    """Return (the first of these messages, as many of those that still exist as fit into a piece, the sequence through
    which these are all of them). The first of `seqs`, ascending, was only in the lake.

    Raise HistoryUnavailableError when the lake does not answer.
    """
    store, first, last = stream.store, seqs[0], seqs[-1]
    if store.live.count(first, last) <= DENSE * len(seqs):
        run = await stream.reader.fetch_run(first, PIECE, PIECE_BYTES)
        there = seqs_of(run)
        if not there or there[0] > last:
            return [], last
        through = min(there[-1], last)
        if isinstance(seqs, range):
            return run[: bisect_right(there, last)], through
        wanted = set(seqs)
        return chosen(run, [at for at, seq in enumerate(there) if seq in wanted]), through
    remote = seqs[: bisect_left(seqs, store.local_floor)]
    if not (living := store.live.present(remote)):
        return [], remote[-1]
    living = living[: bisect_left(list(accumulate(store.sizes_of(living))), PIECE_BYTES) + 1]
    return await stream.reader.fetch_many(living), living[-1]
