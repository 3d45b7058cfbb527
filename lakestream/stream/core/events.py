"""Advisories about streams and the API as a whole.

Belongs here: the advisories about a stream's life and about the server's limits (docs/internals/api.md#advisories). The
envelope is in protocol/api/advisory.py; advisories about groups of replicas are sent by meta/.
"""

from __future__ import annotations

from lakestream.ports import Bus, Clock
from lakestream.protocol.api.advisory import advise


class StreamEvents:
    """Sends the events of a server's streams. `domain`: shown in each; "" for none."""

    def __init__(self, bus: Bus, clock: Clock, domain: str) -> None:
        self._bus, self._clock, self._domain = bus, clock, domain

    def stream_action(self, stream: str, event: str, action: str) -> None:
        """Publish that a stream was created, updated or deleted; on the node that leads it."""
        fields = {"stream": stream, "action": action}
        advise(self._bus, self._clock, self._domain, f"STREAM.{event}.{stream}", "stream_action", fields)

    def out_of_storage(self, server: str, server_id: str, cluster: str, stream: str) -> None:
        """Publish that there is no room left for a stream's log."""
        fields = {"server": server, "server_id": server_id, "stream": stream, "cluster": cluster}
        advise(self._bus, self._clock, self._domain, "SERVER.OUT_OF_STORAGE", "server_out_of_space", fields)

    def limit_reached(self, server: str, dropped: int) -> None:
        """Publish that more requests waited than may: `dropped` of them get no answer."""
        fields = {"server": server, "dropped": dropped}
        advise(self._bus, self._clock, self._domain, "API.LIMIT_REACHED", "api_limit_reached", fields)
