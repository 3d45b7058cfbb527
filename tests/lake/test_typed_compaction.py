"""Tests of the compaction of typed columns: crashes, layouts, deletions, clones, other programs, random evolutions."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions

from lakestream.lake.errors import TableBusy
from lakestream.lake.read.history.cache import BlockCache
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.staging import clone_request, scan
from lakestream.lake.staging.clone_request import SubjectSelection
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.lake.table import actions, typed_columns
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table.log import TableLog
from lakestream.log.format.record import Record
from lakestream.log.format.runs import SchemaRun
from lakestream.schemas.codec import codec_of
from lakestream.schemas.schema import Format, Schema
from lakestream_client.lake.past import open_past
from lakestream_spark.write import misfits
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.replay import NoReplay, Replay, ReplayResult
from lakestream_spark.write.stream_compaction import CompactionOptions, StreamCompaction
from lakestream_spark.write.table import StreamTable
from lakestream_sql.session import Session
from tests.lake import compacting
from tests.lake.compacting import compact as compact_stream
from tests.lake.model import T0, StreamModel
from tests.lake.tables import ALL
from tests.lake.test_clones import MirrorModel, make
from tests.lake.test_maintenance import NOW
from tests.unit.spark import test_file_statistics as statistics
from tests.unit.versions_world import named, versions

pytestmark = pytest.mark.lake

N = {"n": {"type": "integer"}, "text": {"type": "string"}}
DROP = {"lakestream.schema": "orders", "lakestream.data": "drop-when-typed"}


class Stream:
    """Stream with schemas, and its table."""

    def __init__(self, spark: Any, lake: Path, log: Path, metadata: dict[str, str], name: str = "ORDERS") -> None:
        self.spark, self.lake = spark, lake
        self.model = StreamModel(log, name, f"UID{name}")
        self.model.configure(metadata)
        self.table = self.model.table(lake)
        self.storage = open_storage(str(lake))

    def register(self, version: int, properties: dict[str, Any], **more: Any) -> None:
        text = json.dumps({"type": "object", "properties": properties} | more)
        schemas.write_schema(self.storage, "$G", Schema("orders", version, "json", text, created_ns=version))

    def publish(self, *payloads: Any, subject: bytes = b"o") -> list[Record]:
        encoded = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in payloads]
        return self.model.publish([(subject, b"", each) for each in encoded])

    def staged(self) -> StagedStream:
        uid = self.model.identity.uid
        return next(each for each in scan.Scanner(str(self.lake)).scan() if each.identity.uid == uid)

    def compact(self, seal: bool = True, **options: Any) -> int:
        """Compact what was published, or only what is staged; return the number of misfits."""
        if seal:
            self.model.stage(self.lake)
        return compact_stream(self.spark, str(self.lake), self.staged(), CompactionOptions(**options)).misfits

    def rows(self, columns: str, table: str = "") -> list[tuple[Any, ...]]:
        query = QueryBuilder().register("t", DeltaTable(table or self.table))
        found = pa.table(query.execute(f"SELECT seq, {columns} FROM t ORDER BY seq").read_all()).to_pylist()
        return [tuple(row.values()) for row in found]

    def misfits(self) -> list[tuple[Any, ...]]:
        return self.rows("schema, rule", f"{self.table}_misfits")

    def check(self) -> None:
        """Assert that the server reads the stream from the table, byte for byte, in each of its ways."""
        wanted = self.model.expected()
        assert TableHistory(self.table, BlockCache(0)).read(1, ALL, 1_000_000) == wanted
        assert TableHistory(self.table, BlockCache(0)).read_many([each.seq for each in wanted]) == wanted


@pytest.fixture
def stream(spark: Any, lake: Path, tmp_path: Path) -> Stream:
    found = Stream(spark, lake, tmp_path / "log", {"lakestream.schema": "orders"})
    found.register(1, N)
    return found


class Crash(Exception):
    """Raised to end a commit in the middle."""


def test_a_crash_between_misfits_and_rows_lists_no_misfit_twice(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> None:
        raise Crash

    stream.publish({"n": 1}, {"n": "x"})
    with monkeypatch.context() as broken:
        broken.setattr(StreamTable, "begin", crash)
        with pytest.raises(Crash):
            stream.compact()
    assert stream.misfits() == [(2, "orders@1", "type")]
    stream.publish({"n": "y"}, {"n": 2})
    assert stream.compact() == 1  # one commit, of which some misfits are listed already
    assert stream.misfits() == [(2, "orders@1", "type"), (3, "orders@1", "type")]
    assert stream.rows("n") == [(1, 1), (2, None), (3, None), (4, 2)]
    stream.check()


def test_a_table_that_is_there_gets_the_columns(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = Stream(spark, lake, tmp_path / "log", {})
    before = stream.publish({"n": 1})
    stream.compact()
    names = [field.name for field in DeltaTable(stream.table).schema().fields]
    assert "schema" not in names, "nothing changes for streams without schemas"
    stream.model.configure({"lakestream.schema": "orders"})
    stream.register(1, N)
    stream.publish({"n": 2})
    stream.compact()
    assert stream.rows("schema, n") == [(before[0].seq, None, None), (2, "orders@1", 2)]
    stream.model.configure({})
    stream.publish({"n": 3})
    stream.compact()
    assert stream.rows("schema, n")[-1] == (3, None, None)
    stream.check()


def test_moving_a_schema_does_not_judge_stored_messages_again(stream: Stream) -> None:
    stream.register(2, {"n": {"type": "string"}})
    stream.model.configure({"lakestream.schema": "orders@1"})
    stream.publish({"n": 1})
    stream.model.stage(stream.lake)  # by an older release, which notes the schema at the end of each segment
    stream.model.configure({"lakestream.schema": "orders@2", "lakestream.validate": "reject"})
    stream.model.schemas = (SchemaRun(0, "orders@1"), SchemaRun(3, "orders", {"orders": 1}), SchemaRun(4, "orders@2"))
    stream.publish({"n": 2}, {"n": 3}, {"n": "x"})
    stream.model.stage(stream.lake)
    stream.model.configure({})
    stream.model.schemas = (SchemaRun(4, "orders@2"), SchemaRun(5, ""))
    stream.publish({"n": 4})
    assert stream.compact() == 0, "all of them in one commit"
    rows = [(1, "orders@1", 1, None), (2, "orders@1", 2, None), (3, "orders@1", 3, None)]
    rows += [(4, "orders@2", None, "x"), (5, None, None, None)]
    assert stream.rows("schema, n, n_string") == rows
    stream.check()


def test_columns_survive_another_layout_and_maintenance(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = Stream(spark, lake, tmp_path / "log", DROP)
    properties = N | {
        "tokens": {"type": "integer"},
        "at": {"type": "object", "properties": {"zip": {"type": "string"}}},
    }
    stream.register(1, properties)
    for subject in range(6):
        stream.publish({"n": subject, "tokens": 7, "at": {"zip": "1"}}, b"{", subject=b"s%d" % subject)
        stream.compact(subject_limit=4)
    assert DeltaTable(stream.table).metadata().partition_columns == ["bucket"]
    wanted = [(2 * n + 1, n, 7, {"zip": "1"}, None) for n in range(6)]
    assert [row for row in stream.rows("n, tokens, at, data") if row[1] is not None] == wanted
    stream.check()
    stream.model.remove([1, 4], erase=True)
    stream.compact()
    done = Maintainer(spark, str(lake), NOW).once()
    assert [each.failure for each in done] == [None]
    stream.check()


def test_the_misfits_of_securely_deleted_messages_leave_the_list(stream: Stream) -> None:
    stream.publish({"n": "secret"}, {"n": "other"})
    stream.compact()
    stream.model.remove([1], shred=True)
    stream.publish({"n": 1})
    stream.compact()
    assert stream.misfits() == [(2, "orders@1", "type")]
    files = [path for path in Path(f"{stream.table}_misfits").rglob("*.parquet") if "_delta_log" not in path.parts]
    assert [pq.read_table(path).column("seq").to_pylist() for path in files] == [[2]], "older versions have it neither"


MISFITS = "time, subject, schema, field, rule, reason"


def lose(stream: Stream) -> None:
    """Delete the oldest file of the table of misfits."""
    path = f"{stream.table}_misfits"
    add = min(TableLog(stream.storage, path).state().files.values(), key=lambda add: actions.statistics(add).min_seq)
    Path(path, add.path).unlink()


def test_missing_files_of_misfits_are_made_again_from_the_messages(stream: Stream) -> None:
    stream.publish({"n": "x"}, {"n": 1}, {"n": [2]})
    stream.compact()
    stream.publish({"n": "y"}, b"{")
    stream.compact()
    before = stream.rows(MISFITS, f"{stream.table}_misfits")
    lose(stream)
    for mended in (1, 0):
        (done,) = Maintainer(stream.spark, str(stream.lake), NOW).once()
        assert (done.failure, done.mended) == (None, mended)
        assert stream.rows(MISFITS, f"{stream.table}_misfits") == before
    lose(stream)
    stream.model.remove([1], shred=True)
    stream.publish({"n": 7})
    stream.compact()
    assert stream.rows(MISFITS, f"{stream.table}_misfits") == [row for row in before if row[0] != 1]
    lose(stream)
    stream.register(2, {"n": {"type": ["string", "integer"]}})
    Maintainer(stream.spark, str(stream.lake), NOW).once()
    assert stream.misfits() == [(3, "orders@2", "type"), (4, "orders@1", "type"), (5, "orders@1", "json")]
    lose(stream)
    stream.register(3, {"n": {"type": ["array", "integer"], "items": {"type": "integer"}}})
    (done,) = Maintainer(stream.spark, str(stream.lake), NOW).once()
    assert done.mended == 1
    assert stream.misfits()[0] == (3, "orders@3", "lost")
    stream.check()


def test_another_table_at_the_place_of_misfits_stays(spark: Any, lake: Path, tmp_path: Path, stream: Stream) -> None:
    other = Stream(spark, lake, tmp_path / "other", {}, "ORDERS_misfits")
    other.publish({"a": 1})
    other.compact()
    stream.publish({"n": "x"})
    assert stream.compact() == 1
    assert stream.rows("rule", f"{stream.table}_misfits_") == [(1, "type")]
    other.check()


def test_a_stream_that_takes_the_place_of_misfits_keeps_its_table(
    spark: Any, lake: Path, tmp_path: Path, stream: Stream
) -> None:
    stream.publish({"n": 1})
    stream.model.stage(lake)
    compaction = StreamCompaction(spark, str(lake), stream.staged())
    compacting.run(spark, compaction, stream.staged().last_index)  # without misfits, so their table is not there yet
    other = Stream(spark, lake, tmp_path / "other", {}, "ORDERS_misfits")
    other.publish({"a": 1})
    other.compact()
    stream.publish({"n": "x"})
    stream.model.stage(lake)
    through = stream.staged().last_index
    with pytest.raises(TableBusy):
        compacting.run(spark, compaction, through)
    assert compacting.run(spark, compaction, through).misfits == 1
    assert stream.rows("rule", f"{stream.table}_misfits_") == [(2, "type")]
    other.check()
    stream.check()


def test_the_misfits_go_with_the_table(stream: Stream) -> None:
    stream.publish({"n": "x"})
    stream.compact()
    path = Path(f"{stream.table}_misfits")
    assert path.is_dir()
    compaction = StreamCompaction.of_deleted(stream.spark, str(stream.lake), stream.staged())
    assert compaction.drop_table()
    assert not path.exists()
    assert not Path(stream.table).exists()


def test_misfits_are_replayed_when_the_schema_is_mended(stream: Stream) -> None:
    stream.model.configure({})
    stream.publish({"n": 0})
    stream.compact()
    untyped = Replay(stream.spark, str(stream.lake), stream.staged().identity)
    with pytest.raises(NoReplay):
        untyped.run()
    stream.model.configure({"lakestream.schema": "orders"})
    stream.publish({"n": 1}, {"n": "x"}, {"n": [1]}, b"{", {"n": "y"})
    assert stream.compact() == 4
    stream.model.remove([6], erase=True)
    stream.compact()
    replay = Replay(stream.spark, str(stream.lake), stream.staged().identity)
    assert replay.run() == ReplayResult(4, 0, 1)
    stream.register(2, {"n": {"type": ["string", "array"]}, "more": {"type": "string"}})
    text = json.dumps({"properties": {"n": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}})
    schemas.write_schema(stream.storage, "$G", Schema("orders", 3, "json", text, created_ns=3))
    assert replay.run() == ReplayResult(3, 1, 0)
    assert stream.rows("schema, n, n_string") == [
        (1, None, None, None),
        (2, "orders@1", 1, None),
        (3, "orders@3", None, '"x"'),
        (4, None, None, None),
        (5, None, None, None),
    ]
    assert stream.misfits() == [(4, "orders@1", "type"), (5, "orders@1", "json")]
    assert replay.run() == ReplayResult(2, 0, 0)
    stream.check()
    stream.publish({"n": "z"})
    stream.compact()
    stream.check()


def test_a_mirror_gets_payloads_that_are_not_kept(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = Stream(spark, lake, tmp_path / "log", DROP)
    stream.register(1, N)
    stream.publish({"n": 1}, {"n": 2, "text": "größe"}, {"n": "x"}, subject=b"a.1")
    stream.publish({"n": 3}, subject=b"b.1")
    stream.compact()
    assert [data is None for _, data in stream.rows("data")] == [True, True, False, True]
    for name, more in (("ALL", {}), ("SOME", {"selections": [SubjectSelection("a.>")]})):
        mirror = MirrorModel(tmp_path / name, name, f"UID{name}")
        answer = make(spark, lake, mirror, stream.model, **more)
        assert answer.state == "made", answer.reason
        held = [record for record in stream.model.expected() if not more or record.subject == b"a.1"]
        mirror.begin(held, answer.last_seq)
        assert TableHistory(mirror.table(lake)).read(1, ALL, 1_000_000) == held
        clone_request.settle(str(lake), mirror.identity)


def test_the_past_and_live_views_have_payloads_that_are_not_kept(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = Stream(spark, lake, tmp_path / "log", DROP | {"lakestream.time_travel": "7d"})
    stream.register(1, N)
    stream.publish(*({"n": n, "text": "x"} for n in range(20)))
    stream.compact()
    stream.publish({"n": 20})
    stream.model.stage(lake)
    found = open_past(str(lake), "ORDERS", T0 + 100 * 1_000_003)
    assert [record for block in found.messages() for record in block] == stream.model.expected()
    some = open_past(str(lake), "ORDERS", T0 + 5 * 1_000_003)
    assert [record for block in some.messages() for record in block] == stream.model.expected()[:5]


def test_sql_has_typed_columns_of_messages_that_are_not_compacted(stream: Stream) -> None:
    """SQL over a stream has the columns of its table, and those that the next compaction will add."""
    stream.publish({"n": 1})
    stream.model.stage(stream.lake)

    def rows(columns: str) -> list[tuple[Any, ...]]:
        with Session(str(stream.lake)) as session:
            return session.query(f"SELECT seq, {columns} FROM delta.`streams/ORDERS` ORDER BY seq").fetchall()

    assert rows("schema, n") == [(1, "orders@1", 1)], "there is no table yet"
    stream.compact(seal=False)
    assert rows("schema, n") == [(1, "orders@1", 1)]
    text = json.dumps({"properties": {"n": {"type": "string"}, "größe": {"type": "integer"}}})
    schemas.write_schema(stream.storage, "$G", Schema("orders", 2, "json", text, created_ns=T0 + 2 * 1_000_003))
    stream.publish({"n": "x", "größe": 5}, {"n": 7})
    stream.model.stage(stream.lake)
    assert rows("schema, n, n_string, `größe`") == [
        (1, "orders@1", 1, None, None),
        (2, "orders@2", None, "x", 5),
        (3, None, None, None, None),
    ]
    stream.compact(seal=False)
    assert rows("schema, n, n_string, `größe`")[1] == (2, "orders@2", None, "x", 5)
    with Session(str(stream.lake)) as session:
        found = session.query("SELECT seq, rule FROM delta.`streams/ORDERS_misfits`").fetchall()
    assert found == [(3, "type")]


def files_read(rows: Any) -> int:
    """Return the number of files that Spark reads for a query."""
    return len(rows.inputFiles())


def test_files_are_skipped_by_typed_columns(stream: Stream) -> None:
    """Spark and DuckDB read only the files whose statistics allow a condition on a typed column."""
    text, at = {"type": "string"}, {"zip": {"type": "string"}, "when": {"type": "string", "format": "date-time"}}
    stream.register(2, N | {"day": text | {"format": "date"}, "at": {"type": "object", "properties": at}})
    for number in range(4):
        inner = {"zip": f"{number}000", "when": f"2026-05-0{number + 1}T12:00:00.123456Z"}
        more = {"text": "größer " * 9 + str(number), "day": f"2026-05-0{number + 1}", "at": inner}
        stream.publish({"n": 10 * number} | more, {"n": 10 * number + 9}, {"n": "x"})
        stream.compact()
    table = stream.spark.read.format("delta").load(stream.storage.spark_path(stream.table))
    assert files_read(table) == 4
    for condition, files, seqs in (
        ("n = 19", 1, [5]),
        ("n > 19", 2, [7, 8, 10, 11]),
        ("n IS NULL AND seq = 3", 1, [3]),
        ("day = DATE '2026-05-02'", 1, [4]),
        ("at.zip = '2000'", 1, [7]),
        ("at.when <= TIMESTAMP '2026-05-01 12:00:00.123456'", 1, [1]),
        ("text LIKE 'größer%' AND n = 0", 1, [1]),
        ("text > 'h'", 0, []),
        ("schema = 'orders@1'", 0, []),
    ):
        found = table.where(condition)
        assert (files_read(found), sorted(row.seq for row in found.collect())) == (files, seqs), condition
    with Session(str(stream.lake), committed=True) as session:
        query = f"SELECT seq FROM delta_scan('{stream.table}') WHERE n = 19"
        [(_, plan)] = session.engine.connection.execute(f"EXPLAIN ANALYZE {query}").fetchall()
        assert "Scanning Files: 1/4" in plan
    done = Maintainer(stream.spark, str(stream.lake), NOW).once()
    assert [each.failure for each in done] == [None]
    assert [row.seq for row in table.where("n = 19").collect()] == [5]


def test_the_columns_beyond_the_limit_of_delta_have_no_statistics(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = Stream(spark, lake, tmp_path / "log", {"lakestream.schema": "orders"})
    names = [f"c{number}" for number in range(40)]
    stream.register(1, {name: {"type": "integer"} for name in names})
    stream.publish(dict.fromkeys(names, 7))
    stream.compact()
    stream.model.configure(
        {"lakestream.schema": "orders", "lakestream.properties.delta.dataSkippingNumIndexedCols": "-1"}
    )
    stream.publish(dict.fromkeys(names, 8))
    stream.compact()
    log = sorted(Path(stream.table, "_delta_log").glob("*.json"))
    adds = [json.loads(line)["add"] for path in log for line in path.read_text().splitlines() if '"add"' in line]
    first, second = (json.loads(add["stats"])["maxValues"] for add in adds)
    own = ("seq", "time", "time_ns", "headers", "data", "header_block", "subject_bytes", "schema")
    assert [name for name in names if name in first] == names[: 32 - len(own)]
    assert [name for name in names if name in second] == names
    table = stream.spark.read.format("delta").load(stream.storage.spark_path(stream.table))
    assert [row.seq for row in table.where("c39 = 8").collect()] == [2]


def literal_of(value: Any) -> Any:
    """Return a value as Spark has it; PySpark's own way converts early times by another calendar."""
    if isinstance(value, datetime):
        micros = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        return functions.expr(f"timestamp_micros({micros})")
    return functions.expr(f"DATE '{value.isoformat()}'") if isinstance(value, date) else functions.lit(value)


def test_spark_finds_every_row_by_statistics(spark: Any, tmp_path: Path) -> None:
    rows = statistics.rows_at_edges()
    statistics.committed(tmp_path, list(statistics.separate(tmp_path, rows)))
    table = spark.read.format("delta").load(str(tmp_path))
    for number, row in enumerate(rows, 1):
        for path in [*((name,) for name in statistics.ORDERED), *(("in", name) for name in statistics.INNER)]:
            value = statistics.value_of(row, path)
            if value is not None:
                column = functions.col(".".join(f"`{name}`" for name in path))
                exact = literal_of(value)
                for condition in (column == exact, column <= exact, column >= exact):
                    found = table.where(condition).select("seq").collect()
                    assert number in [each.seq for each in found], (path, value)


@pytest.mark.heavy
@pytest.mark.parametrize("format", get_args(Format))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_table_is_what_a_decoder_of_single_messages_gives(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, format: Format, data: st.DataObject
) -> None:
    """Random versions and payloads, a commit of the compactor for each version, and decoders that are not ours."""
    place = tmp_path_factory.mktemp("random")
    (place / "lake").mkdir()
    identify(open_storage(place / "lake"))
    dropped = data.draw(st.booleans())
    stream = Stream(spark, place / "lake", place / "log", DROP if dropped else {"lakestream.schema": "orders"})
    sent: list[tuple[Schema, bytes, dict[str, Any] | None]] = []
    for number, version in enumerate(data.draw(st.lists(versions(format), min_size=2, max_size=4)), 1):
        created = T0 + (len(sent) + 1) * 1_000_003
        schema = Schema("orders", number, format, version.text, created_ns=created)
        schemas.write_schema(stream.storage, "$G", schema)
        payloads = data.draw(st.lists(version.payloads, min_size=1, max_size=6))
        sent += [(schema, payload, fields) for payload, fields in payloads]
        stream.publish(*(payload for payload, _ in payloads))
        stream.compact()
    stream.check()
    columns = typed_columns.of_table(DeltaTable(stream.table).schema().to_json())
    query = QueryBuilder().register("t", DeltaTable(stream.table))
    found = typed_columns.plain(pa.table(query.execute("SELECT * FROM t ORDER BY seq").read_all()))
    for row, (schema, payload, fields) in enumerate(sent):
        if fields is None:
            assert found.column("schema")[row].as_py() is None
            assert found.column("data")[row].as_py() == payload
            continue
        assert found.column("schema")[row].as_py() == schema.reference
        record = codec_of(schema).record
        wide, places = typed_columns.place(columns, record)
        assert wide is columns
        read = {}
        for field, at in zip(record.fields, places, strict=True):
            value = found.column(at.column).combine_chunks().take(pa.array([row]))
            read[field.name] = named(field.type, typed_columns.taken_back(value, field.type, at.inside)[0].as_py())
        assert read == fields
        empty = {field.column for field in columns.fields} - {each.column for each in places}
        assert all(found.column(name)[row].as_py() is None for name in empty)
        assert dropped or found.column("data")[row].as_py() == payload
    misfits = [(row, schema.reference) for row, (schema, _, fields) in enumerate(sent, 1) if fields is None]
    assert not misfits or [row[:2] for row in stream.misfits()] == misfits


def test_misfits_are_merged_and_leave_with_their_messages_or_when_they_are_old(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misfits, "SMALL_FILES", 3)

    def maintained(clock: Any = time.time_ns) -> list[int]:
        done = Maintainer(stream.spark, str(stream.lake), NOW, clock=clock).once()
        assert [each.failure for each in done] == [None]
        return [row[0] for row in stream.misfits()]

    for _ in range(3):
        stream.publish(b"no json", {"n": "x"})
        assert stream.compact() == 2
    assert maintained() == [1, 2, 3, 4, 5, 6]
    files = DeltaTable(f"{stream.table}_misfits").file_uris()
    assert len(files) == 1
    stream.publish(b"no json")
    assert stream.compact() == 1, "the list goes on where it was"
    assert maintained() == [1, 2, 3, 4, 5, 6, 7]
    assert len(DeltaTable(f"{stream.table}_misfits").file_uris()) == 2

    place = f"{stream.table}_misfits"
    at_once = "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 hours')"
    stream.spark.sql(f"ALTER TABLE delta.`{stream.storage.spark_path(place)}` {at_once}")
    stream.model.purge(7)
    stream.compact()
    assert maintained() == [7], "the other file has none of a message that is left"
    left = [uri.rpartition("/")[2] for uri in DeltaTable(place).file_uris()]
    assert [path.name for path in Path(place).glob("*.parquet")] == left, "VACUUM"
    month_ns = 31 * 24 * 3_600 * 10**9
    assert maintained(lambda: time.time_ns() + month_ns) == [7]
    stream.model.configure({"lakestream.schema": "orders", "lakestream.misfits.keep": "30d"})
    stream.publish({"n": 1})
    stream.compact()
    assert maintained() == [7]
    assert maintained(lambda: time.time_ns() + month_ns) == []


def test_a_table_by_day_and_field_is_pruned_by_every_reader_and_read_by_the_server(stream: Stream) -> None:
    by_field = {"lakestream.schema": "orders", "lakestream.partition": "day(time), $.text"}
    stream.model.configure(by_field)
    day_ns = 86_400 * 10**9
    for day in range(2):
        sent = [{"n": number, "text": ("de", "fr", "a/b='%")[number % 3]} for number in range(30)]
        encoded = [(b"o", b"", json.dumps(each).encode()) for each in [*sent, {"n": "x"}]]
        stream.model.publish(encoded, time_ns=T0 + day * day_ns)
        assert stream.compact() == 1
    stream.check()
    table = DeltaTable(stream.table)
    assert table.metadata().partition_columns == ["by_day", "by_field1"]

    def partitions() -> set[tuple[str | None, ...]]:
        files = TableLog(stream.storage, stream.table).state().files.values()
        return {tuple(add.partition_values[name] for name in columns) for add in files}

    columns = ["by_day", "by_field1"]
    assert partitions() == {
        (day, text) for day in ("2023-11-14", "2023-11-15") for text in ("de", "fr", "a/b='%", None)
    }

    # By the partition, and by the columns that it follows from.
    assert len(table.file_uris([("by_field1", "=", "de")])) == 2
    assert len(table.file_uris([("by_day", "=", "2023-11-15"), ("by_field1", "=", "de")])) == 1
    rows = stream.spark.read.format("delta").load(stream.storage.spark_path(stream.table))
    with Session(str(stream.lake), committed=True) as session:
        for where, files, count in (
            ("by_field1 = 'de'", 2, 20),
            ("text = 'de'", 2, 20),
            ("text = 'a/b=''%'", 2, 20),
            ("by_day = DATE '2023-11-15' AND by_field1 IS NULL", 1, 1),  # DuckDB does not skip files by IS NULL
            ("by_day = DATE '2023-11-15' AND text = 'fr'", 1, 10),
        ):
            found = rows.where(where.replace("''", "\\'"))
            assert (files_read(found), found.count()) == (files, count), where
            query = f"SELECT seq FROM delta_scan('{stream.table}') WHERE {where}"
            assert len(session.engine.connection.execute(query).fetchall()) == count, where
            [(_, plan)] = session.engine.connection.execute(f"EXPLAIN ANALYZE {query}").fetchall()
            assert f"Scanning Files: {4 if 'NULL' in where else files}/8" in plan, plan
    with Session(str(stream.lake)) as session:
        stream.publish({"n": 1, "text": "de"})
        stream.model.stage(stream.lake)
        found = session.query("SELECT seq FROM ORDERS WHERE by_field1 = 'de' ORDER BY seq DESC LIMIT 1").fetchall()
        assert found == [(63,)], "of the newest messages, too"

    # A misfit that fits after all moves to its partition, and another layout takes all rows along.
    stream.register(2, {"n": {"type": "string"}, "text": {"type": "string"}})
    stream.compact(seal=False)
    Replay(stream.spark, str(stream.lake), stream.staged().identity).run()
    stream.check()
    for asked, columns in (("hour(time)", ["by_day", "by_hour"]), ("subject", ["subject"]), ("$.text", ["by_field1"])):
        stream.model.configure(by_field | {"lakestream.partition": asked})
        stream.publish({"n": "1", "text": "de"})
        stream.compact()
        assert DeltaTable(stream.table).metadata().partition_columns == columns
        stream.check()
    assert partitions() == {("de",), ("fr",), ("a/b='%",), (None,)}


def test_fields_with_the_names_of_partition_columns_have_columns_of_their_own(stream: Stream) -> None:
    names = ["by_day", "by_hour", "by_field1", "bucket", "subject"]
    stream.register(2, {name: {"type": "string"} for name in names})
    partition = {"lakestream.partition": "hour(time), $.by_day, $.subject"}
    stream.model.configure(DROP | partition | {"lakestream.schema": "orders@2"})
    sent = [{"by_day": f"d{number % 2}", **dict.fromkeys(names[1:], f"v{number}")} for number in range(4)]
    stream.publish(*sent)
    assert stream.compact() == 0
    columns = ["by_day", "by_hour", "by_field1", "by_field2"]
    assert DeltaTable(stream.table).metadata().partition_columns == columns
    typed = ", ".join(f"{name}_" for name in names)
    found = stream.rows(f"by_field1, by_field2, {typed}, data")
    assert [row[1:3] for row in found] == [(each["by_day"], each["subject"]) for each in sent]
    assert [row[3:-1] for row in found] == [tuple(each.values()) for each in sent]
    assert [row[-1] for row in found] == [None] * 4, "payloads are made of these columns"
    stream.check()


def test_a_table_by_fields_inside_of_structs_and_by_times_of_the_payload(stream: Stream) -> None:
    at = {"type": "object", "properties": {"zip": {"type": "string"}}}
    made = {"type": "string", "format": "date-time"}
    stream.register(2, N | {"at": at, "made": made})
    by_field = {"lakestream.schema": "orders@2", "lakestream.partition": "$.at.zip, month($.made)"}
    stream.model.configure(by_field)

    def order(number: int) -> dict[str, Any]:
        found: dict[str, Any] = {
            "n": number,
            "at": {"zip": f"z{number % 2}"},
            "made": f"2026-0{5 + number % 2}-01T00:30:00+01:00",
        }
        for name in ("at", "made")[: number // 4]:
            del found[name]
        return found

    def publish() -> None:
        stream.publish(*map(order, range(12)), {"n": "x"})

    publish()
    assert stream.compact() == 1
    stream.check()
    columns = ["by_field1", "by_field2"]

    def partitions() -> set[tuple[str | None, ...]]:
        files = TableLog(stream.storage, stream.table).state().files.values()
        return {tuple(add.partition_values[name] for name in columns) for add in files}

    whole = {("z0", "2026-04"), ("z1", "2026-05"), (None, "2026-04"), (None, "2026-05"), (None, None)}
    assert partitions() == whole
    rows = stream.spark.read.format("delta").load(stream.storage.spark_path(stream.table))
    for where, files in (("at.zip = 'z1'", 1), ("made < timestamp'2026-05-01 00:00:00Z'", 2)):
        assert files_read(rows.where(where)) == files, where
    publish()
    stream.model.stage(stream.lake)
    with Session(str(stream.lake)) as session:
        where = "by_field1 = 'z1' AND by_field2 = '2026-05'"
        assert session.query(f"SELECT count(*) FROM ORDERS WHERE {where}").fetchall() == [(4,)], "of the newest, too"
    stream.compact(seal=False)

    # By another layout and back, which Spark does, no value changes; the hour is UTC's whatever the session's zone is.
    zone = stream.spark.conf.get("spark.sql.session.timeZone")
    stream.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for asked in ("subject", "hour($.made), $.at.zip", "$.at.zip, month($.made)"):
            stream.model.configure(by_field | {"lakestream.partition": asked})
            publish()
            stream.compact()
            stream.check()
            if asked.startswith("hour"):
                assert partitions() == {
                    (None if text is None else f"{day}T23", zip_)
                    for zip_, text in whole
                    for day in [{"2026-04": "2026-04-30", "2026-05": "2026-05-31"}.get(text or "")]
                }
        assert partitions() == whole
    finally:
        stream.spark.conf.set("spark.sql.session.timeZone", zone)
