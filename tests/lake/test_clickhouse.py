"""Tests of ClickHouse (chdb) as a reader: deletion vectors, partitions, versions, and what it gets wrong or lacks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakestream.lake.storage.lake import open_storage, require
from lakestream.lake.table import encryption
from lakestream.log.format.record import Record
from lakestream.log.sealing.keys import VARIABLE
from lakestream_iceberg.export import TableExport
from lakestream_iceberg.library import IcebergLibrary
from tests.lake.foreign import Readers, micros, record
from tests.lake.test_foreign_readers import LAYOUTS, Table, messages
from tests.packages.environments import environ, make_venv
from tests.unit.lake.table.test_encryption import fill

pytestmark = pytest.mark.lake

REQUIREMENT = "chdb==4.4.0"
"""ClickHouse as a library. It is 530 MB, so only these tests install it, into an environment of their own."""
PROGRAM = "import sys, chdb; sys.stdout.buffer.write(chdb.query(sys.argv[1], 'Arrow').bytes())"
STORED_NS = 1_700_000_000_123_456_789
NO_HEADERS = b"NATS/1.0\r\n\r\n"
COUNT = "SELECT count() AS n FROM {table}"


class ClickHouse:
    """ClickHouse in processes of their own. `python`: has chdb."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def ask(self, table: str, query: str, directory: str = "", **settings: int) -> list[dict[str, Any]]:
        """Return the rows of a query of `{table}`. Its strings are bytes, as the column `data` needs.

        `directory`: the working directory, below which chdb reads files; the table's folder without. Raises
        RuntimeError.
        """
        settings = {"output_format_arrow_string_as_string": 0, **settings}
        query = query.replace("{table}", f"deltaLakeLocal('{table}')")
        query += " SETTINGS " + ", ".join(f"{name} = {value}" for name, value in settings.items())
        where = directory or Path(table).parent
        done = subprocess.run([self._python, "-c", PROGRAM, query], cwd=where, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        return pa.ipc.open_file(pa.py_buffer(done.stdout)).read_all().to_pylist()

    def rows(self, table: str, where: str = "") -> list[dict[str, Any]]:
        """Return rows in the form of tests.lake.foreign."""
        return [
            {**row, "subject": row["subject"].decode(), "headers": _text(row["headers"]) or None}
            for row in self.ask(table, f"SELECT * FROM {{table}} {where} ORDER BY seq")
        ]


def iceberg_rows(clickhouse: ClickHouse, table: str) -> list[dict[str, Any]]:
    """Return the rows of an Iceberg table, in sequence order."""
    rows = clickhouse.ask(table, f"SELECT * FROM icebergLocal('{table}') ORDER BY seq")
    return [{**row, "subject": row["subject"].decode(), "headers": _text(row["headers"]) or None} for row in rows]


def _text(headers: list[tuple[bytes, list[bytes]]]) -> list[tuple[str, list[str]]]:
    return [(name.decode(), [value.decode() for value in values]) for name, values in headers]


def without_empty_headers(found: Record) -> Record:
    """Return a message as ClickHouse shows it: a block without headers is an empty map, and so is no block."""
    return msgspec.structs.replace(found, header=b"") if found.header == NO_HEADERS else found


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> ClickHouse:
    home = tmp_path_factory.mktemp("clickhouse")
    return ClickHouse(make_venv(home / "venv", environ(home), REQUIREMENT) / "python")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return the root of a lake whose path has no `#`, at which ClickHouse cuts it off."""
    root = tmp_path / "lake größe $X~1"
    root.mkdir()
    return root


@pytest.mark.parametrize("layout", LAYOUTS)
def test_clickhouse_reads_every_message(
    spark: Any, clickhouse: ClickHouse, lake: Path, tmp_path: Path, layout: str
) -> None:
    table = Table(spark, Readers(spark), lake, tmp_path / "log", {"lakestream.partition": layout})
    table.model.publish(messages(30), time_ns=STORED_NS)
    table.compact()
    table.model.remove([2, 3, 17], erase=True)  # deletion vectors
    table.model.publish(messages(3))
    table.compact()
    table.sql("ALTER TABLE {table} ADD COLUMNS (note STRING)")
    wanted = [without_empty_headers(found) for found in table.model.expected()]
    rows = clickhouse.rows(table.path)
    assert [record(row) for row in rows] == wanted
    assert [micros(row) for row in rows] == [found.time_ns // 1000 for found in wanted]
    by_spark = spark.sql(f"SELECT data FROM delta.`{table.path}` ORDER BY seq").collect()
    assert [row["data"] is None for row in rows] == [row.data is None for row in by_spark]
    one = [found for found in wanted if found.subject == "größe.日本".encode()]
    assert [record(row) for row in clickhouse.rows(table.path, "WHERE subject = 'größe.日本'")] == one


def test_clickhouse_counts_deleted_rows_unless_its_shortcut_is_off_and_reads_versions(
    spark: Any, clickhouse: ClickHouse, lake: Path, tmp_path: Path
) -> None:
    """A plain count() is the sum of the files' row counts, which deletion vectors do not change."""
    table = Table(spark, Readers(spark), lake, tmp_path / "log", {})
    table.model.publish(messages(10))
    table.compact()
    version = int(DeltaTable(table.path).version())
    table.model.remove([1, 2], erase=True)
    table.compact()

    def ask(query: str, directory: str = "", **settings: int) -> list[dict[str, Any]]:
        return clickhouse.ask(table.path, query, directory, **settings)

    assert ask(COUNT) == [{"n": 11}], "wrong: two of them are deleted"
    assert ask(COUNT, optimize_trivial_count_query=0) == [{"n": 9}]
    assert ask(COUNT.replace("count()", "count(seq)")) == [{"n": 9}]
    assert ask(COUNT + " WHERE seq > 0") == [{"n": 9}]
    assert ask("SELECT sum(seq) AS n FROM {table}", delta_lake_snapshot_version=version) == [{"n": sum(range(1, 12))}]
    with pytest.raises(RuntimeError, match="not the same as the specified end version 99"):
        ask("SELECT seq FROM {table}", delta_lake_snapshot_version=99)
    with pytest.raises(RuntimeError, match="SYNTAX_ERROR"):
        ask("SELECT seq FROM {table} TIMESTAMP AS OF '2026-01-01'")
    with pytest.raises(RuntimeError, match="is not inside"):
        ask("SELECT seq FROM {table}", directory="/usr")


def test_clickhouse_takes_no_keys(clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an encrypted table it knows the numbers of rows, which the log states."""
    monkeypatch.setenv(VARIABLE, "one")
    require(str(tmp_path), create=True)
    table = f"{tmp_path}/streams/S"
    encryption.begin(table)
    fill(table)
    assert clickhouse.ask(table, COUNT) == [{"n": 20_000}]
    with pytest.raises(RuntimeError, match="Not a Parquet file"):
        clickhouse.ask(table, "SELECT sum(seq) AS n FROM {table}")


def test_clickhouse_finds_no_table_below_a_directory_with_a_number_sign(
    spark: Any, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    table = Table(spark, Readers(spark), tmp_path / "lake #1", tmp_path / "log", {})
    table.model.publish(messages(1))
    table.compact()
    with pytest.raises(RuntimeError, match="Path does not exist"):
        clickhouse.rows(table.path)


@pytest.mark.parametrize("form", ["v2", "v3"])
def test_clickhouse_reads_iceberg_tables_but_no_deletion_vectors_of_v3(
    spark: Any, clickhouse: ClickHouse, lake: Path, tmp_path: Path, form: str
) -> None:
    table = Table(spark, Readers(spark), lake, tmp_path / "log", {"lakestream.iceberg": form})
    export = TableExport(IcebergLibrary(spark, str(lake)), open_storage(str(lake)), table.path)

    def records() -> list[Record]:
        return [record(row) for row in iceberg_rows(clickhouse, table.path)]

    table.model.publish(messages(30))
    table.compact()
    assert export.run()
    assert records() == [without_empty_headers(found) for found in table.model.expected()]
    table.model.remove([2, 3, 17])
    table.compact()
    assert export.run()
    if form == "v2":
        assert records() == [without_empty_headers(found) for found in table.model.expected()]
    else:
        with pytest.raises(RuntimeError, match="Position deletes are supported only for parquet"):
            records()
