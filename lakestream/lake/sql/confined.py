"""Confinement of queries to the tables of one account.

Belongs here: what a query of an untrusted user may do beyond reading the streams that it names: nothing. Three checks
stand behind each other. Names are resolved within the account (catalog.py). DuckDB's own parser tells which table
functions the rewritten query calls, so that no difference between two parsers matters. And DuckDB itself has no access
to other files, no network, and a configuration that cannot be changed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

import duckdb
import msgspec

from lakestream.lake.sql.dialect import SqlError
from lakestream.lake.table.schema import literal


class QueryBounds(msgspec.Struct, frozen=True):
    """Resources of DuckDB for a confined query: bytes of memory, beyond which the query fails, and threads."""

    memory: int = 512_000_000
    threads: int = 2


BOUNDS = QueryBounds()

MAX_DEPTH = 2_000
"""Nesting of a parsed query that is looked at; a deeper one is rejected."""

FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "unnest"})
"""Table functions that read nothing but their arguments."""


SHOWING = frozenset({"current_query", "current_setting"})
"""Functions that show paths of this machine: in the rewritten query, and in DuckDB's settings, which cannot be changed
to others."""


class ForbiddenQuery(SqlError):
    """Raised for a query that does more than read the streams of its account."""


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


class Checker:
    """Checks queries in DuckDB's dialect before they are executed.

    Args:
        connection: parses them.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def check(self, sql: str, selections: Collection[str] = ()) -> None:
        """Check one query.

        Args:
            sql: a SELECT.
            selections: queries of our own that `query` may execute.

        Raises:
            Forbidden: it calls another table function, or one that shows settings.
        """
        row = self._connection.cursor().execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
        found: dict[str, Any] = json.loads(row[0]) if row is not None else {}
        statements = found.get("statements", ())
        if found.get("error") or len(statements) != 1:
            raise SqlError(str(found.get("error_message") or "one query is expected here"))
        for node in _nodes(statements[0]):
            if node.get("type") == "TABLE_FUNCTION":
                _check_call(node["function"], selections)
            elif node.get("class") == "FUNCTION" and str(node.get("function_name", "")).lower() in SHOWING:
                raise ForbiddenQuery(
                    f"the function {node['function_name']} is not available here: it shows the server's paths"
                )


def _check_call(call: dict[str, Any], selections: Collection[str]) -> None:
    name, arguments = call.get("function_name"), call.get("children") or [{}]
    value = (arguments[0].get("value") or {}).get("value") if arguments[0].get("class") == "CONSTANT" else None
    plain = not call.get("schema") and not call.get("catalog")
    if plain and (name in FUNCTIONS or (name == "query" and value in selections)):
        return
    raise ForbiddenQuery(f"the function {name} is not available here: a query reads streams, as delta.`streams/ORDERS`")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON document. Raises Forbidden for one that is too deep."""
    level = [tree]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        deeper: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                yield each
                deeper += each.values()
            elif isinstance(each, list):
                deeper += each
        level = deeper
    raise ForbiddenQuery("the query is nested too deeply")
