"""Tables in SQL that DuckDB's Delta extension cannot read.

Belongs here: a version of a table as a view over its Parquet files, with partition columns from the log and without the
rows in deletion vectors. The extension takes the absolute paths in a clone's log for relative ones, and reads an object
store by itself, with credentials, which a confined DuckDB must not have. A view stays for the session, so a version is
resolved once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import deletion_vectors
from lakestream.lake.table.actions import DeletionVector, locate
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.encryption import is_encrypted
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.scan import encrypted_rows
from lakestream.lake.table.schema import doubled, literal
from lakestream_sql.mentions import delta_scan

if TYPE_CHECKING:
    import duckdb

    from lakestream_client.lake.view import StreamView
    from lakestream_sql.stored_files import StoredFiles


FILE, DEAD = "_lakestream_file", "_lakestream_dead"
"""Columns of a table of files: path, and the numbers of deleted rows."""
MANY_DEAD = 1000
"""Deleted rows of the files of a subject that are named in a query; with more the Delta extension reads the table."""
KEPT_VECTORS = 64
"""Deletion vectors that a session keeps."""
_OF_FILE = "_"
"""The beginning of names of columns where columns of DuckDB's own are beside them."""


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
        self._dead_rows = lru_cache(KEPT_VECTORS)(_dead_rows)
        self._types = lru_cache(1)(self._described)
        self.encrypted: dict[str, Any] = {}
        """Versions of encrypted tables by name, for each cursor to register: pyarrow reads them, DuckDB 1.5 fails at
        columns of several encrypted pages."""

    def place(self, path: str, version: int) -> str:
        """Return the FROM item for a table at a version."""
        encrypted = is_encrypted(path)
        is_clone = self._storage.exists(paths.clone_entry(self._storage.root, path))
        if self._stored is None and not encrypted and not is_clone:
            return delta_scan(path, version)
        # A table that was created again may have the same version; the commit's tag tells.
        key = path, TableLog(open_storage(path), path).tag(version) or str(version)
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._dataset(path, version) if encrypted else self._view(path, version)
        return known

    def _dataset(self, path: str, version: int) -> str:
        from deltalake import Schema

        state, name = TableLog(open_storage(path), path).state(version), f"table_{next(self._numbers)}"
        schema = pa.schema(Schema.from_json(state.metadata.schema_string).to_arrow())
        self.encrypted[name] = encrypted_rows(path, state, schema)
        return name

    def _view(self, path: str, version: int) -> str:
        state = TableLog(open_storage(path), path).state(version)
        types, partition = self._types(state.metadata.schema_string), state.metadata.partition_columns
        adds, number = [*state.files.values()], next(self._numbers)
        listed, view = f"table_files_{number}", f"table_{number}"
        vectors = [add.deletion_vector for add in adds]
        dead = [None if each is None else self._dead_rows(path, each).astype("int64") for each in vectors]
        files = [self._at(locate(path, add.path), add.size) for add in adds]
        columns = {FILE: pa.array(files, pa.string()), DEAD: pa.array(dead, pa.list_(pa.int64()))}
        for name in partition:
            columns[name] = pa.array([add.partition_values.get(name) for add in adds], pa.string())
        self._connection.from_arrow(pa.table(columns)).create(listed)  # a table is there for all cursors
        rows = f"SELECT {', '.join(f'NULL::{kind} AS {doubled(name)}' for name, kind in types.items())} WHERE false"
        if files:
            rows = (
                f"{_select(files, types, {name: doubled(name) for name in partition})} r JOIN {listed} f "
                f"ON r.filename = f.{FILE} ANTI JOIN (SELECT {FILE}, unnest({DEAD}) AS row FROM {listed}) d "
                f"ON r.filename = d.{FILE} AND r.file_row_number = d.row"
            )
        self._connection.execute(f"CREATE VIEW {view} AS {rows}")
        return view

    def narrowed(self, view: StreamView, subjects: Sequence[str], seqs: Sequence[int] = ()) -> str:
        """Return the FROM item for rows of a view's table with some subjects, and some sequences, as far as the log
        tells where they are; "" where the whole table is as good.

        The Delta extension plans each query anew: a third of the time of one for a single subject.
        """
        state, layout = view.state, view.layout
        names = () if state is None else state.metadata.partition_columns
        if state is None or list(names) == ["subject"] or (layout is None and names) or is_encrypted(view.table):
            return ""
        values, *others = {() if layout is None else layout.values(subject) for subject in subjects}
        if others:
            return ""
        partition = {name: literal(str(each)) for name, each in zip(names, values, strict=True) if each is not None}
        if layout is not None and layout.kind == "tokens":  # by which files have all subjects
            found = [f"{name} = {partition[name]}" if name in partition else f"{name} IS NULL" for name in names]
            return f"(SELECT * FROM {self.place(view.table, state.version)} WHERE {' AND '.join(found)})"
        wanted = SubjectRange(subjects)
        files = [each for each in state.files if wanted.overlaps(each.min_subject, each.max_subject)]
        if seqs:
            files = [each for each in files if any(each.min_seq <= seq <= each.max_seq for seq in seqs)]
        if not files or sum(each.deleted.cardinality for each in files if each.deleted is not None) > MANY_DEAD:
            return ""
        paths, dead = [self._at(locate(view.table, each.path), each.size) for each in files], "true"
        for path, vector in ((path, each.deleted) for path, each in zip(paths, files, strict=True)):
            if vector is not None:  # two columns: such a condition is judged last, of few rows
                rows = ", ".join(map(str, self._dead_rows(view.table, vector).tolist()))
                dead += f" AND NOT (filename = {literal(path)} AND file_row_number IN ({rows}))"
        return f"({_select(paths, self._types(view.schema), partition)} WHERE {dead})"

    def _described(self, schema: str) -> dict[str, str]:
        """Return the columns of a table with their types in DuckDB, by the JSON of its schema."""
        from deltalake import Schema

        shape = self._connection.from_arrow(pa.schema(Schema.from_json(schema).to_arrow()).empty_table())
        return dict(zip(shape.columns, map(str, shape.types), strict=True))

    def _at(self, path: str, size: int) -> str:
        return path if self._stored is None else self._stored.add(path, size)


def _dead_rows(table: str, vector: DeletionVector) -> Any:
    """Return the numbers of the rows in a deletion vector."""
    return deletion_vectors.load(vector, table, open_storage(table).read)


def _select(files: Sequence[str], types: Mapping[str, str], partition: Mapping[str, str]) -> str:
    """Return the SELECT of some files, which may lack columns of the table. Beside these, whose names in it begin with
    `_OF_FILE`, it has DuckDB's `filename` and `file_row_number`.

    Args:
        types: the columns of the table.
        partition: expressions of those that are not in the files.
    """
    shape = {name: kind for name, kind in types.items() if name not in partition}
    columns = ", ".join(
        f"{literal(name)}: {{name: {literal(_OF_FILE + name)}, type: {literal(kind)}, default_value: NULL}}"
        for name, kind in shape.items()
    )
    of = {name: partition.get(name, doubled(_OF_FILE + name)) for name in types}
    chosen = ", ".join(f"CAST({of[name]} AS {kind}) AS {doubled(name)}" for name, kind in types.items())
    listed = ", ".join(map(literal, files))
    return f"SELECT {chosen} FROM read_parquet([{listed}], schema = MAP {{{columns}}}, hive_partitioning = false)"
