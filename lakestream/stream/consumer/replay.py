"""Replay policy `original`: messages go out with the gaps that they were stored with.

Belongs here: which of the next messages are due, and the timer for the first that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakestream.log.format.record import Record
from lakestream.ports import Clock, Timer

MIN_GAP_NS = 1_000_000
"""Gaps up to 1 ms are not reproduced."""


class OriginalPace:
    """The pace of one consumer. Ends for good once the consumer has caught up with its stream."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock, self._wake = clock, wake
        self._over = False
        self._stored_ns = 0
        """When the last message that was due had been stored …"""
        self._sent_ns = 0
        """… and when it went out."""
        self._timer: Timer | None = None

    @property
    def waiting(self) -> bool:
        """Whether the next message is not due yet."""
        return self._timer is not None

    def due(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those of the next records that may go out now; a timer wakes the consumer for the rest."""
        if self._over:
            return records
        now = self._clock.steady()
        for at, record in enumerate(records):
            gap = record.time_ns - self._stored_ns
            if self._stored_ns and gap > MIN_GAP_NS and self._sent_ns + gap > now:
                if not at:
                    self._timer = self._clock.call_later(self._sent_ns + gap - now, self._fire)
                return records[:at]
            self._stored_ns, self._sent_ns = record.time_ns, now
        return records

    def off(self) -> None:
        """The consumer has caught up: from now on messages go out as they come."""
        self._over = True

    def _fire(self) -> None:
        self._timer = None
        self._wake()

    def stop(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
