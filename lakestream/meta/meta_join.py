"""Joining the meta group.

Belongs here: joining the group (bootstrap of a cluster, a new node, a node that lost its files, one that was removed),
adding applicants on the leader, one server at a time, and the commit index that a node has to reach after a start.

Bootstrap: when all nodes of the configured routes of some node are connected, none has a meta log, and all are
connected to the same nodes, the first one by name begins the meta group with all of them as voters; the others apply to
it. So only one node decides, and only once: its decision is durable before the others learn of it. A node that finds a
meta group applies to its members, and joins once the leader has added it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from lakestream.logging import Logger
from lakestream.meta.meta_group import MetaGroup
from lakestream.meta.ports import Peers
from lakestream.ports import Clock
from lakestream.raft.core.messages import Membership

JOIN = "meta.join"
"""The call with which a node applies for membership."""
STATUS = "meta.status"
"""The call with which a member asks for commit index and membership of the group."""

REMOVED = "meta.removed"
"""The call with which the leader notifies a removed node, which would not notice it while the group is quiet."""

BOOT_INTERVAL_NS = 200_000_000
"""Interval at which a node without a meta log decides again (0.2 s), besides every change of connected nodes."""
GROW_INTERVAL_NS = 250_000_000
"""Interval at which the leader adds or promotes members (0.25 s)."""
STATUS_INTERVAL_NS = 1_000_000_000
"""Interval at which a member that has not caught up, or knows no leader, calls `STATUS` (1 s)."""
CALL_TIMEOUT_NS = 2_000_000_000
"""Longest wait for an answer (2 s)."""
MAX_LAG = 16
"""Maximum number of entries that a learner lacks when it is promoted."""
LOST = "this node was a member before and has lost its files: it needs the commit index of a meta leader"
"""Log text for the wait of a node that lost its files."""


class SeenNode(msgspec.Struct, frozen=True):
    """A connected node. `sees`: the nodes to which it is connected."""

    jetstream: bool
    clustered: bool
    sees: frozenset[str]


class JoinWait(msgspec.Struct, frozen=True):
    """Wait; `reason` is for the log."""

    reason: str


class Begin(msgspec.Struct, frozen=True):
    """Begin the meta group with these voters."""

    membership: Membership


class Apply(msgspec.Struct, frozen=True):
    """Apply to these members of an existing meta group."""

    nodes: tuple[str, ...]


class JoinAnswer(msgspec.Struct, frozen=True):
    """The answer of a member of the meta group to an applicant.

    `last_index` and `commit` are its last entry and its commit index; `leads`: it is the leader. If `last_index` > 0, a
    voter without a log has lost its files.
    """

    membership: Membership
    last_index: int
    commit: int
    leads: bool


_JOIN_ANSWER = msgspec.msgpack.Decoder(JoinAnswer)


def decide(me: str, routes_met: bool, others: Mapping[str, SeenNode]) -> JoinWait | Begin | Apply:
    """Decide the next step of a node without a meta log.

    Args:
        me: its name.
        routes_met: True if it is connected to every node of its configured routes.
        others: the nodes to which it is connected.
    """
    clustered = tuple(sorted(name for name, seen in others.items() if seen.clustered))
    if clustered:
        return Apply(clustered)
    if not routes_met:
        return JoinWait("not every node of the configured routes is connected")
    connected = frozenset((me, *others))
    for name, seen in sorted(others.items()):
        if seen.sees | {name} != connected:
            return JoinWait(f"{name} is not connected to the same nodes")
    members = tuple(sorted((me, *(name for name, seen in others.items() if seen.jetstream))))
    if members[0] != me:
        return JoinWait(f"{members[0]} begins the cluster")
    return Begin(Membership(members))


class MetaJoin:
    """Joins the meta group, and adds members on the leader. `start` after `MetaGroup.open`, with `Meta.start`."""

    def __init__(self, meta: MetaGroup, nodes: Peers, clock: Clock, log: Logger) -> None:
        self._meta, self._nodes, self._clock, self._log = meta, nodes, clock, log
        self.removed = False
        """True once this node was removed from the group while it ran; it may join again after a restart."""
        self.on_removed: Callable[[], None] = lambda: None
        """Called when this node was removed."""
        self._stopped = self._growing = self._settled = False
        self._applicants: set[str] = set()
        self._asked: set[str] = set()
        self._wait_reason = ""
        nodes.serve(JOIN, self._join_asked)
        nodes.serve(STATUS, self._status_asked)
        nodes.serve(REMOVED, lambda node, body, answer: self._ask(node, STATUS, self._on_status))

    def start(self) -> None:
        """Start joining, and polling until this node has caught up."""
        self._nodes.watch_nodes(lambda _: self._boot())
        self._boot_loop()
        self._poll_status()

    def stop(self) -> None:
        """Stop joining and polling."""
        self._stopped = True

    def role_changed(self) -> None:
        """React to another leader of the group."""
        meta = self._meta
        if not meta.caught_up and meta.leader and meta.leader != self._nodes.me:
            self._ask(meta.leader, STATUS, self._on_status)
        if not meta.leading:
            self._applicants.clear()
        elif not self._growing:
            self._growing = True
            self._clock.call_later(GROW_INTERVAL_NS, self._grow)

    # ------------------------------------------------------------------ the leader
    def _grow(self) -> None:
        """Add or promote one applicant."""
        meta = self._meta
        self._growing = meta.leading and not self._stopped
        if not self._growing or meta.group is None:
            return
        self._clock.call_later(GROW_INTERVAL_NS, self._grow)
        now = meta.membership
        for name, info in self._nodes.nodes().items():
            if info.clustered and name not in now.members:
                self._nodes.tell(name, REMOVED, b"")
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
            # `last_index` 0 of its empty log would mean that the group has no entries, and the applicant lost none.
            answer(msgspec.msgpack.encode(JoinAnswer(Membership(()), 0, 0, False)))
            return
        self._status_asked(node, body, answer)

    def _status_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        meta, group = self._meta, self._meta.group
        if group is None:
            raise RuntimeError("this node has no meta log yet")

        def respond(leads: bool) -> None:
            now = JoinAnswer(meta.membership, group.last_index, group.commit_index, leads)
            answer(msgspec.msgpack.encode(now))

        if meta.leading:
            # A majority confirms it first: a partitioned leader does not know the entries committed by the next one.
            group.read_index(lambda index: respond(index >= 0))
        else:
            respond(False)

    # ------------------------------------------------------------------ bootstrap
    def _boot_loop(self) -> None:
        if self._meta.group is None and not self._stopped:
            # Schedule first: bootstrap continues even if this attempt cannot create the files.
            self._clock.call_later(BOOT_INTERVAL_NS, self._boot_loop)
            self._boot()

    def _boot(self) -> None:
        if self._meta.group is not None or self._stopped:
            return
        nodes = self._nodes
        others = {
            name: SeenNode(info.jetstream, info.clustered, nodes.sees(name)) for name, info in nodes.nodes().items()
        }
        step = decide(nodes.me, nodes.routes_met(), others)
        match step:
            case Begin():
                self._log.info(f"JetStream cluster: begins with {', '.join(step.membership.voters)}")
                self._meta.begin(step.membership, 0)
            case Apply():
                if not self._wait_reason.startswith(LOST):
                    self._wait(f"this node applies to {', '.join(step.nodes)}")
                for node in step.nodes:
                    self._ask(node, JOIN, self._joined)
            case _:
                self._wait(step.reason)

    def _wait(self, reason: str) -> None:
        if reason != self._wait_reason:
            self._wait_reason = reason
            self._log.info(f"JetStream cluster: waiting, {reason}")

    def _joined(self, answer: JoinAnswer) -> None:
        if self._meta.group is not None or self._nodes.me not in answer.membership.members:
            return
        lost_through = answer.last_index if self._nodes.me in answer.membership.voters else 0
        if lost_through and not answer.leads:
            # A follower may lack entries that this node had acknowledged; the leader has all committed ones.
            self._wait(LOST)
            return
        if lost_through:
            self._log.warn("JetStream cluster: this node was a member before and has lost its files: it recovers them")
        self._meta.begin(answer.membership, lost_through)

    def _ask(self, node: str, method: str, then: Callable[[JoinAnswer], None]) -> None:
        if node in self._asked:
            return
        self._asked.add(node)

        def answered(body: bytes | None, why: str) -> None:
            self._asked.discard(node)
            if body is not None and not self._stopped:
                then(_JOIN_ANSWER.decode(body))

        self._nodes.call(node, method, b"", answered, CALL_TIMEOUT_NS)

    # ------------------------------------------------------------------ catching up
    def _poll_status(self) -> None:
        """Call `STATUS` of the members while this node has not caught up or knows no leader."""
        if self._stopped or self.removed:
            return
        self._clock.call_later(STATUS_INTERVAL_NS, self._poll_status)
        meta = self._meta
        if meta.group is None or (meta.caught_up and meta.leader):
            return
        for name, info in self._nodes.nodes().items():
            if info.clustered:
                self._ask(name, STATUS, self._on_status)

    def _on_status(self, answer: JoinAnswer) -> None:
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
            self._boot_loop()
