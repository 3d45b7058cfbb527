"""The duplicate window: which message ids were stored recently.

Belongs here: the bounded memory of `Nats-Msg-Id` values and nothing about where they come from (streams.md §6).
"""

from __future__ import annotations

from collections import deque

TRIM_IDS = 1024
"""Ids beyond these are looked through for old ones also where nobody publishes (on followers)."""


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
        self._order: deque[tuple[int, bytes, int]] = deque()
        """(time, id, seq), oldest first. An id may be here twice where nobody asks (on followers): once outgrown, and
        once with the message that carries it now."""

    def __len__(self) -> int:
        return len(self._seqs)

    def seen(self, msg_id: bytes, now_ns: int) -> int:
        """The sequence stored under `msg_id` within the window, or 0."""
        self._forget(now_ns)
        return self._seqs.get(msg_id, 0)

    def add(self, msg_id: bytes, seq: int, time_ns: int) -> None:
        """Remember an id. Times must not go backwards (invariant 5 of the streams)."""
        self.last_id, self.last_seq = msg_id, seq
        if self.window_ns > 0:
            self._seqs[msg_id] = seq
            self._order.append((time_ns, msg_id, seq))

    def forget_after(self, last_seq: int) -> None:
        """Messages above `last_seq` do not count: nobody knows whether they are stored."""
        self.last_id, self.last_seq = self.last_through(last_seq)
        while self._order and self._order[-1][2] > last_seq:
            self._drop(*self._order.pop())

    def trim(self, time_ns: int) -> None:
        """Forget what was outside of the window at `time_ns`, for those who never ask."""
        if len(self._order) > TRIM_IDS:
            self._forget(time_ns)

    def _forget(self, now_ns: int) -> None:
        horizon = now_ns - self.window_ns
        order = self._order
        while order and order[0][0] <= horizon:
            self._drop(*order.popleft())

    def _drop(self, _: int, msg_id: bytes, seq: int) -> None:
        # Not when a later message has the id: it is in the window for longer.
        if self._seqs.get(msg_id) == seq:
            del self._seqs[msg_id]

    def dump(self, now_ns: int, through: int) -> list[tuple[int, bytes, int]]:
        """(time, id, seq) of what is remembered of messages ≤ `through`, oldest first: for the checkpoint.

        An id of a message in flight must not get there: were that message lost, its publisher's next try would be
        taken for a duplicate.
        """
        self._forget(now_ns)
        return [entry for entry in self._order if entry[2] <= through and self._seqs.get(entry[1]) == entry[2]]

    def last_through(self, through: int) -> tuple[bytes, int]:
        """The newest id of a message ≤ `through`, and its sequence; `(b"", 0)` when none is remembered."""
        if self.last_seq <= through:
            return self.last_id, self.last_seq
        return next(((msg_id, seq) for _, msg_id, seq in reversed(self._order) if seq <= through), (b"", 0))

    def load(self, entries: list[tuple[int, bytes, int]], last_id: bytes, last_seq: int) -> None:
        """Take back what `dump` gave."""
        self._seqs = {msg_id: seq for _, msg_id, seq in entries}
        self._order = deque(entries)
        self.last_id, self.last_seq = last_id, last_seq
