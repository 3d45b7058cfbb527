"""Tables of the lake, and their entries in a catalog.

Belongs here: records, the properties by which an entry is recognised, and names in a catalog. No I/O.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from lakestream.lake.storage.clouds.urls import canonical
from lakestream.protocol.accounts import GLOBAL_ACCOUNT

MAX_NAME = 100
"""Maximum length of a table's name in characters; a metastore allows 128. A longer one is cut and ends in a hash."""
MAX_DATABASE = 120

PREFIX = "lakestream."
"""Prefix of all properties that lakestream sets on entries."""
ACCOUNT_PROPERTY = "lakestream.account"
TIME_PROPERTY = "lakestream.time_column"
TIME_NS_PROPERTY = "lakestream.time_ns_column"
SEQUENCE_PROPERTY = "lakestream.sequence_column"
POINTER_PROPERTY = "metadata_location"
"""Property with the newest metadata file of an Iceberg table, as Hive metastores and Glue have it."""

_ODD = re.compile(r"[^a-z0-9_]")


class Column(msgspec.Struct, frozen=True):
    """Column of a Delta table. `type` is that of the table's schema: a name, or the JSON object of a nested type."""

    name: str
    type: Any
    comment: str = ""
    nullable: bool = True


class Table(msgspec.Struct, frozen=True):
    """Table that is to be registered.

    Attributes:
        key: its path below the lake's root.
        path: its path or URL.
        account: the account of its stream.
        stream: its stream; of a table of misfits, `<STREAM>_misfits`.
        comment: description for people.
        columns: columns of its schema, in order.
        partitioned_by: names of its partition columns.
        properties: properties of its entry, besides those of the lake.
        pointer: newest metadata file of its Iceberg table; "" if it has none, or nobody asked.
    """

    key: str
    path: str
    account: str
    stream: str
    comment: str = ""
    columns: tuple[Column, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    pointer: str = ""


class CatalogField(msgspec.Struct, frozen=True):
    """Column of an entry. `type` is the text that the catalog has for it."""

    name: str
    type: str
    comment: str = ""


class CatalogEntry(msgspec.Struct, frozen=True):
    """Entry of a catalog, in the spelling of that catalog. `columns` is None if the catalog keeps none."""

    name: str
    location: str
    comment: str = ""
    columns: tuple[CatalogField, ...] | None = None
    properties: dict[str, str] = {}


def table_name(stream: str) -> str:
    """Return a stream's name as a metastore accepts it: lower case letters, digits and `_`."""
    name = _ODD.sub("_", stream.lower())
    return name if len(name) <= MAX_NAME else hashed(name, stream)


def hashed(name: str, stream: str, key: str = "") -> str:
    """Return a name that ends in a hash of the stream, or of `key`."""
    return f"{name[: MAX_NAME - 9]}_{hashlib.sha256((key or stream).encode()).hexdigest()[:8]}"


def free_name(table: Table, taken: Collection[str]) -> str:
    """Return the table's name, with a hash of the stream where another entry has it; "" if that is taken too."""
    name = table_name(table.stream)
    found = (each for each in (name, hashed(name, table.stream), hashed(name, "", table.key)) if each not in taken)
    return next(found, "")


def database_of(database: str, account: str) -> str:
    """Return the database of an account: `database` for the default one, `<database>_<account>` for others."""
    if account == GLOBAL_ACCOUNT:
        return database
    found = f"{database}_{_ODD.sub('_', account.lower())}"
    if len(found) <= MAX_DATABASE:
        return found
    return f"{found[: MAX_DATABASE - 9]}_{hashlib.sha256(account.encode()).hexdigest()[:8]}"


def is_below(database: str, name: str) -> bool:
    """Return True if a database may be that of an account."""
    return name == database or name.startswith(f"{database}_")


def plain_location(location: str) -> str:
    """Return a location in one spelling, to compare those of several programs."""
    scheme, colon, rest = location.partition(":")
    if colon and scheme == "file":
        return "/" + unquote(rest).strip("/")  # not urlsplit: programs write `#` and `?` as they are, or encoded
    return canonical(location) if "://" in location else location.rstrip("/")


def cut(text: str, most: int) -> str:
    """Return a comment of at most `most` characters on one line, without characters that catalogs refuse."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def own(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that lakestream has set."""
    return {name: value for name, value in properties.items() if name.startswith(PREFIX)}
