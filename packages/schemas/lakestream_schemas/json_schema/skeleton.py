"""Spelling of a JSON payload without its values: what gives the bytes back, together with the columns.

Belongs here: the skeleton, its making from one payload, and its reading. A skeleton is the payload's own text, in which
each value of a column is `$`. It keeps the order of names, white space and missing names, so one skeleton stands for
all messages that one producer writes. In front of it stand how strings and numbers are written:

    s  strings without unnecessary escapes     a  as `json.dumps` of Python, ASCII only    h  as encoding/json of Go
    g  integral numbers as 100                 f  as 100.0

An instant is `$` with the digits of its fraction and its zone, a list `[$[element$,separator$]]`, a map
`{${colon and value$,separator$}}`. For example `sg{"id":$,"at":$3Z,"tags":[$[$$,,$]]}`.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

import msgspec

from lakestream.schemas.columns import Field, List, Map, RecordType, Scalar, Type

MAX_SKELETON = 4_096
"""Maximum length of a skeleton in characters; a row that needs a longer one keeps its payload."""
STRING_STYLES, NUMBER_STYLES = "sah", "gf"
_TEXT = msgspec.json.Decoder(str)
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"true|false|null")
_INTEGER = re.compile(r"0|-?[1-9]\d*")
_INSTANT = re.compile(r'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d{1,6}))?(Z|\+00:00)"')
_DATE = re.compile(r'"\d{4}-\d\d-\d\d"')
_TO_ESCAPE = {"s": re.compile(r'["\\\x00-\x1f]'), "a": re.compile(r'["\\\x00-\x1f\u0080-\U0010ffff]')}
_TO_ESCAPE["h"] = re.compile(r'["\\\x00-\x1f<>&\u2028\u2029]')
_HTML = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


class Unspellable(Exception):
    """Raised for a payload that no skeleton gives back."""


def quote(text: str, style: str) -> str:
    """Return a string as JSON, without its quotes."""
    if _TO_ESCAPE[style].search(text) is None:
        return text
    found = json.dumps(text, ensure_ascii=style == "a")[1:-1]
    return found.translate(_HTML) if style == "h" else found


def number(value: float, style: str) -> str:
    """Return a number as JSON."""
    text = repr(value)
    return text.removesuffix(".0") if style == "g" else text


# Making
class Writer:
    """Maker of skeletons for one record. It remembers the styles that were needed, so that later ones agree."""

    def __init__(self, record: RecordType) -> None:
        self._record = record
        self._strings, self._numbers = STRING_STYLES, NUMBER_STYLES

    def skeleton(self, payload: bytes) -> str | None:
        """Return the skeleton of a payload that fits; None if none gives it back."""
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            return None
        try:
            maker = _Maker(text, self._strings, self._numbers)
            body = maker.whole(self._record)
        except Unspellable:
            return None
        strings = maker.strings
        if strings[0] != self._strings[0]:
            self._strings = strings[0] + self._strings.replace(strings[0], "")
        if maker.numbers[0] != self._numbers[0]:
            self._numbers = maker.numbers[0] + self._numbers.replace(maker.numbers[0], "")
        found = strings[0] + maker.numbers[0] + body
        return found if len(found) <= MAX_SKELETON else None


def _is_plain(of: Type) -> bool:
    """Return True for a scalar whose place is `$` alone: that of an instant has its digits and its zone too."""
    return isinstance(of, Scalar) and of.kind != "instant"


class _Maker:
    """One walk over a payload, guided by its types. `strings`, `numbers`: styles that are still possible."""

    def __init__(self, text: str, strings: str, numbers: str) -> None:
        self._text = text
        self._at = 0
        self.strings, self.numbers = strings, numbers

    def whole(self, record: RecordType) -> str:
        """Return the skeleton without its styles."""
        found = self._space() + self._record(record) + self._space()
        if self._at != len(self._text):
            raise Unspellable
        return found

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise Unspellable
        self._at = match.end()
        return match.group()

    def _space(self) -> str:
        return self._match(_SPACE)

    def _take(self, char: str) -> str:
        if not self._text.startswith(char, self._at):
            raise Unspellable
        self._at += len(char)
        return char

    def _is(self, char: str) -> bool:
        return self._text.startswith(char, self._at)

    def _value(self, of: Type) -> str:
        if self._is("null"):
            self._at += 4
            return "$" if _is_plain(of) else "null"
        if isinstance(of, RecordType):
            return self._record(of)
        if isinstance(of, List):
            return self._list(of)
        if isinstance(of, Map):
            return self._map(of)
        return self._scalar(of)

    def _record(self, of: RecordType) -> str:
        types = {field.name: field.type for field in of.fields}
        seen: set[str] = set()
        found = [self._take("{"), self._space()]
        while not self._is("}"):
            if seen:
                found += [self._take(","), self._space()]
            raw = self._match(_STRING)
            name = _TEXT.decode(raw.encode())
            if name in seen or name not in types:
                raise Unspellable
            seen.add(name)
            found += [raw, self._space(), self._take(":"), self._space(), self._value(types[name]), self._space()]
        return "".join(found) + self._take("}")

    def _list(self, of: List) -> str:
        lead = self._take("[") + self._space()
        if self._is("]"):
            self._at += 1
            return f"[$[$$,{self._comma()}$]]" if lead == "[" and _is_plain(of.of) else f"{lead}]"
        elements, separators, tail = set(), set(), ""
        while True:
            elements.add(self._value(of.of))
            tail = self._space()
            if self._is("]"):
                break
            separators.add(tail + self._take(",") + self._space())
        self._take("]")
        return f"{lead}$[{self._only(elements)}$,{self._only(separators or {self._comma()})}$]{tail}]"

    def _map(self, of: Map) -> str:
        lead = self._take("{") + self._space()
        if self._is("}"):
            self._at += 1
            colon = ": " if self._comma() == ", " else ":"
            return f"{{${{{colon}$$,{self._comma()}$}}}}" if lead == "{" and _is_plain(of.of) else f"{lead}}}"
        elements, separators, names, tail = set(), set(), set(), ""
        while True:
            names.add(self._string())
            elements.add(self._space() + self._take(":") + self._space() + self._value(of.of))
            tail = self._space()
            if self._is("}"):
                break
            separators.add(tail + self._take(",") + self._space())
        self._take("}")
        return f"{lead}${{{self._only(elements)}$,{self._only(separators or {self._comma()})}$}}{tail}}}"

    def _comma(self) -> str:
        """Return the separator of a list that has too few elements to show it."""
        return ", " if '": ' in self._text else ","

    @staticmethod
    def _only(texts: set[str]) -> str:
        if len(texts) != 1:
            raise Unspellable
        (found,) = texts
        return found

    def _string(self) -> str:
        raw = self._match(_STRING)
        if "\\" in raw or not raw.isascii() or _TO_ESCAPE["h"].search(raw[1:-1]):
            value = _TEXT.decode(raw.encode())
            self.strings = "".join(style for style in self.strings if quote(value, style) == raw[1:-1])
            if not self.strings:
                raise Unspellable
        return raw

    def _scalar(self, of: Scalar) -> str:
        if of.kind == "string":
            self._string()
        elif of.kind == "json":
            self._skip()
        elif of.kind == "boolean":
            self._match(_WORD)
        elif of.kind == "integer":
            self._plain(_INTEGER)
        elif of.kind == "number":
            raw = self._match(_NUMBER)
            self.numbers = "".join(style for style in self.numbers if number(float(raw), style) == raw)
            if not self.numbers:
                raise Unspellable
        elif of.kind == "date":
            self._plain(_DATE)
        elif of.kind == "decimal":
            return self._decimal(of)
        elif of.kind == "instant":
            match = _INSTANT.match(self._text, self._at)
            if match is None:
                raise Unspellable
            self._at = match.end()
            return f"${len(match[1] or '')}{match[2]}"
        return "$"

    def _decimal(self, of: Scalar) -> str:
        if self._is('"'):
            text = self._match(_STRING)[1:-1]
            if len(text.partition(".")[2]) != of.scale:
                raise Unspellable
            return '"$"'
        self._plain(_INTEGER)
        return "$"

    def _plain(self, pattern: re.Pattern[str]) -> None:
        """Take a value that has one spelling only."""
        self._match(pattern)
        if self._at < len(self._text) and self._text[self._at] not in ",]} \t\r\n":
            raise Unspellable

    def _skip(self) -> None:
        """Take any value."""
        depth = 0
        while True:
            self._space()
            char = self._text[self._at : self._at + 1]
            if char == '"':
                self._match(_STRING)
            elif char and char in "[{":
                depth += 1
                self._at += 1
            elif char and char in "]}":
                depth -= 1
                self._at += 1
            elif char and char in ",:":
                self._at += 1
            else:
                self._match(_WORD if char and char in "tfn" else _NUMBER)
            if depth == 0:
                return


# Reading
class ScalarPlace(msgspec.Struct, frozen=True):
    """A `$`: the place of a scalar. `digits`, `zone`: of an instant."""

    type: Scalar
    digits: int = 0
    zone: str = ""


class Object(msgspec.Struct, frozen=True):
    """A record's text: literals and the parts of its fields, as (index of the field, part)."""

    parts: tuple[str | tuple[int, Part], ...]


class Repeated(msgspec.Struct, frozen=True):
    """A list or a map: `lead`, then `element` for each (a map's begins with the colon), `separator` between them."""

    lead: str
    element: tuple[str | Part, ...]
    separator: str
    tail: str
    is_map: bool


class Literal(msgspec.Struct, frozen=True):
    """A text without values, such as `null` or `[]`. It gives back only rows in which it is the whole truth."""

    text: str


Part: TypeAlias = ScalarPlace | Object | Repeated | Literal


def read(skeleton: str, record: RecordType) -> tuple[str, str, Object]:
    """Return (style of strings, of numbers, parts) of a skeleton.

    Raises:
        ValueError: it is none, or not of this record.
    """
    try:
        if skeleton[0] not in STRING_STYLES or skeleton[1] not in NUMBER_STYLES:
            raise ValueError("no skeleton")
        return skeleton[0], skeleton[1], _Reader(skeleton[2:]).whole(record)
    except (Unspellable, IndexError, msgspec.DecodeError, RecursionError):
        raise ValueError(f"{skeleton[:80]!r} is not a skeleton of this schema") from None


class _Reader(_Maker):
    """One walk over a skeleton."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "", "")

    def whole(self, record: RecordType) -> Any:
        lead = self._space()
        found = self._part(record)
        tail = self._space()
        if not isinstance(found, Object) or self._at != len(self._text):
            raise Unspellable
        return Object((lead, *found.parts, tail))

    def _part(self, of: Type) -> Part:
        if self._is("null"):
            self._at += 4
            return Literal("null")
        if isinstance(of, RecordType):
            return self._object(of)
        if isinstance(of, List | Map):
            return self._repeated(of)
        quoted = self._is('"$"')
        if quoted:
            self._take('"')
        self._take("$")
        if of.kind == "instant":
            digits = int(self._match(re.compile(r"\d")))
            return ScalarPlace(of, digits, self._match(re.compile(r"Z|\+00:00")))
        if quoted:
            self._take('"')
        return ScalarPlace(of, 0, '"' if quoted else "")

    def _object(self, of: RecordType) -> Object:
        names: dict[str, tuple[int, Field]] = {field.name: (at, field) for at, field in enumerate(of.fields)}
        parts: list[str | tuple[int, Part]] = []
        text = self._take("{") + self._space()
        first = True
        while not self._is("}"):
            if not first:
                text += self._take(",") + self._space()
            first = False
            raw = self._match(_STRING)
            name = _TEXT.decode(raw.encode())
            if name not in names:
                raise Unspellable
            at, field = names[name]
            text += raw + self._space() + self._take(":") + self._space()
            parts += [text, (at, self._part(field.type))]
            text = self._space()
        parts.append(text + self._take("}"))
        return Object(tuple(parts))

    def _repeated(self, of: List | Map) -> Part:
        opening, closing = ("[", "]") if isinstance(of, List) else ("{", "}")
        lead = self._take(opening) + self._space()
        if self._is(closing):
            return Literal(lead + self._take(closing))
        self._take("$" + opening)
        colon = "" if isinstance(of, List) else self._space() + self._take(":") + self._space()
        element = (colon, self._part(of.of))
        self._take("$,")
        separator = self._space() + self._take(",") + self._space()
        self._take("$" + closing)
        tail = self._space() + self._take(closing)
        return Repeated(lead, element, separator, tail, isinstance(of, Map))
