"""Findings of a verification.

Belongs here: the record of a finding, the kinds and ways of repair that it may name, and the type of the function that
a verification calls on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from lakestream.log.format.errors import CorruptLog, LogError

Step = Callable[[int], None]
"""Called between pieces of work, with the number of bytes of logs that were verified since the last call. It may wait,
or raise an exception to end the verification."""


class FindingKind(StrEnum):
    """Kind of a finding: the part of a store that is wrong."""

    UNKNOWN = "unknown"
    """A file that is no part of a store."""
    HEADER = "header"
    """The header of a segment."""
    FRAME = "frame"
    """A frame: its CRC, its index, its term, its write, or the records in it."""
    RECORD = "record"
    """A record in a frame that is otherwise whole."""
    GAP = "gap"
    """Entries that are in no file."""
    FOOTER = "footer"
    """The footer, the tables or the metadata of a sealed segment."""
    TORN = "torn"
    """An end that was never acknowledged, or other remains of a killed process."""
    OUTLINE = "outline"
    CHECKPOINT = "checkpoint"
    INDEX = "index"
    """The indexes of a checkpoint against the records."""
    REPLAY = "replay"
    """The state of a checkpoint against a replay of the log."""
    MARK = "mark"
    """The synced mark."""
    RAFT = "raft"
    """The hard state of a member."""
    IDENTITY = "identity"
    """The stream that a directory says it is."""
    BASE = "base"
    META = "meta"
    """The assignments of a cluster."""
    STAGED = "staged"
    """A staged segment against the log."""
    TABLE = "table"
    """The Delta table against log and staged segments."""
    REPLICA = "replica"
    """A replica against the others."""


class Repair(StrEnum):
    """Way in which a finding is repaired."""

    NONE = "none"
    """By nothing that lakestream has: from a backup."""
    START = "start"
    """By the next start of the server."""
    REPAIR = "repair"
    """By `lakestream repair`."""
    REPLICAS = "replicas"
    """By the other replicas, once the node has started."""
    COMPACTOR = "compactor"
    """By server and compactor, once both run."""
    REFILL = "refill"
    """By `lakestream repair` of the running cluster: the other replicas send this one everything."""
    CHECKPOINT = "checkpoint"
    """By the running server, with its next checkpoint."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or that a start will change (`harmless`).

    `stream` is "" for a file of the whole store; `offset` is in bytes, in a compressed segment that of the plain file.
    `node` is the server that has the file, "" if only one was verified; `sequence` is the first message that it
    concerns, 0 if that is not known.
    """

    kind: FindingKind
    what: str
    file: str
    stream: str = ""
    account: str = ""
    offset: int = 0
    sequence: int = 0
    node: str = ""
    harmless: bool = False
    repair: Repair = Repair.NONE


def of_error(kind: FindingKind, path: str, error: Exception, repair: Repair = Repair.NONE) -> Finding:
    """Return the finding of an error that reading `path` has raised."""
    if isinstance(error, CorruptLog):
        return Finding(kind=kind, what=error.what, file=error.file, offset=error.offset, repair=repair)
    if isinstance(error, OSError):
        return Finding(kind=kind, what=error.strerror or str(error), file=error.filename or path, repair=repair)
    text = str(error).removeprefix(f"{path}: ") if isinstance(error, LogError) else f"{type(error).__name__}: {error}"
    return Finding(kind=kind, what=text, file=path, repair=repair)
