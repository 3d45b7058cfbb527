"""Rows of one version of a Delta table.

Belongs here: opening a version with deltalake, and querying it with DataFusion, which applies deletion vectors
(deltalake's own readers reject them). No other module calls deltalake to read a table. Rows come with the payloads that
their typed columns stand for (payloads.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable, Metadata, QueryBuilder, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from lakestream.lake.errors import VersionGone
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.storage import Storage
from lakestream.lake.table.payloads import Payloads
from lakestream.lake.table.payloads import completed as with_payloads
from lakestream.lake.table.schema import doubled, table_schema

_CONFIG = {"datafusion.execution.parquet.pushdown_filters": "true"}
_GONE = "Object at location"
"""Part of the text of the bare Exception that the query engine raises for a file that is not there."""


class Scan:
    """A version of a table, named `t` in SQL. Safe for use by several threads.

    Args:
        table: the table's path.
        version: the version; the newest by default. `at`: the one that was current then.
        storage: where the table is; by default that of its path.

    Raises:
        FileNotFoundError: there is no table.
        VersionGone: the version is not there, or no longer, or cannot be read.
    """

    def __init__(
        self, table: str, version: int | None = None, storage: Storage | None = None, at: datetime | None = None
    ) -> None:
        self.table = table
        options = (storage or open_storage(table)).delta_options() or None
        try:
            self._delta = DeltaTable(table, version=version, storage_options=options)
            if at is not None:
                self._delta.load_as_version(at)
        except DeltaError as error:
            if version is None and isinstance(error, TableNotFoundError):
                raise FileNotFoundError(str(error)) from error
            raise VersionGone(table, version, str(error)) from error
        self._lock = threading.Lock()
        self._query: QueryBuilder | None = None
        self._payloads: Payloads | None = None

    @property
    def version(self) -> int:
        """Return the version."""
        return int(self._delta.version())

    def catch_up(self) -> None:
        """Go on to the newest version."""
        with self._lock:
            self._delta.update_incremental()
            self._query = self._payloads = None  # a registered table stays at its version

    # ------------------------------------------------------------------ the table
    @property
    def metadata(self) -> Metadata:
        """Return the table's id, properties (`configuration`) and partition columns."""
        return self._delta.metadata()

    @property
    def schema(self) -> Schema:
        """Return the columns; `to_json` gives them as in the log."""
        return self._delta.schema()

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return [field.name for field in self.schema.fields]

    def position(self, application: str) -> int | None:
        """Return the version of a transaction identifier; None if there is none."""
        found = self._delta.transaction_version(application)
        return None if found is None else int(found)

    @property
    def file_count(self) -> int:
        """Return the number of files."""
        return len(self._delta.file_uris())

    def files(self) -> pa.Table:
        """Return the files with flattened statistics (`min.seq` …), as deltalake names them."""
        return pa.table(self._delta.get_add_actions(flatten=True))

    # ------------------------------------------------------------------ its rows
    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the answer to a query of `t` in the engine's own types. Raises VersionGone if a file is missing."""
        try:
            for batch in self._registered().execute(sql):
                yield pa.record_batch(batch)
        except Exception as error:  # the query engine raises bare Exception
            if _GONE not in str(error):
                raise
            raise VersionGone(self.table, self.version, str(error)) from error

    def query(self, sql: str) -> pa.Table:
        """Return the answer to a query of `t` in the engine's own types, which raises bare Exception."""
        return pa.table(self._registered().execute(sql).read_all())

    def reader(self, sql: str) -> pa.RecordBatchReader:
        """Return `query` as a stream."""
        return pa.RecordBatchReader.from_stream(self._registered().execute(sql))

    def rows(self, columns: Sequence[str], where: str = "") -> Iterator[pa.RecordBatch]:
        """Yield exactly these columns of the rows that meet a condition (DataFusion's SQL), in no particular order.

        Raises:
            VersionGone: a file is missing.
            PayloadUnknown: the schema of a row is missing.
        """
        payloads = self._payloads = self._payloads or Payloads(self.table, self.schema.to_json())
        names = ", ".join(map(doubled, [*columns, *payloads.needed(columns)]))
        for batch in self.stream(f"SELECT {names} FROM t" + (f" WHERE {where}" if where else "")):
            yield with_payloads(payloads, batch, columns)

    def _registered(self) -> QueryBuilder:
        with self._lock:
            if self._query is None:
                self._query = QueryBuilder(_CONFIG).register("t", self._delta)
            return self._query


def typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in the usual types of a table's columns (`table_schema`); the query engine has narrower ones."""
    wanted = table_schema(batch.schema.names)
    columns = []
    for column, field in zip(batch.columns, wanted, strict=True):
        if pa.types.is_dictionary(column.type):  # a partition column, whose values may be views
            values = column.dictionary.cast(field.type)
            column = pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
