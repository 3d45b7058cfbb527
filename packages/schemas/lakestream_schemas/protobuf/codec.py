"""Codec of Protobuf payloads: one message, without framing.

Belongs here: checking and decoding payloads, one or a batch, and giving them back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format, message_factory, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError

from lakestream.schemas import scalars
from lakestream.schemas.columns import INSTANT, JSON, UINT64, List, Map, RecordType, walk
from lakestream.schemas.errors import Unfit
from lakestream_schemas.payloads import PayloadCodec
from lakestream_schemas.protobuf.model import (
    ANY,
    TIMESTAMP,
    WRAPPERS,
    MessageField,
    columns_of,
    is_map,
    is_repeated,
    message_of,
    parts_of,
    read_files,
)
from lakestream_schemas.records import MAX_NESTING

if TYPE_CHECKING:
    import pyarrow as pa

    from lakestream_schemas.plan import ColumnNode

_AS_BYTES = f"/{secrets.token_hex(16)}/google.protobuf.BytesValue"
"""End of the type URL of an Any that is written as bytes; no payload can have it."""
Get = Callable[[Any], Any]


class ProtobufCodec(PayloadCodec):
    """Checks and decodes Protobuf payloads of one message."""

    form, format = "protobuf", "P"
    """Fields are in the order of their numbers, as serializers write them."""

    def __init__(self, text: str, message: str = "") -> None:
        """Read a descriptor set.

        Args:
            text: the set in base64.
            message: full name; "" for the first message of the last file.

        Raises:
            BadSchema: it is invalid or exceeds a limit.
        """
        descriptor = message_of(read_files(text), message)
        self._descriptor, self._parts = descriptor, parts_of(descriptor)
        self.record: RecordType = columns_of(self._parts, root=True)
        self._class: Any = message_factory.GetMessageClass(descriptor)
        self._row = _row(self._parts)
        self._is_exact = not any(of == JSON for _, of in walk(self.record))

    def value(self, payload: bytes | None) -> Any:
        if payload is None:
            raise Unfit("", "encoding", "there is no payload")
        try:
            message = self._class.FromString(payload)
            if not message.IsInitialized():
                missing = message.FindInitializationErrors()
                raise Unfit(missing[0] if missing else "", "required", "a required field is missing")
            return self._row(message)
        except (DecodeError, UnicodeDecodeError) as error:
            raise Unfit("", "encoding", str(error)) from None

    def root(self) -> ColumnNode | None:
        from lakestream_schemas.protobuf.nodes import root_of

        return root_of(self._descriptor, self.record, self._parts)

    def encoded(self, columns: pa.RecordBatch) -> list[bytes | None]:
        from lakestream_schemas.arrow import plain_rows

        if not self._is_exact:
            return [None] * len(columns)
        found: list[bytes | None] = []
        for row in plain_rows(columns):
            message = self._class()
            try:
                _fill(message, self._parts, row)
                found.append(message.SerializeToString(deterministic=True))
            except (TypeError, ValueError, KeyError, EncodeError):  # a misfit's NULLs
                found.append(None)
        return found


# Reading
def _row(parts: tuple[MessageField, ...]) -> Get:
    """Return the function from a message to the tuple of its columns."""
    gets = [_field(part) for part in parts]

    def row(message: Any) -> tuple[Any, ...]:
        return tuple([get(message) for get in gets])

    return row


def _field(part: MessageField) -> Get:
    field, name = part.field, part.field.name
    if is_map(field):
        return _map(part)
    convert = _converter(part, field)
    if is_repeated(field):
        if convert is None:
            return lambda message: list(getattr(message, name))
        return lambda message: [convert(each) for each in getattr(message, name)]
    if not field.has_presence:
        if convert is None:
            return lambda message: getattr(message, name)
        return lambda message: convert(getattr(message, name))
    if convert is None:
        return lambda message: getattr(message, name) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name)) if message.HasField(name) else None


def _map(part: MessageField) -> Get:
    name = part.field.name
    fields = part.field.message_type.fields_by_name
    convert = _converter(part, fields["value"])
    if fields["key"].cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        step = convert or (lambda value: value)
        return lambda message: {str(key): step(value) for key, value in getattr(message, name).items()}
    if convert is None:
        return lambda message: dict(getattr(message, name))
    return lambda message: {key: convert(value) for key, value in getattr(message, name).items()}


def _converter(part: MessageField, field: FieldDescriptor) -> Get | None:
    """Return the conversion of one value, None for none."""
    of = part.type.of if isinstance(part.type, List | Map) else part.type
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return lambda number: names.get(number) or str(number)
    if field.type == FieldDescriptor.TYPE_STRING:
        return lambda value: _text(value, part.field.name)
    if field.message_type is None:
        return Decimal if of == UINT64 else None
    if of == INSTANT:
        return lambda value: _instant(value, part.field.name)
    if of == JSON:
        settle = _settled if _may_hold_any(field.message_type, set()) else None
        return lambda value: _json(value, part.field.name, settle)
    if field.message_type.full_name in WRAPPERS:
        return (lambda value: Decimal(value.value)) if of == UINT64 else (lambda value: value.value)
    return _row(part.parts)


def _text(value: str | bytes, name: str) -> str:
    """Return a string. Those of proto2 are not checked when they are read, and come as bytes if they are no UTF-8."""
    if isinstance(value, bytes):
        raise Unfit(name, "utf-8", "the string is not UTF-8")
    return value


def _instant(value: Any, name: str) -> int:
    found: int = value.seconds * 1_000_000 + value.nanos // 1_000
    if not scalars.FIRST_US <= found <= scalars.LAST_US or not 0 <= value.nanos < 1_000_000_000:
        raise Unfit(name, "range", "the instant is outside of the years 1 to 9999")
    return found


def _json(value: Any, name: str, settle: Callable[[Any], Any] | None) -> str:
    try:
        if settle is not None:
            value = settle(value)
        found = json_format.MessageToJson(
            value,
            indent=None,
            preserving_proto_field_name=True,
            ensure_ascii=False,
            descriptor_pool=value.DESCRIPTOR.file.pool,  # the types that an Any may have
        )
        return str(found if settle is None else found.replace(_AS_BYTES, ""))
    except (TypeError, ValueError, json_format.Error, RecursionError) as error:
        raise Unfit(name, "json", f"it cannot be written as JSON: {error}") from None


def _may_hold_any(message: Descriptor, seen: set[str]) -> bool:
    """Return True if a message of this type may have an Any in it."""
    if message.full_name == ANY:
        return True
    seen.add(message.full_name)
    inner = [field.message_type for field in message.fields if field.message_type is not None]
    return any(_may_hold_any(each, seen) for each in inner if each.full_name not in seen)


def _settled(message: Any, left: int = MAX_NESTING) -> Any:
    """Return a message in which each Any can be written as JSON: one whose type its files do not have, or whose bytes
    are none of its type, gets the type URL and the bytes as `value`. Changes the message.

    JSON has these two fields for messages that have a form of their own in JSON. So the bytes become one of these, a
    BytesValue, whose name is cut out of the text again.

    Args:
        left: nested ones that are still looked into; each is read anew.
    """
    if message.DESCRIPTOR.full_name != ANY:
        for field, value in message.ListFields():
            inner = field.message_type
            if inner is None or (is_map(field) and inner.fields_by_name["value"].message_type is None):
                continue
            for each in value.values() if is_map(field) else value if is_repeated(field) else (value,):
                _settled(each, left)
        return message
    if not message.type_url and not message.value:
        return message
    try:
        pool = message.DESCRIPTOR.file.pool
        kind = pool.FindMessageTypeByName(message.type_url.rpartition("/")[2])
        if left and _may_hold_any(kind, set()):
            inner = _settled(message_factory.GetMessageClass(kind).FromString(message.value), left - 1)
            message.value = inner.SerializePartialToString()
        elif left:
            message_factory.GetMessageClass(kind).FromString(message.value)
    except (KeyError, DecodeError, UnicodeDecodeError):
        left = 0
    if not left:
        message.value = wrappers_pb2.BytesValue(value=message.value).SerializeToString()
        message.type_url += _AS_BYTES
    return message


# Writing
def _fill(message: Any, parts: tuple[MessageField, ...], row: Sequence[Any]) -> None:
    """Set the fields of a message from the values of its columns."""
    for part, value in zip(parts, row, strict=True):
        field, name = part.field, part.field.name
        if value is None:
            continue
        if is_map(field):
            inner = field.message_type.fields_by_name["value"]
            target = getattr(message, name)
            is_number = field.message_type.fields_by_name["key"].cpp_type == FieldDescriptor.CPPTYPE_UINT64
            for key, each in value:
                key = int(key) if is_number else key
                if inner.message_type is None:
                    target[key] = _scalar(inner, each)
                else:
                    _fill_one(target[key], inner, part, each)
        elif is_repeated(field):
            target = getattr(message, name)
            if field.message_type is None:
                target.extend([_scalar(field, each) for each in value])
            else:
                for each in value:
                    _fill_one(target.add(), field, part, each)
        elif field.message_type is None:
            setattr(message, name, _scalar(field, value))
        else:
            target = getattr(message, name)
            target.SetInParent()
            _fill_one(target, field, part, value)


def _fill_one(target: Any, field: FieldDescriptor, part: MessageField, value: Any) -> None:
    kind = field.message_type.full_name
    if kind == TIMESTAMP:
        target.seconds, rest = divmod(value, 1_000_000)
        target.nanos = rest * 1_000
    elif kind in WRAPPERS:
        target.value = _scalar(field.message_type.fields_by_name["value"], value)
    else:
        _fill(target, part.parts, list(value.values()))


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        return int(value) if known is None else known.number
    return int(value) if isinstance(value, Decimal) else value
