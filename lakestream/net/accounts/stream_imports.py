"""Messages of other accounts that an account imports.

Belongs here: shadow subscriptions. Each subscription that matches an import has a shadow in the exporting account's
interest graph, whose sink delivers messages under the importer's subject. Imported messages are not exported again:
a shadow has no shadows.

A shadow belongs to this node like its subscription: it is announced to other nodes and receives what is published
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lakestream.config.sharing import ImportSubjects
from lakestream.net.accounts.responses import Responses
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import Requester, Subscription
from lakestream.net.tracing import MessageTrace
from lakestream.ports import ClientInfo, MessageBlock, Messages, Single
from lakestream.protocol.client import traced
from lakestream.protocol.subjects import intersection

_OF_THE_SERVER = (b"$JS.API.", b"$JS.ACK.", b"$JS.FC.", b"$JS.SNAPSHOT.", b"$SYS.REQ.")
"""Subjects of requests to the server: only for clients of the account itself."""


class StreamRoute:
    """One stream import.

    Attributes:
        exporter: the hub of the exporting account.
        subjects: its subjects in both accounts.
        allow_trace: a trace names the receivers in the importing account.
    """

    __slots__ = ("allow_trace", "exporter", "subjects")

    def __init__(self, exporter: Hub, subjects: ImportSubjects, *, allow_trace: bool = False) -> None:
        self.exporter, self.subjects, self.allow_trace = exporter, subjects, allow_trace


class Shadow:
    """The sink of a shadow subscription.

    Attributes:
        sub: the subscription that it stands for.
        account: the importing account.
        route: the import.
    """

    __slots__ = ("account", "columnar", "echo", "route", "sub")

    def __init__(self, sub: Subscription, account: str, route: StreamRoute) -> None:
        self.sub, self.account, self.route = sub, account, route
        self.echo, self.columnar = True, False

    @property
    def congested(self) -> bool:
        return self.sub.sink.congested

    def on_drain(self, callback: Callable[[], None]) -> None:
        self.sub.sink.on_drain(callback)

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        mine, to_ours = self.sub, self.route.subjects.to_ours
        if messages.to and isinstance(messages, MessageBlock):  # they keep the subjects that they are stored with
            return mine.sink.take(mine, messages.shown(to_ours(messages.to)), begin, end, client)
        end = messages.stop(begin, end)
        for each in messages.messages(begin, end):
            mine.sink.take(mine, each.under(to_ours(each.subject)), 0, 1, client)
        return end

    def traced(self, trace: MessageTrace, sub: Subscription, message: Single, client: ClientInfo) -> None:
        mine, here = self.sub, self.route.subjects.to_ours(message.subject)
        ours = message.under(here)
        trace.crosses(self.account, here)
        if self.route.allow_trace:
            trace.delivered_to(sub, self.account, mine.sink)
            if not isinstance(mine.sink, Requester):  # a stream reports to the trace itself
                mine.sink.take(mine, ours, 0, 1, traced(client, trace))
                return
        if not trace.only:
            mine.sink.take(mine, ours, 0, 1, client)


class StreamImports:
    """The stream imports of one account; follows the subscriptions of its hub.

    Args:
        hub: of the importing account.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._routes: list[StreamRoute] = []
        # Routes by the first two literal tokens of their subjects, and all others.
        self._by_start: dict[bytes, list[StreamRoute]] = {}
        self._anywhere: list[StreamRoute] = []
        self._shadows: dict[Subscription, list[tuple[StreamRoute, Subscription]]] = {}

    def __len__(self) -> int:
        """Return the number of shadows."""
        return sum(map(len, self._shadows.values()))

    @property
    def routes(self) -> Sequence[StreamRoute]:
        """Return the current imports."""
        return self._routes

    def replace(self, routes: Sequence[StreamRoute], subscriptions: Iterable[Subscription]) -> None:
        """Replace the imports, also for existing subscriptions. Routes that stay are not interrupted.

        Args:
            subscriptions: all of the importing account's.
        """
        stay = set(routes).intersection(self._routes)
        for sub, shadows in list(self._shadows.items()):
            kept = [one for one in shadows if one[0] in stay]
            if len(kept) < len(shadows):
                self._shadows[sub] = kept
                for route, shadow in shadows:
                    if route not in stay:
                        route.exporter.interest_graph.remove(shadow)
        new = [route for route in routes if route not in stay]
        self._routes = list(routes)
        self._by_start, self._anywhere = {}, []
        for route in routes:
            start = _start(route.subjects.ours)
            (self._by_start.setdefault(start, []) if start else self._anywhere).append(route)
        if new:
            for sub in subscriptions:
                self._follow(sub, new)

    def joined(self, sub: Subscription) -> None:
        if sub in self._shadows:
            return
        start = _start(sub.subject)
        self._follow(sub, [*self._by_start.get(start, ()), *self._anywhere] if start else self._routes)

    def _follow(self, sub: Subscription, routes: Sequence[StreamRoute]) -> None:
        """Add the shadows of a subscription for these routes, if it may have any."""
        if sub.remote is not None or sub.local or isinstance(sub.sink, Shadow | Responses):
            return
        if sub.subject.startswith(_OF_THE_SERVER) and not isinstance(sub.sink, Requester):
            return
        shadows = []
        for route in routes:
            wanted = intersection(route.subjects.ours, sub.subject)
            if wanted is not None:
                sink = Shadow(sub, self._hub.account, route)
                shadows.append((route, Subscription(sink, route.subjects.to_theirs(wanted), sub.queue, sub.sid)))
        if shadows:
            # Noted before it is inserted: a watcher may deliver at once, which may end the subscription.
            self._shadows[sub] = [*self._shadows.get(sub, ()), *shadows]
            for route, shadow in shadows:
                if sub in self._shadows:
                    route.exporter.interest_graph.insert(shadow)

    def left(self, sub: Subscription) -> None:
        for route, shadow in self._shadows.pop(sub, ()):
            route.exporter.interest_graph.remove(shadow)


def _start(subject: bytes) -> bytes:
    """Return the first two tokens of a filter when they are literal, else b""."""
    tokens = subject.split(b".", 2)[:2]
    return b".".join(tokens) if len(tokens) == 2 and not {b"*", b">"}.intersection(tokens) else b""
