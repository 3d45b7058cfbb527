"""One worker's part in its server.

Belongs here: what the supervisor gives a worker, the settings that concern it, where it keeps its streams, and the
figures that all workers share.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from lakestream.config.options import LeafOptions, Options, SqlOptions
from lakestream.protocol.nkeys import KeyPair

_COUNT = struct.Struct("=q")
WORKERS = "workers"
"""Directory of the other workers, in the storage directory of the server."""


def worker_store(store_dir: str, index: int) -> str:
    """Return the storage directory of a worker."""
    return os.path.join(store_dir, WORKERS, str(index)) if index else store_dir


def store_of_peer(own: str, index: int, other: int) -> str:
    """Return the store (`…/jetstream`) of another worker; `own` is the storage directory of worker `index`."""
    first = os.path.dirname(os.path.dirname(own)) if index else own
    return os.path.join(worker_store(first, other), "jetstream")


class Counts:
    """One number of each worker, in memory that all processes of the server share."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._memory = mmap.mmap(-1, _COUNT.size * workers)

    def put(self, index: int, value: int) -> int:
        """Set the number of one worker; return the sum."""
        _COUNT.pack_into(self._memory, index * _COUNT.size, value)
        return self.total()

    def total(self) -> int:
        """Return the sum."""
        return sum(_COUNT.unpack_from(self._memory, each * _COUNT.size)[0] for each in range(self._workers))


class Worker:
    """A worker's part in its server.

    Args:
        index, count: its number, from 0, and that of all workers.
        ports: the ports for clients and for WebSocket, which all workers share; 0: none.
        sockets: the directory of the sockets between workers.
        server_id, key: of the server; the key is used if one is needed.
        connections: the connections of each worker.
        retired: 1 for each worker whose lame duck mode is over.
        ready: a pipe to the supervisor.
        alive: a pipe that ends with the supervisor.
    """

    def __init__(
        self,
        index: int,
        count: int,
        ports: tuple[int, int],
        sockets: str,
        server_id: str,
        key: KeyPair | None,
        connections: Counts,
        retired: Counts,
        ready: int,
        alive: int,
    ) -> None:
        self.index, self.count, self.sockets = index, count, sockets
        self.server_id, self.key = server_id, key
        self._ports, self._connections, self._retired = ports, connections, retired
        self._ready, self._alive = ready, alive

    @property
    def first(self) -> bool:
        """Return True for the worker with what a server has once: monitoring, SQL, leaf nodes, remotes, compactor."""
        return self.index == 0

    def options_of(self, options: Options) -> Options:
        """Return the settings of the server as they concern this worker."""
        port, websocket_port = self._ports
        changed = self.share_of(options)
        return replace(changed, port=port, websocket=replace(changed.websocket, port=websocket_port))

    def share_of(self, options: Options) -> Options:
        """Return the settings of the server as they concern this worker, with the ports as they are configured."""
        changed = options
        if options.jetstream is not None:
            store = worker_store(options.jetstream.store_dir, self.index)
            lake = options.lake
            if lake.enabled and not lake.url:
                changed = replace(changed, lake=replace(lake, url=os.path.join(options.jetstream.store_dir, "lake")))
            changed = replace(changed, jetstream=replace(options.jetstream, store_dir=store))
        if self.first:
            return changed
        quiet: tuple[str, ...] = ()
        return replace(
            changed, http_port=0, https_port=0, leafnodes=LeafOptions(), remotes=(), sql=SqlOptions(), warnings=quiet
        )

    def stop_with_server(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        """Call `stop` when the supervisor is gone."""

        def gone() -> None:
            loop.remove_reader(self._alive)
            stop()

        loop.add_reader(self._alive, gone)

    def report_ready(self, listening: Mapping[str, Sequence[str]]) -> None:
        """Tell the supervisor that this worker serves; `listening`: its URLs by kind."""
        os.write(self._ready, msgspec.json.encode(listening) + b"\n")
        os.close(self._ready)

    def retired(self) -> None:
        """Tell the supervisor that lame duck mode is over here; it stops the server once all workers said so."""
        self._retired.put(self.index, 1)

    def count_connections(self, number: int) -> int:
        """Note the number of connections here; return that of the server."""
        return self._connections.put(self.index, number)
