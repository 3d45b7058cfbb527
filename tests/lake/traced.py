"""Runs of compactor and maintainer as steps of the model in tests/spec/Erase.tla.

Belongs here: recording what happens to tables and their files; tests/spec/erase_trace.py has the relation that it must
obey. Spark's commits are found in the logs, before anything else happens: all of it is done by one process, in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.local_storage import LocalStorage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import deletion_vectors, erasures
from lakestream.lake.table.actions import AddFile, locate
from lakestream.lake.table.batches import SeqRows
from lakestream.lake.table.log import LOG_DIRECTORY, TableLog, TableVersion
from lakestream_spark.write import maintainer
from lakestream_spark.write.clones import Clone, tables_below
from lakestream_spark.write.commit import Commit
from lakestream_spark.write.table import StreamTable
from tests.spec.erase_trace import (
    Asked,
    Committed,
    Cut,
    Deleted,
    EraseRelation,
    Expired,
    Forgotten,
    Noted,
    OfTable,
    Registered,
    Removed,
    Seqs,
    Unregistered,
    Writing,
    Written,
)

_CLONE = msgspec.json.Decoder(Clone)
_RUNS = msgspec.json.Decoder(list[tuple[int, int]])


def _inside(runs: Iterable[tuple[int, int]]) -> Seqs:
    return frozenset(seq for first, last in runs for seq in range(first, last + 1))


class EraseRecorder:
    """The events of a run in a lake on this machine, noted where its files change.

    Args:
        lake: the lake's root.
    """

    def __init__(self, lake: object) -> None:
        self.events: list[OfTable] = []
        self._storage = open_storage(str(lake))
        self._root = self._storage.root
        self._seen: dict[str, int] = {}  # newest version by table
        self._first: dict[str, int] = {}
        self._rows: dict[str, Any] = {}  # sequences of a file's rows, in their order
        self._entries: dict[str, Clone] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note the events, for the duration of the block."""
        write, delete, move = LocalStorage.write, LocalStorage.delete, LocalStorage.move
        rows, dead, writing = StreamTable.delete, maintainer.dead_files, Commit.write

        def wrote(storage: LocalStorage, path: str, data: bytes) -> None:
            self._catch_up()
            write(storage, path, data)
            self._wrote(path, data)

        def deleting(storage: LocalStorage, path: str) -> None:
            self._leaving(path)
            delete(storage, path)

        def moving(storage: LocalStorage, source: str, target: str) -> None:
            self._catch_up()
            if source in self._seen:
                self._removed(source)
            move(storage, source, target)

        def asked(table: StreamTable, gone: SeqRows) -> None:
            self._catch_up()
            self._note(Asked("", table.path, _inside(gone.runs)))
            rows(table, gone)

        def dead_files(
            storage: Storage, log: TableLog, state: TableVersion, retain_ns: int, now_ns: int, *kept: Any
        ) -> list[str]:
            self._catch_up()
            before = log.count_until((now_ns - retain_ns) // 1_000_000)
            self._note(Expired("", log.table, log.versions[max(0, before - 1)]))
            return dead(storage, log, state, retain_ns, now_ns, *kept)

        def writing_files(commit: Commit, frame: Any) -> list[dict[str, Any]]:
            found = writing(commit, frame)
            self._catch_up()
            for add in found:
                self._note(Writing("", commit.table, locate(commit.table, add["path"])))
            return found

        with ExitStack() as stack:
            for place, name, hook in (
                (LocalStorage, "write", wrote),
                (LocalStorage, "delete", deleting),
                (LocalStorage, "move", moving),
                (StreamTable, "delete", asked),
                (maintainer, "dead_files", dead_files),
                (Commit, "write", writing_files),
            ):
                stack.enter_context(patch.object(place, name, hook))
            yield
        self._catch_up()

    def check(self) -> EraseRelation:
        """Check that each step is one of the model; return the relation, which has counted them."""
        relation = EraseRelation()
        relation.run(self.events)
        return relation

    def _note(self, event: OfTable) -> None:
        self.events.append(event)

    # ------------------------------------------------------------------ commits and files
    def _catch_up(self) -> None:
        """Note the files and the versions that have come since."""
        there = list(tables_below(self._storage, self._root))
        for table in [each for each in self._seen if each not in there]:
            self._removed(table)
        for table in there:
            for entry in self._storage.tree(table):
                if entry.name.endswith(".parquet") and LOG_DIRECTORY not in entry.path:
                    self._read(table, entry.path)
        for table in there:
            commits = TableLog(self._storage, table).commits
            for version in [each for each in commits if each > self._seen.get(table, -1)]:
                self._committed(table, version)
                self._seen[table] = version
            if commits and commits[0] > self._first.get(table, 0):
                self._first[table] = commits[0]
                self._note(Cut("", table, commits[0]))

    def _read(self, table: str, path: str) -> None:
        """Note the content of a file, unless its writer has not finished it."""
        if path in self._rows:
            return
        try:
            with pq.ParquetFile(path) as file:
                self._rows[path] = file.read(columns=["seq"]).column(0).to_numpy()
        except pa.ArrowInvalid:
            return
        self._note(Written("", table, path, frozenset(self._rows[path].tolist())))

    def _committed(self, table: str, version: int) -> None:
        actions = TableLog(self._storage, table).commit(version).actions
        added = [(locate(table, each.add.path), self._dead(table, each.add)) for each in actions if each.add]
        removed = [locate(table, each.remove.path) for each in actions if each.remove]
        self._note(Committed("", table, version, tuple(added), tuple(removed)))

    def _dead(self, table: str, add: AddFile) -> Seqs:
        """Return the messages that are marked as deleted in a file."""
        if add.deletion_vector is None:
            return frozenset()
        at = deletion_vectors.load(add.deletion_vector, table, self._storage.read)
        return frozenset(np.asarray(self._rows[locate(table, add.path)])[at].tolist())

    def _removed(self, table: str) -> None:
        self._note(Removed("", table))
        self._seen.pop(table, None)
        self._first.pop(table, None)
        self._rows = {path: rows for path, rows in self._rows.items() if not path.startswith(f"{table}/")}

    # ------------------------------------------------------------------ other files
    def _wrote(self, path: str, data: bytes) -> None:
        parent, _, name = path.rpartition("/")
        if parent.endswith(f"/{erasures.DIRECTORY}"):
            self._note(Noted("", parent.rpartition("/")[0], name, _inside(_RUNS.decode(data))))
        elif parent == f"{self._root}/{paths.CLONES}":
            self._entries[path] = entry = _CLONE.decode(data)
            self._catch_up()
            self._note(Registered("", entry.origin, entry.target, entry.version, entry.made))

    def _leaving(self, path: str) -> None:
        """Note that a file is about to be deleted."""
        self._catch_up()
        parent, _, name = path.rpartition("/")
        if not self._storage.exists(path):
            return
        if parent.endswith(f"/{erasures.DIRECTORY}"):
            self._note(Forgotten("", parent.rpartition("/")[0], name))
        elif path in self._entries:
            gone = self._entries.pop(path)
            self._note(Unregistered("", gone.origin, gone.target))
        elif path in self._rows:
            table = next(each for each in self._seen if path.startswith(f"{each}/"))
            self._note(Deleted("", table, path))
            del self._rows[path]
