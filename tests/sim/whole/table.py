"""A stream's Delta table for a compactor without Spark.

Belongs here: what `StreamTable` does through Spark, done in Python: creating the table, its properties, commits that
conflict as Delta's do, and DELETE by writing files anew. What is written, in which order and under which lock, is
decided by the compactor's own code. Layouts other than by subject, archives and clones are not there.

Source: Delta protocol, "Delta Log Entries", "Actions"; Delta's conflict detection for appends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestream.lake.errors import LakeError
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import AddFile, MetaData, locate
from lakestream.lake.table.batches import SeqRows
from lakestream.lake.table.foreign_commits import MARK
from lakestream.lake.table.log import TableLog, log_directory
from lakestream.lake.table.policy import StreamPolicy
from lakestream.lake.table.schema import (
    CREATED_PROPERTY,
    STREAM_PROPERTY,
    TABLE_COLUMNS,
    UID_PROPERTY,
    Layout,
    table_schema,
)
from lakestream.lake.table.state import TableFollower
from lakestream_spark.write.commit import Commit
from lakestream_spark.write.data_files import DataFiles
from lakestream_spark.write.table import RANDOM_PREFIXES, ExistingTable, StreamTable, wanted_properties

_STRINGS: dict[str, Any] = {
    "headers": {
        "type": "map",
        "keyType": "string",
        "valueType": {"type": "array", "elementType": "string", "containsNull": True},
        "valueContainsNull": True,
    }
}


class ConflictError(LakeError):
    """Raised when another commit has moved the position meanwhile."""


class Transactions:
    """Commits to one table, as Delta makes them: the next version belongs to who creates its file."""

    def __init__(self, storage: Storage, table: str) -> None:
        self._storage, self._table = storage, table

    def commit(self, read: int, application: str, actions: Sequence[dict[str, Any]], changes_files: bool) -> int:
        """Commit actions that follow from version `read`; return the new version.

        Raises:
            ConflictError: a later commit moved the position of `application`, or changed files that this one changes.
        """
        content = b"\n".join(map(msgspec.json.encode, actions)) + b"\n"
        version = read + 1
        while True:
            path = TableLog(self._storage, self._table).path(version)
            if self._storage.create(path, content) or self._storage.read(path) == content:
                return version
            winner = TableLog(self._storage, self._table).commit(version)
            for action in winner.actions:
                moved = action.txn is not None and action.txn.app_id == application
                if moved or action.meta_data is not None or (changes_files and (action.add or action.remove)):
                    raise ConflictError(f"{self._table}: version {version} conflicts")
            version += 1


class SimTable(StreamTable):
    """The table of one stream, changed without Spark."""

    def __init__(self, spark: Any, storage: Storage, identity: StreamIdentity, path: str | None = None) -> None:
        self._storage = storage
        self._identity = identity
        self.path = path or paths.table(storage.root, identity.name, identity.account)
        self.follower = TableFollower(self.path, identity.uid, storage)
        self._readable = None
        self._transactions = Transactions(storage, self.path)

    def create(self, layout: Layout, policy: StreamPolicy) -> None:
        assert layout.kind == "subject", "other layouts are not simulated"
        self._storage.delete_tree(self.path)
        configuration = {
            RANDOM_PREFIXES: "true",
            **wanted_properties(policy),
            UID_PROPERTY: self._identity.uid,
            STREAM_PROPERTY: self._identity.name,
            CREATED_PROPERTY: str(self._identity.created_ns),
        }
        metadata = MetaData(str(uuid.uuid4()), _schema(), layout.columns, configuration)
        protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        self.commit(-1, "CREATE TABLE", [protocol, _metadata(metadata)])

    def adapt(self, found: ExistingTable, policy: StreamPolicy) -> None:
        want = wanted_properties(policy)
        if any(found.properties.get(name) != value for name, value in want.items()):
            state = TableLog(self._storage, self.path).state()
            changed = msgspec.structs.replace(state.metadata, configuration={**state.metadata.configuration, **want})
            self.commit(state.version, "SET TBLPROPERTIES", [_metadata(changed)])

    def rewrite(self, layout: Layout, metadata: str | None) -> None:
        raise NotImplementedError("other layouts are not simulated")

    def begin(self, application: str) -> Any:
        return SimCommit(self, TableLog(self._storage, self.path).state().version, application)

    def delta(self) -> Any:
        return self

    def delete(self, rows: SeqRows) -> None:
        """Delete rows, as Delta does without deletion vectors: files that have some are written anew."""
        log = TableLog(self._storage, self.path)
        state = log.state()
        actions: list[dict[str, Any]] = []
        for add in state.files.values():
            found = read_rows(self._storage, self.path, add)
            seqs = found.column("seq").to_pylist()
            dead = pa.array([any(first <= seq <= last for first, last in rows.runs) for seq in seqs], pa.bool_())
            if not dead.true_count:
                continue
            left = found.filter(pc.invert(dead))
            if left.num_rows:
                writer = DataFiles(self.path, Layout())
                batches = left.select(_message_columns(left)).combine_chunks().to_batches()
                actions += [{"add": msgspec.to_builtins(file)} for file in writer.write(batches)]
            actions.append({"remove": {"path": add.path, "deletionTimestamp": _now_ms(), "dataChange": True}})
        if actions:
            self.commit(state.version, "DELETE", actions, changes_files=True)

    def remove(self, uid: str) -> None:
        self._storage.delete_tree(log_directory(self.path))
        self._storage.delete_tree(self.path)

    def commit(
        self,
        read: int,
        operation: str,
        actions: Sequence[dict[str, Any]],
        application: str = "",
        metadata: str = "",
        rows: int = 0,
        changes_files: bool = False,
    ) -> None:
        info = {
            "timestamp": _now_ms(),
            "operation": operation,
            "operationParameters": {},
            "operationMetrics": {"numOutputRows": str(rows)},
            "userMetadata": metadata or MARK,  # as the compactor's session does
        }
        self._transactions.commit(read, application, [{"commitInfo": info}, *actions], changes_files)


class SimCommit(Commit):
    """A commit of rows."""

    def __init__(self, table: SimTable, base: int, application: str) -> None:
        self.base, self._sim, self._application = base, table, application
        self._actions = []

    def append(self, columns: Sequence[str], metadata: str) -> int:
        rows = sum(msgspec.json.decode(each["add"]["stats"])["numRecords"] for each in self._actions if "add" in each)
        self._sim.commit(self.base, "WRITE", self._actions, self._application, metadata, rows)
        return 0


def read_rows(storage: Storage, table: str, add: AddFile) -> pa.Table:
    """Return the rows of a data file, with its subject."""
    rows = pq.ParquetFile(pa.BufferReader(storage.read(locate(table, add.path)))).read()
    if "subject" not in rows.column_names:
        subject = pa.repeat(pa.scalar(add.partition_values["subject"], pa.string()), rows.num_rows)
        rows = rows.append_column("subject", subject)
    return rows


def _message_columns(rows: pa.Table) -> list[str]:
    return [name for name in TABLE_COLUMNS if name != "time" and name in rows.column_names]


def _metadata(metadata: MetaData) -> dict[str, Any]:
    plain = msgspec.to_builtins(metadata)
    return {"metaData": {**plain, "format": {"provider": "parquet", "options": {}}}}


def _schema() -> str:
    types = {pa.string(): "string", pa.int64(): "long", pa.binary(): "binary", pa.timestamp("us", "UTC"): "timestamp"}
    fields = [
        {"name": field.name, "type": _STRINGS.get(field.name) or types[field.type], "nullable": True, "metadata": {}}
        for field in table_schema(TABLE_COLUMNS)
    ]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
