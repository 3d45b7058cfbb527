"""Synchronisation of a catalog with a lake.

Belongs here: one pass over a catalog: reading its entries, and making the changes that `plan` decides on. Passes may
be repeated and may run at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from lakestream.lake.catalogs.address import CatalogAddress
from lakestream.lake.catalogs.keeper import CREATE, DROP
from lakestream_catalogs.catalog import Catalog, CatalogRefused
from lakestream_catalogs.entries import Table, database_of, is_below
from lakestream_catalogs.plan import FOREIGN, NONE, EntryChange, EntryPlace, SyncResult, plan
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
