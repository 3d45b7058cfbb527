"""JetStream API requests of clients on a node without JetStream.

Belongs here: handing such a request to a node that has JetStream. Everything else that clients of JetStream send and
get (messages, acks, pull requests, deliveries) finds its way by interest.

API requests cannot: every node with JetStream takes those of its own clients, so none tells the others that it does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from lakestream.jetstream.ports import ClientInfo, Subscribed
from lakestream.server.hub import Hub
from lakestream.server.peer_wire import NodeInfo
from lakestream.server.routes import Routes


class Nodes(Protocol):
    """The nodes of the cluster; see `Peers` in peers.py."""

    def nodes(self) -> dict[str, NodeInfo]:
        """Every node that is connected now, without this one."""

    def watch_links(self, callback: Callable[[NodeInfo, bool], None]) -> None:
        """Call back when a connection to a node begins and when it has ended."""

    def watch_nodes(self, callback: Callable[[NodeInfo], None]) -> None:
        """Call back when a connected node says something new of itself."""


class ApiRelay:
    """Takes API requests for as long as a node with JetStream is connected; without one nobody listens (503).

    Args:
        hub: of this node, which has no JetStream.
        routes: to the others; they watch the same connections already.
        nodes: the others.
    """

    def __init__(self, hub: Hub, routes: Routes, nodes: Nodes) -> None:
        self._hub, self._routes, self._nodes = hub, routes, nodes
        self._served: set[bytes] = set()
        self._subscriptions: list[Subscribed] = []
        self._random = random.Random()
        nodes.watch_links(lambda node, up: self._look())
        nodes.watch_nodes(lambda node: self._look())

    def _able(self) -> list[NodeInfo]:
        """Nodes to ask; those that are about to go only when there is no other."""
        able = [info for info in self._nodes.nodes().values() if info.jetstream]
        return [info for info in able if not info.lame_duck] or able

    def _look(self) -> None:
        able = self._able()
        wanted = {b"$JS.API.>"} if able else set()
        wanted |= {b"$JS.%b.API.>" % info.domain.encode() for info in able if info.domain}
        if wanted == self._served:
            return
        for subscription in self._subscriptions:
            subscription.cancel()
        self._served = wanted
        self._subscriptions = [self._hub.subscribe(subject, self._asked, local=True) for subject in sorted(wanted)]

    def _asked(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        able = [info.name for info in self._able() if info.name in self._routes.nodes]
        if able:
            self._routes.nodes[self._random.choice(able)].relay(subject, reply, header, payload)
