"""The grammar of nats.conf.

Belongs here: parsing text to a tree of items with file and line; variables, includes, number suffixes and sizes. Keys
and their meaning are not known here. Any text gives a tree or a `ConfError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone

import msgspec

from lakestream.config.errors import StartError, reason_in_words

MAX_DEPTH = 64
"""Maximum nesting of maps and arrays, and of includes."""

Scalar = str | int | float | bool | datetime


class ConfError(StartError):
    """Raised for an invalid configuration file."""


class GrammarError(ConfError):
    """Raised for a text that is no configuration, with nats-server's texts: they name the line, but not the file."""


class SettingError(ConfError):
    """Raised for settings that are wrong, each with file, line (from 1) and column."""

    of_settings = True


class NotServedError(SettingError):
    """Raised for settings that nats-server has and this server has not, with what to use instead."""


class Item(msgspec.Struct):
    """A value and its position: that of its key in a map, its own in an array.

    `column` is counted as nats-server does: quoted values and blocks begin behind the quote or brace, and columns count
    from 0 in the first line and from 1 in all others.

    `used` marks keys that a variable refers to: such a key need not be a setting. `raw` is a number as it is written:
    `2m` is the number 2,000,000 by the grammar, but two minutes where a duration is expected.
    """

    value: Scalar | list[Item] | dict[str, Item]
    file: str
    line: int
    used: bool = False
    raw: str = ""
    column: int = 0

    def error(self, reason: str) -> SettingError:
        """Return an error at this position."""
        return SettingError(f"{self.file}:{self.line}:{self.column}: {reason}")


_BLANK = re.compile(r"[ \t]*")
_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"[^\s:={\"'][^\s:={]*")
_BARE = re.compile(r"(?:\\[\s\S]|[^\s,;\]}\\])+")
_DOUBLE = re.compile(r'"((?:\\[\s\S]|[^"\\])*)"')
_SINGLE = re.compile(r"'([^']*)'")
_BLOCK = re.compile(r"\(([\s\S]*?\n)[ \t]*\)(?=[ \t]*(?:\n|\Z))")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[\s\S])")
_INTEGER = re.compile(r"(-?[0-9]+)([kmgtpe])?(b|i|ib)?", re.IGNORECASE)
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+")
_DIGITS = re.compile(r"-?[0-9]*")
_ADDRESS = re.compile(r"-?[0-9]+\.[0-9]+\.[0-9.:-]*")
_AFTER_YEAR = "00-00T00:00:00Z"
"""Characters of a date behind `YYYY-`; 0 stands for any digit."""
_NUL = "\0"
_ENDS_AT_TOP = "a top-level value to end with a new line, comment or EOF"
_ENDS_IN_MAP = 'a map value terminator "," or a map terminator "}"'
_ENDS_IN_ARRAY = 'an array value terminator "," or an array terminator "]"'
"""Names of the places of a value in nats-server's errors, with what may follow there."""

_INCLUDE_END = " \t\r\n;}"
_OPENING = ("'", '"', "{", "[")

_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_BCRYPT = "2a$"


def load(file: str, environ: Mapping[str, str] | None = None, parents: tuple[str, ...] = ()) -> dict[str, Item]:
    """Read and parse a file with its includes.

    Args:
        file: path as the user gave it; error messages show it like that.
        environ: where `$NAME` looks when no key of that name is in scope; the process's environment by default.
        parents: the files that include this one.

    Raises:
        ConfError: the file's text is wrong.
        StartError: the file cannot be read.
    """
    try:
        with open(file, encoding="utf-8") as stream:  # a byte order mark is part of the first key, as in nats-server
            text = stream.read()
    except OSError as error:
        call = "read" if os.path.isdir(file) else "open"
        raise StartError(f"{call} {file}: {reason_in_words(error)}") from error
    except ValueError as error:
        raise StartError(f"read {file}: it is not UTF-8 text") from error
    return parse(text, file, environ, parents)


def parse(
    text: str, file: str = "", environ: Mapping[str, str] | None = None, parents: tuple[str, ...] = ()
) -> dict[str, Item]:
    """Parse a text; includes are looked up relative to `file`'s directory.

    Raises:
        ConfError: the text is wrong.
    """
    environ = os.environ if environ is None else environ
    return _Reader(text, file, environ, (*parents, os.path.abspath(file)), ()).document()


class _Reader:
    """Reads one text from front to back."""

    def __init__(
        self, text: str, file: str, environ: Mapping[str, str], files: tuple[str, ...], names: tuple[str, ...]
    ) -> None:
        self._text = text.replace("\r\n", "\n")
        self._file = file
        self._environ = environ
        self._files = files  # this file and those that include it
        self._names = names  # environment variables being read
        self._pos = 0
        self._scopes: list[dict[str, Item]] = []
        self._counted = (0, 1)

    # ------------------------------------------------------------------ places
    def _line(self, pos: int | None = None) -> int:
        pos = self._pos if pos is None else pos
        known, line = self._counted
        if pos < known:
            known, line = 0, 1
        line += self._text.count("\n", known, pos)
        self._counted = (pos, line)
        return line

    def _column(self) -> int:
        """Return the column of the current position; see `Item`."""
        return self._pos - max(self._text.rfind("\n", 0, self._pos), 0) + (self._peek() in _OPENING)

    def _error(self, reason: str, pos: int | None = None) -> GrammarError:
        return GrammarError(f"Parse error on line {self._line(pos)}: '{reason}'")

    def _ends_early(self, inside: str = "") -> GrammarError:
        """Return the error of a text that ends within something."""
        return self._error(f"Unexpected EOF{inside and f' processing {inside}'}.", len(self._text))

    def _error_at(self, pos: int, reason: str) -> GrammarError:
        """Return the error of the character at `pos`, which `reason` has a place for."""
        char = self._text[pos : pos + 1]
        return self._error(reason.format({"\n": "\\n"}.get(char, char or _NUL)), pos + 1)

    def _peek(self) -> str:
        return self._text[self._pos : self._pos + 1]

    def _unlike(self, expected: str) -> GrammarError:
        """Return the error of a character in the place of `expected`; the end of the text is shown as NUL."""
        return self._error(f"Expected {expected}, but got '{self._peek() or _NUL}' instead.")

    # ------------------------------------------------------------------ what lies between
    def _skip_space(self) -> None:
        """Skip white space, new lines and comments."""
        while True:
            self._pos = _match(_SPACE, self._text, self._pos).end()
            if not self._skip_comment():
                return

    def _skip_blank(self) -> None:
        self._pos = _match(_BLANK, self._text, self._pos).end()

    def _skip_comment(self) -> bool:
        if self._peek() != "#" and not self._text.startswith("//", self._pos):
            return False
        end = self._text.find("\n", self._pos)
        self._pos = len(self._text) if end < 0 else end
        return True

    # ------------------------------------------------------------------ containers
    def document(self) -> dict[str, Item]:
        """Read the whole text: pairs, optionally within braces."""
        items: dict[str, Item] = {}
        self._scopes.append(items)
        while True:
            self._skip_space()
            while self._peek() in ("{", "}", ",", ";") and self._peek():
                self._pos += 1
                self._skip_space()
            if not self._peek():
                return items
            self._pair(items)
            self._end_of_value("}", _ENDS_AT_TOP)

    def _end_of_value(self, closing: str, ends: str) -> None:
        """Check that a value ends here: at a new line, comma, semicolon, or the end of the container or text."""
        self._skip_blank()
        self._skip_comment()
        char = self._peek()
        if char in ("\n", ",", ";"):
            self._pos += len(char)
        elif char and char != closing:
            raise self._unlike(ends)

    def _map(self) -> dict[str, Item]:
        self._enter()
        items: dict[str, Item] = {}
        self._scopes.append(items)
        while True:
            self._skip_space()
            char = self._peek()
            if not char:
                raise self._ends_early("map")
            if char == "}":
                break
            self._pair(items)
            self._end_of_value("}", _ENDS_IN_MAP)
        self._pos += 1
        self._scopes.pop()
        return items

    def _array(self) -> list[Item]:
        self._enter()
        items: list[Item] = []
        # An array is no scope for variables, but counts for the depth.
        self._scopes.append({})
        while True:
            self._skip_space()
            char = self._peek()
            if not char:
                raise self._unlike(_ENDS_IN_ARRAY)
            if char == "]":
                break
            if char in ",;":
                raise self._error(f"Unexpected array value terminator '{char}'.")
            line, column = self._line(), self._column()
            items.append(Item(self._value(), self._file, line, column=column))
            self._end_of_value("]", _ENDS_IN_ARRAY)
        self._pos += 1
        self._scopes.pop()
        return items

    def _enter(self) -> None:
        if len(self._scopes) > MAX_DEPTH:
            raise self._error(f"maps and arrays are nested deeper than {MAX_DEPTH}")
        self._pos += 1

    # ------------------------------------------------------------------ pairs
    def _pair(self, items: dict[str, Item]) -> None:
        line, column = self._line(), self._column()
        quoted = self._peek() in ("'", '"')
        key = self._key()
        if not quoted and key.lower() == "include" and self._peek() in (" ", "\t"):
            items.update(self._include())
            return
        self._skip_space()
        if self._peek() in (":", "="):
            self._pos += len(self._peek())
            self._skip_blank()
        if not self._peek():
            raise GrammarError(f"config is invalid ({self._file}:{self._line()}:{self._column()})")
        if self._peek() == "\n":
            raise self._error("Expected value but found new line", self._pos + 1)
        start = self._pos
        value = self._value()
        raw = self._text[start : self._pos] if isinstance(value, int) else ""
        items[key] = Item(value, self._file, line, raw=raw, column=column)

    def _key(self) -> str:
        text = self._string()
        if text is not None:
            return text
        found = _KEY.match(self._text, self._pos)
        if found is None:
            raise self._error(f"Unexpected key separator '{self._peek()}'")
        self._pos = found.end()
        return found.group()

    def _include(self) -> dict[str, Item]:
        self._skip_blank()
        name = self._string()
        if name is None:
            start = self._pos
            while self._peek() and self._peek() not in _INCLUDE_END:
                self._pos += 1
            name = self._text[start : self._pos]
        try:
            return self._included(name)
        except StartError as error:
            raise GrammarError(f"error parsing include file '{name}', {error}") from error

    def _included(self, name: str) -> dict[str, Item]:
        if not name:
            raise GrammarError("include needs the name of a file")
        path = os.path.normpath(os.path.join(os.path.dirname(self._file), name))
        if os.path.abspath(path) in self._files:
            raise GrammarError("it includes itself")
        if len(self._files) > MAX_DEPTH:
            raise GrammarError(f"includes are nested deeper than {MAX_DEPTH}")
        return load(path, self._environ, self._files)

    # ------------------------------------------------------------------ values
    def _value(self) -> Scalar | list[Item] | dict[str, Item]:
        char = self._peek()
        if char == "{":
            return self._map()
        if char == "[":
            return self._array()
        if char == "(":
            return self._block()
        text = self._string()
        if text is not None:
            return text
        found = _BARE.match(self._text, self._pos)
        if found is None:
            raise self._unlike("a value")
        start, self._pos = self._pos, found.end()
        return self._bare(found.group(), start)

    def _string(self) -> str | None:
        """Read a quoted text; None when none begins here."""
        double = self._peek() == '"'
        if not double and self._peek() != "'":
            return None
        found = (_DOUBLE if double else _SINGLE).match(self._text, self._pos)
        if found is None:
            raise self._ends_early()
        start, self._pos = self._pos, found.end()
        return self._unescape(found.group(1), start) if double else found.group(1)

    def _block(self) -> str:
        found = _BLOCK.match(self._text, self._pos)
        if found is None:
            raise self._ends_early("block")
        self._pos = found.end()
        return found.group(1)

    def _unescape(self, raw: str, start: int) -> str:
        if "\\" not in raw:
            return raw

        def replace(found: re.Match[str]) -> str:
            code = found.group(1)
            if len(code) == 3:
                return chr(int(code[1:], 16))
            plain = _PLAIN_ESCAPES.get(code)
            if plain is None:
                allowed = 'Only the following escape characters are allowed: \\xXX, \\t, \\n, \\r, \\", \\\\.'
                raise self._error(f"Invalid escape character '{code}'. {allowed}", start)
            return plain

        return _ESCAPE.sub(replace, raw)

    def _bare(self, raw: str, start: int) -> Scalar | list[Item] | dict[str, Item]:
        if "\\" in raw:
            return self._unescape(raw, start)
        boolean = _BOOLEANS.get(raw.lower())
        if boolean is not None:
            return boolean
        if raw[0] == "$" and not raw.startswith(_BCRYPT, 1):
            return self._variable(raw[1:], start)
        if raw[0] in "-0123456789":
            return self._number(raw, start)
        return raw

    def _number(self, raw: str, start: int) -> Scalar:
        found = _INTEGER.fullmatch(raw)
        if found is not None and (found.group(2) or not found.group(3)):
            digits, power, binary = found.groups()
            number = int(digits) if len(digits) < 21 else 1 << 64
            if power:
                number *= (1024 if binary else 1000) ** _POWERS[power.lower()]
            if not -(1 << 63) <= number < 1 << 63:
                raise GrammarError(f"integer '{raw[:40]}' is out of the range")
            return number
        return self._unlike_integer(raw, start)

    def _unlike_integer(self, raw: str, start: int) -> Scalar:
        """Return the value of a word that begins like a number; what follows the value is left to be read.

        nats-server decides by the first characters: behind `-` there is a number, behind `2026-` a date, behind `1.` a
        fraction or an address. Other words may begin with digits (`3x`).
        """
        digits = _match(_DIGITS, raw, 0).end()
        after = raw[digits : digits + 1]
        if raw[:digits] == "-":
            if after == ".":
                raise self._error("Floats must start with a digit, not '.'.")
            raise self._error_at(start + 1, "Expected a digit but got '{}'.")
        if after == ".":
            found = _ADDRESS.match(raw) or _FLOAT.match(raw)
            if found is None:
                raise self._error_at(
                    start + digits + 1, "Floats must have a digit after the '.', but got '{}' instead."
                )
            self._pos = start + found.end()
            return float(found.group()) if found.re is _FLOAT else found.group()
        if raw[0] == "-" and after.lower() not in _POWERS:
            self._pos = start + digits
            return self._number(raw[:digits], start)
        if after != "-":
            return raw
        if digits != len("YYYY"):
            raise self._error("All ISO8601 dates must be in full Zulu form.")
        return self._date(start)

    def _date(self, start: int) -> datetime:
        """Read the date whose year and first hyphen begin at `start`."""
        place = start
        for place, wanted in enumerate(_AFTER_YEAR, start + len("YYYY-")):
            char = self._text[place : place + 1]
            if wanted == "0" and not char.isdecimal():
                raise self._error_at(place, "Expected digit in ISO8601 datetime, but found '{}' instead.")
            if wanted not in ("0", char):
                raise self._error_at(place, f"Expected '{wanted}' in ISO8601 datetime, but found '{{}}' instead.")
        self._pos = place + 1
        text = self._text[start : self._pos]
        try:
            return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)  # noqa: UP017
        except ValueError:
            raise GrammarError(f"expected Zulu formatted DateTime, but got '{text}'") from None

    def _variable(self, name: str, start: int) -> Scalar | list[Item] | dict[str, Item]:
        for scope in reversed(self._scopes):
            if name in scope:
                scope[name].used = True
                return scope[name].value
        text = self._environ.get(name)
        where = f"variable reference for '{name}' on line {self._line(start)}"
        if text is None:
            raise GrammarError(f"{where} can not be found")
        if name in self._names:
            raise GrammarError(f"variable reference cycle for '{name}'")
        if not text.strip(" \t"):
            return ""
        reader = _Reader(f"value={text}", self._file, self._environ, self._files, (*self._names, name))
        try:
            return reader.document()["value"].value
        except (ConfError, KeyError) as error:
            reason = error if isinstance(error, ConfError) else "no value"
            raise GrammarError(f"{where} could not be parsed: {reason}") from error


def _match(pattern: re.Pattern[str], text: str, pos: int) -> re.Match[str]:
    """Match a pattern that may match the empty string."""
    found = pattern.match(text, pos)
    assert found is not None
    return found


# ---------------------------------------------------------------------- values as text

_SIZE = re.compile(r"([0-9]+) *([KMGT])(I?B)?", re.IGNORECASE)


def size_bytes(text: str) -> int:
    """Convert a size such as `64M` or `1G` (binary, as in JetStream's limits) to bytes.

    Raises:
        ValueError: not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or len(found.group(1)) > 18:
        digits = text.strip()[:-1]
        if text and not digits.isdecimal():
            raise ValueError(f'strconv.ParseInt: parsing "{digits[:40]}": invalid syntax')
        raise ValueError("sizes defined as strings must end in K, M, G, T")
    number: int = int(found.group(1)) << (10 * _POWERS[found.group(2).lower()])
    if number >= 1 << 63:
        raise ValueError(f"size {text!r} is out of range")
    return number
