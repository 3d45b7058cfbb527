"""Where the messages of a stream are: the difference between a stream on disk and one in memory.

Belongs here: `Rows`, what the store asks of whatever holds its records. segment_rows.py has the one over segment
files, memory.py the one over RAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lakestream.log.format.record import Record
from lakestream.log.store.segment_log import Appended


class Rows(Protocol):
    """Records by sequence. The sequences asked for are live ones; they ascend where there are many."""

    local_floor: int
    """The lowest sequence whose record is still here; the lake has the lower ones."""

    def place(self, at: Appended, first_seq: int, lengths: Sequence[int], last_time: int) -> int:
        """Take in contiguous messages that the log put at `at`; returns the bytes that they count for."""

    def read(self, seq: int) -> Record:
        """One local message. Raises CorruptLog."""

    def read_seqs(self, seqs: Sequence[int], max_bytes: int) -> list[Record]:
        """Local messages while their records together stay within `max_bytes`, at least one. Raises CorruptLog."""

    def subjects(self, seqs: Sequence[int]) -> list[bytes]:
        """Their subjects, local or not."""

    def subject(self, seq: int) -> bytes:
        """The subject of one message, local or not."""

    def size(self, seq: int) -> int:
        """The bytes that a message counts for, local or not."""

    def sizes(self, seqs: Sequence[int]) -> list[int]:
        """The bytes that each of these messages counts for."""

    def total_size(self, seqs: Sequence[int]) -> int:
        """The bytes that messages count for together."""

    def time(self, seq: int) -> int:
        """When a message was stored, local or not; ns."""

    def first_at(self, time_ns: int) -> int:
        """The lowest sequence, live or not, stored at or after a time, local or not; 0 when there is none."""

    def forget(self, seqs: Sequence[int]) -> None:
        """These messages were removed from the stream."""
