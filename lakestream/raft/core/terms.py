"""Terms of the entries of a log.

Belongs here: the terms of a log as runs, and the searches that log matching and fast back-off need (Raft §5.3). A log
has as many runs as it had leaders, so this stays small however long the log is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Runs = tuple[tuple[int, int], ...]
"""(first index, term) of each run, ascending; a run ends before the next one. Of term UNKNOWN: not known any more."""
UNKNOWN = -1
PAST_RUNS = 64
"""Maximum number of remembered runs of entries that are gone."""


def term_in(runs: Sequence[tuple[int, int]], index: int) -> int | None:
    """Return the term of entry `index` by these runs, None when they do not tell."""
    at = bisect_right(runs, index, key=lambda run: run[0]) - 1
    return runs[at][1] if at >= 0 and runs[at][1] != UNKNOWN else None


class TermMap:
    """The terms of the entries from `base` (the last entry that is gone, whose term is known) through `last`.

    `past` is what is remembered of the entries before `base`.

    Invariant: runs ascend in index and in term; the first one begins at `base`.
    """

    __slots__ = ("_firsts", "_terms", "base", "last", "past")

    def __init__(
        self,
        base: int = 0,
        base_term: int = 0,
        runs: Iterable[tuple[int, int]] = (),
        last: int | None = None,
        past: Runs = (),
    ) -> None:
        """Describe a log whose entries through `base` are gone.

        Args:
            base: index of the last entry that is gone; 0 when there is none.
            base_term: its term.
            runs: (first index, term) of each run of entries with one term, ascending, all after `base`.
            last: index of the last entry; `base` when there is none.
            past: runs of the entries before `base`, see `reaching`.
        """
        self.past = past
        self.base = base
        self.last = base if last is None else last
        self._firsts = [base]
        self._terms = [base_term]
        for first, term in runs:
            self._add(first, term)
        assert self._firsts[-1] <= self.last, "a run begins after the last entry"

    def _add(self, first: int, term: int) -> None:
        newest = self._terms[-1]
        if term == newest:
            return
        assert first > self._firsts[-1], f"a run at {first} does not come after {self._firsts[-1]}"
        assert term > newest, f"term {term} at {first} follows term {newest}"
        self._firsts.append(first)
        self._terms.append(term)

    @property
    def last_term(self) -> int:
        """Return the term of the last entry."""
        return self._terms[-1]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Return (first index, term) of each run after `base`."""
        found = list(zip(self._firsts[1:], self._terms[1:], strict=True))
        if self.last > self.base and (not found or found[0][0] > self.base + 1):
            found.insert(0, (self.base + 1, self._terms[0]))
        return found

    def term(self, index: int) -> int | None:
        """Return the term of entry `index`; None before `base` and after `last`."""
        if index > self.last or index < self.base:
            return None
        if index >= self._firsts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(self._firsts, index) - 1]

    def term_once(self, index: int) -> int | None:
        """Return the term of entry `index`, also of one that is gone; None when it is not known."""
        return self.term(index) if index >= self.base else term_in(self.past, index)

    def append(self, index: int, term: int) -> None:
        """Add the next entry. Invariant: no gap, and terms do not fall."""
        assert index == self.last + 1, f"entry {index} follows {self.last}"
        if term != self._terms[-1]:
            self._add(index, term)
        self.last = index

    def cut(self, after: int) -> None:
        """Forget the entries after `after`."""
        assert self.base <= after <= self.last, f"a cut after {after} of a log {self.base}…{self.last}"
        keep = bisect_right(self._firsts, after)
        del self._firsts[keep:], self._terms[keep:]
        self.last = after

    def forget(self, through: int) -> None:
        """Note that entries through `through` have left the log; its term stays known."""
        if through <= self.base:
            return
        assert through <= self.last, f"entries through {through} cannot be gone from a log that ends at {self.last}"
        at = bisect_right(self._firsts, through) - 1
        gone = zip(self._firsts[: at + 1], self._terms[: at + 1], strict=True)
        # The run at the former base began before it, and is in `past` already if that is known.
        new = [(first, term) for first, term in gone if first > 0 and (not self.past or self.past[-1][1] != term)]
        if new:
            self.past = (*self.past, *new)[-PAST_RUNS:]
        del self._firsts[:at], self._terms[:at]
        self._firsts[0] = self.base = through

    def newest(self, index: int, term: int) -> tuple[int, int]:
        """Return the last entry at or before `index` whose term is not above `term`, as (index, term) (back-off, §5.3).

        It is `base` if there is no such entry: entries before it are committed, so all members agree on them.
        """
        index = min(index, self.last)
        if index <= self.base:
            return self.base, self._terms[0]
        at = bisect_right(self._firsts, index) - 1
        if self._terms[at] <= term:
            return index, self._terms[at]
        at = bisect_right(self._terms, term) - 1
        if at < 0:
            return self.base, self._terms[0]
        return self._firsts[at + 1] - 1, self._terms[at]


def reaching(runs: Runs, through: int, term: int, base: int, base_term: int) -> Runs:
    """Return what is known of the entries before `base`, from runs that reach `through`, an entry of `term`.

    Terms never fall, so what lies between two entries of one term is of that term; otherwise it is unknown.
    """
    if through <= 0:
        return runs
    if not runs or runs[-1][1] != term:
        runs = (*runs, (through, term))
    if base > through + 1 and base_term != term:
        runs = (*runs, (through + 1, UNKNOWN))
    return runs[-PAST_RUNS:]
