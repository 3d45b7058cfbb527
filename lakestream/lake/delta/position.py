"""Progress and position of a stream's Delta table.

Belongs here: the progress that a commit states, the compactor's position, read cheaply enough for every stream every
second, and the places where a stream's table may be. The position is a log index: every entry of the stream's log up to
it is reflected in the table. It is the `txn` action of application `lakestream:<uid>` (Delta protocol, "Transaction
Identifiers"), so it moves in the very commit that adds the rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakestream.lake.delta.actions import Action, CommitInfo
from lakestream.lake.delta.log import Log, log_directory
from lakestream.lake.errors import DamagedLog
from lakestream.lake.files import paths
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.staging import StreamIdentity
from lakestream.lake.files.storage import Storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

APPLICATION = "lakestream:"
"""Beginning of the `txnAppId` of streams' commits."""
_LINES = (b'{"txn"', b'{"commitInfo"')
"""Beginnings of the commit lines with the position. There may be thousands of others, which verify.py checks."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the table in the stream, stated in a compaction commit's userMetadata.

    `last_index` is the log index (it moves with deletes and purges too), `last_seq` and `last_time_ns` belong to the
    newest message ever written to the table, `floor` is the stream's first sequence at that point.

    With time travel, `moment_ns` is the time of the last message or removal, never before that of an earlier commit,
    and `departed` the number of runs of removals in the departures file (departures.py); the commit's rows are then all
    messages of its batch, also those that the next `deletes` commits delete. Without, `departed` is -1.

    `undone` are ranges of versions (first, last) that a repair undid: their content was committed again later, so they
    are left out wherever versions have to follow the stream.
    """

    uid: str
    last_index: int
    last_seq: int
    last_time_ns: int
    floor: int = 0
    moment_ns: int = 0
    departed: int = -1
    deletes: int = 0
    undone: list[tuple[int, int]] = []
    misfits: int = 0


_PROGRESS = JsonDecoder(Progress)


def progress_of(info: CommitInfo) -> Progress | None:
    """Return what a commit states about the stream; None when its userMetadata is missing or of another writer."""
    try:
        return _PROGRESS.decode(info.user_metadata or "")
    except DECODE_ERRORS:
        return None


def application(uid: str) -> str:
    """Return the `txnAppId` of a stream's commits."""
    return f"{APPLICATION}{uid}"


class PositionWatch:
    """The position of one stream in its table, cached between reads. Not for use by two threads at once.

    A read when nothing changed costs two `stat` calls, or two HEAD requests to an object store.

    After a `read`, `progress` is stated by the commit that set the position (None when that commit is gone), `rows` is
    the number of messages that it added, and `committed_ms` its time (ms since the epoch; 0: unknown). `epoch` counts
    how often the table was read from scratch, because it is new or its log was cut.
    """

    def __init__(self, table: str, uid: str) -> None:
        self._table = table
        self._storage = open_storage(table)
        self._log = Log(self._storage, table)
        self._app = application(uid)
        self._version = -1
        self._tag: str | None = None
        self._position: int | None = None
        self._claims: dict[int, int] = {}
        self.progress: Progress | None = None
        self.rows = 0
        self.committed_ms = 0
        self.moved = -1
        """Version of the commit that set the position; -1: unknown."""
        self.epoch = 0

    def read(self) -> int | None:
        """Return the log index through which the table holds the stream; None when it holds nothing of it.

        Raises:
            DamagedLog: a commit does not decode.
        """
        if self._version >= 0 and self._log.tag(self._version) == self._tag:
            while (tag := self._log.tag(self._version + 1)) is not None:
                self._take(self._version + 1)
                self._compare()
                self._version, self._tag = self._version + 1, tag
            return self._position
        return self._start_over()

    def _start_over(self) -> int | None:
        """Read from the newest commit backwards: the table is new, or was removed and created again."""
        self._version, self._tag, self._position = -1, None, None
        self._claims = {}
        self.progress, self.rows, self.committed_ms, self.moved = None, 0, 0, -1
        self.epoch += 1
        self._log = Log(self._storage, self._table)
        versions = self._log.commits
        if not versions:
            return None
        if not any(self._take(version) for version in reversed(versions)) and versions[0] > 0:
            self._position = self._from_checkpoint()
        self._compare()
        self._version, self._tag = versions[-1], self._log.tag(versions[-1])
        return self._position

    def _take(self, version: int) -> bool:
        """Apply the position that a commit sets; return False when it sets none."""
        try:
            commit = self._log.commit(version, _LINES)
        except FileNotFoundError:
            return False
        position = self._set_by(commit.actions)
        info = commit.info
        progress = progress_of(info)
        is_own = progress is not None and self._app == application(progress.uid)
        if position is None:
            if progress is not None and is_own:
                self._claims[version] = progress.last_index
            return False
        if progress is not None and is_own and progress.last_index != position:
            what = f"it names two log indexes as the table's position, {position} and {progress.last_index}"
            raise DamagedLog(self._log.path(version), what)
        self._position, self.progress, self.moved = position, progress, version
        rows = info.operation_metrics.get("numOutputRows", 0)
        self.rows = int(rows) if str(rows).isdecimal() else 0
        self.committed_ms = info.in_commit_timestamp or info.timestamp or 0
        return True

    def _compare(self) -> None:
        """Compare the position with the commits that state it without setting it: a change of the layout repeats it.

        Raises:
            DamagedLog: such a commit states another one, so what set it there is overwritten.
        """
        for version, claimed in self._claims.items():
            if claimed != self._position:
                what = f"it states the log index {claimed} as the table's position, but does not set it"
                raise DamagedLog(self._log.path(version), what)
        self._claims = {}

    def _set_by(self, actions: Iterable[Action]) -> int | None:
        found = (action.txn for action in actions if action.txn is not None)
        return next((txn.version for txn in found if txn.app_id == self._app), None)

    def _from_checkpoint(self) -> int | None:
        """Return the position in the newest checkpoint, for a log that lacks both version 0 and a commit with it."""
        _, parts = self._log.newest_checkpoint()
        return self._set_by(self._log.read_parts(parts, ("txn",)))


def own(storage: Storage, stream: StreamIdentity) -> str:
    """Return the path of a live stream's table."""
    return paths.table(storage.root, stream.name, stream.account)


def aside(storage: Storage, stream: StreamIdentity) -> str:
    """Return the path of a retained table whose name a new stream has taken."""
    return paths.kept(storage.root, stream.name, stream.uid, stream.account)


def is_aside(storage: Storage, stream: StreamIdentity) -> bool:
    """Return True if there is a table at that path, complete or not."""
    return bool(storage.names(log_directory(aside(storage, stream))))


def reached(storage: Storage, stream: StreamIdentity) -> int:
    """Return the log index through which a table holds the stream, at either path; 0 when none does."""
    places = (own(storage, stream), aside(storage, stream))
    return max(PositionWatch(place, stream.uid).read() or 0 for place in places)
