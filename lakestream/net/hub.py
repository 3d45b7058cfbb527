"""The hub of an account: from one published message to everybody in the account who listens.

Belongs here: routing by the interest graph, the end of an event-loop turn (one write per connection), and the `Bus`
that JetStream uses. The hub knows receivers only as sinks; what a stream is, it does not know: a stream is a
subscriber like any other. So is another node of the cluster, except that what comes from there goes to nobody but the
subscribers here; and so is what crosses to another account: a subscription with a sink of its own kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lakestream.logging import Logger
from lakestream.net.interest.interest import Interest, Match, Subscription
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Delivery, Handler, Many
from lakestream.protocol.route_wire import Batch, Routed

if TYPE_CHECKING:
    from lakestream.config.mappings import Mappings
    from lakestream.net.tracing import Named, Tracing

TRACED = b"Nats-Trace-Dest:"
"""A message without these bytes in its headers is not traced."""


class Sink(Protocol):
    """Something that takes messages: a client connection or an internal subscriber."""

    echo: bool

    @property
    def congested(self) -> bool:
        """More unsent bytes than the high-water mark."""

    def receive(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        """Take one message for the subscription `sub`."""

    def receive_many(self, sub: Subscription, messages: Sequence[Delivery]) -> None:
        """Take a batch for the subscription `sub`."""

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once when no longer congested, or when gone."""


class Carrier(Sink, Protocol):
    """Another server, which takes messages for all of its subscribers at once."""

    def carry(self, queue: bytes, to: bytes, messages: Sequence[Delivery]) -> None:
        """Take a batch for the subscribers of `to` there: members of the queue group, or (b"") those in none."""


class Remote(Carrier, Protocol):
    """Another node of the cluster."""

    name: str

    def holds(self, to: bytes) -> bool:
        """Like `congested`, for what goes to `to`: a receiver there may be slow though the way to it is free."""

    def on_release(self, to: bytes, callback: Callable[[], None]) -> None:
        """Call back once when it no longer holds `to`, or is gone."""


@runtime_checkable
class Requester(Protocol):
    """A sink that may want to know that nobody listens to its request."""

    def unheard(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        """Nobody listens to `subject`; `sub` is where the answer would have come."""


class Imports(Protocol):
    """What an account hears from others: follows its subscriptions."""

    def joined(self, sub: Subscription) -> None:
        """A subscription has begun."""

    def left(self, sub: Subscription) -> None:
        """A subscription has ended."""


class Ways(Protocol):
    """The ways back of answers into other accounts.

    Attributes:
        prefix: how the subjects begin that lead through here.
    """

    prefix: bytes

    def behind(self, subject: bytes) -> tuple[Hub, bytes] | None:
        """Where an answer to `subject` goes: the hub of the account that asked, and the reply subject there."""

    def deliver(self, to: bytes, messages: Sequence[Delivery]) -> bool:
        """Send a batch through; False when nobody waits for it."""


class _Internal:
    """A sink that calls a handler in this process."""

    __slots__ = ("_handler", "_log", "_many", "_system", "echo")

    congested = False

    def __init__(self, handler: Handler, log: Logger, system: ClientInfo, many: Many | None = None) -> None:
        self._handler = handler
        self._many = many
        self._log = log
        self._system = system
        self.echo = True

    def receive(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        # Whatever a client sends must not take the server down: a handler's failure stays with its message.
        try:
            self._handler(subject, reply, header, payload, client)
        except Exception as error:
            self._log.exception(f"internal subscriber of {sub.subject!r} failed on {subject!r}", error)

    def receive_many(self, sub: Subscription, messages: Sequence[Delivery]) -> None:
        at, many = 0, self._many
        while at < len(messages):
            if many is not None:
                try:
                    at += many(messages, at)
                except Exception as error:
                    self._log.exception(f"internal subscriber of {sub.subject!r} failed on some messages", error)
                if at == len(messages):
                    return
            self.receive(sub, *messages[at], self._system)
            at += 1

    def on_drain(self, callback: Callable[[], None]) -> None:
        callback()


class _Handle:
    """Cancels an internal subscription."""

    __slots__ = ("_hub", "_sub")

    def __init__(self, hub: Hub, sub: Subscription) -> None:
        self._hub = hub
        self._sub: Subscription | None = sub

    def cancel(self) -> None:
        if self._sub is not None:
            self._hub.leave(self._sub)
            self._sub = None


class Hub:
    """Routes messages among the connections and internal subscribers of one account; implements `Bus`.

    Args:
        turn: shared by the hubs of a server.
        log: where a failing internal subscriber is reported.
        account: whose hub this is.

    Attributes:
        system: the origin of what the server itself publishes here.
        tracing: routes the messages that are traced.
        imports: what the account hears from others; None without any.
        mappings: subjects that its clients are sent elsewhere with; None without any.
        responses: the ways back of answers that leave the account; None without any.
        dirty, soon: see `Turn`.
    """

    def __init__(self, turn: Turn, log: Logger, account: str = "$G") -> None:
        self.account = account
        self.system = ClientInfo(id=0, host="", account=account, kind="System")
        self.interest_graph = Interest()
        self.turn = turn
        self.log = log
        self.tracing: Tracing | None = None
        self.imports: Imports | None = None
        self.mappings: Mappings | None = None
        self.responses: Ways | None = None
        self.dirty, self.soon = turn.dirty, turn.soon
        self._choice = random.Random().choice

    # ------------------------------------------------------------------ who listens
    def join(self, sub: Subscription) -> None:
        """A subscription begins."""
        self.interest_graph.insert(sub)
        if self.imports is not None:
            self.imports.joined(sub)

    def leave(self, sub: Subscription) -> None:
        """A subscription ends."""
        self.interest_graph.remove(sub)
        if self.imports is not None:
            self.imports.left(sub)

    # ------------------------------------------------------------------ routing
    def route(
        self,
        origin: Sink | None,
        client: ClientInfo,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> bool:
        """Hand one message to every plain subscriber and to one member of each queue group. False: nobody."""
        match = self.interest_graph.match(subject)
        found = False
        for sub in match.plain:
            sink = sub.sink
            if sink is origin and not sink.echo:
                continue
            sink.receive(sub, subject, reply, header, payload, client)
            found = True
        for group in match.queues:
            if origin is not None and not origin.echo:
                group = [sub for sub in group if sub.sink is not origin]
                if not group:
                    continue
            sub = group[0] if len(group) == 1 else self._choice(group)
            sub.sink.receive(sub, subject, reply, header, payload, client)
            found = True
        return found

    def chosen(self, subject: bytes, origin: Sink | None, hides: Callable[[Sink, bytes], bool]) -> list[Subscription]:
        """Whoever `route` would hand a message to, and `origin` even where it wants no echo.

        A member of a queue group that `hides` the subject from itself is taken only where there is no other.
        """
        match = self.interest_graph.match(subject)
        chosen = list(match.plain)
        for group in match.queues:
            members = [sub for sub in group if sub.sink is not origin or sub.sink.echo]
            members = [sub for sub in members if not hides(sub.sink, subject)] or members
            if members:
                chosen.append(self._choice(members))
        return chosen

    # ------------------------------------------------------------------ from other nodes
    def arrived(self, message: Routed, client: ClientInfo, node: Named | None = None) -> list[bytes]:
        """Hand a message that another node routed here to the subscribers of this node. `node`: named in its trace.

        Returns:
            The queue groups it was meant for that have no member here any more; b"" for the subscribers in none.
        """
        subject, reply, header, payload = message.subject, message.reply, message.header, message.payload
        subs, left = self._meant(message)
        if header and TRACED in header and node is not None and self.tracing is not None and not message.relayed:
            self.tracing.arrived(node, message, client, subs)
            return left
        for sub in subs:
            sub.sink.receive(sub, subject, reply, header, payload, client)
        return left

    def _meant(self, message: Routed) -> tuple[list[Subscription], list[bytes]]:
        """The subscriptions that a message from another node is for, and what `arrived` returns."""
        match = self.interest_graph.match(message.subject)
        if message.relayed:
            # A service of another account is no matter of this node's: the other one has it, too.
            return [sub for sub in match.plain if sub.local and type(sub.sink) is _Internal], []
        here = match.here or match
        groups = message.groups
        if groups is None:
            return here.plain, [] if here.plain else [b""]
        subs = list(here.plain) if b"" in groups else []
        left = [queue for queue in groups if queue or not here.plain]
        for group in here.queues:
            if group[0].queue in left:
                left.remove(group[0].queue)
                subs.append(self._choice(group))
        return subs, left

    def unheard(self, subject: bytes, reply: bytes) -> None:
        """Another node had no subscriber any more for a request of a client here: if there is none anywhere now, the
        client hears of it, as it would have when publishing."""
        if not self.interest_graph.interest(subject):
            self.alone(subject, reply)

    def alone(self, subject: bytes, reply: bytes) -> None:
        """Nobody hears a request of a client here: it is told."""
        for sub in self.interest_graph.match(reply).plain:
            if isinstance(sub.sink, Requester) and not sub.subject.startswith((b"*", b">")):
                sub.sink.unheard(sub, subject, reply)

    def declined(self, subject: bytes, reply: bytes) -> None:
        """See `Bus.declined`. Another subscriber may be an import: who listens there may take it."""
        match = self.interest_graph.match(subject)
        if len(match.plain) + len(match.queues) <= 1:
            self.alone(subject, reply)

    def delivered(self, batch: Batch) -> bool:
        """Hand a batch that another node delivers to the subscribers of this node. False: nobody here."""
        if self.responses is not None and batch.to.startswith(self.responses.prefix):
            return self.responses.deliver(batch.to, batch.messages)
        match = self.interest_graph.match(batch.to)
        here = match.here or match
        if not batch.queue:
            for sub in here.plain:
                if sub.carrier is None:
                    sub.sink.receive_many(sub, batch.messages)
                else:
                    sub.carrier.carry(b"", batch.to, batch.messages)
            return bool(here.plain)
        for group in here.queues:
            if group[0].queue == batch.queue:
                for message in batch.messages:
                    self._hand(self._choice(group), batch.to, (message,))
                return True
        return False

    def elsewhere(self, subject: bytes, queue: bytes) -> Subscription | None:
        """A member of a queue group on another node, each with the same chance; None without any."""
        for group in self.interest_graph.match(subject).queues:
            if group[0].queue == queue:
                members = [sub for sub in group if sub.remote is not None]
                return self._choice(members) if members else None
        return None

    # ------------------------------------------------------------------ Bus
    def subscribe(
        self, subject: bytes, handler: Handler, queue: bytes = b"", *, local: bool = False, many: Many | None = None
    ) -> _Handle:
        """See `Bus.subscribe`."""
        sub = Subscription(_Internal(handler, self.log, self.system, many), subject, queue, b"")
        sub.local = local
        self.join(sub)
        return _Handle(self, sub)

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """See `Bus.publish`."""
        return self.route(None, self.system, subject, reply, header, payload)

    def reply_many(self, replies: Sequence[tuple[bytes, bytes]]) -> None:
        """See `Bus.reply_many`."""
        match, run = self.interest_graph.match, list[Delivery]()
        same: Match | None = None
        for subject, payload in replies:
            found = match(subject)
            if found is not same:
                if same is not None:
                    self._reply_to(same, run)
                run, same = [], found
            run.append((subject, b"", b"", payload))
        if same is not None:
            self._reply_to(same, run)

    def _reply_to(self, match: Match, run: Sequence[Delivery]) -> None:
        """Send a run of replies that the same subscriptions get. Mostly it is one, of the inbox of one client."""
        for sub in match.plain:
            if sub.carrier is None:
                sub.sink.receive_many(sub, run)
            else:
                for subject, reply, header, payload in run:
                    sub.sink.receive(sub, subject, reply, header, payload, self.system)
        for group in match.queues:
            for subject, reply, header, payload in run:
                sub = self._choice(group)
                sub.sink.receive(sub, subject, reply, header, payload, self.system)

    def deliver(self, to: bytes, messages: Sequence[Delivery]) -> bool:
        """See `Bus.deliver`."""
        if self.responses is not None and to.startswith(self.responses.prefix):
            return self.responses.deliver(to, messages)
        match = self.interest_graph.match(to)
        found = False
        for sub in match.plain:
            if sub.carrier is None:
                sub.sink.receive_many(sub, messages)
            else:
                sub.carrier.carry(b"", to, messages)
            found = True
        for group in match.queues:
            found = True
            if len(group) == 1:
                self._hand(group[0], to, messages)
                continue
            for message in messages:
                self._hand(self._choice(group), to, (message,))
        return found

    @staticmethod
    def _hand(sub: Subscription, to: bytes, messages: Sequence[Delivery]) -> None:
        if sub.carrier is None:
            sub.sink.receive_many(sub, messages)
        else:
            sub.carrier.carry(sub.queue, to, messages)

    def interest(self, subject: bytes, queue: bytes = b"") -> bool:
        """See `Bus.interest`."""
        if self.responses is not None and subject.startswith(self.responses.prefix):
            away = self.responses.behind(subject)
            return away is not None and away[0].interest(away[1])
        return self.interest_graph.interest(subject, queue)

    def bound(self, subject: bytes, queue: bytes = b"") -> bool:
        """See `Bus.bound`."""
        return self.interest_graph.bound(subject, queue)

    def _receivers(self, to: bytes) -> list[Subscription]:
        match = self.interest_graph.match(to)
        if not match.queues:
            return match.plain
        receivers = list(match.plain)
        for group in match.queues:
            receivers.extend(group)
        return receivers

    def slow_receiver(self, to: bytes) -> Sink | None:
        """A receiver of `to` on this node that is congested, None without any."""
        if self.responses is not None and to.startswith(self.responses.prefix):
            away = self.responses.behind(to)
            return away[0].slow_receiver(away[1]) if away is not None else None
        match = self.interest_graph.match(to)
        here = match.here or match
        for group in (here.plain, *here.queues):
            for sub in group:
                if sub.sink.congested:
                    return sub.sink
        return None

    def writable(self, to: bytes) -> bool:
        """See `Bus.writable`."""
        if self.responses is not None and to.startswith(self.responses.prefix):
            away = self.responses.behind(to)
            return away is None or away[0].writable(away[1])
        for sub in self._receivers(to):
            if sub.sink.congested or (sub.remote is not None and sub.remote.holds(to)):
                return False
        return True

    def when_writable(self, to: bytes, callback: Callable[[], None]) -> None:
        """See `Bus.when_writable`."""
        if self.responses is not None and to.startswith(self.responses.prefix) and (away := self.responses.behind(to)):
            away[0].when_writable(away[1], callback)
            return
        for sub in self._receivers(to):
            if sub.sink.congested:
                sub.sink.on_drain(lambda: self.when_writable(to, callback))
                return
            if sub.remote is not None and sub.remote.holds(to):
                sub.remote.on_release(to, lambda: self.when_writable(to, callback))
                return
        self.soon(callback)

    def watch_interest(self, subject: bytes, queue: bytes, callback: Callable[[bool], None]) -> _Watch:
        """See `Bus.watch_interest`."""
        return _Watch(self.interest_graph, subject, queue, callback)


class _Watch:
    """Cancels a watch on interest."""

    __slots__ = ("_cancel",)

    def __init__(self, graph: Interest, subject: bytes, queue: bytes, callback: Callable[[bool], None]) -> None:
        self._cancel: Callable[[], None] | None = graph.watch(subject, queue, callback)

    def cancel(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
