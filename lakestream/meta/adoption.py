"""Streams from before this server was in a cluster.

Belongs here: taking over what lies in the store of a server that ran alone, so that nothing is lost by making it a node
of a cluster. Each such stream is assigned to this node as it is, uid included, and becomes a replica here; then it can
be scaled up like any other. One whose name another stream of the cluster has stays where it is, offline, until
somebody has made room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakestream.meta.assignments import AssignStream
from lakestream.protocol.api.errors import ApiError

if TYPE_CHECKING:
    from lakestream.meta.node import JetStreamCluster
    from lakestream.stream.assembly import Stream

AGAIN_NS = 500_000_000
"""How soon a stream that could not be assigned is tried again."""


class Adoption:
    """The streams of this node that no node of the cluster knows yet."""

    def __init__(self, cluster: JetStreamCluster) -> None:
        self._cluster = cluster
        self._waiting: dict[str, AssignStream] = {}
        """By uid."""
        self._stopped = False

    def found(self, stream: Stream) -> None:
        """A stream was recovered that is no replica. It is closed again until it is assigned. Blocks, at start."""
        engine, name = self._cluster.engines.of(stream.account), stream.name
        config = msgspec.json.encode(stream.config)
        me = (self._cluster.me,)
        self._waiting[stream.uid] = AssignStream(stream.uid, stream.account, name, config, me, stream.created_ns)
        stream.store.close(stream.dump())
        engine.offline[name] = "it is from before this server was in a cluster, which does not know it yet"
        engine.log.info(f"stream {name}: it is from before this server was in a cluster and is to be assigned")

    def start(self) -> None:
        """Begin, as soon as this node knows what is assigned."""
        if not self._waiting or self._stopped:
            return
        self._cluster.shared.clock.call_later(AGAIN_NS, self.start)
        if self._cluster.meta.caught_up and self._cluster.meta_leader():
            for op in list(self._waiting.values()):
                self._assign(op)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    def _assign(self, op: AssignStream) -> None:
        engine, state = self._cluster.engines.of(op.account), self._cluster.meta.state
        if op.uid in state.by_uid:
            self._waiting.pop(op.uid, None)
            return
        if state.find(op.account, op.name) is not None or state.removed(op.uid):
            self._waiting.pop(op.uid, None)
            engine.offline[op.name] = "the cluster has another stream of this name: move one of them away"
            engine.log.error(f"stream {op.name} stays offline: {engine.offline[op.name]}")
            return

        def done(error: ApiError | None) -> None:
            if error is None:
                self._waiting.pop(op.uid, None)
                engine.log.info(f"stream {op.name}: assigned to this node")

        self._cluster.propose(op, done)
