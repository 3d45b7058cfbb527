"""Several messages in answer to one direct get.

Belongs here: the header blocks of direct gets, and sending a run of messages piece by piece: never more in one
event-loop turn than a piece, never faster than the client reads, from the log or from the lake without a gap, closed
by the 204 status (ADR-31).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Final

from lakestream.log.format.errors import LogError
from lakestream.log.format.record import Record
from lakestream.ports import Delivery, PastUnavailableError
from lakestream.protocol.api.errors import for_clients
from lakestream.protocol.gotime import Stamps
from lakestream.stream.assembly import Stream
from lakestream.stream.features.time_travel import Found

PIECE: Final = 1024
"""Most messages sent in one event-loop turn."""

PIECE_BYTES: Final = 4 << 20
"""No further message is added to a piece of this size (4 MiB), nor asked of the lake in one read."""

DENSE: Final = 8
"""Lake messages are read as a range while at least one in this many of it is wanted, else exactly those wanted."""

_LINES: Final = b"%b%b%b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
_SINGLE: Final = _LINES + b"\r\n"
_NUMBERED: Final = _LINES + b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
_NUMBERED_NS: Final = _NUMBERED.replace(b"Time-Stamp: %b", b"Time-Stamp: %b.%09dZ")
"""With a time that has all nine digits of ns, as nine of ten have."""


def status(code: int, text: bytes, lines: bytes = b"") -> bytes:
    """A header block that is only a status; `lines` are whole header lines."""
    return b"NATS/1.0 %d %b\r\n%b\r\n" % (code, text, lines)


def unreadable(error: Exception) -> bytes:
    """Return the status for a message that exists but cannot be read now."""
    return status(500, for_clients(error).replace("\r", " ").replace("\n", " ").encode())


class MessageHeaders:
    """Writes the header blocks of one stream's direct gets: the stored headers, then what the server adds."""

    __slots__ = ("_fixed", "_stamps")

    def __init__(self, stream: str) -> None:
        self._fixed = b"Nats-Stream: %b\r\nNats-Subject: " % stream.encode()
        self._stamps = Stamps()

    def single(self, record: Record) -> bytes:
        """For one message on its own. Hot."""
        return _SINGLE % (
            _opening(record.header) if record.header else b"NATS/1.0\r\n",
            self._fixed,
            record.subject,
            record.seq,
            self._stamps.format(record.time_ns),
        )

    def numbered(self, reply: bytes, records: Sequence[Record], pending: int, last_seq: int) -> list[Delivery]:
        """Messages to `reply`, of which `pending` come after the last; `last_seq` is the one before the first. Hot."""
        fixed, stamps, pending = self._fixed, self._stamps, pending + len(records)
        messages: list[Delivery] = []
        append = messages.append
        begin = end = 0  # of the second that `prefix` is the text of
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
            append((reply, b"", header, record.data))
            last_seq = seq
        return messages


def _opening(header: bytes) -> bytes:
    """A stored block up to where lines can be added."""
    if header.endswith(b"\r\n\r\n"):
        return header[:-2]
    return header if header.endswith(b"\r\n") else header + b"\r\n"


class Run:
    """Messages on their way to one reply subject.

    Args:
        seqs: the sequences wanted, ascending; those that are gone when their turn comes are left out.
        pending: how many messages the request matches, these included.
        limit: the most to send.
        max_bytes: send no further message once subjects, headers and payloads have come to this.
        bare: payloads only.
        through: > 0: the sequence up to which the newest messages of several subjects were looked for.
        past: the messages are those of the past that it names, read from wherever they are now.
    """

    def __init__(
        self,
        stream: Stream,
        headers: MessageHeaders,
        reply: bytes,
        seqs: Iterator[int],
        pending: int,
        limit: int,
        max_bytes: int,
        *,
        bare: bool = False,
        through: int = 0,
        past: Found | None = None,
    ) -> None:
        self._stream, self._headers, self._reply, self._seqs = stream, headers, reply, seqs
        self._pending, self._left, self._bytes_left, self._bare = pending, limit, max_bytes, bare
        self._last_seq, self._through, self._past = 0, through, past

    def start(self) -> None:
        """Send the first piece now, the others in later turns, in which this is called again."""
        stream = self._stream
        if stream.closed:
            return
        most = max(min(PIECE, self._left), 0)
        seqs = list(islice(self._seqs, most))
        more = len(seqs) == most
        if seqs and self._past is not None:
            stream.clock.spawn(self._send_from_past(self._past, seqs))
            return
        try:
            if seqs and seqs[0] < stream.store.local_floor:
                fitting = self._fitting(seqs)
                stream.clock.spawn(self._send_from_lake(fitting, more or len(fitting) < len(seqs)))
                return
            records = stream.store.read_many(seqs, PIECE_BYTES)
        except LogError as error:
            self._break_off(error)
            return
        if records and records[-1].seq != seqs[-1]:
            self._put_back(seqs[bisect_right(seqs, records[-1].seq) :])
            more = True
        self._deliver(records, more)

    def _put_back(self, seqs: list[int]) -> None:
        """These did not fit into this piece, or are gone; the next one begins with them."""
        self._seqs = chain(seqs, self._seqs)

    def _fitting(self, seqs: list[int]) -> list[int]:
        """Return as many of these as one piece holds, at least one; put the others back."""
        size, size_of = 0, self._stream.store.size_of
        for at, seq in enumerate(seqs, 1):
            size += size_of(seq)
            if size >= PIECE_BYTES:
                self._put_back(seqs[at:])
                return seqs[:at]
        return seqs

    async def _send_from_lake(self, seqs: list[int], more: bool) -> None:
        """Send a piece of which some messages are in the lake only."""
        try:
            records = await fetch_many(self._stream, seqs)
        except Exception as error:
            self._break_off(error)
            raise
        if not self._stream.closed:
            self._deliver(records, more)

    async def _send_from_past(self, past: Found, seqs: list[int]) -> None:
        try:
            records = await past.read(seqs, PIECE_BYTES)
        except Exception as error:
            self._break_off(error)
            if isinstance(error, PastUnavailableError):
                return
            raise
        if self._stream.closed:
            return
        if records:
            self._put_back(seqs[bisect_right(seqs, records[-1].seq) :])
            self._deliver(records, True)
        else:
            self._break_off(PastUnavailableError(f"sequence {seqs[0]} can not be read any more"))

    def _deliver(self, records: Sequence[Record], more: bool) -> None:
        """Send these, then go on with `more`, or end. Hot."""
        bus, reply = self._stream.bus, self._reply
        sizes = [len(record.subject) + len(record.header) + len(record.data) for record in records]
        if (total := sum(sizes)) >= self._bytes_left:
            keep = bisect_left(list(accumulate(sizes)), self._bytes_left) + 1  # the one that reaches the limit goes
            records, more = records[:keep], False
        self._bytes_left -= total
        if self._bare:  # the pending at the end then stays what it was, as in nats-server
            messages = [(reply, b"", b"", record.data) for record in records]
        else:
            self._pending -= len(records)
            messages = self._headers.numbered(reply, records, self._pending, self._last_seq)
        if records:
            self._last_seq = records[-1].seq
        self._left -= len(messages)
        more = more and self._left > 0
        if not more:
            lines = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (self._pending, self._last_seq)
            if self._through:
                lines += b"Nats-UpTo-Sequence: %d\r\n" % self._through
            messages.append((reply, b"", status(204, b"EOB", lines), b""))
        if messages and not bus.deliver(reply, messages):
            return  # nobody listens any more
        if more:
            bus.when_writable(reply, self.start)

    def _break_off(self, error: Exception) -> None:
        self._stream.bus.publish(self._reply, b"", unreadable(error), b"")


async def fetch_many(stream: Stream, seqs: Sequence[int]) -> list[Record]:
    """The messages with these sequences (ascending) that still exist, from the lake and the log.

    Raises HistoryUnavailableError when the lake does not answer.
    """
    store = stream.store
    border = store.local_floor
    remote = [seq for seq in seqs if seq < border]
    if remote and store.live.count(remote[0], remote[-1]) <= DENSE * len(remote):
        records = await _fetch_range(stream, remote)
    else:
        records = await stream.reader.fetch_many(remote)
    # What was local may have moved to the lake meanwhile: the stream knows where each lies now.
    local = seqs[len(remote) :]
    here = {record.seq: record for record in store.read_many(local)}
    for seq in local:
        record = here.get(seq) or (await stream.reader.fetch(seq) if seq in store.live else None)
        if record is not None:
            records.append(record)
    return records


async def _fetch_range(stream: Stream, seqs: list[int]) -> list[Record]:
    wanted, last, at = set(seqs), seqs[-1], seqs[0]
    found: list[Record] = []
    while at <= last:
        run = await stream.reader.fetch_run(at, PIECE, PIECE_BYTES)
        if not run:
            break
        found += [record for record in run if record.seq in wanted]
        at = run[-1].seq + 1
    return found
