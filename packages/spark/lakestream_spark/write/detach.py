"""Detaching a clone: making it independent of the tables whose files it references.

Belongs here: finding those files, copying them into the clone's own directory, and the commit that references the
copies. A copy is a hard link where possible, a copy within the object store, or else made through this process. Its
name follows from the original's, which is unique, so a repetition after a kill finds finished copies. Readers see no
change until one commit, an OPTIMIZE that changes no row, replaces all references.

Older versions of the clone would still reference the others' files: the log is cut at a checkpoint of the commit.

Invariant: only the lake's maintainer detaches. Another one would delete copies that are not referenced yet.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import AddFile, located, to_z85, vector_file
from lakestream.lake.table.log import TableLog
from lakestream_spark.write.commit import Commit, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = "detached"
"""Directory below the clone's table for copied files."""
PARALLEL = 4
"""Number of files copied in parallel."""


class DetachStopped(LakeError):
    """Raised when the program has to end; finished copies stay, and the next attempt continues."""

    def __init__(self, table: str) -> None:
        super().__init__(f"detaching {table} was stopped; the next attempt goes on from there")


class DetachResult(msgspec.Struct, frozen=True):
    """Progress: files copied (or found), their total number, and bytes."""

    table: str
    files: int = 0
    of: int = 0
    size: int = 0


def foreign(table: str, adds: Iterable[AddFile], only: Set[str] | None = None) -> list[AddFile]:
    """Return the data files that are outside of the table's directory, or whose deletion vectors are.

    Args:
        only: restricts them to files that need one of these paths.
    """
    found = []
    for add in adds:
        outside = [path for path in located(table, add) if not path.startswith(table + "/")]
        if outside and (only is None or any(path in only for path in outside)):
            found.append(add)
    return found


def of_others(storage: Storage, table: str) -> bool:
    """Return True if any version of a table in its log references files of others."""
    log = TableLog(storage, table)
    return bool(foreign(table, log.state().files.values()) or foreign(table, log.ever_added()))


class Detacher:
    """Detaches clones of one lake. Not for use by two threads at once.

    Args:
        spark: a session with Delta; it is not changed.
        stopping: asked before each file.
        report: called with the progress after each file.
    """

    def __init__(
        self,
        spark: SparkSession,
        stopping: Callable[[], bool] = lambda: False,
        report: Callable[[DetachResult], None] = lambda done: None,
    ) -> None:
        self._stopping = stopping
        self._report = report
        self._spark = spark.newSession()

    def detach(
        self,
        table: str,
        alone: Callable[[], AbstractContextManager[bool]],
        metadata: Callable[[], str | None],
        only: Set[str] | None = None,
    ) -> DetachResult:
        """Copy the files outside of a clone that its newest version references, and reference the copies.

        Args:
            table: the clone's path or URL.
            alone: context of the clone's lock to commit under; gives False if the table is another one by now.
            metadata: returns the commit's userMetadata, called under that lock.
            only: restricts this to files that need one of these paths; all by default.

        Raises:
            DetachStopped: `stopping` was true.
        """
        there = open_storage(table)
        self._bring(there, table, foreign(table, TableLog(there, table).state().files.values(), only))
        commit = Commit(self._spark, there, table)
        adds = foreign(table, commit.state().files.values(), only)
        done = self._bring(there, table, adds)  # files added since
        commit.add(_own(table, add) for add in adds)
        commit.remove(adds, data_change=False)
        with alone() as same:
            if not same:
                return DetachResult(table)
            commit.run("optimize", metadata())
        return done

    def _bring(self, there: Storage, table: str, adds: list[AddFile]) -> DetachResult:
        """Copy every file into the table's directory, if it is not there."""
        pairs = sorted({pair for add in adds for pair in _pairs(table, add)})
        sizes = {entry.path: entry.size for entry in there.tree(f"{table}/{DIRECTORY}")}
        done = DetachResult(table, of=len(pairs))

        def one(pair: tuple[str, str]) -> int:
            source, target = pair
            if self._stopping():
                raise DetachStopped(table)
            if target in sizes:  # a copy appears under its name when it is complete
                return sizes[target]
            there.copy_file(target, source, open_storage(source))
            entry = there.stat(target)
            return entry.size if entry is not None else 0

        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="detach") as pool:
            for size in pool.map(one, pairs):  # the first error cancels the rest
                done = DetachResult(table, done.files + 1, done.of, done.size + size)
                self._report(done)
        assert done.files == done.of  # every referenced file exists
        return done


def _pairs(table: str, add: AddFile) -> Iterator[tuple[str, str]]:
    """Yield (source, copy) for each file of a data file's action."""
    for source in located(table, add):
        if not source.startswith(table + "/"):
            yield source, _target(table, source)


def _target(table: str, source: str) -> str:
    name = source.rpartition("/")[2]
    return f"{table}/{DIRECTORY}/{name}"


def _own(table: str, add: AddFile) -> dict[str, Any]:
    """Return the action that references a file's copy."""
    found = plain(add)
    source = located(table, add)[0]
    if not source.startswith(table + "/"):
        found["path"] = _target(table, source)[len(table) + 1 :]
    vector = add.deletion_vector
    file = None if vector is None else vector_file(table, vector)
    if vector is not None and file is not None and not file.startswith(table + "/"):
        found["deletionVector"] = {**found["deletionVector"], **_named(file)}
    return found


def _named(file: str) -> dict[str, str]:
    """Return the descriptor fields of a deletion vector's file in DIRECTORY.

    Source: Delta protocol, "Deletion Vector Descriptor Schema".
    """
    name = file.rpartition("/")[2].removeprefix("deletion_vector_").removesuffix(".bin")
    return {"storageType": "u", "pathOrInlineDv": DIRECTORY + to_z85(uuid.UUID(name).bytes)}
