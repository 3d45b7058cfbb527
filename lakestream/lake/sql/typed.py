"""Typed columns of JSON payloads: what `lakestream.json_schema` means, in every engine.

Belongs here: parsing that list of columns, the rule by which a payload fits it, and the view `<STREAM>_json` as a
SELECT for DuckDB and for Spark. Both engines hand payloads to the same Python decoder, as Arrow, so they agree on every
row: their own JSON functions do not (duplicate names, NaN, trailing commas, 1.0 as an integer, text behind the end).

A payload fits when it is one JSON object (RFC 8259) and every column that it has is of the column's type:

    BOOLEAN                     true, false
    TINYINT SMALLINT INT BIGINT a number without fraction and exponent, in range
    FLOAT DOUBLE                a number in range
    DECIMAL(p, s)               a number, or a string with one, with at most s digits after the point, exactly
    STRING                      a string
    DATE, TIMESTAMP             a string as in RFC 3339; without a zone it is UTC; more digits than µs are rounded
    ARRAY<…> MAP<STRING, …> STRUCT<…>

What is missing or null is NULL, and fits unless the column says NOT NULL. Names count exactly as they are written,
unknown ones are not looked at, and of a name that comes twice the last value counts. A row that does not fit is not in
the view; it stays in the stream's table, and the view `<STREAM>_json_misfits` has it, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.delta import policy, schema
from lakestream.lake.delta.json_schema import JsonSchema, parse, ticked
from lakestream.lake.delta.schema import JSON_SCHEMA_PROPERTY
from lakestream.lake.errors import BadPolicy, LakeError
from lakestream.lake.files import paths
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.staging import read_identity

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

VIEW_SUFFIX = "_json"
MISFITS_SUFFIX = "_json_misfits"
VIEW_COLUMNS = ("subject", "seq", "time", "time_ns", "headers")
"""Columns of the stream's table that its view has, before the typed ones; of an archive also `removed_time_ns`."""
_LOADERS = 8


class NoTypedView(LakeError):
    """Neither the stream nor its table has a `lakestream.json_schema`."""


class Fit(msgspec.Struct, frozen=True):
    """How many rows of a table fit its schema, and how many do not."""

    fits: int
    misfits: int


# The views as SQL
def view_sql(found: JsonSchema, table: str, columns: Iterable[str], quote: Callable[[str], str] | None = None) -> str:
    """The view of the rows that fit, as a SELECT.

    Args:
        found: the schema.
        table: what stands behind FROM: a table, or a table function.
        columns: the table's columns.
        quote: how a name is quoted; Spark's way by default.
    """
    name = quote or ticked
    base = [column for column in (*VIEW_COLUMNS, schema.REMOVED_COLUMN) if column in set(columns)]
    typed = [f"{name('_typed')}.{name(column)} AS {name(column)}" for column in found.names]
    return (
        f"SELECT {', '.join([*base, *typed])} FROM (SELECT *, {found.values_function}(data) AS {name('_typed')} "
        f"FROM {table} WHERE {found.reason_function}(data) IS NULL) AS {name('_rows')}"
    )


def misfits_sql(found: JsonSchema, table: str) -> str:
    """The view of the rows that do not fit, with the reason, as a SELECT."""
    return (
        f"SELECT subject, seq, time, time_ns, {found.reason_function}(data) AS reason, data "
        f"FROM {table} WHERE {found.reason_function}(data) IS NOT NULL"
    )


# Which tables have one
class TypedTable(msgspec.Struct, frozen=True):
    """A stream with a schema: its name, its table's path, `lakestream.json_schema`, the table's columns, and whether
    there is a table yet."""

    stream: str
    path: str
    text: str
    columns: tuple[str, ...]
    made: bool = True


def typed_table(lake: str, stream: str) -> TypedTable:
    """Return a stream of the default account with its schema: what the stream names, else what its table has.

    Raises:
        NoTypedView: there is neither.
    """
    found = _look(paths.table(paths.root(lake), stream))
    if found is None:
        raise NoTypedView(f"stream {stream} has no typed columns: set {JSON_SCHEMA_PROPERTY} in its metadata")
    return found


def typed_tables(lake: str) -> list[TypedTable]:
    """Return all streams of the default account that have a schema, by name. Opens each table's log; what is no table
    of ours, or does not open, is left out."""
    storage = open_storage(lake)
    names = {name for part in (paths.STREAMS, paths.SEGMENTS) for name in storage.directories(f"{storage.root}/{part}")}
    with ThreadPoolExecutor(_LOADERS, thread_name_prefix="typed") as pool:
        found = pool.map(_look_or_pass, [f"{storage.root}/{paths.STREAMS}/{name}" for name in sorted(names)])
        return [table for table in found if table is not None]


def _look_or_pass(path: str) -> TypedTable | None:
    from deltalake.exceptions import DeltaError

    try:
        return _look(path)
    except DeltaError:
        return None


def _look(path: str) -> TypedTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    asked = _asked(path)
    try:
        delta = DeltaTable(path, storage_options=open_storage(path).delta_options())
    except TableNotFoundError:
        return asked
    properties = delta.metadata().configuration
    text, stream = properties.get(JSON_SCHEMA_PROPERTY), properties.get(schema.STREAM_PROPERTY)
    if asked is not None:  # the table learns of it with its next commit
        text, stream = asked.text, asked.stream
    if text is None or stream is None:
        return None
    return TypedTable(stream, path, text, tuple(field.name for field in delta.schema().fields))


def _asked(path: str) -> TypedTable | None:
    """Return what the living stream of a table's place says in the staging area, if it names a schema."""
    storage = open_storage(path)
    base, _, directory = path.rpartition(f"/{paths.STREAMS}/")
    parent = f"{base}/{paths.SEGMENTS}/{directory}"
    living = [f"{parent}/{uid}" for uid in storage.directories(parent)]
    found = [read_identity(each) for each in living if not storage.exists(f"{each}/{paths.DELETED_FILE}")]
    newest = max((each for each in found if each is not None), key=lambda each: each.created_ns, default=None)
    if newest is None:
        return None
    try:
        wanted = policy.of_config(bytes(newest.config))
    except BadPolicy:
        return None
    if wanted.json_schema is None:
        return None
    columns = schema.TABLE_DDL + (schema.REMOVED_DDL if wanted.archive else "")
    names = tuple(column.split()[0] for column in columns.replace("map<string, array<string>>", "map").split(", "))
    return TypedTable(newest.name, path, wanted.json_schema, names, made=False)


def fit(lake: str, stream: str) -> Fit:
    """Count the rows of a stream's table that fit its schema, and those that do not. Reads all payloads.

    Raises:
        NoTypedView, BadJsonSchema.
    """
    from lakestream.lake.read.readers import batches

    found = typed_table(lake, stream)
    parsed = parse(found.text)
    rows = misfits = 0
    for batch in batches(found.path, ["data"]) if found.made else ():
        rows += batch.num_rows
        misfits += batch.num_rows - parsed.reasons(batch.column(0)).null_count
    return Fit(rows - misfits, misfits)


# The engines
def engine_functions(text: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The two functions of a schema as the engines want them: plain ones that can be sent to another process."""
    import pyarrow as pa

    def values(payloads: pa.Array) -> pa.Array:
        return parse(text).values(payloads)

    def reasons(payloads: pa.Array) -> pa.Array:
        return parse(text).reasons(payloads)

    for function in (values, reasons):
        # The types themselves, not their names: the engines look at them.
        function.__annotations__ = {"payloads": pa.Array, "return": pa.Array}
    return values, reasons


def prepare_duckdb(connection: duckdb.DuckDBPyConnection, found: JsonSchema) -> None:
    """Give a DuckDB database the two functions that the views use; cursors of the connection have them too."""
    import duckdb

    values, reasons = engine_functions(found.text)
    known = "SELECT 1 FROM duckdb_functions() WHERE function_name = ?"
    for name, function, returns in (
        (found.values_function, values, found.duckdb),
        (found.reason_function, reasons, "VARCHAR"),
    ):
        if connection.execute(known, [name]).fetchone() is None:
            more: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
            connection.create_function(name, function, [duckdb.type("BLOB")], duckdb.type(returns), **more)
