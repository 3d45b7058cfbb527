"""Places for downloads, shared among recipients.

Belongs here: a limit on what runs at the same time, of all and of each, so that one recipient cannot take every place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lakestream_sharing.errors import Unavailable


class Slots:
    """Places that are taken and given back.

    Args:
        total: of all.
        each: of one owner.
    """

    def __init__(self, total: int, each: int) -> None:
        self._total, self._each = total, each
        self._taken: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, owner: str, wait_s: float) -> AsyncIterator[None]:
        """Context with a place. Raises Unavailable when there is none in time."""
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._is_free(owner))
                self._taken[owner] += 1
        except TimeoutError:
            raise Unavailable("too many files are being sent: try again") from None
        try:
            yield
        finally:
            async with self._changed:
                self._taken[owner] -= 1
                if not self._taken[owner]:
                    del self._taken[owner]
                self._changed.notify_all()

    def _is_free(self, owner: str) -> bool:
        return self._taken.total() < self._total and self._taken[owner] < self._each
