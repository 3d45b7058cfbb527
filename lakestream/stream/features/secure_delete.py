"""Secure deletion: the bytes of deleted messages leave the log.

Belongs here: the timer. What is taken out of which file is `log/store/shred.py`'s, what leaves the lake's files is up
to the maintenance of tables (`packages/spark/lakestream_spark/write/vacuum.py`).
"""

from __future__ import annotations

from lakestream.log.store.store import Store
from lakestream.ports import Clock, Timer
from lakestream.stream.core.feature import NEVER, Feature
from lakestream.stream.core.operations import DeleteMessage, Operation
from lakestream.stream.core.pipeline import Pipeline

DELAY_NS = 10_000_000_000
"""Delay that collects deletions before the segments that hold them are rewritten (10 s). The open segment, which has to
be sealed for that, would be sealed after this time anyway."""


class SecureDelete(Feature):
    """Removes the bytes of one stream's deleted messages from its log."""

    def __init__(self, clock: Clock, store: Store, pipeline: Pipeline) -> None:
        self._clock, self._store, self._pipeline = clock, store, pipeline
        self._timer: Timer | None = None
        self._started = False

    def lead(self, recovered: bool) -> None:
        """Begin, with the messages that an earlier process did not get to."""
        self._started = True
        self._arm()

    def follow(self) -> None:
        self._started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def acts_at(self) -> int:
        return 0 if self._store.doomed else NEVER

    def applied(self, operation: Operation, own: bool) -> None:
        if isinstance(operation, DeleteMessage) and operation.erase:
            self._arm()

    def _arm(self) -> None:
        if self._started and self._timer is None and self._store.doomed:
            self._timer = self._clock.call_later(DELAY_NS, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._store.shred() and self._pipeline.failed is None and not self._pipeline.closed:
            self._timer = self._clock.call_later(DELAY_NS, self._due)
