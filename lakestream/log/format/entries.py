"""Reading entries back by their index.

Belongs here: reading the frames of an index range from one segment without reading all of it, for followers that lag,
and the runs of terms in a log. The footer of a sealed segment has the offset of an entry every MARK_BYTES; an open
segment has the offset of each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from lakestream.log.format.errors import CorruptLog, CorruptRecord
from lakestream.log.format.files import Files
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import LENGTH_AT, Frame, decode_frame
from lakestream.log.format.packed import PackedView
from lakestream.log.format.segment import HEADER_SIZE, Segment

MARK_BYTES = 256 << 10
"""Bytes of frames between two marks, plus at most one frame: a read may have to skip as much."""


def marks_of(first_index: int, offsets: array[int]) -> list[tuple[int, int]]:
    """Return (index, offset) of entries about MARK_BYTES apart, from where the frames of a segment start."""
    marks: list[tuple[int, int]] = []
    at, count = 0, len(offsets)
    while at < count:
        marks.append((first_index + at, offsets[at]))
        at = bisect_right(offsets, offsets[at] + MARK_BYTES - 1, at + 1, count)
    return marks


def read_entries(files: Files, segment: Segment, first_index: int, max_bytes: int) -> list[tuple[Frame, int]]:
    """Return entries of one segment from `first_index` on, each with the offset of its body. Block.

    Args:
        files: the file layer.
        segment: holds entry `first_index`.
        first_index: of the first one.
        max_bytes: their frames together stay within that, but one is always given.

    Raise CorruptLog when what is read is damaged, OSError.
    """
    offset, index, end = _before(segment, first_index)
    found: list[tuple[Frame, int]] = []
    try:
        with files.opened(segment.path) as fd:
            base, view = offset, PackedView(files, fd, segment.path)
            buf = view.read_at(min(end - base, max_bytes + (MARK_BYTES if index < first_index else 0)), base)
            while offset < end:
                length = _length(buf, offset - base)
                if offset - base + length > len(buf):
                    if found or offset + length > end:
                        break
                    want = min(end - offset, max(length, max_bytes))
                    base, buf = offset, view.read_at(want, offset)
                    if len(buf) < want:
                        raise CorruptLog(segment.path, base + len(buf), "the file is cut short")
                    continue
                frame = decode_frame(buf, offset - base, len(buf), segment.header.salt)
                if isinstance(frame, str):
                    raise CorruptLog(segment.path, offset, frame)
                if frame.index != index:
                    raise CorruptLog(segment.path, offset, f"the frame has index {frame.index} where {index} belongs")
                if index >= first_index:
                    max_bytes -= length
                    if found and max_bytes < 0:
                        break
                    found.append((frame, offset + FRAME_HEADER))
                offset, index = offset + length, index + 1
    except CorruptRecord as error:
        raise CorruptLog(segment.path, error.offset, error.what) from error
    if not found:
        raise CorruptLog(segment.path, offset, f"entry {first_index} belongs here and cannot be read")
    return found


def _before(segment: Segment, index: int) -> tuple[int, int, int]:
    """Return (offset, index) of an entry at or before `index` whose place is known, and where the frames end."""
    offsets, footer = segment.frame_offsets, segment.footer  # in this order: a seal sets the footer first
    if footer is None or len(offsets):
        at = index - segment.first_index
        return offsets[at], index, segment.end
    position = bisect_right(footer.marks, index, key=itemgetter(0)) - 1
    if position < 0:  # an older release sealed it
        return HEADER_SIZE, segment.first_index, segment.end
    return footer.marks[position][1], footer.marks[position][0], segment.end


def _length(buf: bytes, at: int) -> int:
    """Return the length of the frame at `at` with its header, as it claims; less if the header is cut short."""
    return FRAME_HEADER + int.from_bytes(buf[at + LENGTH_AT : at + LENGTH_AT + 4], "little")


def term_runs(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    """Return (first index, term) of each run of entries with one term, ascending."""
    runs: list[tuple[int, int]] = []
    for segment in segments:
        for first, term in segment.terms:
            if not runs or runs[-1][1] != term:
                runs.append((first, term))
    return runs
