"""The tables that a query mentions, and what takes their places.

Belongs here: names with dots between them as tables of the lake, their times, and the rows that the query can want of
them, as far as its tree tells: the values and prefixes that a subject or key is compared with, and queries that only
count. Everything else reads all rows: nothing here changes a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from lakestream.lake.last_messages import MAX_FILTERS
from lakestream.lake.storage import paths
from lakestream.lake.table.schema import literal
from lakestream.protocol.subjects import subscribable
from lakestream_sql import buckets
from lakestream_sql.buckets import View
from lakestream_sql.parser import nodes

LAST = "last"
"""The table function of the last message of each subject."""
_NOWHERE = (1 << 64) - 1


class Travel(msgspec.Struct, frozen=True):
    """VERSION AS OF, TIMESTAMP AS OF, MESSAGES (the time of as_of) or SEQUENCE (the revision of a bucket). `value` is
    its expression; `text` is a time that is written out, which may be more exact than DuckDB's times."""

    kind: Literal["VERSION", "TIMESTAMP", "MESSAGES", "SEQUENCE"]
    value: str
    text: str | None = None


class Mention(msgspec.Struct, frozen=True):
    """A table as a query mentions it.

    `name`: as written between the backticks after `delta.`; `bare`: of a stream, as in `FROM ORDERS`. `place`: its
    offset in the query text. `subject`: the only subject whose rows the query can want of it, where that is obvious.
    `view`: the table of a bucket or an object store (buckets.py), of misfits, or a typed view (typed.py), over the
    stream of that name. `last`: only the last message of each subject is read; NATS filters for all subjects that the
    query can want (empty: every subject). `pattern`: the filter that the query names. `counted`: the query wants only
    the number of rows.
    """

    name: str
    travel: Travel | None = None
    place: int = 0
    subject: str | None = None
    view: View | Literal["misfits", "json", "json_misfits"] | None = None
    bare: bool = False
    last: tuple[str, ...] | None = None
    pattern: str = ""
    counted: bool = False


def delta_scan(path: str, version: int) -> str:
    """Return the FROM item with which DuckDB reads a Delta table at a version."""
    return f"delta_scan({literal(path)}, version = {version})"


Locate = Callable[[Mention], str | None]
"""Resolves a mentioned table to a SELECT; None for a name that is DuckDB's to know. Raises SqlError."""


def of_stream(name: str) -> str:
    """Return the name between backticks for the argument of as_of: ORDERS, or ACME/ORDERS for a stream of an
    account."""
    if name.startswith((f"{paths.STREAMS}/", f"{paths.ACCOUNTS}/", "/")) or "://" in name:
        return name
    account, slash, stream = name.partition("/")
    return f"{paths.ACCOUNTS}/{account}/{paths.STREAMS}/{stream}" if slash else f"{paths.STREAMS}/{name}"


def mentioned(names: tuple[str, ...], travel: Travel | None, place: int) -> Mention | None:
    """Return the table of the lake that names with dots between them mean; None if they are DuckDB's to know."""
    first, last = names[0].lower() if names else "", names[-1] if names else ""
    if len(names) == 1:
        return Mention(f"{paths.STREAMS}/{last}", travel, place, bare=True)
    if len(names) == 3 and first == "accounts":
        return Mention(f"{paths.ACCOUNTS}/{paths.directory_name(names[1])}/{paths.STREAMS}/{last}", travel, place)
    if len(names) != 2:
        return None
    if first == "delta":
        return Mention(last, travel, place)
    if first == "misfits":
        return Mention(f"{paths.STREAMS}/{last}", travel, place, view="misfits")
    view = next((view for view in buckets.VIEWS if first == view), None)
    if view is None:
        return None
    if travel is not None:  # its times are those of messages, its versions are revisions
        kind: Literal["MESSAGES", "SEQUENCE"] = "SEQUENCE" if travel.kind == "VERSION" else "MESSAGES"
        travel = msgspec.structs.replace(travel, kind=kind)
    return Mention(buckets.stream_of(view, last), travel, place, view=view)


def is_bare(query: dict[str, Any] | None) -> bool:
    """Return True for the query of DESCRIBE with a name alone."""
    chosen: list[dict[str, Any]] = query.get("select_list", []) if query is not None else []
    return bool(chosen) and chosen[0]["query_location"] == _NOWHERE


def is_last(node: dict[str, Any]) -> bool:
    """Return True for a call of the table function `last`."""
    call = node["function"]
    return call.get("function_name") == LAST and not call.get("schema") and not call.get("catalog")


def narrowed(mention: Mention, table: dict[str, Any], select: dict[str, Any] | None) -> Mention:
    """Return the mention with the subjects that the query can want of it.

    Args:
        select: the SELECT that reads this table alone, if there is one.
    """
    of_bucket = mention.view == "kv" and mention.travel is None
    if of_bucket or mention.pattern:
        mention = msgspec.structs.replace(mention, last=("$KV.>" if of_bucket else mention.pattern,))
    if select is None or select["sample"] or table["sample"]:
        return mention
    column, prefix = ("key", "$KV.*.") if mention.view == "kv" else ("subject", "")
    own = [[column], [str(table["alias"] or table.get("table_name") or LAST).lower(), column]]
    equal, begun = _wanted(select["where_clause"], own)
    if mention.view is None:
        subject = equal[0] if len(equal) == 1 else None
        mention = msgspec.structs.replace(mention, subject=subject, counted=_reads_no_column(select))
    filters = tuple(prefix + value for value in (equal or begun))
    if mention.last is None or not filters or len(filters) > MAX_FILTERS:
        return mention
    return msgspec.structs.replace(mention, last=filters) if all(map(is_filter, filters)) else mention


_OF_COLUMNS = ("COLUMN_REF", "STAR", "POSITIONAL_REFERENCE")


def _reads_no_column(select: dict[str, Any]) -> bool:
    """Return True for a SELECT over one table that wants only the number of its rows: `SELECT count(*) FROM ORDERS`."""
    rest = {name: value for name, value in select.items() if name not in ("type", "from_table")}
    return all(node.get("class") not in _OF_COLUMNS and node.get("type") != "SELECT_NODE" for node, _ in nodes(rest))


def _wanted(where: dict[str, Any] | None, own: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return the values that a column is compared with in `column = '…' AND …` or `column IN ('…')`, and the NATS
    filter for the values that begin as `column LIKE 'eu.%'` says. `own`: spellings of the column."""
    begun, conditions = list[str](), [where] if where is not None else []
    while conditions:
        each = conditions.pop()
        name, children = each.get("function_name"), each.get("children") or []
        if each["type"] == "CONJUNCTION_AND":
            conditions += children
        elif each["type"] == "COMPARE_EQUAL":
            children = [each["left"], each["right"]]
            column, value = children if children[0]["type"] == "COLUMN_REF" else children[::-1]
            if _names(column) in own and (text := constant_text(value)) is not None:
                return [text], []
        elif each["type"] == "COMPARE_IN" and _names(children[0]) in own:
            values = [constant_text(value) for value in children[1:]]
            if None not in values:
                return [value for value in values if value is not None], []
        elif name in ("~~", "starts_with", "prefix", "^@") and _names(children[0]) in own:
            head = constant_text(children[1]) or ""
            if name == "~~":
                head = head[: min(at if (at := head.find(mark)) >= 0 else len(head) for mark in "%_")]
            begun = [f"{head.rpartition('.')[0]}.>"] if "." in head else begun
    return [], begun


def _names(column: dict[str, Any]) -> list[str]:
    return [name.lower() for name in column.get("column_names", ())]


def constant_text(value: dict[str, Any] | None) -> str | None:
    """Return the value of a constant text; None for anything else."""
    found = value["value"].get("value") if value is not None and value["type"] == "VALUE_CONSTANT" else None
    return found if isinstance(found, str) else None


def is_filter(text: str) -> bool:
    return subscribable(text.encode())
