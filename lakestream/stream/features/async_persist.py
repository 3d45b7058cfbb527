"""Streams whose acks do not wait for the disk: `persist_mode: async`.

Belongs here: when what such a stream has written is made durable. A write counts once the system has taken it, so a
server that is killed loses nothing, and a machine that loses its power loses at most what came since the last sync.
Creating the stream is not relaxed, only what happens to it then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakestream.ports import Timer
    from lakestream.stream.assembly import Stream

ASYNC_SYNC_NS = 1_000_000_000
"""The longest time between a write of such a stream and its sync (1 s)."""


class Syncing:
    """A part of one stream; see `parts.Part`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._timer: Timer | None = None
        self._relaxed = False

    def start(self) -> None:
        """See `Part.start`."""
        stream = self._stream
        self._relaxed = stream.config.persist_mode == "async" and not stream.replicated
        if self._relaxed:
            stream.store.log.relax()

    def stop(self) -> None:
        """See `Part.stop`. Whoever closes the log syncs it."""
        self._relaxed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def written(self) -> None:
        """Entries were written and count."""
        if self._relaxed and self._timer is None:
            self._arm()

    def _arm(self) -> None:
        self._timer = self._stream.clock.call_later(ASYNC_SYNC_NS, self._due)

    def _due(self) -> None:
        self._timer = None
        stream = self._stream
        if stream.failed is None and stream.store.log.unsynced:
            self._arm()  # a write that is under way may be in the way of this one
            stream.group.sync()
