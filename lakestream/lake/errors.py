"""What can be wrong with a lake, as exceptions that say what to do.

Belongs here: every error that the lake package raises for its callers. Nothing else of the package is imported here.
"""

from __future__ import annotations


class LakeError(Exception):
    """Something about the lake that a person has to decide or repair; the text says what."""


class UnsupportedLake(LakeError):
    """The lake's address is of a kind that this version cannot write to."""

    def __init__(self, lake: str, reason: str) -> None:
        super().__init__(f"lake {lake!r}: {reason}")


class NotALake(LakeError):
    """There is a directory or prefix that no server has written to, or none at all."""

    def __init__(self, root: str) -> None:
        super().__init__(
            f"there is no lake at {root}: no server has written to it. Name a server's lake with --lake; "
            "`lakestream up`, `lakestream serve -js` and `lakestream compact --create` make one"
        )


class StorageFailed(LakeError):
    """The object store did not do what it was asked."""

    def __init__(self, what: str, path: str, reason: str) -> None:
        super().__init__(f"cannot {what} {path}: {reason}")


class LeaseLost(LakeError):
    """A lock in an object store could not be renewed in time; whoever held it must not commit any more."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the lease {path} was lost: the object store did not answer in time, or another took over")


class StagingConflict(LakeError):
    """Two different segments claim the same place in the staging area."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is already staged with other content: the lake belongs to another store directory, or the store "
            "was restored from a copy; give this server a lake of its own (lake.url)"
        )


class SegmentGap(LakeError):
    """The staged segments do not follow on from what the table holds."""

    def __init__(self, table: str, position: int, first_index: int) -> None:
        super().__init__(
            f"{table} holds the stream's log through index {position}, but the next staged segment starts at "
            f"{first_index}: entries {position + 1} to {first_index - 1} are missing. Was the table or the staging "
            "area restored from an older copy? Bring back the newer one, or recreate the stream"
        )


class DamagedTable(LakeError):
    """Files of a table are not what its log says, and no segment is left to make them from."""

    def __init__(self, what: str, begins: int, first_seq: int, last_seq: int) -> None:
        super().__init__(
            f"{what}. It cannot be made whole: there is no whole version of it from which on every log entry is still "
            f"staged (they are from {begins} on), so messages with sequences from {first_seq} to {last_seq} cannot be "
            "read. Nothing was changed; bring the files back from a copy of the lake"
        )


class DamagedLog(LakeError):
    """A commit of a table is cut or overwritten."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}; bring it back from a copy of the lake")


class BadDeletionVector(LakeError):
    """Raised for a deletion vector that does not decode; nothing of its file is read."""


class BadSegment(LakeError):
    """A staged segment does not decode; nothing of it was used."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        self.path = path
        self.offset = offset
        self.reason = reason
        super().__init__(f"{path} at offset {offset}: {reason}. Restore the file from the server's log or a replica")


class QuarantinedSegment(LakeError):
    """A staged segment was set aside because it does not decode; its stream waits for a good copy."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"{path} was set aside: {reason}. The stream's table waits until the server has staged a good copy; the "
            "server does that by itself if its log has one"
        )


class KeptTable(LakeError):
    """The table of an earlier stream of the same name is in the way, and must stay."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} belongs to a deleted stream of the same name, and was to be kept (lakestream.on_delete); move or "
            "remove it before the new stream gets its table"
        )


class StillCloned(LakeError):
    """The table of a deleted stream is to go, and clones need its files."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"{table} belongs to a deleted stream; it goes as soon as its clones have files of their own")


class OlderLake(LakeError):
    """The table is behind what the server has let go from its log: the lake was restored from an older copy."""

    def __init__(self, table: str, position: int, needed: int) -> None:
        super().__init__(
            f"{table} holds the stream through log index {position}, but the server's log begins only after {needed}: "
            "the lake is an older copy than the one that the log was emptied into. Bring back the newer lake; until "
            "then nothing leaves the log and messages in between cannot be read"
        )


class OlderStore(LakeError):
    """The table is ahead of the server's log: the store directory was restored from an older copy."""

    def __init__(self, table: str, position: int, applied: int) -> None:
        super().__init__(
            f"{table} holds the stream through log index {position}, but the server's log ends at {applied}: the store "
            "directory is an older copy, or another server writes to this lake. Bring back the newer store, or give "
            "this server a lake of its own (lake.url); until then nothing of this stream is staged"
        )


class ForeignTable(LakeError):
    """A Delta table that lakestream did not make stands where a stream's table belongs."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} is a Delta table that lakestream did not create; move it away")


class TableBusy(LakeError):
    """Another process has the table for maintenance; nothing is wrong."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} is under maintenance; its stream is tried again in a few seconds")


class JavaMissing(LakeError):
    """No Java of a usable version."""


class JarsMissing(LakeError):
    """The Delta JARs are not there and could not be fetched."""


class HistoryUnavailable(LakeError):
    """The table could not be read, even after taking a new snapshot."""


class UnfitSubject(LakeError):
    """A subject that cannot be a partition value: the table has to be bucketed."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"subject {subject[:64]!r}… ({len(subject)} characters) does not fit a partition's directory")

    def __reduce__(self) -> tuple[type[UnfitSubject], tuple[str]]:
        return UnfitSubject, (self.subject,)


class BadPolicy(LakeError):
    """A `lakestream.*` metadata value that means nothing; the text names the key and what it may be."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
