"""Figures of a server's log writes, for monitoring.

Belongs here: the histograms that all logs of a server share. A write observes once, however many messages it has.
"""

from __future__ import annotations

from lakestream.metrics.histogram import BYTES, COUNTS, SECONDS, Histogram


class WriteFigures:
    """Writes of all logs of a server.

    Attributes:
        sync_seconds: duration of each fdatasync of entries.
        messages, bytes: size of each write that has messages (group commit).
    """

    def __init__(self) -> None:
        self.sync_seconds = Histogram(SECONDS)
        self.messages = Histogram(COUNTS)
        self.bytes = Histogram(BYTES)

    def wrote(self, messages: int, size: int) -> None:
        """Count a write of `size` bytes."""
        if messages:
            self.messages.observe(messages)
            self.bytes.observe(size)
