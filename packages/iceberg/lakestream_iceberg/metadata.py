"""Iceberg tables of a lake, by their files alone.

Belongs here: the streams of an account that have one, the format that a table asks for, and the tables whose Iceberg
table does not hold the newest Delta version. Needs no JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.log import TableLog, has_log
from lakestream.lake.table.masks import LATEST
from lakestream.lake.table.policy import ICEBERG_KEY
from lakestream.lake.table.schema import LATEST_PROPERTY, UID_PROPERTY
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.schemas.naming import OFF
from lakestream_iceberg.errors import NotInIceberg
from lakestream_iceberg.schema import iceberg_schema
from lakestream_spark.write import iceberg_files
from lakestream_spark.write.iceberg_files import DIRECTORY, HINT, VERSION

FORMATS = {"v2": 2, "v3": 3}


class _Stated(msgspec.Struct, frozen=True, rename="kebab"):
    """Parts of a metadata file that tell what it holds."""

    format_version: int = 0
    properties: dict[str, str] = {}


_STATED = JsonDecoder(_Stated)


def named(storage: Storage, account: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the Iceberg tables of an account, and the stream of each."""
    place = paths.table(storage.root, "x", account).rpartition("/")[0]
    for name in sorted(storage.directories(place)):
        if DIRECTORY in storage.directories(f"{place}/{name}"):
            yield (found := paths.name_of(name)), stream_of(storage, f"{place}/{name}", found)


def stream_of(storage: Storage, table: str, name: str) -> str:
    """Return the name of the stream of a table with a name: its own, but for upsert tables."""
    ended = name.rstrip("_")  # where the name was taken, it has further underscores
    if not ended.endswith(LATEST) or not has_log(storage, table):
        return name
    log = TableLog(storage, table)
    settings = log.metadata_of(log.latest).get("configuration", {}) if log.versions else {}
    return ended.removesuffix(LATEST) if LATEST_PROPERTY in settings else name


def tables(storage: Storage) -> Iterator[str]:
    """Yield the directories of the tables of a lake, of all accounts."""
    accounts = f"{storage.root}/{paths.ACCOUNTS}"
    for base in (storage.root, *(f"{accounts}/{name}" for name in storage.directories(accounts))):
        for name in storage.directories(f"{base}/{paths.STREAMS}"):
            yield f"{base}/{paths.STREAMS}/{name}"


def format_of(settings: Mapping[str, str], default: str) -> str:
    """Return the format that a table asks for by its configuration: `v2`, `v3` or `off`."""
    return settings.get(ICEBERG_KEY, default) if settings.get(UID_PROPERTY) or settings.get(LATEST_PROPERTY) else OFF


def any_behind(lake: str, default: str) -> bool:
    """Return True if an Iceberg table of a lake does not hold the newest Delta version, or shall expire snapshots.

    Args:
        lake: the lake's root.
        default: format of tables that state none.
    """
    storage = open_storage(lake)
    return any(_is_behind(storage, table, default) for table in tables(storage))


def _is_behind(storage: Storage, table: str, default: str) -> bool:
    found = iceberg_files.newest(storage, table)
    form, newest = OFF, -1
    if has_log(storage, table) and (log := TableLog(storage, table)).versions:
        newest, described = log.latest, log.metadata_of(log.latest)
        form = format_of(described.get("configuration", {}), default)
    if form == OFF:
        return found is not None and iceberg_files.is_ours(found)
    try:
        iceberg_schema(table, described)
    except NotInIceberg:
        return False
    try:
        stated = _STATED.decode(b"" if found is None else found.content)
        hint = storage.read(f"{table}/{DIRECTORY}/{HINT}")
    except (FileNotFoundError, *DECODE_ERRORS):
        return True
    if stated.format_version != FORMATS[form] or stated.properties.get(VERSION) != str(newest):
        return True
    assert found is not None
    return hint != str(found.version).encode() or iceberg_files.asked_to_expire(storage, table) > 0
