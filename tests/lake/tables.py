"""Reading a stream's table in tests by other means than the code under test."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from lakestream.lake.table.schema import join_headers
from lakestream.log.format.record import Record

ALL = 1 << 62


def rows(table: str) -> list[dict[str, Any]]:
    """Return every row of the table's newest version, in sequence order."""
    query = QueryBuilder().register("t", DeltaTable(table))
    return pa.table(query.execute("SELECT * FROM t ORDER BY seq").read_all()).to_pylist()


def records(table: str) -> list[Record]:
    """Return every row as the message that it represents."""
    found = []
    for row in rows(table):
        header = row["header_block"]
        if header is None:
            header = b"" if row["headers"] is None else join_headers(row["headers"])
        subject = row["subject"].encode() if row["subject_bytes"] is None else row["subject_bytes"]
        found.append(Record(row["seq"], row["time_ns"], subject, header, row["data"]))
    return found


def version(table: str) -> int:
    """Return the table's newest version."""
    return int(DeltaTable(table).version())


def partition_columns(table: str) -> list[str]:
    """Return the table's partition columns."""
    return list(DeltaTable(table).metadata().partition_columns)
