"""Hints of queries: files that cannot have rows for a condition are left out.

Belongs here: conditions in JSON, evaluated on a file's partition values and statistics. An answer is False or
None, "not known"; a file is left out only for False. A condition that is not understood is not known.

Source: Delta Sharing protocol, "JSON predicates for Filtering"; Delta protocol, "Per-file Statistics".
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from lakestream.lake.table.actions import AddFile
from lakestream.protocol.decoding import DECODE_ERRORS

MAX_DEPTH = 50
"""Nesting of a condition; a deeper part is not known."""
MAX_BYTES = 64 << 10
"""Length of a condition; a longer one is not known."""

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "lessThan": operator.lt,
    "lessThanOrEqual": operator.le,
    "greaterThan": operator.gt,
    "greaterThanOrEqual": operator.ge,
}
_TURNED = {
    "equal": "equal",
    "lessThan": "greaterThan",
    "lessThanOrEqual": "greaterThanOrEqual",
    "greaterThan": "lessThan",
    "greaterThanOrEqual": "lessThanOrEqual",
}


class Node(msgspec.Struct, frozen=True, rename="camel"):
    """An operation of a condition."""

    op: str
    children: list[Node] = []
    name: str = ""
    value: str | None = None
    value_type: str = ""


class Statistics(msgspec.Struct, frozen=True, rename="camel"):
    """Statistics of a file with the bounds of all columns."""

    num_records: int | None = None
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_count: dict[str, Any] = {}


_NODE = msgspec.json.Decoder(Node)
_STATISTICS = msgspec.json.Decoder(Statistics)


class Bounds(msgspec.Struct, frozen=True):
    """Values of a column in one file. None: not known; `nulls`: some, all ("all") or none ("none") are null."""

    low: Any = None
    high: Any = None
    nulls: str = ""


def parsed(text: str | None) -> Node | None:
    """Return a condition; None for one that is not understood."""
    if text is None or len(text) > MAX_BYTES:
        return None
    try:
        return _NODE.decode(text)
    except (RecursionError, *DECODE_ERRORS):
        return None


def selected(files: Iterable[AddFile], condition: Node | None) -> list[AddFile]:
    """Return the files that may have rows for which the condition holds."""
    if condition is None:
        return list(files)
    return [add for add in files if _holds(condition, _File(add), 0) is not False]


def rows_of(add: AddFile) -> int | None:
    """Return the number of rows of a file, without deleted ones; None if its statistics lack it."""
    count = _statistics(add).num_records
    if count is None:
        return None
    return count - (0 if add.deletion_vector is None else add.deletion_vector.cardinality)


class _File:
    """A file for conditions. Its statistics are decoded when they are needed."""

    def __init__(self, add: AddFile) -> None:
        self._add = add
        self._known: Statistics | None = None

    def bounds(self, column: str, kind: str) -> Bounds:
        values = self._add.partition_values
        if column in values:
            text = values[column]
            if text is None or text == "":
                return Bounds(nulls="all")
            value = _value(text, kind)
            return Bounds(value, value, "none")
        if self._known is None:
            self._known = _statistics(self._add)
        known = self._known
        nulls = known.null_count.get(column)
        rows = known.num_records
        stated = "none" if nulls == 0 else "all" if rows and nulls == rows else ""
        low, high = (_value(_text(each.get(column)), kind) for each in (known.min_values, known.max_values))
        if kind == "string" and isinstance(high, str):
            # Writers cut long texts: the upper bound may lack its end.
            high = high + "\U0010ffff"
        if kind == "timestamp" and high is not None:
            high = high + timedelta(milliseconds=1)  # statistics are cut to milliseconds
        return Bounds(low, high, stated)


def _holds(node: Node, file: _File, depth: int) -> bool | None:
    """Return whether a condition holds for some row of a file: False if for none, else None.

    True never comes out for comparisons, since bounds do not show that a value is there; `not` would need it for all
    rows, so a negated comparison is not known either.
    """
    if depth > MAX_DEPTH:
        return None
    if node.op == "and":
        return False if any(_holds(each, file, depth + 1) is False for each in node.children) else None
    if node.op == "or":
        found = [_holds(each, file, depth + 1) for each in node.children]
        return False if found and all(each is False for each in found) else None
    if node.op == "isNull":
        return False if _nulls(node, file) == "none" else None
    if node.op == "not" and len(node.children) == 1 and node.children[0].op == "isNull":
        return False if _nulls(node.children[0], file) == "all" else None
    if node.op in _COMPARED and len(node.children) == 2:
        return _compare(node, file)
    return None


def _nulls(node: Node, file: _File) -> str:
    if len(node.children) != 1 or node.children[0].op != "column":
        return ""
    return file.bounds(node.children[0].name, node.children[0].value_type).nulls


def _compare(node: Node, file: _File) -> bool | None:
    left, right = node.children
    name = node.op
    if left.op == "literal":
        left, right, name = right, left, _TURNED[name]
    if left.op != "column" or right.op != "literal" or left.value_type != right.value_type:
        return None
    bounds = file.bounds(left.name, left.value_type)
    if bounds.nulls == "all":
        return False
    value = _value(right.value, right.value_type)
    if value is None:
        return None
    low, high = bounds.low, bounds.high
    if name == "equal":
        beyond = (low is not None and value < low) or (high is not None and value > high)
        return False if beyond else None
    bound = low if name in ("lessThan", "lessThanOrEqual") else high
    return None if bound is None or _COMPARED[name](bound, value) else False


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _value(text: str | None, kind: str) -> Any:
    """Return a value that compares like the column; None if it is not known how."""
    if text is None:
        return None
    try:
        if kind in ("int", "long"):
            return int(text)
        if kind in ("float", "double"):
            number = float(text)
            return None if number != number else number
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind == "date":
            return date.fromisoformat(text[:10])
        if kind == "timestamp":
            found = datetime.fromisoformat(text)
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found
    except (ValueError, KeyError):
        return None
    return text if kind == "string" else None


def _statistics(add: AddFile) -> Statistics:
    try:
        return _STATISTICS.decode(add.stats) if add.stats else Statistics()
    except DECODE_ERRORS:
        return Statistics()
