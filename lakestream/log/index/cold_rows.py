"""Rows of the subject index outside of memory.

Belongs here: a block (some hundred subjects in order with their sequences, as bytes that are never changed), finding
one subject in it without decoding the others, and the files that blocks lie in: the checkpoint that a store was opened
from, and a scratch file for what was taken out of memory since. The scratch file has no name, so that a crash leaves
nothing to clean up.

    u32 crc of what follows, u32 number of rows, u32 length of the names, u32 1 when every row has one sequence
    the names in byte order, a space before each and behind the last (no subject contains one)
    unless every row has one: u32 number of sequences by row
    u64 the sequences, row by row, the newest first
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from zlib import crc32

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.index.histories import count

UNIT = 512
"""Places in a scratch file are 1, 1.5, 2, 3, 4, 6, … times as long, so that one that becomes free fits other blocks of
about its length, and blocks that grow leave little behind."""

_HEAD = struct.Struct("<IIII")
_one = struct.Struct("<Q").unpack_from


class BlockFile:
    """A file with blocks. It is closed when no block lies in it any more."""

    __slots__ = ("_end", "_fd", "_files", "_free", "path", "scratch")

    def __init__(self, files: Files, path: str, fd: int, *, scratch: bool) -> None:
        self.path, self.scratch = path, scratch
        self._files, self._fd = files, fd
        self._end = 0
        self._free: dict[int, list[int]] = {}  # how long → where so much is free

    @classmethod
    def make_scratch(cls, files: Files, path: str) -> BlockFile:
        """A new file without a name. Raises OSError."""
        fd = files.create(path)
        try:
            files.remove(path)
        except BaseException:
            files.close(fd)
            raise
        return cls(files, path, fd, scratch=True)

    @property
    def size(self) -> int:
        """How long a scratch file is."""
        return self._end

    def read(self, offset: int, length: int) -> bytes:
        """The bytes there. Raises OSError."""
        return self._files.read_at(self._fd, length, offset)

    def write(self, data: bytes) -> Block:
        """Put an encoded block into a scratch file. Raises OSError, and then nothing has changed."""
        room = _room(len(data))
        free = self._free.get(room)
        offset = free.pop() if free else self._end
        try:
            self._files.write(self._fd, [data], offset)
        except BaseException:
            self.free(offset, len(data))
            raise
        finally:
            self._end = max(self._end, offset + room)
        return Block(self, offset, len(data), _HEAD.unpack_from(data)[1])

    def free(self, offset: int, length: int) -> None:
        """Nobody has the block there any more. Any thread."""
        self._free.setdefault(_room(length), []).append(offset)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # nothing in it is needed: there is nobody to tell
            self._files.close(self._fd)


class Block:
    """A block in a file. Whoever holds it can read it: its place is not used anew before it is let go."""

    __slots__ = ("_file", "_length", "_offset", "count")

    def __init__(self, file: BlockFile, offset: int, length: int, rows: int) -> None:
        self._file, self._offset, self._length = file, offset, length
        self.count = rows

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self._length

    def read(self) -> bytes:
        """Its bytes. Any thread. Raises CorruptLog, OSError."""
        data = self._file.read(self._offset, self._length)
        if len(data) != self._length or crc32(memoryview(data)[4:]) != int.from_bytes(data[:4], "little"):
            raise CorruptLog(self._file.path, self._offset, "a block of the subject index is damaged")
        return data

    def find(self, subject: bytes) -> int:
        """The sequences of `subject`, packed; 0 when it is not here. Raises CorruptLog, OSError."""
        if b" " in subject:  # a request may name anything: two subjects that follow each other are not one
            return 0
        data = self.read()
        _, rows, size, single = _HEAD.unpack_from(data)
        end = _HEAD.size + size
        at = data.find(b" %b " % subject, _HEAD.size, end)
        if at < 0:
            return 0
        row = data.count(b" ", _HEAD.size, at)
        if single:
            found: int = _one(data, end + 8 * row)[0]
            return found
        counts = array("I", data[end : end + 4 * rows])
        start = end + 4 * rows + 8 * sum(counts[:row])
        return int.from_bytes(data[start : start + 8 * counts[row]], "little")

    def rows(self) -> dict[bytes, int]:
        """Every subject with its packed sequences, in order. Any thread. Raises CorruptLog, OSError."""
        return decode_rows(self.read())

    def __del__(self) -> None:
        if self._file.scratch:
            self._file.free(self._offset, self._length)


def _room(length: int) -> int:
    """How much of a scratch file a block of that length is given."""
    room = UNIT << (-(-length // UNIT) - 1).bit_length()
    return room * 3 // 4 if length <= room * 3 // 4 else room


def encode_rows(names: Sequence[bytes], packed: Sequence[int]) -> bytes:
    """A block of these subjects, which are in order, and their packed sequences."""
    joined = b" %b " % b" ".join(names)
    # Invariant: a block can be taken apart into the names that were put into it.
    assert joined.count(b" ") == len(names) + 1, "a subject contains a space"
    if max(packed) < 1 << 64:
        tail = array("Q", packed).tobytes()
        single = 1
    else:
        counts = [count(each) for each in packed]
        seqs = [each.to_bytes(8 * some, "little") for each, some in zip(packed, counts, strict=True)]
        tail = b"".join([array("I", counts).tobytes(), *seqs])
        single = 0
    body = b"".join([_HEAD.pack(0, len(names), len(joined), single)[4:], joined, tail])
    return crc32(body).to_bytes(4, "little") + body


def first_name(data: bytes) -> bytes:
    """The first subject of a block."""
    return data[_HEAD.size + 1 : data.index(b" ", _HEAD.size + 1)]


def decode_rows(data: bytes) -> dict[bytes, int]:
    """Every subject of a block with its packed sequences, in order."""
    _, rows, size, single = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    names = data[_HEAD.size + 1 : end - 1].split(b" ")
    if single:
        return dict(zip(names, array("Q", data[end:]), strict=True))
    start = end + 4 * rows
    ends = list(accumulate(array("I", data[end:start]), initial=0))
    number = int.from_bytes
    packed = (number(data[start + 8 * lo : start + 8 * hi], "little") for lo, hi in pairwise(ends))
    return dict(zip(names, packed, strict=True))
