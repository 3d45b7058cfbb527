"""Comparison of replicas by digests.

Belongs here: digests of a recovered stream's messages, over ranges of sequences and of single ones, and the judgement
of those of several replicas. No I/O but reads of the store: the digests of running nodes come in calls
(verification.py), those of stopped ones are made in one process (stores.py).

A digest is of what the stream holds, not of how it is stored: replicas whose segments begin elsewhere, or are
compressed, have the same one. What is deleted is covered too, as a live sequence is part of the digest. Replicas drop
segments that the table has at different times; of messages that are not in every log, subject and size are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.record import encode_record
from lakestream.log.store.store import Store
from lakestream.stream.assembly import Stream
from lakestream_verify.log.findings import Finding, FindingKind, Repair, Step

RANGE = 10_000
"""Sequences that one digest covers: range n has n * RANGE + 1 through (n + 1) * RANGE."""
BLOCK_BYTES = 8 << 20
"""Bytes of messages that are read at once (8 MiB), or one message."""
SHOWN = 10
"""Maximum number of sequences that a finding names."""
UNREADABLE = b"?"
"""Digest of messages that cannot be read: the files of that replica have a finding already."""


class RangeDigest(msgspec.Struct, array_like=True, frozen=True):
    """Digests of the live messages in a range: of sequence, subject and size of all of them, and of all fields of those
    from the floor on, which every replica has in its log."""

    number: int
    known: bytes
    content: bytes


class RowDigest(msgspec.Struct, array_like=True, frozen=True):
    """The same of one live message; `content` b"": it is below the floor."""

    seq: int
    known: bytes
    content: bytes


class Digests:
    """Digests of one recovered stream.

    Args:
        floor: the lowest sequence that every replica has in its log.
        step: called between blocks, with 0.
    """

    def __init__(self, stream: Stream, floor: int, step: Step = lambda count: None) -> None:
        self._stream, self._store, self._floor, self._step = stream, stream.store, floor, step

    def state(self) -> dict[str, str]:
        """Return the state that replicas have in common as of an entry."""
        store = self._store
        names = ("uid", "msgs", "bytes", "first_seq", "last_seq", "last_time")
        return {name: str(getattr(store, name)) for name in names} | {
            "config": store.config.decode(errors="replace"),
            "consumers": ", ".join(sorted(self._stream.consumers)),
        }

    def ranges(self) -> Iterator[RangeDigest]:
        """Yield the digests of all ranges with live messages, ascending. Block."""
        seq = self._store.live.next_at_or_after(1)
        while seq:
            number = (seq - 1) // RANGE
            known, content = blake2b(digest_size=16), blake2b(digest_size=16)
            readable = True
            for row in self.rows(number):
                known.update(b"%d %b" % (row.seq, row.known))
                content.update(row.content)
                readable = readable and UNREADABLE not in (row.known, row.content)
            yield RangeDigest(number, known.digest(), content.digest() if readable else UNREADABLE)
            seq = self._store.live.next_at_or_after((number + 1) * RANGE + 1)

    def rows(self, number: int) -> Iterator[RowDigest]:
        """Yield the digests of the live messages in a range, ascending. Block."""
        store = self._store
        for seqs in blocks(store, number * RANGE, (number + 1) * RANGE):
            self._step(0)
            try:
                facts = zip(store.subjects_of(seqs), store.sizes_of(seqs), strict=True)
                known = [_short(b"%d %b" % (size, subject)) for subject, size in facts]
            except LogError:
                known = [UNREADABLE] * len(seqs)
            content = self._content([seq for seq in seqs if seq >= self._floor])
            for seq, digest in zip(seqs, known, strict=True):
                yield RowDigest(seq, digest, content.get(seq, b""))

    def _content(self, seqs: Sequence[int]) -> dict[int, bytes]:
        try:
            records = self._store.read_many(seqs)
        except LogError:
            return dict.fromkeys(seqs, UNREADABLE)
        found = dict.fromkeys(seqs, UNREADABLE)
        for each in records:
            found[each.seq] = _short(encode_record(each.seq, each.time_ns, each.subject, each.header, each.data))
        return found


def blocks(store: Store, after: int, through: int) -> Iterator[Sequence[int]]:
    """Yield the live sequences above `after` and through `through`, ascending, in blocks of at most RANGE messages and
    BLOCK_BYTES."""
    seqs = store.live.members(after + 1, RANGE, through)
    while seqs:
        size = kept = 0
        for each in _sizes(store, seqs):
            size += each
            if kept and size > BLOCK_BYTES:
                break
            kept += 1
        block = seqs[:kept]
        yield block
        seqs = store.live.members(block[-1] + 1, RANGE, through)


def _sizes(store: Store, seqs: Sequence[int]) -> Iterable[int]:
    try:
        return store.sizes_of(seqs)
    except LogError:
        return [BLOCK_BYTES] * len(seqs)  # a footer cannot be read: one message after the other


def _short(content: bytes) -> bytes:
    return blake2b(content, digest_size=8).digest()


# ---------------------------------------------------------------------- judgement
class Verdict(msgspec.Struct, frozen=True):
    """Judgement of values of several replicas.

    odd: the replicas that differ from the majority; empty without one.
    groups: the replicas by their value.
    """

    odd: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]


def judge(values: Mapping[str, object], voters: int) -> Verdict | None:
    """Judge the values of replicas; None if all are the same.

    A majority is one of all voters, also of those that have no value here: nothing less outvotes a replica.
    """
    by_value: dict[object, list[str]] = defaultdict(list)
    for node, value in sorted(values.items()):
        by_value[value].append(node)
    if len(by_value) < 2:
        return None
    groups = sorted((tuple(nodes) for nodes in by_value.values()), key=lambda nodes: (-len(nodes), nodes))
    majority = groups[0] if 2 * len(groups[0]) > voters else ()
    return Verdict(tuple(node for nodes in groups[1:] for node in nodes) if majority else (), tuple(groups))


def differing(sides: Mapping[str, Mapping[int, RangeDigest]]) -> list[int]:
    """Return the numbers of the ranges that are not the same on all replicas, ascending."""
    numbers = sorted({number for ranges in sides.values() for number in ranges})
    return [number for number in numbers if len({ranges.get(number) for ranges in sides.values()}) > 1]


class Comparison:
    """Findings about replicas that differ.

    Args:
        places: directory of the stream by node.
        voters: number of voters of the group.
        exact: all replicas were recovered as of the same entry; otherwise only messages that are live on several of
            them are compared.
        every_row: name each message that differs.
    """

    def __init__(self, places: Mapping[str, str], voters: int, exact: bool, every_row: bool = False) -> None:
        self._places, self._voters, self._exact, self._rows = places, voters, exact, every_row
        self.odd: dict[str, None] = {}
        """The replicas that differ from a majority."""
        self.unclear = False
        """True if there are differences without a majority."""

    def states(self, sides: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
        """Yield the findings about the states of the replicas, by node."""
        if not self._exact:
            return
        for name in sorted({name for state in sides.values() for name in state}):
            values = {node: state.get(name, "") for node, state in sides.items()}
            verdict = judge(values, self._voters)
            if verdict is not None:
                said = "; ".join(f"{', '.join(nodes)}: {values[nodes[0]][:200]}" for nodes in verdict.groups)
                yield from self._findings(verdict, 0, f"{name} differs between the replicas: {said}")

    def ranges(self, sides: Mapping[str, Mapping[int, RowDigest]]) -> Iterator[Finding]:
        """Yield the findings about the messages of a range, by node and sequence."""
        wrong: dict[Verdict, list[int]] = defaultdict(list)
        for seq in sorted({seq for rows in sides.values() for seq in rows}):
            verdict = self._judge_row({node: rows.get(seq) for node, rows in sides.items()})
            if verdict is not None:
                wrong[verdict].append(seq)
        for verdict, seqs in wrong.items():
            for some in [[seq] for seq in seqs] if self._rows else [seqs]:
                what = f"messages differ between the replicas: {named(some)}"
                yield from self._findings(verdict, some[0], what)

    def whole_range(self, first: int, last: int, values: Mapping[str, RangeDigest | None]) -> Iterator[Finding]:
        """Yield the findings about a range that is not compared message by message."""
        if not self._exact:
            return  # messages that were removed meanwhile make a difference, too
        readable = {node: each for node, each in values.items() if each is None or each.content != UNREADABLE}
        verdict = judge(readable, self._voters)
        if verdict is not None:
            yield from self._findings(verdict, first, f"messages {first} through {last} differ between the replicas")

    def _judge_row(self, rows: Mapping[str, RowDigest | None]) -> Verdict | None:
        values: dict[str, object] = {}
        for node, row in rows.items():
            if row is None:
                if self._exact:
                    values[node] = "deleted"
            elif UNREADABLE not in (row.known, row.content):
                values[node] = (row.known, row.content)
        return judge(values, self._voters)

    def _findings(self, verdict: Verdict, seq: int, what: str) -> Iterator[Finding]:
        groups = " ≠ ".join(", ".join(nodes) for nodes in verdict.groups)
        if not verdict.odd:
            self.unclear = True
            what = f"{what} ({groups}); no majority of the voters agrees"
            yield Finding(kind=FindingKind.REPLICA, file="", what=what, sequence=seq)
            return
        for node in verdict.odd:
            self.odd[node] = None
            yield Finding(
                kind=FindingKind.REPLICA,
                file=self._places.get(node, ""),
                what=f"{what} ({groups})",
                node=node,
                sequence=seq,
                repair=Repair.REFILL,
            )


def named(seqs: Sequence[int]) -> str:
    """Return the sequences of a finding, the first ones if there are many."""
    shown = ", ".join(map(str, seqs[:SHOWN]))
    return shown if len(seqs) <= SHOWN else f"{shown} … ({len(seqs)} through {seqs[-1]})"
