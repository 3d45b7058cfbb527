"""The streaming source `lakestream_segments`: news from the staging area, for Spark.

Belongs here: how Spark Structured Streaming learns that segments were staged. An offset is
`{staging directory: last log index staged}` over all streams, so that one query serves them all and an idle stream
costs next to nothing (scan.py). A row names a stream with news; the segments themselves are read by the compaction of
that stream, in tasks of its own (compaction.py), because what has to be done is decided by the table, not by the
checkpoint.

Spark loads this module in Python workers: `lakestream` has to be on their path (lake/spark/session.py sees to it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from lakestream.lake.files import paths, staging
from lakestream.lake.files.scan import Scanner

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "lakestream_segments"
SCHEMA = "directory string, first_index bigint, last_index bigint, bytes bigint"


class SegmentsSource(DataSource):
    """Spark data source `lakestream_segments`; option `lake`: the lake's root."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> str:
        """One row for each newly staged segment."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> SegmentsReader:
        """The stream reader."""
        return SegmentsReader(self.options["lake"])


class News(InputPartition):
    """What came to some streams: (staging directory, after this log index, through that one)."""

    def __init__(self, streams: Sequence[tuple[str, int, int]]) -> None:
        self.streams = list(streams)


class SegmentsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Tells how far each stream's staging area reaches."""

    def __init__(self, lake: str) -> None:
        self._root = paths.root(lake)
        self._scanner = Scanner(lake)
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Before the first segment of every stream."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """All news at once; the compaction of a stream bounds its own commits."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what `--once` has to do."""
        self._target = self._heads()

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
        """The last staged index of each stream. A stream whose segments have all left staging stays where it was."""
        heads = self._target if self._target is not None else self._heads()
        return {directory: max(index, start.get(directory, 0)) for directory, index in heads.items()}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """One partition for all: it only carries names."""
        news = [(name, start.get(name, 0), index) for name, index in sorted(end.items()) if index > start.get(name, 0)]
        return [News(news)] if news else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The newly staged segments."""
        import pyarrow as pa

        assert isinstance(partition, News)
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
        """Nothing to do: the server takes segments out of staging, by the position in the table."""

    def stop(self) -> None:
        """Nothing to release."""

    def _heads(self) -> dict[str, int]:
        live, _ = staging.current(self._scanner.scan())
        return {stream.directory.removeprefix(f"{self._root}/"): stream.last_index for stream in live}
