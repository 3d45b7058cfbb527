"""The core's view of its own log.

Belongs here: last, durable and committed index, terms, the memberships in the log, and pending appends and cuts. The
shell holds the entries themselves once they were handed out.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakestream.log.format.frame import Frame, Kind
from lakestream.raft.core.messages import Membership, decode_membership
from lakestream.raft.core.terms import Runs, TermMap


class LogView:
    """The log of one member, as its core sees it.

    Invariant: terms.base <= commit <= last and durable <= last. `commit` may be ahead of `durable`.
    """

    __slots__ = ("commit", "cut_after", "durable", "epoch", "memberships", "pending", "terms")

    def __init__(
        self, terms: TermMap, membership: Membership, changes: Sequence[tuple[int, Membership]], commit: int
    ) -> None:
        """Clamp `commit` to what the log holds."""
        self.terms = terms
        self.commit = max(terms.base, min(commit, terms.last))
        self.durable = terms.last
        self.epoch = 0
        """Number of cuts: a write of an earlier epoch says nothing about entries after the cut."""
        self.cut_after: int | None = None
        self.pending: list[Frame] = []
        self.memberships: list[tuple[int, Membership]] = [(terms.base, membership)]
        """(index, membership) of the newest committed change and of those after it, which a cut may bring back."""
        for index, changed in changes:
            if index > terms.base:
                assert self.memberships[-1][0] < index <= terms.last, "membership changes do not ascend in the log"
                self.memberships.append((index, changed))
        self._forget_memberships()

    @property
    def last(self) -> int:
        """Return the index of the last entry, durable or not."""
        return self.terms.last

    @property
    def membership(self) -> Membership:
        """Return the membership in force (Raft §6: the latest in the log, committed or not)."""
        return self.memberships[-1][1]

    @property
    def committed_membership(self) -> Membership:
        """Return the newest committed membership."""
        return self.memberships[0][1]

    @property
    def change_pending(self) -> bool:
        """Return True if a membership change is in the log and not committed."""
        return len(self.memberships) > 1

    def up_to_date(self, last_index: int, last_term: int) -> bool:
        """Return True if a log that ends with this entry is at least as up to date as this one (Raft §5.4.1)."""
        mine = self.terms.last_term
        return last_term > mine or (last_term == mine and last_index >= self.terms.last)

    def append(self, frames: Sequence[Frame]) -> None:
        """Add entries that follow the last one."""
        terms = self.terms
        for frame in frames:
            terms.append(frame.index, frame.term)
            if frame.kind is Kind.MEMBERSHIP:
                self.memberships.append((frame.index, decode_membership(frame.body)))
        self.pending.extend(frames)

    def cut(self, after: int) -> None:
        """Drop the entries after `after`. Invariant: never a committed one (Raft §5.4, leader completeness)."""
        assert self.commit <= after < self.last, f"a cut after {after}; committed {self.commit}, last {self.last}"
        self.terms.cut(after)
        self.durable = min(self.durable, after)
        self.epoch += 1
        while self.memberships[-1][0] > after:
            self.memberships.pop()
        pending = self.pending
        if pending and pending[0].index <= after + 1:
            # Entries that the shell has are before the cut: drop only those that were never handed out.
            del pending[after - pending[0].index + 1 :]
        else:
            pending.clear()
            self.cut_after = after if self.cut_after is None else min(self.cut_after, after)

    def persisted(self, index: int, epoch: int) -> bool:
        """Note that entries through `index` are durable; return True if `durable` moved."""
        if epoch != self.epoch or index <= self.durable:
            return False
        assert index <= self.last, f"entry {index} is durable in a log that ends at {self.last}"
        self.durable = index
        return True

    def commit_to(self, index: int) -> None:
        """Commit entries through `index`."""
        assert self.commit < index <= self.last, f"commit {self.commit} → {index} in a log that ends at {self.last}"
        self.commit = index
        self._forget_memberships()

    def install(self, index: int, term: int, membership: Membership, past: Runs) -> None:
        """Begin with a state as of `index`; the log is empty after it. `past` holds the terms of entries before it."""
        self.terms = TermMap(index, term, past=past)
        self.commit = self.durable = index
        self.memberships = [(index, membership)]
        self.pending = []
        self.cut_after = None
        self.epoch += 1

    def _forget_memberships(self) -> None:
        while len(self.memberships) > 1 and self.memberships[1][0] <= self.commit:
            del self.memberships[0]
