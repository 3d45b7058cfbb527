"""Tests of the index of a table's files: the same files as in deltalake, read step by step, in little memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.read.history.index import END, TableIndex
from lakestream.lake.storage.local_storage import LocalStorage
from lakestream.lake.storage.storage import FileEntry
from lakestream.lake.table.actions import TableFile, locate
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.state import TableFollower

pytestmark = pytest.mark.unit

MOST_BYTES = 1024


class Counting(LocalStorage):
    """Directory that records its reads."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.read_files: list[str] = []
        self.lists = 0

    def read(self, path: str) -> bytes:
        self.read_files.append(path.rpartition("/")[2])
        return super().read(path)

    def read_entry(self, path: str) -> tuple[bytes, FileEntry]:
        self.read_files.append(path.rpartition("/")[2])
        return super().read_entry(path)

    def list(self, directory: str) -> list[FileEntry]:
        self.lists += 1
        return super().list(directory)


def rows(first: int, count: int, subject: str = "a.b") -> pa.Table:
    seqs = list(range(first, first + count))
    return pa.table(
        {
            "subject": pa.array([f"{subject}.{seq % 3}" for seq in seqs]),
            "seq": pa.array(seqs, pa.int64()),
            "time_ns": pa.array([seq * 10 for seq in seqs], pa.int64()),
        }
    )


def write(table: Path, data: pa.Table, **options: object) -> None:
    write_deltalake(str(table), data, mode="append", **options)  # type: ignore[arg-type]


def index_of(table: Path) -> tuple[TableIndex, Counting]:
    storage = Counting(str(table))
    return TableIndex(TableFollower(str(table), storage=storage), storage), storage


def files(index: TableIndex) -> list[str]:
    return sorted(locate(index.follower.table, file.path) for file in index.refresh().files)


def test_a_refresh_reads_only_the_commits_that_came_since(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / "t", rows(1 + number * 10, 10))
    index, storage = index_of(tmp_path / "t")
    first = index.refresh()
    assert (first.version, first.max_seq, len(first.files)) == (4, 50, 5)
    storage.read_files.clear()
    lists = storage.lists
    assert index.refresh() is first
    write(tmp_path / "t", rows(51, 10))
    second = index.refresh()
    assert (second.version, second.max_seq, len(second.files)) == (5, 60, 6)
    assert storage.read_files == [f"{5:020d}.json"]
    assert storage.lists == lists
    assert (first.max_seq, len(first.files)) == (50, 5), "a snapshot stays as it was"


@pytest.mark.parametrize("partition", [None, ["subject"]])
def test_it_has_the_files_that_deltalake_has(tmp_path: Path, partition: list[str] | None) -> None:
    table = tmp_path / "t"
    choose = random.Random(3)
    last = 0
    index = fresh = None
    for _ in range(25):
        step = choose.choice(["append", "append", "append", "optimize", "delete", "checkpoint", "clean"])
        if step == "append" or last == 0:
            write(table, rows(last + 1, 7), partition_by=partition, configuration={"delta.checkpointInterval": "4"})
            last += 7
        elif step == "optimize":
            DeltaTable(str(table)).optimize.compact()
        elif step == "delete":
            DeltaTable(str(table)).delete(f"seq = {choose.randint(1, last)}")
        elif step == "checkpoint":
            DeltaTable(str(table)).create_checkpoint()
        else:
            DeltaTable(str(table)).cleanup_metadata()
        index = index or index_of(table)[0]
        fresh = index_of(table)[0]
        expected = sorted(DeltaTable(str(table)).file_uris())
        assert files(index) == files(fresh) == expected
        known, anew = index.snapshot(), fresh.snapshot()
        assert known.version == anew.version == DeltaTable(str(table)).version()
        assert known.mins.tolist() == [file.min_seq for file in known.files] == sorted(known.mins.tolist())
        assert known.maxs.tolist() == [file.max_seq for file in known.files]
        assert sum(file.rows for file in known.files) == DeltaTable(str(table)).to_pyarrow_table().num_rows


def test_a_log_that_was_cleaned_up_behind_it_is_read_anew(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(table, rows(1, 5))
    index, _ = index_of(table)
    index.refresh()
    for number in range(1, 4):
        write(table, rows(1 + number * 5, 5))
    DeltaTable(str(table)).create_checkpoint()
    for version in range(3):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    assert (index.refresh().version, index.refresh().max_seq) == (3, 20)
    (table / "_delta_log" / "_last_checkpoint").unlink()
    assert index.refresh(from_scratch=True).max_seq == 20
    (table / "_delta_log" / f"{3:020d}.checkpoint.parquet").unlink()
    with pytest.raises(HistoryUnavailable, match=r"delta\.checkpointPolicy"):
        index.refresh(from_scratch=True)


def test_no_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        index_of(tmp_path / "t")[0].refresh()


def test_files_without_statistics_are_known_by_their_footers(tmp_path: Path) -> None:
    write(tmp_path / "t", rows(5, 10), configuration={"delta.dataSkippingNumIndexedCols": "0"})
    snapshot = index_of(tmp_path / "t")[0].refresh()
    (file,) = snapshot.files
    assert (file.min_seq, file.max_seq, file.min_time, file.max_time, file.rows) == (5, 14, 50, 140, 10)
    assert snapshot.overlapping(1, END, SubjectRange(["zzz"])), "nothing is known of its subjects"


def test_which_files_may_hold_what(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / "t", rows(1 + number * 10, 10, f"s{number}"))
    snapshot = index_of(tmp_path / "t")[0].refresh()

    def firsts(found: list[TableFile]) -> list[int]:
        return [file.min_seq for file in found]

    assert firsts(snapshot.overlapping(20, 31)) == [11, 21, 31]
    assert firsts(snapshot.overlapping(101, END)) == []
    assert firsts(snapshot.overlapping(1, END, SubjectRange(["s3.1", "s7.0", "s55"]))) == [31, 71]
    assert firsts(snapshot.overlapping(1, END, SubjectRange([], ["s4."]))) == [41]
    assert firsts(snapshot.overlapping(1, 20, SubjectRange([], [""]))) == [1, 11]
    assert firsts(snapshot.holding([5, 6, 44, 100, 200])) == [1, 41, 91]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab\u00e9\U0001f600", max_size=5), min_size=1, max_size=5),
    st.lists(st.text("ab\u00e9\U0001f600", max_size=3), max_size=3),
    st.lists(st.text("ab\u00e9\U0001f600", max_size=2), max_size=2),
    st.integers(1, 5),
)
def test_no_file_that_holds_a_wanted_subject_is_left_out(
    held: list[str], texts: list[str], heads: list[str], cut: int
) -> None:
    """No file with a wanted subject is left out, although statistics truncate strings and may lie below the subject."""
    wanted = SubjectRange(texts, heads)
    if any(text in texts or text.startswith(tuple(heads)) for text in held):
        assert wanted.overlaps(min(held)[:cut], max(held)[:cut])


def test_ten_thousand_files_take_less_than_a_kibibyte_each(tmp_path: Path) -> None:
    """Ten thousand files take less than 1 KiB of memory each.

    With the longest subjects that statistics keep, a deletion vector each, and a commit each.
    """
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    count = 10_000
    head = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}},
        {"metaData": {"schemaString": '{"fields":[]}', "partitionColumns": ["bucket"], "configuration": {}}},
    ]
    lines = []
    for number in range(count):
        low = {"subject": f"{number:032d}", "seq": 2**40 + number * 1000, "time_ns": 2**60 + number}
        high = {"subject": f"{number:031d}z", "seq": 2**40 + number * 1000 + 999, "time_ns": 2**60 + number + 1}
        add = {
            "path": f"bucket=7/part-00000-{number:08d}-9c3e-4f0b-8a51-1f5f5c0a7e11.c000.snappy.parquet",
            "partitionValues": {"bucket": "7"},
            "size": 1_000_000 + number,
            "stats": json.dumps({"numRecords": 1000, "minValues": low, "maxValues": high}),
            "deletionVector": {
                "storageType": "u",
                "pathOrInlineDv": f"{number:020d}",
                "offset": number + 1000,
                "sizeInBytes": 1000 + number,
                "cardinality": 300 + number,
            },
        }
        lines.append({"add": add})
    half = count // 2
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, head + lines[:half])))
    index, _ = index_of(tmp_path / "t")
    tracemalloc.start()
    index.refresh()
    for version in range(1, 51):  # and growth leaves nothing behind
        some = lines[half + (version - 1) * 100 : half + version * 100]
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, some)))
        index.refresh()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(index.snapshot().files) == count
    assert held / count <= MOST_BYTES
    print(f"{held / count:.0f} bytes a file")


def test_subjects_of_files_that_have_left_the_table_are_forgotten(tmp_path: Path) -> None:
    """A table whose one file is replaced again and again, each time with other subjects."""
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    head = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"schemaString": '{"fields":[]}', "partitionColumns": [], "configuration": {}}},
    ]
    count = 3_000
    for version in range(count):
        low = {"subject": f"{version:031d}a", "seq": version, "time_ns": version}
        stats = {"numRecords": 1, "minValues": low, "maxValues": {**low, "subject": f"{version:031d}b"}}
        actions = [
            {"add": {"path": f"{version}.parquet", "partitionValues": {}, "size": 1, "stats": json.dumps(stats)}}
        ]
        actions += [{"remove": {"path": f"{version - 1}.parquet"}}] if version else head
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    storage = LocalStorage(str(tmp_path))
    index = TableIndex(TableFollower(str(tmp_path / "t"), storage=storage), storage)
    tracemalloc.start()
    index.refresh()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(index.snapshot().files) == 1
    assert held < 100 * 1024


@pytest.mark.parametrize("feature", ["typeWidening", "columnMapping", "variantType"])
def test_files_are_read_with_features_that_do_not_concern_messages(tmp_path: Path, feature: str) -> None:
    write(tmp_path / "t", rows(1, 10, "s"))
    index, _ = index_of(tmp_path / "t")
    before = index.refresh()
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature]}
    commit = tmp_path / "t" / "_delta_log" / f"{before.version + 1:020d}.json"
    commit.write_text(json.dumps({"protocol": protocol}))
    assert index.refresh().shape.refusal == ""
    commit.with_name(f"{before.version + 2:020d}.json").write_text(
        json.dumps({"protocol": {**protocol, "readerFeatures": ["future"]}})
    )
    assert "future" in index.refresh().shape.refusal


def test_a_table_whose_columns_have_other_names_in_its_files_is_refused(tmp_path: Path) -> None:
    """Column mapping of another program: the files have the names from before a column was renamed."""
    write(tmp_path / "t", rows(1, 10, "s"))
    index, _ = index_of(tmp_path / "t")
    before = index.refresh()
    names = ["subject", "subject_bytes", "seq", "time_ns", "headers", "header_block", "data"]
    kept = {name: name for name in names}
    for at, (physical, refused) in enumerate(
        (
            (kept, ""),
            ({**kept, "data": "col-1"}, "data"),
            ({"payload" if name == "data" else name: name for name in names}, "data"),
        )
    ):
        fields = [
            {"name": name, "type": "binary", "nullable": True, "metadata": {"delta.columnMapping.physicalName": there}}
            for name, there in physical.items()
        ]
        described = {
            "id": "t",
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
        }
        described["configuration"] = {"delta.columnMapping.mode": "name"}
        commit = tmp_path / "t" / "_delta_log" / f"{before.version + 1 + at:020d}.json"
        commit.write_text(json.dumps({"metaData": described}))
        shape = index.refresh().shape
        assert bool(shape.refusal) == bool(refused)
        assert refused in shape.refusal
