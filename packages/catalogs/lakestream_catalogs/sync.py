"""Synchronisation of a catalog with a lake.

Belongs here: one pass over a catalog: reading its entries, and making the changes that `plan` decides on. Passes may
be repeated and may run at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from lakestream.lake.catalogs.address import CatalogAddress
from lakestream.lake.catalogs.keeper import CREATE, DROP
from lakestream.lake.table.schema import LAKE_PROPERTY, TABLE_PROPERTY
from lakestream_catalogs.catalog import Catalog, CatalogRefused
from lakestream_catalogs.entries import CatalogEntry, Table, database_of, is_below
from lakestream_catalogs.plan import FOREIGN, NONE, EntryChange, EntryPlace, SyncResult, moved, plan
from lakestream_catalogs.tables import Tables

SYNC_SECONDS = 60.0
"""Time after which a pass begins no further change; the next one goes on."""


class Planned(msgspec.Struct, frozen=True):
    """Decisions on the entries of a database. `exists`: the database is there."""

    database: str
    exists: bool
    changes: list[EntryChange]


def plans(catalog: Catalog, address: CatalogAddress, found: Tables) -> Iterator[Planned]:
    """Yield the decisions for the databases of all accounts, also of accounts that are gone.

    Raises:
        CatalogAway, CatalogRefused: an entry or a list cannot be read.
    """
    wanted: dict[str, list[Table]] = {}
    for table in found.tables:
        wanted.setdefault(database_of(address.database, table.account), []).append(table)
    there = {name for name in catalog.databases() if is_below(address.database, name)}
    for database in sorted({*wanted, *there}):
        existing = catalog.entries(database) if database in there else []
        changes = plan(wanted.get(database, ()), existing, found.lake, catalog.render, found.unread)
        yield Planned(database, database in there, changes)


def sync(
    catalog: Catalog,
    address: CatalogAddress,
    found: Tables,
    stopped: Callable[[], bool] = lambda: False,
    seconds: float = SYNC_SECONDS,
) -> SyncResult:
    """Make the entries of a catalog those of the lake.

    A refused change is in the result, and the others are made.

    Raises:
        CatalogAway: the catalog does not answer any more.
        CatalogRefused: its entries cannot be read, or a database cannot be created.
    """
    began = time.monotonic()
    done: list[EntryPlace] = []
    complete = True
    for planned in plans(catalog, address, found):
        database = planned.database
        if not planned.exists:
            catalog.create_database(database, "Tables of streams, kept by lakestream")
        for change in planned.changes:
            if change.kind in (NONE, FOREIGN):
                done.append(EntryPlace(database, change))
            elif stopped() or time.monotonic() - began > seconds:
                complete = False
            else:
                done.append(_apply(catalog, database, change))
    return SyncResult(str(address), tuple(done), complete, seconds=time.monotonic() - began)


def follow(
    catalog: Catalog,
    address: CatalogAddress,
    before: Sequence[Table],
    found: Tables,
    places: Mapping[str, tuple[str, str]],
) -> SyncResult | None:
    """Let entries name the newest metadata of their Iceberg tables, and drop those of tables that have none any more,
    where nothing else has changed: a commit is no reason to read all entries. Return None if a pass is needed.

    Args:
        before: the tables of the last pass.
        found: the tables now.
        places: database and name of each entry, by the table's key.

    Raises:
        CatalogAway: the catalog does not answer any more.
    """
    began = time.monotonic()
    now = {table.key: table for table in found.tables}
    then = {table.key: table for table in before}
    changed = [table for key, table in {**then, **now}.items() if now.get(key) != then.get(key)]
    for table in changed:
        earlier, later = then.get(table.key), now.get(table.key)
        moved_only = earlier and later and msgspec.structs.replace(earlier, pointer=later.pointer) == later
        if table.key not in places or not earlier or not earlier.pointer or not (moved_only or later is None):
            return None
    done = [
        EntryPlace(places[key][0], EntryChange(NONE, CatalogEntry(places[key][1], table.path), table))
        for key, table in now.items()
        if key in places and then.get(key) == table
    ]
    for table in changed:
        database, name = places[table.key]
        try:
            entry = catalog.entry(database, name)
        except CatalogRefused:  # its metadata file is gone: the table was made anew, or is no Iceberg table any more
            entry = CatalogEntry(name, table.path, properties={LAKE_PROPERTY: found.lake, TABLE_PROPERTY: table.key})
        change = moved(table, entry, found.lake, catalog.render)
        if change is None or entry is None:
            return None
        if table.key not in now:
            change = EntryChange(DROP, entry)
        done.append(EntryPlace(database, change) if change.kind == NONE else _apply(catalog, database, change))
    return SyncResult(str(address), tuple(done), seconds=time.monotonic() - began)


def _apply(catalog: Catalog, database: str, change: EntryChange) -> EntryPlace:
    try:
        if change.kind == DROP:
            catalog.drop(database, change.entry.name)
        else:
            assert change.table is not None
            make = catalog.create if change.kind == CREATE else catalog.alter
            make(database, change.entry, change.table)
    except CatalogRefused as error:
        return EntryPlace(database, change, str(error))
    return EntryPlace(database, change)
