"""Telling whether a lake has anything to compact, without Spark.

Belongs here: the question that `--once` asks before it starts a JVM. The answer may be yes where the compactor then
finds nothing to do, never the other way round.
"""

from __future__ import annotations

from lakestream.lake.delta import policy
from lakestream.lake.delta.position import PositionWatch
from lakestream.lake.delta.time_travel import CommitLog
from lakestream.lake.files import clone_request, paths, staging
from lakestream.lake.files import quarantine as poison
from lakestream.lake.files.scan import Scanner
from lakestream.lake.files.staging import StagedStream
from lakestream.lake.files.storage import Storage, open_storage


def has_work(lake: str) -> bool:
    """Return True if a compactor may have something to do in a lake now."""
    storage = open_storage(lake)
    live, gone = staging.current(Scanner(lake).scan())
    if gone or storage.directories(f"{storage.root}/{paths.REMOVED}"):
        return True
    return any(_is_behind(storage, stream) for stream in live)


def _is_behind(storage: Storage, stream: StagedStream) -> bool:
    """Return True if a stream's table may lack something that is staged, or hold rows that have died."""
    directory, identity = stream.directory, stream.identity
    if clone_request.is_open(storage, directory) or poison.poisoned(directory, 0) is not None:
        return True
    keeps_past = policy.of_config(bytes(identity.config)).time_travel_ns is not None
    if not stream.last_index and not keeps_past:
        return False
    table = paths.table(storage.root, identity.name, identity.account)
    watch = PositionWatch(table, identity.uid)
    if stream.last_index > (watch.read() or 0):
        return True
    if watch.progress is None or not watch.progress.departed:
        return False
    log = CommitLog(table)
    return log.uncleared(log.latest) is not None
