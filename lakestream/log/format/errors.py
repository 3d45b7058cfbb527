"""What can go wrong with a log, as types.

Belongs here: every error that log/ raises on purpose. Each message names the file (and the byte offset where there is
one) and says what to do next.
"""

from __future__ import annotations

import errno


class LogError(Exception):
    """The root of all errors of log/. The message names files and is for the server's log.

    Args:
        message: the error, and what to do about it.
        for_clients: the same without the names of the server's files.
    """

    def __init__(self, message: str, for_clients: str = "") -> None:
        super().__init__(message)
        self.for_clients = for_clients or "the stream's log cannot be used; the server's log says why"


class CorruptRecord(LogError):
    """Bytes that do not hold the record they should. `offset` counts from the start of the buffer."""

    def __init__(self, offset: int, what: str) -> None:
        message = f"record at offset {offset}: {what}"
        super().__init__(message, message)
        self.offset = offset
        self.what = what


class CorruptLog(LogError):
    """A file of a stream is damaged where no crash can explain it. Nothing is skipped: the stream stays closed."""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(
            f"{file}: damaged at offset {offset}: {what}; restore this file from a backup or a replica "
            "(the stream stays closed so that nothing is lost silently)",
            f"a file of the stream is damaged at offset {offset}: {what}; the server's log names it",
        )
        self.file = file
        self.offset = offset
        self.what = what


class LostEntries(CorruptLog):
    """Entries that were synced once are missing or damaged at the end of a log, and no other replica has them."""

    def __init__(self, file: str, offset: int, what: str, known: str) -> None:
        """`known`: the file that says that they were synced."""
        super().__init__(file, offset, what)
        self.args = (
            f"{file}: damaged at offset {offset}: {what}; restore this file from a backup, or give these entries up: "
            f"remove {known} and start again (until then the stream stays closed, so that no sequence is given twice)",
        )


class Compacted(LogError):
    """An entry that was asked for is no longer in the log: its state is in a snapshot."""


class LogFrozen(LogError):
    """A write or a sync failed: what is on the disk is unknown, so this log takes no more entries in this process."""

    def __init__(self, file: str, cause: BaseException) -> None:
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else "a write failed"
        super().__init__(
            f"{file}: {cause}; the log takes no more entries: make room or repair the device, then restart the server",
            f"{why}; the stream takes no more messages until its server was restarted",
        )
        self.file = file
        self.cause = cause

    @property
    def out_of_space(self) -> bool:
        """Whether it was for want of room."""
        return isinstance(self.cause, OSError) and self.cause.errno in (errno.ENOSPC, errno.EDQUOT)


class StoreVersionError(LogError):
    """The store was written by a newer lakestream, or its VERSION file is not one."""


class StoreLocked(LogError):
    """Another process has the store open."""


class LogClosed(LogError):
    """The log was closed: nothing can be written through this object any more."""
