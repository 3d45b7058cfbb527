"""Common parts of atomic and fast batches (ADR-50).

Belongs here: how many batches may be open, how long an idle one lives, the bookkeeping for that, and how the stream
looks to members of a batch. The two kinds of batches are in atomic.py and fast.py.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import msgspec

from lakestream.log.format.record import Record
from lakestream.ports import Clock, Timer
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import API_LEVEL, LEVEL_HEADER
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect, EffectKey
from lakestream.stream.core.feature import NEVER, Feature
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.proposer import Proposer
from lakestream.stream.core.publish import MAX_RECORD_BYTES, IncomingMessage
from lakestream.stream.core.view import ProposedView

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
    """Limits that the streams of one server share, and how much of them is taken."""

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
        """Return True if a stream that has `held` atomic batches open may open another."""
        limits = self.limits
        return held < (limits.per_stream or ATOMIC_PER_STREAM) and self.atomic < (limits.total or ATOMIC_TOTAL)

    def for_fast(self, held: int) -> bool:
        """Return True if a stream that has `held` fast batches open may open another."""
        limits = self.limits
        return held < (limits.per_stream or FAST_PER_STREAM) and self.fast < (limits.total or FAST_TOTAL)


class OpenBatch(Protocol):
    """An open batch."""

    id: bytes
    touched_ns: int
    """Steady time (ns) of its last message."""


T = TypeVar("T", bound=OpenBatch)


class Batches(Feature, Generic[T]):
    """The open batches of one stream, on the node that leads it: what atomic and fast ones have in common.

    Args:
        room: shared by the streams of the server.
    """

    def __init__(self, room: BatchRoom, clock: Clock, pipeline: Pipeline, proposer: Proposer) -> None:
        self._room, self._clock, self._pipeline, self._proposer = room, clock, pipeline, proposer
        self._config = StreamConfig()
        self._open: dict[bytes, T] = {}
        """By id, the longest idle first."""
        self._timer: Timer | None = None

    def follow(self) -> None:
        """Forget all batches. Stored members of a fast batch stay; a publisher that continues a batch which no leader
        knows gets the error that it is incomplete."""
        batches, self._open = self._open, {}
        for batch in batches.values():
            self._released(batch)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def acts_at(self) -> int:
        return 0 if self._open else NEVER

    def _touch(self, batch: T) -> None:
        """Open a batch, or note that something came for it."""
        batch.touched_ns = self._clock.steady()
        self._open.pop(batch.id, None)
        self._open[batch.id] = batch
        if self._timer is None:
            self._timer = self._clock.call_later(self._room.timeout_ns, self._look)

    def _end(self, batch: T) -> None:
        """Close a batch, unless it was closed before."""
        if self._open.get(batch.id) is batch:
            del self._open[batch.id]
            self._released(batch)

    def _released(self, batch: T) -> None:
        """Give back the room of a batch that is closed."""
        raise NotImplementedError

    def _idle(self, batch: T) -> None:
        """Act on the end of a batch that nothing came for in time."""

    def _look(self) -> None:
        self._timer = None
        now = self._clock.steady()
        while self._open:
            batch = next(iter(self._open.values()))
            left = batch.touched_ns + self._room.timeout_ns - now
            if left > 0:
                self._timer = self._clock.call_later(left, self._look)
                return
            self._end(batch)
            self._idle(batch)


def is_no_member(config: StreamConfig, message: IncomingMessage) -> bool:
    """Return True for a message that is judged but not stored where batches are on: it is part of no batch."""
    judged_only = message.observer is not None and message.observer.only
    return judged_only and (config.allow_atomic or config.allow_batched)


def check_size(config: StreamConfig, message: IncomingMessage) -> None:
    """Raise ApiError if a message is refused before it is looked at as part of a batch."""
    if config.sealed:
        raise api_error(10109)
    size = len(message.header) + len(message.payload)
    if 0 < config.max_msg_size < size or len(message.subject) + size > MAX_RECORD_BYTES:
        raise api_error(10054)


def without_level(header: bytes) -> bytes:
    """Return the block as it is stored: without the API level that it asks for.

    Raise ApiError 10185 if that is too high. Only batches look at it; in a plain publish it is a header like any other.
    """
    level = headers.get(header, LEVEL_HEADER)
    if not level:
        return header
    if not level.isdigit() or len(level) > len(str(API_LEVEL)) or int(level) > API_LEVEL:
        raise api_error(10185)
    return headers.remove(header, [LEVEL_HEADER])


def number(value: bytes) -> int:
    """Return an unsigned number of 64 bits in decimal digits, -1 if it is none."""
    if not value.isdigit() or len(value) > MAX_DIGITS:
        return -1
    found = int(value)
    return found if found < 1 << 64 else -1


MAX_DIGITS = 40
"""Digits of a number that are looked at at all; zeros may lead it."""


class OverlayView(ProposedView):
    """The stream as a later member of an atomic batch will find it: the members before it are stored.

    `add` takes the next one.
    """

    def __init__(self, view: ProposedView) -> None:
        super().__init__(view.store, view.pipeline, view.hooks, view.no_room)
        self.fetched = view.fetched
        # A member's size was judged when it came; the configuration may have changed since.
        self.config = msgspec.structs.replace(view.config, max_msg_size=-1)
        self._max_msg_size = view.max_msg_size
        self._first = super().last_seq() + 1
        self._members: list[IncomingMessage] = []
        self._last: dict[bytes, int] = {}
        self._counts: dict[bytes, int] = {}
        self._values: dict[tuple[str, object], int] = {}
        self._bytes = 0
        self._before = (super().pending_msgs(), super().pending_bytes())

    def __len__(self) -> int:
        return len(self._members)

    @property
    def in_flight(self) -> bool:
        """Return True if messages from before the batch are proposed and not committed."""
        return bool(self._before[0])

    @property
    def max_msg_size(self) -> int:
        return self._max_msg_size

    def add(self, member: IncomingMessage, length: int, effect: Effect) -> None:
        """Note that a member of this accounted length, with this effect, passed every rule."""
        seq, subject = self._first + len(self._members), member.subject
        self._members.append(member)
        self._last[subject] = seq
        self._counts[subject] = self._counts.get(subject, 0) + 1
        for name, value in effect.values.items():
            self._values[name, value] = seq
        self._bytes += length

    def holds(self, subject: bytes) -> bool:
        """Return True if an earlier member has exactly this subject."""
        return subject in self._last

    def last_seq(self) -> int:
        return self._first - 1 + len(self._members)

    def last_of(self, subject: bytes) -> int:
        # A pattern is looked up without the members: nats-server judges them by exact subjects alone.
        return self._last.get(subject, 0) or super().last_of(subject)

    def record(self, seq: int) -> Record | None:
        if seq < self._first:
            return super().record(seq)
        member = self._members[seq - self._first]
        return Record(seq, 0, member.subject, member.header, member.payload)

    def staged(self, key: EffectKey[Any], value: object) -> int:
        return self._values.get((key.name, value), 0)

    def pending_msgs(self) -> int:
        return self._before[0] + len(self._members)

    def pending_bytes(self) -> int:
        return self._before[1] + self._bytes

    def ahead(self) -> int:
        return self._bytes

    def pending_of(self, subject: bytes) -> int:
        return super().pending_of(subject) + self._counts.get(subject, 0)

    def room(self, subject: bytes, length: int, rollup: bool) -> ApiError | None:
        refused = super().room(subject, length, rollup)
        if refused is None and self.config.max_msgs_per_subject > 0:
            # In a batch a message that takes the place of its subject's oldest counts as one more.
            whole = self.config
            self.config = msgspec.structs.replace(whole, max_msgs_per_subject=-1, discard_new_per_subject=False)
            try:
                refused = super().room(subject, length, rollup)
            finally:
                self.config = whole
        return refused
