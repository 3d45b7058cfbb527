"""Protobuf schemas as clients of the registry write them.

Belongs here: `.proto` texts and single files in base64, with the files that they import; and the way back to one file
in base64 (`format=serialized`).

Confluent's clients register no reference for imports from google/protobuf, google/type and confluent: their registry
has these files.

Sources: confluent-kafka for Python, its list of known types; Confluent's documentation, "Protobuf Schema Serializer".
"""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from lakestream_registry.errors import bad_schema
from lakestream_schemas.formats import is_proto
from lakestream_schemas.protobuf.model import read_files
from lakestream_schemas.protobuf.protoc import compile_proto

MAX_FILES = 1_000
"""Maximum number of files, with all imports."""
_OF_LIBRARIES = re.compile(r"(google/(?:protobuf|type)/[a-z_]+)\.proto")
_IMPORT = re.compile(r'(?:^|;)\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"(?=\s*;)', re.MULTILINE)
_META, _DECIMAL = "confluent/meta.proto", "confluent/type/decimal.proto"
_META_NUMBER = 1088
"""Number of Confluent's options, which annotate files, messages, fields, enums and their values."""


def compiled(text: str, others: Mapping[str, str]) -> str:
    """Return the descriptor set of a definition in base64; its own file comes last.

    Args:
        text: a `.proto` text, a file or a descriptor set in base64.
        others: descriptor sets of the schemas that it imports, by the names of the imports.

    Raises:
        RegistryError, BadSchema: it does not compile.
    """
    imports = _imports(others)
    if is_proto(text):
        for name in _IMPORT.findall(text):
            if name not in imports and name.startswith(("google/type/", "confluent/")):
                _need(FileDescriptorProto(dependency=[name]), {}, imports)
        return compile_proto(text, FileDescriptorSet(file=imports.values()).SerializeToString() if imports else b"")
    file = _file(text)
    if file is None:
        return text  # a descriptor set
    needed: dict[str, FileDescriptorProto] = {}
    _need(file, imports, needed)
    found = FileDescriptorSet(file=[*needed.values(), file])
    return base64.b64encode(found.SerializeToString()).decode()


def serialized(descriptors: str) -> str:
    """Return the own file of a descriptor set, in base64."""
    return base64.b64encode(read_files(descriptors).file[-1].SerializeToString()).decode()


def _imports(others: Mapping[str, str]) -> dict[str, FileDescriptorProto]:
    """Return the files that a definition may import, by the names of the imports."""
    found: dict[str, FileDescriptorProto] = {}
    for name, descriptors in others.items():
        *inner, own = read_files(descriptors).file
        for each in inner:
            found.setdefault(each.name, each)
        renamed = FileDescriptorProto()
        renamed.CopyFrom(own)
        renamed.name = name
        found[name] = renamed
    return found


def _file(text: str) -> FileDescriptorProto | None:
    """Return the file in a base64 text; None for a descriptor set, which could pass for a file without content."""
    try:
        found = FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    has_content = found.message_type or found.enum_type or found.dependency or found.package
    return found if has_content and found.name else None


def _need(
    file: FileDescriptorProto, imports: Mapping[str, FileDescriptorProto], found: dict[str, FileDescriptorProto]
) -> None:
    """Add the files that a file imports, before those that import them."""
    for name in file.dependency:
        if name in found:
            continue
        if len(found) >= MAX_FILES:
            raise bad_schema(f"it imports more than {MAX_FILES} files")
        each = imports.get(name) or _well_known(name)
        found[name] = each
        _need(each, imports, found)


def _well_known(name: str) -> FileDescriptorProto:
    """Return a file that every registry has. Raises RegistryError."""
    if name in (_META, _DECIMAL):
        return _confluents(name)
    found, match = FileDescriptorProto(), _OF_LIBRARIES.fullmatch(name)
    try:
        if match is None:
            raise KeyError(name)
        importlib.import_module(f"{match[1].replace('/', '.')}_pb2")  # which adds it to the pool
        descriptor_pool.Default().FindFileByName(name).CopyToProto(found)
    except (KeyError, ImportError):
        raise bad_schema(f"its import {name[:200]!r} is none of its references") from None
    return found


def _confluents(name: str) -> FileDescriptorProto:
    """Return a file of Confluent's: decimal numbers, or annotations, which change no column."""
    of = descriptor_pb2.FieldDescriptorProto
    found = FileDescriptorProto(name=name, syntax="proto3", package="confluent")

    def field(message: descriptor_pb2.DescriptorProto, title: str, number: int, kind: int, **more: object) -> None:
        message.field.add(name=title, number=number, type=kind, **({"label": of.LABEL_OPTIONAL} | more))

    if name == _DECIMAL:
        found.package = "confluent.type"
        message = found.message_type.add(name="Decimal")
        for number, (title, kind) in enumerate(
            (("value", of.TYPE_BYTES), ("precision", of.TYPE_UINT32), ("scale", of.TYPE_INT32)), 1
        ):
            field(message, title, number, kind)
        return found
    found.dependency.append("google/protobuf/descriptor.proto")
    meta = found.message_type.add(name="Meta")
    field(meta, "doc", 1, of.TYPE_STRING)
    params = ".confluent.Meta.ParamsEntry"
    field(meta, "params", 2, of.TYPE_MESSAGE, label=of.LABEL_REPEATED, type_name=params)
    field(meta, "tags", 3, of.TYPE_STRING, label=of.LABEL_REPEATED)
    entry = meta.nested_type.add(name="ParamsEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, of.TYPE_STRING)
    field(entry, "value", 2, of.TYPE_STRING)
    for kind in ("File", "Message", "Field", "Enum", "EnumValue"):
        title = "enum_value" if kind == "EnumValue" else kind.lower()
        found.extension.add(
            name=f"{title}_meta",
            number=_META_NUMBER,
            label=of.LABEL_OPTIONAL,
            type=of.TYPE_MESSAGE,
            type_name=".confluent.Meta",
            extendee=f".google.protobuf.{kind}Options",
        )
    return found
