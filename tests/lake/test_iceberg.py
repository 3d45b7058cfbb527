"""Tests of Iceberg tables over the files of Delta tables: every reader of Iceberg finds the messages of the stream."""

from __future__ import annotations

import importlib.util
import json
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual

from lakestream.lake.staging import clone_request, compactor_files
from lakestream.lake.staging.compactor_files import UpkeepRequest
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from lakestream_iceberg import export, library
from lakestream_iceberg.keeper import IcebergKeeper
from lakestream_iceberg.library import IcebergLibrary, is_damage
from lakestream_spark.write.commit import jvm
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.metrics import CompactorMetrics
from tests.lake.conftest import job
from tests.lake.iceberg import HINT, READERS, IcebergStream, by_iceberg, by_pyiceberg, newest, record, static
from tests.lake.model import T0, StreamModel, flights
from tests.lake.test_clones import MirrorModel, make
from tests.lake.test_compact_job import Job
from tests.lake.test_compactor import until
from tests.lake.test_maintenance import KEEP, NOW, compact, files, grow, maintain
from tests.lake.test_typed_compaction import N, Stream

pytestmark = pytest.mark.lake

V3 = {"lakestream.iceberg": "v3"}
HOUR_NS = 3_600_000_000_000


def last_seq(table: str) -> str:
    """Return the last sequence that the Iceberg table states."""
    return static(table).properties.get(export.LAST_SEQ, "") if Path(table, "metadata", HINT).exists() else ""


@pytest.mark.parametrize("form", ["v3", "v2"])
@pytest.mark.parametrize("partition", ["subject", "tokens:1,2", "bucket:3"])
def test_readers_find_the_messages_after_each_change(
    spark: Any, lake: Path, tmp_path: Path, form: str, partition: str
) -> None:
    metadata = {"lakestream.iceberg": form, "lakestream.partition": partition}
    stream = IcebergStream(spark, lake, tmp_path / "log", metadata)
    for _ in stream.history():
        stream.check()
    stream.check(changed=False)
    assert static(stream.table).metadata.format_version == int(form[1])


def test_a_restart_between_commits_loses_and_repeats_nothing(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    for number in range(4):
        stream.publish(10)
        stream.model.remove([number * 10 + 1])
        stream.compact()
        stream.anew()
        if number != 1:
            stream.check()
        stream.anew()
        if number != 1:
            stream.check(changed=False)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "no metadata": ("v*.metadata.json", Path.unlink),
    "half of the metadata": ("v*.metadata.json", cut),
    "no manifest list": ("snap-*.avro", Path.unlink),
    "half of a manifest list": ("snap-*.avro", cut),
    "no manifest": ("*-m*.avro", Path.unlink),
    "half of a manifest": ("*-m*.avro", cut),
    "no vectors": ("*.puffin", Path.unlink),
    "no hint": ("version-hint.text", Path.unlink),
    "empty hint": ("version-hint.text", lambda path: path.write_bytes(b"") and None),
    "a commit that was interrupted": ("version-hint.text", lambda path: (path.parent / "x.metadata.json").touch()),
}


@pytest.fixture(scope="module")
def damaged(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> IcebergStream:
    root = tmp_path_factory.mktemp("damaged")
    stream = IcebergStream(spark, root / "lake", root / "log", V3)
    stream.publish(20)
    stream.model.remove([2])
    stream.compact()
    stream.publish(5)
    stream.model.remove([3])
    stream.compact()
    stream.check()
    return stream


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_made_again(damaged: IcebergStream, damage: str) -> None:
    pattern, harm = DAMAGES[damage]
    there = list(Path(damaged.table, "metadata").glob(pattern))
    assert there
    for path in there:
        harm(path)
    damaged.anew()
    damaged.export.run()
    damaged.publish(1)
    damaged.compact()
    damaged.check()


def test_stale_metadata_and_that_of_another_table_is_replaced(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    stream.publish(5)
    stream.compact()
    stream.check()
    place = Path(stream.table, "metadata")
    for name, value in [("table-uuid", "9c12d441-03fe-4693-9a96-a0705ddf69c1"), ("location", "/elsewhere")]:
        path = Path(newest(stream.table))
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
        stream.anew()
        stream.check()
    uuid = static(stream.table).metadata.table_uuid
    assert str(uuid) == TableLog(open_storage(stream.table), stream.table).state().metadata.id
    assert list(place.iterdir())


def test_filters_skip_files_and_find_every_row(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    for _ in range(3):
        stream.publish(30)
        stream.compact()
    stream.check()
    table = static(stream.table)
    every = len(list(table.scan().plan_files()))
    for wanted, keep in (
        (EqualTo("subject", "s.1"), lambda each: each.subject == b"s.1"),
        (GreaterThanOrEqual("seq", 61), lambda each: each.seq >= 61),
        (GreaterThanOrEqual("time_ns", T0 + 61 * 1_000_003), lambda each: each.seq >= 61),
    ):
        scan = table.scan(row_filter=wanted)
        assert len(list(scan.plan_files())) == every // 3
        found = sorted((record(row) for row in scan.to_arrow().to_pylist()), key=lambda each: each.seq)
        assert found == [each for each in stream.model.expected() if keep(each)]


def test_snapshots_are_bounded_and_no_file_is_deleted_that_one_needs(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MAX_SNAPSHOTS", 2)
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    for number in range(7):
        stream.publish(10)
        stream.model.remove([number * 10 + 2])
        stream.compact()
        stream.check()
    metadata = static(stream.table).metadata
    assert 2 <= len(metadata.snapshots) <= 4
    data = set(Path(stream.table).rglob("part-*.parquet"))
    iceberg = IcebergLibrary(spark, str(lake)).table(stream.table)
    assert iceberg.sweep(1 << 62) > 0
    assert iceberg.sweep(1 << 62) == 0
    assert set(Path(stream.table).rglob("part-*.parquet")) == data
    for snapshot in metadata.snapshots:
        static(stream.table).scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    stream.anew()
    stream.check(changed=False)


def test_vacuum_waits_until_snapshots_older_than_its_retention_have_expired(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    wanted = []
    for number in range(3):
        stream.publish(10)
        stream.model.remove([number * 10 + 1])
        stream.compact()
        stream.check()
        wanted.append(len(stream.model.expected()))
    assert maintain(spark, lake, NOW).removed
    for _ in range(2):  # the newest snapshot names the files from before OPTIMIZE, then only earlier ones do
        assert not maintain(spark, lake, NOW).plan.stale
        table = static(stream.table)
        assert [len(table.scan(snapshot_id=each.snapshot_id).to_arrow()) for each in table.snapshots()] == wanted
        if len(wanted) == 3:
            stream.check()
            wanted.append(wanted[-1])
    monkeypatch.setattr(export, "SWEEP_SECONDS", 0.0)
    assert stream.export.run()
    assert len(static(stream.table).snapshots()) == 1
    stream.check(changed=False)
    assert maintain(spark, lake, NOW).plan.stale
    stream.check(changed=False)
    assert not maintain(spark, lake, NOW).plan


def test_snapshots_that_name_files_of_erased_messages_expire(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SWEEP_SECONDS", 0.0)
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    for erased in ([], [2]):
        stream.publish(10)
        stream.model.remove(erased, shred=True)
        stream.compact()
        stream.check()
    assert len(static(stream.table).snapshots()) > 1
    assert maintain(spark, lake, KEEP).plan.erase == 1
    stream.check()
    assert stream.export.run()
    [only] = static(stream.table).snapshots()
    assert len(static(stream.table).scan(snapshot_id=only.snapshot_id).to_arrow()) == 19
    stream.check(changed=False)


def test_tables_used_longest_ago_are_read_anew(spark: Any, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MAX_REMEMBERED", 50)
    tables = library.IcebergLibrary(spark, str(lake))
    first = tables.table("/first")
    for name in ("/first", "/second", "/first"):
        tables.table(name)
        tables.holds(name, 25)
    assert tables.table("/first") is first
    tables.table("/third")
    tables.holds("/third", 40)  # only the newest one fits
    assert tables.table("/first") is not first


def test_each_hour_of_message_time_has_a_tag(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    begin = T0 // HOUR_NS * HOUR_NS
    counts = {}
    for hour in (0, 0, 1, 4):
        stream.publish(5, time_ns=begin + hour * HOUR_NS + 1)
        stream.compact()
        stream.check()
        counts[hour] = len(stream.model.expected())
    table = static(stream.table)
    tags = {name: ref.snapshot_id for name, ref in table.metadata.refs.items() if name != "main"}
    assert sorted(tags) == ["2023-11-14T22", "2023-11-14T23"]
    assert [len(table.scan(snapshot_id=tags[name]).to_arrow()) for name in sorted(tags)] == [counts[0], counts[1]]
    messages = stream.model.expected()
    for hour in (0, 1, 2, 4, 9):  # as docs/iceberg.md has it
        moment = begin + hour * HOUR_NS + 1
        snapshots = sorted(table.snapshots(), key=lambda each: each.sequence_number)
        reach = [each for each in snapshots if int(each.summary["lakestream.message-time-ns"]) >= moment]
        found = (reach or snapshots)[0 if reach else -1]
        rows = table.scan(row_filter=f"time_ns <= {moment}", snapshot_id=found.snapshot_id).to_arrow()
        before = [each.seq for each in messages if each.time_ns <= moment]
        # The first snapshot of an hour has the hour's first message; messages of the next commits have its time, too.
        assert sorted(rows["seq"].to_pylist()) == (before[:5] if hour == 0 else before)


def test_a_stream_may_change_the_format_and_leave_iceberg(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    for form in ("v3", "v2", "v3"):
        stream.model.configure({"lakestream.iceberg": form})
        stream.publish(5)
        stream.model.remove([stream.model.next_seq - 1])
        stream.compact()
        stream.check()
        assert static(stream.table).metadata.format_version == int(form[1])
    stream.model.configure({})
    stream.publish(5)
    stream.compact()
    assert stream.export.run()
    assert not Path(stream.table, "metadata").exists()
    assert not stream.export.run()


def test_the_iceberg_table_of_somebody_else_stays(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", {})
    stream.publish(5)
    stream.compact()
    nowhere = Path(stream.table).with_name("PURE")  # no Delta table at all
    for table in (Path(stream.table), nowhere):
        (table / "metadata").mkdir(parents=True)
        (table / "metadata" / "v1.metadata.json").write_text('{"format-version": 2}')
        assert not export.TableExport(IcebergLibrary(spark, str(lake)), open_storage(str(table)), str(table)).run()
        assert (table / "metadata" / "v1.metadata.json").exists()


def test_a_store_that_does_not_answer_is_no_damage(spark: Any) -> None:
    java = jvm(spark)
    failed = java.org.apache.iceberg.exceptions.RuntimeIOException
    assert not is_damage(failed(java.java.net.SocketTimeoutException("later")))
    assert not is_damage(failed(java.java.io.IOException("503 Slow Down")))
    assert is_damage(failed(java.java.io.EOFException("short")))
    assert is_damage(java.java.io.FileNotFoundException("gone"))


def test_another_layout_whose_schema_lacks_the_partitions_before(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    for partition in ("bucket:2", "subject", "bucket:3", "tokens:2"):
        stream.model.configure(V3 | {"lakestream.partition": partition})
        stream.publish(10)
        stream.model.remove([stream.model.next_seq - 2])
        stream.compact()
        stream.check()


def test_a_mirror_whose_table_began_as_a_clone(spark: Any, lake: Path, tmp_path: Path) -> None:
    origin, mirror = StreamModel(tmp_path / "origin"), MirrorModel(tmp_path / "mirror")
    grow(spark, lake, origin, 1)
    origin.remove([3, 4, 50])
    grow(spark, lake, origin, 1)
    table = mirror.table(lake)
    answer = make(spark, lake, mirror, origin)
    mirror.begin(origin.expected(), answer.last_seq)
    exporting = export.TableExport(IcebergLibrary(spark, str(lake)), open_storage(str(lake)), table, "v3")

    def check_rows() -> None:
        assert exporting.run()
        for name, read in READERS.items():
            assert [record(row) for row in read(table)] == mirror.expected(), name

    check_rows()  # all its files are the origin's
    clone_request.settle(str(lake), mirror.identity)
    mirror.publish(flights(10))
    mirror.remove([10, 11, 122])
    mirror.stage(lake)
    compact(spark, lake, mirror)
    check_rows()
    done = Maintainer(spark, str(lake), NOW).once()
    assert [each.failure for each in done] == [None, None]
    check_rows()


def test_another_programs_commits_are_followed(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", V3)
    stream.publish(20)
    stream.compact()
    stream.check()
    place = f"delta.`{stream.table}`"
    before = TableLog(open_storage(stream.table), stream.table).latest
    spark.sql(f"DELETE FROM {place} WHERE seq IN (3, 4)")
    spark.sql(f"UPDATE {place} SET data = X'00' WHERE seq = 5")
    spark.sql(f"INSERT INTO {place} SELECT * FROM {place} WHERE seq = 6")
    spark.sql(f"ALTER TABLE {place} ADD COLUMN note STRING")
    stream.export.run()
    with pytest.raises(RuntimeError, match="Not a map"):  # Spark's files have no ids, and it maps none by name
        by_iceberg(stream.table)
    for name, read in READERS.items():
        if read is by_iceberg:
            continue
        rows = read(stream.table)
        assert [row["seq"] for row in rows] == sorted({*range(1, 21)} - {3, 4} | {6}) or len(rows) == 19, name
        assert [row["data"] for row in rows if row["seq"] == 5] == [b"\0"], name
        assert {row["note"] for row in rows} == {None}, name
    spark.sql(f"RESTORE TABLE {place} TO VERSION AS OF {before}")
    stream.check()


@pytest.fixture
def started() -> Iterator[list[Job]]:
    """Yield the list of a test's jobs; kill those that still run at its end."""
    running: list[Job] = []
    yield running
    for each in running:
        each.kill()


def test_the_compactor_keeps_the_tables_of_a_lake(lake: Path, tmp_path: Path, started: list[Job]) -> None:
    orders, other = StreamModel(tmp_path / "orders"), StreamModel(tmp_path / "other", "OTHER", "UID2", "ACME")
    other.configure({"lakestream.iceberg": "off"})
    running = Job(lake, "--iceberg", "v3", "--interval", "0.2", "--maintain-every", "0")
    started.append(running)
    running.wait_for("compactor ready")
    for number in range(3):
        for model in (orders, other):
            model.publish(flights(50))
            if number:
                model.remove([number])
            model.stage(lake)
        until(lambda: last_seq(orders.table(lake)) == str(orders.next_seq - 1))
        assert [record(row) for row in by_pyiceberg(orders.table(lake))] == orders.expected()
    assert not Path(other.table(lake), "metadata").exists()
    Path(newest(orders.table(lake))).unlink()
    running.process.terminate()
    assert running.end() == 0
    orders.publish(flights(5))
    orders.stage(lake)
    again = Job(lake, "--once", "--iceberg", "v3")
    started.append(again)
    assert again.end() == 0, again.lines
    assert [record(row) for row in by_pyiceberg(orders.table(lake))] == orders.expected()


def test_a_run_without_messages_mends_what_an_earlier_one_left_behind(
    spark: Any, lake: Path, tmp_path: Path, started: list[Job]
) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", {})
    stream.publish(10)
    stream.compact()  # and then it was killed
    lines = []
    for _ in range(2):
        run = Job(lake, "--once", "--iceberg", "v3")
        started.append(run)
        assert run.end() == 0, run.lines
        lines.append(run.lines)
        assert [record(row) for row in by_pyiceberg(stream.table)] == stream.model.expected()
    assert [any("Spark" in line for line in each) for each in lines] == [True, False]


def test_maintenance_beside_the_compactor_tells_the_keepers(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestream_iceberg.keeper.LOOK_SECONDS", 1e6)
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 16)
    table, keeper = model.table(lake), IcebergKeeper(spark, str(lake), "v3", print)
    assert keeper.once() == [table]
    spec = importlib.util.spec_from_file_location("compact_job", job())
    assert spec is not None
    assert spec.loader is not None
    compact_job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compact_job)
    options = Namespace(maintain_every=1e6)
    metrics = CompactorMetrics(str(lake), ())
    upkeep = compact_job._upkeep(spark, str(lake), options, threading.Event(), metrics, [keeper])
    keeper.start()
    upkeep.start()
    try:
        assert compactor_files.ask(str(lake), UpkeepRequest(table))
        until(lambda: len(list(static(table).scan().plan_files())) == files(table) < 16)
    finally:
        upkeep.stop()
        keeper.stop()
    assert [record(row) for row in by_pyiceberg(table)] == model.expected()


def test_typed_columns_grow_in_iceberg_too(spark: Any, lake: Path, tmp_path: Path) -> None:
    stream = Stream(spark, lake, tmp_path / "log", V3 | {"lakestream.schema": "orders"})
    exporting = export.TableExport(IcebergLibrary(spark, str(lake)), stream.storage, stream.table)
    place = {"type": "object", "properties": {"zip": {"type": "string"}}}
    stream.register(1, N | {"at": place})
    stream.publish({"n": 1, "text": "a", "at": {"zip": "1"}}, {"n": 2})
    stream.compact()
    assert exporting.run()
    place = {"type": "object", "properties": {"zip": {"type": "string"}, "no": {"type": "number"}}}
    more = {"tags": {"type": "array", "items": {"type": "string"}}, "day": {"type": "string", "format": "date"}}
    stream.register(2, {"n": {"type": "string"}, "at": place} | more)
    stream.publish({"n": "x", "at": {"zip": "2", "no": 1.5}, "tags": ["a", "b"], "day": "2026-05-01"}, {"n": 7})
    stream.compact()
    maintain(spark, lake, NOW)  # a file of Spark, without ids
    stream.publish({"n": "y", "tags": []})
    stream.compact()
    assert exporting.run()
    names = ("seq", "schema", "n", "n_string", "text", "at", "tags", "day")
    wanted = [dict(zip(names, row, strict=True)) for row in stream.rows(", ".join(names[1:]))]
    assert wanted[2]["at"] == {"zip": "2", "no": 1.5}
    for name, read in READERS.items():
        assert [{key: row[key] for key in names} for row in read(stream.table)] == wanted, name
    found = static(stream.table).scan(row_filter="n_string = 'y'")
    assert found.count() == 1
    assert len(list(found.plan_files())) == 1
