"""A server without other nodes.

Belongs here: what takes the place of a node's part in a cluster where there is no `cluster` block. Every server loads
this module; cluster.py, with peers and routes, is loaded with the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from lakestream.config.options import STANDARD, Options
from lakestream.net.identity import Identity

if TYPE_CHECKING:
    from lakestream.net.peers.link import Link
    from lakestream.net.peers.remote_node import RemoteNode


class RouteTraffic(NamedTuple):
    """Traffic with the connected nodes, and connections that ended badly."""

    nodes: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0


class Standalone:
    """A server without other nodes; attributes and methods are those of `Cluster`.

    Args:
        name: of a cluster that is configured without a listener; it is shown.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    port = 0
    others: Callable[[], Iterable[str]] | None = None

    def connect_urls(self, kind: str = STANDARD) -> tuple[str, ...]:
        return ()

    async def listen(self, identity: Identity, websocket_urls: tuple[str, ...], leaf_urls: tuple[str, ...]) -> None: ...

    async def start(self) -> None: ...

    async def first_attempts(self) -> None: ...

    def reload(self, options: Options) -> None: ...

    def advertise(self, identity: Identity) -> None: ...

    def enter_lame_duck(self) -> None: ...

    async def stop(self) -> None: ...

    def links(self) -> list[tuple[Link, RemoteNode]]:
        return []

    def traffic(self) -> RouteTraffic:
        return RouteTraffic()

    def foreign(self, account: str = "") -> int:
        return 0

    def shown(self) -> dict[str, Any]:
        return {"name": self.name} if self.name else {}
