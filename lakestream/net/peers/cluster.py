"""What makes a node part of a cluster.

Belongs here: putting the cluster's parts together (peers, calls; on them routing, groups and the meta group), and the
order in which they start and stop. Without a `cluster` block there is no `Cluster`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lakestream import __version__
from lakestream.config.options import ClusterOptions, Options, RouteUrl
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.identity import Identity
from lakestream.net.peers.api_relay import ApiRelay
from lakestream.net.peers.calls import PeerCalls
from lakestream.net.peers.connect_urls import ConnectUrls
from lakestream.net.peers.peers import Peers
from lakestream.net.peers.routes import Routes
from lakestream.ops.ports_file import addresses
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.groups import Groups
from lakestream.raft.group.ports import Calls
from lakestream.runtime import LoopClock, ThreadIo


class Cluster:
    """The cluster as one node has it. `Node.cluster` holds it; None without a `cluster` block.

    Args:
        node: this node as others are to see it.
        accounts: of this node; nobody is in them yet.
        announce: called when clients are to get a new INFO.

    Attributes:
        peers: the other nodes.
        calls: requests to them.
        routes: interest and messages between nodes.
        connect_urls: where clients are told to connect to.
        on_lame_duck: what to do before others hear that this node is about to go: hand over what it leads.
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
        """The cluster block; a reload may change it."""
        return self.peers.options

    @property
    def name(self) -> str:
        """The cluster's name; one that was made up may still give way to another's."""
        return self.peers.node.cluster

    async def listen(self) -> int:
        """Open the route listener, which lets nobody in yet. Returns its port. Raises StartError."""
        await self.peers.listen()
        return self.peers.bound_port

    async def start(self) -> None:
        """Connect to the others. Everything that listens to peers is set up before."""
        self.groups.start()
        await self.peers.start()

    def enter_lame_duck(self) -> None:
        """Hand over what this node leads, and let the others send their clients elsewhere."""
        for hand_over in self.on_lame_duck:
            hand_over()
        self.peers.update(lame_duck=True)

    async def stop(self) -> None:
        """Leave the cluster: the others are told, connections end."""
        self.groups.stop()
        await self.peers.stop()


def node_info(identity: Identity, options: Options, started_ns: int) -> NodeInfo:
    """This node as the others are to see it."""
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
    """`host:port` under which clients reach this node: what is configured, or its addresses, 127.0.0.1 only when there
    is no other."""
    if identity.advertise is not None:
        return (RouteUrl(*identity.advertise).address,)
    found = addresses(identity.host)
    outer = [host for host in found if not host.startswith("127.")] or found
    return tuple(RouteUrl(host, identity.port).address for host in outer)
