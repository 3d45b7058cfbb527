"""Tables as Arrow and pandas data, in this process, without Java.

Belongs here: reading a stream's table whole or in part in Python. deltalake's `to_pyarrow_dataset` and `to_pandas`
reject tables with deletion vectors, which every stream's table may have; its query engine applies them, so these
functions use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pandas
import pyarrow as pa

from lakestream.lake.table.scan import Scan
from lakestream.lake.table.schema import doubled
from lakestream.lake.table.typed_columns import plain_type

__all__ = ["arrow", "batches", "reader", "to_pandas"]


def batches(
    table: str, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one version of a table in batches, in no particular order.

    Args:
        table: path or URL of the table.
        columns: the wanted columns; all by default.
        where: a condition in SQL (DataFusion's), e.g. `subject = 'orders.de' AND seq > 1000`; files that cannot have
            such rows are not read.
        version: of the table; the newest by default.
    """
    yield from reader(table, columns, where, version)


def reader(
    table: str, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
) -> pa.RecordBatchReader:
    """Return `batches` as an Arrow stream, which DuckDB, Polars and others accept as a table."""
    scan = Scan(table, version)
    chosen = ", ".join(map(doubled, scan.names if columns is None else columns))
    found = scan.reader(f"SELECT {chosen} FROM t" + (f" WHERE {where}" if where else ""))
    wanted = pa.schema([_plain(field) for field in found.schema])
    return pa.RecordBatchReader.from_batches(wanted, _cast(found, wanted))


def arrow(
    table: str, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
) -> pa.Table:
    """Return `batches` as one table in memory."""
    return reader(table, columns, where, version).read_all()


def to_pandas(
    table: str, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
) -> pandas.DataFrame:
    """Return `arrow` for pandas. Whole numbers and times keep their type where there are NULLs among them."""
    kept = {"int64": pandas.Int64Dtype(), "int32": pandas.Int32Dtype()}
    return arrow(table, columns, where, version).to_pandas(types_mapper=lambda kind: kept.get(str(kind)))


def _cast(found: Iterable[pa.RecordBatch], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in found:
        columns = [column.cast(field.type) for column, field in zip(batch.columns, wanted, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _plain(field: pa.Field) -> pa.Field:
    """Return the field with a type that every library knows: no views, no dictionaries."""
    return pa.field(field.name, plain_type(field.type), field.nullable)
