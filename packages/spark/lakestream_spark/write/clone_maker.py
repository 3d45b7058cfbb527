"""Making the table of a mirror that begins as a clone, with Spark.

Belongs here: from a request (lake/staging/clone_request.py) to the table and the answer, and shallow clones. Where
all rows of the origin's table are wanted, the files are shared (SHALLOW CLONE), and rows that the stream did not hold
at that point are deleted, which leaves shared files alone; in an object store the store copies the files, as readers
other than Spark do not find shared ones. Where only some subjects are wanted, or renamed ones, the matching rows are
copied.

An unfinished table has the owner uid `making:<uid>`. The last commit changes no row and makes the table the mirror's:
properties, position and progress, all at once. After a kill before it, the next attempt starts over; after a kill
behind it, the answer is found in the table's properties.

In an object store the last commit of an attempt may arrive once its program is killed and its lease has ended. So
there the log of an unfinished table is not removed: the next attempt replaces the table in it, and a withdrawal empties
it. Their first commit takes the version of the late one, which the store then refuses; in an empty log it would be one
of another table.

Invariant: no other program commits to the table meanwhile: its lock is held, and segments wait for the answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from lakestream.lake.staging import clone_request
from lakestream.lake.staging.clone_request import (
    MADE,
    MAKING,
    REFUSED,
    WITHDRAWN,
    CloneAnswer,
    CloneRequest,
    SubjectSelection,
)
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage import locks, paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import Lock
from lakestream.lake.table import batches, erasures, policy
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.at import NotATable, TimeTravelError
from lakestream.lake.table.conditions import MATCHES, Condition
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.encryption import is_encrypted
from lakestream.lake.table.log import TableLog, log_directory
from lakestream.lake.table.policy import StreamPolicy
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.schema import (
    CREATED_PROPERTY,
    END,
    STREAM_PROPERTY,
    SUBJECT_LIMIT,
    SUBJECT_MOST,
    TABLE_COLUMNS,
    TABLE_DDL,
    UID_PROPERTY,
    Layout,
    fits_partition,
    quoted,
    subject_text,
)
from lakestream.lake.table.state import Head, position_of, state_at
from lakestream.protocol.subjects import matches
from lakestream.protocol.transforms import Transform, TransformError
from lakestream_client.lake.view import StreamView
from lakestream_spark.write import layouts, vacuum
from lakestream_spark.write.clone_point import ClonePoint, find_point, rows_at
from lakestream_spark.write.clones import Clone, CloneRefused, lacks_files
from lakestream_spark.write.commit import Commit
from lakestream_spark.write.detach import Detacher
from lakestream_spark.write.errors import StillCloned
from lakestream_spark.write.table import MANAGED_PROPERTIES, SET_PROPERTY, StreamTable, wanted_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK_SECONDS = 30.0
"""Maximum time to wait for a table's lock."""
DELETES = 4
"""Maximum number of DELETEs on a clone; more become one MERGE, which costs as much as some of them."""
CLONED_PROPERTY = "lakestream.cloned"
"""Property of a table that began as a clone: the outcome of the request, as JSON (lake/staging/clone_request.py)."""
_CLONE_ANSWER = msgspec.json.Decoder(CloneAnswer)


class CloneMaker:
    """Makes the table of one mirror. Not for use by two threads at once.

    Args:
        spark: a session with Delta.
        lake: the lake's root.
        mirror: the mirror's staging directory, as scanned.
    """

    def __init__(self, spark: SparkSession, lake: str, mirror: StagedStream) -> None:
        self._spark = spark.newSession()
        self._storage = open_storage(lake)
        self._directory = mirror.directory
        self._identity = mirror.identity
        making = msgspec.structs.replace(mirror.identity, uid=MAKING + mirror.identity.uid)
        self._table = StreamTable(self._spark, self._storage, making)
        self._fence: Lock | None = None

    def run(self) -> CloneAnswer | None:
        """Handle an open request: make the table, or remove a withdrawn one. Return None when it has to wait.

        Raises:
            TableBusy: the table is under maintenance; retry later.
            KeptTable, LateCommit: another stream's table is in the way.
            StillCloned: a table is in the way whose files clones need.
        """
        with locks.held(self._spark, self._storage.root, self._table.path, LOCK_SECONDS) as self._fence:
            asked = clone_request.asked_of(self._storage, self._directory)
            # Under the lock, which the removal of a deleted stream's table takes before it discards the request.
            if asked is None or self._storage.exists(f"{self._directory}/{paths.DELETED_FILE}"):
                return None
            said = clone_request.answered(self._storage, self._directory)
            if said is None:
                made = self._made(asked)
                if made is None:
                    return None
                said = clone_request.decide(self._storage, self._directory, made)
            if said.state == WITHDRAWN:
                self._undo(asked)
            return said

    def _made(self, asked: CloneRequest) -> CloneAnswer | None:
        """Return the answer, after making the table if it is a positive one."""
        began = time.monotonic()
        found = self._table.find()
        if found is not None and found.uid == self._identity.uid:
            position = position_of(self._table.path, self._identity.uid)
            if CLONED_PROPERTY not in found.properties or position != asked.index:
                return CloneAnswer(state=REFUSED, reason=f"{self._table.path} is there already", index=asked.index)
            return _CLONE_ANSWER.decode(found.properties[CLONED_PROPERTY])
        replace = found is not None and found.uid.startswith(MAKING) and not self._storage.local
        if found is not None:
            self._check()
            if replace:  # Delta replaces only an empty table by a clone
                self._removal().run("update")
            elif found.uid.startswith(MAKING):
                self._table.remove(found.uid)
            else:
                assert self._fence is not None
                self._table.make_way(found, self._fence)
        try:
            if asked.origin_account != self._identity.account:
                raise CloneRefused("the origin is in another account")
            if self._identity.encrypted:
                raise CloneRefused("tables of this lake are encrypted, each with a key of its own")
            point = find_point(self._storage, asked)
            if point is None:
                return None
            wanted = policy.of_config(self._identity.config)
            if asked.selections:
                self._copy(asked, point, wanted, replace)
            else:
                self._clone(point, wanted, replace)
        except (CloneRefused, NotATable, TimeTravelError, departure_files.DeparturesGone, TransformError) as error:
            return CloneAnswer(state=REFUSED, reason=str(error), index=asked.index)
        return self._adopt(asked, point, wanted, time.monotonic() - began)

    def _undo(self, asked: CloneRequest) -> None:
        """Remove the table of a withdrawn request, then the request."""
        found = self._table.find()
        if found is not None and found.uid.removeprefix(MAKING) == self._identity.uid:
            position = position_of(self._table.path, self._identity.uid)
            if self._table.is_cloned():
                raise StillCloned(self._table.path)
            self._check()
            if position is None or position == asked.index:
                if self._storage.local:
                    self._table.remove(found.uid)
                else:
                    self._empty(asked)
            else:  # log entries without messages followed: they are not staged any more
                self._table.delta().delete()
        clone_request.forget(self._storage, self._directory)

    def _empty(self, asked: CloneRequest) -> None:
        """Make the table the mirror's, without rows, in one commit. The log through `asked.index` has no messages."""
        commit = self._removal()
        action = commit.metadata()
        wanted = policy.of_config(self._identity.config)
        before = {name: value for name, value in action["configuration"].items() if name != CLONED_PROPERTY}
        action["configuration"] = self._properties(before, wanted)
        progress = TableProgress(
            uid=self._identity.uid,
            last_index=asked.index,
            last_seq=0,
            last_time_ns=0,
            departed=0 if _keeps_past(wanted) else -1,
        )
        commit.restate(action)
        commit.run("update", commit.move(progress))

    def _begun(self) -> Commit:
        return Commit(self._spark, self._storage, self._table.path)

    def _removal(self) -> Commit:
        """Return a commit that removes all files of the table."""
        self._table.forget()
        commit = self._begun()
        commit.remove(commit.state().files.values())
        return commit

    def _check(self) -> None:
        """Check that the table's lock is still held. Raises LeaseLost."""
        assert self._fence is not None
        self._fence.check()

    # All rows

    def _clone(self, point: ClonePoint, wanted: StreamPolicy, replace: bool) -> None:
        """Share the files, and delete rows that the stream did not hold."""
        # Delta's own properties may need protocol features, which SQL enables.
        properties = {name: value for name, value in wanted_properties(wanted).items() if name.startswith("delta.")}
        properties |= {UID_PROPERTY: MAKING + self._identity.uid, STREAM_PROPERTY: self._identity.name}
        self._check()
        if not replace:
            self._storage.delete_tree(self._table.path)  # files of an interrupted removal
        clone(self._spark, self._storage.root, point.table, self._table.path, point.version, properties, replace)
        delta = self._table.delta()
        conditions = [*point.conditions, *batches.deletions(1, None, DeletedMessages(runs=point.dead))]
        if len(conditions) > DELETES:
            conditions = point.conditions
            dead = _dead_frame(self._spark, point.dead)
            merge = delta.alias("t").merge(dead.alias("d"), "t.seq = d.seq")
            merge.whenMatchedDelete().execute()
        for condition in conditions:
            delta.delete(condition)
        for update in point.updates:
            delta.update(update.condition, {update.column: update.value})
        if not self._storage.local:
            # Spark references objects by s3a:, which other readers do not know. The store copies them.
            own = Detacher(self._spark)
            own.detach(self._table.path, lambda: contextlib.nullcontext(True), lambda: None)

    # Some rows

    def _copy(self, asked: CloneRequest, point: ClonePoint, wanted: StreamPolicy, replace: bool) -> None:
        """Copy the rows that the request selects, under the subjects that it gives them."""
        state = state_at(self._storage, point.table, Head(version=point.version))
        origin = StreamView(
            lake=self._storage.root,
            stream=asked.origin,
            account=asked.origin_account,
            uid=asked.origin_uid,
            table=point.table,
            state=state,
            table_last_seq=END - 1,
            columns=TABLE_COLUMNS,
            hidden=DeletedMessages(runs=point.dead),
        )
        without = [f"NOT coalesce({condition}, false)" for condition in point.conditions]
        where = " AND ".join([_prefilter(asked.selections), *without])
        copy = _Copy(origin.for_task((), 0, END), where, _Picker(asked.selections))
        spans = self._spark.createDataFrame(origin.ranges(1, END - 1) or [(1, 0)], "first bigint, last bigint")
        picked = spans.mapInArrow(copy, TABLE_DDL)
        layout = self._layout(picked, wanted)
        self._check()
        self._table.create(layout, wanted, replace)
        spread = self._table.spread(picked, layout)
        spread.write.format("delta").mode("append").save(self._table.spark_path)

    def _layout(self, picked: DataFrame, wanted: StreamPolicy) -> Layout:
        """Return the layout for copied rows, as a stream's first commit would choose it."""
        subjects = [row.subject for row in picked.select("subject").distinct().limit(layouts.SAMPLE).collect()]
        want = layouts.wanted_partition(wanted.partition, len(subjects), limit=SUBJECT_LIMIT)
        layout = Layout(want.kind, tokens=want.tokens, terms=layouts.typed_terms(want.terms))
        if layout.kind == "fields":
            return layout
        if layout.kind == "tokens":
            tokens = picked.select("subject").distinct().selectExpr(*layout.expressions())
            if tokens.distinct().limit(SUBJECT_MOST + 1).count() > SUBJECT_MOST:
                layout = Layout("bucket")
        parts = subjects if layout.kind == "subject" else [part for text in subjects for part in text.split(".")]
        if layout.kind == "bucket" or not all(map(fits_partition, parts)):
            return Layout("bucket", bounds=layouts.choose_bounds(subjects, want.buckets))
        return layout

    # The last commit

    def _adopt(self, asked: CloneRequest, point: ClonePoint, wanted: StreamPolicy, seconds: float) -> CloneAnswer:
        """Make the table the mirror's, in one commit that changes no row."""
        first, last, messages = rows_at(self._storage, self._table.path)
        # Messages to be erased are not among the rows, but may be in shared files.
        runs = erasures.merged(erasures.notes(self._storage, point.table))
        if runs and (gone := vacuum.missing(self._storage, self._table.path, runs)):
            erasures.leave_note(self._storage, self._table.path, self._identity.uid, asked.index, gone)
        commit = self._begun()
        answer = CloneAnswer(
            state=MADE,
            index=asked.index,
            origin_index=point.index,
            origin_version=point.version,
            last_seq=max(point.last_seq, last),
            last_time_ns=point.last_time_ns,
            floor=point.floor,
            first_row_seq=first,
            last_row_seq=last,
            messages=messages,
            version=commit.base + 1,
            copied=bool(asked.selections),
            seconds=round(seconds, 3),
        )
        action = commit.metadata()
        said = {CLONED_PROPERTY: msgspec.json.encode(answer).decode()}
        action["configuration"] = self._properties(action["configuration"], wanted, answer.copied) | said
        keeps_past = _keeps_past(wanted)
        progress = TableProgress(
            uid=self._identity.uid,
            last_index=asked.index,
            last_seq=answer.last_seq,
            last_time_ns=answer.last_time_ns,
            floor=answer.floor,
            # All rows of the table were committed at once, and none was deleted yet.
            moment_ns=answer.last_time_ns if keeps_past else 0,
            departed=0 if keeps_past else -1,
        )
        self._check()
        commit.restate(action)
        commit.run("update", commit.move(progress))
        return answer

    def _properties(self, before: dict[str, str], wanted: StreamPolicy, copied: bool = False) -> dict[str, str]:
        """Return the mirror's properties: without those that only the origin's metadata requested. Unless rows were
        copied, the partitioning stays the origin's until a commit of the mirror decides."""
        set_by_origin = msgspec.json.decode(before.get(SET_PROPERTY, "[]"), type=list[str])
        gone = {*MANAGED_PROPERTIES, SET_PROPERTY, *set_by_origin} - {policy.PARTITION_KEY}
        asked = wanted_properties(wanted)
        if not copied:
            del asked[policy.PARTITION_KEY]
        return {
            **{name: value for name, value in before.items() if name not in gone},
            **asked,
            UID_PROPERTY: self._identity.uid,
            STREAM_PROPERTY: self._identity.name,
            CREATED_PROPERTY: str(self._identity.created_ns),
        }


def _keeps_past(wanted: StreamPolicy) -> bool:
    """Return True if the commits of a stream note when its messages were removed."""
    return wanted.time_travel_ns is not None and not wanted.archive


class _Picker:
    """Spark task: rows in, selected rows out. Pickled, so it holds nothing of Spark."""

    def __init__(self, selections: Sequence[SubjectSelection]) -> None:
        self._selections = list(selections)
        _rules(self._selections)  # an invalid one is rejected here, not in a task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rules = _rules(self._selections)
        known: dict[str | bytes, tuple[str, bytes | None] | None] = {}
        for batch in batches:
            texts, raws = batch.column("subject").to_pylist(), batch.column("subject_bytes").to_pylist()
            given = []
            for text, raw in zip(texts, raws, strict=True):
                key = text if raw is None else raw
                if key not in known:
                    made = _picked(rules, key.encode() if isinstance(key, str) else key)
                    known[key] = None if made is None else subject_text(made)
                given.append(known[key])
            rows = batch.filter(pa.array([each is not None for each in given], pa.bool_()))
            there = [each for each in given if each is not None]
            named = {"subject": [each[0] for each in there], "subject_bytes": [each[1] for each in there]}
            columns = [
                pa.array(named[field.name], field.type) if field.name in named else column
                for field, column in zip(rows.schema, rows.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _rules(selections: Sequence[SubjectSelection]) -> list[tuple[bytes, Transform | None]]:
    """Return each filter with its subject transform. Raises TransformError."""
    found = []
    for each in selections:
        pattern = (each.filter or ">").encode()
        found.append((pattern, Transform(pattern, each.destination.encode()) if each.destination else None))
    return found


def _picked(rules: Sequence[tuple[bytes, Transform | None]], subject: bytes) -> bytes | None:
    for pattern, transform in rules:
        if matches(pattern, subject):
            return subject if transform is None else transform.apply(subject)
    return None


class _Copy:
    """Spark task: ranges of sequences of a table in, selected rows out, with their payloads: the copy has no typed
    columns. Pickled, so it holds nothing of Spark."""

    def __init__(self, origin: StreamView, where: str, picker: _Picker) -> None:
        self._origin, self._where, self._picker = origin, where, picker

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spans = [(row["first"], row["last"]) for batch in batches for row in batch.to_pylist()]
        yield from self._picker(self._origin.table_batches(spans, TABLE_COLUMNS, self._where))


def _prefilter(selections: Sequence[SubjectSelection]) -> str:
    """Return a condition that all selected rows meet, as SQL that excludes files and pages."""
    filters = tuple(each.filter or ">" for each in selections)
    return f"(subject_bytes IS NOT NULL OR {Condition('subject', MATCHES, filters).sql()})"


def _dead_frame(spark: SparkSession, runs: Sequence[tuple[int, int]]) -> DataFrame:
    """Return runs of sequences, one by one."""
    frame = spark.createDataFrame(list(runs), "first bigint, last bigint")
    return frame.selectExpr("explode(sequence(first, last)) AS seq")


def clone(
    spark: SparkSession,
    lake: str,
    origin: str,
    target: str,
    version: int | None = None,
    properties: Mapping[str, str] | None = None,
    replace: bool = False,
) -> int:
    """Make `target` a shallow clone of the table `origin` of this lake, and register it; return the version it has.

    The clone is a table of its own: commits to either leave the other alone. It needs the files of its origin until it
    is detached (detach.py), and its log has absolute paths: neither can be moved.

    Args:
        spark: a session with Delta.
        lake: the lake's root, a directory or URL.
        origin: path of a table in it.
        target: path or URL of the clone, which must not exist.
        version: of the origin; its newest by default.
        properties: the clone's table properties, where they differ from the origin's.
        replace: replace the table at `target` in its log, instead of requiring that there is none.

    Raises:
        CloneRefused: something is at `target`, or the origin lacks the version or its files.
        TableBusy: the origin's table stays locked.
    """
    storage = open_storage(lake)
    there = open_storage(target)
    if is_encrypted(origin):
        raise CloneRefused(f"{origin} is encrypted: a clone would need its key")
    if not replace and there.names(log_directory(there.root)):
        raise CloneRefused(f"{there.root} is a table already; clone to another place, or remove it")
    with locks.held(spark, storage.root, origin, LOCK_SECONDS):
        try:
            state = TableLog(storage, origin).state(version)
        except FileNotFoundError:
            raise CloneRefused(f"{origin} has no version {version}; versions that are gone cannot be cloned") from None
        version = state.version
        if lacks_files(storage, origin, state):
            raise CloneRefused(f"VACUUM has taken files of version {version} of {origin}: it cannot be cloned any more")
        entry = Clone(origin, there.root, version, time.time_ns())
        storage.write(paths.clone_entry(storage.root, entry.target), msgspec.json.encode(entry))
    # Elsewhere no maintenance of ours cuts the log.
    properties = {policy.LOG_CLEANUP_PROPERTY: "true", **(properties or {})}
    set_here = ", ".join(f"{quoted(name)} = {quoted(value)}" for name, value in properties.items())
    # Shallow clones of clones reference the files of the first origin, which `References` finds in their logs.
    spark.sql(
        f"CREATE {'OR REPLACE ' if replace else ''}TABLE delta.`{there.spark_path(there.root)}` SHALLOW CLONE "
        f"delta.`{storage.spark_path(origin)}` VERSION AS OF {version} TBLPROPERTIES ({set_here})"
    ).collect()
    storage.write(
        paths.clone_entry(storage.root, entry.target), msgspec.json.encode(msgspec.structs.replace(entry, made=True))
    )
    return version
