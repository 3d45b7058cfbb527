"""Data files of a commit, written from Arrow: rows, order and statistics, read back with pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestream.lake.errors import BadSegment, DamagedFile
from lakestream.lake.read.history.rows import COLUMNS
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import check, ends
from lakestream.lake.table.actions import AddFile, TableFile, table_file
from lakestream.lake.table.scan import FileReader, Pick
from lakestream.lake.table.schema import REMOVED_COLUMN, Layout, bucket_of, escaped, message_schema
from lakestream_spark.write import file_ends, file_statistics
from lakestream_spark.write.data_files import DataFiles, NewFile
from lakestream_spark.write.layouts import RUN_SEQS

BUCKETS = Layout("bucket", bounds=("b", "m.1", "é"))
LAYOUTS = (Layout(), BUCKETS, Layout("tokens", tokens=(1, 3)))
SUBJECTS = ("a", "b.x.1", "b.x.2", "m.1", "m..3", "z.1.y", "é.ü", "s" * 300)

Row = tuple[str, int, int, bytes, int | None]


def batch(rows: list[Row], archive: bool) -> pa.RecordBatch:
    count = len(rows)
    columns: dict[str, Any] = {
        "subject": [row[0] for row in rows],
        "seq": [row[1] for row in rows],
        "time_ns": [row[2] for row in rows],
        "headers": [[("k", ["v", "w"])] if row[1] % 3 == 0 else None for row in rows],
        "data": [row[3] for row in rows],
        "header_block": [None] * count,
        "subject_bytes": [None] * count,
        REMOVED_COLUMN: [row[4] for row in rows],
    }
    schema = message_schema(archive)
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def read(table: Path, file: NewFile) -> list[dict[str, Any]]:
    found = pq.ParquetFile(table / unquote(file.path)).read()
    for column, value in file.partition_values.items():
        if "=" in file.path:
            assert f"{column}={escaped(value)}" in unquote(file.path).split("/")
            assert column not in found.column_names
        else:  # the directory does not tell the partition
            assert {None if each is None else str(each) for each in found[column].to_pylist()} == {value}
    return [{**row, **file.partition_values} for row in found.to_pylist()]


@st.composite
def messages(draw: st.DrawFn) -> list[Row]:
    steps = draw(st.lists(st.integers(1, RUN_SEQS), min_size=1, max_size=60))
    seqs = np.cumsum(steps).tolist()
    return [
        (
            draw(st.sampled_from(SUBJECTS)),
            seq,
            draw(st.integers(0, 1 << 61)),
            draw(st.binary(max_size=20)),
            draw(st.none() | st.integers(1, 1 << 61)),
        )
        for seq in seqs
    ]


@pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.kind for layout in LAYOUTS])
@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("spool", [1, 1 << 25])
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=messages(), cut=st.integers(1, 20))
def test_files_hold_every_message_once_in_order_and_say_so(
    layout: Layout,
    archive: bool,
    random: bool,
    spool: int,
    rows: list[Row],
    cut: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    table = tmp_path_factory.mktemp("table")
    if not random:  # longer ones cannot be directories, and mean buckets
        rows = [(row[0][:200], *row[1:]) for row in rows]
    parts = [batch(rows[at : at + cut], archive) for at in range(0, len(rows), cut)]
    files = DataFiles(str(table), layout, archive, random, spool).write(iter(parts))
    assert len({tuple(file.partition_values.items()) for file in files}) == len(files)
    found = {row["seq"]: row for file in files for row in read(table, file)}
    assert sum(len(read(table, file)) for file in files) == len(found) == len(rows)
    for subject, seq, time_ns, data, removed in rows:
        row = found[seq]
        assert (row["subject"], row["time_ns"], row["data"]) == (subject, time_ns, data)
        assert int(row["time"].timestamp() // 1) == time_ns // 10**9
        assert row["headers"] == ([("k", ["v", "w"])] if seq % 3 == 0 else None)
        assert not archive or row[REMOVED_COLUMN] == removed
        if layout is BUCKETS:
            assert row["bucket"] == str(bucket_of(subject, BUCKETS.bounds))
        elif layout.kind == "tokens":
            tokens = subject.split(".")
            assert row["token1"] == (tokens[0] or None)
            assert row["token3"] == (tokens[2] if len(tokens) > 2 and tokens[2] else None)
    for file in files:
        _check_statistics(file, read(table, file), layout)
        assert (table / unquote(file.path)).stat().st_size == file.size
        if spool > 1:
            keys = [(r["seq"] // RUN_SEQS, r["subject"], r["seq"]) for r in read(table, file)]
            assert keys == sorted(keys) or layout.kind == "subject"


def _check_statistics(file: NewFile, rows: list[dict[str, Any]], layout: Layout) -> None:
    stats = msgspec.json.decode(file.stats)
    assert stats["numRecords"] == len(rows)
    assert stats["tightBounds"] is True
    for column in ("seq", "time_ns"):
        values = [row[column] for row in rows]
        assert (stats["minValues"][column], stats["maxValues"][column]) == (min(values), max(values))
    assert stats["minValues"]["time"].endswith("Z")
    assert stats["nullCount"]["headers"] == sum(row["headers"] is None for row in rows)
    assert stats["nullCount"]["data"] == 0
    if layout.kind == "subject":
        assert "subject" not in stats["minValues"]
        return
    least, most = stats["minValues"]["subject"], stats["maxValues"]["subject"]
    assert all(least <= row["subject"] <= most for row in rows)
    assert max(len(least), len(most) - 1) <= file_statistics.SUBJECT_CHARS
    if all(len(row["subject"]) <= file_statistics.SUBJECT_CHARS for row in rows):
        assert (least, most) == (min(row["subject"] for row in rows), max(row["subject"] for row in rows))


def test_more_partitions_than_open_files_give_files_of_each_spool(tmp_path: Path) -> None:
    parts = [batch([(f"s.{n % 5}", at * 10 + n + 1, 1, b"", None) for n in range(5)], False) for at in range(3)]
    files = DataFiles(str(tmp_path), Layout(), spool_bytes=1, open_files=3).write(parts)
    assert len(files) == 15
    assert sorted(row["seq"] for file in files for row in read(tmp_path, file)) == sorted(
        at * 10 + n + 1 for at in range(3) for n in range(5)
    )


def test_an_error_of_the_decoder_is_passed_on_and_nothing_is_named(tmp_path: Path) -> None:
    def damaged() -> Any:
        yield batch([("a", 1, 1, b"", None)], False)
        raise BadSegment("path", 1, "it is damaged")

    with pytest.raises(BadSegment):
        DataFiles(str(tmp_path), Layout()).write(damaged())


def test_pages_have_bounds_so_that_readers_skip_them(tmp_path: Path) -> None:
    rows: list[Row] = [(f"s.{n % 100:03}", n + 1, n, b"x" * 50, None) for n in range(5000)]
    [file] = DataFiles(str(tmp_path), Layout("bucket")).write([batch(rows, False)])
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    for name in ("subject", "seq", "time_ns"):
        assert columns[name].has_column_index
        assert columns[name].has_offset_index
        assert columns[name].statistics.has_min_max
    assert not columns["data"].is_stats_set


def test_row_groups_divide_a_run_by_subject(tmp_path: Path) -> None:
    """DuckDB decodes whole row groups, so the bounds of most have to leave out a subject."""
    rows: list[Row] = [(f"s.{n * 7919 % 20_000:05}", n + 1, n, b"", None) for n in range(20_000)]
    [file] = DataFiles(str(tmp_path), Layout("bucket")).write([batch(rows, False)])
    data = pq.ParquetFile(tmp_path / file.path).metadata
    bounds = [data.row_group(at).column(0).statistics for at in range(data.num_row_groups)]
    assert [data.row_group(at).num_rows for at in range(data.num_row_groups)] == [10_000, 10_000]
    assert sum(each.min <= "s.00007" <= each.max for each in bounds) == 1


def test_runs_stay_whole_so_that_a_subject_is_in_one_row_group_of_each(tmp_path: Path) -> None:
    """No row group has the end of a run and the beginning of the next, whatever the sizes of spools."""
    step, count = 10, 60_000
    rows: list[Row] = [(f"s.{n * 7919 % 20_000:05}", (n + 1) * step, n, b"", None) for n in range(count)]
    parts = [batch(rows[at : at + 1_000], False) for at in range(0, count, 1_000)]
    spool = sum(each.nbytes for each in parts) // 3
    [file] = DataFiles(str(tmp_path), Layout("bucket"), spool_bytes=spool).write(parts)
    data = pq.ParquetFile(tmp_path / file.path).metadata
    groups = [data.row_group(at) for at in range(data.num_row_groups)]
    runs = [{each.column(1).statistics.min // RUN_SEQS, each.column(1).statistics.max // RUN_SEQS} for each in groups]
    assert all(len(each) == 1 for each in runs)
    hits = [next(iter(run)) for run, each in zip(runs, groups, strict=True) if _has(each, "s.00007")]
    assert sorted(hits) == list(range(count * step // RUN_SEQS + 1))


def _has(group: Any, subject: str) -> bool:
    bounds = group.column(0).statistics
    return bool(bounds.min <= subject <= bounds.max)


def test_small_runs_share_a_row_group(tmp_path: Path) -> None:
    rows: list[Row] = [(f"s.{n % 7}", (n + 1) * RUN_SEQS // 100, n, b"", None) for n in range(10_000)]
    [file] = DataFiles(str(tmp_path), Layout("bucket")).write([batch(rows, False)])
    data = pq.ParquetFile(tmp_path / file.path).metadata
    assert [data.row_group(at).num_rows for at in range(data.num_row_groups)] == [8_099, 1_901]


@pytest.mark.parametrize(("keys", "filtered"), [(20_000, True), (2_000, False)])
def test_row_groups_of_many_keys_have_bloom_filters(keys: int, filtered: bool, tmp_path: Path) -> None:
    rows: list[Row] = [(f"s.{n * 7919 % keys:05}", n + 1, n, b"", None) for n in range(20_000)]
    [file] = DataFiles(str(tmp_path), Layout("bucket")).write([batch(rows, False)])
    path = str(tmp_path / file.path)
    columns = "SELECT path_in_schema, encodings, bloom_filter_offset IS NOT NULL FROM parquet_metadata(?)"
    found = duckdb.execute(f"{columns} WHERE num_values > 0", [path]).fetchall()
    assert {name for name, _, is_filtered in found if is_filtered} == ({"subject"} if filtered else set())
    own = {name for name, encodings, _ in found if "DICTIONARY" not in encodings}
    assert own >= {"seq", "time", "time_ns", "data"}
    assert ("subject" in own) == filtered
    probe = "SELECT count(*) FROM parquet_bloom_probe(?, 'subject', 's.00007') WHERE bloom_filter_excludes"
    assert duckdb.execute(probe, [path]).fetchone() == (int(filtered),)


def test_a_small_commit_of_many_keys_has_no_bloom_filter(tmp_path: Path) -> None:
    """A filter would be larger than the messages."""
    rows: list[Row] = [(f"s.{n}", n + 1, n, b"", None) for n in range(100)]
    [file] = DataFiles(str(tmp_path), Layout("bucket")).write([batch(rows, False)])
    assert file.size < 8_192


def test_the_bytes_of_a_file_have_checksums(tmp_path: Path) -> None:
    """Each flipped bit is noticed or changes nothing: pages have checksums, and the log has one of the file's end."""
    rows: list[Row] = [("s", n + 1, n << 32, b"payload %d" % n, None) for n in range(20)]
    [file] = DataFiles(str(tmp_path), Layout()).write([batch(rows, False)])
    storage, path = open_storage(tmp_path), tmp_path / file.path
    end = ends.stated(file.tags)
    assert end == file_ends.of_file(storage, str(path))
    content = path.read_bytes()
    entry = TableFile(file.path, 0, 1, 20, 0, 20 << 32, 20, file.size, "s", "s", "s", None, end)
    whole = FileReader(str(tmp_path), storage).read(entry, Pick(1, 20), COLUMNS, archive=False)
    reasons = []
    for at in range(4, len(content), 5):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        try:
            assert FileReader(str(tmp_path), storage).read(entry, Pick(1, 20), COLUMNS, archive=False) == whole, at
        except DamagedFile as error:
            reasons.append(str(error))
    assert len(reasons) > len(content) // 8
    assert all(str(path) in each for each in reasons)


def test_a_damaged_end_of_a_file_is_found_when_the_table_is_verified(tmp_path: Path) -> None:
    [file] = DataFiles(str(tmp_path), Layout()).write([batch([("s", 1, 1, b"x", None)], False)])
    add = msgspec.convert(msgspec.to_builtins(file), AddFile)
    storage, path = open_storage(tmp_path), tmp_path / file.path
    assert check.check(storage, str(tmp_path), [table_file(add)]) == {}
    content = path.read_bytes()
    at = content.rindex(b"time_ns")
    path.write_bytes(content[:at] + b"T" + content[at + 1 :])
    (damage,) = check.check(storage, str(tmp_path), [table_file(add)]).values()
    assert (damage.path, "crc" in damage.reason) == (str(path), True)


def test_a_column_of_another_type_is_refused_without_a_checksum(tmp_path: Path) -> None:
    """Files of other writers have no checksum of their end."""
    table = pa.table({"seq": [1, 2], "time_ns": [1.0, 2.0], "subject": ["s", "s"], "data": [b"x", b"y"]})
    missing = table.set_column(1, "time_ns", pa.array([1, None], pa.int64()))
    for some, says in ((table, "time_ns is double instead of int64"), (missing, "time_ns lacks values")):
        pq.write_table(some, tmp_path / "x.parquet")
        entry = TableFile("x.parquet", 0, 1, 2, 1, 2, 2, 1, "s", "s", None, None)
        with pytest.raises(DamagedFile, match=says):
            FileReader(str(tmp_path), open_storage(tmp_path)).read(
                entry, Pick(1, 2), tuple(table.column_names), archive=False
            )


def test_no_file_is_written_where_the_directory_of_the_table_is_gone(tmp_path: Path) -> None:
    """A lake that is not mounted any more would begin anew otherwise."""
    with pytest.raises(FileNotFoundError, match="streams/S"):
        DataFiles(str(tmp_path / "lake" / "streams" / "S"), Layout()).write([batch([("s", 1, 1, b"x", None)], False)])
    assert not (tmp_path / "lake").exists()
