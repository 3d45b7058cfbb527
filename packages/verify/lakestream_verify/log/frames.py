"""Verification of segments.

Belongs here: one segment file against itself (header, frames, records, and the footer against them) and against the
segments before it. Memory is bounded by the longest segment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from lakestream.log.format.entries import marks_of
from lakestream.log.format.errors import CorruptLog, CorruptRecord, LogError
from lakestream.log.format.files import Files
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import MAGIC_BYTES, Frame, decode_frame, later_write
from lakestream.log.format.frame import Kind as FrameKind
from lakestream.log.format.packed import PackedView
from lakestream.log.format.record import iter_records
from lakestream.log.format.segment import (
    HEADER_SIZE,
    PACKED_VERSION,
    TRAILER_SIZE,
    Footer,
    Header,
    SealedEnd,
    Segment,
    SegmentPlaces,
    decode_segment_header,
    encode_segment_header,
    first_index_of,
    is_packed,
    place_body,
    read_end,
    read_tables,
)
from lakestream_verify.log.findings import Finding, FindingKind, Repair, Step, of_error


class Chain(msgspec.Struct):
    """End of the entries that were verified so far: the next segment has to follow it. `index` -1: none yet, or the
    end of the segment before cannot be read."""

    index: int = -1
    term: int = 0
    write: int = 0
    seq: int = 0
    uid: str = ""


class SegmentCheck:
    """Verification of one segment file.

    Args:
        files: the file layer.
        path: the segment.
        chain: the end of the segment before it; moved to the end of this one.
        newest: it is the last segment of the log, which may be open and torn at its end.
        durable_through: entries through this index were synced; they cannot be a torn write.
        step: called between frames, with 0.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        chain: Chain,
        newest: bool,
        durable_through: int = 0,
        step: Step = lambda count: None,
    ) -> None:
        self._files, self._path, self._chain, self._newest = files, path, chain, newest
        self._durable, self._step = durable_through, step
        self.end: SealedEnd | None = None
        """The footer, if it is whole."""
        self.segment: Segment | None = None
        """The records as the frames have them, if the header is whole."""
        self.first_seq = 0
        """The lowest sequence of a record in it; 0 if there is none."""
        self._first_time = 0
        self._broken = False

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong. Block."""
        first_index = first_index_of(os.path.basename(self._path))
        if self._chain.index < 0:
            self._chain.index = first_index - 1
        elif first_index != self._chain.index + 1:
            yield self._wrong(
                FindingKind.GAP, 0, f"it begins with entry {first_index} where {self._chain.index + 1} belongs"
            )
            self._chain.index = first_index - 1
        try:
            with self._files.opened(self._path) as fd:
                yield from self._content(fd, first_index)
        except (LogError, OSError) as error:
            yield of_error(FindingKind.FRAME, self._path, error)
            self._broken = True
        if self.end is not None:
            self._chain.index = self.end.footer.last_index
            self._chain.seq = max(self._chain.seq, self.end.footer.last_seq)
        elif not self._newest:
            self._chain.index = -1

    def _content(self, fd: int, first_index: int) -> Iterator[Finding]:
        head = self._files.read_at(fd, HEADER_SIZE, 0)
        self.end = read_end(self._files, fd)
        size = self._files.size(fd)
        header = decode_segment_header(head)
        if isinstance(header, str):
            unfinished = self._newest and size <= HEADER_SIZE and first_index > self._durable
            yield self._torn(0, header) if unfinished else self._wrong(FindingKind.HEADER, 0, header)
            return
        version = PACKED_VERSION if is_packed(head) else 1
        empty = next((at for at, byte in enumerate(encode_segment_header(header, version)) if byte != head[at]), -1)
        if empty >= 0:
            yield self._wrong(
                FindingKind.HEADER, empty, "the end of the header is not empty; nothing reads it", harmless=True
            )
        if header.first_index != first_index:
            yield self._wrong(FindingKind.HEADER, 8, f"the header says that it begins with entry {header.first_index}")
            return
        if self.end is None and is_packed(head):
            yield self._unsealed(max(0, size - TRAILER_SIZE))
            return
        segment = self.segment = Segment(self._path, header)
        try:
            content = PackedView(self._files, fd, self._path).read_at(self.end.frames_end if self.end else size, 0)
        except CorruptRecord as error:
            yield self._wrong(FindingKind.FRAME, error.offset, error.what)
            return
        yield from self._frames(content, segment, header)
        if self.end is not None:
            yield from self._footer(fd, segment, self.end)
        elif not self._newest:
            yield self._unsealed(segment.end)

    def _frames(self, content: bytes, segment: Segment, header: Header) -> Iterator[Finding]:
        offset, end, salt, chain = HEADER_SIZE, len(content), header.salt, self._chain
        while offset < end:
            self._step(0)
            frame = decode_frame(content, offset, end, salt)
            if isinstance(frame, str):
                torn = self._newest and self.end is None and chain.index + 1 > self._durable
                if torn and later_write(content, offset, end, salt, chain.index + 1) < 0:
                    yield self._torn(offset, f"the last {end - offset} bytes: {frame}")
                    break
                self._broken = True
                following = _next_frame(content, offset + 1, end, salt)
                if self.end is None and not self._newest and following < 0:
                    break  # here the footer begins
                through = "the end of the file" if following < 0 else f"offset {following}"
                yield self._wrong(FindingKind.FRAME, offset, f"{frame}; nothing through {through} can be read")
                if following < 0:
                    break
                offset = following
                chain.index = max(chain.index, _index_at(content, offset, end, salt) - 1)
                continue
            yield from self._frame(frame, offset, segment)
            segment.frame_offsets.append(offset)
            segment.last_index = chain.index = frame.index
            chain.write = frame.write
            if frame.term != (segment.terms[-1][1] if segment.terms else -1):
                segment.terms.append((frame.index, frame.term))
            chain.term = max(chain.term, frame.term)
            offset += FRAME_HEADER + len(frame.body)
        segment.end = offset

    def _frame(self, frame: Frame, offset: int, segment: Segment) -> Iterator[Finding]:
        chain = self._chain
        if frame.index != chain.index + 1:
            self._broken = True
            yield self._wrong(
                FindingKind.FRAME, offset, f"the frame has index {frame.index} where {chain.index + 1} belongs"
            )
        if frame.term < chain.term:
            yield self._wrong(
                FindingKind.FRAME, offset, f"entry {frame.index} has term {frame.term} after term {chain.term}"
            )
        if not self._write_follows(frame):
            what = f"entry {frame.index} belongs to write {frame.write}, the one before it to {chain.write}"
            yield self._wrong(FindingKind.FRAME, offset, what)
        if frame.kind != FrameKind.MESSAGES:
            return
        count, at, intact = 0, offset + FRAME_HEADER, not self._broken
        try:
            for record in iter_records(frame.body):
                count += 1
                if record.seq <= chain.seq:
                    intact = False
                    yield self._wrong(FindingKind.RECORD, at, f"message {record.seq} comes after message {chain.seq}")
                chain.seq = max(chain.seq, record.seq)
                if not self.first_seq:
                    self.first_seq, self._first_time = record.seq, record.time_ns
        except CorruptRecord as error:
            intact = False
            yield self._wrong(FindingKind.RECORD, at + error.offset, error.what)
        else:
            if count != frame.count:
                yield self._wrong(FindingKind.FRAME, offset, f"it holds {count} messages and says {frame.count}")
        if intact:
            place_body(segment, frame.body, at)
        else:
            self._broken = True

    def _write_follows(self, frame: Frame) -> bool:
        """Return True if the frame's write is the one before it, or one that began later."""
        return self._chain.write <= frame.write <= frame.index

    def _footer(self, fd: int, segment: Segment, end: SealedEnd) -> Iterator[Finding]:
        footer, chain = end.footer, self._chain
        at = end.tables_at + 8 * end.rows
        try:
            tables = read_tables(self._files, fd, self._path, end)
        except CorruptLog as error:
            yield of_error(FindingKind.FOOTER, self._path, error, Repair.REPAIR)
            tables = None
        if chain.uid and footer.uid and footer.uid != chain.uid:
            yield self._wrong(
                FindingKind.FOOTER, at, f"it is of stream {footer.uid}, the segments before it of {chain.uid}"
            )
        chain.uid = footer.uid or chain.uid
        if self._broken or segment.last_index < segment.first_index:
            return
        for what, said, found in _differences(footer, segment, self._first_time):
            yield self._wrong(
                FindingKind.FOOTER, at, f"it says {what} {said}, the frames have {found}", repair=Repair.REPAIR
            )
        if footer.last_seq < chain.seq:
            yield self._wrong(FindingKind.FOOTER, at, f"it says last_seq {footer.last_seq}, a message has {chain.seq}")
        if tables is not None and not _same(tables, segment):
            what = "the tables do not name the places of the records"
            yield self._wrong(FindingKind.FOOTER, end.tables_at, what, repair=Repair.REPAIR)

    def _wrong(
        self, kind: FindingKind, offset: int, what: str, *, harmless: bool = False, repair: Repair = Repair.NONE
    ) -> Finding:
        return Finding(kind=kind, file=self._path, offset=offset, what=what, harmless=harmless, repair=repair)

    def _unsealed(self, offset: int) -> Finding:
        what = "the footer of this sealed segment is damaged"
        return self._wrong(FindingKind.FOOTER, offset, what, repair=Repair.REPAIR)

    def _torn(self, offset: int, what: str) -> Finding:
        what = f"{what}; this was never acknowledged as far as the files know, and is cut by the next start"
        return Finding(
            kind=FindingKind.TORN, file=self._path, offset=offset, what=what, harmless=True, repair=Repair.START
        )


def _next_frame(content: bytes, offset: int, end: int, salt: int) -> int:
    """Return the offset of the next valid frame, or -1."""
    at = content.find(MAGIC_BYTES, offset, end)
    while at >= 0 and not isinstance(decode_frame(content, at, end, salt), Frame):
        at = content.find(MAGIC_BYTES, at + 1, end)
    return at


def _index_at(content: bytes, offset: int, end: int, salt: int) -> int:
    frame = decode_frame(content, offset, end, salt)
    assert isinstance(frame, Frame), "it was found as one"
    return frame.index


def _differences(footer: Footer, segment: Segment, first_time: int) -> Iterator[tuple[str, object, object]]:
    """Yield (field, its value, value by the frames) of each field of a footer that is wrong."""
    assert segment.tables is not None
    marks = marks_of(segment.first_index, segment.frame_offsets)
    found: dict[str, object] = {
        "first_index": segment.first_index,
        "last_index": segment.last_index,
        "last_term": segment.terms[-1][1],
        "count": segment.count,
        "bytes": segment.bytes,
        "first_time": first_time,
        "last_time": segment.last_time,
        "runs": segment.tables.runs.pairs(),
        "terms": segment.terms if footer.terms else [],
        "marks": marks if footer.marks else [],
    }
    if segment.count:
        found["first_seq"] = segment.first_seq
    for name, value in found.items():
        said = getattr(footer, name)
        if said != value:
            yield name, said, value


def _same(tables: SegmentPlaces, segment: Segment) -> bool:
    held = segment.tables
    assert held is not None
    return (tables.offsets, tables.lengths) == (held.offsets, held.lengths)
