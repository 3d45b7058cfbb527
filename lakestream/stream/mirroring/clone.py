"""A mirror that begins as a clone of its origin's table.

Belongs here: which mirrors do, what such a mirror waits for before it reads its origin, the log entry (Fork) that says
that it began with a clone, and what a replica does with that entry before it knows what the clone holds. Making the
table is the compactor's work; requesting it and reading it back is the server's (`Clones`, `Bases`).

The clone is in the mirror's own table before its log names it, and the indexes of its messages lie beside the log by
then (log/store/base.py). So nothing is half done: before the entry the mirror is empty, requests again and gets the
same clone; behind it the mirror holds those messages like any stream whose segments have left for the lake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store import base as log_base
from lakestream.log.store.base import READ_AGAIN_NS, Base, Bases, NoBase
from lakestream.log.store.segment_log import SegmentLog
from lakestream.log.store.store import Store
from lakestream.ports import Timer
from lakestream.protocol.api.errors import ApiError
from lakestream.raft.group.group import Committed
from lakestream.stream.core.config import StreamConfig, StreamSource
from lakestream.stream.core.operations import Fork, decode_operation
from lakestream.stream.core.stream import StreamCore
from lakestream.stream.mirroring.origin import Origin
from lakestream.stream.mirroring.session import OriginSession, Taker

ASK_AGAIN_NS = 30_000_000_000
"""Pause before a mirror of a moment whose clone was refused requests it again (30 s)."""
ROOM_NS = 2_000_000_000
"""Pause before the room for a finished clone is checked again (2 s)."""
YIELD_NS = 1_000_000_000
"""A replica that was elected while it waits for the table gives up leadership after this long (1 s)."""

AS_OF = "lakestream.clone_as_of"
"""Metadata of a mirror that holds its origin as of a moment and does not follow it further."""
LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject")
"""Limits that a clone is not trimmed to."""
ONLY_CLONES = (
    "a mirror with file storage and limits retention can be its origin at a moment, without discard new, republish, "
    "message TTLs, external, consumer, opt_start_seq and opt_start_time"
)

_logger = logging.getLogger(__name__)


class Cloned(msgspec.Struct, frozen=True):
    """The clone is in the mirror's table, and `base` beside its log."""

    base: Base


class NotCloned(msgspec.Struct, frozen=True):
    """There is no clone. `why` is for people; "" where none was to be expected."""

    why: str = ""


class PendingClone(Protocol):
    """A requested clone."""

    def cancel(self) -> None:
        """Drop the callbacks; the next leader of the mirror goes on waiting for the clone."""


class Clones(Protocol):
    """Requests clones for mirrors. In the event loop."""

    def copy(
        self,
        stream: StreamCore,
        source: StreamSource,
        done: Callable[[Cloned | NotCloned], None],
        waits: Callable[[str], None],
    ) -> PendingClone:
        """Request a clone of the origin; a repeated request, also of another server, is for the same clone.

        Call `done` once with the result, and `waits` with what the clone waits for if that may take long.
        """

    def give_up(self, stream: StreamCore, then: Callable[[bool], None]) -> None:
        """Withdraw the request of a mirror without messages, and repeat that until it succeeds. `then` is called with
        True if the clone was made before: then it is to be used."""

    def discard(self, stream: StreamCore) -> None:
        """Withdraw the request of a mirror without messages, and remove the clone if it was made."""

    def settled(self, stream: StreamCore) -> None:
        """End the request: the mirror's log says that it began with the clone."""


# ---------------------------------------------------------------------- configurations
def moment(config: StreamConfig) -> str:
    """Return the moment as of which a mirror holds its origin, from its metadata; "" if it follows the origin."""
    return config.metadata.get(AS_OF, "") if config.mirror is not None else ""


def can_begin_as_clone(config: StreamConfig) -> bool:
    """Return True if a mirror loses nothing by a clone: neither its start nor an effect of storing each message."""
    source = config.mirror
    if source is None or source.external is not None or source.consumer is not None:
        return False
    if source.opt_start_seq or source.opt_start_time is not None:
        return False
    plain = config.storage == "file" and config.retention == "limits" and not config.sealed and not config.first_seq
    return plain and config.republish is None and not config.allow_msg_ttl and config.discard == "old"


def why_not(origin: StreamConfig, mirror: StreamConfig) -> str:
    """Return why a mirror can not begin with a clone of this origin, "" if it can."""
    if origin.sources:
        return "it has sources, and what a mirror knows of those comes with the messages"
    if origin.retention != "limits":
        return "its messages go once its mirror has acknowledged them one by one"
    mirrored, limited = mirror.mirror, mirror.max_msgs_per_subject > 0
    if limited and mirrored is not None and any(each.dest for each in mirrored.subject_transforms):
        return "it would be limited by subjects that its origin has not got"
    for name in LIMITS:
        here, there = getattr(mirror, name), getattr(origin, name)
        if here > 0 and not 0 < there <= here:  # to remove most of a clone costs more than to read what is wanted
            return f"{name} of its mirror may be less than it holds"
    return ""


# ---------------------------------------------------------------------- the leader
class CloneSession(OriginSession):
    """The session of a mirror with its origin, behind the clone with which the mirror begins, if there is to be one.

    Args:
        clones: returns what requests clones; None without a lake.
    """

    def __init__(self, host: StreamCore, origin: Origin, taker: Taker, clones: Callable[[], Clones | None]) -> None:
        super().__init__(origin, taker, host.bus, host.clock, host.pipeline)
        self._host, self._clones = host, clones
        self._pending: PendingClone | None = None
        self._later: Timer | None = None
        self.cloning = False
        """True while the mirror may begin with a clone soon."""

    def begin(self) -> None:
        """Read the origin: soon, or once the clone is there."""
        host, clones = self._host, self._clones()
        if clones is None:
            self._follow("it needs a lake that this server does not have")
        elif host.store.based:
            clones.settled(host)  # a crash may have come between the entry and this
            self._follow("")
        elif host.store.msgs:
            self._follow("")
        else:
            self.cloning = True
            if host.pipeline.next_seq > 1 or not can_begin_as_clone(host.config):
                self._begin_without(clones, "it had begun without a copy")
            else:
                self._request(clones)

    def _request(self, clones: Clones) -> None:
        self._pending = clones.copy(self._host, self._origin.source, self._answered_clone, self._waits)

    def _follow(self, why: str) -> None:
        """Read the origin, except for a mirror of a moment: then show `why` it does not hold that."""
        self.cloning = False
        if not moment(self._host.config):
            self.error = None
            super().begin()
        elif why:
            self._waits(why)

    def _begin_without(self, clones: Clones, why: str) -> None:
        """Read the origin once it is certain that no clone comes: else the table would have messages twice."""

        def settled(made: bool) -> None:
            if not self.cloning:
                return
            if made:
                self._request(clones)
            else:
                self._follow(why)

        clones.give_up(self._host, settled)

    def end(self, remove: bool = False) -> None:
        """End the session, and the wait for a clone."""
        clones = self._clones()
        if self.cloning and remove and clones is not None:
            clones.discard(self._host)
        self.cloning = False
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        super().end(remove)

    def _waits(self, why: str) -> None:
        """Show in INFO what the mirror waits for."""
        self.error = ApiError(503, 0, why)

    def _answered_clone(self, outcome: Cloned | NotCloned) -> None:
        self._pending = None
        if isinstance(outcome, Cloned):
            self._propose(outcome.base)
            return
        host, clones = self._host, self._clones()
        assert clones is not None, "it answered"
        if outcome.why:
            _logger.info("stream %s: no clone of %s: %s", host.name, self._origin.source.name, outcome.why)
        if moment(host.config):
            self._waits(outcome.why)
            self._later = host.clock.call_later(ASK_AGAIN_NS, self.begin)
        else:
            self._begin_without(clones, outcome.why)

    def _propose(self, base: Base) -> None:
        host = self._host
        refused = host.no_room(base.size)
        if refused is not None:
            self.error = refused
            self._later = host.clock.call_later(ROOM_NS, lambda: self._propose(base))
            return
        self.error = None
        host.store.ready = base
        host.propose(Fork(base.origin.version, base.origin.through), self._forked)

    def _forked(self, result: object) -> None:
        host, clones = self._host, self._clones()
        if isinstance(result, ApiError) or not self.cloning:
            return  # another node leads now, and goes on from what the log says
        if clones is not None:
            clones.settled(host)
        began = "stream %s: began as a clone with %d messages of %s"
        _logger.info(began, host.name, host.store.msgs, self._origin.source.name)
        host.clock.call_soon(self._keep)  # not here: the entry counts as applied once this has returned
        self._follow("")

    def _keep(self) -> None:
        """Write a checkpoint, so that a start need not read the table again."""
        if not self._host.closed:
            self._host.checkpoint()


# ---------------------------------------------------------------------- the log's side
def apply_fork(store: Store, config: StreamConfig, operation: Fork) -> bool:
    """Put a mirror's clone, which is within its limits (`why_not`), under its log. Raise NoBase if it is not known.

    Return False if the stream is no mirror any more: it was promoted right before.
    """
    if config.mirror is None:
        store.ready = None
        return False
    base, store.ready = store.ready or store.find_base(), None
    if base is None or (base.origin.version, base.origin.through) != (operation.version, operation.through):
        raise NoBase(store.directory)
    purged_below = store.first_seq if store.last_seq else 0
    store.begin_with(base)
    if purged_below > 1:
        store.set_first(purged_below)  # it was purged before the clone came
    return True


# ---------------------------------------------------------------------- replicas
def fork_in(frame: Frame) -> log_base.BaseOrigin | None:
    """Return the clone that a Fork entry names, None for other entries."""
    if frame.kind != Kind.OPERATION:
        return None
    operation = decode_operation(frame.body)
    return log_base.BaseOrigin(operation.version, operation.through) if isinstance(operation, Fork) else None


def prepare(stream: StreamCore, frame: Frame, bases: Bases | None) -> None:
    """Provide the base that an entry names before the entry is applied at recovery. Blocks. Raise NoBase without
    `bases`."""
    origin = fork_in(frame)
    if origin is None or stream.config.mirror is None:  # `apply_fork` does nothing then
        return
    store = stream.store
    assert isinstance(store.log, SegmentLog), "a replica's log has files"
    try:
        base = store.find_base()
    except CorruptLog:
        if bases is None:
            raise
        base = None  # it is made again
    if base is None or base.origin != origin:
        if bases is None:
            raise NoBase(store.directory)
        base = bases.make_base(store.log.files, store.directory, stream.account, stream.name, origin)
    store.ready = base


def waits_for(store: Store, entries: list[Committed]) -> tuple[int, log_base.BaseOrigin] | None:
    """Return the position of the first entry that can not be applied yet, and the clone that it waits for; None if
    all of them can."""
    if store.last_seq and store.based:
        return None
    for at, entry in enumerate(entries):
        origin = fork_in(entry.frame) if entry.frame.kind == Kind.OPERATION else None
        if origin is not None:
            ready = store.ready
            return None if ready is not None and ready.origin == origin else (at, origin)
    return None


class AwaitedBase:
    """The base of a mirror that a replica reads before it applies the entry that names it.

    It is read from the stream's table, in the version that the entry names, as the leader did.

    Args:
        stream: the replica.
        warn: logs a warning.
    """

    def __init__(
        self, stream: StreamCore, bases: Bases, origin: log_base.BaseOrigin, warn: Callable[[str], None]
    ) -> None:
        self._stream, self._bases, self._origin, self._warn = stream, bases, origin, warn
        self._ended = False

    def begin(self, done: Callable[[], None]) -> None:
        """Read the table; call `done` once the store has the base, in `ready`. After an error it is read again."""
        stream, store = self._stream, self._stream.store
        assert isinstance(store.log, SegmentLog), "a replica's log has files"

        def read(base: Base | None, error: BaseException | None) -> None:
            if self._ended or stream.closed:
                return
            if base is None:
                self._warn(
                    f"stream {stream.name}: the clone that it began with can not be read: {error}; next try in 2s"
                )
                stream.clock.call_later(READ_AGAIN_NS, lambda: None if self._ended else self.begin(done))
                return
            self._ended, store.ready = True, base
            done()

        self._bases.read_base(store.log.files, store.directory, stream.account, stream.name, self._origin, read)

    def end(self) -> None:
        """Drop what is being read: the replica ends, or another state has taken the place of its own."""
        self._ended = True
