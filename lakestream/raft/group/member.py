"""This node's part in a Raft group before its log is open.

Belongs here: the file `raft` as recovery uses it, and the core over an open log: its terms, memberships and commit
index.
"""

from __future__ import annotations

import os
from random import Random

import msgspec

from lakestream.log.format.files import Io
from lakestream.log.format.frame import UNKNOWN, Held
from lakestream.log.store.log import Log
from lakestream.log.store.repair import ASIDE, read_aside
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import HardState, Membership, decode_membership
from lakestream.raft.core.ready import RaftOptions
from lakestream.raft.core.terms import TermMap, reaching
from lakestream.raft.group.group import GroupOwner, Member
from lakestream.raft.group.hard_state import PersistentState, StateFile
from lakestream.raft.group.raft_group import Outlet, RaftGroup


class RaftMember(Member):
    """This node's part in a Raft group: the file `raft` beside its log."""

    def __init__(
        self,
        group: str,
        me: str,
        file: StateFile,
        kept: PersistentState,
        *,
        fresh: bool,
        outlet: Outlet,
        options: RaftOptions,
        rng: Random,
    ) -> None:
        """Use `Groups.member`. `fresh`: the log is new, or was that of a group of one."""
        self.group, self.me, self.file, self.kept, self.fresh = group, me, file, kept, fresh
        self.outlet, self.options, self.rng = outlet, options, rng
        self.held = Held()
        if kept.recovering:
            self.recall()

    @property
    def membership(self) -> Membership:
        return self.kept.membership

    @property
    def durable_through(self) -> int:
        return self.kept.durable

    @property
    def commit_through(self) -> int:
        """Return no limit for a log without a file `raft`: it was that of a group of one, all of it committed."""
        return 1 << 62 if self.fresh else self.kept.hard.commit

    @property
    def recovering(self) -> bool:
        return self.kept.recovering

    @property
    def begins(self) -> bool:
        return self.fresh and not set(self.membership.voters) <= {self.me}

    def damaged(self) -> None:
        old = self.kept
        had, again = (old.durable, old.durable_term), old.recovering and not old.joining
        if again and (not old.had[1] or had[::-1] <= old.had[::-1]):
            had = old.had  # what is set aside, of the log before it was damaged first, stays
        else:
            self.file.files.remove(os.path.join(os.path.dirname(self.file.path), ASIDE))
        hard = msgspec.structs.replace(old.hard, commit=0)
        self.kept = msgspec.structs.replace(
            old,
            hard=hard,
            durable=0,
            base=0,
            base_term=0,
            recovering=True,
            joining=False,
            had=had,
            forgetful=old.forgetful or self.begins,
        )
        self.file.write(self.kept, sync=True)
        self.fresh = False

    def recall(self) -> None:
        held = read_aside(self.file.files, os.path.dirname(self.file.path))
        (index, term), newest = self.kept.had, max(held.frames, default=0)
        if newest >= index > 0:  # the file `raft` may be behind after a power failure, and had no term in 0.1.0
            index, term = newest, held.frames[newest].term
        self.held = msgspec.structs.replace(held, newest=(index, term) if term else UNKNOWN)

    def join(self, log: Log, io: Io, owner: GroupOwner) -> RaftGroup:
        """Open the group. `io` is not used: the threads are those of `RaftGroups`."""
        assert isinstance(log, SegmentLog), "a log in memory has one member"
        kept = of_a_group_of_one(self.kept, log) if self.fresh else self.kept
        handed = min(log.applied() if log.applied is not None else kept.hard.commit, log.last_index)
        core = self._core(log, kept, handed)
        handed_term = core.log.terms.term(handed) or 0
        return RaftGroup(
            self.group, log, self.file, kept, core, (handed, handed_term), self.outlet, self.options, owner
        )

    def _core(self, log: SegmentLog, kept: PersistentState, handed: int) -> Core:
        """Return a core that goes on where the log ended; everything through `handed` is applied."""
        hard = kept.hard
        changes = [
            (index, decode_membership(body))
            for segment in log.segments
            for index, body in segment.memberships
            if index > kept.membership_index
        ]
        commit = max(handed, min(hard.commit, log.last_index))
        return Core(
            self.me,
            kept.membership,
            HardState(max(hard.term, log.last_term), hard.vote if hard.term >= log.last_term else "", commit),
            terms_of(log, kept),
            options=self.options,
            random=self.rng,
            changes=changes,
            recovering=kept.recovering,
            forgetful=kept.forgetful,
            joining=kept.joining,
            confirmed=kept.confirmed,
            remembers=log.options.sync_always,
            held=self.held,
        )


def of_a_group_of_one(kept: PersistentState, log: SegmentLog) -> PersistentState:
    """Return what to keep beside a log without the file `raft`: a new one, or that of a group of one.

    Everything in it is committed then, and its segments end where no entry says so: other members install that state.
    """
    return msgspec.structs.replace(
        kept,
        hard=HardState(log.last_term, "", log.last_index),
        durable=log.last_index,
        durable_term=log.last_term,
        base=log.last_index,
        base_term=log.last_term,
    )


def terms_of(log: SegmentLog, kept: PersistentState) -> TermMap:
    """Return the terms of the log from its base: before that, others install a state."""
    base, base_term = kept.base, kept.base_term
    runs = log.terms
    if log.first_index > base + 1:  # the first entry is the oldest whose term is known
        base, base_term = (log.first_index, runs[0][1]) if runs else (log.last_index, log.last_term)
    ends = [first for first, _ in runs[1:]] + [log.last_index + 1]
    known = [(max(first, base + 1), term) for (first, term), end in zip(runs, ends, strict=False) if end > base + 1]
    past = tuple(run for run in kept.past if run[0] < base)
    if kept.past_through <= base:
        past = reaching(past, kept.past_through, kept.past_term, base, base_term)
    return TermMap(base, base_term, known, log.last_index, past)
