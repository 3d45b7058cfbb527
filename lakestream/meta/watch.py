"""Restores that nobody goes on with.

Belongs here: noticing that the node that restores a stream is gone, or does not know of it any more, and having the
stream removed then. How a stream is restored is restores.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakestream.meta.assignments import AbandonStream

if TYPE_CHECKING:
    from lakestream.meta.node import JetStreamCluster

WATCH_NS = 2_000_000_000
"""How often a node looks (2 s)."""


class RestoreWatch:
    """Looks at the streams that are being restored, of every account.

    Attributes:
        running: those that this node restores, by uid.
    """

    def __init__(self, cluster: JetStreamCluster) -> None:
        self._cluster = cluster
        self.running: set[str] = set()

    def start(self) -> None:
        """Begin to look."""
        self._cluster.shared.clock.call_later(WATCH_NS, self._look)

    def _look(self) -> None:
        self.start()
        cluster, me = self._cluster, self._cluster.me
        for each in [each for each in cluster.meta.state.by_uid.values() if each.restoring]:
            mine = each.restoring == me and each.uid not in self.running
            gone = each.restoring != me and cluster.meta.leading and not cluster.nodes.alive(each.restoring)
            if mine or gone:
                cluster.shared.log.warn(f"stream {each.name}: its restore by {each.restoring} was not finished")
                cluster.propose(AbandonStream(each.uid), lambda error: None)
