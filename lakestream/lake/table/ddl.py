"""Spark's lists of columns: `price DOUBLE, tags ARRAY<STRING> NOT NULL`.

Belongs here: their grammar, and nothing of what a type means.

Source: Spark SQL reference, "Data Types"; DataType.fromDDL.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?:\s|--[^\n]*|/\*.*?\*/)*(?:`((?:[^`]|``)+)`|\"([^\"]+)\"|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:\[\]])|(.)|$)",
    re.DOTALL,
)
_SPELLINGS = {
    "BOOLEAN": "BOOL",
    "TINYINT": "BYTE INT1 INT8",
    "SMALLINT": "SHORT INT2 INT16",
    "INT": "INTEGER INT4 INT32",
    "BIGINT": "LONG INT64",
    "FLOAT": "REAL FLOAT4",
    "DOUBLE": "FLOAT8",
    "STRING": "TEXT STR CHAR CHARACTER VARCHAR VARCHAR2 CLOB LONGVARCHAR",
    "DECIMAL": "DEC NUMERIC NUMBER FIXED",
    "TIMESTAMP": "TIMESTAMPTZ",
    "TIMESTAMP_LTZ": "TIMESTAMPLTZ",
    "TIMESTAMP_NTZ": "TIMESTAMPNTZ",
    **dict.fromkeys(("DATE", "BINARY", "INTERVAL", "VARIANT", "VOID", "ARRAY", "MAP", "STRUCT"), ""),
}
_TYPES = {other: name for name, others in _SPELLINGS.items() for other in (name, *others.split())}


class DdlError(ValueError):
    """Raised for a text that is no list of columns."""


class BadModifier(DdlError):
    """Raised for words behind a column other than NOT NULL and COMMENT."""


class DdlType(NamedTuple):
    """A type: its name in Spark (STRING for all texts), numbers in parentheses, and inner types or columns."""

    name: str
    numbers: tuple[int, ...] = ()
    parts: tuple[DdlType, ...] = ()
    columns: tuple[DdlColumn, ...] = ()

    def width(self) -> int:
        """Return the number of columns in the type, at any depth."""
        return sum(part.width() for part in self.parts) + sum(1 + column.type.width() for column in self.columns)


class DdlColumn(NamedTuple):
    """A column. `required`: NOT NULL."""

    name: str
    type: DdlType
    required: bool


def parse_columns(text: str) -> tuple[DdlColumn, ...]:
    """Parse a list of columns.

    Raises:
        DdlError, RecursionError, ValueError: for a number with too many digits.
    """
    parser = _Parser(text)
    found = parser.columns("")
    if parser.at < len(parser.tokens):
        raise DdlError(text)
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = list[tuple[str, str]]()  # kind and text
        for found in _TOKEN.finditer(text):
            if found[6]:
                raise DdlError(text)
            if found.lastindex:
                kind = ("", "name", "name", "text", "word", "sign")[found.lastindex]
                self.tokens.append((kind, found[found.lastindex].replace("``", "`")))
        self.at = 0

    def _next(self, *kinds: str) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at][0] not in kinds:
            raise DdlError
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _take(self, word: str) -> bool:
        """Return True, and go on, if the next token is this sign or word."""
        found = self.at < len(self.tokens) and self.tokens[self.at][1].upper() == word
        self.at += found
        return found

    def columns(self, end: str) -> tuple[DdlColumn, ...]:
        """Parse columns up to a sign, or to the end of the text."""
        found = list[DdlColumn]()
        while not (self._take(end) if end else self.at >= len(self.tokens)):
            name = self._next("name", "word")
            self._take(":")
            kind, required = self.type(), False
            while not self._take(",") and self.at < len(self.tokens) and self.tokens[self.at][1] != end:
                if self._take("NOT"):
                    self._next("word")
                    required = True
                elif self._take("COMMENT"):
                    self._next("text", "name")
                elif not self._take("NULL"):
                    raise BadModifier(self._next("word"))
            found.append(DdlColumn(name, kind, required))
        return tuple(found)

    def type(self) -> DdlType:
        """Parse a type."""
        name = _TYPES.get(self._next("word").upper())
        if name is None:
            raise DdlError
        numbers, parts, columns = list[int](), list[DdlType](), tuple[DdlColumn, ...]()
        if name == "DOUBLE":
            self._take("PRECISION")
        if self._take("("):
            numbers.append(int(self._next("word")))
            while self._take(","):
                numbers.append(int(self._next("word")))
            self._expect(")")
        if name in ("ARRAY", "MAP") and self._take("<"):
            parts.append(self.type())
            while self._take(","):
                parts.append(self.type())
            self._expect(">")
        elif name == "STRUCT" and self._take("<"):
            columns = self.columns(">")
        found = DdlType(name, () if name == "STRING" else tuple(numbers), tuple(parts), columns)
        while self._take("["):
            self._expect("]")
            found = DdlType("ARRAY", parts=(found,))
        return found

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise DdlError
