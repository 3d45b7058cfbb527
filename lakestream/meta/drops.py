"""Removed streams whose files are still going.

Belongs here: telling the leader of the meta group when this node's files of a removed stream are gone, and there,
waiting for that from every node before the removal is answered. They are gone once nothing can take them for a stream
any more; what the lake is owed of them comes behind that (leaving.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.ports import Clock

if TYPE_CHECKING:
    from lakestream.meta.node import JetStreamCluster

DROPPED = "stream.dropped"
"""The call that says that a removed stream's files are gone."""
DROP_WAIT_NS = 2_000_000_000
"""How long an answer waits for the nodes' files; the rest goes on without it."""


class _Drop:
    """A removal whose answer waits for nodes."""

    def __init__(self, nodes: set[str], done: Callable[[], None]) -> None:
        self.nodes, self.done = nodes, done


class Drops:
    """The removals that this node answers, and its word on those of others."""

    def __init__(self, cluster: JetStreamCluster, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._waiting: dict[str, _Drop] = {}
        cluster.calls.serve(DROPPED, self._told)

    def wait(self, uid: str, holders: set[str], done: Callable[[], None]) -> None:
        """Call `done` once these nodes have let go of a stream, before `removed` says that it may: this node's own
        files may be gone by then."""
        self._waiting[uid] = _Drop(holders, lambda: self._over(uid, done))

    def removed(self, uid: str) -> None:
        """It is removed: from now on its answer waits only so long."""
        drop = self._waiting.get(uid)
        if drop is not None:
            self._clock.call_later(DROP_WAIT_NS, drop.done)

    def forget(self, uid: str) -> None:
        """It is not removed."""
        self._waiting.pop(uid, None)

    def gone(self, uid: str) -> None:
        """A removed stream's files are gone from this node."""
        leader = self._cluster.meta_leader()
        if leader:
            self._cluster.calls.tell(leader, DROPPED, uid.encode())

    def _told(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        drop = self._waiting.get(body.decode())
        if drop is not None:
            drop.nodes.discard(node)
            if not drop.nodes:
                drop.done()

    def _over(self, uid: str, done: Callable[[], None]) -> None:
        if self._waiting.pop(uid, None) is not None:
            done()
