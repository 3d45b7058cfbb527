"""Mapping messages to rows of a plain table.

Belongs here: the columns of an export and how a message fills them: its own fields, tokens of its subject, single
headers, and the fields of a JSON payload in the types of a DDL. Nothing is read or written here.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

from lakestream.lake.errors import LakeError
from lakestream.lake.table.ddl import DdlType, parse_columns
from lakestream.lake.table.schema import headers_type, split_headers, subject_text
from lakestream.log.format.record import Record
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_transfer.mapping import OWN, BadMapping

EXACT = OWN[:-1]

_WIDE = Context(prec=76)
"""Twice the digits of the longest decimal: the usual 28 are fewer than a column may have."""
_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


class UnmappableMessage(LakeError):
    """A message that does not fit the requested columns."""

    def __init__(self, seq: int, reason: str) -> None:
        self.seq = seq
        super().__init__(f"message {seq}: {reason}; --skip-bad leaves such messages out and counts them")


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of an export.

    Attributes:
        own: of OWN. tokens: (column, position in the subject from 1). headers: (column, header).
        json_schema: a Spark DDL column list for parsing the payload; "" for none.
    """

    own: tuple[str, ...] = EXACT
    tokens: tuple[tuple[str, int], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    json_schema: str = ""


class Unmapper:
    """Converts messages to record batches.

    Raises:
        BadMapping: an unknown or duplicate column, or an invalid DDL.
    """

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        if unknown := [name for name in fields.own if name not in OWN]:
            raise BadMapping(f"--columns: there is no column {unknown[0]!r}; there are {', '.join(OWN)}")
        self._json = parse_ddl(fields.json_schema) if fields.json_schema else []
        self._convert = [(field.name, _converter(field.type)) for field in self._json]
        named = [(name, _OWN_TYPES[name]()) for name in fields.own]
        named += [(name, pa.string()) for name, _ in (*fields.tokens, *fields.headers)]
        named += [(field.name, field.type) for field in self._json]
        names = [name for name, _ in named]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadMapping(f"two columns would be named {twice[0]!r}")
        self.schema: pa.Schema = pa.schema(named)
        """Schema of the batches."""

    def batch(self, records: Sequence[Record], bad: list[UnmappableMessage]) -> pa.RecordBatch:
        """Return those messages as rows; messages that do not fit are appended to `bad` instead."""
        rows, kept = [], []
        for record in records:
            try:
                rows.append(self._parsed(record))
            except UnmappableMessage as error:
                bad.append(error)
            else:
                kept.append(record)
        columns: list[list[Any]] = [list(map(_OWN_VALUES[name], kept)) for name in self._fields.own]
        if self._fields.tokens:
            subjects = [subject_text(record.subject)[0].split(".") for record in kept]
            for _, position in self._fields.tokens:
                columns.append([tokens[position - 1] if position <= len(tokens) else None for tokens in subjects])
        for _, name in self._fields.headers:
            columns.append([_first(record, name) for record in kept])
        columns += [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in self._json]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _parsed(self, record: Record) -> list[Any]:
        if "text" in self._fields.own:
            try:
                record.data.decode()
            except UnicodeDecodeError:
                raise UnmappableMessage(record.seq, "its payload is not UTF-8, which column text needs") from None
        if not self._convert:
            return []
        try:
            value = _decode(record.data)
        except (*DECODE_ERRORS, InvalidOperation) as error:
            raise UnmappableMessage(record.seq, f"its payload is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise UnmappableMessage(record.seq, "its payload is not a JSON object")
        row = []
        for name, convert in self._convert:
            try:
                row.append(None if (found := value.get(name)) is None else convert(found))
            except (ValueError, TypeError, ArithmeticError) as error:
                raise UnmappableMessage(record.seq, f"field {name}: {error}") from None
        return row


def _own_types() -> dict[str, Callable[[], Any]]:
    return {
        "subject": pa.string,
        "seq": pa.int64,
        "time": lambda: pa.timestamp("us", "UTC"),
        "time_ns": pa.int64,
        "headers": headers_type,
        "data": pa.binary,
        "header_block": pa.binary,
        "subject_bytes": pa.binary,
        "text": pa.string,
    }


class _Lazy(dict[str, Callable[[], Any]]):
    """Types by column; pyarrow is loaded on first use."""

    def __missing__(self, name: str) -> Callable[[], Any]:
        self.update(_own_types())
        return self[name]


_OWN_TYPES = _Lazy()
_OWN_VALUES: dict[str, Callable[[Record], Any]] = {
    "subject": lambda record: subject_text(record.subject)[0],
    "seq": lambda record: record.seq,
    "time": lambda record: record.time_ns // 1000,
    "time_ns": lambda record: record.time_ns,
    "headers": lambda record: split_headers(record.header)[0] if record.header else None,
    "data": lambda record: record.data,
    "header_block": lambda record: split_headers(record.header)[1] if record.header else None,
    "subject_bytes": lambda record: subject_text(record.subject)[1],
    "text": lambda record: record.data.decode(),
}


def _first(record: Record, header: str) -> str | None:
    return next((values[0] for name, values in split_headers(record.header)[0] if name == header), None)


# ---------------------------------------------------------------------- the types of a DDL


def parse_ddl(ddl: str) -> list[pa.Field]:
    """Parse a Spark DDL column list (`price DOUBLE, tags ARRAY<STRING>`) into Arrow fields.

    Raises:
        BadMapping: it does not parse, or has a type that payloads cannot have.
    """
    try:
        columns = parse_columns(ddl)
    except (ValueError, RecursionError):
        columns = ()
    if not columns:
        raise BadMapping(f"--json-schema: {ddl!r} is not a column list; write price DOUBLE, quantity INT")
    return [pa.field(column.name, _arrow(column.type)) for column in columns]


def _arrow(kind: DdlType) -> Any:
    name = kind.name
    simple = {
        "BOOLEAN": pa.bool_(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
        "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
        **{integer: getattr(pa, f"int{bits}")() for integer, bits in _INTEGERS.items()},
    }
    if name in simple:
        return simple[name]
    if name == "DECIMAL":
        return pa.decimal128(*(*kind.numbers, *(10, 0)[len(kind.numbers) :]))
    if name == "ARRAY" and kind.parts:
        return pa.list_(_arrow(kind.parts[0]))
    if name == "MAP" and len(kind.parts) == 2:
        return pa.map_(_arrow(kind.parts[0]), _arrow(kind.parts[1]))
    if name == "STRUCT" and kind.columns:
        return pa.struct([(field.name, _arrow(field.type)) for field in kind.columns])
    raise BadMapping(f"--json-schema: type {name} is not supported")


def _converter(kind: Any) -> Callable[[Any], Any]:
    """Return the conversion of a JSON value that is not null for Arrow. It raises ValueError for one that does not
    fit."""
    types = pa.types
    if types.is_integer(kind):
        return lambda value: _integer(value, kind.bit_width)
    if types.is_floating(kind):
        return lambda value: float(_number(value))
    if types.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if types.is_struct(kind):
        fields = [(kind.field(at).name, _converter(kind.field(at).type)) for at in range(kind.num_fields)]
        return lambda value: {name: _maybe(convert, _object(value).get(name)) for name, convert in fields}
    if types.is_map(kind):
        to_key, to_item = _converter(kind.key_type), _converter(kind.item_type)
        return lambda value: [(to_key(key), _maybe(to_item, item)) for key, item in _object(value).items()]
    if types.is_list(kind):
        each = _converter(kind.value_type)
        return lambda value: [_maybe(each, item) for item in _list(value)]
    if types.is_timestamp(kind):
        return lambda value: _moment(value, zoned=kind.tz is not None)
    if types.is_date(kind):
        return lambda value: datetime.date.fromisoformat(_text(value))
    if types.is_binary(kind):
        return lambda value: base64.b64decode(_text(value), validate=True)
    return _boolean if types.is_boolean(kind) else _spelled


def _maybe(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _refusal(value: Any, wanted: str) -> ValueError:
    return ValueError(f"{_encode(value).decode()[:60]} is not {wanted}")


def _integer(value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or value != int(value):
        raise _refusal(value, "a whole number")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise _refusal(value, f"within {bits} bits")
    return int(value)


def _number(value: Any) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _refusal(value, "a number")
    return value


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    number = Decimal(value) if isinstance(value, str) else Decimal(_number(value))
    exact = number.quantize(Decimal(1).scaleb(-scale), context=_WIDE)
    if exact != number or len(exact.as_tuple().digits) > precision:
        raise _refusal(value, f"a decimal({precision},{scale})")
    return exact


def _moment(value: Any, zoned: bool) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(_text(value))
    if zoned:
        return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return moment.replace(tzinfo=None)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refusal(value, "true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _refusal(value, "a text")
    return value


def _spelled(value: Any) -> str:
    """Return any value as text: other JSON values in their spelling, as Spark's from_json does."""
    return value if isinstance(value, str) else _encode(value).decode()


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refusal(value, "an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _refusal(value, "an array")
    return value
