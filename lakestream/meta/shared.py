"""What the engines of a server have in common.

Belongs here: options, limits of the whole server, and the ports through which every account's streams reach time,
threads, files and the lake. Which engines there are is engines.py's; what one of them has is engine.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.store.store import Store
from lakestream.meta.turns import Turns
from lakestream.ports import Bus, Clock, Io
from lakestream.stream.assembly import Stream
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.events import StreamEvents
from lakestream.stream.core.operations import CreateStream
from lakestream.stream.core.storage_use import StorageUse
from lakestream.stream.features.batches import BatchLimits, BatchRoom

if TYPE_CHECKING:
    from lakestream.account.engine import Engine
    from lakestream.meta.node import JetStreamCluster
    from lakestream.meta.replicas import ReplicaStores

GLOBAL = "$G"
"""The account of everybody who is in no other one."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and identity that streams and the API see. Bytes; -1 or 0 as in the API where nothing is limited."""

    server_name: str
    server_id: str
    domain: str = ""
    strict: bool = True
    max_memory: int = -1
    max_file: int = -1
    duplicate_window_ns: int = 120_000_000_000
    max_ack_pending: int = 0
    max_request_batch: int = 0
    default_max_consumers: int = 1000
    max_pending: int = 64 << 20
    batches: BatchLimits = BatchLimits()
    request_queue_limit: int = 0
    """See `turns.Turns`."""
    sync_interval_ns: int = 0
    """0: every write is synced before it counts (invariant 1); else the time between syncs, asked for explicitly."""
    spool_dir: str = ""
    """Where backups that come are staged; "" is the system's directory for temporary files."""


class Stores(Protocol):
    """Where streams keep their logs."""

    @property
    def replicas(self) -> ReplicaStores:
        """The files of streams that other nodes hold too."""

    def create(self, account: str, name: str, uid: str, *, memory: bool) -> Store:
        """An empty store. Blocks (fsync); call it in a thread. Raises LogError."""

    def found(self, tell: Callable[[str], None]) -> list[tuple[str, str]]:
        """Return (account, stream) of every log on disk; `tell` gets a line for whatever else lies there. Blocks."""

    def open(self, account: str, name: str) -> Store:
        """Open a log. Blocks. Raises LogError naming file and offset when it is damaged."""

    def remove(self, account: str, name: str) -> None:
        """Remove a log that is not open, whatever is in it. Blocks."""

    def leave(self, account: str, name: str, note: bytes) -> str:
        """Have the files of a deleted stream, which is not open, wait for the lake (leaving.py); where. Blocks."""

    def left(self) -> list[tuple[str, str, str]]:
        """Return (account, stream, directory) of the deleted streams whose files wait for the lake, as of `found`."""

    def note_in(self, directory: str) -> bytes:
        """Return the note that was left with one of them. Blocks. Raise OSError."""

    def set_aside(self, directory: str) -> str:
        """Rename one of them so that no start looks at it again; return its new path. Blocks. Raise OSError."""

    def clear(self, directory: str) -> None:
        """Remove one of them. Blocks."""


class LakeLink(Protocol):
    """What the engines tell the lake's keeper, and ask it."""

    def refusal(self, config: StreamConfig) -> str | None:
        """Why the lake could not do what a stream's metadata asks for; None when it can."""

    def attached(self, stream: Stream) -> None:
        """A stream serves from now on."""

    def detached(self, stream: Stream) -> None:
        """This server holds the stream no more; other nodes do."""

    def keeps(self, create: CreateStream) -> bool:
        """Whether the stream's table outlives it, so that all that it holds has to be sealed when it is deleted."""

    def ahead(self, streams: Sequence[Stream]) -> list[tuple[Stream, LogError]]:
        """Return those of which the lake holds more than their logs, with what to do about it. Blocks; before they
        serve. What the lake cannot be asked now is said in the log, and found out later."""

    def left(self, create: CreateStream, directory: str, done: Callable[[], None]) -> None:
        """A stream is gone for good, whether it was attached here or not, and its files are in `directory` ("": there
        are none). `done` once the lake knows, and has what it is owed of them, however long that takes."""


class Log(Protocol):
    """Where the engines report."""

    def info(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...


class _Lakeless:
    """A server without a lake."""

    def refusal(self, config: StreamConfig) -> str | None:
        return None

    def attached(self, stream: Stream) -> None:
        return

    def detached(self, stream: Stream) -> None:
        return

    def keeps(self, create: CreateStream) -> bool:
        return False

    def ahead(self, streams: Sequence[Stream]) -> list[tuple[Stream, LogError]]:
        return []

    def left(self, create: CreateStream, directory: str, done: Callable[[], None]) -> None:
        done()


RESTORES_READ = 2
"""Restores whose archives are read at the same time on one server; those whose chunks are all here wait in a file."""
RESTORES_AHEAD = 64 << 20
"""Bytes of all restores that came and are not staged yet (64 MiB); above it whoever sends more is refused."""


class RestoreRoom:
    """The memory that all restores of a server have together.

    A restore that is read holds a block of its archive and one message, each up to three times: 16 MiB as a rule, 230
    MiB with messages of the largest size (`archive.MAX_ENTRY`).

    Attributes:
        reading: held while an archive is read.
        ahead: bytes that came and are not staged yet.
    """

    def __init__(self) -> None:
        self.reading = asyncio.Semaphore(RESTORES_READ)
        self.ahead = 0


class Shared:
    """What every engine of a server has.

    Args:
        bus_of: an account's part of core NATS.
        system: the account that hears what concerns the whole server.
    """

    def __init__(
        self,
        clock: Clock,
        io: Io,
        stores: Stores,
        options: EngineOptions,
        log: Log,
        bus_of: Callable[[str], Bus],
        system: str = GLOBAL,
    ) -> None:
        self.clock, self.io, self.stores, self.options, self.log = clock, io, stores, options, log
        self.bus_of, self.system = bus_of, system
        self.lake: LakeLink = _Lakeless()
        self.cluster: JetStreamCluster | None = None
        """Set before the API and `Engines.recover` when this server is one of several."""
        self.batches = BatchRoom(options.batches)
        self.restores = RestoreRoom()
        self.turns = Turns(options.request_queue_limit, self._too_many_requests)
        self.use = StorageUse(options.max_memory, options.max_file)
        self.events = StreamEvents(bus_of(system), clock, options.domain)
        """Tells what concerns the whole server."""
        self.engines: Callable[[], list[Engine]] = list
        """Those that there are."""

    def _too_many_requests(self, dropped: int) -> None:
        self.log.warn(f"JetStream API queue limit reached, dropping {dropped} requests")
        self.events.limit_reached(self.options.server_name, dropped)

    def out_of_storage(self, stream: str) -> None:
        """The disk has no room for a stream's log."""
        cluster = self.cluster.name if self.cluster is not None else ""
        self.events.out_of_storage(self.options.server_name, self.options.server_id, cluster, stream)
