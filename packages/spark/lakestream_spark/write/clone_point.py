"""The point of its origin at which a mirror begins: a version of the table, and rows to leave out.

Belongs here: finding both for a request (lake/staging/clone_request.py), from the origin's log without Spark. A version
may hold more than the stream did: rows that an archive keeps, messages removed within the batch of its commit
(lake/table/departures.py), and for a point in the past, later messages.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgspec

from lakestream.lake.staging.clone_request import REFUSED, CloneRequest, answered
from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.at import (
    NotRecorded,
    TimeTravelError,
    open_log,
    version_for_commit_time,
    version_for_message_time,
    version_of_point,
)
from lakestream.lake.table.batches import Update
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.scan import Scan
from lakestream.lake.table.schema import REMOVED_COLUMN, UID_PROPERTY
from lakestream.lake.table.state import position_of
from lakestream.log.format.departures import Point as StreamPoint
from lakestream.protocol.instants import rfc3339
from lakestream_spark.write.clones import CloneRefused


class ClonePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a table, and the messages that its stream held at a point of it.

    `conditions` (SQL) and `dead` (runs of sequences) name rows to leave out, `updates` rows to change. `index` is the
    log index of the origin that the version holds, 0 for a point in between; `last_seq`, `last_time_ns` and `floor` are
    the stream's at the point, as far as the table tells.
    """

    table: str
    version: int
    index: int
    last_seq: int
    last_time_ns: int
    floor: int
    conditions: list[str] = []
    dead: list[tuple[int, int]] = []
    updates: list[Update] = []


def find_point(storage: Storage, asked: CloneRequest) -> ClonePoint | None:
    """Return the point that a request asks for; None while the origin's table does not reach it.

    Raises:
        NotATable, CloneRefused, TimeTravelError, DeparturesGone: the point is not available.
    """
    table = paths.table(storage.root, asked.origin, asked.origin_account)
    if _unsettled(storage, paths.staging(storage.root, asked.origin, asked.origin_uid, asked.origin_account)):
        return None
    position = position_of(table, asked.origin_uid)
    if position is None and asked.through:
        return None  # it has no commit yet
    log = open_log(table)
    newest = log.progress(log.latest)
    if position is None or newest is None or newest.uid != asked.origin_uid:
        raise CloneRefused(f"{table} holds nothing of stream {asked.origin}, which is to be mirrored")
    if position < asked.through:
        return None
    reached = bool(asked.through)
    if asked.as_of_seq:
        found = _at_sequence(storage, log, asked, newest, reached)
    elif asked.as_of_ns:
        found = _at_moment(storage, log, asked, newest, reached)
    else:
        found = _newest(storage, log, newest)
    return None if found is None else _from(found, asked)


def _unsettled(storage: Storage, directory: str) -> bool:
    """Return True if the origin is a mirror that may still give up the table that it has."""
    if not storage.exists(f"{directory}/{paths.CLONE_FILE}"):
        return False
    said = answered(storage, directory)
    return said is None or said.state != REFUSED


def rows_at(storage: Storage, table: str) -> tuple[int, int, int]:
    """Return (first sequence, last sequence, number of rows) of a table's newest version; zeros for no rows."""
    found = _query(storage, table, None, "SELECT min(seq) AS low, max(seq) AS high, count(*) AS rows FROM t")
    return int(found["low"] or 0), int(found["high"] or 0), int(found["rows"])


def _newest(storage: Storage, log: TableLog, newest: TableProgress) -> ClonePoint:
    """Return all that the table holds now."""
    state = log.state(log.latest)
    _check_owner(log, state.metadata.configuration.get(UID_PROPERTY), newest.uid)
    dead: list[tuple[int, int]] = []
    if (pending_deletes := log.pending_deletes(log.latest)) is not None:
        dead = list(departure_files.gone(departure_files.read(storage, log.table, pending_deletes.last_index)).runs)
    return ClonePoint(
        table=log.table,
        version=log.latest,
        index=newest.last_index,
        last_seq=newest.last_seq,
        last_time_ns=newest.last_time_ns,
        floor=newest.floor,
        conditions=[f"{REMOVED_COLUMN} IS NOT NULL"] if _is_archive(storage, log.table, log.latest) else [],
        dead=dead,
    )


def _at_sequence(
    storage: Storage, log: TableLog, asked: CloneRequest, newest: TableProgress, reached: bool
) -> ClonePoint | None:
    """Return the stream after a sequence: exactly with time travel, else as the first version that has the sequence."""
    seq = asked.as_of_seq
    if seq > newest.last_seq:
        if not reached:
            return None
        raise CloneRefused(f"{asked.origin} has no sequence {seq} yet; its last one is {newest.last_seq}")
    point = StreamPoint(seq=seq)
    try:
        kept = version_of_point(log, point)
        version, progress = kept.version, kept.progress
    except NotRecorded:
        version, progress = _first_with(log, newest.uid, seq), None
    if version is None:
        return None
    if _is_archive(storage, log.table, version):
        raise CloneRefused(
            f"{asked.origin} is an archive, which records when messages were removed: name a time instead of a sequence"
        )
    dead = departure_files.erased(storage, log.table).runs
    if progress is not None and progress.departed > 0:
        gone = departure_files.gone(departure_files.read(storage, log.table, progress.last_index), point)
        dead = departure_files.both(gone, departure_files.erased(storage, log.table)).runs
    return _before(storage, log, version, newest.uid, f"seq > {seq}", list(dead), seq)


def _first_with(log: TableLog, uid: str, seq: int) -> int:
    """Return the first version whose commit reached a sequence."""
    for version in log.stream_versions:
        progress = log.progress(version)
        if progress is not None and progress.uid == uid and progress.last_seq >= seq:
            if version == log.versions[0] and version > 0:
                break
            return version
    raise TimeTravelError(f"the versions of {log.table} that reached sequence {seq} first are gone")


def _at_moment(
    storage: Storage, log: TableLog, asked: CloneRequest, newest: TableProgress, reached: bool
) -> ClonePoint | None:
    """Return the stream at a time, by message time."""
    at_ns = asked.as_of_ns
    found = version_for_message_time(log, at_ns)
    if not found.complete and not reached:
        return None
    version = found.version
    if version is None:
        raise CloneRefused(f"{asked.origin} held nothing at {rfc3339(at_ns)}")
    if found.progress is None:
        # Messages removed by then, as recorded by the commits made by then; later commits include later removals.
        with contextlib.suppress(TimeTravelError):
            version = max(version, version_for_commit_time(log, at_ns, max(at_ns, time.time_ns())))
    dead = list(departure_files.gone_as_of(storage, log.table, found).runs)
    point = _before(storage, log, version, newest.uid, f"time_ns > {at_ns}", dead, 0)
    if not _is_archive(storage, log.table, version):
        return point
    ended = [f"{REMOVED_COLUMN} <= {at_ns}"]
    later = [Update(f"{REMOVED_COLUMN} IS NOT NULL", "NULL")]
    return msgspec.structs.replace(point, conditions=[*point.conditions, *ended], updates=later)


def _before(
    storage: Storage, log: TableLog, version: int, uid: str, later: str, dead: list[tuple[int, int]], last_seq: int
) -> ClonePoint:
    """Return a point within the batch of a version's commit."""
    state = log.state(version)
    _check_owner(log, state.metadata.configuration.get(UID_PROPERTY), uid)
    by_then = "SELECT min(seq) AS low, max(seq) AS high, max(time_ns) AS time_ns FROM t WHERE NOT "
    found = _query(storage, log.table, version, f"{by_then}({later})")
    last_seq = last_seq or int(found["high"] or 0)
    return ClonePoint(
        table=log.table,
        version=version,
        index=0,
        last_seq=last_seq,
        last_time_ns=int(found["time_ns"] or 0),
        floor=int(found["low"] or last_seq + 1),
        conditions=[later],
        dead=dead,
    )


def _from(point: ClonePoint, asked: CloneRequest) -> ClonePoint:
    """Return the point without messages stored before the request's start."""
    more = [f"seq < {asked.start_seq}"] if asked.start_seq > 1 else []
    more += [f"time_ns < {asked.start_ns}"] if asked.start_ns else []
    return msgspec.structs.replace(point, conditions=[*point.conditions, *more]) if more else point


def _check_owner(log: TableLog, owner: str | None, uid: str) -> None:
    """Check that a version is not of an earlier stream, nor of an unfinished table."""
    if owner != uid:
        raise TimeTravelError(f"the versions of {log.table} that are still there do not reach back so far")


def _is_archive(storage: Storage, table: str, version: int) -> bool:
    return REMOVED_COLUMN in Scan(table, version, storage).names


def _query(storage: Storage, table: str, version: int | None, sql: str) -> dict[str, Any]:
    (row,) = Scan(table, version, storage).query(sql).to_pylist()
    return dict(row)
