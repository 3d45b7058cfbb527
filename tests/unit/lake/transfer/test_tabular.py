"""Tests of writing tables: an export never overwrites other files."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakestream.lake.delta.schema import UID_PROPERTY
from lakestream.lake.transfer import tabular


def test_an_export_does_not_overwrite_the_table_of_a_stream(tmp_path: Path) -> None:
    table = str(tmp_path / "lake" / "streams" / "ORDERS")
    rows = pa.table({"seq": [1, 2]})
    write_deltalake(table, rows)
    DeltaTable(table).alter.set_table_properties({UID_PROPERTY: "U"}, raise_if_not_exists=False)
    other = pa.table({"seq": [7]})
    with pytest.raises(tabular.BadTarget, match="is the table of a stream"):
        tabular.write(table, "delta", other.schema, iter(other.to_batches()), True)
    assert DeltaTable(table).version() == 1
    plain = str(tmp_path / "plain")
    write_deltalake(plain, rows)
    tabular.write(plain, "delta", other.schema, iter(other.to_batches()), True)
    assert DeltaTable(plain).to_pyarrow_table().to_pydict() == {"seq": [7]}


@pytest.mark.parametrize("name", ["out/rows.parquet", "out/rows.csv", "out/rows.json", "out/rows"])
def test_an_export_that_is_done_is_on_disk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, int] = {}
    really = os.fsync

    def fsync(descriptor: int) -> None:
        really(descriptor)
        synced[os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(".partial")] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", fsync)
    rows = pa.table({"seq": [1, 2]})
    target = tmp_path / name
    tabular.write(str(target), tabular.format_of(name), rows.schema, iter(rows.to_batches()), False)
    written = [path for path in [target, *target.rglob("*")] if path.is_file()]
    assert written
    assert all(synced[str(path)] == path.stat().st_size for path in written)
    assert {str(path.parent) for path in written} | {str(tmp_path)} <= synced.keys()
