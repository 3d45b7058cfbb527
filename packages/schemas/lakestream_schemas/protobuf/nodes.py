"""Plan of a Protobuf message, for reading batches straight into columns.

Belongs here: the nodes of fields.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lakestream.schemas import scalars
from lakestream.schemas.columns import INSTANT, JSON, List, Map, RecordType
from lakestream_schemas.plan import ColumnNode
from lakestream_schemas.protobuf.model import MessageField, is_map


def root_of(message: Descriptor, record: RecordType, parts: tuple[MessageField, ...]) -> ColumnNode | None:
    """Return the node of a message; None if it has JSON text, a group, or extensions, which have rules of their own."""
    fields = [_field(part) for part in parts]
    if message.is_extendable or None in fields:
        return None
    children = tuple(each for each in fields if each is not None)
    return ColumnNode(type=record, children=children, wire=FieldDescriptor.TYPE_MESSAGE)


def _field(part: MessageField) -> ColumnNode | None:
    field, of = part.field, part.type
    if is_map(field):
        entry = field.message_type.fields_by_name
        assert isinstance(of, Map)
        key = ColumnNode(type=of.key, wire=entry["key"].type)
        value = _single(MessageField(entry["value"], of.of, part.parts))
        found = None if value is None else ColumnNode(type=of, children=(key, value))
    elif isinstance(of, List):
        items = _single(MessageField(field, of.of, part.parts))
        found = None if items is None else ColumnNode(type=of, children=(items,))
    else:
        found = _single(part)
        if found is not None:
            found.nullable, found.required = field.has_presence, field.is_required
    if found is not None:
        found.number = field.number
        if field.containing_oneof is not None:
            found.group = 1 + field.containing_oneof.index
    return found


def _single(part: MessageField) -> ColumnNode | None:
    """Return the node of a value that is not repeated."""
    field, of = part.field, part.type
    if of == JSON or field.type == FieldDescriptor.TYPE_GROUP:
        return None
    if isinstance(of, RecordType):
        return root_of(field.message_type, of, part.parts)
    found = ColumnNode(type=of, wire=field.type)
    if of == INSTANT:
        found.low, found.high = scalars.FIRST_US, scalars.LAST_US
    elif field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        found.symbols, found.numbers = tuple(name.encode() for name in names.values()), tuple(names)
    elif field.message_type is not None:  # a wrapper
        found.wrapped = field.message_type.fields_by_name["value"].type
    return found
