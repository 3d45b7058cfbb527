"""Old messages from staged segments, while the table is damaged.

Belongs here: the messages that staged segments still have (they stay for a while after compaction, and as long as the
table is damaged), reading them like a `TableHistory`, and joining both: staged segments give what they have, the table
gives older messages. Slower than the table alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.read.history.index import Choice
from lakestream.lake.read.history.rows import COLUMNS, records
from lakestream.lake.staging import staging
from lakestream.lake.table import segments
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.schema import message_schema
from lakestream.log.format.record import Record
from lakestream.log.format.segment import Footer

CHUNK_ROWS = 1_024
"""Rows that are converted to messages at once."""


class _Part(msgspec.Struct, frozen=True):
    """A staged segment and its footer."""

    path: str
    footer: Footer


class StagedRows:
    """The staged segments of one stream. Safe for use by several threads.

    Args:
        directory: the stream's staging directory.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._footers: dict[str, Footer] = {}
        self._decoded: tuple[str, int, Any] | None = None

    def begins(self) -> int:
        """Return the sequence from which on staged segments, and the log after them, have every message; 0: none."""
        return next((part.footer.first_seq for part in self._parts() if part.footer.count), 0)

    def read(
        self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None = None, max_bytes: int = 0
    ) -> list[Record]:
        has: Callable[[bytes], bool] = (lambda _: True) if subjects is None else Choice(subjects).has
        found: list[Record] = []
        room = max_bytes
        for record in self._from(first, last):
            if not has(record.subject):
                continue
            room -= len(record.subject) + len(record.header) + len(record.data)
            if len(found) >= limit or (max_bytes and room < 0 and found):
                break
            found.append(record)
        return found

    def read_many(self, seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> list[Record]:
        if not seqs:
            return []
        wanted = set(seqs)
        some = [record for record in self._from(seqs[0], seqs[-1]) if record.seq in wanted]
        return some if subjects is None else [record for record in some if record.subject in subjects]

    def first_at(self, time_ns: int) -> int:
        for part in self._parts():
            if part.footer.count and part.footer.last_time >= time_ns:
                for record in self._from(part.footer.first_seq, part.footer.last_seq):
                    if record.time_ns >= time_ns:
                        return record.seq
        return 0

    def _parts(self) -> list[_Part]:
        """Return the newest contiguous staged segments, in log order."""
        run: list[staging.StagedSegment] = []
        for segment in reversed(staging.segments(self._directory)):
            if run and segment.last_index + 1 < run[-1].first_index:
                break
            run.append(segment)
        with self._lock:
            known = {each.path: self._footers.get(each.path) or staging.footer(each.path) for each in reversed(run)}
            self._footers = known
        return [_Part(path, footer) for path, footer in known.items()]

    def _from(self, first: int, last: int) -> Iterator[Record]:
        """Yield the messages with first ≤ seq ≤ last that no staged segment records as removed, ascending."""
        parts = self._parts()
        floor = max((part.footer.floor for part in parts), default=0)
        dead = DeletedMessages(floor, sorted({seq for part in parts for seq in part.footer.removed if seq >= floor}))
        for part in parts:
            if not part.footer.count or part.footer.last_seq < first or part.footer.first_seq > last:
                continue
            rows = self._rows(part.path, dead)
            seqs = rows.column("seq").to_numpy()
            begin, end = int(np.searchsorted(seqs, first)), int(np.searchsorted(seqs, last, side="right"))
            for at in range(begin, end, CHUNK_ROWS):
                for record in records(rows.slice(at, min(CHUNK_ROWS, end - at))):
                    if record.seq >= first:
                        yield record
                        first = record.seq + 1  # segments of several replicas may overlap

    def _rows(self, path: str, dead: DeletedMessages) -> Any:
        """Return all messages of a segment except the dead; those of the segment read last are cached."""
        state = hash((dead.floor, tuple(dead.removed)))
        with self._lock:
            if self._decoded is not None and self._decoded[:2] == (path, state):
                return self._decoded[2]
        batches = list(segments.decode(path, 0, dead))
        rows = pa.Table.from_batches(batches, message_schema()).select(list(COLUMNS))
        with self._lock:
            self._decoded = (path, state, rows)
        return rows


class FallbackHistory:
    """The messages of one stream's table up to where staged segments begin, and those of the segments from there on.

    Args:
        table: the table's history, which ends below the segments.
        staged: the segments.
    """

    def __init__(self, table: TableHistory, staged: StagedRows) -> None:
        self._table, self._staged = table, staged

    def read(
        self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None = None, max_bytes: int = 0
    ) -> list[Record]:
        below = self._table.below
        found: list[Record] = []
        if first < below:
            found = list(self._table.read(first, min(last, below - 1), limit, subjects, max_bytes))
            if len(found) >= limit or (found and max_bytes):
                return found
        if last >= below:
            found += self._staged.read(max(first, below), last, limit - len(found), subjects, max_bytes)
        return found

    def read_many(self, seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> list[Record]:
        old = [seq for seq in seqs if seq < self._table.below]
        found = list(self._table.read_many(old, subjects)) if old else []
        return found + self._staged.read_many(seqs[len(old) :], subjects)

    def first_at(self, time_ns: int) -> int:
        return self._table.first_at(time_ns) or self._staged.first_at(time_ns)
