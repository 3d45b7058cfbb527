"""Subscriptions and their sinks.

Belongs here: one subscription, the set of subscriptions that match a subject, and the interfaces of what receives the
messages: client connections, internal subscribers, other nodes. A subscription and its sink name each other, so both
are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from lakestream.protocol.client import ClientInfo
from lakestream.protocol.commands import Single
from lakestream.protocol.messages import Messages

MAX_WEIGHT = 999_999_999
"""Members of a queue group that the subscription of one other server counts for, as in nats-server."""

MAX_PLACES = 1000
"""Places of a queue group in a match (1,000). With more members other servers get places in proportion to theirs."""


class Congested(Protocol):
    """A receiver with more unsent bytes than its high-water mark."""

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once when it is no longer congested, or gone."""


class Sink(Congested, Protocol):
    """A receiver of messages: a client connection, an internal subscriber, or another server.

    Attributes:
        echo: it receives what it sends.
        columnar: it takes runs of publishes; other sinks get their messages one by one.
    """

    echo: bool
    columnar: bool

    @property
    def congested(self) -> bool:
        """Return True above the high-water mark of unsent bytes."""

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        """Take messages from `begin` on, at most to before `end`, for the subscription `sub`.

        Args:
            client: who sent them.

        Returns:
            The message behind those that it took: `end`, or less where the next one goes to others (`Messages.stop`),
            or where it takes them one by one, so that the caller can look at the time.
        """


class SingleSink:
    """A sink that handles every message by itself."""

    columnar = False
    echo = True
    congested = False

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        end = messages.stop(begin, end)
        for each in messages.messages(begin, end):
            self.receive(sub, each, client)
        return end

    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        """Take one message for the subscription `sub`."""
        raise NotImplementedError

    def on_drain(self, callback: Callable[[], None]) -> None:
        callback()


class Remote(Sink, Protocol):
    """Another node of the cluster."""

    name: str

    def holds(self, to: bytes) -> bool:
        """Return True while a receiver of `to` on that node is congested."""

    def on_release(self, to: bytes, callback: Callable[[], None]) -> None:
        """Call back once when `holds(to)` ends, or the node is gone."""


@runtime_checkable
class Requester(Protocol):
    """A sink that is told when its request has no responders."""

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        """Report that a request on `subject` has no responders; its reply would have come to `sub`."""


@runtime_checkable
class NamedSink(Protocol):
    """A sink that a trace names: a client connection or another node, not an internal subscriber."""

    id: int
    name: str


@runtime_checkable
class Filtering(Protocol):
    """A sink whose permissions may deny single messages of its subscriptions."""

    def hides(self, subject: bytes) -> bool:
        """Return True if a message with this subject is not delivered to the sink."""


def hides(sink: Sink, subject: bytes) -> bool:
    """Return True if the sink's permissions deny a message with this subject."""
    return isinstance(sink, Filtering) and sink.hides(subject)


class Subscription:
    """One subscription of one sink.

    Attributes:
        sink: receives the messages.
        subject: the filter, valid for SUB; never changes.
        queue: the queue group, b"" for none; never changes.
        sid: the client's id of the subscription.
        maximum: deliveries since SUB after which it ends; 0 = no end. Kept by the sink.
        delivered: deliveries so far. Kept by the sink.
        local: not announced to other nodes.
        elsewhere: its subscribers are behind another server, which takes one copy of a message for all of them.
        remote: the node whose interest this is; None for a subscription on this node.
        far: a queue group's members that it stands for are all behind leaf nodes of another node.
        apart: takes its messages, if their order among those of other such functions makes no difference. Streams do.
        weight: members of the queue group that it stands for; more than 1 only for another server.
    """

    __slots__ = (
        *("apart", "delivered", "elsewhere", "far", "local", "maximum", "queue"),
        *("remote", "sid", "sink", "subject", "weight"),
    )

    def __init__(self, sink: Sink, subject: bytes, queue: bytes, sid: bytes) -> None:
        self.sink = sink
        self.subject = subject
        self.queue = queue
        self.sid = sid
        self.maximum = 0
        self.delivered = 0
        self.elsewhere = self.far = self.local = False
        self.remote: Remote | None = None
        self.apart: Callable[..., int] | None = None
        self.weight = 1

    def took(self, deliveries: int) -> None:
        """Count deliveries of a block of messages."""
        self.delivered += deliveries


class SubscriptionGroup(Subscription):
    """Several subscriptions of one sink, as one: it gets each message for all of them, before the next one.

    `sid` has all of theirs, with blanks between them. Deliveries are counted for each of them.
    """

    __slots__ = ("subs",)

    def __init__(self, subs: list[Subscription]) -> None:
        super().__init__(subs[0].sink, b"", b"", b" ".join(sub.sid for sub in subs))
        self.subs = subs

    def took(self, deliveries: int) -> None:
        for sub in self.subs:
            sub.took(deliveries // len(self.subs))


def hand(sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> None:
    """Have the sink of a subscription take messages, all of them."""
    while begin < end:
        begin = sub.sink.take(sub, messages, begin, end, client)


class Match:
    """The subscriptions that match one subject. Immutable: a change of interest makes another match.

    Attributes:
        plain: subscriptions without a queue group; each receives the message. At most one of each other server.
        parties: if `columnar`, who takes a run of messages, one after the other: those of one sink are a group.
        queues: the members of each queue group, one of which receives the message; another server appears once per
            member there, so that every member has the same chance, or less often in proportion (`MAX_PLACES`).
        here: the part for messages from another node (subscriptions of this node that are not local); None: all.
    """

    __slots__ = ("_columnar", "here", "parties", "plain", "queues")

    def __init__(self, plain: list[Subscription], queues: list[list[Subscription]], here: Match | None = None) -> None:
        self.plain = plain
        self.queues = queues
        self.here = here
        self._columnar: bool | None = None
        self.parties: list[Subscription] = []

    @property
    def columnar(self) -> bool:
        """Return True if the subscriptions can take a run of messages, one sink after the other: none shares a queue
        group with another, and only clients have several."""
        if self._columnar is None:
            by_sink: dict[int, list[Subscription]] = {}
            for sub in self.takers:
                by_sink.setdefault(id(sub.sink), []).append(sub)
            self._columnar = all(len(set(group)) == 1 for group in self.queues) and all(
                subs[0].sink.columnar and (len(subs) == 1 or subs[0].remote is None) for subs in by_sink.values()
            )
            if self._columnar:
                self.parties = [subs[0] if len(subs) == 1 else SubscriptionGroup(subs) for subs in by_sink.values()]
        return self._columnar and not any(sub.maximum for sub in self.takers)

    @property
    def apart(self) -> Subscription | None:
        """Return the only subscription if it takes its messages apart from those of others."""
        return self.plain[0] if len(self.plain) == 1 and self.plain[0].apart and not self.queues else None

    def same(self, other: Match) -> bool:
        """Return True if these are the same subscriptions."""
        return self.plain == other.plain and self.queues == other.queues

    @property
    def takers(self) -> list[Subscription]:
        """Return the plain subscriptions and one of each queue group, which come last."""
        return self.plain if not self.queues else [*self.plain, *(group[0] for group in self.queues)]
