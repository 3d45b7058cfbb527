"""Stream archives of nats-server 2.14 and earlier.

Belongs here: reading a tar file with the files of a nats-server stream (backups of version 1): its message blocks and
its consumers' states, without a file or stream of lakestream. archive.py has the present format.

    meta.inf                    the configuration; unused, as the restore request has it, too
    msgs/<n>.blk                consecutive records, little-endian:
        u32 length (bit 31: has a header block), u64 sequence (bit 63: erased, bit 62: tombstone of that sequence),
        i64 time, u16 subject length, subject, [u32 header length, header,] payload, 8 bytes of checksum
    obs/<name>/meta.inf, o.dat  a consumer's configuration and state

The restore request has the first and last sequence and the message count. A backup whose blocks hold another number of
messages is rejected: then they lack the tombstones of deleted messages.
"""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, cast

import msgspec

from lakestream.account.backup.archive import (
    MAX_ENTRY,
    MAX_JSON,
    MAX_KEPT,
    TOO_MANY_CONSUMERS,
    ArchivedConsumer,
    ArchivedState,
    ArchiveError,
    Bytes,
    ConsumerPosition,
    ConsumerState,
    Pending,
)
from lakestream.log.format.record import Record
from lakestream.log.index.sequences import SequenceSet
from lakestream.protocol.decoding import DECODE_ERRORS

READ_BYTES = 256 << 10
"""Bytes that are read at a time from a file in the tar."""

MAX_EXTENDED = 64 << 10
"""Maximum size of an extended tar header, for long names (64 KiB)."""

TAR_HEADER = 512
"""Size of the header by which a tar file is recognized."""

_ERASED, _TOMBSTONE, _HEADERS = 1 << 63, 1 << 62, 1 << 31
_HEAD = struct.Struct("<IQqH")
_CHECKSUM = 8
_STATE_MAGIC = 22


def is_tar(beginning: bytes) -> bool:
    """Return True if these are the first bytes of a tar file."""
    return beginning[257:262] == b"ustar"


class _Piped:
    """File object over pieces of bytes, for `tarfile`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.read = Bytes(pieces).up_to


class _Member(tarfile.TarInfo):
    """A member of the tar, with a limit for its extended header, which `tarfile` reads as a whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Limit the extended header; see `tarfile.TarInfo.frombuf`. Raise tarfile.ReadError."""
        member = super().frombuf(buf, encoding, errors)
        if member.type not in tarfile.REGULAR_TYPES and member.size > MAX_EXTENDED:
            raise tarfile.ReadError(f"a header is larger than {MAX_EXTENDED} bytes")
        return member


class TarArchive:
    """Reader like `archive.Archive`; each call of `pieces` returns the archive's bytes from the beginning."""

    def __init__(self, pieces: Callable[[], Iterable[bytes]], state: ArchivedState) -> None:
        self._pieces, self.state = pieces, state
        configs: dict[str, bytes] = {}
        states: dict[str, bytes] = {}
        self._live, kept = SequenceSet(), 0
        for name, file in self._files():
            parts = name.split("/")
            if parts[0] == "obs" and len(parts) == 3 and parts[2] in ("meta.inf", "o.dat"):
                (configs if parts[2] == "meta.inf" else states)[parts[1]] = whole = _whole(file, MAX_JSON)
                kept += len(whole)
                if kept > MAX_KEPT:
                    raise ArchiveError(TOO_MANY_CONSUMERS)
            elif _is_block(name):
                self._survey(file)
        self.consumers = [_consumer(name, config, states.get(name)) for name, config in configs.items()]
        if len(self._live) != state.messages:
            raise ArchiveError(
                f"the blocks hold {len(self._live)} messages and the state says {state.messages}: restore it with "
                "nats-server, and take a new snapshot there"
            )

    def messages(self) -> Iterator[Record]:
        """Iterate over the messages, ascending. Raise ArchiveError."""
        last = 0
        for name, file in self._files():
            if not _is_block(name):
                continue
            for record in _records(file):
                if record.seq & (_ERASED | _TOMBSTONE) or record.seq not in self._live:
                    continue
                if record.seq <= last:
                    raise ArchiveError(f"message sequence {record.seq} out of order")
                last = record.seq
                yield record

    def _survey(self, file: IO[bytes]) -> None:
        for record in _records(file):
            seq = record.seq & ~(_ERASED | _TOMBSTONE)
            if record.seq & _TOMBSTONE:
                self._live.discard(seq)
            elif not record.seq & _ERASED and self.state.first_seq <= seq <= self.state.last_seq and seq:
                self._live.add_run(seq, seq)

    def _files(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Iterate over names and contents, to be read in this order. Raise ArchiveError."""
        try:
            piped = cast(IO[bytes], _Piped(iter(self._pieces())))
            with tarfile.open(fileobj=piped, mode="r|", tarinfo=_Member) as tar:
                for member in tar:
                    file = tar.extractfile(member) if member.isreg() else None
                    if file is not None:
                        yield member.name.removeprefix("./"), file
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ArchiveError(f"invalid archive: {error}") from None


def _is_block(name: str) -> bool:
    directory, _, file = name.partition("/")
    return directory == "msgs" and file.endswith(".blk") and file[:-4].isdigit()


def _whole(file: IO[bytes], most: int) -> bytes:
    try:
        found = file.read(most + 1)
    except (tarfile.TarError, OSError) as error:
        raise ArchiveError(f"invalid archive: {error}") from None
    if len(found) > most:
        raise ArchiveError(f"invalid archive: a file is larger than {most} bytes")
    return found


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Iterate over a file's content. Raise ArchiveError if the tar ends within it."""
    try:
        while piece := file.read(READ_BYTES):
            yield piece
    except (tarfile.TarError, OSError) as error:
        raise ArchiveError(f"invalid archive: {error}") from None


def _records(file: IO[bytes]) -> Iterator[Record]:
    """Iterate over a block's records, whose sequences include the flag bits. Raise ArchiveError."""
    source = Bytes(_pieces(file))
    while head := source.peek(_HEAD.size):
        if len(head) < _HEAD.size:
            raise ArchiveError("invalid archive: a block is cut short")
        length, seq, time_ns, subject_length = _HEAD.unpack(head)
        has_header, length = bool(length & _HEADERS), length & ~_HEADERS
        subject_at = _HEAD.size
        data_at, data_end = subject_at + subject_length, length - _CHECKSUM
        header = b""
        if length > MAX_ENTRY or data_at > data_end:
            raise ArchiveError("invalid archive: a block is damaged")
        block = source.take(length)
        if has_header and not seq & _ERASED:
            header_end = data_at + 4 + int.from_bytes(block[data_at : data_at + 4], "little")
            if header_end > data_end:
                raise ArchiveError("invalid archive: a block is damaged")
            header, data_at = block[data_at + 4 : header_end], header_end
        subject = block[subject_at : subject_at + subject_length]
        yield Record(seq, time_ns, subject, header, block[data_at:data_end])


def _consumer(name: str, config: bytes, state: bytes | None) -> ArchivedConsumer:
    try:
        read = msgspec.json.decode(config, type=dict[str, msgspec.Raw])
        kept = msgspec.json.encode({key: value for key, value in read.items() if key not in ("Created", "Name")})
        return ArchivedConsumer(name, kept, _state(state) if state else ConsumerState())
    except (*DECODE_ERRORS, IndexError, ValueError) as error:
        raise ArchiveError(f'failed to decode consumer "{name}" state: {error}') from None


def _state(data: bytes) -> ConsumerState:
    """Decode a consumer's `o.dat`. Raise ValueError, IndexError."""
    if data[0] != _STATE_MAGIC or data[1] not in (1, 2):
        raise ValueError("unknown version")
    at, newer = 2, data[1] == 2

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if value >= 1 << 62:
                raise ValueError("a number is too large")
            if byte < 0x80:
                return value
            shift += 7

    def signed() -> int:
        value = number()
        return (value >> 1) ^ -(value & 1)

    floor = ConsumerPosition(number(), number())
    delivered = ConsumerPosition(number(), number())
    if not newer:  # version 1 stores `delivered` relative to the floor
        delivered = ConsumerPosition(
            delivered.consumer_seq + max(floor.consumer_seq - 1, 0), delivered.stream_seq + max(floor.stream_seq - 1, 0)
        )
    pending: dict[str, Pending] = {}
    if count := number():
        latest = signed()
        for _ in range(count):
            seq = number() + floor.stream_seq
            first = number() + floor.consumer_seq if newer else 0
            seconds = latest - signed()
            if not 0 <= seconds < 1 << 32:
                raise ValueError("a time is none")
            pending[str(seq)] = Pending(first, seconds * 1_000_000_000)
    redelivered = {str(number() + floor.stream_seq): number() for _ in range(number())}
    return ConsumerState(delivered, floor, pending, redelivered)
