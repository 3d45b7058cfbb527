"""Files of the Iceberg table over a Delta table, without Iceberg's library (packages/iceberg writes them).

Belongs here: its newest metadata file, and what VACUUM has to know of it: since when its snapshots name files, and the
request to expire those that are older than the retention.

Source: Iceberg's specification, "File System Tables", "Table Metadata and Snapshots".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.policy import ICEBERG_KEY
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.schemas.naming import OFF

DIRECTORY = "metadata"
"""Directory of the Iceberg table in that of the Delta table; packages/iceberg cleans it up."""
HINT = "version-hint.text"
"""File with the number of the newest version."""
VERSION = "lakestream.delta-version"
"""Property with the Delta version that the table, or a snapshot, holds."""
_FILE = re.compile(r"v(\d+)\.metadata\.json")
_REQUEST = "lakestream-expire-before"
"""File with a time, ms since the epoch: snapshots from before it shall expire."""


def is_wanted(storage: Storage, table: str, settings: Mapping[str, str]) -> bool:
    """Return True if a table has an Iceberg table or asks for one: then files of Spark get the ids of columns.

    Args:
        settings: properties of the table, or those that it is about to get.
    """
    return settings.get(ICEBERG_KEY, OFF) != OFF or DIRECTORY in storage.directories(table)


class TableMetadata(msgspec.Struct, frozen=True):
    """Newest metadata file: its number and path, a tag of its content, and the content."""

    version: int
    location: str
    tag: str
    content: bytes

    def referenced(self) -> bytes:
        """Return the content with only those snapshots that have a name, `main` among them."""
        found: dict[str, Any] = msgspec.json.decode(self.content)
        named = {ref["snapshot-id"] for ref in found.get("refs", {}).values()}
        found["snapshots"] = [each for each in found.get("snapshots", []) if each["snapshot-id"] in named]
        return msgspec.json.encode(found)


class _Snapshot(msgspec.Struct, frozen=True, rename="kebab"):
    """Snapshot of an Iceberg table."""

    snapshot_id: int
    timestamp_ms: int
    summary: dict[str, str] = {}


class _Snapshots(msgspec.Struct, frozen=True, rename="kebab"):
    """Parts of a metadata file that tell the snapshots."""

    snapshots: list[_Snapshot] = []
    current_snapshot_id: int | None = None
    properties: dict[str, str] = {}


_SNAPSHOTS = JsonDecoder(_Snapshots)


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
        return TableMetadata(version, path, entry.tag, content)
    return None


def is_ours(found: TableMetadata) -> bool:
    """Return True if the table was written here: others may have tables there, too."""
    return VERSION.encode() in found.content


def needed_since_ms(storage: Storage, table: str, version: int) -> int | None:
    """Return the time of the oldest snapshot that may name a file which a Delta version does not; None without any.

    Files that left the Delta table after this time may be named by it. A table that cannot be read has no snapshots:
    it is made again.
    """
    if (found := newest(storage, table)) is None:
        return None
    try:
        told = _SNAPSHOTS.decode(found.content)
    except DECODE_ERRORS:
        return None
    current = told.properties.get(VERSION)
    times = [
        each.timestamp_ms
        for each in told.snapshots
        if (current if each.snapshot_id == told.current_snapshot_id else each.summary.get(VERSION)) != str(version)
    ]
    return min(times, default=None)


def ask_to_expire(storage: Storage, table: str, before_ms: int) -> None:
    """Ask the keeper of the Iceberg table, if there is one, to expire snapshots before a time, ms since the epoch."""
    if DIRECTORY in storage.directories(table):
        storage.write(f"{table}/{DIRECTORY}/{_REQUEST}", str(before_ms).encode())


def asked_to_expire(storage: Storage, table: str) -> int:
    """Return the time before which snapshots shall expire, ms since the epoch; 0 if nobody asked."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(storage.read(f"{table}/{DIRECTORY}/{_REQUEST}"))
    return 0


def has_expired(storage: Storage, table: str) -> None:
    """Delete the request, which is fulfilled."""
    storage.delete(f"{table}/{DIRECTORY}/{_REQUEST}")
