"""A node's part in a cluster.

Belongs here: construction of the cluster's parts (peers, calls, routes, Raft groups), the order in which they start
and stop, and the addresses that clients may connect to. Without a `cluster` block there is no `Cluster`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lakestream import __version__
from lakestream.config.options import ClusterOptions, Options, RouteUrl
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.identity import Identity, addresses
from lakestream.net.peers.api_relay import ApiRelay, Nodes
from lakestream.net.peers.calls import PeerCalls
from lakestream.net.peers.peers import Peers
from lakestream.net.peers.routes import Routes
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.groups import Groups
from lakestream.raft.group.ports import Calls
from lakestream.runtime import LoopClock, ThreadIo


class ConnectUrls:
    """The `connect_urls` of INFO, as in nats-server.

    A node that never met another shows none; from then on it shows its own addresses and those of the connected nodes,
    without nodes in lame duck mode. With `no_advertise` a node shows its clients no addresses, and its own to nobody.

    Args:
        nodes: the cluster.
        advertise: returns False with `no_advertise`, which a reload may change.
        changed: called when clients must get a new INFO; not for this node's own lame duck mode, which is announced
            anyway.
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
        """Return `host:port` of every server of the cluster, this node's first; empty when none are shown."""
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


class Cluster:
    """A node's part in the cluster.

    Args:
        node: this node as other nodes see it.
        accounts: of this node; without clients yet.
        announce: called when clients must get a new INFO.

    Attributes:
        peers: the other nodes.
        calls: requests to them.
        routes: interest and messages between nodes.
        connect_urls: addresses for clients.
        on_lame_duck: called before other nodes are told that this node is about to stop: leaders move away.
        groups: the Raft groups of this node.
    """

    def __init__(
        self,
        node: NodeInfo,
        options: ClusterOptions,
        accounts: Accounts,
        clock: LoopClock,
        io: ThreadIo,
        log: Logger,
        announce: Callable[[], None],
    ) -> None:
        self.peers = Peers(node, options, log)
        self.routes = Routes(accounts, self.peers)
        self.calls: Calls = PeerCalls(self.peers, clock, log, self.routes.catch_up)
        self.connect_urls = ConnectUrls(self.peers, lambda: not self.options.no_advertise, announce)
        if not node.jetstream:
            ApiRelay(accounts, self.routes, self.peers)
        self.on_lame_duck: list[Callable[[], None]] = []
        self.groups = Groups(self.peers, io, clock, random=Random())

    @property
    def options(self) -> ClusterOptions:
        """Return the cluster block; a reload may change it."""
        return self.peers.options

    @property
    def name(self) -> str:
        """Return the cluster's name; a generated one may still be replaced by another node's."""
        return self.peers.node.cluster

    async def listen(self) -> int:
        """Open the route listener; nodes are admitted after `start`. Returns its port. Raises StartError."""
        await self.peers.listen()
        return self.peers.bound_port

    async def start(self) -> None:
        """Connect to the others. Everything that listens to peers is set up before."""
        self.groups.start()
        await self.peers.start()

    def enter_lame_duck(self) -> None:
        """Move leadership away, and announce lame duck mode."""
        for hand_over in self.on_lame_duck:
            hand_over()
        self.peers.update(lame_duck=True)

    async def stop(self) -> None:
        """Announce the stop and close the connections."""
        self.groups.stop()
        await self.peers.stop()


def node_info(identity: Identity, options: Options, started_ns: int) -> NodeInfo:
    """Return this node as other nodes see it."""
    jetstream, cluster = options.jetstream, options.cluster
    hidden = cluster is not None and cluster.no_advertise
    return NodeInfo(
        name=identity.server_name,
        server_id=identity.server_id,
        version=__version__,
        host=identity.host,
        client_urls=() if hidden else client_urls(identity),
        tags=options.server_tags,
        jetstream=jetstream is not None,
        accounts=True,
        domain=identity.domain,
        max_memory=jetstream.max_memory if jetstream is not None else 0,
        max_storage=jetstream.max_file if jetstream is not None else 0,
        started_ns=started_ns,
    )


def client_urls(identity: Identity) -> tuple[str, ...]:
    """Return `host:port` under which clients reach this node: as configured, else its addresses; 127.0.0.1 only when
    there is no other."""
    if identity.advertise is not None:
        return (RouteUrl(*identity.advertise).address,)
    found = addresses(identity.host)
    outer = [host for host in found if not host.startswith("127.")] or found
    return tuple(RouteUrl(host, identity.port).address for host in outer)
