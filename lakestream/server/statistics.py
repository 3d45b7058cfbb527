"""What has happened on a server since it started, as numbers.

Belongs here: the counters that outlive a connection and the ring of connections closed lately. Counting is done where
a connection ends, never per message.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec

MAX_CLOSED = 10_000
"""Closed connections that /connz?state=closed remembers; the oldest are forgotten first."""


class Counted(Protocol):
    """A connection as it is counted."""

    id: int
    name: str
    lang: str
    version: str
    user: str
    host: str
    port: int
    start_ns: int
    last_ns: int
    rtt_ns: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    close_reason: str


class Closed(msgspec.Struct, frozen=True, gc=False):
    """A connection that has ended. Times in ns since the epoch, `rtt_ns` 0 when it was never measured."""

    id: int
    name: str
    lang: str
    version: str
    user: str
    host: str
    port: int
    start_ns: int
    last_ns: int
    stop_ns: int
    rtt_ns: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    close_reason: str


class Statistics:
    """Counters of one server.

    Attributes:
        total_connections: accepted since the start.
        in_msgs, in_bytes, out_msgs, out_bytes: of connections that have ended; live ones carry their own.
        slow_consumers, stale_connections: connections ended for that reason.
        closed: the last ones that ended, oldest first.
    """

    def __init__(self) -> None:
        self.total_connections = 0
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.slow_consumers = self.stale_connections = 0
        self.closed: deque[Closed] = deque(maxlen=MAX_CLOSED)

    def ended(self, connection: Counted, now_ns: int) -> None:
        """Take over the counts of a connection that has just ended."""
        self.in_msgs += connection.in_msgs
        self.in_bytes += connection.in_bytes
        self.out_msgs += connection.out_msgs
        self.out_bytes += connection.out_bytes
        if connection.close_reason.startswith("Slow Consumer"):
            self.slow_consumers += 1
        elif connection.close_reason == "Stale Connection":
            self.stale_connections += 1
        fields = {name: getattr(connection, name) for name in Closed.__struct_fields__ if name != "stop_ns"}
        self.closed.append(Closed(stop_ns=now_ns, **fields))
