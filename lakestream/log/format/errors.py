"""Errors of the log.

Belongs here: every error that log/ raises on purpose. Each message names the file (and the byte offset where there is
one) and says what to do next.
"""

from __future__ import annotations

import errno

from lakestream.protocol.api.errors import PublicError


class LogError(PublicError):
    """The root of all errors of log/. The message names files and is for the server's log.

    Args:
        message: the error, and what to do about it.
        for_clients: the same without the names of the server's files.
    """

    def __init__(self, message: str, for_clients: str = "") -> None:
        super().__init__(message, for_clients or "the stream's log cannot be used; the server's log says why")


class CorruptRecord(LogError):
    """Raised for bytes that do not hold the expected record. `offset` counts from the start of the buffer."""

    def __init__(self, offset: int, what: str) -> None:
        message = f"record at offset {offset}: {what}"
        super().__init__(message, message)
        self.offset = offset
        self.what = what


class CorruptLog(LogError):
    """Raised when a stream's file is damaged in a way no crash causes. Nothing is skipped: the stream stays closed."""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(
            f"{file}: damaged at offset {offset}: {what}; restore this file from a backup or a replica "
            "(the stream stays closed so that nothing is lost silently)",
            f"a file of the stream is damaged at offset {offset}: {what}; the server's log names it",
        )
        self.file = file
        self.offset = offset
        self.what = what


class FileNotReadable(LogError):
    """Raised when a file of a stream cannot be read at the moment: nothing is known about its content."""

    def __init__(self, file: str, cause: OSError) -> None:
        why = cause.strerror or str(cause)
        super().__init__(
            f"{file}: cannot be read: {why}; repair the device, then restart the server",
            f"a file of the stream cannot be read: {why}; the server's log names it",
        )
        self.file = file
        self.cause = cause


class LostEntries(CorruptLog):
    """Raised when synced entries are missing or damaged at the end of a log, and no other replica has them."""

    def __init__(self, file: str, offset: int, what: str, known: str) -> None:
        """Describe entries that are lost although the file `known` says that they were synced."""
        super().__init__(file, offset, what)
        self.args = (
            f"{file}: damaged at offset {offset}: {what}; restore this file from a backup, or give these entries up: "
            f"remove {known} and start again (until then the stream stays closed, so that no sequence is given twice)",
        )


class Compacted(LogError):
    """Raised when a requested entry is no longer in the log: its state is in a snapshot."""


class LogFrozen(LogError):
    """Raised after a write or a sync failed: the disk content is unknown, so the log takes no more entries."""

    def __init__(self, file: str, cause: BaseException) -> None:
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else "a write failed"
        super().__init__(
            f"{file}: {cause}; the log takes no more entries: make room or repair the device, then restart the server",
            f"{why}; the stream takes no more messages until its server is restarted",
        )
        self.file = file
        self.cause = cause

    @property
    def out_of_space(self) -> bool:
        """Return True if the cause was a full disk or quota."""
        return isinstance(self.cause, OSError) and self.cause.errno in (errno.ENOSPC, errno.EDQUOT)


class StoreVersionError(LogError):
    """Raised when a newer release wrote the store, or its VERSION file is invalid."""


class ForeignStore(LogError):
    """Raised when nats-server wrote the streams of a store."""


class StoreLocked(LogError):
    """Raised when another process has the store open."""


class LogClosed(LogError):
    """Raised when the log was closed."""
