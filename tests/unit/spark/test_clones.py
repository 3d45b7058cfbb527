"""Tests of the files that a table's clones need, and of deletes that a clone lacks, from logs alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.actions import AddFile, DeletionVector
from lakestream_spark.write import vacuum
from lakestream_spark.write.clones import Clone, References
from lakestream_spark.write.detach import foreign


def write_log(table: Path, *files: str) -> None:
    """Write a table of two commits that refers to these files."""
    shutil.rmtree(table, ignore_errors=True)
    meta: dict[str, Any] = {"id": table.name, "format": {"provider": "parquet"}, "schemaString": "{}"}
    meta |= {"partitionColumns": [], "configuration": {}}
    add = {"partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    lines = [{"metaData": meta}, *({"add": {"path": path, **add}} for path in files)]
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    (table / "_delta_log" / f"{1:020d}.json").write_text("{}\n")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    write_log(tmp_path / "streams" / "ORDERS", "old.parquet", "new.parquet")
    return tmp_path


def test_a_clone_that_was_made_anew_is_not_taken_for_the_one_before(lake: Path) -> None:
    """A recreated clone is not mistaken for the previous one with the same number of commits."""
    origin, mirror = lake / "streams" / "ORDERS", lake / "streams" / "M"
    references = References(open_storage(str(lake)))
    for name in ("old", "new", "old"):
        write_log(mirror, f"file:{origin}/{name}.parquet")
        assert references.into(str(origin)) == {f"{origin}/{name}.parquet"}


def test_what_is_registered_after_the_look_is_seen_by_the_second_one(lake: Path) -> None:
    origin, mirror = lake / "streams" / "ORDERS", lake / "streams" / "M"
    storage = open_storage(str(lake))
    references = References(storage)
    assert references.into(str(origin)) == set()
    entry = Clone(str(origin), str(mirror), 0, 1 << 62)
    storage.write(paths.clone_entry(storage.root, entry.target), msgspec.json.encode(entry))
    everything = {f"{origin}/old.parquet", f"{origin}/new.parquet"}
    assert references.newly(str(origin)) == everything, "it is being made"
    assert references.into(str(origin)) == everything
    assert references.newly(str(origin)) == set()
    write_log(mirror, f"file:{origin}/new.parquet")
    assert references.into(str(origin)) == {f"{origin}/new.parquet"}


def test_messages_that_a_clone_has_not_are_found_among_those_to_be_erased(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    write_deltalake(table, pa.table({"seq": pa.array([1, 2, 5, 6, 9], pa.int64())}))
    missing = vacuum.missing(open_storage(table), table, [(1, 3), (5, 6), (8, 10), (20, 21)])
    assert missing == [(3, 3), (8, 8), (10, 10), (20, 21)]


def test_a_file_is_foreign_by_its_path_or_its_deletion_vector() -> None:
    vector = DeletionVector("p", "file:/lake/origin/deletion_vector_1.bin", 1, 1)
    own = AddFile("part.parquet", {}, 1)
    adds = [
        own,
        AddFile("file:/lake/origin/part.parquet", {}, 1),
        AddFile("other.parquet", {}, 1, deletion_vector=vector),
    ]
    assert foreign("/lake/clone", adds) == adds[1:]
    assert foreign("/lake/clone", adds, {"/lake/origin/part.parquet"}) == adds[1:2]
