"""The meta layer of a node of a cluster.

Belongs here: assembling the meta group and everything else that only a server with other nodes has: placement, the
alternates in StreamInfo, waiting for other nodes to remove files, abandoning unfinished restores. solo.py is the
counterpart for a server without other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

from lakestream.meta.adoption import Adoption
from lakestream.meta.assignments import AbandonStream, Applied, Assignment, MetaState
from lakestream.meta.info import cluster_shown, replica_shown
from lakestream.meta.meta import Outcome
from lakestream.meta.meta_group import MetaGroup
from lakestream.meta.meta_join import MetaJoin
from lakestream.meta.meta_transfer import MetaTransfer
from lakestream.meta.node import MetaNode, Shown
from lakestream.meta.placement import Candidate, Placing, Requirements, choose, choose_leader, peer_id
from lakestream.meta.ports import AllAccounts, Peers
from lakestream.meta.replica_files import MemberFiles
from lakestream.meta.shared import Shared
from lakestream.meta.site import PeerInfo
from lakestream.meta.stores import FileStores
from lakestream.ports import Clock
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.raft.group.groups import RaftGroups
from lakestream.stream.core.config import Placement, StreamConfig

STRAY_CHECK_NS = 10_000_000_000
"""Delay after the first known leader before a node reports replicas that are not assigned (10 s)."""
YIELD_NS = 1_000_000_000
"""Interval at which a node that was removed from the cluster transfers its leaderships (1 s)."""
WATCH_NS = 2_000_000_000
"""Interval at which a node checks for unfinished restores (2 s)."""
DROPPED = "stream.dropped"
"""The call that reports that a removed stream's files are removed."""
DROP_WAIT_NS = 2_000_000_000
"""Longest wait of an answer for the nodes to remove files (2 s); they continue after it."""

_MIRROR = b'"mirror":{'
"""Part of every assigned configuration of a mirror, whose encoding is lakestream's own."""


def cluster_node(
    shared: Shared, accounts: AllAccounts, stores: FileStores, peers: Peers, root: str, unique_tag: str = ""
) -> MetaNode:
    """Return the meta node of a cluster's node.

    Args:
        peers: the other nodes.
        root: the server's store directory.
        unique_tag: a prefix of server tags; the replicas of a stream differ in that tag. "" for none.
    """
    clock, io, log = shared.clock, shared.io, shared.log
    groups = RaftGroups(peers, io, clock, random=Random(), files=stores.files)
    meta = MetaGroup(root, peers, groups, clock, io, log, files=stores.files)
    transfer, join = MetaTransfer(meta, peers, io, log), MetaJoin(meta, peers, clock, log)
    node = MetaNode(shared, accounts, peers, meta, groups, MemberFiles(stores))
    node.placing, node.shown = ClusterPlacing(node, unique_tag), ClusterShown(node)
    node.keeping = adoption = Adoption(node, meta, transfer)
    drops = Drops(node, clock)
    node.local.on_dropped = drops.gone
    node.removing = drops.wrap
    meta.on_applied, meta.on_caught_up = node.applied, node.local.reconcile
    roles = _Roles(node, join)
    meta.on_role, join.on_removed = roles.changed, roles.removed
    node.services += [join, adoption, RestoreWatch(node)]
    return node


class _Roles:
    """Reacts to changes of the meta leader."""

    def __init__(self, node: MetaNode, join: MetaJoin) -> None:
        self._node, self._join = node, join
        self._led = self._stray_check_scheduled = False

    def changed(self) -> None:
        """Log a new leader, and dispatch held requests to it."""
        self._join.role_changed()
        node, meta, log = self._node, self._node.meta, self._node.shared.log
        if meta.leading and not self._led:
            log.info("JetStream cluster: this node leads the meta group")
            node.advisories.meta_leader(meta.membership.members)
        elif meta.leader and not meta.leading:
            log.info(f"JetStream cluster: {meta.leader} leads the meta group")
        if not self._stray_check_scheduled and (meta.leading or meta.leader):
            self._stray_check_scheduled = True
            node.shared.clock.call_later(STRAY_CHECK_NS, node.local.log_unassigned)
        self._led = meta.leading
        node.requests.changed()

    def removed(self) -> None:
        """Transfer this node's leaderships: it receives no assignments any more, and only another leader can change the
        members of its streams."""
        self._node.local.transfer_all()
        self._node.shared.clock.call_later(YIELD_NS, self.removed)


class ClusterPlacing(Placing):
    """Chooses among the members of the meta group."""

    several = True

    def __init__(self, node: MetaNode, unique_tag: str) -> None:
        super().__init__(node.me)
        self._node, self._unique_tag = node, unique_tag

    def copies(self, replicas: int) -> int:
        return max(1, replicas)

    def check_storage(self, config: StreamConfig, reserved: Callable[[], int]) -> None:
        """Do nothing: `place` checks the storage of every node."""

    def check_growth(self, peers: Sequence[str], old: StreamConfig, new: StreamConfig) -> None:
        """Check that the peers have room for the growth. Raise ApiError 10028, 10047."""
        more = new.reserved_bytes - old.reserved_bytes
        holding = [candidate for candidate in self.candidates() if candidate.name in peers]
        if more > 0 and not all(candidate.room(new.storage, more) for candidate in holding):
            raise api_error(10028 if new.storage == "memory" else 10047)

    def place(self, config: StreamConfig, *, keep: Sequence[str] = (), avoid: Collection[str] = ()) -> tuple[str, ...]:
        """Return the nodes that are to hold a stream. Raise ApiError 10005."""
        wanted = Requirements(
            replicas=config.num_replicas,
            placement=config.placement,
            storage=config.storage,
            size=config.reserved_bytes,
            unique_tag=self._unique_tag,
            cluster=self._node.name,
        )
        return choose(wanted, self.candidates(), keep=keep, avoid=avoid)

    def leader(self, placement: Placement, members: Sequence[str]) -> str:
        """Return the node to transfer leadership to; "" for any. Raise ApiError 10005."""
        return choose_leader(placement, members, self.candidates(), self._node.me)

    def candidates(self) -> list[Candidate]:
        """Return every node that could hold a stream."""
        node, nodes, held = self._node, self._node.peers, self._node.inventory
        found = []
        for name in node.meta.membership.members:
            info = nodes.node if name == node.me else nodes.info(name)
            if info is None:
                found.append(Candidate(name=name, cluster=node.name, alive=False))
                continue
            found.append(
                Candidate(
                    name=name,
                    cluster=info.cluster,
                    tags=info.tags,
                    alive=nodes.alive(name) and info.jetstream,
                    max_memory=info.max_memory,
                    max_file=info.max_storage,
                    reserved_memory=held.reserved["memory", name],
                    reserved_file=held.reserved["file", name],
                    replicas=held.holds[name],
                    leads=held.leads[name],
                )
            )
        return found


class ClusterShown(Shown):
    """The fields of StreamInfo that only a cluster has: `cluster`, and `alternates` (docs/internals/api.md#streams).

    Mirrors are indexed by origin; the index is rebuilt when assignments have changed since its last use. As in
    nats-server a mirror with a filter counts, too.
    """

    def __init__(self, node: MetaNode) -> None:
        super().__init__(node)
        self._known: dict[tuple[str, str], list[str]] = {}
        self._as_of: tuple[MetaState | None, int] = (None, 0)

    def cluster(self, uid: str) -> dict[str, Any]:
        node = self._node
        replica = node.replicas.by_uid.get(uid)
        if replica is None:
            return {"name": node.name}
        assignment = node.meta.state.by_uid.get(uid)
        desired = assignment.peers if assignment is not None and assignment.moving else ()
        return cluster_shown(node.name, node.me, replica, desired=desired)

    def alternates(self, account: str, name: str, domain: str) -> list[dict[str, str]]:
        self._renew()
        mirrors = self._known.get((account, name), [])
        place = {"domain": domain} if domain else {}
        return [{"name": each, **place, "cluster": self._node.name} for each in (name, *mirrors)] if mirrors else []

    def trouble(self, assignment: Assignment) -> str:
        return self._node.refusal(assignment)

    def meta(self) -> dict[str, Any]:
        """Return `meta_cluster` of /jsz. Only the leader knows the progress of the other members."""
        node, meta = self._node, self._node.meta
        shown: dict[str, Any] = {"name": node.name}
        if meta.leader:
            shown |= {"leader": meta.leader, "peer": peer_id(meta.leader)}
        progress = {each.name: each for each in meta.progress()} if meta.leading else {}
        newest = max((each.match for each in progress.values()), default=0)
        replicas = []
        for name in meta.membership.members:
            if name == node.me:
                continue
            far = progress.get(name)
            lag = newest - far.match if far is not None else 0
            current = far.active and not lag if far is not None else name == meta.leader
            since = far.contact_ns if far is not None else 0
            replicas.append(replica_shown(PeerInfo(name, current, not node.peers.alive(name), since, lag)))
        if replicas:
            shown["replicas"] = replicas
        voters = meta.membership.voters
        shown |= {"cluster_size": len(voters), "quorum_needed": meta.membership.quorum if voters else 0}
        return {**shown, "pending": 0, "pending_requests": 0, "pending_infos": 0}

    def unhealthy_meta(self) -> str:
        meta = self._node.meta
        if meta.failed is not None:
            return f"JetStream takes no part in the meta group: {meta.failed}"
        return "" if meta.leader else "JetStream has not established contact with a meta leader"

    def unhealthy(self) -> str:
        if lacking := self.unhealthy_meta():
            return lacking
        node, meta = self._node, self._node.meta
        for replica in node.replicas.by_uid.values():
            assigned = meta.state.by_uid.get(replica.uid)
            if assigned is None or node.me not in assigned.peers:
                continue
            whose = f"JetStream stream '{replica.account} > {replica.name}'"
            if replica.trouble:
                return f"{whose} is offline: {replica.trouble}"
            if not replica.leader:
                return f"{whose} is not current: no leader is known"
        return ""

    def _renew(self) -> None:
        meta = self._node.meta
        state, as_of = meta.state, meta.as_of
        if self._as_of[0] is state and self._as_of[1] == as_of:
            return
        known: dict[tuple[str, str], list[str]] = {}
        for (account, name), assignment in state.streams.items():
            if _MIRROR in assignment.config and not assignment.restoring:
                mirror = self._node.config_of(assignment).mirror
                if mirror is not None:
                    known.setdefault((account, mirror.name), []).append(name)
        for names in known.values():
            names.sort()
        self._known, self._as_of = known, (state, as_of)


class RestoreWatch:
    """Abandons restores whose node is down, or has restarted."""

    def __init__(self, node: MetaNode) -> None:
        self._node = node

    def start(self) -> None:
        """Schedule the next check."""
        self._node.shared.clock.call_later(WATCH_NS, self._check)

    def stop(self) -> None:
        """Do nothing: the clock stops with the server."""

    def _check(self) -> None:
        self.start()
        node, me = self._node, self._node.me
        for each in [each for each in node.meta.state.by_uid.values() if each.restoring]:
            mine = each.restoring == me and each.uid not in node.restoring
            gone = each.restoring != me and node.meta.leading and not node.peers.alive(each.restoring)
            if mine or gone:
                node.shared.log.warn(f"stream {each.name}: restore by {each.restoring} did not finish: removing it")
                node.propose(AbandonStream(each.uid), lambda error: None)


class Drops:
    """Delays the outcome of stream removals on the meta leader until every connected node has reported that its files
    are removed, so that no restart there can open them as a stream."""

    def __init__(self, node: MetaNode, clock: Clock) -> None:
        self._node, self._clock = node, clock
        self._waiting: dict[str, tuple[set[str], Callable[[], None]]] = {}
        """The nodes that have not reported, and the function that ends the wait, by uid."""
        node.peers.serve(DROPPED, self._on_dropped)

    def wrap(self, assignment: Assignment, done: Outcome) -> Outcome:
        """Return the outcome callback of a removal about to be proposed: it calls `done` once every connected node has
        removed its files, or after `DROP_WAIT_NS`. This node may remove its own before the outcome is known."""
        uid = assignment.uid

        def end_wait() -> None:
            if self._waiting.pop(uid, None) is not None:
                done(Applied(assignment, None))

        def outcome(result: Applied | ApiError) -> None:
            if isinstance(result, ApiError) or result.refused:
                self._waiting.pop(uid, None)
                done(result)
            elif uid in self._waiting:
                self._clock.call_later(DROP_WAIT_NS, end_wait)

        self._waiting[uid] = ({holder for holder in assignment.holders if self._node.peers.alive(holder)}, end_wait)
        return outcome

    def gone(self, uid: str) -> None:
        """Report to the meta leader that this node has removed the files of a removed stream."""
        leader = self._node.meta_leader()
        if leader:
            self._node.peers.tell(leader, DROPPED, uid.encode())

    def _on_dropped(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        nodes, end_wait = self._waiting.get(body.decode(), (set(), None))
        nodes.discard(node)
        if end_wait is not None and not nodes:
            end_wait()
