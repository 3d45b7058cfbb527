"""Sealed segments whose frames are compressed (a stream's `compression: s2`).

Belongs here: the file format, and reading it by the offsets of the plain file. Tables, marks and footers are the same
in both. A segment is compressed as a whole once it is sealed, and then replaces the plain file in one step:

    header    as in segment.py, with another version
    blocks    zstd, each of `block_bytes` bytes of frames, the last one of what is left
    footer    as in segment.py; in its metadata also `packing`

The codec is that of Python 3.14, or its backport; it is loaded with the first such segment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog, CorruptRecord
from lakestream.log.format.files import Files
from lakestream.log.format.segment import (
    HEADER_SIZE,
    PACKED_VERSION,
    TRAILER_SIZE,
    Header,
    Packing,
    SealedEnd,
    decode_end,
    decode_segment_header,
    encode_segment_header,
    encode_trailer,
    is_packed,
    iter_frames,
    read_end,
)

BLOCK_BYTES = 128 << 10
"""Bytes of frames in one block: reading a single message decompresses as much (0.1 ms)."""
LEVEL = 1
WORTH = 0.9
"""A segment whose compressed file would be longer than this share of the plain one stays plain."""


def codec() -> Any:
    """Return the module with `compress(data, level)`, `ZstdDecompressor` and `ZstdError`."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def pack(files: Files, path: str) -> int:
    """Compress a sealed segment, durably, in its place; return the new length of the file, 0 if it stays plain.

    Block. Raise CorruptLog, OSError.
    """
    if is_packed_file(files, path):
        return 0
    header, end, content = read_intact(files, path)
    zstd, frames_end = codec(), end.frames_end
    cuts = range(HEADER_SIZE, frames_end, BLOCK_BYTES)
    blocks = [zstd.compress(content[at : min(at + BLOCK_BYTES, frames_end)], LEVEL) for at in cuts]
    packed_end = HEADER_SIZE + sum(map(len, blocks))
    if packed_end > WORTH * frames_end:
        return 0
    tables_end = frames_end + 8 * end.rows
    metadata = msgspec.msgpack.decode(content[tables_end:-TRAILER_SIZE])
    metadata["packing"] = Packing(frames_end, BLOCK_BYTES, [len(block) for block in blocks])
    encoded = msgspec.msgpack.encode(metadata)
    trailer = encode_trailer(packed_end, end.rows, end.tables_crc, encoded)
    pieces = [encode_segment_header(header, PACKED_VERSION), *blocks, content[frames_end:tables_end], encoded, trailer]
    files.write_whole(path, pieces)
    return sum(map(len, pieces))


class PackedView:
    """An open segment file, read by the offsets of the plain one.

    Args:
        files: the file layer.
        fd: the open file, which the caller closes.
        path: for errors.
    """

    __slots__ = ("_block", "_block_bytes", "_codec", "_end", "_fd", "_files", "_number", "_path", "_starts", "end")

    @property
    def read(self) -> Callable[[int, int], bytes]:
        """Return `read_at`, for many calls: without a step in between where nothing is compressed."""
        return self.read_at if self._starts else partial(self._files.read_at, self._fd)

    def __init__(self, files: Files, fd: int, path: str) -> None:
        self._files, self._fd, self._path = files, fd, path
        self._starts: list[int] = []
        self.end: SealedEnd | None = None
        """The end of a compressed file."""
        self._number, self._block = -1, b""  # the block read last: the next read often begins in it
        if not is_packed(files.read_at(fd, HEADER_SIZE, 0)):
            return
        found = self.end = read_end(files, fd)
        if found is None or found.packing is None:
            raise CorruptLog(path, max(0, files.size(fd) - TRAILER_SIZE), "the footer of this segment is damaged")
        packing = found.packing
        self._starts = list(accumulate(packing.sizes, initial=HEADER_SIZE))
        self._block_bytes, self._end, self._codec = packing.block_bytes, packing.frames_end, codec()

    @property
    def packed(self) -> bool:
        """Return True if the file is compressed."""
        return bool(self._starts)

    def read_at(self, length: int, offset: int) -> bytes:
        """Return bytes of the plain file; fewer only at its end, which is that of the frames in a compressed one.

        Raise CorruptRecord for a block that does not decompress, OSError.
        """
        if not self._starts:
            return self._files.read_at(self._fd, length, offset)
        end = min(offset + length, self._end)
        pieces = []
        if offset < HEADER_SIZE:
            pieces.append(self._files.read_at(self._fd, min(end, HEADER_SIZE) - offset, offset))
            offset = HEADER_SIZE
        while offset < end:
            number, start = divmod(offset - HEADER_SIZE, self._block_bytes)
            piece = self._load(number)[start : start + end - offset]
            pieces.append(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _load(self, number: int) -> bytes:
        if number != self._number:
            start, stop = self._starts[number], self._starts[number + 1]
            left = self._end - HEADER_SIZE - number * self._block_bytes
            size = min(self._block_bytes, left)
            compressed = self._files.read_at(self._fd, stop - start, start)
            try:
                # With a limit: the length that a damaged block states may be anything.
                block: bytes = self._codec.ZstdDecompressor().decompress(compressed, size + 1)
            except self._codec.ZstdError as error:
                raise CorruptRecord(start, f"a compressed block is damaged: {error}") from error
            if len(block) != size:
                raise CorruptRecord(start, f"a compressed block has {len(block)} bytes instead of {size}")
            self._number, self._block = number, block
        return self._block


def is_packed_file(files: Files, path: str) -> bool:
    """Return True if the segment at `path` is compressed. Block. Raise OSError."""
    with files.opened(path) as fd:
        return is_packed(files.read_at(fd, HEADER_SIZE, 0))


def read_plain(files: Files, path: str) -> bytes:
    """Return the whole content of a segment file, decompressed.

    Block. Raise CorruptLog, OSError.
    """
    try:
        with files.opened(path) as fd:
            view = PackedView(files, fd, path)
            end = view.end
            if end is None:
                return files.read_at(fd, files.size(fd), 0)
            frames = view.read_at(end.frames_end, 0)
            rest = files.read_at(fd, end.file_bytes - end.tables_at, end.tables_at)
    except CorruptRecord as error:
        raise CorruptLog(path, error.offset, error.what) from error
    header = decode_segment_header(frames)
    if isinstance(header, str):
        raise CorruptLog(path, 0, header)
    tables, metadata_bytes = rest[: 8 * end.rows], rest[8 * end.rows : -TRAILER_SIZE]
    if rest[-TRAILER_SIZE:] != encode_trailer(end.tables_at, end.rows, end.tables_crc, metadata_bytes):
        raise CorruptLog(path, end.tables_at, "the footer of this segment is damaged")
    metadata = msgspec.msgpack.decode(metadata_bytes)
    del metadata["packing"]
    encoded = msgspec.msgpack.encode(metadata)
    trailer = encode_trailer(end.frames_end, end.rows, end.tables_crc, encoded)
    return b"".join((encode_segment_header(header), frames[HEADER_SIZE:], tables, encoded, trailer))


def read_intact(files: Files, path: str) -> tuple[Header, SealedEnd, bytes]:
    """Return header, end and plain content of a sealed segment, of which every byte is checked: it may become the only
    copy.

    Block. Raise CorruptLog, OSError.
    """
    content = read_plain(files, path)
    header, end = decode_segment_header(content), decode_end(content)
    if isinstance(header, str):
        raise CorruptLog(path, 0, header)
    if end is None:
        raise CorruptLog(path, max(0, len(content) - TRAILER_SIZE), "the footer of this sealed segment is damaged")
    if crc32(content[end.tables_at : end.tables_at + 8 * end.rows]) != end.tables_crc:
        raise CorruptLog(path, end.tables_at, "the tables in the footer of this sealed segment are damaged")
    for _ in iter_frames(content, path, header, end.frames_end):
        pass
    return header, end, content
