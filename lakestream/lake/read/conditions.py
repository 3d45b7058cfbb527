"""Conditions on rows that are pushed down into tables and uncompacted segments.

Belongs here: one comparison of `subject`, `seq` or `time_ns`, as SQL for the table, as a mask for Arrow data, and as
the range of sequences that it allows. Readers combine conditions with AND.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.delta.schema import END, literal
from lakestream.protocol.subjects import is_literal

MATCHES = "MATCHES"
"""Operator: the subject matches one of these NATS filters."""

_FUNCTIONS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class Condition(msgspec.Struct, frozen=True):
    """`column` `operator` `values`; only IN, NOT IN and MATCHES have any number of values, the others one."""

    column: str
    operator: str
    values: tuple[Any, ...]

    def sql(self) -> str:
        """Return the condition for the table, in DataFusion's SQL."""
        if self.operator == MATCHES:
            return "(" + (" OR ".join(_filter_sql(value) for value in self.values) or "FALSE") + ")"
        values = [literal(value) if isinstance(value, str) else str(value) for value in self.values]
        if self.operator in ("IN", "NOT IN"):
            return f"{self.column} {self.operator} ({', '.join(values)})" if values else _empty(self.operator)
        return f"{self.column} {self.operator} {values[0]}"

    def mask(self, batch: pa.RecordBatch) -> Any:
        """Return the condition for Arrow data, as a mask."""
        column = batch.column(self.column)
        if self.operator == MATCHES:
            return pc.match_substring_regex(column, regex(self.values))
        if self.operator in ("IN", "NOT IN"):
            found = pc.is_in(column, pa.array(self.values, column.type))
            return found if self.operator == "IN" else pc.invert(found)
        return _FUNCTIONS[self.operator](column, pa.scalar(self.values[0], column.type))

    def bounds(self) -> tuple[int, int]:
        """Return the range of sequences that the condition allows."""
        if self.column != "seq" or self.operator not in ("=", "IN", "<", "<=", ">", ">="):
            return 1, END
        if not self.values:
            return 1, 0
        low, high = min(self.values), max(self.values)
        return {
            "=": (low, high),
            "IN": (low, high),
            "<": (1, high - 1),
            "<=": (1, high),
            ">": (low + 1, END),
            ">=": (low, END),
        }[self.operator]


def bounds(conditions: Sequence[Condition], first: int = 1, last: int = END) -> tuple[int, int]:
    """Return the range of sequences that all conditions allow, within first … last."""
    for condition in conditions:
        low, high = condition.bounds()
        first, last = max(first, low), min(last, high)
    return first, last


def regex(filters: Sequence[str]) -> str:
    """Return a regular expression for the subjects that one of these NATS filters matches."""
    return "^(?:" + "|".join(map(_one, filters)) + ")$" if filters else "[^\\s\\S]"


def _one(pattern: str) -> str:
    *tokens, last = pattern.split(".")
    parts = ["[^.]+" if token == "*" else re.escape(token) for token in tokens]
    parts.append("[\\s\\S]+" if last == ">" else "[^.]+" if last == "*" else re.escape(last))
    return "\\.".join(parts)


def _empty(operator: str) -> str:
    return "FALSE" if operator == "IN" else "TRUE"


def _filter_sql(pattern: str) -> str:
    """Return one filter as SQL. The range of its literal beginning lets readers skip files by their statistics."""
    if pattern == ">":
        return "TRUE"
    if is_literal(pattern.encode()):
        return f"subject = {literal(pattern)}"
    tokens = pattern.split(".")
    begin = next(at for at, token in enumerate(tokens) if token in ("*", ">"))
    prefix = "".join(f"{token}." for token in tokens[:begin])
    # The character after "." is "/": everything below the prefix is in between.
    within = f"subject >= {literal(prefix)} AND subject < {literal(prefix[:-1] + '/')}" if prefix else ""
    if begin == len(tokens) - 1 and tokens[-1] == ">":
        return f"({within})"
    exact = f"subject ~ {literal(regex([pattern]))}"
    return f"({within} AND {exact})" if within else exact
