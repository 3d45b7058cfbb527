"""The subjects of an index in order, partly on disk; snapshots of an index.

Belongs here: `Leaves`, the ranges into which all subjects of one index are divided. A leaf knows which subjects of its
range are in memory, in the order in which they were added, some perhaps removed by now, and has at most one block of
rows in a file (cold_rows.py). Memory overrides the block: a subject that is in both is read from memory, and one that
was removed but is still in the block has an integer of 0 in memory. So nothing in a file ever changes.

Long operations are cut into steps over few leaves, which the caller spreads over its work. `IndexSnapshot` is what
checkpoints and long answers read of an index in threads, while it changes in the event loop.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from lakestream.log.format.errors import LogError
from lakestream.log.index.cold_rows import BlockFile, FileBlock, encode_rows, first_name
from lakestream.log.index.histories import Held
from lakestream.log.index.histories import held as in_memory
from lakestream.native import SubjectSeeker

LEAF_ROWS = 256
"""Subjects in a block, and in a leaf that was just divided."""
SPLIT_ROWS = 2 * LEAF_ROWS
"""A leaf with more subjects in memory is divided."""
SOUGHT_LEAVES = 128
"""Number of leaves in which the wanted subjects are sought at once (0.1 ms)."""
COLD_HISTORY = 64
"""A subject with more sequences stays in memory: writing them with each change of a neighbour costs too much."""

SEEN = 2
"""Subjects that are looked at for each that is to leave memory: where all have long histories, none can (2 ms)."""

LONG_BLOCK = 1 << 18
"""A block of a checkpoint with more bytes has long histories: its subjects are loaded into memory when it is opened.
Blocks that are made while a server runs are shorter."""


class SubjectLeaf:
    """One range of subjects; see the module. `part`: other leaves share the block, each with the rows in its range.

    The first `ordered` names are in the order of subjects.
    """

    __slots__ = ("block", "names", "ordered", "part")

    def __init__(self, names: list[bytes], block: FileBlock | None = None, part: bool = False) -> None:
        self.names = names
        self.ordered = len(names)
        self.block = block
        self.part = part

    def in_order(self) -> list[bytes]:
        """Return all names in the order of subjects. Later additions are sorted in: the next walk finds them so."""
        if self.ordered < len(self.names):
            self.names, self.ordered = sorted(self.names), len(self.names)
        return self.names


class Leaves:
    """All leaves of one index, whose subjects in memory are `held`. They cover every subject there can be.

    `cold` counts the rows in files that nothing overrides, `gone` the subjects in `held` that have no message.
    """

    __slots__ = ("_asked", "_cursor", "_held", "_rows", "_walked", "cold", "gone", "leaves", "listed", "lows")

    def __init__(self, held: dict[bytes, Held]) -> None:
        self._held = held
        self.lows: list[bytes] = [b""]
        self.leaves: list[SubjectLeaf] = [SubjectLeaf([])]
        self.cold = self.gone = 0
        self.listed = 0  # names in all leaves
        self._cursor = 0  # the leaf with which the next step of cooling begins
        self._asked: FileBlock | None = None  # block of the last lookup; a second one decodes all its rows
        self._walked: FileBlock | None = None
        self._rows: dict[bytes, int] = {}

    @classmethod
    def of(cls, held: dict[bytes, Held]) -> Leaves:
        """Return the leaves over subjects that are all in memory."""
        made = cls(held)
        names = sorted(held)
        made.listed = len(names)
        if names:
            made.leaves = [SubjectLeaf(names[at : at + LEAF_ROWS]) for at in range(0, len(names), LEAF_ROWS)]
            made.lows = [b"", *names[LEAF_ROWS::LEAF_ROWS]]
        return made

    @classmethod
    def over(cls, held: dict[bytes, Held], lows: list[bytes], blocks: list[FileBlock]) -> Leaves:
        """Return the leaves over blocks that begin with the subjects `lows`. Raise CorruptLog, ReadFailed."""
        made = cls(held)
        if blocks:
            made.lows = [b"", *lows[1:]]
            made.leaves = [made._opened(block) for block in blocks]
        return made

    def _opened(self, block: FileBlock) -> SubjectLeaf:
        if block.size <= LONG_BLOCK:
            self.cold += block.count
            return SubjectLeaf([], block)
        rows = block.rows()
        self._held.update((name, in_memory(packed, 0)) for name, packed in rows.items())
        self.listed += len(rows)
        return SubjectLeaf(list(rows))

    @property
    def filed(self) -> bool:
        """Return True if anything is in a file, overridden or not."""
        return any(leaf.block is not None for leaf in self.leaves)

    # ------------------------------------------------------------------ one subject
    def find(self, subject: bytes) -> int:
        """Return the packed sequences of a subject that is not in memory, or 0. Raise CorruptLog, ReadFailed."""
        block = self.leaves[bisect_right(self.lows, subject) - 1].block
        if block is None:
            return 0
        if block is self._walked:
            return self._rows.get(subject, 0)
        if block is not self._asked:
            self._asked = block
            return block.find(subject)
        self._walked, self._rows = block, block.rows()
        return self._rows.get(subject, 0)

    # ------------------------------------------------------------------ many
    def place(self, names: Iterable[bytes]) -> None:
        """Add subjects that entered memory."""
        lows, leaves = self.lows, self.leaves
        for name in names:
            at = bisect_right(lows, name) - 1
            listed = leaves[at].names
            listed.append(name)
            self.listed += 1
            # A leaf whose block cannot be read is not divided: a read of the block reports the damage, and the subjects
            # in memory are still listed. Dividing is tried again after LEAF_ROWS more subjects.
            if len(listed) > SPLIT_ROWS and len(listed) % LEAF_ROWS == 1:
                self._clean(at)
                if len(leaves[at].names) > SPLIT_ROWS - LEAF_ROWS // 2:
                    with contextlib.suppress(LogError, OSError):
                        self._divide(at)

    def candidates(self, head: bytes, seek: SubjectSeeker | None = None) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the subjects that begin with `head`, by leaves: those in memory, which may have no message any more or
        occur twice, and those that are only in the file.

        Leaves may change meanwhile: each step goes on where the range of the last one ended. Raise CorruptLog,
        OSError.

        Args:
            seek: skips subjects that nobody wants.
        """
        end = head[:-1] + b"/" if head else b""  # the byte after the dot that ends every head
        if seek is not None:
            yield from self._seek(seek, head, end)
            return
        held, low = self._held, head
        while True:
            at = bisect_right(self.lows, low) - 1
            leaf, high = self.leaves[at], self._high(at)
            here, away = leaf.names, list[bytes]()
            if head:
                here = leaf.in_order()
                here = here[bisect_left(here, head) : bisect_left(here, end)]
            if leaf.block is not None:
                away = [name for name in self.copy(at).block_names() if name not in held and name.startswith(head)]
            if low != head and self.lows[at] < low:  # leaves were joined: the names before were yielded
                here, away = [name for name in here if name >= low], [name for name in away if name >= low]
            yield here, away
            if high is None or (end and high >= end):
                return
            low = high

    def _seek(self, seek: SubjectSeeker, head: bytes, end: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Do `candidates` from one wanted subject to the next."""
        low: bytes | None = head
        while low is not None:
            found, low, at = seek.walk(self.lows, self.leaves, low, end, SOUGHT_LEAVES)
            away: list[bytes] = []
            if low is not None and at >= 0:
                some, after, away = self._sought(at, seek, low, end)
                found += some
                high = self._high(at)
                low = None if high is None or (end and high >= end) else max(after, high)
            yield found, away

    def _sought(self, at: int, seek: SubjectSeeker, low: bytes, end: bytes) -> tuple[list[bytes], bytes, list[bytes]]:
        """Return the subjects of one leaf from `low` on that somebody wants, in memory, and in the file alone; between
        them the first subject that may be wanted behind them. Raise CorruptLog, ReadFailed."""
        leaf, held = self.leaves[at], self._held
        here, after = seek.choose(leaf.in_order(), low, end)
        if leaf.block is None:
            return here, after, []
        away, behind = seek.choose(self.copy(at).block_names(), low, end)
        return here, min(after, behind), [name for name in away if name not in held]

    def copy(self, at: int) -> LeafCopy:
        """Return one leaf as it is now."""
        leaf = self.leaves[at]
        if not leaf.part:
            return LeafCopy(leaf.names, leaf.block, None, None)
        return LeafCopy(leaf.names, leaf.block, self.lows[at], self._high(at))

    def _high(self, at: int) -> bytes | None:
        return self.lows[at + 1] if at + 1 < len(self.lows) else None

    # ------------------------------------------------------------------ upkeep
    def clean(self, names: int) -> None:
        """Forget subjects that have left memory, in leaves with about this many of them."""
        looked = turns = 0
        while looked < names and turns < len(self.leaves):
            if self._cursor >= len(self.leaves):
                self._cursor = 0
            at, leaf = self._cursor, self.leaves[self._cursor]
            looked += len(leaf.names) + 1
            self._clean(at)
            if not leaf.names and leaf.block is None and at > 0 and not self.leaves[at - 1].part:
                # The leaf before covers its range from now on. A block that it shared might have obsolete rows there.
                del self.leaves[at], self.lows[at]
                # A snapshot with this list must not get names from beyond the range that the leaf had then.
                self.leaves[at - 1].names = self.leaves[at - 1].names.copy()
            else:
                self._cursor += 1
            turns += 1

    def _clean(self, at: int) -> None:
        leaf, held = self.leaves[at], self._held
        before, begin = len(leaf.names), leaf.names[: leaf.ordered]
        leaf.names = [name for name in dict.fromkeys(leaf.names) if name in held]
        leaf.ordered = sum(name in held for name in dict.fromkeys(begin))
        self.listed -= before - len(leaf.names)

    def _divide(self, at: int) -> None:
        """Make two leaves out of one."""
        leaf = self.leaves[at]
        names = sorted(leaf.names)
        middle = len(names) // 2
        border = names[middle]
        rows = self.copy(at).block_rows()
        below = sum(name < border for name in rows)
        lower, upper = SubjectLeaf(names[:middle]), SubjectLeaf(names[middle:])
        for half, some in ((lower, below), (upper, len(rows) - below)):
            if some:
                half.block, half.part = leaf.block, leaf.part or some < len(rows)
        self.leaves[at : at + 1] = [lower, upper]
        self.lows.insert(at + 1, border)

    def cool(self, file: BlockFile, names: int) -> int:
        """Move about this many subjects from memory into `file`; return how many, 0 if there are none among the next
        few. Raise CorruptLog, ReadFailed."""
        moved = turns = seen = 0
        while moved < names and seen < SEEN * names and turns < len(self.leaves):
            if self._cursor >= len(self.leaves):
                self._cursor = 0
            at = self._cursor
            self._cursor += 1  # skip a leaf whose block is damaged
            turns += 1
            if self.leaves[at].names:
                seen += len(self.leaves[at].names)
                some, pieces = self._cool(at, file)
                moved += some
                self._cursor += pieces - 1
                turns += pieces - 1
        return moved

    def _cool(self, at: int, file: BlockFile) -> tuple[int, int]:
        """Move the subjects of one leaf to the file; return (number of subjects, the leaves in its place)."""
        leaf, held = self.leaves[at], self._held
        rows = {name: packed for name, packed in self.copy(at).block_rows().items() if name not in held}
        before = len(rows)
        moving: list[bytes] = []
        staying: list[bytes] = []
        for name in dict.fromkeys(leaf.names):
            value = held.get(name)
            if value is None:
                continue
            if not isinstance(value, int):
                if len(value) > COLD_HISTORY:
                    staying.append(name)
                    continue
                value = value.packed()
            moving.append(name)
            if value:
                rows[name] = value
        if not moving:
            return 0, 1
        ordered = sorted(rows)
        parts = [ordered[low : low + LEAF_ROWS] for low in range(0, len(ordered), LEAF_ROWS)]
        if len(parts) > 1 and len(parts[-1]) < LEAF_ROWS // 2:
            both = parts[-2] + parts.pop()
            parts[-1:] = [both[: len(both) // 2], both[len(both) // 2 :]]
        blocks = [file.write(encode_rows(part, [rows[name] for name in part]), len(part)) for part in parts]
        # Nothing has changed before this point: an error leaves everything in memory.
        for name in moving:
            self.gone -= held.pop(name) == 0
        self.cold += len(rows) - before
        self.listed -= len(leaf.names)
        self.leaves[at : at + 1] = [SubjectLeaf([], block) for block in blocks] or [SubjectLeaf([])]
        self.lows[at : at + 1] = [self.lows[at], *(part[0] for part in parts[1:])]
        self.place(staying)
        return len(moving), max(len(parts), 1)


class LeafCopy:
    """A leaf at one moment; if a block is shared, with the range in which its rows are valid.

    A leaf's list of names is replaced or appended to: names added later were not in memory at that moment and are
    ignored.
    """

    __slots__ = ("_high", "_low", "block", "names")

    def __init__(self, names: list[bytes], block: FileBlock | None, low: bytes | None, high: bytes | None) -> None:
        self.names, self.block = names, block
        self._low, self._high = low, high

    @property
    def encoded(self) -> FileBlock | None:
        """Return the block if it is the whole content of the leaf, else None."""
        return self.block if not self.names and self._low is None else None

    def block_rows(self) -> dict[bytes, int]:
        """Return the rows of its block in order. Any thread. Raise CorruptLog, ReadFailed."""
        if self.block is None:
            return {}
        rows, low, high = self.block.rows(), self._low, self._high
        if low is None:
            return rows
        return {name: packed for name, packed in rows.items() if low <= name and (high is None or name < high)}

    def block_names(self) -> list[bytes]:
        """Return the subjects of its block in order. Any thread. Raise CorruptLog, ReadFailed."""
        if self.block is None:
            return []
        names, low, high = self.block.names(), self._low, self._high
        if low is None:
            return names
        return names[bisect_left(names, low) : len(names) if high is None else bisect_left(names, high)]

    def rows(self, held: dict[bytes, Held], through: int) -> dict[bytes, int]:
        """Return its subjects in order with their packed sequences ≤ `through`. Any thread.

        Raise CorruptLog, ReadFailed.
        """
        rows = self.block_rows()
        names = sorted(set(self.names))
        if not rows:  # mostly all subjects are here in the short form
            values = list(map(held.get, names))
            if set(map(type, values)) == {int} and 0 not in values:
                return dict(zip(names, values, strict=True))  # type: ignore[arg-type]
        elif not names:
            return rows
        for name in names:
            value = held.get(name)
            if value is None:
                continue
            packed = value if isinstance(value, int) else value.packed(through)
            if packed:
                rows[name] = packed
            else:
                rows.pop(name, None)
        return {name: rows[name] for name in sorted(rows)}


class IndexSnapshot:
    """A SubjectIndex at one moment. Made in the event loop, read in a thread while the index changes."""

    __slots__ = ("_held", "_leaves", "_through")

    def __init__(self, held: dict[bytes, Held], leaves: list[LeafCopy] | None, through: int) -> None:
        self._held, self._leaves, self._through = held, leaves, through

    def rows(self) -> Iterator[dict[bytes, int]]:
        """Yield all subjects in order with their packed sequences, in batches. Raise CorruptLog, ReadFailed."""
        for leaf in self._parts():
            yield leaf.rows(self._held, self._through)

    def blocks(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield (first subject, number of rows, bytes) of blocks that hold everything. Raise CorruptLog, ReadFailed."""
        for leaf in self._parts():
            block = leaf.encoded
            if block is not None:
                data = block.read()
                yield first_name(data), block.count, data
                continue
            rows = leaf.rows(self._held, self._through)
            for names, packed in _cut_rows(rows):
                yield names[0], len(names), encode_rows(names, packed)

    def _parts(self) -> Iterable[LeafCopy]:
        if self._leaves is not None:
            return self._leaves
        names = sorted(self._held)
        return (LeafCopy(names[at : at + LEAF_ROWS], None, None, None) for at in range(0, len(names), LEAF_ROWS))


def _cut_rows(rows: dict[bytes, int]) -> Iterator[tuple[list[bytes], list[int]]]:
    """Yield the names and sequences of blocks. A long history ends a block, so that it is read without neighbours."""
    names: list[bytes] = []
    packed: list[int] = []
    size = 0
    for name, seqs in rows.items():
        if names and (len(names) == LEAF_ROWS or size >= LONG_BLOCK // 4):
            yield names, packed
            names, packed, size = [], [], 0
        names.append(name)
        packed.append(seqs)
        size += seqs.bit_length() // 8
    if names:
        yield names, packed
