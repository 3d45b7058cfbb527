"""Rules that a message has to pass before it is proposed.

Belongs here: the message that is judged, the view of the stream that rules get, and the rules of size that hold for
every stream. The rules of publish headers are their features' (`Feature.rules`); here they are put in the orders of
nats-server 2.15.1 (docs/internals/streams.md#publish-headers). Rules look at the stream as it will be once everything
already proposed is stored, so that two publishes of one turn see each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from lakestream.log.format.record import Record
from lakestream.ports import ClientInfo
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core.batch import After
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import MARK, Effect, EffectKey, Effects, Given

T = TypeVar("T")

MAX_HEADER_BYTES = 65535
"""A header block larger than this is refused with 10097."""

MAX_RECORD_BYTES = 32 << 20
"""A message larger than this (subject, headers and payload) is refused with 10054."""


class View(Protocol):
    """The stream as a publish sees it: committed state plus everything in flight."""

    @property
    def config(self) -> StreamConfig:
        """Return the stream's configuration."""

    @property
    def max_msg_size(self) -> int:
        """Return the stream's limit, also where `config` has none because messages were judged by it before."""

    def last_seq(self) -> int:
        """Return the last sequence given."""

    def last_of(self, subject: bytes) -> int:
        """Return the last sequence of a subject (or of all that match, with wildcards); 0 if there is none."""

    def record(self, seq: int) -> Record | None:
        """Return a message that exists, or is on its way; None when it has gone. Raise NotHere."""

    def feature(self, kind: type[T]) -> T:
        """Return the stream's feature of this class."""

    def staged(self, key: EffectKey[Any], value: object) -> int:
        """Return the sequence of an earlier member of the same atomic batch with this value in its effect, or 0."""

    def keeps_last(self, msgs: int, size: int) -> bool:
        """Return True if no message in flight, nor any of so many more of this size, can remove the last message of a
        subject."""

    def room(self, subject: bytes, length: int, rollup: bool) -> ApiError | None:
        """Return why there is no room for a message of this accounted length, or None. `rollup`: it makes room."""


class Observer(Protocol):
    """Observer of one message on its way into the stream."""

    @property
    def only(self) -> bool:
        """Return True if the message is judged but not stored."""

    def refused(self, message: IncomingMessage, error: ApiError) -> bool:
        """Note that a rule refused the message. Return False if its publisher gets no answer."""

    def duplicate(self) -> None:
        """Note that the message was stored before."""

    def passed(self, message: IncomingMessage) -> None:
        """Note that the message passed every rule and, with `only`, goes no further."""

    def storing(self, message: IncomingMessage) -> After | None:
        """Return what to call once the message is stored, None for nothing."""


class IncomingMessage(msgspec.Struct):
    """A message that is being judged. Rules may rewrite its header and payload; what they leave is stored."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes
    client: ClientInfo | None = None
    """Sender; None for the server itself."""
    tail: bytes = b""
    """Follows the sequence in the pub ack: `,"val":"3"`."""
    after: After | None = None
    """Called once the message is committed and applied, unless leadership or the stream ends before."""
    observer: Observer | None = None
    time_ns: int = 0
    """Time under which an import stores it, in ns; 0: now."""

    @property
    def size(self) -> int:
        """Return its bytes while it waits."""
        return len(self.subject) + len(self.header) + len(self.payload)


class Duplicate(msgspec.Struct, frozen=True):
    """The message was stored before, under `seq`."""

    seq: int


class Postponed(Exception):
    """A rule cannot decide yet."""


class NotReady(Postponed):
    """A rule needs what this node is about to load: judge again when `wait` calls back, refuse if that is an error."""

    def __init__(self, wait: Callable[[Callable[[ApiError | None], None]], None]) -> None:
        super().__init__("it is being loaded")
        self.wait = wait


class NotHere(Postponed):
    """A rule needs the message with this sequence, which only the lake has: fetch it and judge again."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"sequence {seq} is only in the lake")
        self.seq = seq


ANY: frozenset[bytes] = frozenset()
"""For rules of every message that has headers of the protocol."""


class PublishRule(msgspec.Struct, frozen=True):
    """A rule that a message has to pass before it is stored.

    nats-server has three orders of its rules, and which error a publisher gets depends on them: for streams with one
    replica, for streams with several (fast batches use it too), and for what it looks at in a member of an atomic batch
    before the rules of replicated streams. A rule has a place in each order that it is part of; lower ones come first.
    """

    check: Callable[[View, IncomingMessage, Given], Duplicate | None]
    """Raises ApiError to refuse the message, Postponed to be asked again. May rewrite header and payload. `Given`:
    values of the header block as it came."""
    headers: frozenset[bytes] | None = None
    """Checked only if one of these headers is given (`Nats-…`, not empty). `ANY`: if the block has headers of the
    protocol at all; None: for every message that is judged."""
    single: int | None = None
    replicated: int | None = None
    member: int | None = None


class PublishRules:
    """The rules of all features in nats-server's orders."""

    def __init__(self, rules: Sequence[PublishRule], effects: Effects) -> None:
        self.effects = effects
        self.single = _ordered((each.single, each) for each in rules)
        self.replicated = _ordered((each.replicated, each) for each in rules)
        self.member = _ordered((each.member, each) for each in rules)
        self._for_every_message = tuple(each for each in rules if each.headers is None)

    def check(self, view: View, message: IncomingMessage, member: bool = False) -> Effect | Duplicate:
        """Apply every rule. Raise ApiError with the code of the first that fails, Postponed.

        `member`: of a batch, which nats-server judges in the order of rules of replicated streams.
        """
        config, subject, header, payload = view.config, message.subject, message.header, message.payload
        if config.sealed:
            raise api_error(10109)
        size = len(header) + len(payload)
        if 0 < config.max_msg_size < size or len(subject) + size > MAX_RECORD_BYTES:
            raise api_error(10054)
        if len(header) > MAX_HEADER_BYTES:
            raise api_error(10097)
        rules = self.replicated if member or config.num_replicas > 1 else self.single
        if MARK not in header:
            for rule in self._for_every_message:
                rule.check(view, message, {})
            return Effect(0)
        given = headers.given(header)
        duplicate = _apply(rules, view, message, given)
        if duplicate is not None:
            return duplicate
        if message.header is not header:
            given = headers.given(message.header)
        return self.effects.read(given, message.header, config, subject=subject)

    def check_member(self, view: View, message: IncomingMessage) -> Duplicate | None:
        """Apply what is judged otherwise, or earlier, in a member of an atomic batch. Raise ApiError."""
        given = headers.given(message.header)
        return _apply(self.member, view, message, given) if MARK in message.header else None


def _ordered(placed: Iterable[tuple[int | None, PublishRule]]) -> tuple[PublishRule, ...]:
    found = [(at, rule) for at, rule in placed if at is not None]
    return tuple(rule for _, rule in sorted(found, key=lambda one: one[0]))


def _apply(rules: tuple[PublishRule, ...], view: View, message: IncomingMessage, given: Given) -> Duplicate | None:
    names = given.keys()
    for rule in rules:
        if not rule.headers or not rule.headers.isdisjoint(names):
            duplicate = rule.check(view, message, given)
            if duplicate is not None:
                return duplicate
    return None
