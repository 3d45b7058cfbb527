"""Streams whose acks do not wait for the disk: `persist_mode: async`.

Belongs here: when what such a stream has written is made durable. A write counts once the system has taken it, so a
server that is killed loses nothing, and a machine that loses its power loses at most what came since the last sync.
Creating the stream is not relaxed, only what happens to it then.
"""

from __future__ import annotations

from lakestream.log.store.store import Store
from lakestream.ports import Clock, Timer
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.feature import NEVER, Feature
from lakestream.stream.core.pipeline import Pipeline

ASYNC_SYNC_NS = 1_000_000_000
"""The longest time between a write of such a stream and its sync (1 s)."""


class AsyncPersist(Feature):
    """Syncs one stream's log from time to time instead of before each ack."""

    def __init__(self, clock: Clock, store: Store, pipeline: Pipeline) -> None:
        self._clock, self._store, self._pipeline = clock, store, pipeline
        self._config = StreamConfig()
        self._timer: Timer | None = None
        self._relaxed = False

    def configure(self, config: StreamConfig) -> None:
        self._config = config

    def active(self, hook: str) -> bool:
        return hook != "committed" or self._config.persist_mode == "async"

    def lead(self, recovered: bool) -> None:
        self._relaxed = self._config.persist_mode == "async" and not self._pipeline.replicated
        if self._relaxed:
            self._store.log.relax()

    def follow(self) -> None:
        """Cease to sync; closing the log syncs it."""
        self._relaxed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def acts_at(self) -> int:
        return 0 if self._timer is not None else NEVER

    def committed(self) -> None:
        if self._relaxed and self._timer is None:
            self._arm()

    def _arm(self) -> None:
        self._timer = self._clock.call_later(ASYNC_SYNC_NS, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._pipeline.failed is None and self._store.log.unsynced:
            self._arm()  # a write that is under way may be in the way of this one
            self._pipeline.group.sync()
