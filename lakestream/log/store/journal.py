"""The journal of a store: small writes of several logs, and new logs, durable with one sync.

Belongs here: the files `created.journal` and `created.journal.2` beside the accounts' directories, their format, group
commit, and what recovery does with them. Only logs of a group of one are in it: in a cluster the meta group's log says
which streams exist, and a member has its own syncs.
"""

# Each sync of a file waits for the disk and costs 0.1 ms of processor time: twenty streams that are written to in turn
# would pay twenty for each round, though one of one file with all the bytes takes no longer. And the first entry of a
# new log would need the syncs of three directories and a segment. So both are made durable here: one write into room
# that is there already, one fdatasync, shared by all threads that put something meanwhile. Then the bytes are written
# to the segments without a sync. Once a second (`FileStores.mark`) the other file takes over, the segments are synced
# in the background, and the first file is emptied: a header with a new salt makes its old frames invalid.
# docs/internals/durability.md#the-journal
#
# Invariants:
#
#     1. Files are made, and written to, only for a record that is durable: there is no torn write that nobody explains.
#     2. A file is emptied only when each log says that its segment has the records (`Settling.has_durably`). If a sync
#        failed, they stay for the next start, and once the other file is full, logs sync for themselves.
#     3. A record names the salt of its segment, and is applied to no other, nor to one that is sealed, as a footer or a
#        next segment says: its bytes were durable before either, and may have been compressed or erased since.
#     4. Before the directory of a settled log gets another name, no creation of the stream is in the journal any more
#        (`forget`), else recovery would bring a deleted stream back, without its messages. A log that is not settled is
#        renamed first, durably: recovery brings it back as it was, when nobody was told that it is deleted.
#     5. After a failed write or sync a file takes no record any more. Whoever wrote syncs its own file with the very
#        same bytes: should the record be there all the same, recovery writes what the segment has.
#
# The files have the format of a segment; the `first_index` of the header tells the older one. A frame's body is
# MessagePack. Release 0.1.0 has one file with creations alone: while there is a journal, the version of the store
# (root.py) is one that it refuses.

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.format.files import Files, WriteRoom, at_once
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, Kind, decode_frame, encode_header, later_write, unwritten
from lakestream.log.format.segment import (
    HEADER_SIZE,
    LOG_DIRECTORY,
    Header,
    Segment,
    decode_segment_header,
    encode_segment_header,
    is_packed,
    is_segment_name,
    read_end,
    segment_name,
)
from lakestream.log.store.synced import NAME as SYNCED
from lakestream.protocol.decoding import PackDecoder

_logger = logging.getLogger(__name__)

NAME = "created.journal"
"""Name of the first file; the other has a `.2` behind it. No account's directory can have it: an account's name has no
dot there."""
ROOM_BYTES, MAX_ROOM_BYTES = 64 << 10, 1 << 20
"""Zeros that are written ahead of the records (64 KiB, later as much as there is, at most 1 MiB): syncs of overwritten
bytes change no metadata."""
MAX_BYTES = 16 << 20
"""A file takes no more messages of settled logs once it is this long (16 MiB): logs sync for themselves until the other
file is empty. A start reads both."""

KEY = "sealing.key"
"""Name of the file with a directory's key, where files are sealed. No account's directory and no stream can have it."""
OF_NEW = (KEY, KEY + ".tmp", SYNCED + ".tmp")
"""Names beside the log that a new stream may have."""


class First(msgspec.Struct, frozen=True, array_like=True):
    """One of the first entries of a log."""

    term: int
    kind: int
    body: bytes


class CreationRecord(msgspec.Struct, frozen=True, array_like=True):
    """A new log: its directory, with its first entry, or None if there is none there any more, and the salt of its
    segment. Earlier releases wrote no salt (0), and later small entries in `more`, with the number of those before."""

    directory: str
    first: First | None
    more: list[First] = []
    after: int = 0
    salt: int = 0


class WriteRecord(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a segment: the stream's directory, first entry and salt of the segment, offset, content."""

    directory: str
    first_index: int
    salt: int
    offset: int
    data: bytes


_CREATION, _WRITE = PackDecoder(CreationRecord), PackDecoder(WriteRecord)


class Settling(Protocol):
    """A log, as the journal sees it."""

    directory: str

    def has_durably(self, index: int) -> bool:
        """Return True if the log needs no record any more of its entries through `index`."""


class _Ticket:
    """Records on their way into a file, and the newest entry of each log in them."""

    def __init__(self, records: Sequence[CreationRecord | WriteRecord], logs: dict[Settling, int]) -> None:
        self.records, self.logs = records, logs
        self.done = False
        self.error: OSError | None = None


class _File:
    """One of the two files.

    Attributes:
        order: the higher one has the newer records.
        logs: the logs with entries in it, and the newest of these.
        created: directories with a creation in it.
        failed: a write failed: it takes no records until it is made anew.
        outdated: it has bytes that no file may have any more.
    """

    def __init__(self, path: str, files: Files) -> None:
        self.path, self._files = path, files
        self.logs: dict[Settling, int] = {}
        self.created: set[str] = set()
        self.failed = self.outdated = False
        self.order = self.end = 0
        self._fd = -1
        self._salt, self._index, self._length = 0, 1, 0

    @property
    def empty(self) -> bool:
        """Return True if no record in it is needed."""
        return self.end <= HEADER_SIZE and not self.logs and not self.created

    @property
    def due(self) -> bool:
        """Return True if it has to be emptied, or made anew."""
        return not self.empty or self.outdated or self.failed

    def begin(self, order: int) -> None:
        """Empty the file, or make it, durably. Raise OSError."""
        self._salt, self._index, self.order = self._files.salt(), 1, order
        header = encode_segment_header(Header(order, 1, time.time_ns(), self._salt))
        is_outdated, self.outdated = self.outdated, False  # first: it may be outdated again meanwhile
        try:
            if self._fd >= 0 and not is_outdated and not self._files.sealed:  # sealed files grow with each overwrite
                self._files.write(self._fd, [header], 0)
                self._files.sync(self._fd)
            else:
                self.close()
                self._files.write_whole(self.path, [header, WriteRoom(ROOM_BYTES)])
                self._fd, self._length = self._files.open(self.path, write=True), HEADER_SIZE + ROOM_BYTES
        except BaseException as error:
            self._fail(error)
            raise
        self.failed = False
        self.end, self.created, self.logs = HEADER_SIZE, set(), {}  # last: other threads see it empty then

    def append(self, tickets: Sequence[_Ticket]) -> None:
        """Write records, durably. Raise OSError."""
        buffers, write, end = list[bytes](), self._index, self.end
        for ticket in tickets:
            for record in ticket.records:
                kind = Kind.OPERATION if isinstance(record, CreationRecord) else Kind.MESSAGES
                frame = Frame(kind, 1, self._index, 0, msgspec.msgpack.encode(record))
                buffers += (encode_header(frame, write, self._salt), frame.body)
                end += FRAME_HEADER + len(frame.body)
                self._index += 1
        for ticket in tickets:  # first: what fails may be there all the same
            self.logs.update(ticket.logs)
            self.created.update(each.directory for each in ticket.records if isinstance(each, CreationRecord))
        if end > self._length:
            room = max(ROOM_BYTES, min(end, MAX_ROOM_BYTES))
            self._length = end + room
            buffers.append(WriteRoom(room))
        try:
            self._files.write(self._fd, buffers, self.end)
            self._files.sync(self._fd)
        except BaseException as error:
            self._fail(error)
            raise
        self.end = end

    def _fail(self, error: BaseException) -> None:
        """Take no more records: after a failed write or sync it is made anew, never written on."""
        if not self.failed:
            _logger.warning("%s: %s; logs sync for themselves until it can be made anew", self.path, error)
        self.failed = True
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)


class Birth:
    """The names of a new log, which are not durable yet. Its methods block, in any thread, but one at a time."""

    def __init__(self, directory: str, journal: Journal) -> None:
        self.directory = directory
        self._journal, self._files = journal, journal.files

    @property
    def directories(self) -> tuple[str, str]:
        """Return the directories whose names are to be made durable, apart from that of the stream's directory."""
        return os.path.join(self.directory, LOG_DIRECTORY), self.directory

    def sync_names(self) -> None:
        """Make the names below the stream's directory durable. Raise OSError."""
        for directory in self.directories:
            self._files.sync_directory(directory)

    def settle(self) -> None:
        """Make all names durable. The segment was synced before. Raise OSError."""
        self.sync_names()
        self._files.sync_directory(os.path.dirname(self.directory))
        self._journal.settled(self)


class Journal:
    """The journal of one store. Its methods block; all but `recover` and `close` may be called in any thread.

    Args:
        begin: called before there is a file, `end` when there is none any more. Raise OSError.
    """

    def __init__(
        self, root: str, files: Files, begin: Callable[[], None] = lambda: None, end: Callable[[], None] = lambda: None
    ) -> None:
        self.files = files
        self._root, self._begin, self._end = root, begin, end
        self._both = tuple(_File(os.path.join(root, NAME + suffix), files) for suffix in ("", ".2"))
        self._current, self._other = self._both
        self._unsettled: dict[str, Birth] = {}  # by relative directory
        self._known: dict[str, _Records] | None = None  # what `redo` has read
        self._waiting: list[_Ticket] = []
        self._gather, self._write = threading.Lock(), threading.Lock()

    # ------------------------------------------------------------------ new streams
    def create(self, directory: str, term: int, kind: Kind, body: bytes, now_ns: int) -> tuple[Birth, Segment]:
        """Make the files of a log with its first entry; return their names, and its segment. The entry is durable, they
        are not.

        Raise OSError; the directory is to be forgotten and removed then.
        """
        first, files = First(term, kind, body), self.files
        files.make_directory(os.path.dirname(directory))
        relative, salt = self._relative(directory), max(files.salt(), 1)
        birth = Birth(directory, self)
        with self._gather:
            self._unsettled[relative] = birth
        try:
            self._put([CreationRecord(relative, first, salt=salt)], {})
        except BaseException:
            with self._gather:
                del self._unsettled[relative]
            raise
        return birth, _make(directory, [first], files.unsynced(), now_ns, salt)

    def forget(self, directory: str) -> None:
        """Remove the creation of a stream that is about to be deleted, durably. Raise OSError."""
        relative = self._relative(directory)
        with self._gather:
            self._unsettled.pop(relative, None)
        with self._write:
            known = relative in self._current.created or relative in self._other.created
        if known:
            self._put([CreationRecord(relative, None)], {})

    def _relative(self, directory: str) -> str:
        return directory.removeprefix(os.path.join(self._root, ""))

    def settle_all(self, births: Iterable[Birth]) -> None:
        """Settle new logs whose segments and own names were synced (`Birth.sync_names`). Raise OSError."""
        some = list(births)
        for parent in dict.fromkeys(os.path.dirname(birth.directory) for birth in some):
            self.files.sync_directory(parent)
        for birth in some:
            self.settled(birth)

    def settled(self, birth: Birth) -> None:
        """Forget a log whose names are durable by now, unless its directory is another one's."""
        relative = self._relative(birth.directory)
        with self._gather:
            if self._unsettled.get(relative) is birth:
                del self._unsettled[relative]

    # ------------------------------------------------------------------ writes
    def write(self, writes: Sequence[tuple[Settling, int, Segment, Sequence[bytes]]]) -> None:
        """Make bytes that are about to be written to the end of open segments durable: log, newest entry, segment,
        bytes.

        Raise OSError: the logs have to sync their files.
        """
        size = sum([sum(map(len, pieces)) for _, _, _, pieces in writes])
        if self._current.end + size > MAX_BYTES:
            self.turn()
            if self._current.end + size > MAX_BYTES:
                raise OSError(errno.EFBIG, "it is full, and the other file is in use", self._current.path)
        records = []
        for log, _, segment, pieces in writes:
            directory, header = self._relative(os.path.dirname(log.directory)), segment.header
            data = b"".join(pieces)
            records.append(WriteRecord(directory, header.first_index, header.salt, segment.end, data))
        self._put(records, {log: index for log, index, _, _ in writes})

    def _put(self, records: Sequence[CreationRecord | WriteRecord], logs: dict[Settling, int]) -> None:
        """Write records, durably, together with those that other threads put meanwhile. Raise OSError."""
        ticket = _Ticket(records, logs)
        with self._gather:
            self._waiting.append(ticket)
        with self._write:
            if not ticket.done:
                self._write_waiting()
        if ticket.error is not None:
            raise ticket.error

    def _write_waiting(self) -> None:
        with self._gather:
            tickets, self._waiting = self._waiting, []
        error: OSError | None = None
        try:
            self._ready().append(tickets)
        except OSError as failed:
            error = failed
        for ticket in tickets:
            ticket.done, ticket.error = True, error

    def _ready(self) -> _File:
        """Return a file that takes records. Raise OSError."""
        if not self._current.order:
            self._begin()
            self._current.begin(1)
        elif self._current.failed:
            if not self._other.empty:
                raise OSError(errno.EIO, "a write to it failed, and the other file is in use", self._current.path)
            self._flip()
        return self._current

    def _flip(self) -> None:
        other = self._other
        if other.order < self._current.order or other.outdated or other.failed:
            self._other.begin(self._current.order + 1)
        self._current, self._other = self._other, self._current

    # ------------------------------------------------------------------ a round
    @property
    def due(self) -> bool:
        """Return True if there is something to settle."""
        return self._current.due or self._other.due

    @property
    def crowded(self) -> bool:
        """Return True if it is to be settled at once: it may soon be full."""
        return self._other.empty and self._current.end > MAX_BYTES // 2

    def turn(self) -> None:
        """Let the other file take records, if it has none. Raise OSError.

        The logs are settled then, and after that `release` empties the file that had them until now.
        """
        with self._write:
            if self._current.due and self._other.empty:
                self._flip()

    def release(self) -> bool:
        """Empty the file that takes no records, if all its logs are settled; return False if they are not.

        Raise OSError.
        """
        other = self._other
        if other.due:
            with self._gather:
                left = not other.created.isdisjoint(self._unsettled)
            if left or not all(log.has_durably(index) for log, index in other.logs.items()):
                return False
            other.begin(self._current.order + 1)  # nobody writes to it
        return True

    def outdate(self) -> None:
        """Have the bytes of settled records destroyed: the files are made anew with the next rounds. Do not block."""
        for each in self._both:
            each.outdated = each.order > 0

    # ------------------------------------------------------------------ start and end
    def recover(self, now_ns: int) -> list[str]:
        """Bring every log to what the records say, settle all, and remove the journal.

        Return lines for the server's log. At the start, before anything in the store is opened. Raise OSError.
        """
        present, notes, logs = self._read(self.files)
        if not present:
            return []
        for directory, log in logs.items():
            notes += log.redo(os.path.join(self._root, directory), self.files, now_ns)
        self._settle({os.path.join(self._root, directory): log for directory, log in logs.items()})
        self._remove(present)
        return notes

    def redo(self, directory: str, files: Files) -> list[str]:
        """Bring one log to what the records say, as a start would do it, in other `files`; return what was done."""
        if self._known is None:
            self._known = self._read(files)[2]
        log = self._known.get(self._relative(directory))
        return log.redo(directory, files, 0) if log is not None else []

    def close(self) -> None:
        """Remove the files, unless a log could not be settled. No log is written any more. Raise OSError."""
        files = sorted((self._current, self._other), key=lambda file: file.order)
        for each in files:
            each.close()
        logs = [pair for each in files for pair in each.logs.items()]
        if self._current.order and not self._unsettled and all(log.has_durably(index) for log, index in logs):
            self._remove([each.path for each in files])

    def _settle(self, logs: dict[str, _Records]) -> None:
        """Make what was done durable: segments, keys that the last run made without a sync, names."""
        files = self.files
        at_once(files.sync_file, [path for log in logs.values() for path in log.paths])
        births = [Birth(directory, self) for directory, log in logs.items() if log.entries and log.paths]
        keys = (os.path.join(birth.directory, KEY) for birth in births)
        at_once(files.sync_file, [key for key in keys if files.exists(key)])
        at_once(Birth.sync_names, births)
        self.settle_all(births)

    def _remove(self, paths: Sequence[str]) -> None:
        """Remove the files, the older one first: the other may have the deletion of what it has."""
        for path in paths:
            self.files.remove(path)
            self.files.sync_directory(self._root)
        self._end()

    def _read(self, files: Files) -> tuple[list[str], list[str], dict[str, _Records]]:
        """Return the files that are there, the older one first, log lines, and the records by directory."""
        notes, logs, found = list[str](), dict[str, _Records](), list[tuple[int, str, int, bytes]]()
        for path in (self._current.path, self._other.path):
            if files.exists(path):
                content = files.read(path)
                header = decode_segment_header(content)
                if isinstance(header, str):
                    notes.append(f"{path} is damaged ({header}): unless it was being emptied, {_MISSING}")
                    found.append((0, path, 0, b""))
                else:
                    found.append((header.first_index, path, header.salt, content))
        for _, path, salt, content in sorted(found):
            notes += _replay(path, salt, content, logs)
        return [path for _, path, _, _ in sorted(found)], notes, logs


_MISSING = "streams and messages that it alone had are missing"


class _Records:
    """Records of one directory.

    Attributes:
        entries: the first entries of a log that may have to be made; none if it was made before.
        writes: bytes of segments, by first entry and salt.
        paths: segments that were written to.
    """

    def __init__(self, entries: Sequence[First] = (), salt: int = 0) -> None:
        self.entries, self.salt = entries, salt
        self.writes: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        self.paths: list[str] = []
        if salt:
            self.add(1, salt, HEADER_SIZE, _encode(entries, salt))

    def add(self, first_index: int, salt: int, offset: int, data: bytes) -> None:
        """Add bytes of a segment."""
        self.writes.setdefault((first_index, salt), []).append((offset, data))

    def redo(self, directory: str, files: Files, now_ns: int) -> list[str]:
        """Bring the log in `directory` to what the records say; return a line if it was made anew. Raise OSError."""
        notes = []
        if self.entries:
            if _is_missing(directory, self.entries, self._end(), files):
                files.make_directory(os.path.dirname(directory))
                files.remove_tree(directory)
                _make(directory, self.entries, files, now_ns, self.salt or files.salt())
                notes.append(f"{directory} was made anew: its stream was created just before the last run ended")
            if files.exists(_segment(directory)):
                self.paths.append(_segment(directory))
        for (first_index, salt), writes in self.writes.items():
            path = os.path.join(directory, LOG_DIRECTORY, segment_name(first_index))
            if header := _takes(path, first_index, salt, files):
                # All bytes: if the last run could not sync them, the page cache may have them, and the disk not.
                with files.opened(path, write=True) as fd:
                    for offset, data in [(0, header), *writes]:
                        files.write(fd, [data], offset)
                self.paths.append(path)
        return notes

    def _end(self) -> int:
        """Return the offset through which the records have everything of the first segment."""
        end = HEADER_SIZE + sum(FRAME_HEADER + len(entry.body) for entry in self.entries)
        for offset, data in self.writes.get((1, self.salt), ()):
            end = max(end, offset + len(data)) if offset <= end else end
        return end


def _takes(path: str, first_index: int, salt: int, files: Files) -> bytes:
    """Return the header of a segment if records with this salt are its own, and it is not sealed; else b""."""
    newest = next((name for name in reversed(files.names(os.path.dirname(path))) if is_segment_name(name)), "")
    if newest != os.path.basename(path):
        return b""  # its stream was deleted, the lake has it, or it is sealed, even if its footer is damaged
    try:
        with files.opened(path) as fd:
            content = files.read_at(fd, HEADER_SIZE, 0)
            header = decode_segment_header(content)
            if isinstance(header, str) or (header.first_index, header.salt) != (first_index, salt):
                return b""
            return b"" if is_packed(content) or read_end(files, fd) is not None else content
    except LogError:  # whoever opens the log finds it
        return b""


def _replay(path: str, salt: int, content: bytes, logs: dict[str, _Records]) -> list[str]:
    """Add the records of a file, behind those of the older one; return log lines. A torn end was never acknowledged."""
    at, index, end = HEADER_SIZE, 1, len(content)
    while at < end:
        frame = decode_frame(content, at, end, salt)
        if isinstance(frame, str) or frame.index != index:
            if later_write(content, at, end, salt, index) >= 0:
                what = frame if isinstance(frame, str) else "the frame is out of order"
                return [f"{CorruptLog(path, at, what)}: {_MISSING}"]
            break
        if frame.kind is Kind.OPERATION:
            made = _CREATION.decode(frame.body)
            known = logs.pop(made.directory, None)
            # Earlier releases may have written entries whose own record came after it when they rewrote the file.
            before = list(known.entries[: made.after]) if known is not None else []
            if made.first is not None and len(before) == made.after:
                logs[made.directory] = _Records([*before, made.first, *made.more], made.salt)
        else:
            write = _WRITE.decode(frame.body)
            records = logs.setdefault(write.directory, _Records())
            records.add(write.first_index, write.salt, write.offset, write.data)
        at, index = at + FRAME_HEADER + len(frame.body), index + 1
    return []


def _segment(directory: str) -> str:
    """Return the path of the first segment of a stream's log."""
    return os.path.join(directory, LOG_DIRECTORY, segment_name(1))


def _encode(entries: Sequence[First], salt: int) -> bytes:
    """Return the frames of the first entries of a log."""
    pieces = []
    for index, entry in enumerate(entries, 1):
        frame = Frame(Kind(entry.kind), entry.term, index, 0, entry.body)
        pieces += [encode_header(frame, index, salt), frame.body]
    return b"".join(pieces)


def _make(directory: str, entries: Sequence[First], files: Files, now_ns: int, salt: int) -> Segment:
    """Make a log with its first entries; return its segment."""
    files.make_directory(os.path.join(directory, LOG_DIRECTORY))
    made = Segment(_segment(directory), Header(1, 1, now_ns, salt))
    fd = files.create(made.path)
    try:
        files.write(fd, [encode_segment_header(made.header), _encode(entries, salt)], 0)
    finally:
        files.close(fd)
    for index, entry in enumerate(entries, 1):
        made.frame_offsets.append(made.end)
        if not made.terms or entry.term != made.terms[-1][1]:
            made.terms.append((index, entry.term))
        made.end += FRAME_HEADER + len(entry.body)
    made.last_index, made.first_append_ns = len(entries), now_ns
    return made


def _is_missing(directory: str, entries: Sequence[First], end: int, files: Files) -> bool:
    """Return True if a directory holds no more than what a power loss left of these entries, and not all of them.

    `end`: where the last bytes end that the records have, from the first on. Anything else was durable once: if that is
    damaged, whoever opens the log finds it.
    """
    path, segment = os.path.join(directory, LOG_DIRECTORY), _segment(directory)
    if set(files.names(directory)) - {LOG_DIRECTORY, *OF_NEW} or set(files.names(path)) - {segment_name(1)}:
        return False
    if not files.exists(segment):
        return True
    try:
        content, at = files.read(segment), HEADER_SIZE
    except LogError:
        # The key with which it was sealed was not durable either. One that is there and damaged was: others may follow.
        key = os.path.join(directory, KEY)
        return not (files.exists(key) and files.read(key).strip(b"\0"))
    if not unwritten(content, min(end, len(content)), len(content)):
        return False
    header = decode_segment_header(content)
    if isinstance(header, str):
        return True
    for index, entry in enumerate(entries, 1):
        frame = decode_frame(content, at, len(content), header.salt)
        if isinstance(frame, str) or (frame.index, frame.body) != (index, entry.body):
            return True
        at += FRAME_HEADER + len(entry.body)
    return False
