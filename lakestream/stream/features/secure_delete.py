"""When the bytes of securely deleted messages leave the log.

Belongs here: the timer. What is taken out of which file is `log/store/shred.py`'s, what leaves the lake's files is up
to the maintenance of tables (`lake/write/vacuum.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakestream.ports import Timer
    from lakestream.stream.assembly import Stream

DELAY_NS = 10_000_000_000
"""How long deletions are gathered before the segments that hold them are written anew (10 s): the time after which the
open segment, which has to end for that, would be sealed anyway."""


class Shredding:
    """A part of one stream; see `parts.Part`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._timer: Timer | None = None
        self._started = False

    def start(self) -> None:
        """See `Part.start`. What an earlier process did not get to is done now."""
        self._started = True
        if self._stream.store.doomed:
            self._arm()

    def stop(self) -> None:
        """See `Part.stop`."""
        self._started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def asked(self) -> None:
        """A message was deleted whose bytes shall go."""
        if self._started and self._timer is None:
            self._arm()

    def _arm(self) -> None:
        self._timer = self._stream.clock.call_later(DELAY_NS, self._due)

    def _due(self) -> None:
        self._timer = None
        stream = self._stream
        if stream.store.shred() and stream.failed is None and not stream.closed:
            self._arm()
