"""The meta layer of a server without other nodes: a cluster of one.

Belongs here: assembling it. cluster.py is the counterpart for a cluster, workers.py for a server of several processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakestream.meta.keeping import SoloKeeping
from lakestream.meta.meta import SoloMeta
from lakestream.meta.node import MetaNode
from lakestream.meta.ports import AllAccounts, Loopback
from lakestream.meta.replica_files import SoloFiles
from lakestream.meta.shared import Shared
from lakestream.protocol.api.request import Where
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.solo import SoloGroups


class SoloNode(MetaNode):
    """The meta node of a server without other nodes, which answers every request itself."""

    alone = True

    def answerer(self, where: Where, account: str, tokens: Sequence[str]) -> str:
        return self.me

    def stream_leader(self, uid: str) -> str:
        # A stream without a replica is dormant.
        return super().stream_leader(uid) if uid in self.replicas.by_uid else self.me


def solo_node(shared: Shared, accounts: AllAccounts) -> MetaNode:
    """Return the meta node of a server without other nodes."""
    options = shared.options
    me = options.server_name
    info = NodeInfo(
        name=me,
        server_id=options.server_id,
        jetstream=True,
        domain=options.domain,
        max_memory=options.max_memory,
        max_storage=options.max_file,
    )
    meta = SoloMeta(me)
    node = SoloNode(shared, accounts, Loopback(info), meta, SoloGroups(me), SoloFiles(shared.stores))
    meta.on_applied = node.applied
    node.keeping = keeping = SoloKeeping(node, meta)
    node.services.append(keeping)
    node.replicas.start()  # there are no other nodes to wait for
    return node
