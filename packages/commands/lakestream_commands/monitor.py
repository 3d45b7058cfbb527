"""A running server as its monitoring pages show it, for commands.

Belongs here: fetching pages, over HTTP or NATS, and the figures that `status` and `top` show, from lakestream or
nats-server. Rates are the differences of two snapshots.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

import msgspec
import typer

from lakestream.cli.link import ClientLink, TransferFailed
from lakestream.cli.server_options import Server
from lakestream.lake.flush import plain_url

DEFAULT_MONITOR = "http://127.0.0.1:8222"
TIMEOUT_S = 5.0
"""Timeout of a page."""
PAGE_LIMIT = 1024
"""Connections that are fetched; a page of /connz holds no more."""
STREAM_LIMIT = 1_000_000
"""Accounts that are fetched with their streams, in one page."""


MonitorOption = Annotated[
    str,
    typer.Option(
        "--monitor",
        envvar="LAKESTREAM_MONITOR",
        metavar="URL",
        help="The server's monitoring port (`serve -m`).",
        show_default=DEFAULT_MONITOR,
    ),
]


class MonitorFailed(Exception):
    """Raised when the monitoring port does not answer; the text says what to do."""


class MonitoringPage(msgspec.Struct, frozen=True):
    """A page: the status of the answer, its JSON, and the server's clock (s since the epoch; None: not told)."""

    status: int
    body: dict[str, Any]
    date: float | None = None


class Monitor:
    """The monitoring port of a server.

    Args:
        url: its address, with a base path if there is one.
        ca_file: PEM file of the authorities for https; "": the system's.
    """

    def __init__(self, url: str, ca_file: str = "") -> None:
        self.url = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None

    def page(self, name: str, **query: object) -> MonitoringPage:
        """Return a page, also one that reports an error of the server's health.

        Raises:
            MonitorFailed: there is no answer, or no JSON, or the file of authorities cannot be read.
        """
        if self._ca_file and self._tls is None:
            try:
                self._tls = ssl.create_default_context(cafile=self._ca_file)
            except OSError as error:
                raise MonitorFailed(f"--tlsca {self._ca_file}: {error.strerror or error}") from None
        text = urllib.parse.urlencode({key.replace("_", "-"): value for key, value in query.items()})
        url = f"{self.url}/{name}" + (f"?{text}" if text else "")
        if not self.url.startswith(("http://", "https://")):
            raise MonitorFailed(f"--monitor {self.url}: write http://host:port or https://host:port")
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=self._tls) as answer:
                return self._read(answer.status, answer.read(), answer.headers.get("Date"))
        except urllib.error.HTTPError as error:
            return self._read(error.code, error.read(), error.headers.get("Date"))
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise MonitorFailed(
                    f"the certificate of {self.url} is not accepted: {reason.verify_message}. Name the authorities "
                    "that signed it with --tlsca FILE"
                ) from None
            raise MonitorFailed(
                f"no answer from {self.url}: {str(reason).strip()[:100]}. Start the server with a monitoring port "
                "(-m 8222), or name it with --monitor"
            ) from None

    def _read(self, status: int, body: bytes, date: str | None) -> MonitoringPage:
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            if status == 404:
                return MonitoringPage(status, {})
            raise MonitorFailed(f"{self.url} is not the monitoring port of a NATS server: it answers {body[:60]!r}")
        return MonitoringPage(status, found, parsedate_to_datetime(date).timestamp() if date else None)


class NatsMonitor:
    """The pages of a server over NATS.

    A user of the system account gets the server's own. Others get what their account may know: its streams, consumers
    and connections.

    Args:
        server: the server.

    Raises:
        TransferFailed: it cannot be reached.
    """

    def __init__(self, server: Server) -> None:
        self._link = ClientLink(server)
        self.url = plain_url(server.url)
        self._about: dict[str, Any] = json.loads(self._link.request("$SYS.REQ.USER.INFO", timeout=_PATIENCE_S))[
            "server"
        ]
        self._system: bool | None = None
        """True: the user is of the system account. None: it was not found out yet."""

    def page(self, name: str, **query: object) -> MonitoringPage:
        """Return a page. Raises MonitorFailed: the server does not answer."""
        asked = {_SPELLED.get(key, key): value if key == "limit" else bool(value) for key, value in query.items()}
        body = json.dumps(asked).encode()
        if self._system is not False:
            subject = f"$SYS.REQ.SERVER.{self._about['id']}.{name.upper()}"
            try:
                answer = json.loads(self._link.request(subject, body, timeout=_PATIENCE_S))
            except TransferFailed as error:
                if self._system:
                    raise MonitorFailed(str(error)) from None
                self._system = False
            else:
                self._system = True
                failed = "error" in answer
                found = answer.get("error") if failed else answer.get("data", {})
                return MonitoringPage(503 if failed or found.get("error") else 200, found)
        try:
            return MonitoringPage(200, self._of_account(name))
        except TransferFailed as error:
            raise MonitorFailed(str(error)) from None

    def close(self) -> None:
        """Close the connection."""
        self._link.__exit__()

    def _of_account(self, name: str) -> dict[str, Any]:
        if name == "varz":
            about = self._about
            page = {"server_id": about["id"], "server_name": about["name"], "version": about["ver"]}
            return page | ({"jetstream": {"stats": {}}} if about.get("jetstream") else {})
        if name == "connz":
            answer = json.loads(self._link.request("$SYS.REQ.SERVER.PING.CONNZ", b"{}", timeout=_PATIENCE_S))
            return dict(answer.get("data") or {})
        if name != "jsz":
            return {"status": "ok"}
        streams = self._pages("STREAM.LIST", "streams")
        for each in streams:
            each["name"] = each["config"]["name"]
            each["consumer_detail"] = self._pages(f"CONSUMER.LIST.{each['name']}", "consumers")
        return {"account_details": [{"name": "$G", "stream_detail": streams}]}

    def _pages(self, subject: str, key: str) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        while True:
            page = self._link.api(subject, {"offset": len(found)})
            found += page.get(key) or []
            if not page.get(key) or len(found) >= page.get("total", 0):
                return found


_SPELLED = {"consumers": "consumer", "streams": "streams"}
"""Names of options in requests over NATS that differ from those in a query."""
_PATIENCE_S = 2.0
"""Timeout of a page over NATS; of a request that the user may not make, too."""


class MonitoredConsumer(msgspec.Struct, frozen=True):
    """A consumer: messages not delivered yet, delivered and not acked, and redelivered."""

    stream: str
    name: str
    account: str
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    delivered: int


class MonitoredStream(msgspec.Struct, frozen=True):
    """A stream. `lag` counts messages that are not in the table; None: there is no lake, or it is not known."""

    name: str
    account: str
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    consumers: tuple[MonitoredConsumer, ...]
    leader: str = ""
    lag: int | None = None
    lag_seconds: float | None = None
    last_commit: str = ""
    error: str = ""

    @property
    def title(self) -> str:
        """Return its name; with the account unless that is the default one."""
        return self.name if self.account == "$G" else f"{self.account}/{self.name}"

    @property
    def pending(self) -> int:
        """Return the largest number of messages that a consumer still has to get."""
        return max((consumer.pending for consumer in self.consumers), default=0)


class MonitoredConnection(msgspec.Struct, frozen=True):
    """A client connection."""

    cid: int
    name: str
    address: str
    account: str
    user: str
    lang: str
    subscriptions: int
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    rtt: str


class MonitoredServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server at a moment. `at` is a monotonic clock, in s."""

    at: float
    varz: dict[str, Any]
    healthy: bool
    health: str
    streams: tuple[MonitoredStream, ...]
    connections: tuple[MonitoredConnection, ...]
    routes: int
    date: float | None

    @property
    def is_lakestream(self) -> bool:
        """Return True if the server is lakestream, not nats-server."""
        return "lakestream" in self.varz

    @property
    def is_whole(self) -> bool:
        """Return True if it is all of the server, and not only what concerns one account."""
        return "uptime" in self.varz

    @property
    def lake(self) -> dict[str, Any]:
        """Return the state of the lake; empty without one."""
        return self.varz.get("lake") or {}


@contextlib.contextmanager
def monitored(url: str, server: Server) -> Iterator[Monitor | NatsMonitor]:
    """Context of the pages of a server: of this monitoring port, else over NATS of a server that options name, else of
    the default monitoring port.

    Raises:
        TransferFailed: the server cannot be reached over NATS.
    """
    if url or not server.named:
        yield Monitor(url or DEFAULT_MONITOR, server.login.tls_ca)
        return
    port = NatsMonitor(server)
    try:
        yield port
    finally:
        port.close()


def snapshot(monitor: Monitor | NatsMonitor, *, with_connections: bool = True) -> MonitoredServer:
    """Return the server's state now. Raises MonitorFailed."""
    varz = monitor.page("varz")
    if "server_id" not in varz.body:
        raise MonitorFailed(f"{monitor.url} does not have the monitoring pages of a NATS server")
    health = monitor.page("healthz")
    streams: tuple[MonitoredStream, ...] = ()
    if varz.body.get("jetstream"):
        jsz = monitor.page("jsz", accounts=1, streams=1, consumers=1, limit=STREAM_LIMIT).body
        streams = _streams(jsz, varz.body.get("lake") or {})
    connections: tuple[MonitoredConnection, ...] = ()
    if with_connections:
        found = monitor.page("connz", auth=1, limit=PAGE_LIMIT).body.get("connections") or ()
        connections = tuple(map(_connection, found))
    return MonitoredServer(
        at=time.monotonic(),
        varz=varz.body,
        healthy=health.status == 200,
        health=str(health.body.get("error") or health.body.get("status") or health.status),
        streams=streams,
        connections=connections,
        routes=int(varz.body.get("routes") or 0),
        date=varz.date,
    )


def _streams(jsz: dict[str, Any], lake: dict[str, Any]) -> tuple[MonitoredStream, ...]:
    found = []
    for account in jsz.get("account_details") or ():
        for each in account.get("stream_detail") or ():
            name, owner = str(each["name"]), str(account.get("name") or account.get("id"))
            key = name if owner == "$G" else f"{owner}/{name}"
            state = each.get("state") or {}
            consumers = tuple(_consumer(one, name, owner) for one in each.get("consumer_detail") or ())
            found.append(
                MonitoredStream(
                    name,
                    owner,
                    int(state.get("messages", 0)),
                    int(state.get("bytes", 0)),
                    int(state.get("first_seq", 0)),
                    int(state.get("last_seq", 0)),
                    consumers,
                    str((each.get("cluster") or {}).get("leader") or ""),
                    (lake.get("lag") or {}).get(key),
                    (lake.get("lag_seconds") or {}).get(key),
                    str((lake.get("last_commit") or {}).get(key, "")),
                    str((lake.get("errors") or {}).get(key, "")),
                )
            )
    return tuple(found)


def _consumer(one: dict[str, Any], stream: str, account: str) -> MonitoredConsumer:
    delivered = one.get("delivered") or {}
    return MonitoredConsumer(
        stream,
        str(one.get("name", "")),
        account,
        int(one.get("num_pending", 0)),
        int(one.get("num_ack_pending", 0)),
        int(one.get("num_redelivered", 0)),
        int(one.get("num_waiting", 0)),
        int(delivered.get("consumer_seq", 0)),
    )


def _connection(one: dict[str, Any]) -> MonitoredConnection:
    return MonitoredConnection(
        int(one.get("cid", 0)),
        str(one.get("name", "")),
        f"{one.get('ip', '')}:{one.get('port', '')}",
        str(one.get("account", "")),
        str(one.get("authorized_user", "")),
        f"{one.get('lang', '')} {one.get('version', '')}".strip(),
        int(one.get("subscriptions", 0)),
        int(one.get("pending_bytes", 0)),
        int(one.get("in_msgs", 0)),
        int(one.get("out_msgs", 0)),
        int(one.get("in_bytes", 0)),
        int(one.get("out_bytes", 0)),
        str(one.get("rtt", "")),
    )


LAG_SECONDS = 120.0
"""Age of the oldest message outside of the table above which a warning is shown."""
SLOW_PENDING = 1 << 20
"""Unsent bytes of a connection above which a warning is shown."""
FULL = 0.9
"""Used part of a limit above which a warning is shown."""


def warnings(now: MonitoredServer) -> list[str]:
    """Return what needs attention, each with what to do."""
    found = []
    varz, lake = now.varz, now.lake
    if not now.healthy:
        found.append(f"the server is not healthy: {now.health}")
    compactor = lake.get("compactor") or {}
    attended = bool(compactor.get("alive"))
    outage = lake.get("outage")
    if outage:
        found.append(str(outage["text"]))
    if lake and not outage and not attended and not compactor.get("starting") and now.streams:
        found.append(
            "no compactor is running on the lake: start `lakestream compact`, or the server with `lakestream up`"
        )
    for name, error in (lake.get("errors") or {}).items():
        found.append(f"table of {name}: {error}")
    for stream in now.streams:
        if attended and stream.lag_seconds is not None and stream.lag_seconds > LAG_SECONDS:
            found.append(
                f"stream {stream.title}: its table is {stream.lag_seconds:.0f} s behind; look at the compactor's log"
            )
    jetstream = varz.get("jetstream") or {}
    config, stats = jetstream.get("config") or {}, jetstream.get("stats") or {}
    for used, limit, key in (
        ("storage", "max_storage", "max_file_store"),
        ("memory", "max_memory", "max_memory_store"),
    ):
        if config.get(limit) and stats.get(used, 0) > FULL * config[limit]:
            found.append(f"{100 * stats[used] / config[limit]:.0f} % of {key} is used: raise it, or limit the streams")
    if varz.get("slow_consumers"):
        found.append(f"{varz['slow_consumers']} clients were closed because they were too slow (slow consumers)")
    if varz.get("internal_errors"):
        found.append(f"{varz['internal_errors']} internal errors: please report the lines in the log")
    for each in now.connections:
        if each.pending_bytes > SLOW_PENDING:
            found.append(
                f"client {each.cid} {each.name or each.address} reads slowly: {each.pending_bytes:,} bytes wait"
            )
    most = int(varz.get("max_connections") or 0)
    if most > 0 and int(varz.get("connections") or 0) > FULL * most:
        found.append(f"{varz['connections']} of {most} connections are in use: raise max_connections")
    return found
