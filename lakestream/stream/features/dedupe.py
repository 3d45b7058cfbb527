"""The duplicate window: which message ids were stored recently.

Belongs here: the bounded memory of `Nats-Msg-Id` values and nothing about where they come from
(docs/internals/streams.md#publish-headers). Ids are kept in chunks in the order in which they came, so that forgetting
and saving many of them never holds the event loop for long.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from lakestream.protocol.api.errors import api_error

MAX_IDS = 4_000_000
"""Ids of one stream that are remembered at once, some 800 MB. Beyond them a message with an id is refused with 10167
until older ones leave the window: forgetting them earlier could let a duplicate in."""

CHUNK_IDS = 8192
FORGOTTEN_AT_ONCE = 2
"""Chunks that one call forgets at most; what is left goes with the next calls."""

TRIM_IDS = 1024
"""Ids beyond these are looked through for old ones also where nobody publishes (on followers)."""


class _Chunk:
    """Some ids in the order in which they came. Times and sequences ascend."""

    __slots__ = ("ids", "packed", "seqs", "times")

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.times = array("q")
        self.seqs = array("Q")
        self.packed = b""  # what `pack` gave when the chunk was full

    def pack(self, start: int, stop: int) -> bytes:
        """The entries from `start` to before `stop`, for `unpack`."""
        if self.packed and (start, stop) == (0, CHUNK_IDS):
            return self.packed
        part = slice(start, stop)
        packed = msgspec.msgpack.encode((self.times[part].tobytes(), self.seqs[part].tobytes(), self.ids[part]))
        if (start, stop) == (0, CHUNK_IDS):
            self.packed = packed
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> _Chunk:
        """What `pack` gave."""
        made = cls()
        times, seqs, made.ids = msgspec.msgpack.decode(data, type=tuple[bytes, bytes, list[bytes]])
        made.times.frombytes(times)
        made.seqs.frombytes(seqs)
        return made

    def pop(self) -> None:
        """Drop the newest entry."""
        self.packed = b""
        del self.ids[-1], self.times[-1], self.seqs[-1]


class Dedupe:
    """Message ids seen within `window_ns`, oldest forgotten first.

    Args:
        window_ns: how long an id is remembered; 0 remembers nothing.
    """

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self.last_id = b""
        self.last_seq = 0
        """The message that carried `last_id`."""
        self._seqs: dict[bytes, int] = {}
        self._chunks: deque[_Chunk] = deque()
        """Oldest first, none empty. An id may be here twice where nobody asks (on followers): once outgrown, and once
        with the message that carries it now."""
        self._head = 0  # entries of the first chunk that are forgotten

    def __len__(self) -> int:
        return len(self._seqs)

    def seen(self, msg_id: bytes, now_ns: int) -> int:
        """The sequence stored under `msg_id` within the window, or 0.

        Raises ApiError (10167) when it is not known and no more can be remembered.
        """
        self._forget(now_ns)
        seq = self._seqs.get(msg_id, 0)
        if seq and not self._outdated(seq, now_ns):
            return seq
        if len(self._seqs) >= MAX_IDS and self.window_ns > 0:
            raise api_error(10167)
        return 0

    def add(self, msg_id: bytes, seq: int, time_ns: int) -> None:
        """Remember an id of a message stored at `time_ns` by the steady clock; see `Ages.stored`."""
        self.last_id, self.last_seq = msg_id, seq
        if self.window_ns > 0:
            self._seqs[msg_id] = seq
            if not self._chunks or len(self._chunks[-1].ids) >= CHUNK_IDS:
                self._chunks.append(_Chunk())
            chunk = self._chunks[-1]
            chunk.ids.append(msg_id)
            if chunk.times:
                time_ns = max(time_ns, chunk.times[-1])  # another leader's clock may have been ahead
            chunk.times.append(time_ns)
            chunk.seqs.append(seq)

    def moved(self, before: int, last_seq: int) -> None:
        """A purge gave the sequences `before` … `last_seq` to no message: the last message is still the same."""
        if self.last_seq == before:
            self.last_seq = last_seq

    def forget_after(self, last_seq: int) -> None:
        """Messages above `last_seq` do not count: nobody knows whether they are stored."""
        self.last_id, self.last_seq = self.last_through(last_seq)
        while self._chunks and self._chunks[-1].seqs[-1] > last_seq:
            chunk = self._chunks[-1]
            if len(chunk.ids) > (self._head if chunk is self._chunks[0] else 0):
                self._drop(chunk, len(chunk.ids) - 1, len(chunk.ids))
            chunk.pop()
            if not chunk.ids:
                self._chunks.pop()
        if not self._chunks or self._head >= len(self._chunks[0].ids):
            self._head = 0
            if self._chunks:
                self._chunks.popleft()

    def trim(self, time_ns: int) -> None:
        """Forget what was outside of the window at `time_ns`, for those who never ask."""
        if len(self._seqs) > TRIM_IDS:
            self._forget(time_ns)

    def _forget(self, now_ns: int) -> None:
        horizon, chunks = now_ns - self.window_ns, self._chunks
        for _ in range(FORGOTTEN_AT_ONCE):
            if not chunks or chunks[0].times[self._head] > horizon:
                return
            chunk = chunks[0]
            stop = bisect_right(chunk.times, horizon, self._head)
            self._drop(chunk, self._head, stop)
            self._head = stop
            if stop == len(chunk.ids):
                chunks.popleft()
                self._head = 0

    def _drop(self, chunk: _Chunk, start: int, stop: int) -> None:
        seqs = self._seqs
        for msg_id, seq in zip(chunk.ids[start:stop], chunk.seqs[start:stop], strict=True):
            # Not when a later message has the id: it is in the window for longer.
            if seqs.get(msg_id) == seq:
                del seqs[msg_id]

    def _outdated(self, seq: int, now_ns: int) -> bool:
        """Whether an id that is still known has left the window: there was too much to forget at once."""
        horizon = now_ns - self.window_ns
        if self._chunks[0].times[self._head] > horizon:
            return False
        chunk = next(chunk for chunk in self._chunks if chunk.seqs[-1] >= seq)
        return chunk.times[bisect_right(chunk.seqs, seq) - 1] <= horizon

    def dump(self, now_ns: int, through: int) -> list[bytes]:
        """What is remembered of messages ≤ `through`, for the checkpoint.

        An id of a message in flight must not get there: were that message lost, its publisher's next try would be
        taken for a duplicate.
        """
        self._forget(now_ns)
        packed = []
        for number, chunk in enumerate(self._chunks):
            start, stop = 0 if number else self._head, bisect_right(chunk.seqs, through)
            if start < stop:
                packed.append(chunk.pack(start, stop))
        return packed

    def last_through(self, through: int) -> tuple[bytes, int]:
        """The newest id of a message ≤ `through`, and its sequence; `(b"", 0)` when none is remembered."""
        if self.last_seq <= through:
            return self.last_id, self.last_seq
        for chunk in reversed(self._chunks):
            at = bisect_right(chunk.seqs, through)
            if at > (self._head if chunk is self._chunks[0] else 0):
                return chunk.ids[at - 1], chunk.seqs[at - 1]
        return b"", 0

    def load(
        self,
        packed: list[bytes],
        last_id: bytes,
        last_seq: int,
        older: Iterable[tuple[int, bytes, int]] = (),
        behind_ns: int = 0,
    ) -> None:
        """Take back what `dump` gave, or the (time, id, seq) that releases before it kept. `behind_ns`: see
        `Ages.load`."""
        self._chunks = deque(map(_Chunk.unpack, packed))
        if behind_ns:
            for chunk in self._chunks:
                chunk.times = array("q", (each - behind_ns for each in chunk.times))
        self._head = 0
        self._seqs = {msg_id: seq for msg_id, seq, _ in self.entries()}
        for time_ns, msg_id, seq in older:
            self.add(msg_id, seq, time_ns)
        self.last_id, self.last_seq = last_id, last_seq

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """(id, sequence, time in ns) of everything remembered, oldest first."""
        for number, chunk in enumerate(self._chunks):
            first = 0 if number else self._head
            yield from zip(chunk.ids[first:], chunk.seqs[first:], chunk.times[first:], strict=True)
