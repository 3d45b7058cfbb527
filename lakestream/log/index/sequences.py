"""A set of sequences at one bit each.

Belongs here: `SequenceSet`, the live sequences of a stream. Sequences mostly come in runs and mostly live, so bits are
kept in chunks of 1024; a full chunk is one shared integer and an absent chunk is empty. Members are counted by groups
of chunks: each batch of direct gets asks how many follow it, which took 30 ms of the event loop with 100 million.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

from msgspec import msgpack

CHUNK_BITS = 10
CHUNK = 1 << CHUNK_BITS
GROUP_BITS = 8
"""Chunks that are counted together, as a power of two: 262,144 sequences."""
_LOW = CHUNK - 1
_FULL = (1 << CHUNK) - 1
_TO_BIT = bytes.maketrans(b"01", b"\x00\x01")
_SPREAD = 64
"""Numbers spread wider than this are sorted by comparison, not through a bitmap."""


class SequenceSet:
    """An ordered set of positive integers up to 2**64 - 1."""

    __slots__ = ("_chunks", "_groups", "_keys", "_size")

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self._keys: list[int] = []  # the chunk numbers present, ascending
        self._groups: dict[int, int] = {}  # members of each group of chunks that has some
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, seq: int) -> bool:
        chunk = self._chunks.get(seq >> CHUNK_BITS)
        return chunk is not None and (chunk is _FULL or chunk >> (seq & _LOW) & 1 == 1)

    def present(self, seqs: Iterable[int]) -> list[int]:
        """Return those of `seqs` that are in the set."""
        found: list[int] = []
        append, chunks, key, chunk = found.append, self._chunks, -1, None
        for seq in seqs:
            if seq >> CHUNK_BITS != key:
                key = seq >> CHUNK_BITS
                chunk = chunks.get(key)
            if chunk is not None and (chunk is _FULL or chunk >> (seq & _LOW) & 1):
                append(seq)
        return found

    def add_run(self, first: int, last: int) -> None:
        """Add every sequence from `first` through `last`; those already there stay."""
        for key in range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1):
            base = key << CHUNK_BITS
            low = first - base if first > base else 0
            high = min(last - base, _LOW)
            added = ((1 << (high - low + 1)) - 1) << low
            old = self._chunks.get(key)
            if old is None:
                self._insert_key(key)
                self._grow(key, high - low + 1)
            else:
                self._grow(key, (added & ~old).bit_count())
                added |= old
            self._chunks[key] = _FULL if added == _FULL else added

    def discard(self, seq: int) -> bool:
        """Remove one sequence; return False if it was not there."""
        key = seq >> CHUNK_BITS
        chunk = self._chunks.get(key)
        if chunk is None:
            return False
        bit = 1 << (seq & _LOW)
        if not chunk & bit:
            return False
        self._grow(key, -1)
        self._store(key, chunk ^ bit)
        return True

    def discard_all(self, seqs: Sequence[int]) -> None:
        """Remove many sequences, ascending; those not there are left alone."""
        if isinstance(seqs, range) and seqs.step == 1 and seqs:
            self._discard_run(seqs[0], seqs[-1])
            return
        at = 0
        while at < len(seqs):
            key = seqs[at] >> CHUNK_BITS
            stop = bisect_left(seqs, (key + 1) << CHUNK_BITS, at)
            chunk = self._chunks.get(key)
            if chunk is not None:
                kept = chunk & ~_bits(seqs[at:stop])
                self._grow(key, kept.bit_count() - chunk.bit_count())
                self._store(key, kept)
            at = stop

    def _discard_run(self, first: int, last: int) -> None:
        for key in self._keys_between(first, last):
            chunk = self._chunks[key]
            kept = chunk ^ _between(chunk, key << CHUNK_BITS, first, last)
            self._grow(key, kept.bit_count() - chunk.bit_count())
            self._store(key, kept)

    def discard_below(self, seq: int) -> int:
        """Remove everything < `seq`; return how many were removed."""
        before = self._size
        border = seq >> CHUNK_BITS
        gone = bisect_left(self._keys, border)
        for key in self._keys[:gone]:
            self._grow(key, -self._chunks.pop(key).bit_count())
        del self._keys[:gone]
        chunk = self._chunks.get(border)
        if chunk is not None:
            low = seq & _LOW
            kept = chunk >> low << low
            self._grow(border, kept.bit_count() - chunk.bit_count())
            self._store(border, kept)
        return before - self._size

    def next_at_or_after(self, seq: int) -> int:
        """Return the lowest member ≥ `seq`; 0 if there is none."""
        key = seq >> CHUNK_BITS
        chunk = self._chunks.get(key)
        if chunk is not None:
            rest = chunk >> (seq & _LOW)
            if rest:
                return seq + ((rest & -rest).bit_length() - 1)
        position = bisect_right(self._keys, key)
        if position == len(self._keys):
            return 0
        key = self._keys[position]
        chunk = self._chunks[key]
        return (key << CHUNK_BITS) + ((chunk & -chunk).bit_length() - 1)

    def previous_at_or_before(self, seq: int) -> int:
        """Return the highest member ≤ `seq`; 0 if there is none."""
        key = seq >> CHUNK_BITS
        chunk = self._chunks.get(key)
        if chunk is not None:
            rest = chunk & ((2 << (seq & _LOW)) - 1)
            if rest:
                return (key << CHUNK_BITS) + rest.bit_length() - 1
        position = bisect_left(self._keys, key)
        if position == 0:
            return 0
        key = self._keys[position - 1]
        return (key << CHUNK_BITS) + self._chunks[key].bit_length() - 1

    def count(self, low: int, high: int) -> int:
        """Return the number of members `low` through `high`, inclusive."""
        if high < low:
            return 0
        shift = CHUNK_BITS + GROUP_BITS
        first, last = low >> shift, high >> shift
        if last - first < 2:
            return self._count_chunks(low, high)
        whole = sum([count for group, count in self._groups.items() if first < group < last])
        return whole + self._count_chunks(low, ((first + 1) << shift) - 1) + self._count_chunks(last << shift, high)

    def _count_chunks(self, low: int, high: int) -> int:
        chunks = self._chunks
        return sum(
            [_between(chunks[key], key << CHUNK_BITS, low, high).bit_count() for key in self._keys_between(low, high)]
        )

    def nth(self, place: int) -> int:
        """Return the member that has `place` members below it, which exists."""
        assert 0 <= place < self._size, f"{self._size} members have none at place {place}"
        for group in sorted(self._groups):
            if place < self._groups[group]:
                break
            place -= self._groups[group]
        for key in self._keys[bisect_left(self._keys, group << GROUP_BITS) :]:
            chunk = self._chunks[key]
            count = chunk.bit_count()
            if place < count:
                return _ones(chunk, key << CHUNK_BITS)[place]
            place -= count
        raise AssertionError("the chunks hold as many as are counted")

    def members(self, low: int, limit: int, high: int = (1 << 64) - 1) -> Sequence[int]:
        """Return the first `limit` members `low` through `high`, ascending: a `range` if they have no gaps."""
        first = self.next_at_or_after(low)
        if first == 0 or first > high or limit <= 0:
            return ()
        last = min(first + limit - 1, high)
        if self.count(first, last) == last - first + 1:
            return range(first, last + 1)
        found: list[int] = []
        for at in range(bisect_left(self._keys, first >> CHUNK_BITS), len(self._keys)):
            base = self._keys[at] << CHUNK_BITS
            if len(found) >= limit or base > high:
                break
            found.extend(_ones(_between(self._chunks[self._keys[at]], base, first, high), base))
        return found[:limit]

    def iter_missing(self, low: int, high: int) -> Iterator[int]:
        """Yield the sequences `low` through `high` that are not members, ascending."""
        while low <= high:
            first = self.next_at_or_after(low)
            gap_end = high + 1 if first == 0 or first > high else first
            yield from range(low, gap_end)
            low = self._run_end(gap_end) + 1

    def to_bytes(self) -> bytes:
        """Encode the set, for `from_bytes`. A full chunk takes a few bytes."""
        return msgpack.encode([[key, _encode_chunk(self._chunks[key])] for key in self._keys])

    @classmethod
    def from_bytes(cls, data: bytes) -> SequenceSet:
        """Decode the set that `to_bytes` encoded."""
        made = cls()
        for key, bits in msgpack.decode(data, type=list[tuple[int, bytes]]):
            chunk = int.from_bytes(bits, "little") if bits else _FULL
            made._chunks[key] = _FULL if chunk == _FULL else chunk
            made._keys.append(key)
            made._grow(key, chunk.bit_count())
        return made

    def _run_end(self, seq: int) -> int:
        """Return the last member of the run without gaps that begins at `seq`; `seq` itself if it is no member."""
        key = seq >> CHUNK_BITS
        while True:
            low = seq - (key << CHUNK_BITS) if seq >> CHUNK_BITS == key else 0
            chunk = self._chunks.get(key, 0)
            if chunk is not _FULL:
                zeros = ~chunk >> low  # there is a zero at the end of the chunk at the latest
                return max(seq, (key << CHUNK_BITS) + low + (zeros & -zeros).bit_length() - 2)
            key += 1

    def _keys_between(self, low: int, high: int) -> list[int]:
        keys = self._keys
        return keys[bisect_left(keys, low >> CHUNK_BITS) : bisect_right(keys, high >> CHUNK_BITS)]

    def _insert_key(self, key: int) -> None:
        if not self._keys or key > self._keys[-1]:
            self._keys.append(key)
        else:
            self._keys.insert(bisect_left(self._keys, key), key)

    def _grow(self, key: int, by: int) -> None:
        """Count members that a chunk gets, or loses."""
        self._size += by
        group = key >> GROUP_BITS
        if count := self._groups.get(group, 0) + by:
            self._groups[group] = count
        else:
            self._groups.pop(group, None)

    def _store(self, key: int, chunk: int) -> None:
        if chunk:
            self._chunks[key] = chunk
        else:
            del self._chunks[key]
            del self._keys[bisect_left(self._keys, key)]


def _between(chunk: int, base: int, low: int, high: int) -> int:
    """Return the bits of `chunk` (which starts at `base`) for sequences `low` through `high`."""
    if low > base:
        chunk = chunk >> (low - base) << (low - base)
    if high < base + _LOW:
        chunk &= (2 << (high - base)) - 1
    return chunk


def _ones(chunk: int, base: int) -> list[int]:
    if chunk == _FULL:
        return list(range(base, base + CHUNK))
    if not chunk:
        return []
    bits = format(chunk, "b").encode().translate(_TO_BIT)
    return list(compress(range(base, base + len(bits)), bits[::-1]))


def _bits(seqs: Sequence[int]) -> int:
    """Return sequences of one chunk as its bits."""
    if len(seqs) < 64:
        bits = 0
        for seq in seqs:
            bits |= 1 << (seq & _LOW)
        return bits
    digits = bytearray(b"0") * CHUNK  # build the number once instead of changing it for each bit
    for seq in seqs:
        digits[~seq & _LOW] = 49
    return int(digits, 2)


def ascending(seqs: array[int]) -> Sequence[int]:
    """Sort distinct numbers; return a `range` if they have no gaps. Hot: there may be millions."""
    if not seqs:
        return ()
    low, high = min(seqs), max(seqs)
    span = high - low + 1
    if span == len(seqs):
        return range(low, high + 1)
    if span > _SPREAD * len(seqs):
        return sorted(seqs)
    marks = bytearray(span)
    for seq in seqs:
        marks[seq - low] = 1
    return list(compress(range(low, high + 1), marks))


def _encode_chunk(chunk: int) -> bytes:
    return b"" if chunk is _FULL else chunk.to_bytes(CHUNK // 8, "little")
