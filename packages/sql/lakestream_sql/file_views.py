"""Tables in SQL that DuckDB's Delta extension cannot read.

Belongs here: a version of a table as a view over its Parquet files, with partition columns from the log and without the
rows in deletion vectors. The extension takes the absolute paths in a clone's log for relative ones, and reads an object
store by itself, with credentials, which a confined DuckDB must not have. A view stays for the session, so a version is
resolved once.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import deletion_vectors
from lakestream.lake.table.actions import AddFile, locate
from lakestream.lake.table.log import TableLog, TableVersion
from lakestream.lake.table.scan import Scan
from lakestream.lake.table.schema import doubled, literal
from lakestream_sql.mentions import delta_scan

if TYPE_CHECKING:
    import duckdb

    from lakestream_sql.stored_files import StoredFiles


FILE = "_lakestream_file"
"""Column with the path of a row's file."""


class FileViews:
    """The views of tables that the queries of one session have mentioned.

    Args:
        lake: the lake's root.
        connection: DuckDB.
        files: where DuckDB finds the files of all tables; None: it reads tables by itself, except clones.
    """

    def __init__(self, lake: str, connection: duckdb.DuckDBPyConnection, files: StoredFiles | None = None) -> None:
        self._storage = open_storage(lake)
        self._connection = connection
        self._stored = files
        self._numbers = itertools.count(1)
        self._known: dict[tuple[str, str], str] = {}

    def place(self, path: str, version: int) -> str:
        """Return the FROM item for a table at a version."""
        if self._stored is None and not self._storage.exists(paths.clone_entry(self._storage.root, path)):
            return delta_scan(path, version)
        # A table that was created again may have the same version; the commit's tag tells.
        key = path, TableLog(open_storage(path), path).tag(version) or str(version)
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._view(path, version)
        return known

    def _view(self, path: str, version: int) -> str:
        there = open_storage(path)
        state = TableLog(there, path).state(version)
        partition = state.metadata.partition_columns
        number = next(self._numbers)
        shape, files, dead = f"table_shape_{number}", f"table_files_{number}", f"table_dead_{number}"
        view = f"table_{number}"
        self._table(shape, pa.schema(Scan(path, version, there).schema.to_arrow()).empty_table())
        described = self._connection.execute(f"DESCRIBE {shape}").fetchall()
        types: dict[str, str] = {doubled(name): kind for name, kind, *_ in described}
        split = set(map(doubled, partition))
        self._table(files, self._files(path, state, partition))
        self._table(dead, self._dead(path, state))
        none = ", ".join(f"NULL::{kind} AS {name}" for name, kind in types.items() if name not in split)
        paths = ", ".join(literal(self._spelled(path, add)) for add in state.files.values())
        rows = f"SELECT {none}, NULL::VARCHAR AS {FILE}, NULL::BIGINT AS file_row_number WHERE false"
        if paths:
            # The SELECT without rows has every column; older files may lack some.
            options = f"union_by_name = true, filename = '{FILE}', file_row_number = true, hive_partitioning = false"
            rows += f" UNION ALL BY NAME SELECT * FROM read_parquet([{paths}], {options})"
        of = {name: "f" if name in split else "r" for name in types}
        columns = ", ".join(f"CAST({of[name]}.{name} AS {kind}) AS {name}" for name, kind in types.items())
        self._connection.execute(
            f"CREATE VIEW {view} AS SELECT {columns} FROM ({rows}) r JOIN {files} f ON r.{FILE} = f.{FILE} "
            f"ANTI JOIN {dead} d ON r.{FILE} = d.{FILE} AND r.file_row_number = d.row"
        )
        return view

    def _spelled(self, table: str, add: AddFile) -> str:
        """Return the path of a data file for DuckDB."""
        path = locate(table, add.path)
        return path if self._stored is None else self._stored.add(path, add.size)

    def _table(self, name: str, rows: Any) -> None:
        """Create a table of the session with these rows, visible in all of its cursors."""
        self._connection.register("table_rows", rows)
        try:
            self._connection.execute(f"CREATE TABLE {name} AS SELECT * FROM table_rows")
        finally:
            self._connection.unregister("table_rows")

    def _files(self, table: str, state: TableVersion, partition: list[str]) -> Any:
        """Return each file with the values of its partition."""
        adds = list(state.files.values())
        columns = {FILE: pa.array([self._spelled(table, add) for add in adds], pa.string())}
        for name in partition:
            columns[name] = pa.array([add.partition_values.get(name) for add in adds], pa.string())
        return pa.table(columns)

    def _dead(self, table: str, state: TableVersion) -> Any:
        """Return the rows in deletion vectors: file, and row number in it."""
        names, rows = [], []
        for add in state.files.values():
            vector = add.deletion_vector
            if vector is None:
                continue
            gone = pa.array(deletion_vectors.load(vector, table, open_storage(table).read).astype("int64"))
            names.append(pa.repeat(pa.scalar(self._spelled(table, add)), len(gone)))
            rows.append(gone)
        shape = [pa.chunked_array(names, pa.string()), pa.chunked_array(rows, pa.int64())]
        return pa.table(shape, names=[FILE, "row"])
