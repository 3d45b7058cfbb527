"""Tests of upsert tables beside the streams' own: keys, deletions, envelopes, crashes, merges."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.lake.table.log import TableLog
from lakestream_iceberg import export
from lakestream_iceberg.library import IcebergLibrary
from lakestream_spark.write import keyed_table, misfits
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.keyed_table import KeyedTable
from lakestream_spark.write.replay import Replay
from lakestream_spark.write.stream_compaction import StreamCompaction
from tests.lake.iceberg import READERS, static
from tests.lake.model import T0
from tests.lake.test_typed_compaction import Stream

pytestmark = pytest.mark.lake

ROW = {"type": ["object", "null"], "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
ENVELOPE = {"before": ROW, "after": ROW, "op": {"type": "string"}}
DEBEZIUM = {"lakestream.schema": "orders", "lakestream.table": "latest($.id)", "lakestream.cdc": "debezium"}


def rows(table: str, columns: str = "*") -> list[dict[str, Any]]:
    """Return the rows of an upsert table, as another reader sees them."""
    found = QueryBuilder().register("t", DeltaTable(table)).execute(f"SELECT {columns} FROM t").read_all()
    return pa.table(found).to_pylist()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    identify(open_storage(str(tmp_path / "lake")))
    return tmp_path / "lake"


@pytest.mark.smoke
def test_a_row_for_each_subject_follows_the_stream(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misfits, "SMALL_FILES", 4)
    stream = Stream(spark, lake, tmp_path / "log", {"lakestream.table": "latest"})
    draw, latest = random.Random(3), {}
    for _ in range(6):
        for _ in range(60):
            subject, data = f"o.{draw.randrange(40)}", str(draw.randrange(1000)).encode()
            if draw.random() < 0.2:
                data = b""
            stream.model.publish([(subject.encode(), b"", data)])
            latest.pop(subject, None)
            if data:
                latest[subject] = data
        stream.compact()
        assert {row["subject"]: row["data"] for row in rows(f"{stream.table}_latest")} == latest
    assert len(DeltaTable(f"{stream.table}_latest").file_uris()) < 4


def test_a_debezium_feed_is_the_source_table_through_crashes_and_new_columns(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(spark, lake, tmp_path / "log", DEBEZIUM)
    stream.register(1, ENVELOPE)
    one, two = {"id": 1, "name": "a"}, {"id": 2, "name": "b"}
    stream.publish({"before": None, "after": one, "op": "r"}, {"before": None, "after": two, "op": "c"})
    follow = KeyedTable.follow
    monkeypatch.setattr(KeyedTable, "follow", lambda *_: 0)  # killed before the upsert table's commit
    stream.compact()
    monkeypatch.setattr(KeyedTable, "follow", follow)
    stream.publish({"before": two, "after": {"id": 2, "name": "c"}, "op": "u"}, b"no json")
    stream.compact()
    table = f"{stream.table}_latest"
    assert sorted((row["id"], row["name"]) for row in rows(table)) == [(1, "a"), (2, "c")]
    wider = {**ROW, "properties": {**ROW["properties"], "qty": {"type": "integer"}}}  # type: ignore[dict-item]
    stream.register(2, {**ENVELOPE, "before": wider, "after": wider})
    stream.publish({"before": one, "after": None, "op": "d"})
    stream.publish({"before": None, "after": {"id": 3, "name": "d", "qty": 5}, "op": "c"})
    stream.compact()
    assert sorted((row["id"], row["name"], row["qty"]) for row in rows(table)) == [(2, "c", None), (3, "d", 5)]
    stream.publish({"before": None, "after": None, "op": "t"}, {"before": None, "after": {"id": 9}, "op": "c"})
    stream.compact()
    assert [row["id"] for row in rows(table)] == [9]
    spark_rows = spark.read.format("delta").load(table).select("id").collect()
    assert [row.id for row in spark_rows] == [9]


def test_another_key_builds_the_table_anew_and_the_stream_takes_it_along(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    metadata = {"lakestream.schema": "orders", "lakestream.table": "latest($.id)"}
    stream = Stream(spark, lake, tmp_path / "log", metadata)
    stream.register(1, {"id": {"type": "string"}, "n": {"type": "integer"}})
    stream.publish({"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "a", "n": 2})
    stream.compact()
    table = f"{stream.table}_latest"
    assert sorted((row["id"], row["n"]) for row in rows(table)) == [("a", 2), ("b", 1)]
    metadata["lakestream.table"] = "latest($.id, $.n)"
    stream.model.configure(metadata)
    stream.publish({"id": "b", "n": 1})
    stream.compact()
    found = sorted((row["id"], row["n"], row["seq"]) for row in rows(table))
    assert [each[:2] for each in found] == [("a", 1), ("a", 2), ("b", 1)]
    assert found[-1][2] == max(each[2] for each in found)
    StreamCompaction.of_deleted(spark, str(lake), stream.staged()).drop_table()
    assert not Path(table).exists()


def test_a_replayed_misfit_takes_its_place_in_the_order_of_its_key(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(spark, lake, tmp_path / "log", {"lakestream.schema": "orders", "lakestream.table": "latest($.id)"})
    fields = {"id": {"type": "string"}, "n": {"type": "integer"}, "more": {"type": "integer"}}
    stream.register(1, fields, required=["more"])
    stream.publish({"id": "a", "n": 1, "more": 1}, {"id": "b", "n": 2}, {"id": "a", "n": 3}, {"id": "c", "n": 4})
    stream.publish({"id": "c", "n": 5, "more": 1})
    assert stream.compact() == 3
    table = f"{stream.table}_latest"
    assert sorted((row["id"], row["n"]) for row in rows(table)) == [("a", 1), ("c", 5)]
    stream.register(2, fields)
    follow = KeyedTable.follow
    monkeypatch.setattr(KeyedTable, "follow", lambda *_: 0)  # killed before the upsert table's commit
    Replay(spark, str(lake), stream.staged().identity).run()
    monkeypatch.setattr(KeyedTable, "follow", follow)
    stream.publish({"id": "d", "n": 6})
    stream.compact()
    wanted = [("a", 3), ("b", 2), ("c", 5), ("d", 6)]
    assert sorted((row["id"], row["n"]) for row in rows(table)) == wanted, "a later message of the key stays"
    stream.publish({"id": "e", "n": "x"}, {"id": "d", "n": 7})
    assert stream.compact() == 1
    stream.register(3, fields | {"n": {"type": ["integer", "string"]}})
    Replay(spark, str(lake), stream.staged().identity).run()
    found = {row["id"]: (row["n"], row["n_string"]) for row in rows(table)}
    assert (found["d"], found["e"]) == ((7, None), (None, '"x"')), "the replay itself brings the table up to date"


def test_the_commit_of_an_erasure_leaves_no_file_with_the_message(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = Stream(spark, lake, tmp_path / "log", {"lakestream.table": "latest"})
    stream.model.publish([(b"a", b"", b"secret"), (b"b", b"", b"other")])
    stream.compact()
    first = min(row["seq"] for row in rows(f"{stream.table}_latest"))
    stream.model.publish([(b"a", b"", b"newer")])
    stream.compact()
    keyed = KeyedTable(spark, stream.storage, stream.model.identity, stream.table)
    keyed.erase([(first, first)])
    assert sorted(row["data"] for row in rows(f"{stream.table}_latest")) == [b"newer", b"other"]
    files = Path(f"{stream.table}_latest").glob("*.parquet")
    assert not any(b"secret" in file.read_bytes() for file in files)
    stream.model.publish([(b"b", b"", b"last")])
    stream.compact()
    assert sorted(row["data"] for row in rows(f"{stream.table}_latest")) == [b"last", b"newer"]


def test_an_error_of_the_upsert_table_does_not_hold_up_the_stream(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(spark, lake, tmp_path / "log", {"lakestream.table": "latest"})
    stream.model.publish([(b"a", b"", b"1")])
    merge = KeyedTable._merge  # the point at which it fails

    def failing(*_: Any) -> None:
        raise LakeError("no room")

    monkeypatch.setattr(KeyedTable, "_merge", failing)
    with pytest.raises(LakeError, match="no room"):
        stream.compact()
    assert [row["seq"] for row in rows(str(stream.table))] == [1]
    monkeypatch.setattr(KeyedTable, "_merge", merge)
    stream.model.publish([(b"b", b"", b"2")])
    stream.compact()
    assert sorted(row["data"] for row in rows(f"{stream.table}_latest")) == [b"1", b"2"]


class IcebergCheck:
    """The Iceberg table over a stream's upsert table, or over its own (`end` is "")."""

    def __init__(self, stream: Stream, end: str = "_latest") -> None:
        self.table = f"{stream.table}{end}"
        self.export = export.TableExport(IcebergLibrary(stream.spark, str(stream.lake)), stream.storage, self.table)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Bring it up to date, and return columns of the rows, which are those of Delta to each reader."""
        assert self.export.run()
        wanted = sorted(rows(self.table), key=lambda row: int(row["seq"]))
        for name, read in READERS.items():
            found = read(self.table)
            assert [{key: row[key] for key in columns} for row in found] == [
                {key: row[key] for key in columns} for row in wanted
            ], name
        return [tuple(row[key] for key in columns) for row in wanted]


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_readers_of_iceberg_find_a_row_for_each_subject(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(misfits, "SMALL_FILES", 4)
    monkeypatch.setattr(keyed_table, "VACUUM_COMMITS", 3)
    stream = Stream(spark, lake, tmp_path / "log", {"lakestream.table": "latest", "lakestream.iceberg": form})
    check, draw, latest = IcebergCheck(stream), random.Random(5), {}
    for number in range(7):
        for _ in range(40):
            subject, data = f"o.{draw.randrange(20)}", str(draw.randrange(1000)).encode()
            data = b"" if draw.random() < 0.2 else data
            stream.model.publish([(subject.encode(), b"", data)])
            latest.pop(subject, None)
            latest |= {subject: data} if data else {}
        if number:
            stream.compact()
        else:  # the whole compactor, which tells the keeper
            stream.model.stage(lake)
            assert Compactor(spark, str(lake)).once().keyed == [check.table]
        assert dict(check.rows("subject", "data")) == latest
    found = static(check.table)
    assert found.metadata.format_version == int(form[1])
    stated = found.snapshots()[-1].summary
    assert stated is not None
    assert stated[export.LAST_SEQ] == str(stream.model.next_seq - 1)
    assert stated[export.MESSAGE_TIME] == str(stream.model.expected()[-1].time_ns)
    assert export.LOG_INDEX not in found.properties
    for snapshot in found.snapshots():  # VACUUM has left the files of each
        found.scan(snapshot_id=snapshot.snapshot_id).to_arrow()


def test_an_iceberg_table_by_key_gets_columns_and_follows_the_stream_configuration(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    metadata = {"lakestream.schema": "orders", "lakestream.table": "latest($.id)", "lakestream.iceberg": "v3"}
    stream = Stream(spark, lake, tmp_path / "log", metadata)
    at = {"type": "object", "properties": {"zip": {"type": "string"}}}
    stream.register(1, {"id": {"type": "string"}, "at": at})
    stream.publish({"id": "a", "at": {"zip": "1"}}, {"id": "b"})
    stream.compact()
    check = IcebergCheck(stream)
    assert check.rows("id", "at") == [("a", {"zip": "1"}), ("b", None)]
    at = {"type": "object", "properties": {"zip": {"type": "string"}, "no": {"type": "integer"}}}
    tags = {"type": "array", "items": {"type": "string"}}
    stream.register(2, {"id": {"type": "string"}, "at": at, "tags": tags, "n": {"type": "integer"}})
    stream.publish({"id": "b", "at": {"zip": "2", "no": 3}, "tags": ["x", "y"]})
    stream.compact()
    assert check.rows("id", "at", "tags") == [
        ("a", {"zip": "1", "no": None}, None),
        ("b", {"zip": "2", "no": 3}, ["x", "y"]),
    ]
    stream.model.configure({**metadata, "lakestream.iceberg": "v2"})
    stream.publish({"id": "a", "tags": []})
    stream.compact()
    assert [row[0] for row in check.rows("id")] == ["b", "a"]
    assert static(check.table).metadata.format_version == 2
    metadata["lakestream.table"] = "latest($.id, $.n)"
    stream.model.configure(metadata)
    stream.publish({"id": "c", "n": 1}, {"id": "c", "n": 2})
    stream.compact()  # another key: the table is made again
    assert [row[0] for row in check.rows("id", "n")][-2:] == ["c", "c"]
    stream.model.configure({**metadata, "lakestream.iceberg": "off"})
    stream.publish({"id": "d"})
    stream.compact()
    assert check.export.run()
    assert not Path(check.table, "metadata").exists()


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_readers_of_iceberg_find_the_rows_of_tables_by_time_and_payload(
    spark: Any, lake: Path, tmp_path: Path, form: str
) -> None:
    metadata = {"lakestream.schema": "orders", "lakestream.table": "latest($.id)", "lakestream.iceberg": form}
    metadata["lakestream.partition"] = "day(time), $.at.zip, month($.made)"
    stream = Stream(spark, lake, tmp_path / "log", metadata)
    at = {"type": "object", "properties": {"zip": {"type": "string"}}}
    made = {"type": "string", "format": "date-time"}
    stream.register(1, {"id": {"type": "integer"}, "at": at, "made": made})
    check, latest = IcebergCheck(stream, ""), IcebergCheck(stream)

    def publish(first: int, day: int) -> None:
        sent = [
            {"id": id_, "at": {"zip": f"z{id_ % 2}"}, "made": f"2026-0{1 + id_ % 3}-01T00:00:00Z"}
            if id_ % 4
            else {"id": id_}
            for id_ in range(first, first + 8)
        ]
        encoded = [(b"o", b"", json.dumps(each).encode()) for each in [*sent, {"id": "x"}]]
        stream.model.publish(encoded, time_ns=T0 + day * 86_400 * 10**9)
        stream.compact()

    for day in range(2):
        publish(4 * day, day)
        found = check.rows("seq", "id", "by_day", "by_field1", "by_field2", "data")
        assert [row[0] for row in found] == [each.seq for each in stream.model.expected()]
        assert [row[5] for row in found] == [each.data for each in stream.model.expected()]
        assert {row[3:5] for row in found if row[1] == 5} == {("z1", "2026-03")}
        assert [row[0] for row in latest.rows("id", "at")] == list(range(8 + 4 * day))
    stream.model.remove([2])
    stream.model.configure({**metadata, "lakestream.partition": "$.id"})
    publish(8, 2)  # the layout changes with it
    found = check.rows("seq", "id", "by_field1")
    assert [row[0] for row in found] == [each.seq for each in stream.model.expected()]
    assert all(row[2] == (None if row[1] is None else str(row[1])) for row in found)


def test_an_erasure_ends_the_snapshots_that_name_its_files(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SWEEP_SECONDS", 0.0)
    stream = Stream(spark, lake, tmp_path / "log", {"lakestream.table": "latest", "lakestream.iceberg": "v3"})
    check = IcebergCheck(stream)
    for data in (b"secret", b"newer"):
        stream.model.publish([(b"a", b"", data), (b"b", b"", b"other")])
        stream.compact()
        check.rows("subject", "data")
    KeyedTable(spark, stream.storage, stream.model.identity, stream.table).erase([(1, 1)])
    assert [data for _, data in check.rows("subject", "data")] == [b"newer", b"other"]
    assert check.export.run() in (True, False)
    found = static(check.table)
    for snapshot in found.snapshots():
        found.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    assert TableLog(stream.storage, check.table).latest == int(found.properties["lakestream.delta-version"])
