"""DuckDB's parser.

Belongs here: the tree of a query, its nodes, and offsets in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import msgspec

from lakestream.lake.table.schema import literal
from lakestream_sql.explained import SqlError
from lakestream_sql.tokens import Edit, Edited, SqlToken, significant

NESTED = "the query is nested too deeply; split it with WITH, or into several queries"
READ_ONLY = (
    "a statement here reads: SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, DESCRIBE HISTORY, SUMMARIZE, SHOW TABLES or "
    "EXPLAIN; streams change through NATS"
)
MAX_NODES = 1_000_000
"""Nodes of a query's tree that are looked at; one with more is refused."""


class Unparsed(Exception):
    """Raised for a text that DuckDB does not parse as a query: its reason, and the place."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason, self.offset = reason, offset


class SqlParser:
    """DuckDB's parser.

    Args:
        connection: to any database.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        rows = connection.cursor().execute("SELECT keyword_name, keyword_category FROM duckdb_keywords()").fetchall()
        self.reserved = frozenset(name.upper() for name, kind in rows if kind == "reserved")
        self.before_values = frozenset(name.upper() for name, kind in rows if kind != "unreserved") | {"BY", "OF"}
        """Words behind which a value may begin."""

    def tree(self, sql: str) -> dict[str, Any]:
        """Return the tree of one query.

        Raises:
            Unparsed: it is not one.
        """
        found = self._serialized(sql)
        if found.get("error_type") == "not implemented" and (listed := _with_values(sql)) != sql:
            found = self._serialized(listed)
        if found.get("error"):
            # An error's position is in characters; those of nodes are in bytes.
            reason, offset = str(found.get("error_message")), int(found.get("position", 0))
            if found.get("error_type") == "not implemented":
                reason = READ_ONLY
            elif "at end of input" in reason:
                offset = max(len(sql.rstrip()) - 1, 0)
            raise Unparsed(reason, offset or len(sql) - len(sql.lstrip()))
        if len(found["statements"]) != 1:
            raise Unparsed("one query is expected here", 0)
        return dict(found["statements"][0])

    def is_value(self, sql: str) -> bool:
        """Return True for a value, which may have operators and calls in it."""
        return not self._serialized(f"SELECT ({sql}\n)").get("error")

    def _serialized(self, sql: str) -> dict[str, Any]:
        # Not as a parameter: DuckDB imports pandas for the first one, a fifth of a cold query. But a literal
        # ends at a NUL.
        written = ("SELECT json_serialize_sql(?)", [sql])
        if "\0" not in sql:
            written = (f"SELECT json_serialize_sql({literal(sql)})", [])
        try:
            row = self._connection.cursor().execute(*written).fetchone()
            return dict(msgspec.json.decode(row[0])) if row is not None else {}
        except (RecursionError, duckdb.Error):
            raise Unparsed(NESTED, 0) from None


def characters(text: str, offset: int) -> int:
    """Return the number of characters in so many bytes of a text."""
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def _with_values(sql: str) -> str:
    """Return a PIVOT with an empty list for each of its columns without one.

    DuckDB makes two statements of it, the first of which asks for the values, and shows the tree of neither.
    """
    found, edits = significant(sql), list[Edit]()
    for number, token in enumerate(found):
        depth, on, listed = 0, False, not token.is_word("PIVOT", "PIVOT_WIDER")
        for each in [*found[number + 1 :], SqlToken("sign", ")", len(sql), len(sql))]:
            depth += each.depth
            ends = depth < 0 or (depth == 0 and each.is_word("USING", "GROUP", "ORDER", "LIMIT"))
            if on and not listed and (ends or (depth == 0 and each.text == ",")):
                edits.append(Edit(each.start, each.start, " IN ('') "))
            if ends or (listed and not on):
                break
            if depth == 0:
                on, listed = on or each.is_word("ON"), each.text != "," and (listed or each.is_word("IN"))
    return Edited(sql, edits).text


def nodes(tree: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the objects of a query's tree; with each, whether it is a table whose name is that of a WITH around it."""
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node, names = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, names) for each in node if isinstance(each, dict | list)]
            continue
        if node.get("type") == "RECURSIVE_CTE_NODE":
            names |= {str(node["cte_name"]).lower()}
        plain = node.get("type") == "BASE_TABLE" and not node["schema_name"] and not node["catalog_name"]
        yield node, plain and str(node["table_name"]).lower() in names
        for each in (node.get("cte_map") or {}).get("map") or ():
            waiting.append((each["value"], names))
            names |= {str(each["key"]).lower()}
        if node.get("class") != "CONSTANT":  # of which a list of values has many; its parts are no nodes
            inner = (value for key, value in node.items() if key != "cte_map")
            waiting += [(value, names) for value in inner if isinstance(value, dict | list)]
    raise SqlError(NESTED)
