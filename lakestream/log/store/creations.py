"""The journal of a store's new streams.

Belongs here: the file `created.journal` beside the accounts' directories, its format, group commit, and what recovery
does with it. Only streams of a group of one are in it: in a cluster the meta group's log says which streams exist.

The first entry of a new log would take the syncs of three directories and a segment, each of which makes the file
system commit its own journal. So the first entries are durable once they are here: one write into room that is there
already, one fdatasync, shared by all streams that are created or written to meanwhile. From then on recovery can make
the files, and so they are made without a sync. A stream that gets a consumer or a message right after its creation, as
most do, costs two syncs in place of six; within a second the server settles all new logs together.

Invariant: files are made, and written to, only for a record that is durable. A power loss leaves no torn log that
nobody explains.
Invariant: until segment and names of a log are durable (`Birth.settle`), it has no entries but those in the journal.
SegmentLog settles before it writes others (`Birth.add` takes some small ones), before it seals a segment, and before a
checkpoint is written beside it.
Invariant: before the directory of a settled log is given another name, no record of the stream is in the journal any
more (`forget`), else recovery would bring a deleted stream back, without its messages. A log that is not settled has
none but those in the journal: it is renamed first, durably, and forgotten then, so that nothing of it has to be synced.
Recovery brings it back as it was if the power goes in between, when nobody was told that it is deleted.

The file has the format of a segment: a header, frames, and zeros as room for more. A frame's body is MessagePack: the
directory, relative to the store, an entry as (term, kind, body), those that follow it, and the number of entries before
it. Without an entry, the directory has no record any more. Settled records leave when the file is rewritten, at the
latest at the next start; after a clean stop there is no file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence

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
    segment_name,
)
from lakestream.protocol.decoding import PackDecoder

NAME = "created.journal"
"""Name of the file. No account's directory can have it: an account's name has no dot there."""
ROOM_BYTES = 64 << 10
"""Zeros that are written ahead of the records (64 KiB): syncs of overwritten bytes change no metadata."""
JOURNALED_BYTES, JOURNALED_ENTRIES = 4 << 10, 4
"""Bytes (4 KiB) and number (4) of the entries of a log that the journal takes, the creation included. A write with
several messages is not taken: streams that are written to all the time should not share its syncs."""
REWRITE_BYTES = 1 << 20
"""The file is rewritten without its settled records once it is this long (1 MiB), or when none is left."""


KEY = "sealing.key"
"""Name of the file with a directory's key, where files are sealed. No account's directory and no stream can have it."""
OF_NEW = (KEY, KEY + ".tmp")
"""Names beside the log that a new stream may have."""


class First(msgspec.Struct, frozen=True, array_like=True):
    """One of the first entries of a log."""

    term: int
    kind: int
    body: bytes


class CreationRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record of the journal: a directory with an entry of its log, or None if it has none any more; the entries that
    follow it, and the number of those before it. Earlier releases wrote the first two fields alone."""

    directory: str
    first: First | None
    more: list[First] = []
    after: int = 0


_RECORD = PackDecoder(CreationRecord)


class _Ticket:
    """A record on its way into the file."""

    def __init__(self, record: CreationRecord) -> None:
        self.record = record
        self.done = False
        self.error: OSError | None = None


class Birth:
    """The files of a new log, which are not durable yet. Its methods block, in any thread, but one at a time.

    Attributes:
        entries: the entries that the journal has.
        closed: the log is being settled: the journal takes no more.
    """

    def __init__(self, directory: str, entries: list[First], journal: CreationJournal) -> None:
        self.directory, self.entries = directory, entries
        self.closed = False
        self._journal, self._files = journal, journal.files

    def takes(self, frames: Sequence[Frame]) -> bool:
        """Return True if the journal takes these entries, the next ones of the log."""
        size = sum(len(entry.body) for entry in self.entries) + sum(len(frame.body) for frame in frames)
        few = len(self.entries) + len(frames) <= JOURNALED_ENTRIES and sum(frame.count for frame in frames) <= 1
        return few and not self.closed and size <= JOURNALED_BYTES

    def add(self, frames: Sequence[Frame]) -> None:
        """Make the next entries of the log durable in the journal. Raise OSError."""
        self._journal.add(self, [First(frame.term, frame.kind, frame.body) for frame in frames])

    def sync_names(self) -> None:
        """Make the names below the stream's directory durable. Raise OSError."""
        self._files.sync_directory(os.path.join(self.directory, LOG_DIRECTORY))
        self._files.sync_directory(self.directory)

    def sync(self) -> None:
        """Make the segment and the names below the stream's directory durable. Raise OSError."""
        self._files.sync_file(_segment(self.directory))
        self.sync_names()

    def settle(self) -> None:
        """Make all names durable. The segment was synced before. Raise OSError."""
        self.sync_names()
        self._files.sync_directory(os.path.dirname(self.directory))
        self._journal.settled(self)


class CreationJournal:
    """The journal of one store. Its methods block; all but `recover` and `close` may be called in any thread."""

    def __init__(self, root: str, files: Files) -> None:
        self.path = os.path.join(root, NAME)
        self.files = files
        self._root, self._files = root, files
        self._unsettled: dict[str, list[First]] = {}  # by relative directory
        self._recorded: set[str] = set()  # directories with a record in the file
        self._waiting: list[_Ticket] = []
        self._gather, self._write = threading.Lock(), threading.Lock()
        self._fd = -1  # -1: the next write makes the file anew
        self._salt, self._index, self._end, self._length = 0, 1, HEADER_SIZE, 0

    # ------------------------------------------------------------------ new streams
    def create(self, directory: str, term: int, kind: Kind, body: bytes, now_ns: int) -> tuple[Birth, Segment]:
        """Make the files of a log with its first entry; return them, and its segment. The entry is durable, they are
        not.

        Raise OSError; the directory is to be forgotten and removed then.
        """
        first, files = First(term, kind, body), self._files
        entries = [first]
        files.make_directory(os.path.dirname(directory))
        relative = self._relative(directory)
        with self._gather:
            self._unsettled[relative] = entries
        try:
            self._put(CreationRecord(relative, first))
        except BaseException:
            with self._gather:
                del self._unsettled[relative]
            raise
        return Birth(directory, entries, self), _make(directory, entries, files.unsynced(), now_ns)

    def add(self, birth: Birth, entries: Sequence[First]) -> None:
        """Make the next entries of a new log durable. Raise OSError."""
        relative, known = self._relative(birth.directory), birth.entries
        with self._gather:
            record = CreationRecord(relative, entries[0], list(entries[1:]), len(known))
            known.extend(entries)
        try:
            self._put(record)
        except BaseException:
            with self._gather:
                del known[record.after :]
            raise

    def forget(self, directory: str) -> None:
        """Remove the record of a stream that is about to be deleted, durably. Raise OSError."""
        relative = self._relative(directory)
        with self._gather:
            self._unsettled.pop(relative, None)
        with self._write:  # the file is not being rewritten
            known = relative in self._recorded
        if known:
            self._put(CreationRecord(relative, None))

    def _relative(self, directory: str) -> str:
        return directory.removeprefix(os.path.join(self._root, ""))

    def settle_all(self, births: Iterable[Birth]) -> None:
        """Settle new logs whose segments and own names were synced (`Birth.sync_names`). Raise OSError."""
        some = list(births)
        for parent in dict.fromkeys(os.path.dirname(birth.directory) for birth in some):
            self._files.sync_directory(parent)
        for birth in some:
            self.settled(birth)

    def settled(self, birth: Birth) -> None:
        """Forget a log that is durable by now, unless its directory is another one's."""
        relative = self._relative(birth.directory)
        with self._gather:
            if self._unsettled.get(relative) is birth.entries:  # else the directory is another stream's by now
                del self._unsettled[relative]

    # ------------------------------------------------------------------ the file
    def _put(self, record: CreationRecord) -> None:
        """Write a record, durably, together with those that other threads put meanwhile. Raise OSError."""
        ticket = _Ticket(record)
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
            records = [ticket.record for ticket in tickets]
        error: OSError | None = None
        try:
            if self._fd < 0:
                self._rewrite(records)
            else:
                self._append(records)
        except OSError as failed:
            error = failed
            self._drop_file()
        for ticket in tickets:
            ticket.done, ticket.error = True, error

    def _append(self, records: Sequence[CreationRecord]) -> None:
        buffers = self._frames(records)
        end = self._end + sum(map(len, buffers))
        if end > self._length:
            self._length = end + ROOM_BYTES
            buffers.append(WriteRoom(ROOM_BYTES))
        self._files.write(self._fd, buffers, self._end)
        self._files.sync(self._fd)
        self._end = end
        self._note(records)

    def _rewrite(self, records: Sequence[CreationRecord]) -> None:
        """Replace the file by one with the unsettled records, and with `records`."""
        self._drop_file()
        with self._gather:
            unsettled = {
                directory: CreationRecord(directory, entries[0], entries[1:])
                for directory, entries in self._unsettled.items()
            }
        kept = dict(unsettled)
        for record in records:
            if record.first is None:
                kept.pop(record.directory, None)
            elif not record.after:
                kept[record.directory] = unsettled.get(record.directory, record)
        self._salt, self._index = self._files.salt(), 1
        header = encode_segment_header(Header(1, 1, time.time_ns(), self._salt))
        buffers = [header, *self._frames(list(kept.values()))]
        self._end = sum(map(len, buffers))
        self._length = self._end + ROOM_BYTES
        self._files.write_whole(self.path, [*buffers, WriteRoom(ROOM_BYTES)])
        self._fd = self._files.open(self.path, write=True)
        with self._gather:
            self._recorded.clear()
        self._note(kept.values())

    def _note(self, records: Iterable[CreationRecord]) -> None:
        with self._gather:
            for record in records:
                (self._recorded.discard if record.first is None else self._recorded.add)(record.directory)

    def _frames(self, records: Sequence[CreationRecord]) -> list[bytes]:
        buffers, write = list[bytes](), self._index
        for record in records:
            frame = Frame(Kind.OPERATION, 1, self._index, 0, msgspec.msgpack.encode(record))
            buffers += (encode_header(frame, write, self._salt), frame.body)
            self._index += 1
        return buffers

    def _drop_file(self) -> None:
        """Close the file: after a failed write or sync it is made anew, never written on."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)

    def tidy(self) -> None:
        """Rewrite the file if that shortens it much. Raise OSError."""
        with self._write:
            with self._gather:
                left, recorded = len(self._unsettled), len(self._recorded)
            if self._fd >= 0 and recorded and (not left or (self._end > REWRITE_BYTES and recorded > 2 * left)):
                try:
                    self._rewrite(())
                except OSError:
                    self._drop_file()
                    raise

    # ------------------------------------------------------------------ start and end
    def recover(self, now_ns: int) -> list[str]:
        """Make the files of each stream in the journal that are missing or torn, settle all, and remove the journal.

        Return lines for the server's log. At the start, before anything in the store is opened. Raise OSError.
        """
        if not self._files.exists(self.path):
            return []
        notes, firsts = self._read()
        for relative, entries in firsts.items():
            directory = os.path.join(self._root, relative)
            if _is_missing(directory, entries, self._files):
                self._files.make_directory(os.path.dirname(directory))
                self._files.remove_tree(directory)
                _make(directory, entries, self._files.unsynced(), now_ns)
                notes.append(f"{directory} was made anew: its stream was created just before the last run ended")
        self._finish(firsts)
        return notes

    def close(self) -> None:
        """Settle what is left, and remove the file. No log is written any more. Raise OSError."""
        if self._files.exists(self.path):
            self._finish(self._unsettled)

    def _finish(self, firsts: dict[str, list[First]]) -> None:
        made = ((os.path.join(self._root, relative), entries) for relative, entries in firsts.items())
        births = [Birth(directory, entries, self) for directory, entries in made]
        births = [birth for birth in births if self._files.exists(_segment(birth.directory))]
        # Keys that the last run made without a sync: only the run that made one knows that.
        keys = (os.path.join(birth.directory, KEY) for birth in births)
        at_once(self._files.sync_file, [key for key in keys if self._files.exists(key)])
        at_once(Birth.sync, births)
        self.settle_all(births)
        self._drop_file()
        self._unsettled.clear()
        self._recorded.clear()
        self._files.remove(self.path)
        self._files.sync_directory(self._root)

    def _read(self) -> tuple[list[str], dict[str, list[First]]]:
        """Return log lines, and the first entries of each log by directory. A torn end was never acknowledged."""
        content, firsts = self._files.read(self.path), dict[str, list[First]]()
        header = decode_segment_header(content)
        if isinstance(header, str):
            return [f"{self.path} is damaged ({header}): streams that it alone had are missing"], firsts
        at, index, end = HEADER_SIZE, 1, len(content)
        while at < end and not unwritten(content, at, end):
            frame = decode_frame(content, at, end, header.salt)
            if isinstance(frame, Frame) and frame.index == index:
                record = _RECORD.decode(frame.body)
                # A rewrite may have written entries whose own record came after it.
                before = firsts.pop(record.directory, [])[: record.after]
                if record.first is not None and len(before) == record.after:
                    firsts[record.directory] = [*before, record.first, *record.more]
                at, index = at + FRAME_HEADER + len(frame.body), index + 1
                continue
            if later_write(content, at, end, header.salt, index) >= 0:
                error = CorruptLog(self.path, at, frame if isinstance(frame, str) else "the frame is out of order")
                return [f"{error}: streams that it alone had are missing"], firsts
            break
        return [], firsts


def _segment(directory: str) -> str:
    """Return the path of the first segment of a stream's log."""
    return os.path.join(directory, LOG_DIRECTORY, segment_name(1))


def _make(directory: str, entries: Sequence[First], files: Files, now_ns: int) -> Segment:
    """Make a log with its first entries; return its segment."""
    files.make_directory(os.path.join(directory, LOG_DIRECTORY))
    made = Segment(_segment(directory), Header(1, 1, now_ns, files.salt()))
    buffers, end, term = [encode_segment_header(made.header)], HEADER_SIZE, -1
    for index, entry in enumerate(entries, 1):
        frame = Frame(Kind(entry.kind), entry.term, index, 0, entry.body)
        buffers += (encode_header(frame, index, made.header.salt), frame.body)
        made.frame_offsets.append(end)
        if entry.term != term:
            term = entry.term
            made.terms.append((index, term))
        end += FRAME_HEADER + len(frame.body)
    fd = files.create(made.path)
    try:
        files.write(fd, buffers, 0)
    finally:
        files.close(fd)
    made.last_index, made.end, made.first_append_ns = len(entries), end, now_ns
    return made


def _is_missing(directory: str, entries: Sequence[First], files: Files) -> bool:
    """Return True if a directory holds no more than what a power loss left of these entries, and not all of them.

    Anything else was durable once: if that is damaged, whoever opens the log finds it.
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
    end = HEADER_SIZE + sum(FRAME_HEADER + len(entry.body) for entry in entries)
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
