"""Nodes of a cluster without sockets: their announced information, connectivity, and calls between them.

Belongs here: `Net`, to which tests add nodes. Calls arrive in the next turn, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from lakestream.ports import ClientInfo
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.ports import Channel
from tests.unit.stream_world import ManualClock

CLIENT = ClientInfo(7, "127.0.0.1", "$G")

Handler = Callable[[str, bytes, Callable[[bytes], None]], None]


class Net:
    """All nodes, by name. `turn` delivers what was sent so far; `run` continues until nothing is in flight."""

    def __init__(self, *names: str) -> None:
        self.clock = ManualClock()
        self.nodes = {name: NetNode(self, name) for name in names}
        self.down: set[str] = set()
        self.on_their_way: deque[Callable[[], None]] = deque()

    def reaches(self, one: str, other: str) -> bool:
        return one == other or not {one, other} & self.down

    def turn(self) -> None:
        for _ in range(len(self.on_their_way)):
            self.on_their_way.popleft()()
        self.clock.turn()

    def run(self) -> None:
        while self.on_their_way:
            self.turn()

    def cut(self, name: str) -> None:
        """Disconnect a node from all others."""
        self.down.add(name)
        self._tell(name, False)

    def heal(self, name: str) -> None:
        self.down.discard(name)
        self._tell(name, True)

    def _tell(self, name: str, up: bool) -> None:
        for node in self.nodes.values():
            for other in [each for each in self.nodes if each != name] if node.me == name else [name]:
                for callback in node.watchers:
                    callback(other, up)


class NetNode:
    """`Peers` of one node."""

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.me = net, name
        self.node = NodeInfo(name=name, server_id=name * 3, cluster="C", jetstream=True, max_memory=-1, max_storage=-1)
        self.watchers: list[Callable[[str, bool], None]] = []
        self.methods: dict[str, Handler] = {}
        self.met = True
        self.raft: Callable[[str, bytes], None] = lambda node, payload: None

    # Nodes
    def connected(self) -> list[str]:
        return [name for name in sorted(self.net.nodes) if name != self.me and self.net.reaches(self.me, name)]

    def alive(self, node: str) -> bool:
        return node in self.net.nodes and self.net.reaches(self.me, node)

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        def deliver() -> None:
            if self.alive(node):
                self.net.nodes[node].raft(self.me, payload)

        assert channel is Channel.RAFT
        self.net.on_their_way.append(deliver)
        return self.alive(node)

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        assert channel is Channel.RAFT
        self.raft = handler

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        self.watchers.append(callback)

    def info(self, node: str) -> NodeInfo | None:
        return self.net.nodes[node].node if node in self.net.nodes else None

    def nodes(self) -> dict[str, NodeInfo]:
        return {name: self.net.nodes[name].node for name in self.connected()}

    def sees(self, node: str) -> frozenset[str]:
        return frozenset(self.net.nodes[node].connected())

    def routes_met(self) -> bool:
        return self.met

    def update(self, **changes: Any) -> None:
        self.node = msgspec.structs.replace(self.node, **changes)

    def watch_nodes(self, callback: Callable[[Any], None]) -> None:
        return

    # Calls
    def serve(self, method: str, handler: Handler) -> None:
        self.methods[method] = handler

    def call(
        self, node: str, method: str, body: bytes, done: Callable[[bytes | None, str], None], timeout_ns: int
    ) -> None:
        def deliver() -> None:
            if not self.alive(node):
                done(None, "gone")
                return
            try:
                self.net.nodes[node].methods[method](self.me, body, lambda answer: done(answer, ""))
            except RuntimeError as error:
                done(None, str(error))

        self.net.on_their_way.append(deliver)

    def tell(self, node: str, method: str, body: bytes) -> bool:
        if not self.alive(node):
            return False
        self.call(node, method, body, lambda answer, why: None, 0)
        return True
