"""The streaming source `lakestream_segments`: what is staged and not in its table yet, for Spark.

Belongs here: which streams a micro-batch offers, and through which log index. An offset says for each stream's staging
directory through which log index its segments were offered, and how often it was offered for another reason. A row is
one segment's part of one stream; the rows of a stream follow on the position of its table.

Spark asks all of this in one Python process on the driver's machine, and has the rows read in the tasks, so this module
is on the path of Python workers (packages/spark/lakestream_spark/session.py).
"""

# The problem. Spark wants a source whose offsets say what is done: a batch is [start, end), and a checkpoint restarts
# where it ended. Here the tables say what is done. Each holds its position in the same commit as its rows, so it is
# right after any crash, and the checkpoint may be older, newer or lost. Two truths about one thing are one too many.
#
# So the offset is made to mean less: what was *offered*. It makes batches reproducible for Spark (the same offsets give
# the same rows, or fewer, as the tables have moved on), and it lets a restart skip streams in which nothing is new.
# Whether a row is needed is decided by the position, three times: here (`partitions`), in the plan
# (stream_compaction.py), and in the commit itself.
#
# The life of a stream in this module:
#
#     unseen   at a start. The first look compares its table with what is staged: behind → offered, and open
#     open     may lack something. Offered again when due:
#                  progress since the last offer       at once
#                  none: it waits for something        after WAIT_SECONDS
#                  refused or deleted, no progress     after pauses that double, up to LONGEST_PAUSE_SECONDS
#              its table is no longer behind → settled
#     settled  nothing to do. A new segment → offered, and open again
#
# An offer without a new segment must change the offset, or Spark would not run a batch: `again` counts those.
#
# Why a stream that failed is offered here, and not kept in a list by the compactor. There is one way into a batch then:
# deletions, late repairs, failed streams and new segments all come as offers, and whoever wants to know why a table
# does not follow reads one state.
#
# Waiting is inside `latestOffset`. Spark's own trigger would ask at intervals, and a fresh segment would wait for the
# next one. Here a server that touches the staging area (`News`) ends the wait at once.
#
# Fairness. A batch takes BATCH_BYTES, the smallest backlogs first, so that a stream with a long backlog delays no
# other; one stream gets at most `commit_bytes`. The rest stays beyond the offset, for the next batch. `balanced` then
# cuts the rows into tasks of about equal bytes, and splits a stream only where one part fills a task: each part becomes
# files of its own.
#
# With a target (`--once`) the heads of all streams are fixed at the start: what is staged meanwhile is not waited for,
# and a stream that makes no progress is not offered again, so the run ends.
#
# What is ugly: Spark calls `latestOffset` and `partitions` in one Python process, and `read` in others that get a
# pickled copy. State in this object is therefore the first process's alone, and rows must carry all that a task needs.

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from lakestream.lake.errors import LakeError
from lakestream.lake.staging import staging
from lakestream.lake.staging.scan import Scanner
from lakestream.lake.staging.staging import StagedSegment, StagedStream
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import batches, state
from lakestream.lake.table.state import TableFollower
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_spark.write.backlog import has_removed_rows
from lakestream_spark.write.news import News

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "lakestream_segments"
SCHEMA = "directory string, path string, after bigint, through bigint, bytes bigint"
_TYPES = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int64())

BATCH_BYTES = 256 * 1024 * 1024
"""Maximum size of the segments of one batch, unless it has one of each stream. Smaller backlogs come first."""
TASK_BYTES = 32 * 1024 * 1024
"""Size of the segments that one task decodes before a second one is worth its start."""
STREAM_BYTES = 256 * 1024
"""Cost of the files of a stream beside its bytes, for balancing tasks."""

WAIT_SECONDS = 1.0
"""Pause before an open stream that does not fail is offered again."""
LONGEST_PAUSE_SECONDS = 60.0
"""Longest pause before a failing stream is offered again; the first is WAIT_SECONDS, each further one twice as long.
Whoever has removed the cause should not have to wait for minutes."""


class Offset(msgspec.Struct, frozen=True):
    """Offset of the source, by staging directory below the lake's root.

    `through`: the last log index that was offered; `again`: how often a stream was offered without a new segment.
    """

    through: dict[str, int] = {}
    again: dict[str, int] = {}

    def offered_since(self, start: Offset) -> dict[str, int]:
        """Return the log index through which each stream is offered by a batch from `start` to this offset."""
        return {
            name: index
            for name, index in self.through.items()
            if index > start.through.get(name, 0) or self.again.get(name, 0) != start.again.get(name, 0)
        }


def offset_of(value: object) -> Offset:
    """Return an offset as Spark keeps it; one that is not ours (an older release's) is the first one."""
    try:
        return msgspec.convert(value, Offset, strict=True)
    except DECODE_ERRORS:
        return Offset()


class SegmentsSource(DataSource):
    """Spark data source `lakestream_segments`.

    Options:
        lake: the lake's root.
        wait: maximum time in seconds for which a trigger waits for news; 0: it does not wait.
        tasks: maximum number of partitions of a batch.
        commit_bytes: maximum size of a stream's segments in one batch, unless a single one is larger.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return the schema: one row for each segment of a stream."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> SegmentsReader:
        """Return the stream reader."""
        return SegmentsReader(
            self.options["lake"],
            float(self.options.get("wait", "0")),
            int(self.options.get("tasks", "1")),
            int(self.options.get("commit_bytes", str(batches.COMMIT_BYTES))),
        )


Row = tuple[str, str, int, int, int]
"""Directory, path, after, through, bytes. A stream without segments has one row without a path."""


class Segments(InputPartition):
    """Rows of one task."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)


class _Open(msgspec.Struct):
    """A stream whose table may lack something: when it is offered next, and its position at the last offer."""

    due: float
    pause: float
    position: int


class SegmentsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides which streams are offered. Used by one thread.

    Args:
        lake, wait, tasks, commit_bytes: see `SegmentsSource`.
    """

    def __init__(
        self,
        lake: str,
        wait: float = 0.0,
        tasks: int = 1,
        commit_bytes: int = batches.COMMIT_BYTES,
    ) -> None:
        self._root = paths.root(lake)
        self._storage = open_storage(self._root)
        self._news, self._wait = News(lake), wait
        self._tasks, self._commit_bytes = tasks, commit_bytes
        self._scanner = Scanner(lake)
        self._watches: dict[str, TableFollower] = {}
        self._seen: set[str] = set()
        self._open: dict[str, _Open] = {}
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first segment of every stream."""
        return msgspec.to_builtins(Offset())  # type: ignore[no-any-return]

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit of Spark's; BATCH_BYTES limits a batch."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the work of `--once`."""
        self._target = {name: stream.last_index for name, stream in self._scan().items()}

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` if there is nothing to do after a wait for news."""
        before = offset_of(start)
        end = time.monotonic() + self._wait
        while True:
            found, offered = self._next(before)
            if offered:
                return msgspec.to_builtins(found)  # type: ignore[no-any-return]
            left = end - time.monotonic()
            if left <= 0 or self._target is not None:
                return dict(start)
            due = min((each.due for each in self._open.values()), default=end)
            self._news.wait(max(min(left, due - time.monotonic()), 0.0))

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the rows of a batch, balanced by bytes."""
        rows: list[list[Row]] = []
        for name, through in sorted(offset_of(end).offered_since(offset_of(start)).items()):
            reached, found = self._position(name), []
            for each in staging.segments(f"{self._root}/{name}"):
                if reached < each.last_index <= through:
                    found.append((name, each.path, reached, each.last_index, each.size))
                    reached = each.last_index
            rows.append(found or [(name, "", reached, reached, 0)])
        return [Segments(part) for part in balanced(rows, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        assert isinstance(partition, Segments)
        columns: list[Any] = list(zip(*partition.rows, strict=True)) or [[] for _ in _TYPES]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, _TYPES, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["directory", "path", "after", "through", "bytes"])

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the server deletes staged segments, by the position in the table."""

    def stop(self) -> None:
        """Do nothing."""

    # Which streams

    def _scan(self) -> dict[str, StagedStream]:
        return {stream.directory.removeprefix(f"{self._root}/"): stream for stream in self._scanner.scan()}

    def _next(self, start: Offset) -> tuple[Offset, bool]:
        """Return the end of a batch that begins at `start`, and whether it offers any stream."""
        found, now = self._scan(), time.monotonic()
        _, gone = staging.current(list(found.values()))
        deleted = {stream.directory for stream in gone}
        self._seen &= found.keys()
        for known in (self._watches, self._open):
            for name in known.keys() - found.keys():
                del known[name]
        through = {name: start.through.get(name, 0) for name in found}
        again = {name: count for name, count in start.again.items() if name in found}
        news = [(name, stream) for name, stream in found.items() if self._head(name, stream) > through[name]]
        further = self._limited(news, through, now)
        through |= further
        owed = False
        for name, stream in found.items():
            if name not in further and self._is_owed(name, stream, stream.directory in deleted, now):
                again[name], owed = again.get(name, 0) + 1, True
        return Offset(through, again), owed or bool(further)

    def _head(self, name: str, stream: StagedStream) -> int:
        """Return the last log index of a stream that may be offered."""
        return stream.last_index if self._target is None else min(stream.last_index, self._target.get(name, 0))

    def _is_owed(self, name: str, stream: StagedStream, deleted: bool, now: float) -> bool:
        """Return True if a stream without new segments is offered again; note whether it is open."""
        known = self._open.get(name)
        urgent = deleted or stream.damaged or stream.refused
        if known is None:
            if name in self._seen and not urgent:
                return False
            known = self._open[name] = _Open(now, 0.0, -1)
        elif urgent and known.due > now:
            return False
        reached = self._position(name)
        self._seen.add(name)
        if not urgent and not self._is_behind(name, stream, reached):
            del self._open[name]
            return False
        # `--once` goes on as long as there is progress.
        if reached <= known.position and (known.due > now or self._target is not None):
            return False
        failing = stream.refused or deleted
        known.pause = min(max(known.pause * 2, WAIT_SECONDS), LONGEST_PAUSE_SECONDS) if failing else WAIT_SECONDS
        known.due, known.position = now + known.pause, reached
        return True

    def _is_behind(self, name: str, stream: StagedStream, reached: int) -> bool:
        """Return True if a stream's table lacks staged segments, or may still have rows of removed messages."""
        watch = self._watches.get(name)
        try:
            return stream.last_index > reached or (watch is not None and has_removed_rows(watch))
        except (LakeError, OSError):
            return True  # the batch reports it

    def _position(self, name: str) -> int:
        """Return the log index through which a stream's table holds it; 0 also while that cannot be read."""
        try:
            watch = self._watches.get(name)
            if watch is None:
                identity = staging.read_identity(f"{self._root}/{name}")
                if identity is None:
                    return 0
                table = state.kept_table if state.has_kept_table(self._storage, identity) else state.table_of
                watch = self._watches[name] = TableFollower(table(self._storage, identity), identity.uid)
            return watch.position() or 0
        except (LakeError, OSError):
            return 0  # the batch reports it

    def _limited(
        self, news: Sequence[tuple[str, StagedStream]], through: Mapping[str, int], now: float
    ) -> dict[str, int]:
        """Return the log index through which each stream with new segments is offered, smaller backlogs first.

        A stream whose earlier segments fill its share is left out, until they are in its table.
        """
        waiting: list[tuple[int, str, int, list[StagedSegment]]] = []
        for name, stream in news:
            reached, head = self._position(name), self._head(name, stream)
            segments = [each for each in staging.segments(stream.directory) if reached < each.last_index <= head]
            waiting.append((sum(each.size for each in segments), name, head, segments))
        found, left = dict[str, int](), BATCH_BYTES
        for _, name, head, segments in sorted(waiting):
            index, room = head, min(left, self._commit_bytes)
            for number, each in enumerate(segments):
                room -= each.size
                if number and room < 0:
                    index = segments[number - 1].last_index
                    break
                left -= each.size
            if index > through[name]:
                found[name] = index
                self._seen.add(name)
                self._open[name] = _Open(now + WAIT_SECONDS, WAIT_SECONDS, self._position(name))
        return found


def balanced(streams: Sequence[Sequence[Row]], tasks: int) -> list[list[Row]]:
    """Distribute the rows of streams over at most `tasks` partitions of about the same size.

    A stream is only split where a part of it fills a task: each part becomes files of its own.
    """
    sizes = [sum(row[4] for row in rows) for rows in streams]
    total = sum(sizes) + STREAM_BYTES * len(sizes)
    count = max(1, min(tasks, -(-total // TASK_BYTES)))
    found: list[list[Row]] = [[] for _ in range(count)]
    filled = 0
    for rows, size in zip(streams, sizes, strict=True):
        for row in rows:
            weight = row[4] if size > TASK_BYTES else size
            found[min((filled + weight // 2) * count // total, count - 1)].append(row)
            if size > TASK_BYTES:
                filled += weight
        filled += STREAM_BYTES + (size if size <= TASK_BYTES else 0)
    return [part for part in found if part]
