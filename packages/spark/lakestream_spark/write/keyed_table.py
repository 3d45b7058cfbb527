"""The upsert table of a stream (`lakestream.table: latest`): one row for each key, as of the last message.

Belongs here: following the stream's own table, and merging what is new. The table lies beside the stream's as
`<STREAM>_latest`. keyed_rows.py has the meaning of messages.

After each commit of the stream, the rows of its table beyond the position of this one are reduced to the last change of
each key. One commit marks the earlier rows of these keys in deletion vectors, adds a file with the new ones, and moves
the position, so a repetition after a crash finds what is left to do. The lock is that of the stream's table.

Where the earlier rows are is found in the key columns of the files, which are kept in memory up to `KEPT_BYTES`: a file
never changes. Small files are merged in the same commit, without their deleted rows.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestream.lake.errors import LakeError
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import deletion_vectors, encryption
from lakestream.lake.table.actions import AddFile, locate
from lakestream.lake.table.encryption import open_file
from lakestream.lake.table.log import TableLog, log_directory
from lakestream.lake.table.masks import LATEST
from lakestream.lake.table.policy import ICEBERG_KEY, KeyedPolicy, StreamPolicy, tombstones_ns
from lakestream.lake.table.progress import TableProgress, application
from lakestream.lake.table.scan import Scan
from lakestream.lake.table.schema import LATEST_PROPERTY
from lakestream.lake.table.state import TableFollower
from lakestream.lake.table.typed_columns import plain
from lakestream.schemas.columns import column_names
from lakestream_spark.write import iceberg_files, vacuum
from lakestream_spark.write.commit import Commit, forget
from lakestream_spark.write.data_files import NewFile
from lakestream_spark.write.deletion import add_with_vectors
from lakestream_spark.write.field_ids import with_ids
from lakestream_spark.write.file_ends import EndWriter
from lakestream_spark.write.keyed_rows import OWN, KeyedChanges, changes, key_texts, payload_columns
from lakestream_spark.write.misfits import small_ones
from lakestream_spark.write.widening import widened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYED_PROPERTY = "lakestream.keyed_by"
"""Property of an upsert table: its key and envelope. A table with another one is built anew."""
WINDOW = 500_000
"""Sequences that one commit covers at most."""
KEPT_BYTES = 256 << 20
"""Maximum size of the key columns that are kept in memory."""
GROUP_ROWS = 65_536
VACUUM_COMMITS = 500
"""Commits between two deletions of files that no version of the last week has."""
_NEVER_NS = 1 << 62
"""A time, ns since the epoch, before which every file was written."""
_PROPERTIES = {
    "delta.enableInCommitTimestamps": "true",
    "delta.enableDeletionVectors": "true",
    "delta.checkpointInterval": "50",
}


class KeyedTable:
    """The upsert table of one stream, changed under the lock of the stream's table.

    Args:
        spark: a session with Delta.
        storage: the lake.
        identity: the stream.
        table: the stream's table.
    """

    def __init__(self, spark: SparkSession, storage: Storage, identity: StreamIdentity, table: str) -> None:
        self._spark, self._storage, self._identity, self._stream_table = spark, storage, identity, table
        self._uid = f"{identity.uid}.latest"
        self._path = ""
        self._keys: OrderedDict[str, Any] = OrderedDict()
        self._kept_bytes = 0
        self.is_done = False
        """True once the table has followed the stream's in this process."""

    @property
    def path(self) -> str:
        """Return the path of the table: the first of `<STREAM>_latest`, `<STREAM>_latest_` … that no other takes."""
        if not self._path:
            path = f"{self._stream_table}{LATEST}"
            while self._owner(path) not in (None, self._identity.uid):
                path += "_"
            self._path = path
        return self._path

    def follow(self, asked: StreamPolicy, through: int) -> int:
        """Bring the table to a sequence of the stream's table; return the number of commits.

        Raises:
            LakeError: a commit did not move its position, or the rows do not fit the columns of the table.
        """
        policy = asked.keyed
        if policy is None:
            self.is_done = True
            return 0
        stated = {LATEST_PROPERTY: self._identity.uid, KEYED_PROPERTY: msgspec.json.encode(policy).decode()}
        if (found := self._property(KEYED_PROPERTY)) is not None and found != stated[KEYED_PROPERTY]:
            self.remove()
        if asked.iceberg:
            stated[ICEBERG_KEY] = asked.iceberg
        commits = 0
        position = self._position()
        while position < through:
            upto = min(position + WINDOW, through)
            try:
                self._merge(policy, stated, position, upto)
            except pa.ArrowException as error:
                raise LakeError(f"{self.path}: the rows do not fit its columns: {error}") from error
            if self._position() < upto:
                raise LakeError(f"{self.path}: a commit through {upto} left it at {self._position()}")
            position = upto
            commits += 1
        self.is_done = True
        return commits

    def rewind(self, seq: int) -> int:
        """Let the table follow the stream's again from a sequence on, whose message has got columns; return how far it
        had come.

        To apply messages once more changes nothing in the end: of each key the last one counts. Until `follow` is there
        again, a key may have a row of before.
        """
        before = self._progress()
        reached = 0 if before is None else before.last_index
        if before is not None and reached >= seq:
            commit = Commit(self._spark, self._storage, self.path, application(self._uid))
            commit.append([], commit.move(msgspec.structs.replace(before, last_index=seq - 1, last_seq=seq - 1)))
        return reached

    def remove(self) -> None:
        """Remove the table, if there is one."""
        path = self.path
        if self._owner(path) == self._identity.uid:
            self._storage.delete_tree(log_directory(path))
            forget(self._spark, self._storage, path)
            self._storage.delete_tree(path)
        self._path = ""
        self._keys.clear()
        self._kept_bytes = 0

    def erase(self, runs: Sequence[tuple[int, int]]) -> None:
        """Write the files that have rows of these sequences again without them, and delete the earlier files.

        Deletion vectors would leave the rows in the files, and earlier versions have them too.
        """
        if not runs or self._owner(self.path) != self._identity.uid:
            return
        commit, found = Commit(self._spark, self._storage, self.path), False
        for add in commit.state().files.values():
            seqs = np.asarray(self._read(add, ["seq"]).column(0))
            erased = np.zeros(len(seqs), bool)
            for first, last in runs:
                erased |= (seqs >= first) & (seqs <= last)
            if not erased.any():
                continue
            if add.deletion_vector is not None:
                erased[deletion_vectors.load(add.deletion_vector, self.path, self._storage.read)] = True
            found = True
            commit.remove([add], data_change=True)
            if not erased.all():
                commit.add([self._write(self._read(add).filter(pa.array(~erased)))])
        if found:
            commit.run("update")
        self._vacuum(0, _NEVER_NS)
        iceberg_files.ask_to_expire(self._storage, self.path, time.time_ns() // 1_000_000)

    # ------------------------------------------------------------------ one commit
    def _merge(self, policy: KeyedPolicy, stated: Mapping[str, str], after: int, upto: int) -> None:
        scan = Scan(self._stream_table, storage=self._storage)
        found = plain(
            scan.query(f"SELECT * FROM t WHERE seq > {after} AND seq <= {upto} ORDER BY seq")
        ).combine_chunks()
        new = changes(found, policy)
        fields = _fields(scan.schema.to_json(), policy)
        commit = Commit(self._spark, self._storage, self.path, application(self._uid))
        is_new = self._owner(self.path) is None
        if is_new:
            if self._identity.encrypted:
                encryption.begin(self.path)
            commit.describe(self._metadata(fields, stated))
        else:
            commit.change_schema(lambda schema: widened(schema, fields))
            _restate(commit, stated)
        before = self._progress()
        if not is_new and (0 if before is None else before.last_index) != after:
            return  # another compactor was quicker
        files = [] if is_new else list(commit.state().files.values())
        rows = self._replace(commit, files, policy, new)
        if rows.num_rows:
            commit.add([self._write(rows)])
        times = found.column("time_ns")
        time_ns = times[-1].as_py() if len(times) else 0 if before is None else before.last_time_ns
        progress = TableProgress(uid=self._uid, last_index=upto, last_seq=upto, last_time_ns=time_ns)
        commit.append([], commit.move(progress))
        if commit.base and commit.base % VACUUM_COMMITS == 0:
            self._vacuum(tombstones_ns(commit.metadata().get("configuration", {})), time.time_ns())

    def _vacuum(self, retain_ns: int, now_ns: int) -> None:
        """Delete the files that no version needs which was the newest within a time."""
        log = TableLog(self._storage, self.path)
        dead = vacuum.dead_files(self._storage, log, log.state(), retain_ns, now_ns, frozenset())
        local = self._storage.local
        self._storage.delete_all(path for each in dead for path in (vacuum.with_checksum(each) if local else [each]))

    def _replace(self, commit: Commit, files: list[AddFile], policy: KeyedPolicy, new: KeyedChanges) -> pa.Table:
        """Take the earlier rows of changed keys out of the table; return the rows of the new file."""
        if new.truncated:
            commit.remove(files, data_change=True)
            return new.rows
        merged = {add.path for add in small_ones(files)}
        removed: list[AddFile] = []
        kept: list[tuple[AddFile, bytes, int]] = []
        parts: list[pa.Table] = []
        for add in files:
            before = np.empty(0, np.int64)
            if add.deletion_vector is not None:
                before = deletion_vectors.load(add.deletion_vector, self.path, self._storage.read)
            keys = self._keys_of(add, policy)
            is_gone = np.zeros(len(keys), bool)  # a union of sorted numbers takes ten times as long
            if len(new.keys):
                is_gone[:] = pc.is_in(keys, new.keys)
            is_gone[before] = True
            count = int(np.count_nonzero(is_gone))
            if add.path in merged:
                removed.append(add)
                parts.append(self._read(add).filter(pa.array(~is_gone)))
            elif count > len(before):
                removed.append(add)
                if count < len(keys):
                    kept.append((add, deletion_vectors.encode(np.flatnonzero(is_gone)), count))
        commit.remove(removed, data_change=True)
        add_with_vectors(commit, self._storage, self.path, kept)
        if not parts:
            return new.rows
        return pa.concat_tables([*parts, new.rows], promote_options="permissive")

    def _keys_of(self, add: AddFile, policy: KeyedPolicy) -> Any:
        """Return the keys of a file's rows, as texts."""
        found = self._keys.get(add.path)
        if found is None:
            found = key_texts(self._read(add, policy.columns or ["subject"]), policy.columns)
            self._keys[add.path] = found
            self._kept_bytes += found.nbytes
            while self._kept_bytes > KEPT_BYTES and len(self._keys) > 1:
                _, gone = self._keys.popitem(last=False)
                self._kept_bytes -= gone.nbytes
        else:
            self._keys.move_to_end(add.path)
        return found

    def _read(self, add: AddFile, names: list[str] | None = None) -> pa.Table:
        path = locate(self.path, add.path)
        with self._storage.fetch(path) as local, open_file(path, local) as file:
            there = None if names is None else [name for name in names if name in file.schema_arrow.names]
            return file.read(columns=there, use_threads=False)

    def _write(self, rows: pa.Table) -> NewFile:
        """Write rows into a file that no commit names yet."""
        name = f"part-00000-{uuid.uuid4()}.c000.snappy.parquet"
        with self._storage.writing(f"{self.path}/{name}") as content:
            sink = EndWriter(content)
            options = {"write_page_checksum": True, "encryption_properties": encryption.writing(self.path)}
            writer = pq.ParquetWriter(sink, with_ids(rows.schema), store_schema=False, **options)
            writer.write_table(rows, row_group_size=GROUP_ROWS)
            sink.begin_end()
            writer.close()
            size, tags = content.tell(), sink.end.tags()
        seqs = pc.min_max(rows.column("seq")).as_py()
        bounds = {"minValues": {"seq": seqs["min"]}, "maxValues": {"seq": seqs["max"]}}
        flat = rows.select([each for each in rows.column_names if _is_flat(rows, each)])
        nulls = encryption.null_counts(flat, options["encryption_properties"])
        stats = {"numRecords": len(rows), **bounds, "nullCount": nulls}
        now_ms = time.time_ns() // 1_000_000
        return NewFile(name, {}, size, now_ms, msgspec.json.encode(stats).decode(), tags)

    # ------------------------------------------------------------------ the table
    def _position(self) -> int:
        found = self._progress()
        return 0 if found is None else found.last_index

    def _progress(self) -> TableProgress | None:
        watch = TableFollower(self.path, self._uid)
        watch.position()
        return watch.head.progress

    def _owner(self, path: str) -> str | None:
        """Return the uid of the stream whose upsert table this is, "" for any other table, None if there is none."""
        return self._property(LATEST_PROPERTY, path, "")

    def _property(self, name: str, path: str = "", default: str | None = None) -> str | None:
        path = path or self.path
        if not self._storage.names(log_directory(path)):
            return None
        metadata = TableLog(self._storage, path).state().metadata
        return metadata.configuration.get(name, default)

    def _metadata(self, fields: list[dict[str, Any]], stated: Mapping[str, str]) -> dict[str, object]:
        """Return the `metaData` action of a new table."""
        shown = encryption.properties(field["name"] for field in fields) if self._identity.encrypted else {}
        return {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": msgspec.json.encode({"type": "struct", "fields": fields}).decode(),
            "partitionColumns": [],
            "configuration": {**_PROPERTIES, **stated, **shown},
            "createdTime": time.time_ns() // 1_000_000,
        }


def _restate(commit: Commit, stated: Mapping[str, str]) -> None:
    """Let the table have the properties that follow from the stream's configuration, if it has others."""
    found = commit.metadata()
    there = found.get("configuration", {})
    wanted = {name: value for name, value in there.items() if name != ICEBERG_KEY} | dict(stated)
    if wanted != there:
        commit.describe({**found, "configuration": wanted})


def _is_flat(rows: pa.Table, name: str) -> bool:
    kind = rows.schema.field(name).type
    return not (pa.types.is_nested(kind) or pa.types.is_map(kind))


def _fields(schema: str, policy: KeyedPolicy) -> list[dict[str, Any]]:
    """Return the fields of the upsert table that follow from the columns of the stream's table."""
    found = {field["name"]: field for field in msgspec.json.decode(schema)["fields"]}
    own = [found[name] for name in OWN]
    if policy.cdc in ("debezium", "maxwell"):
        root = found
        wrapped = found.get("payload", {}).get("type")
        if isinstance(wrapped, dict) and wrapped.get("type") == "struct":
            root = {field["name"]: field for field in wrapped["fields"]}
        row = root.get("after" if policy.cdc == "debezium" else "data_", {}).get("type")
        inner = row["fields"] if isinstance(row, dict) and row.get("type") == "struct" else []
        names = column_names([field["name"] for field in inner], root=True)
        return own + [{**field, "name": name, "nullable": True} for name, field in zip(names, inner, strict=True)]
    names = payload_columns(list(found), keep_data=not policy.fields)
    return own + [found[name] for name in names]
