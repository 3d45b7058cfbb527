"""Faults at each step of an operation on tables: whatever commits, and whatever deletes or writes files of the lake.

    echo OPERATION | python -m tests.lake.steps LAKE       all faults, in a new lake below this one (a directory or URL)

Belongs here: the steps (`Steps`), the operations (`OPERATIONS`), and what must hold after a fault (`run`). The steps
are those of this process, so Spark and the lake survive: `tests.lake_faults` kills real ones.

After a fault, and again once the operation was repeated without one, each file exists that the newest version of any
table names; then the tables are what their streams are.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaMergeBuilder, DeltaTable, DeltaTableBuilder
from pyspark.sql import DataFrameWriter, SparkSession

from lakestream.lake.staging import clone_request, scan, staging
from lakestream.lake.staging.clone_request import CloneRequest
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.lake.storage.local_storage import LocalStorage
from lakestream.lake.storage.object_storage import ObjectStorage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import check
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table.actions import table_file
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.masks import MISFITS
from lakestream.lake.table.state import position_of
from lakestream.schemas.schema import Schema
from lakestream_spark.write import clones
from lakestream_spark.write.clone_maker import CloneMaker, clone
from lakestream_spark.write.commit import Commit, jvm
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import Policy
from lakestream_spark.write.replay import Replay
from lakestream_spark.write.stream_compaction import CompactionOptions, StreamCompaction
from tests.lake.compacting import compact as compact_stream
from tests.lake.model import StreamModel

NOW = Policy(min_files=2, retain_ns=0)
"""Policy without retention: what may be deleted is deleted at once."""
KEEP = Policy(min_files=2)
_COMMITS: tuple[tuple[Any, str], ...] = (
    (Commit, "run"),
    (Commit, "append"),
    (DeltaTable, "delete"),
    (DeltaTable, "update"),
    (DeltaTable, "vacuum"),
    (DeltaTableBuilder, "execute"),
    (DeltaMergeBuilder, "execute"),
    (DataFrameWriter, "save"),
    (SparkSession, "sql"),
)
_FILES = ("write", "delete", "delete_all", "delete_tree", "move", "put_file", "copy_file")


class How(enum.Enum):
    """Ways in which a step fails."""

    REFUSED = "refused"
    """Error instead of the step: no space, no answer."""
    LOST = "lost"
    """Error after the step: the answer is lost, or the sync failed."""
    KILLED_BEFORE = "killed before"
    """End of the program instead of the step."""
    KILLED_AFTER = "killed after"
    """End of the program after the step, or in the middle of a deletion of several files."""
    LATE = "late"
    """Error at the step, which is done once the operation was repeated; commits of Delta transactions only."""
    AMIDST = "amidst"
    """The same, but done while the operation is repeated, before its first commit; in object stores only, as in a
    directory no commit outlives the lock of its program."""


class Failed(Exception):
    """Raised for a step that fails."""


class Killed(BaseException):
    """Raised in place of the end of the program: no handler of errors runs."""


class Steps:
    """Counts the steps of the work in `with steps.failing(...)`, and lets one of them fail."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.late: Callable[[], object] | None = None
        self._at, self._how, self._inside = 0, How.LOST, False
        self._arriving: Callable[[], object] | None = None

    @contextlib.contextmanager
    def failing(self, at: int, how: How) -> Iterator[None]:
        """Context in which step number `at` fails, from 1 on; 0: none."""
        self.seen, self.late, self._at, self._how = [], None, at, how
        with self._patched():
            yield

    @contextlib.contextmanager
    def arriving(self) -> Iterator[None]:
        """Context in which the commit that is late is done before the next one."""
        self._at, self._arriving, self.late = 0, self.late, None
        with self._patched():
            yield

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in _COMMITS:
                patch.setattr(owner, name, self._step(owner, name))
            for storage in (LocalStorage, ObjectStorage):
                for name in _FILES:
                    patch.setattr(storage, name, self._step(storage, name))
            yield

    def _step(self, owner: Any, name: str) -> Callable[..., Any]:
        real = getattr(owner, name)

        def step(*arguments: Any, **options: Any) -> Any:
            if self._inside or not _is_step(name, arguments):
                return real(*arguments, **options)
            if name == "delete_all":
                arguments = (arguments[0], list(arguments[1]))
                if not arguments[1]:
                    return None
            if self._arriving is not None and (owner, name) in _COMMITS:
                late, self._arriving = self._arriving, None
                with contextlib.suppress(Exception):  # most are refused
                    self._do(late)
            self.seen.append(f"{'commit' if owner is Commit else name} of {_told(name, arguments)}")
            if len(self.seen) != self._at:
                return self._do(lambda: real(*arguments, **options))
            if self._how in (How.LATE, How.AMIDST):
                self.late = lambda: real(*arguments, **options)
            if self._how in (How.LOST, How.KILLED_AFTER):
                if name == "delete_all":
                    arguments = (arguments[0], arguments[1][: (len(arguments[1]) + 1) // 2])
                self._do(lambda: real(*arguments, **options))
            raise Killed if self._how in (How.KILLED_BEFORE, How.KILLED_AFTER) else Failed(f"{self._how.value}: {name}")

        return step

    def _do(self, work: Callable[[], Any]) -> Any:
        """Do a step; the steps in it are parts of it."""
        self._inside = True
        try:
            return work()
        finally:
            self._inside = False


def _is_step(name: str, arguments: tuple[Any, ...]) -> bool:
    if name == "sql":
        return str(arguments[1]).startswith(("ALTER", "CREATE"))
    return not (name in _FILES and isinstance(arguments[1], str) and "/_locks/" in arguments[1])


def _told(name: str, arguments: tuple[Any, ...]) -> str:
    if name == "delete_all":
        return f"{len(arguments[1])} files"
    return str(arguments[1]).rpartition("/")[2][:60] if name in (*_FILES, "sql") else "a table"


@dataclass
class Stage:
    """A lake for one run of an operation: the root, and the streams with logs of their own."""

    spark: Any
    lake: str
    place: Path
    streams: dict[str, StreamModel] = field(default_factory=dict)

    @property
    def storage(self) -> Storage:
        """Return the lake's storage."""
        return open_storage(self.lake)

    def model(self, name: str = "ORDERS", metadata: dict[str, str] | None = None) -> StreamModel:
        """Return a new stream."""
        self.streams[name] = model = StreamModel(self.place / name, name, f"UID{name}")
        model.configure(metadata or {})
        return model

    def staged(self, model: StreamModel) -> StagedStream:
        """Return a stream's staging directory, as scanned."""
        return next(one for one in scan.Scanner(self.lake).scan() if one.identity.uid == model.identity.uid)

    def compact(self, model: StreamModel, **options: Any) -> None:
        """Compact all that is staged of a stream."""
        compact_stream(self.spark, self.lake, self.staged(model), CompactionOptions(**options))

    def grow(self, model: StreamModel, commits: int = 2, count: int = 12) -> None:
        """Commit messages, in so many commits."""
        for _ in range(commits):
            model.publish([(b"s.%d" % (n % 2), b"", b"payload %d " % n * 5) for n in range(count)])
            model.stage(self.lake)
        self.compact(model, commit_bytes=1)

    def maintain(self, policy: Policy = KEEP) -> None:
        """Maintain all tables. Raises Failed for a table whose maintenance failed."""
        maintainer = Maintainer(self.spark, self.lake, policy)
        failures = [done.failure for done in maintainer.once() if done.failure is not None]
        if failures:
            raise Failed(failures[0])

    def damaged(self) -> list[tuple[str, check.Damage]]:
        """Return tables, and the damage of files that their newest versions name."""
        storage, found = self.storage, list[tuple[str, check.Damage]]()
        for table in clones.tables_below(storage, storage.root):
            if (log := TableLog(storage, table)).commits:
                found += [
                    (table, one) for one in check.lacking(storage, table, map(table_file, log.state().files.values()))
                ]
        return found

    def is_stream(self, model: StreamModel) -> None:
        """Assert that a table is its stream."""
        table = model.table(self.lake)
        assert rows(self.storage, table) == [(one.seq, one.data) for one in model.expected()]
        assert position_of(table, model.identity.uid) == model.sealed[-1].last_index


def seqs(storage: Storage, table: str) -> list[int]:
    """Return the sequences of a table's newest version."""
    import pyarrow as pa
    from deltalake import DeltaTable as Reader
    from deltalake import QueryBuilder

    reader = Reader(table, storage_options=storage.delta_options() or None)
    found = pa.table(QueryBuilder().register("t", reader).execute("SELECT seq FROM t ORDER BY seq").read_all())
    return list(found.column("seq").to_pylist())


def rows(storage: Storage, table: str) -> list[tuple[int, bytes]]:
    """Return sequences and payloads of a table's newest version."""
    import pyarrow as pa
    from deltalake import DeltaTable as Reader
    from deltalake import QueryBuilder

    reader = Reader(table, storage_options=storage.delta_options() or None)
    found = pa.table(QueryBuilder().register("t", reader).execute("SELECT seq, data FROM t ORDER BY seq").read_all())
    return list(zip(found.column("seq").to_pylist(), found.column("data").to_pylist(), strict=True))


Work = tuple[Callable[[], object], Callable[[], None]]


@dataclass(frozen=True)
class Operation:
    """An operation. `prepare` makes the tables; it returns the work, and the check of its result."""

    name: str
    prepare: Callable[[Stage], Work]


def _compaction(stage: Stage) -> Work:
    model = stage.model()
    stage.grow(model, 1)
    model.remove([3, 4], erase=True)
    model.publish([(b"s.1", b"", b"new")] * 3)
    model.stage(stage.lake)
    return lambda: stage.compact(model), lambda: stage.is_stream(model)


def _past(stage: Stage) -> Work:
    model = stage.model(metadata={"lakestream.time_travel": "1h"})
    stage.grow(model, 1)
    model.remove([3, 4], erase=True)
    model.publish([(b"s.1", b"", b"new")] * 3)
    model.stage(stage.lake)
    return lambda: stage.compact(model), lambda: stage.is_stream(model)


def _layout(stage: Stage) -> Work:
    model = stage.model()
    stage.grow(model, 1)
    model.configure({"lakestream.partition": "bucket:2"})
    model.publish([(b"s.1", b"", b"new")] * 3)
    model.stage(stage.lake)
    return lambda: stage.compact(model), lambda: stage.is_stream(model)


def _optimize(stage: Stage) -> Work:
    model = stage.model()
    stage.grow(model)
    return stage.maintain, lambda: stage.is_stream(model)


def _vacuum(stage: Stage) -> Work:
    """VACUUM, checkpoint and expiry of the log, after an OPTIMIZE."""
    model = stage.model()
    stage.grow(model)
    stage.maintain(NOW)
    stage.grow(model, 1)
    return lambda: stage.maintain(NOW), lambda: stage.is_stream(model)


def _erasure(stage: Stage) -> Work:
    model = stage.model()
    stage.grow(model)
    model.remove([2, 9], shred=True)
    model.publish([(b"s.1", b"", b"new")])
    model.stage(stage.lake)

    def work() -> None:
        stage.compact(model)
        stage.maintain(Policy())

    def check() -> None:
        stage.is_stream(model)
        assert stage.storage.list(f"{model.table(stage.lake)}/_erasures") == []

    return work, check


def _repair(stage: Stage) -> Work:
    """The newest version, an OPTIMIZE, lacks a file: found by maintenance, repaired by compaction."""
    model = stage.model()
    stage.grow(model)
    stage.maintain()
    table = model.table(stage.lake)
    state = TableLog(stage.storage, table).state()
    stage.storage.delete(f"{table}/{next(iter(state.files.values())).path}")
    check.ask(stage.lake, model.identity, check.lacking(stage.storage, table, map(table_file, state.files.values())))
    return lambda: stage.compact(model), lambda: stage.is_stream(model)


def _clone(stage: Stage) -> Work:
    origin, mirror = stage.model(), stage.model("MIRROR")
    stage.grow(origin, 1)
    origin.remove([3], erase=True)
    origin.publish([(b"s.1", b"", b"new")])
    origin.stage(stage.lake)
    stage.compact(origin)
    asked = CloneRequest(origin=origin.identity.name, origin_uid=origin.identity.uid)
    clone_request.request(stage.lake, mirror.identity, asked)

    def work() -> None:
        if clone_request.answer(stage.lake, mirror.identity) is None:
            CloneMaker(stage.spark, stage.lake, stage.staged(mirror)).run()

    def check() -> None:
        answer = clone_request.answer(stage.lake, mirror.identity)
        assert answer is not None
        assert answer.state == clone_request.MADE
        assert rows(stage.storage, mirror.table(stage.lake)) == [(one.seq, one.data) for one in origin.expected()]

    return work, check


def _withdrawal(stage: Stage) -> Work:
    """A mirror whose clone was given up before its last commit, which arrives late in an object store."""
    made, _ = _clone(stage)
    mirror, late = stage.streams["MIRROR"], list[Callable[[], object]]()
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Failed):
        patch.setattr(Commit, "run", _refusing(Commit.run, late))
        made()
    clone_request.withdraw(stage.lake, mirror.identity)
    mirror.publish([(b"s.1", b"", b"own")] * 3)
    mirror.stage(stage.lake)

    def work() -> None:
        if clone_request.has_request(stage.lake, mirror.identity):
            CloneMaker(stage.spark, stage.lake, stage.staged(mirror)).run()
        if not stage.storage.local:
            with contextlib.suppress(Exception):
                late[0]()
        stage.compact(mirror)

    return work, lambda: stage.is_stream(mirror)


def _refusing(real: Callable[..., object], late: list[Callable[[], object]]) -> Callable[..., object]:
    """Return a function that fails in place of another one, and puts the call that it was to do into a list."""

    def refused(*arguments: Any) -> object:
        late.append(lambda: real(*arguments))
        raise Failed("refused")

    return refused


def _detach(stage: Stage) -> Work:
    origin = stage.model()
    stage.grow(origin, 1)
    target = f"{stage.lake}/copies/COPY"
    clone(stage.spark, stage.lake, origin.table(stage.lake), target)

    def check() -> None:
        expected = [(one.seq, one.data) for one in origin.expected()]
        assert rows(stage.storage, target) == expected
        stage.storage.delete_tree(origin.table(stage.lake))
        assert rows(stage.storage, target) == expected

    return lambda: Maintainer(stage.spark, stage.lake).detach(target), check


def _misfits(stage: Stage) -> Work:
    """Compaction with misfits of which one is securely deleted, and their replay."""
    model = stage.model(metadata={"lakestream.schema": "orders"})

    def register(version: int, kind: str) -> None:
        text = json.dumps({"type": "object", "properties": {"n": {"type": kind}}})
        schemas.write_schema(stage.storage, "$G", Schema("orders", version, "json", text, created_ns=version))

    register(1, "integer")
    model.publish([(b"o", b"", b'{"n": %d}' % n if n % 2 else b'{"n": "x"}') for n in range(6)])
    model.stage(stage.lake)
    stage.compact(model)
    model.remove([1], shred=True)
    model.publish([(b"o", b"", b'{"n": "y"}'), (b"o", b"", b'{"n": 7}')])
    model.stage(stage.lake)

    def work() -> None:
        stage.compact(model)
        register(2, "string")
        Replay(stage.spark, stage.lake, model.identity).run()

    def check() -> None:
        stage.is_stream(model)
        assert seqs(stage.storage, f"{model.table(stage.lake)}{MISFITS}") == [], "the replay has typed all of them"

    return work, check


def _retained(stage: Stage) -> Work:
    """The end of a deleted stream whose table is kept, and of one whose table is not."""
    model, other = stage.model(metadata={"lakestream.on_delete": "keep"}), stage.model("OTHER")
    stage.grow(other, 1)
    stage.grow(model, 1)
    for each, keep in ((model, True), (other, False)):
        staging.mark_deleted(stage.lake, each.identity, keep=keep)

    def work() -> None:
        for each in scan.Scanner(stage.lake).scan():
            StreamCompaction.of_deleted(stage.spark, stage.lake, each).clean_up()

    def check() -> None:
        stage.is_stream(model)
        assert scan.Scanner(stage.lake).scan() == []
        assert not TableLog(stage.storage, other.table(stage.lake)).commits

    return work, check


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("optimize", _optimize),
        Operation("vacuum", _vacuum),
        Operation("erasure", _erasure),
        Operation("compaction", _compaction),
        Operation("past", _past),
        Operation("layout", _layout),
        Operation("repair", _repair),
        Operation("clone", _clone),
        Operation("withdrawal", _withdrawal),
        Operation("detach", _detach),
        Operation("misfits", _misfits),
        Operation("retained", _retained),
    )
}


class Prepared:
    """An operation in a new lake, which is made once and put back before each run: making it takes longer than a run.

    Args:
        spark: a session with Delta.
        operation: the operation.
        lake: path or URL of the lake.
        place: a new directory, for the logs of its streams and the copy of a lake in a directory.
    """

    def __init__(self, spark: Any, operation: Operation, lake: str, place: Path) -> None:
        self.operation = operation
        self._stage, self._copy = Stage(spark, lake, place / "logs"), place / "lake"
        identify(self._stage.storage)
        self.work, self._check = operation.prepare(self._stage)
        self._damaged = self._stage.damaged()  # what a repair is to mend
        self._content = dict[str, tuple[str, bytes]]()
        if self.is_local:
            shutil.copytree(lake, self._copy)
        else:
            self._content = {path: (tag, self._stage.storage.read(path)) for path, tag in self._objects().items()}

    @property
    def is_local(self) -> bool:
        """Return True for a lake in a directory."""
        return self._stage.storage.local

    def put_back(self) -> None:
        """Give the lake the content that it had at first."""
        storage = self._stage.storage
        if self.is_local:
            shutil.rmtree(storage.root)
            shutil.copytree(self._copy, storage.root)
        else:
            there = self._objects()
            storage.delete_all(path for path in there if path not in self._content)
            for path, (tag, content) in self._content.items():
                if there.get(path) != tag:
                    storage.write(path, content)
        jvm(self._stage.spark).org.apache.spark.sql.delta.DeltaLog.clearCache()

    def is_whole(self) -> None:
        """Assert that each file exists that the newest version of any table names."""
        assert [one for one in self._stage.damaged() if one not in self._damaged] == []

    def is_done(self) -> None:
        """Assert that the tables are whole, also one that the operation repairs, and are what their streams are."""
        assert self._stage.damaged() == []
        self._check()

    def _objects(self) -> dict[str, str]:
        """Return the tags of the lake's objects by path, without those of locks, whose numbers do not go back, and
        without the empty objects with which Hadoop represents directories."""
        storage = self._stage.storage
        found = (each for each in storage.tree(storage.root) if "/_locks/" not in each.path)
        return {each.path: each.tag for each in found if each.size or storage.exists(each.path)}


def run(prepared: Prepared, at: int, how: How) -> list[str]:
    """Run an operation with a fault at step `at`, then repeat it without one; check both times.

    Return the steps that the first run had.
    """
    prepared.put_back()
    steps = Steps()
    with steps.failing(at, how), contextlib.suppress(Killed, Failed):
        prepared.work()
    seen = list(steps.seen)
    prepared.is_whole()
    if how is How.AMIDST:
        with steps.arriving(), contextlib.suppress(Exception):  # a conflict, say
            prepared.work()
        prepared.is_whole()
    prepared.work()
    if steps.late is not None:
        with contextlib.suppress(Exception):  # most are refused
            steps.late()
    prepared.is_done()
    return seen


def each(prepared: Prepared, hows: tuple[How, ...]) -> int:
    """Run an operation with each fault at each of its steps; return the number of runs."""
    seen, runs = run(prepared, 0, How.LOST), 0
    for how in hows:
        for at, step in enumerate(seen, 1):
            if how in (How.LATE, How.AMIDST) and not step.startswith("commit"):
                continue
            if how is How.AMIDST and prepared.is_local:
                continue
            runs += 1
            try:
                run(prepared, at, how)
            except BaseException as error:
                error.add_note(f"{prepared.operation.name}: step {at} of {len(seen)}, {step}: {how.value}")
                raise
    return runs


def serve(lake: str, work: Callable[[Prepared], tuple[int, int]]) -> None:
    """Run the operations that stdin names, one a line, with one Spark: it takes as long to start as ten faults.

    Print a line for each: its name, the number of faults, and that of broken promises.

    Args:
        lake: the root below which each operation gets a lake.
        work: runs an operation with all faults; returns these numbers. An exception is a broken promise.
    """
    from lakestream_spark import session as sessions
    from tests.lake.conftest import SMALL

    os.environ["LAKESTREAM_LATE_SECONDS"] = "0"  # an operation is repeated at once
    spark = sessions.session("lakestream faults", lake=lake, extra=SMALL)
    for line in sys.stdin:
        name = line.strip()
        with tempfile.TemporaryDirectory() as place:
            try:
                faults, broken = work(Prepared(spark, OPERATIONS[name], f"{lake}/{name}", Path(place)))
            except (Exception, Killed):
                traceback.print_exc()
                faults, broken = 0, 1
        print(f"{name}: {faults} faults, {broken} broken", flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(sys.argv[1], lambda prepared: (each(prepared, tuple(How)), 0))
