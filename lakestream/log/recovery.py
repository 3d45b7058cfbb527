"""Opening what an earlier process left, however it ended.

Belongs here: the version and the lock of a store, the list of its streams, and finding a stream's segments again:
cutting what a crash tore off, and refusing whatever else is wrong (DESIGN §4, invariant 3).

The rule for a damaged frame in the last segment. A write is only begun once the one before is durable, and every frame
carries the index of the first entry of its write. So if the damaged frame has index i, and a valid frame behind it
belongs to a write that began after i, then entry i was durable and is damaged: CorruptLog. Otherwise it may be what a
crash left of a write that was never acknowledged: it is cut off. A member of a group keeps beside its log through
which entry it was durable: nothing before that may be missing or damaged either.

Which entries are in the tables. A checkpoint covers the entries through its index, so their records are entered here;
what comes after is entered when it is applied, by the replay, or later by the group. With other members the newest
entries may not be committed: the replay ends where the member knows them to be, and the rest stays in the file and in
no table until the group hands it out or cuts it off.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable

from lakestream.log.base import outlines_of
from lakestream.log.errors import CorruptLog, StoreLocked, StoreVersionError
from lakestream.log.files import Files
from lakestream.log.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.frame import Frame, Kind, decode_frame, later_write
from lakestream.log.leaving import GONE, OWING
from lakestream.log.names import RESERVED, account_directory, account_of
from lakestream.log.outline import SUFFIX as OUTLINE_SUFFIX
from lakestream.log.outline import OutlineFile, read_outline_info
from lakestream.log.packed import codec
from lakestream.log.record import TIME_AT
from lakestream.log.segment import (
    HEADER_SIZE,
    SUFFIX,
    Header,
    Segment,
    decode_segment_header,
    encode_segment_header,
    is_packed,
    iter_frames,
    read_end,
    record_spans,
)
from lakestream.log.segment_log import LogOptions, SegmentLog, begin_segment, last_term, write_frames

STORE_VERSION = 1
STREAMS = "streams"
"""Where an account's directory has its streams."""


class StoreRoot:
    """The directory of all streams of a server, locked for this process."""

    def __init__(self, path: str, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: str, files: Files | None = None) -> StoreRoot:
        """Lock the store at `path`, making it when it is not there.

        Raises StoreLocked when another process has it, StoreVersionError when a newer release wrote it, OSError.
        """
        files = files or Files()
        files.make_directory(path)
        name = os.path.join(path, "VERSION")
        lock = os.open(os.path.join(path, "LOCK"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.exists(name):
                files.write_whole(name, [b"%d\n" % STORE_VERSION])
            _check_version(name, files.read(name))
        except BlockingIOError:
            os.close(lock)
            raise StoreLocked(f"{path}: another server uses this store; stop it or choose another store_dir") from None
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock)

    def stream_directory(self, account: str, stream: str) -> str:
        """Where a stream's files are."""
        return os.path.join(self.path, account_directory(account), STREAMS, stream)

    def accounts(self, files: Files) -> list[str]:
        """Every account that has had streams, ascending by directory."""
        found = [name for name in files.names(self.path) if name not in RESERVED]
        return [account_of(name) for name in found if os.path.isdir(os.path.join(self.path, name, STREAMS))]

    def streams(self, files: Files | None = None) -> list[tuple[str, str]]:
        """(account, stream) of every stream, ascending. Removes what is left of those that were discarded."""
        files = files or Files()
        found = []
        for account in self.accounts(files):
            base = os.path.dirname(self.stream_directory(account, "_"))
            for name in files.names(base):
                if GONE not in name and os.path.isdir(os.path.join(base, name)):
                    found.append((account, name))
                elif GONE in name and not name.endswith(OWING):
                    files.remove_tree(os.path.join(base, name))
        return found

    def left(self, files: Files) -> list[str]:
        """The directories of deleted streams of which somebody is still owed something; see leaving.py."""
        bases = [os.path.dirname(self.stream_directory(account, "_")) for account in self.accounts(files)]
        return [os.path.join(base, name) for base in bases for name in files.names(base) if name.endswith(OWING)]

    def close(self) -> None:
        """Let go of the lock. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _check_version(name: str, content: bytes) -> None:
    try:
        version = int(content)
    except ValueError:
        raise StoreVersionError(f"{name} does not hold a number: this is not a store, or it is damaged") from None
    if version > STORE_VERSION:
        raise StoreVersionError(
            f"{name} says that a newer lakestream (store version {version}) wrote this store, this release reads "
            f"{STORE_VERSION}: run the newer release, or choose another store_dir"
        )
    if version != STORE_VERSION:
        raise StoreVersionError(f"{name} says store version {version}, which no release of lakestream wrote")


def find_outlines(directory: str, files: Files, based: bool = False) -> list[OutlineFile]:
    """The outlines of what is in the log no more, or never was, ascending. Raises CorruptLog.

    `based`: the stream began with a copy (base.py). In a state that came from another node, that lies here as well.
    """
    base = outlines_of(files, os.path.dirname(directory)) if based else []
    paths = [os.path.join(directory, name) for name in files.names(directory) if name.endswith(OUTLINE_SUFFIX)]
    return base + [OutlineFile(path, read_outline_info(files, path)) for path in paths]


def open_log(
    directory: str,
    files: Files,
    options: LogOptions,
    now: Callable[[], int],
    *,
    outlined: int = 0,
    checkpoint_index: int = 0,
    durable_through: int = 0,
) -> SegmentLog:
    """The log in `directory`, which is made when it is not there; see `find_segments`. Blocks. Raises CorruptLog."""
    files.make_directory(directory)
    segments = find_segments(directory, files, now, outlined, checkpoint_index, durable_through)
    return SegmentLog(directory, files, options, now, segments, last_term(segments))


def find_segments(
    directory: str,
    files: Files,
    now: Callable[[], int],
    outlined: int,
    checkpoint_index: int,
    durable_through: int = 0,
) -> list[Segment]:
    """The segments of a log, ascending, the last one open and cut to whole frames. Raises CorruptLog.

    Args:
        directory: the stream's `log` directory, which exists.
        files: the file layer.
        now: wall time in ns, for the header of a new segment.
        outlined: entries through this index are in outlines; segments of theirs are leftovers and are removed.
        checkpoint_index: what the checkpoint covers. The records of entries above it are left to the replay.
        durable_through: the entries that are known to have been durable here, beyond the checkpoint.
    """
    segments: list[Segment] = []
    names = _segment_names(directory, files, outlined)
    durable_through = max(checkpoint_index, durable_through)
    if len(names) > 1:
        names = _join_split(directory, files, names, checkpoint_index)
    for position, name in enumerate(names):
        path = os.path.join(directory, name)
        last = position == len(names) - 1
        expected = segments[-1].last_index + 1 if segments else int(name[: -len(SUFFIX)])
        if int(name[: -len(SUFFIX)]) != expected:
            raise CorruptLog(path, 0, f"the segment that begins with entry {expected} is missing before it")
        first_seq = _next_seq(segments[-1]) if segments else 1
        opened = _open_segment(path, files, now, expected, first_seq, last)
        if opened.footer is None:
            _scan(opened, files, checkpoint_index, durable_through)
        segments.append(opened)
    if not segments and max(outlined, durable_through):
        raise CorruptLog(directory, 0, f"the segments after entry {max(outlined, durable_through)} are missing")
    if names:  # what a killed process left in the page cache is taken for durable from here on
        _make_durable(directory, files, segments[-1].path)
    if not segments or segments[-1].footer is not None:
        first_index, first_seq = (segments[-1].last_index + 1, _next_seq(segments[-1])) if segments else (1, 1)
        fresh, fd = begin_segment(directory, files, first_index, first_seq, now())
        files.close(fd)
        segments.append(fresh)
    newest = segments[-1]
    if checkpoint_index <= newest.last_index < durable_through:  # Store.open says it of checkpoints
        raise CorruptLog(newest.path, newest.end, f"the log ends before entry {durable_through}, which was durable")
    return segments


def _make_durable(directory: str, files: Files, path: str) -> None:
    fd = files.open(path, write=True)
    try:
        files.sync(fd)
    finally:
        files.close(fd)
    files.sync_directory(directory)


def _segment_names(directory: str, files: Files, outlined: int) -> list[str]:
    kept = []
    for name in files.names(directory):
        if name.endswith(".tmp"):
            files.remove(os.path.join(directory, name))
        elif name.endswith(SUFFIX):
            if int(name[: -len(SUFFIX)]) <= outlined:
                files.remove(os.path.join(directory, name))
            else:
                kept.append(name)
    return kept


def _next_seq(segment: Segment) -> int:
    assert segment.footer is not None
    return segment.footer.last_seq + 1


def _open_segment(
    path: str, files: Files, now: Callable[[], int], first_index: int, first_seq: int, last: bool
) -> Segment:
    fd = files.open(path, write=True)
    try:
        end = read_end(files, fd)
        header = decode_segment_header(files.read_at(fd, HEADER_SIZE, 0))
        if isinstance(header, str):
            if not last or files.size(fd) > HEADER_SIZE or end is not None:
                raise CorruptLog(path, 0, header)
            # Killed while it was being made: the header is synced before the first frame.
            _remake(files, fd, first_index, first_seq, now())
            header = decode_segment_header(files.read_at(fd, HEADER_SIZE, 0))
            assert not isinstance(header, str)
        if header.first_index != first_index:
            raise CorruptLog(path, 0, f"the header says that it begins with entry {header.first_index}")
        if end is not None:
            if end.packing is not None:
                codec()  # before anybody waits for a message
            return Segment.sealed(path, header, end.footer, end.frames_end, end.file_bytes)
        if not last or is_packed(files.read_at(fd, HEADER_SIZE, 0)):
            raise CorruptLog(path, files.size(fd), "the footer of this sealed segment is damaged")
        return Segment(path, header)
    finally:
        files.close(fd)


def _remake(files: Files, fd: int, first_index: int, first_seq: int, now_ns: int) -> None:
    files.truncate(fd, 0)
    files.write(fd, [encode_segment_header(Header(first_index, first_seq, now_ns, files.salt()))], 0)
    files.sync(fd)


def _scan(segment: Segment, files: Files, checkpoint_index: int, durable_through: int) -> None:
    """Walk the frames of the last segment and cut off what a crash tore. Raises CorruptLog."""
    fd = files.open(segment.path, write=True)
    try:
        content = files.read_at(fd, files.size(fd), 0)
        _walk(segment, content, checkpoint_index, durable_through)
        if segment.end < len(content):
            files.truncate(fd, segment.end)
            files.sync(fd)
    finally:
        files.close(fd)


def _walk(segment: Segment, content: bytes, checkpoint_index: int, durable_through: int) -> None:
    """Enter the frames into the segment; `segment.end` is where the good ones end. Raises CorruptLog."""
    offset, index, end = HEADER_SIZE, segment.first_index, len(content)
    salt, term = segment.header.salt, -1
    while offset < end:
        frame = decode_frame(content, offset, end, salt)
        if isinstance(frame, Frame) and frame.index != index:
            frame = f"the frame has index {frame.index} where {index} belongs"
        if isinstance(frame, str):
            if later_write(content, offset, end, salt, index) >= 0 or index <= durable_through:
                raise CorruptLog(segment.path, offset, frame)
            break
        if frame.kind == Kind.MESSAGES and index <= checkpoint_index:
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


def _join_split(directory: str, files: Files, names: list[str], checkpoint_index: int) -> list[str]:
    """Undo a seal in the middle of the newest entries that did not get as far as its footer; the names that are left.

    Such a seal puts the entries behind the SEAL into the next segment before it touches the older one (`_split` of
    segment_log.py), so whichever of the two has more of them has them all.
    """
    path, later = (os.path.join(directory, name) for name in names[-2:])
    first_later = int(names[-1][: -len(SUFFIX)])
    if checkpoint_index >= first_later:
        return names  # what was applied behind a SEAL was applied after the seal
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
    fd = files.open(path, write=True)
    try:
        header = decode_segment_header(files.read_at(fd, HEADER_SIZE, 0))
        assert not isinstance(header, str)
        segment = Segment(path, header)
        segment.end += sum(FRAME_HEADER + len(frame.body) for frame in kept)
        write_frames(files, fd, segment, moved, moved[0].index)
        files.truncate(fd, segment.end)
        files.sync(fd)
    finally:
        files.close(fd)


def _intact_frames(path: str, files: Files) -> list[Frame] | None:
    """The frames of a segment that is not sealed, up to the first damage; None when it is sealed."""
    fd = files.open(path)
    try:
        if read_end(files, fd) is not None:
            return None
        header = decode_segment_header(files.read_at(fd, HEADER_SIZE, 0))
        content = files.read_at(fd, files.size(fd), 0)
    finally:
        files.close(fd)
    if isinstance(header, str):
        return []
    frames: list[Frame] = []
    with contextlib.suppress(CorruptLog):
        for frame, _ in iter_frames(content, path, header, len(content)):
            frames.append(frame)
    return frames


def place_body(segment: Segment, body: bytes, at: int) -> None:
    """Enter the records of a MESSAGES body that lies at offset `at` into the tables of an open segment."""
    first, next_seq = 0, 0
    offsets: list[int] = []
    lengths: list[int] = []
    last_time = segment.last_time
    for seq, offset, length in record_spans(body):
        if seq != next_seq and lengths:
            segment.place(first, offsets, lengths, last_time)
            offsets, lengths = [], []
        if not lengths:
            first = seq
        offsets.append(at + offset)
        lengths.append(length)
        last_time = int.from_bytes(body[offset + TIME_AT : offset + TIME_AT + 8], "little", signed=True)
        next_seq = seq + 1
    if lengths:
        segment.place(first, offsets, lengths, last_time)


def check_whole(segments: list[Segment], outlines: list[OutlineFile], checkpoint_index: int, whole: bool) -> None:
    """Raise CorruptLog unless checkpoint and segments together hold every entry, and outlines what has left the log."""
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
