"""Joining the meta group, and staying in it.

Belongs here: this node's way into the group (a cluster's first time, a new node, a node that lost its files, one that
was removed), the leader's part in it (adding applicants, one server at a time), and finding out after a start how much
a node has missed.

A cluster begins when every node of somebody's configured routes is there, none has a meta log, and all see the same
nodes: the one whose name comes first then begins the meta group with all of them as voters, and the others, who hear
that it has begun, join in. So only one node decides, and it decides once: its answer is in its file before the others
hear of it. A node that finds a meta group applies to its leader, and joins once it is a member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from lakestream.logging import Logger
from lakestream.meta.meta_group import MetaGroup
from lakestream.meta.ports import Nodes
from lakestream.ports import Clock
from lakestream.raft.core.messages import Membership
from lakestream.raft.group.ports import Calls

JOIN = "meta.join"
"""The call by which a node applies for membership."""
STATUS = "meta.status"
"""The call by which a member asks how far the group is, and whether it still belongs to it."""

REMOVED = "meta.removed"
"""The call by which the leader tells a node that it is no member any more: of a quiet group it would not notice."""

BOOT_EVERY_NS = 200_000_000
"""Interval at which a node without a meta log decides again, beside every change that it hears of."""
GROW_EVERY_NS = 250_000_000
"""Interval at which the leader adds or promotes members."""
STATUS_EVERY_NS = 1_000_000_000
"""Interval at which a member that has not caught up, or knows no leader, asks the others."""
CALL_TIMEOUT_NS = 2_000_000_000
"""Longest wait for an answer (2 s)."""
MAX_LAG = 16
"""Entries that a learner may lack when it becomes a voter."""
LOST = "this node was a member before and has lost its files, and the others have no leader who could tell it how much"
"""The reason for which such a node waits."""


class Seen(msgspec.Struct, frozen=True):
    """Another node, for `decide`. `sees`: the nodes to which it is connected."""

    jetstream: bool
    clustered: bool
    sees: frozenset[str]


class Wait(msgspec.Struct, frozen=True):
    """Wait; `reason` is for the log."""

    reason: str


class Begin(msgspec.Struct, frozen=True):
    """Begin the meta group with these voters."""

    membership: Membership


class Apply(msgspec.Struct, frozen=True):
    """Apply to these nodes: there is a meta group."""

    nodes: tuple[str, ...]


class JoinAnswer(msgspec.Struct, frozen=True):
    """The answer of a member of the meta group to an applicant.

    `membership` is the group's, `last_index` its newest entry there: when there are entries, a node that is a voter
    without having a log has lost one. `commit` is what is committed there, and `leads`: the answer is the leader's.
    """

    membership: Membership
    last_index: int
    commit: int
    leads: bool


def decide(me: str, routes_met: bool, others: Mapping[str, Seen]) -> Wait | Begin | Apply:
    """Decide the next step of a node without a meta log.

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


class MetaJoin:
    """This node's part in who is a member of the meta group. `start` after `Meta.open`, with `Meta.start`."""

    def __init__(self, meta: MetaGroup, nodes: Nodes, calls: Calls, clock: Clock, log: Logger) -> None:
        self._meta, self._nodes, self._calls, self._clock, self._log = meta, nodes, calls, clock, log
        self.removed = False
        """True once this node was removed from the group while it ran: it stays out until its next start."""
        self.on_removed: Callable[[], None] = lambda: None
        """Called when that happens."""
        self._stopped = self._growing = self._settled = False
        self._applicants: set[str] = set()
        self._asked: set[str] = set()
        self._waits_for = ""
        calls.serve(JOIN, self._join_asked)
        calls.serve(STATUS, self._status_asked)
        calls.serve(REMOVED, lambda node, body, answer: self._ask(node, STATUS, self._told))

    def start(self) -> None:
        """Look for the cluster, or for what was missed."""
        self._nodes.watch_nodes(lambda _: self._boot())
        self._boot_again()
        self._look()

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped = True

    def role_changed(self) -> None:
        """React to another leader of the group."""
        meta = self._meta
        if not meta.caught_up and meta.leader and meta.leader != self._nodes.me:
            self._ask(meta.leader, STATUS, self._told)
        if not meta.leading:
            self._applicants.clear()
        elif not self._growing:
            self._growing = True
            self._clock.call_later(GROW_EVERY_NS, self._grow)

    # ------------------------------------------------------------------ the leader
    def _grow(self) -> None:
        """Add or promote one applicant."""
        meta = self._meta
        self._growing = meta.leading and not self._stopped
        if not self._growing or meta.group is None:
            return
        self._clock.call_later(GROW_EVERY_NS, self._grow)
        now = meta.membership
        for name, info in self._nodes.nodes().items():
            if info.clustered and name not in now.members:
                self._calls.tell(name, REMOVED, b"")
        for each in meta.group.progress():
            if each.learner and each.active and each.match + MAX_LAG >= meta.group.commit_index:
                voters = tuple(sorted((*now.voters, each.name)))
                learners = tuple(name for name in now.learners if name != each.name)
                meta.change_membership(Membership(voters, learners), lambda why: None)
                return
        self._applicants -= set(now.members)
        for name in sorted(self._applicants):
            if self._nodes.alive(name):
                learners = tuple(sorted((*now.learners, name)))
                meta.change_membership(Membership(now.voters, learners), lambda why: None)
                self._log.info(f"JetStream cluster: {name} joins")
                return

    def _join_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        if self._meta.leading:
            self._applicants.add(node)
        if self._meta.group is not None and self._meta.group.recovering:
            # Its empty log would tell the other that the group has no entries yet, and that it has lost none.
            answer(msgspec.msgpack.encode(JoinAnswer(Membership(()), 0, 0, False)))
            return
        self._status_asked(node, body, answer)

    def _status_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        meta, group = self._meta, self._meta.group
        if group is None:
            raise RuntimeError("this node has no meta log yet")

        def told(leads: bool) -> None:
            now = JoinAnswer(meta.membership, group.last_index, group.commit_index, leads)
            answer(msgspec.msgpack.encode(now))

        if meta.leading:
            # A majority confirms it first: who was cut off leads for a while without knowing what is committed since.
            group.read_index(lambda index: told(index >= 0))
        else:
            told(False)

    # ------------------------------------------------------------------ the first time
    def _boot_again(self) -> None:
        if self._meta.group is None and not self._stopped:
            # First the next look: files that could not be made this time must not leave the cluster unbegun.
            self._clock.call_later(BOOT_EVERY_NS, self._boot_again)
            self._boot()

    def _boot(self) -> None:
        if self._meta.group is not None or self._stopped:
            return
        nodes = self._nodes
        others = {name: Seen(info.jetstream, info.clustered, nodes.sees(name)) for name, info in nodes.nodes().items()}
        step = decide(nodes.me, nodes.routes_met(), others)
        match step:
            case Begin():
                self._log.info(f"JetStream cluster: begins with {', '.join(step.membership.voters)}")
                self._meta.begin(step.membership, 0)
            case Apply():
                if not self._waits_for.startswith(LOST):
                    self._wait(f"it applies to {', '.join(step.nodes)}")
                for node in step.nodes:
                    self._ask(node, JOIN, self._joined)
            case _:
                self._wait(step.reason)

    def _wait(self, reason: str) -> None:
        if reason != self._waits_for:
            self._waits_for = reason
            self._log.info(f"JetStream cluster: waiting, {reason}")

    def _joined(self, answer: JoinAnswer) -> None:
        if self._meta.group is not None or self._nodes.me not in answer.membership.members:
            return
        lost_through = answer.last_index if self._nodes.me in answer.membership.voters else 0
        if lost_through and not answer.leads:
            # Whoever follows may lack what this node had: only a leader is sure to have all that counts.
            self._wait(LOST)
            return
        if lost_through:
            self._log.warn("JetStream cluster: this node was a member before and has lost its files: it fetches them")
        self._meta.begin(answer.membership, lost_through)

    def _ask(self, node: str, method: str, then: Callable[[JoinAnswer], None]) -> None:
        if node in self._asked:
            return
        self._asked.add(node)

        def answered(body: bytes | None, why: str) -> None:
            self._asked.discard(node)
            if body is not None and not self._stopped:
                then(msgspec.msgpack.decode(body, type=JoinAnswer))

        self._calls.call(node, method, b"", answered, CALL_TIMEOUT_NS)

    # ------------------------------------------------------------------ what was missed
    def _look(self) -> None:
        """Ask the others while this node may be behind or knows no leader."""
        if self._stopped or self.removed:
            return
        self._clock.call_later(STATUS_EVERY_NS, self._look)
        meta = self._meta
        if meta.group is None or (meta.caught_up and meta.leader):
            return
        for name, info in self._nodes.nodes().items():
            if info.clustered:
                self._ask(name, STATUS, self._told)

    def _told(self, answer: JoinAnswer) -> None:
        meta = self._meta
        if meta.group is None or not answer.leads:
            return
        if self._nodes.me in answer.membership.members:
            meta.catch_up_to(answer.commit)
        elif meta.caught_up:
            self.removed = True
            self._log.error(
                "JetStream cluster: this server was removed from the cluster and takes no part in it any more; "
                "restart it to let it join again"
            )
            meta.stop()
            self._nodes.update(clustered=False)
            self.on_removed()
        else:
            self._log.warn("JetStream cluster: this server was removed from the cluster; it joins again")
            meta.set_aside()
            self._boot_again()
