"""Steps of a membership change.

Belongs here: the next single-server change when a stream is scaled up or down, moved, or loses a node for good.
Sans-IO; the stream's leader takes one step, waits until it is committed, and calls again.

New members are added first, each as a learner until it has caught up, then as a voter; only then are old ones removed,
offline ones first, and the leader last, after a leadership transfer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from lakestream.raft.core.messages import Membership

MAX_LAG = 100
"""Maximum number of entries that a learner lacks when it is promoted: it gets them while that is being committed."""


class Standing(msgspec.Struct, frozen=True):
    """Another member's state, known to the leader. `there`: online; `lag` in entries."""

    there: bool
    lag: int


class ProposeMembership(msgspec.Struct, frozen=True):
    """Propose this membership. `what`: the log text."""

    membership: Membership
    what: str


class HandOver(msgspec.Struct, frozen=True):
    """Transfer leadership to this member."""

    to: str


class ScalingWait(msgspec.Struct, frozen=True):
    """Wait: no change is possible yet."""


class Settled(msgspec.Struct, frozen=True):
    """Stop: the group has the wanted members."""


Step = ProposeMembership | HandOver | ScalingWait | Settled


def next_step(me: str, now: Membership, wanted: Sequence[str], standing: Mapping[str, Standing]) -> Step:
    """Return the next step of the leader `me`.

    Args:
        now: the group's membership.
        wanted: the final voters, the preferred leader first.
        standing: of the other members.
    """
    voters, learners = set(now.voters), set(now.learners)
    for name in sorted(learners - set(wanted)):
        return _change(voters, learners - {name}, f"{name} leaves")
    for name in sorted(learners):
        if _caught_up(name, standing):
            return _change(voters | {name}, learners - {name}, f"{name} has caught up and votes")
    for name in wanted:
        if name not in voters | learners:
            return _change(voters, learners | {name}, f"{name} joins")
    if not voters >= set(wanted):
        return ScalingWait()
    leaving = sorted(voters - set(wanted) - {me}, key=lambda name: (_there(name, standing), name))
    if leaving:
        return _change(voters - {leaving[0]}, learners, f"{leaving[0]} leaves")
    if me in wanted:
        return Settled()
    successors = [name for name in wanted if _caught_up(name, standing)]
    return HandOver(successors[0]) if successors else ScalingWait()


def _change(voters: Collection[str], learners: Collection[str], what: str) -> ProposeMembership:
    return ProposeMembership(Membership(tuple(sorted(voters)), tuple(sorted(learners))), what)


def _there(name: str, standing: Mapping[str, Standing]) -> bool:
    return name in standing and standing[name].there


def _caught_up(name: str, standing: Mapping[str, Standing]) -> bool:
    return _there(name, standing) and standing[name].lag <= MAX_LAG
