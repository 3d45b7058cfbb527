"""Compaction of one stream: its part of a micro-batch, into its Delta table, exactly once.

Belongs here: the driver's side of one commit. `plan` prepares the table and says how the stream's segments become
files; tasks write them (tasks.py), in one Spark job with those of all other streams of the batch; `commit` commits
them. The order is fixed:

1. rows of removed messages are deleted, or in an archive marked (DELETE, UPDATE; repeating it changes nothing), and a
note is left for messages to be erased (lake/table/erasures.py),
2. the new rows are appended, without those of messages removed already, in one commit that also carries the transaction
identifier `lakestream:<uid>` with the log index as its version, and the progress as user metadata.

Only step 2 moves the position. A crash before it repeats everything, a crash after it finds the position moved. A
reader never sees a deleted message come back: it is deleted before later rows appear.

A stream with time travel has a third step instead of most of the first: all rows of the batch are appended, also those
removed within it, after writing the departures file (lake/table/departures.py), and

3. the rows of removed messages are deleted (`clear`). The next compaction of the stream repeats this from that file,
because a crash may have prevented it.

The table's lock is held from `plan` to `commit`: maintenance changes neither layout nor files in between.

Source: Delta protocol, "Transaction Identifiers".

Invariant: what is committed follows from the table and staging alone, never from the streaming checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import BadSegment, LakeError, TableBusy, leaves_doubt
from lakestream.lake.staging import clone_request, quarantine, staging
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage import locks, paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import Lock
from lakestream.lake.table import batches, check, encryption, erasures, foreign_commits, policy, segments
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.batches import CommitBatch, SeqRows
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.policy import DEFAULT_BUCKETS, Partition
from lakestream.lake.table.progress import TableProgress, application
from lakestream.lake.table.schema import (
    REMOVED_COLUMN,
    SUBJECT_LIMIT,
    SUBJECT_MOST,
    Layout,
)
from lakestream.lake.table.state import has_kept_table, kept_table
from lakestream.lake.table.typed_columns import EMPTY, of_table
from lakestream_spark.write import file_statistics, iceberg_files, layouts, repair
from lakestream_spark.write.data_files import Values, partition_values
from lakestream_spark.write.errors import DamagedTable, StillCloned
from lakestream_spark.write.keyed_table import KeyedTable
from lakestream_spark.write.misfits import MisfitTable
from lakestream_spark.write.replay import Replay
from lakestream_spark.write.spans import CommitSpan, CommitSpans
from lakestream_spark.write.table import RANDOM_PREFIXES, ExistingTable, StreamTable, wanted_properties
from lakestream_spark.write.tasks import CommitColumns, Output, StreamTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUSY_SECONDS = 5.0
"""Maximum time for which a plan waits for the table's maintenance before other streams get their turn."""
TRIES = 5
"""Attempts of a commit while other programs commit to the table at the same moment."""
SAMPLED_SEGMENTS = 8
"""Number of segments of which the subjects are looked at for bounds of buckets."""


class CompactionOptions(msgspec.Struct, frozen=True):
    """Options of compaction.

    `subject_limit`: a table of partition rule `auto` with more distinct subjects is partitioned by bucket;
    `commit_bytes`: maximum size of the segments of one commit.
    """

    subject_limit: int = SUBJECT_LIMIT
    commit_bytes: int = batches.COMMIT_BYTES
    spans: CommitSpans | None = None
    """Exports the spans of traced messages."""


class CommitPlan(msgspec.Struct, frozen=True):
    """A commit to be made: its batch, the position that it follows on, and how its files are written."""

    batch: CommitBatch
    position: int
    task: StreamTask
    began_ns: int


class Outcome(msgspec.Struct, frozen=True):
    """Result of commits: their number, segments and messages, the position reached, the messages that do not fit their
    schema, and the path of the upsert table if it has followed."""

    commits: int = 0
    segments: int = 0
    rows: int = 0
    position: int = 0
    misfits: int = 0
    keyed: str = ""


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
        options: CompactionOptions | None = None,
        table: str | None = None,
    ) -> None:
        self._spark = spark
        self._storage = open_storage(lake)
        self._directory = stream.directory
        self._identity = stream.identity
        self._deleted = stream.deleted
        self._options = options or CompactionOptions()
        self._table = StreamTable(spark, self._storage, stream.identity, table)
        self.table = self._table.path
        self._watch = self._table.follower
        self._lock: Lock | None = None  # of the table, while it is held
        self._cleared = False  # True once rows removed by the last commit have been deleted
        self._owed: list[SeqRows] | None = None  # these rows, if this process has made the commit
        self._misfits = MisfitTable(spark, self._storage, stream.identity, self.table)
        self._keyed = KeyedTable(spark, self._storage, stream.identity, self.table)
        self._trouble: Exception | None = None  # of the upsert table

    @classmethod
    def of_deleted(
        cls, spark: SparkSession, lake: str, stream: StagedStream, options: CompactionOptions | None = None
    ) -> StreamCompaction:
        """Return the compaction of a deleted stream. If another stream has its name, its table is moved aside, or
        created there.

        Raises:
            ForeignTable: a Delta table that lakestream did not make is in its place.
        """
        storage, identity = open_storage(lake), stream.identity
        found = StreamTable(spark, storage, identity).find()
        taken = found is not None and found.uid != identity.uid and found.created_ns > identity.created_ns
        moved = taken or has_kept_table(storage, identity)
        return cls(spark, lake, stream, options, kept_table(storage, identity) if moved else None)

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
            LateCommit: a commit may still arrive in the table's log.
            LakeError: staged segments are not in undamaged files of the table; `run` repairs it.
        """
        if policy.of_config(bytes(self._identity.config)).keep_table and not self._awaits_clone():
            self.drop_table()
            # Invariant 10: besides the table, only the staged segments are left of the stream.
            if damaged := check.look_over(self._storage, self.table):
                check.ask(self._storage.root, self._identity, damaged)
                raise LakeError(check.describe(self.table, damaged))
            staging.discard_through(self._directory, self._identity, self._watch.position() or 0)
            return
        self.drop_table()
        staging.discard(self._directory)

    def is_behind(self) -> bool:
        """Return True if staged or quarantined segments are missing in the table, or it is reported as damaged. Uses no
        JVM."""
        position = self._watch.position() or 0
        if (
            not self.is_cleared
            or self._trouble is not None
            or self._awaits_clone()
            or check.is_asked(self._storage, self._directory)
        ):
            return True
        staged = staging.segments(self._directory)
        if staged and staged[-1].last_index > position:
            return True
        return quarantine.find(self._directory, position) is not None

    def plan(self, through: int) -> CommitPlan | None:
        """Prepare the next commit, up to a log index; None if there is nothing to commit. A plan holds the table's lock
        until `commit` or `release`.

        Raises:
            SegmentGap, QuarantinedSegment, ForeignTable, BadPolicy: this stream needs a person's decision.
            DamagedTable: so does its table, which cannot be repaired; staged segments are committed all the same, and
                it is raised when there are none.
            TableBusy: the table is under maintenance; retry later.
        """
        if self._awaits_clone():
            return None
        self._acquire()
        try:
            damaged = self._repair()
            self.clear()
            progress = self._watch.head.progress
            if not self._keyed.is_done and progress is not None:  # an interrupted commit may have left it behind
                self._follow(policy.of_config(bytes(self._identity.config)), progress)
            found = self._planned(through)
            if found is None and (error := damaged or self._trouble) is not None:
                raise error
        except BaseException as error:
            self.release(error)
            raise
        if found is None:
            self.release()
        return found

    def _planned(self, through: int) -> CommitPlan | None:
        reached = self._watch.position() or 0
        if (quarantined := quarantine.find(self._directory, reached)) is not None:
            raise quarantined
        staged = [each for each in staging.segments(self._directory) if each.last_index <= through]
        parts = batches.choose(self.table, reached, staged, self._options.commit_bytes)
        # Again: segments staged after a withdrawal are compacted after the removal of its table.
        if not parts or self._awaits_clone():
            return None
        began_ns = time.time_ns()
        with self._quarantining():
            footers = [staging.footer(part.path) for part in parts]
        count = batches.fitting(footers, self._options.commit_bytes)
        batch = batches.gather(self._identity.uid, parts[:count], footers[:count], self._watch.head.progress)
        return self._prepared(batch, reached, began_ns)

    def revise(self, plan: CommitPlan, output: Output) -> CommitPlan | None:
        """Return the plan with which the segments have to be written again, after tasks that have found that the table
        lacks columns or partitions by bucket; None if `commit` can follow.

        Raises:
            QuarantinedSegment: a segment does not decode.
            LakeError: it failed otherwise.
        """
        task = plan.task
        if output.damaged is not None:
            bad = BadSegment(output.damaged.path, output.damaged.offset, output.damaged.reason)
            raise quarantine.set_aside(bad.path, bad)
        if output.failure:
            raise LakeError(output.failure)
        if output.unfit and task.layout.kind != "bucket":
            layout = Layout("bucket", bounds=self._bounds(plan.batch, DEFAULT_BUCKETS, True))
            self._rewrite(layout, plan.batch.policy)
            return msgspec.structs.replace(plan, task=msgspec.structs.replace(task, layout=layout))
        if output.needed:
            assert task.columns is not None
            wider = task.columns.extended(output.needed)
            return msgspec.structs.replace(plan, task=msgspec.structs.replace(task, columns=wider))
        if set(output.parts) != task.parts.keys():
            raise TableBusy(self.table)  # it was restored since the batch was offered; the next one has its segments
        return None

    def commit(self, plan: CommitPlan, output: Output) -> Outcome:
        """Commit the files of a plan, and release the lock. Unless `is_cleared`, rows have to be deleted next."""
        try:
            batch, spans, before = plan.batch, self._options.spans, self._watch.head.progress
            traced = spans.find(batch.parts, batch.unwritten) if spans is not None else []
            self._cleared, self._owed = False, None
            if batch.departures is not None and len(batch.departures):
                departure_files.write(self._storage, self.table, batch.progress.last_index, batch.departures)
            misfits = self._append(plan, output)
            reached = self._watch.position() or 0
            if reached < batch.progress.last_index:
                raise LakeError(f"{self.table}: a commit through {batch.progress.last_index} left it at {reached}")
            keyed = self._follow(batch.policy, batch.progress)
            if batch.departures is not None:
                self._owed = batches.departures_deleted(batch, before.floor if before else 0)
            if spans is not None:
                label = (self._identity.account, self._identity.name, self._identity.uid)
                spans.export(CommitSpan(*label, reached, plan.began_ns, time.time_ns()), traced)
            return Outcome(1, len(batch.parts), self._watch.head.rows, reached, misfits, keyed)
        except BaseException as error:
            self.release(error)
            raise
        finally:
            self.release()

    @property
    def is_cleared(self) -> bool:
        """Return True if no rows removed by the last commit can be in the table."""
        progress = self._watch.head.progress
        return self._cleared or progress is None or progress.departed <= 0

    def clear(self) -> None:
        """Delete the rows that the last commit has removed, unless it is done. May be repeated."""
        self._watch.position()
        if self.is_cleared:
            return
        with self._alone():
            progress, owed = self._watch.head.progress, self._owed
            assert progress is not None
            if owed is None:
                dead = departure_files.gone(departure_files.read(self._storage, self.table, progress.last_index))
                owed = batches.deleted_rows(progress.last_index, progress, dead)
            for rows in owed:
                self._table.delete(rows)
            self._cleared = True

    def _follow(self, asked: policy.StreamPolicy, progress: TableProgress) -> str:
        """Bring the upsert table to the stream's table; return its path if it has changed. An error does not hold up
        the stream: `plan` raises it when there is nothing else to do."""
        try:
            commits = self._keyed.follow(asked, progress.last_seq)
            self._trouble = None
            return self._keyed.path if commits else ""
        except Exception as error:
            if leaves_doubt(error):
                raise
            self._trouble = error
            return ""

    def release(self, error: BaseException | None = None) -> None:
        """Release the table's lock, if it is held. `error`: with which the work ended."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release(error is not None and leaves_doubt(error))

    def _repair(self) -> DamagedTable | None:
        """Repair the table if the server has found it damaged; return the error if that is impossible."""
        if not check.is_asked(self._storage, self._directory):
            return None
        found = self._table.find()
        if found is None or found.uid != self._identity.uid:
            check.settle(self._storage, self._directory)
            return None
        mending = repair.TableRepair(self._spark, self._storage, self._identity, self.table, self._directory)
        try:
            if mending.run(self._check) is not None:
                self._cleared = False
        except DamagedTable as error:
            return error
        return None

    def _awaits_clone(self) -> bool:
        """Return True if it is still open whether the table begins as a clone (lake/staging/clone_request.py)."""
        return clone_request.is_open(self._storage, self._directory)

    def drop_table(self) -> bool:
        """Remove a deleted stream's table unless it is another stream's or retained; return False when nothing was
        removed.

        The table disappears at once, before its files are deleted.

        Raises:
            StillCloned: clones need its files.
            LateCommit: a commit may still arrive in its log.
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
            assert self._lock is not None
            self._table.require_last(self._lock)
            self._misfits.remove()
            self._keyed.remove()
            self._table.remove(found.uid)
            return True

    @contextmanager
    def _quarantining(self) -> Iterator[None]:
        """Context that moves a damaged segment to quarantine, so that its stream stops there until it is replaced.

        Raises:
            QuarantinedSegment: in place of the error that it caused.
        """
        try:
            yield
        except BadSegment as bad:
            raise quarantine.set_aside(bad.path, bad) from None

    # The table's lock (lake/storage/locks.py)

    def _acquire(self) -> None:
        self._lock = locks.acquired(self._spark, self._storage.root, self.table, BUSY_SECONDS)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context that holds the lock, unless it is held."""
        if self._lock is not None:
            yield
            return
        self._acquire()
        try:
            yield
        except BaseException as error:
            self.release(error)
            raise
        self.release()

    def _check(self) -> None:
        """Raise LeaseLost if the lock may have another holder by now."""
        if self._lock is not None:
            self._lock.check()

    # One commit

    def _prepared(self, batch: CommitBatch, reached: int, began_ns: int) -> CommitPlan | None:
        """Bring the table into the state that the batch's rows need; None if it belongs to a younger stream of this
        name."""
        found = self._table.find()
        if found is not None and found.uid == self._identity.uid:
            # This commit hides those of other programs from a server that is started later.
            log, app = TableLog(self._storage, self.table), application(self._identity.uid)
            foreign = foreign_commits.since_progress(log, app, self._watch.head.moved)
            foreign_commits.leave_notes(self._storage, self._directory, foreign)
        if found is not None and found.uid != self._identity.uid:
            if found.created_ns > self._identity.created_ns:
                return None
            assert self._lock is not None
            self._table.make_way(found, self._lock)
            found = None
        if found is not None and self._is_encrypted(found) and not encryption.is_encrypted(self.table):
            raise LakeError(
                f"{self.table} has no key, and its server says `lake {{ encryption: parquet }}`: bring back its "
                f"{paths.TABLE_KEY}; if it was begun without encryption, delete the stream, or say `storage`"
            )
        if self._identity.encrypted and batch.policy.iceberg not in ("", "off"):
            raise LakeError(f"{self.table}: an encrypted table has no Iceberg table; set lakestream.iceberg to off")
        layout = self._layout(batch, found)
        if found is None:
            self._table.create(layout, batch.policy)
        else:
            self._end_rows(batch, reached, found)
            if layout != found.layout:
                self._rewrite(layout, batch.policy)
            # After the rewrite: record the request only once the layout exists.
            self._table.adapt(found, batch.policy)
        # From the first file on: Polars reads no table of which some paths have the partition's values and others not.
        set_there = wanted_properties(batch.policy) if found is None else found.properties
        random = set_there.get(RANDOM_PREFIXES) == "true"
        task = StreamTask(
            parts={part.path: part.after for part in batch.parts},
            dead=batch.unwritten,
            removals=batch.removals,
            table=self.table,
            layout=layout,
            random=random or (layout.kind != "bucket" and (found is None or layout != found.layout)),
            columns=self._columns(batch, found.schema if found is not None else None),
        )
        return CommitPlan(batch, reached, task, began_ns)

    def _end_rows(self, batch: CommitBatch, position: int, found: ExistingTable) -> None:
        """Delete rows of removed messages; in an archive, mark them."""
        before = self._watch.head.progress
        gone = batches.deleted_rows(position, before, batch.unwritten)
        for rows in gone:
            self._table.delete(rows)
        if runs := batches.erasures(position, before, batch.shredded):
            erasures.leave_note(self._storage, self.table, self._identity.uid, batch.progress.last_index, runs)
            # A list that lacks a file takes no deletions.
            Replay(self._spark, self._storage.root, self._identity, table=self.table).repair(self._check)
            self._misfits.delete([rows.sql for rows in gone], shred=True)
            self._keyed.erase(runs)
        if found.archive and not batch.policy.archive:
            self._table.delta().delete(f"{REMOVED_COLUMN} IS NOT NULL")
        if batch.policy.archive and not found.archive_column:
            self._table.become_archive()
        for update in batches.updates(position, before, batch.removals):
            self._table.delta().update(update.condition, {update.column: update.value})

    def _append(self, plan: CommitPlan, output: Output) -> int:
        """Commit the batch's rows, unless the table's position is another one by now; return the number of misfits."""
        batch, columns = plan.batch, plan.task.columns
        self._check()
        # Misfits first: the stream's own commit is the one that is not repeated.
        misfits = self._misfits.commit(output.misfits, batch.progress)
        before = self._watch.head.progress
        total = misfits + (before.misfits if before is not None else 0)
        stated = _stated(msgspec.structs.replace(batch.progress, misfits=total), plan.began_ns // 1_000_000)
        commit = self._table.begin(application(self._identity.uid))
        if (self._watch.position() or 0) == plan.position:
            if columns is not None:
                commit.change_schema(columns.widen)
            commit.add(output.files)
            commit.move(batch.progress)
            commit.append(plan.task.layout.columns, stated)
        return misfits

    def _columns(self, batch: CommitBatch, schema: str | None) -> CommitColumns | None:
        """Return the typed columns of the table as they are; None for a stream without schemas."""
        if not batch.schemas:
            return None
        reached = self._misfits.reached()
        if self._identity.encrypted:
            self._misfits.begin_encrypted()
        return CommitColumns(
            lake=self._storage.root,
            account=self._identity.account,
            schemas=batch.schemas,
            table=EMPTY if schema is None else of_table(schema),
            drop_data=batch.policy.drop_data,
            misfits=self._misfits.path,
            misfits_after=0 if reached is None else reached.last_seq,
            indexed=file_statistics.count_of(batch.policy.properties),
            empty_deletes=batch.policy.empty_deletes,
        )

    # The layout

    def _is_encrypted(self, found: ExistingTable | None) -> bool:
        """Return True if the table is to be encrypted, or is so since its server asked for it."""
        return self._identity.encrypted or (found is not None and encryption.ENCRYPTED in found.properties)

    def _layout(self, batch: CommitBatch, found: ExistingTable | None) -> Layout:
        """Return the layout that the table should have for this batch."""
        if self._is_encrypted(found):
            return Layout("bucket")  # the log names values and bounds of partitions
        asked = batch.policy.partition
        current, decided_for = (found.layout, found.decided_for) if found else (None, None)
        want = layouts.wanted_partition(asked, batch.subjects, current, decided_for, self._options.subject_limit)
        if want.kind in ("tokens", "fields") and self._too_many(batch, want, current):
            want = Partition("bucket")
        if current is not None and layouts.layout_agrees(current, want, asked, decided_for):
            return current
        if want.kind != "bucket":
            return Layout(want.kind, tokens=want.tokens, terms=layouts.typed_terms(want.terms))
        return Layout("bucket", bounds=self._bounds(batch, want.buckets, found is not None))

    def _too_many(self, batch: CommitBatch, want: Partition, current: Layout | None) -> bool:
        """Return True if partitions by tokens or fields would exceed SUBJECT_MOST, in the table or in this batch alone.

        Of fields the tasks count those of a batch.
        """
        if want.kind == "fields":
            return current is not None and current.kind == "fields" and self._table.partitions() > SUBJECT_MOST
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

    def _bounds(self, batch: CommitBatch, buckets: int, in_table: bool) -> tuple[str, ...]:
        """Return bounds of buckets with about equal numbers of subjects."""
        step = -(-len(batch.parts) // SAMPLED_SEGMENTS)
        some = batch.parts[::step]
        most = max(1, layouts.SAMPLE // len(some))
        subjects = [text for part in some for text in layouts.sample_subjects(part.path, part.after, most)]
        return layouts.choose_bounds([*subjects, *(self._table.sample() if in_table else [])], buckets)

    def _rewrite(self, layout: Layout, asked: policy.StreamPolicy) -> None:
        self._table.rewrite(layout, None if self._watch.head.progress is None else _json(self._watch.head.progress))
        if iceberg_files.is_wanted(self._storage, self.table, wanted_properties(asked)):
            self._table.identify()


def clear_removed(lake: str) -> None:
    """Delete the rest of tables whose removal was interrupted."""
    storage = open_storage(lake)
    storage.delete_tree(f"{storage.root}/{paths.REMOVED}")


def _stated(progress: TableProgress, began_ms: int) -> str:
    """Return the userMetadata of a commit: its progress, and when its rows began to be written."""
    return msgspec.json.encode(msgspec.structs.asdict(progress) | {"began_ms": began_ms}).decode()


def _json(progress: Any) -> str:
    return msgspec.json.encode(progress).decode()
