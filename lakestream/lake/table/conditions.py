"""Conditions on rows that are pushed down into tables and uncompacted segments.

Belongs here: one comparison of `subject`, `seq` or `time_ns`, as SQL for the table, as a mask for Arrow data, and as
the range of sequences that it allows, and the subjects that a read of history searches. Readers combine conditions
with AND.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table.schema import END, LAST_TEXT, literal
from lakestream.protocol.subjects import is_literal

MATCHES = "MATCHES"
"""Operator: the subject matches one of these NATS filters."""

MAX_VALUES = 200
"""Values of a condition that are pushed down; of more only the range is, and the mask has to be applied. The query
engine overflows its stack, and the process dies, on conditions of some thousand terms."""
MAX_CONDITIONS = 100
"""Conditions that are pushed down together."""
REGEX_FILTERS = 50
"""NATS filters in one regular expression, whose compiled size is limited."""

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

    @property
    def is_exact_in_sql(self) -> bool:
        """Return False if `sql` lets through rows for which the condition does not hold."""
        return len(self.values) <= MAX_VALUES

    def sql(self) -> str:
        """Return the condition for the table, in DataFusion's SQL, of bounded length."""
        if not self.is_exact_in_sql:
            low, high = _literal(min(self.values)), _literal(max(self.values))
            return f"({self.column} >= {low} AND {self.column} <= {high})" if self.operator == "IN" else "TRUE"
        if self.operator == MATCHES:
            return "(" + (" OR ".join(filter_sql(value) for value in self.values) or "FALSE") + ")"
        values = [_literal(value) for value in self.values]
        if self.operator in ("IN", "NOT IN"):
            return f"{self.column} {self.operator} ({', '.join(values)})" if values else _empty(self.operator)
        return f"{self.column} {self.operator} {values[0]}"

    def mask(self, batch: pa.RecordBatch) -> Any:
        """Return the condition for Arrow data, as a mask."""
        column = batch.column(self.column)
        if self.operator == MATCHES:
            return _matching(column, self.values)
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


def _matching(subjects: Any, filters: Sequence[str]) -> Any:
    """Return a mask of the subjects that one of these NATS filters matches."""
    wild = [each for each in filters if not is_literal(each.encode())]
    found = pc.is_in(subjects, pa.array(set(filters).difference(wild), subjects.type))
    for head in [each[:-1] for each in wild if each.endswith(".>") and is_literal(each[:-2].encode())]:
        found = pc.or_(found, pc.starts_with(subjects, head))  # a tenth of the time of an expression
        wild.remove(f"{head}>")
    for at in range(0, len(wild), REGEX_FILTERS):
        pattern = _regex(wild[at : at + REGEX_FILTERS])
        found = pc.or_(found, pc.match_substring_regex(subjects, pattern))
    return found


def _regex(filters: Sequence[str]) -> str:
    """Return a regular expression for the subjects that one of these NATS filters matches."""
    return "^(?:" + "|".join(map(_one, filters)) + ")$"


def _literal(value: str | int) -> str:
    return literal(value) if isinstance(value, str) else str(value)


def _one(pattern: str) -> str:
    *tokens, last = pattern.split(".")
    parts = ["[^.]+" if token == "*" else re.escape(token) for token in tokens]
    parts.append("[\\s\\S]+" if last == ">" else "[^.]+" if last == "*" else re.escape(last))
    return "\\.".join(parts)


def _empty(operator: str) -> str:
    return "FALSE" if operator == "IN" else "TRUE"


def filter_sql(pattern: str) -> str:
    """Return one filter as SQL of DataFusion and DuckDB. The range of its literal beginning lets readers skip files by
    their statistics."""
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
    exact = f"subject ~ {literal(_regex([pattern]))}"
    return f"({within} AND {exact})" if within else exact


class SubjectRange:
    """Subjects to search in a table: literal ones, and prefixes (of patterns with wildcards), as the column `subject`
    spells them."""

    def __init__(self, texts: Iterable[str], heads: Iterable[str] = ()) -> None:
        self.texts = sorted(set(texts))
        self.heads = sorted(set(heads))
        self.everything = "" in self.heads

    def __bool__(self) -> bool:
        return bool(self.texts or self.heads)

    def overlaps(self, low: str, high: str) -> bool:
        """Return True if one of them may lie in the range. `high` may have been cut, and stands for all texts that it
        begins."""
        if self.everything:
            return True
        at = bisect_left(self.texts, low)
        if at < len(self.texts) and self.texts[at][: len(high)] <= high:
            return True
        return any(head[: len(high)] <= high and head + LAST_TEXT >= low for head in self.heads)
