"""Advisories about leaders and members.

Belongs here: the events of the cluster and their JSON (docs/internals/api.md#advisories). They are sent only when
somebody listens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakestream.meta.info import replica_shown
from lakestream.meta.placement import peer_id
from lakestream.protocol.api.advisory import advise

if TYPE_CHECKING:
    from lakestream.meta.ports import Nodes
    from lakestream.meta.replica import Replica
    from lakestream.meta.shared import Shared


class Advisories:
    """Sends what happens to groups on this node: of a stream to its account, else to the system's."""

    def __init__(self, shared: Shared, nodes: Nodes) -> None:
        self._shared, self._nodes = shared, nodes

    def _send(self, account: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
        shared = self._shared
        advise(shared.bus_of(account), shared.clock, shared.options.domain, subject, kind, fields)

    def stream_leader(self, replica: Replica) -> None:
        """This node leads a stream of several replicas now, and its consumers with it."""
        replicas = self._replicas(replica)
        if len(replicas) < 2:
            return
        led = {"leader": self._nodes.me, "replicas": replicas}
        self._send(
            replica.account,
            f"STREAM.LEADER_ELECTED.{replica.name}",
            "stream_leader_elected",
            {"stream": replica.name, **led},
        )
        for consumer in replica.stream.consumers if replica.stream is not None else ():
            fields = {"stream": replica.name, "consumer": consumer, **led}
            self._send(
                replica.account, f"CONSUMER.LEADER_ELECTED.{replica.name}.{consumer}", "consumer_leader_elected", fields
            )

    def stream_lost(self, replica: Replica) -> None:
        """This node leads a stream no more; told when that is for want of a majority."""
        voters = replica.membership.voters
        if replica.leader or sum(self._nodes.alive(voter) for voter in voters) >= replica.membership.quorum:
            return
        replicas = self._replicas(replica)
        lost = {"replicas": replicas}
        self._send(
            replica.account,
            f"STREAM.QUORUM_LOST.{replica.name}",
            "stream_quorum_lost",
            {"stream": replica.name, **lost},
        )
        for consumer in replica.stream.consumers if replica.stream is not None else ():
            fields = {"stream": replica.name, "consumer": consumer, **lost}
            self._send(
                replica.account, f"CONSUMER.QUORUM_LOST.{replica.name}.{consumer}", "consumer_quorum_lost", fields
            )

    def meta_leader(self, members: Sequence[str]) -> None:
        """This node leads the meta group now."""
        replicas = [
            {"name": name, "current": self._nodes.alive(name), "active": 0, "peer": peer_id(name)} for name in members
        ]
        fields = {"leader": peer_id(self._nodes.me), "replicas": replicas, "cluster": self._nodes.node.cluster}
        self._send(self._shared.system, "DOMAIN.LEADER_ELECTED", "domain_leader_elected", fields)

    def server_removed(self, name: str) -> None:
        """A node was taken out of the cluster."""
        info = self._nodes.info(name)
        fields = {
            "server": name,
            "server_id": info.server_id if info is not None else "",
            "cluster": self._nodes.node.cluster,
        }
        self._send(self._shared.system, "SERVER.REMOVED", "server_removed", fields)

    def _replicas(self, replica: Replica) -> list[dict[str, Any]]:
        me = self._nodes.me
        own: dict[str, Any] = {"name": me, "current": True, "active": 0, "peer": peer_id(me)}
        return [own, *(replica_shown(member) for member in replica.members())]
