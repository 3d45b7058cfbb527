"""Flow control of one query: batches that may be under way.

Belongs here: counting what was sent and acknowledged. No I/O.
"""

from __future__ import annotations

import asyncio


class Window:
    """Batches under way to one client.

    Args:
        size: how many may be.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.sent = self.acknowledged = 0
        self._changed = asyncio.Event()

    @property
    def open(self) -> bool:
        """Return True if another batch may be sent."""
        return self.sent - self.acknowledged < self._size

    def acknowledge(self, number: int) -> None:
        """Note that the client has this batch and those before it."""
        if self.acknowledged < number <= self.sent:
            self.acknowledged = number
            self._changed.set()

    async def wait(self) -> None:
        """Return when another batch may be sent."""
        while not self.open:
            self._changed.clear()
            await self._changed.wait()
