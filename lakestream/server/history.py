"""Old messages for the event loop.

Belongs here: the asyncio side of reading a stream's table, whose reader itself is synchronous and runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakestream.log.record import Record
from lakestream.server.runtime import ThreadIo

if TYPE_CHECKING:
    from lakestream.lake.cache import BlockCache
    from lakestream.lake.history import TableHistory


class SharedCache:
    """The block cache of all streams of a server, made when the first of them is read from the lake."""

    def __init__(self) -> None:
        self._cache: BlockCache | None = None

    def get(self) -> BlockCache:
        """The cache; loads pyarrow."""
        if self._cache is None:
            from lakestream.lake.cache import BlockCache

            self._cache = BlockCache()
        return self._cache


class ThreadHistory:
    """`History` over one stream's Delta table. The reader (and deltalake with it) is loaded at the first read."""

    def __init__(self, table: str, io: ThreadIo, cache: SharedCache) -> None:
        self._path = table
        self._cache = cache
        self._io = io
        self._table: TableHistory | None = None
        self._one_at_a_time = asyncio.Lock()

    def _open(self) -> TableHistory:
        if self._table is None:
            from lakestream.lake.history import TableHistory  # loads pyarrow and deltalake

            self._table = TableHistory(self._path, self._cache.get())
        return self._table

    async def read(self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None = None) -> list[Record]:
        """See `History.read`."""
        async with self._one_at_a_time:
            return await self._io.call(lambda: self._open().read(first, last, limit, subjects))

    async def first_at(self, time_ns: int) -> int:
        """See `History.first_at`."""
        async with self._one_at_a_time:
            return await self._io.call(lambda: self._open().first_at(time_ns))

    def close(self) -> None:
        """The stream is gone: its blocks leave the cache."""
        if self._table is not None:
            self._table.close()
            self._table = None
