"""Errors of queries, in the words that users get.

Belongs here: the exceptions, the line with a mark under the place, reading what DuckDB says (as JSON:
`errors_as_json`), and what to add to it.
"""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.table.schema import doubled

EXCERPT = 160
"""Characters of a line that an error shows."""
ENGINE_HINT = "Spark SQL: `--engine spark`"
_KIND = re.compile(r"^[A-Z][\w ]*? Error: ")
_BEFORE_CAUSE = "an unsuccessful or closed pending query result\nError: "
"""The end of what DuckDB says before the error of a value behind rows that were right."""
_SPARK_WORDS = re.compile(
    r"""at or near "(`|view|rlike|regexp|div|distribute|sort|cluster|array|map|anti|percent|minus|<=>|lateral)""", re.I
)
"""Words of Spark's SQL at which DuckDB's parser gives up."""
_NO_COLUMN = re.compile(r'^(?:Values list|Table) "(.+)" does not have a column named "(.+)"')
_SPARK_CALL = re.compile(r"\b(array|map|except|values)\s*\(?\s*$", re.I)


class SqlError(LakeError):
    """Raised when a query could not be answered. The text says what to do."""


class BadSql(SqlError):
    """Raised for a text that is not supported SQL; shows the place.

    Args:
        reason: the error.
        text: the whole query text.
        offset: the place, in characters from its start; None when it is not known.
    """

    def __init__(self, reason: str, text: str, offset: int | None = None) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(reason if offset is None else f"{reason}\n{excerpt(text, offset)}")


def excerpt(text: str, offset: int) -> str:
    """Return the line of `text` that holds `offset`, with a mark under the place."""
    offset = min(offset, len(text))
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[start : len(text) if end < 0 else end]
    number, at = text.count("\n", 0, offset) + 1, offset - start
    place = f"  line {number}, column {at + 1}:"
    if len(line) > EXCERPT:
        first = max(0, at - EXCERPT // 2)
        last = first + EXCERPT
        line, at = f"{'…' * (first > 0)}{line[first:last]}{'…' * (last < len(line))}", at - first + (first > 0)
    return f"{place}\n  {line}\n  {' ' * at}^"


class DuckdbError(msgspec.Struct, frozen=True):
    """An error of DuckDB: what it says, the place in bytes from the start of the query (None: unknown), and the name
    of what is missing, with its kind."""

    text: str
    position: int | None = None
    missing: str = ""
    kind: str = ""


def read(error: BaseException | str) -> DuckdbError:
    """Return what an error says."""
    message = str(error).strip().rpartition(_BEFORE_CAUSE)[2]
    body = _KIND.sub("", message)
    try:
        found: dict[str, Any] = json.loads(body)
        text, position = str(found["exception_message"]), found.get("position")
    except (ValueError, TypeError, KeyError):
        return DuckdbError(body.partition("\nLINE ")[0].partition("\n\nStack Trace")[0])
    missing = str(found.get("name", "")) if found.get("error_subtype") in ("MISSING_ENTRY", "COLUMN_NOT_FOUND") else ""
    return DuckdbError(text, None if position is None else int(position), missing, str(found.get("type", "")))


def first_line(error: BaseException | str) -> str:
    """Return the first line of what an error says."""
    return read(error).text.strip().splitlines()[0].rstrip(".")


def advised(said: DuckdbError, *, is_spark: bool = False) -> str:
    """Return an error's text with what helps.

    Args:
        is_spark: the query has something that only Spark knows.
    """
    text = said.text.strip()
    if "BLOB" in text and "No function matches" in text:
        text = f"{text.splitlines()[0].rstrip('.')}.\n`data` is binary: write text(data) to use it as text"
    only_spark = said.kind.endswith("Function") and said.missing.lower().rstrip("_") in _spark_functions()
    is_spark = is_spark or said.missing.startswith("`")
    if is_spark or only_spark or _SPARK_WORDS.search(text):
        text += f"\n{ENGINE_HINT}"
    return text


def missing_column(said: DuckdbError) -> tuple[str, str] | None:
    """Return the table and the column that an error finds missing, which DuckDB says without what is near."""
    found = _NO_COLUMN.match(said.text)
    return None if found is None else (found[1], found[2])


def no_column(table: str, column: str, known: list[str]) -> str:
    """Return the error for a column that a table has not. `known`: the columns of the streams of the query."""
    near = difflib.get_close_matches(column.lower(), dict.fromkeys(known), 3, 0.5)
    advice = f"\nDid you mean {' or '.join(map(doubled, near))}?" if near else ""
    return f"{doubled(table)} has no column {doubled(column)}{advice}"


def is_sparks(before: str) -> bool:
    """Return True if DuckDB's parser gave up behind something that only Spark has."""
    return _SPARK_CALL.search(before) is not None


@cache
def _spark_functions() -> frozenset[str]:
    """Return the names of functions that Spark has, and DuckDB has not."""
    return frozenset(files(__package__).joinpath("spark_functions.txt").read_text(encoding="utf-8").split())
