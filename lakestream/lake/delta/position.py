"""How far a stream's Delta table is.

Belongs here: reading the compactor's position from a table's transaction log, cheaply enough to ask every second for
every stream. The position is a log index: every entry of the stream's log up to it is reflected in the table. It is
the `txn` action of application `lakestream:<uid>` (Delta protocol, "Transaction Identifiers"), so it moves in the very
commit that adds the rows. Only the transaction log is looked at, never a Parquet file, and deltalake is loaded only
where the log's JSON files no longer reach back far enough.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from lakestream.lake.delta.time_travel import Progress
from lakestream.lake.errors import LakeError
from lakestream.lake.files.storage import open_storage

_COMMIT = re.compile(r"^(\d{20})\.json$")


def application(uid: str) -> str:
    """The `txnAppId` of a stream's commits."""
    return f"lakestream:{uid}"


def read(table: str, uid: str) -> int | None:
    """The log index through which `table` holds the stream `uid`; None when it holds nothing of that stream.

    To ask repeatedly, keep a `PositionWatch`.
    """
    return PositionWatch(table, uid).read()


class PositionWatch:
    """The position of one stream in its table, remembered between reads.

    A read when nothing changed costs two `stat` calls, or two HEAD requests to an object store. Not for use by two
    threads at once.

    After a `read`, `progress` is what the commit that set the position says of itself (None when that commit can no
    longer be looked at), `rows` how many messages it added, and `committed_ms` when it was made (ms since the epoch; 0:
    unknown). `epoch` counts how often the table was looked at as one that is not known: it is new, or its log was cut.
    """

    def __init__(self, table: str, uid: str) -> None:
        self._log = f"{table}/_delta_log"
        self._table = table
        self._storage = open_storage(table)
        self._app = application(uid)
        self._version = -1
        self._identity: str | None = None
        self._position: int | None = None
        self.progress: Progress | None = None
        self.rows = 0
        self.committed_ms = 0
        self.epoch = 0

    def read(self) -> int | None:
        """The log index through which the table holds the stream; None when it holds nothing of it."""
        if self._version >= 0 and self._stat(self._version) == self._identity:
            while self._take(self._version + 1):
                pass
            return self._position
        return self._start_over()

    def _start_over(self) -> int | None:
        """Look from the newest commit backwards; the table is new to us, or it was removed and made again."""
        self._version, self._identity, self._position = -1, None, None
        self.progress, self.rows, self.committed_ms = None, 0, 0
        self.epoch += 1
        versions = self._versions()
        if not versions:
            return None
        newest = versions[-1]
        for version in reversed(versions):
            if self._transaction(version):
                break
        else:
            if versions[0] > 0:
                self._position = self._from_snapshot()
        self._version, self._identity = newest, self._stat(newest)
        return self._position

    def _take(self, version: int) -> bool:
        identity = self._stat(version)
        if identity is None:
            return False
        self._transaction(version)
        self._version, self._identity = version, identity
        return True

    def _transaction(self, version: int) -> bool:
        """Take over the position that one commit sets, if it does."""
        info: dict[str, Any] = {}
        position: int | None = None
        try:
            content = self._storage.read(self._path(version))
        except FileNotFoundError:
            return False
        try:
            for line in content.splitlines():
                if line.startswith(b'{"txn"'):
                    action = json.loads(line)["txn"]
                    if action["appId"] == self._app:
                        position = int(action["version"])
                elif line.startswith(b'{"commitInfo"'):
                    info = json.loads(line)["commitInfo"]
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"{self._path(version)} is damaged ({error}): bring back this file, or an older copy of the table"
            ) from error
        if position is None:
            return False
        self._position, self.progress = position, progress_of(info)
        self.rows = int(info.get("operationMetrics", {}).get("numOutputRows", 0))
        self.committed_ms = int(info.get("inCommitTimestamp") or info.get("timestamp") or 0)
        return True

    def _from_snapshot(self) -> int | None:
        """The JSON commits do not go back to version 0 and none names us: ask for the checkpointed state."""
        from deltalake import DeltaTable

        table = DeltaTable(self._table, storage_options=self._storage.delta_options())
        found = table.transaction_version(self._app)
        return None if found is None else int(found)

    def _versions(self) -> list[int]:
        names = self._storage.names(self._log)
        return sorted(int(match.group(1)) for match in map(_COMMIT.match, names) if match)

    def _stat(self, version: int) -> str | None:
        entry = self._storage.stat(self._path(version))
        return None if entry is None else entry.tag

    def _path(self, version: int) -> str:
        return f"{self._log}/{version:020d}.json"


def progress_of(info: dict[str, Any]) -> Progress | None:
    """What a commit's `commitInfo` says of the stream in its userMetadata; None when it says nothing."""
    try:
        return msgspec.json.decode(info.get("userMetadata") or b"", type=Progress)
    except msgspec.DecodeError:
        return None
