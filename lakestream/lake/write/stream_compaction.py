"""Compaction of one stream: staged segments into its Delta table, exactly once.

Belongs here: the Spark side of one commit. The order is fixed:

1. rows of removed messages are deleted, or in an archive marked (DELETE, UPDATE; repeating it changes nothing), and a
note is left for messages to be erased (delta/erasures.py),
2. the new rows are appended, without those of messages removed already, in one commit that also carries the transaction
identifier `lakestream:<uid>` with the log index as its version, and the progress as user metadata.

Only step 2 moves the position. A crash before it repeats everything, a crash after it finds the position moved. A
reader never sees a deleted message come back: it is deleted before later rows appear.

A stream with time travel has a third step instead of most of the first: all rows of the batch are appended, also those
removed within it, after writing the departures file (delta/departures.py), and

3. the rows of removed messages are deleted. The next compaction of the stream repeats this from that file, because a
crash may have prevented it.

Source: Delta protocol, "Transaction Identifiers".

Invariant: nothing is read from the streaming checkpoint. The work follows from the table and staging alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from lakestream.lake.delta import batches, erasures, policy, position, segments, strangers, verify
from lakestream.lake.delta import departures as departure_files
from lakestream.lake.delta.batches import Batch
from lakestream.lake.delta.log import Log
from lakestream.lake.delta.policy import DEFAULT_BUCKETS, Partition
from lakestream.lake.delta.position import PositionWatch, Progress, application
from lakestream.lake.delta.schema import (
    REMOVED_COLUMN,
    SUBJECT_LIMIT,
    SUBJECT_MOST,
    Layout,
    choose_bounds,
)
from lakestream.lake.delta.typed_columns import EMPTY, of_table
from lakestream.lake.errors import BadSegment, DamagedTable, LakeError, StillCloned, UnfitSubject
from lakestream.lake.files import clone_request, locks, paths, quarantine, staging
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.locks import Lock
from lakestream.lake.files.staging import StagedStream
from lakestream.lake.write import file_statistics, repair
from lakestream.lake.write.data_files import Values, partition_values
from lakestream.lake.write.misfits import MisfitTable
from lakestream.lake.write.replay import Replay
from lakestream.lake.write.spans import Commit, CommitSpans
from lakestream.lake.write.table import ExistingTable, StreamTable
from lakestream.lake.write.tasks import Columns, Output, WriteTask, joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 32 * 1024 * 1024
"""Size of the segments that one task decodes before a second one is worth its start."""

DRIVER_BYTES = 4 * 1024 * 1024
"""Size of the segments up to which the driver writes their files itself: a Spark job takes longer than that."""

BUSY_SECONDS = 5.0
"""Maximum time for which a commit waits for the table's maintenance before other streams get their turn."""


class Options(msgspec.Struct, frozen=True):
    """Options of compaction.

    `subject_limit`: a table of partition rule `auto` with more distinct subjects is partitioned by bucket;
    `commit_bytes`: maximum size of the segments of one commit; `tasks`: maximum number of Spark tasks of one commit.
    """

    subject_limit: int = SUBJECT_LIMIT
    commit_bytes: int = batches.COMMIT_BYTES
    tasks: int = 2
    spans: CommitSpans | None = None
    """Exports the spans of traced messages."""


class Outcome(msgspec.Struct, frozen=True):
    """Result of compacting a stream: commits, their segments and messages, the position reached, and the messages that
    do not fit their schema."""

    commits: int = 0
    segments: int = 0
    rows: int = 0
    position: int = 0
    misfits: int = 0


class StreamCompaction:
    """Compacts one stream of one lake. Not for use by two threads at once.

    Args:
        spark: a session with Delta.
        lake: the lake's root.
        stream: the stream's staging directory, as scanned.
        table: the path of its table; the stream's usual place by default.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        stream: StagedStream,
        options: Options | None = None,
        table: str | None = None,
    ) -> None:
        self._spark = spark
        self._storage = open_storage(lake)
        self._directory = stream.directory
        self._identity = stream.identity
        self._deleted = stream.deleted
        self._options = options or Options()
        self._table = StreamTable(spark, self._storage, stream.identity, table)
        self.table = self._table.path
        self._watch = PositionWatch(self.table, self._identity.uid)
        self._fence: Lock | None = None
        self._cleared = False  # True once rows removed by the last commit have been deleted
        self._misfits = MisfitTable(spark, self._storage, stream.identity, self.table)
        self._misfits_committed = 0  # by the last commit

    @classmethod
    def of_deleted(
        cls, spark: SparkSession, lake: str, stream: StagedStream, options: Options | None = None
    ) -> StreamCompaction:
        """Return the compaction of a deleted stream. If another stream has its name, its table is moved aside, or
        created there.

        Raises:
            ForeignTable: a Delta table that lakestream did not make is in its place.
        """
        storage, identity = open_storage(lake), stream.identity
        found = StreamTable(spark, storage, identity).find()
        taken = found is not None and found.uid != identity.uid and found.created_ns > identity.created_ns
        moved = taken or position.is_aside(storage, identity)
        return cls(spark, lake, stream, options, position.aside(storage, identity) if moved else None)

    def lacks_segments(self) -> bool:
        """Return True if the retained table of a deleted stream still lacks staged segments.

        Segments that wait for a decision about a clone are never compacted: the table was not begun.
        """
        return (
            policy.of_config(bytes(self._identity.config)).keep_table and not self._awaits_clone() and self.is_behind()
        )

    def clean_up(self) -> None:
        """Remove a deleted stream's table unless it is retained, and then its staging directory.

        Raises:
            StillCloned: clones need the table's files.
            LakeError: staged segments are not in undamaged files of the table; `run` repairs it.
        """
        if policy.of_config(bytes(self._identity.config)).keep_table and not self._awaits_clone():
            self.drop_table()
            # Invariant 10: besides the table, only the staged segments are left of the stream.
            if damaged := verify.look_over(self._storage, self.table):
                verify.ask(self._storage.root, self._identity, damaged)
                raise LakeError(verify.describe(self.table, damaged))
            staging.discard_through(self._directory, self._identity, self._watch.read() or 0)
            return
        self.drop_table()
        staging.discard(self._directory)

    def is_behind(self) -> bool:
        """Return True if staged or quarantined segments are missing in the table, or it is reported as damaged. Uses no
        JVM."""
        position = self._watch.read() or 0
        if self._uncleared() or self._awaits_clone() or verify.is_asked(self._storage, self._directory):
            return True
        staged = staging.segments(self._directory)
        if staged and staged[-1].last_index > position:
            return True
        return quarantine.find(self._directory, position) is not None

    def run(self, stopping: Callable[[], bool] = lambda: False, commits: int | None = None) -> Outcome:
        """Commit until nothing staged is missing in the table, or `stopping()`, or `commits` were made.

        Raises:
            SegmentGap, QuarantinedSegment, ForeignTable, BadPolicy: this stream needs a person's decision.
            DamagedTable: so does its table, which cannot be repaired; staged segments are committed all the same.
            TableBusy: the table is under maintenance; retry later.
        """
        if self._awaits_clone():
            return Outcome(position=self._watch.read() or 0)
        damaged = self._repair()
        outcome = Outcome(position=self._watch.read() or 0)
        if self._uncleared():
            with self._alone():
                self._clear()
        while not stopping() and outcome.commits != commits:
            if (quarantined := quarantine.find(self._directory, outcome.position)) is not None:
                raise quarantined
            parts = batches.choose(
                self.table, outcome.position, staging.segments(self._directory), self._options.commit_bytes
            )
            if not parts:
                break
            with self._quarantining(parts):
                footers = [staging.footer(part.path) for part in parts]
                count = batches.fitting(footers, self._options.commit_bytes)
                parts, footers = parts[:count], footers[:count]
                batch = batches.gather(self._identity.uid, parts, footers, self._watch.progress)
                spans = self._options.spans
                traced = spans.find(parts, batch.unwritten) if spans is not None else []
                self._cleared, began_ns = False, time.time_ns()
                with self._alone():
                    # Again: segments staged after a withdrawal are compacted after the removal of its table.
                    committed = not self._awaits_clone() and self._commit(batch, outcome.position)
                self._cleared = True
            if not committed:
                break
            position = self._watch.read() or 0
            if position < batch.progress.last_index:
                raise LakeError(f"{self.table}: a commit through {batch.progress.last_index} left it at {position}")
            if spans is not None:
                label = (self._identity.account, self._identity.name, self._identity.uid)
                spans.export(Commit(*label, position, began_ns, time.time_ns()), traced)
            outcome = Outcome(
                outcome.commits + 1,
                outcome.segments + len(parts),
                outcome.rows + self._watch.rows,
                position,
                outcome.misfits + self._misfits_committed,
            )
        if damaged is not None and not outcome.commits:
            raise damaged
        return outcome

    def _repair(self) -> DamagedTable | None:
        """Repair the table if the server has found it damaged; return the error if that is impossible."""
        if not verify.is_asked(self._storage, self._directory):
            return None
        with self._alone():
            found = self._table.find()
            if found is None or found.uid != self._identity.uid:
                verify.settle(self._storage, self._directory)
                return None
            assert self._fence is not None
            mending = repair.Repair(self._spark, self._storage, self._identity, self.table, self._directory)
            try:
                if mending.run(self._fence.check) is not None:
                    self._cleared = False
            except DamagedTable as error:
                return error
        return None

    def _awaits_clone(self) -> bool:
        """Return True if it is still open whether the table begins as a clone (files/clone_request.py)."""
        return clone_request.is_open(self._storage, self._directory)

    def drop_table(self) -> bool:
        """Remove a deleted stream's table unless it is another stream's or retained; return False when nothing was
        removed.

        The table disappears at once, before its files are deleted.

        Raises:
            StillCloned: clones need its files.
        """
        with self._alone():  # also for reading: a clone may be being made
            found = self._table.find()
            if found is None or found.uid.removeprefix(clone_request.MAKING) != self._identity.uid:
                return False
            # The table has the policy of its last commit; the policy at the stream's deletion counts.
            wanted = policy.of_config(self._identity.config)
            whole = found.uid == self._identity.uid
            if whole and wanted.keep_table and not found.kept:
                self._table.adapt(found, wanted)
            if whole and (wanted.keep_table or (found.kept and not self._deleted)):
                return False
            if self._table.is_cloned():
                raise StillCloned(self.table)
            self._misfits.remove()
            self._table.remove(found.uid)
            return True

    @contextmanager
    def _quarantining(self, parts: list[batches.Part]) -> Iterator[None]:
        """Context that moves a damaged segment to quarantine, so that its stream stops there until it is replaced.

        Raises:
            QuarantinedSegment: in place of the error that it caused.
        """
        try:
            yield
        except Exception as error:
            # An exception from a Python worker keeps only its name and text in the JVM.
            if not isinstance(error, BadSegment) and "BadSegment" not in str(error):
                raise
            for part in parts:
                try:
                    for _ in segments.decode(part.path):
                        pass
                except BadSegment as bad:
                    raise quarantine.set_aside(part.path, bad) from None
            raise

    # One commit

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context that holds the table's lock (files/locks.py)."""
        with locks.held(self._spark, self._storage.root, self.table, BUSY_SECONDS) as self._fence:
            yield

    def _commit(self, batch: Batch, position: int) -> bool:
        """Commit a batch. Return False when the table belongs to a younger stream of this name."""
        found = self._table.find()
        if found is not None and found.uid == self._identity.uid:
            # This commit hides those of other programs from a server that is started later.
            log, app = Log(self._storage, self.table), application(self._identity.uid)
            foreign = strangers.since_progress(log, app, self._watch.moved)
            strangers.leave_notes(self._storage, self._directory, foreign)
        if found is not None and found.uid != self._identity.uid:
            if found.created_ns > self._identity.created_ns:
                return False
            self._table.make_way(found)
            found = None
        layout = self._layout(batch, found)
        if found is None:
            self._table.create(layout, batch.policy)
        else:
            self._end_rows(batch, position, found)
            if layout != found.layout:
                self._rewrite(layout)
            # After the rewrite: record the request only once the layout exists.
            self._table.adapt(found, batch.policy)
        if batch.departures is not None and len(batch.departures):
            departure_files.write(self._storage, self.table, batch.progress.last_index, batch.departures)
        schema = found.schema if found is not None else None
        try:
            self._append(batch, layout, position, schema)
        except Exception as error:
            unfit = isinstance(error, UnfitSubject) or "UnfitSubject" in str(error)  # of a task: only its text is left
            if layout.kind == "bucket" or not unfit:
                raise
            layout = Layout("bucket", bounds=self._bounds(batch, DEFAULT_BUCKETS, True))
            self._rewrite(layout)
            self._append(batch, layout, position, schema)
        if batch.departures is not None:
            before = self._watch.progress
            for condition in batches.departures_deleted(batch, before.floor if before else 0):
                self._table.delta().delete(condition)
        return True

    def _uncleared(self) -> bool:
        """Return True if rows removed by the last commit may still be in the table."""
        progress = self._watch.progress
        return not self._cleared and progress is not None and progress.departed > 0

    def _clear(self) -> None:
        """Delete those rows. May be repeated."""
        progress = self._watch.progress
        assert progress is not None
        dead = departure_files.gone(departure_files.read(self._storage, self.table, progress.last_index))
        for condition in batches.deletions(progress.last_index, progress, dead):
            self._table.delta().delete(condition)
        self._cleared = True

    def _end_rows(self, batch: Batch, position: int, found: ExistingTable) -> None:
        """Delete rows of removed messages; in an archive, mark them."""
        before = self._watch.progress
        gone = batches.deletions(position, before, batch.unwritten)
        for condition in gone:
            self._table.delta().delete(condition)
        if runs := batches.erasures(position, before, batch.shredded):
            erasures.leave_note(self._storage, self.table, self._identity.uid, batch.progress.last_index, runs)
            # A list that lacks a file takes no deletions.
            Replay(self._spark, self._storage.root, self._identity, table=self.table).repair(self._check)
            self._misfits.delete(gone, shred=True)
        if found.archive and not batch.policy.archive:
            self._table.delta().delete(f"{REMOVED_COLUMN} IS NOT NULL")
        if batch.policy.archive and not found.archive_column:
            self._table.become_archive()
        for update in batches.updates(position, before, batch.endings):
            self._table.delta().update(update.condition, {update.column: update.value})

    def _append(self, batch: Batch, layout: Layout, position: int, schema: str | None) -> None:
        """Append the batch's rows, unless the table's position is not `position` any more.

        Args:
            schema: JSON of the columns that the table had before; None: it is new.
        """
        began_ms = time.time_ns() // 1_000_000
        written, columns = self._written(batch, layout, schema)
        self._check()
        # Misfits first: the stream's own commit is the one that is not repeated.
        self._misfits_committed = self._misfits.commit(written.misfits, batch.progress)
        app = application(self._identity.uid)
        transaction = self._table.begin(app)
        if (self._watch.read() or 0) != position:
            return
        txn, before = (app, batch.progress.last_index), self._watch.progress
        misfits = self._misfits_committed + (before.misfits if before is not None else 0)
        progress = msgspec.structs.replace(batch.progress, misfits=misfits)
        wider = None if columns is None else columns.widen
        self._table.append(transaction, written.files, layout, txn, _stated(progress, began_ms), wider)

    def _check(self) -> None:
        """Check that the table's lock is still held. Raises LeaseLost."""
        if self._fence is not None:
            self._fence.check()

    def _written(self, batch: Batch, layout: Layout, schema: str | None) -> tuple[Output, Columns | None]:
        """Write the batch's messages into new files of the table; each task has a run of whole segments.

        Return them with the typed columns that they need, None for a stream without schemas.
        """
        as_partitions = layout.kind != "bucket"
        decode = partial(segments.decode, dead=batch.unwritten, as_partitions=as_partitions, endings=batch.endings)
        task = WriteTask(
            [(part.path, part.after) for part in batch.parts],
            decode,
            self.table,
            layout,
            batch.endings is not None,
            self._table.has_random_prefixes(),
        )
        columns = self._columns(batch, schema)
        if columns is None:
            return self._run(batch, task), None
        # A version of a schema that is new in this table ends the first attempt, with the columns that it needs.
        while True:
            written = self._run(batch, task.typed(columns))
            if not written.needed:
                return written, columns
            columns = columns.extended(written.needed)

    def _run(self, batch: Batch, task: WriteTask) -> Output:
        """Run a task over the segments of a batch, here or in several tasks of Spark."""
        if batch.size <= DRIVER_BYTES:
            return task.write(range(len(batch.parts)))
        tasks = min(self._options.tasks, len(batch.parts), 1 + batch.size // TASK_BYTES)
        numbers = self._spark.range(0, len(batch.parts), 1, tasks)
        return joined(row.output for row in numbers.mapInArrow(task, "output string").collect())

    def _columns(self, batch: Batch, schema: str | None) -> Columns | None:
        """Return the typed columns of the table as they are; None for a stream without schemas."""
        if not batch.schemas:
            return None
        reached = self._misfits.reached()
        return Columns(
            lake=self._storage.root,
            account=self._identity.account,
            schemas=batch.schemas,
            table=EMPTY if schema is None else of_table(schema),
            drop_data=batch.policy.drop_data,
            misfits=self._misfits.path,
            misfits_after=0 if reached is None else reached.last_seq,
            indexed=file_statistics.count_of(batch.policy.properties),
        )

    # The layout

    def _layout(self, batch: Batch, found: ExistingTable | None) -> Layout:
        """Return the layout that the table should have for this batch."""
        asked = batch.policy.partition
        current, decided_for = (found.layout, found.decided_for) if found else (None, None)
        want = policy.wanted_partition(asked, batch.subjects, current, decided_for, self._options.subject_limit)
        if want.kind == "tokens" and self._too_many(batch, want, current):
            want = Partition("bucket")
        if current is not None and policy.layout_agrees(current, want, asked, decided_for):
            return current
        if want.kind != "bucket":
            return Layout(want.kind, tokens=want.tokens)
        return Layout("bucket", bounds=self._bounds(batch, want.buckets, found is not None))

    def _too_many(self, batch: Batch, want: Partition, current: Layout | None) -> bool:
        """Return True if partitions by tokens would exceed SUBJECT_MOST, in the table or in this batch alone."""
        if batch.subjects <= SUBJECT_MOST:
            return False
        if current is not None and current.kind == "tokens" and self._table.partitions() > SUBJECT_MOST:
            return True
        if batch.rows <= SUBJECT_MOST:
            return False
        found: set[Values] = set()
        for part in batch.parts:
            for rows in segments.decode(part.path, part.after, batch.unwritten):
                texts = rows.column(0).unique().to_pylist()
                found.update(partition_values(text, Layout("tokens", tokens=want.tokens)) for text in texts)
                if len(found) > SUBJECT_MOST:
                    return True
        return False

    def _bounds(self, batch: Batch, buckets: int, in_table: bool) -> tuple[str, ...]:
        """Return bounds of buckets with about equal numbers of subjects."""
        most = max(1, policy.SAMPLE // len(batch.parts))
        task = _Task(batch, partial(_sampled, most=most))
        subjects = []
        if batch.size <= DRIVER_BYTES:
            subjects = [text for rows in task.rows(range(len(batch.parts))) for text in rows.column(0).to_pylist()]
        else:
            numbers = self._spark.range(0, len(batch.parts), 1, min(self._options.tasks, len(batch.parts)))
            subjects = [row.subject for row in numbers.mapInArrow(task, "subject string").collect()]
        return choose_bounds([*subjects, *(self._table.sample() if in_table else [])], buckets)

    def _rewrite(self, layout: Layout) -> None:
        self._table.rewrite(layout, None if self._watch.progress is None else _json(self._watch.progress))


class _Task:
    """Spark task: numbers of segments in, what `work` makes of them out. Pickled, so it holds nothing of Spark."""

    def __init__(self, batch: Batch, work: Callable[[str, int], Iterator[pa.RecordBatch]]) -> None:
        self._parts = [(part.path, part.after) for part in batch.parts]
        self._work = work

    def rows(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield what `work` makes of these segments."""
        for number in numbers:
            yield from self._work(*self._parts[number])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.rows(number for batch in batches for number in batch.column(0).to_pylist())


def _sampled(path: str, after: int, most: int) -> Iterator[pa.RecordBatch]:
    """Yield some of a segment's subjects."""
    subjects = pa.array(segments.sample_subjects(path, after, most), pa.string())
    yield pa.RecordBatch.from_arrays([subjects], names=["subject"])


def clear_removed(lake: str) -> None:
    """Delete the rest of tables whose removal was interrupted."""
    storage = open_storage(lake)
    storage.delete_tree(f"{storage.root}/{paths.REMOVED}")


def _stated(progress: Progress, began_ms: int) -> str:
    """Return the userMetadata of a commit: its progress, and when its rows began to be written."""
    return msgspec.json.encode(msgspec.structs.asdict(progress) | {"began_ms": began_ms}).decode()


def _json(progress: Any) -> str:
    return msgspec.json.encode(progress).decode()
