"""The messages of one stream and the indexes over them.

Belongs here: `Store`, the state that follows from applying entries in order (live messages, their subjects, their
bytes), removal of one or of many messages, and reading by sequence and time. What it answers about files is that there
are none: segment_store.py adds them, memory.py does not.

All methods run in the event loop unless they say that they block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

from lakestream.log.format.departures import Arrivals, Departures, Displaced
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Io
from lakestream.log.format.frame import Frame
from lakestream.log.format.pieces import Pieces
from lakestream.log.format.record import FIXED, Record, contiguous
from lakestream.log.format.records import Records, joined
from lakestream.log.format.segment import Header, SealedSegment, Segment
from lakestream.log.index.cold_rows import FileBlock
from lakestream.log.index.memory_limit import Movable
from lakestream.log.index.sequences import SequenceSet, ascending
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store.base import Base
from lakestream.log.store.export import StoreExport
from lakestream.log.store.log import Appended, Log, Rows

LOOK_AHEAD = 256
"""Subjects read at once when messages are removed from the front one by one."""
BLOCK = 65_536
"""Sizes added up at once in a search for the excess."""
MAX_COLUMN_BYTES = 1 << 30
"""Maximum size of messages that are read as columns (1 GiB): their offsets have 32 bits."""
FEWER = 8
"""The subject index is rebuilt if a removal leaves less than one message for this many removed ones."""


SUBJECT_BYTES = 150
"""Bytes of memory of a subject with a few messages in an index that is too small to be measured."""


class Store:
    """Messages and indexes of one stream.

    `applied` is the index of the newest applied entry: the owner sets it after applying an entry. `first_seq` is 0
    until the first message, and last_seq + 1 in a stream that was emptied. `extra` is the owner's part of the
    checkpoint. Sizes are in bytes, times in ns.
    """

    # Implementations add attributes of their own: with more than 30 in its dict, an object takes 1 kB more.
    __slots__ = (
        "_ahead",
        "_first_time",
        "_rows",
        "account",
        "applied",
        "based",
        "blocks",
        "bytes",
        "config",
        "directory",
        "erasing",
        "extra",
        "first_seq",
        "io",
        "last_seq",
        "last_time",
        "live",
        "log",
        "msgs",
        "on_entry",
        "on_settled",
        "operation_ns",
        "ready",
        "shredding",
        "stream",
        "subjects",
        "uid",
        "used",
    )

    def __init__(self, log: Log, rows: Rows, uid: str) -> None:
        self.log = log
        self.io: Io | None = None
        """Threads for its files, which its group shares: work on a slow disk is known as such. None in memory."""
        self._rows = rows
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
        self.blocks: Sequence[FileBlock] = ()
        """The blocks of the owner in the checkpoint."""
        self._first_time = (0, 0)  # (first_seq, its time): read often, changed rarely
        self._ahead: dict[int, bytes] = {}
        self.operation_ns: int | None = None
        """Set while an operation is applied, to the time that its entry says."""
        self.erasing = False
        """Set while removals are applied that a client asked for: deletes and purges."""
        self.shredding = False
        """Set beside it while a secure delete is applied: the bytes of the message go too."""
        self.on_settled: Callable[[], None] | None = None
        """Set by a caller that waits for a seal; called in the event loop whenever a write or a seal has ended."""
        self.on_entry: Callable[[], None] | None = None
        """Set by a caller that leaves the stream alone until something changes; called after an entry was applied."""
        self.used = False
        """Set by reads; cleared by whoever looks for streams that nobody uses."""
        self.directory = ""
        """The stream's directory; "" without files."""
        self.based = False
        """True if the store began with a base (base.py)."""
        self.ready: Base | None = None
        """The base that an entry on its way names, if it was read already."""

    def describe(self, uid: str, stream: str, account: str, config: bytes) -> None:
        """Set what the footers of segments say about the stream. `config` is its configuration as JSON."""
        self.uid, self.stream, self.account, self.config = uid, stream, account, config

    def memory(self) -> dict[str, int]:
        """Return roughly the bytes of memory by what takes them: `subjects`, and `messages` of a store without files or
        `segments` for tables of segments."""
        index = self.subjects
        return {"subjects": index.memory or SUBJECT_BYTES * (len(index) - index.cold_subjects)}

    def move(self, index: Movable) -> None:
        """Let an index of the owner move parts of it to files, as the subject index does. Not without files."""

    def share(self) -> None:
        """Give the indexes to the event loop; see `SubjectIndex.share`."""
        self.subjects.share()

    def unshare(self) -> None:
        """Take them from the event loop, so that they can be given to a thread. In the event loop."""
        self.subjects.unshare()

    # ------------------------------------------------------------------ apply
    def apply_messages(
        self, at: Appended, first_seq: int, subjects: Sequence[bytes], lengths: Sequence[int], last_time: int
    ) -> None:
        """Add contiguous messages from `first_seq` on, whose records (`lengths`) lie back to back from `at` on.

        `last_time` is when the last of them was stored.
        """
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
        """Add the records of an entry, whose sequences may have gaps. They lie back to back from `at` on."""
        offset = at.offset
        for first, subjects, lengths, last_time in contiguous(records):
            self.apply_messages(Appended(at.segment, offset, at.index), first, subjects, lengths, last_time)
            offset += sum(lengths)

    def skip(self, last_seq: int) -> None:
        """Use up the sequences through `last_seq`: their messages are not kept (interest retention)."""
        if last_seq > self.last_seq:
            self.last_seq = last_seq
            if not self.msgs:
                self.first_seq = last_seq + 1

    # ------------------------------------------------------------------ remove one
    def remove(self, seq: int, subject: bytes | None = None) -> tuple[bytes, int] | None:
        """Remove one message; return its (subject, size), or None if there is none. Raise CorruptLog.

        Without `subject`, finding it takes a read.
        """
        if seq not in self.live:
            return None
        size = self._rows.size(seq)
        if subject is None:
            subject = self._ahead.pop(seq, None) or self._look_ahead(seq)
        if not self.subjects.remove(subject, seq):
            raise self._misnamed((seq,))
        self.live.discard(seq)
        self.msgs -= 1
        self.bytes -= size
        self._rows.forget((seq,))
        self._note_gone((seq,))
        if self.shredding:
            self._shred(seq)
        if seq == self.first_seq:
            self.first_seq = self.live.next_at_or_after(seq + 1) or self.last_seq + 1
        else:
            self._note_hole((seq,))
        return subject, size

    def _look_ahead(self, seq: int) -> bytes:
        """Return the subject of `seq`. If it is the first message, read those of its successors as well."""
        if seq != self.first_seq:
            return self._rows.subject(seq)
        seqs = self.live.members(seq, LOOK_AHEAD)
        self._ahead = dict(zip(seqs, self._rows.subjects(seqs), strict=True))
        return self._ahead.pop(seq)

    def _note_gone(self, gone: Sequence[int], displaced: Displaced | None = None) -> None:
        """Note that messages (ascending) were removed: by those that `displaced` names, else by the message stored last
        or by an operation."""

    def _note_hole(self, gone: Sequence[int]) -> None:
        """Note that removed messages (ascending) lie behind the first one that stays."""

    def _shred(self, seq: int) -> None:
        """Have the bytes of a removed message destroyed."""

    # ------------------------------------------------------------------ remove from the front
    def remove_through(self, seq: int) -> list[tuple[int, bytes]]:
        """Remove all messages ≤ `seq`; return (sequence, subject) of each, ascending. Raise CorruptLog."""
        gone = self.live.members(self.first_seq, self.msgs, seq)
        names = self._rows.subjects(gone) if gone else []
        return list(zip(self.sweep_through(seq), names, strict=True))

    def sweep_through(self, seq: int) -> Sequence[int]:
        """Remove all messages ≤ `seq`; return their sequences, ascending. Raise CorruptLog."""
        gone, left, size = self._front(seq)
        if gone:
            if left is not None and len(left) * FEWER < len(gone):
                self._rebuild(left)
            elif len(gone) > len(self.subjects):
                self.subjects.discard_below(seq + 1)
            else:
                if not self.subjects.remove_all(zip(gone, self._rows.subjects(gone), strict=True)):
                    raise self._misnamed(gone)
            self._cut(gone, size, seq + 1)
        return gone

    def cut_front(self, seq: int) -> Sequence[int]:
        """Account for the removal of all messages ≤ `seq`, which the subject index does not list any more; return their
        sequences, ascending. Raise CorruptLog."""
        gone, _, size = self._front(seq)
        self._cut(gone, size, seq + 1)
        return gone

    def _front(self, seq: int) -> tuple[Sequence[int], Sequence[int] | None, int]:
        """Return the messages ≤ `seq`, the others if these are fewer, and the accounted size of the first."""
        gone = self.live.members(self.first_seq, self.msgs, seq)
        staying = self.msgs - len(gone)
        if staying >= len(gone):
            return gone, None, self._rows.total_size(gone)
        left = self.live.members(seq + 1, staying)
        return gone, left, self.bytes - self._rows.total_size(left)

    def _rebuild(self, left: Sequence[int]) -> None:
        """Let the subject index list these messages only. Raise CorruptLog."""
        names, index = self._rows.subjects(left), self.subjects
        # An index in a file is not read for a check: that takes longer than everything else here.
        if not index.cold_subjects and any(
            not index.seqs(name, seq, seq) for seq, name in zip(left, names, strict=True)
        ):
            raise self._misnamed(left)
        index.clear()
        for seq, name in zip(left, names, strict=True):
            index.add(name, seq)

    def _misnamed(self, seqs: Iterable[int]) -> CorruptLog:
        """Return the error for records whose subjects, as they were read, are not those of the subject index.

        Subjects are read without the records' CRCs, so it is one of the records that is damaged.
        """
        for seq in seqs:
            if seq >= self._rows.local_floor:
                try:
                    self._rows.read(seq)
                except CorruptLog as error:
                    return error
        return CorruptLog(self.directory, 0, "the subject index does not list messages under their subjects")

    def set_first(self, seq: int) -> None:
        """Remove all messages < `seq`, and give out no sequence below it any more. Raise CorruptLog.

        If `seq` is beyond the last message, the stream is empty and goes on with `seq`.
        """
        if seq <= self.first_seq and seq <= self.last_seq + 1:
            return
        gone = self.live.members(self.first_seq, self.msgs, seq - 1)
        size = self.bytes if len(gone) == self.msgs else self._rows.total_size(gone)
        if len(gone) == self.msgs:
            self.subjects.clear()
        else:
            self.subjects.discard_below(seq)
        self.last_seq = max(self.last_seq, seq - 1)
        self._cut(gone, size, seq)

    def excess(self, max_msgs: int, max_bytes: int) -> int:
        """Return how many of the oldest messages exceed these limits; 0 or less means no limit. Raise CorruptLog."""
        over = max(0, self.msgs - max_msgs) if max_msgs > 0 else 0
        if not 0 < max_bytes < self.bytes:
            return over
        excess, found, first = self.bytes - max_bytes, 0, self.first_seq
        while excess > 0 and found < self.msgs:
            some = self.live.members(first, BLOCK)
            sums = list(accumulate(self._rows.sizes(some)))
            at = min(bisect_left(sums, excess), len(sums) - 1)
            found, excess, first = found + at + 1, excess - sums[at], some[-1] + 1
        return max(over, found)

    def _cut(self, gone: Sequence[int], size: int, first: int) -> None:
        """Account for the removal of `gone`, which is everything below `first`."""
        self.live.discard_below(first)
        self.msgs = len(self.live)
        self.bytes -= size
        self._rows.forget(gone)
        self._note_gone(gone)
        self.first_seq = self.live.next_at_or_after(first) or self.last_seq + 1

    # ------------------------------------------------------------------ remove from anywhere
    def sweep_below(self, subjects: Sequence[bytes], border: int) -> Sequence[int]:
        """Remove all messages < `border` of `subjects`, each named once; return their sequences, ascending.

        Raise CorruptLog.
        """
        if len(subjects) == len(self.subjects):  # all subjects
            return self.sweep_through(border - 1)
        gone = ascending(self.subjects.cut(subjects, border))
        if gone:
            self._forget(gone)
        return gone

    def remove_all(self, gone: Sequence[tuple[int, bytes]]) -> None:
        """Remove many live messages, given as (sequence, subject), ascending. Raise CorruptLog."""
        if gone:
            if not self.subjects.remove_all(gone):
                raise self._misnamed([seq for seq, _ in gone])
            self._forget([seq for seq, _ in gone])

    def trim(self, subjects: Iterable[bytes], keep: int, arrivals: Arrivals | None = None) -> list[tuple[int, bytes]]:
        """Remove the oldest messages of each of `subjects` until `keep` (≥ 1) are left. Raise CorruptLog.

        Return (sequence, subject) of each, ascending.

        Args:
            arrivals: the messages that cause it, if departures tell them apart; without, the last one does.
        """
        gone = self.subjects.trim(subjects, keep)
        if gone:
            self._forget([seq for seq, _ in gone], None if arrivals is None else arrivals.displaced(gone))
        return gone

    def _forget(self, seqs: Sequence[int], displaced: Displaced | None = None) -> None:
        """Account for the removal of `seqs`, ascending, which the subject index does not list any more.

        Args:
            displaced: the same, with the message that removed each.
        """
        self.live.discard_all(seqs)
        self.msgs -= len(seqs)
        if self.msgs < len(seqs):
            self.bytes = self._rows.total_size(self.live.members(self.first_seq, self.msgs))
        else:
            self.bytes -= self._rows.total_size(seqs)
        self._rows.forget(seqs)
        self._note_gone(seqs, displaced)
        for seq in seqs if self.shredding else ():
            self._shred(seq)
        if seqs[0] == self.first_seq:
            self.first_seq = self.live.next_at_or_after(self.first_seq) or self.last_seq + 1
        self._note_hole(seqs[bisect_left(seqs, self.first_seq) :])

    def _empty(self) -> None:
        """Forget all messages, so that reading finds nothing from now on."""
        self.live, self.subjects = SequenceSet(), SubjectIndex()

    # ------------------------------------------------------------------ read
    @property
    def local_floor(self) -> int:
        """Return the lowest sequence whose record is still in the log; live ones below are in the lake only."""
        return self._rows.local_floor

    @property
    def first_time(self) -> int:
        """Return the time of the first message; 0 in an empty stream. Raise CorruptLog."""
        if not self.msgs:
            return 0
        if self._first_time[0] != self.first_seq:
            self._first_time = (self.first_seq, self._rows.time(self.first_seq))
        return self._first_time[1]

    def is_local(self, seq: int) -> bool:
        """Return True if a message is live and its record is in the log."""
        return seq >= self._rows.local_floor and seq in self.live

    def read(self, seq: int) -> Record | None:
        """Return one message, or None unless it is live and local. Raise CorruptLog."""
        self.used = True
        if seq in self.live and seq >= self._rows.local_floor:
            return self._rows.read(seq)
        return None

    def read_run(self, first: int, max_msgs: int, max_bytes: int) -> list[Record]:
        """Return the first live local messages ≥ `first`, ascending, at most `max_msgs`. Raise CorruptLog.

        Their records together stay within `max_bytes`, but one is always given.
        """
        return list(chain.from_iterable(self._run(first, max_msgs, max_bytes)))

    def records_from(self, first: int, max_msgs: int, max_bytes: int) -> Records:
        """Return the messages of `read_run` as columns; at most MAX_COLUMN_BYTES."""
        return joined(self._run(first, max_msgs, max_bytes))

    def _run(self, first: int, max_msgs: int, max_bytes: int) -> list[Records]:
        self.used = True
        limit = min(max_msgs, max_bytes // FIXED + 1)
        seqs = self.live.members(max(first, self._rows.local_floor), limit)
        return self._rows.read_seqs(seqs, max_bytes) if seqs else []

    def read_many(self, seqs: Iterable[int], max_bytes: int = 1 << 62) -> list[Record]:
        """Return those of `seqs` (ascending) that are live and local, as many as fit but at least one.

        Raise CorruptLog.
        """
        return list(chain.from_iterable(self._many(seqs, max_bytes)))

    def records_of(self, seqs: Iterable[int], max_bytes: int = MAX_COLUMN_BYTES) -> Records:
        """Return the messages of `read_many` as columns; at most MAX_COLUMN_BYTES."""
        return joined(self._many(seqs, max_bytes))

    def _many(self, seqs: Iterable[int], max_bytes: int) -> list[Records]:
        floor, self.used = self._rows.local_floor, True
        wanted: Sequence[int] = self.live.present(seqs)
        if wanted and wanted[0] < floor:
            wanted = wanted[bisect_left(wanted, floor) :]
        if wanted and wanted[-1] - wanted[0] < len(wanted):
            wanted = range(wanted[0], wanted[-1] + 1)  # a range is looked up faster
        return self._rows.read_seqs(wanted, max_bytes) if wanted else []

    def size_of(self, seq: int) -> int:
        """Return the accounted size of a live message, local or not; 0 if there is none. Raise CorruptLog."""
        return self._rows.size(seq) if seq in self.live else 0

    def subject_of(self, seq: int) -> bytes:
        """Return the subject of a live message, local or not; `b""` if there is none. Raise CorruptLog."""
        return self._rows.subject(seq) if seq in self.live else b""

    def subjects_of(self, seqs: Sequence[int]) -> list[bytes]:
        """Return the subjects of live messages (ascending), local or not. Raise CorruptLog."""
        return self._rows.subjects(seqs)

    def sizes_of(self, seqs: Sequence[int]) -> list[int]:
        """Return the accounted sizes of live messages (ascending), local or not. Raise CorruptLog."""
        return self._rows.sizes(seqs)

    def outlined_so(self, records: Records) -> bool:
        """Return True if outlines in memory have all of these messages, with the same subjects and sizes. Hot."""
        return self._rows.outlined_so(records)

    def time_of(self, seq: int) -> int | None:
        """Return when a live message was stored, local or not; None if there is none. Raise CorruptLog."""
        return self._rows.time(seq) if seq in self.live else None

    def first_at(self, time_ns: int) -> int | None:
        """Return the first live message stored at or after `time_ns`, local or not, or 0. Raise CorruptLog."""
        seq = self._rows.first_at(time_ns)
        return self.live.next_at_or_after(seq) if seq else 0

    # ------------------------------------------------------------------ end
    def close(self, extra: bytes | Pieces = b"") -> None:
        """Save a last checkpoint and close the files. Block. Raise OSError if the checkpoint cannot be written."""
        self.abandon()

    def abandon(self) -> None:
        """Close the files as they are, without a checkpoint. Block; any thread."""
        self._rows.close()
        self.log.close()

    def destroy(self) -> str:
        """Rename the stream's files, so that no start finds them; return what remains to be removed, "" without files.

        Reading finds nothing from now on. Block; any thread.
        """
        self._empty()
        self.abandon()
        return ""

    def leave(self, note: bytes, seal: bool) -> str:
        """Like `destroy`, but the files stay, with a note, under a name that is no stream's (root.py).

        Return the new path, "" without files. Block; any thread. Raise LogError, OSError: then the store is closed and
        nothing else has happened.

        Args:
            note: identifies the deleted stream; see `root.note_in`.
            seal: first seal everything that is applied, if there are messages or removals in it.
        """
        return self.destroy()

    # ------------------------------------------------------------------ files; without any
    @property
    def notes(self) -> list[str]:
        """Return lines for the server's log: everything that opening the log cut off, recreated or left alone."""
        return []

    def check_unused(self) -> None:
        """Raise CorruptLog if there are files beside a log without entries: they come later than its first entry."""

    def replay(self, through: int | None = None) -> Iterator[tuple[Frame, Appended]]:
        """Yield the entries after the checkpoint, to be applied in turn. Block. Raise CorruptLog on any damage.

        `through`: the index through which a member of a group knows them to be committed; the group hands out the rest
        when it is. A segment that ends with one of these entries, and was not sealed before the process ended, is.
        """
        return iter(())

    def watch_damage(self, found: Callable[[CorruptLog], None]) -> None:
        """Call `found` with each damage that a read meets, before it raises it."""

    # ------------------------------------------------------------------ departures
    @property
    def departures(self) -> Departures | None:
        """Return removals in the segment that begins at `departures_index`, if the stream keeps their times."""
        return None

    @property
    def departures_index(self) -> int:
        """Return the first index of the open segment, or of a sealed one after which nothing was removed."""
        return 0

    def keep_departures(self, wanted: bool) -> None:
        """Note from now on when messages leave (format/departures.py), or stop it. Only stores with files keep it."""

    def note_schemas(self, rules: str, latest: Mapping[str, int]) -> None:
        """Note the schemas of messages from the next sequence on (`SchemaRun`). Only stores with files keep it."""

    # ------------------------------------------------------------------ seal
    def seal_if_old(self) -> None:
        """Seal the open segment in a thread if it is due and no write is under way. Call it about every second."""

    def ask_seal(self) -> int:
        """Have what is applied sealed, as soon as the log's order allows, if there are messages or removals in it.

        Return the log index through which segments have to be sealed for that; it is done once `sealed_through` has
        reached it. Call it again when `on_settled` tells that a write has ended: the seal may begin only then.
        """
        return 0

    @property
    def has_unsealed(self) -> bool:
        """Return True if the open segment holds messages or saw removals."""
        return False

    @property
    def sealed_through(self) -> tuple[int, int]:
        """Return the log index through which all segments are sealed, and the stream's last sequence there."""
        return 0, 0

    def sealed(self) -> list[SealedSegment]:
        """Return the sealed segments that have not left the log, ascending."""
        return []

    @property
    def left_through(self) -> int:
        """Return the index through which segments have left the log for the lake; 0 when none has."""
        return 0

    # ------------------------------------------------------------------ checkpoint
    @property
    def checkpoint_due(self) -> bool:
        """Return True if enough was logged since the last checkpoint to take another."""
        return False

    def checkpoint_frees(self, index: int) -> bool:
        """Return True if a checkpoint now would let segments through `index` leave that are worth its cost."""
        return False

    @property
    def checkpoint_index(self) -> int:
        """Return the index through which a durable checkpoint holds the state."""
        return 0

    def checkpoint(self, extra: bytes | Pieces, done: Callable[[BaseException | None], None] | None = None) -> None:
        """Save the state at `applied`, with the owner's `extra`: copied now, written in a thread.

        A failure is logged and leaves the checkpoint before in force.
        """

    # ------------------------------------------------------------------ leave for the lake
    def drop_through(self, index: int) -> list[SealedSegment]:
        """Release sealed segments whose entries are all ≤ `index`, because the lake holds their messages.

        Those that the checkpoint does not cover yet, and the newest within the retained ones, stay. Return the
        segments that are leaving; the work goes on in a thread, and their messages stop being local when it is done.
        Nothing leaves while an earlier drop is at work: call again.
        """
        return []

    @property
    def doomed(self) -> list[int]:
        """Return the securely deleted sequences whose bytes the log may still have, ascending."""
        return []

    def shred(self) -> bool:
        """Begin to destroy the bytes of securely deleted messages. Return False if there are none left: else call it
        again later."""
        return False

    # ------------------------------------------------------------------ other nodes
    def find_base(self) -> Base | None:
        """Return the base that lies beside the log, or None. Block. Raise CorruptLog, OSError."""
        return None

    def begin_with(self, base: Base) -> None:
        """Let an empty store begin with a base. In the event loop, or at recovery."""
        raise AssertionError("a stream in memory has no table")

    def sealed_at(self, path: str) -> Segment | None:
        """Return the sealed segment that is kept in this file, or None."""
        return None

    def mend(self, segment: Segment, fetched: str) -> Header:
        """Put another replica's file in the place of a damaged sealed segment's; `mended` follows. Block.

        Raise CorruptLog if the other file is damaged or different, LogClosed.
        """
        raise AssertionError("a stream in memory has no files")

    def mended(self, segment: Segment, header: Header) -> None:
        """Forget what is known of the file that `mend` replaced. In the event loop."""

    def export(self, extra: bytes | Pieces, skip_through: int) -> StoreExport:
        """Return what another node needs to have this store as of now, with the owner's `extra`; see `StoreExport`."""
        raise AssertionError("a stream in memory has no files")
