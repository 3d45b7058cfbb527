"""Iceberg tables of an account, as the catalog tells its clients."""

from __future__ import annotations

from collections.abc import Iterator

from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream_spark.write.vacuum import ICEBERG as DIRECTORY


def streams(storage: Storage, account: str) -> Iterator[str]:
    """Yield the streams of an account that have an Iceberg table, by name."""
    place = paths.table(storage.root, "x", account).rpartition("/")[0]
    for name in sorted(storage.directories(place)):
        if DIRECTORY in storage.directories(f"{place}/{name}"):
            yield paths.name_of(name)
