"""Selections: counting and finding the messages of a stream that match a consumer's filters.

Belongs here: subject filters against the stream's indexes. A selection knows nothing of delivery or acks. It reads the
indexes as they are now, so that deletes and purges need no bookkeeping here. Filters may match a million subjects, each
of which is looked up: that is done in steps, between which others are served (`counting`, `planning`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from lakestream.log.format.record import Record
from lakestream.log.format.records import Records, joined
from lakestream.log.index.subject_leaves import LEAF_ROWS
from lakestream.log.store.store import Store
from lakestream.native import SubjectMatcher
from lakestream.protocol.subjects import is_literal

SCAN_MSGS = 2048
"""Maximum number of messages that one call scans for matches; the caller goes on in a later turn."""

SCAN_BYTES = 8 << 20
"""Maximum number of bytes that are read at once for counting (8 MiB)."""

SPARSE_RATIO = 4
"""If fewer than one in this many messages match, they are looked up in the index instead of reading all."""

READ_COST = 4
"""Number of subjects that can be looked up in the index in about the time of reading one message."""

STEP_SUBJECTS = 2048
"""Number of subjects (2,048) that are compared or looked up between two steps: 1 to 2 ms."""


class Matches(NamedTuple):
    """Matching messages from a sequence on."""

    records: Sequence[Record]
    """`Records` of those that the log has."""
    resume: int
    """All matching messages below this sequence are in `records`."""
    remote: int
    """The next candidate if only the lake has it (then `records` is empty), else 0."""


class Everything:
    """Every message matches."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def matches(self, subject: bytes) -> bool:
        return True

    def count(self, low: int, high: int) -> int:
        """Count the matching messages in sequences `low` through `high`, inclusive."""
        return self._store.live.count(low, high)

    def counting(self, low: int, high: int) -> Generator[None, None, int]:
        """Do `count` in steps."""
        return self.count(low, high)
        yield

    def planning(self, start: int, left: int) -> Iterator[None]:
        """Prepare `find` in steps, if it takes long."""
        return iter(())

    def find(self, start: int, limit: int, max_bytes: int, left: int) -> Matches:
        """Return the next matching messages from `start` on, at most `limit`; `left`: about how many there are."""
        store = self._store
        seq = store.live.next_at_or_after(start)
        if not seq:
            return Matches([], max(start, store.last_seq + 1), 0)
        if not store.is_local(seq):
            return Matches([], seq, seq)
        records = store.records_from(seq, limit, max_bytes)
        # Invariant: a live, local message can be read.
        assert records, f"sequence {seq} is live and local but was not read"
        return Matches(records, records.seqs[-1] + 1, 0)

    def narrowing(self) -> Sequence[bytes] | None:
        """Return subjects of all matching messages if they are few, else patterns; None if neither narrows a read."""
        return None


class ConsumerFilters:
    """One or more subject filters. Filters of one consumer never contain each other, but may overlap in part."""

    NARROW = 256
    """Maximum number of subjects or filters that are passed to the lake."""
    FEW = 20
    """Above this number of subjects the lake finds them faster by their common prefix than by name."""

    def __init__(self, store: Store, filters: Sequence[bytes]) -> None:
        self._store = store
        self._filters = tuple(filters)
        self._matcher: SubjectMatcher | None = None  # made when it is first needed: there may be thousands of filters
        self._literal = all(map(is_literal, filters))
        # A pattern that begins with a wildcard excludes nothing of a table.
        self._rooted = len(filters) <= self.NARROW and not any(one[:1] in (b"*", b">") for one in filters)
        self._beginnings = self._rooted and all(not set(one[:-1]) & set(b"*>") for one in filters)
        self._plan: list[int] = []
        self._plan_from = 0
        self._plan_through = 0
        self._plan_at = 0
        self._too_many = 0

    @property
    def _chooser(self) -> SubjectMatcher:
        if self._matcher is None:
            self._matcher = SubjectMatcher(self._filters)
        return self._matcher

    def matches(self, subject: bytes) -> bool:
        return bool(self._chooser.choose([subject]))

    def _some_subjects(self) -> Iterator[Sequence[bytes]]:
        """Yield the matching subjects that have messages, each once, in lists of which some are empty: a step each."""
        index, filters = self._store.subjects, self._filters
        if self._literal:
            for at in range(0, len(filters), STEP_SUBJECTS):
                yield filters[at : at + STEP_SUBJECTS]
        else:
            yield from _steps(index.some_matching(*filters))

    def count(self, low: int, high: int) -> int:
        steps = self.counting(low, high)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return int(end.value)

    def counting(self, low: int, high: int) -> Generator[None, None, int]:
        store = self._store
        high = min(high, store.last_seq)
        if high < low:
            return 0
        total = 0
        if not self._literal and (high - low) * READ_COST < len(store.subjects) and store.local_floor <= low:
            while low <= high:  # cheaper than looking up every subject if messages are few
                run = store.records_from(low, min(high - low + 1, SCAN_MSGS), SCAN_BYTES)
                run = run[: bisect_right(run.seqs, high)]
                total += len(self._chooser.choose_records(run.buf, run.offsets, run.lengths, len(run)))
                low = run.seqs[-1] + 1 if run else high + 1
                yield
            return total
        for some in store.subjects.counts(self._filters, low, high):
            total += some
            yield
        return total

    def find(self, start: int, limit: int, max_bytes: int, left: int) -> Matches:
        if self._is_sparse(start, left):
            return self._look_up(start, limit, max_bytes, left)
        return self._scan(start, limit, max_bytes)

    def _scan(self, start: int, limit: int, max_bytes: int) -> Matches:
        """Read on and keep what matches."""
        store = self._store
        found: list[Records] = []
        looked = count = size = 0
        while looked < SCAN_MSGS and count < limit and size < max_bytes:
            seq = store.live.next_at_or_after(start)
            if not seq:
                start = max(start, store.last_seq + 1)
                break
            if not store.is_local(seq):
                if not count:
                    return Matches([], seq, seq)
                start = seq
                break
            run = store.records_from(seq, min(SCAN_MSGS - looked, 512), max_bytes)
            # Invariant: a live, local message can be read.
            assert run, f"sequence {seq} is live and local but was not read"
            looked += len(run)
            wanted = self._chooser.choose_records(run.buf, run.offsets, run.lengths, limit - count)
            start = run.seqs[wanted[-1] if len(wanted) == limit - count else -1] + 1
            if wanted:
                kept = run if len(wanted) == len(run) else run.chosen(wanted)
                found.append(kept)
                count += len(kept)
                size += sum(kept.lengths)
        return Matches(joined(found), start, 0)

    def _look_up(self, start: int, limit: int, max_bytes: int, left: int) -> Matches:
        """Take the next matches from the subject index, where they are few among many messages."""
        for _ in self.planning(start, left):
            continue
        store, plan, at = self._store, self._plan, self._plan_at
        while at < len(plan) and (plan[at] < start or plan[at] not in store.live):
            at += 1
        self._plan_at = at
        if at == len(plan):
            return Matches([], max(start, self._plan_through + 1), 0)
        if not store.is_local(plan[at]):
            return Matches([], plan[at], plan[at])
        found = store.records_of(plan[at : at + limit], max_bytes)
        return Matches(found, found.seqs[-1] + 1, 0)

    def _is_sparse(self, start: int, left: int) -> bool:
        span = self._store.last_seq - start + 1
        return span > SCAN_MSGS and left * SPARSE_RATIO < span

    def planning(self, start: int, left: int) -> Iterator[None]:
        """Collect matching sequences from `start` on in one pass over the subjects, for many calls of `find`.

        In steps. Without any if `find` has a plan, or needs none.
        """
        if self._plan_from <= start <= self._plan_through or not self._is_sparse(start, left):
            return
        store = self._store
        last = store.last_seq
        subjects: list[bytes] = []
        for some in self._some_subjects():
            subjects += some
            yield
        share = max(4096, len(subjects)) / max(left, 1)
        through = last if share >= 1 else min(last, start + max(65_536, int((last - start + 1) * share)))
        seqs, plan = store.subjects.seqs, list[int]()
        for at in range(0, len(subjects), STEP_SUBJECTS):
            plan += [seq for subject in subjects[at : at + STEP_SUBJECTS] for seq in seqs(subject, start, through)]
            yield
        self._plan = sorted(plan)
        self._plan_from, self._plan_through, self._plan_at = start, through, 0

    def narrowing(self) -> Sequence[bytes] | None:
        # A pass over many subjects takes long and hardly ever gives another result than before.
        if not self._too_many or len(self._store.subjects) * 10 <= self._too_many * 9:
            subjects: list[bytes] = []
            for some in self._some_subjects():
                subjects += some
                if len(subjects) > self.NARROW:
                    break
            self._too_many = len(self._store.subjects) if len(subjects) > self.NARROW else 0
            if not self._too_many and (len(subjects) <= self.FEW or not self._beginnings):
                return subjects
        return self._filters if self._rooted else None


def _steps(parts: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Join and cut the matches of leaves of the index, of which each took some comparisons, into lists of a step."""
    together: list[bytes] = []
    leaves = 0
    for part in parts:
        together += part
        leaves += 1
        if leaves * LEAF_ROWS < STEP_SUBJECTS and len(together) < STEP_SUBJECTS:
            continue
        for at in range(0, max(len(together), 1), STEP_SUBJECTS):
            yield together[at : at + STEP_SUBJECTS]
        together, leaves = [], 0
    yield together


Selection = Everything | ConsumerFilters
"""The messages that match a consumer's filters."""


def selection(store: Store, filters: Sequence[bytes]) -> Selection:
    """Return the selection for a consumer's filters; every message matches without filters, or with `>`."""
    if not filters or b">" in filters:
        return Everything(store)
    return ConsumerFilters(store, filters)
