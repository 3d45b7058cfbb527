"""Registration of a version.

Belongs here: which version a definition becomes, whether it exists already, and whether it may follow the others.
Nothing here does I/O, except for the compiler of `.proto` texts: `prepare` runs in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.account.schemas.bucket import MAX_SCHEMAS, MAX_TOTAL
from lakestream.protocol.schema_api import DEFAULT_COMPATIBILITY, Definition
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import MAX_VERSIONS, Compatibility, Schema, check
from lakestream_schemas.compatibility import Incompatibility, find_conflicts
from lakestream_schemas.formats import prepared

if TYPE_CHECKING:
    from lakestream.account.schemas.bucket import RegisteredSchemas


MAX_CONFLICTS = 100
"""Maximum number of conflicts in a response."""


class PreparedVersion(msgspec.Struct, frozen=True):
    """A version that can be used, and the reasons why it cannot follow the others."""

    schema: Schema
    conflicts: Sequence[Incompatibility]


def existing(state: RegisteredSchemas, name: str, asked: Definition) -> Schema | None:
    """Return the newest version that a definition repeats: same format, text, message, and compatibility if given."""
    for schema in reversed(state.versions(name)):
        same = (schema.format, schema.text, schema.message) == (asked.format, asked.text, asked.message)
        if same and asked.compatibility in ("", schema.compatibility):
            return schema
    return None


def candidate(state: RegisteredSchemas, name: str, asked: Definition, now_ns: int) -> Schema:
    """Return the next version of a schema, not prepared yet.

    Raises:
        BadSchema: a limit is exceeded.
    """
    version, latest = state.next_version(name), state.find(name)
    if version > MAX_VERSIONS:
        raise BadSchema(f"{name} has had {MAX_VERSIONS} versions", "version", "register it under another name")
    if latest is None and len(state) >= MAX_SCHEMAS:
        raise BadSchema(f"the account has {MAX_SCHEMAS} schemas", "name", "delete some")
    usual: Compatibility = DEFAULT_COMPATIBILITY if latest is None else latest.compatibility
    compatibility = asked.compatibility or usual
    schema = Schema(name, version, asked.format, asked.text, asked.message, "", compatibility, 0, now_ns)
    check(schema)
    return schema


def prepare(schema: Schema, versions: Sequence[Schema]) -> PreparedVersion:
    """Return a version ready to be stored, with its conflicts. Takes up to seconds.

    Raises:
        BadSchema: it cannot be used.
    """
    ready = prepared(schema)
    return PreparedVersion(ready, find_conflicts(ready, versions)[:MAX_CONFLICTS])


def numbered(schema: Schema, number: int, state: RegisteredSchemas) -> bytes:
    """Return the document of a version with its id.

    Raises:
        BadSchema: there is no room for it.
    """
    document = msgspec.structs.replace(schema, id=number).document()
    if state.size + len(document) > MAX_TOTAL:
        raise BadSchema(f"the schemas of the account would have more than {MAX_TOTAL} bytes", remedy="delete some")
    return document
