"""Information about groups for clients.

Belongs here: the `cluster` object of StreamInfo and ConsumerInfo (docs/internals/api.md#streams), and the advisories
about leaders and members (docs/internals/api.md#advisories), which are sent only if they have a subscriber. A stream
with one replica shows its node only, as in nats-server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakestream.meta.placement import peer_id
from lakestream.meta.ports import Peers
from lakestream.meta.shared import Shared
from lakestream.meta.site import PeerInfo, group_id
from lakestream.protocol.api.advisory import advise
from lakestream.protocol.gotime import format_time

if TYPE_CHECKING:
    from lakestream.meta.replica import Replica


TRAFFIC_ACCOUNT = "$SYS"
"""`traffic_account` in the `cluster` object: replication uses no account of clients."""


def replica_shown(member: PeerInfo) -> dict[str, Any]:
    """Return the fields of another member of a group."""
    shown: dict[str, Any] = {"name": member.name, "current": member.current}
    if member.offline:
        shown["offline"] = True
    shown["active"] = member.active_ns
    if member.lag:
        shown["lag"] = member.lag
    return {**shown, "peer": peer_id(member.name)}


def cluster_shown(cluster: str, me: str, replica: Replica, *, desired: Sequence[str] = ()) -> dict[str, Any]:
    """Return the `cluster` object. `desired`: the peers of a stream whose group is changing its members.

    Without a leader this node, `me`, is one of the replicas.
    """
    members = replica.members()
    if members and not replica.leader:
        members = [PeerInfo(me, True, False, 0, 0), *members]
    alone = not members and not desired
    shown: dict[str, Any] = {"name": cluster}
    if not alone:
        shown["raft_group"] = group_id(replica.uid)
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
    """Return the `cluster` object of a consumer with this number of replicas, from that of its stream.

    All members of the stream's group hold it; besides the leader, the first ones by name are shown.
    """
    if replicas == 1:
        return {key: shown[key] for key in ("name", "leader") if key in shown}
    if "replicas" in shown:
        others = sorted(shown["replicas"], key=lambda each: str(each["name"]))
        return {**shown, "replicas": others[: replicas - 1]}
    return shown


class GroupAdvisories:
    """Sends the advisories about groups on this node: of a stream in its account, others in the system account."""

    def __init__(self, shared: Shared, nodes: Peers) -> None:
        self._shared, self._nodes = shared, nodes

    def _send(self, account: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
        shared = self._shared
        advise(shared.bus_of(account), shared.clock, shared.options.domain, subject, kind, fields)

    def stream_leader(self, replica: Replica) -> None:
        """Send the advisories that this node leads a replicated stream and its consumers."""
        if replica.members():
            self._of_stream(replica, "LEADER_ELECTED", {"leader": self._nodes.me})

    def stream_lost(self, replica: Replica) -> None:
        """Send the advisories of lost quorum, if that ended this node's leadership of a stream."""
        voters = replica.membership.voters
        if not replica.leader and sum(self._nodes.alive(voter) for voter in voters) < replica.membership.quorum:
            self._of_stream(replica, "QUORUM_LOST", {})

    def _of_stream(self, replica: Replica, what: str, fields: dict[str, Any]) -> None:
        """Send an advisory about a stream and about each of its consumers."""
        me, name = self._nodes.me, replica.name
        own: dict[str, Any] = {"name": me, "current": True, "active": 0, "peer": peer_id(me)}
        fields = {**fields, "replicas": [own, *(replica_shown(member) for member in replica.members())]}
        self._send(replica.account, f"STREAM.{what}.{name}", f"stream_{what.lower()}", {"stream": name, **fields})
        for consumer in replica.stream.consumers if replica.stream is not None else ():
            of_consumer = {"stream": name, "consumer": consumer, **fields}
            self._send(replica.account, f"CONSUMER.{what}.{name}.{consumer}", f"consumer_{what.lower()}", of_consumer)

    def meta_leader(self, members: Sequence[str]) -> None:
        """Send the advisory that this node leads the meta group."""
        replicas = [
            {"name": name, "current": self._nodes.alive(name), "active": 0, "peer": peer_id(name)} for name in members
        ]
        fields = {"leader": peer_id(self._nodes.me), "replicas": replicas, "cluster": self._nodes.node.cluster}
        self._send(self._shared.system, "DOMAIN.LEADER_ELECTED", "domain_leader_elected", fields)

    def server_removed(self, name: str) -> None:
        """Send the advisory that a node was removed from the cluster."""
        info = self._nodes.info(name)
        fields = {
            "server": name,
            "server_id": info.server_id if info is not None else "",
            "cluster": self._nodes.node.cluster,
        }
        self._send(self._shared.system, "SERVER.REMOVED", "server_removed", fields)
