"""Which sequences each subject has.

Belongs here: the last sequence of every subject in one dict (what publishes and direct gets ask for), and its earlier
ones in ascending arrays (history, limits per subject, purges). Only live messages are listed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain

import msgspec
from msgspec import msgpack

from lakestream.protocol import subjects as grammar

_SHRINK_AT = 64  # heads shorter than this are not worth moving an array for


class _Ascending(msgspec.Struct, gc=False):
    """Ascending sequences; cheap at both ends. There may be millions: the garbage collector does not look at them."""

    items: array[int]
    epoch: int
    """Snapshots taken before it was made."""
    head: int = 0
    """Items before it are gone."""
    shared: bool = False
    """A snapshot has these items too: they are not changed, only others appended."""

    def __len__(self) -> int:
        return len(self.items) - self.head

    def remove(self, seq: int) -> bool:
        """Remove `seq`, moving whichever side is shorter; False when it is not there."""
        items, head = self.items, self.head
        if items[head] == seq:
            self._advance(head + 1)
            return True
        at = bisect_left(items, seq, head)
        if at == len(items) or items[at] != seq:
            return False
        if self.shared:
            self._unshare()
            return self.remove(seq)
        if at - head < len(items) - at:
            items[head + 1 : at + 1] = items[head:at]
            self._advance(head + 1)
        else:
            del items[at]
        return True

    def drop_below(self, seq: int) -> int:
        """Remove everything < `seq`; returns how many."""
        at = bisect_left(self.items, seq, self.head)
        dropped = at - self.head
        self._advance(at)
        return dropped

    def pop(self) -> int:
        """Remove the last one and return it."""
        if self.shared:
            self._unshare()
        return self.items.pop()

    def _unshare(self) -> None:
        self.items, self.head, self.shared = self.items[self.head :], 0, False

    def _advance(self, head: int) -> None:
        self.head = head
        if head > _SHRINK_AT and head * 2 > len(self.items):
            self._unshare()  # amortised: at least as many were dropped as now move


ORDERED_SUBJECTS = 250_000
"""Up to so many subjects an ordered list of them is kept once a wildcard was asked for (8 bytes each); ordering more
would hold the event loop for too long."""
SCANNED_SUBJECTS = 64
"""So few are faster looked through."""
FRESH_SUBJECTS = 4096
"""New subjects that are looked through beside the ordered list before it is ordered anew."""


def _literal_head(filter: bytes) -> bytes:
    """The literal tokens before the first wildcard token, with their dots."""
    head = b""
    for token in filter.split(b"."):
        if token in (b"*", b">"):
            break
        head += token + b"."
    return head


class Snapshot:
    """A SubjectIndex as it was at one moment. Made in the event loop, written in a thread while the index goes on."""

    __slots__ = ("_more", "_names", "_newest", "_older")

    def __init__(self, last: dict[bytes, int], earlier: dict[bytes, _Ascending]) -> None:
        self._names, self._newest = list(last), list(last.values())
        self._more, self._older = list(earlier), list(earlier.values())

    def to_bytes(self) -> bytes:
        """The whole index, for `SubjectIndex.from_bytes`. Any thread."""
        counts = array("Q", bytes(8 * len(self._names)))
        more = dict(zip(self._more, self._older, strict=True))
        parts = [b"".join(self._names), array("I", map(len, self._names)).tobytes()]
        parts += [array("Q", self._newest).tobytes(), b""]
        for number, name in enumerate(self._names):
            older = more.get(name)
            if older is not None:
                # What was appended since then is not older than the newest of then.
                stop = bisect_left(older.items, self._newest[number], older.head)
                counts[number] = stop - older.head
                parts.append(older.items[older.head : stop].tobytes())
        parts[3] = counts.tobytes()
        sizes = msgpack.encode([len(part) for part in parts[:4]])
        return b"".join([len(sizes).to_bytes(4, "little"), sizes, *parts])


class SubjectIndex:
    """Subject → its live sequences. Invariant: a subject is listed iff it has at least one live message."""

    __slots__ = ("_earlier", "_epoch", "_fresh", "_last", "_ordered")

    def __init__(self) -> None:
        self._epoch = 0  # snapshots taken so far
        self._last: dict[bytes, int] = {}
        self._earlier: dict[bytes, _Ascending] = {}  # never empty: an entry goes with its last item
        self._ordered: list[bytes] = []  # subjects in byte order, made when first asked for; some may be gone by now
        self._fresh: list[bytes] = []  # subjects that came since then, while `_ordered` is in use

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._last

    def add_run(self, subjects: Sequence[bytes], first_seq: int) -> None:
        """Add one message for each of `subjects`, numbered from `first_seq` on. Sequences only ever grow."""
        last, earlier = self._last, self._earlier
        count = len(subjects)
        if count > 1 and subjects.count(subjects[0]) == count:
            self._add_same(subjects[0], first_seq, first_seq + count)
            return
        get, get_earlier = last.get, earlier.get
        fresh = self._fresh.append if self._ordered else None
        for seq, subject in enumerate(subjects, first_seq):
            previous = get(subject)
            last[subject] = seq
            if previous is not None:
                older = get_earlier(subject)
                if older is None:
                    earlier[subject] = _Ascending(array("Q", (previous,)), self._epoch)
                else:
                    older.items.append(previous)
            elif fresh is not None:
                fresh(subject)

    def add(self, subject: bytes, seq: int) -> None:
        """Add one message, newer than all of its subject."""
        self.add_run((subject,), seq)

    def remove(self, subject: bytes, seq: int) -> bool:
        """Remove one message; False when it is not listed."""
        last = self._last.get(subject)
        if last is None:
            return False
        older = self._earlier.get(subject)
        if older is None:
            if last == seq:
                del self._last[subject]
            return last == seq
        older = self._own(subject, older)
        if last == seq:
            self._last[subject] = older.pop()
        elif not older.remove(seq):
            return False
        if len(older) == 0:
            del self._earlier[subject]
        return True

    def remove_many(self, subject: bytes, gone: Collection[int]) -> None:
        """Remove many messages of one subject at once; those not listed are left alone."""
        if len(gone) < 8:
            for seq in gone:
                self.remove(subject, seq)
            return
        dead = gone if isinstance(gone, (set, frozenset, range)) else set(gone)
        kept = [seq for seq in self.seqs(subject) if seq not in dead]
        self._replace(subject, kept)

    def discard_below(self, seq: int) -> None:
        """Remove every message < `seq`, of all subjects."""
        dead = [subject for subject, last in self._last.items() if last < seq]
        for subject in dead:
            del self._last[subject]
            self._earlier.pop(subject, None)
        empty = []
        for subject, shared in list(self._earlier.items()):
            older = self._own(subject, shared)
            older.drop_below(seq)
            if len(older) == 0:
                empty.append(subject)
        for subject in empty:
            del self._earlier[subject]

    def clear(self) -> None:
        """Remove everything."""
        self._ordered, self._fresh = [], []
        self._last.clear()
        self._earlier.clear()

    def last(self, subject: bytes) -> int:
        """The newest sequence of `subject`; 0 when it has none."""
        return self._last.get(subject, 0)

    def first(self, subject: bytes) -> int:
        """The oldest sequence of `subject`; 0 when it has none."""
        older = self._earlier.get(subject)
        return self._last.get(subject, 0) if older is None else older.items[older.head]

    def count(self, subject: bytes) -> int:
        """How many messages `subject` has."""
        if subject not in self._last:
            return 0
        older = self._earlier.get(subject)
        return 1 if older is None else len(older) + 1

    def seqs(self, subject: bytes, lo: int = 0, hi: int = 1 << 63) -> list[int]:
        """The sequences of `subject` in `lo` … `hi`, both included, ascending."""
        last = self._last.get(subject)
        if last is None:
            return []
        older = self._earlier.get(subject)
        found: list[int] = []
        if older is not None:
            items = older.items
            start = bisect_left(items, lo, older.head)
            found = items[start : bisect_right(items, hi, start)].tolist()
        if lo <= last <= hi:
            found.append(last)
        return found

    def last_at_or_before(self, subject: bytes, seq: int) -> int:
        """The newest sequence ≤ `seq` of `subject`; 0 when there is none."""
        last = self._last.get(subject, 0)
        if last <= seq:
            return last
        older = self._earlier.get(subject)
        if older is None:
            return 0
        at = bisect_right(older.items, seq, older.head)
        return older.items[at - 1] if at > older.head else 0

    def next_at_or_after(self, subject: bytes, seq: int) -> int:
        """The oldest sequence ≥ `seq` of `subject`; 0 when there is none."""
        last = self._last.get(subject, 0)
        if last < seq:
            return 0
        older = self._earlier.get(subject)
        if older is None:
            return last
        at = bisect_left(older.items, seq, older.head)
        return older.items[at] if at < len(older.items) else last

    def count_range(self, subject: bytes, lo: int, hi: int) -> int:
        """How many messages `subject` has in `lo` … `hi`, both included."""
        last = self._last.get(subject)
        if last is None:
            return 0
        total = 1 if lo <= last <= hi else 0
        older = self._earlier.get(subject)
        if older is not None:
            start = bisect_left(older.items, lo, older.head)
            total += bisect_right(older.items, hi, start) - start
        return total

    def matching(self, filter: bytes) -> list[bytes]:
        """The subjects that match `filter`, in no particular order.

        A lookup for a literal. For a wildcard behind literal tokens only the subjects that begin with those are looked
        at, while there are at most ORDERED_SUBJECTS; else all are.
        """
        if grammar.is_literal(filter):
            return [filter] if filter in self._last else []
        if filter == b">":
            return list(self._last)
        match = grammar.to_regex(filter).fullmatch
        return [subject for subject in self._beginning(_literal_head(filter)) if match(subject)]

    def _beginning(self, head: bytes) -> Iterable[bytes]:
        """At least the subjects that begin with `head`, each once."""
        last = self._last
        if not head or not SCANNED_SUBJECTS < len(last) <= ORDERED_SUBJECTS:
            self._ordered, self._fresh = [], []
            return last
        ordered, fresh = self._ordered, self._fresh
        if not ordered or len(ordered) > 2 * len(last):
            ordered = self._ordered = sorted(last)
            fresh = self._fresh = []
        elif len(fresh) > FRESH_SUBJECTS:
            # Nearly in order already, so that sorting is little more than a merge.
            ordered = self._ordered = sorted(dict.fromkeys(name for name in chain(ordered, fresh) if name in last))
            fresh = self._fresh = []
        start = bisect_left(ordered, head)
        stop = bisect_left(ordered, head[:-1] + b"/", start)  # the byte after the dot that ends every head
        found = [subject for subject in ordered[start:stop] if subject in last]
        if fresh:
            found += [subject for subject in fresh if subject in last]
            return dict.fromkeys(found)  # a subject that went and came again is in both lists
        return found

    def newest(self) -> tuple[list[bytes], list[int]]:
        """Every subject, and beside it its newest sequence, as of now."""
        return list(self._last), list(self._last.values())

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Every subject with its newest sequence."""
        return iter(self._last.items())

    def snapshot(self) -> Snapshot:
        """The index as it is now. Takes a few lists of pointers; arrays are copied once they change."""
        self._epoch += 1
        return Snapshot(self._last, self._earlier)

    def to_bytes(self) -> bytes:
        """The whole index, for `from_bytes`."""
        return self.snapshot().to_bytes()

    def _own(self, subject: bytes, older: _Ascending) -> _Ascending:
        """A subject's earlier sequences, to be changed other than at the end: no snapshot has them."""
        if older.epoch != self._epoch:
            older = self._earlier[subject] = _Ascending(older.items, self._epoch, older.head, shared=True)
        return older

    @classmethod
    def from_bytes(cls, data: bytes) -> SubjectIndex:
        """The index that `to_bytes` wrote."""
        at = 4 + int.from_bytes(data[:4], "little")
        sections: list[bytes] = []
        for size in msgpack.decode(data[4:at], type=list[int]):
            sections.append(data[at : at + size])
            at += size
        lengths, last, counts = array("I", sections[1]), array("Q", sections[2]), array("Q", sections[3])
        made = cls()
        ends = accumulate(lengths)
        names = [sections[0][end - length : end] for end, length in zip(ends, lengths, strict=True)]
        made._last = dict(zip(names, last, strict=True))
        for name, count in zip(names, counts, strict=True):
            if count:
                made._earlier[name] = _Ascending(array("Q", data[at : at + 8 * count]), 0)
                at += 8 * count
        return made

    def _add_same(self, subject: bytes, first_seq: int, end: int) -> None:
        """Messages `first_seq` … `end` - 1, all of one subject."""
        previous = self._last.get(subject)
        self._last[subject] = end - 1
        older = self._earlier.get(subject)
        if older is None:
            older = self._earlier[subject] = _Ascending(array("Q"), self._epoch)
        if previous is not None:
            older.items.append(previous)
        elif self._ordered:
            self._fresh.append(subject)
        older.items.extend(range(first_seq, end - 1))

    def _replace(self, subject: bytes, seqs: list[int]) -> None:
        self._earlier.pop(subject, None)
        if not seqs:
            self._last.pop(subject, None)
            return
        self._last[subject] = seqs.pop()
        if seqs:
            self._earlier[subject] = _Ascending(array("Q", seqs), self._epoch)
