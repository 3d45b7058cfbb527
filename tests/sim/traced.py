"""Runs of groups as steps of the models in tests/spec.

Belongs here: recording the events of a run; tests/spec/trace.py has the relation that they must obey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from unittest.mock import patch

import msgspec

from lakestream.log.format.frame import Frame
from lakestream.raft.core.leader import Leader
from lakestream.raft.core.messages import HardState, Membership, Message, Vote
from tests.sim.checks import Checker, mark_of
from tests.sim.runner import run_seed
from tests.sim.world import Plan
from tests.spec.trace import Ack, Change, Claim, Commit, Cut, Event, Installed, Lead, Relation, Reopen, Term, Write


class Recorder(Checker):
    """Checker that notes the events, also the one that it fails at."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.events: list[Event] = []
        self._reopening = False

    def appended(self, node: str, frames: Sequence[Frame]) -> None:
        if frames and not self._reopening:
            self.events.append(Write(node, frames[0].index, tuple(map(mark_of, frames))))
        super().appended(node, frames)

    def truncating(self, node: str, last: int) -> None:
        if last < self.shadows[node].last:
            self.events.append(Cut(node, last, False))
        super().truncating(node, last)

    def truncated(self, node: str, last: int) -> None:
        super().truncated(node, last)
        self.events.append(Cut(node, last, True))

    def reopened(self, node: str, frames: Sequence[Frame], salvaged: bool) -> None:
        base = self.shadows[node].base
        kept = tuple(mark_of(frame) for frame in frames if frame.index > base)
        self.events.append(Reopen(node, base, kept))
        self._reopening = True
        super().reopened(node, frames, salvaged)
        self._reopening = False

    def installed(self, node: str, index: int, term: int) -> None:
        self.events.append(Installed(node, index))
        super().installed(node, index, term)

    def hardened(self, node: str, hard: HardState) -> None:
        before = self.shadows[node].hard
        if (hard.term, hard.vote) != (before.term, before.vote):
            self.events.append(Term(node, hard.term, hard.vote))
        super().hardened(node, hard)

    def sent(self, node: str, to: str, message: Message) -> None:
        if isinstance(message, Vote) and not message.pre:
            self.events.append(Claim(node, message.term, message.last_index, message.last_term))
        super().sent(node, to, message)

    def leads(self, node: str, term: int, base: int, term_of: Callable[[int], int | None]) -> None:
        terms = [-1] * base
        while (found := term_of(len(terms) + 1)) is not None:
            terms.append(found)
        self.events.append(Lead(node, term, tuple(terms)))
        super().leads(node, term, base, term_of)

    def leader_commits(self, node: str, term: int, index: int, voters: Membership) -> None:
        self.events.append(Commit(node, term, index))
        super().leader_commits(node, term, index, voters)

    def acked_to_client(self, node: str, index: int, commands: Sequence[bytes]) -> None:
        self.events.append(Ack(node, index))
        super().acked_to_client(node, index, commands)


class Trace(msgspec.Struct):
    """A recorded run: its events, the first members, and its failure; "": none."""

    events: list[Event]
    founders: tuple[str, ...]
    failure: str

    def check(self) -> Relation:
        """Check that each step is one of the models; return the relation, which has counted them."""
        relation = Relation(self.founders)
        relation.run(self.events)
        return relation


def traced(plan: Plan) -> Trace:
    """Run a plan, without damaged and restored disks, which the models do not have."""
    plan = msgspec.structs.replace(plan, damage=False, rollbacks=False)
    recorders: list[Recorder] = []
    founders = tuple(chr(ord("a") + number) for number in range(plan.nodes))

    def recorder(names: Iterable[str]) -> Recorder:
        recorders.append(Recorder(names))
        return recorders[-1]

    real = Leader.propose_membership

    def propose(self: Leader, membership: Membership) -> int:
        index = real(self, membership)
        recorders[-1].events.append(Change(self.state.me, self.state.term, index, membership.voters))
        return index

    with patch("tests.sim.world.Checker", recorder), patch.object(Leader, "propose_membership", propose):
        outcome = run_seed(plan.seed, plan.shell, plan=plan)
    return Trace(recorders[-1].events, founders, outcome.failure)
