"""Index from subjects to live sequences.

Belongs here: the sequences of every subject (histories.py has the forms), first of all the last one, which publishes
and direct gets need. Only live messages are listed. The subjects in memory are in one dict. After the first search by
wildcard, or above a number of subjects, they are also kept in order (subject_leaves.py); from then on subjects that
were not written to for a while may be moved to a file, if all of them exceed the memory limit (memory_limit.py).
"""

# The problem. Every publish of a KV bucket, every direct get and every limit by subject asks for the last sequence of
# one subject, and a stream may have ten million of them. Consumers and purges ask for all subjects that match a
# wildcard. Recovery must not take minutes, and memory is bounded for the whole server. No single structure does all
# four.
#
# So a subject has one of three forms, and moves between them:
#
#     integer     up to 16 sequences packed into one Python int, the newest in the low 64 bits. `last` is a mask, adding
#                 is a shift, and there is no object of ours for a subject: 10 M subjects are 10 M dict entries
#     Ascending   an array of sequences, for long histories (histories.py)
#     cold        a row in an immutable block on disk, in the order of subjects (cold_rows.py)
#
# and the subjects are found in two ways:
#
#     `_held`     dict from subject to its form: everything in memory. Hot, and all there is in most streams
#     `_leaves`   ranges of subjects in order, with the names in memory and at most one block each (subject_leaves.py).
#                 Made when a wildcard is asked for the first time, or above ORDERED_SUBJECTS: a stream that is only
#                 published to never pays for the order
#
# Memory overrides disk. A cold subject that gets a message is read into `_held` (`_warm`), and its row in the block is
# obsolete from then on; one whose last message goes gets the integer 0 in `_held`, which means "not there, whatever the
# block says". So blocks never change, checkpoints copy them as they are, and a start opens them without reading them.
#
#     Invariant: a subject is listed iff it has a live message. `len` is therefore exact: the held ones without zeros
#     (`gone`), and the rows that nothing overrides (`cold`).
#
# New names are not sorted in one by one. They gather in `_fresh` and are put into leaves when 256 have come
# (`_settle`), also between the batches of a long answer: so whoever walks the leaves must expect names that came
# meanwhile, and `some_matching` promises no more than that.
#
# A run of messages whose subjects are in files takes 20 µs for each: a block is read, also to learn that a subject is
# new. `warming` does that in steps before the run is added. It leaves those that are new with 0, like removed ones.
#
# Snapshots. A checkpoint, or a long answer, reads the index in a thread while it changes. Copying ten million entries
# would stop the server for seconds. A snapshot only copies references; ints cannot change, blocks do not, and an
# Ascending that is shared with a snapshot is copied before it is changed in any other way than by appending (`_epoch`,
# `_own`).
#
# What is ugly: 0 as a value means something, so `if value` is wrong nearly everywhere; and `add_run` and `trim` repeat
# what `last` and `remove` do, inline, because a call for each message is what they would cost otherwise.

from __future__ import annotations

import logging
import os
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.index.cold_rows import BlockFile, FileBlock
from lakestream.log.index.histories import (
    FULL,
    MASK,
    PACKED,
    PAIR,
    Ascending,
    Held,
    at_or_after,
    at_or_before,
    between,
    count,
    count_between,
    held,
    numbers,
    oldest,
    pack,
    split,
    unpack,
    weight,
    without,
)
from lakestream.log.index.memory_limit import STEP, IndexMemory
from lakestream.log.index.subject_leaves import IndexSnapshot, Leaves
from lakestream.protocol import subjects as grammar

ORDERED_SUBJECTS = 1 << 13
"""Above this many subjects they are kept in order even without wildcards: sorting more at once takes too long (2 ms,
up to 4 when a run brings as many more)."""
SCANNED_SUBJECTS = 64
"""Up to this many subjects a scan is faster than ordered leaves."""
FRESH_SUBJECTS = 256
"""Number of subjects new in memory that are gathered before they are put in order."""
WARMED_AT_ONCE = 64
"""Number of subjects that are looked up in files between two steps of `warming` (1 to 2 ms)."""
LOOK_MESSAGES = 8192
"""The memory is estimated after this many messages, even without new subjects."""
LITERALS = 512
"""Number of subjects that are looked up for a batch of answers."""
FEW = 4
"""A subject with this many messages left is kept in the short form again."""
SCRATCH = "index.cold"
"""Prefix of the scratch file in a stream's directory, for the moment in which it has a name."""

_SAMPLE = 32
_SLOT = 64  # rough bytes of a dict's slot and of the pointers in leaves
_logger = logging.getLogger(__name__)


class SubjectIndex:
    """Subject → its live sequences. Invariant: a subject is listed iff it has at least one live message."""

    __slots__ = (
        "__weakref__",
        "_directory",
        "_epoch",
        "_files",
        "_fresh",
        "_held",
        "_leaves",
        "_look_at",
        "_room",
        "_scratch",
        "_shared",
        "_through",
        "memory",
    )

    def __init__(self) -> None:
        self._epoch = 0  # snapshots taken so far
        self._through = 0  # the newest sequence so far
        self._look_at = LOOK_MESSAGES  # the sequence at which memory is estimated next
        self._held: dict[bytes, Held] = {}  # the subjects in memory
        self._leaves: Leaves | None = None
        self._fresh: list[bytes] = []  # once there are leaves: subjects that entered memory and are in no leaf yet
        self._files: Files | None = None
        self._directory = ""
        self._scratch: BlockFile | None = None
        self._shared: IndexMemory | None = None
        self._room = False  # True if memory was left at the last estimate
        self.memory = 0
        """Rough bytes of memory at the last estimate; 0 while they are few."""

    @classmethod
    def over(cls, rows: dict[bytes, int]) -> SubjectIndex:
        """Return the index of subjects with these packed sequences."""
        made = cls()
        made._held = {name: held(packed, 0) for name, packed in rows.items()}
        made._through = max((packed & MASK for packed in rows.values()), default=0)
        if len(rows) > ORDERED_SUBJECTS:
            made._ordered()
        return made

    @classmethod
    def cold(cls, lows: list[bytes], blocks: list[FileBlock], through: int) -> SubjectIndex:
        """Return the index over these blocks, in order, which begin with the subjects `lows`.

        Block. Raise CorruptLog, ReadFailed.
        """
        made = cls()
        made._leaves = Leaves.over(made._held, lows, blocks)
        made._through = through
        return made

    def keep_within(self, memory: IndexMemory, files: Files, directory: str) -> None:
        """Move subjects to a file in this directory when the memory limit is exceeded."""
        self._shared, self._files, self._directory = memory, files, directory
        self._weigh()

    def succeed(self, before: SubjectIndex) -> None:
        """Take the place of an empty index."""
        if before._shared is not None and before._files is not None:
            self.keep_within(before._shared, before._files, before._directory)
            before._shared.replace(before, self)

    def share(self) -> None:
        """Give the index to the event loop: other indexes may make it move subjects to its file. In the event loop."""
        if self._shared is not None:
            self._shared.add(self)

    def unshare(self) -> None:
        """Take the index from the event loop, so that it can be given to a thread. In the event loop."""
        if self._shared is not None:
            self._shared.leave(self)

    def __len__(self) -> int:
        leaves = self._leaves
        return len(self._held) if leaves is None else len(self._held) - leaves.gone + leaves.cold

    def __contains__(self, subject: bytes) -> bool:
        return bool(self._find(subject))

    # ------------------------------------------------------------------ change
    def add_run(self, subjects: Sequence[bytes], first_seq: int) -> None:
        """Add one message for each of `subjects`, numbered from `first_seq` on. Sequences only ever grow."""
        mine = self._held
        number = len(subjects)
        if number > 1 and subjects.count(subjects[0]) == number:
            self._add_same(subjects[0], first_seq, number)
        else:
            leaves = self._leaves
            get, arrived = mine.get, None if leaves is None else self._arrived
            for seq, subject in enumerate(subjects, first_seq):
                value = get(subject)
                if value is None:
                    if arrived is not None:
                        value = arrived(subject)
                    if value is None:
                        mine[subject] = seq
                        continue
                if not isinstance(value, int):
                    value.items.append(seq)
                elif value < FULL:
                    mine[subject] = value << 64 | seq
                    if not value and leaves is not None:
                        leaves.gone -= 1
                else:
                    mine[subject] = self._longer(value, seq)
        self._through = first_seq + number - 1
        if len(self._fresh) >= FRESH_SUBJECTS:
            self._settle()
        elif self._through >= self._look_at:
            self._look()

    def warming(self, subjects: Sequence[bytes]) -> Iterator[None] | None:
        """Return the steps that bring the subjects of a run into memory, so that `add_run` takes no longer than for
        others; None if it does not anyway. Raise CorruptLog, ReadFailed in them."""
        if len(subjects) <= WARMED_AT_ONCE or self._leaves is None or not self._leaves.cold:
            return None
        return self._warming(subjects)

    def _warming(self, subjects: Sequence[bytes]) -> Iterator[None]:
        held, leaves, looked = self._held, self._leaves, 0
        assert leaves is not None, "some subjects are in leaves"
        for subject in subjects:
            if subject in held:
                continue
            if not self._warm(subject):
                held[subject] = 0
                leaves.gone += 1
                self._fresh.append(subject)
            looked += 1
            if looked % WARMED_AT_ONCE == 0:
                if len(self._fresh) >= FRESH_SUBJECTS:
                    self._settle()
                yield

    def add(self, subject: bytes, seq: int) -> None:
        """Add one message, newer than all of its subject."""
        self.add_run((subject,), seq)

    def remove(self, subject: bytes, seq: int) -> bool:
        """Remove one message; return False if it is not listed."""
        if len(self._fresh) >= FRESH_SUBJECTS:
            self._settle()
        value = self._held.get(subject)
        if value is None:
            value = self._warm(subject)
        if isinstance(value, int):
            rest = without(value, seq)
            if rest == value:
                return False
            self._put(subject, rest)
            return True
        value = self._own(subject, value)
        if value.items[-1] == seq:
            value.pop()
        elif not value.remove(seq):
            return False
        if len(value) <= FEW:
            self._put(subject, value.packed())
        return True

    def trim(self, subjects: Iterable[bytes], keep: int) -> list[tuple[int, bytes]]:
        """Leave each of `subjects` its newest `keep` (≥ 1); return (sequence, subject) of the removed, ascending.

        Hot.
        """
        gone: list[tuple[int, bytes]] = []
        mine, shift = self._held, 64 * min(keep, PACKED)
        get, full, next_size, newest = mine.get, 1 << shift, 1 << shift + 64, (1 << shift) - 1
        for subject in subjects:
            value = get(subject)
            if type(value) is int:
                if value >= full:  # the oldest sequences are in the high bits
                    over = value >> shift
                    gone += [(over, subject)] if value < next_size else zip(unpack(over), repeat(subject))
                    mine[subject] = value & newest
                continue
            excess = self.seqs(subject)[:-keep]
            self.remove_many(subject, excess)
            gone += [(seq, subject) for seq in excess]
        gone.sort()
        return gone

    def remove_many(self, subject: bytes, gone: Collection[int]) -> bool:
        """Remove many messages of one subject at once; return False if some were not listed."""
        if len(gone) < 8:
            return sum(self.remove(subject, seq) for seq in gone) == len(gone)
        dead = gone if isinstance(gone, (set, frozenset, range)) else set(gone)
        seqs = self.seqs(subject)
        kept = [seq for seq in seqs if seq not in dead]
        if len(kept) < len(seqs):
            if subject not in self._held:
                self._warm(subject)
            self._put(subject, pack(kept))
            if len(self._fresh) >= FRESH_SUBJECTS:
                self._settle()
        return len(kept) == len(seqs) - len(dead)

    def remove_all(self, gone: Iterable[tuple[int, bytes]]) -> bool:
        """Remove many listed messages, given as (sequence, subject), ascending. Return False if some were not listed.

        A subject in a file that loses as many messages as it has is not read for that.
        """
        listed = True
        groups: dict[bytes, list[int]] = {}
        group = groups.get
        for seq, subject in gone:
            seqs = group(subject)
            if seqs is None:
                groups[subject] = [seq]
            else:
                seqs.append(seq)
        mine = self._held
        for subject in sorted(groups) if self.cold_subjects else groups:  # in the order of the files
            seqs = groups[subject]
            if len(seqs) == 1 and subject in mine:
                listed = self.remove(subject, seqs[0]) and listed
                continue
            number = self.count(subject)
            if len(seqs) < number:
                listed = self.remove_many(subject, seqs) and listed
            elif len(seqs) > number:
                listed = False
            elif subject in mine:
                value = mine[subject]
                same = value == seqs[0] if number == 1 and isinstance(value, int) else self.seqs(subject) == seqs
                listed = same and listed
                self._put(subject, 0)
            else:
                self._empty_cold(subject)
            if len(self._fresh) >= FRESH_SUBJECTS:
                self._settle()
        self._settle()
        return listed

    def together(self, subjects: Iterable[bytes]) -> array[int]:
        """Return all sequences of these subjects, in no order."""
        return numbers(map(self._find, subjects))

    def cut(self, subjects: Sequence[bytes], seq: int) -> array[int]:
        """Remove every message < `seq` of these subjects, each named once; return them, in no order. Hot."""
        # Subjects in memory first: they may move to the file while the others pass through memory.
        gone = self._cut_held(subjects, seq)
        if self.cold_subjects:
            gone.extend(numbers(self._cut_cold(sorted(set(subjects) - self._held.keys()), seq)))
        return gone

    def discard_below(self, seq: int) -> None:
        """Remove every message < `seq`, of all subjects, in one scan."""
        self._cut_held(list(self._held), seq)
        for _ in self._cut_cold(self._cold_subjects(), seq):
            continue
        while self._shared is not None and self._shared.used_with(self) > self._shared.limit and self.cool(STEP):
            continue

    def _cut_held(self, subjects: Iterable[bytes], seq: int) -> array[int]:
        """Do `cut` for the subjects that are in memory."""
        mine, leaves = self._held, self._leaves
        get, filed = mine.get, leaves is not None and leaves.filed
        parts: list[Held] = []
        emptied: list[bytes] = []
        for subject in subjects:
            value = get(subject)
            if not isinstance(value, int):
                if value is not None:
                    parts.append(Ascending(value.items[value.head : bisect_left(value.items, seq, value.head)], 0))
                    self._cut(subject, value, seq)
                continue
            gone, left = (value, 0) if value & MASK < seq else split(value, seq)
            if not gone:
                continue
            parts.append(gone)
            if left:
                mine[subject] = left
            elif filed:
                self._put(subject, 0)
            else:
                emptied.append(subject)
        for subject in emptied:
            del mine[subject]
        if leaves is not None and not filed and len(mine) < min(len(emptied), ORDERED_SUBJECTS):
            self._leaves, self._fresh = None, []  # they hold the names of all removed subjects
        return numbers(parts)

    def _cut_cold(self, subjects: Iterable[bytes], seq: int) -> Iterator[int]:
        """Do `cut` for subjects that are not in memory; return the removed sequences of each, packed."""
        for subject in subjects:
            value = self._find(subject)
            assert isinstance(value, int), "what is not in memory has the short form"
            gone, left = split(value, seq)
            if gone and left:
                self._cut(subject, self._warm(subject), seq)
            elif gone:
                self._empty_cold(subject)
            if len(self._fresh) >= FRESH_SUBJECTS:
                self._settle()
            yield gone
        self._settle()

    def _empty_cold(self, subject: bytes) -> None:
        """Remove all sequences of a subject that is not in memory."""
        assert self._leaves is not None, "what is not in memory is in a leaf"
        self._held[subject] = 0
        self._fresh.append(subject)
        self._leaves.cold -= 1
        self._leaves.gone += 1

    def clear(self) -> None:
        """Remove everything."""
        self._held.clear()
        self._leaves, self._fresh = None, []
        self._weigh()

    # ------------------------------------------------------------------ ask
    def last(self, subject: bytes) -> int:
        """Return the newest sequence of `subject`; 0 if it has none."""
        value = self._held.get(subject)
        if type(value) is int:  # hot: direct gets and publishes
            return value if value < PAIR else value & MASK
        if isinstance(value, Ascending):
            return value.items[-1]
        return self._cold_last(subject) if self._leaves is not None and self._leaves.cold else 0

    def first(self, subject: bytes) -> int:
        """Return the oldest sequence of `subject`; 0 if it has none."""
        value = self._find(subject)
        return oldest(value) if isinstance(value, int) else value.items[value.head]

    def count(self, subject: bytes) -> int:
        """Return the number of messages of `subject`."""
        value = self._find(subject)
        return count(value) if isinstance(value, int) else len(value)

    def count_each(self, subjects: Sequence[bytes]) -> list[int]:
        """Return the number of messages of each of these subjects, as `count` does. Hot."""
        rows = zip(subjects, map(self._held.get, subjects), strict=True)
        return [1 if type(value) is int and 0 < value < PAIR else self.count(subject) for subject, value in rows]

    def nth(self, subject: bytes, place: int) -> int:
        """Return the sequence of the message of `subject` that has `place` older ones, which exists."""
        value = self._find(subject)
        return unpack(value)[place] if isinstance(value, int) else value.items[value.head + place]

    def seqs(self, subject: bytes, lo: int = 0, hi: int = MASK) -> list[int]:
        """Return the sequences `lo` through `hi`, inclusive, of `subject`, ascending."""
        return between(self._find(subject), lo, hi)

    def last_at_or_before(self, subject: bytes, seq: int) -> int:
        """Return the newest sequence ≤ `seq` of `subject`; 0 if there is none."""
        return at_or_before(self._find(subject), seq)

    def next_at_or_after(self, subject: bytes, seq: int) -> int:
        """Return the oldest sequence ≥ `seq` of `subject`; 0 if there is none."""
        return at_or_after(self._find(subject), seq)

    def count_range(self, subject: bytes, lo: int, hi: int) -> int:
        """Return the number of messages `lo` through `hi`, inclusive, of `subject`."""
        return count_between(self._find(subject), lo, hi)

    def counts(self, filters: Sequence[bytes], lo: int, hi: int) -> Iterator[int]:
        """Yield the numbers of messages `lo` through `hi`, inclusive, whose subjects match a filter, by parts. Hot.

        Otherwise like `some_matching`.
        """
        literals, wild = _parted(filters)
        for some in literals:
            yield sum([self.count_range(subject, lo, hi) for subject in some])
        for here, away in self._ranges(wild):
            values = list(map(self._held.get, dict.fromkeys(here)))
            single = [value for value in values if type(value) is int and 0 < value < PAIR]
            whole = lo <= 1 and hi >= self._through
            total = len(single) if whole else sum([lo <= value <= hi for value in single])
            if len(single) < len(values):  # some subjects have several messages or none
                longer = [value for value in values if value and not (type(value) is int and value < PAIR)]
                total += sum([count_between(value, lo, hi) for value in longer])
            yield total + sum([self.count_range(subject, lo, hi) for subject in away])

    def matching(self, filter: bytes) -> list[bytes]:
        """Return the subjects that match `filter`, in no particular order; see `some_matching`."""
        return list(chain.from_iterable(self.some_matching(filter)))

    def some_matching(self, *filters: bytes) -> Iterator[list[bytes]]:
        """Yield the subjects that match a filter, each once, in batches (perhaps empty), so that the caller can stop.

        A literal is one lookup. For wildcards behind literal tokens only the range of those tokens is scanned, once for
        all filters with wildcards there. Batches of one filter come in order, the subjects inside of one do not. The
        index may change between them: subjects added meanwhile are found or not. Raise CorruptLog, ReadFailed.
        """
        literals, wild = _parted(filters)
        for some in literals:
            yield [subject for subject in some if subject in self]
        for here, away in self._ranges(wild):
            held = self._held
            yield [subject for subject in dict.fromkeys(here) if held.get(subject)] + away

    def newest(self, filters: Sequence[bytes], through: int) -> Iterator[list[int]]:
        """Yield the newest sequence ≤ `through` of each subject that matches a filter (0: none), in batches; one may
        come twice. Hot.

        Otherwise like `some_matching`.
        """
        literals, wild = _parted(filters)
        for some in literals:
            yield self._newest_of(some, through)
        for here, away in self._ranges(wild):
            yield self._newest_of(here + away, through)

    def _newest_of(self, subjects: list[bytes], through: int) -> list[int]:
        values = list(map(self._held.get, subjects))
        found = [value for value in values if type(value) is int and 0 < value < PAIR and value <= through]
        if len(found) == len(values):
            return found
        if through >= self._through:
            return list(map(self.last, subjects))  # which lets them enter memory
        return [at_or_before(self._find(subject), through) for subject in subjects]

    def _ranges(self, filters: Sequence[bytes]) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the subjects that match filters, all with wildcards, as `Leaves.candidates` does."""
        for head, choose, seek in grammar.walks(filters):
            leaves = self._leaves_for(head)
            if leaves is None:
                held = list(self._held)
                yield choose([subject for subject in held if subject.startswith(head)] if head else held), []
                continue
            for here, away in leaves.candidates(head, seek):
                yield choose(here), choose(away)
                self._settle()  # rows of subjects that entered memory are obsolete in the file

    def _leaves_for(self, head: bytes) -> Leaves | None:
        """Return all subjects in order, or None if scanning all for those that begin with `head` is as quick."""
        if self._leaves is None and head and len(self._held) > SCANNED_SUBJECTS:
            self._ordered()
        if self._leaves is not None:
            self._settle()
        return self._leaves

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Yield every subject with its newest sequence. The index may not change meanwhile."""
        for subject, value in self._held.items():
            if value:
                yield subject, value & MASK if isinstance(value, int) else value.items[-1]
        for subject in self._cold_subjects():
            yield subject, self.last(subject)

    def snapshot(self) -> IndexSnapshot:
        """Return a snapshot. It copies a dict and some lists; their items are copied once they change."""
        self._epoch += 1
        leaves = self._leaves
        if leaves is None:
            return IndexSnapshot(self._held.copy(), None, self._through)
        self._settle()
        return IndexSnapshot(self._held.copy(), [leaves.copy(at) for at in range(len(leaves.leaves))], self._through)

    # ------------------------------------------------------------------ order and memory
    def cool(self, subjects: int) -> int:
        """Move about this many subjects from memory to a file; return how many, or 0 if that is impossible."""
        leaves = self._ordered()
        leaves.place(self._fresh)
        self._fresh = []
        try:
            if self._scratch is None:
                assert self._files is not None, "only those that have a directory are asked"
                self._scratch = BlockFile.make_scratch(self._files, os.path.join(self._directory, SCRATCH))
            moved = leaves.cool(self._scratch, subjects)
        except (LogError, OSError) as error:
            # A read of the damaged block reports it; the memory limit may concern another stream.
            _logger.error("%s: the subject index stays in memory: %s", self._directory, error)
            return 0
        self._weigh()
        return moved

    @property
    def cold_subjects(self) -> int:
        """Return the number of subjects that are not in memory."""
        return self._leaves.cold if self._leaves is not None else 0

    def _ordered(self) -> Leaves:
        if self._leaves is None:
            self._leaves, self._fresh = Leaves.of(self._held), []
        return self._leaves

    def _settle(self) -> None:
        """Put the subjects new in memory in order."""
        leaves, fresh = self._leaves, self._fresh
        if leaves is None or not fresh:
            return
        self._fresh = []
        leaves.place(fresh)
        if leaves.listed > len(self._held) + len(self._held) // 2 + FRESH_SUBJECTS:
            leaves.clean(4 * len(fresh))
        self._weigh()
        if self._shared is not None:
            self._shared.grown(self, len(fresh))

    def _weigh(self) -> None:
        """Estimate the memory from some of the oldest and newest subjects."""
        mine, self.memory = self._held, 0
        if len(mine) >= FRESH_SUBJECTS:
            some = [*islice(mine.items(), _SAMPLE), *islice(reversed(mine.items()), _SAMPLE)]
            size = sum(sys.getsizeof(name) + weight(value) for name, value in some) // len(some)
            self.memory = len(mine) * (size + _SLOT)
        if self._shared is not None:
            self._shared.weighed(self)
        self._room = self._shared is not None and self._shared.used_with(self) < self._shared.limit // 8 * 7

    def _cold_subjects(self) -> Iterator[bytes]:
        leaves = self._leaves
        if leaves is not None and leaves.cold:
            self._settle()
            for _, away in leaves.candidates(b""):
                yield from (subject for subject in away if subject not in self._held)

    def _find(self, subject: bytes) -> Held:
        value = self._held.get(subject)
        if value is None:
            return self._leaves.find(subject) if self._leaves is not None and self._leaves.cold else 0
        return value

    def _arrived(self, subject: bytes) -> Held | None:
        """Return the sequences of a subject that is about to enter memory, or None if it is new."""
        value = self._warm(subject)
        if value:
            return value
        self._fresh.append(subject)
        return None

    def _cold_last(self, subject: bytes) -> int:
        """Return the newest sequence of a subject that is not in memory.

        The subject enters memory, while there is room: so after a start the subjects in use become quick again.
        """
        if not self._room:
            assert self._leaves is not None, "what is not in memory is in a leaf"
            return self._leaves.find(subject) & MASK
        value = self._warm(subject)
        if len(self._fresh) >= FRESH_SUBJECTS:
            self._settle()
        return value & MASK if isinstance(value, int) else value.items[-1]

    def _warm(self, subject: bytes) -> Held:
        """Load a subject from the file into memory; return its sequences, or 0 if it is not there."""
        assert subject not in self._held, "what is in memory overrides the file, and is counted once"
        leaves = self._leaves
        packed = leaves.find(subject) if leaves is not None and leaves.cold else 0
        if leaves is None or not packed:
            return 0
        leaves.cold -= 1
        value = self._held[subject] = held(packed, self._epoch)
        self._fresh.append(subject)
        return value

    def _put(self, subject: bytes, packed: int) -> None:
        """Set the sequences of a subject that is in memory."""
        leaves = self._leaves
        if packed:
            self._held[subject] = held(packed, self._epoch)
        elif leaves is None or not leaves.find(subject):
            del self._held[subject]
        else:
            self._held[subject] = 0
            leaves.gone += 1

    def _cut(self, subject: bytes, value: Held, seq: int) -> None:
        """Remove the sequences below `seq` of a subject that is in memory."""
        if isinstance(value, int):
            if 0 < oldest(value) < seq:
                self._put(subject, pack(each for each in unpack(value) if each >= seq))
        elif value.items[value.head] < seq:
            value = self._own(subject, value)
            value.drop_below(seq)
            if len(value) <= FEW:
                self._put(subject, value.packed())

    def _own(self, subject: bytes, value: Ascending) -> Ascending:
        """Return a subject's sequences for a change other than at the end, copied if a snapshot shares them."""
        if value.epoch != self._epoch:
            value = self._held[subject] = Ascending(value.items, self._epoch, value.head, shared=True)
        return value

    def _longer(self, packed: int, seq: int) -> Ascending:
        items = unpack(packed)
        items.append(seq)
        return Ascending(items, self._epoch)

    def _add_same(self, subject: bytes, first_seq: int, number: int) -> None:
        """Add this many messages of one subject."""
        mine, seqs = self._held, range(first_seq, first_seq + number)
        value = mine.get(subject)
        if value is None and self._leaves is not None:
            value = self._arrived(subject)
        elif value == 0 and self._leaves is not None:
            self._leaves.gone -= 1
        if isinstance(value, Ascending):
            value.items.extend(seqs)
            return
        before = value or 0
        if count(before) + number <= PACKED:
            mine[subject] = before << 64 * number | pack(seqs)
        else:
            items = unpack(before)
            items.extend(seqs)
            mine[subject] = Ascending(items, self._epoch)

    def _look(self) -> None:
        self._look_at = self._through + LOOK_MESSAGES
        if self._leaves is None and len(self._held) > ORDERED_SUBJECTS:
            self._ordered()
        self._weigh()
        if self._shared is not None:
            self._shared.grown(self, 0)


def _parted(filters: Sequence[bytes]) -> tuple[list[list[bytes]], list[bytes]]:
    """Return the filters that name one subject, which no other matches, in lists of LITERALS, and those with
    wildcards."""
    together = b" ".join(filters)  # of a thousand keys none is looked at by itself
    some_wild = b"*" in together or b">" in together
    literal = list(map(grammar.is_literal, filters)) if some_wild else [True] * len(filters)
    wild = [one for one, is_one in zip(filters, literal, strict=True) if not is_one]
    names = list(dict.fromkeys(one for one, is_one in zip(filters, literal, strict=True) if is_one))
    if names and wild:
        covered = set(grammar.chooser(wild, b"")(names))
        names = [name for name in names if name not in covered]
    return [names[at : at + LITERALS] for at in range(0, len(names), LITERALS)], wild
