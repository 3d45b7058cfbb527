"""Network between the machines.

Belongs here: the fate of a buffer in flight (delayed, lost, duplicated, reordered, cut off), which machines see each
other as alive, and the `Peers` that a process gets.

There are two kinds of network. An `ordered` one guarantees what `Peers.send` does: buffers between two machines arrive
in order, or the connection ends; then buffers in flight are lost, and both ends are notified. The other kind guarantees
nothing: it loses, duplicates and reorders buffers silently, as the Raft paper's network does.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from lakestream.raft.group.ports import Channel
from tests.sim.events import MS, Events

LIVENESS_NS = 1_000 * MS
"""A node that was silent for this long counts as down."""
RECONNECT_NS = 300 * MS


class Weather(msgspec.Struct, frozen=True):
    """Conditions of the network. Delays in ns; probabilities per buffer."""

    ordered: bool
    min_delay: int
    max_delay: int
    loss: float = 0.0
    double: float = 0.0


class Network:
    """All links. `deliver(sender, to, channel, payload)` passes a buffer to a machine, which may be down."""

    def __init__(self, names: list[str], events: Events, random: Random, weather: Weather) -> None:
        self.names = names
        self.events = events
        self.random = random
        self.weather = weather
        self.deliver: Callable[[str, str, Channel, bytes], None] = lambda sender, to, channel, payload: None
        self.on_change: Callable[[str, str, bool], None] = lambda at, node, up: None
        self.buffers = 0
        self.lost = 0
        self._cut: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        self._paused: set[str] = set()
        self._up: dict[tuple[str, str], bool] = {}  # (at, node): `at` sees `node` as connected
        self._epoch: dict[tuple[str, str], int] = {}  # number of the connection from one to the other
        self._free: dict[tuple[str, str], int] = {}  # ordered: arrival time of the last buffer
        for at in names:
            for node in names:
                self._up[at, node] = True

    # ------------------------------------------------------------------ sending
    def send(self, sender: str, to: str, channel: Channel, payload: bytes) -> bool:
        """Send a buffer; False if the sender knows that there is no connection."""
        self.buffers += 1
        weather, random = self.weather, self.random
        if weather.ordered and not self._up[sender, to]:
            self.lost += 1
            return False
        if random.random() < weather.loss:
            self.lost += 1
            return True
        epoch = self._epoch.get((sender, to), 0)
        copies = 2 if random.random() < weather.double else 1
        for _ in range(copies):
            delay = random.randrange(weather.min_delay, weather.max_delay + 1)
            if weather.ordered:
                arrival = max(self.events.now + delay, self._free.get((sender, to), 0) + 1)
                self._free[sender, to] = arrival
                delay = arrival - self.events.now
            self.events.after(delay, lambda: self._arrive(sender, to, channel, payload, epoch))
        return True

    def _arrive(self, sender: str, to: str, channel: Channel, payload: bytes, epoch: int) -> None:
        same = not self.weather.ordered or epoch == self._epoch.get((sender, to), 0)
        if not same or to in self._down or (sender, to) in self._cut:
            self.lost += 1
            if self.weather.ordered and same:
                self._break(sender, to)  # a gap ends an ordered connection
            return
        self.deliver(sender, to, channel, payload)

    # ------------------------------------------------------------------ faults
    def cut(self, sender: str, to: str) -> None:
        """Drop all buffers from one to another. Heartbeats fail both ways."""
        self._cut.add((sender, to))
        self._look_later(sender, to)

    def heal(self) -> None:
        """Restore all links."""
        self._cut.clear()
        for at in self.names:
            for node in self.names:
                if at < node and not self._linked(at, node):
                    self._reconnect_later(at, node)

    def went_down(self, node: str, at_once: bool) -> None:
        """Handle the end of a machine or process.

        `at_once`: its system closed the connections, else peers notice later.
        """
        self._down.add(node)
        self._paused.discard(node)
        for other in self.names:
            if other != node:
                self._break_half(node, other)
                self._up[node, other] = False
                if at_once:
                    self.events.after(1 * MS, lambda other=other: self._look(other, node))  # type: ignore[misc]
                else:
                    self._look_later(other, node)

    def came_up(self, node: str) -> None:
        """Handle the start of a process, which accepts connections again."""
        self._down.discard(node)
        for other in self.names:
            if other != node and other not in self._down:
                self._reconnect_later(node, other)

    def paused(self, node: str) -> None:
        """Pause a process: its buffers accumulate, its heartbeats stop."""
        self._paused.add(node)
        for other in self.names:
            if other != node:
                self._look_later(other, node)

    def resumed(self, node: str) -> None:
        """Resume a paused process and reconnect its broken links."""
        self._paused.discard(node)
        for other in self.names:
            if other != node and not self._linked(other, node):
                self._reconnect_later(other, node)

    def connected(self, at: str) -> list[str]:
        """Return the nodes to which `at` has a connection."""
        return [node for node in self.names if node != at and self._up[at, node]]

    def _linked(self, at: str, node: str) -> bool:
        return self._up[at, node] and self._up[node, at]

    def reachable(self, at: str, node: str) -> bool:
        """Return True if heartbeats pass between the two nodes."""
        away = self._down | self._paused
        return not away & {at, node} and not self._cut & {(at, node), (node, at)}

    # ------------------------------------------------------------------ detection by the ends
    def _look_later(self, at: str, node: str) -> None:
        self.events.after(LIVENESS_NS, lambda: self._look(at, node))

    def _look(self, at: str, node: str) -> None:
        if not self.reachable(at, node):
            self._break(at, node)

    def _break(self, at: str, node: str) -> None:
        self._break_half(at, node)
        self._lose_sight(at, node)
        self._lose_sight(node, at)
        self._reconnect_later(at, node)

    def _break_half(self, at: str, node: str) -> None:
        for pair in ((at, node), (node, at)):
            self._epoch[pair] = self._epoch.get(pair, 0) + 1
            self._free.pop(pair, None)

    def _lose_sight(self, at: str, node: str) -> None:
        if self._up[at, node] and at not in self._down:
            self._up[at, node] = False
            self.on_change(at, node, False)

    def _reconnect_later(self, at: str, node: str) -> None:
        self.events.after(self.random.randrange(1, RECONNECT_NS), lambda: self._reconnect(at, node))

    def _reconnect(self, at: str, node: str) -> None:
        if not self.reachable(at, node):
            return  # heal or came_up tries again
        if self._linked(at, node):
            return
        self._break_half(at, node)
        for one, other in ((at, node), (node, at)):
            if self._up[one, other]:  # this end had not detected it yet
                self._lose_sight(one, other)
            self._up[one, other] = True
            self.on_change(one, other, True)


class SimPeers:
    """`Peers` of one process."""

    def __init__(self, network: Network, me: str) -> None:
        self._network = network
        self._me = me
        self.handlers: dict[Channel, Callable[[str, bytes], None]] = {}
        self.watchers: list[Callable[[str, bool], None]] = []
        self.dead = False
        self.on_send: Callable[[str, Channel, bytes], None] = lambda node, channel, payload: None

    @property
    def me(self) -> str:
        return self._me

    def connected(self) -> list[str]:
        return self._network.connected(self._me)

    def alive(self, node: str) -> bool:
        return node == self._me or node in self.connected()

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        if self.dead:
            return False
        self.on_send(node, channel, payload)
        return self._network.send(self._me, node, channel, payload)

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        self.handlers[channel] = handler

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        self.watchers.append(callback)
