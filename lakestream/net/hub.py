"""The hub of an account: routes each published message to the account's subscribers.

Belongs here: routing by the interest graph, and the `Bus` that JetStream uses. How much of the clients' input a turn of
the event loop takes is decided in turn.py. The hub knows receivers only as sinks: streams, other nodes and imports of
other accounts are subscribers like clients. Messages from another node go only to subscribers of this node.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Protocol

from lakestream.config.mappings import Mappings
from lakestream.logging import Logger
from lakestream.net.interest.interest import Interest, Watch
from lakestream.net.interest.subscription import Match, NamedSink, Requester, Sink, Subscription, hand
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, ListedMessages, MessageBlock, Messages, Single, Take
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.publishes import PubAcks, Publishes

TRACED = b"Nats-Trace-Dest:"
"""Bytes of the headers of a message that is traced, whatever its account follows."""


class MessageTracing(Protocol):
    """Routing of traced messages; see `Tracing` in tracing.py."""

    def route(self, origin: Sink, client: ClientInfo, message: Single, mapped: bytes | None = None) -> bool:
        """Route a client's message like `Hub.route`. `mapped`: what the account maps the subject to."""

    def arrived(self, node: NamedSink, message: Single, client: ClientInfo, subs: Sequence[Subscription]) -> None:
        """Hand a message from another node to these subscriptions."""

    def refused(self, client: ClientInfo, message: Single, mapped: bytes | None, error: str) -> None:
        """Trace a message that permissions reject."""

    def destination(self, header: bytes) -> bytes:
        """Return the subject that the trace would be sent to; b"" without a trace."""

    def follows(self, data: bytes) -> bool:
        """Return True if these bytes may have the header of an external trace that the account follows."""

    def of_domain(self, subject: bytes) -> bytes:
        """Return the subject without the prefix of this server's domain."""


class Imports(Protocol):
    """Follows the subscriptions of an account that has imports."""

    def joined(self, sub: Subscription) -> None:
        """Note that a subscription began."""

    def left(self, sub: Subscription) -> None:
        """Note that a subscription ended."""


SINGLE = 4
"""Messages of a run that are routed one by one between two looks at the time."""

FEW = 64
"""Subjects of a run that are looked at together."""

SHARED = 2048
"""Messages of a run to several streams that are handed over between two looks at the time: about a millisecond. With
fewer, each stream gets more small parts, each of which costs as much as ten messages."""


class ReplyPaths(Protocol):
    """The reply paths into other accounts.

    Attributes:
        prefix: the common prefix of their subjects.
    """

    prefix: bytes

    def resolve(self, subject: bytes) -> tuple[Hub, bytes] | None:
        """Return the hub of the requesting account and the reply subject there; None: no such path."""

    def deliver(self, messages: MessageBlock) -> bool:
        """Send a batch through a path; return False when it is closed."""


class _Internal:
    """A sink that hands messages to a function of this process. `columnar`: it takes runs of publishes."""

    __slots__ = ("_log", "_take", "columnar", "echo")

    congested = False

    def __init__(self, take: Take, log: Logger, columnar: bool) -> None:
        self._take, self._log, self.columnar = take, log, columnar
        self.echo = True

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        # A message must not stop the server: a failure is logged.
        try:
            return self._take(messages, begin, end, client)
        except Exception as error:
            subject = messages.message(begin).subject
            self._log.exception(f"internal subscriber of {sub.subject!r} failed on {subject!r}", error)
            return end if type(messages) is Publishes else begin + 1

    def on_drain(self, callback: Callable[[], None]) -> None:
        callback()


class _Handle:
    """Handle of an internal subscription."""

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
        log: for failures of internal subscribers.
        account: the account's name.

    Attributes:
        system: the sender of the server's own messages.
        tracing: routes traced messages; None: off.
        imports: follows subscriptions; None without imports.
        mappings: subject mappings; None without any.
        responses: reply paths into other accounts; None without any.
        guard: returns the function by which an internal subscription, without a queue group, gets its messages; None:
            its own. A stream that comes from another worker is guarded.
        dirty: see `Turn`.
        stopped: the message behind those that `route_run` has routed.
    """

    def __init__(self, turn: Turn, log: Logger, account: str = GLOBAL_ACCOUNT) -> None:
        self.account = account
        self.system = ClientInfo(id=0, host="", account=account, kind="System")
        self.interest_graph = Interest()
        self.turn = turn
        self.log = log
        self.tracing: MessageTracing | None = None
        self.imports: Imports | None = None
        self.mappings: Mappings | None = None
        self.responses: ReplyPaths | None = None
        self.guard: Callable[[bytes, Take], Take] | None = None
        self.dirty = turn.dirty
        self.stopped = 0
        self._choice = random.Random().choice

    # ------------------------------------------------------------------ who listens
    def join(self, sub: Subscription) -> None:
        """Add a subscription."""
        self.interest_graph.insert(sub)
        if self.imports is not None:
            self.imports.joined(sub)

    def leave(self, sub: Subscription) -> None:
        """Remove a subscription."""
        self.interest_graph.remove(sub)
        if self.imports is not None:
            self.imports.left(sub)

    # ------------------------------------------------------------------ routing
    def route(self, origin: Sink | None, client: ClientInfo, message: Single) -> bool:
        """Hand one message to every plain subscriber and one member of each queue group; return False without any."""
        match = self.interest_graph.match(message.subject)
        found = False
        for sub in match.plain:
            sink = sub.sink
            if sink is origin and not sink.echo:
                continue
            sink.take(sub, message, 0, 1, client)
            found = True
        for group in match.queues:
            if origin is not None and not origin.echo:
                group = [sub for sub in group if sub.sink is not origin]
                if not group:
                    continue
            sub = group[0] if len(group) == 1 else self._choice(group)
            sub.sink.take(sub, message, 0, 1, client)
            found = True
        return found

    def route_run(
        self, origin: Sink | None, client: ClientInfo, run: Publishes, begin: int, end: int, *, sliced: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Route messages of a run, from `begin` to before `end`, as `route` does each of them. Yield the parts
        (begin, end) without any receiver, each before the messages behind it are routed.

        Subjects are matched where they change; a part whose messages go to the same subscriptions is handed to them
        as a whole if they take it. Messages to several streams in turn are handed to each stream together.

        Args:
            sliced: stop when the turn is over, and set `stopped` to the first message that was not routed.
        """
        self.stopped = end
        single, first = 0, begin
        while first < end:
            match, stop = self._part(run, first, end)
            if match.apart and stop < end:
                first = self.share(run, first, end, lambda at: client)
                if sliced and first < end and self.turn.is_over():
                    self.stopped = first
                    return
            elif stop - first > 1 and match.columnar:
                while first < stop:
                    taken = self._route_part(match, origin, client, run, first, stop)
                    if not taken:
                        yield first, stop
                        first = stop
                        break
                    first = taken
                    if sliced and first < stop and self.turn.is_over():
                        self.stopped = first
                        return
            else:
                while first < stop:
                    if not self.route(origin, client, run.message(first)):
                        yield first, first + 1
                    first += 1
                    if sliced:
                        single += 1
                        if not single % SINGLE and first < end and self.turn.is_over():
                            self.stopped = first
                            return

    def _part(self, run: Publishes, begin: int, end: int) -> tuple[Match, int]:
        """Return the match of a message of a run, and the first one behind it, before `end`, that goes to other
        subscriptions."""
        graph, subjects, starts = self.interest_graph, run.subjects, run.starts
        match = graph.match
        same = match(subjects[begin])
        prefix = graph.prefix_of(same) or b"\n"  # no subject begins with a line end
        stop = bisect_left(starts, end)
        for number in range(bisect_right(starts, begin), stop, FEW):
            for at in starts[number : min(number + FEW, stop)]:  # quicker than one by one; the first may end the part
                subject = subjects[at]
                if subject.startswith(prefix) and b".." not in subject and not subject.endswith(b"."):
                    continue  # acks, keys: no two have the same subject
                found = match(subject)
                if found is not same and not found.same(same):
                    return same, at
        return same, end

    def share(self, run: Publishes, begin: int, end: int, sender: Callable[[int], ClientInfo]) -> int:
        """Hand messages of a run to those that take theirs apart, to each all of them together. Return the first
        message that has other receivers, or that is left for the next call.

        Args:
            sender: returns the client that sent a message.
        """
        match, subjects = self.interest_graph.match, run.subjects
        of_subject: dict[bytes, list[int]] = {}
        of_taker: dict[Callable[..., int], tuple[Subscription, list[int]]] = {}  # it may have several subscriptions
        end = min(end, begin + SHARED)
        for at in range(begin, end):
            positions = of_subject.get(subjects[at])
            if positions is None:
                sub = match(subjects[at]).apart
                if sub is None or sub.apart is None:
                    end = at
                    break
                positions = of_subject[subjects[at]] = of_taker.setdefault(sub.apart, (sub, []))[1]
            positions.append(at)
        for sub, positions in of_taker.values():
            first, number, part = begin, len(positions), run
            if len(of_taker) > 1:
                first, part = 0, run.chosen(positions)
            at = 0
            while at < number:  # one that looks at a message by itself is told who sent it
                at = sub.sink.take(sub, part, first + at, first + number, sender(positions[at])) - first
        return end

    @staticmethod
    def _route_part(match: Match, origin: Sink | None, client: ClientInfo, run: Publishes, begin: int, end: int) -> int:
        """Hand messages of a part of a run to the subscriptions of its match, as many as the first one takes at once.
        Return the message behind them; 0: there is no subscription."""
        stop = 0
        for sub in match.parties:
            sink = sub.sink
            if sink is origin and not sink.echo:
                continue
            at = sink.take(sub, run, begin, stop or end, client)
            stop = stop or at
            hand(sub, run, at, stop, client)
        return stop

    def brought(self, near: Container[object], client: ClientInfo, message: Single, queues: Sequence[bytes]) -> bool:
        """Hand a message that a leaf node brought to every plain subscriber and to one member of each of these queue
        groups; return False without any. `near`: leaf nodes of its cluster, which have it already."""
        match = self.interest_graph.match(message.subject)
        found = False
        for sub in match.plain:
            if sub.sink not in near:
                sub.sink.take(sub, message, 0, 1, client)
                found = True
        for group in match.queues if queues else ():
            members = [sub for sub in group if sub.sink not in near] if group[0].queue in queues else []
            if members:
                sub = self._choice(members)
                sub.sink.take(sub, message, 0, 1, client)
                found = True
        return found

    def chosen(self, subject: bytes, origin: Sink | None, hides: Callable[[Sink, bytes], bool]) -> list[Subscription]:
        """Return the subscriptions that `route` would choose, and those of `origin` even without echo.

        A member of a queue group that `hides` the subject is chosen only when there is no other.
        """
        match = self.interest_graph.match(subject)
        chosen = list(match.plain)
        for group in match.queues:
            members = [sub for sub in group if sub.sink is not origin or sub.sink.echo]
            members = [sub for sub in members if not hides(sub.sink, subject)] or members
            if members:
                chosen.append(self._choice(members))
        return chosen

    def tracing_of(self, header: bytes) -> MessageTracing | None:
        """Return what routes a message with these headers and traces it; None: it is not traced."""
        tracing = self.tracing
        if tracing is None or not header:
            return None
        return tracing if TRACED in header or tracing.follows(header) else None

    def may_trace(self, run: Publishes) -> bool:
        """Return True if some messages of a client's run may be traced."""
        return bool(run.heads) and self.tracing is not None and self.tracing.follows(run.buf)

    # ------------------------------------------------------------------ from other nodes
    def arrived(
        self, message: Single, groups: list[bytes] | None, client: ClientInfo, node: NamedSink | None = None
    ) -> list[bytes]:
        """Hand a message that another node routed here to the subscribers of this node.

        Args:
            groups: see `Routed` in protocol/route_wire.py.
            node: named in its trace.

        Returns:
            The queue groups it was meant for that have no member here any more; b"" for the subscribers in none.
        """
        match = self.interest_graph.match(message.subject)
        subs, left = self._meant(match.here or match, groups)
        if node is not None and (tracing := self.tracing_of(message.header)) is not None:
            tracing.arrived(node, message, client, subs)
            return left
        for sub in subs:
            sub.sink.take(sub, message, 0, 1, client)
        return left

    def relayed(self, message: Single, client: ClientInfo) -> None:
        """Hand a message that another node relays to this one's local subscribers, and to no others. Service imports
        are not served for other nodes, which have the same imports."""
        for sub in self.interest_graph.match(message.subject).plain:
            if sub.local and type(sub.sink) is _Internal:
                sub.sink.take(sub, message, 0, 1, client)

    def arrived_run(
        self, run: Publishes, groups: list[bytes] | None, client: ClientInfo
    ) -> list[tuple[int, list[bytes]]]:
        """Hand messages that another node routed here to the subscribers of this node, as `arrived` does each of them.

        Args:
            groups: see `arrived`.

        Returns:
            (message, what `arrived` returns) of those that had no receiver of some group.
        """
        unserved: list[tuple[int, list[bytes]]] = []
        end = 0
        while end < len(run):
            begin = end
            match, end = self._part(run, begin, len(run))
            here = match.here or match
            if here.columnar and len(here.parties) == len(here.takers):
                subs, left = self._meant(here, groups)
                for sub in subs:
                    hand(sub, run, begin, end, client)
                if left:
                    unserved.extend((at, left) for at in range(begin, end))
                continue
            for at in range(begin, end):
                if left := self.arrived(run.message(at), groups, client):
                    unserved.append((at, left))
        return unserved

    def _meant(self, here: Match, groups: list[bytes] | None) -> tuple[list[Subscription], list[bytes]]:
        """Return the subscriptions of this node that a message from another one is for, and what `arrived` returns."""
        if groups is None:
            return here.plain, [] if here.plain else [b""]
        subs = list(here.plain) if b"" in groups else []
        left = [queue for queue in groups if queue or not here.plain]
        for group in here.queues:
            if group[0].queue in left:
                left.remove(group[0].queue)
                subs.append(self._choice(group))
        return subs, left

    def undelivered(self, subject: bytes, reply: bytes) -> None:
        """Report no responders for a request that another node could not deliver, if there are none here either."""
        if not self.interest_graph.interest(subject):
            self.no_responders(subject, reply)

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        """Send a 503 to the requester: the request has no responders."""
        for sub in self.interest_graph.match(reply).plain:
            if isinstance(sub.sink, Requester) and not sub.subject.startswith((b"*", b">")):
                sub.sink.no_responders(sub, subject, reply)

    def declined(self, subject: bytes, reply: bytes) -> None:
        """Report no responders when the only subscriber of a request declines it. An import may be another one."""
        match = self.interest_graph.match(subject)
        if len(match.plain) + len(match.queues) <= 1:
            self.no_responders(subject, reply)

    def delivered(self, messages: MessageBlock, queue: bytes) -> bool:
        """Hand a batch from another node to the subscribers of this node, or to members of a queue group (b"": those in
        none); return False without any."""
        if self.responses is not None and messages.to.startswith(self.responses.prefix):
            return self.responses.deliver(messages)
        match = self.interest_graph.match(messages.to)
        here = match.here or match
        if not queue:
            for sub in here.plain:
                hand(sub, messages, 0, len(messages), self.system)
            return bool(here.plain)
        for group in here.queues:
            if group[0].queue == queue:
                self._deal(group, messages)
                return True
        return False

    def _deal(self, group: Sequence[Subscription], messages: MessageBlock) -> None:
        """Hand each message to one member of a queue group."""
        if len(group) == 1 or len(messages) == 1:
            hand(self._choice(group), messages, 0, len(messages), self.system)
            return
        for message in messages:
            self._deal(group, ListedMessages((message,), to=messages.to))

    def elsewhere(self, subject: bytes, queue: bytes) -> Subscription | None:
        """Return a member of a queue group on another node, chosen at random; None without any."""
        for group in self.interest_graph.match(subject).queues:
            if group[0].queue == queue:
                members = [sub for sub in group if sub.remote is not None]
                return self._choice(members) if members else None
        return None

    # ------------------------------------------------------------------ Bus
    def subscribe(
        self,
        subject: bytes,
        take: Take,
        queue: bytes = b"",
        *,
        local: bool = False,
        runs: bool = False,
        apart: bool = False,
    ) -> _Handle:
        own = take
        if self.guard is not None and not queue:
            take = self.guard(subject, take)
        sub = Subscription(_Internal(take, self.log, runs), subject, queue, b"")
        sub.local, sub.apart = local, own if apart else None
        self.join(sub)
        return _Handle(self, sub)

    def send(self, messages: Single | PubAcks | MessageBlock) -> bool:
        if type(messages) is Single:
            match = self.interest_graph.match(messages.subject)
            if match.queues:
                return self.route(None, self.system, messages)
            for sub in match.plain:
                sub.sink.take(sub, messages, 0, 1, self.system)
            return bool(match.plain)
        if type(messages) is PubAcks:
            return self._acknowledge(messages)
        if not messages.to:
            return self._send_each(messages)
        if self.responses is not None and messages.to.startswith(self.responses.prefix):
            return self.responses.deliver(messages)
        return self._hand(self.interest_graph.match(messages.to), messages)

    def flush(self) -> None:
        self.turn.flush()

    def _hand(self, match: Match, messages: MessageBlock) -> bool:
        """Hand messages to the subscriptions of a match, each to one member of a queue group; False: there is none."""
        for sub in match.plain:
            hand(sub, messages, 0, len(messages), self.system)
        for group in match.queues:
            self._deal(group, messages)
        return bool(match.plain or match.queues)

    def _send_each(self, messages: MessageBlock) -> bool:
        """Send messages, each to the subscribers of its subject: mostly they are those of the inbox of one client."""
        found = False
        if len(messages) == 1:
            return self.route(None, self.system, messages.message(0))
        match, begin, system = self.interest_graph.match, 0, self.system
        same: Match | None = None
        for at, message in enumerate(messages):
            other = match(message.subject)
            if other is not same:
                if same is not None:
                    if at - begin > 1 or same.queues:
                        found |= self._hand(same, messages[begin:at])
                    elif same.plain:  # one for each of many clients, such as acks: quicker without a block
                        found, single = True, messages.message(begin)
                        for sub in same.plain:
                            sub.sink.take(sub, single, 0, 1, system)
                begin, same = at, other
        return found if same is None else self._hand(same, messages[begin:] if begin else messages) or found

    def _acknowledge(self, acks: PubAcks) -> bool:
        run, at, end, found = acks.run, acks.begin, acks.end, False
        reply = run.reply(at)
        while at < end:
            stop, following = at + 1, run.reply(at + 1) if at + 1 < end else b""
            if reply:
                head, dot, last = reply.rpartition(b".")
                match = self.interest_graph.match(reply)
                single = match.plain[0] if len(match.plain) == 1 and not match.queues else None
                # One for each of many clients is quicker without a block.
                block = single is not None and last and following.startswith(head + dot)
                if single is None:
                    found |= self.route(None, self.system, acks.message(at))
                elif block and self.interest_graph.covers(head, match):
                    acks.head, found = head + dot, True
                    stop = single.sink.take(single, acks, at, end, self.system)
                else:
                    found = True
                    single.sink.take(single, acks.message(at), 0, 1, self.system)
            at, reply = stop, following if stop == at + 1 else run.reply(stop) if stop < end else b""
        return found

    def interest(self, subject: bytes, queue: bytes = b"") -> bool:
        if self.responses is not None and subject.startswith(self.responses.prefix):
            away = self.responses.resolve(subject)
            return away is not None and away[0].interest(away[1])
        return self.interest_graph.interest(subject, queue)

    def bound(self, subject: bytes, queue: bytes = b"") -> bool:
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
        """Return a congested receiver of `to` on this node; None without any."""
        if self.responses is not None and to.startswith(self.responses.prefix):
            away = self.responses.resolve(to)
            return away[0].slow_receiver(away[1]) if away is not None else None
        match = self.interest_graph.match(to)
        here = match.here or match
        for group in (here.plain, *here.queues):
            for sub in group:
                if sub.sink.congested:
                    return sub.sink
        return None

    def writable(self, to: bytes) -> bool:
        if self.responses is not None and to.startswith(self.responses.prefix):
            away = self.responses.resolve(to)
            return away is None or away[0].writable(away[1])
        for sub in self._receivers(to):
            if sub.sink.congested or (sub.remote is not None and sub.remote.holds(to)):
                return False
        return True

    def when_writable(self, to: bytes, callback: Callable[[], None]) -> None:
        if self.responses is not None and to.startswith(self.responses.prefix) and (away := self.responses.resolve(to)):
            away[0].when_writable(away[1], callback)
            return
        for sub in self._receivers(to):
            if sub.sink.congested:
                sub.sink.on_drain(lambda: self.when_writable(to, callback))
                return
            if sub.remote is not None and sub.remote.holds(to):
                sub.remote.on_release(to, lambda: self.when_writable(to, callback))
                return
        self.turn.wait(callback)

    def watch_interest(self, subject: bytes, queue: bytes, callback: Callable[[bool], None]) -> Watch:
        return self.interest_graph.watch(subject, queue, callback)
