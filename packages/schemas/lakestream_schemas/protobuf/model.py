"""Protobuf schemas: descriptor sets, their messages, and the mapping to columns.

Belongs here: reading a `FileDescriptorSet` within limits, and the columns of a message.

    bool BOOLEAN   integers up to 64 bits, signed, BIGINT   uint64 fixed64 DECIMAL(20, 0)   float double DOUBLE
    string enum STRING   bytes BINARY   Timestamp TIMESTAMP (µs, UTC)   wrappers as their value, nullable
    message STRUCT   repeated ARRAY   map MAP   Struct, Value, ListValue, Any, recursive messages: STRING, JSON text

A field with presence (`optional`, a message, a member of `oneof`) is NULL if not set; others have their default.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from typing import Any

import msgspec
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from lakestream.schemas import columns
from lakestream.schemas.columns import JSON, List, Map, RecordType, Type
from lakestream.schemas.errors import BadSchema
from lakestream_schemas.records import MAX_FIELDS, MAX_NESTING, check_size, record_of

WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
TIMESTAMP = "google.protobuf.Timestamp"
FREE = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any")}
ANY = "google.protobuf.Any"
_WELL_KNOWN_FILES = (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
_WELL_KNOWN = {
    message.name: message
    for module in _WELL_KNOWN_FILES
    for message in module.DESCRIPTOR.message_types_by_name.values()
}
_KINDS = {
    FieldDescriptor.CPPTYPE_INT32: columns.INTEGER,
    FieldDescriptor.CPPTYPE_INT64: columns.INTEGER,
    FieldDescriptor.CPPTYPE_UINT32: columns.INTEGER,
    FieldDescriptor.CPPTYPE_UINT64: columns.UINT64,
    FieldDescriptor.CPPTYPE_DOUBLE: columns.NUMBER,
    FieldDescriptor.CPPTYPE_FLOAT: columns.NUMBER,
    FieldDescriptor.CPPTYPE_BOOL: columns.BOOLEAN,
    FieldDescriptor.CPPTYPE_ENUM: columns.STRING,
}


class MessageField(msgspec.Struct, frozen=True):
    """A field of a message with its column. `parts`: of the message that it has, if that is a STRUCT."""

    field: Any
    type: Type
    parts: tuple[MessageField, ...] = ()


def read_files(text: str) -> descriptor_pb2.FileDescriptorSet:
    """Return a descriptor set from its base64.

    Raises:
        BadSchema: it is none.
    """
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise BadSchema(
            f"it is not a FileDescriptorSet in base64: {str(error)[:200]}",
            remedy="make one with `protoc --include_imports -o orders.pb orders.proto`",
        ) from None
    if not found.file:
        raise BadSchema("the descriptor set has no files")
    return found


def message_of(files: descriptor_pb2.FileDescriptorSet, name: str = "") -> Descriptor:
    """Return a message of a descriptor set, in a pool of its own.

    Args:
        files: with all imports.
        name: full name of the message; "" for the first one of the last file.

    Raises:
        BadSchema: a file does not fit the others, or there is no such message.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        _check_well_known(file)
    pending = list(files.file)
    known = {file.name for file in pending}
    added: set[str] = set()
    while pending:
        # Files come in any order.
        ready = [file for file in pending if all(each in added or each not in known for each in file.dependency)]
        if not ready:
            raise BadSchema("files import each other in a cycle", pending[0].name[:80])
        for file in ready:
            missing = next((each for each in file.dependency if each not in known), None)
            if missing is not None:
                raise BadSchema(f"its import {missing[:80]!r} is missing", file.name[:80], "use --include_imports")
            try:
                pool.AddSerializedFile(file.SerializeToString())
            except (TypeError, ValueError) as error:
                raise BadSchema(str(error)[:300], file.name[:80]) from None
            added.add(file.name)
        pending = [file for file in pending if file.name not in added]
    for module in _WELL_KNOWN_FILES if any_pb2.DESCRIPTOR.name in known else ():  # an Any may hold one of them
        if module.DESCRIPTOR.name not in known:
            with contextlib.suppress(TypeError):  # the set has them in a file of another name
                pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    last = files.file[-1]
    if not name:
        if not last.message_type:
            raise BadSchema("it has no message", last.name[:80])
        name = ".".join(part for part in (last.package, last.message_type[0].name) if part)
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        raise BadSchema(f"there is no message {name[:80]!r}", remedy="write its full name, with the package") from None


def _check_well_known(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Check that a file has no other messages under the names of well-known ones, whose fields are relied on.

    Raises:
        BadSchema: it has.
    """
    if file.package != "google.protobuf":
        return
    for message in file.message_type:
        known = _WELL_KNOWN.get(message.name)
        if known is None:
            continue
        proto = descriptor_pb2.DescriptorProto()
        known.CopyToProto(proto)
        if _shape(message) != _shape(proto):
            raise BadSchema(f"google.protobuf.{message.name} is another message there", file.name[:80])


def _shape(message: descriptor_pb2.DescriptorProto) -> Any:
    """Return what decoding depends on."""
    fields = [(f.name, f.number, f.type, f.type_name, f.label, f.oneof_index) for f in message.field]
    inner = [(each.name, _shape(each)) for each in message.nested_type]
    return sorted(fields, key=repr), inner, message.options.map_entry, len(message.oneof_decl)


def name_at(files: descriptor_pb2.FileDescriptorSet, path: tuple[int, ...]) -> str:
    """Return the full name of a message by its path, as Confluent's wire format has it: indexes of messages in the last
    file, and of those inside of each other.

    Raises:
        BadSchema: there is no such message.
    """
    last = files.file[-1]
    found, names = last.message_type, [last.package] if last.package else []
    for at in path:
        if not 0 <= at < len(found):
            raise BadSchema(f"it has no message at the path {list(path)}", last.name[:80])
        names.append(found[at].name)
        found = found[at].nested_type
    return ".".join(names)


def parts_of(message: Descriptor) -> tuple[MessageField, ...]:
    """Return the fields of a message with their columns."""
    return _Mapping().parts(message, (message.full_name,), 1)


class _Mapping:
    def __init__(self) -> None:
        self._count = 0

    def parts(self, message: Descriptor, stack: tuple[str, ...], depth: int) -> tuple[MessageField, ...]:
        return tuple(self._part(field, stack, depth) for field in message.fields)

    def _part(self, field: FieldDescriptor, stack: tuple[str, ...], depth: int) -> MessageField:
        self._count += 1
        if self._count > MAX_FIELDS:
            raise BadSchema(f"there are more than {MAX_FIELDS} fields", field.full_name[:80])
        if is_map(field):
            keys, values = _entry(field)
            key = _KINDS.get(keys.cpp_type, columns.STRING)
            if key == columns.UINT64:
                key = columns.STRING  # Delta has no maps with DECIMAL keys in all readers
            of = self._single(values, stack, depth + 1)
            return MessageField(field, Map(key, of.type), of.parts)
        of = self._single(field, stack, depth + is_repeated(field))
        return MessageField(field, List(of.type), of.parts) if is_repeated(field) else of

    def _single(self, field: FieldDescriptor, stack: tuple[str, ...], depth: int) -> MessageField:
        """Return a field as if it was not repeated."""
        inner = field.message_type
        if inner is None:
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                return MessageField(
                    field, columns.BYTES if field.type == FieldDescriptor.TYPE_BYTES else columns.STRING
                )
            return MessageField(field, _KINDS[field.cpp_type])
        if inner.full_name == TIMESTAMP:
            return MessageField(field, columns.INSTANT)
        if inner.full_name in WRAPPERS:
            return MessageField(field, self._single(inner.fields_by_name["value"], stack, depth).type)
        if inner.full_name in FREE or inner.full_name in stack or depth >= MAX_NESTING or not inner.fields:
            return MessageField(field, JSON)
        parts = self.parts(inner, (*stack, inner.full_name), depth + 1)
        return MessageField(field, columns_of(parts), parts)


def _entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Return the fields of a map's key and value.

    Raises:
        BadSchema: the entry has others; only a descriptor set that no compiler has written can have these.
    """
    found = field.message_type.fields
    names = [(each.name, each.number, is_repeated(each)) for each in found]
    if names != [("key", 1, False), ("value", 2, False)] or not is_repeated(field):
        raise BadSchema("a map has repeated entries of a key and a value", field.full_name[:80])
    return found[0], found[1]


def is_map(field: FieldDescriptor) -> bool:
    """Return True for a `map<…>` field."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def is_repeated(field: FieldDescriptor) -> bool:
    """Return True for a `repeated` field, maps included."""
    return bool(field.is_repeated)


def columns_of(parts: tuple[MessageField, ...], root: bool = False) -> RecordType:
    """Return the columns of a message."""
    found = record_of(((part.field.name, part.type, part.field.has_presence, "") for part in parts), root)
    if root:
        check_size(found)
    return found
