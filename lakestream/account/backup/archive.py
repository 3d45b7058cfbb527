"""Format of stream archives (backups).

Belongs here: encoding and decoding of the entries of nats-server's archive (version 2, since 2.15), without any stream,
client or file. The archive is compressed as an S2 stream (protocol/s2.py); snapshots.py sends and restores.py receives
it.

    NATSARC1
    uvarint name length, varint time (ns), uvarint sequence, uvarint header length, uvarint body length,
        name, header, body          for each entry:
            state.json              sequence 0: the stream's state, with the number of consumers that follow
            consumers/<name>        sequence 0: a consumer's configuration and state
            <subject>               a message, sequences ascending
    five zero bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec

from lakestream.log.format.record import MAX_SUBJECT, Record
from lakestream.protocol import s2
from lakestream.protocol.api.errors import PublicError
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import Int, Time, Uint64, parse
from lakestream.protocol.decoding import DECODE_ERRORS

MAGIC = b"NATSARC1"
END = bytes(5)
"""The last entry of an archive: all its numbers are 0."""
STATE_NAME = b"state.json"
CONSUMERS = b"consumers/"
MAX_ENTRY = 72 << 20
"""Maximum size of a message's header and body together: above the largest max_payload (64 MiB) with headers."""
MAX_JSON = 8 << 20
"""Maximum size of a state or consumer entry (8 MiB)."""
MAX_KEPT = 32 << 20
"""Maximum size of all consumers of an archive (32 MiB), which are in memory together."""
MAX_RATIO = 10_000
"""Maximum ratio of unpacked to packed bytes of an archive that unpacks to more than `MAX_FREE`."""
MAX_FREE = 256 << 20
"""Bytes that any archive may unpack to (256 MiB): messages of zeros unpack to some 20,000 times their size."""
TOO_MANY_CONSUMERS = f"invalid archive: its consumers take more than {MAX_KEPT} bytes"

_INVALID = "archive: invalid archive stream"
_LAST_SEQ = (1 << 64) - 1
_LONGEST_NUMBERS = 5 * 10


class ArchiveError(PublicError):
    """Raised for an archive that cannot be restored, with nats-server's text where it has one."""


class Lost(msgspec.Struct, frozen=True):
    """Messages that a damaged nats-server store has lost."""

    msgs: list[Uint64] | None = None
    bytes: Uint64 = 0


class ArchivedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an archived stream: the body of `state.json`, and part of a restore's request."""

    messages: Uint64 = 0
    bytes: Uint64 = 0
    first_seq: Uint64 = 0
    first_ts: Time = None
    last_seq: Uint64 = 0
    last_ts: Time = None
    num_subjects: Int = 0
    subjects: dict[str, Uint64] | None = None
    num_deleted: Int = 0
    deleted: list[Uint64] | None = None
    lost: Lost | None = None
    consumer_count: Int = 0


Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class ConsumerPosition(msgspec.Struct, frozen=True):
    """A position of a consumer."""

    consumer_seq: Count = 0
    stream_seq: Count = 0


class Pending(msgspec.Struct, frozen=True, rename="pascal"):
    """A delivered message that is not acked: the consumer sequence of its first delivery, the time of its last (ns)."""

    sequence: Count = 0
    timestamp: Count = 0


class ConsumerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a consumer; the keys of both dicts are stream sequences. Times in ns since the epoch."""

    delivered: ConsumerPosition = ConsumerPosition()
    ack_floor: ConsumerPosition = ConsumerPosition()
    pending: dict[str, Pending] = {}
    redelivered: dict[str, Count] = {}


class ArchivedConsumer(msgspec.Struct, frozen=True):
    """An archived consumer. `config` is its configuration as JSON."""

    name: str
    config: bytes
    state: ConsumerState


class _ConsumerJson(msgspec.Struct, frozen=True):
    config: msgspec.Raw = msgspec.Raw()
    state: ConsumerState | None = None


_CONSUMER_JSON = msgspec.json.Decoder(_ConsumerJson)


class ArchiveEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry; see the module."""

    name: bytes
    time_ns: int
    seq: int
    header: bytes
    body: bytes


# ---------------------------------------------------------------------------- writing


def _uvarint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1)
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def entry(name: bytes, time_ns: int, seq: int = 0, header: bytes = b"", body: bytes = b"") -> bytes:
    """Encode one entry."""
    numbers = (len(name), time_ns << 1 if time_ns >= 0 else ~(time_ns << 1), seq, len(header), len(body))
    return b"".join((*map(_uvarint, numbers), name, header, body))


def messages(records: Iterable[Record]) -> bytes:
    """Encode messages as entries."""
    return b"".join(entry(each.subject, each.time_ns, each.seq, each.header, each.data) for each in records)


def consumer(name: str, time_ns: int, config: bytes, state: ConsumerState) -> bytes:
    """Encode a consumer as an entry. `config` is its configuration as JSON."""
    shown: dict[str, Any] = {
        "config": msgspec.Raw(config),
        "state": {
            "delivered": msgspec.structs.asdict(state.delivered),
            "ack_floor": msgspec.structs.asdict(state.ack_floor),
        },
    }
    if state.pending:
        shown["state"]["pending"] = {
            seq: {"Sequence": each.sequence, "Timestamp": each.timestamp} for seq, each in state.pending.items()
        }
    if state.redelivered:
        shown["state"]["redelivered"] = state.redelivered
    return entry(CONSUMERS + name.encode(), time_ns, body=msgspec.json.encode(shown))


# ---------------------------------------------------------------------------- reading


class Bytes:
    """Buffered reader of bytes that come in pieces; holds at most one piece beyond the requested bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = b""
        self._at = 0

    def more(self) -> bool:
        """Append the next piece to the buffer; return False at the end."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        return True

    def peek(self, count: int) -> bytes:
        """Return the next `count` bytes, fewer at the end, without consuming them. `count` is small."""
        while len(self._buffer) - self._at < count and self.more():
            pass
        return self._buffer[self._at : self._at + count]

    def up_to(self, count: int) -> bytes:
        """Consume the next `count` bytes, fewer at the end."""
        found = self._buffer[self._at : self._at + count]
        self._at += len(found)
        if len(found) == count:
            return found
        parts, missing = [found], count - len(found)
        while missing and (piece := next(self._pieces, None)) is not None:
            self._buffer, self._at = piece, min(missing, len(piece))
            parts.append(piece[: self._at])
            missing -= self._at
        return b"".join(parts)

    def take(self, count: int) -> bytes:
        """Consume the next `count` bytes. Raise ArchiveError at the end."""
        found = self.up_to(count)
        if len(found) < count:
            raise ArchiveError(_INVALID)
        return found

    def numbers(self) -> list[int]:
        """Consume the five numbers at the beginning of an entry. Raise ArchiveError."""
        while len(self._buffer) - self._at < _LONGEST_NUMBERS and self.more():
            pass
        buffer, at, end = self._buffer, self._at, len(self._buffer)
        if at == end:
            raise ArchiveError("EOF")
        found = []
        for _ in range(5):
            value = shift = 0
            while True:
                if at == end or shift > 63:
                    raise ArchiveError(_INVALID)
                byte = buffer[at]
                at += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
            found.append(value)
        self._at = at
        return found


def decoded(chunks: Iterable[bytes], most: int = 0) -> Iterator[bytes]:
    """Decode an S2 stream that comes in chunks, one block at a time. Raise ArchiveError.

    `most`: maximum number of decoded bytes; 0: no limit.
    """
    decoder = s2.Decoder()
    packed = unpacked = 0
    try:
        for chunk in chunks:
            packed += len(chunk)
            for piece in decoder.feed(chunk):
                unpacked += len(piece)
                if unpacked > MAX_FREE and unpacked > packed * MAX_RATIO:
                    raise ArchiveError(
                        f"the archive is implausible: {packed} bytes unpack to more than {MAX_RATIO} times as many"
                    )
                if 0 < most < unpacked:
                    raise ArchiveError(
                        f"insufficient storage resources available: it unpacks to more than {most} bytes"
                    )
                yield piece
        decoder.finish()
    except s2.S2Error as error:
        raise ArchiveError(str(error)) from None


class Archive:
    """Reader of an archive: state and consumers are read at once, messages one by one.

    Args:
        pieces: the archive's bytes, without the S2 stream around them.

    Raises:
        ArchiveError: invalid archive, or one that cannot be restored.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._bytes = Bytes(iter(pieces))
        beginning = self._bytes.peek(len(MAGIC))
        if beginning != MAGIC:
            raise ArchiveError("unexpected EOF" if beginning else "EOF")
        self._bytes.take(len(MAGIC))
        self.state = self._state()
        self._kept = 0
        self.consumers = [self._consumer() for _ in range(self.state.consumer_count)]

    def _next(self) -> ArchiveEntry | None:
        """Return the next entry, or None at the end of the archive."""
        name_length, zigzag, seq, header_length, body_length = numbers = self._bytes.numbers()
        if not any(numbers):
            return None
        if max(numbers) > _LAST_SEQ or name_length > MAX_SUBJECT:
            raise ArchiveError(_INVALID)
        if header_length + body_length > (MAX_ENTRY if seq else MAX_JSON):
            raise ArchiveError(_INVALID)
        data = self._bytes.take(name_length + header_length + body_length)
        body_at = name_length + header_length
        time_ns = (zigzag >> 1) ^ -(zigzag & 1)
        return ArchiveEntry(data[:name_length], time_ns, seq, data[name_length:body_at], data[body_at:])

    def _state(self) -> ArchivedState:
        found = self._next()
        if found is None or found.name != STATE_NAME or found.seq:
            raise ArchiveError("expected state.json first")
        try:
            state = parse(found.body, ArchivedState, "StreamState", strict=False)
        except JsonError as error:
            # Go reads it with its stream decoder, which has another text for an early end.
            why = str(error).replace("unexpected end of JSON input", "unexpected EOF")
            raise ArchiveError(f"error in state.json: {why}") from None
        if state.consumer_count < 0:
            raise ArchiveError("invalid stream state: negative consumer count")
        room = state.last_seq - max(state.first_seq, 1) + 1 if state.last_seq >= state.first_seq else 0
        if state.messages > room:
            raise ArchiveError("invalid stream state: message count exceeds sequence range")
        return state

    def _consumer(self) -> ArchivedConsumer:
        found = self._next()
        if found is None or found.seq or not found.name.startswith(CONSUMERS):
            shown = found.name.decode("utf-8", "replace") if found is not None else ""
            raise ArchiveError(f'expected consumer, found "{shown}"')
        self._kept += len(found.body)
        if self._kept > MAX_KEPT:
            raise ArchiveError(TOO_MANY_CONSUMERS)
        name = found.name[len(CONSUMERS) :].decode("utf-8", "replace")
        try:
            read = _CONSUMER_JSON.decode(found.body)
            if read.state is not None and any(
                not seq.isascii() or not seq.isdigit() or len(seq) > 18
                for seq in (*read.state.pending, *read.state.redelivered)
            ):
                raise msgspec.ValidationError("a sequence is none")
        except DECODE_ERRORS as error:
            raise ArchiveError(f'failed to decode consumer "{name}" state: {error}') from None
        if not bytes(read.config):
            raise ArchiveError(f'consumer "{name}" is missing config')
        if read.state is None:
            raise ArchiveError(f'consumer "{name}" is missing state')
        return ArchivedConsumer(name, bytes(read.config), read.state)

    def messages(self) -> Iterator[Record]:
        """Iterate over the messages, ascending. Raise ArchiveError."""
        last = max(self.state.first_seq, 1) - 1
        while (found := self._next()) is not None:
            if not found.seq:
                raise ArchiveError("expected message sequence")
            if found.seq <= last:
                raise ArchiveError(f"message sequence {found.seq} out of order")
            last = found.seq
            yield Record(found.seq, found.time_ns, found.name, found.header, found.body)
