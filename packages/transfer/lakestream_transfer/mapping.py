"""Mapping rows of any table to messages.

Belongs here: the columns that become subject, payload, headers and time, and the values that they may have. Nothing is
read or sent here. unmapping.py has the other direction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.errors import LakeError
from lakestream.lake.table.schema import join_headers
from lakestream.log.format.record import Record
from lakestream.protocol.subjects import publishable

JSON = "json"
"""Option of an import: the payload is the JSON of columns."""
OWN = ("subject", "seq", "time", "time_ns", "headers", "data", "header_block", "subject_bytes", "text")
"""Columns of every message. `text`: the payload as UTF-8. All but `text` together give every message back."""
FIXED = "="
NO_TIME = "there is no time"
BEFORE_1970 = "its time is before 1970"
TIME_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MOST_TEXTS = 100_000
"""Maximum number of subject tokens cached as checked."""

_PLACE = re.compile(r"\{([^{}]+)\}")
_BAD_CHARACTERS = re.compile(r"[\x00-\x20\x7f.*>]")
_BAD_IN_SUBJECT = re.compile(r"[\x00-\x20\x7f]")
_BAD_NAME = re.compile(r"[^\x21-\x39\x3b-\x7e]")
_OWN_COLUMNS = ("subject", "seq", "time_ns", "data")
encode_json = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
"""Encode a value of a row as JSON: decimals as numbers with all their digits, binary as base64, NaN as null."""


class BadMapping(LakeError):
    """Raised when columns and options do not fit together; known before any row is read."""


class BadRow(LakeError):
    """A row that cannot be a message. Names row and column."""

    def __init__(self, row: int, column: str, reason: str) -> None:
        self.row, self.column = row, column
        where = f"row {row}, column {column}" if column else f"row {row}"
        super().__init__(f"{where}: {reason}")


class MappingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Mapping options.

    Attributes:
        subject: a template (`orders.{country}.{id}`), the name of a column that holds whole subjects, or `=` and one
            subject for all.
        data: a column, `json` (the columns without another use), `json:*` (all) or `json:a,b`; "": `json`, and of JSON
            lines the line.
        headers: (header, column) pairs; `headers_column`: a column of maps instead, from name to value or values.
        time: the column of the message's time; none: the time of the import. `time_unit`: of a whole number in it;
            "": ns, but not of a number in text.
        replacement: replaces characters that a subject token may not have; "" rejects the row.
    """

    subject: str
    data: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    headers_column: str = ""
    time: str = ""
    time_unit: str = ""
    replacement: str = ""


class MappedRows(msgspec.Struct):
    """Result of some rows: messages, whose `seq` is the row's number from 1, and the rows that cannot be messages.

    Attributes:
        rows: number of rows. keys: sort keys of the messages; None: they are in order.
    """

    messages: list[Record]
    bad: list[BadRow]
    rows: int = 0
    keys: list[bytes] | None = None


def payload_columns(columns: MappingOptions, subjects: Subjects, names: Sequence[str]) -> list[str] | None:
    """Return the columns of a JSON payload; None when one column is the payload."""
    data = columns.data or JSON
    if data == JSON:
        used = {columns.time, columns.headers_column, *(column for _, column in columns.headers), *subjects.columns}
        return [name for name in names if name not in used]
    if data == f"{JSON}:*":
        return list(names)
    return data.partition(":")[2].split(",") if data.startswith(f"{JSON}:") else None


def check_header_names(columns: MappingOptions) -> None:
    """Raise BadMapping for a name that no header can have."""
    for name, _ in columns.headers:
        if not name or _BAD_NAME.search(name):
            raise BadMapping(f"--header: {name!r} cannot be a header's name")


def is_own(names: Sequence[str]) -> bool:
    """Return True if a table with these columns is a stream's table, or an export of all columns."""
    return all(name in names for name in _OWN_COLUMNS)


def subjects_of(template: str) -> list[str]:
    """Return the subjects that a stream needs for a template; none when the template does not tell."""
    if template.startswith(FIXED):
        return [template[len(FIXED) :]]
    if _PLACE.search(template) is None:
        return []
    return [".".join("*" if _PLACE.search(token) else token for token in template.split("."))]


class Subjects:
    """Makes subjects: of a template, of a column that holds them, or one for all.

    Args:
        subject, replacement: as in Columns.

    Raises:
        BadMapping: it makes no subjects.
    """

    def __init__(self, subject: str, replacement: str) -> None:
        self._column, self._replacement = subject, replacement
        self.fixed: bytes | None = subject.removeprefix(FIXED).encode() if subject.startswith(FIXED) else None
        """The subject of all messages."""
        self.places: list[str] = [] if self.fixed is not None else _PLACE.findall(subject)
        """Columns of a template; none: `subject` is a column."""
        self._literals = _PLACE.split(subject)[::2]
        self._texts: dict[Any, str] = {}
        if self.fixed is not None and not publishable(self.fixed):
            raise BadMapping(f"--subject: {subject.removeprefix(FIXED)!r} is not a subject to publish to")
        if self.places and not publishable(_PLACE.sub("x", subject).encode()):
            raise BadMapping(f"--subject: {subject!r} makes empty tokens: write tokens separated by single dots")

    @property
    def columns(self) -> list[str]:
        """Return the columns that subjects are made of."""
        return [] if self.fixed is not None else self.places or [self._column]

    def whole(self, row: int, value: str | bytes | None) -> bytes | BadRow:
        """Return the subject that a column holds."""
        replacement = self._replacement
        if replacement and isinstance(value, str):
            value = ".".join(_BAD_IN_SUBJECT.sub(replacement, token) or replacement for token in value.split("."))
        subject = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        if subject is None or not publishable(subject):
            return BadRow(row, self._column, f"{value!r} is not a subject to publish to")
        return subject

    def filled(self, row: int, values: Sequence[Any]) -> bytes | BadRow:
        """Return the template with the values of its columns."""
        parts = [self._literals[0]]
        for place, literal, value in zip(self.places, self._literals[1:], values, strict=True):
            text = self._texts.get((type(value), value))
            if text is None:
                text = self._token(value)
                if not text:
                    shown = "NULL" if value is None else repr(value)
                    return BadRow(row, place, f"{shown} cannot be a subject token (--replace '_' mends such values)")
                if len(self._texts) < MOST_TEXTS:
                    self._texts[type(value), value] = text
            parts += (text, literal)
        return "".join(parts).encode("utf-8", "surrogateescape")

    def _token(self, value: Any) -> str:
        """Return a value as a subject token; "" when it cannot be one."""
        replacement = self._replacement
        if value is None:
            return replacement
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if replacement:
            return _BAD_CHARACTERS.sub(replacement, text) or replacement
        return "" if _BAD_CHARACTERS.search(text) else text


class Mapper:
    """Converts record batches to messages.

    Args:
        columns: the mapping; None for a table that `is_own`: every message as it was.
        schema: the batches' schema.

    Raises:
        BadMapping: a column is missing, or of an unsuitable type.
    """

    def __init__(self, columns: MappingOptions | None, schema: pa.Schema) -> None:
        self._schema = schema
        self._own = columns is None
        self.columns = columns or MappingOptions(subject="subject", data="data", time="time_ns")
        self.sorts = False  # the source does
        self._made = Subjects(self.columns.subject, self.columns.replacement)
        if not self._own:
            self._check_subject()
        self._payload = self._data_columns()
        check_header_names(self.columns)
        for _, column in self.columns.headers:
            self._known(column, "--header")
        if self.columns.headers_column:
            import pyarrow as pa

            kind = self._known(self.columns.headers_column, "--headers")
            if not pa.types.is_map(kind):
                raise BadMapping(f"--headers: column {self.columns.headers_column} is {kind}, not a map")
        if self.columns.time:
            self._check_time()

    # ------------------------------------------------------------------ queries
    def _known(self, column: str, option: str) -> Any:
        if column not in self._schema.names:
            there = ", ".join(self._schema.names)
            raise BadMapping(f"{option}: there is no column {column!r}; the columns are {there}")
        return self._schema.field(column).type

    def _check_subject(self) -> None:
        template = self.columns.subject
        for place in self._made.places:
            kind = self._known(place, "--subject")
            if pa.types.is_nested(kind):
                raise BadMapping(f"--subject: column {place} is {kind}, which cannot be a token")
        if self._made.columns == [template]:
            kind = self._known(template, "--subject (without braces it names a column)")
            if not _is_text(kind) and not _is_binary(kind):
                raise BadMapping(f"--subject: column {template} is {kind}, not text; write {{{template}}} for a token")

    def _data_columns(self) -> list[str] | None:
        """Return the columns of a JSON payload; None when one column is the payload."""
        chosen = payload_columns(self.columns, self._made, self._schema.names)
        for column in [self.columns.data] if chosen is None else chosen:
            self._known(column, "--data")
        return chosen

    def _check_time(self) -> None:
        kind = self._known(self.columns.time, "--time")
        types = pa.types
        if not (types.is_timestamp(kind) or types.is_date(kind) or types.is_integer(kind) or _is_text(kind)):
            raise BadMapping(f"--time: column {self.columns.time} is {kind}, not a timestamp, date, number or text")

    # ------------------------------------------------------------------ rows
    def map(self, batch: pa.RecordBatch, first_row: int) -> MappedRows:
        """Return the messages of a batch whose first row has this number."""
        bad: list[BadRow] = []

        subjects = self._subjects(batch, first_row)
        headers, payloads, times = self._headers(batch, first_row), self._payloads(batch), self._times(batch, first_row)
        messages = []
        for row, (subject, header, data, time_ns) in enumerate(
            zip(subjects, headers, payloads, times, strict=True), first_row
        ):
            wrong = next((part for part in (subject, header, data, time_ns) if isinstance(part, BadRow)), None)
            if wrong is not None:
                bad.append(wrong)
            else:
                messages.append(Record(row, time_ns, subject, header, data))
        return MappedRows(messages, bad, batch.num_rows)

    def times(self, batch: pa.RecordBatch) -> list[int]:
        """Return the times of the rows that have one, in ns."""
        found: list[int] = self._column_of_times(batch).drop_null().to_pylist()
        return found

    def _column_of_times(self, batch: pa.RecordBatch) -> Any:
        return times_ns(batch.column(self.columns.time), self.columns.time, self.columns.time_unit)

    def _times(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Any]:
        name = self.columns.time
        if not name:
            yield from (0 for _ in range(batch.num_rows))
            return
        for row, value in enumerate(self._column_of_times(batch).to_pylist(), first_row):
            if value is None or value <= 0:
                yield BadRow(row, name, NO_TIME if value is None else BEFORE_1970)
            else:
                yield value

    def _subjects(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Any]:
        template = self.columns.subject
        if self._made.fixed is not None:
            yield from (self._made.fixed for _ in range(batch.num_rows))
        elif not self._made.places:
            raw = batch.column("subject_bytes").to_pylist() if self._own and self._has("subject_bytes") else None
            for at, value in enumerate(batch.column(template).to_pylist()):
                exact = raw[at] if raw is not None else None
                yield self._made.whole(first_row + at, value if exact is None else exact)
        else:
            columns = [batch.column(place).to_pylist() for place in self._made.places]
            for row, values in enumerate(zip(*columns, strict=True), first_row):
                yield self._made.filled(row, values)

    def _has(self, column: str) -> bool:
        return column in self._schema.names

    def _headers(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Any]:
        if self._own:
            yield from self._own_headers(batch)
            return
        names = [name for name, _ in self.columns.headers]
        columns = [batch.column(column).to_pylist() for _, column in self.columns.headers]
        if self.columns.headers_column:
            maps = batch.column(self.columns.headers_column).to_pylist()
            for row, pairs in enumerate(maps, first_row):
                yield header_block(row, self.columns.headers_column, pairs or [])
        elif not columns:
            yield from (b"" for _ in range(batch.num_rows))
        else:
            for row, values in enumerate(zip(*columns, strict=True), first_row):
                yield header_block(row, "", list(zip(names, values, strict=True)))

    def _own_headers(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        nothing = [None] * batch.num_rows
        maps = batch.column("headers").to_pylist() if self._has("headers") else nothing
        blocks = batch.column("header_block").to_pylist() if self._has("header_block") else nothing
        for pairs, block in zip(maps, blocks, strict=True):
            yield block if block is not None else b"" if pairs is None else join_headers(pairs)

    def _payloads(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        if self._payload == []:
            yield from (b"{}" for _ in range(batch.num_rows))
            return
        if self._payload is not None:
            yield from map(encode_json, plain_rows(batch.select(self._payload)))
            return
        column = batch.column(self.columns.data)
        if _is_binary(column.type):
            yield from (value or b"" for value in column.to_pylist())
        elif _is_text(column.type):
            yield from (value.encode() if value else b"" for value in column.to_pylist())
        else:
            for values in plain_rows(batch.select([self.columns.data])):
                value = values[self.columns.data]
                yield b"" if value is None else encode_json(value)


def header_block(row: int, column: str, pairs: Sequence[tuple[str, Any]]) -> bytes | BadRow:
    """Return a header block of (name, value or values); b"" when nothing is left."""
    lines: list[tuple[str, list[str]]] = []
    for name, value in pairs:
        values = [_header_text(item) for item in (value if isinstance(value, list) else [value]) if item is not None]
        if _BAD_NAME.search(name) or not name:
            return BadRow(row, column or name, f"{name!r} cannot be a header's name")
        if any("\r" in text or "\n" in text for text in values):
            return BadRow(row, column or name, f"the value of header {name} has a line break")
        if values:
            lines.append((name, values))
    return join_headers(lines) if lines else b""


def _header_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    encoded = encode_json(value).decode()
    return encoded.strip('"')


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as Python values: timestamps as RFC 3339 text with all their digits, maps as objects."""
    batch = _spelled(batch)
    options = {"maps_as_pydicts": "lossy"} if any(_has_map(field.type) for field in batch.schema) else {}
    rows: list[dict[str, Any]] = batch.to_pylist(**options)
    return rows


def _has_map(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(at).type) for at in range(kind.num_fields)) if pa.types.is_nested(kind) else False


def _spelled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert timestamps to RFC 3339 text: Python's own have no nanoseconds."""
    arrays, fields = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            column = _instants(column)
            field = pa.field(field.name, pa.string())
        arrays.append(column)
        fields.append(field)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _instants(column: pa.Array) -> pa.Array:
    naive = column.cast(pa.timestamp(column.type.unit))
    return pc.strftime(naive, format="%Y-%m-%dT%H:%M:%SZ" if column.type.tz else "%Y-%m-%dT%H:%M:%S")


def times_ns(column: pa.Array, name: str, unit: str) -> pa.Array:
    """Return a column of times as int64 ns since 1970 (UTC without a zone).

    Raises:
        BadMapping: a text is no time, or a time is outside what 64 bits of ns hold.
    """
    kind = column.type
    try:
        if pa.types.is_integer(kind):
            return pc.multiply_checked(column.cast(pa.int64()), pa.scalar(TIME_UNITS[unit or "ns"], pa.int64()))
        if _is_text(kind):
            column = _parsed(column)
        elif pa.types.is_date(kind):
            column = column.cast(pa.timestamp("ms"))
        return column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise BadMapping(f"--time: column {name}: {error}") from None


def _parsed(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.timestamp("ns", "UTC"))  # wants a zone on each
    except pa.ArrowInvalid:
        return column.cast(pa.timestamp("ns"))


def _is_text(kind: Any) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )
