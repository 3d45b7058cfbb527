"""Progress and position of a stream in its Delta table.

Belongs here: the progress that a commit states, and the application of a stream's position. The position is a log
index: every entry of the stream's log up to it is reflected in the table. It is the `txn` action of application
`lakestream:<uid>` (Delta protocol, "Transaction Identifiers"), so it moves in the very commit that adds the rows.
state.py reads it.
"""

from __future__ import annotations

import msgspec

from lakestream.lake.table.actions import CommitInfo
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

APPLICATION = "lakestream:"
"""Beginning of the `txnAppId` of streams' commits."""


class TableProgress(msgspec.Struct, frozen=True, kw_only=True):
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


_PROGRESS = JsonDecoder(TableProgress)


def progress_of(info: CommitInfo) -> TableProgress | None:
    """Return what a commit states about the stream; None when its userMetadata is missing or of another writer."""
    try:
        return _PROGRESS.decode(info.user_metadata or "")
    except DECODE_ERRORS:
        return None


def application(uid: str) -> str:
    """Return the `txnAppId` of a stream's commits."""
    return f"{APPLICATION}{uid}"
