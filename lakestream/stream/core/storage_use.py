"""How much streams hold together: those of the server, and those of each account.

Belongs here: the sums behind the limits at publish. A message that comes when the server holds more than
`max_memory_store` or `max_file_store` already is refused with 10023; one with which an account would hold more than its
own limit, with 10002. What streams reserve by their max_bytes is checked when they are created and changed
(rules.py, account_limits.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core.account_limits import UNLIMITED, JetStreamLimits

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

NEAR_BYTES = 64 << 20
"""An account that holds so much less than it may, or more, has each message weighed. Before that they are taken without
a look: as much as this may be on its way to the disk at one time."""
WARN_AGAIN_NS = 60_000_000_000
"""How often the log says at most that an account holds what it may."""


class _Known(NamedTuple):
    """What was noted of a stream: its bytes here, and how many replicas have as much."""

    stream: Stream
    size: int
    copies: int


class _Use:
    """The bytes of streams by storage. What is on its way to the disk does not count yet.

    Attributes:
        used: what lies here.
        spread: what all replicas of these streams hold together, wherever they are.
    """

    def __init__(self) -> None:
        self.used = {"memory": 0, "file": 0}
        self.spread = {"memory": 0, "file": 0}
        self._streams: dict[str, _Known] = {}
        """By uid."""

    def _noted(self, stream: Stream) -> bool:
        """Take down what a stream holds; False when that is known."""
        now = _Known(stream, stream.store.bytes, max(1, stream.config.num_replicas))
        known = self._streams.get(stream.uid)
        if known == now:
            return False
        if known is not None:
            self._add(known, -1)
        self._streams[stream.uid] = now
        self._add(now, 1)
        return True

    def knows(self, uid: str) -> bool:
        """Whether a stream is here."""
        return uid in self._streams

    def _add(self, known: _Known, sign: int) -> None:
        storage = known.stream.config.storage
        self.used[storage] += sign * known.size
        self.spread[storage] += sign * known.size * known.copies

    def forget(self, stream: Stream) -> None:
        """A stream is here no more."""
        known = self._streams.pop(stream.uid, None)
        if known is not None:
            self._add(known, -1)

    def _guard(self, storage: str) -> None:
        """Messages without headers have to be judged from now on."""
        for known in self._streams.values():
            if known.stream.config.storage == storage:
                known.stream.intake.guard()


class StorageUse(_Use):
    """What all streams of a server hold.

    Args:
        max_memory, max_file: the limits; below 0: none.
    """

    def __init__(self, max_memory: int, max_file: int) -> None:
        super().__init__()
        self._limits = {"memory": max_memory, "file": max_file}

    def note(self, stream: Stream) -> None:
        """A stream is here, or what it holds may have changed."""
        was_full = self.full(stream.config.storage)
        if self._noted(stream) and self.full(stream.config.storage):
            if was_full:
                stream.intake.guard()
            else:
                self._guard(stream.config.storage)

    def full(self, storage: str) -> bool:
        """Whether no message is taken."""
        return 0 <= self._limits[storage] < self.used[storage]


class AccountUse(_Use):
    """What the streams of one account hold here. `Stream.use` is one of these.

    Args:
        server: what all accounts' streams hold.
        now: wall clock in ns.
        warn: says in the log that the account's limit is reached.

    Attributes:
        elsewhere: what its streams hold of which no replica is here, by storage; see cluster/use.py.
    """

    def __init__(self, server: StorageUse, now: Callable[[], int], warn: Callable[[str], None]) -> None:
        super().__init__()
        self._server, self._now, self._warn = server, now, warn
        self.limits = UNLIMITED
        self.elsewhere = {"memory": 0, "file": 0}
        self._warned = {"memory": -WARN_AGAIN_NS, "file": -WARN_AGAIN_NS}

    def limit(self, limits: JetStreamLimits) -> None:
        """The account may hold so much from now on."""
        self.limits = limits
        for storage in ("memory", "file"):
            if self.tight(storage):
                self._guard(storage)

    def note(self, stream: Stream) -> None:
        """A stream is here, or what it holds may have changed."""
        storage = stream.config.storage
        was_near = self._near(storage)
        if self._noted(stream) and self._near(storage):
            if was_near:
                stream.intake.guard()
            else:
                self._guard(storage)
        self._server.note(stream)

    def forget(self, stream: Stream) -> None:
        """A stream is here no more."""
        super().forget(stream)
        self._server.forget(stream)

    def tight(self, storage: str) -> bool:
        """Whether each message has to be weighed."""
        return self._server.full(storage) or self._near(storage)

    def _near(self, storage: str) -> bool:
        most = self.limits.storage(storage)
        return most >= 0 and self._total(storage) + NEAR_BYTES > most

    def _total(self, storage: str) -> int:
        return self.spread[storage] + self.elsewhere[storage]

    def refusal(self, stream: Stream, length: int) -> ApiError | None:
        """Why a message of this accounted length is not taken; None when it is.

        `length`: of several messages, their sum.
        """
        storage = stream.config.storage
        most = self.limits.storage(storage)
        if most >= 0:
            coming = sum(
                known.stream.intake.pending_bytes * known.copies
                for known in self._streams.values()
                if known.stream.config.storage == storage
            )
            copies = max(1, stream.config.num_replicas)
            if self._total(storage) + coming + length * copies > most:
                self._say(storage, stream.account)
                return api_error(10002)
        return api_error(10023) if self._server.full(storage) else None

    def _say(self, storage: str, account: str) -> None:
        now = self._now()
        if now - self._warned[storage] >= WARN_AGAIN_NS:
            self._warned[storage] = now
            self._warn(f'JetStream {storage} resource limits exceeded for account: "{account}"')
