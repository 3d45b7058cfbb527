"""Interfaces of the stream that its mirror and sources depend on.

Belongs here: protocols only, one for each user, as narrow as that user needs. The stream satisfies them structurally.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakestream.log.format.record import Record
from lakestream.log.store.store import Store
from lakestream.ports import Bus, Clock
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect
from lakestream.stream.core.operations import Operation
from lakestream.stream.core.publish import Publish
from lakestream.stream.mirroring.runs import Run


class Proposer(Protocol):
    """The stream's proposer, as mirrors and sources use it."""

    @property
    def next_seq(self) -> int:
        """Return the sequence of the next message."""

    @property
    def moving(self) -> bool:
        """Return True while an operation is in flight that may move the sequence or change the rules."""

    def renamed(self, subject: bytes) -> bytes:
        """Return the subject after the stream's own subject transform."""

    def effect_of(self, header: bytes) -> Effect:
        """Return what a message with this header block does once stored."""

    def duplicate_of(self, effect: Effect) -> int:
        """Return the sequence of the stored message that one with this effect repeats, 0 if there is none."""

    def skip(self, through: int) -> None:
        """Give out the sequences through this one: an operation that says so is about to be proposed."""

    def take_at(
        self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes, effect: Effect
    ) -> ApiError | None:
        """Store a mirrored message under a given sequence and time; return why not, `NOT_NOW` to try again soon."""

    def take_run(self, run: Run) -> int:
        """Store mirrored messages under their sequences and times; return how many, from the first on."""

    def take(self, message: Publish, effect: Effect | None, time_ns: int = 0) -> int:
        """Store a sourced message; return its sequence, 0 if it can not be stored now."""

    def take_all(self, subjects: list[bytes], headers: list[bytes], payloads: list[bytes], effect: Effect) -> bool:
        """Store sourced messages, of which only the last has an effect; return False if they are to come one by one."""

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` once every message that was taken is committed; never, when this node ceases to lead."""


class View(Protocol):
    """The stream as it will be once everything in flight is stored."""

    def unsettled(self, subject: bytes, header: bytes) -> bool:
        """Return True if what is in flight may remove the subject's last message."""

    def last_of(self, subject: bytes) -> int:
        """Return the sequence of the subject's last message, 0 if there is none."""

    def record(self, seq: int) -> Record | None:
        """Return a message. Raise NotHere if only the lake has it."""

    def room(self, subject: bytes, length: int, rollup: bool) -> ApiError | None:
        """Return why there is no room for a message of this accounted length, None if there is."""


class _Named(Protocol):
    """Members that every user needs."""

    name: str
    account: str
    config: StreamConfig
    clock: Clock


class SessionHost(_Named, Protocol):
    """The stream for which a session reads an origin."""

    bus: Bus


class SourceHost(SessionHost, Protocol):
    """The stream of a source."""

    def weighed(self) -> bool:
        """Return True while the room for each message is checked, because server or account hold much already."""

    async def fetch(self, seq: int) -> Record | None:
        """Return a message from the log or the lake, None if it does not exist."""


class ReplicaHost(_Named, Protocol):
    """A replica of a mirror that may begin as a clone."""

    store: Store

    @property
    def closed(self) -> bool:
        """Return True once the stream has ended on this node."""


class CloneHost(SessionHost, ReplicaHost, Protocol):
    """A mirror that may begin as a clone of its origin's table, on its leader."""

    @property
    def leading(self) -> bool:
        """Return True while this node decides for the stream."""

    def no_room(self, length: int) -> ApiError | None:
        """Return why server or account have no room for so many bytes, None if they have."""

    def propose(self, operation: Operation, done: Callable[[object], None] | None = None) -> None:
        """Log an operation; call `done` with its result once it is applied, or with an ApiError."""

    def checkpoint(self) -> None:
        """Write the indexes and the stream's state beside the log."""


class MirroringHost(CloneHost, SourceHost, Protocol):
    """The stream of `Mirroring`."""

    @property
    def replicated(self) -> bool:
        """Return True if other nodes hold the stream too."""

    def updated(self) -> None:
        """Tell the server that what others see of the stream has changed, as after a change of its configuration."""

    def rebased(self) -> None:
        """Let every part look at the store anew: it got messages that were never in the log."""
