"""The live sequences of one subject, in compact forms.

Belongs here: the two forms that they have in memory. Up to `PACKED` of them are one integer, the newest in its low 64
bits and each older one 64 bits higher: most subjects have one message or a few, and an integer needs neither an object
of ours nor an entry in a second dict. Longer ones are an `Ascending`.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import msgspec

PACKED = 16
"""Maximum number of sequences in one integer."""
MASK = (1 << 64) - 1
"""Mask of the newest sequence."""
FULL = 1 << 64 * (PACKED - 1)
"""An integer below this has room for another sequence."""
PAIR = 1 << 64
"""An integer below this holds at most one sequence."""
_SHRINK_AT = 64  # heads shorter than this are not worth moving an array for


class Ascending(msgspec.Struct, gc=False):
    """Ascending sequences; cheap at both ends. There may be many, so the garbage collector does not track them."""

    items: array[int]
    epoch: int
    """Number of snapshots taken before it was made."""
    head: int = 0
    """Number of removed items at the front."""
    shared: bool = False
    """Number of items shared with a snapshot: they are not changed, only others appended."""

    def __len__(self) -> int:
        return len(self.items) - self.head

    def remove(self, seq: int) -> bool:
        """Remove `seq`, moving the shorter side; return False if it is not there."""
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

    def drop_below(self, seq: int) -> None:
        """Remove everything < `seq`."""
        self._advance(bisect_left(self.items, seq, self.head))

    def packed(self, through: int = MASK) -> int:
        """Return the sequences ≤ `through` as one integer of any length."""
        found = self.items[self.head : bisect_right(self.items, through, self.head)]
        found.reverse()
        return int.from_bytes(found.tobytes(), "little")

    def pop(self) -> None:
        """Remove the last one."""
        if self.shared:
            self._unshare()
        self.items.pop()

    def _unshare(self) -> None:
        self.items, self.head, self.shared = self.items[self.head :], 0, False

    def _advance(self, head: int) -> None:
        self.head = head
        if head > _SHRINK_AT and head * 2 > len(self.items):
            self._unshare()  # amortised: at least as many were dropped as now move


Held = int | Ascending
"""The sequences of a subject: an integer (0: none), or an `Ascending` if they do not fit into one."""


def count(packed: int) -> int:
    """Return the number of sequences in an integer."""
    return (packed.bit_length() + 63) >> 6


def oldest(packed: int) -> int:
    """Return the oldest sequence of an integer, or 0."""
    return packed if packed < PAIR else packed >> ((packed.bit_length() - 1) & ~63)


def unpack(packed: int) -> array[int]:
    """Return the sequences of an integer, ascending."""
    found = array("Q", packed.to_bytes(count(packed) * 8, "little"))
    found.reverse()
    return found


def pack(seqs: Iterable[int]) -> int:
    """Return ascending sequences as one integer."""
    found = array("Q", seqs)
    found.reverse()
    return int.from_bytes(found.tobytes(), "little")


def without(packed: int, seq: int) -> int:
    """Return the integer without one of its sequences; the same if it does not hold that."""
    if packed & MASK == seq:
        return packed >> 64
    shift = (packed.bit_length() - 1) & ~63 if packed else 0
    if packed >> shift == seq:  # the oldest: limits by subject remove it
        return packed & ((1 << shift) - 1)
    found = unpack(packed)
    if seq not in found:
        return packed
    found.remove(seq)
    return pack(found)


def between(value: Held, lo: int, hi: int) -> list[int]:
    """Return the sequences `lo` through `hi`, inclusive, ascending."""
    if isinstance(value, int):
        if value < PAIR:
            return [value] if value and lo <= value <= hi else []
        return [seq for seq in unpack(value) if lo <= seq <= hi]
    start = bisect_left(value.items, lo, value.head)
    return value.items[start : bisect_right(value.items, hi, start)].tolist()


def count_between(value: Held, lo: int, hi: int) -> int:
    """Return the number of sequences `lo` through `hi`, inclusive."""
    if isinstance(value, int):
        if value < PAIR:
            return 1 if value and lo <= value <= hi else 0
        if value & MASK <= hi and oldest(value) >= lo:
            return count(value)  # hot: a new consumer counts all of thousands of subjects
        return sum(lo <= seq <= hi for seq in unpack(value))
    start = bisect_left(value.items, lo, value.head)
    return bisect_right(value.items, hi, start) - start


def at_or_before(value: Held, seq: int) -> int:
    """Return the newest sequence ≤ `seq`; 0 if there is none."""
    if isinstance(value, int):
        while value & MASK > seq:
            value >>= 64
        return value & MASK
    at = bisect_right(value.items, seq, value.head)
    return value.items[at - 1] if at > value.head else 0


def at_or_after(value: Held, seq: int) -> int:
    """Return the oldest sequence ≥ `seq`; 0 if there is none."""
    if isinstance(value, int):
        found = 0
        while value and value & MASK >= seq:
            found = value & MASK
            value >>= 64
        return found
    at = bisect_left(value.items, seq, value.head)
    return value.items[at] if at < len(value.items) else 0


def split(packed: int, seq: int) -> tuple[int, int]:
    """Return the sequences of an integer < `seq`, and the others, as integers."""
    if packed & MASK < seq:
        return packed, 0
    if oldest(packed) >= seq:
        return 0, packed
    shift = 64
    while packed >> shift & MASK >= seq:
        shift += 64
    return packed >> shift, packed & ((1 << shift) - 1)


def numbers(values: Iterable[Held]) -> array[int]:
    """Return the sequences of all these integers, in no order. Hot."""
    found = array("Q")
    found.frombytes(
        b"".join(
            [
                value.to_bytes((value.bit_length() + 63) >> 6 << 3, "little")
                if type(value) is int
                else value.items[value.head :].tobytes()  # type: ignore[union-attr]
                for value in values
            ]
        )
    )
    return found


def held(packed: int, epoch: int) -> Held:
    """Return the form that an integer of any length has in memory."""
    return packed if count(packed) <= PACKED else Ascending(unpack(packed), epoch)


def weight(value: Held) -> int:
    """Return roughly its bytes of memory."""
    return sys.getsizeof(value) + (0 if isinstance(value, int) else sys.getsizeof(value.items))
