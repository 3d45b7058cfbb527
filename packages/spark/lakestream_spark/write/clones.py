"""Registry of shallow clones, and the files of other tables that they reference.

Belongs here: which tables reference files of which others. A clone's log has absolute paths into its origin's
directory, so VACUUM of the origin has to know the clone. There are two sources:

- `<lake>/_clones/<hash>.json`, written before a clone is created; it is the only way to know a clone outside of the
  lake,
- the logs of all tables in the lake: a table whose newest version references files outside of its own directory is a
  clone, by whatever program it was created.

An entry is written under the lock of the origin's table, and files of a table are deleted only under that lock after
reading the registry. A young entry without a clone belongs to a clone that is being created, which needs all files of
its version.

The entry of a clone in the lake is dropped when the clone is gone. A clone outside of the lake that cannot be read
stops VACUUM of its origin with an error, because it may only be unavailable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import located
from lakestream.lake.table.log import LOG_DIRECTORY, TableLog, TableVersion, log_directory

FRESH_NS = 3_600_000_000_000
"""An entry younger than this may belong to a clone that is still being created."""
DEPTH = 6
"""Depth below the lake's root to which tables are searched."""


class CloneRefused(LakeError):
    """Raised when a clone cannot be created; the text says why."""


class CloneUnreadable(LakeError):
    """Raised when a registered clone cannot be read, so that the files that it needs are unknown."""

    def __init__(self, entry: str, target: str) -> None:
        super().__init__(
            f"the clone {target} cannot be read, so its origin is not vacuumed; bring it back, or delete {entry}"
        )


class Clone(msgspec.Struct, frozen=True):
    """An entry of the registry: origin, place, version of the origin, and creation time. `made`: the clone exists."""

    origin: str
    target: str
    version: int
    created_ns: int
    made: bool = False


_CLONE = msgspec.json.Decoder(Clone)


def forget(storage: Storage, target: str) -> None:
    """Remove the entry of a clone that needs no files of other tables any more."""
    storage.delete(paths.clone_entry(storage.root, target))


def lacks_files(storage: Storage, table: str, state: TableVersion) -> bool:
    """Return True if files of the table's directory that a version references are gone: the log outlives the files."""
    there = {entry.path for entry in storage.tree(table)}
    named = {path for add in state.files.values() for path in located(table, add)}
    return any(path not in there for path in named if path.startswith(table + "/"))


def registered(storage: Storage) -> list[Clone]:
    """Return the registry, without entries of clones in the lake that are gone."""
    found = []
    for entry in storage.list(f"{storage.root}/{paths.CLONES}"):
        if not entry.name.endswith(".json"):
            continue
        try:
            content = storage.read(entry.path)
            each = _CLONE.decode(content)
            gone = each.target.startswith(storage.root + "/") and not storage.names(log_directory(each.target))
            if not gone or not (each.made or time.time_ns() - each.created_ns > FRESH_NS):
                found.append(each)
            elif storage.read(entry.path) == content:  # else another clone is being made there
                storage.delete(entry.path)
        except FileNotFoundError:  # detached meanwhile
            continue
    return found


class References:
    """References between the files of the lake's tables, cached, since commits never change.

    Args:
        storage: the lake.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, tuple[tuple[int, str], frozenset[str]]] = {}
        self._looked: dict[str, frozenset[Clone]] = {}  # the registry at the last question about a table
        self._real_paths: dict[str, str] = {}  # for one call; links may change

    def into(self, table: str) -> set[str]:
        """Return the paths of the files of `table` that other tables need according to their logs.

        Raises:
            CloneUnreadable: a registered clone of it cannot be read.
        """
        return set().union(*self.by_clone(table).values())

    def by_clone(self, table: str) -> dict[str, set[str]]:
        """Return the same by the table that needs the files, as paths below `table`.

        Raises:
            CloneUnreadable: a registered clone of it cannot be read.
        """
        clones = {each.target: each for each in registered(self._storage)}
        self._looked[table] = frozenset(clones.values())
        self._real_paths.clear()
        found: dict[str, set[str]] = {}
        for path in {*tables_below(self._storage, self._storage.root), *clones}:
            if path != table and (needed := self._needed(table, path, clones.get(path))):
                found[path] = needed
        return found

    def newly(self, table: str) -> set[str]:
        """Return the files needed by clones that were registered since the last `into` or `by_clone` of the table.

        Cheap enough to be called under the table's lock, without which no clone is registered.
        """
        before = self._looked.get(table, frozenset())
        fresh = [each for each in registered(self._storage) if each not in before]
        return set().union(*(self._needed(table, each.target, each) for each in fresh))

    def _needed(self, table: str, path: str, entry: Clone | None) -> set[str]:
        """Return the files of `table` that the table at `path` needs. Raises CloneUnreadable."""
        outside = self._outside(path, entry is not None)
        if outside is None and entry is not None:
            outside = self._expected(table, entry)
        return self._below(table, outside) if outside else set()

    def _expected(self, table: str, entry: Clone) -> frozenset[str]:
        """Return the files that a clone needs that is being created.

        Raises:
            CloneUnreadable: it is not in the lake, so it may exist and be unavailable.
        """
        if not entry.target.startswith(self._storage.root + "/"):
            if self._real(entry.origin) == self._real(table):
                raise CloneUnreadable(paths.clone_entry(self._storage.root, entry.target), entry.target)
            return frozenset()
        try:
            adds = TableLog(self._storage, entry.origin).state(entry.version).files.values()
        except FileNotFoundError:
            return frozenset()
        return frozenset(path for add in adds for path in located(entry.origin, add))

    def _below(self, table: str, files: frozenset[str]) -> set[str]:
        """Return those of the files that are in a table's directory, as paths that begin with `table`."""
        below = self._real(table) + "/"
        found = set()
        for each in files:
            directory, _, name = each.rpartition("/")
            # The clone may have been made under another path of the lake.
            if (spelled := f"{self._real(directory)}/{name}").startswith(below):
                found.add(f"{table}/{spelled[len(below) :]}")
        return found

    def _real(self, path: str) -> str:
        """Return a directory's path without symbolic links; an address in an object store unchanged."""
        if not paths.is_local(path):
            return path
        if (known := self._real_paths.get(path)) is None:
            known = self._real_paths[path] = os.path.realpath(path)
        return known

    def _outside(self, table: str, is_clone: bool) -> frozenset[str] | None:
        """Return the files outside of its own directory that a table references in any version; None without a
        table."""
        storage = self._storage if table.startswith(self._storage.root + "/") else open_storage(table)
        log = TableLog(storage, table)
        versions = log.commits + log.checkpoints
        if not versions:
            return None
        # A table that was created again may have the same version; the commit's tag tells.
        seen = max(versions), log.tag(max(versions)) or ""
        known = self._known.get(table)
        if known is not None and known[0] == seen:
            return known[1]
        adds = list(log.state().files.values())
        outside = {path for add in adds for path in located(table, add) if not path.startswith(table + "/")}
        if outside or is_clone:
            for add in log.ever_added():
                outside.update(path for path in located(table, add) if not path.startswith(table + "/"))
        self._known[table] = seen, frozenset(outside)
        return self._known[table][1]


def tables_below(storage: Storage, directory: str, depth: int = DEPTH) -> Iterator[str]:
    """Yield every Delta table below a directory, except in staging areas, hidden directories and other tables."""
    names = storage.directories(directory)
    if LOG_DIRECTORY in names:
        yield directory
        return
    if depth == 0:
        return
    for name in names:
        if not name.startswith(("_", ".")) and name != paths.SEGMENTS:
            yield from tables_below(storage, f"{directory}/{name}", depth - 1)
