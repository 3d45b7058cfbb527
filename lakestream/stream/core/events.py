"""Advisories about streams and the API as a whole.

Belongs here: what is told of a stream's life and of the server's limits, with or without a cluster
(docs/internals/api.md#advisories). The envelope is formats/advisory.py's; what happens to groups of replicas is told by
cluster/advisories.py.
"""

from __future__ import annotations

from lakestream.ports import Bus, Clock
from lakestream.protocol.api.advisory import advise


class StreamEvents:
    """Sends the events of a server's streams. `domain`: shown in each; "" for none."""

    def __init__(self, bus: Bus, clock: Clock, domain: str) -> None:
        self._bus, self._clock, self._domain = bus, clock, domain

    def stream_action(self, stream: str, event: str, action: str) -> None:
        """A stream was created, updated or deleted; sent by the node that leads it."""
        fields = {"stream": stream, "action": action}
        advise(self._bus, self._clock, self._domain, f"STREAM.{event}.{stream}", "stream_action", fields)

    def out_of_storage(self, server: str, server_id: str, cluster: str, stream: str) -> None:
        """There is no room left for a stream's log."""
        fields = {"server": server, "server_id": server_id, "stream": stream, "cluster": cluster}
        advise(self._bus, self._clock, self._domain, "SERVER.OUT_OF_STORAGE", "server_out_of_space", fields)

    def limit_reached(self, server: str, dropped: int) -> None:
        """More requests waited than may: `dropped` of them get no answer."""
        fields = {"server": server, "dropped": dropped}
        advise(self._bus, self._clock, self._domain, "API.LIMIT_REACHED", "api_limit_reached", fields)
