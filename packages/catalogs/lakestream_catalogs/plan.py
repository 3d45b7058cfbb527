"""Differences between the tables of a lake and the entries of a catalog.

Belongs here: deciding which entries are created, altered and dropped, and the record of what was done. No I/O. Entries
of others (without the lake's id among their properties) are never changed, and their names are never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from lakestream.lake.catalogs.keeper import ALTER, CREATE, DROP
from lakestream.lake.table.schema import LAKE_PROPERTY, TABLE_PROPERTY
from lakestream_catalogs.entries import (
    CatalogEntry,
    Table,
    free_name,
    own,
    plain_location,
)

NONE, FOREIGN = "registered", "foreign"
"""Further kinds of decisions. NONE: the entry is as it should be. FOREIGN: another program has registered the table."""

MAX_SHOWN = 3
"""Maximum number of refused changes in the text of a result."""

Render = Callable[[Table, str], CatalogEntry]
"""Returns the entry that a table should have under a name."""


class EntryChange(msgspec.Struct, frozen=True):
    """Decision on one entry: its kind, the entry as it should be (DROP, FOREIGN: as it is), and its table, if any.

    `reason`: parts of an entry that differ, or the program that has its place.
    """

    kind: str
    entry: CatalogEntry
    table: Table | None = None
    reason: str = ""


class EntryPlace(msgspec.Struct, frozen=True):
    """Decision on an entry, and the database that the entry is in. `error`: the change has failed."""

    database: str
    change: EntryChange
    error: str = ""


class SyncResult(msgspec.Struct, frozen=True):
    """Result of a pass. `complete`: nothing is left to do but what has failed. `error`: the reason for an early end."""

    catalog: str
    changes: tuple[EntryPlace, ...] = ()
    complete: bool = True
    error: str = ""
    seconds: float = 0.0

    def count(self, kind: str) -> int:
        """Count the decisions of a kind that have not failed."""
        return sum(each.change.kind == kind and not each.error for each in self.changes)

    @property
    def entries(self) -> int:
        """Return the number of entries that are as they should be."""
        return sum(self.count(kind) for kind in (NONE, CREATE, ALTER))

    @property
    def places(self) -> dict[str, tuple[str, str]]:
        """Return database and name of the entries that are as they should be, by the keys of their tables."""
        return {
            each.change.table.key: (each.database, each.change.entry.name)
            for each in self.changes
            if each.change.table is not None and each.change.kind in (NONE, CREATE, ALTER) and not each.error
        }

    @property
    def failures(self) -> list[str]:
        """Return the errors of single entries."""
        return [each.error for each in self.changes if each.error]

    @property
    def reason(self) -> str:
        """Return why the catalog is not as it should be, in one line; "" if it is."""
        if self.error:
            return self.error
        found = self.failures
        more = f", and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
        return "; ".join(found[:MAX_SHOWN]) + more

    def describe(self) -> str:
        """Return the changes in one line."""
        parts = ((CREATE, "created"), (ALTER, "altered"), (DROP, "dropped"))
        return ", ".join(f"{self.count(kind)} {word}" for kind, word in parts)


def plan(
    tables: Iterable[Table],
    existing: Sequence[CatalogEntry],
    lake: str,
    render: Render,
    unread: Collection[str] = (),
) -> list[EntryChange]:
    """Return a decision on each table and on each entry of the lake, drops first, then by the tables' paths.

    An entry keeps its name, also where another stream would get it today.

    Args:
        tables: tables that belong into this database.
        existing: all entries of the database.
        lake: the lake's id.
        render: spelling of entries in this catalog.
        unread: keys of tables that are there and could not be read: their entries stay.
    """
    wanted = {table.key: table for table in tables}
    found: dict[str, CatalogEntry] = {}
    others, drops = [], []
    for entry in sorted(existing, key=lambda each: each.name):
        key = entry.properties.get(TABLE_PROPERTY, "")
        if entry.properties.get(LAKE_PROPERTY) != lake or key in unread:
            others.append(entry)
        elif key not in wanted or key in found:
            drops.append(EntryChange(DROP, entry))
        else:
            found[key] = entry
    taken = {entry.name.lower() for entry in (*others, *found.values())}
    places = {plain_location(entry.location): entry for entry in others if entry.location}
    decided = []
    for key, table in sorted(wanted.items()):
        change = _decide(table, found.get(key), taken, places, lambda *of: _marked(render(*of), lake))
        taken.add(change.entry.name)
        decided.append(change)
    return drops + decided


def _marked(entry: CatalogEntry, lake: str) -> CatalogEntry:
    return msgspec.structs.replace(entry, properties={**entry.properties, LAKE_PROPERTY: lake})


def _changed(table: Table, found: CatalogEntry, render: Render) -> EntryChange:
    """Return the decision on an entry that is the lake's."""
    entry = render(table, found.name)
    if not (reason := difference(found, entry)):
        return EntryChange(NONE, found, table)
    kept = {name: value for name, value in found.properties.items() if name not in own(found.properties)}
    return EntryChange(ALTER, msgspec.structs.replace(entry, properties={**kept, **entry.properties}), table, reason)


def _decide(
    table: Table, found: CatalogEntry | None, taken: set[str], places: dict[str, CatalogEntry], render: Render
) -> EntryChange:
    if found is not None:
        return _changed(table, found, render)
    entry = render(table, name := free_name(table, taken))
    if (other := places.get(plain_location(entry.location))) is not None:
        return EntryChange(FOREIGN, other, table, f"another program has registered it as {other.name}")
    if not name:
        return EntryChange(FOREIGN, entry, table, "other programs have taken its names")
    return EntryChange(CREATE, entry, table)


def moved(table: Table, found: CatalogEntry | None, lake: str, render: Render) -> EntryChange | None:
    """Return the change that lets an entry name the newest metadata of its Iceberg table; None if the entry is not the
    lake's any more, and everything has to be compared.

    Args:
        table, found: the table, and its entry as it is now.
        lake: the lake's id.
        render: spelling of entries in this catalog.
    """
    if found is None or found.properties.get(LAKE_PROPERTY) != lake:
        return None
    return (
        None
        if found.properties.get(TABLE_PROPERTY) != table.key
        else _changed(table, found, lambda *of: _marked(render(*of), lake))
    )


def difference(found: CatalogEntry, wanted: CatalogEntry) -> str:
    """Return the parts in which an entry differs from the wanted one, as text; "" if it is the same.

    Properties of other programs do not count.
    """
    parts = []
    if plain_location(found.location) != plain_location(wanted.location):
        parts.append("location")
    if found.columns != wanted.columns:
        parts.append("columns")
    if found.comment != wanted.comment:
        parts.append("comment")
    unequal = any(found.properties.get(name) != value for name, value in wanted.properties.items())
    if unequal or own(found.properties).keys() - wanted.properties.keys():
        parts.append("properties")
    return ", ".join(parts)
