"""Which node of a cluster holds a leaf connection that several nodes have configured.

Belongs here: the agreement between them. Two connections of one cluster to one remote would bring every delivery there
twice. Whoever may hold it, and who does, is known to all nodes by what they listen to. That may be wrong for a moment,
so nothing rests on it: what comes takes one of the connections (they are one queue group there), and a mirror takes a
message once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakestream.net.hub import Hub
from lakestream.ports import ClientInfo, Clock, Subscribed, Timer
from lakestream.protocol.subjects import short_hash

LOOK_NS = 250_000_000
"""Pause between two looks at the other nodes (0.25 s)."""

SETTLE_NS = 2_000_000_000
"""How long a node of a cluster that starts waits for what the others have to say (2 s)."""

PATIENCE_NS = 10_000_000_000
"""A node that could not connect for so long (10 s) lets the others try, if there are any."""

REST_NS = 30_000_000_000
"""For how long it does (30 s)."""


class Holder:
    """Says whether this node holds a connection.

    The one that holds it keeps it, unless it can not connect. Where none does, the node with the lowest name takes it;
    where two do, the other one gives it up.

    Args:
        hub: of the account that is connected.
        what: the remote, in the same words on every node.
        name: of this node.
        others: the names of the connected nodes; None: there is no cluster.
        changed: called with True when this node is to hold the connection from now on, with False when not any more.
        connected: whether there is a connection.
    """

    def __init__(
        self,
        hub: Hub,
        what: str,
        name: str,
        others: Callable[[], Iterable[str]] | None,
        clock: Clock,
        changed: Callable[[bool], None],
        connected: Callable[[], bool],
    ) -> None:
        self._hub, self._name, self._others, self._clock = hub, name, others, clock
        self._changed, self._connected = changed, connected
        self._prefix = f"$LS.LEAF.{short_hash(what)}"
        self._able: Subscribed | None = None
        self._held: Subscribed | None = None
        self._timer: Timer | None = None
        self._since_ns = 0
        """When it was connected last, or took its turn, or gave it up."""

    @property
    def holds(self) -> bool:
        """Whether this node does."""
        return self._held is not None

    def start(self) -> None:
        """Be one who may."""
        if self._others is None:
            self._take()
            return
        self._able = self._listen("able")
        self._timer = self._clock.call_later(SETTLE_NS, self._look)

    def stop(self) -> None:
        """Be none any more. `changed` is not called."""
        if self._timer is not None:
            self._timer.cancel()
        for subscription in (self._able, self._held):
            if subscription is not None:
                subscription.cancel()
        self._timer = self._able = self._held = None

    def _subject(self, kind: str, name: str) -> bytes:
        return f"{self._prefix}.{kind}.{short_hash(name)}".encode()

    def _listen(self, kind: str) -> Subscribed:
        return self._hub.subscribe(self._subject(kind, self._name), _ignore)

    def _who(self, kind: str, others: Iterable[str]) -> list[str]:
        # Not whether anybody would hear it: a client may listen to everything.
        return [name for name in others if self._hub.bound(self._subject(kind, name))]

    def _look(self) -> None:
        self._timer = self._clock.call_later(LOOK_NS, self._look)
        others = list(self._others()) if self._others is not None else []
        if self._held is not None:
            self._look_as_holder(others)
        elif self._able is None:
            if self._clock.steady() - self._since_ns >= REST_NS or not self._who("able", others):
                self._able = self._listen("able")
        elif not self._who("held", others) and not any(name < self._name for name in self._who("able", others)):
            self._take()

    def _look_as_holder(self, others: list[str]) -> None:
        if any(name < self._name for name in self._who("held", others)):
            self._give_up()
        elif self._connected():
            self._since_ns = self._clock.steady()
        elif self._clock.steady() - self._since_ns >= PATIENCE_NS and self._who("able", others):
            assert self._able is not None
            self._able.cancel()
            self._able = None
            self._give_up()

    def _take(self) -> None:
        self._held, self._since_ns = self._listen("held"), self._clock.steady()
        self._changed(True)

    def _give_up(self) -> None:
        assert self._held is not None
        self._held.cancel()
        self._held, self._since_ns = None, self._clock.steady()
        self._changed(False)


def _ignore(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
    """What is listened to says it all."""
