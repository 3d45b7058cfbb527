"""Maintenance of tables: OPTIMIZE, VACUUM, checkpoints, log clean-up.

Belongs here: inspecting a table (`look` reads its transaction log, maintenance_plan.py decides, both without Spark) and
executing the plan (`Maintainer`, with Spark). The order is OPTIMIZE, checkpoint, log clean-up, VACUUM; each is complete
by itself, so after a kill the next run does the rest.

Nothing here adds or removes a row, or moves a table's position:

- OPTIMIZE commits no `txn` and no userMetadata. The progress of an older commit holds for it as well (see
  `TableLog.progress`); a copy of it could be out of date by the time of the commit.
- Log clean-up keeps the newest commit with progress at or before the beginning of the retention, and the checkpoint
  before it, so that every time within the retention finds its version.
- Iceberg snapshots older than the retention have to expire before VACUUM deletes a file that they name: maintenance
  asks for it, and a later round deletes.
- VACUUM makes no commit, so maintenance adds no version to an idle table.
- Files with messages to be erased are deleted at once, regardless of the retention (vacuum.py). A mirror that began as
  a clone and references such a file gets a copy first: the message still belongs to the mirror.
- A clone is detached (detach.py) on request, and when the table whose files it references has to be removed.

Invariant: commits and deletions from the log require the table's lock (lake/storage/locks.py) and a check that it is
the same table. So do deletions of files, some at a time, after checking again which of them clones need: a clone is
registered under that lock. Writing new files takes no lock: their names are unique.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from lakestream.lake.errors import LacksFiles, TableBusy, first_line, is_conflict
from lakestream.lake.staging.staging import StreamIdentity, read_identity
from lakestream.lake.storage import locks, paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import MAINTAINER_LOCK, open_lock
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import check, erasures
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.actions import Key, located, statistics, table_file
from lakestream.lake.table.at import NotATable, open_log
from lakestream.lake.table.log import TableLog, TableVersion, has_log
from lakestream.lake.table.policy import (
    FOLLOW,
    HOUR_NS,
    LOG_RETENTION_PROPERTY,
    TIME_TRAVEL_PROPERTY,
    interval_ns,
    of_config,
    tombstones_ns,
)
from lakestream.lake.table.schema import STREAM_PROPERTY, UID_PROPERTY
from lakestream_spark.write import clones, iceberg_files, vacuum
from lakestream_spark.write.clones import CloneUnreadable, References
from lakestream_spark.write.commit import forget, write_checkpoint
from lakestream_spark.write.detach import Detacher, DetachResult, of_others
from lakestream_spark.write.maintenance_plan import (
    LEAST_RETAIN_HOURS,
    MARGIN_NS,
    DataFile,
    Facts,
    MaintenancePlan,
    Policy,
    decide,
    decide_bins,
    first_round,
    log_floor,
)
from lakestream_spark.write.misfits import MisfitTable, Retained
from lakestream_spark.write.replay import Replay, ReplayResult
from lakestream_spark.write.rewrite import Rewriter
from lakestream_spark.write.vacuum import dead_files, with_checksum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

ATTEMPTS = 3
"""Maximum number of attempts of a step that conflicts with other commits."""
LOCK_SECONDS = 30.0
"""Maximum time to wait for a table's lock; the compactor holds it for a commit, a few seconds at most."""
REST_NS = HOUR_NS
"""Time for which a table that needed nothing is skipped without new commits; only time could change that."""

_DELETED_AT_ONCE = 1000
_MS = 1_000_000


class TableInUse(Exception):
    """Raised when the table's lock could not be taken in time. The next round retries."""


# Looking


def tables(storage: Storage) -> list[str]:
    """Return every directory of the lake where a stream's table is or may be, of all accounts, sorted by path."""
    root = storage.root
    accounts = f"{root}/{paths.ACCOUNTS}"
    parents = [f"{root}/{paths.STREAMS}"]
    parents += [f"{accounts}/{name}/{paths.STREAMS}" for name in storage.directories(accounts)]
    found = [f"{parent}/{name}" for parent in parents for name in storage.directories(parent)]
    return [table for table in found if _may_be_table(storage, table)]


def _may_be_table(storage: Storage, directory: str) -> bool:
    """Return True also on an error, which the maintenance of the table then reports."""
    try:
        return has_log(storage, directory)
    except OSError:
        return True


def look(
    storage: Storage, table: str, policy: Policy, now_ns: int, references: References | None = None
) -> Facts | None:
    """Read a table's log; return None when there is no table of a stream.

    Args:
        storage: the lake.
        table: the table's path.
        policy: for its retention, if the table does not state its own.
        now_ns: the present, ns since the epoch.
        references: cache of clones' references.

    Raises:
        LacksFiles: the newest version is damaged.
    """
    to_erase = erasures.merged(erasures.notes(storage, table))
    if (found := read(storage, table)) is None:
        return None
    log, state = found
    check.require(storage, table, state)  # damage is told, even if nothing is due
    properties, written = state.metadata.configuration, log.checkpoints
    retain_ns = retention(properties, policy)
    since_ms = iceberg_files.needed_since_ms(storage, table, state.version)
    if since_ms is not None and since_ms * _MS >= now_ns - retain_ns:
        since_ms = None
    try:
        held_ns = 0 if since_ms is None else min(now_ns - since_ms * _MS + MARGIN_NS, tombstones_ns(properties))
        stale, trouble = _stale(storage, log, state, max(retain_ns, held_ns), now_ns, references)
        return Facts(
            table=table,
            stream=properties.get(STREAM_PROPERTY) or table.rpartition("/")[2],
            uid=properties[UID_PROPERTY],
            incarnation=state.metadata.id,
            version=state.version,
            partition_columns=state.metadata.partition_columns,
            files=data_files(state, vacuum.to_rewrite(storage, table, state, to_erase)),
            since_checkpoint=state.version - (written[-1] if written else -1),
            oldest=log.versions[0],
            keep_from=log_floor(log, written, (now_ns - log_retention(properties, retain_ns)) // 1_000_000),
            retain_ns=retain_ns,
            stale=stale,
            trouble=trouble,
            erase=erasures.count(to_erase),
            snapshots_from_ms=since_ms,
        )
    except FileNotFoundError:  # removed meanwhile
        return None


def read(storage: Storage, table: str, version: int | None = None) -> tuple[TableLog, TableVersion] | None:
    """Return a stream's table at a version, the newest by default; None when there is none."""
    log = TableLog(storage, table)
    if not log.commits:
        return None
    try:
        state = log.state(version)
    except FileNotFoundError:  # no commit in it yet, or removed meanwhile
        return None
    return (log, state) if state.metadata.configuration.get(UID_PROPERTY) else None


def retention(properties: dict[str, str], policy: Policy) -> int:
    """Return how long a table's versions stay readable, ns: by the stream's metadata, else the maintainer's setting."""
    said = properties.get(TIME_TRAVEL_PROPERTY, "")
    return max(int(said), int(LEAST_RETAIN_HOURS * HOUR_NS)) if said.isdecimal() else policy.retain_ns


def log_retention(properties: dict[str, str], retain_ns: int) -> int:
    """Return how long commits stay in the log, ns: as long as versions, or shorter where the table says so to Delta."""
    return min(retain_ns, interval_ns(properties.get(LOG_RETENTION_PROPERTY, "")) or retain_ns)


def expire(storage: Storage, table: str, keep_from: int) -> int:
    """Delete the log's files of versions before `keep_from`, oldest first; return the number of commits among them.

    Invariant: `keep_from` has a checkpoint, so what is left can be read without the rest. Source: Delta protocol,
    "Metadata Cleanup".

    Raises:
        LacksFiles: the newest version is damaged, and may be repaired from these.
    """
    check.require_whole(storage, table)
    log = TableLog(storage, table)
    assert keep_from in log.checkpoints
    # Sync the checkpoint, whichever program wrote it, before deleting what it replaces.
    storage.sync_files(log.parts(keep_from))
    old = log.files_before(keep_from)
    # The table's lock is held, so use few requests.
    for at in range(0, len(old), _DELETED_AT_ONCE):
        storage.delete_all(old[at : at + _DELETED_AT_ONCE])
    return sum(version < keep_from for version in log.commits)


def data_files(state: TableVersion, to_rewrite: Set[Key] = frozenset()) -> list[DataFile]:
    """Return the files of a state for the plan; files in `to_rewrite` hold rows to be erased."""
    columns = state.metadata.partition_columns
    found = []
    for key, add in state.files.items():
        stats = statistics(add)
        deleted = 0 if add.deletion_vector is None else add.deletion_vector.cardinality
        partition = tuple(add.partition_values.get(column) for column in columns)
        file = DataFile(partition, add.size, stats.rows, deleted, stats.min_seq, stats.max_seq, key)
        found.append(msgspec.structs.replace(file, erase=True) if key in to_rewrite else file)
    return found


def _stale(
    storage: Storage,
    log: TableLog,
    state: TableVersion,
    retain_ns: int,
    now_ns: int,
    references: References | None,
) -> tuple[list[str], str | None]:
    """Return (files that VACUUM may delete, reason why it must not). Clones are searched only if there are such
    files."""
    found = dead_files(storage, log, state, retain_ns, now_ns, frozenset())
    try:
        kept = (references or References(storage)).into(log.table) if found else set()
    except CloneUnreadable as error:
        return [], str(error)
    return [path for path in found if path not in kept], None


# Doing


class MaintenanceResult(msgspec.Struct, frozen=True):
    """Result for one table: the plan, files before and after OPTIMIZE, missing files of misfits that were replaced, an
    error in one line, the path of the table, and the result of a replay that was asked for."""

    stream: str
    plan: MaintenancePlan
    removed: int = 0
    added: int = 0
    mended: int = 0
    seconds: float = 0.0
    failure: str | None = None
    table: str = ""
    replayed: ReplayResult | None = None

    def describe(self) -> str:
        """Return the result in one line for people."""
        if self.failure is not None:
            return f"{self.stream}: {self.failure}"
        if self.replayed is not None:
            return f"{self.stream}: replayed {self.replayed.misfits} misfits, {self.replayed.mended} fit now"
        parts = [f"optimized {self.removed} files into {self.added}"] if self.removed else []
        parts += ["checkpoint"] if self.plan.checkpoint else []
        parts += [f"dropped {self.plan.expired} commits from the log"] if self.plan.expired else []
        parts += [f"vacuumed {len(self.plan.stale)} files"] if self.plan.stale else []
        parts += [f"erased {self.plan.erase} messages"] if self.plan.erase else []
        parts += [f"listed the misfits of {self.mended} missing files again"] if self.mended else []
        return f"{self.stream}: {', '.join(parts) or 'nothing to do'}, {self.seconds:.2f} s"


class _Rest(msgspec.Struct, frozen=True):
    """A table that needed nothing: its stream, the version, and the time of the check."""

    stream: str
    version: int
    since_ns: int


class Maintainer:
    """Maintains the tables of one lake. Not for use by two threads at once.

    Args:
        spark: a session with Delta; it is not changed.
        lake: the lake's root, a directory or URL.
        policy: settings. The retention is not checked here; callers use `check_retention`.
        stopping: asked before each step.
        clock: returns the present, ns since the epoch.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        policy: Policy | None = None,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._storage = open_storage(lake)
        self._policy = policy or Policy()
        self._stopping = stopping
        self._clock = clock
        self._spark = spark.newSession()
        self._rewriter = Rewriter(self._spark, self._storage, self._policy.target_bytes)
        self._references = References(self._storage)
        self._at_rest: dict[str, _Rest] = {}
        self._group = f"lakestream-maintenance-{uuid.uuid4().hex}"
        self._lock = open_lock(spark, f"{self._storage.root}/{MAINTAINER_LOCK}")

    def acquire(self) -> bool:
        """Take the maintainer's lock; return False while another process holds it."""
        return self._lock.acquire()

    def release(self) -> None:
        """Release the maintainer's lock."""
        self._lock.release()

    def cancel(self) -> None:
        """Cancel the running Spark job. For another thread, once `stopping` is true."""
        self._spark.sparkContext.cancelJobGroup(self._group)

    def once(
        self, stream: str | None = None, report: Callable[[MaintenanceResult], None] = lambda done: None
    ) -> list[MaintenanceResult]:
        """Maintain every table now. An error of one table stops only that table.

        Args:
            stream: only streams of this name, in any account.
            report: called after each table.
        """
        outcomes = []
        found = tables(self._storage)
        self._at_rest = {table: self._at_rest[table] for table in found if table in self._at_rest}
        for table in found:
            if self._stopping():
                break
            if (done := self.maintain(table, stream)) is not None:
                outcomes.append(done)
                report(done)
        return outcomes

    def maintain(self, table: str, stream: str | None = None) -> MaintenanceResult | None:
        """Maintain one table now; return None when there is no such table, or it is not of `stream`."""
        name = table.rpartition("/")[2]
        began = time.monotonic()
        try:
            if (rest := self._resting(table)) is not None:
                return MaintenanceResult(rest.stream, MaintenancePlan()) if stream in (None, rest.stream) else None
            if (found := read(self._storage, table)) is None:
                return None
            name = found[1].metadata.configuration.get(STREAM_PROPERTY) or name
            if stream not in (None, name):
                return None
            self._spark.sparkContext.setJobGroup(self._group, f"maintenance of {name}")
            done = retry(lambda: self._work(table))
            seconds = time.monotonic() - began
            return None if done is None else msgspec.structs.replace(done, seconds=seconds, table=table)
        except Exception as error:
            if isinstance(error, LacksFiles) and not self._ask_for_repair(error.table):
                return None
            if self._stopping():  # an interrupted step is no failure
                return None
            return MaintenanceResult(
                name, MaintenancePlan(), seconds=time.monotonic() - began, failure=first_line(error)
            )

    def _ask_for_repair(self, table: str) -> bool:
        """Ask the compactor to repair a damaged table, and the server, which reads the same request, to check it.

        Return False if the table is gone, or whole by now.
        """
        there = open_storage(table)
        if (found := read(there, table)) is None:
            return False
        damaged = check.lacking(there, table, map(table_file, found[1].files.values()))
        properties = found[1].metadata.configuration
        name = properties.get(STREAM_PROPERTY) or table.rpartition("/")[2]
        if damaged and (identity := self._identity(table, name, properties[UID_PROPERTY])) is not None:
            check.ask(self._storage.root, identity, damaged)
        return bool(damaged)

    def _identity(self, table: str, name: str, uid: str) -> StreamIdentity | None:
        """Return the stream of a table of the lake; None for another table, and if it has no staging directory."""
        root = self._storage.root
        if not table.startswith(f"{root}/"):
            return None
        return read_identity(paths.staging(root, name, uid, paths.stream_of(root, table)[0]))

    def _mend_misfits(self, facts: Facts) -> int:
        """Maintain the table of misfits of a stream, or repair it from the stream's own.

        Return the number of its missing files.
        """
        identity = self._identity(facts.table, facts.stream, facts.uid)
        if identity is None:
            return 0
        misfits = MisfitTable(self._spark, self._storage, identity, facts.table)
        if not misfits.damaged():
            end = self._retained(facts.table, identity)
            if misfits.is_due(end):
                with self._alone(facts.table, facts.incarnation) as same:
                    if same:
                        misfits.maintain(end)
            return 0
        with self._alone(facts.table, facts.incarnation) as same:
            return Replay(self._spark, self._storage.root, identity, table=facts.table).repair() if same else 0

    def _retained(self, table: str, identity: StreamIdentity) -> Retained:
        """Return the end of the misfits that the table of misfits keeps."""
        policy = of_config(bytes(identity.config))
        keep_ns = policy.misfits_keep_ns
        if keep_ns is not None:
            return Retained(time_ns=self._clock() - keep_ns)
        if policy.misfits_keep != FOLLOW or policy.archive:
            return Retained()
        log = open_log(table)
        progress = log.progress(log.latest)
        return Retained(seq=0 if progress is None else progress.floor)

    def replay(self, table: str) -> MaintenanceResult | None:
        """Decode the misfits of a stream again; return None if the table is no stream's."""
        if (facts := read(self._storage, table)) is None:
            return None
        properties = facts[1].metadata.configuration
        name, began = properties.get(STREAM_PROPERTY) or table.rpartition("/")[2], time.monotonic()
        identity = self._identity(table, name, properties[UID_PROPERTY])
        if identity is None:
            return None
        try:
            done = Replay(self._spark, self._storage.root, identity, table=table).run()
        except Exception as error:
            return MaintenanceResult(name, MaintenancePlan(), failure=first_line(error))
        return MaintenanceResult(name, MaintenancePlan(), replayed=done, seconds=time.monotonic() - began)

    def _resting(self, table: str) -> _Rest | None:
        """Return the cached check of a table that has not changed since. Costs one listing of its log."""
        rest = self._at_rest.get(table)
        if rest is None or not 0 <= self._clock() - rest.since_ns < REST_NS:
            return None
        commits = TableLog(self._storage, table).commits
        return rest if commits and commits[-1] == rest.version else None

    def _work(self, table: str) -> MaintenanceResult | None:
        """Do what the table needs; return None when it is gone."""
        facts = look(self._storage, table, self._policy, self._clock(), self._references)
        if facts is None:
            return None
        plan = decide(facts, self._policy)
        if facts.snapshots_from_ms is not None:
            iceberg_files.ask_to_expire(self._storage, table, (self._clock() - facts.retain_ns) // _MS)
        elif not plan:
            self._at_rest[table] = _Rest(facts.stream, facts.version, self._clock())
        mended = self._mend_misfits(facts)
        removed = added = 0
        while plan.bins and not self._stopping():
            outcome = self._optimize(facts)
            if outcome is None:
                return None
            if outcome == (0, 0):
                break
            removed, added = removed + outcome[0], added + outcome[1]
        done = msgspec.structs.replace(
            plan,
            checkpoint=plan.checkpoint and self._checkpoint(facts),
            expired=self._expire(facts, plan),
            stale=plan.stale if self._delete(facts, plan.stale) else [],
            erase=0,
        )
        trouble = facts.trouble
        if plan.erase and not self._stopping():
            erased, trouble = self._erase(facts)
            done = msgspec.structs.replace(done, erase=erased)
        return MaintenanceResult(facts.stream, done, removed, added, mended, failure=facts.trouble or trouble)

    def _optimize(self, seen: Facts) -> tuple[int, int] | None:
        """Rewrite as much of the newest version as one commit takes.

        Return (files removed, files added), zeros if nothing is due, and None when the table is gone.
        """
        self._forget(seen.table)
        commit = self._rewriter.begin(seen.table)
        found = read(self._storage, seen.table, commit.base)
        if found is None or found[1].metadata.id != seen.incarnation:
            return None
        to_erase = erasures.merged(erasures.notes(self._storage, seen.table)) if seen.erase else []
        to_rewrite = vacuum.to_rewrite(self._storage, seen.table, found[1], to_erase)
        bins = first_round(decide_bins(data_files(found[1], to_rewrite), self._policy))
        if not bins:
            return 0, 0
        stamp_ms = self._clock() // 1_000_000
        return self._rewriter.rewrite(
            commit, found[1], bins, lambda: self._alone(seen.table, seen.incarnation), stamp_ms
        )

    def _checkpoint(self, facts: Facts) -> bool:
        """Write a checkpoint of the newest version, if it is the same table."""
        if self._stopping():
            return False
        with self._alone(facts.table, facts.incarnation) as same:
            if same:
                # In a table without commits since it was Delta's clean-up of the log, it deletes old ones now.
                check.require_whole(self._storage, facts.table)
                write_checkpoint(self._spark, self._storage, facts.table)
            return same

    def _expire(self, facts: Facts, plan: MaintenancePlan) -> int:
        if not plan.expired or self._stopping():
            return 0
        with self._alone(facts.table, facts.incarnation) as same:
            if not same:
                return 0
            expired = expire(self._storage, facts.table, plan.keep_from)
            departure_files.sweep(self._storage, facts.table)
            return expired

    def _delete(self, facts: Facts, stale: list[str]) -> bool:
        """Delete files that no version needs, except those that a version or a clone has come to need since they were
        chosen: a repair brings back the files of an older version.

        Raises:
            LacksFiles: the newest version is damaged, and may be repaired from these.
        """
        for at in range(0, len(stale), _DELETED_AT_ONCE):
            if self._stopping():
                return False
            with self._alone(facts.table, facts.incarnation) as same:
                if not same:
                    return False
                kept = self._references.newly(facts.table)
                now = check.require_whole(self._storage, facts.table)
                kept.update(path for add in now.files.values() for path in located(facts.table, add))
                some = [path for path in stale[at : at + _DELETED_AT_ONCE] if path not in kept]
                local = self._storage.local
                self._storage.delete_all(path for each in some for path in (with_checksum(each) if local else [each]))
        return not self._stopping()

    def _erase(self, facts: Facts) -> tuple[int, str | None]:
        """Delete the files that still hold messages to be erased; the newest version has none of them any more.

        Return (number of messages erased from all files, reason why others were not). A running commit never writes a
        row that was deleted before it began.
        """
        found = erasures.notes(self._storage, facts.table)
        runs = erasures.merged(found)
        now = read(self._storage, facts.table)
        if not runs or now is None or now[1].metadata.id != facts.incarnation:
            return 0, None
        if vacuum.to_rewrite(self._storage, facts.table, now[1], runs):
            return 0, None  # deleted since the rewrite began; the next round handles it
        left, unknown, unfinished = vacuum.left_behind(self._storage, *now, runs)
        if unknown and not self._fence(facts):
            return 0, None
        if unfinished:
            with self._alone(facts.table, facts.incarnation) as same:
                if not same:
                    return 0, None
                # Whoever writes data files has the lock meanwhile: nobody goes on with these.
                left += [path for path in unfinished if vacuum.is_unfinished(self._storage, path)]
        try:
            kept = self._kept_after_detaching(facts.table, set(left), runs) if left else set()
        except CloneUnreadable as error:
            return 0, str(error)
        if not self._delete(facts, [path for path in left if path not in kept]):
            return 0, None
        if left:
            iceberg_files.ask_to_expire(self._storage, facts.table, self._clock() // _MS)
        if kept:
            return 0, f"{erasures.count(runs)} deleted messages stay in files that a shallow clone needs"
        self._storage.delete_all(note.path for note in found)
        return erasures.count(runs), None

    def _fence(self, facts: Facts) -> bool:
        """Take the next version of the log in an object store: a request for a commit of it that is still on its way is
        refused from then on. Return False if the table is another one.

        In a directory the lock of a table ends with the JVM that commits, so nothing arrives later.
        """
        if self._storage.local:
            return True
        with self._alone(facts.table, facts.incarnation) as same:
            if same:
                self._forget(facts.table)
                self._rewriter.begin(facts.table).run("optimize")
            return same

    def _kept_after_detaching(self, table: str, files: set[str], runs: erasures.Runs) -> set[str]:
        """Return the files of a table that clones need, after giving mirrors among these copies of their own.

        A mirror usually still has those messages; those that it lacks are erased from its copies as well.
        """
        of_streams = set(tables(self._storage))
        for clone, needed in self._references.by_clone(table).items():
            if not needed & files or clone not in of_streams or self._stopping():
                continue
            found = read(self._storage, clone)
            # Only sequences in these files: for others the mirror may still have uncompacted rows.
            inside = vacuum.within(self._storage, needed & files, runs)
            if found is not None and inside and (gone := vacuum.missing(self._storage, clone, inside)):
                uid = found[1].metadata.configuration[UID_PROPERTY]
                erasures.leave_note(self._storage, clone, uid, self._clock(), gone)
            self.detach(clone, needed & files)
        return self._references.into(table) & files

    # Clones

    def detach(
        self, table: str, only: Set[str] | None = None, report: Callable[[DetachResult], None] = lambda done: None
    ) -> DetachResult | None:
        """Detach a clone; older versions of it become unreadable. Return None when it references no file of others.

        May be repeated after a kill, and then continues.

        Args:
            table: the clone's path or URL; it need not be in the lake.
            only: restricts this to files that need one of these paths; all by default.
            report: called after each file.

        Raises:
            NotATable: there is no table.
            TableInUse: the compactor has it, or has yet to finish a commit.
        """
        there = open_storage(table)
        if not TableLog(there, table).commits:
            raise NotATable(table)
        if not of_others(there, table):
            clones.forget(self._storage, table)
            return None
        incarnation = TableLog(there, table).state().metadata.id
        detacher = Detacher(self._spark, self._stopping, report)
        self._forget(table)
        done = retry(
            lambda: detacher.detach(table, lambda: self._alone(table, incarnation), lambda: self._progress(table), only)
        )
        with self._alone(table, incarnation) as same:
            if same:
                write_checkpoint(self._spark, there, table)
                expire(there, table, TableLog(there, table).checkpoints[-1])
        if only is None:
            clones.forget(self._storage, table)
        return done

    def release_clones(self, table: str) -> list[DetachResult]:
        """Detach every clone from the files of a table whose stream is gone.

        Raises:
            CloneUnreadable: a clone cannot be read, so the files that it needs are unknown.
        """
        needed = self._references.by_clone(table)
        return [done for clone, files in needed.items() if (done := self.detach(clone, files)) is not None]

    def _progress(self, table: str) -> str | None:
        """Return the newest progress, as userMetadata for a commit that replaces it in the log."""
        try:
            log = open_log(table)
            progress = log.progress(log.latest)
        except NotATable:
            return None
        if progress is None:
            return None
        if log.pending_deletes(log.latest) is not None:
            raise TableInUse(f"the compactor has yet to finish a commit of {table}")
        return msgspec.json.encode(msgspec.structs.replace(progress, deletes=0)).decode()

    @contextmanager
    def _alone(self, table: str, incarnation: str) -> Iterator[bool]:
        """Context that holds a table's lock; gives True if it is the same table.

        Raises:
            TableInUse: the lock could not be taken.
        """
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(
                    locks.held(self._spark, self._storage.root, table, LOCK_SECONDS, self._stopping)
                )
            except TableBusy:
                raise TableInUse(f"{table} is being written to; maintenance goes on in the next round") from None
            try:
                there: str | None = TableLog(open_storage(table), table).state().metadata.id
            except FileNotFoundError:
                there = None
            lock.check()
            yield there == incarnation

    def _forget(self, table: str) -> None:
        """Clear Delta's cache of the path; the stream may have been created again since."""
        forget(self._spark, self._storage, table)


def retry(work: Callable[[], T]) -> T:
    """Call `work`, up to ATTEMPTS times while it raises a conflict."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except Exception as error:
            if attempt == ATTEMPTS or not is_conflict(error):
                raise
    raise AssertionError("unreachable")
