"""Repair of damaged logs from what other members have.

Belongs here: cutting the log of a member of a group back to the entries before the first damage, so that it can be
opened and the group can give it the rest again, and setting aside what is intact behind that (`salvage`); verifying a
sealed segment and putting another replica's file of the same entries in its place (`take_over`); and making a whole
file of several damaged ones, and of the stream's table (`assemble`). Files of the same entries differ in salt and time
of sealing, and in nothing that is read: frames have the same offsets. A group of one has no other copy: its log is
never cut like this.

Invariant 3: before `salvage` is called the member is durably marked as recovering (`Member.damaged`), because entries
that it acknowledged go from its log. docs/internals/replication.md#damaged-logs has the rules for what is set aside.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog, CorruptRecord, LogError
from lakestream.log.format.files import Files
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import (
    MAGIC_BYTES,
    UNKNOWN,
    Frame,
    Held,
    Kind,
    claimed,
    decode_frame,
    encode_header,
    salt_at,
    unwritten,
)
from lakestream.log.format.outline import SUFFIX as OUTLINE_SUFFIX
from lakestream.log.format.outline import read_outline, read_outline_info
from lakestream.log.format.packed import BLOCK_BYTES, PackedView, read_plain
from lakestream.log.format.record import Record, encode_record, iter_records
from lakestream.log.format.segment import (
    HEADER_SIZE,
    LOG_DIRECTORY,
    SUFFIX,
    Footer,
    Header,
    SealedEnd,
    Segment,
    decode_segment_header,
    encode_footer,
    encode_segment_header,
    first_index_of,
    is_packed,
    is_segment_name,
    iter_frames,
    place_body,
    read_end,
    read_footer,
    read_tables,
)
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import read_checkpoint
from lakestream.protocol.decoding import DECODE_ERRORS, PackDecoder

ASIDE = "aside"
"""Name of the file with what was set aside, beside the log."""
ASIDE_BYTES = 64 << 20
"""Maximum size of the bodies of entries that are set aside (64 MiB); those nearest to the damage stay."""
_HELD = PackDecoder(Held)


class DamagedEverywhere(CorruptLog):
    """Raised if an entry is damaged in all copies. `seqs`: its messages, if a copy still says which they are."""

    def __init__(self, file: str, offset: int, what: str, seqs: Sequence[int]) -> None:
        super().__init__(file, offset, what)
        self.seqs = seqs


class Salvaged(msgspec.Struct, frozen=True):
    """Result of `salvage`. `intact_through`: the newest entry left. `damage`: the first damage found, and its extent.

    With `intact_through` 0 the group begins with nothing and is given everything, entry by entry or as a state.
    """

    intact_through: int
    damage: str


def salvage(directory: str, files: Files, usable: bool = True) -> Salvaged:
    """Cut the log in `directory` (a stream's, or another group's) to what is intact. Block. Raise OSError.

    Everything is read. Killed on the way, the log is still damaged, or is whole already: call it again. The checkpoint
    stays if the log reaches that far; otherwise the state is replayed from the first entry, and if that has left the
    log, nothing can be used; nor is it with `usable` False. What is intact and not used is set aside.
    """
    log_directory = os.path.join(directory, LOG_DIRECTORY)
    names = _segments(log_directory, files)
    damage = "" if names else f"{log_directory}: the segments are missing"
    last = term = end = 0
    whole, newest = len(names), None
    expected = first = first_index_of(names[0]) if names else 0
    for position, name in enumerate(names):
        path = os.path.join(log_directory, name)
        found = _Walk(path, files, expected)
        last, term, newest = max(last, found.last_index), found.last_term or term, found.newest or newest
        expected = found.last_index + 1
        if found.damage or not (found.sealed or position == len(names) - 1):
            damage = found.damage or f"{path}: the footer of this sealed segment is damaged"
            whole, end = position, found.end
            break
    usable = usable and (whole > 0 or end >= HEADER_SIZE) and _usable(directory, files, first, last)
    behind = [os.path.join(log_directory, name) for name in (names[whole:] if usable else names)]
    if behind:
        gap = _keep(directory, files, (last, term), usable, behind, newest)
        damage += gap if damage else ""
    if not usable:
        _empty(directory, files)
        return Salvaged(0, damage or f"{directory}: the checkpoint or an outline is damaged")
    for path in reversed(behind[1:]):
        files.remove(path)
    if behind:
        _cut_file(files, behind[0], end)
    files.sync_directory(log_directory)
    return Salvaged(last, damage)


def _segments(directory: str, files: Files) -> list[str]:
    return [name for name in files.names(directory) if is_segment_name(name)]


class _Walk:
    """A segment, read from its beginning to its end or the first damage."""

    def __init__(self, path: str, files: Files, first_index: int) -> None:
        self.sealed = False
        self.damage = ""
        self.end = self.last_term = 0
        self.last_index = first_index - 1
        self.newest: Frame | None = None  # with messages
        try:
            with files.opened(path) as fd:
                header = decode_segment_header(files.read_at(fd, HEADER_SIZE, 0))
                if isinstance(header, str):
                    self.damage = f"{path}: {header}"
                    return
                if header.first_index != first_index:
                    self.damage = f"{path}: begins with entry {header.first_index} where {first_index} belongs"
                    return
                sealed = _end(files, fd, path)
                content = PackedView(files, fd, path).read_at(sealed.frames_end if sealed else files.size(fd), 0)
        except (CorruptRecord, CorruptLog) as error:
            self.damage = f"{path}: {error}"  # a damaged compressed segment is not used at all
            return
        self._frames(content, path, header.salt, sealed is not None)
        if sealed is not None:
            self.sealed = sealed.footer.last_index == self.last_index
            self.damage = self.damage or ("" if self.sealed else f"{path}: the footer is of another file")
        if self.damage and is_packed(content):
            self.end, self.last_index, self.last_term = 0, first_index - 1, 0

    def _frames(self, content: bytes, path: str, salt: int, sealed: bool) -> None:
        self.end = HEADER_SIZE
        while self.end < len(content):
            frame = decode_frame(content, self.end, len(content), salt)
            if not isinstance(frame, Frame) or frame.index != self.last_index + 1:
                if not sealed and unwritten(content, self.end, len(content)):
                    return
                self.damage = f"{path}: damaged at offset {self.end}: {frame if isinstance(frame, str) else 'order'}"
                return
            self.end += FRAME_HEADER + len(frame.body)
            self.last_index, self.last_term = frame.index, frame.term
            if frame.kind is Kind.MESSAGES:
                self.newest = frame


def _end(files: Files, fd: int, path: str) -> SealedEnd | None:
    """Return the footer, if it and its tables are whole."""
    end = read_end(files, fd)
    if end is None:
        return None
    try:
        read_tables(files, fd, path, end)
    except CorruptLog:
        return None
    return end


def _keep(
    directory: str, files: Files, end: tuple[int, int], behind: bool, paths: Sequence[str], newest: Frame | None
) -> str:
    """Set the intact entries in these segments aside, durably; return a text about the first gap.

    A salvage behind one that was killed finds less, and one of a log that has not recovered from earlier damage finds
    what other members sent: both leave the file as it is. One that cannot use what an earlier one left adds that.

    Args:
        end: index and term of the last entry before the first damage.
        behind: keep those behind it; else all.
        newest: the last messages before it.
    """
    frames, room, last = dict[int, Frame](), ASIDE_BYTES, end[0] if behind else 0
    for path in paths:
        for frame in _intact(files, path):
            if room > 0 and frame.index > last:
                frames[frame.index] = frame
                room, last = room - len(frame.body), frame.index
    path, before = os.path.join(directory, ASIDE), read_aside(files, directory)
    adds = not behind and before.cut == end
    if adds or not files.exists(path):
        body = msgspec.msgpack.encode(Held(cut=end if behind else UNKNOWN, frames=frames | before.frames))
        files.write_whole(path, [crc32(body).to_bytes(4, "little"), body])
    after = max((record.seq for record in iter_records(newest.body)), default=0) if newest is not None else 0
    rest = [frame for index, frame in frames.items() if index > end[0]]
    if rest and rest[0].index == end[0] + 1:
        return ""  # only a footer is damaged
    later = next((frame for frame in rest if frame.kind is Kind.MESSAGES), None)
    entries = f"{end[0] + 1} to {rest[0].index - 1}" if rest else f"from {end[0] + 1} on"
    seqs = f"{after + 1} to {next(iter_records(later.body)).seq - 1}" if later is not None else f"from {after + 1} on"
    return f"; entries {entries} cannot be read here (messages: sequences {seqs})"


def _intact(files: Files, path: str) -> Iterator[Frame]:
    """Yield the frames of a segment that can be read, whatever is damaged before them."""
    with files.opened(path) as fd:
        end = read_end(files, fd)
        size = end.frames_end if end is not None else files.size(fd)
    content, at = readable(files, path, size), HEADER_SIZE
    salt = _salt(content)
    while 0 <= at < len(content):
        frame = decode_frame(content, at, len(content), salt)
        if isinstance(frame, Frame):
            yield frame
            at += FRAME_HEADER + len(frame.body)
        else:
            at = content.find(MAGIC_BYTES, at + 1)


def read_aside(files: Files, directory: str) -> Held:
    """Return what was set aside of the log in `directory`; nothing if that is damaged itself. Block. Raise OSError."""
    try:
        content = files.read(os.path.join(directory, ASIDE))
        return _HELD.decode(content[4:]) if crc32(content[4:]).to_bytes(4, "little") == content[:4] else Held()
    except (FileNotFoundError, *DECODE_ERRORS):
        return Held()


def _cut_file(files: Files, path: str, end: int) -> None:
    """Cut a segment file after its intact frames; remove it if its header is damaged."""
    if end < HEADER_SIZE:
        files.remove(path)
        return
    with files.opened(path, write=True) as fd:
        files.truncate(fd, end)
        files.sync(fd)


def _usable(directory: str, files: Files, first: int, last: int) -> bool:
    """Return True if the state can be recovered from entries `first` through `last`. Remove a useless checkpoint."""
    path = os.path.join(directory, CHECKPOINT)
    try:
        found = read_checkpoint(files, path)
        through = 0
        for name in files.names(os.path.join(directory, LOG_DIRECTORY)):
            if name.endswith(OUTLINE_SUFFIX):
                outline = os.path.join(directory, LOG_DIRECTORY, name)
                through = read_outline_info(files, outline).last_index
                read_outline(files, outline)
        index = found[0].index if found is not None else 0
        if through + 1 >= first and (found is None or first - 1 <= index <= last):
            return first == 1 or found is not None
    except LogError:
        pass
    outlined = any(name.endswith(OUTLINE_SUFFIX) for name in files.names(os.path.join(directory, LOG_DIRECTORY)))
    if first > 1 or outlined or last == 0:
        return False
    files.remove(path)
    files.sync_directory(directory)
    return True


def _empty(directory: str, files: Files) -> None:
    """Remove log and checkpoint, the checkpoint first: with it alone, the log would be missing."""
    files.remove(os.path.join(directory, CHECKPOINT))
    log_directory = os.path.join(directory, LOG_DIRECTORY)
    for name in reversed(files.names(log_directory)):
        if name.endswith((SUFFIX, OUTLINE_SUFFIX)):
            files.remove(os.path.join(log_directory, name))
    files.sync_directory(log_directory)
    files.sync_directory(directory)


def verify(files: Files, path: str) -> tuple[Header, Footer]:
    """Read everything of the sealed segment at `path`. Block. Raise CorruptLog at the first damage, OSError."""
    footer, _, frames_end = read_footer(path, files)
    content = read_plain(files, path)
    header = decode_segment_header(content)
    if isinstance(header, str):
        raise CorruptLog(path, 0, header)
    last = header.first_index - 1
    for frame, _ in iter_frames(content, path, header, frames_end):
        last = frame.index
        if frame.kind == Kind.MESSAGES:
            for _ in iter_records(frame.body):
                pass
    if (header.first_index, last) != (footer.first_index, footer.last_index):
        raise CorruptLog(path, frames_end, f"it holds entries {header.first_index} to {last}")
    return header, footer


def take_over(files: Files, segment: Segment, fetched: str) -> Header:
    """Replace the file of a sealed segment by `fetched`, another replica's of the same entries. Block.

    Return the new header, for `adopt`. Raise CorruptLog when the other file is damaged or holds something else.
    """
    header, footer = verify(files, fetched)
    known = segment.footer
    assert known is not None, "only a sealed segment is replaced"
    if msgspec.structs.replace(footer, closed_ns=known.closed_ns) != known:
        raise CorruptLog(fetched, 0, "it does not hold the same messages")
    files.replace(fetched, segment.path)
    files.sync_directory(os.path.dirname(segment.path))
    return header


def readable(files: Files, path: str, end: int) -> bytes:
    """Return header and frames of a damaged segment, as in the plain file, with zeros for what cannot be read. Block.

    Args:
        end: offset at which its frames end.
    """
    pieces = list[bytes]()
    with files.opened(path) as fd:
        try:
            view = PackedView(files, fd, path)
        except CorruptLog:
            return b""  # without its footer a compressed one cannot be read at all
        for at, until in pairwise([0, *range(HEADER_SIZE, end, BLOCK_BYTES), end]):
            try:
                piece = view.read_at(until - at, at)
            except (CorruptRecord, OSError):
                piece = b""
            pieces.append(piece.ljust(until - at, b"\0"))
    return b"".join(pieces)


def assemble(
    files: Files,
    segment: Segment,
    copies: Sequence[bytes],
    target: str,
    rows: Mapping[int, Record],
) -> None:
    """Write a sealed segment anew, each frame from a copy in which it is intact. Block.

    A frame with the right crc, index and term is what the group has agreed on, whichever member has it.

    Args:
        segment: of this member. Its footer, which was whole when the log was opened, is in memory.
        copies: contents of the members' files of the same entries (`readable`).
        target: path of the new file.
        rows: messages of the stream's table, by sequence; used for entries that are damaged in all copies.

    Raises:
        DamagedEverywhere: an entry is, and `rows` has not all of its messages, or others.
    """
    footer, header = segment.footer, segment.header
    assert footer is not None, "only a sealed segment is replaced"
    salted = [(each, _salt(each)) for each in copies]
    made, pieces, offset, term = Segment(segment.path, header), [encode_segment_header(header)], HEADER_SIZE, 0
    terms = dict(segment.terms)
    for index in range(footer.first_index, footer.last_index + 1):
        term = terms.get(index, term)
        found = (decode_frame(each, offset, len(each), salt) for each, salt in salted)
        frame = next((f for f in found if isinstance(f, Frame) and (f.index, f.term) == (index, term)), None)
        if frame is None:
            frame = _of_rows(files, segment, salted, offset, (index, term), rows)
        if frame.kind == Kind.MESSAGES:
            place_body(made, frame.body, offset + FRAME_HEADER)
        pieces += encode_header(frame, frame.write, header.salt), frame.body
        offset += FRAME_HEADER + len(frame.body)
    assert made.tables is not None
    files.write_whole(target, [*pieces, *encode_footer(footer, made.tables, offset)])


def _of_rows(
    files: Files,
    segment: Segment,
    salted: Sequence[tuple[bytes, int]],
    offset: int,
    place: tuple[int, int],
    rows: Mapping[int, Record],
) -> Frame:
    """Return an entry made of messages of the table, if the header that a damaged copy has of it proves them.

    Its crc is that of header and body: an entry with the same header, byte by byte, is the one that was written there.
    """
    places, wanted = dict[int, int](), list[int]()
    with contextlib.suppress(CorruptLog):  # of this member's footer
        footer, tables, _ = read_footer(segment.path, files)
        seqs = (seq for first, count in footer.runs for seq in range(first, first + count))
        places = dict(zip(seqs, tables.offsets, strict=True))
    for content, salt in salted:
        if (found := claimed(content, offset)) is None or (found[0].index, found[0].term) != place:
            continue
        frame, length = found
        inside = range(offset + FRAME_HEADER, offset + FRAME_HEADER + length)
        wanted = [seq for seq, at in places.items() if at in inside]
        if all(seq in rows for seq in wanted):
            frame.body = b"".join(encode_record(*msgspec.structs.astuple(rows[seq])) for seq in wanted)
            if encode_header(frame, frame.write, salt) == content[offset : offset + FRAME_HEADER]:
                return frame
    what = f"entry {place[0]} is damaged in all {len(salted)} copies that could be had"
    raise DamagedEverywhere(segment.path, offset, what, wanted)


def _salt(content: bytes) -> int:
    """Return the salt of a segment: that of its first frame where the header is damaged. Any crc shows a wrong one."""
    header = decode_segment_header(content)
    if isinstance(header, Header):
        return header.salt
    return salt_at(content, HEADER_SIZE)


def adopt(cache: ReadCache, segment: Segment, header: Header) -> None:
    """Forget what is known of the file that was replaced. In the event loop."""
    segment.header = header
    segment.file_bytes = cache.files.length(segment.path)  # either file may be compressed
    cache.forget(segment.path)
    cache.drop(segment)
