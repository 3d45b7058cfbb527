"""Types of Postgres: oids, values of results as text and binary, and values of parameters.

Belongs here: which type of Postgres a type of DuckDB is, and both forms of its values. DuckDB's types come by name,
their values in Arrow. What Postgres has no type for is JSON: structs, maps, lists in lists.

Source: PostgreSQL's documentation, "Data Types"; src/include/catalog/pg_type.dat for oids and sizes; the send and
receive functions of src/backend/utils/adt for binary forms.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream_postgres.wire import Field

TEXT_FORM = 0
BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, JSON = 16, 17, 20, 21, 23, 25, 26, 114
FLOAT4, FLOAT8, UNKNOWN, DATE, TIME, TIMESTAMP, TIMESTAMPTZ = 700, 701, 705, 1082, 1083, 1114, 1184
INTERVAL, NUMERIC, UUID = 1186, 1700, 2950
TEXTS = frozenset({0, 18, 19, UNKNOWN, 1042, 1043, 2205, 2206})
"""Types whose values are texts that SQL converts where they are used."""
_NULL_LENGTH = struct.pack(">i", -1)


class PgType(msgspec.Struct, frozen=True):
    """A type: its name in SQL and in pg_type, the size of its values (-1: they differ), the oid of its arrays, and its
    name in DuckDB."""

    name: str
    internal: str
    size: int
    array: int
    duckdb: str


TYPES = {
    BOOL: PgType("boolean", "bool", 1, 1000, "BOOLEAN"),
    BYTEA: PgType("bytea", "bytea", -1, 1001, "BLOB"),
    INT8: PgType("bigint", "int8", 8, 1016, "BIGINT"),
    INT2: PgType("smallint", "int2", 2, 1005, "SMALLINT"),
    INT4: PgType("integer", "int4", 4, 1007, "INTEGER"),
    TEXT: PgType("text", "text", -1, 1009, "VARCHAR"),
    OID: PgType("oid", "oid", 4, 1028, "BIGINT"),
    JSON: PgType("json", "json", -1, 199, "JSON"),
    FLOAT4: PgType("real", "float4", 4, 1021, "FLOAT"),
    FLOAT8: PgType("double precision", "float8", 8, 1022, "DOUBLE"),
    DATE: PgType("date", "date", 4, 1182, "DATE"),
    TIME: PgType("time without time zone", "time", 8, 1183, "TIME"),
    TIMESTAMP: PgType("timestamp without time zone", "timestamp", 8, 1115, "TIMESTAMP"),
    TIMESTAMPTZ: PgType("timestamp with time zone", "timestamptz", 8, 1185, "TIMESTAMPTZ"),
    INTERVAL: PgType("interval", "interval", 16, 1187, "INTERVAL"),
    NUMERIC: PgType("numeric", "numeric", -1, 1231, "DECIMAL"),
    UUID: PgType("uuid", "uuid", 16, 2951, "UUID"),
    3802: PgType("jsonb", "jsonb", -1, 3807, "JSON"),
    1042: PgType("character", "bpchar", -1, 1014, "VARCHAR"),
    1043: PgType("character varying", "varchar", -1, 1015, "VARCHAR"),
    18: PgType('"char"', "char", 1, 1002, "VARCHAR"),
    19: PgType("name", "name", 64, 1003, "VARCHAR"),
    2205: PgType("regclass", "regclass", 4, 2210, "VARCHAR"),
    2206: PgType("regtype", "regtype", 4, 2211, "VARCHAR"),
    UNKNOWN: PgType("unknown", "unknown", -2, 0, "VARCHAR"),
}
ELEMENTS = {each.array: oid for oid, each in TYPES.items() if each.array}
"""Oids of the elements of arrays."""
_OF_DUCKDB = {
    **{each.duckdb: oid for oid, each in reversed(TYPES.items()) if oid not in (OID, 18, 19, UNKNOWN)},
    "TINYINT": INT2,
    "UTINYINT": INT2,
    "USMALLINT": INT4,
    "UINTEGER": INT8,
    **dict.fromkeys(("UBIGINT", "HUGEINT", "UHUGEINT", "BIGNUM"), NUMERIC),
    **dict.fromkeys(("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), TIMESTAMP),
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ,
    "TIME WITH TIME ZONE": TIME,
    "BIT": BYTEA,
    "VARCHAR": TEXT,
    "BIGINT": INT8,
    "JSON": JSON,
}


class BadValue(ValueError):
    """Raised for the value of a parameter that is not of its type."""


def oid_of(kind: str) -> int:
    """Return the oid for the name of a type of DuckDB."""
    if match := re.fullmatch(r"(.*)\[\d*\]", kind, re.DOTALL):
        element = oid_of(match[1])
        return JSON if element in ELEMENTS or element == JSON else TYPES[element].array
    if kind.startswith(("STRUCT(", "MAP(", "UNION(")):
        return JSON
    return _OF_DUCKDB.get(kind.partition("(")[0], TEXT)


def field_of(name: str, kind: str) -> Field:
    """Return the column of a result, by the name of its type in DuckDB."""
    oid = oid_of(kind)
    decimal = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", kind)
    modifier = (int(decimal[1]) << 16 | int(decimal[2])) + 4 if decimal else -1
    return Field(name, oid, TYPES[oid].size if oid in TYPES else -1, modifier)


def duckdb_type(oid: int, value: str | None = None) -> str:
    """Return the type of DuckDB to which the text of a parameter is cast; "" for none."""
    if oid in ELEMENTS:
        return f"{duckdb_type(ELEMENTS[oid]) or 'VARCHAR'}[]"
    if oid in TEXTS or oid not in TYPES:
        return ""
    if oid != NUMERIC:
        return TYPES[oid].duckdb
    found = re.fullmatch(r"-?\d*(?:\.(\d*))?", value if value is not None else "0.000")
    return f"DECIMAL(38, {min(len(found[1] or ''), 38)})" if found else "DOUBLE"


# ---------------------------------------------------------------------- values of results

_DAYS, _MICROS = 10_957, 946_684_800_000_000
"""From 1970 to 2000, which is Postgres' epoch: days, and µs."""
_INFINITY = (1 << 63) - 1
_MICROS_OF = {"s": 1_000_000, "ms": 1000, "us": 1}


def encode(column: Any, oid: int, form: int) -> list[bytes | None]:
    """Return the values of a column of Arrow as text or binary."""
    if oid in ELEMENTS:
        inner = ELEMENTS[oid]
        each = _encoder(inner, form)
        lists = _values(column)
        if form:
            return [None if items is None else _array_binary(items, inner, each) for items in lists]
        return [None if items is None else _array_text(items, each) for items in lists]
    each = _encoder(oid, form)
    if oid == JSON and pa.types.is_nested(column.type):
        return [None if value is None else _json(value) for value in column.to_pylist(maps_as_pydicts="lossy")]
    return [None if value is None else each(value) for value in _values(column)]


def _values(column: Any) -> list[Any]:
    """Return the values of a column; times and dates as numbers since 1970."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _values(column.storage)
    if pa.types.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        factor = _MICROS_OF.get(kind.unit)
        numbers = column.cast(pa.int64()).to_pylist()
        if factor is None:
            return [None if each is None else _scaled(each) for each in numbers]
        return [each if each is None or abs(each) == _INFINITY else each * factor for each in numbers]
    if pa.types.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_time64(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths, items = pc.list_value_length(column).to_pylist(), iter(_values(column.flatten()))
        return [None if each is None else list(itertools.islice(items, each)) for each in lengths]
    return list(column.to_pylist())


def _scaled(ns: int) -> int:
    return ns if abs(ns) == _INFINITY else ns // 1000


def _encoder(oid: int, form: int) -> Callable[[Any], bytes]:
    return (_BINARY if form else _TEXT).get(oid, _as_text)


def _as_text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def _float_text(value: float) -> bytes:
    if not math.isfinite(value):
        return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"
    return repr(value).removesuffix(".0").encode()


def _moment(micros: int) -> str:
    if abs(micros) == _INFINITY:
        return "infinity" if micros > 0 else "-infinity"
    found = str(np.datetime64(micros, "us")).replace("T", " ")
    whole, _, fraction = found.partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def _zoned_text(micros: int) -> bytes:
    found = _moment(micros)
    return (found if found.endswith("infinity") else f"{found}+00").encode()


def _date_text(days: int) -> bytes:
    if abs(days) == (1 << 31) - 1:
        return b"infinity" if days > 0 else b"-infinity"
    return str(np.datetime64(days, "D")).encode()


def _time_text(micros: int) -> bytes:
    return _clock(micros).encode()


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def _interval_text(value: Any) -> bytes:
    years, months = int(value.months / 12), int(math.fmod(value.months, 12))
    parts = [f"{count} {name}{'s' * (abs(count) != 1)}" for count, name in
             ((years, "year"), (months, "mon"), (value.days, "day")) if count]  # fmt: skip
    if (micros := int(value.nanoseconds / 1000)) or not parts:
        parts.append(f"{'-' * (micros < 0)}{_clock(abs(micros))}")
    return " ".join(parts).encode()


_NESTED = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def _json(value: Any) -> bytes:
    """Return a nested value as the text of JSON; numbers that JSON has not are null."""
    return _NESTED.encode(value)


def _array_text(items: list[Any], encoder: Callable[[Any], bytes]) -> bytes:
    parts = []
    for item in items:
        text = b"NULL" if item is None else encoder(item)
        if item is not None and (not text or _QUOTED.search(text) or text.upper() == b"NULL"):
            text = b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
        parts.append(text)
    return b"{" + b",".join(parts) + b"}"


_QUOTED = re.compile(rb'[{}",\\\s]')


def _array_binary(items: list[Any], oid: int, encoder: Callable[[Any], bytes]) -> bytes:
    head = struct.pack(">iiI", bool(items), None in items, oid) + (struct.pack(">ii", len(items), 1) if items else b"")
    values = (None if item is None else encoder(item) for item in items)
    return head + b"".join(_NULL_LENGTH if each is None else struct.pack(">i", len(each)) + each for each in values)


def _date_binary(days: int) -> bytes:
    return struct.pack(">i", days if abs(days) == (1 << 31) - 1 else days - _DAYS)


def _moment_binary(micros: int) -> bytes:
    if abs(micros) == _INFINITY:
        return struct.pack(">q", micros if micros > 0 else -_INFINITY - 1)
    return struct.pack(">q", micros - _MICROS)


_POSITIVE, _NEGATIVE, _NAN = 0, 0x4000, 0xC000


def _numeric_binary(value: Any) -> bytes:
    found = Decimal(value)
    if not found.is_finite():
        return struct.pack(">hhHh", 0, 0, _NAN, 0)
    sign, digits, exponent = found.as_tuple()
    scale = max(-int(exponent), 0)
    whole = int("".join(map(str, digits))) * 10 ** (max(int(exponent), 0) + -scale % 4)
    groups = []
    while whole:
        whole, group = divmod(whole, 10_000)
        groups.append(group)
    weight = len(groups) - 1 - -(-scale // 4)
    while groups and not groups[0]:
        groups.pop(0)
    head = struct.pack(">hhHh", len(groups), weight if groups else 0, _NEGATIVE if sign else _POSITIVE, scale)
    return head + struct.pack(f">{len(groups)}H", *reversed(groups))


def _interval_binary(value: Any) -> bytes:
    return struct.pack(">qii", int(value.nanoseconds / 1000), value.days, value.months)


def _packer(form: str) -> Callable[[Any], bytes]:
    return struct.Struct(form).pack


_TEXT: dict[int, Callable[[Any], bytes]] = {
    BOOL: lambda value: b"t" if value else b"f",
    BYTEA: lambda value: b"\\x" + bytes(value).hex().encode(),
    FLOAT4: lambda value: _float_text(float(str(np.float32(value)))),
    FLOAT8: _float_text,
    NUMERIC: lambda value: (format(value, "f") if isinstance(value, Decimal) else str(value)).encode(),
    DATE: _date_text,
    TIME: _time_text,
    TIMESTAMP: lambda value: _moment(value).encode(),
    TIMESTAMPTZ: _zoned_text,
    INTERVAL: _interval_text,
}  # fmt: skip
_BINARY: dict[int, Callable[[Any], bytes]] = {
    BOOL: _packer(">?"),
    BYTEA: bytes,
    INT2: _packer(">h"),
    INT4: _packer(">i"),
    INT8: _packer(">q"),
    OID: _packer(">I"),
    FLOAT4: _packer(">f"),
    FLOAT8: _packer(">d"),
    NUMERIC: _numeric_binary,
    DATE: _date_binary,
    TIME: _packer(">q"),
    TIMESTAMP: _moment_binary,
    TIMESTAMPTZ: _moment_binary,
    INTERVAL: _interval_binary,
    UUID: lambda value: uuid.UUID(str(value)).bytes,
}

# ---------------------------------------------------------------------- values of parameters


def decode(value: bytes | None, oid: int, form: int) -> str | None:
    """Return the value of a parameter as a text that DuckDB casts to its type. Raises BadValue."""
    if value is None:
        return None
    try:
        if oid in ELEMENTS:
            inner = ELEMENTS[oid]
            items = _array_of_binary(value, inner) if form else _array_of_text(value.decode(), inner)
            return _list(items)
        text = _decoder(oid)(value) if form else value.decode()
        if "\0" in text:
            raise ValueError
        return _blob(bytes.fromhex(text[2:])) if oid == BYTEA and not form and text.startswith("\\x") else text
    except (ValueError, struct.error, OverflowError, IndexError, ArithmeticError):
        name = TYPES[oid].name if oid in TYPES else f"type {oid}"
        raise BadValue(f"a parameter is not a valid value of {name}") from None


def _decoder(oid: int) -> Callable[[bytes], str]:
    return _DECODERS.get(oid, bytes.decode)


def _unpacker(form: str) -> Callable[[bytes], str]:
    kind = struct.Struct(form)
    return lambda value: str(kind.unpack(value)[0])


def _moment_of(value: bytes) -> str:
    (micros,) = struct.unpack(">q", value)
    if abs(micros) >= _INFINITY:
        return "infinity" if micros > 0 else "-infinity"
    return (datetime(2000, 1, 1) + timedelta(microseconds=micros)).isoformat(" ")


def _date_of(value: bytes) -> str:
    (days,) = struct.unpack(">i", value)
    return (date(2000, 1, 1) + timedelta(days=days)).isoformat()


def _numeric_of(value: bytes) -> str:
    count, weight, sign, scale = struct.unpack_from(">hhHh", value)
    groups = struct.unpack_from(f">{count}H", value, 8)
    if sign not in (_POSITIVE, _NEGATIVE):
        return "NaN" if sign == _NAN else "Infinity" if sign == 0xD000 else "-Infinity"
    if len(value) != 8 + 2 * count or not 0 <= scale <= 1000 or abs(weight) > 1000:
        raise ValueError
    whole = 0
    for group in groups:
        whole = whole * 10_000 + group
    shift = 4 * (weight + 1 - count) + scale
    whole = whole * 10**shift if shift >= 0 else whole // 10**-shift
    digits = str(whole).rjust(scale + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{text}" if sign else text


def _interval_of(value: bytes) -> str:
    micros, days, months = struct.unpack(">qii", value)
    return f"{months} months {days} days {micros} microseconds"


def _blob(value: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in value)


_DECODERS: dict[int, Callable[[bytes], str]] = {
    BOOL: lambda value: "true" if struct.unpack(">?", value)[0] else "false",
    BYTEA: _blob,
    INT2: _unpacker(">h"),
    INT4: _unpacker(">i"),
    INT8: _unpacker(">q"),
    OID: _unpacker(">I"),
    FLOAT4: _unpacker(">f"),
    FLOAT8: _unpacker(">d"),
    NUMERIC: _numeric_of,
    DATE: _date_of,
    TIME: lambda value: _clock(struct.unpack(">q", value)[0]),
    TIMESTAMP: _moment_of,
    TIMESTAMPTZ: lambda value: f"{_moment_of(value)}+00",
    INTERVAL: _interval_of,
    UUID: lambda value: str(uuid.UUID(bytes=value)),
    3802: lambda value: value[1:].decode(),
}


def _array_of_binary(value: bytes, oid: int) -> list[str | None]:
    dimensions, _, kind = struct.unpack_from(">iiI", value)
    if dimensions == 0:
        return []
    if dimensions != 1 or kind != oid:
        raise ValueError
    count, at = struct.unpack_from(">i", value, 12)[0], 20
    items: list[str | None] = []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", value, at)
        at += 4
        if size < -1 or at + size > len(value):
            raise ValueError
        items.append(None if size == -1 else _decoder(oid)(value[at : at + size]))
        at += max(size, 0)
    return items


_ITEM = re.compile(
    r'\s*(?:"((?:[^"\\]|\\.)*)"|([^",{}\\\s](?:[^",{}\\]*[^",{}\\\s])?))\s*(,|\}$)', re.DOTALL | re.ASCII
)


def _array_of_text(text: str, oid: int) -> list[str | None]:
    if text.strip() == "{}":
        return []
    if not text.startswith("{"):
        raise ValueError
    found = list(_items(text))
    return [None if each is None else decode(each.encode(), oid, TEXT_FORM) for each in found]


def _items(text: str) -> Iterator[str | None]:
    at, end = 1, ","
    while end == ",":
        if (match := _ITEM.match(text, at)) is None:
            raise ValueError
        quoted, plain, end = match.groups()
        yield (
            re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
            if plain is None
            else (None if plain.upper() == "NULL" else plain)
        )
        at = match.end()


def _list(items: list[str | None]) -> str:
    """Return a list as DuckDB casts it from a text."""
    quoted = ("NULL" if each is None else '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in items)
    return f"[{', '.join(quoted)}]"
