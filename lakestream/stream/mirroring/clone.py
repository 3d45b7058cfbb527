"""A mirror that begins as a clone of its origin's table.

Belongs here: when a mirror does, what it waits for before it reads its origin, and what the one log entry does that
says that it began with a copy. Making the table is the compactor's work, asking for it and reading it back the
server's (`Clones`).

The copy is in the mirror's own table before its log names it, and what a stream has to know of its messages lies
beside its log by then (log/store/base.py). So there is nothing half: before the entry the mirror is empty and asks
again, and gets the same; behind it the mirror holds those messages as any stream does whose segments have left for the
lake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from lakestream.log.store.base import Base, NoBase, put_under
from lakestream.ports import Timer
from lakestream.protocol.api.errors import ApiError, invalid
from lakestream.stream.core.config import StreamConfig, StreamSource
from lakestream.stream.core.operations import Fork
from lakestream.stream.mirroring.origin import Origin
from lakestream.stream.mirroring.session import Session, Taker

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

AGAIN_NS = 30_000_000_000
"""A mirror that is its origin at a moment, and was refused, asks again after so long (30 s)."""
ROOM_NS = 2_000_000_000
"""How soon to look again whether there is room for a copy that is there (2 s)."""
AS_OF = "lakestream.clone_as_of"
"""The metadata of a mirror that is its origin at a moment, and follows it no further."""

LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject")
"""What a copy is not cut to."""
ONLY_COPIES = (
    "a mirror with file storage and limits retention can be its origin at a moment, without discard new, republish, "
    "message TTLs, external, consumer, opt_start_seq and opt_start_time"
)

_logger = logging.getLogger(__name__)


class Copied(msgspec.Struct, frozen=True):
    """The copy is in the mirror's table, and `base` beside its log."""

    base: Base


class NotCopied(msgspec.Struct, frozen=True):
    """There will be no copy. `why` is for people; "" where none was to be expected."""

    why: str = ""


class Errand(Protocol):
    """A copy on its way."""

    def cancel(self) -> None:
        """Wait for it no more, and tell nobody of it; whoever leads the mirror next goes on with it."""


class Clones(Protocol):
    """Who gets mirrors their copies. In the event loop."""

    def copy(
        self,
        stream: Stream,
        source: StreamSource,
        told: Callable[[Copied | NotCopied], None],
        waits: Callable[[str], None],
    ) -> Errand:
        """Get a mirror a copy of its origin: `told` is called once. Asked again, also by another server, it is the same
        copy. `waits`: called with what it waits for, where that may last."""

    def give_up(self, stream: Stream, then: Callable[[bool], None]) -> None:
        """The stream, which has no message yet, is to begin without a copy, whatever was asked for it. Once that is
        settled, as long as it takes, `then` is told whether the copy was there before, and is to be used after all."""

    def discard(self, stream: Stream) -> None:
        """The stream, which has no message yet, is no more what a copy was asked for; not even if that is there."""

    def settled(self, stream: Stream) -> None:
        """The mirror's log says that it began with a copy: what was asked for it is over."""


def moment(config: StreamConfig) -> str:
    """The moment at which a mirror is its origin, as its metadata names it; "" where it follows."""
    return config.metadata.get(AS_OF, "") if config.mirror is not None else ""


def can_begin_as_copy(config: StreamConfig) -> bool:
    """Whether what a copy leaves out is nothing to this mirror: where it would begin, and what storing each message
    brings with it. The others read their origin from the first message on."""
    source = config.mirror
    if source is None or source.external is not None or source.consumer is not None:
        return False
    if source.opt_start_seq or source.opt_start_time is not None:
        return False
    plain = config.storage == "file" and config.retention == "limits" and not config.sealed and not config.first_seq
    return plain and config.republish is None and not config.allow_msg_ttl and config.discard == "old"


def check_update(stream: Stream, config: StreamConfig) -> None:
    """Refuse to make something else of a mirror whose copy may be there in a moment, and another moment of one that has
    begun. Raises ApiError."""
    if stream.config.mirror is None:
        return
    fits = config.mirror == stream.config.mirror and can_begin_as_copy(config)
    fits = fits and all(getattr(config, name) == getattr(stream.config, name) for name in LIMITS)
    if stream.copying.cloning and not fits:
        raise invalid("the mirror's copy of its origin is being made; try again when it is there, or delete the mirror")
    if config.mirror is not None and moment(config) != moment(stream.config):
        raise invalid(f"{AS_OF} of a mirror can not be changed; delete it and make another")


def why_not(origin: StreamConfig, mirror: StreamConfig) -> str:
    """Why a mirror can not begin with a copy of this origin; "" when it can."""
    if origin.sources:
        return "it has sources, and what a mirror knows of those comes with the messages"
    if origin.retention != "limits":
        return "its messages go once its mirror has acknowledged them one by one"
    mirrored, limited = mirror.mirror, mirror.max_msgs_per_subject > 0
    if limited and mirrored is not None and any(each.dest for each in mirrored.subject_transforms):
        return "it would be limited by subjects that its origin has not got"
    for name in LIMITS:
        here, there = getattr(mirror, name), getattr(origin, name)
        if here > 0 and not 0 < there <= here:  # to remove most of a copy costs more than to read what is wanted
            return f"{name} of its mirror may be less than it holds"
    return ""


class CloneFirst(Session):
    """The session of a mirror with its origin: it begins behind a copy, if there is to be one."""

    def __init__(self, stream: Stream, source: StreamSource, origin: Origin, taker: Taker) -> None:
        super().__init__(stream.name, origin, stream.bus, stream.clock, taker)
        self._stream, self._source = stream, source
        self._errand: Errand | None = None
        self._later: Timer | None = None
        self._wanted = False

    @property
    def copying(self) -> bool:
        """Whether the mirror may be about to begin with a copy."""
        return self._wanted

    def begin(self) -> None:
        """Read, from soon on, or from when the copy is there."""
        stream, clones = self._stream, self._stream.copying.clones
        if clones is None:
            self._follow("it needs a lake that this server does not have")
        elif stream.store.upkeep.based:
            clones.settled(stream)  # a kill may have come between the entry and this
            self._follow("")
        elif stream.store.msgs:
            self._follow("")
        else:
            self._wanted = True
            if stream.intake.next_seq > 1 or not can_begin_as_copy(stream.config):
                self._begin_without("it had begun without a copy")
            else:
                self._errand = clones.copy(stream, self._source, self._told, self._waits)

    def _follow(self, why: str) -> None:
        """Read the origin, unless the mirror is that of a moment: then `why` it is not, if it is not."""
        self._wanted = False
        if not moment(self._stream.config):
            self.error = None
            super().begin()
        elif why:
            self._waits(why)

    def _begin_without(self, why: str) -> None:
        """Read the origin once it is certain that no copy comes any more: else the table would have messages twice."""
        stream, clones = self._stream, self._stream.copying.clones
        assert clones is not None, "it was asked"

        def settled(made: bool) -> None:
            if not self._wanted:
                return
            if made:
                self._errand = clones.copy(stream, self._source, self._told, self._waits)
            else:
                self._follow(why)

        clones.give_up(stream, settled)

    def end(self, remove: bool = False) -> None:
        """See `Session.end`."""
        clones = self._stream.copying.clones
        if self._wanted and remove and clones is not None:
            clones.discard(self._stream)
        self._wanted = False
        if self._errand is not None:
            self._errand.cancel()
            self._errand = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        super().end(remove)

    def _waits(self, what: str) -> None:
        self.error = _unavailable(what)

    def _told(self, outcome: Copied | NotCopied) -> None:
        self._errand = None
        if isinstance(outcome, Copied):
            self._propose(outcome.base)
            return
        if outcome.why:
            _logger.info("%s: no copy of %s: %s", self._stream.name, self._source.name, outcome.why)
        if moment(self._stream.config):
            self._waits(outcome.why)
            self._later = self._stream.clock.call_later(AGAIN_NS, self.begin)
        else:
            self._begin_without(outcome.why)

    def _propose(self, base: Base) -> None:
        stream = self._stream
        refused = stream.no_room(base.size)
        if refused is not None:
            self.error = refused
            self._later = stream.clock.call_later(ROOM_NS, lambda: self._propose(base))
            return
        self.error = None
        stream.store.upkeep.ready = base
        stream.propose(Fork(base.origin.version, base.origin.through), self._forked)

    def _forked(self, result: object) -> None:
        stream = self._stream
        if isinstance(result, ApiError) or not self._wanted:
            return  # somebody else leads now, and goes on from what the log says
        if stream.copying.clones is not None:
            stream.copying.clones.settled(stream)
        _logger.info("%s: began with %d messages of %s", stream.name, stream.store.msgs, self._source.name)
        stream.clock.call_soon(self._keep)  # not here: the entry counts as applied once this has returned
        self._follow("")

    def _keep(self) -> None:
        """Write down what was begun with, so that a start need not read it again."""
        if not self._stream.closed:
            self._stream.checkpoint()


def _unavailable(why: str) -> ApiError:
    """What INFO shows while a mirror can not be what it is to be."""
    return ApiError(503, 0, why)


# ---------------------------------------------------------------------- the log's side
def apply_fork(stream: Stream, operation: Fork) -> None:
    """Let a mirror begin with its copy, which is within its limits (`why_not`). Raises NoBase."""
    store = stream.store
    if stream.config.mirror is None:
        store.upkeep.ready = None  # it was promoted right before
        return
    base, store.upkeep.ready = store.upkeep.ready or store.upkeep.find_base(), None
    if base is None or (base.origin.version, base.origin.through) != (operation.version, operation.through):
        raise NoBase(store.upkeep.directory)
    purged_below = store.first_seq if store.last_seq else 0
    put_under(store, base)
    if purged_below > 1:
        store.set_first(purged_below)  # before it came; it is purged of that all the same
    stream.intake.rewind()
    for consumer in list(stream.consumers.values()):
        consumer.feed.rewind()
        consumer.wake()
    stream.expiry.arm()
