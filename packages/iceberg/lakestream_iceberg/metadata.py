"""Metadata files of Iceberg tables, without Iceberg's library.

Belongs here: the newest metadata file of a table, as the catalog tells its clients, and the tables of an account. The
file is passed on as it is.

Source: Iceberg's specification, "File System Tables".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream_spark.write.vacuum import ICEBERG as DIRECTORY

_FILE = re.compile(r"v(\d+)\.metadata\.json")


class TableMetadata(msgspec.Struct, frozen=True):
    """Newest metadata file: its path, a tag of its content, and the content."""

    location: str
    tag: str
    content: bytes

    def referenced(self) -> bytes:
        """Return the content with only those snapshots that have a name, `main` among them."""
        found: dict[str, Any] = msgspec.json.decode(self.content)
        named = {ref["snapshot-id"] for ref in found.get("refs", {}).values()}
        found["snapshots"] = [each for each in found.get("snapshots", []) if each["snapshot-id"] in named]
        return msgspec.json.encode(found)


def newest(storage: Storage, table: str) -> TableMetadata | None:
    """Return the newest metadata file of the Iceberg table over a Delta table; None if there is none."""
    names = [entry.name for entry in storage.list(f"{table}/{DIRECTORY}")]
    versions = sorted(int(found[1]) for name in names if (found := _FILE.fullmatch(name)))
    for version in reversed(versions):  # one may be gone: the writer deletes old ones
        path = f"{table}/{DIRECTORY}/v{version}.metadata.json"
        try:
            content, entry = storage.read_entry(path)
        except FileNotFoundError:
            continue
        return TableMetadata(path, entry.tag, content)
    return None


def streams(storage: Storage, account: str) -> Iterator[str]:
    """Yield the streams of an account that have an Iceberg table, by name."""
    place = paths.table(storage.root, "x", account).rpartition("/")[0]
    for name in sorted(storage.directories(place)):
        if DIRECTORY in storage.directories(f"{place}/{name}"):
            yield paths.name_of(name)
