"""Tests that compactor and maintainer erase as the model in tests/spec/Erase.tla does, and that planted bugs do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import erasures
from lakestream.lake.table.log import TableLog
from lakestream_spark.write import clone_maker, maintainer, rewrite, vacuum
from lakestream_spark.write.clones import References
from lakestream_spark.write.commit import Commit
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import Policy
from lakestream_spark.write.stream_compaction import StreamCompaction
from lakestream_spark.write.table import StreamTable
from tests.lake.model import StreamModel
from tests.lake.test_erasure import WEEK, secrets, stored
from tests.lake.test_maintenance import KEEP, compact
from tests.lake.traced import EraseRecorder
from tests.spec.trace import NotPermitted

pytestmark = pytest.mark.lake

DAY_NS = 86_400 * 10**9


class Killed(BaseException):
    """Raised in place of the end of the program: no handler of errors runs."""


def killed(*_: Any, **__: Any) -> None:
    raise Killed


class World:
    """A stream, its table, and what is done to them."""

    def __init__(self, spark: Any, lake: Path, log: Path) -> None:
        self.spark, self.lake, self.model = spark, lake, StreamModel(log)
        self.recorder = EraseRecorder(lake)

    @property
    def table(self) -> str:
        """The path of the table."""
        return self.model.table(self.lake)

    def store(self, count: int = 20) -> None:
        """Store messages of two subjects and compact them."""
        stored(self.spark, self.lake, self.model, secrets(self.model.next_seq + count)[self.model.next_seq :])

    def shred(self, *seqs: int) -> None:
        """Delete messages securely, and compact that."""
        self.model.remove(seqs, shred=True)
        self.compact()

    def compact(self) -> None:
        """Compact what has happened."""
        self.model.stage(self.lake)
        compact(self.spark, self.lake, self.model)

    def again(self) -> None:
        """Compact what a kill has left."""
        compact(self.spark, self.lake, self.model)

    def maintain(self, policy: Policy = WEEK, later_ns: int = 0) -> None:
        """Maintain all tables, at a later time."""
        Maintainer(self.spark, str(self.lake), policy, clock=lambda: time.time_ns() + later_ns).once()

    def clone(self, name: str = "copy") -> Path:
        """Make a clone of the table."""
        target = self.lake / name
        clone_maker.clone(self.spark, str(self.lake), self.table, str(target))
        return target

    def register(self) -> None:
        """Begin a clone, and be killed before there is a table."""
        with patch.object(SparkSession, "sql", killed), pytest.raises(Killed):
            self.clone()

    def shred_and_maintain(self) -> None:
        """Erase a message."""
        self.shred(5)
        self.maintain()

    def optimize(self) -> None:
        """Merge files, and delete those that are not needed any more."""
        self.maintain(KEEP)

    def optimize_twice(self) -> None:
        """Delete also what the first time has left behind."""
        self.optimize()
        self.optimize()

    def optimize_and_erase(self) -> None:
        """Erase a message that older files have, too."""
        self.optimize()
        self.shred_and_maintain()

    def clone_and_erase(self) -> None:
        """Erase a message that a clone has."""
        self.clone()
        self.shred_and_maintain()

    def begin_a_clone_and_erase(self) -> None:
        """Erase a message while a clone is being made."""
        self.register()
        self.shred_and_maintain()

    def write_late(self) -> None:
        """Write a file, maintain the table, and commit then."""
        commit = Commit(self.spark, open_storage(self.table), self.table)
        files = list(commit.state().files.values())
        adds = commit.write(commit.rows(files))
        self.optimize()
        commit.add([{**add, "dataChange": False} for add in adds])
        commit.remove(files, data_change=False)
        commit.run("optimize")


@pytest.fixture
def world(spark: Any, lake: Path, tmp_path: Path) -> World:
    """Return a stream whose table has two files of each subject, and what they were merged into."""
    made = World(spark, lake, tmp_path / "log")
    with made.recorder.recording():
        made.store()
        made.store()
    return made


def test_erasures_clones_vacuum_and_kills_are_steps_of_the_model(world: World) -> None:
    with world.recorder.recording():
        world.maintain(KEEP)
        clone = world.clone()
        world.shred(5, 25)
        world.maintain()  # the note stays
        open_storage(str(world.lake)).delete_tree(str(clone))
        world.maintain()
        world.model.remove([7], shred=True)
        world.model.stage(world.lake)
        for place, name in ((erasures, "leave_note"), (StreamCompaction, "_append")):
            with patch.object(place, name, killed), pytest.raises(Killed):
                world.again()
        world.maintain()
        world.again()
        world.maintain()
        world.store()
        world.maintain(KEEP)
        world.maintain(KEEP, later_ns=9 * DAY_NS)
    steps = world.recorder.check().steps
    every = ("Written", "Committed", "Asked", "Noted", "Forgotten", "Expired", "Deleted", "Registered", "Removed")
    assert all(steps.get(name) for name in every), steps
    assert erasures.notes(open_storage(str(world.lake)), world.table) == []
    assert len(TableLog(open_storage(world.table), world.table).state().files) > 0


@contextmanager
def note_before_delete() -> Iterator[None]:
    end_rows, delete = StreamCompaction._end_rows, StreamTable.delete

    def ending(compaction: StreamCompaction, *arguments: Any) -> None:
        later: list[Any] = []
        with patch.object(StreamTable, "delete", lambda table, rows: later.append((table, rows))):
            end_rows(compaction, *arguments)
        for table, rows in later:
            delete(table, rows)

    with patch.object(StreamCompaction, "_end_rows", ending):
        yield


@contextmanager
def loses_a_row() -> Iterator[None]:
    rows = Commit.rows
    with (
        patch.object(Commit, "rows", lambda commit, adds: rows(commit, adds).where("seq <> 3")),
        patch.object(rewrite, "_check_rows", lambda *_: None),
    ):
        yield


def without_retention() -> Any:
    dead = vacuum.dead_files
    return patch.object(
        maintainer,
        "dead_files",
        lambda storage, log, state, retain_ns, now_ns, kept: dead(storage, log, state, 0, now_ns, kept),
    )


@contextmanager
def knows_no_clone() -> Iterator[None]:
    with (
        patch.object(References, "by_clone", lambda *_: {}),
        patch.object(References, "newly", lambda *_: set()),
    ):
        yield


BUGS: dict[str, tuple[Callable[[], Any], str, Callable[[World], None]]] = {
    "a note before the rows are deleted": (note_before_delete, "NotesFirst", World.shred_and_maintain),
    "a note that goes before the files": (
        lambda: patch.object(Maintainer, "_delete", lambda *_: True),
        "ForgetsLast",
        World.shred_and_maintain,
    ),
    "files go before the newest version is without them": (
        lambda: patch.object(vacuum, "to_rewrite", lambda *_: set()),
        "Erase",
        World.optimize_and_erase,
    ),
    "clones are not known": (knows_no_clone, "KnowsClones", World.clone_and_erase),
    "clones that are being made are not known": (
        lambda: patch.object(References, "_expected", lambda *_: frozenset()),
        "KnowsNewClones",
        World.begin_a_clone_and_erase,
    ),
    "VACUUM keeps the newest version alone": (without_retention, "KeepsTheRetention", World.optimize_twice),
    "VACUUM takes files of a commit under way": (without_retention, "SparesTheYoung", World.write_late),
    "OPTIMIZE loses a row": (loses_a_row, "OthersStay", World.optimize),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_breaks_its_guard(world: World, bug: str) -> None:
    plant, guard, work = BUGS[bug]
    with ExitStack() as stack:
        stack.enter_context(plant())
        stack.enter_context(world.recorder.recording())
        try:
            work(world)
        except Exception as error:  # another guard of the code
            print(f"{type(error).__name__}: {str(error)[:200]}")
    with pytest.raises(NotPermitted) as refused:
        world.recorder.check()
    assert refused.value.guard == guard
