"""A catalog in memory, for tests of what uses the interface."""

from __future__ import annotations

import msgspec

from lakestream_catalogs.catalog import Catalog, CatalogAway, CatalogRefused
from lakestream_catalogs.entries import POINTER_PROPERTY, CatalogEntry, CatalogField, Table


class MemoryCatalog(Catalog):
    """Entries by database and name. `away`: every request fails. `refused`: names whose changes are refused."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, CatalogEntry]] = {}
        self.away = ""
        self.refused: set[str] = set()
        self.requests: list[str] = []

    def databases(self) -> list[str]:
        self._ask("databases")
        return list(self.kept)

    def create_database(self, database: str, comment: str) -> None:
        self._ask(f"create {database}")
        self.kept.setdefault(database, {})

    def entries(self, database: str) -> list[CatalogEntry]:
        self._ask(f"list {database}")
        return list(self.kept[database].values())

    def entry(self, database: str, name: str) -> CatalogEntry | None:
        self._ask(f"entry {database}.{name}")
        return self.kept[database].get(name)

    def render(self, table: Table, name: str) -> CatalogEntry:
        columns = tuple(CatalogField(each.name, str(each.type), each.comment) for each in table.columns)
        pointer = {POINTER_PROPERTY: table.pointer} if table.pointer else {}
        return CatalogEntry(name, table.path, table.comment, columns, table.properties | pointer)

    def create(self, database: str, entry: CatalogEntry, table: Table) -> None:
        self._ask(f"create {database}.{entry.name}", entry.name)
        assert entry.name not in self.kept[database]
        self.kept[database][entry.name] = entry

    def alter(self, database: str, entry: CatalogEntry, table: Table) -> None:
        self._ask(f"alter {database}.{entry.name}", entry.name)
        assert entry.name in self.kept[database]
        self.kept[database][entry.name] = entry

    def drop(self, database: str, name: str) -> None:
        self._ask(f"drop {database}.{name}", name)
        del self.kept[database][name]

    def close(self) -> None:
        pass

    def touch(self, database: str, name: str, **changes: object) -> None:
        """Change an entry as another program would."""
        self.kept[database][name] = msgspec.structs.replace(self.kept[database][name], **changes)

    def _ask(self, request: str, name: str = "") -> None:
        if self.away:
            raise CatalogAway("memory://", self.away, "start it")
        if name in self.refused:
            raise CatalogRefused("memory://", request, "no")
        self.requests.append(request)
