"""Incomplete messages of all client connections.

Belongs here: the limit of the memory that messages take of which only a part has come (max_incomplete_total). Nothing
here costs anything for commands that come whole, or nearly so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakestream.config.options import Options

COUNTED_BYTES = 64 << 10
"""Incomplete messages up to this size (64 KiB) are not counted."""

RELIEF = 8
"""Above the limit, connections are closed until an eighth of it is free."""

TEXT, REASON = "maximum incomplete messages exceeded", "Maximum Incomplete Messages Exceeded"
"""Text of -ERR, and close reason."""


class Sender(Protocol):
    """A connection."""

    def turn_away(self, text: str, reason: str) -> None:
        """Close, and say why before."""


class Incomplete:
    """The incomplete messages of a server's clients.

    Args:
        limits: returns the current settings.

    Attributes:
        total: their bytes.
    """

    def __init__(self, limits: Callable[[], Options]) -> None:
        self._limits = limits
        self.total = 0
        self._sizes: dict[Sender, int] = {}

    def holds(self, sender: Sender, size: int) -> None:
        """Note the bytes that a connection holds; 0: none."""
        self.total += size - self._sizes.pop(sender, 0)
        if size:
            self._sizes[sender] = size
            limits = self._limits()
            # One message alone may have max_payload.
            limit = max(limits.max_incomplete_total, limits.max_payload)
            if self.total > limit:
                self._relieve(limit)

    def _relieve(self, limit: int) -> None:
        """Close the connections with the most bytes."""
        largest = sorted(self._sizes, key=self._sizes.__getitem__)
        while largest and self.total > limit - limit // RELIEF:
            sender = largest.pop()
            self.holds(sender, 0)
            sender.turn_away(TEXT, REASON)
