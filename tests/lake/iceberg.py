"""Readers of Iceberg tables, and a stream with its Delta table and the Iceberg table over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_avro
import duckdb_extension_iceberg
import polars
from pyiceberg.table import StaticTable

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.schema import join_headers
from lakestream.log.format.record import Record
from lakestream_iceberg.export import TableExport
from lakestream_iceberg.library import IcebergLibrary
from lakestream_iceberg.metadata import any_behind
from lakestream_spark.write import iceberg_files
from tests.lake.model import StreamModel
from tests.lake.tables import records
from tests.lake.test_maintenance import compact

os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package, about which it warns
HINT = "version-hint.text"
BLOCK = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
EXTENSIONS = (
    Path(duckdb_extension_avro.__file__).parent / "extensions" / "v1.5.5" / "avro.duckdb_extension",
    Path(duckdb_extension_iceberg.__file__).parent / "extensions" / "v1.5.5" / "iceberg.duckdb_extension",
)


def newest(table: str) -> str:
    """Return the path of the newest metadata file, by the hint that readers follow."""
    number = Path(table, "metadata", HINT).read_text()
    return f"{table}/metadata/v{number}.metadata.json"


def static(table: str) -> StaticTable:
    """Return the table as pyiceberg opens it."""
    return StaticTable.from_metadata(newest(table))


def by_pyiceberg(table: str) -> list[dict[str, Any]]:
    """Return the rows as pyiceberg finds them, in sequence order."""
    return static(table).scan().to_arrow().sort_by("seq").to_pylist()


def by_duckdb(table: str) -> list[dict[str, Any]]:
    """Return the rows as DuckDB finds them, in sequence order."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for extension in EXTENSIONS:
            connection.execute(f"LOAD '{extension}'")
        found = connection.execute("SELECT * FROM iceberg_scan(?) ORDER BY seq", [table])
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def by_polars(table: str) -> list[dict[str, Any]]:
    """Return the rows as Polars finds them, in sequence order."""
    return polars.scan_iceberg(static(table)).sort("seq").collect().to_dicts()


READERS = {"pyiceberg": by_pyiceberg, "duckdb": by_duckdb, "polars": by_polars}


def record(row: Mapping[str, Any]) -> Record:
    """Return a row as the message that it represents."""
    header, headers = row["header_block"], row["headers"]
    if header is None:
        pairs = list(headers.items()) if isinstance(headers, dict) else headers
        header = b"" if pairs is None else join_headers(pairs)
    subject = row["subject"].encode() if row["subject_bytes"] is None else row["subject_bytes"]
    return Record(row["seq"], row["time_ns"], subject, header, row["data"])


class IcebergStream:
    """A stream with its Delta table, and the Iceberg table over it."""

    def __init__(self, spark: Any, lake: Path, log: Path, metadata: Mapping[str, str]) -> None:
        self.spark, self.lake, self.model = spark, lake, StreamModel(log)
        self.model.configure(dict(metadata))
        self.table = self.model.table(lake)
        self.anew()

    def anew(self) -> None:
        """Forget what the exporter knows, as a restart does."""
        self.library = IcebergLibrary(self.spark, str(self.lake))
        self.export = TableExport(self.library, open_storage(str(self.lake)), self.table)

    def publish(self, count: int, subjects: int = 3, time_ns: int | None = None) -> None:
        """Publish messages, some with headers."""
        messages = [(b"s.%d" % (n % subjects), BLOCK if n % 5 == 0 else b"", b"%d" % n) for n in range(count)]
        self.model.publish(messages, time_ns=time_ns)

    def compact(self) -> None:
        """Compact what was published and removed."""
        self.model.stage(self.lake)
        compact(self.spark, self.lake, self.model)

    def check(self, changed: bool = True) -> None:
        """Bring Iceberg up to date, and assert that its rows are those of Delta and of the stream, to each reader.

        Args:
            changed: there is something to do for it.
        """
        assert self.export.run() == changed
        storage = open_storage(str(self.lake))
        assert bool(iceberg_files.asked_to_expire(storage, self.table)) == any_behind(str(self.lake), "off")
        wanted = self.model.expected()
        assert records(self.table) == wanted
        for name, read in READERS.items():
            assert [record(row) for row in read(self.table)] == wanted, name
