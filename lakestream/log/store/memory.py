"""A store in memory.

Belongs here: log and rows of a stream with `storage: memory` that only this node holds. Entries are committed at once;
removed messages release their memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from lakestream.log.format.errors import LogClosed, LogError
from lakestream.log.format.frame import Frame
from lakestream.log.format.record import FIXED, FLAG_HEADER, FLAGS_AT, TIME_AT, Record, decode_record, subjects_at
from lakestream.log.format.records import Records, back_to_back
from lakestream.log.format.segment import SealedSegment
from lakestream.log.store.log import Appended, Log, SealState
from lakestream.log.store.store import Store

LESS = FIXED - 16
"""nats-server counts a message in memory as subject + header + payload + 16 (docs/internals/streams.md#limits)."""
LESS_HEADER = 4

SPAN = 1 << 20
"""Bytes of records (1 MiB) that are copied together for a reader of many, unless a single one is longer."""


RECORD_BYTES = 160
"""Bytes of memory of a message beside its subject, header and payload."""


class MemoryLog:
    """A log that keeps nothing: its entries are durable as soon as they are appended."""

    durable = False

    def __init__(self) -> None:
        self.last_index = 0
        self.last_term = 0
        self.failed: LogError | None = None
        self.busy = False
        self.on_idle: Callable[[BaseException | None], None] = lambda error: None
        self.appended_bytes = 0
        self.grown: set[Log] = set()
        self.packing = False
        """Without effect."""

    def relax(self) -> None:
        """Do nothing: no entry waits for the disk."""

    @property
    def unsynced(self) -> bool:
        """Return False: no entry waits for the disk."""
        return False

    def now(self) -> int:
        """Return 0: no segment grows old."""
        return 0

    def seal_state(self, now_ns: int) -> SealState | None:
        """Return None: nothing is ever sealed."""
        return None

    def append(self, frames: list[Frame], *, volatile: bool = False) -> list[Appended]:
        """Take entries; return their places. Raise LogClosed after `close`."""
        if self.failed is not None:
            raise self.failed
        placed = [Appended(frame.body, 0, frame.index) for frame in frames]
        self.last_index, self.last_term = frames[-1].index, frames[-1].term
        return placed

    def seal(self, state: SealState) -> SealedSegment:
        """Raise AssertionError. Invariant: never called, because `seal_state` never asks for it."""
        raise AssertionError("a log in memory has no segments to seal")

    def sync(self) -> None:
        """Do nothing: no entry waits for the disk."""

    def remove_through(self, index: int) -> None:
        """Do nothing: no entry is kept."""

    def close(self) -> None:
        """Take no more entries."""
        self.failed = self.failed or LogClosed("the stream in memory is closed")


class MemoryRows:
    """`Rows` over RAM: the encoded records of live messages."""

    local_floor = 0

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}
        self._order: list[int] = []  # the sequences of `_records` and some that are gone, ascending

    def place(self, at: Appended, first_seq: int, lengths: Sequence[int], last_time: int) -> int:
        body, start, total = at.segment, at.offset, 0
        assert isinstance(body, bytes), "a log in memory has no segments"
        records = self._records
        for seq, length in enumerate(lengths, first_seq):
            record = body[start : start + length]
            records[seq] = record
            total += _accounted(record)
            start += length
        self._order.extend(range(first_seq, first_seq + len(lengths)))
        return total

    def read(self, seq: int) -> Record:
        return decode_record(self._records[seq], verify=False)

    def read_seqs(self, seqs: Sequence[int], max_bytes: int) -> list[Records]:
        pieces: list[Records] = []
        start = size = total = 0
        found: list[bytes] = []
        for at, seq in enumerate(seqs):
            record = self._records[seq]
            total += len(record)
            if total > max_bytes and at:
                break
            if size >= SPAN:
                pieces.append(back_to_back(found, seqs[start:at]))
                start, size, found = at, 0, []
            found.append(record)
            size += len(record)
        pieces.append(back_to_back(found, seqs[start : start + len(found)]))
        return pieces

    def subjects(self, seqs: Sequence[int]) -> list[bytes]:
        return [subjects_at(self._records[seq], (0,))[0] for seq in seqs]

    def subject(self, seq: int) -> bytes:
        return subjects_at(self._records[seq], (0,))[0]

    def size(self, seq: int) -> int:
        return _accounted(self._records[seq])

    def sizes(self, seqs: Sequence[int]) -> list[int]:
        return [_accounted(self._records[seq]) for seq in seqs]

    def outlined_so(self, records: Records) -> bool:
        return False

    def total_size(self, seqs: Sequence[int]) -> int:
        return sum(_accounted(self._records[seq]) for seq in seqs)

    def time(self, seq: int) -> int:
        return int.from_bytes(self._records[seq][TIME_AT : TIME_AT + 8], "little", signed=True)

    def first_at(self, time_ns: int) -> int:
        self._tidy()
        at = bisect_left(self._order, time_ns, key=self.time)
        return self._order[at] if at < len(self._order) else 0

    def forget(self, seqs: Sequence[int]) -> None:
        if len(seqs) == len(self._records):
            self.close()
        for seq in seqs if self._records else ():
            del self._records[seq]
        if len(self._order) > 2 * len(self._records) + 1024:
            self._tidy()

    def close(self) -> None:
        self._records.clear()
        self._order.clear()

    def _tidy(self) -> None:
        if len(self._order) != len(self._records):
            self._order = [seq for seq in self._order if seq in self._records]


class MemoryStore(Store):
    """A store without files: entries are committed at once, and everything is gone when the process ends."""

    def __init__(self, uid: str = "") -> None:
        super().__init__(MemoryLog(), MemoryRows(), uid)

    def memory(self) -> dict[str, int]:
        return super().memory() | {"messages": self.bytes + RECORD_BYTES * self.msgs}


def _accounted(record: bytes) -> int:
    less = LESS + LESS_HEADER if record[FLAGS_AT] & FLAG_HEADER else LESS
    return len(record) - less
