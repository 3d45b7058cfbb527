"""Catalog entries for the tables of streams.

Belongs here: registering tables in the catalog of a Spark session (a Hive metastore, or another one). A catalog entry
is a name and a location: schema, versions and rows stay in the table, so an entry follows every commit by itself, and
dropping it leaves the table as it is.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from lakestream.lake.delta.log import has_log
from lakestream.lake.delta.schema import quoted, ticked
from lakestream.lake.files import paths
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_NAME = 100
"""Maximum length of a table's name in characters; a metastore allows 128. A longer one is cut and ends in a hash."""

_ODD = re.compile(r"[^a-z0-9_]")


class Registered(msgspec.Struct, frozen=True):
    """A stream's table in the catalog: stream, name in the catalog, and location as Spark spells it."""

    stream: str
    name: str
    location: str


def register(
    spark: SparkSession, lake: str, database: str = "default", account: str = paths.DEFAULT_ACCOUNT
) -> list[Registered]:
    """Create an entry in a database of the catalog for each stream's table of an account, and drop those of tables that
    are gone.

    The entry of stream ORDERS is `orders`. Characters that a metastore does not accept become `_`; where two streams
    would have one name, the later one gets a hash suffix. Other tables of the database stay. Call it again when streams
    were created or deleted.

    Raises:
        UnsupportedLake: the lake's address.
    """
    storage = open_storage(lake)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {ticked(database)}")
    existing = _existing(spark, database)
    wanted = {storage.spark_path(path): stream for stream, path in _tables(storage, account)}
    below = _plain(storage.spark_path(paths.table(storage.root, "x", account))).rpartition("/")[0] + "/"
    for name, location in list(existing.items()):
        if location.startswith(below) and location not in map(_plain, wanted):
            spark.sql(f"DROP TABLE IF EXISTS {ticked(database)}.{ticked(name)}")
            del existing[name]
    by_location = {location: name for name, location in existing.items()}
    found = []
    for location, stream in wanted.items():
        if (known := by_location.get(_plain(location))) is not None:
            name = known
        else:
            name = table_name(stream)
            if name in existing:
                name = _hashed(name, stream)
            spark.sql(f"CREATE TABLE {ticked(database)}.{ticked(name)} USING delta LOCATION {quoted(location)}")
            existing[name] = _plain(location)
        found.append(Registered(stream, name, location))
    return found


def table_name(stream: str) -> str:
    """Return a stream's name as a metastore accepts it: lower case letters, digits and `_`."""
    name = _ODD.sub("_", stream.lower())
    return name if len(name) <= MAX_NAME else _hashed(name, stream)


def _hashed(name: str, stream: str) -> str:
    return f"{name[: MAX_NAME - 9]}_{hashlib.sha256(stream.encode()).hexdigest()[:8]}"


def _tables(storage: Storage, account: str) -> list[tuple[str, str]]:
    """Return (stream, path) of each table, by name. The name of a stream that was too long for a directory is cut."""
    streams = paths.table(storage.root, "x", account).rpartition("/")[0]
    return [
        (paths.name_of(name), f"{streams}/{name}")
        for name in storage.directories(streams)
        if has_log(storage, f"{streams}/{name}")
    ]


def _existing(spark: SparkSession, database: str) -> dict[str, str]:
    """Return the names in the database with their locations, from the catalog alone: the data may be gone."""
    jvm_catalog = spark._jsparkSession.sessionState().catalog().externalCatalog()
    found = {}
    names = jvm_catalog.listTables(database)
    for number in range(names.size()):
        location = jvm_catalog.getTable(database, names.apply(number)).storage().locationUri()
        if location.isDefined():
            found[names.apply(number)] = _plain(location.get().toString())
    return found


def _plain(location: str) -> str:
    """Return a location in one spelling."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return unquote(parts.path)
    return location.rstrip("/")
