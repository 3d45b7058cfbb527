"""The connections between the workers of one server.

Belongs here: what differs from a cluster: Unix sockets in a private directory instead of ports, and that clients and
monitoring see one server without a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from lakestream.config.options import STANDARD, ClusterOptions, Options, RouteUrl
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.identity import Identity, new_server_id
from lakestream.net.peers.cluster import Cluster
from lakestream.net.peers.link import Link
from lakestream.net.peers.remote_node import RemoteNode
from lakestream.net.peers.standalone import RouteTraffic
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.ports import call_all
from lakestream.runtime import LoopClock

MEET_S = 3.0
"""Maximum time for which a worker that starts waits for the others (3 s)."""

NAME = "workers"
"""Name of the cluster of workers, which only they see."""


def _socket(directory: str, index: int) -> str:
    return f"{directory}/{index}.sock"


class Workers(Cluster):
    """A worker's part among the workers of its server.

    Args:
        identity: of the server; a worker has a name and an id of its own among the others.
        index, count: the number of this worker, from 0, and that of all.
        directory: of the sockets; only the server's user may enter it, which takes the place of a password.
    """

    def __init__(
        self,
        identity: Identity,
        options: Options,
        started_ns: int,
        accounts: Accounts,
        clock: LoopClock,
        log: Logger,
        index: int,
        count: int,
        directory: str,
    ) -> None:
        routes = tuple(RouteUrl(_socket(directory, each), 0) for each in range(count) if each != index)
        unix = ClusterOptions(name=NAME, host=_socket(directory, index), routes=routes, no_advertise=True)
        mine = replace(identity, server_name=self.name_of(index), server_id=new_server_id())
        inner = replace(options, cluster=unix)
        super().__init__(mine, inner, started_ns, accounts, clock, log, lambda: None, relays=False)
        self.index, self.first, self.is_first = index, self.name_of(0), index == 0
        self.names = [self.name_of(each) for each in range(count) if each != index]
        self.others = None
        self.peers.serve(SYNC, lambda node, body, answer: answer(b""))

    @staticmethod
    def name_of(index: int) -> str:
        """Return the name of a worker among the others."""
        return f"worker-{index}"

    @property
    def name(self) -> str:
        return ""

    def connect_urls(self, kind: str = STANDARD) -> tuple[str, ...]:
        return ()

    async def meet(self) -> None:
        """Wait until the other workers are connected, but not for long: one of them may be down."""
        all_met = asyncio.Event()

        def look(node: NodeInfo, up: bool) -> None:
            if len(self.peers.connected()) == len(self.names):
                all_met.set()

        if self.names:
            self.peers.watch_links(look)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MEET_S):
                    await all_met.wait()
            # They announce their subscriptions as soon as they are connected.
            settled = asyncio.get_running_loop().create_future()
            self.settle(lambda: settled.set_result(None), int(MEET_S * 1e9))
            await settled

    def settle(self, then: Callable[[], None], timeout_ns: int) -> None:
        """Call back once the other workers know the subscriptions that this one has now, or after a time."""
        call_all(self.peers, self.peers.connected(), SYNC, b"", then, timeout_ns)

    def reload(self, options: Options) -> None:
        """Do nothing: the workers know of each other what cannot change."""

    def advertise(self, identity: Identity) -> None:
        """Do nothing: all workers have the same addresses."""

    def enter_lame_duck(self) -> None:
        """Do nothing: all workers do it together."""

    def foreign(self, account: str = "") -> int:
        """Return the number of subscriptions here that are those of other workers, of one account or ("") of all."""
        held = [owner for node in self._routes.nodes.values() for owner, _ in node.subscriptions]
        return len(held) if not account else held.count(account)

    def links(self) -> list[tuple[Link, RemoteNode]]:
        return []

    def traffic(self) -> RouteTraffic:
        return RouteTraffic()

    def shown(self) -> dict[str, Any]:
        return {}


SYNC = "workers.sync"
"""The call that is answered once everything that was sent before it is taken in."""
