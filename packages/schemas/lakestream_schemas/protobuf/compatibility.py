"""Comparison of two Protobuf schemas by the rules of Confluent's registry.

Belongs here: the rules, named as there. Fields are compared by their number, messages by their name in the package.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lakestream_schemas.differences import Differences
from lakestream_schemas.protobuf.model import is_map, is_repeated, message_of, read_files

_GENERAL, _SIGNED, _TEXT, _FIXED32, _FIXED64 = "number", "signed number", "string or bytes", "fixed32", "fixed64"
_GROUPS = {
    FieldDescriptor.TYPE_INT32: _GENERAL,
    FieldDescriptor.TYPE_INT64: _GENERAL,
    FieldDescriptor.TYPE_UINT32: _GENERAL,
    FieldDescriptor.TYPE_UINT64: _GENERAL,
    FieldDescriptor.TYPE_BOOL: _GENERAL,
    FieldDescriptor.TYPE_ENUM: _GENERAL,
    FieldDescriptor.TYPE_SINT32: _SIGNED,
    FieldDescriptor.TYPE_SINT64: _SIGNED,
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BYTES: _TEXT,
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
}


def compare(writer: tuple[str, str], reader: tuple[str, str], found: Differences) -> None:
    """Add the differences of a reader's schema to a writer's; each is (descriptor set in base64, message).

    Raises:
        BadSchema: one of them cannot be read.
    """
    old, new = message_of(read_files(writer[0]), writer[1]), message_of(read_files(reader[0]), reader[1])
    if old.file.package != new.file.package:
        found.add("package_changed", f"the package {old.file.package!r} became {new.file.package!r}")
    if _local(old) != _local(new):
        found.add("message_removed", f"the message {_local(old)} became {_local(new)}")
        return
    _Comparison().messages(old, new, found)
    before, after = _all(old), _all(new)
    for name in sorted(before.keys() - after.keys()):
        found.add("message_removed", f"the message {name} went")
    for name in sorted(after.keys() - before.keys()):
        found.add("message_added", f"the message {name} came", True)


def _local(message: Descriptor) -> str:
    """Return the name of a message without its package."""
    return str(message.full_name).removeprefix(f"{message.file.package}.")


def _all(message: Descriptor) -> dict[str, Descriptor]:
    """Return the messages of the file, maps' entries excepted."""
    found: dict[str, Descriptor] = {}
    pending = list(message.file.message_types_by_name.values())
    while pending:
        each = pending.pop()
        if not each.GetOptions().map_entry:
            found[_local(each)] = each
            pending += each.nested_types
    return found


class _Comparison:
    def __init__(self) -> None:
        self._seen: set[str] = set()

    def messages(self, old: Descriptor, new: Descriptor, found: Differences) -> None:
        if old.full_name in self._seen:
            return
        self._seen.add(old.full_name)
        before, after = dict(old.fields_by_number), dict(new.fields_by_number)
        for number in sorted(before.keys() | after.keys()):
            if number not in after:
                self._removed(before[number], found.inside(before[number].name))
            elif number not in before:
                self._added(after[number], found.inside(after[number].name))
            else:
                self._fields(before[number], after[number], found.inside(after[number].name))
        self._oneofs(old, new, found)

    @staticmethod
    def _removed(field: FieldDescriptor, found: Differences) -> None:
        if _is_required(field):
            found.add("required_field_removed", "it is required, and went")
        elif _oneof(field) is not None:
            found.add("oneof_field_removed", f"it went from oneof {_oneof(field)}")
        else:
            found.add("field_removed", "it went", True)

    @staticmethod
    def _added(field: FieldDescriptor, found: Differences) -> None:
        if _is_required(field):
            found.add("required_field_added", "it came, and is required")
        else:
            found.add("field_added", "it came", True)

    def _fields(self, old: FieldDescriptor, new: FieldDescriptor, found: Differences) -> None:
        if old.name != new.name:
            found.add("field_name_changed", f"it was called {old.name}", True)
        if _is_required(old) != _is_required(new):
            rule = "required_field_removed" if _is_required(old) else "required_field_added"
            found.add(rule, f"it is {'not required any more' if _is_required(old) else 'required now'}")
        if is_map(old) != is_map(new):
            found.add("field_kind_changed", f"it {'was' if is_map(old) else 'is'} a map")
            return
        if is_map(old):
            for name in ("key", "value"):
                pair = old.message_type.fields_by_name[name], new.message_type.fields_by_name[name]
                self._types(*pair, found.inside("{}"))
            return
        if is_repeated(old) != is_repeated(new):
            text = f"it is {'repeated now' if is_repeated(new) else 'not repeated any more'}"
            is_text = _GROUPS.get(old.type) == _TEXT
            kind = "string_or_bytes" if is_text else "message" if old.message_type is not None else "numeric"
            found.add(f"field_{kind}_label_changed", text, is_text)
        self._types(old, new, found)

    def _types(self, old: FieldDescriptor, new: FieldDescriptor, found: Differences) -> None:
        if (old.message_type is None) != (new.message_type is None):
            found.add("field_kind_changed", "a scalar became a message, or the other way round")
        elif old.message_type is not None:
            if _local(old.message_type) != _local(new.message_type):
                found.add("field_named_type_changed", f"{_local(old.message_type)} became {_local(new.message_type)}")
            else:
                self.messages(old.message_type, new.message_type, found)
        elif _GROUPS[old.type] != _GROUPS[new.type]:
            found.add("field_scalar_kind_changed", f"a {_GROUPS[old.type]} became a {_GROUPS[new.type]}")
        elif old.type != new.type:
            # The bytes stay readable; a number may be cut, a string may be no UTF-8.
            found.add("field_scalar_type_changed", "its type became another one of the same encoding", True)

    @staticmethod
    def _oneofs(old: Descriptor, new: Descriptor, found: Differences) -> None:
        before = {each.name: {field.number for field in each.fields} for each in old.oneofs if _is_real(each)}
        after = {each.name: {field.number for field in each.fields} for each in new.oneofs if _is_real(each)}
        single = set(old.fields_by_number) - {number for numbers in before.values() for number in numbers}
        for name, numbers in after.items():
            moved = numbers & single
            if name in before and moved:
                found.inside(name).add("field_moved_to_existing_oneof", "a field moved to this oneof")
            elif len(moved) > 1:
                found.inside(name).add("multiple_fields_moved_to_oneof", f"{len(moved)} fields moved to this oneof")
            elif name not in before:
                found.inside(name).add("oneof_added", "the oneof came", True)
        for name in before.keys() - after.keys():
            found.inside(name).add("oneof_removed", "the oneof went", True)


def _is_required(field: FieldDescriptor) -> bool:
    return bool(field.is_required)


def _oneof(field: FieldDescriptor) -> str | None:
    oneof = field.containing_oneof
    return oneof.name if oneof is not None and _is_real(oneof) else None


def _is_real(oneof: Any) -> bool:
    """Return True for a oneof that the author wrote, not the one of an `optional` field."""
    proto = descriptor_pb2.DescriptorProto()
    oneof.containing_type.CopyToProto(proto)
    return not any(
        field.proto3_optional
        and field.HasField("oneof_index")
        and proto.oneof_decl[field.oneof_index].name == oneof.name
        for field in proto.field
    )
