"""Services that all accounts of a server share.

Belongs here: options, limits of the whole server, and the interfaces through which streams reach time, threads, files
and the lake. The accounts are in `account/`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.logging import Logger
from lakestream.meta.changes import ChangeQueues, RequestArrivals
from lakestream.meta.stores import FileStores
from lakestream.metrics.histogram import SECONDS, Histogram
from lakestream.ports import Bus, Clock, Io, Share
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.spans import Spans
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.events import StreamEvents
from lakestream.stream.core.operations import CreateStream
from lakestream.stream.core.pipeline import Uncommitted
from lakestream.stream.core.proposer import BufferLimits
from lakestream.stream.core.storage_use import StorageUse
from lakestream.stream.features.batches import BatchLimits, BatchRoom
from lakestream.stream.features.validation import NoDefinitions

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.features.validation import Definitions


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and identity of a server. Bytes; -1 or 0, as in the API: no limit."""

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
    """Maximum number of API requests that wait, or arrive together; 0: `turns.REQUEST_QUEUE_LIMIT`."""
    info_queue_limit: int = 0
    """The same for requests that change nothing (`INFO`, `NAMES`, `LIST`)."""
    buffer: BufferLimits = BufferLimits()
    max_uncommitted: int = 0
    """Bytes of the uncommitted messages of all streams; 0: `pipeline.MAX_UNCOMMITTED_BYTES`."""
    sync_interval_ns: int = 0
    """0: every write is synced before it is acked (invariant 1); else the configured time between syncs."""
    scrub_rate: int = 8 << 20
    """Bytes of sealed segments that are verified in a second, on average; 0: none are."""
    scrub_interval_ns: int = 86_400_000_000_000
    """Time from the begin of one verification of all sealed segments to the next one."""
    close_idle_ns: int = 0
    """Time without use after which streams are closed that need not be open; 0: none are, and a start opens all."""
    spool_dir: str = ""
    """Directory in which uploaded backups are staged; "": the system's directory for temporary files."""


class LakeLink(Protocol):
    """Interface to the lake's keeper, for accounts and replicas."""

    def refusal(self, config: StreamConfig) -> str | None:
        """Return the reason why the lake rejects a stream's metadata, or None."""

    def created(self, config: StreamConfig, existing: StreamConfig | None) -> StreamConfig:
        """Return the configuration of a creation with the lake's defaults in its metadata. `existing`: the stream's, if
        it exists."""

    def updated(self, config: StreamConfig, existing: StreamConfig | None) -> StreamConfig:
        """Return the configuration of an update with the lake's defaults in its metadata."""

    def attached(self, stream: Stream) -> None:
        """Start compacting a stream that begins to serve."""

    def detached(self, stream: Stream) -> None:
        """Forget a stream whose replica left this server; other nodes hold it."""

    def rests(self, stream: Stream, compacted: bool = False) -> bool:
        """Return True if the lake needs nothing more of a stream before its next entry, or a compactor comes;
        `compacted`: though one is there."""

    def keeps(self, create: CreateStream) -> bool:
        """Return True if the stream's table outlives it: then its whole log is sealed when it is deleted."""

    def knows(self, stream: Stream) -> bool:
        """Return True if the lake may have anything of a stream, or is to get it when the stream is deleted."""

    def ahead(self, streams: Sequence[Stream]) -> list[tuple[Stream, LogError]]:
        """Return the streams whose tables are ahead of their logs, with an error that says what to do. Block; call it
        before they serve. A lake that cannot be read now is logged, and checked later."""

    def deleted(self, create: CreateStream, directory: str, done: Callable[[], None]) -> None:
        """Forget a deleted stream, attached or not, whose files are in `directory` ("": there are none). Call `done`
        once the lake has recorded the deletion and compacted what it lacked, however long that takes."""


class _Lakeless:
    """`LakeLink` of a server without a lake."""

    def refusal(self, config: StreamConfig) -> str | None:
        return None

    def created(self, config: StreamConfig, existing: StreamConfig | None) -> StreamConfig:
        return config

    def updated(self, config: StreamConfig, existing: StreamConfig | None) -> StreamConfig:
        return config

    def attached(self, stream: Stream) -> None: ...

    def detached(self, stream: Stream) -> None: ...

    def rests(self, stream: Stream, compacted: bool = False) -> bool:
        return True

    def keeps(self, create: CreateStream) -> bool:
        return False

    def knows(self, stream: Stream) -> bool:
        return False

    def ahead(self, streams: Sequence[Stream]) -> list[tuple[Stream, LogError]]:
        return []

    def deleted(self, create: CreateStream, directory: str, done: Callable[[], None]) -> None:
        done()


class Unlimited(Share):
    """`Share` of a process without clients."""

    def is_over(self) -> bool:
        return False

    def wait(self, callback: Callable[[], None]) -> None:
        callback()


RESTORES_READ = 2
"""Archives that are read at the same time on one server; other restores whose chunks are all staged wait."""
RESTORES_AHEAD = 64 << 20
"""Received bytes of all restores that are not staged yet (64 MiB); above it a restore that sends more fails."""


class RestoreRoom:
    """The memory that all restores of a server share.

    Reading an archive needs memory for one block and one message, each up to three times: 16 MiB as a rule, 230 MiB
    with messages of the largest size (`archive.MAX_ENTRY`).

    Attributes:
        reading: held while an archive is read.
        ahead: received bytes that are not staged yet.
    """

    def __init__(self) -> None:
        self.reading = asyncio.Semaphore(RESTORES_READ)
        self.ahead = 0


class Shared:
    """The services of a server.

    Args:
        bus_of: returns an account's part of core NATS.
        system: the account that receives events about the whole server.
        share: the time that requests of clients may take of a turn of the event loop; None: any.
    """

    def __init__(
        self,
        clock: Clock,
        io: Io,
        stores: FileStores,
        options: EngineOptions,
        log: Logger,
        bus_of: Callable[[str], Bus],
        system: str = GLOBAL_ACCOUNT,
        share: Share | None = None,
    ) -> None:
        self.clock, self.io, self.stores, self.options, self.log = clock, io, stores, options, log
        self.bus_of, self.system = bus_of, system
        self.lake: LakeLink = _Lakeless()
        self.cluster_name: Callable[[], str] = str
        """Returns the name of the server's cluster; "" without one."""
        self.batches = BatchRoom(options.batches)
        self.uncommitted = Uncommitted(options.max_uncommitted)
        self.spans: Spans | None = None
        """Exports the spans of traced messages; None: traces are off."""
        self.definitions: Callable[[str], Definitions] = lambda account: NoDefinitions()
        """Returns the schemas of an account."""
        self.ack_seconds = Histogram(SECONDS)
        """Times from publish to pub ack of all streams."""
        self.restores = RestoreRoom()
        self.share: Share = share or Unlimited()
        limit = options.request_queue_limit
        self.changes = ChangeQueues(limit, self._too_many_requests, self.share)
        self.requests = RequestArrivals(limit, clock.call_soon, self._too_many_requests)
        self.infos = RequestArrivals(options.info_queue_limit, clock.call_soon, self._too_many_infos)
        self.use = StorageUse(options.max_memory, options.max_file)
        self.events = StreamEvents(bus_of(system), clock, options.domain)
        """Sends advisories about the whole server."""

    def _too_many_requests(self, dropped: int) -> None:
        self._too_many("JetStream API queue limit reached", dropped)

    def _too_many_infos(self, dropped: int) -> None:
        self._too_many("JetStream API info queue limit reached", dropped)

    def _too_many(self, limit: str, dropped: int) -> None:
        self.log.warn_again(f"{limit}, dropping {dropped} requests", limit)
        self.events.limit_reached(self.options.server_name, dropped)

    def out_of_storage(self, stream: str) -> None:
        """Send the advisory that the disk has no room for a stream's log."""
        options = self.options
        self.events.out_of_storage(options.server_name, options.server_id, self.cluster_name(), stream)
