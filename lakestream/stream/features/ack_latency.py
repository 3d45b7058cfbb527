"""Time from publish to pub ack, for monitoring.

Belongs here: observing it once per batch: from the batch's oldest message, which opened it, until its pub acks were
handed to the connections.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakestream.metrics.histogram import Histogram
from lakestream.ports import Clock
from lakestream.stream.core.feature import Feature


class AckLatency(Feature):
    """Latency of the batches of one stream, on the node that leads it.

    Args:
        seconds: of all streams of the server.
    """

    def __init__(self, clock: Clock, seconds: Histogram) -> None:
        self._clock, self._seconds = clock, seconds
        self._opened: dict[int, int] = {}
        """Steady time (ns) at which each uncommitted batch was opened, by its first sequence."""

    def opened(self, first_seq: int, time_ns: int, copied: bool = False) -> None:
        if not copied:
            self._opened[first_seq] = self._clock.steady()

    def acknowledged(self, first_seq: int, subjects: Sequence[bytes]) -> None:
        began = self._opened.pop(first_seq, 0)
        if began:
            self._seconds.observe((self._clock.steady() - began) / 1e9)

    def rewound(self, last_seq: int) -> None:
        self._opened = {seq: began for seq, began in self._opened.items() if seq <= last_seq}
