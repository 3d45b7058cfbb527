"""Time travel: a stream as it was.

Belongs here: which streams have a past that can be asked for (`lakestream.time_travel` in their metadata), and finding
the last message of each subject at a point of it. A recent point is answered from the log and the index of what lives:
to that, what the log says was removed later is added. An older one is the lake's
(lake/read/history/past_table.py). The two meet without a gap: what is behind the table's position is in the log for as
long as it is not in the table.

What was deleted securely (its bytes shall be found nowhere) is no part of the past either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from lakestream.log.format.departures import Point
from lakestream.log.format.errors import Compacted
from lakestream.log.format.record import Record
from lakestream.log.store.past import LogPast
from lakestream.log.store.store import Store
from lakestream.ports import Clock, History, Io, PastUnavailableError
from lakestream.protocol.api.errors import for_clients
from lakestream.protocol.subjects import SubjectFilters
from lakestream.stream.awaiting import in_thread
from lakestream.stream.core import limits, offline
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.operations import Removing, UpdateStream
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.reader import Reader

TIME_TRAVEL: Final = "lakestream.time_travel"
RETENTION: Final = "lakestream.retention"

ATTEMPTS: Final = 5
"""Looks at log and table when segments leave the one for the other meanwhile."""

SUBJECTS: Final = 2_000
"""Subjects of the index that are looked at in one turn of the event loop."""


class _Moved(Exception):
    """Raised when entries have left the log while it was read."""


def travels(config: StreamConfig) -> bool:
    """Return True if a stream keeps its past. The table of an archive has a history of its own."""
    metadata = config.metadata
    return metadata.get(TIME_TRAVEL, "off") != "off" and config.in_lake and metadata.get(RETENTION) != "archive"


class TimeTravel(Feature):
    """The past of one stream, where its metadata asks for one."""

    def __init__(self, name: str, clock: Clock, io: Io, store: Store, reader: Reader, pipeline: Pipeline) -> None:
        self._name, self._clock, self._io = name, clock, io
        self._store, self._reader, self._pipeline = store, reader, pipeline
        self._config = StreamConfig()
        self._travels = False

    def configure(self, config: StreamConfig) -> None:
        self._config, self._travels = config, travels(config)
        self._store.keep_departures(self._travels)

    def applies_single_messages(self) -> bool:
        """Return True if the stream can be asked how it was after each message of a batch, and the batch as a whole
        does not tell it: limits of the whole stream, and interest, remove messages of other subjects too."""
        return self._travels and (limits.trims_by_size(self._config) or self._config.retention == "interest")

    def removal_time(self, operation: Removing) -> int:
        """Return now for an operation that can remove messages, and let no later message be earlier.

        Only here times of removals are compared with times of messages. Other streams keep the time of the last
        message, so that an import may still bring messages that are older than now. A mirror's time is never moved: its
        messages have the times of their origin.
        """
        if isinstance(operation, UpdateStream):
            after = offline.stream_config(operation.config)
            dated = travels(after) and limits.lowered(self._config, after)
        else:
            dated = self._travels
        if not dated:
            return 0
        now = max(self._pipeline.last_time, self._clock.now())
        if self._config.mirror is None:
            self._pipeline.last_time = now
        return now

    @property
    def past(self) -> Past | None:
        """Return the stream's past; None where its metadata asks for none, or there is no lake to have it."""
        history = self._reader.history
        if history is None or not self._travels:
            return None
        return Past(self._name, self._store, self._io, history)


class PastMessages:
    """Messages of a stream as it was at a point.

    Attributes:
        through: the last sequence that was stored by then.
        seqs: the sequences found, ascending; also of messages that were removed since.
    """

    def __init__(self, past: Past, point: Point, through: int, seqs: list[int]) -> None:
        self._past, self._point = past, point
        self.through, self.seqs = through, seqs

    async def read(self, seqs: Sequence[int], max_bytes: int) -> list[Record]:
        """Return a beginning of `seqs`, some of those found: as many messages as fit into `max_bytes`, at least one.

        Raises PastUnavailableError.
        """
        return await self._past.read(seqs, self._point, max_bytes)


class Past:
    """A stream that can be read as it was."""

    def __init__(self, name: str, store: Store, io: Io, history: History) -> None:
        self._name, self._store, self._io, self._history = name, store, io, history

    async def find(self, patterns: Sequence[bytes], up_to_seq: int, before_ns: int, limit: int) -> PastMessages | None:
        """Return the last message of each matching subject; None when they are more than `limit`.

        Right after `up_to_seq` was stored; or, when that is 0, of what was stored before `before_ns`.
        Raises PastUnavailableError.
        """
        point = Point(up_to_seq, 0 if up_to_seq else before_ns)
        for _ in range(ATTEMPTS):
            try:
                return await self._look(patterns, point, limit)
            except (_Moved, Compacted):
                continue
        raise self._unknown()

    async def _look(self, patterns: Sequence[bytes], point: Point, limit: int) -> PastMessages | None:
        """Find as `find` does. Raise _Moved or Compacted if entries went from the log into the table meanwhile."""
        log = LogPast(self._store)
        through = log.last_seq(point)
        if through is not None and log.holds(through):
            return await self._beyond(patterns, log.by_now(point), through, limit, partial(LogPast.holds, seq=through))
        try:
            was = await self._history.was(patterns, point, limit, log.shredded())
        except Exception as error:
            raise PastUnavailableError(for_clients(error)) from error
        if was.within:
            return None if was.newest is None else PastMessages(self, point, was.through, was.newest)
        log = LogPast(self._store)
        if not log.holds_from(was.position + 1):
            raise self._unknown() if log.first_index <= was.position + 1 else _Moved
        through = log.last_seq(point)
        if not was.kept and (through is None or through <= was.through):
            raise self._unknown()  # what was removed behind the last message of the table, before the next one
        holds = partial(LogPast.holds_from, index=was.position + 1)
        return await self._beyond(
            patterns, log.by_now(point), was.through if through is None else through, limit, holds
        )

    def _unknown(self) -> PastUnavailableError:
        return PastUnavailableError(f"{self._name}: when messages left was not kept for all of that time")

    async def _beyond(
        self, patterns: Sequence[bytes], point: Point, through: int, limit: int, holds: Callable[[LogPast], bool]
    ) -> PastMessages | None:
        """Find what lives and was there by `through`, and what left after the point, which the log knows if it `holds`.

        In pieces, between which others have their turn. What is removed meanwhile is found alive, or among what has
        left: that is looked at later.
        """
        index = self._store.subjects
        newest: dict[bytes, int] = {}
        looked = 0
        for pattern in patterns:
            for some in index.some_matching(pattern):
                for at in range(0, len(some), SUBJECTS):
                    for subject in some[at : at + SUBJECTS]:
                        if seq := index.last_at_or_before(subject, through):
                            newest[subject] = seq
                    if len(newest) > limit:
                        return None
                    looked += min(len(some) - at, SUBJECTS)
                    if looked >= SUBJECTS:
                        looked = 0
                        await asyncio.sleep(0)
        log = LogPast(self._store)
        if not holds(log):
            raise _Moved
        wanted = SubjectFilters(patterns)
        for seqs in await in_thread(self._io, log.returning(point, through)):
            for seq, subject in zip(seqs, log.subjects(seqs), strict=True):
                if seq > newest.get(subject, 0) and wanted.match(subject):
                    newest[subject] = seq
            if len(newest) > limit:
                return None
            await asyncio.sleep(0)
        return PastMessages(self, point, through, sorted(newest.values()))

    async def read(self, seqs: Sequence[int], point: Point, max_bytes: int) -> list[Record]:
        log = LogPast(self._store)
        shredded = {seq for first, last in log.shredded() for seq in range(first, last + 1)}
        if shredded:
            seqs = [seq for seq in seqs if seq not in shredded]
        found, before = log.read(seqs, max_bytes)
        if before:
            try:
                older = await self._history.was_rows(seqs[:before], point, max_bytes)
            except Exception as error:
                raise PastUnavailableError(for_clients(error)) from error
            if [record.seq for record in older] != list(seqs[: len(older)]):
                raise PastUnavailableError(f"{self._name}: messages of that time can no longer be read from the lake")
            left = max_bytes - sum(len(record.data) + len(record.header) + len(record.subject) for record in older)
            if len(older) < before or left <= 0:
                return older
            while found and sum(len(each.data) + len(each.header) + len(each.subject) for each in found) > left:
                found.pop()
            return older + found
        return found
