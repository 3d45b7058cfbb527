"""Conversion of one JSON value to what its column takes.

Belongs here: the exact and slow way, which names field and rule. The fast way is msgspec with the types of shapes.py;
it is asked first, and decides only that a payload fits.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.schemas import scalars
from lakestream.schemas.columns import List, Map, RecordType
from lakestream.schemas.errors import Unfit, within
from lakestream_schemas.json_schema.shapes import Shape, decimal_text, is_instant

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_NUMBER = msgspec.json.Decoder(float)
_DECODERS: dict[str, Any] = {
    "string": _STRING,
    "boolean": msgspec.json.Decoder(bool),
    "date": msgspec.json.Decoder(date),
    "instant": msgspec.json.Decoder(datetime),
}
_DIGITS = 40
"""Maximum magnitude, in decimal digits, of an integer that is looked at; above, it is out of every range."""


def convert(raw: bytes, shape: Shape, field: str = "") -> Any:
    """Return the value of a JSON text that the schema allows, in the form of the fast way.

    Raises:
        Unfit: the column cannot hold it.
    """
    of = shape.type
    if raw == b"null" and shape.python is not msgspec.Raw:
        if shape.nullable:
            return None
        raise Unfit(field, "type", "null is not allowed")
    try:
        if isinstance(of, RecordType):
            return _record(raw, shape, of, field)
        if isinstance(of, List):
            parts = _ARRAY.decode(raw)
            return [convert(bytes(part), shape.fields[0], within(field, at)) for at, part in enumerate(parts)]
        if isinstance(of, Map):
            named = _OBJECT.decode(raw).items()
            return {name: convert(bytes(part), shape.fields[0], within(field, name)) for name, part in named}
        if of.kind == "json":
            return msgspec.Raw(raw)
        if of.kind == "integer":
            return _integer(raw, field, scalars.INT64_MIN, scalars.INT64_MAX)
        if of.kind == "number":
            return _number(raw, field)
        if of.kind == "decimal" and shape.of_numbers:
            return _integer(raw, field, 0, scalars.UINT64_MAX)
        if of.kind == "decimal":
            text: str = _STRING.decode(raw)
            if decimal_text(text, of) is None:
                raise Unfit(field, "format", f"{text[:50]!r} is not exactly a decimal({of.precision},{of.scale})")
            return text
        value = _DECODERS[of.kind].decode(raw)
    except DECODE_ERRORS as error:
        raise Unfit(field, "format" if getattr(of, "kind", "") in ("date", "instant") else "type", str(error)) from None
    if of.kind == "instant" and not is_instant(value):
        raise Unfit(field, "range", "the instant is outside of the years 1 to 9999")
    return value


def _record(raw: bytes, shape: Shape, of: RecordType, field: str) -> Any:
    named = _OBJECT.decode(raw)
    found = {}
    for at, (part, inner) in enumerate(zip(of.fields, shape.fields, strict=True)):
        value = named.get(part.name)
        if value is not None:
            found[f"f{at}"] = convert(bytes(value), inner, within(field, part.name))
    try:
        return shape.struct(**found)
    except TypeError:
        raise Unfit(field, "required", "a required property is missing") from None


def _integer(raw: bytes, field: str, low: int, high: int) -> int:
    """Return an integer, which JSON Schema also allows to be written as 1.0 or 1e2."""
    try:
        value = Decimal(raw.decode())
    except InvalidOperation:
        raise Unfit(field, "type", "a number is expected") from None
    if (value and value.adjusted() > _DIGITS) or not low <= value <= high:
        raise Unfit(field, "range", f"{raw[:40].decode()} is not within {low} to {high}")
    if value != value.to_integral_value():
        raise Unfit(field, "type", f"{raw[:40].decode()} is not an integer")
    return int(value)


def _number(raw: bytes, field: str) -> float:
    try:
        return _NUMBER.decode(raw)
    except DECODE_ERRORS as error:
        rule = "range" if "out of range" in str(error) else "type"
        raise Unfit(field, rule, f"{raw[:40].decode()} is not a DOUBLE") from None
