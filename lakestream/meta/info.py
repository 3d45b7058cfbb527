"""Groups as answers and monitoring show them.

Belongs here: the `cluster` object of StreamInfo and ConsumerInfo (docs/internals/api.md#streams): who leads a stream
and how its other replicas stand, as nats-server shows it; a stream with one replica shows its node only. And the same
of the meta group, for /jsz, with what keeps this node from being healthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakestream.meta.placement import peer_id
from lakestream.meta.replica import Member, Replica
from lakestream.protocol.gotime import format_time

if TYPE_CHECKING:
    from lakestream.meta.node import JetStreamCluster

TRAFFIC_ACCOUNT = "$SYS"
"""Replication goes between the nodes directly, in no account of clients."""


def group_name(uid: str) -> str:
    """The id of a stream's Raft group."""
    return f"S-{uid}"


def replica_shown(member: Member) -> dict[str, Any]:
    """Another member of a group."""
    shown: dict[str, Any] = {"name": member.name, "current": member.current}
    if member.offline:
        shown["offline"] = True
    shown["active"] = member.active_ns
    if member.lag:
        shown["lag"] = member.lag
    return {**shown, "peer": peer_id(member.name)}


def cluster_shown(cluster: str, me: str, replica: Replica, *, desired: Sequence[str] = ()) -> dict[str, Any]:
    """The object. `desired`: the nodes that shall hold the stream, when its group is on the way there.

    Without a leader this node, `me`, is one of the replicas.
    """
    members = replica.members()
    if members and not replica.leader:
        members = [Member(me, True, False, 0, 0), *members]
    alone = not members and not desired
    shown: dict[str, Any] = {"name": cluster}
    if not alone:
        shown["raft_group"] = group_name(replica.uid)
    if replica.leader:
        shown["leader"] = replica.leader
        if not alone:
            shown["leader_since"] = format_time(replica.leader_since_ns)
    if alone:
        return shown
    shown |= {"system_account": True, "traffic_account": TRAFFIC_ACCOUNT}
    if members:
        shown["replicas"] = [replica_shown(member) for member in members]
    if desired:
        shown["desired"] = {
            "name": cluster,
            "replicas": [{"name": name, "peer": peer_id(name)} for name in desired],
        }
    return shown


def consumer_shown(shown: dict[str, Any], replicas: int) -> dict[str, Any]:
    """A stream's object as that of a consumer of its that is shown with so many replicas.

    All members of the stream's group hold it; of the others the first by name are shown.
    """
    if replicas == 1:
        return {key: shown[key] for key in ("name", "leader") if key in shown}
    if "replicas" in shown:
        others = sorted(shown["replicas"], key=lambda each: str(each["name"]))
        return {**shown, "replicas": others[: replicas - 1]}
    return shown


def meta_shown(cluster: JetStreamCluster) -> dict[str, Any]:
    """`meta_cluster` of /jsz: the meta group as this node sees it. Only its leader knows how far the others are."""
    meta, me = cluster.meta, cluster.me
    shown: dict[str, Any] = {"name": cluster.name}
    if meta.leader:
        shown |= {"leader": meta.leader, "peer": peer_id(meta.leader)}
    progress = {each.name: each for each in meta.group.progress()} if meta.group is not None and meta.leading else {}
    replicas = []
    for name in meta.membership.members:
        if name == me:
            continue
        far = progress.get(name)
        lag = meta.group.last_index - far.match if meta.group is not None and far is not None else 0
        current = far.active and not lag if far is not None else name == meta.leader
        member = Member(name, current, not cluster.nodes.alive(name), far.contact_ns if far is not None else 0, lag)
        replicas.append(replica_shown(member))
    if replicas:
        shown["replicas"] = replicas
    voters = meta.membership.voters
    shown |= {"cluster_size": len(voters), "quorum_needed": meta.membership.quorum if voters else 0}
    return {**shown, "pending": 0, "pending_requests": 0, "pending_infos": 0}


def unhealthy(cluster: JetStreamCluster) -> str:
    """What this node still lacks before it does its share of the cluster's work; "" when nothing."""
    if cluster.meta.failed is not None:
        return f"JetStream takes no part in the meta group: {cluster.meta.failed}"
    if not cluster.meta.leader:
        return "JetStream has not established contact with a meta leader"
    for replica in cluster.replicas.by_uid.values():
        assigned = cluster.meta.state.by_uid.get(replica.uid)
        if assigned is None or cluster.me not in assigned.peers:
            continue
        whose = f"JetStream stream '{replica.account} > {replica.name}'"
        if replica.trouble:
            return f"{whose} is offline: {replica.trouble}"
        if not replica.leader:
            return f"{whose} is not current: no leader is known"
    return ""
