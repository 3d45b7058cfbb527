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
    if _OF_JSON.search(text):
        text += f"\n{CAST_HINT}"
    only_spark = said.kind.endswith("Function") and said.missing.lower().rstrip("_") in _spark_functions()
    is_spark = is_spark or said.missing.startswith("`")
    if is_spark or only_spark or _SPARK_WORDS.search(text):
        text += f"\n{ENGINE_HINT}"
    return text


class LostName(msgspec.Struct, frozen=True):
    """A name that an error finds missing: the name, the word of the query behind which it stands ("": any), and True
    for a column. `table`: the only one that it can be of; "" if there are several."""

    name: str
    behind: str
    is_column: bool
    table: str = ""

    def place(self, sql: str) -> int | None:
        """Return its offset in a query; None if it may be one of several."""
        found = significant(sql)
        first = next((at for at, token in enumerate(found) if token.is_word(self.behind)), 0)
        places = [token.start for token in found[first:] if token.name.lower() == self.name.lower()]
        return places[0] if len(places) == 1 else None


def lost(said: DuckdbError) -> LostName | None:
    """Return the name that an error finds missing, where DuckDB tells too little; None for another error."""
    for pattern, behind in _LOST:
        if (found := pattern.match(said.text)) is not None:
            names = found.groupdict()
            return LostName(names.get("column") or names["other"], behind, "column" in names, names.get("table") or "")
    return None


def no_column(said: DuckdbError, column: LostName, known: list[str]) -> str:
    """Return the error for a column that is missing, with those that are near.

    Args:
        known: the columns of the streams of the query.
    """
    near = difflib.get_close_matches(column.name.lower(), dict.fromkeys(known), 3, 0.5)
    advice = f"\nDid you mean {' or '.join(map(doubled, near))}?" if near else ""
    text = f"{doubled(column.table)} has no column {doubled(column.name)}" if column.table else advised(said)
    return text + advice


def with_field(text: str, column: str, known: list[str]) -> str:
    """Return the error for a missing column with the way to a field of the payload, if the column may be one."""
    is_typing_error = difflib.get_close_matches(column.lower(), map(str.lower, known), 1, 0.6)
    return text if is_typing_error or "json" not in known else f"{text}\n{FIELD_HINT.format(literal(column))}"


def is_sparks(before: str) -> bool:
    """Return True if DuckDB's parser gave up behind something that only Spark has."""
    return _SPARK_CALL.search(before) is not None


@cache
def _spark_functions() -> frozenset[str]:
    """Return the names of functions that Spark has, and DuckDB has not."""
    return frozenset(files(__package__).joinpath("spark_functions.txt").read_text(encoding="utf-8").split())
