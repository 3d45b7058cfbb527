"""The monitoring pages.

Belongs here: the pages as functions of a query and the server's state, without sockets; their names, and the pages of
the server as a whole: /varz, /healthz and the index. Clients are in connections.py, accounts in accounts.py, JetStream
in jetstream.py, other nodes in routes.py. Field names and their order are nats-server's; docs/monitoring.md tells what
those measure that are about its insides.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec

from lakestream import __version__
from lakestream.config.options import SECOND, STANDARD, WEBSOCKET, TlsOptions
from lakestream.http.exchange import JSON, TEXT, HttpAnswer
from lakestream.net.identity import GIT_COMMIT, GO_VERSION, tls_fields
from lakestream.net.peers.standalone import RouteTraffic
from lakestream.net.statistics import Moved
from lakestream.net.statistics import Traffic as LeafTraffic
from lakestream.ops.monitoring.accounts import accountz, accstatz
from lakestream.ops.monitoring.connections import connz, subsz
from lakestream.ops.monitoring.jetstream import Health, JetStreamPages, indented
from lakestream.ops.monitoring.monitored import FEATURE_FLAGS, MAX_COMMITS, Lag, Monitored, Outage
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.ops.monitoring.routes import routez
from lakestream.ops.monitoring.workers import MERGED, Together
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.durations import uptime_text
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import finished

MAX_TABLES = 100
"""Tables on one page of /lakez (100): each may take a listing of its log."""
DEFAULT_COMMITS = 5
"""Commits of a table on /lakez, the newest first, at most `MAX_COMMITS`."""
PAGES = ("metrics", "varz", "jsz", "connz", "accountz", "accstatz", "subsz", "routez", "raftz", "lakez", "healthz")
UNCOUNTED = ("stacksz", "ipqueuesz", "raftz")
"""Pages whose requests /varz does not count, nor does nats-server."""
MAX_TASKS = 100
"""Tasks of the event loop on /stacksz (100)."""
THREADS = 1
"""Threads that run the server's own code at the same time, /varz's `gomaxprocs`: there is one interpreter lock."""


class TrafficTotals(NamedTuple):
    """The traffic since the start, and connections that ended badly."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    nodes: RouteTraffic
    leafs: Moved

    @property
    def sent(self) -> dict[str, int]:
        """Return the messages and bytes to clients, other nodes and leaf nodes."""
        nodes, leafs = self.nodes, self.leafs
        return {
            "msgs": self.out_msgs + nodes.out_msgs + leafs.out_msgs,
            "bytes": self.out_bytes + nodes.out_bytes + leafs.out_bytes,
        }

    @property
    def received(self) -> dict[str, int]:
        """Return the messages and bytes from clients, other nodes and leaf nodes."""
        nodes, leafs = self.nodes, self.leafs
        return {
            "msgs": self.in_msgs + nodes.in_msgs + leafs.in_msgs,
            "bytes": self.in_bytes + nodes.in_bytes + leafs.in_bytes,
        }


Page = Callable[[Query], dict[str, Any]]


class Pages:
    """The pages of one server.

    Attributes:
        pages: JSON pages by name, those that do not depend on the health of the server.
        together: adds up the pages of the workers of this server; None: it is one process.
        jetstream: the JetStream pages.
    """

    def __init__(self, node: Monitored) -> None:
        self._node = node
        self._requests: dict[str, int] = {}
        self.together: Together | None = None
        self.jetstream = JetStreamPages(node)
        self.pages: dict[str, Page] = {
            "varz": self._varz,
            "connz": lambda query: connz(node, query),
            "subsz": lambda query: subsz(node, query),
            "accountz": lambda query: accountz(node, query),
            "accstatz": lambda query: accstatz(node, query),
            "routez": lambda query: routez(node, query),
            "leafz": self._leafz,
            "gatewayz": lambda query: self._nothing({"outbound_gateways": {}, "inbound_gateways": {}}),
            "jsz": lambda query: finished(self.jetstream.jsz(query)),
            "raftz": lambda query: self.jetstream.raftz(query.text("acc"), query.text("group")),
        }
        base = self._base = node.options.http_base_path
        self._paths = {f"{base}/{name}": name for name in (*self.pages, "healthz", "lakez", "stacksz", "ipqueuesz")}
        self._paths |= {f"{base}/subscriptionsz": "subsz", f"{base}/": "", base or "/": ""}

    def is_metrics(self, path: str) -> bool:
        """Return True for the path of the metrics, which ops/metrics answers; count the request."""
        if path != f"{self._base}/metrics":
            return False
        self._requests[path] = self._requests.get(path, 0) + 1
        return True

    def answer(self, path: str, query: str) -> HttpAnswer | Awaitable[HttpAnswer]:
        """Return the response to a request for `path` with this query string; an awaitable if it takes time."""
        name = self._paths.get(path)
        if name is None:
            return HttpAnswer(404, TEXT, b"404 page not found\n")
        if name not in UNCOUNTED:
            self._requests[path] = self._requests.get(path, 0) + 1
        try:
            if not name:
                return self._index()
            if name == "stacksz":
                return HttpAnswer(200, JSON, stacks().encode())  # nats-server calls its text JSON
            asked = Query(query).but(filter_subject="")  # as in nats-server, only requests over NATS filter
            if name == "ipqueuesz":
                return self._ipqueuesz(asked)
            if self.together is not None and (name in MERGED or name == "healthz"):
                return self._merged(self.together, name, asked)
            if name == "healthz":
                return self._healthz(asked)
            if name == "raftz":
                return self._raftz(asked)
            if name == "lakez":
                return self._lakez(asked)
            if name == "jsz":
                return self._jsz(asked)
            page = self.pages[name](asked)
            return HttpAnswer(200, JSON, msgspec.json.format(dumps(page), indent=2))
        except BadQuery as error:
            return HttpAnswer(400, TEXT, str(error).encode())

    async def _merged(self, together: Together, name: str, query: Query) -> HttpAnswer:
        """Return a page of all workers of this server."""
        try:
            if name == "healthz":
                return self._health_answer(await together.health(query, self.health(query)), query)
            page = await together.page(name, query)
            return HttpAnswer(200, JSON, msgspec.json.format(dumps(page), indent=2))
        except BadQuery as error:
            return HttpAnswer(400, TEXT, str(error).encode())

    def part(self, name: str, query: Query, done: Callable[[Any], None]) -> None:
        """Call back with this process's part of a page, `Health` of `healthz`, or the BadQuery."""
        try:
            if name == "healthz":
                done(self.health(query))
            elif name == "statsz":
                done(self.statsz())
            elif name in ("lakez", "jsz"):
                made = self.lakez(query) if name == "lakez" else self.jetstream.in_turns(self.jetstream.jsz(query))
                asyncio.ensure_future(made).add_done_callback(lambda task: done(task.exception() or task.result()))
            else:
                done(self.pages[name](query))
        except BadQuery as error:
            done(error)

    # ------------------------------------------------------------------ /
    def _index(self) -> HttpAnswer:
        links = "".join(f'<li><a href="{self._base}/{page}">/{page}</a></li>\n' for page in PAGES)
        return HttpAnswer(
            200,
            "text/html; charset=utf-8",
            f"<!DOCTYPE html>\n<html lang=en>\n<title>lakestream</title>\n<h1>lakestream {__version__}</h1>\n"
            f"<ul>\n{links}</ul>\n</html>\n".encode(),
        )

    def _websocket(self) -> dict[str, Any]:
        """Return the `websocket` object of /varz: what is set, without secrets."""
        options = self._node.options.websocket
        listener = self._node.listeners.websocket
        if listener is None:
            return {}
        timeout = options.auth_timeout_ns / SECOND
        page = {
            "host": options.host,
            "port": listener.port,
            "advertise": options.advertise,
            "no_auth_user": options.no_auth_user,
            "auth_timeout": int(timeout) if timeout.is_integer() else timeout,
            "handshake_timeout": options.handshake_timeout_ns,
            "tls_cert_not_after": listener.not_after,
            "no_tls": options.no_tls,
            "same_origin": options.same_origin,
            "allowed_origins": options.allowed_origins,
            "compression": options.compression,
        }
        return {name: value for name, value in page.items() if value}

    def _nothing(self, page: dict[str, Any]) -> dict[str, Any]:
        """Return a page of a feature that this server does not have, or that is off."""
        return {"server_id": self._node.identity.server_id, "now": format_time(time.time_ns())} | page

    def _leafz(self, query: Query) -> dict[str, Any]:
        remotes, account = self._node.remotes, query.text("acc")
        leafs = remotes.leafs(query.flag("subs")) if remotes is not None else []
        if self._node.leafnodes is not None:
            leafs += self._node.leafnodes.leafz(query.flag("subs"))
        leafs = [leaf for leaf in leafs if account in ("", leaf["account"])]
        return self._nothing({"leafnodes": len(leafs), "leafs": leafs})

    # ------------------------------------------------------------------ /varz
    def _varz(self, query: Query) -> dict[str, Any]:
        node, now = self._node, time.time_ns()
        options, identity = node.options, node.identity
        page: dict[str, Any] = {
            "server_id": identity.server_id,
            "server_name": identity.server_name,
            "version": NATS_VERSION,
            "lakestream": __version__,
            "proto": 1,
            "git_commit": GIT_COMMIT,
            "go": GO_VERSION,
            "host": identity.shown_address[0],
            "port": identity.shown_address[1],
        }
        if identity.auth_required:
            page["auth_required"] = True
        page |= {name: True for name in tls_fields(options) if name != "tls_available"}
        for name, kind in (("connect_urls", STANDARD), ("ws_connect_urls", WEBSOCKET)):
            if urls := node.cluster.connect_urls(kind):
                page[name] = urls
        page |= {
            "max_connections": options.max_connections,
            **({"max_subscriptions": options.max_subscriptions} if options.max_subscriptions else {}),
            "ping_interval": options.ping_interval_ns,
            "ping_max": options.ping_max,
            "http_host": options.http_host or options.host,
            "http_port": 0 if options.https_port else node.listeners.http_port,
            "http_base_path": options.http_base_path,
            "https_port": options.https_port,
            "auth_timeout": options.auth_timeout_ns / SECOND,
            "max_control_line": options.max_control_line,
            "max_payload": options.max_payload,
            "max_pending": options.max_pending,
            "cluster": node.cluster.shown(),
            "gateway": {},
            "leaf": node.leafnodes.varz() if node.leafnodes is not None else {},
            "mqtt": node.listeners.mqtt.varz() if node.listeners.mqtt is not None else {},
            "websocket": self._websocket(),
            "jetstream": self.jetstream.varz(),
            "tls_timeout": (options.tls or TlsOptions()).timeout_ns / SECOND,
            "write_deadline": options.write_deadline_ns,
        }
        tls = node.listeners.tls
        if tls is not None and tls.not_after:
            page["tls_cert_not_after"] = tls.not_after
        uptime = max(1, now - node.started_ns)
        page |= {"start": format_time(node.started_ns), "now": format_time(now), "uptime": uptime_text(uptime)}
        machine = self.machine()
        page |= {"mem": machine["mem"], "cores": machine["cores"], "gomaxprocs": THREADS, "cpu": machine["cpu"]}
        page |= self.counters()
        page["http_req_stats"] = dict(sorted(self._requests.items()))
        page["config_load_time"] = format_time(node.config_loaded_ns)
        page["config_digest"] = options.config_digest
        if options.server_tags:
            page["tags"] = list(options.server_tags)
        if options.server_metadata:
            page["metadata"] = options.server_metadata
        page["feature_flags"] = FEATURE_FLAGS
        if node.options.operators is not None and (operators := node.options.operators.operators):
            from lakestream.protocol.jwt import claims_of  # loaded already where there are tokens

            page["trusted_operators_jwt"] = [one.text for one in operators]
            page["trusted_operators_claim"] = [claims_of(one.text) for one in operators]
        page["system_account"] = node.accounts.system.name
        nodes = node.cluster.traffic()
        page["slow_consumer_stats"] = _by_kind(node.statistics.slow_consumers, nodes.slow_consumers)
        page["stale_connection_stats"] = _by_kind(node.statistics.stale_connections, nodes.stale_connections)
        waits = node.io.waits()
        page["disk_io_wait_stats"] = {
            "waiters": node.io.waiting,
            "waits": waits.waits,
            "wait_time": waits.total_ns,
            "max_wait_time": waits.max_ns,
        }
        keeper = node.jetstream.keeper if node.jetstream is not None else None
        if keeper is not None:
            page["lake"] = lake_of(keeper)
        if node.remotes is not None:
            page["remote_servers"] = node.remotes.shown()
        return page

    def machine(self) -> dict[str, Any]:
        """Return the use of the machine, as /varz shows it."""
        uptime = max(1, time.time_ns() - self._node.started_ns)
        cpu = round(time.process_time_ns() * 100 / uptime, 2)
        return {"mem": _resident_bytes(), "cores": os.cpu_count() or 1, "cpu": cpu}

    def traffic(self) -> TrafficTotals:
        """Return the traffic since the start."""
        node, ended = self._node, self._node.statistics
        live = list(node.connections.values())
        return TrafficTotals(
            ended.in_msgs + sum(one.in_msgs for one in live),
            ended.in_bytes + sum(one.in_bytes for one in live),
            ended.out_msgs + sum(one.out_msgs for one in live),
            ended.out_bytes + sum(one.out_bytes for one in live),
            node.cluster.traffic(),
            node.leafnodes.traffic() if node.leafnodes is not None else LeafTraffic(),
        )

    def counters(self) -> dict[str, Any]:
        """Return the counters of /varz."""
        node, statistics, traffic = self._node, self._node.statistics, self.traffic()
        nodes = traffic.nodes
        return {
            "connections": len(node.connections),
            "total_connections": statistics.total_connections,
            "routes": nodes.nodes,
            "remotes": nodes.nodes,
            "leafnodes": self._leafs(),
            "in_msgs": traffic.received["msgs"],
            "in_bytes": traffic.received["bytes"],
            "in_client_msgs": traffic.in_msgs,
            "in_client_bytes": traffic.in_bytes,
            "out_msgs": traffic.sent["msgs"],
            "out_bytes": traffic.sent["bytes"],
            "out_client_msgs": traffic.out_msgs,
            "out_client_bytes": traffic.out_bytes,
            "slow_consumers": statistics.slow_consumers + nodes.slow_consumers,
            "stale_connections": statistics.stale_connections + nodes.stale_connections,
            "stalled_clients": node.unsent.stalled,
            "subscriptions": self._subscriptions(),
        }

    def _leafs(self) -> int:
        """Return the number of leaf connections, accepted and dialled."""
        node = self._node
        accepted = len(node.leafnodes.leafz(False)) if node.leafnodes is not None else 0
        return accepted + (len(node.remotes.leafs()) if node.remotes is not None else 0)

    def _subscriptions(self) -> int:
        return sum(len(account.hub.interest_graph) for account in self._node.accounts) - self._node.cluster.foreign()

    # ------------------------------------------------------------------ periodic statistics of the system account
    def statsz(self) -> dict[str, Any]:
        """Return the server's statistics as STATSZ messages show them."""
        node, traffic = self._node, self.traffic()
        page: dict[str, Any] = {"start": format_time(node.started_ns)}
        page |= self.machine()
        page |= {
            "connections": len(node.connections),
            "total_connections": node.statistics.total_connections,
            "active_accounts": sum(1 for account in node.accounts if account.connections),
            "subscriptions": self._subscriptions(),
            "sent": traffic.sent,
            "sent_to_clients": {"msgs": traffic.out_msgs, "bytes": traffic.out_bytes},
            "received": traffic.received,
            "received_from_clients": {"msgs": traffic.in_msgs, "bytes": traffic.in_bytes},
            "slow_consumers": node.statistics.slow_consumers + traffic.nodes.slow_consumers,
        }
        if node.cluster.name:
            page["routes"] = [
                {
                    "rid": route["rid"],
                    "name": route["remote_name"],
                    "sent": {"msgs": route["out_msgs"], "bytes": route["out_bytes"]},
                    "received": {"msgs": route["in_msgs"], "bytes": route["in_bytes"]},
                    "pending": route["pending_size"],
                }
                for route in routez(node, Query())["routes"]
            ]
        page["active_servers"] = 1 + traffic.nodes.nodes
        if node.jetstream is not None:
            jetstream = self.jetstream.varz()
            jetstream["config"].pop("store_dir", None)
            page["jetstream"] = jetstream
        page["gomaxprocs"] = THREADS
        return page

    # ------------------------------------------------------------------ internals
    def _ipqueuesz(self, query: Query) -> HttpAnswer:
        return HttpAnswer(
            200, JSON, msgspec.json.format(dumps(self.queues(query.flag("all"), query.text("queues"))), indent=2)
        )

    def queues(self, everything: bool, name: str) -> dict[str, Any]:
        """Return the queues of this server in which something waits; with `everything` the empty ones, too.

        Args:
            name: part of the name of those that are asked for.
        """
        found = {"disk I/O": self._node.io.waiting}
        return {
            each: {"pending": pending} for each, pending in found.items() if (everything or pending) and name in each
        }

    def runtime(self) -> dict[str, Any]:
        """Return figures of the interpreter. The command line is not among them: it may have passwords."""
        return {
            "memory": _resident_bytes(),
            "threads": threading.active_count(),
            "garbage_collector": [dict(each) for each in gc.get_stats()],
        }

    # ------------------------------------------------------------------ /raftz
    def _raftz(self, query: Query) -> HttpAnswer:
        page = self.pages["raftz"](query)
        if page:
            return HttpAnswer(200, JSON, msgspec.json.format(dumps(page), indent=2))
        found = self.jetstream.has_groups
        nothing = "No Raft nodes returned, check supplied filters" if found else "No Raft nodes registered"
        return HttpAnswer(404, TEXT, nothing.encode())

    # ------------------------------------------------------------------ /jsz
    async def _jsz(self, query: Query) -> HttpAnswer:
        try:
            page = await self.jetstream.in_turns(self.jetstream.jsz(query))
            return HttpAnswer(200, JSON, await self.jetstream.in_turns(indented(page)))
        except BadQuery as error:
            return HttpAnswer(400, TEXT, str(error).encode())

    # ------------------------------------------------------------------ /lakez
    async def _lakez(self, query: Query) -> HttpAnswer:
        try:
            return HttpAnswer(200, JSON, msgspec.json.format(dumps(await self.lakez(query)), indent=2))
        except BadQuery as error:
            return HttpAnswer(400, TEXT, str(error).encode())

    async def lakez(self, query: Query) -> dict[str, Any]:
        """Return the tables of the streams of this node, for a query with acc, stream, commits, offset and limit. At
        most `MAX_TABLES` are shown, with `MAX_COMMITS` commits each. Raises BadQuery."""
        keeper = self._node.jetstream.keeper if self._node.jetstream is not None else None
        page = self._nothing({})
        offset, limit = query.page(MAX_TABLES)
        commits = query.number("commits") if query.text("commits") else DEFAULT_COMMITS
        if keeper is None:
            return page | {"disabled": True, "streams": [], "total": 0}
        account, stream = query.text("acc"), query.text("stream")
        names = [name for name in keeper.streams() if account in ("", name[0]) and stream in ("", name[1])]
        chosen = sorted(names)[offset : offset + min(limit, MAX_TABLES)]
        shown = [await keeper.table(name, max(0, min(commits, MAX_COMMITS))) for name in chosen]
        page |= {"url": keeper.root, "compactor": compactor_of(keeper), "streams": shown}
        outage = keeper.outage()
        if outage is not None:
            page["outage"] = outage_of(outage)
        return page | {"total": len(names), "offset": offset, "limit": min(limit, MAX_TABLES)}

    # ------------------------------------------------------------------ /healthz
    def _healthz(self, query: Query) -> HttpAnswer:
        return self._health_answer(self.health(query), query)

    @staticmethod
    def _health_answer(health: Health, query: Query) -> HttpAnswer:
        page = {"status": "ok"} if health.status == 200 else unhealthy(health, query.flag("details"))
        return HttpAnswer(health.status, JSON, dumps(page))

    def health(self, query: Query) -> Health:
        """Return the health of the server, or of the given part; log what is wrong."""
        health = self.jetstream.healthz(query)
        if health.status != 200:
            self._node.log.warn(f'Healthcheck failed: "{health.reason}"')
        return health


def stacks() -> str:
    """Return the stacks of all threads, and of tasks that wait, the innermost call first. No file is read for it."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = [(f"thread {names.get(number, number)}", _calls(frame)) for number, frame in sys._current_frames().items()]
    tasks = list(asyncio.all_tasks())
    found += [(f"task {task.get_name()}", _awaits(task.get_coro())) for task in tasks[:MAX_TASKS]]
    if len(tasks) > MAX_TASKS:
        found.append((f"{len(tasks) - MAX_TASKS} more tasks", []))
    return "\n".join(
        "".join([f"{title}:\n", *(f"{code.co_qualname}\n\t{code.co_filename}:{line}\n" for code, line in calls)])
        for title, calls in found
    )


def _calls(frame: FrameType) -> list[tuple[CodeType, int]]:
    """Return the calls on the stack of a thread."""
    return [(each.f_code, line) for each, line in traceback.walk_stack(frame)]


def _awaits(coroutine: Any) -> list[tuple[CodeType, int]]:
    """Return the calls of a coroutine, each of which awaits the one before it."""
    calls: list[tuple[CodeType, int]] = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        calls.append((frame.f_code, frame.f_lineno))
        coroutine = coroutine.cr_await
    return calls[::-1]


def lake_of(keeper: Lag) -> dict[str, Any]:
    """Return the `lake` object: by stream the messages that are not in its table, the age of the oldest of them in
    seconds, and the time of the last compaction."""
    lag, outage = keeper.lag(), keeper.outage()
    page: dict[str, Any] = {
        "url": keeper.root,
        "compactor": compactor_of(keeper),
        "lag": {name: each.messages for name, each in lag.items()},
        "lag_seconds": {name: round(each.age_ns / SECOND, 3) for name, each in lag.items()},
        "last_commit": {name: format_time(each.committed_ns) for name, each in lag.items() if each.committed_ns},
        "misfits": {name: each.misfits for name, each in lag.items() if each.misfits},
        "errors": keeper.troubles(),
    }
    return page if outage is None else page | {"outage": outage_of(outage)}


def compactor_of(keeper: Lag) -> dict[str, Any]:
    """Return the `compactor` object: whether one is at work or about to be, its maintenance, its last micro-batch."""
    page: dict[str, Any] = {"alive": keeper.attended}
    if keeper.starting and not keeper.attended:
        page["starting"] = True
    if (upkeep := keeper.upkeep) is not None:
        page["maintenance"] = {"next": format_time(upkeep.next_ns), "running": upkeep.running}
        if upkeep.last:
            page["maintenance"] |= {"last": upkeep.last, "last_time": format_time(upkeep.last_ns)}
    return page if keeper.batch is None else page | {"batch": msgspec.to_builtins(keeper.batch)}


def outage_of(outage: Outage) -> dict[str, str]:
    """Return the `outage` object: since when the lake cannot be reached, the reason, and what to do."""
    return {"since": format_time(outage.since_ns), "reason": outage.reason, "text": outage.text}


def unhealthy(health: Health, details: bool) -> dict[str, Any]:
    """Return the body of a page that reports bad health."""
    if details:
        error = {"type": health.kind, "account": health.account, "stream": health.stream, "consumer": health.consumer}
        error = {name: value for name, value in error.items() if value}
        return {"status": "error", "errors": [error | {"error": reason} for reason in (health.reason, *health.more)]}
    return {"status": "error" if health.status in (400, 500) else "unavailable", "error": health.reason}


def _by_kind(clients: int, routes: int) -> dict[str, int]:
    return {"clients": clients, "routes": routes, "gateways": 0, "leafs": 0}


def _resident_bytes() -> int:
    """Return the resident memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        # No /proc: use the peak.
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
