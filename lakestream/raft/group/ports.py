"""Interfaces through which groups reach other nodes and clocks.

Belongs here: narrow protocols, and what can be said in their terms alone. The server implements them over real
connections, the simulator over virtual ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol


class Channel(IntEnum):
    """Channel of a buffer between two nodes; each has one receiver in a node."""

    RAFT = 1
    ROUTE = 2
    CALL = 3


class Transport(Protocol):
    """The other nodes of the cluster, by name. One ordered connection to each; everything runs in the event loop."""

    @property
    def me(self) -> str:
        """Return this node's name."""

    def connected(self) -> list[str]:
        """Return the nodes with a connection, ascending."""

    def alive(self, node: str) -> bool:
        """Return True if the node answered a heartbeat within the liveness limit (this node itself: always)."""

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        """Send a buffer at the end of this turn. Return False if it is lost: no connection, or its queue is full.

        Buffers to one node arrive in order, or the connection ends.
        """

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        """Call `handler(node, payload)` for each buffer of a channel that arrives."""

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        """Call back when a node comes (True: connected, perhaps after a restart, so that what was sent may be lost)
        and when it goes (False: the connection ended, or the node is silent beyond the liveness limit)."""


Method = Callable[[str, bytes, Callable[[bytes], None]], None]
"""Serves one kind of requests between nodes: see `Calls.serve`."""


class Calls(Protocol):
    """Requests between nodes with one answer each, over `Channel.CALL`."""

    def serve(self, method: str, handler: Method) -> None:
        """Answer `method`: the handler gets (node, body, answer) and calls `answer(body)` once, now or later.

        The caller gets what it raises as an error.
        """

    def call(
        self, node: str, method: str, body: bytes, done: Callable[[bytes | None, str], None], timeout_ns: int
    ) -> None:
        """Ask a node (it may be this one). `done(body, "")`, or `done(None, why)` when it failed or took too long."""

    def tell(self, node: str, method: str, body: bytes) -> bool:
        """Like `call`, without an answer. Return False if it could not be sent."""


def call_all(
    calls: Calls, nodes: Sequence[str], method: str, body: bytes, then: Callable[[], None], timeout_ns: int
) -> None:
    """Ask these nodes the same; call `then` once each has answered or failed, at once if there is none."""
    waiting = len(nodes)
    if not waiting:
        then()
        return

    def answered(_: bytes | None, __: str) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            then()

    for node in nodes:
        calls.call(node, method, body, answered, timeout_ns)
