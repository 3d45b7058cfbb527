"""The tables of the lake for monitoring.

Belongs here: the size of a table and its last commits. The commits are read from its log in a thread, again only once
there is another version, and not within `REFRESH_NS`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import LogCommit, TableLog
from lakestream.lake.table.policy import TARGET_BYTES
from lakestream.lake.table.state import TableFollower, TableState
from lakestream.ops.monitoring.monitored import MAX_COMMITS
from lakestream.ports import Clock
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.gotime import format_time
from lakestream.runtime import ThreadIo

REFRESH_NS = 5_000_000_000
"""Time within which a table is not read again (5 s)."""

MAX_KEPT = 1_000
"""Tables whose figures are kept (1,000); the one that was read first goes for another."""


class _Began(msgspec.Struct, frozen=True):
    """Start of a compaction, ms since the epoch, as its commit states it in its userMetadata; 0: unknown."""

    began_ms: int = 0


_BEGAN = msgspec.json.Decoder(_Began)


class ReadFigures(msgspec.Struct, frozen=True):
    """A table as it was read.

    Attributes:
        read_ns: when.
        at: epoch and version of the table.
        table: the `table` object of /lakez; None: there is no table yet.
        commits: its last commits, the newest first.
    """

    read_ns: int
    at: tuple[int, int] = (0, -1)
    table: dict[str, Any] | None = None
    commits: list[dict[str, Any]] = []
    error: str = ""


class TableFigures:
    """The figures of a lake's tables."""

    def __init__(self, clock: Clock, io: ThreadIo) -> None:
        self._clock, self._io = clock, io
        self._kept: dict[str, ReadFigures] = {}
        self._turn = asyncio.Lock()  # the threads are those of the log: monitoring takes one of them at most

    async def read(self, follower: TableFollower) -> ReadFigures:
        """Return the figures of a table, which may be some seconds old."""
        async with self._turn:
            return await self._read(follower)

    async def _read(self, follower: TableFollower) -> ReadFigures:
        path = follower.table
        known = self._kept.get(path)
        if known is not None and self._clock.steady() - known.read_ns < REFRESH_NS:
            return known
        now = self._clock.steady()
        try:
            found = await self._io.call(lambda: _figures(follower, now, known))
        except (LakeError, OSError, ValueError) as error:
            found = ReadFigures(now, error=str(error))
        self._kept.pop(path, None)
        self._kept[path] = found
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return found


def _figures(follower: TableFollower, now_ns: int, known: ReadFigures | None) -> ReadFigures:
    """Read what is new of a table's log. Blocks."""
    try:
        state = follower.advance()
    except FileNotFoundError:
        return ReadFigures(now_ns)
    at = state.head.epoch, state.version
    if known is not None and known.at == at:
        return msgspec.structs.replace(known, read_ns=now_ns)
    log = TableLog(open_storage(follower.table), follower.table)
    commits = []
    for version in range(state.version, max(state.version - MAX_COMMITS, -1), -1):
        try:
            commits.append(_commit(log.commit(version)))
        except FileNotFoundError:  # log clean-up
            break
    return ReadFigures(now_ns, at, _sizes(state), commits)


def _sizes(state: TableState) -> dict[str, Any]:
    files, below = state.files, TARGET_BYTES // 2
    small = [file for file in files if file.size < below]
    gone = sum(file.deleted.cardinality for file in files if file.deleted is not None)
    return {
        "version": state.version,
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "small_files": len(small),
        "small_bytes": sum(file.size for file in small),
        "rows": sum(file.rows for file in files) - gone,
    }


def _commit(commit: LogCommit) -> dict[str, Any]:
    info = commit.info
    metrics = info.operation_metrics
    page = {
        "version": commit.version,
        "time": format_time(commit.time_ms * 1_000_000),
        "operation": info.operation,
        "messages": int(metrics.get("numOutputRows", 0)) if info.operation == "WRITE" else 0,
        "files_added": sum(action.add is not None for action in commit.actions),
        "files_removed": sum(action.remove is not None for action in commit.actions),
    }
    duration = _duration_ms(commit.time_ms, info.user_metadata, metrics)
    return page if duration is None else page | {"duration_ms": duration}


def _duration_ms(time_ms: int, metadata: str | None, metrics: dict[str, Any]) -> int | None:
    """Return the duration of what made a commit, ms; None: unknown."""
    if (taken := metrics.get("executionTimeMs")) is not None:
        return int(taken)
    try:
        began_ms = _BEGAN.decode(metadata or "{}").began_ms
    except DECODE_ERRORS:
        return None
    return max(0, time_ms - began_ms) if began_ms else None
