"""Ages of the messages of a stream.

Belongs here: the ages of messages, also when the system clock was stepped. Times in a stream never go
backwards (invariant 5): while the clock is behind the newest message, messages get that one's time; after a step
forward they get times that are ahead. Ages are differences on a clock that is never stepped (`Clock.steady`): for runs
of sequences this keeps by how much their times differ from it. Local to each node, for deciding what is due; nothing in
the log depends on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from lakestream.log.store.store import Store
from lakestream.ports import Clock
from lakestream.protocol.decoding import PackDecoder
from lakestream.stream.core.feature import Feature, Stored

RESOLUTION_NS = 1_000_000_000
"""A difference that changes by less (1 s) begins no new run: what is due may be late, or early, by as much."""

MAX_RUNS = 1024
"""Beyond these, neighbours become one run, with the later of their ages: what is due may be late by what they span."""

Run = tuple[int, int, int]
"""(first sequence, when that was stored by the steady clock, by how much times are ahead of it), ns."""

_ALWAYS: Run = (0, -(1 << 63), 0)
_END = 1 << 64


class _State(msgspec.Struct):
    ages: list[Run] = []
    steady_ns: int = 0
    """Reading of the steady clock in ns; 0 in a checkpoint of an earlier release, which has wall-clock times."""


_STATE = PackDecoder(_State)


class Ages(Feature):
    """The ages of one stream's messages, for the features that let messages expire. Times are ns since the epoch."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock, self._store = clock, store
        self._firsts, self._begins, self._ahead = [0], [_ALWAYS[1]], [0]
        self.behind_ns = 0
        """Duration by which the steady clock of this start is behind that of the checkpoint; what was due keeps the
        time that was left."""

    # ------------------------------------------------------------------ stored messages
    def opened(self, first_seq: int, time_ns: int, copied: bool = False) -> None:
        """Note the time of the message at `first_seq` and those that follow. One that is not this node's own is trusted
        unless it is in the future."""
        ahead = time_ns - self._clock.steady()
        if copied:
            ahead = max(0, ahead)
        if abs(ahead - self._ahead[-1]) > RESOLUTION_NS:
            self._begin(first_seq, time_ns, ahead)

    def received(self, stored: Stored) -> None:
        self.opened(stored.first_seq, stored.last_time, copied=True)

    def rewound(self, last_seq: int) -> None:
        while self._firsts[-1] > last_seq + 1:
            del self._firsts[-1], self._begins[-1], self._ahead[-1]

    def _begin(self, seq: int, time_ns: int, ahead: int) -> None:
        self.rewound(seq - 1)
        if self._firsts[-1] == seq and len(self._firsts) > 1:
            del self._firsts[-1], self._begins[-1], self._ahead[-1]  # no message was stored in it
        self._firsts.append(seq)
        self._begins.append(max(time_ns - ahead, self._begins[-1]))
        self._ahead.append(ahead)
        if len(self._firsts) > MAX_RUNS:
            self._join()

    def _join(self) -> None:
        """Make one of two runs; not of the oldest, which says what was before all others, nor of the newest."""
        runs = self.runs()
        joined = [runs[0]]
        for at in range(1, len(runs) - 1, 2):
            first, begin, ahead = runs[at]
            joined.append((first, begin, min(ahead, runs[at + 1][2]) if at + 1 < len(runs) - 1 else ahead))
        self._set([*joined, runs[-1]])

    # ------------------------------------------------------------------ queries
    def stored_ns(self, seq: int, time_ns: int) -> int:
        """Return when the message at `seq`, which has this time, was stored by the steady clock."""
        if seq >= self._firsts[-1]:
            return time_ns - self._ahead[-1]
        return time_ns - self._ahead[bisect_right(self._firsts, seq) - 1]

    def through(self, steady_ns: int) -> tuple[int, int, int]:
        """Return (low, time, high): by `steady_ns` every message below `low` was stored, and of those from there
        through `high` the ones whose time is at most `time`."""
        at = bisect_right(self._begins, steady_ns) - 1
        high = self._firsts[at + 1] - 1 if at + 1 < len(self._firsts) else _END
        return self._firsts[at], steady_ns + self._ahead[at], high

    # ------------------------------------------------------------------ over restarts
    def runs(self, first_seq: int = 0) -> list[Run]:
        """Return the runs; those of which no message from `first_seq` on is left are forgotten."""
        gone = max(0, bisect_right(self._firsts, first_seq) - 1)
        if gone:
            del self._firsts[:gone], self._begins[:gone], self._ahead[:gone]
            self._firsts[0], self._begins[0] = _ALWAYS[:2]
        return list(zip(self._firsts, self._begins, self._ahead, strict=True))

    def dump(self) -> dict[str, object]:
        return {"ages": self.runs(self._store.first_seq), "steady_ns": self._clock.steady()}

    def load(self, checkpoint: bytes) -> None:
        state = _STATE.decode(checkpoint)
        behind = self.behind_ns = max(0, state.steady_ns - self._clock.steady())
        runs = state.ages or [_ALWAYS]
        self._set([(first, max(begin - behind, _ALWAYS[1]), ahead + behind) for first, begin, ahead in runs])

    def _set(self, runs: Sequence[Run]) -> None:
        self._firsts, self._begins, self._ahead = (list(column) for column in zip(*runs, strict=True))
