"""Sums of the bytes that streams hold: those of the server, and those of each account.

Belongs here: the sums behind the limits at publish. A message that comes when the server holds more than
`max_memory_store` or `max_file_store` already is refused with 10023; one with which an account would hold more than its
own limit, with 10002. What streams reserve by their max_bytes is checked when they are created and changed
(rules.py, account_limits.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from lakestream.protocol.accounts import UNLIMITED, JetStreamLimits, tier_of
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core.config import StreamConfig

NEAR_BYTES = 64 << 20
"""Once an account is this close to its limit, each message is checked. Before that none is: no more than this is on its
way to the disk at one time."""
WARN_AGAIN_NS = 60_000_000_000
"""Minimum time between two warnings that an account has reached its limit."""


class CountedStream(Protocol):
    """A stream whose size counts: a `StreamCore`, or what stands for one that is not open."""

    uid: str
    account: str

    @property
    def config(self) -> StreamConfig:
        """Return its configuration."""

    @property
    def store(self) -> Any:
        """Return its store."""

    @property
    def pipeline(self) -> Any:
        """Return what takes its messages."""

    @property
    def proposer(self) -> Any:
        """Return what decides on its messages."""


class _Known(msgspec.Struct):
    """Noted size of a stream: its bytes here, and the number of replicas that have as much."""

    stream: CountedStream
    size: int
    copies: int


class _Use:
    """The bytes of streams by storage. Messages on their way to the disk do not count yet.

    Attributes:
        used: bytes on this node.
    """

    def __init__(self) -> None:
        self.used = {"memory": 0, "file": 0}
        self._streams: dict[str, _Known] = {}
        """By uid."""

    def _noted(self, stream: CountedStream) -> bool:
        """Note the size of a stream. Return False if it has not changed."""
        size, copies = stream.store.bytes, max(1, stream.config.num_replicas)
        known = self._streams.get(stream.uid)
        if known is None or known.stream is not stream or known.copies != copies:
            self._drop(stream)
            known = self._streams[stream.uid] = _Known(stream, 0, copies)
        elif known.size == size:
            return False
        self._add(known, size - known.size)
        known.size = size
        return True

    def knows(self, uid: str) -> bool:
        """Return True if the stream with this uid is counted."""
        return uid in self._streams

    def _add(self, known: _Known, size: int) -> None:
        self.used[known.stream.config.storage] += size

    def _drop(self, stream: CountedStream) -> None:
        known = self._streams.pop(stream.uid, None)
        if known is not None:
            self._add(known, -known.size)

    def forget(self, stream: CountedStream) -> None:
        """Count a stream no more: it has left this node."""
        self._drop(stream)

    def _guard(self, storage: str) -> None:
        """Let streams check messages without headers too from now on."""
        for known in self._streams.values():
            if known.stream.config.storage == storage:
                known.stream.proposer.guard()


class StorageUse(_Use):
    """Bytes of all streams of a server.

    Args:
        max_memory, max_file: the limits; below 0: none.
    """

    def __init__(self, max_memory: int, max_file: int) -> None:
        super().__init__()
        self._limits = {"memory": max_memory, "file": max_file}

    def note(self, stream: CountedStream) -> None:
        """Count a stream that is new here, or whose size may have changed."""
        was_full = self.full(stream.config.storage)
        if self._noted(stream) and self.full(stream.config.storage):
            if was_full:
                stream.proposer.guard()
            else:
                self._guard(stream.config.storage)

    def full(self, storage: str) -> bool:
        """Return True if no message is taken: the server's limit is exceeded."""
        return 0 <= self._limits[storage] < self.used[storage]


class AccountUse(_Use):
    """Bytes of the streams of one account. `StreamCore.use` is one of these.

    Streams that count for the same limits make a pool: those of one storage, and of one tier where the account has
    tiers.

    Args:
        server: the sums of all accounts.
        now: wall clock in ns.
        warn: logs that the account's limit is reached.

    Attributes:
        elsewhere: bytes of its streams without a replica here, by pool.
    """

    def __init__(self, server: StorageUse, now: Callable[[], int], warn: Callable[[str], None]) -> None:
        super().__init__()
        self._server, self._now, self._warn = server, now, warn
        self.limits = UNLIMITED
        self.elsewhere: dict[tuple[str, str], int] = {}
        self._pools: dict[tuple[str, str], int] = {}
        """Bytes of all replicas of streams with a replica here, by pool."""
        self._warned = {"memory": -WARN_AGAIN_NS, "file": -WARN_AGAIN_NS}

    def limit(self, limits: JetStreamLimits) -> None:
        """Set the account's limits."""
        self.limits = limits
        self._pools = {}
        for known in self._streams.values():
            self._pool(known, known.size)
        for known in self._streams.values():
            if self.tight(known.stream):
                known.stream.proposer.guard()

    def pool(self, storage: str, replicas: int) -> tuple[str, str]:
        """Return the pool of a stream."""
        return storage, tier_of(replicas) if self.limits.tiers else ""

    def _add(self, known: _Known, size: int) -> None:
        super()._add(known, size)
        self._pool(known, size)

    def _pool(self, known: _Known, size: int) -> None:
        pool = self.pool(known.stream.config.storage, known.copies)
        self._pools[pool] = self._pools.get(pool, 0) + size * known.copies

    def note(self, stream: CountedStream) -> None:
        """Count a stream that is new here, or whose size may have changed."""
        was_near = self._near(stream.config)
        if self._noted(stream) and self._near(stream.config):
            if was_near:
                stream.proposer.guard()
            else:
                self._guard(stream.config.storage)
        self._server.note(stream)

    def forget(self, stream: CountedStream) -> None:
        """Count a stream no more: it has left this node."""
        super().forget(stream)
        self._server.forget(stream)

    def tight(self, stream: CountedStream) -> bool:
        """Return True if each message has to be checked for room."""
        return self._server.full(stream.config.storage) or self._near(stream.config)

    def _near(self, config: StreamConfig) -> bool:
        if self.limits is UNLIMITED:
            return False
        most = self._most(config)
        return most >= 0 and self._total(config) + NEAR_BYTES > most

    def _most(self, config: StreamConfig) -> int:
        """Return how many bytes all replicas of a stream's pool may have; -1: no limit.

        The limit of a tier is for one replica. A tier that is gone takes no more.
        """
        if not self.limits.tiers:
            return self.limits.storage(config.storage)
        tier = self.limits.tier(config.num_replicas)
        return 0 if tier is None else tier.storage(config.storage) * max(1, config.num_replicas)

    def _total(self, config: StreamConfig) -> int:
        pool = self.pool(config.storage, config.num_replicas)
        return self._pools.get(pool, 0) + self.elsewhere.get(pool, 0)

    def refusal(self, stream: CountedStream, length: int) -> ApiError | None:
        """Return why a message of this accounted length is not taken, None if it is.

        `length`: the sum, for several messages.
        """
        storage, copies = stream.config.storage, max(1, stream.config.num_replicas)
        most = self._most(stream.config)
        if most >= 0:
            pool = self.pool(storage, copies)
            coming = sum(
                known.stream.pipeline.pending_bytes * known.copies
                for known in self._streams.values()
                if self.pool(known.stream.config.storage, known.copies) == pool
            )
            if self._total(stream.config) + coming + length * copies > most:
                self._say(storage, stream.account)
                return api_error(10002)
        return api_error(10023) if self._server.full(storage) else None

    def _say(self, storage: str, account: str) -> None:
        now = self._now()
        if now - self._warned[storage] >= WARN_AGAIN_NS:
            self._warned[storage] = now
            self._warn(f'JetStream {storage} resource limits exceeded for account: "{account}"')
