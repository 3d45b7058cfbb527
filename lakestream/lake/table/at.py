"""Time travel: from a time or a sequence to a version of a stream's Delta table.

Belongs here: the two meanings of a time. *Commit time*: the table as it was committed at T, Delta's TIMESTAMP AS OF.
*Message time*: the version that holds every message stored at or before T, the view of a NATS client with
`up_to_time`. They differ by the compaction lag, so they are two functions with two names.

Only the transaction log is read, one commit file at a time and by bisection, so that a table with a hundred thousand
commits needs about twenty small reads. No Parquet file is opened.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from datetime import datetime

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.progress import TableProgress
from lakestream.log.format.departures import Point
from lakestream.protocol import instants
from lakestream.protocol.instants import rfc3339

_MS = 1_000_000
ADOPTION = "Manual Update"
"""Operation of the commit by which a table that began as a clone becomes its mirror's
(lakestream_spark/write/clone_maker.py)."""
KEEP_MORE = "to keep versions longer, give the stream the metadata lakestream.time_travel (such as 30d)"


class TimeTravelError(LakeError):
    """Raised when the table has no version for the question; the text says which versions there are."""


class NotRecorded(TimeTravelError):
    """Raised when the stream did not record departures at that point."""


class NotATable(TimeTravelError):
    """Raised when there is no Delta transaction log at the path."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} is not a Delta table: it has no _delta_log with commits")


class TableAsOf(msgspec.Struct, frozen=True):
    """Answer of `as_of`: read `version` and keep rows with time_ns <= `at_ns`; of `as_of_sequence`: with seq <= `seq`.

    `version` is None when the stream had no message yet. `complete`: no message of that state can be missing, since the
    table holds a later one.
    """

    version: int | None
    at_ns: int
    complete: bool
    progress: TableProgress | None = None
    """With time travel: the commit whose departures (departures.py) tell which messages had left."""
    seq: int = 0

    @property
    def point(self) -> Point:
        """Return the time, or the sequence, as a point of the stream."""
        return Point(seq=self.seq) if self.seq else Point(before_ns=self.at_ns + 1)


def open_log(table: str | os.PathLike[str]) -> TableLog:
    """Return the log of the Delta table at a path or URL. Raises NotATable when it has no commits."""
    path = os.fspath(table).rstrip("/")
    log = TableLog(open_storage(path), path)
    if not log.versions:
        raise NotATable(path)
    return log


def latest_progress(table: str | os.PathLike[str]) -> TableProgress | None:
    """Return the progress of the table; None when there is no table, or no compaction has written it."""
    try:
        log = open_log(table)
        return log.progress(log.latest)
    except NotATable:
        return None


def version_for_commit_time(log: TableLog, at_ns: int, now_ns: int) -> int:
    """Return the version that was current at `at_ns`: the last one committed at or before it (TIMESTAMP AS OF).

    Commit times are whole milliseconds, as in Delta. A time after the last commit means the latest version (Spark
    refuses this); a time in the future is refused.

    Args:
        log: the table's log.
        at_ns: the time, ns since the epoch.
        now_ns: the present, ns since the epoch.

    Raises:
        TimeTravelError: before the first commit that is still known, or in the future.

    Source: Delta protocol, "In-Commit Timestamps"; Delta's rule of the last commit whose timestamp is not greater.
    """
    if at_ns > now_ns:
        raise TimeTravelError(f"{rfc3339(at_ns)} is in the future; the table's latest version is {log.latest}")
    count = log.count_until(at_ns // _MS)
    if count == 0:
        oldest = log.summary(log.versions[0])
        raise TimeTravelError(
            f"{rfc3339(at_ns)} is before the first commit of {log.table} that is still known: "
            f"version {oldest.version} of {rfc3339(oldest.time_ms * _MS)}{_gone(log)}"
        )
    return log.versions[count - 1]


def version_for_message_time(log: TableLog, at_ns: int) -> TableAsOf:
    """Return the version that holds all messages stored at or before `at_ns`, by message time.

    It is the first version that reaches the last such message: a later one may already have lost some of them to
    deletes and limits. It may hold later messages too (a commit has many), so filter by `time_ns <= at_ns`. Only the
    present stream of that name counts, not a deleted one. With time travel it also has messages that were removed by
    then, within the commit: filter by its departures.

    A direct get with `up_to_time` T sees the messages stored *before* T (nats-server 2.15.1, by experiment): its view
    at T is this one at T - 1 ns.

    Args:
        log: the table's log.
        at_ns: message time, ns since the epoch.

    Raises:
        TimeTravelError: log clean-up has deleted the version.

    Source: ADR-31 (`up_to_time`); Delta protocol, userMetadata.
    """
    newest = log.progress(log.latest)
    if newest is None:
        return TableAsOf(None, at_ns, complete=False)
    if (found := _exactly(log, at_ns, newest)) is not None:
        return found

    def reached(version: int) -> tuple[int, int]:
        progress = log.progress(version)
        return (progress.last_time_ns, progress.last_seq) if progress and progress.uid == newest.uid else (-1, 0)

    # Invariant: times never go backwards in a stream and last_seq only grows, so `reached` ascends over versions.
    versions = log.stream_versions
    count = bisect_right(versions, at_ns, key=lambda version: reached(version)[0])
    if count < len(versions) and _begins_by(log, versions[count], at_ns):
        return TableAsOf(versions[count], at_ns, complete=True)
    complete = count < len(versions)
    if count == 0 or (seq := reached(versions[count - 1])[1]) == 0:
        oldest = log.progress(log.versions[0])
        if log.versions[0] > 0 and (oldest is None or oldest.uid == newest.uid):
            kept = rfc3339(log.summary(log.versions[0]).time_ms * _MS)
            raise TimeTravelError(
                f"the versions of {log.table} that held {rfc3339(at_ns)} are gone; "
                f"the oldest still known is {log.versions[0]}, committed at {kept}{_gone(log)}"
            )
        return TableAsOf(None, at_ns, complete)
    first = bisect_right(versions[:count], seq - 1, key=lambda version: reached(version)[1])
    return TableAsOf(versions[first], at_ns, complete)


def _exactly(log: TableLog, at_ns: int, newest: TableProgress) -> TableAsOf | None:
    """Return the answer from departures; None where the stream did not record them at that time."""
    try:
        kept = version_of_point(log, Point(before_ns=at_ns + 1))
    except NotRecorded:
        return None
    except TimeTravelError:
        if newest.departed < 0 and log.summary(log.versions[0]).progress is None:
            return None  # it is unknown whether departures were recorded then
        raise
    if kept.version is None:  # beyond the table's last message or removal
        if newest.departed < 0:
            return None
        return TableAsOf(log.latest, at_ns, complete=False, progress=log.pending_deletes(log.latest))
    if kept.before is None and not _begins_by(log, kept.version, at_ns):
        return TableAsOf(None, at_ns, complete=True)
    return TableAsOf(kept.version, at_ns, complete=True, progress=kept.progress)


class PointVersion(msgspec.Struct, frozen=True):
    """Location of a point of a stream with time travel in its table.

    The rows of `version` are all messages that the stream held when the batch of `progress` began, and all that were
    stored within it; its departures file tells which left when. `before` is the progress of the commit before.
    `version` is None when the point is beyond the table, which then reaches as far as `progress` (None: no table).
    """

    version: int | None
    progress: TableProgress | None
    before: TableProgress | None = None


def version_of_point(log: TableLog, point: Point) -> PointVersion:
    """Return the version with the messages that a stream with `lakestream.time_travel` held at a point.

    Raises:
        TimeTravelError: the version is gone.
        NotRecorded: the stream did not record departures then.
    """
    newest = log.progress(log.latest)
    if newest is None:
        return PointVersion(None, None)
    wanted = point.seq or point.before_ns

    def reached(version: int) -> int:
        progress = log.progress(version)
        if progress is None or progress.uid != newest.uid:
            return -1
        return progress.last_seq if point.seq else max(progress.moment_ns, progress.last_time_ns)

    # Invariant: sequences and moments ascend over the commits of a stream, also without departures.
    versions = log.stream_versions
    at = bisect_left(versions, wanted, key=reached)
    if at == len(versions):
        return PointVersion(None, newest)
    version = versions[at]
    progress = log.summary(version).progress
    if progress is not None and progress.departed < 0:
        raise NotRecorded(_not_kept(point))
    if progress is None or (at == 0 and version > 0):
        raise TimeTravelError(
            f"{_named(point)} is before the versions of {log.table} that are still there; {KEEP_MORE}"
        )
    before = log.progress(versions[at - 1]) if at else None
    if before is None or before.uid != progress.uid:
        return PointVersion(version, progress)
    first_ns = log.summary(version).first_time_ns
    if before.departed < 0 and not point.seq and (first_ns is None or point.before_ns <= first_ns):
        # Removals between the last message of the commit before and the first one of this were not recorded.
        raise NotRecorded(_not_kept(point))
    return PointVersion(version, progress, before)


def _not_kept(point: Point) -> str:
    return (
        f"when messages left the stream was not kept at {_named(point)}: it is from the stream's next segment "
        "on after it was given the metadata lakestream.time_travel"
    )


def _named(point: Point) -> str:
    return f"sequence {point.seq}" if point.seq else rfc3339(point.before_ns - 1)


def _begins_by(log: TableLog, version: int, at_ns: int) -> bool:
    """Return True if a commit may have added messages stored at or before `at_ns`.

    A commit without statistics is assumed to: an extra version costs a filter, never a message. The same holds for the
    first commit of a mirror that began as a clone, which adds no file.
    """
    commit = log.summary(version)
    if commit.operation == ADOPTION:
        return True
    return commit.adds > 0 and (commit.first_time_ns is None or commit.first_time_ns <= at_ns)


def _gone(log: TableLog) -> str:
    """Return the hint for a table whose older versions are gone, or ""."""
    return f"; {KEEP_MORE}" if log.versions[0] > 0 else ""


def as_of(table: str | os.PathLike[str], at: int | datetime | str) -> TableAsOf:
    """Return `version_for_message_time` of the table at a path or URL.

    Args:
        table: the table's path or URL, as `table_path` gives it.
        at: a time, as `instant` takes it.

    Raises:
        NotATable: there is no table.
        TimeTravelError: log clean-up has deleted the version, or `at` is no time.
    """
    return version_for_message_time(open_log(table), instant(at))


def as_of_sequence(table: str | os.PathLike[str], seq: int) -> TableAsOf:
    """Return the version with the messages that a stream with time travel held right after a sequence was stored.

    Raises:
        NotATable: there is no table.
        NotRecorded: the stream did not record departures then.
        TimeTravelError: log clean-up has deleted the version.
    """
    return _of_sequence(open_log(table), seq)


def version_for_sequence(log: TableLog, seq: int) -> TableAsOf:
    """Return the version with the messages that a stream held right after a sequence was stored. Of a stream that does
    not record departures: the newest one, with those of them that the stream still has.

    Raises:
        TimeTravelError: the version is gone; NotRecorded: the stream did not record departures then.
    """
    newest = log.progress(log.latest)
    if newest is not None and newest.departed >= 0:
        found = _of_sequence(log, seq)
        return found if found.version is not None else _of_newest(log, seq)
    return _of_newest(log, seq)


def _of_sequence(log: TableLog, seq: int) -> TableAsOf:
    kept = version_of_point(log, Point(seq=seq))
    return TableAsOf(kept.version, 0, complete=kept.version is not None, progress=kept.progress, seq=seq)


def _of_newest(log: TableLog, seq: int) -> TableAsOf:
    newest = log.progress(log.latest)
    complete = newest is not None and seq <= newest.last_seq
    return TableAsOf(log.latest, 0, complete=complete, progress=log.pending_deletes(log.latest), seq=seq)


def version_at(table: str | os.PathLike[str], at: int | datetime | str) -> int:
    """Return `version_for_commit_time` of the table at a path or URL. Arguments and errors are those of `as_of`."""
    return version_for_commit_time(open_log(table), instant(at), time.time_ns())


def instant(at: int | datetime | str) -> int:
    """Return a time in ns since the epoch; see `lakestream.protocol.instants.instant`.

    Raises:
        TimeTravelError: a text that is no time, or a time outside of the years 1678 to 2261.
    """
    try:
        return instants.instant(at)
    except ValueError as error:
        raise TimeTravelError(str(error)) from None
