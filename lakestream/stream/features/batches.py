"""What atomic and fast batches share.

Belongs here: how many batches may be open, how long an idle one lives, and the bookkeeping for that (ADR-50). What a
batch is and what ends it is in atomic.py and fast.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from lakestream.ports import Clock, Timer
from lakestream.protocol import headers
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.api.request import API_LEVEL, LEVEL_HEADER
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.publish import MAX_RECORD_BYTES, Publish

MAX_ID_CHARS = 64
"""Characters of a batch's id."""

MAX_MSGS = 1000
"""Messages of one atomic batch, unless the options say otherwise."""

TIMEOUT_NS = 10_000_000_000
"""A batch that nothing comes for ends after this time (10 s), unless the options say otherwise."""

ATOMIC_PER_STREAM, ATOMIC_TOTAL = 50, 1000
FAST_PER_STREAM, FAST_TOTAL = 1000, 50_000
"""Batches that may be open at a time, of one stream and on this server, unless the options say otherwise."""

MAX_STAGED_BYTES = 256 << 20
"""Bytes (256 MiB) that the open atomic batches of this server may hold in memory; beyond them members get 10167."""


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The server's options (`jetstream { limits { batch } }`); 0: the default."""

    per_stream: int = 0
    total: int = 0
    max_msgs: int = 0
    timeout_ns: int = 0


class BatchRoom:
    """What the streams of one server share: limits, and how much of them is taken."""

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self.limits = limits or BatchLimits()
        self.max_msgs = self.limits.max_msgs or MAX_MSGS
        self.timeout_ns = self.limits.timeout_ns or TIMEOUT_NS
        self.atomic = 0
        """Open atomic batches of all streams."""
        self.fast = 0
        """Open fast batches."""
        self.staged = 0
        """Bytes of the members of open atomic batches."""

    def for_atomic(self, held: int) -> bool:
        """Whether a stream that has `held` atomic batches open may open another."""
        limits = self.limits
        return held < (limits.per_stream or ATOMIC_PER_STREAM) and self.atomic < (limits.total or ATOMIC_TOTAL)

    def for_fast(self, held: int) -> bool:
        """Whether a stream that has `held` fast batches open may open another."""
        limits = self.limits
        return held < (limits.per_stream or FAST_PER_STREAM) and self.fast < (limits.total or FAST_TOTAL)


class Open(Protocol):
    """A batch that is open."""

    id: bytes
    touched_ns: int
    """When its last message came."""


T = TypeVar("T", bound=Open)


class OpenBatches(Generic[T]):
    """The open batches of one stream, by id; the longest idle first.

    Args:
        clock: tells when one was idle for too long.
        timeout_ns: how long that is.
        on_idle: called with each that was, once it is out of here.
    """

    def __init__(self, clock: Clock, timeout_ns: int, on_idle: Callable[[T], None]) -> None:
        self._clock, self._timeout, self._on_idle = clock, timeout_ns, on_idle
        self._batches: OrderedDict[bytes, T] = OrderedDict()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def get(self, batch_id: bytes) -> T | None:
        """The open batch with this id."""
        return self._batches.get(batch_id)

    def touch(self, batch: T) -> None:
        """Something came for it, or it begins."""
        batch.touched_ns = self._clock.steady()
        self._batches[batch.id] = batch
        self._batches.move_to_end(batch.id)
        if self._timer is None:
            self._timer = self._clock.call_later(self._timeout, self._look)

    def close(self, batch: T) -> bool:
        """It is at its end; False if it was before."""
        if self._batches.get(batch.id) is not batch:
            return False
        del self._batches[batch.id]
        return True

    def clear(self) -> list[T]:
        """Forget all of them; returns them."""
        batches = list(self._batches.values())
        self._batches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return batches

    def _look(self) -> None:
        self._timer = None
        now = self._clock.steady()
        while self._batches:
            batch = next(iter(self._batches.values()))
            left = batch.touched_ns + self._timeout - now
            if left > 0:
                self._timer = self._clock.call_later(left, self._look)
                return
            del self._batches[batch.id]
            self._on_idle(batch)


def check_size(config: StreamConfig, message: Publish) -> None:
    """What nats-server asks of a message before it looks for a batch in it. Raises ApiError."""
    if config.sealed:
        raise api_error(10109)
    size = len(message.header) + len(message.payload)
    if 0 < config.max_msg_size < size or len(message.subject) + size > MAX_RECORD_BYTES:
        raise api_error(10054)


def without_level(header: bytes) -> bytes:
    """The block as it is stored: without the API level that it asks for. Raises ApiError 10185 where that is too high.

    Only batches look at it; in a plain publish it is a header like any other.
    """
    level = headers.get(header, LEVEL_HEADER)
    if not level:
        return header
    if not level.isdigit() or len(level) > len(str(API_LEVEL)) or int(level) > API_LEVEL:
        raise api_error(10185)
    return headers.remove(header, [LEVEL_HEADER])


def number(value: bytes) -> int:
    """An unsigned number of 64 bits in decimal digits; -1 when it is none."""
    if not value.isdigit() or len(value) > MAX_DIGITS:
        return -1
    found = int(value)
    return found if found < 1 << 64 else -1


MAX_DIGITS = 40
"""Digits of a number that are looked at at all; zeros may lead it."""
