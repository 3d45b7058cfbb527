"""Errors that changes of tables raise.

Belongs here: exceptions whose texts say what to do, and the remedy for each error with which Delta refuses to read or
write a table because of what another program did.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakestream.lake.errors import LakeError

_FEATURE = "drop it with the program that has added it to {table}, or upgrade lakestream"
_COMMITS = "bring the missing files of {table}/_delta_log back from a copy of the lake"
REMEDIES = {
    "[DELTA_UNSUPPORTED_FEATURES_FOR_WRITE": _FEATURE,
    "[DELTA_UNSUPPORTED_FEATURES_FOR_READ": _FEATURE,
    "[DELTA_UNSUPPORTED_FEATURES_IN_CONFIG": _FEATURE,
    "Unsupported: Feature": _FEATURE,
    "[DELTA_INVALID_PROTOCOL_VERSION": "upgrade lakestream, whose Delta is older than the program that wrote {table}",
    "[DELTA_CANNOT_MODIFY_APPEND_ONLY": (
        "undo it in Spark SQL with ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('delta.appendOnly')"
    ),
    "[DELTA_VERSIONS_NOT_CONTIGUOUS": _COMMITS,
    "[DELTA_MISSING_FILES_UNEXPECTED_VERSION": _COMMITS,
    "[DELTA_LOG_FILE_NOT_FOUND": _COMMITS,
    "[DELTA_TRUNCATED_TRANSACTION_LOG": _COMMITS,
    "[DELTA_STATE_RECOVER_ERROR": _COMMITS,
}
"""Remedies by a part of the error's text: its class, or words of deltalake. `{table}` is the table's path."""


class DamagedTable(LakeError):
    """Raised when files of a table differ from its log, and no segment is left to make them from."""

    def __init__(self, what: str, begins: int, first_seq: int, last_seq: int) -> None:
        super().__init__(
            f"{what}. It cannot be repaired: no undamaged version reaches back to the oldest log entry that is still "
            f"staged ({begins}), so messages with sequences from {first_seq} to {last_seq} cannot be read. Nothing was "
            "changed; restore the files from a copy of the lake"
        )


class KeptTable(LakeError):
    """Raised when the table of an earlier stream of the same name is in the way and has to stay."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} belongs to a deleted stream of the same name, and was to be kept (lakestream.on_delete); move or "
            "remove it before the new stream gets its table"
        )


class StillCloned(LakeError):
    """Raised when the table of a deleted stream is to be removed while clones need its files."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"{table} belongs to a deleted stream; it goes as soon as its clones have files of their own")


class LateCommit(LakeError):
    """Raised when a table in an object store is to be removed, and a commit may still arrive in its log: later it would
    be one of the next table there.

    Args:
        until_ns: after this time none arrives, ns since the epoch.
    """

    def __init__(self, table: str, until_ns: int) -> None:
        until = datetime.fromtimestamp(until_ns / 1e9, UTC)
        super().__init__(
            f"{table} belongs to a deleted stream, and a commit may still arrive there whose program was killed or got "
            f"no answer; the table is removed, and that of a new stream of this name begun, after {until:%H:%M:%S} UTC"
        )


class ForeignTable(LakeError):
    """Raised when a Delta table of another program is at the place of a stream's table.

    Args:
        table: the table's path.
        since: version in which another program has removed the id of the stream from its table; 0: it was none.
    """

    def __init__(self, table: str, since: int = 0) -> None:
        if not since:
            super().__init__(f"{table} is a Delta table that lakestream did not create; move it away")
            return
        super().__init__(
            f"{table} has had no property lakestream.uid since version {since}, in which another program unset it or "
            f"replaced the table. {_restore(table, since - 1)}"
        )


class UnwritableTable(LakeError):
    """Raised when another program has declared a table in a way in which the compactor cannot write its rows.

    Args:
        table: the table's path.
        what: the declaration, such as "a generated column".
        since: version that has it first; 0: unknown.
        command: in Spark SQL, with the table's path as `{}`, where RESTORE does not undo it.
    """

    def __init__(self, table: str, what: str, since: int, command: str = "") -> None:
        undo = _restore(table, since - 1) if since else "Undo that, with the program that did it"
        if command:
            undo = f"Undo it in Spark SQL with {command.format(table)}"
        super().__init__(f"{table} has {what} of another program, for which messages have no values. {undo}")


def _restore(table: str, version: int) -> str:
    return f"Undo it in Spark SQL with RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}"


def with_remedy(reason: str, table: str) -> str:
    """Return the text of an error about a table, with what to do if that is known."""
    remedy = next((each for name, each in REMEDIES.items() if name in reason), "")
    return f"{reason.rstrip('.')}; {remedy.format(table=table)}" if remedy else reason
