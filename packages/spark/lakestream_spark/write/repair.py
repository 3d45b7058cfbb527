"""Repair of a damaged table.

Belongs here: choosing the version to restore, and the commit that restores it. lake/table/check.py has the check of
files and the server's request for a repair.

The compactor restores the newest version that has no damaged file and behind whose position every segment is staged,
with its position and progress (as Delta's RESTORE does with files). Lost messages are then compacted again, exactly
once, as after any commit. The commit records that later versions are undone (`TableProgress.undone`). Where there is no
such version nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StagedSegment, StreamIdentity
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import check
from lakestream.lake.table.actions import AddFile, Key, located, table_file
from lakestream.lake.table.check import Damage, RepairRequest, asked, settle
from lakestream.lake.table.log import TableLog, TableVersion
from lakestream.lake.table.progress import TableProgress, application
from lakestream_spark.write.commit import Commit, plain
from lakestream_spark.write.errors import DamagedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Target(msgspec.Struct, frozen=True):
    """A version to restore: its state, position and progress."""

    state: TableVersion
    position: int
    progress: TableProgress | None


class TableRepair:
    """The repair of one stream's table. `run` requires the table's lock.

    Args:
        spark: a session with Delta.
        storage: the lake.
        identity: the stream.
        table: the table's path.
        directory: the stream's staging directory.
    """

    def __init__(
        self, spark: SparkSession, storage: Storage, identity: StreamIdentity, table: str, directory: str
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._identity = identity
        self._table = table
        self._directory = directory

    def run(self, check: Callable[[], None]) -> Target | None:
        """Repair the table; return None when it is not damaged.

        Args:
            check: raises when the table's lock may be lost.

        Raises:
            DamagedTable: no version can be restored.
        """
        request = asked(self._storage, self._directory)
        if request is None:
            return None
        commit = Commit(self._spark.newSession(), self._storage, self._table)
        log = TableLog(self._storage, self._table)
        now = log.state(commit.base)
        wrong = _Wrong(self._storage, self._table, request)
        damaged = wrong.of(now)
        if not damaged:
            settle(self._storage, self._directory)
            return None
        target = self._target(log, now, wrong, damaged)
        check()
        self._commit(commit, log, now, target)
        settle(self._storage, self._directory)
        return target

    def _target(self, log: TableLog, now: TableVersion, wrong: _Wrong, damaged: Sequence[Damage]) -> Target:
        """Return the newest version that can be restored."""
        here = self._position(now)
        begins = staged_from(staging.segments(self._directory), here)
        for version in reversed(log.commits):
            if version >= now.version:
                continue
            try:
                state = log.state(version)
            except FileNotFoundError:  # log clean-up has deleted the files that it is replayed from
                break
            if (position := self._position(state)) < begins - 1:
                break
            if not wrong.of(state):
                return Target(state, position, log.progress(version) if position else None)
        raise DamagedTable(check.describe(self._table, damaged), begins, *check.span(damaged))

    def _position(self, state: TableVersion) -> int:
        return state.transactions.get(application(self._identity.uid), 0)

    def _commit(self, commit: Commit, log: TableLog, now: TableVersion, target: Target) -> None:
        """Remove files that the target lacks, and add those that it has."""
        before, after = now.files, target.state.files
        if (metadata := log.metadata_of(target.state.version)) != log.metadata_of(now.version):
            commit.restate(metadata)
        commit.remove(add for key, add in before.items() if key not in after)
        commit.add(plain(add, data_change=True) for key, add in after.items() if key not in before)
        commit.run("restore", commit.move(self._progress(log, target, now.version)))

    def _progress(self, log: TableLog, target: Target, version: int) -> TableProgress:
        """Return the progress for the repair's commit, based on the restored version's."""
        progress, deletes = target.progress, 0
        if progress is None:  # an empty table
            progress = TableProgress(
                uid=self._identity.uid, last_index=target.position, last_seq=0, last_time_ns=0, departed=0
            )
        else:
            deletes = log.deletes_left(target.state.version)
        newest = log.progress(version)
        undone = [*(newest.undone if newest is not None else []), (target.state.version + 1, version)]
        return msgspec.structs.replace(progress, deletes=deletes, undone=undone)


class _Wrong:
    """Check of the files of several table versions; each file is checked once."""

    def __init__(self, storage: Storage, table: str, request: RepairRequest) -> None:
        self._storage, self._table, self._request = storage, table, request
        self._known: dict[Key, Damage | None] = {}

    def of(self, state: TableVersion) -> list[Damage]:
        """Return the damaged files of a version."""
        new = {key: add for key, add in state.files.items() if key not in self._known}
        found = check.check(self._storage, self._table, map(table_file, new.values()))
        for key, add in new.items():
            self._known[key] = found.get(add.path) or self._said(add)
        return [damage for key in state.files if (damage := self._known[key]) is not None]

    def _said(self, add: AddFile) -> Damage | None:
        """Return the damage that only the server has seen (a failed fsync), or None."""
        for path in located(self._table, add):
            if path in self._request.lasting:
                return Damage(path, self._request.files.get(path, ""), table_file(add), lasting=True)
        return None


def staged_from(staged: Sequence[StagedSegment], position: int) -> int:
    """Return the first log index from which contiguous staged segments reach back beyond a position of the table; the
    one after the position when they do not."""
    first = position + 1
    for segment in reversed(staged):
        if segment.first_index <= first <= segment.last_index + 1:
            first = segment.first_index
    return first
