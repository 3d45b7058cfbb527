"""How a cluster begins, and how a node comes to be a member of its meta group.

Belongs here: the decision of a node without a meta log what to do next, from what it knows of the others. Sans-IO; the
asking and answering is meta_join.py's.

A cluster begins when every node of somebody's configured routes is there, none has a meta log, and all see the same
nodes: the one whose name comes first then begins the meta group with all of them as voters, and the others, who hear
that it has begun, join in. So only one node decides, and it decides once: its answer is in its file before the others
hear of it. A node that finds a meta group applies to its leader, and joins once it is a member.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lakestream.raft.core.messages import Membership


class Seen(msgspec.Struct, frozen=True):
    """Another node, as a node without a meta log sees it. `sees`: the nodes to which it is connected."""

    jetstream: bool
    clustered: bool
    sees: frozenset[str]


class Wait(msgspec.Struct, frozen=True):
    """Not yet; `reason` is for people."""

    reason: str


class Begin(msgspec.Struct, frozen=True):
    """Begin the meta group with these voters."""

    membership: Membership


class Apply(msgspec.Struct, frozen=True):
    """There is a meta group: ask these nodes to be let in."""

    nodes: tuple[str, ...]


class JoinAnswer(msgspec.Struct, frozen=True):
    """What a member of the meta group answers to a node that applies.

    `membership` is the group's, `last_index` its newest entry there: when there are entries, a node that is a voter
    without having a log has lost one. `commit` is what is committed there, and `leads`: the answer is the leader's.
    """

    membership: Membership
    last_index: int
    commit: int
    leads: bool


def decide(me: str, routes_met: bool, others: Mapping[str, Seen]) -> Wait | Begin | Apply:
    """What a node without a meta log does next.

    Args:
        me: its name.
        routes_met: whether it is connected to every node of its configured routes.
        others: the nodes to which it is connected.
    """
    clustered = tuple(sorted(name for name, seen in others.items() if seen.clustered))
    if clustered:
        return Apply(clustered)
    if not routes_met:
        return Wait("not every node of the configured routes is connected")
    everybody = frozenset((me, *others))
    for name, seen in sorted(others.items()):
        if seen.sees | {name} != everybody:
            return Wait(f"{name} is not connected to the same nodes")
    members = tuple(sorted((me, *(name for name, seen in others.items() if seen.jetstream))))
    if members[0] != me:
        return Wait(f"{members[0]} begins the cluster")
    return Begin(Membership(members))
