"""Errors of queries, in the words that users get.

Belongs here: the exceptions, the line with a mark under the place, reading what DuckDB says (as JSON:
`errors_as_json`), and what to add to it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.table.schema import doubled, literal
from lakestream_sql.tokens import significant

EXCERPT = 160
"""Characters of a line that an error shows."""
ENGINE_HINT = "Spark SQL: `--engine spark`"
FIELD_HINT = "a field of JSON payloads: json->>{}"
CAST_HINT = "a field of JSON is no number until it is cast: (json->>'price')::double"
_KIND = re.compile(r"^[A-Z][\w ]*? Error: ")
_BEFORE_CAUSE = "an unsuccessful or closed pending query result\nError: "
"""The end of what DuckDB says before the error of a value behind rows that were right."""
_SPARK_WORDS = re.compile(
    r"""at or near "(`|view|rlike|regexp|div|distribute|sort|cluster|array|map|anti|percent|minus|<=>|lateral)""", re.I
)
"""Words of Spark's SQL at which DuckDB's parser gives up."""
_LOST = [
    (re.compile(rf"^{said}"), behind)
    for said, behind in (
        (r'(?:Values list|Table) "(?P<table>.+)" does not have a column named "(?P<column>.+)"', ""),
        (r'Column "(?P<column>.+)" does not exist on (?:left|right) side of join', "USING"),
        (r'Column "(?P<column>.+)" in EXCLUDE list not found', "EXCLUDE"),
        (r'Column "(?P<column>.+)" in REPLACE list not found', "REPLACE"),
        (r'Column "(?P<column>.+)" referenced in UNPIVOT', "ON"),
        (r'Referenced table "(?P<other>.+)" not found', ""),
        (r'Could not find key "(?P<other>.+)" in struct', ""),
        (r"Cannot extract field '(?P<other>.+)' from expression", ""),
    )
]
"""Errors of names that DuckDB gives no place, or not what is near; and the word behind which the name stands."""
_OF_JSON = re.compile(r"'\w+\((?:VARCHAR|JSON)\)'.*-> DOUBLE|values of type VARCHAR and type \w*(?:INT|DEC)", re.DOTALL)
_SPARK_CALL = re.compile(r"\b(array|map|except|values)\s*\(?\s*$", re.I)


class SqlError(LakeError):
    """Raised when a query could not be answered. The text says what to do; `code` is that of the response."""

    code = 400


class UnknownStream(SqlError):
    """Raised when a query names a stream without a table; the text lists the tables."""

    code = 404


class ForbiddenQuery(SqlError):
    """Raised for a query that does more than read the streams of its account."""

    code = 403


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
    of what is missing, with its kind ("": a column).

    Where DuckDB gives no place for a name, or not its own: `behind` is the word of the query behind which the name
    stands ("": any), and `table` the only one that a column can be of ("": there are several). Else `behind` is None.
    """

    text: str
    position: int | None = None
    missing: str = ""
    kind: str = ""
    behind: str | None = None
    table: str = ""

    def place(self, sql: str) -> int | None:
        """Return the offset of the name in a query, if that is a better one; None also if it may be one of several."""
        if self.behind is None or (self.position is not None and not self.behind):
            return None
        found = significant(sql)
        first = next((at for at, token in enumerate(found) if token.is_word(self.behind)), 0)
        places = [token.start for token in found[first:] if token.name.lower() == self.missing.lower()]
        return places[0] if len(places) == 1 else None


def read(error: BaseException | str) -> DuckdbError:
    """Return what an error says."""
    message = str(error).strip().rpartition(_BEFORE_CAUSE)[2]
    body = _KIND.sub("", message)
    try:
        found: dict[str, Any] = json.loads(body)
        text, position = str(found["exception_message"]), found.get("position")
    except (ValueError, TypeError, KeyError):
        return DuckdbError(body.partition("\nLINE ")[0].partition("\n\nStack Trace")[0])
    position = None if position is None else int(position)
    for pattern, behind in _LOST:
        if (names := pattern.match(text)) is not None:
            named = names.groupdict()
            name, kind = named.get("column") or named["other"], "" if "column" in named else "Name"
            return DuckdbError(text, position, name, kind, behind, named.get("table") or "")
    missing = str(found.get("name", "")) if found.get("error_subtype") in ("MISSING_ENTRY", "COLUMN_NOT_FOUND") else ""
    return DuckdbError(text, position, missing, str(found.get("type", "")))


def first_line(error: BaseException | str) -> str:
    """Return the first line of what an error says."""
    return read(error).text.strip().splitlines()[0].rstrip(".")


def advised(said: DuckdbError, columns: Callable[[], list[str]] = list, *, is_spark: bool = False) -> str:
    """Return an error's text with what helps: for a missing column those that are near, or the way to a field of the
    payload if it may be one.

    Args:
        columns: returns those of the streams of the query.
        is_spark: the query has something that only Spark knows.
    """
    text = said.text.strip()
    if said.table:
        text = f"{doubled(said.table)} has no column {doubled(said.missing)}"
    if "BLOB" in text and "No function matches" in text:
        text = f"{text.splitlines()[0].rstrip('.')}.\n`data` is binary: write text(data) to use it as text"
    if _OF_JSON.search(text):
        text += f"\n{CAST_HINT}"
    only_spark = said.kind.endswith("Function") and said.missing.lower().rstrip("_") in _spark_functions()
    is_spark = is_spark or said.missing.startswith("`")
    if is_spark or only_spark or _SPARK_WORDS.search(text):
        text += f"\n{ENGINE_HINT}"
    if not said.missing or said.kind:
        return text
    known = columns()
    if said.behind is not None:
        near = difflib.get_close_matches(said.missing.lower(), dict.fromkeys(known), 3, 0.5)
        return text + (f"\nDid you mean {' or '.join(map(doubled, near))}?" if near else "")
    is_typing_error = difflib.get_close_matches(said.missing.lower(), map(str.lower, known), 1, 0.6)
    return text if is_typing_error or "json" not in known else f"{text}\n{FIELD_HINT.format(literal(said.missing))}"


def is_sparks(before: str) -> bool:
    """Return True if DuckDB's parser gave up behind something that only Spark has."""
    return _SPARK_CALL.search(before) is not None


@cache
def _spark_functions() -> frozenset[str]:
    """Return the names of functions that Spark has, and DuckDB has not."""
    return frozenset(files(__package__).joinpath("spark_functions.txt").read_text(encoding="utf-8").split())
