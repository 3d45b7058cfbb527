"""A subject index as it was at one moment.

Belongs here: what checkpoints and long answers read of an index in threads, while it goes on in the event loop, and how
its rows are cut into blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lakestream.log.index.cold_rows import encode_rows, first_name
from lakestream.log.index.histories import MASK, Held
from lakestream.log.index.subject_leaves import LEAF_ROWS, LONG_BLOCK, LeafCopy


class Snapshot:
    """A SubjectIndex as it was at one moment. Made in the event loop, read in a thread while the index goes on."""

    __slots__ = ("_held", "_leaves", "_through")

    def __init__(self, held: dict[bytes, Held], leaves: list[LeafCopy] | None, through: int) -> None:
        self._held, self._leaves, self._through = held, leaves, through

    def rows(self) -> Iterator[dict[bytes, int]]:
        """All subjects in order with their packed sequences, some hundred at a time. Raises CorruptLog, OSError."""
        for leaf in self._parts():
            yield leaf.rows(self._held, self._through)

    def newest(self) -> Iterator[tuple[bytes, int]]:
        """All subjects with their newest sequence. Any thread. Raises CorruptLog, OSError."""
        for rows in self.rows():
            for name, packed in rows.items():
                yield name, packed & MASK

    def blocks(self) -> Iterator[tuple[bytes, int, bytes]]:
        """(its first subject, number of rows, bytes) of blocks that hold everything. Raises CorruptLog, OSError."""
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
    """The names and sequences of blocks. One ends behind a long history: its neighbours are not read for that."""
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
