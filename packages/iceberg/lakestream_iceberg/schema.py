"""A Delta schema as Iceberg's.

Belongs here: types, ids and partitioning, in the JSON that Iceberg's library parses. Every column is optional: Delta's
are. Partition columns are Delta's, `bucket` too: some files have that column and others do not, and only a partition
gives it a value in both.

Source: Iceberg's specification, "Schemas and Data Types", "Partition Specs", "Appendix C: JSON serialization".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lakestream.lake.table.encryption import ENCRYPTED
from lakestream.lake.table.foreign_commits import MAPPING
from lakestream_iceberg.errors import NotInIceberg
from lakestream_spark.write.field_ids import ELEMENT, KEY, VALUE, Path, field_id

_FIRST_PARTITION = 1000
"""Ids of partition fields follow it: Iceberg's own begin there."""

_SCALARS = {
    "string": "string",
    "long": "long",
    "integer": "int",
    "short": "int",
    "byte": "int",
    "double": "double",
    "float": "float",
    "boolean": "boolean",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")


def iceberg_schema(table: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Iceberg schema of a table, as JSON has it.

    Args:
        table: its path, for errors.
        metadata: the `metaData` action of Delta's log.

    Raises:
        NotInIceberg: columns are mapped, one has a type that Iceberg lacks, two have one id, or files are encrypted.
    """
    if metadata.get("configuration", {}).get(ENCRYPTED) == "true":
        raise NotInIceberg(table, "its files are encrypted, and Iceberg's metadata would be plain")
    if metadata.get("configuration", {}).get(MAPPING, "none") != "none":
        raise NotInIceberg(table, "another program has enabled column mapping")
    fields = [_field(table, each, ()) for each in msgspec.json.decode(metadata["schemaString"])["fields"]]
    found = {"type": "struct", "schema-id": 0, "fields": fields}
    ids = list(_ids(found))
    if len(set(ids)) < len(ids):
        raise NotInIceberg(table, "two columns have the same id; rename one in the schema")
    return found


def partition_fields(columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the fields of the Iceberg partitioning: the columns themselves."""
    return [
        {
            "name": column,
            "transform": "identity",
            "source-id": field_id((column,)),
            "field-id": _FIRST_PARTITION + field_id((column,)),
        }
        for column in columns
    ]


def _field(table: str, field: Mapping[str, Any], above: Path) -> dict[str, Any]:
    path = (*above, field["name"])
    found = {"id": field_id(path), "name": field["name"], "required": False, "type": _type(table, field["type"], path)}
    comment = field.get("metadata", {}).get("comment")
    return found | ({"doc": comment} if comment else {})


def _type(table: str, kind: Any, path: Path) -> Any:
    if isinstance(kind, str):
        if (decimal := _DECIMAL.fullmatch(kind)) is not None:
            return f"decimal({decimal[1]}, {decimal[2]})"
        if kind not in _SCALARS:
            raise NotInIceberg(table, f"column {'.'.join(path)} is of type {kind}")
        return _SCALARS[kind]
    if kind["type"] == "struct":
        return {"type": "struct", "fields": [_field(table, each, path) for each in kind["fields"]]}
    if kind["type"] == "array":
        item = (*path, ELEMENT)
        return {
            "type": "list",
            "element-id": field_id(item),
            "element": _type(table, kind["elementType"], item),
            "element-required": False,
        }
    key, value = (*path, KEY), (*path, VALUE)
    return {
        "type": "map",
        "key-id": field_id(key),
        "key": _type(table, kind["keyType"], key),
        "value-id": field_id(value),
        "value": _type(table, kind["valueType"], value),
        "value-required": False,
    }


def _ids(kind: Any) -> Iterator[int]:
    """Yield the ids in a type."""
    if not isinstance(kind, dict):
        return
    for name, value in kind.items():
        if name == "id" or (name.endswith("-id") and name != "schema-id"):
            yield value
        elif name == "fields":
            for each in value:
                yield from _ids(each)
        else:
            yield from _ids(value)
