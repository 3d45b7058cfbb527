"""Keeping streams' tables small and quick to open: OPTIMIZE, VACUUM, checkpoints, log cleanup.

Belongs here: what a table needs (`look` reads its transaction log, `decide` judges, without Spark) and doing it
(`Maintainer`, with Spark). The order is OPTIMIZE, checkpoint, log cleanup, VACUUM; each is complete by itself, so a
kill anywhere costs nothing but that the next run does the rest.

Nothing here adds or removes a row, or moves a table's position:

- OPTIMIZE commits no `txn` and no userMetadata. What an older commit says of the stream holds for it as well (see
  `CommitLog.progress`); a copy of it could be out of date by the time of the commit.
- Log cleanup keeps the newest commit at or before the retention's begin that says how far the table reaches, and the
  checkpoint before it, so that every time within the retention finds its version.
- VACUUM makes no commit, so a table that is at rest gets no new versions from being looked after.

Invariant: whoever commits holds the table's lock (locks.py); what is decided under it still holds when it is done.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lakestream.lake import paths
from lakestream.lake.errors import LakeError
from lakestream.lake.locks import MAINTAINER_LOCK, JvmLock, table_lock
from lakestream.lake.schema import STREAM_PROPERTY, UID_PROPERTY
from lakestream.lake.timetravel import CommitLog, NotATable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

T = TypeVar("T")

MIB = 1024 * 1024
HOUR_NS = 3_600_000_000_000
DEFAULT_TARGET_BYTES = 128 * MIB
DEFAULT_MIN_FILES = 16
DEFAULT_RETAIN_HOURS = 168.0
"""Seven days, as Delta has it."""
LEAST_RETAIN_HOURS = 1.0
"""VACUUM takes files that no version names, if they are older than this: among them would be those of a commit that is
still under way, and files that a query is reading."""
ATTEMPTS = 3
"""How often a step is begun anew when somebody else's commit was in its way."""

_LOG_FILE = re.compile(r"^\.?(\d{20})\.")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")
_CONFLICT = re.compile(r"DELTA_(CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception")


class RetentionTooShort(LakeError):
    """VACUUM at this retention could take files that are in use."""


class Policy(msgspec.Struct, frozen=True):
    """How tables are kept.

    `target_bytes`: size that OPTIMIZE aims at; files below half of it are small. `min_files`: small files of one
    partition that are worth a rewrite. `retain_ns`: age up to which versions stay readable. `deleted_ratio`: a file
    with a larger share of deleted rows is rewritten without them. `checkpoint_commits`: commits after the last
    checkpoint that are worth one.
    """

    target_bytes: int = DEFAULT_TARGET_BYTES
    min_files: int = DEFAULT_MIN_FILES
    retain_ns: int = int(DEFAULT_RETAIN_HOURS * HOUR_NS)
    deleted_ratio: float = 0.2
    checkpoint_commits: int = 20

    @property
    def small_bytes(self) -> int:
        """Below this a file is small. Two small files together never exceed the target, so a rewrite of several always
        leaves fewer."""
        return self.target_bytes // 2


class DataFile(msgspec.Struct, frozen=True):
    """A data file of the newest version: its partition's value, bytes, rows written, and rows deleted since."""

    partition: str | int | None
    size: int
    rows: int
    deleted: int = 0


class Facts(msgspec.Struct, frozen=True):
    """What a table's log says.

    `since_checkpoint`: commits after the newest checkpoint. `oldest`: first version in the log; `keep_from`: the one
    that it may begin with under the retention. `stale`: files that no version within the retention needs.
    """

    table: str
    stream: str
    uid: str
    version: int
    partition_column: str
    files: list[DataFile]
    since_checkpoint: int
    oldest: int
    keep_from: int
    stale: int


class Plan(msgspec.Struct, frozen=True):
    """What is to be done to a table: partitions to OPTIMIZE, those of them with
    files to be rewritten without their deleted rows (and the files and bytes in question), whether to write a
    checkpoint, the version that its log shall begin with (0: as it is), and how many files VACUUM would delete."""

    partitions: list[str | int]
    worn: list[str | int] = []
    files: int = 0
    size: int = 0
    checkpoint: bool = False
    keep_from: int = 0
    expired: int = 0
    stale: int = 0

    def __bool__(self) -> bool:
        return bool(self.partitions or self.checkpoint or self.expired or self.stale)

    def describe(self) -> str:
        """In words, for people."""
        steps = []
        if self.partitions:
            noun = "partition" if len(self.partitions) == 1 else "partitions"
            count = len(self.partitions)
            steps.append(f"optimize {self.files} files ({self.size / MIB:.1f} MiB) in {count} {noun}")
        if self.checkpoint:
            steps.append("checkpoint")
        if self.expired:
            steps.append(f"drop {self.expired} commits from the log")
        if self.stale:
            steps.append(f"vacuum {self.stale} files")
        return ", ".join(steps) or "nothing to do"


# Deciding


def check_retention(hours: float) -> str | None:
    """A warning about a short retention, or None when it needs none.

    Raises:
        RetentionTooShort: below `LEAST_RETAIN_HOURS`.
    """
    if hours < LEAST_RETAIN_HOURS:
        raise RetentionTooShort(
            f"a retention of {hours:g} h is below {LEAST_RETAIN_HOURS:g} h: VACUUM would delete files of commits and "
            "queries that are under way"
        )
    if hours < DEFAULT_RETAIN_HOURS:
        return f"time travel, and queries that run on, will reach back {hours:g} h only (default: 168 h)"
    return None


def decide(facts: Facts, policy: Policy) -> Plan:
    """What the table needs. The same facts always give the same plan, and done plans give an empty one."""
    due: list[str | int] = []
    worn_partitions: list[str | int] = []
    count = size = 0
    by_partition: dict[str | int, list[DataFile]] = {}
    for file in facts.files:
        if file.partition is not None:  # no predicate of ours would find it; lakestream writes none such
            by_partition.setdefault(file.partition, []).append(file)
    for partition, files in by_partition.items():
        small = [file for file in files if file.size < policy.small_bytes]
        worn = [file for file in files if file.deleted > policy.deleted_ratio * file.rows]
        if len(small) >= max(policy.min_files, 2) or worn:
            chosen = [*worn, *(file for file in small if file not in worn)]
            due.append(partition)
            worn_partitions += [partition] if worn else []
            count += len(chosen)
            size += sum(file.size for file in chosen)
    return Plan(
        partitions=due,
        worn=worn_partitions,
        files=count,
        size=size,
        checkpoint=bool(due) or facts.since_checkpoint >= policy.checkpoint_commits,
        keep_from=facts.keep_from,
        expired=max(0, facts.keep_from - facts.oldest),
        stale=facts.stale,
    )


def predicate(column: str, partitions: Sequence[str | int]) -> str:
    """Spark SQL that is true for rows of these partitions."""
    return f"`{column}` IN ({', '.join(map(_literal, partitions))})"


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


# Looking


def tables(lake: str) -> list[str]:
    """Every directory of the lake where a stream's table is or may be, of all accounts, in order of their paths."""
    root = paths.local_root(lake)
    parents = [os.path.join(root, paths.STREAMS)]
    parents += [os.path.join(each, paths.STREAMS) for each in _directories(os.path.join(root, paths.ACCOUNTS))]
    found = [table for parent in parents for table in _directories(parent)]
    return [table for table in found if os.path.isdir(os.path.join(table, "_delta_log"))]


def _directories(parent: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(parent))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if os.path.isdir(os.path.join(parent, name)):
            yield os.path.join(parent, name)


def look(table: str, policy: Policy, now_ns: int) -> Facts | None:
    """Read a table's log; None when it is no stream's table (any more, or yet).

    Args:
        table: the table's path.
        policy: for its retention.
        now_ns: the present, ns since the epoch.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        delta = DeltaTable(table)
        log = CommitLog(table)
    except (TableNotFoundError, NotATable):
        return None
    metadata = delta.metadata()
    uid = metadata.configuration.get(UID_PROPERTY)
    if uid is None or len(metadata.partition_columns) != 1:
        return None
    column = metadata.partition_columns[0]
    written = checkpoints(table)
    cutoff_ns = now_ns - policy.retain_ns
    return Facts(
        table=table,
        stream=metadata.configuration.get(STREAM_PROPERTY) or os.path.basename(table),
        uid=uid,
        version=log.latest,
        partition_column=column,
        files=_files(delta, column),
        since_checkpoint=log.latest - (written[-1] if written else -1),
        oldest=log.versions[0],
        keep_from=log_floor(log, written, cutoff_ns // 1_000_000),
        stale=_stale(delta, table, policy.retain_ns),
    )


def checkpoints(table: str) -> list[int]:
    """Versions with a complete checkpoint, ascending. Source: Delta protocol, "Checkpoints"."""
    parts: dict[tuple[int, int], int] = {}
    for name in os.listdir(os.path.join(table, "_delta_log")):
        if match := _CHECKPOINT.match(name):
            key = int(match[1]), int(match[3] or 1)
            parts[key] = parts.get(key, 0) + 1
    return sorted({version for (version, expected), found in parts.items() if found == expected})


def log_floor(log: CommitLog, written: Sequence[int], cutoff_ms: int) -> int:
    """The version that the log may begin with, so that every commit and message time from `cutoff_ms` on finds its
    version: the newest checkpoint at or before the last commit that speaks of the stream and is at or before that time.

    0 when there is no such.
    """
    low, high = 0, len(log.versions)
    while low < high:  # in-commit timestamps ascend
        middle = (low + high) // 2
        if log.commit(log.versions[middle]).time_ms <= cutoff_ms:
            low = middle + 1
        else:
            high = middle
    for version in reversed(log.versions[:low]):
        if log.commit(version).progress is not None:
            at = bisect_right(written, version)
            return written[at - 1] if at else 0
    return 0


def expire(table: str, keep_from: int) -> int:
    """Delete the log's files of versions before `keep_from`, oldest first; returns how many commits were among them.

    Invariant: `keep_from` has a checkpoint, so what is left can be read without the rest.
    Source: Delta protocol, "Metadata Cleanup".
    """
    assert keep_from in checkpoints(table)
    directory = os.path.join(table, "_delta_log")
    names = [(int(match[1]), name) for name in os.listdir(directory) if (match := _LOG_FILE.match(name))]
    commits = 0
    for version, name in sorted(names):
        if version >= keep_from:
            break
        try:
            os.unlink(os.path.join(directory, name))
        except FileNotFoundError:  # Delta's own cleanup was there first
            continue
        commits += name == f"{version:020d}.json"
    return commits


def _files(delta: DeltaTable, column: str) -> list[DataFile]:
    import pyarrow as pa

    actions = pa.table(delta.get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return []
    deleted = _deleted_rows(delta)
    names = ("path", f"partition.{column}", "size_bytes", "num_records")
    return [
        DataFile(partition, size, rows or 0, deleted.get(path.rsplit("/", 1)[-1], 0))
        for path, partition, size, rows in zip(*(actions.column(name).to_pylist() for name in names), strict=True)
    ]


def _deleted_rows(delta: DeltaTable) -> dict[str, int]:
    """Rows that deletion vectors take away, by the file's last name, which is unique."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, int] = {}
    for batch in pa.RecordBatchReader.from_stream(delta.deletion_vectors()):
        for path, mask in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            found[path.rsplit("/", 1)[-1]] = len(mask.values) - (pc.sum(mask.values).as_py() or 0)
    return found


def _stale(delta: DeltaTable, table: str, retain_ns: int) -> int:
    """How many data files VACUUM would find to delete.

    deltalake's list is only a hint: it names files of the newest version whose deletion vector has changed, and files
    that are gone already. Dead deletion vectors are not counted; they go with the next data file.
    """
    import pyarrow as pa

    listed = delta.vacuum(
        retention_hours=-(-retain_ns // HOUR_NS), dry_run=True, enforce_retention_duration=False, full=True
    )
    paths_in_use = pa.table(delta.get_add_actions(flatten=True)).column("path").to_pylist()
    in_use = {path.rsplit("/", 1)[-1] for path in paths_in_use}
    dead = [name for name in listed if name.endswith(".parquet") and os.path.basename(name) not in in_use]
    return sum(os.path.exists(os.path.join(table, name)) for name in dead)


# Doing


class Done(msgspec.Struct, frozen=True):
    """What came of one table: the plan, files before and after OPTIMIZE, and one line about what went wrong."""

    stream: str
    plan: Plan
    removed: int = 0
    added: int = 0
    seconds: float = 0.0
    failure: str | None = None

    def describe(self) -> str:
        """One line for people."""
        if self.failure is not None:
            return f"{self.stream}: {self.failure}"
        parts = [f"optimized {self.removed} files into {self.added}"] if self.plan.partitions else []
        parts += ["checkpoint"] if self.plan.checkpoint else []
        parts += [f"dropped {self.plan.expired} commits from the log"] if self.plan.expired else []
        parts += [f"vacuumed {self.plan.stale} files"] if self.plan.stale else []
        return f"{self.stream}: {', '.join(parts) or 'nothing to do'}, {self.seconds:.2f} s"


class Maintainer:
    """Looks after the tables of one lake.

    Args:
        spark: a session with Delta; it is not changed.
        lake: the lake's root, a directory.
        policy: how tables are kept. Its retention is taken as it is; `check_retention` is for the caller.
        stopping: asked before each step.
    """

    def __init__(
        self, spark: SparkSession, lake: str, policy: Policy | None = None, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._lake = paths.local_root(lake)
        self._policy = policy or Policy()
        self._stopping = stopping
        self._spark = spark.newSession()
        for name, value in {
            "spark.databricks.delta.optimize.maxFileSize": self._policy.target_bytes,
            "spark.databricks.delta.optimize.minFileSize": self._policy.small_bytes,
            "spark.databricks.delta.optimize.maxDeletedRowsRatio": self._policy.deleted_ratio,
            # Whether the retention is long enough was asked already, and a VACUUM's commits would only grow the log.
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            "spark.databricks.delta.vacuum.logging.enabled": "false",
        }.items():
            self._spark.conf.set(name, str(value))
        self._lock = JvmLock(spark, os.path.join(self._lake, MAINTAINER_LOCK))

    def acquire(self) -> bool:
        """Become the lake's only maintainer; False while another process is."""
        return self._lock.acquire()

    def release(self) -> None:
        """Let another process maintain the lake."""
        self._lock.release()

    def once(self, stream: str | None = None, report: Callable[[Done], None] = lambda done: None) -> list[Done]:
        """Do for every table what it needs now. One table's trouble stops only that table.

        Args:
            stream: only streams of this name, in any account.
            report: called after each table.
        """
        outcomes = []
        for table in tables(self._lake):
            if self._stopping():
                break
            if (done := self._maintain(table, stream)) is not None:
                outcomes.append(done)
                report(done)
        return outcomes

    def _maintain(self, table: str, stream: str | None) -> Done | None:
        name = os.path.basename(table)
        began = time.monotonic()
        lock = JvmLock(self._spark, table_lock(self._lake, table))
        try:
            facts = look(table, self._policy, time.time_ns())
            if facts is None or stream not in (None, facts.stream):
                return None
            name = facts.stream
            if not decide(facts, self._policy):
                return Done(name, Plan([]), seconds=time.monotonic() - began)
            while not lock.acquire():
                if self._stopping():
                    return None
                time.sleep(0.05)  # a commit of the compactor, a few seconds at most
            try:
                done = retry(lambda: self._work(table), is_conflict)
            finally:
                lock.release()
            return None if done is None else msgspec.structs.replace(done, seconds=time.monotonic() - began)
        except Exception as error:
            return Done(name, Plan([]), seconds=time.monotonic() - began, failure=_reason(error))

    def _work(self, table: str) -> Done | None:
        """Look again, now under the lock, and do what is needed then; None when the table is gone."""
        facts = look(table, self._policy, time.time_ns())
        if facts is None:
            return None
        plan = decide(facts, self._policy)
        self._forget(table)
        removed = added = 0
        if plan.partitions and not self._stopping():
            removed, added = self._optimize(facts, plan)
        if plan.checkpoint and not self._stopping():
            self._delta_log(table).checkpoint()
        if plan.expired and not self._stopping():
            expire(table, plan.keep_from)
        if plan.stale and not self._stopping():
            self._delta_table(table).vacuum(self._policy.retain_ns / HOUR_NS)
        return Done(facts.stream, plan, removed, added)

    def _optimize(self, facts: Facts, plan: Plan) -> tuple[int, int]:
        where = predicate(facts.partition_column, plan.partitions)
        found = self._delta_table(facts.table).optimize().where(where).executeCompaction().collect()
        if plan.worn:  # OPTIMIZE leaves a file alone that has nothing to be merged with
            where = predicate(facts.partition_column, plan.worn)
            found += self._spark.sql(f"REORG TABLE delta.`{facts.table}` WHERE {where} APPLY (PURGE)").collect()
        metrics = [row.metrics for row in found]
        return sum(int(each.numFilesRemoved) for each in metrics), sum(int(each.numFilesAdded) for each in metrics)

    def _delta_table(self, table: str) -> Any:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._spark, table)

    def _delta_log(self, table: str) -> Any:
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        self._forget(table)
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, table)

    def _forget(self, table: str) -> None:
        """Delta keeps the state of tables by path; the stream may have been made anew since."""
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        path = jvm.org.apache.hadoop.fs.Path(table)
        jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(self._spark._jsparkSession, path)


def is_conflict(error: Exception) -> bool:
    """Whether Delta refused a commit because of another one that came in between: trying again helps."""
    return _CONFLICT.search(f"{type(error).__name__}: {error}") is not None


def retry(work: Callable[[], T], may_retry: Callable[[Exception], bool], attempts: int = ATTEMPTS) -> T:
    """Do `work`, anew when it raises what `may_retry` accepts, `attempts` times at most."""
    for attempt in range(1, attempts + 1):
        try:
            return work()
        except Exception as error:
            if attempt == attempts or not may_retry(error):
                raise
    raise AssertionError("unreachable")


def _reason(error: Exception) -> str:
    """One line; Spark's own texts go on with plans and stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:500]
