"""What groups need of the other nodes, as protocols.

Belongs here: the narrow interfaces through which groups reach their peers. The server passes the real connections in,
the simulator its own.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Forget it; idempotent."""


class Clock(Protocol):
    """Time as groups see it: wall time for what people read, turns and delays of the event loop for everything else."""

    def now(self) -> int:
        """Nanoseconds since the epoch."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of this turn of the event loop."""

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        """Call back after a delay."""


class Channel(IntEnum):
    """What a buffer between two nodes is about; each channel has one receiver in a node."""

    RAFT = 1
    ROUTE = 2
    CALL = 3


class Peers(Protocol):
    """The other nodes of the cluster, by name. One ordered connection to each; everything runs in the event loop."""

    @property
    def me(self) -> str:
        """This node's name."""

    def connected(self) -> list[str]:
        """The nodes that can be sent to now, ascending."""

    def alive(self, node: str) -> bool:
        """Whether the node answered a heartbeat within the liveness limit (this node itself: always)."""

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        """Send a buffer at the end of this turn. False when there is no connection or its queue is full: it is lost.

        Buffers to one node arrive in order, or the connection ends.
        """

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        """Call `handler(node, payload)` for each buffer of a channel that arrives."""

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        """Call back when a node comes (True: connected, perhaps after a restart, so that what was sent may be lost)
        and when it goes (False: the connection ended, or the node is silent beyond the liveness limit)."""


class Calls(Protocol):
    """Requests between nodes with one answer each, over `Channel.CALL`."""

    def serve(self, method: str, handler: Callable[[str, bytes, Callable[[bytes], None]], None]) -> None:
        """Answer `method`: the handler gets (node, body, answer) and calls `answer(body)` once, now or later.

        What it raises is told to the caller as an error.
        """

    def call(
        self, node: str, method: str, body: bytes, done: Callable[[bytes | None, str], None], timeout_ns: int
    ) -> None:
        """Ask a node (it may be this one). `done(body, "")`, or `done(None, why)` when it failed or took too long."""

    def tell(self, node: str, method: str, body: bytes) -> bool:
        """Like `call`, with nobody waiting for an answer. False when it could not be sent."""
