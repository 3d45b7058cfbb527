"""One running server.

Belongs here: construction of the parts from the options, the order of start and stop, and signals. No part decides
here; each gets only what it needs.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakestream import __version__, extras, native
from lakestream.config.errors import StartError
from lakestream.config.options import (
    LEAFNODE,
    STANDARD,
    WEBSOCKET,
    LeafOptions,
    Options,
)
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.auth import Authenticator, has_plain_passwords
from lakestream.net.connection import APART, Connection
from lakestream.net.identity import Identity, advertised, new_server_id, tls_fields
from lakestream.net.inbox import Gathering
from lakestream.net.incomplete import Incomplete
from lakestream.net.peers.standalone import Standalone
from lakestream.net.statistics import Statistics
from lakestream.net.turn import Turn
from lakestream.net.unsent import Unsent
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ops.system.system import System
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.runtime import Phases
from lakestream.server.early_signals import EARLY
from lakestream.server.heap import Collector, Trimmer, trim
from lakestream.server.listeners import Listeners
from lakestream.server.logins import Logins
from lakestream.server.machine import Machine
from lakestream.server.reloading import (
    AFFECTED_BY,
    LIMITS,
    check_advertised,
    close_surplus,
    close_unpinned,
    is_asked_again,
    limit_changes,
    limit_clients,
    reload_clients,
)
from lakestream.server.stalls import StallWatch

if TYPE_CHECKING:
    from lakestream.net.accounts.imports import AccountImports
    from lakestream.net.accounts.signed_accounts import SignedAccounts
    from lakestream.net.leaf.accepted import AcceptedLeaf
    from lakestream.net.leaf.nodes import LeafNodes
    from lakestream.net.peers.cluster import Cluster
    from lakestream.net.peers.workers import Workers
    from lakestream.net.remote.remotes import Remotes
    from lakestream.ops.monitoring.monitored import Queries
    from lakestream.ops.monitoring.workers import Together
    from lakestream.ops.sql.listeners import SqlListener
    from lakestream.ports import Bus, Subscribed
    from lakestream.server.jetstream import JetStream
    from lakestream.server.lake.keeper import LakeKeeper
    from lakestream.server.workers.worker import Worker

SWITCH_INTERVAL_S = 0.0005
"""Time for which the event loop may keep the interpreter from an I/O thread that has finished its fsync (0.5 ms)."""


AHEAD_NS = 1_000_000
"""Time between the start and the load of what the first clients need (1 ms)."""
FOR_INFO, FOR_SIGNATURES = "nacl.bindings", "cryptography.hazmat.primitives.asymmetric.ed25519"
FOR_CERTIFICATES = "cryptography.x509", "cryptography.hazmat.primitives.serialization"
"""Libraries that the first client needs, the first one that signs, the first certificate: 4 to 30 ms each."""

SETTLE_NS = 1_000_000_000
"""Maximum delay of a PONG until other workers have taken in what the client sent (1 s)."""


class Node:
    """A server from start to stop.

    Args:
        options: its settings.
        log: its log.
        worker: this process's part in a server of several; None: it serves alone.
        machine: the computer that it runs on; None: the real one.
    """

    def __init__(
        self, options: Options, log: Logger, worker: Worker | None = None, machine: Machine | None = None
    ) -> None:
        self.options = options
        self._machine = machine or Machine()
        self._worker = worker
        self.log = log
        self.started_ns = self.config_loaded_ns = time.time_ns()
        self.statistics = Statistics()
        self.connections: dict[int, Connection] = {}
        self.jetstream: JetStream | None = None
        self.cluster: Cluster | Standalone = Standalone(options.cluster.name)
        self.remotes: Remotes | None = None
        self.leafnodes: LeafNodes | None = None
        self.sql: Queries | None = None
        self._sql_listeners: list[SqlListener] = []
        self._imports: AccountImports | None = None
        self.lame_duck = False
        self._workers: Workers | None = None
        self._ids = itertools.count(1) if worker is None else itertools.count(worker.index + 1, worker.count)
        self._cleanups: list[Callable[[], None]] = []
        self.stalls = StallWatch(self.log, lambda: self._phases.last)

    # ------------------------------------------------------------------ the event loop
    def run(self) -> int:
        """Serve until stopped. Returns the exit code. Raises StartError."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            import uvloop
        except ImportError:
            return asyncio.run(self.main())
        return uvloop.run(self.main())

    async def main(self) -> int:
        """Start, serve, stop."""
        await self.start()
        self._handle_signals()
        Collector().start()
        self.stalls.start()
        await self._stopped.wait()
        self.stalls.stop()
        await self.stop()
        return 0

    async def start(self) -> None:
        """Recover the streams and open the listeners, in the order of nats-server's log lines."""
        loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.log.quiet = self._worker is not None and not self._worker.first
        options = self.options
        phases = self._phases = Phases(loop, self.log)
        self.clock = self._machine.clock(loop, self.log, phases)
        phases.steady = self.clock.steady
        self.io = self._machine.io(loop, phases)
        self.unsent = Unsent(lambda: self.options, self.clock, lambda: self.io.submit(trim, lambda _, __: None))
        self.incomplete = Incomplete(lambda: self.options)
        self.gathering = Gathering(APART, phases.call_first)
        Trimmer(self.clock, self.io, self._machine.resident).start()
        clock = self.clock
        turn = Turn(loop.call_soon, phases.call_last, phases.call_next, clock.steady, clock.call_later)
        self.accounts = Accounts(options, turn, self.log)
        self.hub = self.accounts.default.hub
        worker = self._worker
        self.logins = Logins(
            options,
            self.accounts,
            self.io,
            self.clock,
            self.log,
            lambda: (self.identity, self.cluster.name),
            worker.key if worker is not None else None,
        )
        self._cleanups.append(self.logins.close)
        key = self.logins.key
        server_id = worker.server_id if worker is not None else new_server_id()
        self.identity = self._identity(key.public if key is not None else server_id, options.port)
        self._banner()
        if worker is not None:
            from lakestream.net.peers.workers import Workers  # for servers of several processes

            self.cluster = self._workers = Workers(
                self.identity,
                options,
                self.started_ns,
                self.accounts,
                self.clock,
                self.log,
                worker.index,
                worker.count,
                worker.sockets,
            )
        elif options.cluster.port:
            from lakestream.net.peers.cluster import Cluster  # with routes and peers, which one server does without

            self.cluster = Cluster(
                self.identity,
                options,
                self.started_ns,
                self.accounts,
                self.clock,
                self.log,
                self._announce,
                bind=self._machine.bind,
            )
        # After the cluster, which observes every subscription, and before the streams, which may use imports.
        self.accounts.follow(self._connect_imports)
        self._connect_imports(list(self.accounts))
        await self.logins.start()
        self._warn()  # not before: about accounts of operators there is nothing to say without a system account
        self.system = System(self, self.clock)
        if self._workers is not None:
            self.system.pages.together = self._together(self._workers)
        if options.jetstream is None and options.sql.enabled:
            raise StartError("SQL needs JetStream: add a block jetstream, or remove the block sql")
        if options.jetstream is not None:
            from lakestream.server.jetstream import JetStream  # with streams, their log and the lake
            from lakestream.server.temporary_links import TemporaryLinks

            self.log.info("Starting JetStream")
            temporary = TemporaryLinks(
                lambda: self.remotes,
                self._use_remotes,
                self.connections.get,
                options.jetstream.domain,
                self.clock,
                self.log,
            )
            self.jetstream = JetStream(
                options,
                self.identity,
                self.accounts,
                self.clock,
                self.io,
                self.log,
                self.cluster,
                self.logins.need,
                [temporary.serve, *self._sql_services(), *self._audit_trail()],
                self._machine.files,
                lambda count: self._machine.threads(loop, count),
            )
            self._cleanups.append(self.jetstream.stores.close)
            await self.logins.load(self.jetstream.found)
            self.jetstream.recover()
        leafnodes = self._make_leafnodes()
        self.listeners = Listeners(options, self._connection, leafnodes, self.clock, self.log, turn, self._machine.bind)
        loop.add_signal_handler(signal.SIGINT, self.request_stop)
        loop.add_signal_handler(signal.SIGTERM, self.request_stop)
        if worker is not None:
            worker.stop_with_server(loop, self.request_stop)
        await self._listen()
        if worker is None:
            await self.cluster.start()
        if self.jetstream is not None:
            self.jetstream.start()
        self._connect_remotes()
        if self.leafnodes is not None:
            self.leafnodes.connect()
        if worker is None:
            await self.cluster.first_attempts()  # so that clients are told of the other nodes from the first INFO on
            self.log.info("Server is ready")
        self.io.submit(trim, lambda _, __: None)  # imports and recovery leave some MiB free
        clock.call_later(AHEAD_NS, self._load_ahead)
        if worker is not None:
            self.log.quiet = False
            self.log.info(f"Worker {worker.index} is ready")
            worker.report_ready(self.listeners.listening(0))

    def _load_ahead(self) -> None:
        """Load modules that the first clients need, in a thread: in the event loop they would hold up all others."""
        names = [FOR_INFO]
        if self.logins.of(STANDARD).challenges:
            names.append(FOR_SIGNATURES)
        if "lakestream.net.tls" in sys.modules:  # here, or towards other servers
            names += FOR_CERTIFICATES
        if self.jetstream is not None:
            from lakestream.server.jetstream import AHEAD

            names += AHEAD

        def loaded(_: object, error: BaseException | None) -> None:
            if error is not None:  # the first client that needs it finds the same
                self.log.exception("a module could not be loaded", error)

        self.io.lane(background=True).submit(lambda: [importlib.import_module(name) for name in names], loaded)

    def _sql_services(self) -> list[Callable[[str, Bus], Subscribed]]:
        """Return SQL over NATS if it is configured. Raises StartError."""
        if not self.options.sql.enabled:
            return []
        from lakestream.ops.sql.processes import missing

        if absent := missing():
            raise StartError(absent)
        if not self.options.lake.enabled:
            raise StartError("SQL needs the lake: remove lake.enabled: false, or the block sql")
        from lakestream.server.jetstream import lake_root

        root, name = lake_root(self.options), self.identity.server_name
        service = extras.load("lakestream.sql", "Service", "sql", "SQL over NATS")
        self.sql = made = service(root, lambda: self.options, name, self.clock, self.log)
        return [made.serve]

    def _audit_trail(self) -> list[Callable[[str, Bus], Subscribed]]:
        """Return the audit trail if it is configured. Raises StartError."""
        if not self.options.audit.enabled:
            return []
        verification = extras.load("lakestream.verification", "verification", "verify", "an audit trail")
        trail = verification.AuditTrail(lambda: self.options, self.identity.server_name, self.clock, self.log)
        return [trail.serve]

    def _together(self, workers: Workers) -> Together:
        """Return what adds up the monitoring pages of all workers."""
        from lakestream.ops.metrics.scrapes import collect
        from lakestream.ops.metrics.server import ServerMetrics
        from lakestream.ops.monitoring.workers import Together

        pages = self.system.pages
        metrics = ServerMetrics(self, pages)
        return Together(workers, pages.part, lambda done: collect(metrics, self.clock, done))

    def _connect_imports(self, accounts: Sequence[Account]) -> None:
        """Connect the imports of accounts that are new or changed, if any account has ever had imports."""
        if self._imports is None:
            if not any(account.options.imports for account in accounts):
                return
            from lakestream.net.accounts.imports import AccountImports  # with requests across accounts
            from lakestream.net.accounts.service_imports import ServerNames

            self._imports = AccountImports(
                self.accounts, self.clock, self.log, lambda: ServerNames(self.identity.server_name, self.cluster.name)
            )
            accounts = list(self.accounts)
        self._imports.changed(accounts)

    def _connection(self, upgrade: Upgrade | None) -> Connection:
        if upgrade is not None and upgrade.mqtt:
            connection: Connection = self.listeners.mqtt.connection(upgrade)
            return connection
        return Connection(self, next(self._ids), upgrade)

    def _make_leafnodes(self) -> LeafNodes | None:
        if self.options.leafnodes != LeafOptions():
            from lakestream.net.leaf.nodes import LeafNodes  # with keys and S2, which few servers need

            self.leafnodes = LeafNodes(self, self.io.call, self.cluster.others)
        return self.leafnodes

    def _connect_remotes(self) -> None:
        """Connect to the remote servers as they are configured."""
        if self.remotes is not None:
            self.remotes.reload(self.options.remotes)
        elif self.options.remotes:
            self._use_remotes()

    def _use_remotes(self) -> Remotes:
        """Return the remote servers, which are connected to at the first use."""
        if self.remotes is None:
            from lakestream.net.remote.remotes import Remotes  # with TLS and keys, which most servers do without

            name, domain = self.identity.server_name, self.identity.domain
            others, cluster, call = self.cluster.others, self.cluster.name, self.io.call
            self.remotes = Remotes(
                self.options.remotes, self.accounts, name, domain, self.clock, self.log, call, others, cluster
            )
            self.remotes.start()
        return self.remotes

    def _identity(self, server_id: str, port: int) -> Identity:
        options = self.options
        return Identity(
            server_id=server_id,
            server_name=options.server_name or server_id,
            host=options.host,
            port=port,
            max_payload=options.max_payload,
            jetstream=options.jetstream is not None,
            domain=options.jetstream.domain if options.jetstream is not None else "",
            auth_required=self.logins.of(STANDARD).configured,
            advertise=self._advertised(port),
            headers=not options.no_header_support,
        )

    def _advertised(self, port: int) -> tuple[str, int] | None:
        text = self.options.client_advertise
        try:
            return advertised(text, port)
        except ValueError as error:
            raise StartError(f"Error setting server INFO with ClientAdvertise value of {text}, err={error}") from error

    def _banner(self) -> None:
        self.log.info("Starting lakestream")
        self.log.info(f"  Version:  {__version__} (NATS {NATS_VERSION})")
        self.log.info(f"  Native:   {'yes' if native.NATIVE else f'no ({native.WHY})'}")
        if native.STALE:
            self.log.warn(f"The compiled module does not serve, and the server is several times slower: {native.WHY}")
        if self.options.cluster.port:
            self.log.info(f"  Cluster:  {self.options.cluster.name or '(generated)'}")
        self.log.info(f"  Name:     {self.identity.server_name}")
        self.log.info(f"  ID:       {self.identity.server_id}")
        if has_plain_passwords(self.options):
            self.log.warn("Plaintext passwords detected, use nkeys or bcrypt")
        if self.options.config_file:
            self.log.info(f"Using configuration file: {self.options.config_file}")

    def _warn(self) -> None:
        """Log what is odd about the configuration."""
        for warning in self.options.warnings:
            self.log.warn(warning)

    @property
    def signed(self) -> SignedAccounts | None:
        """Return the accounts that operators sign; None without operators."""
        return self.logins.signed

    @property
    def keeper(self) -> LakeKeeper | None:
        """Return the lake's keeper; None without a lake."""
        return self.jetstream.keeper if self.jetstream is not None else None

    async def _listen(self) -> None:
        """Open the listeners, and tell the cluster and the lake of them."""
        port = await self.listeners.open(self, lambda: self.system.pages, shared=self._worker is not None)
        self.identity = self._identity(self.identity.server_id, port)
        self.system.start()
        self.clock.watch_steps()
        if self._workers is not None:  # before clients, who shall find what the other workers have
            await self._workers.listen(self.identity, (), ())
            await self._workers.start()
            await self._workers.meet()
            await self.listeners.accept()
        else:
            await self.listeners.accept()
            await self.cluster.listen(self.identity, self.listeners.websocket_urls, self.listeners.leaf_urls)
        self._cleanups.append(self.listeners.end)
        if self.sql is not None:
            from lakestream.ops.sql.listeners import sql_listeners  # which few servers have

            for listener in sql_listeners(lambda: self.options, port, self.clock, self.log):
                await listener.start()
                self._cleanups.append(listener.close)
                self._sql_listeners.append(listener)
        if self._worker is None:
            self.listeners.write_files(self.cluster.port)
        address = self.jetstream.address if self.jetstream is not None else None
        if address is not None:
            from lakestream.lake.flush import ServerFile

            await address.announce(ServerFile(self.identity.server_id, self.identity.server_name, self.listeners.urls))
            self._cleanups.append(address.withdraw)

    # ------------------------------------------------------------------ surroundings of leaf nodes
    def leaf_urls(self, kind: str = LEAFNODE) -> tuple[str, ...]:
        return self.cluster.connect_urls(kind)

    @property
    def cluster_name(self) -> str:
        return self.cluster.name or self.options.cluster.name

    def next_id(self) -> int:
        return next(self._ids)

    def leaf_joined(self, leaf: AcceptedLeaf) -> None:
        self.system.events.leaf_connected(leaf)

    def leaf_left(self, leaf: AcceptedLeaf) -> None:
        self.system.events.leaf_disconnected(leaf)

    # ------------------------------------------------------------------ Owner
    def authenticator_for(self, kind: str) -> Authenticator:
        return self.logins.of(kind)

    def info(
        self, connection: Connection, second: bool = False, lame_duck: bool = False, *, hidden: bool = False
    ) -> bytes:
        authenticator = self.logins.of(connection.kind)
        websocket = self.listeners.websocket if connection.kind == WEBSOCKET else None
        return self.identity.info(
            connection.id,
            "" if hidden else connection.host,
            second=second,
            lame_duck=lame_duck or self.lame_duck,
            auth_required=authenticator.configured if second else authenticator.required,
            tls=tls_fields(self.options, connection.tls_first) if websocket is None else websocket.tls_fields,
            nonce="" if second else connection.nonce,
            xkey=self.logins.curve_key.public,
            account=connection.account.name,
            is_system=connection.account.is_system,
            max_payload=connection.max_payload,
            cluster=self.cluster.name,
            connect_urls=self.cluster.connect_urls(connection.kind),
            listener=websocket.address if websocket is not None else None,
        )

    def _announce(self) -> None:
        """Send the clients a new INFO."""
        for connection in list(self.connections.values()):
            connection.send_info()
        if self.leafnodes is not None:
            self.leafnodes.announce()

    def opened(self, connection: Connection) -> bool:
        self.statistics.total_connections += 1
        self.connections[connection.id] = connection
        limit = self.options.max_connections
        return not limit or self._open_connections() <= limit

    def _open_connections(self) -> int:
        """Return the number of connections of the whole server."""
        return len(self.connections) if self._worker is None else self._worker.count_connections(len(self.connections))

    def settling(self, then: Callable[[], None]) -> bool:
        """Call back once every worker of this server has taken in what clients sent here; return False without any."""
        if self._workers is None:
            return False
        self._workers.settle(then, SETTLE_NS)
        return True

    def joined(self, connection: Connection) -> None:
        self.system.events.connected(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.pop(connection.id, None)
        if self._worker is not None:
            self._worker.count_connections(len(self.connections))
        self.statistics.ended(connection, self.clock.now())
        self.system.events.disconnected(connection)
        if connection.slow:
            self.log.info(f"{connection.described()} - Slow Consumer Detected: {connection.slow}")

    # ------------------------------------------------------------------ signals and end
    def _handle_signals(self) -> None:
        """Handle the signals that need a server that is ready, and those of them that came before."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._trapped, "hangup", self.reload)
        loop.add_signal_handler(signal.SIGUSR1, self._trapped, "user defined signal 1", self.log.reopen)
        loop.add_signal_handler(signal.SIGUSR2, self._trapped, "user defined signal 2", self.enter_lame_duck)
        EARLY.release()

    def _trapped(self, name: str, do: Callable[[], object]) -> None:
        self.log.info(f'Trapped "{name}" signal')
        do()

    def request_stop(self) -> None:
        """Begin to stop; `main` returns when done."""
        self.log.info("Initiating Shutdown...")
        self._stopped.set()

    def reload(self) -> str:
        """Read the configuration file again (SIGHUP). An invalid file changes nothing; returns its error."""
        self.log.quiet = self._worker is not None and not self._worker.first
        try:
            return self._reload()
        finally:
            self.log.quiet = False

    def _reload(self) -> str:
        from lakestream.config.loading import reload

        try:
            share = self._worker.share_of if self._worker is not None else None
            options, changed = reload(self.options, self.listeners.bound(self.cluster.port), share)
            check_advertised(options)
            tls = self.listeners.renewed(options)
            self.cluster.reload(options)
        except StartError as error:
            if not self.log.quiet:
                self.log.error(f"Failed to reload server configuration: {error}")
            return str(error)
        if "log_file" in changed:
            self.log.reopen(options.log_file)
        before, self.options = self.options, options
        self.listeners.reload(options, tls)
        if tls is not None and tls.options.pinned_certs:
            close_unpinned([each for each in self.connections.values() if each.kind == STANDARD], tls, self.log)
        authenticators = self.logins.reload(options)
        if not AFFECTED_BY.isdisjoint(changed):
            gone = self.accounts.configure(options)
            undecided = list(self.accounts) if is_asked_again(before, options) else gone
            clients = self.connections.values()
            reload_clients(clients, authenticators, self.logins.by_kind, self.accounts, undecided)
            self.log.info("Reloaded: accounts")
        elif not LIMITS.isdisjoint(changed):
            limit_clients(self.connections.values())
        if "max_connections" in changed and options.max_connections:
            close_surplus(self.connections.values(), options.max_connections, self.log)
        for line in limit_changes(options, changed):
            self.log.info(f"Reloaded: {line}")
        if self.leafnodes is not None:
            self.leafnodes.reload(before.leafnodes, authenticators[LEAFNODE])
        for listener in self._sql_listeners:
            listener.tell()
        self._connect_remotes()
        self.identity = self._identity(self.identity.server_id, self.identity.port)
        if "client_advertise" in changed:
            self.cluster.advertise(self.identity)
        self.config_loaded_ns = self.clock.now()
        self.log.configure(
            debug=options.debug,
            trace=options.trace,
            logtime=options.logtime,
            utc=options.logtime_utc,
            as_json=options.log_json,
        )
        self.system.configured()
        self._warn()
        self.log.info("Reloaded server configuration")
        return ""

    def enter_lame_duck(self) -> None:
        """Accept no new clients, tell the others to reconnect elsewhere, close them over `lame_duck_duration`
        (docs/internals/protocol.md#lame-duck)."""
        if self.lame_duck:
            return
        self.lame_duck = True
        self.log.info("Entering lame duck mode, stop accepting new clients")
        self.system.events.lame_duck()
        if self.jetstream is not None:
            self.jetstream.node.yield_leadership()
        self.cluster.enter_lame_duck()
        self.listeners.close()
        self._announce()
        self.clock.spawn(self._close_evenly())

    async def _close_evenly(self) -> None:
        leaves = list(self.leafnodes.leaves.values()) if self.leafnodes is not None else []
        if self.connections or leaves:
            await asyncio.sleep(self.options.lame_duck_grace_ns / 1e9)
        rest = max(0, self.options.lame_duck_duration_ns - self.options.lame_duck_grace_ns) / 1e9
        connections: list[Connection | AcceptedLeaf] = [*self.connections.values(), *leaves]
        for connection in connections:
            connection.close("Server Shutdown")
            await asyncio.sleep(rest / len(connections))
        if self._worker is not None:  # its streams serve clients of other workers until these are done, too
            self._worker.retired()
        else:
            self.request_stop()

    async def stop(self) -> None:
        """Close listeners and clients, let writes finish, write checkpoints."""
        self.system.events.stopping()
        self.listeners.close()
        if self.sql is not None:
            await self.sql.close()
        if self.jetstream is not None:
            await self.jetstream.stop()
        if self.remotes is not None:
            await self.remotes.stop()
        if self.leafnodes is not None:
            await self.leafnodes.stop()
        for connection in list(self.connections.values()):
            connection.close("Server Shutdown")
        await self.cluster.stop()
        await self.clock.cancel_all()
        if self.jetstream is not None:
            await self.jetstream.close()
        await asyncio.get_running_loop().run_in_executor(None, self.io.close)
        for cleanup in reversed(self._cleanups):
            cleanup()
        self.log.info("Server Exiting..")
