"""The streaming source `lakestream_segments`: newly staged segments, for Spark.

Belongs here: how Spark Structured Streaming learns that segments were staged. An offset is `{staging directory: last
log index staged}` over all streams, so that one query serves them all and an idle stream costs next to nothing
(files/scan.py). A row names a stream; stream_compaction.py reads the segments in tasks of its own, because the table
and not the checkpoint decides what has to be done.

Spark loads this module in Python workers, which need `lakestream` on their path (lake/spark/session.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from lakestream.lake.files import paths, staging
from lakestream.lake.files.scan import News, Scanner

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "lakestream_segments"
SCHEMA = "directory string, first_index bigint, last_index bigint, bytes bigint"


class SegmentsSource(DataSource):
    """Spark data source `lakestream_segments`.

    Options:
        lake: the lake's root.
        wait: maximum time in seconds for which a trigger waits for news; 0: it does not wait.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return the schema: one row for each newly staged segment."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> SegmentsReader:
        """Return the stream reader."""
        return SegmentsReader(self.options["lake"], float(self.options.get("wait", "0")))


class NewSegments(InputPartition):
    """Newly staged segments of some streams: (staging directory, after this log index, through that one)."""

    def __init__(self, streams: Sequence[tuple[str, int, int]]) -> None:
        self.streams = list(streams)


class SegmentsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reports the last staged log index of each stream.

    Args:
        lake: the lake's root.
        wait: see `SegmentsSource`. So a batch begins when something is staged instead of at the next trigger.
    """

    def __init__(self, lake: str, wait: float = 0.0) -> None:
        self._root = paths.root(lake)
        self._news, self._wait = News(lake), wait
        self._scanner = Scanner(lake)
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before the first segment of every stream."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit; the compaction of a stream limits its own commits."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the work of `--once`."""
        self._target = self._heads()

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the last staged index of each stream. A stream without staged segments keeps its index."""
        if self._target is not None:
            return _raised(start, self._target)
        end = time.monotonic() + self._wait
        while (found := _raised(start, self._heads())) == start and self._news.wait(end - time.monotonic()):
            continue
        return found

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """Return one partition, which only carries names."""
        new = [(name, start.get(name, 0), index) for name, index in sorted(end.items()) if index > start.get(name, 0)]
        return [NewSegments(new)] if new else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the newly staged segments."""
        assert isinstance(partition, NewSegments)
        rows: list[tuple[str, int, int, int]] = []
        for directory, after, through in partition.streams:
            for each in staging.segments(f"{self._root}/{directory}"):
                if after < each.last_index <= through:
                    rows.append((directory, each.first_index, each.last_index, each.size))
        columns: list[Any] = list(zip(*rows, strict=True)) or [[], [], [], []]
        types = (pa.string(), pa.int64(), pa.int64(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["directory", "first_index", "last_index", "bytes"])

    def commit(self, end: Mapping[str, int]) -> None:
        """Do nothing: the server deletes staged segments, by the position in the table."""

    def stop(self) -> None:
        """Do nothing."""

    def _heads(self) -> dict[str, int]:
        live, _ = staging.current(self._scanner.scan())
        return {stream.directory.removeprefix(f"{self._root}/"): stream.last_index for stream in live}


def _raised(start: Mapping[str, int], heads: Mapping[str, int]) -> dict[str, int]:
    return {directory: max(index, start.get(directory, 0)) for directory, index in heads.items()}
