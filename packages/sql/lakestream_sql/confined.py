"""Confinement of queries to the tables of one account.

Belongs here: what a query of an untrusted user may do beyond reading the streams that it names: nothing. Three checks
stand behind each other. Names are resolved within the account (catalog.py). DuckDB's own parser tells which tables and
table functions the query reads, as it is executed, so that no difference between two parsers matters. And DuckDB itself
has no access to other files, no network, and a configuration that cannot be changed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import duckdb
import msgspec

from lakestream.lake.table.schema import literal
from lakestream_sql.explained import ForbiddenQuery, SqlError
from lakestream_sql.masking import OWN_FUNCTIONS
from lakestream_sql.parser import SqlParser, Unparsed, nodes
from lakestream_sql.visible import TELLING


class QueryBounds(msgspec.Struct, frozen=True):
    """Resources of DuckDB for a confined query: bytes of memory, beyond which the query fails, and threads."""

    memory: int = 512_000_000
    threads: int = 2


BOUNDS = QueryBounds()

FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "unnest"})
"""Table functions that read nothing but their arguments."""


SHOWING = frozenset({"current_query", "current_setting"})
"""Functions that show paths of this machine: in the rewritten query, and in DuckDB's settings, which cannot be changed
to others."""


def confine(connection: duckdb.DuckDBPyConnection, allowed: str, bounds: QueryBounds = BOUNDS) -> None:
    """Take from DuckDB the access to everything but one account's tables, for good.

    Args:
        connection: with its extensions.
        allowed: the directory of the tables, as DuckDB spells it.
    """
    for setting in (
        f"allowed_directories = [{literal(allowed)}]",
        "python_enable_replacements = false",
        f"memory_limit = '{bounds.memory}B'",
        f"threads = {bounds.threads}",
        "temp_directory = ''",
        "max_expression_depth = 250",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")


def check(
    connection: duckdb.DuckDBPyConnection,
    parser: SqlParser,
    sql: str,
    selections: Collection[str] = (),
    prefix: str = "",
    *,
    restricted: bool = False,
) -> None:
    """Check one query before it is executed.

    Args:
        connection: will execute it.
        parser: parses it, as `connection` does.
        sql: a SELECT.
        selections: queries of our own that `query` may execute.
        prefix: what stands before it: EXPLAIN.
        restricted: the user may not see every row.

    Raises:
        ForbiddenQuery: it reads another table, calls another table function, or a function that shows settings.
    """
    if "ANALYZE" in prefix.upper():
        raise ForbiddenQuery("EXPLAIN ANALYZE is not available here: it shows the server's paths")
    if prefix and restricted:
        raise ForbiddenQuery(f"EXPLAIN is not available here: it tells of {HIDDEN}")
    try:
        tree = parser.tree(sql)
    except Unparsed as error:
        raise SqlError(error.reason) from None
    named = set[str]()
    for node, is_named in nodes(tree):
        kind = node.get("type")
        if kind == "TABLE_FUNCTION":
            _check_call(node["function"], selections)
        elif kind == "BASE_TABLE":
            name = str(node["table_name"])
            if not is_named:
                raise ForbiddenQuery(f"the table {name} is not available here: {ONLY_STREAMS}")
            named.add(name.lower())
        elif kind == "SHOW_REF" and node["query"] is None:
            raise ForbiddenQuery(f"only SHOW TABLES is available here: {ONLY_STREAMS}")
        elif node.get("class") == "FUNCTION":
            _check_function(str(node.get("function_name", "")).lower(), restricted)
    # A name of a WITH that DuckDB knows too: were it not in reach, DuckDB's own table would be.
    if named and (known := _known(connection, named)):
        raise ForbiddenQuery(f"{known} is the name of a DuckDB table: use another name after WITH")


def _known(connection: duckdb.DuckDBPyConnection, names: Collection[str]) -> str | None:
    """Return one of some names that is a table or view of DuckDB; None if none is."""
    known = (
        "SELECT name FROM (SELECT view_name AS name FROM duckdb_views() UNION ALL "
        "SELECT table_name FROM duckdb_tables()) WHERE list_contains(?, lower(name))"
    )
    row = connection.cursor().execute(known, [list(names)]).fetchone()
    return None if row is None else str(row[0])


HIDDEN = "messages or fields that are hidden from this user"
NO_BARRIER = f"Spark has no barrier before {HIDDEN}: ask DuckDB's engine"
ONLY_STREAMS = "a query reads streams, as FROM ORDERS or FROM delta.`streams/ORDERS`"


def _check_function(name: str, restricted: bool) -> None:
    if name.startswith(OWN_FUNCTIONS):
        raise ForbiddenQuery(f"the function {name} is not for queries")
    if name in SHOWING:
        raise ForbiddenQuery(f"the function {name} is not available here: it shows the server's paths")
    if restricted and name in TELLING:
        raise ForbiddenQuery(f"the function {name} is not available here: it tells of {HIDDEN}")


def _check_call(call: dict[str, Any], selections: Collection[str]) -> None:
    name, arguments = call.get("function_name"), call.get("children") or [{}]
    value = (arguments[0].get("value") or {}).get("value") if arguments[0].get("class") == "CONSTANT" else None
    plain = not call.get("schema") and not call.get("catalog")
    if plain and (name in FUNCTIONS or (name == "query" and value in selections)):
        return
    raise ForbiddenQuery(f"the function {name} is not available here: {ONLY_STREAMS}")
