"""Tests of compaction of one stream's segments: rows, deletes, layouts, replacement, and crashes between the steps."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pytest
from deltalake import DeltaTable, write_deltalake

from lakestream.lake.errors import QuarantinedSegment, SegmentGap
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.staging import scan, staging
from lakestream.lake.table import schema
from lakestream.lake.table.state import position_of
from lakestream_spark.write.errors import ForeignTable
from lakestream_spark.write.stream_compaction import CompactionOptions, Outcome, StreamCompaction
from tests.lake import compacting
from tests.lake.model import StreamModel, flights
from tests.lake.tables import ALL, partition_columns, records, rows, version

pytestmark = pytest.mark.lake


def compaction(spark: Any, lake: Path, model: StreamModel, **options: int) -> StreamCompaction:
    found = [stream for stream in scan.Scanner(str(lake)).scan() if stream.identity.uid == model.identity.uid]
    return StreamCompaction(spark, str(lake), found[0], CompactionOptions(**options))


def compact(spark: Any, lake: Path, model: StreamModel, **options: int) -> Outcome:
    made = compaction(spark, lake, model, **options)
    return compacting.run(spark, made, model.sealed[-1].last_index)


def check(lake: Path, model: StreamModel) -> None:
    """Assert with two readers that the table holds exactly the messages that the stream held at its last seal."""
    table = model.table(lake)
    assert records(table) == model.expected()
    assert TableHistory(table).read(1, ALL, 1_000_000) == model.expected()
    assert position_of(table, model.identity.uid) == model.sealed[-1].last_index


HEADER_BLOCKS = [
    b"",
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA:1\r\nB:  2 \r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    "NATS/1.0\r\nGröße: »\r\n\r\n".encode(),
    b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n",
]


@pytest.mark.smoke
def test_the_table_is_the_stream_byte_for_byte(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    everything = bytes(range(256)) * 20
    model.publish([(b"orders.%d" % (n % 4), block, everything[n:]) for n, block in enumerate(HEADER_BLOCKS)], 2)
    model.publish([(b"orders.\xff\x01", b"", b""), (b"orders.0", b"", b"")], time_ns=1_700_000_000_123_456_789)
    model.stage(lake)
    assert compact(spark, lake, model).rows == len(HEADER_BLOCKS) + 2
    check(lake, model)
    found = rows(model.table(lake))
    assert found[1]["headers"] == [("A", ["1"]), ("B", ["2"])]
    assert found[1]["header_block"] is None
    assert found[2]["headers"] == [("A", ["1", "2"])]
    assert found[5]["header_block"] == HEADER_BLOCKS[5]
    assert found[-1]["time"] == datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=datetime.UTC)
    assert partition_columns(model.table(lake)) == ["subject"]


def test_more_segments_are_more_commits_or_one(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    for _ in range(3):
        model.publish(flights(500, headers=True))
        model.stage(lake)
    outcome = compact(spark, lake, model, commit_bytes=1)
    assert (outcome.commits, outcome.segments, outcome.rows) == (3, 3, 1500)
    check(lake, model)
    model.publish(flights(100))
    model.stage(lake)
    model.publish(flights(100))
    model.stage(lake)
    outcome = compact(spark, lake, model)
    assert (outcome.commits, outcome.segments, outcome.rows) == (1, 2, 200)
    check(lake, model)
    before = version(model.table(lake))
    assert compact(spark, lake, model).commits == 0
    assert version(model.table(lake)) == before


def test_removed_messages_leave_the_table(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(200))
    model.stage(lake)
    compact(spark, lake, model)
    model.remove([20, 30, 31, 32, 150])
    model.publish(flights(100))
    model.remove([205, 250])  # removed before they are compacted
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)
    model.purge(120)
    model.stage(lake)  # a segment without messages
    assert compact(spark, lake, model).rows == 0
    check(lake, model)
    model.publish(flights(10))
    model.purge(5_000)  # beyond the end: everything is removed, and the next sequence increases
    model.publish(flights(10))
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)
    assert len(model.expected()) == 10
    table = model.table(lake)
    connection = duckdb.connect()
    home = Path(duckdb_extension_delta.__file__).parent / "extensions" / "v1.5.5"
    connection.execute(f"LOAD '{home / 'delta.duckdb_extension'}'")
    found = connection.execute("SELECT seq, data FROM delta_scan(?) ORDER BY seq", [table]).fetchall()
    assert found == [(record.seq, record.data) for record in model.expected()]


def test_a_stream_emptied_before_its_first_commit_has_an_empty_table(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(50))
    model.purge(51)
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)
    assert model.expected() == []


@pytest.mark.smoke
def test_many_subjects_make_buckets(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(3000, subjects=1000))
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)
    table = model.table(lake)
    assert partition_columns(table) == ["bucket"]
    delta = DeltaTable(table)
    layout = schema.layout_of(delta.metadata().partition_columns, delta.schema().to_json())
    assert layout is not None
    assert len(layout.bounds) == 7
    for row in rows(table):
        assert row["bucket"] == schema.bucket_of(row["subject"], layout.bounds)
    wanted = [b"flights.7", b"flights.500"]
    expected = [record for record in model.expected() if record.subject in wanted]
    assert len(expected) == 6
    assert TableHistory(table).read(1, ALL, 100, wanted) == expected


ODD_SUBJECTS = [
    "größe.».日本",
    "a%41.b%",
    "k=v.x=y",
    "s.'\"\\`",
    "colon:?#[]{}^",
    "case.PAIR",
    "case.pair",
    "l" * 200,
    "-.._",
    "bucket=1",
]


def test_odd_subjects_are_partitions_like_any_other(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish([(subject.encode(), b"", subject.encode()) for subject in ODD_SUBJECTS * 3])
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)
    assert partition_columns(model.table(lake)) == ["subject"]
    history = TableHistory(model.table(lake))
    for subject in ODD_SUBJECTS:
        assert [record.data for record in history.read(1, ALL, 10, [subject.encode()])] == [subject.encode()] * 3


def test_subjects_that_no_directory_can_have_turn_the_table_into_buckets(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(30))
    model.stage(lake)
    compact(spark, lake, model)
    impossible = [b"%" * 100, b"zero.\0", b"__HIVE_DEFAULT_PARTITION__", b"l" * 1000]
    model.publish([(subject, b"", b"x") for subject in impossible])
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)
    assert partition_columns(model.table(lake)) == ["bucket"]


def test_a_table_that_outgrows_the_limit_is_rewritten_into_buckets(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(40, subjects=4))
    model.stage(lake)
    compact(spark, lake, model, subject_limit=4)
    assert partition_columns(model.table(lake)) == ["subject"]
    model.remove([3, 4])
    model.publish(flights(50, subjects=5))
    model.stage(lake)
    compact(spark, lake, model, subject_limit=4)
    assert partition_columns(model.table(lake)) == ["bucket"]
    check(lake, model)
    model.publish(flights(50, subjects=5))
    model.stage(lake)
    compact(spark, lake, model, subject_limit=4)
    check(lake, model)


def test_a_younger_stream_of_the_name_replaces_the_table(spark: Any, lake: Path, tmp_path: Path) -> None:
    old = StreamModel(tmp_path / "old", uid="OLD")
    old.publish(flights(100, subjects=60))
    old.stage(lake)
    compact(spark, lake, old)
    check(lake, old)
    new = StreamModel(tmp_path / "new", uid="NEW")
    new.identity = staging.StreamIdentity(
        name="ORDERS", account="$G", uid="NEW", created_ns=old.identity.created_ns + 1
    )
    new.publish(flights(10))
    new.stage(lake)
    compact(spark, lake, new)
    check(lake, new)
    assert position_of(new.table(lake), "OLD") is None
    old.publish(flights(5))
    old.stage(lake)
    assert compact(spark, lake, old).commits == 0, "what is left of the older stream does not come back"
    assert not compaction(spark, lake, old).drop_table()
    check(lake, new)
    assert compaction(spark, lake, new).drop_table()
    assert not os.path.exists(new.table(lake))


def test_a_table_of_somebody_else_is_left_alone(spark: Any, lake: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    model = StreamModel(tmp_path / "log")
    write_deltalake(model.table(lake), pa.table({"mine": [1]}))
    model.publish(flights(10))
    model.stage(lake)
    with pytest.raises(ForeignTable, match="move it away"):
        compact(spark, lake, model)
    assert rows_of_other(model.table(lake)) == [{"mine": 1}]


def rows_of_other(table: str) -> list[dict[str, Any]]:
    return DeltaTable(table).to_pyarrow_table().to_pylist()


def test_a_missing_segment_stops_the_stream_with_its_index(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(10))
    first = model.seal()
    model.publish(flights(10))
    second = model.seal()
    model.stage(lake, second)
    with pytest.raises(SegmentGap, match=rf"starts at {second.first_index}"):
        compact(spark, lake, model)
    model.stage(lake, first)
    compact(spark, lake, model)
    check(lake, model)


@pytest.mark.smoke
def test_a_damaged_segment_adds_nothing(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(10))
    model.stage(lake)
    compact(spark, lake, model)
    before = records(model.table(lake))
    model.publish(flights(5000))
    sealed = model.seal()
    intact = Path(sealed.path).read_bytes()
    damaged = bytearray(intact)
    damaged[len(damaged) // 3] ^= 1
    os.unlink(sealed.path)
    Path(sealed.path).write_bytes(damaged)
    staged = model.stage(lake, sealed)
    for _ in range(2):  # it stays quarantined, and the reason is reported each time
        with pytest.raises(QuarantinedSegment, match=r"set aside.*crc of the frame does not match"):
            compact(spark, lake, model)
        assert not os.path.exists(staged)
    assert records(model.table(lake)) == before
    Path(staged).write_bytes(intact)
    compact(spark, lake, model)
    check(lake, model)
    model.operation()
    Path(model.stage(lake)).write_bytes(b"not a segment")
    with pytest.raises(QuarantinedSegment):
        compact(spark, lake, model)


@pytest.mark.parametrize("step", ["_append", "_table.create", "_table.delta", "_table.rewrite", "_table.adapt"])
def test_a_crash_between_two_steps_is_made_good(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    model = StreamModel(tmp_path / "log")
    if step != "_table.create":
        model.publish(flights(50, subjects=4))
        model.stage(lake)
        compact(spark, lake, model, subject_limit=4)
    model.remove([7, 8])
    model.publish(flights(50, subjects=5))
    model.stage(lake)

    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    crashing = compaction(spark, lake, model, subject_limit=4)
    owner, _, name = step.rpartition(".")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(crashing, owner) if owner else crashing, name, crash)
        with pytest.raises(Crash):
            compacting.run(spark, crashing, model.sealed[-1].last_index)
    compact(spark, lake, model, subject_limit=4)
    check(lake, model)
