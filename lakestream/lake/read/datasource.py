"""The Spark data source `lakestream`: a stream of a lake as it is now, as a batch and as a stream.

Belongs here: the options, the plan of partitions and the offsets. What is read is a live view (live.py): the driver
opens it, pinned, and each task reads a piece of it, a range of the table's sequences or some staged segments.

    from lakestream.lake.read.datasource import register

    register(spark)
    spark.read.format("lakestream").option("lake", "data/lake").option("stream", "ORDERS").load()

Spark loads this module in Python workers: `lakestream` has to be on their path (lake/spark/session.py sees to it).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
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

from lakestream.lake.delta.schema import REMOVED_DDL, TABLE_DDL
from lakestream.lake.delta.segments import Dead
from lakestream.lake.errors import LakeError
from lakestream.lake.files import paths
from lakestream.lake.files.lake import open_storage
from lakestream.lake.read import live, live_rows
from lakestream.lake.read.flush import (
    DEFAULT_TIMEOUT_S,
    Credentials,
    Flusher,
    FlushFailed,
    StreamNotFound,
    lake_flusher,
)
from lakestream.lake.read.live_rows import END, LiveView, UncompactedPart

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "lakestream"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
TASK_RANGES = 4
"""Ranges of the table (live_rows.RANGE_ROWS rows each) that one task reads."""
TASK_BYTES = 16 * 1024 * 1024
"""Staged segments that one task reads together, unless a single one is larger."""


class BadOption(LakeError):
    """An option of the data source that means nothing."""

    def __init__(self, name: str, value: str, wanted: str) -> None:
        super().__init__(f"option {name} = {value!r}: {wanted} is expected")


class StreamReplaced(LakeError):
    """The stream that a query was reading has been deleted, and another one has its name."""

    def __init__(self, stream: str, before: str, now: str) -> None:
        super().__init__(
            f"stream {stream} is not the one that this query's checkpoint is about ({before}, now {now}): it was "
            "deleted and made anew. Begin with a new checkpoint"
        )


class Asked(msgspec.Struct, frozen=True):
    """The options. `start_seq` None: the latest; `most`: messages of one micro-batch at most, 0: no limit."""

    lake: str
    stream: str
    account: str = paths.DEFAULT_ACCOUNT
    server: str | None = None
    flush: bool = True
    timeout: float = DEFAULT_TIMEOUT_S
    start_seq: int | None = 1
    end_seq: int = END
    most: int = 0
    credentials: Credentials = Credentials()

    @classmethod
    def of(cls, options: Mapping[str, str], lake: str | None) -> Asked:
        """From the options as Spark has them.

        Raises:
            BadOption: one is missing, or means nothing.
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
            credentials=Credentials.of(options),
        )

    def open(self, flush: bool | None = None) -> LiveView:
        """The stream as it is now."""
        return live.open_view(
            self.lake,
            self.stream,
            self.account,
            server=self.server,
            flush=self.flush if flush is None else flush,
            timeout=self.timeout,
            credentials=self.credentials,
        )


class Condition(msgspec.Struct, frozen=True):
    """`column` `operator` `values`; only the operator IN has more than one value."""

    column: str
    operator: str
    values: tuple[Any, ...]

    def sql(self) -> str:
        """For the table, as DataFusion spells it."""
        values = [
            "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value) for value in self.values
        ]
        return f"{self.column} {self.operator} " + (f"({', '.join(values)})" if self.operator == "IN" else values[0])

    def mask(self, batch: pa.RecordBatch) -> Any:
        """For the tail."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = batch.column(self.column)
        if self.operator == "IN":
            return pc.is_in(column, pa.array(self.values, column.type))
        function = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
        return function[self.operator](column, pa.scalar(self.values[0], column.type))

    def bounds(self) -> tuple[int, int]:
        """The sequences that it leaves possible."""
        if self.column != "seq":
            return 1, END
        low, high = min(self.values), max(self.values)
        return {
            "=": (low, high),
            "IN": (low, high),
            "<": (1, high - 1),
            "<=": (1, high),
            ">": (low + 1, END),
            ">=": (low, END),
        }[self.operator]


class Piece(InputPartition):
    """What one task reads: ranges of the table, or staged segments; of them the sequences first … last."""

    def __init__(
        self,
        view: LiveView,
        ranges: Sequence[tuple[int, int]],
        parts: Sequence[UncompactedPart],
        bounds: tuple[int, int],
    ) -> None:
        self.view = msgspec.structs.replace(view, parts=tuple(parts), hidden=_within(view.hidden, *bounds))
        self.ranges = list(ranges)
        self.first, self.last = bounds


class LakestreamSource(DataSource):
    """Spark data source `lakestream`; the options are in docs/spark-source.md."""

    default_lake: str | None = None
    pushes = False

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> str:
        """The columns of every table, whatever its partitions; archives have one more."""
        asked = self._asked()
        archive = live.is_archive(asked.lake, asked.stream, asked.account)
        return TABLE_DDL + (REMOVED_DDL if archive else "")

    def reader(self, schema: StructType) -> Reader:
        """The batch reader."""
        kind = FilteringReader if self.pushes else Reader
        return kind(self._asked(), schema.fieldNames())

    def streamReader(self, schema: StructType) -> StreamReader:
        """The stream reader."""
        return StreamReader(self._asked(), schema.fieldNames())

    def _asked(self) -> Asked:
        return Asked.of(self.options, self.default_lake)


class PushingSource(LakestreamSource):
    """The same for a session that pushes filters down; Spark refuses a reader that can, where it does not."""

    pushes = True


class Reader(DataSourceReader):
    """Reads the stream as it is when the query starts."""

    def __init__(self, asked: Asked, columns: Sequence[str]) -> None:
        self._asked = asked
        self._columns = list(columns)
        self._conditions: list[Condition] = []

    def partitions(self) -> Sequence[Piece]:
        """Open the view and cut it into pieces."""
        view = self._asked.open()
        if self._asked.flush and not view.flushed:
            warn_of_missing(view.stream, view.note)
        first, last = self._asked.start_seq or view.last_seq + 1, self._asked.end_seq
        for condition in self._conditions:
            low, high = condition.bounds()
            first, last = max(first, low), min(last, high)
        return pieces(view, first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A piece's messages."""
        if isinstance(partition, Piece):  # Spark asks for None where there is no piece at all
            yield from read_piece(partition, self._columns, self._conditions)


class FilteringReader(Reader):
    """Leaves out what the query's conditions on subject, seq and time_ns leave out. Spark checks them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """See Spark; all are returned, since they cost Spark nothing."""
        for each in filters:
            condition = condition_of(each)
            if condition is not None:
                self._conditions.append(condition)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages as they come; an offset is the last sequence that was read, and whose."""

    def __init__(self, asked: Asked, columns: Sequence[str]) -> None:
        self._asked = asked
        self._columns = list(columns)
        self._target: int | None = None
        self._flusher: Flusher | None = None
        self._missing = ""

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks, which have no connection."""
        return {**self.__dict__, "_flusher": None}

    def initialOffset(self) -> dict[str, Any]:
        """Before `start_seq`, or the latest message."""
        uid, last = self._head()
        start = self._asked.start_seq
        return _offset(last if start is None else max(start - 1, 0), uid)

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxMessagesPerTrigger`."""
        return ReadMaxRows(self._asked.most) if self._asked.most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where this run ends."""
        _, self._target = self._head()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The last message that is staged, after the server has staged what it has."""
        uid, last = self._head()
        self._check(start, uid)
        if self._target is not None:
            last = min(last, self._target)
        begin = int(start["seq"])
        if isinstance(limit, ReadMaxRows) and last - begin > limit.max_rows:
            # What the stream no longer has at its beginning must not make for empty batches.
            floor = self._asked.open(flush=False).floor
            last = min(last, max(begin, floor - 1) + limit.max_rows)
        return _offset(max(begin, last), uid)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[Piece]:
        """The pieces of the view with start < seq ≤ end. Repeated after a crash it gives the same messages, but for
        those that were deleted since."""
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
        """A piece's messages."""
        if isinstance(partition, Piece):
            yield from read_piece(partition, self._columns, [])

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing to do: nobody waits for it."""

    def stop(self) -> None:
        """Close the connection."""
        if self._flusher is not None:
            self._flusher.close()
            self._flusher = None

    def _check(self, offset: Mapping[str, Any], uid: str) -> None:
        if offset.get("uid", uid) != uid:
            raise StreamReplaced(self._asked.stream, str(offset["uid"]), uid)

    def _head(self) -> tuple[str, int]:
        """The stream's identity and last sequence: after a flush if the server answers, else of what is staged."""
        asked = self._asked
        if asked.flush:
            why = f"no server has said in {paths.servers(asked.lake)} that it is running"
            try:
                found = self._flushed()
            except FlushFailed as error:
                self.stop()
                if asked.server is not None:
                    raise
                found, why = None, str(error)
            if found is not None:
                self._missing = ""
                return found
            if why != self._missing:  # once, not with every micro-batch
                self._missing = why
                warn_of_missing(asked.stream, why)
        view = asked.open(flush=False)
        return view.uid, view.last_seq

    def _flushed(self) -> tuple[str, int] | None:
        """None: the lake names no server."""
        asked = self._asked
        if self._flusher is None:
            if asked.server is not None:
                self._flusher = Flusher([asked.server.split(",")], asked.credentials)
            else:
                self._flusher = lake_flusher(open_storage(asked.lake), asked.account, asked.credentials)
            if self._flusher is None:
                return None
        answer = self._flusher.flush(asked.stream, asked.timeout)
        if answer.error is not None:
            if answer.error.code == 404:
                raise StreamNotFound(asked.stream, f"the server of the lake at {asked.lake}")
            raise FlushFailed(answer.error.description)
        return answer.uid, answer.last_seq


def warn_of_missing(stream: str, why: str) -> None:
    """Say on stderr that a stream is read without its newest messages; Spark passes it on to the driver's."""
    print(f"lakestream: stream {stream}: messages that are not staged yet are missing: {why}", file=sys.stderr)


def register(spark: SparkSession, lake: str | None = None) -> None:
    """Make the format `lakestream` known to a session, and have the session push filters down to it.

    Args:
        spark: the session.
        lake: the lake that is meant where a query has no option `lake`.
    """
    pushes = (spark.conf.get(PUSHDOWN, "true") or "").lower() == "true"
    if pushes:
        spark.conf.set(PUSHDOWN, "true")
    kind = PushingSource if pushes else LakestreamSource
    spark.dataSource.register(kind if lake is None else type(kind.__name__, (kind,), {"default_lake": lake}))


def pieces(view: LiveView, first: int, last: int) -> list[Piece]:
    """The sequences first … last of a view, cut for tasks."""
    found = []
    ranges = live_rows.ranges(view, first, last)
    for at in range(0, len(ranges), TASK_RANGES):
        some = ranges[at : at + TASK_RANGES]
        found.append(Piece(view, some, [], (some[0][0], some[-1][1])))
    group: list[UncompactedPart] = []
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
    """A piece's messages with exactly these columns. Runs in a task."""
    view = piece.view
    held = [name for name in columns if name in view.columns]
    where = " AND ".join(condition.sql() for condition in conditions)
    for batch in live_rows.table_batches(view, piece.ranges, held, where):
        yield live_rows.completed(batch, columns)
    for batch in view.tail_batches(piece.first, piece.last):
        for condition in conditions:
            batch = batch.filter(condition.mask(batch))
        if batch.num_rows:
            yield live_rows.completed(batch, columns)


def condition_of(found: Filter) -> Condition | None:
    """A filter as a condition that can be pushed down; None for any other."""
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


def _within(dead: Dead, first: int, last: int) -> Dead:
    removed = tuple(seq for seq in dead.removed if first <= seq <= last)
    return Dead(dead.floor, removed, tuple(run for run in dead.runs if run[0] <= last and run[1] >= first))


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
