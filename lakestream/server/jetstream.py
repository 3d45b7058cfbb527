"""JetStream of all accounts of a server.

Belongs here: construction of the store, the lake's keeper, an engine for each account with JetStream and its API, and
the order in which they start and stop. The limits of an account are in net/accounts/accounts.py; node.py starts and
stops the server.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from lakestream.account.api.subjects import Api
from lakestream.account.api.system import SystemApi
from lakestream.account.api.transfer import TransferApi
from lakestream.account.engine import Engine
from lakestream.account.engines import Engines
from lakestream.account.schemas import bucket
from lakestream.account.use import ElsewhereUse
from lakestream.config.errors import StartError
from lakestream.config.options import JetStreamOptions, LakeOptions, Options
from lakestream.extras import ExtraMissing, LatePart, load
from lakestream.lake.flush import LAST
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files, Io
from lakestream.log.store.journal import KEY
from lakestream.log.store.segment_log import LogOptions
from lakestream.logging import Logger
from lakestream.meta.meta import MetaUnusable
from lakestream.meta.node import CALL_TIMEOUT_NS, MetaNode
from lakestream.meta.shared import EngineOptions, Shared
from lakestream.meta.solo import solo_node
from lakestream.meta.stores import FileStores
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.identity import Identity
from lakestream.net.peers.standalone import Standalone
from lakestream.ports import Bus, ClientInfo, Single, Subscribed, Take, singly
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.api.request import API_LEVEL
from lakestream.protocol.schema_api import PREFIX
from lakestream.runtime import LoopClock, ThreadIo
from lakestream.server.lake.api import FlushApi
from lakestream.server.verification import Verifier, VerifyApi
from lakestream.spans import Spans, configured, open_spans
from lakestream.stream.core.pipeline import nothing_left
from lakestream.stream.core.proposer import BufferLimits
from lakestream.stream.features.batches import BatchLimits

if TYPE_CHECKING:
    from lakestream.account.schemas.definitions import AccountDefinitions
    from lakestream.net.peers.cluster import Cluster
    from lakestream.net.peers.workers import Workers
    from lakestream.server.lake.address import LakeAddress
    from lakestream.server.lake.keeper import LakeKeeper
    from lakestream.server.lake.last_api import LastApi
    from lakestream.server.lake.schema_export import SchemaExport

LOOK_NS = 2_000_000_000
"""Interval at which each account looks for new schemas (2 s)."""

STOP_WAIT_S = 10.0
"""Maximum time for writes in flight at the end."""

HAND_OVER_WAIT_S = 2.0
"""Maximum time for other nodes to take over leadership at the end."""

AHEAD = (
    "lakestream.stream.rules",
    "lakestream.account.schemas.definitions",
    "lakestream.account.get.direct",
    "lakestream.account.api.streams",
    "lakestream.account.api.consumers",
    "lakestream.account.api.messages",
    "lakestream.meta.replica",
)
"""Modules that the first stream and its requests need. A server without streams is ready before it has them, and loads
them behind that."""

LAKE_THREADS = 8
"""Pieces of work for the lake at once, such as a look at a table; further ones queue. The log has threads of its own: a
lake that does not answer must not hold it up."""


class SchemaRegistry(Protocol):
    """Serves the requests to the schema registry of one account (packages/schemas)."""

    def look(self) -> None:
        """Have the lake get what was registered."""

    def asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        """Serve a request."""


class Served:
    """JetStream of one account: the engine, its API, and the requests of lake readers."""

    def __init__(
        self,
        engine: Engine,
        api: Api,
        keeper: LakeKeeper | None,
        export: SchemaExport | None,
        verifier: Verifier,
        services: Sequence[Subscribed],
    ) -> None:
        self.engine, self.api = engine, api
        self.transfers = TransferApi(engine)
        self.verifications = VerifyApi(engine, verifier)
        self.flushes = FlushApi(engine, keeper)
        self._registry: LatePart[SchemaRegistry] = LatePart(
            engine.io.submit,
            lambda: load("lakestream.schemas", "registry", "schemas", "the schema registry"),
            lambda made: made(engine, export),
        )
        self._schema_requests = engine.bus.subscribe(f"{PREFIX}>".encode(), singly(self._schemas_asked))
        self._last_requests = engine.bus.subscribe(f"{LAST}*".encode(), singly(engine.when_open(self._last_asked)))
        self._services = services

    @functools.cached_property
    def last_messages(self) -> LastApi:
        """Return the requests for last messages, which are loaded with the first of them."""
        from lakestream.server.lake.last_api import LastApi

        return LastApi(self.engine)

    def _last_asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        self.last_messages.asked(subject, reply, header, body, client)

    def _schemas_asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        def missing(text: str) -> None:
            stream, bus = self.engine.streams.get(bucket.STREAM), self.engine.bus
            if reply and (self.engine.node.meta.leading if stream is None else stream.leading):
                bus.send(Single(reply, payload=dumps({"error": api_error(20005, err=text).as_dict()})))

        def asked() -> None:
            self._registry.use(lambda registry: registry.asked(subject, reply, header, body, client), missing)

        if not self.engine.opening(bucket.STREAM, asked, len(body)):
            asked()

    def look_for_schemas(self) -> None:
        """Have the lake get what was registered."""
        if bucket.STREAM in self.engine.streams:
            self._registry.use(lambda registry: registry.look(), lambda text: None)
        else:
            self.engine.opening(bucket.STREAM, nothing_left)

    def close(self) -> None:
        """Stop JetStream of an account; the API remains, to reject requests."""
        self.transfers.close()
        self.flushes.close()
        self._last_requests.cancel()
        self.verifications.close()
        self._schema_requests.cancel()
        for service in self._services:
            service.cancel()


class JetStream:
    """JetStream of one server.

    Args:
        options: with a `jetstream` block.
        cluster: the server's part in a cluster.
        needed: called with each account that has streams here or on other nodes.
        services: each serves further requests of an account.
        files: of the store.
        threads: returns so many threads besides those of `io`.

    Raises:
        StartError: the store cannot be used.
    """

    def __init__(
        self,
        options: Options,
        identity: Identity,
        accounts: Accounts,
        clock: LoopClock,
        io: ThreadIo,
        log: Logger,
        cluster: Cluster | Standalone,
        needed: Callable[[str], None],
        services: Sequence[Callable[[str, Bus], Subscribed]],
        files: Files,
        threads: Callable[[int], ThreadIo],
    ) -> None:
        assert options.jetstream is not None  # Invariant: see the arguments.
        self._options, self._accounts, self._io, self._log = options.jetstream, accounts, io, log
        self._services, self._threads, self._clock = services, threads, clock
        self._stopping = False
        self.served: dict[str, Served] = {}
        """Accounts with JetStream, by name."""
        self.apis: dict[str, Api] = {}
        """APIs by account, also of accounts without JetStream, which reject requests. The system account's is
        `SystemApi`."""
        self._system_api: SystemApi | None = None
        self.keeper: LakeKeeper | None = None
        self._schema_export: SchemaExport | None = None
        self.address: LakeAddress | None = None
        """The server's file in the lake."""
        if self._options.temporary_store:
            log.warn(
                f"Temporary storage directory used, data could be lost on system reboot: {self._options.store_dir}"
            )
        try:
            self.stores = open_stores(self._options, options.lake, io, files, clock.now, log.info)
            self.found = self.stores.accounts()
            """Accounts that had streams here before this start."""
        except (LogError, OSError) as error:
            raise StartError(
                f"Can't start JetStream: cannot use the store {self._options.store_dir!r}: {error}"
            ) from error
        shared = Shared(
            clock,
            io,
            self.stores,
            _engine_options(self._options, identity, self.stores.root, options.max_pending),
            log,
            accounts.bus,
            GLOBAL_ACCOUNT if accounts.alone else accounts.system.name,
            accounts.default.hub.turn,
        )
        self.ack_seconds = shared.ack_seconds
        self.spans = shared.spans = _open_spans(options, identity.server_name, log)
        if options.lake.enabled:
            from lakestream.server.lake.address import LakeAddress  # with the tables' logs
            from lakestream.server.lake.keeper import LakeKeeper
            from lakestream.server.lake.schema_export import SchemaExport

            # Threads of its own, which are daemons: neither the log nor the end of the process waits for the lake.
            work, probes = threads(LAKE_THREADS), threads(1)
            root, share = lake_root(options), shared.share
            shared.lake = self.keeper = keeper = LakeKeeper(root, options.lake, clock, work, log, probes, share)
            self._schema_export = SchemaExport(keeper.root, keeper.presence, clock, work, log)
            keeper.owed = self._schema_export.owed
            store_dir = self._options.store_dir
            self.address = LakeAddress(keeper.root, store_dir, files, keeper.presence, clock, work, log)
            if self._options.prev_encryption_key:
                work.submit(functools.partial(self._rotate_staged, keeper.root), self._rotated)
        self._definitions: dict[str, AccountDefinitions] = {}
        """Schemas by which publishes are checked, by account."""
        shared.definitions = self._definitions_of
        node: Callable[[Shared, Engines], MetaNode] = solo_node
        if not isinstance(cluster, Standalone):
            node = self._member(cluster)
        self.engines = Engines(shared, node, needed)
        self.node = self.engines.node
        """This server's part in the streams of all nodes."""
        root, own = self.keeper.root if self.keeper is not None else "", self._options
        self._verifier = Verifier(self.node, root, own.verify_rate, own.max_verifications, self._background)

    def _rotate_staged(self, lake: str) -> int:
        """Wrap the keys beside staged segments with the newest master key. Block."""
        from lakestream.lake.staging.sealed import rotate
        from lakestream.log.sealing.keys import Keyring

        return rotate(lake, Keyring([self._options.encryption_key, self._options.prev_encryption_key]))

    def _rotated(self, changed: int | None, error: BaseException | None) -> None:
        if error is not None:
            self._log.warn(f"the keys beside staged segments have the key before: {error}; run `lakestream rotate-key`")

    def _definitions_of(self, account: str) -> AccountDefinitions:
        found = self._definitions.get(account)
        if found is None:
            from lakestream.account.schemas.definitions import AccountDefinitions  # with the first stream

            shared = self.engines.shared

            def uid() -> str:
                assignment = self.node.find(account, bucket.STREAM)
                return "" if assignment is None else assignment.uid

            found = self._definitions[account] = AccountDefinitions(
                account, shared.options.server_name, shared.bus_of(account), shared.clock, shared.io, uid, self._log
            )
            if self._schema_export is not None:
                found.on_use = functools.partial(self._schema_export.put, account)
        return found

    def _background(self) -> Io:
        """Return threads for verifications. They are daemons, and end with the process."""
        return self._threads(self._options.max_verifications)

    def _member(self, cluster: Cluster) -> Callable[[Shared, Engines], MetaNode]:
        from lakestream.net.peers.workers import Workers  # loaded where there are other nodes

        return self._working(cluster) if isinstance(cluster, Workers) else self._joining(cluster)

    def _joining(self, cluster: Cluster) -> Callable[[Shared, Engines], MetaNode]:
        def join(shared: Shared, engines: Engines) -> MetaNode:
            from lakestream.meta.cluster import cluster_node  # with Raft, which one server does without

            stores, tag = self.stores, self._options.unique_tag
            node = cluster_node(shared, engines, stores, cluster.peers, stores.root, tag)
            node.replicas.site.lake = self.keeper
            node.services.append(ElsewhereUse(engines, node))
            return node

        return join

    def _working(self, workers: Workers) -> Callable[[Shared, Engines], MetaNode]:
        def join(shared: Shared, engines: Engines) -> MetaNode:
            from lakestream.meta.worker_load import WorkerBalance
            from lakestream.meta.workers import worker_node
            from lakestream.server.workers.worker import store_of_peer

            def guard(account: str, take: Callable[[bytes, Take], Take] | None) -> None:
                self._accounts.bus(account).guard = take

            settle = functools.partial(workers.settle, timeout_ns=CALL_TIMEOUT_NS)
            own, name_of = (self._options.store_dir, workers.index), workers.name_of
            stores = {name_of(each): store_of_peer(*own, each) for each in range(len(workers.names) + 1)}
            names = workers.first, workers.names
            node = worker_node(shared, engines, workers.peers, *names, settle, guard, stores.__getitem__)
            if self._options.balance_workers:
                node.services.append(WorkerBalance(node, workers.first))
            node.services.append(ElsewhereUse(engines, node))
            return node

        return join

    # ------------------------------------------------------------------ start
    def recover(self) -> None:
        """Recover the streams, and serve the accounts with JetStream. Blocks. Raises StartError."""
        began = time.perf_counter()
        self._accounts.follow(self.configure)
        self.configure(list(self._accounts))
        self._banner()
        try:
            self.engines.recover()
        except MetaUnusable as error:
            raise StartError(str(error)) from error
        except (LogError, OSError, ValueError) as error:  # of the store or the meta group: a stream's own is set aside
            raise StartError(f"cannot use the store {self.stores.root!r}: {error}") from error
        if self.keeper is None:
            for stream in self.engines.streams():
                if stream.store.left_through:
                    self._log.error(f"stream {stream.name}: some of its messages are only in the lake, which is off")
        self.engines.start()
        self._log.info(f"Took {(time.perf_counter() - began) * 1000:.3f}ms to start JetStream")

    def configure(self, accounts: Iterable[Account]) -> None:
        """Serve these accounts as they are configured from now on; those that are gone have no JetStream."""
        for account in accounts:
            if account.is_system:
                if self._system_api is None and not self._accounts.alone:
                    self._system_api = SystemApi(self.engines)
                continue
            api, served = self._api(account), self.served.get(account.name)
            if account.jetstream is not None:
                engine = self.engines.serve(account.name, account.jetstream)
                if served is None:
                    services = [serve(account.name, engine.bus) for serve in self._services]
                    self.served[account.name] = Served(
                        engine, api, self.keeper, self._schema_export, self._verifier, services
                    )
            elif served is not None:
                self.engines.withdraw(account.name)
                served.close()
                del self.served[account.name]

    def _api(self, account: Account) -> Api:
        """Return the account's API. It is off while the API of another account takes its place."""
        api = self.apis.get(account.name)
        if api is None:
            api = self.apis[account.name] = Api(self.engines.of(account.name))
        if self._accounts.replaces_api(account):
            api.close()
        else:
            api.listen()
        return api

    def _banner(self) -> None:
        options, info = self._options, self._log.info
        info("---------------- JETSTREAM ----------------")
        info(f"  Strict:          {str(options.strict).lower()}")
        info(f"  Max Memory:      {_human(options.max_memory)}")
        info(f"  Max Storage:     {_human(options.max_file)}")
        info(f'  Store Directory: "{self.stores.root}"')
        if options.encryption_key:
            info(f"  Encryption:      {'AES-GCM' if options.cipher == 'aes' else 'ChaCha20-Poly1305'}")
        info("  Lake:            " + (f'"{self.keeper.root}"' if self.keeper is not None else "off"))
        if options.domain:
            info(f"  Domain:          {options.domain}")
        info(f"  API Level:       {API_LEVEL}")
        info("-------------------------------------------")

    def start(self) -> None:
        """Go on once the server is ready: take part in the cluster, follow the lake."""
        self.node.start()
        if self.keeper is not None:
            self.keeper.on_compactor = self.node.keeping.compacting
            self.keeper.start()
            self._clock.call_later(LOOK_NS, self._look_for_schemas)

    def _look_for_schemas(self) -> None:
        """Have the lake get what was registered: one timer for all accounts, of which few have schemas."""
        if self._stopping:
            return
        for served in list(self.served.values()):
            served.look_for_schemas()
        self._clock.call_later(LOOK_NS, self._look_for_schemas)

    # ------------------------------------------------------------------ end
    async def stop(self) -> None:
        """Stop serving, once writes in flight have reached the disk and their acks the clients."""
        self._stopping = True
        self._verifier.stop()
        for definitions in self._definitions.values():
            definitions.stop()
        if self.keeper is not None:
            self.keeper.stop()
        await self._drain()
        self.engines.stop()

    async def _drain(self) -> None:
        self.node.yield_leadership()  # first, so that the next leader takes messages at once
        handed_over_by = time.monotonic() + HAND_OVER_WAIT_S
        while self.node.handing_over and time.monotonic() < handed_over_by:
            await asyncio.sleep(0.005)
        self.engines.cease()
        deadline = time.monotonic() + STOP_WAIT_S
        while any(stream.pipeline.uncommitted() for stream in self.engines.streams()) and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Write the last checkpoints; after `stop`."""
        await self._io.call(self.engines.close)
        if self.spans is not None:
            await self._io.call(self.spans.close)


def lake_root(options: Options) -> str:
    """Return the root of the lake of a server with JetStream."""
    assert options.jetstream is not None  # Invariant: see above.
    return options.lake.url or os.path.join(options.jetstream.store_dir, "lake")


def open_stores(
    options: JetStreamOptions,
    lake: LakeOptions,
    io: Io,
    files: Files | None = None,
    now: Callable[[], int] = time.time_ns,
    tell: Callable[[str], None] = lambda line: None,
) -> FileStores:
    """Open the store directory. Raise LogError, OSError when it cannot be used.

    `tell` takes lines about what is encrypted or decrypted before.
    """
    logs = LogOptions(
        seal_bytes=lake.seal_bytes,
        seal_age_ns=lake.seal_age_ns,
        retain_bytes=lake.retain_bytes,
        sync_always=options.sync_always,
    )
    return FileStores(options.store_dir, logs, options.max_index_memory, io, store_files(options, files, tell), now)


def store_files(options: JetStreamOptions, files: Files | None, tell: Callable[[str], None]) -> Files:
    """Return the files of the store, which are sealed if there is a key. Raise LogError, OSError."""
    files, root = files or Files(), os.path.join(options.store_dir, "jetstream")
    if not options.encryption_key and not files.exists(os.path.join(root, KEY)):
        return files
    from lakestream.log.sealing.keys import Keyring, share
    from lakestream.log.sealing.stores import sealed_store

    masters = [text for text in (options.encryption_key, options.prev_encryption_key) if text]
    sealed = sealed_store(root, files, Keyring(masters, options.cipher) if masters else None, tell)
    share(masters)
    return sealed


def _open_spans(options: Options, name: str, log: Logger) -> Spans | None:
    """Return the exporter of spans if there is one configured. Raise StartError."""
    if not configured(options.otel.endpoint):
        return None
    try:
        return open_spans("lakestream", name, options.otel.endpoint, lambda text: log.warn_again(text, "traces"))
    except ExtraMissing as error:
        if options.otel.endpoint:
            raise StartError(str(error)) from error
        log.warn(str(error))  # the variables may be meant for other programs
        return None


def _engine_options(options: JetStreamOptions, identity: Identity, root: str, max_pending: int) -> EngineOptions:
    return EngineOptions(
        server_name=identity.server_name,
        server_id=identity.server_id,
        domain=options.domain,
        strict=options.strict,
        max_memory=options.max_memory,
        max_file=options.max_file,
        duplicate_window_ns=options.duplicate_window_ns,
        max_ack_pending=options.max_ack_pending,
        max_request_batch=options.max_request_batch,
        default_max_consumers=options.default_max_consumers,
        request_queue_limit=options.request_queue_limit,
        info_queue_limit=options.info_queue_limit,
        buffer=_buffer(options),
        max_uncommitted=options.max_buffered_total,
        max_pending=max_pending,
        batches=BatchLimits(
            per_stream=options.batches_per_stream,
            total=options.batches_total,
            max_msgs=options.batch_max_msgs,
            timeout_ns=options.batch_timeout_ns,
        ),
        sync_interval_ns=0 if options.sync_always else options.sync_interval_ns,
        scrub_rate=options.scrub_rate,
        scrub_interval_ns=options.scrub_interval_ns,
        close_idle_ns=options.close_idle_ns,
        spool_dir=root,
    )


def _buffer(options: JetStreamOptions) -> BufferLimits:
    usual = BufferLimits()
    exact = bool(options.max_buffered_msgs or options.max_buffered_size)
    return BufferLimits(
        options.max_buffered_msgs or usual.max_msgs, options.max_buffered_size or usual.max_bytes, exact
    )


def _human(size: int) -> str:
    """Return a size as nats-server's start-up lines show it."""
    value = float(size)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024 or unit == "TB":
            return f"{value:.2f} {unit}"
        value /= 1024
    return f"{size} B"
