"""Recovery of a log after the end of a process, whatever its cause.

Belongs here: finding the segments of a stream, cutting the write that a crash tore, and refusing all other damage
(invariant 3).

The rule for a damaged frame in the last segment. A write is only begun once the one before is durable, and every frame
carries the index of the first entry of its write. So if the damaged frame has index i, and a valid frame behind it
belongs to a write that began after i, then entry i was durable and is damaged: CorruptLog. Otherwise it may be what a
crash left of a write that was never acknowledged: it is cut off. A member of a group keeps beside its log the index
through which it was durable: nothing before that may be missing or damaged either.

Zeros from the end of a frame to the end of the file are room that was written ahead (segment_log.py): they stay, and
the next frame goes there. Zeros with anything else behind them are damage like any other.

The entries in the tables. A checkpoint covers the entries through its index, so their records are added here; later
ones are added when they are applied, by the replay or by the group. With other members the newest entries may not be
committed: the replay ends with the last one that the member knows to be committed, and the rest stays in the file and
in no table until the group hands it out or cuts it off.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog, LostEntries
from lakestream.log.format.files import Files
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, Kind, decode_frame, later_write, unwritten
from lakestream.log.format.outline import SUFFIX as OUTLINE_SUFFIX
from lakestream.log.format.outline import OutlineFile, read_outline_info
from lakestream.log.format.segment import (
    HEADER_SIZE,
    Header,
    Segment,
    decode_end,
    decode_segment_header,
    encode_segment_header,
    first_index_of,
    is_packed,
    is_segment_name,
    iter_frames,
    place_body,
    read_end,
    read_tables,
)
from lakestream.log.store.base import outlines_of
from lakestream.log.store.root import set_aside
from lakestream.log.store.segment_log import LogOptions, SegmentLog, begin_segment, last_term, write_frames
from lakestream.log.store.synced import MarkFile, SyncedMark

UNFINISHED = "{}; a crash in the middle of a write leaves this, and nothing says that it had been acknowledged"
"""Log text for the end of a log that cannot be told from a torn write."""


def find_outlines(directory: str, files: Files, based: bool, names: Iterable[str]) -> list[OutlineFile]:
    """Return the outlines of messages that have left the log or never were in it, ascending. Raise CorruptLog.

    `based`: the stream began with a copy (base.py), whose outlines are added. `names`: those in the directory.
    """
    base = outlines_of(files, os.path.dirname(directory)) if based else []
    paths = [os.path.join(directory, name) for name in names if name.endswith(OUTLINE_SUFFIX)]
    return base + [OutlineFile(path, read_outline_info(files, path)) for path in paths]


def synced_through(marks: MarkFile, files: Files) -> tuple[SyncedMark, list[str]]:
    """Return the mark of a log, which says through which entry it was synced, and log lines about it.

    A mark that cannot be read protects nothing any more; it is set aside, and the next one takes its place. Block.
    """
    try:
        return marks.read(), []
    except (CorruptLog, OSError) as error:
        why = error.what if isinstance(error, CorruptLog) else str(error)
        note = f"{marks.path} cannot be read ({why}): damage at the end of the log would not be noticed at this start"
        try:
            return SyncedMark(), [f"{note}; it was set aside as {set_aside(files, marks.path)}"]
        except OSError as again:
            return SyncedMark(), [f"{note}; it cannot be set aside: {again}"]


def open_log(
    directory: str,
    files: Files,
    options: LogOptions,
    now: Callable[[], int],
    *,
    outlined: int = 0,
    checkpoint_index: int = 0,
    durable_through: int = 0,
    known_from: str = "",
    mark: SyncedMark | None = None,
    names: Sequence[str] | None = None,
) -> SegmentLog:
    """Return the log in `directory`, which is made when it is not there; see `find_segments`. Block.

    `names`: those in the directory, if they are known.

    Raise CorruptLog.
    """
    if not names:
        files.make_directory(directory)
        names = files.names(directory)
    known = Known(outlined, checkpoint_index, max(checkpoint_index, durable_through), known_from, mark or SyncedMark())
    notes: list[str] = []
    segments = find_segments(directory, names, files, now, known, notes)
    log = SegmentLog(directory, files, options, now, segments, last_term(segments))
    log.notes = notes
    return log


class Known(msgspec.Struct, frozen=True):
    """Facts about a log's entries that are known before its segments are read.

    Entries through `outlined` are in outlines: segments of theirs are leftovers and are removed. The checkpoint covers
    those through `checkpoint_index`: the records of later ones are left to the replay. Those through `durable_through`
    were durable here, as the file `file` says if it is named (a synced mark, `mark`).
    """

    outlined: int
    checkpoint_index: int
    durable_through: int
    file: str = ""
    mark: SyncedMark = SyncedMark()

    def lost(self, path: str, offset: int, what: str) -> CorruptLog:
        """Return the error for entries that were durable and cannot be read."""
        if self.file and self.durable_through > self.checkpoint_index:
            return LostEntries(path, offset, f"{what}; entries through {self.durable_through} were synced", self.file)
        return CorruptLog(path, offset, what)


def find_segments(
    directory: str, present: Sequence[str], files: Files, now: Callable[[], int], known: Known, notes: list[str]
) -> list[Segment]:
    """Return the segments of a log, ascending, the last one open and cut to whole frames. Raise CorruptLog.

    Args:
        directory: the stream's `log` directory, which exists.
        present: the names in it, sorted.
        files: the file layer.
        now: wall time in ns, for the header of a new segment.
        known: what must be there.
        notes: gets a line for everything that is cut off, made anew or ignored.
    """
    segments: list[Segment] = []
    names = _segment_names(directory, present, files, known.outlined, notes)
    if len(names) > 1:
        _settle_split(directory, names, files, notes)
        names = _join_split(directory, files, names, known.checkpoint_index)
    for position, name in enumerate(names):
        path = os.path.join(directory, name)
        last = position == len(names) - 1
        expected = segments[-1].last_index + 1 if segments else first_index_of(name)
        if first_index_of(name) != expected:
            raise CorruptLog(path, 0, f"the segment that begins with entry {expected} is missing before it")
        first_seq = _next_seq(segments[-1]) if segments else 1
        begun = Header(expected, first_seq, now(), 0)
        segments.append(_open_segment(path, files, begun, last, known, notes))
    durable_through, newest = known.durable_through, segments[-1] if segments else None
    if newest is None and max(known.outlined, durable_through):
        what = f"the segments after entry {max(known.outlined, durable_through)} are missing"
        raise known.lost(directory, 0, what)
    # check_whole reports a missing end that a checkpoint covers.
    if newest is not None and known.checkpoint_index <= newest.last_index < durable_through:
        raise known.lost(newest.path, newest.end, f"the log ends before entry {durable_through}, which was durable")
    # From here on, what a killed process left in the page cache counts as durable. A log that was synced to its end, as
    # after a clean stop, has left nothing there; a footer is not covered by the mark.
    marked = (known.mark.index, known.mark.first_index)
    if newest is not None and (newest.footer is not None or marked < newest.newest[:2]):
        files.sync_file(newest.path)
        files.sync_directory(directory)
    if newest is not None and newest.footer is not None and _has_torn_tables(newest.path, files):
        _make_tables(newest.path, files, notes)
    if newest is None or newest.footer is not None:
        first_index, first_seq = (newest.last_index + 1, _next_seq(newest)) if newest is not None else (1, 1)
        if newest is not None and known.file:  # a state from another node may end with a sealed segment
            notes.append(f"no segment follows {newest.path}: {UNFINISHED.format('the next one was being made')}")
        fresh, fd = begin_segment(directory, files, first_index, first_seq, now())
        files.close(fd)
        segments.append(fresh)
    return segments


def _segment_names(directory: str, present: Sequence[str], files: Files, outlined: int, notes: list[str]) -> list[str]:
    kept = []
    for name in present:
        if name.endswith(".tmp"):
            files.remove(os.path.join(directory, name))
        elif is_segment_name(name):
            if first_index_of(name) <= outlined:
                files.remove(os.path.join(directory, name))
            else:
                kept.append(name)
        elif not name.endswith(OUTLINE_SUFFIX):
            notes.append(f"{os.path.join(directory, name)} is not part of the log and is left alone")
    return kept


def _next_seq(segment: Segment) -> int:
    assert segment.footer is not None
    return segment.footer.last_seq + 1


def _open_segment(path: str, files: Files, begun: Header, last: bool, known: Known, notes: list[str]) -> Segment:
    """Open a segment file; the last one is scanned unless it is sealed. `begun` is the header for one whose creation
    was interrupted; its salt is replaced."""
    first_index = begun.first_index
    with files.opened(path, write=True) as fd:
        size = files.size(fd)
        content = files.read_at(fd, size if last else HEADER_SIZE, 0)
        end = decode_end(content) if last else read_end(files, fd)
        header = decode_segment_header(content[:HEADER_SIZE])
        if isinstance(header, str):
            if not last or size > HEADER_SIZE or end is not None:
                raise CorruptLog(path, 0, header)
            if first_index <= known.durable_through:
                raise known.lost(path, 0, header)
            # Killed while it was being made: the header is synced before the first frame.
            notes.append(f"{path} had {size} bytes and no header, and was begun anew: {UNFINISHED.format(header)}")
            header = _remake(files, fd, begun)
            content = files.read_at(fd, HEADER_SIZE, 0)
        if header.first_index != first_index:
            raise CorruptLog(path, 0, f"the header says that it begins with entry {header.first_index}")
        if end is not None:
            return Segment.sealed(path, header, end.footer, end.frames_end, end.file_bytes)
        if not last or is_packed(content[:HEADER_SIZE]):
            raise CorruptLog(path, size, "the footer of this sealed segment is damaged")
        segment = Segment(path, header)
        _scan(segment, files, fd, content, known, notes)
        return segment


def _remake(files: Files, fd: int, begun: Header) -> Header:
    header = msgspec.structs.replace(begun, salt=files.salt())
    files.truncate(fd, 0)
    files.write(fd, [encode_segment_header(header)], 0)
    files.sync(fd)
    return header


def _scan(segment: Segment, files: Files, fd: int, content: bytes, known: Known, notes: list[str]) -> None:
    """Walk the frames of the last segment and cut off what a crash tore. Raise CorruptLog."""
    wrong = _walk(segment, content, known)
    if wrong:
        files.truncate(fd, segment.end)
        files.sync(fd)
        cut = len(content.rstrip(b"\0")) - segment.end
        notes.append(f"cut {cut} bytes at offset {segment.end} of {segment.path}: {UNFINISHED.format(wrong)}")


def _walk(segment: Segment, content: bytes, known: Known) -> str:
    """Add the intact frames to the segment and set `segment.end`. Return a description of the damage behind them, or
    "".

    Raise CorruptLog if the damage cannot be a torn write.
    """
    offset, index, end = HEADER_SIZE, segment.first_index, len(content)
    salt, term, wrong = segment.header.salt, -1, ""
    while offset < end:
        frame = decode_frame(content, offset, end, salt)
        if isinstance(frame, Frame) and frame.index != index:
            frame = f"the frame has index {frame.index} where {index} belongs"
        if isinstance(frame, str):
            if unwritten(content, offset, end):
                break
            if index <= known.durable_through:
                raise known.lost(segment.path, offset, frame)
            if later_write(content, offset, end, salt, index) >= 0:
                raise CorruptLog(segment.path, offset, frame)
            wrong = frame
            break
        if frame.kind == Kind.MESSAGES and index <= known.checkpoint_index:
            place_body(segment, frame.body, offset + FRAME_HEADER)
        elif frame.kind == Kind.MEMBERSHIP:
            segment.memberships.append((index, frame.body))
        if frame.term != term:
            term = frame.term
            segment.terms.append((index, term))
        segment.frame_offsets.append(offset)
        segment.last_index = index
        offset += FRAME_HEADER + len(frame.body)
        index += 1
    segment.end = offset
    if segment.last_index >= segment.first_index:
        segment.first_append_ns = segment.header.created_ns
    return wrong


def _settle_split(directory: str, names: list[str], files: Files, notes: list[str]) -> None:
    """Make the tables of a torn footer again in the segment before the newest one, if the newest holds nothing but the
    entries that `_split` of segment_log.py put there; see `_make_tables`."""
    if _has_torn_tables(path := os.path.join(directory, names[-2]), files):
        moved = _intact_frames(os.path.join(directory, names[-1]), files)
        if moved and all(frame.write == moved[0].index for frame in moved):
            _make_tables(path, files, notes)


def _has_torn_tables(path: str, files: Files) -> bool:
    with files.opened(path) as fd:
        end = read_end(files, fd)
        if end is not None and end.packing is None:  # else it is open, or was put into place as a whole
            try:
                read_tables(files, fd, path, end)
            except CorruptLog:
                return True
    return False


def _make_tables(path: str, files: Files, notes: list[str]) -> None:
    """Make the tables of a torn footer again, if its frames are intact; what is damaged otherwise, its readers find.

    A footer is written in one piece and synced then: a power loss in between can leave its end without all of its
    tables. The frames before it were durable, and the tables follow from them.
    """
    with files.opened(path, write=True) as fd:
        end = read_end(files, fd)
        header = decode_segment_header(files.read_at(fd, HEADER_SIZE, 0))
        if end is None or isinstance(header, str):
            return
        made = Segment(path, header)
        assert made.tables is not None
        with contextlib.suppress(CorruptLog):
            for frame, at in iter_frames(files.read_at(fd, end.frames_end, 0), path, header, end.frames_end):
                if frame.kind == Kind.MESSAGES:
                    place_body(made, frame.body, at)
        pieces = [made.tables.offsets.tobytes(), made.tables.lengths.tobytes()]
        if crc32(b"".join(pieces)) == end.tables_crc:
            files.write(fd, pieces, end.tables_at)
            files.sync(fd)
            notes.append(f"the tables in the footer of {path} were torn, and were made again of its frames")


def _join_split(directory: str, files: Files, names: list[str], checkpoint_index: int) -> list[str]:
    """Undo an interrupted seal in the middle of the newest entries; return the remaining names.

    Such a seal puts the entries behind the SEAL into the next segment before it touches the older one (`_split` of
    segment_log.py), so whichever of the two has more of them has them all.
    """
    path, later = (os.path.join(directory, name) for name in names[-2:])
    first_later = first_index_of(names[-1])
    if checkpoint_index >= first_later:
        return names  # entries behind a SEAL are applied only after the seal
    old, moved = _intact_frames(path, files), _intact_frames(later, files)
    if not old or moved is None or old[-1].index < first_later - 1:
        return names
    if old[-1].index == first_later - 1 and old[-1].kind != Kind.SEAL:
        return names
    if moved and moved[-1].index > old[-1].index:
        _join(path, files, [frame for frame in old if frame.index < first_later], moved)
    files.remove(later)
    files.sync_directory(directory)
    return names[:-1]


def _join(path: str, files: Files, kept: list[Frame], moved: list[Frame]) -> None:
    with files.opened(path, write=True) as fd:
        header = decode_segment_header(files.read_at(fd, HEADER_SIZE, 0))
        assert not isinstance(header, str)
        segment = Segment(path, header)
        segment.end += sum(FRAME_HEADER + len(frame.body) for frame in kept)
        write_frames(files, fd, segment, moved, moved[0].index)
        files.truncate(fd, segment.end)
        files.sync(fd)


def _intact_frames(path: str, files: Files) -> list[Frame] | None:
    """Return the frames of a segment that is not sealed, up to the first damage; None if it is sealed."""
    with files.opened(path) as fd:
        if read_end(files, fd) is not None:
            return None
        header = decode_segment_header(files.read_at(fd, HEADER_SIZE, 0))
        content = files.read_at(fd, files.size(fd), 0)
    if isinstance(header, str):
        return []
    frames: list[Frame] = []
    with contextlib.suppress(CorruptLog):
        for frame, _ in iter_frames(content, path, header, len(content)):
            frames.append(frame)
    return frames


def check_whole(segments: list[Segment], outlines: list[OutlineFile], checkpoint_index: int, whole: bool) -> None:
    """Raise CorruptLog unless checkpoint, segments and outlines together hold every entry."""
    first, last = segments[0], segments[-1]
    outlined = outlines[-1].info.last_index if outlines else 0
    if whole and outlined + 1 < first.first_index <= checkpoint_index + 1:
        raise CorruptLog(first.path, 0, f"the segment that begins with entry {outlined + 1} is missing before it")
    if first.first_index > checkpoint_index + 1:
        what = f"the log begins with entry {first.first_index}, but the checkpoint is of entry {checkpoint_index}"
        raise CorruptLog(first.path, 0, what)
    if last.last_index < checkpoint_index:
        what = f"the log ends with entry {last.last_index}, but the checkpoint is of entry {checkpoint_index}"
        raise CorruptLog(last.path, last.end, what)
    if outlines and outlines[-1].info.last_index > checkpoint_index:
        raise CorruptLog(outlines[-1].path, 0, f"it covers more than the checkpoint of entry {checkpoint_index}")
