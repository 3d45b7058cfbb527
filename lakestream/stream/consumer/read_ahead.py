"""Read-ahead: runs of messages from the lake, read before a consumer asks for them.

Belongs here: which run is read next and how large, what is kept until it is delivered, and how much that may be. The
consumer's position, and which messages of a run match, are feed.py's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from lakestream.log.format.record import Record
from lakestream.log.format.records import chosen, content_size, seqs_of
from lakestream.log.index.sequences import SequenceSet
from lakestream.ports import Clock
from lakestream.stream.consumer.selection import Matches
from lakestream.stream.core.reader import HistoryUnavailableError, all_live

BLOCKS = 2
"""Runs that are kept: one is delivered while the next is read."""

FIRST_MSGS = 512
"""Messages that the first read asks for; each further one asks for twice as many, so that a client that wants ten
messages does not cause thousands to be read."""

MOST_MSGS = 2048
MOST_BYTES = 8 << 20
"""One read from the lake asks for at most this much (2,048 messages, 8 MiB): comparing them with what was stored takes
half a millisecond of the event loop."""

READ_AHEAD_BYTES = 64 << 20
"""While the consumers of a stream together keep more than this (64 MiB), each reads one small run at a time."""

RETRY_NS = 1_000_000_000
"""Pause after a failed read from the lake (1 s)."""


class Room:
    """Number of bytes that the consumers of one stream have read ahead."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0

    @property
    def scarce(self) -> bool:
        """Return True if consumers should read no more than they need now."""
        return self.used >= READ_AHEAD_BYTES


class ReadRun(NamedTuple):
    """Result of one read: the matching messages of a run without gaps."""

    records: Sequence[Record]
    resume: int
    """All matching messages below this sequence are in `records`."""
    following: int
    """First sequence of the next run if the lake has it too, else 0."""


class _Block:
    """A run that is being delivered; `at`: number of its records that were taken."""

    __slots__ = ("at", "records", "resume", "size")

    def __init__(self, run: ReadRun) -> None:
        self.records, self.resume = run.records, run.resume
        self.at = 0
        self.size = content_size(run.records)


class ReadAhead:
    """The next messages of one consumer, as far as the lake has them.

    Args:
        read: reads a run: (sequence to begin at, messages, bytes).
        passed: called with a sequence below which nothing more matches.
        ready: called when a read has ended.
    """

    def __init__(
        self,
        clock: Clock,
        room: Room,
        read: Callable[[int, int, int], Awaitable[ReadRun]],
        passed: Callable[[int], None],
        ready: Callable[[], None],
    ) -> None:
        self._clock, self._room = clock, room
        self._read, self._passed, self._ready = read, passed, ready
        self._blocks: deque[_Block] = deque()
        self._generation = 0
        self._reading = False
        self._following = 0
        self._ask = FIRST_MSGS

    @property
    def waiting(self) -> bool:
        """Return True if there is nothing yet and a read is under way."""
        return self._reading and not self._blocks

    def clear(self) -> None:
        """Drop everything: the consumer's position has jumped."""
        self._generation += 1
        for block in self._blocks:
            self._room.used -= block.size
        self._blocks.clear()
        self._following, self._ask = 0, FIRST_MSGS

    def peek(self, limit: int, floor: int, live: SequenceSet) -> Matches | None:
        """Return the next messages that exist from `floor` on, at most `limit`; None if none were read."""
        while self._blocks:
            block = self._blocks[0]
            while block.at < len(block.records):
                some = block.records[block.at : block.at + limit]
                if seqs_of(some)[0] < floor or not all_live(some, live):
                    there = [at for at, seq in enumerate(seqs_of(some)) if seq >= floor and seq in live]
                    if len(there) < len(some):
                        rest = seqs_of(block.records)
                        left = [at for at in range(block.at, len(rest)) if rest[at] >= floor and rest[at] in live]
                        block.records, block.at = chosen(block.records, left), 0
                        some = block.records[:limit]
                if some:
                    end, seqs = block.at + len(some), seqs_of(block.records)
                    return Matches(some, seqs[end] if end < len(seqs) else block.resume, 0)
            self._drop()
        return None

    def advance(self, taken: int) -> None:
        """Take the first `taken` messages that `peek` returned."""
        if self._blocks:
            block = self._blocks[0]
            block.at += taken
            if block.at >= len(block.records):
                self._drop()

    def _drop(self) -> None:
        block = self._blocks.popleft()
        self._room.used -= block.size
        if block.resume:
            self._passed(block.resume)
        self._go_on()

    # ------------------------------------------------------------------ reading
    def fetch(self, seq: int) -> None:
        """Read the run that begins at `seq`, unless a read is under way."""
        if self._reading:
            return
        self._reading = True
        limit, size = self._ask, MOST_BYTES
        if self._room.scarce:
            limit, size = FIRST_MSGS, MOST_BYTES // 8
        else:
            self._ask = min(self._ask * 2, MOST_MSGS)
        self._clock.spawn(self._run(seq, limit, size, self._generation))

    def _go_on(self) -> None:
        """Read the next run while the present one is delivered."""
        if self._following and len(self._blocks) < BLOCKS and not self._room.scarce:
            self.fetch(self._following)

    async def _run(self, seq: int, limit: int, size: int, generation: int) -> None:
        try:
            run = await self._read(seq, limit, size)
        except Exception as error:
            self._clock.call_later(RETRY_NS, self._again)
            if isinstance(error, HistoryUnavailableError) and error.retry_s:
                return  # the lake is away, which is logged once
            raise
        self._reading = False
        if generation == self._generation:
            self._take(run)
        self._ready()

    def _again(self) -> None:
        self._reading = False
        self._ready()

    def _take(self, run: ReadRun) -> None:
        self._following = run.following
        if run.records:
            block = _Block(run)
            self._blocks.append(block)
            self._room.used += block.size
        elif not self._blocks:
            if run.resume:
                self._passed(run.resume)
        else:
            self._blocks[-1].resume = max(self._blocks[-1].resume, run.resume)
        self._go_on()
