"""A stream's Delta table for the writer.

Belongs here: finding and creating the table, its properties, removing it, and rewriting it into another layout.
stream_compaction.py decides what is written, and in which order.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions
from pyspark.sql.types import StructType

from lakestream.lake.errors import DamagedLog, TableBusy
from lakestream.lake.staging.staging import StreamIdentity, is_marked, read_identity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.locks import Lock
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import encryption
from lakestream.lake.table.actions import MetaData, locate
from lakestream.lake.table.batches import SeqRows
from lakestream.lake.table.log import TableLog, log_directory
from lakestream.lake.table.policy import (
    HOUR_NS,
    ICEBERG_KEY,
    LOG_CLEANUP_PROPERTY,
    LOG_RETENTION_PROPERTY,
    ON_DELETE_PROPERTY,
    PARTITION_KEY,
    RETENTION_PROPERTY,
    TIME_TRAVEL_PROPERTY,
    TOMBSTONES_PROPERTY,
    StreamPolicy,
    of_config,
)
from lakestream.lake.table.schema import (
    CLEAR_KEY,
    CREATED_PROPERTY,
    JSON_SCHEMA_PROPERTY,
    MASK_KEY,
    REMOVED_COLUMN,
    REMOVED_DDL,
    STREAM_PROPERTY,
    TABLE_DDL,
    UID_PROPERTY,
    Layout,
    column_names,
    fields_of,
    is_partition_value,
    layout_of,
    quoted,
)
from lakestream.lake.table.state import TableFollower
from lakestream_spark.write import deletion
from lakestream_spark.write.clones import References
from lakestream_spark.write.commit import Commit, forget, jvm, plain
from lakestream_spark.write.errors import ForeignTable, KeptTable, LateCommit, StillCloned, UnwritableTable
from lakestream_spark.write.file_ends import of_file
from lakestream_spark.write.layouts import PAGE_SETTING, RUN_SEQS, SAMPLE, combinations, spark_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE_PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    # A checkpoint costs as much as a commit; replaying up to fifty small commits costs a reader some milliseconds.
    "delta.checkpointInterval": "50",
}
RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
"""Set on tables by subject or by tokens: their directories then have random names instead of escaped subjects, which
some readers decode wrongly, and which may be too long for a file system."""
MANAGED_PROPERTIES = (
    RETENTION_PROPERTY,
    TIME_TRAVEL_PROPERTY,
    ON_DELETE_PROPERTY,
    JSON_SCHEMA_PROPERTY,
    ICEBERG_KEY,
    MASK_KEY,
    CLEAR_KEY,
    PARTITION_KEY,
    LOG_CLEANUP_PROPERTY,
)
"""Table properties that follow from the metadata; a table lacks those whose keys are not set."""
SET_PROPERTY = "lakestream.set"
"""Names of the Delta properties that the stream's metadata has set, so that they can be unset with it."""

REQUIRED_VALUES = {
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
}
"""Columns for which a writer has to compute values, by the metadata of their fields (Delta protocol, "Generated
Columns", "Identity Columns")."""

REWRITE_SEQS = 2_000_000
"""Sequences of one file when a table is rewritten."""


class ExistingTable(msgspec.Struct, frozen=True):
    """An existing table, by its metadata."""

    metadata: MetaData

    @property
    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        return self.metadata.configuration

    @property
    def schema(self) -> str:
        """Return the JSON of the table's columns."""
        return self.metadata.schema_string

    @property
    def uid(self) -> str:
        """Return the owner; "" for a table that lakestream did not make."""
        return self.properties.get(UID_PROPERTY, "")

    @property
    def created_ns(self) -> int:
        """Return when its stream was created."""
        return int(self.properties.get(CREATED_PROPERTY) or 0)

    @property
    def layout(self) -> Layout | None:
        """Return the partitioning; None: not one of lakestream's."""
        return layout_of(self.metadata.partition_columns, self.schema)

    @property
    def archive_column(self) -> bool:
        """Return True if the table has the column of an archive."""
        return REMOVED_COLUMN in column_names(self.schema)

    @property
    def decided_for(self) -> str | None:
        """Return the request for which the layout was chosen."""
        return self.properties.get(PARTITION_KEY)

    @property
    def archive(self) -> bool:
        """Return True if the table was an archive at its last commit."""
        return self.properties.get(RETENTION_PROPERTY) == "archive"

    @property
    def kept(self) -> bool:
        """Return True if the table outlives its stream."""
        return self.properties.get(ON_DELETE_PROPERTY) == "keep"


class StreamTable:
    """The table of one stream, changed through Spark. Changes require the table's lock (lake/storage/locks.py).

    Args:
        spark: a session with Delta.
        storage: the lake.
        identity: the stream.
        path: the table's path; the stream's usual place by default.
    """

    def __init__(
        self, spark: SparkSession, storage: Storage, identity: StreamIdentity, path: str | None = None
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._identity = identity
        self.path = path or paths.table(storage.root, identity.name, identity.account)
        self.spark_path = storage.spark_path(self.path)
        self.follower = TableFollower(self.path, identity.uid, storage)
        self._readable: int | None = None  # the newest checkpoint, once it was read
        spark.conf.set(*PAGE_SETTING)

    def find(self) -> ExistingTable | None:
        """Return the table at the path; None when there is none.

        Raises:
            ForeignTable: a Delta table that lakestream did not make.
            UnwritableTable: another program has added columns whose values it requires.
            DamagedLog: a commit is missing.
        """
        self._mend_log()
        if (metadata := self.follower.metadata()) is None:
            return None
        found = ExistingTable(metadata)
        if not found.uid:
            held = self.follower.head.position is not None
            since = self._declared_since(lambda other: UID_PROPERTY not in other.configuration) if held else 0
            raise ForeignTable(self.path, since)
        for key, what in REQUIRED_VALUES.items():
            if any(key in field.metadata for field in fields_of(found.schema)):
                since = self._declared_since(lambda other, key=key: key in other.schema_string)  # type: ignore[misc]
                raise UnwritableTable(self.path, what, since)
        return found

    def _mend_log(self) -> None:
        """Delete checkpoints that cannot be read, and a hint that names one: Delta would fail at them.

        Nothing is lost: it is done only if the log has all commits from the first one on. A checkpoint is read once.

        Raises:
            DamagedLog: a commit is missing, so that Delta cannot read the table either.
        """
        log = TableLog(self._storage, self.path)
        base, since = max(log.checkpoints, default=-1), -1
        if base == self._readable:
            since = base
        elif log.commits != list(range(len(log.commits))):
            since = base  # it is all that there is
        else:
            damaged = [version for version in log.checkpoints if not log.is_readable(version)]
            self._storage.delete_all(part for version in damaged for part in log.parts(version))
            if damaged or log.hinted() not in (None, *log.checkpoints):
                self._storage.delete(log.hint)
            self._readable = max(set(log.checkpoints) - set(damaged), default=-1)
        later = [version for version in log.commits if version > since]
        for before, after in pairwise([since, *later] if since >= 0 else later):
            if after > before + 1:
                raise DamagedLog(log.path(before + 1), "it is missing")

    def _declared_since(self, is_so: Callable[[MetaData], bool]) -> int:
        """Return the version since which all metaData actions of the log are so; 0: since its beginning."""
        log, since = TableLog(self._storage, self.path), 0
        for version in reversed(log.commits):
            stated = [action.meta_data for action in log.commit(version).actions if action.meta_data is not None]
            if stated and not is_so(stated[-1]):
                return since
            since = version if stated else since
        return 0

    def create(self, layout: Layout, policy: StreamPolicy, replace: bool = False) -> None:
        """Create the table. `replace`: in the log of the one that is there, which has no rows."""
        lakes.require(self._storage.root)  # where it is not mounted, no other lake begins
        if not replace:
            # Files of an interrupted removal or creation: without a log they are no table.
            self._storage.delete_tree(self.path)
            if not self._storage.local:
                self._delete_markers()
        columns = StructType.fromDDL(TABLE_DDL + layout.ddl + (REMOVED_DDL if policy.archive else ""))
        assert isinstance(columns, StructType)
        for field in columns.fields:
            field.metadata = layout.metadata(field.name) if field.name in layout.columns else {}
        fixed = dict(TABLE_PROPERTIES)
        if not (self._storage.local or paths.is_plain(self.path)):
            fixed["delta.enableDeletionVectors"] = "false"  # deltalake 1.6 looks for them at the encoded path
        if layout.kind != "bucket":
            fixed[RANDOM_PREFIXES] = "true"
        if self._identity.encrypted:
            encryption.begin(self.path)
            fixed |= encryption.properties(field.name for field in columns.fields)
        own = {
            UID_PROPERTY: self._identity.uid,
            STREAM_PROPERTY: self._identity.name,
            CREATED_PROPERTY: str(self._identity.created_ns),
        }
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": columns.json(),
            "partitionColumns": layout.columns,
            "configuration": {**fixed, **wanted_properties(policy), **own},
            "createdTime": time.time_ns() // 1_000_000,
        }
        commit = Commit(self._spark, self._storage, self.path)
        if replace:
            commit.replace(metadata)
        elif commit.base >= 0:
            raise TableBusy(self.path)  # another program has made one since
        else:
            commit.describe(metadata)
        commit.run("create")

    def _delete_markers(self) -> None:
        """Delete S3A's directory markers. Their keys end in a slash, which obstore cannot name, and Delta mistakes the
        marker of a failed creation for a table."""
        path = jvm(self._spark).org.apache.hadoop.fs.Path(self.spark_path)
        path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf()).delete(path, True)

    def become_archive(self) -> None:
        """Add the column with the time of removal."""
        self._sql(f"ADD COLUMNS ({REMOVED_DDL.removeprefix(', ')})")

    def adapt(self, found: ExistingTable, policy: StreamPolicy) -> None:
        """Set and unset table properties as the stream requests, in as few commits as possible."""
        want = wanted_properties(policy)
        changed = {name: value for name, value in want.items() if found.properties.get(name) != value}
        if changed:
            pairs = ", ".join(f"{quoted(name)} = {quoted(value)}" for name, value in changed.items())
            self._sql(f"SET TBLPROPERTIES ({pairs})")
        before = msgspec.json.decode(found.properties.get(SET_PROPERTY, "[]"), type=list[str])
        gone = [
            name
            for name in (*MANAGED_PROPERTIES, SET_PROPERTY, *before)
            if name in found.properties and name not in want
        ]
        if gone:
            self._sql(f"UNSET TBLPROPERTIES IF EXISTS ({', '.join(map(quoted, gone))})")

    def rewrite(self, layout: Layout, metadata: str | None) -> None:
        """Change the table's partitioning in one commit that changes no row and no position.

        The bounds of buckets are part of the column `bucket`, so that they change in this very commit.

        Args:
            layout: the new layout.
            metadata: the commit's userMetadata.
        """
        if layout.kind != "bucket":
            self._sql(f"SET TBLPROPERTIES ('{RANDOM_PREFIXES}' = 'true')")
        kept = [name for name in self.frame().columns if not is_partition_value(name)]
        rows = self.spread(self.frame().select(*kept), layout)
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if metadata is not None:
            writer = writer.option("userMetadata", metadata)
        writer.partitionBy(*layout.columns).save(self.spark_path)

    def identify(self) -> None:
        """Give the columns of all files the ids by which readers of Iceberg find them, in a commit that changes no row.

        Spark's writer has none, or not those of fields inside of others. A crash before it leaves files of which
        readers find the columns by name.
        """
        commit = Commit(self._spark, self._storage, self.path)
        files = list(commit.state().files.values())
        for add in files:
            copy = commit.identify(plain(add), keep=True)
            tags = of_file(self._storage, locate(self.path, copy["path"])).tags()
            commit.add([{**copy, "tags": tags}])
        commit.remove(files, data_change=False)
        commit.run("optimize")

    def spread(self, rows: DataFrame, layout: Layout) -> DataFrame:
        """Return many rows with the layout's columns, distributed so that they form few large files in its order."""
        rows = self._placed(rows, layout)
        stretch = functions.floor(rows.seq / REWRITE_SEQS)
        rows = rows.repartition(2 * max(1, len(layout.bounds)), *layout.columns, stretch)
        return rows.sortWithinPartitions(*_order(layout))

    def begin(self, application: str) -> Commit:
        """Return a commit that fails if another one moves the position of `application` meanwhile."""
        return Commit(self._spark, self._storage, self.path, application)

    def _placed(self, rows: DataFrame, layout: Layout) -> DataFrame:
        if layout.kind == "fields":
            found = spark_values(layout, _types(rows.schema))
            rows = rows.selectExpr("*", *(f"{value} AS {name}" for name, value in found.items()))
        elif layout.kind != "subject":
            rows = rows.selectExpr("*", *layout.expressions())
        for name in layout.columns:
            if metadata := layout.metadata(name):
                rows = rows.withColumn(name, functions.col(name).alias(name, metadata=metadata))
        return rows

    def sample(self) -> list[str]:
        """Return some of the table's subjects, for bounds."""
        subjects = self.frame().select("subject").distinct()
        count = subjects.count()
        if count > SAMPLE:
            subjects = subjects.sample(SAMPLE / count)
        return [row.subject for row in subjects.collect()]

    def partitions(self) -> int:
        """Return the number of the table's partitions; those of different times alone are one."""
        files = TableLog(self._storage, self.path).state().files.values()
        return combinations(file.partition_values for file in files)

    def frame(self) -> DataFrame:
        """Return the table's rows."""
        return self._spark.read.format("delta").load(self.spark_path)

    def forget(self) -> None:
        """Clear Delta's cache of the table."""
        forget(self._spark, self._storage, self.path)

    def delete(self, rows: SeqRows) -> None:
        """Delete rows; nothing is committed if there are none. May be repeated."""
        if not deletion.delete(self._spark, self._storage, self.path, rows.runs):
            self.delta().delete(rows.sql)

    def delta(self) -> Any:
        """Return Delta's own handle, for DELETE and UPDATE."""
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._spark, self.spark_path)

    # Taking it away

    def make_way(self, found: ExistingTable, lock: Lock) -> None:
        """Remove the table of an earlier stream of this name, or move it aside if it is retained.

        Raises:
            KeptTable: it is retained, and an object store cannot rename it.
            StillCloned: a clone names its files where they are.
            LateCommit: a commit may still arrive in its log.
        """
        if self.is_cloned():
            raise StillCloned(self.path)
        if not self._is_to_be_kept(found):
            self.require_last(lock)
            self.remove(found.uid)
            return
        if not self._storage.local:
            raise KeptTable(self.path)
        target = paths.kept(self._storage.root, self._identity.name, found.uid, self._identity.account)
        self._storage.move(self.path, target)
        self.forget()

    def _is_to_be_kept(self, found: ExistingTable) -> bool:
        """Return True if an earlier stream of this name retains its table, by its deletion or its last commit."""
        directory = paths.staging(self._storage.root, self._identity.name, found.uid, self._identity.account)
        earlier = read_identity(directory)
        if earlier is None:  # its staging directory is gone
            return found.kept
        keeps = of_config(bytes(earlier.config)).keep_table
        return keeps or (found.kept and not is_marked(self._storage, directory))

    def is_cloned(self) -> bool:
        """Return True if shallow clones need files of the table."""
        return bool(References(self._storage).into(self.path))

    def require_last(self, lock: Lock) -> None:
        """Raise LateCommit if a commit may still arrive in the table's log; `lock`: the table's."""
        if until_ns := lock.late_until():
            raise LateCommit(self.path, until_ns)

    def remove(self, uid: str) -> None:
        """Remove the table. It disappears at once, before its files are deleted."""
        if self._storage.local:
            aside = f"{paths.removed(self._storage.root, uid)}-{time.time_ns()}"
            self._storage.move(self.path, aside)
            self.forget()
            self._storage.delete_tree(aside)
            return
        # Without its log it is no table; if this is interrupted, `create` deletes the rest.
        self._storage.delete_tree(log_directory(self.path))
        self.forget()
        self._storage.delete_tree(self.path)

    def _sql(self, change: str) -> None:
        self._spark.sql(f"ALTER TABLE delta.`{self.spark_path.replace('`', '``')}` {change}")


def _types(struct: StructType, before: str = "") -> dict[str, str]:
    """Return the names of the types of columns and of the fields inside of structs, by path."""
    found = dict[str, str]()
    for field in struct.fields:
        found[f"{before}{field.name}"] = field.dataType.typeName()
        if isinstance(field.dataType, StructType):
            found |= _types(field.dataType, f"{before}{field.name}.")
    return found


def _order(layout: Layout) -> list[Any]:
    """Return the sort order of a file's rows: runs of sequences, by subject in each. The partition comes first, as
    Spark would sort by it again otherwise."""
    if layout.kind == "subject":
        return ["subject", "seq"]
    return [*layout.columns, functions.floor(functions.col("seq") / functions.lit(RUN_SEQS)), "subject", "seq"]


def table_properties(policy: StreamPolicy) -> dict[str, str]:
    """Return the table properties that follow from the policy, without those at their defaults."""
    found = policy.properties | policy.masks
    if policy.archive:
        found[RETENTION_PROPERTY] = "archive"
    if policy.time_travel_ns is not None:
        found[TIME_TRAVEL_PROPERTY] = str(policy.time_travel_ns)
        interval = f"interval {-(-policy.time_travel_ns // HOUR_NS)} hours"
        for name in (LOG_RETENTION_PROPERTY, TOMBSTONES_PROPERTY):
            found.setdefault(name, interval)
    if policy.keep_table:
        found[ON_DELETE_PROPERTY] = "keep"
    if policy.json_schema is not None:
        found[JSON_SCHEMA_PROPERTY] = policy.json_schema
    if policy.iceberg:
        found[ICEBERG_KEY] = policy.iceberg
    return found


def wanted_properties(policy: StreamPolicy) -> dict[str, str]:
    """Return all properties that follow from the stream's metadata."""
    found = {**table_properties(policy), PARTITION_KEY: policy.partition.text, LOG_CLEANUP_PROPERTY: "false"}
    set_by_user: Sequence[str] = sorted(name for name in found if name not in MANAGED_PROPERTIES)
    if set_by_user:
        found[SET_PROPERTY] = msgspec.json.encode(set_by_user).decode()
    return found
