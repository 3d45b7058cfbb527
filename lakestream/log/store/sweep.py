"""Many messages leave a stream at once.

Belongs here: what a purge, an expiry or a lowered limit does to one store, in columns and not message by message: it is
one entry of the log, applied in one step, during which the server does nothing else. Whoever needs the subjects of what
went asks for few; of many only the sequences are told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from lakestream.log.index.sequences import ascending

if TYPE_CHECKING:
    from lakestream.log.store.rows import Rows
    from lakestream.log.store.store import Store

BLOCK = 65_536
"""Sizes that are looked at together."""
FEWER = 8
"""Where so many times more go than stay, it is quicker to take in anew what stays."""


class Sweep:
    """Removal of many messages from one store. All methods may raise CorruptLog."""

    def __init__(self, store: Store, rows: Rows) -> None:
        self._store, self._rows = store, rows

    # ------------------------------------------------------------------ from the front
    def through(self, seq: int) -> Sequence[int]:
        """Remove all messages ≤ `seq`; returns their sequences, ascending."""
        store = self._store
        gone = store.live.members(store.first_seq, store.msgs, seq)
        if gone:
            staying = store.msgs - len(gone)
            left = store.live.members(seq + 1, staying) if staying < len(gone) else None
            size = self._rows.total_size(gone) if left is None else store.bytes - self._rows.total_size(left)
            if left is not None and len(left) * FEWER < len(gone):
                store.subjects.clear()
                for kept, subject in zip(left, self._rows.subjects(left), strict=True):
                    store.subjects.add(subject, kept)
            elif len(gone) > len(store.subjects):
                store.subjects.discard_below(seq + 1)
            else:
                store.subjects.remove_all(zip(gone, self._rows.subjects(gone), strict=True))
            self._cut(gone, size, seq + 1)
        return gone

    def set_first(self, seq: int) -> None:
        """See `Store.set_first`."""
        store = self._store
        if seq <= store.first_seq and seq <= store.last_seq + 1:
            return
        gone = store.live.members(store.first_seq, store.msgs, seq - 1)
        size = store.bytes if len(gone) == store.msgs else self._rows.total_size(gone)
        if len(gone) == store.msgs:
            store.subjects.clear()
        else:
            store.subjects.discard_below(seq)
        store.last_seq = max(store.last_seq, seq - 1)
        self._cut(gone, size, seq)

    def excess(self, max_msgs: int, max_bytes: int) -> int:
        """How many of the oldest messages have to go until no more than these are left; 0 or less: no limit."""
        store = self._store
        over = max(0, store.msgs - max_msgs) if max_msgs > 0 else 0
        if not 0 < max_bytes < store.bytes:
            return over
        excess, found, first = store.bytes - max_bytes, 0, store.first_seq
        while excess > 0 and found < store.msgs:
            some = store.live.members(first, BLOCK)
            sums = list(accumulate(self._rows.sizes(some)))
            at = min(bisect_left(sums, excess), len(sums) - 1)
            found, excess, first = found + at + 1, excess - sums[at], some[-1] + 1
        return max(over, found)

    def oldest(self, number: int) -> Sequence[int]:
        """Remove so many of the oldest messages; returns their sequences, ascending."""
        return self.through(self._store.live.nth(number - 1)) if number > 0 else ()

    def _cut(self, gone: Sequence[int], size: int, first: int) -> None:
        """Bookkeeping for the removal of `gone`, everything there was below `first`."""
        store = self._store
        store.live.discard_below(first)
        store.msgs = len(store.live)
        store.bytes -= size
        self._rows.forget(gone)
        store.note_gone(gone)
        store.first_seq = store.live.next_at_or_after(first) or store.last_seq + 1

    # ------------------------------------------------------------------ from anywhere
    def below(self, subjects: Sequence[bytes], border: int, keep: int = 0) -> Sequence[int]:
        """Remove all messages < `border` of `subjects`, each named once, but for the newest `keep` of all that those
        have; returns their sequences, ascending."""
        store, index = self._store, self._store.subjects
        if len(subjects) == len(index):  # all there are
            return self.through(border - 1) if not keep else self.oldest(store.msgs - keep)
        held: Sequence[int] = ascending(index.together(subjects)) if keep else ()
        if keep:
            if len(held) <= keep:
                return ()
            border = min(border, held[-keep])
        cut = index.cut(subjects, border)
        gone = held[: len(cut)] if keep else ascending(cut)
        if gone:
            self._forget(gone)
        return gone

    def all_of(self, gone: Sequence[tuple[int, bytes]]) -> None:
        """See `Store.remove_all`."""
        if gone:
            self._store.subjects.remove_all(gone)
            self._forget([seq for seq, _ in gone])

    def trim(self, subjects: Iterable[bytes], keep: int) -> list[tuple[int, bytes]]:
        """See `Store.trim`."""
        gone = self._store.subjects.trim(subjects, keep)
        if gone:
            self._forget([seq for seq, _ in gone])
        return gone

    def _forget(self, seqs: Sequence[int]) -> None:
        """Bookkeeping for the removal of `seqs`, ascending, which the subject index does not list any more."""
        store = self._store
        store.live.discard_all(seqs)
        store.msgs -= len(seqs)
        if store.msgs < len(seqs):
            store.bytes = self._rows.total_size(store.live.members(store.first_seq, store.msgs))
        else:
            store.bytes -= self._rows.total_size(seqs)
        self._rows.forget(seqs)
        store.note_gone(seqs)
        assert not store.shredding, "messages are shredded one at a time"
        if seqs[0] == store.first_seq:
            store.first_seq = store.live.next_at_or_after(store.first_seq) or store.last_seq + 1
        store.removals().removed.extend(seqs[bisect_left(seqs, store.first_seq) :])
