"""The interfaces between a store and what holds its entries and its messages.

Belongs here: `Log`, which a group writes to, `Rows`, which a store reads from, and the records that pass between them.
segment_log.py and segment_rows.py have those over segment files, memory.py those over RAM.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from lakestream.log.format.departures import Departures
from lakestream.log.format.errors import LogError
from lakestream.log.format.frame import Frame
from lakestream.log.format.record import Record
from lakestream.log.format.records import Records
from lakestream.log.format.runs import SchemaRun
from lakestream.log.format.segment import SealedSegment, Segment


class Appended(msgspec.Struct, gc=False):
    """Place of an entry in a log: its segment (in memory: the entry's body), the offset of its body, its index."""

    segment: Segment | bytes
    offset: int
    index: int


class SealState(msgspec.Struct, frozen=True):
    """State of the stream at the end of the segment that is about to be sealed; see `Footer` for the fields."""

    uid: str
    stream: str
    account: str
    config: bytes
    floor: int
    next_seq: int
    removed: list[int]
    subjects: int
    erased: array[int]
    shredded: list[int] = []
    departures: Departures | None = None
    schemas: tuple[SchemaRun, ...] | None = None


class Log(Protocol):
    """The log of a store, as a group uses it."""

    last_term: int
    """Term of the newest entry; 0 for an empty log."""
    failed: LogError | None
    """The error that froze the log, or that it is closed."""
    busy: bool
    """Used in the event loop: a write or a seal is under way."""
    on_idle: Callable[[BaseException | None], None]
    """Set by the group, called in the event loop when a seal that the store began has ended, with its error if any."""
    appended_bytes: int
    """Bytes appended by this process."""
    grown: set[Log]
    """Logs with new entries, of which this one is when it gets some: one set for all logs of a user, who empties it."""
    packing: bool
    """Set by the store: compress segments once they are sealed."""

    @property
    def durable(self) -> bool:
        """Return True if entries are written to files; else `append` does not block."""

    @property
    def last_index(self) -> int:
        """Return the index of the newest entry; 0 for an empty log."""

    @property
    def unsynced(self) -> bool:
        """Return True if entries wait for a sync: relaxed ones, or volatile ones."""

    def relax(self) -> None:
        """Let a write count before it is synced from now on; in the event loop, also for a write under way."""

    def now(self) -> int:
        """Return the wall time in ns."""

    def append(self, frames: list[Frame], *, volatile: bool = False) -> list[Appended]:
        """Take entries; return their places. Block if `durable`. Raise LogError.

        Args:
            volatile: a loss of power may take them, as long as nothing was appended durably behind them.
        """

    def seal_state(self, now_ns: int) -> SealState | None:
        """Return the stream's state if the open segment is due for sealing at `now_ns`, else None."""

    def seal(self, state: SealState) -> SealedSegment:
        """End the open segment. Block. Raise LogFrozen."""

    def sync(self) -> None:
        """Make durable what relaxed appends left. Block. Raise LogFrozen."""

    def remove_through(self, index: int) -> None:
        """Remove sealed segments whose entries are all ≤ `index`, except the newest sealed one. Raise OSError."""

    def close(self) -> None:
        """Take no more entries. Idempotent."""


class Rows(Protocol):
    """Records by sequence. Callers pass live sequences, ascending where there are many."""

    local_floor: int
    """The lowest sequence whose record is local; the lake has the lower ones."""

    def place(self, at: Appended, first_seq: int, lengths: Sequence[int], last_time: int) -> int:
        """Add contiguous messages that the log put at `at`; return their accounted size in bytes."""

    def read(self, seq: int) -> Record:
        """Return one local message. Raise CorruptLog."""

    def read_seqs(self, seqs: Sequence[int], max_bytes: int) -> list[Records]:
        """Return local messages, in pieces, while their records together stay within `max_bytes`, at least one.

        Raise CorruptLog.
        """

    def subjects(self, seqs: Sequence[int]) -> list[bytes]:
        """Return their subjects, local or not."""

    def subject(self, seq: int) -> bytes:
        """Return the subject of one message, local or not."""

    def size(self, seq: int) -> int:
        """Return the bytes that a message counts for, local or not."""

    def sizes(self, seqs: Sequence[int]) -> list[int]:
        """Return the bytes that each of these messages counts for."""

    def outlined_so(self, records: Records) -> bool:
        """Return True if outlines in memory have all of these messages, with the same subjects and sizes."""

    def total_size(self, seqs: Sequence[int]) -> int:
        """Return the bytes that messages count for together."""

    def time(self, seq: int) -> int:
        """Return the time when a message was stored, in ns, local or not."""

    def first_at(self, time_ns: int) -> int:
        """Return the lowest sequence, live or not, stored at or after a time, local or not; 0 if there is none."""

    def forget(self, seqs: Sequence[int]) -> None:
        """Note that messages were removed from the stream."""

    def close(self) -> None:
        """Release what is held for this stream. Any thread."""
