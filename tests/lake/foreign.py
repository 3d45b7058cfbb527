"""Readers of Delta tables that are not lakestream's, which return rows in one common form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import duckdb
import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from lakestream.lake.table.schema import join_headers
from lakestream.log.format.record import Record
from lakestream_client.lake import readers
from lakestream_sql.session import extension_path

Row = Mapping[str, Any]
COLUMNS = ("subject", "seq", "time", "time_ns", "headers", "data", "header_block", "subject_bytes")


class Readers:
    """Reads Delta tables with DuckDB, deltalake, pyarrow, pandas, Polars and Spark."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._duckdb = duckdb.connect()
        self._duckdb.execute(f"LOAD '{extension_path()}'")
        self._duckdb.execute("SET TimeZone = 'UTC'")
        self.all: dict[str, Callable[[str, str | None], list[Row]]] = {
            "duckdb": self.duckdb,
            "deltalake": self.deltalake,
            "pyarrow": self.pyarrow,
            "pandas": self.pandas,
            "polars": self.polars,
            "polars by arrow": self.polars_arrow,
            "spark": self.spark,
        }

    def duckdb(self, table: str, subject: str | None = None) -> list[Row]:
        where, arguments = ("", [table]) if subject is None else ("WHERE subject = ?", [table, subject])
        found = self._duckdb.execute(f"SELECT * FROM delta_scan(?) {where} ORDER BY seq", arguments)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def deltalake(self, table: str, subject: str | None = None) -> list[Row]:
        where = "" if subject is None else "WHERE subject = '{}'".format(subject.replace("'", "''"))
        query = QueryBuilder().register("t", DeltaTable(table))
        return pa.table(query.execute(f"SELECT * FROM t {where} ORDER BY seq").read_all()).to_pylist()

    def pyarrow(self, table: str, subject: str | None = None) -> list[Row]:
        where = None if subject is None else "subject = '{}'".format(subject.replace("'", "''"))
        return readers.arrow(table, where=where).sort_by("seq").to_pylist()

    def pandas(self, table: str, subject: str | None = None) -> list[Row]:
        frame = readers.to_pandas(table)
        if subject is not None:
            frame = frame[frame["subject"] == subject]
        return frame.sort_values("seq").astype(object).to_dict("records")

    def polars(self, table: str, subject: str | None = None) -> list[Row]:
        """Read with Polars' own scan of Delta tables."""
        return self._polars(polars.scan_delta(table), subject)

    def polars_arrow(self, table: str, subject: str | None = None) -> list[Row]:
        """Read with Polars over Arrow, which works for tables at any path."""
        return self._polars(polars.from_arrow(readers.reader(table)).lazy(), subject)

    def _polars(self, frame: polars.LazyFrame, subject: str | None) -> list[Row]:
        if subject is not None:
            frame = frame.filter(polars.col("subject") == subject)
        return frame.sort("seq").collect().to_dicts()

    def spark(self, table: str, subject: str | None = None) -> list[Row]:
        frame = self._spark.sql(f"SELECT *, unix_micros(time) AS micros FROM delta.`{table}`")
        if subject is not None:
            frame = self._spark.sql(
                f"SELECT *, unix_micros(time) AS micros FROM delta.`{table}` WHERE subject = :subject",
                args={"subject": subject},
            )
        return [row.asDict() for row in frame.orderBy("seq").collect()]


def record(row: Row) -> Record:
    """Return the message of a row, byte for byte."""
    header = _bytes(row["header_block"])
    if header is None:
        headers = _headers(row["headers"])
        header = b"" if headers is None else join_headers(headers)
    subject = _bytes(row["subject_bytes"])
    return Record(
        int(row["seq"]),
        int(row["time_ns"]),
        row["subject"].encode() if subject is None else subject,
        header,
        _bytes(row["data"]) or b"",
    )


def micros(row: Row) -> int:
    """Return the column `time` in µs since the epoch."""
    if "micros" in row:  # Spark's rows have times in this machine's zone
        return int(row["micros"])
    return round(row["time"].timestamp() * 1_000_000)


def _headers(value: Any) -> list[tuple[str, list[str]]] | None:
    """Convert a map in any library's form: a dict, pairs, or structs of key and value."""
    if value is None:
        return None
    pairs = value.items() if isinstance(value, dict) else value
    pairs = [(pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in pairs]
    return [(name, list(values)) for name, values in pairs]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
