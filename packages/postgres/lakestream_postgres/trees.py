"""Queries as trees, by DuckDB's parser.

Belongs here: which tables and functions a query names, and the types that its parameters have by the places where they
stand. A text that DuckDB does not parse has no tree: SQL over NATS knows more (time travel, names in backticks).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any

import duckdb

from lakestream_postgres.errors import PgError
from lakestream_postgres.types import INT8, OID, TEXT, TYPES
from lakestream_postgres.wire import Field

MAX_TEXT = 64 << 10
"""Length of a text that is parsed here (64 Ki characters), as of a query over NATS."""
MAX_NODES = 100_000
Node = dict[str, Any]


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    found.execute("SET enable_external_access = false")
    found.execute("SET lock_configuration = true")
    return found


def parse(text: str) -> Node | None:
    """Return the tree of one query; None for a text that is not one."""
    if len(text) > MAX_TEXT:
        return None
    try:
        row = _parser().execute("SELECT json_serialize_sql(?)", [text]).fetchone()
        found: Node = json.loads(row[0]) if row is not None else {}
    except (duckdb.Error, RecursionError, ValueError) as error:
        if isinstance(error, duckdb.InternalException | duckdb.FatalException):
            _parser.cache_clear()  # a defect: it parses nothing any more
        return None
    return None if found.get("error") or len(found.get("statements", ())) != 1 else found


def text_of(tree: Node) -> str:
    """Return the query of a tree. Raises PgError."""
    try:
        row = _parser().execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    except (duckdb.Error, RecursionError):
        raise PgError("54001", "the query cannot be written again: it is nested too deeply") from None
    return str(row[0]) if row is not None else ""


def nodes(tree: Any) -> Iterator[Node]:
    """Yield the objects of a tree, outer ones first. Raises PgError."""
    waiting = [tree]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            yield node
            waiting += node.values()
    raise PgError("54001", "the query is nested too deeply")


# ---------------------------------------------------------------------- names of columns
UNNAMED = "?column?"


def shown(node: Node) -> str:
    """Return the name of a column without one, as Postgres names it; "" where it has no name there."""
    if node.get("class") == "FUNCTION" and not node["is_operator"]:
        return str(node["function_name"])
    if node.get("class") in ("CAST", "COLLATE"):
        child = node["child"]
        return str(child["column_names"][-1]) if child.get("class") == "COLUMN_REF" else shown(child)
    return {"CASE_EXPR": "case", "OPERATOR_COALESCE": "coalesce"}.get(node["type"], "")


def names(text: str) -> dict[int, str]:
    """Return the names of columns without one that are made of parameters, by their places, from the end behind a `*`.

    DuckDB would name them after the casts that parameters get.
    """
    node = {} if (tree := parse(text)) is None else tree["statements"][0]["node"]
    while node.get("type") == "SET_OPERATION_NODE":
        node = node["left"] if "left" in node else node["children"][0]
    chosen = node.get("select_list", [])
    stars = [at for at, each in enumerate(chosen) if each.get("class") == "STAR"]
    found = {}
    for at, each in enumerate(chosen):
        is_made = not each.get("alias") and any(inner.get("class") == "PARAMETER" for inner in nodes(each))
        if is_made and (not stars or at < stars[0]):
            found[at] = shown(each) or UNNAMED
        elif is_made and at > stars[-1]:
            found[at - len(chosen)] = shown(each) or UNNAMED
    return found


# ---------------------------------------------------------------------- types of parameters

_OID_CAST = re.compile(r"\$(\d+)\s*::\s*(?:pg_catalog\s*\.\s*)?oid\b\s*(\[\])?", re.IGNORECASE)
_OIDS = TYPES[OID].array
Describe = Callable[[str], Awaitable[Sequence[Field]]]


async def infer(text: str, describe: Describe, wanted: Collection[int]) -> dict[int, int]:
    """Return the oids of parameters by their numbers, as far as their places tell.

    Args:
        wanted: the parameters whose types are not known.
        text: a query with parameters `$1`, `$2` …
        describe: returns the columns of a query.
    """
    # DuckDB's parser knows no oid, and asyncpg asks with an array of them.
    found = {int(number): _OIDS if is_array else OID for number, is_array in _OID_CAST.findall(text)}
    if (tree := parse(text)) is None:
        return found
    selects = [node for node in nodes(tree) if node.get("type") == "SELECT_NODE"]
    for select in selects:
        for modifier in select["modifiers"]:
            for limit in (modifier.get("limit"), modifier.get("offset")):
                if number := _parameter(limit):
                    found[number] = INT8
        likes = {number: like for number, like in _likes(select) if number in wanted and number not in found}
        if likes:
            try:
                fields = await describe(_selecting(tree, select, list(likes.values())))
            except PgError:
                continue  # of a subquery that needs the query around it: these are texts
            found |= {number: field.oid for number, field in zip(likes, fields, strict=True)}
    for select in selects:
        for chosen in select["select_list"]:
            if number := _parameter(chosen):
                found.setdefault(number, TEXT)
    return found


def _parameter(node: Any) -> int:
    """Return the number of a parameter; 0 for anything else."""
    name = node.get("identifier", "") if isinstance(node, dict) and node.get("class") == "PARAMETER" else ""
    return int(name) if name.isdigit() else 0


def _likes(select: Node) -> Iterator[tuple[int, Node]]:
    """Yield parameters of one SELECT, without those inside, each with an expression of its type."""
    inner = {key: value for key, value in select.items() if key not in ("from_table", "cte_map")}
    waiting: list[Any] = [inner]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        if not isinstance(node, dict):
            continue
        if node.get("class") == "SUBQUERY":
            if node.get("subquery_type") == "ANY" and (number := _unnested(node["subquery"])):
                yield number, _list_of(node["child"])
            waiting.append(node.get("child"))
            continue
        waiting += node.values()
        if node.get("class") == "CAST" and (number := _parameter(node["child"])):
            yield number, node
        for numbers, sides in _sides(node):
            like = next((side for side in sides if not _parameter(side)), None)
            if like is not None:
                yield from ((number, like) for number in numbers)


_ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "//"})


def _sides(node: Node) -> Iterator[tuple[list[int], list[Node]]]:
    """Yield expressions that have one type, and the numbers of the parameters among them."""
    sides: list[Node] = []
    if node.get("class") == "COMPARISON":
        sides = [node["left"], node["right"]]
    elif node.get("class") == "BETWEEN":
        sides = [node["input"], node["lower"], node["upper"]]
    elif node.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN") or node.get("function_name") in _ARITHMETIC:
        sides = node["children"]
    if numbers := [number for each in sides if (number := _parameter(each))]:
        yield numbers, sides


def _unnested(query: Node) -> int:
    """Return the number of the parameter of `= ANY ($1)`, which DuckDB reads as a subquery of its elements."""
    chosen = query.get("node", {}).get("select_list", [])
    if len(chosen) == 1 and chosen[0].get("function_name") == "unnest" and len(chosen[0]["children"]) == 1:
        return _parameter(chosen[0]["children"][0])
    return 0


@cache
def _template() -> str:
    return json.dumps(parse("SELECT list_value(1)"))


def call() -> Node:
    """Return the call of a function, to be changed."""
    found: Node = json.loads(_template())["statements"][0]["node"]["select_list"][0]
    return found


def _list_of(child: Node) -> Node:
    return call() | {"children": [child]}


def make_subquery(node: Node, chosen: Node) -> None:
    """Make a node of a table, in place, the subquery that selects one expression, under the name of the table."""
    selected: Node = json.loads(_template())["statements"][0]
    alias = node["alias"] or chosen["function_name"]
    selected["node"]["select_list"] = [chosen | {"alias": alias}]
    names = node["column_name_alias"]
    node.clear()
    node.update({"type": "SUBQUERY", "alias": alias, "sample": None, "subquery": selected, "column_name_alias": names})


def _selecting(tree: Node, select: Node, chosen: list[Node]) -> str:
    """Return the query for some expressions over the tables of a SELECT."""
    found: Node = json.loads(_template())
    node = found["statements"][0]["node"]
    outer = tree["statements"][0]["node"].get("cte_map", {}).get("map", [])
    own = select["cte_map"]["map"]
    node["cte_map"] = {"map": outer if own == outer else [*outer, *own]}
    node["from_table"], node["select_list"] = select["from_table"], chosen
    return text_of(copy.deepcopy(found))
