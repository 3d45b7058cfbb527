"""Typed views of JSON payloads: `<STREAM>_json` and `<STREAM>_json_misfits`.

Belongs here: the views as SELECTs for DuckDB and for Spark, the decoder (lake/table/json_schema.py) as functions for
both engines, and finding the streams with a schema. Rows whose payload does not fit the schema are not in the first
view but in the second, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import msgspec
import pyarrow as pa

from lakestream.lake.errors import BadPolicy, DamagedLog
from lakestream.lake.staging.staging import live_identity
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import policy, schema
from lakestream.lake.table.at import NotATable, open_log
from lakestream.lake.table.json_schema import JsonSchema, parse
from lakestream.lake.table.schema import JSON_SCHEMA_PROPERTY, column_names, ticked

VIEW_SUFFIX = "_json"
MISFITS_SUFFIX = "_json_misfits"
VIEWS: dict[str, Literal["json_misfits", "json"]] = {MISFITS_SUFFIX: "json_misfits", VIEW_SUFFIX: "json"}
"""The views by the endings of their names."""
VIEW_COLUMNS = ("subject", "seq", "time", "time_ns", "headers")
"""Columns of the stream's table that its view has, before the typed ones; of an archive also `removed_time_ns`."""
_LOADERS = 8


# The views as SQL
def view_sql(found: JsonSchema, table: str, columns: Iterable[str], quote: Callable[[str], str] | None = None) -> str:
    """Return the SELECT of the rows that fit.

    Args:
        found: the schema.
        table: the FROM item: a table, or a table function.
        columns: the table's columns.
        quote: quotes a name; Spark's way by default.
    """
    name = quote or ticked
    base = [column for column in (*VIEW_COLUMNS, schema.REMOVED_COLUMN) if column in set(columns)]
    typed = [f"{name('_typed')}.{name(column)} AS {name(column)}" for column in found.names]
    return (
        f"SELECT {', '.join([*base, *typed])} FROM (SELECT *, {found.values_function}(data) AS {name('_typed')} "
        f"FROM {table} WHERE {found.reason_function}(data) IS NULL) AS {name('_rows')}"
    )


def misfits_sql(found: JsonSchema, table: str) -> str:
    """Return the SELECT of the rows that do not fit, with the reason."""
    return (
        f"SELECT subject, seq, time, time_ns, {found.reason_function}(data) AS reason, data "
        f"FROM {table} WHERE {found.reason_function}(data) IS NOT NULL"
    )


# Which tables have one
class TypedTable(msgspec.Struct, frozen=True):
    """A stream with a schema: name, path of its table, `lakestream.json_schema`, and the table's columns. `made`: the
    table exists."""

    stream: str
    path: str
    text: str
    columns: tuple[str, ...]
    made: bool = True


def typed_tables(lake: str) -> list[TypedTable]:
    """Return all streams of the default account that have a schema, by name.

    Opens each table's log; unreadable tables and those of other programs are left out.
    """
    storage = open_storage(lake)
    names = {name for part in (paths.STREAMS, paths.SEGMENTS) for name in storage.directories(f"{storage.root}/{part}")}
    with ThreadPoolExecutor(_LOADERS, thread_name_prefix="typed") as pool:
        found = pool.map(_look_or_pass, [f"{storage.root}/{paths.STREAMS}/{name}" for name in sorted(names)])
        return [table for table in found if table is not None]


def _look_or_pass(path: str) -> TypedTable | None:
    try:
        return typed_of(path)
    except (DamagedLog, FileNotFoundError):
        return None


def typed_of(path: str) -> TypedTable | None:
    """Return the stream of a table, which need not exist, with its schema: the stream's, else its table's. None where
    there is neither."""
    base, _, directory = path.rpartition(f"/{paths.STREAMS}/")
    live, made = live_identity(open_storage(path), f"{base}/{paths.SEGMENTS}/{directory}"), True
    text, stream, columns = None, None, list[str]()
    try:
        log = open_log(path)
        metadata = log.metadata_of(log.latest)
        columns, properties = column_names(metadata["schemaString"]), metadata.get("configuration") or {}
        text, stream = properties.get(JSON_SCHEMA_PROPERTY), properties.get(schema.STREAM_PROPERTY)
    except NotATable:
        made = False
    with suppress(BadPolicy):
        if live is not None and (wanted := policy.of_config(bytes(live.config))).json_schema is not None:
            text, stream = wanted.json_schema, live.name  # the table gets the property with its next commit
            columns = columns or [*schema.TABLE_COLUMNS, *[schema.REMOVED_COLUMN] * wanted.archive]
    return None if text is None or stream is None else TypedTable(stream, path, text, tuple(columns), made)


# The engines
def engine_functions(text: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the two functions of a schema as the engines need them: plain ones that can be sent to another process."""

    def values(payloads: pa.Array) -> pa.Array:
        return parse(text).values(payloads)

    def reasons(payloads: pa.Array) -> pa.Array:
        return parse(text).reasons(payloads)

    for function in (values, reasons):
        # The engines need the types themselves, not their names.
        function.__annotations__ = {"payloads": pa.Array, "return": pa.Array}
    return values, reasons


def duckdb_functions(found: JsonSchema) -> dict[str, tuple[Callable[[Any], Any], str, str]]:
    """Return the two functions of the views by name, with the types that they take and return in DuckDB."""
    values, reasons = engine_functions(found.text)
    return {found.values_function: (values, "BLOB", found.duckdb), found.reason_function: (reasons, "BLOB", "VARCHAR")}
