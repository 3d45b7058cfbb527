"""Mapping rows of text files to messages: CSV fields and JSON lines, in their spelling.

Belongs here: the fields of a row as text, as JSON and as times, and the messages of an export as CSV or JSON lines.
Reading is in text.py, the options and subjects are mapping.py's.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

import msgspec
import pyarrow as pa

from lakestream.lake.table.schema import join_headers
from lakestream.log.format.record import Record
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.instants import instant
from lakestream.protocol.subjects import publishable
from lakestream_transfer.csv_types import NULL, STRING, Convert, converter
from lakestream_transfer.mapping import (
    BEFORE_1970,
    JSON,
    NO_TIME,
    TIME_UNITS,
    BadMapping,
    BadRow,
    MappedRows,
    MappingOptions,
    Subjects,
    check_header_names,
    header_block,
    payload_columns,
    times_ns,
)
from lakestream_transfer.text import Chunk, TextSource, read_binary

LATEST_NS = 2**63 - 1

NOT_UTF8 = "it is not UTF-8: convert the file first, as with iconv -f latin1 -t utf-8"

_OWN = MappingOptions(subject="subject", data="data", time="time_ns")
_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any = msgspec.json.Decoder(msgspec.Raw).decode
_text = msgspec.json.Decoder(str).decode
_pairs = msgspec.json.Decoder(dict[str, Any]).decode
_lists = msgspec.json.Decoder(dict[str, list[str]]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_walk = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode

Fields = Mapping[str, Any]
"""Fields of a row: texts of CSV, or JSON as it is spelled (`msgspec.Raw`)."""
_Read = tuple[int, Any, Fields]


class TextMapper:
    """Converts rows of text files to messages.

    Args:
        columns: the mapping; None for an export of all columns: every message as it was.
        types: types of CSV columns.
        order_by: fields to sort by.

    Raises:
        BadMapping: a column is missing, or an option does not suit the format.
    """

    def __init__(
        self,
        columns: MappingOptions | None,
        source: TextSource,
        types: Mapping[str, str] | None = None,
        order_by: Sequence[str] = (),
    ) -> None:
        self._own, self.columns = columns is None, columns or _OWN
        self._names, self._lines = source.names, source.kind == "json"
        self._types = {name: kind for name, kind in (types or {}).items() if kind != STRING}
        self._subjects = Subjects(self.columns.subject, self.columns.replacement)
        self._order_by = order_by
        self.sorts = bool(order_by)
        """The messages have keys to be sorted by."""
        check_header_names(self.columns)
        self._whole_line = self._lines and self.columns.data in ("", f"{JSON}:*")
        self._payload = payload_columns(self.columns, self._subjects, self._names)
        """Columns of a JSON payload; None when one column is the payload. JSON lines may have others."""
        used = [*self._subjects.columns, self.columns.time, self.columns.headers_column]
        self._used = {*used, *(name for _, name in self.columns.headers)} - {""}
        self._needed = self._own or not self._whole_line or bool(self._used) or self.sorts
        """Fields of JSON lines are needed; else a line only has to be JSON."""
        self._members: dict[str, tuple[bytes, Convert]] = {}
        self._checks: list[tuple[str, Convert]] = []
        """Columns with a type outside of the payload."""
        if self._lines:
            if types:
                raise BadMapping("--types: JSON lines have types; they are stored as they are")
            self._check_data()
            return
        self._check_columns(types or {})
        self._checks = [
            (name, converter(kind)) for name, kind in self._types.items() if name not in (self._payload or ())
        ]
        self._members = {
            name: (_encode(name) + b":", converter(self._types.get(name, STRING))) for name in self._payload or ()
        }

    def _check_data(self) -> None:
        """Refuse a payload of fields that no line has, as far as is known: with a misspelled one all would be empty."""
        data = self.columns.data
        named = [data] if self._payload is None else self._payload
        if self._own or self._whole_line or data == JSON:
            return
        if unknown := [name for name in named if self._names and name not in self._names]:
            there = ", ".join(self._names)
            raise BadMapping(f"--data: no line at the beginning has a field {unknown[0]!r}; there are {there}")

    def _check_columns(self, types: Mapping[str, str]) -> None:
        columns = self.columns
        wanted = [("--subject", name) for name in self._subjects.columns]
        wanted += [("--data", name) for name in ([columns.data] if self._payload is None else self._payload)]
        wanted += [("--header", name) for _, name in columns.headers]
        wanted += [("--headers", columns.headers_column), ("--time", columns.time)]
        wanted += [("--order-by", name) for name in self._order_by] + [("--types", name) for name in types]
        for option, name in wanted:
            if name and name not in self._names:
                there = ", ".join(self._names)
                raise BadMapping(f"{option}: there is no column {name!r}; the columns are {there}")
        for name in self._order_by:
            # `10` before `9`, or after it: not to be guessed.
            if name not in types and not self._own:
                raise BadMapping(
                    f"--order-by: column {name} has no type; --types {name}:bigint orders it by number, --types "
                    f"{name}:{STRING} by text"
                )

    # ------------------------------------------------------------------ rows
    def map(self, chunk: Chunk, first_row: int) -> MappedRows:
        """Return the messages of some rows, of which the first has this number."""
        messages: list[Record] = []
        keys: list[bytes] | None = [] if self._order_by else None
        make = self._own_message if self._own else self._message
        read, bad = self._read(chunk, first_row)
        times = self._times(read) if self.columns.time else itertools.repeat(0)
        for (number, row, fields), time_ns in zip(read, times, strict=False):
            try:
                if isinstance(time_ns, BadRow):
                    raise time_ns
                message = make(number, row, fields, time_ns)
                if keys is not None:
                    keys.append(b"".join(self._key(number, name, fields) for name in self._order_by))
                messages.append(message)
            except BadRow as error:
                bad.append(error)
        bad.sort(key=lambda each: each.row)
        return MappedRows(messages, bad, len(chunk.rows), keys)

    def times(self, chunk: Chunk) -> list[int]:
        """Return the times of the rows that have one."""
        if not self._lines:  # without a look at the other fields
            at = self._names.index(self.columns.time)
            quick = self._quick_times([row[at] for row in chunk.rows if isinstance(row, list)])
            if quick is not None:
                return quick
        return [each for each in self._times(self._read(chunk, 0)[0]) if isinstance(each, int)]

    def _quick_times(self, texts: Sequence[str | None]) -> list[int] | None:
        """Return times that are all texts of the usual form; None if some are not."""
        if None in texts:
            return None
        # Arrow reads such texts ten times as fast, and refuses all others together.
        with contextlib.suppress(BadMapping, UnicodeEncodeError):
            quick: list[int] = times_ns(pa.array(texts, pa.string()), self.columns.time, "").to_pylist()
            return quick if min(quick, default=1) > 0 else None
        return None

    def _read(self, chunk: Chunk, first_row: int) -> tuple[list[_Read], list[BadRow]]:
        """Return the rows that can be read with their numbers and fields, and the others."""
        read: list[_Read] = []
        bad: list[BadRow] = []
        for number, row in enumerate(chunk.rows, first_row):
            try:
                read.append((number, row, self._fields_of(number, row, chunk.parts)))
            except BadRow as error:
                bad.append(error)
        return read, bad

    def _times(self, read: Sequence[_Read]) -> list[int | BadRow]:
        """Return the time of each row."""
        quick = self._quick_times([self._time_text(fields) for _, _, fields in read])
        if quick is not None:
            return list(quick)
        found: list[int | BadRow] = []
        for number, _, fields in read:
            try:
                found.append(self._time(number, fields))
            except BadRow as error:
                found.append(error)
        return found

    def _time_text(self, fields: Fields) -> str | None:
        """Return a time that is written as text; None for others."""
        value = fields.get(self.columns.time)
        if value is None or isinstance(value, str):
            return value
        raw = bytes(value)
        return raw[1:-1].decode() if raw[:1] == b'"' and b"\\" not in raw else None

    def _fields_of(self, number: int, row: Any, parts: Mapping[str, str]) -> Fields:
        if not self._lines:
            if isinstance(row, str):
                raise BadRow(number, "", row)
            texts = dict(zip(self._names, row, strict=True))
            for name, convert in self._checks:
                self._converted(number, name, convert, texts[name])
            return texts
        if not self._needed:
            _check_json(number, row)
            return {}
        try:
            fields: dict[str, Any] = _fields(row)
            row.decode()  # the decoder does not look into the values
        except DECODE_ERRORS:
            fields = _odd_fields(number, row)
        return {**fields, **{key: msgspec.Raw(_encode(value)) for key, value in parts.items()}} if parts else fields

    def _message(self, number: int, row: Any, fields: Fields, time_ns: int) -> Record:
        columns = self.columns
        if (subject := self._subjects.fixed) is None:
            if self._subjects.places:
                values = [self._spelled(number, place, fields, plain=True) for place in self._subjects.places]
                made = self._subjects.filled(number, values)
            else:
                made = self._subjects.whole(number, self._spelled(number, columns.subject, fields, plain=True))
            if isinstance(made, BadRow):
                raise made
            subject = made
        header = self._header(number, fields) if columns.headers or columns.headers_column else b""
        return Record(number, time_ns, subject, header, self._data(number, row, fields))

    def _spelled(self, number: int, name: str, fields: Fields, *, plain: bool = False) -> str | None:
        """Return a field as text; None for null, an absent field, and an empty one with a type.

        Args:
            plain: refuse objects and arrays.
        """
        value = fields.get(name)
        if value is None or isinstance(value, str):
            return None if value == "" and name in self._types else value
        raw = bytes(value)
        if raw == NULL:
            return None
        if plain and raw[:1] in b"{[":
            raise BadRow(number, name, f"{_shown(raw)} is not a text, number or boolean")
        if raw[:1] != b'"':
            return raw.decode()
        try:
            return _text(raw)
        except DECODE_ERRORS:
            raise BadRow(number, name, f"{_shown(raw)} has half a surrogate pair, which no text has") from None

    # ------------------------------------------------------------------ parts of a message
    def _data(self, number: int, row: Any, fields: Fields) -> bytes:
        data = self.columns.data
        if self._whole_line:
            return bytes(row)
        if self._payload is None:
            return (self._spelled(number, data, fields) or "").encode("utf-8", "surrogateescape")
        if not self._lines:
            return _object([self._member(number, name, fields[name]) for name in self._payload])
        names = [name for name in fields if name not in self._used] if data == JSON else self._payload
        return _object([_encode(name) + b":" + bytes(fields[name]) for name in names if name in fields])

    def _member(self, number: int, name: str, value: str) -> bytes:
        prefix, convert = self._members[name]
        return prefix + self._converted(number, name, convert, value)

    def _converted(self, number: int, name: str, convert: Convert, value: str) -> bytes:
        try:
            return convert(value) if value or name not in self._types else NULL
        except UnicodeEncodeError:
            raise BadRow(number, name, NOT_UTF8) from None
        except ValueError as error:
            raise BadRow(number, name, str(error)) from None

    def _header(self, number: int, fields: Fields) -> bytes:
        column = self.columns.headers_column
        if column:
            text = self._spelled(number, column, fields)
            try:
                pairs = list(_pairs(text).items()) if text else []
            except DECODE_ERRORS:
                raise BadRow(number, column, f"{_shown((text or '').encode())} is not a JSON object") from None
        else:
            pairs = [(header, self._values(number, name, fields)) for header, name in self.columns.headers]
        try:
            block = header_block(number, column, pairs)
        except UnicodeEncodeError:
            raise BadRow(number, column, NOT_UTF8) from None
        if isinstance(block, BadRow):
            raise block
        return block

    def _values(self, number: int, name: str, fields: Fields) -> Any:
        """Return a header's value, or the values of an array."""
        value = fields.get(name)
        if isinstance(value, msgspec.Raw) and bytes(value)[:1] == b"[":
            return [self._spelled(number, name, {name: item}) for item in _items(value)]
        return self._spelled(number, name, fields)

    def _time(self, number: int, fields: Fields) -> int:
        name = self.columns.time
        text = self._spelled(number, name, fields, plain=True)
        if text is None:
            raise BadRow(number, name, NO_TIME)
        is_number = not isinstance(fields[name], str) and bytes(fields[name])[:1] != b'"'
        unit = self.columns.time_unit or ("ns" if is_number or self._own else "")
        time_ns = _time_ns(number, name, text, unit)
        if time_ns <= 0:
            raise BadRow(number, name, BEFORE_1970)
        return time_ns

    def _key(self, number: int, name: str, fields: Fields) -> bytes:
        """Return a sort key: null, then numbers, then texts."""
        text = self._spelled(number, name, fields, plain=True)
        if text is None:
            return b"\0"
        value = fields[name]
        if self._own or name in self._types or not (isinstance(value, str) or bytes(value)[:1] == b'"'):
            if text.lower() in ("true", "false"):
                return b"\1" + text.lower().encode()
            return b"\2" + _number_key(number, name, text)
        # A zero byte ends it, so that a text sorts before those that it begins.
        return b"\3" + text.encode("utf-8", "surrogateescape").replace(b"\0", b"\0\1") + b"\0\0"

    # ------------------------------------------------------------------ exports
    def _own_message(self, number: int, row: Any, fields: Fields, time_ns: int) -> Record:
        """Return the message that was exported as this row."""
        subject = self._binary(number, "subject_bytes", fields)
        if subject is None:
            subject = (self._spelled(number, "subject", fields) or "").encode("utf-8", "surrogateescape")
        if not publishable(subject):
            raise BadRow(number, "subject", f"{subject!r} is not a subject to publish to")
        header = self._binary(number, "header_block", fields)
        if header is None:
            text = self._spelled(number, "headers", fields)
            try:
                header = join_headers(list(_lists(text).items())) if text else b""
            except DECODE_ERRORS as error:
                raise BadRow(number, "headers", f"it is not an object of lists: {error}") from None
        data = self._binary(number, "data", fields) or b""
        return Record(number, time_ns, subject, header, data)

    def _binary(self, number: int, name: str, fields: Fields) -> bytes | None:
        """Return a binary value as the export spelled it; None for null."""
        text = self._spelled(number, name, fields)
        if text is None or (text == "" and name != "data"):
            return None
        try:
            return base64.b64decode(text, validate=True) if self._lines else read_binary(text)
        except ValueError as error:
            raise BadRow(
                number, name, f"it is not base64: {error}; name the columns with --subject and --data"
            ) from None


def _object(members: Sequence[bytes]) -> bytes:
    return b"{" + b",".join(members) + b"}"


def _shown(raw: bytes) -> str:
    return raw[:40].decode("utf-8", "replace")


def _time_ns(number: int, name: str, text: str, unit: str) -> int:
    """Return a time in ns since the epoch. A number needs its unit."""
    if text.lstrip("-").isdecimal():
        if not unit:
            raise BadRow(number, name, f"{text} is a number and no time; say its unit with --time-unit")
        time_ns = int(text[:20]) * TIME_UNITS[unit]
    else:
        try:
            time_ns = instant(text)
        except ValueError as error:
            raise BadRow(number, name, str(error)) from None
    if time_ns > LATEST_NS:
        raise BadRow(number, name, f"{text} is outside of the times that a message can have (1678 to 2261)")
    return time_ns


def _number_key(number: int, name: str, text: str) -> bytes:
    """Return bytes in the order of the numbers: sign, exponent, digits; exact for any number of digits."""
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except ArithmeticError:
        raise BadRow(number, name, f"{text[:40]!r} is not a number") from None
    if not isinstance(exponent, int):
        raise BadRow(number, name, f"{text[:40]!r} is not a number")
    spelled = "".join(map(str, digits)).lstrip("0")
    if not spelled:
        return b"\1"
    magnitude = (2**63 + len(spelled) + exponent).to_bytes(8, "big") + spelled.rstrip("0").encode()
    if sign:
        return b"\0" + bytes(255 - byte for byte in magnitude) + b"\xff"
    return b"\2" + magnitude + b"\0"


# ---------------------------------------------------------------------- JSON that the decoder refuses


def _check_json(number: int, line: bytes) -> None:
    try:
        _any(line)
        line.decode()
    except DECODE_ERRORS:
        _loaded(number, line)


def _odd_fields(number: int, line: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a line that the decoder refuses: some with half a surrogate pair (`\\ud800`) are JSON.

    Raises:
        BadRow: it is no object, or not JSON at all.
    """
    text, value = _loaded(number, line)
    if not isinstance(value, dict):
        raise BadRow(number, "", f"{_shown(line)} is not an object with fields")
    fields: dict[str, msgspec.Raw] = {}
    at = _behind(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _walk(text, at)
        start = _behind(text, _behind(text, at) + 1)  # over the colon
        _, at = _walk(text, start)
        fields[key] = msgspec.Raw(text[start:at].encode())
        at = _behind(text, at)
        at = _behind(text, at + 1) if text[at] == "," else at
    return fields


def _behind(text: str, at: int) -> int:
    """Return the position of the next character that is no white space."""
    while text[at] in " \t\r\n":
        at += 1
    return at


def _loaded(number: int, line: bytes) -> tuple[str, Any]:
    """Return a line and its value. Raises BadRow if it is not JSON."""
    try:
        text = line.decode()
        return text, json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except UnicodeDecodeError:
        raise BadRow(number, "", NOT_UTF8) from None
    except RecursionError:
        raise BadRow(number, "", "it is nested too deeply") from None
    except ValueError as error:
        raise BadRow(
            number,
            "",
            f"{_shown(line)} is not JSON ({error}); each line must be one JSON value, as `jq -c .` writes it",
        ) from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
