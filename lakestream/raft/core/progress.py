"""Progress of one other member, as its leader knows it.

Belongs here: the index through which its log agrees, unanswered messages, and how entries are sent: one probe at a time
(PROBE), in a stream (REPLICATE), or not, because the member needs a state first (INSTALL).
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from lakestream.raft.core.ready import SendEntries


class Pace(Enum):
    """State of replication to a member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    INSTALL = "install"


class Inflight:
    """Appends with entries that are not answered, as (last index, bytes), bounded in number and in bytes."""

    __slots__ = ("_bytes", "_max_bytes", "_max_count", "_sent")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._sent: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def full(self) -> bool:
        """Return True if nothing more may be sent for now."""
        return len(self._sent) >= self._max_count or self._bytes >= self._max_bytes

    def add(self, last: int, size: int) -> None:
        """Count an Append through `last` with `size` bytes that was sent."""
        assert not self.full, "more in flight than the limit"
        assert not self._sent or self._sent[-1][0] < last, "Appends are not sent in order"
        self._sent.append((last, size))
        self._bytes += size

    def free(self, through: int) -> None:
        """Release Appends through `through`, which arrived."""
        sent = self._sent
        while sent and sent[0][0] <= through:
            self._bytes -= sent.popleft()[1]

    def clear(self) -> None:
        """Release all Appends."""
        self._sent.clear()
        self._bytes = 0


class Progress:
    """One member as its leader sees it.

    Invariant: match < next <= the leader's last index + 1. Entries through `match` are durable there; entries before
    `next` were sent.
    """

    __slots__ = (
        "answered",
        "asked",
        "contact",
        "echoed",
        "inflight",
        "install_age",
        "match",
        "next",
        "nonce",
        "pace",
        "paused",
        "sending",
        "sent_commit",
    )

    def __init__(self, next_index: int, now: int, inflight: Inflight) -> None:
        self.match = 0
        self.asked = 0
        """The newest round that had begun when `match` last grew: who refuses an entry at or before `match` in a later
        one has lost it."""
        self.next = next_index
        self.pace = Pace.PROBE
        self.paused = False
        """PROBE: a probe is unanswered; the next one is sent after the answer or with the heartbeat."""
        self.sending: SendEntries | None = None
        """The SendEntries that the shell is reading for this member."""
        self.inflight = inflight
        self.contact = now
        """Tick of the last answer, or of the beginning."""
        self.answered = False
        self.echoed = 0
        """The newest round (see Leader) that it echoed."""
        self.sent_commit = 0
        """The newest commit index that was sent to it."""
        self.install_age = 0
        """INSTALL: ticks since the Install left."""
        self.nonce = 0
        """Nonce of the last Recover that was handled."""

    def probe(self, next_index: int, *, paused: bool = False) -> None:
        """Probe anew where the logs agree, at the entry before `next_index`."""
        self._leave(Pace.PROBE, next_index)
        self.paused = paused

    def replicate(self) -> None:
        """Stream the entries after `match`: the logs agree through it."""
        self._leave(Pace.REPLICATE, self.match + 1)

    def install(self) -> None:
        """Send no entries until it has a state."""
        self._leave(Pace.INSTALL, self.match + 1)
        self.install_age = 0

    def advance(self, match: int) -> bool:
        """Note that the member has everything through `match`; return True if it was not known."""
        if match <= self.match:
            return False
        self.match = match
        if self.next <= match:
            self.next = match + 1
            self.sending = None
        self.inflight.free(match)
        return True

    def forget(self, next_index: int, nonce: int) -> None:
        """Forget everything that the member acknowledged, because its log was damaged."""
        self.match = 0
        self.nonce = nonce
        self.probe(next_index)

    def _leave(self, pace: Pace, next_index: int) -> None:
        self.pace = pace
        self.next = next_index
        self.paused = False
        self.sending = None
        self.inflight.clear()
