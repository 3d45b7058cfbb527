"""Where clients may connect to, as INFO tells them.

Belongs here: `connect_urls` from what the nodes of the cluster say of themselves, and noticing when it changes. How a
node makes its own addresses is cluster.py's, the INFO frame identity.py's.

The rules are nats-server's: a node that never met another tells nothing; from then on it tells its own addresses and
those of the connected nodes. A node in lame duck mode is left out, by itself too. With `no_advertise` a node neither
tells its clients of others nor others of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakestream.protocol.peer_wire import NodeInfo


class Nodes(Protocol):
    """The nodes of the cluster; see `Peers` in peers.py."""

    @property
    def node(self) -> NodeInfo:
        """This node."""

    def nodes(self) -> dict[str, NodeInfo]:
        """Every node that is connected now, without this one."""

    def watch_links(self, callback: Callable[[NodeInfo, bool], None]) -> None:
        """Call back when a connection to a node begins and when it has ended."""

    def watch_nodes(self, callback: Callable[[NodeInfo], None]) -> None:
        """Call back when a connected node says something new of itself."""


class ConnectUrls:
    """The addresses that clients are told.

    Args:
        nodes: the cluster.
        advertise: whether clients are told at all (no `no_advertise`), which a reload may change.
        changed: called when clients are to hear of a change. Not for this node's own lame duck mode, which is
            announced anyway.
    """

    def __init__(self, nodes: Nodes, advertise: Callable[[], bool], changed: Callable[[], None]) -> None:
        self._nodes = nodes
        self._advertise = advertise
        self._changed = changed
        self._met = False
        self._told: tuple[str, ...] = ()
        nodes.watch_links(lambda node, up: self._look(up))
        nodes.watch_nodes(lambda node: self._look(False))

    def now(self) -> tuple[str, ...]:
        """`host:port` of every way into the cluster, this node's first; empty when clients are told nothing."""
        if not self._advertise() or not self._met:
            return ()
        own = self._nodes.node
        infos = [own, *(info for _, info in sorted(self._nodes.nodes().items()))]
        return tuple(dict.fromkeys(url for info in infos if not info.lame_duck for url in info.client_urls))

    def _look(self, met: bool) -> None:
        self._met |= met
        urls = self.now()
        if urls != self._told:
            self._told = urls
            self._changed()
