"""The checkpoint of a store: its state at one index, from which recovery starts.

Belongs here: the checkpoint file and its encoding. A checkpoint replaces the one before in one durable step, so there
is always a complete one. It also holds the state of the store's owner, as opaque bytes.

    magic, u32 version, u64 length of the state, u64 length of the subject index, u32 crc of what follows
    MessagePack `StoreState`, and the version once more: the crc does not cover the first one
    the subject index: blocks (index/cold_rows.py) in order, since version 4 blocks of the store's owner behind them,
    MessagePack `_Directory` of all blocks, u32 length of that

It is written in parts, and an index of many subjects stays in the file when it is opened, as the owner's blocks do: the
start of a stream does not depend on the number of its subjects. Version 1 had all names, then all sequences. Version 4
is written only if there are blocks of the owner.
"""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import NamedTuple
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog, StoreVersionError
from lakestream.log.format.files import Files
from lakestream.log.format.pieces import FiledPart, Pieces, bytes_of, map_of
from lakestream.log.format.runs import SchemaRun
from lakestream.log.index.cold_rows import BlockFile, FileBlock, checked
from lakestream.log.index.histories import pack
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.index.subject_leaves import IndexSnapshot as Subjects
from lakestream.protocol.decoding import DECODE_ERRORS, PackDecoder

NAME = "checkpoint"
TEMPORARY = ".tmp"
"""Suffix of the file while it is being written."""
VERSION = 4
PLAIN_VERSION = 3
"""Version without blocks of the owner."""
LEFT_SUBJECTS = 1 << 15
"""An index with more subjects stays in the file when it is opened."""
WRITE_BYTES = 1 << 20
"""About this many bytes are written or read at once."""

_MAGIC = b"LKCP"
_HEAD = struct.Struct("<4sIQQI")
HEAD_SIZE = _HEAD.size
_REBUILD = " (if the log still has its first segment, remove the checkpoint: it is rebuilt from the log)"


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the store at `index`, except the subject index and the places of records.

    `removed` are the sequences removed since the segment that begins with `opened_index` was begun, `erased_runs` are
    runs (u64 first, last) of those that a client asked for, `shredded` those that were securely deleted, `departures`
    all removals with their times (format/departures.py; None if the stream does not keep them), and `moved` is True if
    there were any; `schemas` are those of the segment's messages (None in checkpoints of older releases); `size` is the
    stream's bytes; `live` is a SequenceSet; `based`: the stream began with a copy (base.py). Times in ns.
    """

    index: int
    uid: str
    stream: str
    account: str
    config: bytes
    size: int
    first_seq: int
    last_seq: int
    last_time: int
    opened_index: int
    removed: list[int]
    moved: bool
    live: bytes
    extra: bytes
    erased: list[int] = []  # written by releases before `erased_runs`
    shredded: list[int] = []
    departures: bytes | None = None
    based: bool = False
    erased_runs: bytes = b""
    schemas: tuple[SchemaRun, ...] | None = None


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    """The version in a state. Earlier releases wrote none."""

    version: int = 0


_STATE = PackDecoder(StoreState)
_FORMAT = PackDecoder(_Format)


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of the state, taken in the event loop and written in a thread. `extra`: in the place of the state's, with
    its blocks."""

    state: StoreState
    subjects: Subjects
    extra: Pieces = Pieces()


class StoredState(NamedTuple):
    """A checkpoint that was read. `blocks`: those of the owner, in the file; `size`: its length in bytes."""

    state: StoreState
    subjects: SubjectIndex
    size: int
    blocks: Sequence[FileBlock] = ()


class _Directory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Directory of the blocks: their first subjects, and arrays of u32 with their lengths and numbers of rows.
    `others`: the lengths of the owner's blocks."""

    firsts: list[bytes]
    lengths: bytes
    rows: bytes
    others: bytes = b""


_DIRECTORY = PackDecoder(_Directory)


def write_checkpoint(files: Files, path: str, snapshot: Snapshot) -> int:
    """Write a checkpoint, durably, over the one before; return its size in bytes. Block.

    Raise OSError, and CorruptLog when a block that is to be copied is damaged.
    """
    temporary = path + TEMPORARY
    fd = files.create(temporary)
    try:
        try:
            end = _write(files, fd, snapshot)
        finally:
            files.close(fd)
        files.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error matters more, and recovery removes the file
            files.remove(temporary)  # on a full disk it takes space
        raise
    files.sync_directory(os.path.dirname(path))
    return end


def _write(files: Files, fd: int, snapshot: Snapshot) -> int:
    blocks = snapshot.extra.blocks
    version = VERSION if blocks else PLAIN_VERSION
    fields = msgspec.structs.asdict(snapshot.state) | {"version": version}
    if snapshot.extra:
        fields["extra"] = bytes_of(snapshot.extra)
    state = map_of(fields)
    size = sum(map(len, state))
    crc, end = 0, HEAD_SIZE
    for part in _gathered(_parts(state, snapshot.subjects, blocks)):
        files.write(fd, [part], end)
        crc, end = crc32(part, crc), end + len(part)
    files.write(fd, [_HEAD.pack(_MAGIC, version, size, end - HEAD_SIZE - size, crc)], 0)
    files.sync(fd)
    return end


def _parts(state: Pieces, subjects: Subjects, blocks: Sequence[bytes | FiledPart]) -> Iterator[bytes]:
    yield from state
    firsts: list[bytes] = []
    lengths, rows, others = array("I"), array("I"), array("I")
    for first, count, block in subjects.blocks():
        firsts.append(first)
        lengths.append(len(block))
        rows.append(count)
        yield block
    for each in blocks:
        block = checked(each) if isinstance(each, bytes) else each.read()
        others.append(len(block))
        yield block
    directory = msgspec.msgpack.encode(_Directory(firsts, lengths.tobytes(), rows.tobytes(), others.tobytes()))
    yield directory
    yield len(directory).to_bytes(4, "little")


def _gathered(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer, longer parts."""
    some: list[bytes] = []
    size = 0
    for part in parts:
        some.append(part)
        size += len(part)
        if size >= WRITE_BYTES:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)


def recover_checkpoint(files: Files, path: str, present: Collection[str]) -> StoredState | None:
    """Read the checkpoint of a stream that is not open, and remove the remains of an interrupted write; see
    `read_checkpoint`.

    `present`: the names in its directory.
    """
    name = os.path.basename(path)
    if name + TEMPORARY in present:
        files.remove(path + TEMPORARY)
    return read_checkpoint(files, path) if name in present else None


def read_checkpoint(files: Files, path: str) -> StoredState | None:
    """Return the checkpoint, or None when there is none. Block.

    Raise CorruptLog when it is damaged, StoreVersionError when a newer release wrote it, OSError.
    """
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return None
    file = BlockFile(files, path, fd, scratch=False)  # closed when its last block is released
    head = file.read(0, HEAD_SIZE)
    if len(head) < HEAD_SIZE:
        raise CorruptLog(path, 0, "the checkpoint is cut short" + _REBUILD)
    magic, version, state_length, subjects_length, crc = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise CorruptLog(path, 0, "this is not a checkpoint" + _REBUILD)
    size = HEAD_SIZE + state_length + subjects_length
    length = files.size(fd)
    if not 1 <= version <= VERSION:
        if (
            length == size
            and _crc_of(file, HEAD_SIZE, size, 0) == crc
            and _is_of_this_format(file.read(HEAD_SIZE, state_length))
        ):
            raise CorruptLog(path, len(_MAGIC), "the version of the checkpoint is damaged" + _REBUILD)
        raise StoreVersionError(f"{path} has version {version}, this release reads {VERSION}: run a newer lakestream")
    if length != size:
        raise CorruptLog(path, length, "the checkpoint does not have the length that it claims" + _REBUILD)
    # What is checked is what is used: another read of the same bytes need not return the same.
    at = HEAD_SIZE + state_length
    encoded = file.read(HEAD_SIZE, state_length)
    if version == 1:
        index = file.read(at, subjects_length)
        found = crc32(index, crc32(encoded))
    else:
        directory, at_directory = _read_directory(file, at, size)
        found = crc32(directory, _crc_of(file, at, at_directory, crc32(encoded)))
    if found != crc:
        raise CorruptLog(path, HEAD_SIZE, "the crc of the checkpoint does not match" + _REBUILD)
    try:
        state = _STATE.decode(encoded)
        stated = _FORMAT.decode(encoded).version
        if stated != version and (stated or version > PLAIN_VERSION):
            raise CorruptLog(path, len(_MAGIC), "the version of the checkpoint is damaged" + _REBUILD)
        if version == 1:
            return StoredState(state, _first_version(index), size)
        return StoredState(state, *_read_blocks(file, at, directory, at_directory, state.last_seq, size))
    except (*DECODE_ERRORS, ValueError, IndexError, OverflowError, struct.error) as error:
        raise CorruptLog(path, HEAD_SIZE, f"the content of the checkpoint makes no sense: {error}{_REBUILD}") from error


def _is_of_this_format(state: bytes) -> bool:
    """Return True if a state, whose crc is right, names a version that this release writes."""
    try:
        return PLAIN_VERSION <= _FORMAT.decode(state).version <= VERSION
    except DECODE_ERRORS:
        return False


def _crc_of(file: BlockFile, start: int, end: int, crc: int) -> int:
    for at in range(start, end, WRITE_BYTES):
        crc = crc32(file.read(at, min(WRITE_BYTES, end - at)), crc)
    return crc


def _read_directory(file: BlockFile, start: int, end: int) -> tuple[bytes, int]:
    """Return the directory of the blocks with its length behind it, and its offset."""
    length = int.from_bytes(file.read(end - 4, 4), "little")
    at = max(end - 4 - length, start)
    return file.read(at, end - at), at


def _read_blocks(
    file: BlockFile, at: int, encoded: bytes, end: int, last_seq: int, size: int
) -> tuple[SubjectIndex, int, list[FileBlock]]:
    """Return the subject index, `size`, and the blocks of the owner."""
    length = int.from_bytes(encoded[-4:], "little")
    if length + 4 != len(encoded):
        raise ValueError(f"a directory of {length} bytes where {len(encoded) - 4} belong")
    directory = _DIRECTORY.decode(encoded[:-4])
    rows, lengths, others = (array("I", each) for each in (directory.rows, directory.lengths, directory.others))
    if at + sum(lengths) + sum(others) != end:
        raise ValueError(f"blocks of {sum(lengths) + sum(others)} bytes in an index of {end - at}")
    counts = [*rows, *repeat(0, len(others))]
    places = pairwise(accumulate(chain(lengths, others), initial=at))
    blocks = [FileBlock(file, start, stop - start, some) for (start, stop), some in zip(places, counts, strict=True)]
    blocks, owned = blocks[: len(lengths)], blocks[len(lengths) :]
    if sum(rows) > LEFT_SUBJECTS:
        return SubjectIndex.cold(directory.firsts, blocks, last_seq), size, owned
    found: dict[bytes, int] = {}
    for block in blocks:
        found.update(block.rows())
    return SubjectIndex.over(found), size, owned


def _first_version(data: bytes) -> SubjectIndex:
    """Decode a checkpoint of releases before 0.2."""
    at = 4 + int.from_bytes(data[:4], "little")
    sections: list[bytes] = []
    for size in msgspec.msgpack.decode(data[4:at], type=list[int]):
        sections.append(data[at : at + size])
        at += size
    last, counts = array("Q", sections[2]), array("Q", sections[3])
    ends = pairwise(accumulate(array("I", sections[1]), initial=0))
    found: dict[bytes, int] = {}
    for (start, stop), newest, count in zip(ends, last, counts, strict=True):
        earlier = array("Q", data[at : at + 8 * count])
        at += 8 * count
        found[sections[0][start:stop]] = pack([*earlier, newest])
    return SubjectIndex.over(found)
