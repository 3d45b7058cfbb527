"""The Spark data source `lakestream`: a live view of a stream, as a batch and as a stream.

Belongs here: the options, the partitions and the offsets. The driver opens and pins a view
(lakestream_client/lake/view.py), and each task reads a piece of it, a range of the table's sequences or some staged
segments.

    from lakestream_spark.datasource import register

    register(spark) spark.read.format("lakestream").option("lake", "data/lake").option("stream", "ORDERS").load()

Spark loads this module in Python workers, which need `lakestream` on their path (session.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lakestream.lake.errors import LakeError
from lakestream.lake.flush import FlushAnswer, ServerCredentials
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.conditions import Condition, bounds
from lakestream.lake.table.schema import END, REMOVED_DDL, TABLE_DDL
from lakestream_client.lake import flusher
from lakestream_client.lake.flusher import DEFAULT_TIMEOUT_S, Flusher, FlushFailed
from lakestream_client.lake.view import StagedPart, StreamView, is_archive, open_view
from lakestream_spark.session import PUSHDOWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "lakestream"
TASK_RANGES = 4
"""Number of table ranges (view.RANGE_ROWS rows each) that one task reads."""
TASK_BYTES = 16 * 1024 * 1024
"""Maximum size of the staged segments that one task reads together, unless a single one is larger."""


class BadOption(LakeError):
    """Raised for an unknown or invalid option of the data source."""

    def __init__(self, name: str, value: str, wanted: str) -> None:
        super().__init__(f"option {name} = {value!r}: {wanted} is expected")


class StreamReplaced(LakeError):
    """Raised when the stream of a running query was deleted and another one has its name."""

    def __init__(self, stream: str, before: str, now: str) -> None:
        super().__init__(
            f"stream {stream} is not the one that this query's checkpoint is about ({before}, now {now}): it was "
            "deleted and made anew. Begin with a new checkpoint"
        )


class SourceOptions(msgspec.Struct, frozen=True):
    """Parsed options. `start_seq` None: the latest message; `most`: maximum number of messages in a micro-batch, 0: no
    limit."""

    lake: str
    stream: str
    account: str = paths.DEFAULT_ACCOUNT
    server: str | None = None
    flush: bool = True
    timeout: float = DEFAULT_TIMEOUT_S
    start_seq: int | None = 1
    end_seq: int = END
    most: int = 0
    credentials: ServerCredentials = ServerCredentials()

    @classmethod
    def of(cls, options: Mapping[str, str], lake: str | None) -> SourceOptions:
        """Parse the options as Spark passes them.

        Raises:
            BadOption: an option is missing or invalid.
        """
        start = options.get("start_seq", "1")
        return cls(
            lake=paths.root(_required(options, "lake", lake)),
            stream=_required(options, "stream", None),
            account=options.get("account", paths.DEFAULT_ACCOUNT),
            server=options.get("server") or None,
            flush=_boolean(options, "flush", True),
            timeout=_seconds(options, "timeout", DEFAULT_TIMEOUT_S),
            start_seq=None if start == "latest" else _number(options, "start_seq", 1, "a sequence or `latest`"),
            end_seq=_number(options, "end_seq", END, "a sequence"),
            most=_number(options, "maxMessagesPerTrigger", 0, "a number of messages"),
            credentials=ServerCredentials.of(options),
        )

    def open(self, flush: bool | None = None) -> StreamView:
        """Open the live view of the stream."""
        return open_view(
            self.lake,
            self.stream,
            self.account,
            server=self.server,
            flush=self.flush if flush is None else flush,
            timeout=self.timeout,
            credentials=self.credentials,
        )


class Piece(InputPartition):
    """Input of one Spark task: ranges of the table or staged segments, limited to sequences `first` through `last`."""

    def __init__(
        self,
        view: StreamView,
        ranges: Sequence[tuple[int, int]],
        parts: Sequence[StagedPart],
        bounds: tuple[int, int],
    ) -> None:
        self.view = view.for_task(parts, *bounds)
        self.ranges = list(ranges)
        self.first, self.last = bounds


class LakestreamSource(DataSource):
    """Spark data source `lakestream`; the options are in docs/spark-source.md."""

    default_lake: str | None = None
    pushes = False

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return the columns of every table, whatever its partitions; archives have one more."""
        asked = self._asked()
        archive = is_archive(asked.lake, asked.stream, asked.account)
        return TABLE_DDL + (REMOVED_DDL if archive else "")

    def reader(self, schema: StructType) -> ViewReader:
        """Return the batch reader."""
        kind = FilteringReader if self.pushes else ViewReader
        return kind(self._asked(), schema.fieldNames())

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the stream reader."""
        return StreamReader(self._asked(), schema.fieldNames())

    def _asked(self) -> SourceOptions:
        return SourceOptions.of(self.options, self.default_lake)


class PushingSource(LakestreamSource):
    """The same with filter pushdown, for a session that allows it; otherwise Spark rejects such a reader."""

    pushes = True


class ViewReader(DataSourceReader):
    """Reads the stream as of the start of the query."""

    def __init__(self, asked: SourceOptions, columns: Sequence[str]) -> None:
        self._asked = asked
        self._columns = list(columns)
        self._conditions: list[Condition] = []

    def partitions(self) -> Sequence[Piece]:
        """Open the view and cut it into pieces."""
        view = self._asked.open()
        if self._asked.flush and not view.flushed:
            warn_of_missing(view.stream, view.note)
        return pieces(view, *bounds(self._conditions, self._asked.start_seq or view.last_seq + 1, self._asked.end_seq))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a piece's messages."""
        if isinstance(partition, Piece):  # Spark expects None where there are no pieces
            yield from read_piece(partition, self._columns, self._conditions)


class FilteringReader(ViewReader):
    """Applies the query's conditions on subject, seq and time_ns. Spark checks them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over filters; all are returned, since checking them again costs Spark nothing."""
        for each in filters:
            condition = condition_of(each)
            if condition is not None:
                self._conditions.append(condition)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages as they arrive; an offset is the stream's uid and the last sequence that was read."""

    def __init__(self, asked: SourceOptions, columns: Sequence[str]) -> None:
        self._asked = asked
        self._columns = list(columns)
        self._target: int | None = None
        self._flusher: Flusher | None = None
        self._missing = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for tasks, without the connection."""
        return {**self.__dict__, "_flusher": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before `start_seq`, or of the latest message."""
        uid, last = self._head()
        start = self._asked.start_seq
        return _offset(last if start is None else max(start - 1, 0), uid)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxMessagesPerTrigger`."""
        return ReadMaxRows(self._asked.most) if self._asked.most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run."""
        _, self._target = self._head()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset of the last staged message, after a flush."""
        uid, last = self._head()
        self._check(start, uid)
        if self._target is not None:
            last = min(last, self._target)
        begin = int(start["seq"])
        if isinstance(limit, ReadMaxRows) and last - begin > limit.max_rows:
            # Skip sequences before the stream's first one, which would give empty batches.
            floor = self._asked.open(flush=False).floor
            last = min(last, max(begin, floor - 1) + limit.max_rows)
        return _offset(max(begin, last), uid)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[Piece]:
        """Return the pieces of the view with start < seq ≤ end. A repetition after a crash gives the same messages,
        except those deleted since."""
        first, last = int(start["seq"]) + 1, int(end["seq"])
        if first > last:
            return []
        view = self._asked.open(flush=False)
        self._check(end, view.uid)
        if view.last_seq < last:
            raise LakeError(
                f"the lake at {view.lake} has stream {view.stream} through sequence {view.last_seq}, but the query is "
                f"at {last}: was the lake restored from an older copy, or is the server another lake's?"
            )
        return pieces(view, first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a piece's messages."""
        if isinstance(partition, Piece):
            yield from read_piece(partition, self._columns, [])

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: no message waits for an ack of a query."""

    def stop(self) -> None:
        """Close the connection."""
        if self._flusher is not None:
            self._flusher.close()
            self._flusher = None

    def _check(self, offset: Mapping[str, Any], uid: str) -> None:
        if offset.get("uid", uid) != uid:
            raise StreamReplaced(self._asked.stream, str(offset["uid"]), uid)

    def _head(self) -> tuple[str, int]:
        """Return the stream's uid and last sequence, after a flush if a server answers, else of what is staged."""
        asked = self._asked
        if asked.flush:
            why = self._flushed()
            if not isinstance(why, str):
                self._missing = ""
                return why.uid, why.last_seq
            if why != self._missing:  # once, not with every micro-batch
                self._missing = why
                warn_of_missing(asked.stream, why)
        view = asked.open(flush=False)
        return view.uid, view.last_seq

    def _flushed(self) -> FlushAnswer | str:
        """Return a server's answer, or the reason why there is none. The connection stays open."""
        asked, storage = self._asked, open_storage(self._asked.lake)
        self._flusher = self._flusher or flusher.connect(storage, asked.account, asked.server, asked.credentials)
        given = (asked.server, asked.timeout, asked.credentials, self._flusher)
        try:
            answer, why = flusher.asked(storage, asked.stream, asked.account, *given)
        except FlushFailed as error:
            self.stop()
            if asked.server is not None:
                raise
            return str(error)
        return answer or why


def warn_of_missing(stream: str, why: str) -> None:
    """Report on stderr that a stream is read without its newest messages; Spark forwards it to the driver's stderr."""
    print(f"lakestream: stream {stream}: messages that are not staged yet are missing: {why}", file=sys.stderr)


def register(spark: SparkSession, lake: str | None = None) -> None:
    """Register the format `lakestream` in a session, and enable filter pushdown for it.

    Args:
        spark: the session.
        lake: the default of the option `lake`.
    """
    pushes = (spark.conf.get(PUSHDOWN, "true") or "").lower() == "true"
    if pushes:
        spark.conf.set(PUSHDOWN, "true")
    kind = PushingSource if pushes else LakestreamSource
    spark.dataSource.register(kind if lake is None else type(kind.__name__, (kind,), {"default_lake": lake}))


def pieces(view: StreamView, first: int, last: int) -> list[Piece]:
    """Cut the sequences first … last of a view into pieces for tasks."""
    found = []
    ranges = view.ranges(first, last)
    for at in range(0, len(ranges), TASK_RANGES):
        some = ranges[at : at + TASK_RANGES]
        found.append(Piece(view, some, [], (some[0][0], some[-1][1])))
    group: list[StagedPart] = []
    size = 0
    for part in view.parts:
        if part.first_seq > last or part.last_seq < first:
            continue
        if group and size + part.size > TASK_BYTES:
            found.append(Piece(view, [], group, (first, last)))
            group, size = [], 0
        group.append(part)
        size += part.size
    if group:
        found.append(Piece(view, [], group, (first, last)))
    return found


def read_piece(piece: Piece, columns: Sequence[str], conditions: Sequence[Condition]) -> Iterator[pa.RecordBatch]:
    """Yield a piece's messages with exactly these columns. Runs in a task."""
    yield from piece.view.selected(piece.ranges, (piece.first, piece.last), columns, conditions)


def condition_of(found: Filter) -> Condition | None:
    """Return a Spark filter as a condition that can be pushed down; None for any other."""
    operators = {EqualTo: "=", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
    if isinstance(found, In):
        values = tuple(found.value)
    elif isinstance(found, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        values = (found.value,)
    else:
        return None
    column = ".".join(found.attribute)
    kind = {"subject": str, "seq": int, "time_ns": int}.get(column)
    if kind is None or not values or not all(type(value) is kind for value in values):
        return None
    return Condition(column, operators.get(type(found), "IN"), values)


def _offset(seq: int, uid: str) -> dict[str, Any]:
    return {"seq": seq, "uid": uid}


def _required(options: Mapping[str, str], name: str, default: str | None) -> str:
    value = options.get(name) or default
    if not value:
        raise BadOption(name, "", "a lake's root" if name == "lake" else "a stream's name")
    return value


def _number(options: Mapping[str, str], name: str, default: int, wanted: str) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) > END:
        raise BadOption(name, text, wanted)
    return int(text)


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86_400:
        raise BadOption(name, text, "a number of seconds")
    return value


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise BadOption(name, text, "true or false")
    return text == "true"
