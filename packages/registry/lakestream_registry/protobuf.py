"""Protobuf schemas as clients of the registry write them.

Belongs here: `.proto` texts and single files in base64, with the files that they import; and the way back to one file
in base64 (`format=serialized`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from lakestream.schemas.codec import is_proto
from lakestream_registry.errors import bad_schema
from lakestream_schemas.protobuf.model import read_files
from lakestream_schemas.protobuf.protoc import compile_proto

MAX_FILES = 1_000
"""Maximum number of files, with all imports."""


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
    found = FileDescriptorProto()
    try:
        if not name.startswith("google/protobuf/"):
            raise KeyError(name)
        descriptor_pool.Default().FindFileByName(name).CopyToProto(found)
    except KeyError:
        raise bad_schema(f"its import {name[:200]!r} is none of its references") from None
    return found
