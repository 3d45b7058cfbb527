"""Errors that the lake package raises for its callers.

Belongs here: exceptions whose texts say what to do. No other module of the package is imported. Those that only the
compactor raises are in lakestream_spark/write/errors.py.
"""

from __future__ import annotations

import contextlib
import re

from lakestream.protocol.api.errors import PublicError

_CONFLICT = re.compile(r"DELTA_(CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception")


class LakeError(Exception):
    """Base of all errors about a lake that a person has to decide on or repair; the text says how."""


class UnsupportedLake(LakeError):
    """Raised for a lake address of a kind that this version cannot write to."""

    def __init__(self, lake: str, reason: str) -> None:
        super().__init__(f"lake {lake!r}: {reason}")


class NotALake(LakeError):
    """Raised when no server has written to a directory or prefix."""

    def __init__(self, root: str) -> None:
        super().__init__(
            f"there is no lake at {root}: no server has written to it. Name a server's lake with --lake; "
            "`lakestream up`, `lakestream serve -js` and `lakestream compact --create` make one"
        )


class StorageFailed(LakeError):
    """Raised when the object store, or the file system of a lock, fails or refuses a request."""

    def __init__(self, what: str, path: str, reason: str) -> None:
        super().__init__(f"cannot {what} {path}: {reason}")


class LakeAway(LakeError, PublicError):
    """Raised while a lake cannot be reached.

    Args:
        lake: the lake's root.
        reason: error of the last attempt.
        retry_s: seconds after which clients are told to try again.
        since: time since which it is away, as text; "": unknown.

    Attributes:
        reason: the same.
        retry_s: the same.
    """

    def __init__(self, lake: str, reason: str, retry_s: int, since: str = "") -> None:
        self.reason, self.retry_s = reason, retry_s
        when = f" since {since}" if since else ""
        PublicError.__init__(
            self,
            f"the lake at {lake} cannot be reached{when}: {reason}. Publishing goes on, and everything else resumes by "
            f"itself once the lake is back; {_remedy(reason)}",
            f"the lake cannot be reached; try again in {retry_s} s",
        )


def _remedy(reason: str) -> str:
    if "credentials" in reason:
        return "renew the credentials of the server (those of its environment need a restart)"
    if "there is no " in reason or "another lake" in reason:
        return "mount it, or bring it back to its place"
    return "look at the store and at the way to it"


class LeaseLost(LakeError):
    """Raised when a lease could not be renewed in time; its former holder must not commit any more."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the lease {path} was lost: the object store did not answer in time, or another took over")


class StagingConflict(LakeError):
    """Raised when two different segments claim the same place in the staging area."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is already staged with other content: the lake belongs to another store directory, or the store "
            "was restored from a copy; give this server a lake of its own (lake.url)"
        )


class SegmentSealed(LakeError):
    """Raised when a segment is encrypted and there is no key for it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is encrypted: {reason}")


class SegmentGap(LakeError):
    """Raised when the staged segments do not continue at the table's position."""

    def __init__(self, table: str, position: int, first_index: int) -> None:
        super().__init__(
            f"{table} holds the stream's log through index {position}, but the next staged segment starts at "
            f"{first_index}: entries {position + 1} to {first_index - 1} are missing. Was the table or the staging "
            "area restored from an older copy? Bring back the newer one, or recreate the stream"
        )


class LacksFiles(LakeError):
    """Raised when something of a table was to be deleted whose newest version names files that are missing."""

    def __init__(self, table: str, what: str) -> None:
        self.table = table
        super().__init__(
            f"{what}. Nothing is deleted from it until it is whole: the compactor goes back to an older version if one "
            "and the staged segments have everything; else bring the files back from a copy of the lake"
        )


class DamagedLog(LakeError):
    """Raised when a commit of a table is cut or overwritten."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}; bring it back from a copy of the lake")


class DamagedFile(LakeError):
    """Raised when a data file of a table is not as it was written."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} is damaged: {reason}; bring it back from a copy of the lake")


class BadDeletionVector(LakeError):
    """Raised for a deletion vector that does not decode; nothing of its file is read."""


class BadIdentity(LakeError):
    """Raised when the file that names the stream of a staging directory is damaged."""

    def __init__(self, path: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{path} does not name a stream: {reason}. Move it away and restart the server, which writes it anew"
        )


class NewerIdentity(BadIdentity):
    """Raised when that file has a format which only a newer release knows."""

    def __init__(self, path: str, found: int) -> None:
        self.reason = f"format {found} is a newer lakestream's"
        LakeError.__init__(self, f"{path} is of a newer lakestream (format {found}), upgrade this program")


class BadSegment(LakeError):
    """Raised when a staged segment does not decode; nothing of it was used."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        self.path = path
        self.offset = offset
        self.reason = reason
        super().__init__(f"{path} at offset {offset}: {reason}. Restore the file from the server's log or a replica")


class QuarantinedSegment(LakeError):
    """Raised for a stream whose next segment is in quarantine, because it does not decode, until a good copy is
    staged."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"{path} was set aside: {reason}. The stream's table waits until the server has staged a good copy; the "
            "server does that by itself if its log has one"
        )


class OlderLake(LakeError):
    """Raised when a table is behind the log's first entry: the lake was restored from an older copy."""

    def __init__(self, table: str, position: int, needed: int) -> None:
        if not position:
            super().__init__(
                f"{table} holds nothing of the stream: it is missing, or another stream's. The server's log begins "
                f"only after log index {needed}. Bring the table back from a copy of the lake; until then nothing "
                "leaves the log and older messages cannot be read"
            )
            return
        super().__init__(
            f"{table} holds the stream through log index {position}, but the server's log begins only after {needed}: "
            "the lake is an older copy than the one that the log was emptied into. Bring back the newer lake; until "
            "then nothing leaves the log and messages in between cannot be read"
        )


class OlderStore(LakeError):
    """Raised when a table is ahead of the log: the store directory was restored from an older copy."""

    def __init__(self, table: str, position: int, applied: int) -> None:
        super().__init__(
            f"{table} holds the stream through log index {position}, but the server's log ends at {applied}: the store "
            "directory is an older copy, or another server writes to this lake. Bring back the newer store, or give "
            "this server a lake of its own (lake.url); until then nothing of this stream is staged"
        )


class TableBusy(LakeError):
    """Raised while another process holds the table's lock; nothing is wrong."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} is under maintenance; retrying its stream in a few seconds")


class JobMissing(LakeError):
    """Raised when the Spark programs are not found."""


class JavaMissing(LakeError):
    """Raised when there is no Java of a supported version."""


class JarsMissing(LakeError):
    """Raised when the JARs that Spark needs are missing and could not be fetched."""


class HistoryUnavailable(LakeError):
    """Raised when a table could not be read, even from a new snapshot."""


class VersionGone(LakeError):
    """Raised when files of a table's version were deleted while it was being read."""

    def __init__(self, table: str, version: int | None, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"version {version} of {table} can no longer be read ({reason}). Read again; if reading takes longer than "
            "the maintainer keeps old files (--retain-hours), have it keep them longer"
        )


class UnfitSubject(LakeError):
    """Raised for a subject that cannot be a partition value: the table has to be partitioned by bucket."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"subject {subject[:64]!r}… ({len(subject)} characters) does not fit a partition's directory")

    def __reduce__(self) -> tuple[type[UnfitSubject], tuple[str]]:
        return UnfitSubject, (self.subject,)


class BadPolicy(LakeError):
    """Raised for an unknown `lakestream.*` metadata key or an invalid value; the text names the key and the valid
    values."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")


def first_line(error: BaseException, prefix: str = "") -> str:
    """Return an error in one line, without Spark's plans and stack traces: the first one that begins with `prefix`, if
    there is one."""
    text = str(error)
    if (cause := getattr(error, "java_exception", None)) is not None:  # py4j's text begins with the call
        with contextlib.suppress(Exception):  # the JVM may have been killed
            text = str(cause.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = [line for line in lines if line.startswith(prefix)]
    return (chosen or lines or [type(error).__name__])[0][:500]


def is_conflict(error: BaseException) -> bool:
    """Return True if Delta rejected a commit because of a concurrent one, so that another attempt may succeed."""
    return _CONFLICT.search(f"{type(error).__name__}: {error}") is not None


def leaves_doubt(error: BaseException) -> bool:
    """Return True if work on a table ended in a way that tells nothing of a commit, whose request may be on its way."""
    return not (isinstance(error, LakeError | OSError) or is_conflict(error))
