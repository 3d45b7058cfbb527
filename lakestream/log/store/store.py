"""Everything one stream keeps: its log, its rows, and the indexes over them.

Belongs here: `Store`, the state that follows from applying entries in order (which messages live, of which subject,
how many bytes), and reading by sequence and time. It is the same after a restart: the checkpoint brings back a
moment, the replay applies what came after through the same methods. Keeping it on disk (checkpoint, drop, close) is
upkeep.py's.

All methods run in the event loop unless they say that they block.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lakestream.log.format.departures import Departures
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files, Io
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import FIXED, Record, contiguous
from lakestream.log.format.runs import note_runs
from lakestream.log.format.segment import Header, SealedSegment, Segment
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import State, recover_checkpoint
from lakestream.log.store.memory import Log, MemoryLog, MemoryRows
from lakestream.log.store.mend import adopt
from lakestream.log.store.removals import Removals
from lakestream.log.store.segment_log import Appended, LogOptions, SealState, SegmentLog
from lakestream.log.store.segment_rows import SegmentRows
from lakestream.log.store.shred import Shredder
from lakestream.log.store.store import recovery
from lakestream.log.store.sweep import Sweep
from lakestream.log.store.synced import MarkFile
from lakestream.log.store.upkeep import Upkeep

if TYPE_CHECKING:
    from lakestream.log.store.export import Export
    from lakestream.log.store.rows import Rows

LOOK_AHEAD = 256
"""Subjects read at once when messages are removed from the front one by one."""
LOG_DIRECTORY = "log"

__all__ = ["Appended", "LogOptions", "SealedSegment", "Store"]


class Store:
    """One stream's messages and indexes.

    `applied` is the index of the newest applied entry: whoever applies an entry sets it afterwards. `first_seq` is 0
    until the first message, and last_seq + 1 in a stream that was emptied. `extra` is what the checkpoint kept for
    JetStream. Sizes are in bytes, times in ns.
    """

    def __init__(self, log: Log, rows: SegmentRows | MemoryRows, io: Io, uid: str) -> None:
        """Use `open` or `in_memory`."""
        self.log = log
        self._rows: Rows = rows
        self.uid, self.stream, self.account, self.config = uid, "", "", b""
        self.live = SequenceSet()
        self.subjects = SubjectIndex()
        self.msgs = 0
        self.bytes = 0
        self.first_seq = 0
        self.last_seq = 0
        self.last_time = 0
        self.applied = 0
        self.extra = b""
        self._first_time = (0, 0)  # (first_seq, its time): asked for often, changes rarely
        self._ahead: dict[int, bytes] = {}
        self._gone = Removals()
        self.operation_ns: int | None = None
        """Set while an operation is applied, to the time that its entry says."""
        self.erasing = False
        """Set while removals are applied that somebody asked for: deletes and purges."""
        self.shredding = False
        """Set beside it while one is applied whose bytes nobody shall find any more (secure delete)."""
        self._seal_through = 0  # somebody wants the log sealed through this index
        self.on_settled: Callable[[], None] | None = None
        """Set by whoever waits for a seal: called in the event loop whenever a write or a seal has ended."""
        self._replaying = 0  # first index of the segment that is being replayed; 0 = not replaying
        self.upkeep = Upkeep(self, log, rows, io)
        self.shredder = Shredder(self, log, rows, io)
        self.sweep = Sweep(self, rows)
        if isinstance(log, SegmentLog):
            log.seal_state, log.seal_due, log.sealing_state = self.seal_state, self.seal_due, self.sealing_state
            log.applied = lambda: self.applied
            if isinstance(rows, SegmentRows):
                log.on_packed = rows.cache.forget

    @classmethod
    def in_memory(cls, io: Io, uid: str = "") -> Store:
        """A store without files: entries are committed at once, and all is gone when the process ends."""
        return cls(MemoryLog(), MemoryRows(), io, uid)

    @classmethod
    def open(
        cls,
        directory: str,
        io: Io,
        options: LogOptions | None = None,
        *,
        uid: str = "",
        files: Files | None = None,
        now: Callable[[], int] = time.time_ns,
        cache: ReadCache | None = None,
        durable_through: int = 0,
        whole: bool = True,
        alone: bool = False,
    ) -> Store:
        """Open the stream kept in `directory`, or begin one there. Blocks.

        The caller then applies `replay()`. `uid` is for a new stream; an older one knows its own from its checkpoint,
        or is told by `describe`. `now` is wall time in ns. `cache` is best shared by all stores of a server.
        `durable_through`: the index through which the log is known to have been durable, for a member of a group.
        Not `whole`: what the checkpoint covers may have left the log without a trace (there are no messages in it).
        `alone`: it is the log of a group of one, which keeps a synced mark (synced.py) and is held to the one there is.

        Raises CorruptLog naming file and offset, StoreVersionError, OSError.
        """
        files = files or Files()
        log_directory = os.path.join(directory, LOG_DIRECTORY)
        files.make_directory(log_directory)
        found = recover_checkpoint(files, os.path.join(directory, CHECKPOINT))
        index = found[0].index if found else 0
        outlines = recovery.find_outlines(log_directory, files, found is not None and found[0].based)
        outlined = max((outline.info.last_index for outline in outlines), default=0)
        marks = MarkFile(files, directory)
        notes: list[str] = []
        if alone:
            durable_through, notes = recovery.synced_through(marks, files)
        else:
            files.remove(marks.path)  # of former days: the member's own file knows more
        log = recovery.open_log(
            log_directory,
            files,
            options or LogOptions(),
            now,
            outlined=outlined,
            checkpoint_index=index,
            durable_through=durable_through,
            known_from=marks.path if alone else "",
        )
        log.marks = marks if alone else None
        log.notes[:0] = notes
        try:
            recovery.check_whole(log.segments, outlines, index, whole)
        except CorruptLog:
            log.close()
            raise
        cache = cache or ReadCache(files)
        store = cls(log, SegmentRows(log.segments, outlines, cache), io, uid)
        store.upkeep.directory = directory
        store._gone.index = log.open_segment.first_index
        if found is not None:
            store._restore(*found)
        store.subjects.keep_within(cache.indexes, files, directory)
        return store

    def _restore(self, state: State, subjects: SubjectIndex, size: int) -> None:
        self.uid, self.stream, self.account, self.config = state.uid, state.stream, state.account, state.config
        self.live = SequenceSet.from_bytes(state.live)
        self.subjects = subjects
        self.msgs = len(self.live)
        self.bytes, self.first_seq, self.last_seq = state.size, state.first_seq, state.last_seq
        self.last_time, self.applied, self.extra = state.last_time, state.index, state.extra
        gone = self._gone
        gone.removed, gone.any, gone.index = state.removed, state.moved, state.opened_index
        gone.erased.frombytes(state.erased_runs)
        if state.erased:
            note_runs(gone.erased, sorted(state.erased))
        gone.shredded = state.shredded
        gone.departures = None if state.departures is None else Departures.from_bytes(state.departures)
        self.upkeep.restored(state.index, size, state.first_seq, state.based)
        self.shredder.restored(state.shredded)

    @property
    def notes(self) -> list[str]:
        """Lines for the server's log about everything that opening the log cut off, recreated or left alone."""
        return self.log.notes if isinstance(self.log, SegmentLog) else []

    @property
    def mark_due(self) -> bool:
        """Return True if entries were synced since `mark` noted it last."""
        log = self.log
        return isinstance(log, SegmentLog) and log.marks is not None and log.synced[0] > log.marks.index

    def mark(self) -> None:
        """Note beside the log through which entry it is synced. Block; any thread. Raise OSError: call it again."""
        if isinstance(self.log, SegmentLog) and self.log.marks is not None:
            self.log.marks.note(self.log.synced)

    def check_unused(self) -> None:
        """Raise CorruptLog if there are files beside a log without entries: they come later than its first entry."""
        directory, log = self.upkeep.directory, self.log
        names = log.files.names(directory) if isinstance(log, SegmentLog) else []
        names = [name for name in names if name != LOG_DIRECTORY and not name.endswith(".tmp")]
        if names:
            what = f"the log has no entry, but beside it there is {', '.join(names)}"
            raise CorruptLog(os.path.join(directory, LOG_DIRECTORY), 0, what)

    def describe(self, uid: str, stream: str, account: str, config: bytes) -> None:
        """Whose log this is, for the footers of its segments. `config` is the stream's configuration as JSON."""
        self.uid, self.stream, self.account, self.config = uid, stream, account, config

    def replay(self, through: int | None = None) -> Iterator[tuple[Frame, Appended]]:
        """The entries after the checkpoint, to be applied in turn. Blocks. Raises CorruptLog on any damage.

        `through`: the index through which a member of a group knows them to be committed; the group hands out the rest
        when it is. A segment that ends with one of these entries, and was not sealed before the process ended, is.
        """
        replayed = 0
        last = self.log.last_index
        if through is not None and isinstance(self.log, SegmentLog):
            last = min(max(through, self.log.open_segment.first_index - 1), last)  # what is sealed is committed
        try:
            self._seal_restored()
            resume = True
            while resume:
                resume = False
                for frame, at in self.log.frames(self.applied + 1, last):
                    if isinstance(at.segment, Segment):
                        self._replaying = at.segment.first_index
                        self.removals()
                    replayed += FRAME_HEADER + len(frame.body)
                    yield frame, at
                    if frame.kind == Kind.SEAL and self._seal_replayed(frame, at):
                        resume = True  # what comes behind it lies elsewhere now
                        break
        except CorruptLog:
            self.log.close()
            raise
        self._replaying = 0
        self.removals()
        self.upkeep.replayed(replayed)

    def _seal_restored(self) -> None:
        """Seal the open segment if the checkpoint is of an entry that ends it."""
        log, index = self.log, self.applied
        if isinstance(log, SegmentLog) and log.open_segment.first_index <= index <= log.last_index:
            [(frame, at)] = log.entries(index, 1)
            if frame.kind == Kind.SEAL:
                self._seal_replayed(frame, at)

    def _seal_replayed(self, frame: Frame, at: Appended) -> bool:
        """Seal the open segment if the entry that was just applied ends it."""
        log, segment = self.log, at.segment
        if not isinstance(log, SegmentLog) or segment is not log.open_segment:
            return False
        assert self.applied == frame.index, "an entry that is replayed is applied before the next one is asked for"
        log.seal_through(self.sealing_state(), frame.index)
        return True

    # ------------------------------------------------------------------ apply
    def apply_messages(
        self, at: Appended, first_seq: int, subjects: Sequence[bytes], lengths: Sequence[int], last_time: int
    ) -> None:
        """Take in contiguous messages from `first_seq` on, whose records (`lengths`) lie back to back from `at` on.
        `last_time` is when the last of them was stored."""
        # Invariant 5: sequences are given once and grow.
        assert first_seq > self.last_seq, f"message {first_seq} comes after {self.last_seq}"
        count = len(subjects)
        if not count:
            return
        self.bytes += self._rows.place(at, first_seq, lengths, last_time)
        last = first_seq + count - 1
        self.live.add_run(first_seq, last)
        self.subjects.add_run(subjects, first_seq)
        if not self.msgs:
            self.first_seq = first_seq
        self.msgs += count
        self.last_seq = last
        self.last_time = last_time

    def apply_records(self, at: Appended, records: Iterable[Record]) -> None:
        """Take in the records of an entry, in which sequences may jump. They lie back to back from `at` on."""
        offset = at.offset
        for first, subjects, lengths, last_time in contiguous(records):
            self.apply_messages(Appended(at.segment, offset, at.index), first, subjects, lengths, last_time)
            offset += sum(lengths)

    def skip(self, last_seq: int) -> None:
        """Sequences through `last_seq` were given to messages that are not kept (interest retention)."""
        if last_seq > self.last_seq:
            self.last_seq = last_seq
            if not self.msgs:
                self.first_seq = last_seq + 1

    def remove(self, seq: int, subject: bytes | None = None) -> tuple[bytes, int] | None:
        """Remove one message (finding its `subject` takes a read): its (subject, size), or None. Raises CorruptLog."""
        if seq not in self.live:
            return None
        size = self._rows.size(seq)
        if subject is None:
            subject = self._ahead.pop(seq, None) or self._look_ahead(seq)
        self.live.discard(seq)
        self.subjects.remove(subject, seq)
        self.msgs -= 1
        self.bytes -= size
        self._rows.forget((seq,))
        self.note_gone((seq,))
        if self.shredding:
            self._gone.shredded.append(seq)
            self.shredder.add(seq)
        if seq == self.first_seq:
            self.first_seq = self.live.next_at_or_after(seq + 1) or self.last_seq + 1
        else:
            self._gone.removed.append(seq)  # what is below first_seq needs no listing
        return subject, size

    def remove_all(self, gone: Sequence[tuple[int, bytes]]) -> None:
        """Remove many live messages, given as (sequence, subject), ascending. Raises CorruptLog."""
        self.sweep.all_of(gone)

    def trim(self, subjects: Iterable[bytes], keep: int) -> list[tuple[int, bytes]]:
        """Remove the oldest messages of each of `subjects` until `keep` (≥ 1) are left; returns them like
        `remove_through`. Raises CorruptLog."""
        return self.sweep.trim(subjects, keep)

    def remove_through(self, seq: int) -> list[tuple[int, bytes]]:
        """Remove all messages ≤ `seq`; returns (sequence, subject) of each, ascending. Raises CorruptLog."""
        gone = self.live.members(self.first_seq, self.msgs, seq)
        names = self._rows.subjects(gone) if gone else []
        return list(zip(self.sweep.through(seq), names, strict=True))

    def set_first(self, seq: int) -> None:
        """Remove all messages < `seq` without naming them, and give out no sequence below it any more.

        When `seq` is beyond the last message, the stream is empty and goes on with `seq`. Raises CorruptLog.
        """
        self.sweep.set_first(seq)

    def note_gone(self, gone: Sequence[int]) -> None:
        """Messages with these sequences (ascending) are removed, by the message stored last or by an operation."""
        removals = self.removals()
        removals.any = True
        if self.erasing and gone:
            note_runs(removals.erased, gone)
        if removals.departures is not None and gone:
            at, last = self.operation_ns, self.last_time
            removals.departures.note(gone, self.last_seq + (at is not None), last if at is None else max(at, last))

    @property
    def departures(self) -> Departures | None:
        """When messages left while the segment that begins at `departures_index` was open, if the stream keeps that."""
        return self._gone.departures

    @property
    def departures_index(self) -> int:
        """The first entry of that segment: the open one, or one that was sealed and after which nothing was removed."""
        return self._gone.index

    def keep_departures(self, wanted: bool) -> None:
        """Whether to note from now on when messages leave (see departures.py). Only files keep it."""
        if not wanted:
            self._gone.departures = None
        elif self._gone.departures is None and isinstance(self.log, SegmentLog):
            removals = self.removals()
            removals.departures = Departures(whole=not removals.any)

    def _look_ahead(self, seq: int) -> bytes:
        """The subject of `seq`. When it is the first, its successors are likely to go next: read theirs as well."""
        if seq != self.first_seq:
            return self._rows.subject(seq)
        seqs = self.live.members(seq, LOOK_AHEAD)
        self._ahead = dict(zip(seqs, self._rows.subjects(seqs), strict=True))
        return self._ahead.pop(seq)

    # ------------------------------------------------------------------ read
    @property
    def local_floor(self) -> int:
        """The lowest sequence whose record is still in the log; live ones below it are in the lake only."""
        return self._rows.local_floor

    @property
    def first_time(self) -> int:
        """When the first message was stored; 0 in an empty stream. Raises CorruptLog."""
        if not self.msgs:
            return 0
        if self._first_time[0] != self.first_seq:
            self._first_time = (self.first_seq, self._rows.time(self.first_seq))
        return self._first_time[1]

    def is_local(self, seq: int) -> bool:
        """Whether a message is live and its record in the log."""
        return seq >= self._rows.local_floor and seq in self.live

    def read(self, seq: int) -> Record | None:
        """One message; None unless it is live and local. Raises CorruptLog."""
        if seq in self.live and seq >= self._rows.local_floor:
            return self._rows.read(seq)
        return None

    def read_run(self, first: int, max_msgs: int, max_bytes: int) -> list[Record]:
        """The first live local messages ≥ `first`, ascending, at most `max_msgs`.

        Their records together stay within `max_bytes`, but one is always given. Raises CorruptLog.
        """
        limit = min(max_msgs, max_bytes // FIXED + 1)
        seqs = self.live.members(max(first, self._rows.local_floor), limit)
        return self._rows.read_seqs(seqs, max_bytes) if seqs else []

    def read_many(self, seqs: Iterable[int], max_bytes: int = 1 << 62) -> list[Record]:
        """Those of `seqs` (ascending) that are live and local, as many as fit but at least one. Raises CorruptLog."""
        floor = self._rows.local_floor
        wanted: Sequence[int] = self.live.present(seqs)
        if wanted and wanted[0] < floor:
            wanted = wanted[bisect_left(wanted, floor) :]
        if wanted and wanted[-1] - wanted[0] < len(wanted):
            wanted = range(wanted[0], wanted[-1] + 1)  # neighbours, which are found quicker
        return self._rows.read_seqs(wanted, max_bytes) if wanted else []

    def size_of(self, seq: int) -> int:
        """The bytes that a live message counts for, local or not; 0 when there is none. Raises CorruptLog."""
        return self._rows.size(seq) if seq in self.live else 0

    def subject_of(self, seq: int) -> bytes:
        """The subject of a live message, local or not; `b""` when there is none. Raises CorruptLog."""
        return self._rows.subject(seq) if seq in self.live else b""

    def time_of(self, seq: int) -> int | None:
        """When a live message was stored, local or not; None when there is none. Raises CorruptLog."""
        return self._rows.time(seq) if seq in self.live else None

    def first_at(self, time_ns: int) -> int | None:
        """The first live message stored at or after `time_ns`, local or not; 0: there is none. Raises CorruptLog."""
        seq = self._rows.first_at(time_ns)
        return self.live.next_at_or_after(seq) if seq else 0

    # ------------------------------------------------------------------ sealing
    def seal_state(self, now_ns: int) -> SealState | None:
        """The state for the footer of the open segment if it is due at `now_ns`: long enough, or old and of use.

        Asked by the group before each write, and by `seal_if_old`.
        """
        log = self.log
        assert isinstance(log, SegmentLog)
        if self.applied != log.open_segment.last_index or not self.seal_due(now_ns):
            return None
        return self.sealing_state()

    def seal_due(self, now_ns: int) -> bool:
        """Whether the open segment should end: it is long enough, or old and of use."""
        log = self.log
        assert isinstance(log, SegmentLog)
        segment, options = log.open_segment, log.options
        if segment.last_index < segment.first_index:
            return False
        moved = self.removals().any
        if segment.end >= options.seal_bytes:
            return True
        if not (segment.count or moved):
            return False
        return segment.first_index <= self._seal_through or now_ns - segment.first_append_ns >= options.seal_age_ns

    def sealing_state(self) -> SealState:
        """The state as of `applied`, for the footer of the segment that ends there."""
        gone = self.removals()
        self.upkeep.sealing()
        return SealState(
            uid=self.uid,
            stream=self.stream,
            account=self.account,
            config=self.config,
            floor=self.first_seq,
            next_seq=self.last_seq + 1,
            removed=gone.removed,
            subjects=len(self.subjects),
            erased=gone.erased,
            shredded=gone.shredded,
            departures=gone.departures,
        )

    def seal_if_old(self) -> None:
        """Seal the open segment in a thread if it is due and no write is under way. Call it about every second."""
        self.upkeep.seal_if_old()

    def ask_seal(self) -> int:
        """Have what is applied sealed, as soon as the log's order allows, if there are messages or removals in it.

        Returns the log index through which segments have to be sealed for that; it is done once `sealed_through` has
        reached it. Call it again when `on_settled` tells that a write has ended: the seal may begin only then.
        """
        log = self.log
        if not isinstance(log, SegmentLog):
            return 0
        segment = log.open_segment
        if not (self.removals().any or segment.count):
            return segment.first_index - 1
        self._seal_through = self.applied
        self.upkeep.seal_if_old()
        return self.applied

    @property
    def sealed_through(self) -> tuple[int, int]:
        """The log index through which all segments are sealed, and the stream's last sequence there."""
        if not isinstance(self.log, SegmentLog):
            return 0, 0
        header = self.log.open_segment.header
        return header.first_index - 1, header.first_seq - 1

    def sealed(self) -> list[SealedSegment]:
        """The sealed segments that have not left the log, ascending."""
        return self.log.sealed

    @property
    def left_through(self) -> int:
        """The index through which segments have left the log for the lake; 0 when none has."""
        return self.log.segments[0].first_index - 1 if isinstance(self.log, SegmentLog) else 0

    def removals(self) -> Removals:
        """What was removed while the open segment was open, which may be a new one since the last call."""
        if self._replaying:
            self._gone.enter(self._replaying)
        elif isinstance(self.log, SegmentLog):
            self._gone.enter(self.log.open_segment.first_index)
        else:
            self._gone.clear()
        return self._gone

    # ------------------------------------------------------------------ upkeep
    @property
    def checkpoint_due(self) -> bool:
        """Whether enough was logged since the last checkpoint to take another."""
        return self.upkeep.checkpoint_due

    def checkpoint_frees(self, index: int) -> bool:
        """Whether a checkpoint now would let segments through `index` leave that are worth its cost."""
        return self.upkeep.checkpoint_frees(index)

    @property
    def checkpoint_index(self) -> int:
        """The entry through which a durable checkpoint holds the state."""
        return self.upkeep.checkpoint_index

    def checkpoint(self, extra: bytes, done: Callable[[BaseException | None], None] | None = None) -> None:
        """Save the state at `applied`, with JetStream's `extra`: copied now, written in a thread."""
        self.upkeep.checkpoint(extra, done)

    def watch_damage(self, found: Callable[[CorruptLog], None]) -> None:
        """Call `found` with each damage that a read meets, before it raises it."""
        if isinstance(self._rows, SegmentRows):
            self._rows.on_corrupt = found

    def sealed_at(self, path: str) -> Segment | None:
        """The sealed segment that is kept in this file."""
        segments = self.log.segments if isinstance(self.log, SegmentLog) else []
        return next((each for each in segments if each.path == path and each.footer is not None), None)

    def mend(self, segment: Segment, fetched: str) -> Header:
        """Put another replica's file in the place of a damaged sealed segment's; `mended` follows. Blocks.

        Raises CorruptLog when the other file is no good, LogClosed.
        """
        return self.upkeep.mend(segment, fetched)

    def mended(self, segment: Segment, header: Header) -> None:
        """Another replica's file has taken the place of a sealed segment's; see mend.py."""
        assert isinstance(self._rows, SegmentRows), "only files are replaced"
        adopt(self._rows.cache, segment, header)

    def export(self, extra: bytes, skip_through: int) -> Export:
        """What another node needs to have this store as of now, with JetStream's `extra`; see `Export`."""
        return self.upkeep.export(extra, skip_through)

    def drop_through(self, index: int) -> list[SealedSegment]:
        """Let go of sealed segments whose entries are all ≤ `index`, because the lake holds their messages.

        Those that the checkpoint does not cover yet, and the newest within the retained tail, stay. Returns the
        segments that are leaving; the work goes on in a thread, and their messages stop being local when it is done.
        Nothing leaves while an earlier drop is at work: call again.
        """
        return self.upkeep.drop_through(index)

    def close(self, extra: bytes = b"") -> None:
        """Save a last checkpoint and close the files. Blocks. Raises OSError when the checkpoint cannot be written."""
        self.upkeep.close(extra)

    def abandon(self) -> None:
        """Close the files as they are, without a checkpoint. Blocks; any thread."""
        self.upkeep.abandon()

    def destroy(self) -> None:
        """Remove the stream from disk for good; reading finds nothing from now on. Blocks; any thread."""
        self.live, self.subjects = SequenceSet(), SubjectIndex()
        self.upkeep.destroy()
