"""Making a clone independent of the tables whose files it names.

Belongs here: which files those are, bringing them into the clone's own directory, and the commit that names them there.
A file is brought over as a hard link where file system and storage have such, as a copy inside of the object store,
else as a copy through this process. Its name there follows from its own name, which is unique, so whoever is killed in
the middle and begins anew finds what is there already. Nothing changes for readers until one commit, an OPTIMIZE that
changes no row, puts all of them in the places of the others.

Then older versions of the clone would still name the others' files: the log begins anew at a checkpoint of the commit.

Invariant: whoever detaches is the lake's maintainer. What was brought over and is not named yet would be taken for dead
by another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.delta.actions import Add, located, to_z85, vector_file
from lakestream.lake.delta.log import Log
from lakestream.lake.errors import LakeError
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.storage import Storage
from lakestream.lake.write.rewrite import Rewriter, plain, removal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = "detached"
"""Below the clone's table: data files that came from others."""
PARALLEL = 4
"""Files brought over at the same time."""


class DetachStopped(LakeError):
    """Somebody wants the program to end; what was brought over stays, and the next attempt goes on from there."""

    def __init__(self, table: str) -> None:
        super().__init__(f"detaching {table} was stopped; the next attempt goes on from there")


class Detached(msgspec.Struct, frozen=True):
    """How far it is: files brought over (or found there), of how many, and their bytes."""

    table: str
    files: int = 0
    of: int = 0
    size: int = 0


def foreign(table: str, adds: Iterable[Add], only: Set[str] | None = None) -> list[Add]:
    """The data files that are outside of the table's directory, or whose deletion vectors are.

    Args:
        only: of those, the ones that need one of these paths.
    """
    found = []
    for add in adds:
        outside = [path for path in located(table, add) if not path.startswith(table + "/")]
        if outside and (only is None or any(path in only for path in outside)):
            found.append(add)
    return found


def of_others(storage: Storage, table: str) -> bool:
    """Whether a table names files of others, in any version that its log has."""
    log = Log(storage, table)
    return bool(foreign(table, log.state().files.values()) or foreign(table, log.ever_added()))


class Detacher:
    """Detaches clones of one lake. Not for use by two threads at once.

    Args:
        spark: a session with Delta; it is not changed.
        storage: the lake.
        stopping: asked before each file.
        report: called after each file, with how far it is.
    """

    def __init__(
        self,
        spark: SparkSession,
        storage: Storage,
        stopping: Callable[[], bool] = lambda: False,
        report: Callable[[Detached], None] = lambda done: None,
    ) -> None:
        self._storage = storage
        self._stopping = stopping
        self._report = report
        self._rewriter = Rewriter(spark.newSession(), storage, 0)

    def detach(
        self,
        table: str,
        alone: Callable[[], AbstractContextManager[bool]],
        metadata: Callable[[], str | None],
        only: Set[str] | None = None,
    ) -> Detached:
        """Bring over what the newest version of a clone names outside of it, and name it there.

        Args:
            table: the clone's path or URL.
            alone: the clone's lock to commit under; gives whether the table is still the same one.
            metadata: what the commit says in its userMetadata, asked under that lock.
            only: the files of others that it shall need no longer; all by default.

        Raises:
            DetachStopped: `stopping` was true.
        """
        there = open_storage(table)
        self._bring(there, table, foreign(table, Log(there, table).state().files.values(), only))
        transaction = self._rewriter.begin(table)
        state = Log(there, table).state(int(transaction.snapshot().version()))
        adds = foreign(table, state.files.values(), only)
        done = self._bring(there, table, adds)  # what has come since
        stamp_ms = int(transaction.snapshot().timestamp())
        actions: list[dict[str, Any]] = [{"add": _own(table, add)} for add in adds]
        actions += [{"remove": removal(add, stamp_ms)} for add in adds]
        with alone() as same:
            if not same:
                return Detached(table)
            self._rewriter.commit(transaction, actions, metadata())
        return done

    def _bring(self, there: Storage, table: str, adds: list[Add]) -> Detached:
        """Have a copy of every file in the table's directory."""
        pairs = sorted({pair for add in adds for pair in _pairs(table, add)})
        sizes = {entry.path: entry.size for entry in there.tree(f"{table}/{DIRECTORY}")}
        done = Detached(table, of=len(pairs))

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
            for size in _some_at_once(pool, one, pairs):
                done = Detached(table, done.files + 1, done.of, done.size + size)
                self._report(done)
        assert done.files == done.of  # nothing is named that is not there
        return done


def _some_at_once(
    pool: ThreadPoolExecutor, work: Callable[[tuple[str, str]], int], items: list[tuple[str, str]]
) -> Iterator[int]:
    """What `work` gives for each, a few at the same time. The first error ends it: nothing more is begun."""
    waiting = iter(items)
    under_way: set[Future[int]] = {pool.submit(work, item) for item in islice(waiting, PARALLEL)}
    while under_way:
        finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
        for each in finished:
            yield each.result()
            under_way |= {pool.submit(work, item) for item in islice(waiting, 1)}


def _pairs(table: str, add: Add) -> Iterator[tuple[str, str]]:
    """What has to be brought over for a data file: from where, to where."""
    for source in located(table, add):
        if not source.startswith(table + "/"):
            yield source, _target(table, source)


def _target(table: str, source: str) -> str:
    name = source.rpartition("/")[2]
    return f"{table}/{DIRECTORY}/{name}"


def _own(table: str, add: Add) -> dict[str, Any]:
    """The action that names a file in the clone's own directory."""
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
    """How a deletion vector's file in DIRECTORY is called: by its uuid, behind the directory it is in.

    Source: Delta protocol, "Deletion Vector Descriptor Schema".
    """
    name = file.rpartition("/")[2].removeprefix("deletion_vector_").removesuffix(".bin")
    return {"storageType": "u", "pathOrInlineDv": DIRECTORY + to_z85(uuid.UUID(name).bytes)}
