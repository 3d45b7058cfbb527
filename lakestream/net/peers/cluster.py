"""A node's part in a cluster.

Belongs here: construction of the cluster's parts (peers, calls, routes), the order in which they start and stop, the
addresses that clients may connect to, and what monitoring shows. A server without a `cluster` block has `Standalone`
(standalone.py) in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lakestream import __version__
from lakestream.config.options import LEAFNODE, SECOND, STANDARD, WEBSOCKET, Options, TlsOptions
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.identity import Identity, urls_of
from lakestream.net.listener import Bind, bind
from lakestream.net.peers.api_relay import ApiRelay
from lakestream.net.peers.link import Link
from lakestream.net.peers.peers import RoutePeers
from lakestream.net.peers.remote_node import RemoteNode
from lakestream.net.peers.routes import Routes
from lakestream.net.peers.standalone import RouteTraffic
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.runtime import LoopClock

POOL_SIZE = 1
"""Connections between two nodes."""


class ConnectUrls:
    """The `connect_urls` of INFO, as in nats-server.

    A node that never met another shows none; from then on it shows its own addresses and those of the connected nodes,
    without nodes in lame duck mode. With `no_advertise` a node shows no addresses, and no other node shows its own.

    Args:
        nodes: the cluster.
        advertise: False with `no_advertise`.
        changed: called when clients must get a new INFO; not for this node's own lame duck mode, which is announced
            anyway.
    """

    def __init__(self, nodes: RoutePeers, advertise: bool, changed: Callable[[], None]) -> None:
        self._nodes = nodes
        self._advertise = advertise
        self._changed = changed
        self._met = False
        self._announced: tuple[tuple[str, ...], ...] = ((), (), ())
        nodes.watch_links(lambda node, up: self._look(up))
        nodes.watch_nodes(lambda node: self._look(False))

    def now(self, kind: str = STANDARD) -> tuple[str, ...]:
        """Return `host:port` of every server of the cluster for this kind of connection, this node's first; empty when
        none are shown."""
        if not self._advertise or not self._met:
            return ()
        own = self._nodes.node
        infos = [own, *(info for _, info in sorted(self._nodes.nodes().items()))]
        shown = (info for info in infos if not info.lame_duck)
        return tuple(dict.fromkeys(url for info in shown for url in _urls(info, kind)))

    def _look(self, met: bool) -> None:
        self._met |= met
        urls = self.now(), self.now(WEBSOCKET), self.now(LEAFNODE)
        if urls != self._announced:
            self._announced = urls
            self._changed()


def _urls(info: NodeInfo, kind: str) -> tuple[str, ...]:
    if kind == LEAFNODE:
        return info.leaf_urls
    return info.websocket_urls if kind == WEBSOCKET else info.client_urls


class Cluster:
    """A node's part in the cluster.

    Args:
        identity: of this node.
        options: with a `cluster` block.
        started_ns: start of this node, ns since the epoch.
        accounts: of this node; without clients yet.
        announce: called when clients must get a new INFO.
        relays: without JetStream, pass API requests on to nodes that have it.
        bind: opens the socket of the route listener.

    Attributes:
        peers: the other nodes.
        others: returns the names of the connected nodes.
        port: of the route listener; 0 before `listen`.
    """

    def __init__(
        self,
        identity: Identity,
        options: Options,
        started_ns: int,
        accounts: Accounts,
        clock: LoopClock,
        log: Logger,
        announce: Callable[[], None],
        *,
        relays: bool = True,
        bind: Bind = bind,
    ) -> None:
        self.port = 0
        self.peers = RoutePeers(self._node_info(identity, options, started_ns), options.cluster, clock, log, bind)
        self._routes = Routes(accounts, self.peers)
        self.others: Callable[[], Iterable[str]] | None = self._routes.nodes.keys
        self.peers.calls.before, self.peers.calls.behind = self._routes.catch_up, self._routes.behind
        self._connect_urls = ConnectUrls(self.peers, not options.cluster.no_advertise, announce)
        if relays and options.jetstream is None:
            ApiRelay(accounts, self._routes, self.peers)

    @property
    def name(self) -> str:
        """Return the cluster's name; a generated one may still be replaced by another node's."""
        return self.peers.node.cluster

    def connect_urls(self, kind: str = STANDARD) -> tuple[str, ...]:
        """Return the addresses for clients; see `ConnectUrls.now`."""
        return self._connect_urls.now(kind)

    async def listen(self, identity: Identity, websocket_urls: tuple[str, ...], leaf_urls: tuple[str, ...]) -> None:
        """Open the route listener; nodes are admitted after `start`. Raises StartError.

        Args:
            identity: of this node, with the port for clients.
            websocket_urls: `host:port` of this node for clients over WebSocket; `leaf_urls`: for leaf nodes.
        """
        await self.peers.listen()
        self.port = self.peers.bound_port
        if not self.peers.options.no_advertise:
            self.peers.update(websocket_urls=websocket_urls)
        self.peers.update(leaf_urls=leaf_urls)
        self.advertise(identity)

    async def start(self) -> None:
        """Connect to the others. Everything that listens to peers is set up before."""
        await self.peers.start()

    async def first_attempts(self) -> None:
        """Return once this node and those of its routes that are up know each other."""
        await self.peers.first_attempts()

    def reload(self, options: Options) -> None:
        """Apply what a reload may change; see `RoutePeers.reload`. Raises StartError."""
        self.peers.reload(options.cluster)
        self.peers.update(tags=options.server_tags)

    def advertise(self, identity: Identity) -> None:
        """Show the addresses of this node for clients."""
        if not self.peers.options.no_advertise:
            self.peers.update(client_urls=client_urls(identity))

    def enter_lame_duck(self) -> None:
        """Announce lame duck mode."""
        self.peers.update(lame_duck=True)

    async def stop(self) -> None:
        """Announce the stop and close the connections."""
        await self.peers.stop()

    @staticmethod
    def _node_info(identity: Identity, options: Options, started_ns: int) -> NodeInfo:
        """Return this node as other nodes see it, without `client_urls`."""
        jetstream = options.jetstream
        return NodeInfo(
            name=identity.server_name,
            server_id=identity.server_id,
            version=__version__,
            host=identity.host,
            tags=options.server_tags,
            jetstream=jetstream is not None,
            accounts=True,
            runs=True,
            stored=True,
            headed=True,
            domain=identity.domain,
            max_memory=jetstream.max_memory if jetstream is not None else 0,
            max_storage=jetstream.max_file if jetstream is not None else 0,
            started_ns=started_ns,
        )

    # ------------------------------------------------------------------ monitoring
    def links(self) -> list[tuple[Link, RemoteNode]]:
        """Return the connections that are up and the nodes behind them, by name."""
        return [(link, self._routes.nodes[link.name]) for link in self.peers.links()]

    def traffic(self) -> RouteTraffic:
        """Return the traffic with all nodes."""
        nodes = list(self._routes.nodes.values())
        return RouteTraffic(
            len(nodes),
            sum(node.in_msgs for node in nodes),
            sum(node.in_bytes for node in nodes),
            sum(node.out_msgs for node in nodes),
            sum(node.out_bytes for node in nodes),
            self.peers.slow_consumers,
            self.peers.stale_connections,
        )

    def foreign(self, account: str = "") -> int:
        """Return the number of subscriptions here that are not shown as those of this server."""
        return 0

    def shown(self) -> dict[str, Any]:
        """Return the `cluster` object of /varz."""
        options = self.peers.options
        page: dict[str, Any] = {
            "name": self.name,
            "addr": options.host,
            "cluster_port": self.port,
            "auth_timeout": options.auth_timeout_ns / SECOND,
        }
        if options.routes:
            page["urls"] = [url.address for url in options.routes]
        page["tls_timeout"] = (options.tls or TlsOptions()).timeout_ns / SECOND
        if options.tls is not None:
            page |= {"tls_required": True, "tls_verify": True}
        return page | {"pool_size": POOL_SIZE}


def client_urls(identity: Identity) -> tuple[str, ...]:
    """Return `host:port` under which clients reach this node."""
    return urls_of(identity.host, identity.port, identity.advertise)
