"""Changes between two versions of a Delta table, by data file.

Belongs here: the files that an Iceberg commit adds and removes, and those of which other rows are deleted. Mostly they
follow from the commits in between, at a cost that does not depend on the table's size. Where a commit does not tell
if a file was there before, or is gone from the log, the two sets of files are compared.

Source: Delta protocol, "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import AddFile, DeletionVector, RemoveFile, locate, statistics
from lakestream.lake.table.log import LogCommit, TableLog

_OF_NEW_FILES = frozenset({"WRITE", "STREAMING UPDATE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE"})
"""Operations that add no file which is there already without also removing it."""


class Unclear(Exception):
    """Raised where commits alone do not tell the changes."""


class IcebergFile(msgspec.Struct, frozen=True):
    """Data file of an Iceberg snapshot. `deleted`: some of its rows are."""

    location: str
    partition: dict[str, str | None]
    deleted: bool


FILE = msgspec.json.Decoder(IcebergFile)


class Change(msgspec.Struct, frozen=True):
    """Change of one data file.

    `kind`: `add`, `remove`, or `vector` (other rows are deleted). `deleted`: it had deleted rows. `vector` describes
    those that it has now, in Delta's words.
    """

    kind: str
    location: str
    partition: dict[str, str | None]
    deleted: bool = False
    size: int = 0
    rows: int = 0
    stats: str = ""
    vector: dict[str, Any] | None = None


class _Touched(msgspec.Struct):
    """File that commits touch: what it was before, and its last action."""

    before: RemoveFile | None
    now: AddFile | None = None


def since(log: TableLog, version: int, newest: int) -> Iterable[Change]:
    """Return the changes by the commits after a version, from these commits alone.

    Raises:
        Unclear: they do not tell.
    """
    touched: dict[str, _Touched] = {}
    for number in range(version + 1, newest + 1):
        try:
            commit = log.commit(number)
        except FileNotFoundError:
            raise Unclear from None
        _follow(log.table, commit, touched)
    return [each for path, file in touched.items() if (each := _change(path, file)) is not None]


def _follow(table: str, commit: LogCommit, touched: dict[str, _Touched]) -> None:
    for action in commit.actions:
        if (gone := action.remove) is not None:
            if gone.partition_values is None:
                raise Unclear
            file = touched.setdefault(locate(table, gone.path), _Touched(gone))
            file.now = None
    for action in commit.actions:
        if (new := action.add) is not None:
            path = locate(table, new.path)
            if path not in touched:
                if commit.info.operation not in _OF_NEW_FILES:
                    raise Unclear
                touched[path] = _Touched(None)
            touched[path].now = new


def _change(path: str, file: _Touched) -> Change | None:
    before, now = file.before, file.now
    if before is None:
        return None if now is None else _added(path, now)
    assert before.partition_values is not None
    deleted = before.deletion_vector is not None
    if now is None:
        return Change("remove", path, before.partition_values, deleted)
    if _key(before.deletion_vector) == _key(now.deletion_vector):
        return None
    return Change("vector", path, now.partition_values, deleted, vector=_vector(now))


def between(table: str, before: Iterable[IcebergFile], now: Iterable[AddFile]) -> Iterable[Change]:
    """Yield the changes from the files of a snapshot to those of a Delta version."""
    left = {file.location: file for file in before}
    for add in now:
        path = locate(table, add.path)
        there = left.pop(path, None)
        if there is None:
            yield _added(path, add)
        elif there.deleted or add.deletion_vector is not None:
            yield Change("vector", path, add.partition_values, there.deleted, vector=_vector(add))
    for file in left.values():
        yield Change("remove", file.location, file.partition, file.deleted)


def counted(storage: Storage, changes: Iterable[Change]) -> Iterable[Change]:
    """Yield the changes with the rows of new files, from their footers where the statistics lack them."""
    for each in changes:
        if each.kind == "add" and not each.rows:
            yield msgspec.structs.replace(each, rows=_rows(storage, each.location))
        else:
            yield each


def _rows(storage: Storage, path: str) -> int:
    import pyarrow.parquet as pq

    with storage.fetch(path) as local:
        return int(pq.read_metadata(local).num_rows)


def _added(path: str, add: AddFile) -> Change:
    rows = statistics(add).rows
    return Change("add", path, add.partition_values, False, add.size, rows, add.stats or "", _vector(add))


def _vector(add: AddFile) -> dict[str, Any] | None:
    return None if add.deletion_vector is None else msgspec.to_builtins(add.deletion_vector)


def _key(vector: DeletionVector | None) -> str:
    return "" if vector is None else vector.key
