"""Rows of the subject index outside of memory.

Belongs here: a block (some hundred subjects in order with their sequences, as immutable bytes), the search for one
subject in it without decoding the others, and the files of blocks: the checkpoint that a store was opened from, and a
scratch file for rows that left memory since. The scratch file has no name, so that a crash leaves nothing to clean up.
Message ids (stream/features/message_ids.py) have blocks of their own in such files: a crc, and their content.

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

from lakestream.log.format.errors import CorruptLog, FileNotReadable
from lakestream.log.format.files import Files
from lakestream.log.index.histories import count

UNIT = 512
"""Places in a scratch file are 1, 1.5, 2, 3, 4, 6, … times as long, so that a free one fits other blocks of about its
length, and blocks that grow waste little."""

_HEAD = struct.Struct("<IIII")
_one = struct.Struct("<Q").unpack_from


class BlockFile:
    """A file with blocks. It is closed when its last block is released."""

    __slots__ = ("_end", "_fd", "_files", "_free", "path", "scratch")

    def __init__(self, files: Files, path: str, fd: int, *, scratch: bool) -> None:
        self.path, self.scratch = path, scratch
        self._files, self._fd = files, fd
        self._end = 0
        self._free: dict[int, list[int]] = {}  # length → offsets of free places

    @classmethod
    def make_scratch(cls, files: Files, path: str) -> BlockFile:
        """Return a new file without a name. Raise OSError."""
        fd = files.create(path)
        try:
            files.remove(path)
        except BaseException:
            files.close(fd)
            raise
        return cls(files, path, fd, scratch=True)

    @property
    def size(self) -> int:
        """Return the length of a scratch file in bytes."""
        return self._end

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at an offset. Raise OSError."""
        return self._files.read_at(self._fd, length, offset)

    def write(self, data: bytes, rows: int) -> FileBlock:
        """Put an encoded block with this many rows into a scratch file. Raise OSError, and then nothing has changed."""
        room = _room(len(data))
        free = self._free.get(room)
        offset = free.pop() if free else self._end
        try:
            # The whole place, so that sealed files can overwrite it where it is.
            self._files.write(self._fd, [data, bytes(room - len(data))], offset)
        except BaseException:
            self.free(offset, len(data))
            raise
        finally:
            self._end = max(self._end, offset + room)
        return FileBlock(self, offset, len(data), rows)

    def free(self, offset: int, length: int) -> None:
        """Release the place of a block. Any thread."""
        self._free.setdefault(_room(length), []).append(offset)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # nothing in it is needed
            self._files.close(self._fd)


class FileBlock:
    """A block in a file. It can be read as long as it is referenced: only then its place is used anew."""

    __slots__ = ("_file", "_length", "_offset", "count")

    def __init__(self, file: BlockFile, offset: int, length: int, rows: int) -> None:
        self._file, self._offset, self._length = file, offset, length
        self.count = rows

    @property
    def size(self) -> int:
        """Return the length of the block in bytes."""
        return self._length

    def read(self) -> bytes:
        """Return its bytes. Any thread. Raise CorruptLog, FileNotReadable."""
        try:
            data = self._file.read(self._offset, self._length)
        except OSError as error:
            raise FileNotReadable(self._file.path, error) from error
        if len(data) != self._length or crc32(memoryview(data)[4:]) != int.from_bytes(data[:4], "little"):
            raise CorruptLog(self._file.path, self._offset, "a block of an index is damaged")
        return data

    def content(self) -> bytes:
        """Return what `checked` got. Any thread. Raise CorruptLog, FileNotReadable."""
        return self.read()[4:]

    def find(self, subject: bytes) -> int:
        """Return the sequences of `subject`, packed; 0 if it is not here. Raise CorruptLog, FileNotReadable."""
        if b" " in subject:  # a request may contain a space: two adjacent subjects must not match
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

    def names(self) -> list[bytes]:
        """Return every subject, in order. Any thread. Raise CorruptLog, FileNotReadable."""
        return decode_names(self.read())

    def rows(self) -> dict[bytes, int]:
        """Return every subject with its packed sequences, in order. Any thread. Raise CorruptLog, FileNotReadable."""
        return decode_rows(self.read())

    def __del__(self) -> None:
        if self._file.scratch:
            self._file.free(self._offset, self._length)


def _room(length: int) -> int:
    """Return the length of the place in a scratch file for a block of this length."""
    room = UNIT << (-(-length // UNIT) - 1).bit_length()
    return room * 3 // 4 if length <= room * 3 // 4 else room


def checked(content: bytes) -> bytes:
    """Return a block with this content."""
    return crc32(content).to_bytes(4, "little") + content


def encode_rows(names: Sequence[bytes], packed: Sequence[int]) -> bytes:
    """Encode a block of these subjects, which are in order, and their packed sequences."""
    joined = b" %b " % b" ".join(names)
    # Invariant: no subject contains a space, so that the names can be split again.
    assert joined.count(b" ") == len(names) + 1, "a subject contains a space"
    if max(packed) < 1 << 64:
        tail = array("Q", packed).tobytes()
        single = 1
    else:
        counts = [count(each) for each in packed]
        seqs = [each.to_bytes(8 * some, "little") for each, some in zip(packed, counts, strict=True)]
        tail = b"".join([array("I", counts).tobytes(), *seqs])
        single = 0
    return checked(b"".join([_HEAD.pack(0, len(names), len(joined), single)[4:], joined, tail]))


def first_name(data: bytes) -> bytes:
    """Return the first subject of a block."""
    return data[_HEAD.size + 1 : data.index(b" ", _HEAD.size + 1)]


def decode_names(data: bytes) -> list[bytes]:
    """Return every subject of a block, in order."""
    return data[_HEAD.size + 1 : _HEAD.size + _HEAD.unpack_from(data)[2] - 1].split(b" ")


def decode_rows(data: bytes) -> dict[bytes, int]:
    """Return every subject of a block with its packed sequences, in order."""
    _, rows, size, single = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    names = decode_names(data)
    if single:
        return dict(zip(names, array("Q", data[end:]), strict=True))
    start = end + 4 * rows
    ends = list(accumulate(array("I", data[end:start]), initial=0))
    number = int.from_bytes
    packed = (number(data[start + 8 * lo : start + 8 * hi], "little") for lo, hi in pairwise(ends))
    return dict(zip(names, packed, strict=True))
