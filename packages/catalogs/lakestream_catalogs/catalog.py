"""The interface of a catalog.

Belongs here: the operations that every kind of catalog has, and their errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType

from lakestream.lake.errors import LakeError
from lakestream_catalogs.entries import CatalogEntry, Table

REQUEST_SECONDS = 10.0
"""Time limit of a connection to a catalog, and of each request to it."""


class CatalogAway(LakeError):
    """Raised when a catalog does not answer, or refuses everything: no further request makes sense now."""

    def __init__(self, catalog: str, reason: str, remedy: str) -> None:
        super().__init__(f"catalog {catalog} cannot be used: {reason}; {remedy}")


class CatalogRefused(LakeError):
    """Raised when a catalog refuses one request."""

    def __init__(self, catalog: str, what: str, reason: str) -> None:
        super().__init__(f"catalog {catalog} has refused to {what}: {reason}")


class Catalog(ABC):
    """Connection to a catalog, for one thread. Closed by `close`, or as a context manager.

    All operations raise CatalogAway or CatalogRefused.
    """

    def __enter__(self) -> Catalog:
        """Return the catalog."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    @abstractmethod
    def databases(self) -> list[str]:
        """Return the names of all databases."""

    @abstractmethod
    def create_database(self, database: str, comment: str) -> None:
        """Create a database, unless it exists."""

    @abstractmethod
    def entries(self, database: str) -> list[CatalogEntry]:
        """Return all entries of a database, also those of other programs."""

    def entry(self, database: str, name: str) -> CatalogEntry | None:
        """Return one entry; None if it is gone."""
        return next((each for each in self.entries(database) if each.name == name), None)

    @abstractmethod
    def render(self, table: Table, name: str) -> CatalogEntry:
        """Return the entry that a table should have, as `entries` would return it. Makes no request."""

    @abstractmethod
    def create(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Create an entry."""

    @abstractmethod
    def alter(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Change an entry of the same name to be as this one."""

    @abstractmethod
    def drop(self, database: str, name: str) -> None:
        """Drop an entry, unless it is gone. The table stays."""

    @abstractmethod
    def close(self) -> None:
        """End the connection."""
