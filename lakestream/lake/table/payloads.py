"""Payloads of a table's rows, also of those whose typed columns stand for them.

Belongs here: which columns a reader of payloads needs, and its rows with payloads. Every reader of messages in
lakestream goes through this. Other programs find NULL in `data` where `data_format` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakestream.lake.errors import LakeError
from lakestream.lake.files import paths
from lakestream.lake.files.lake import open_storage
from lakestream.lake.table import typed_columns
from lakestream.lake.table.schema import FORMAT_COLUMN, SCHEMA_COLUMN, column_names
from lakestream.lake.table.schema_catalog import SchemaCatalog
from lakestream.lake.table.typed_columns import plain
from lakestream.lake.table.typed_rows import given_back
from lakestream.schemas.errors import Unfit


class PayloadUnknown(LakeError):
    """Raised when the payload of a row cannot be made of its columns."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(
            f"{table}: rows that do not keep their payload (data_format) cannot be read: {reason}; bring the schema "
            "back from a copy of the lake (schemas/<name>/<version>.json)"
        )


class Payloads:
    """Payloads of the rows of one table. Safe for use by several threads.

    Args:
        table: the table's path.
        schema: the JSON of its columns, of the version that is read or a later one.
    """

    def __init__(self, table: str, schema: str) -> None:
        self._path = table
        self._columns = typed_columns.of_table(schema)
        self._has_formats = FORMAT_COLUMN in column_names(schema)
        self._catalog: SchemaCatalog | None = None

    def needed(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to read, besides these: none, unless `data` is one of them and rows may lack it."""
        if not self._has_formats or "data" not in columns:
            return []
        more = [FORMAT_COLUMN, SCHEMA_COLUMN, *(field.column for field in self._columns.fields)]
        return [name for name in more if name not in columns]

    def complete(self, rows: pa.Table) -> pa.Table:
        """Return rows with all payloads.

        Args:
            rows: with the columns that are `needed`, as far as a file has them.

        Raises:
            PayloadUnknown: the schema of a row is missing, or cannot be read.
        """
        if FORMAT_COLUMN not in rows.column_names or rows.column(FORMAT_COLUMN).null_count == rows.num_rows:
            return rows
        catalog = self._catalog or self._opened()
        try:
            made = given_back(catalog, self._columns, plain(rows))
        except (Unfit, ValueError) as error:
            self._catalog = None  # it remembers what is missing
            raise PayloadUnknown(self._path, str(error)) from None
        self._catalog = catalog
        return rows.set_column(rows.column_names.index("data"), "data", made)

    def _opened(self) -> SchemaCatalog:
        lake, account = paths.lake_of(self._path)
        return SchemaCatalog(open_storage(lake), account)


def completed(payloads: Payloads | None, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a batch of a query with payloads, and exactly these columns."""
    if payloads is None or batch.schema.names == list(columns):
        return batch
    found: Any = payloads.complete(pa.Table.from_batches([batch])).select(list(columns)).combine_chunks()
    batches = found.to_batches()
    return batches[0] if batches else batch.select(list(columns))
