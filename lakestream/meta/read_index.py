"""Read indexes for followers, from the leaders of their streams.

Belongs here: the call `replica.index` between nodes. A follower answers a linearizable read once it has applied the
entries through the index that the leader gives: those that were committed when a majority confirmed that it still leads
(Raft §8, thesis §6.4). stream/core/confirming.py decides which reads wait.
"""

from __future__ import annotations

from collections.abc import Callable

from lakestream.meta.ports import Peers
from lakestream.meta.site import HeldReplica

METHOD = "replica.index"
TIMEOUT_NS = 5_000_000_000
"""Longest wait for an answer (5 s), which is that of most clients."""


class ReadIndexes:
    """Serves the read indexes of the streams that this node leads, and requests those of others."""

    def __init__(self, peers: Peers, find: Callable[[str], HeldReplica | None]) -> None:
        self._peers, self._find = peers, find
        peers.serve(METHOD, self._asked)

    def ask(self, leader: str, uid: str, done: Callable[[int], None]) -> None:
        """Call `done` with the read index of the stream `uid`; -1 if `leader`, a node, does not lead it any more, or
        cannot be reached."""
        if not leader or leader == self._peers.me:
            done(-1)
            return

        def answered(body: bytes | None, why: str) -> None:
            done(int(body) if body else -1)

        self._peers.call(leader, METHOD, uid.encode(), answered, TIMEOUT_NS)

    def _asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        replica = self._find(body.decode())
        stream = replica.stream if replica is not None else None
        if stream is None:
            answer(b"")
            return
        stream.confirming.leading(lambda led: answer(b"%d" % stream.store.applied if led else b""))
