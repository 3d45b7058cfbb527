"""Compatibility of versions of a schema, by the modes and rules of Confluent's Schema Registry.

Belongs here: which versions are compared in which direction. The rules of each format are in its folder.

    none                  anything goes
    backward              the new version reads what the latest one wrote
    forward               the latest version reads what the new one writes
    full                  both
    …_transitive          the same with all versions, not only the latest

Sources: "Schema Evolution and Compatibility" of Confluent's documentation; "Schema Resolution" of the specification of
Avro 1.12; "Updating A Message Type" of Protobuf's language guide.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Schema
from lakestream_schemas.differences import Difference, Differences
from lakestream_schemas.formats import FORMATS


class Incompatibility(msgspec.Struct, frozen=True):
    """An incompatible difference. `version`: of the older schema; `mode`: backward or forward."""

    version: int
    mode: str
    difference: Difference

    def __str__(self) -> str:
        return f"not {self.mode} compatible with version {self.version}: {self.difference}"


def find_conflicts(new: Schema, versions: Sequence[Schema], strict: bool = False) -> list[Incompatibility]:
    """Return the reasons why a version cannot follow others by its own `compatibility`; empty if it can.

    Args:
        new: the version to come.
        versions: those that exist, ascending.
        strict: JSON Schema: a property that comes new to an object with additional properties is incompatible, since
            older payloads might have had it with another type. Confluent's registry is strict.

    Raises:
        BadSchema: one of them cannot be read, or the format changed.
    """
    mode, _, scope = new.compatibility.partition("_")
    if mode == "none" or not versions:
        return []
    found = []
    for old in versions if scope else versions[-1:]:
        if old.format != new.format:
            raise BadSchema(f"{old.reference} is {old.format}, not {new.format}", "format", "use another name")
        if mode in ("backward", "full"):
            found += [_conflict(old, "backward", each) for each in differences(old, new, strict)]
        if mode in ("forward", "full"):
            found += [_conflict(old, "forward", each) for each in differences(new, old, strict)]
    return [each for each in found if not each.difference.is_compatible]


def _conflict(old: Schema, mode: str, difference: Difference) -> Incompatibility:
    return Incompatibility(old.version, mode, difference)


def differences(writer: Schema, reader: Schema, strict: bool = False) -> list[Difference]:
    """Return how a reader's schema differs from the schema of what was written, compatible differences included.

    Raises:
        BadSchema: one of them cannot be read, or they have different formats.
    """
    if writer.format != reader.format:
        raise BadSchema(f"{writer.reference} is {writer.format}, not {reader.format}", "format")
    found = Differences()
    FORMATS[writer.format].compare(writer, reader, found, strict)
    return found.found
