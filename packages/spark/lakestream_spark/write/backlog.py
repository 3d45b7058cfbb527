"""Staged log entries that are not in the tables of a lake yet.

Belongs here: questions that a compactor asks before it has work for Spark. Nothing of Spark is imported.
"""

from __future__ import annotations

import contextlib

from lakestream.lake.errors import LakeError
from lakestream.lake.staging import clone_request, quarantine, staging
from lakestream.lake.staging.scan import Scanner
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import policy
from lakestream.lake.table.at import open_log
from lakestream.lake.table.state import TableFollower


class Backlog:
    """Log entries that are staged at its creation and not in their tables.

    Args:
        lake: the lake's root. Streams whose tables cannot be read do not count.
    """

    def __init__(self, lake: str) -> None:
        storage = open_storage(lake)
        live, _ = staging.current(Scanner(lake).scan())
        self._watches = [
            (stream.last_index, TableFollower(paths.table(storage.root, name, account), uid))
            for stream in live
            for name, account, uid in [(stream.identity.name, stream.identity.account, stream.identity.uid)]
        ]
        self.total = self._left()

    def done(self) -> int:
        """Return the number of entries that have reached their tables since. Not for use by two threads at once."""
        return self.total - self._left()

    def _left(self) -> int:
        left = 0
        for last_index, watch in self._watches:
            with contextlib.suppress(LakeError, OSError):
                left += max(last_index - (watch.position() or 0), 0)
        return left


def has_work(lake: str) -> bool:
    """Return True if a compactor may have something to do in a lake now. Needs no Spark."""
    storage, scanner = open_storage(lake), Scanner(lake)
    live, gone = staging.current(scanner.scan())
    if gone or scanner.troubles or storage.directories(f"{storage.root}/{paths.REMOVED}"):
        return True
    return any(_is_behind(storage, stream) for stream in live)


def _is_behind(storage: Storage, stream: StagedStream) -> bool:
    """Return True if a stream's table may lack a staged segment, or hold rows of removed messages."""
    directory, identity = stream.directory, stream.identity
    if clone_request.is_open(storage, directory) or quarantine.find(directory, 0) is not None:
        return True
    keeps_past = policy.of_config(bytes(identity.config)).time_travel_ns is not None
    if not stream.last_index and not keeps_past:
        return False
    table = paths.table(storage.root, identity.name, identity.account)
    watch = TableFollower(table, identity.uid)
    return stream.last_index > (watch.position() or 0) or has_removed_rows(watch)


def has_removed_rows(watch: TableFollower) -> bool:
    """Return True if a table, at the position that was read last, may still have rows of removed messages: those that
    are deleted behind a commit, whose deletion may fail. Raises LakeError, OSError."""
    if watch.head.progress is None or watch.head.progress.departed <= 0:
        return False
    log = open_log(watch.table)
    return log.pending_deletes(log.latest) is not None
