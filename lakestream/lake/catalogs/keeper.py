"""The keeper of entries in catalogs, as the compactor knows it.

Belongs here: the interfaces of what packages/catalogs brings, which the compactor finds as the entry point `catalogs`
of `KEEPERS`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

KEEPERS = "lakestream.keepers"
"""Group of entry points; the object is called as `CatalogKeeper` of packages/catalogs is."""
CREATE, ALTER, DROP = CHANGES = ("create", "alter", "drop")
"""Kinds of changes of entries."""


class PassResult(Protocol):
    """Result of a pass over a catalog. `error`: the reason for an early end."""

    @property
    def catalog(self) -> str: ...

    @property
    def error(self) -> str: ...

    @property
    def entries(self) -> int:
        """Return the number of entries that are as they should be."""

    @property
    def reason(self) -> str:
        """Return why the catalog is not as it should be, in one line; "" if it is."""

    def count(self, kind: str) -> int:
        """Count the decisions of a kind that have not failed."""

    def describe(self) -> str:
        """Return the changes in one line."""


class Keeper(Protocol):
    """Keeps the entries of a lake's tables in catalogs, beside a compactor."""

    def start(self) -> None:
        """Start, unless it is running."""

    def note(self, tables: Collection[str]) -> None:
        """Announce commits to tables, or their removal, by their paths. Returns at once."""

    def once(self) -> Sequence[PassResult]:
        """Make a pass over each catalog that is due; return the results."""

    def stop(self) -> None:
        """Stop after the request that is under way."""
