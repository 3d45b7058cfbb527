"""The scenarios: configuration, preparation, floods, and the bound of the server's memory for each.

Belongs here: what differs between the rounds. A bound is what the server's memory may grow by while the flood lasts,
calculated from limits in docs/reference/configuration.md and the figures of docs/sizing.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lakestream.protocol import peer_wire, route_wire
from lakestream.raft.group.ports import Channel
from tests import certificates, mqtt
from tests.cluster.nodes import CLUSTER
from tests.overload import floods
from tests.wire import Wire, header_block

MIB = 1 << 20
TLS = f"tls {{ cert_file: {certificates.PLACE}/server.pem, key_file: {certificates.PLACE}/server.key, timeout: 2 }}"
PORTS = (
    "accounts { $SYS { users: [{user: sys, password: s}] }, A { jetstream: enabled, users: [{user: a, password: a}] } }"
)
A, SYSTEM = {"user": "a", "pass": "a"}, {"user": "sys", "pass": "s"}
INBOX = b"SUB _INBOX.f@.> 1\r\n"
HTTP = "http: '127.0.0.1:-1'\n"
WEBSOCKET = "websocket { port: -1, no_tls: true }\n"
LEAF = "leafnodes { listen: '127.0.0.1:-1' }\n"
MQTT = "server_name: flooded\nmqtt { listen: '127.0.0.1:-1' }\n"
SQL = "lake { seal_age: '1h' }\nsql { flight: '127.0.0.1:-1', postgres { listen: '127.0.0.1:-1' } }\n"
PAGES = ("/varz", "/connz", "/subsz", "/jsz?streams=true", "/metrics", "/healthz", "/lakez", "/console/")
JOIN = b'CONNECT {"version":"2.15.1","server_id":"N@","name":"N@","cluster":"N@"}\r\nPING\r\n'


@dataclass(frozen=True)
class Scenario:
    """One flood.

    Attributes:
        name: on the command line.
        title: in the table.
        works: functions of floods.py with their arguments; each is a process.
        bound: bytes by which the server's memory may grow.
        why: the bound as a sum of named limits.
        told: texts one of which the server has to tell those whom it refuses; (): nobody is refused.
        told_there: the same where the server is nats-server.
        config: text of the configuration.
        prepare: called with a connection before the quiet client begins.
        login: fields of CONNECT of the quiet client, and of the flood without `flood_login`.
        slow_ms: time of a sync of files whose path contains FLOOD.
        tls: clients use TLS.
        keeps: bytes that may stay after the flood: what it has created, and memory between it that is not returned.
        nodes: of the cluster one of whose nodes is flooded; 1: there is none.
        gateways: names of gateways.py that run beside the server; their ports have these names.
    """

    name: str
    title: str
    works: list[tuple[Callable[..., None], dict[str, Any]]]
    bound: int
    why: str
    told: tuple[str, ...] = ()
    told_there: tuple[str, ...] = ()
    config: str = ""
    prepare: Callable[[Wire], None] | None = None
    login: dict[str, Any] = field(default_factory=dict)
    flood_login: dict[str, Any] | None = None
    slow_ms: int = 0
    tls: bool = False
    keeps: int = 48 * MIB
    nodes: int = 1
    gateways: tuple[str, ...] = ()


def publish(subject: str, size: int, count: int, reply: str = "") -> bytes:
    """Return `count` publishes; `@` in the subject is their number."""
    return b"".join(floods_pub(subject.replace("@", str(number)), size, reply) for number in range(count))


def floods_pub(subject: str, size: int, reply: str = "") -> bytes:
    """Return one publish of `size` bytes."""
    return f"PUB {subject} {reply + ' ' if reply else ''}{size}\r\n".encode() + bytes(size) + b"\r\n"


def request(subject: str, body: Any = b"", reply: str = "_INBOX.f@.r") -> bytes:
    """Return one request with a JSON body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n"


def own(data: bytes, clients: int) -> list[bytes]:
    """Return the bytes for each of several clients: `_INBOX.f@` is the inbox of its number."""
    return [data.replace(b"_INBOX.f@", b"_INBOX.f%d" % number) for number in range(clients)]


def stream(name: str = "FLOOD", subjects: str = "flood.>", **more: Any) -> Callable[[Wire], None]:
    """Return a preparation that creates a stream."""

    def prepare(wire: Wire) -> None:
        answer = wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [subjects], **more})
        assert "error" not in answer, answer

    return prepare


def filled(messages: int, size: int = 100, **more: Any) -> Callable[[Wire], None]:
    """Return a preparation that creates a stream with so many messages, each of a subject of its own."""

    def prepare(wire: Wire) -> None:
        stream(**more)(wire)
        for begin in range(0, messages, 5000):
            many = [floods_pub(f"flood.{number}", size) for number in range(begin, begin + 5000)]
            wire.send(b"".join(many))
            wire.ping(30)

    return prepare


def streams(count: int) -> Callable[[Wire], None]:
    """Return a preparation that creates several streams."""

    def prepare(wire: Wire) -> None:
        for number in range(count):
            stream(f"FLOOD{number}", f"flood.{number}.>")(wire)

    return prepare


def consumer(wire: Wire, name: str, **config: Any) -> None:
    """Create a durable consumer of the flooded stream."""
    config = {"durable_name": name, "ack_policy": "explicit", **config}
    answer = wire.api(f"CONSUMER.CREATE.FLOOD.{name}", {"stream_name": "FLOOD", "config": config})
    assert "error" not in answer, answer


def consumers(count: int, messages: int, **config: Any) -> Callable[[Wire], None]:
    """Return a preparation that creates a stream with messages, and consumers."""

    def prepare(wire: Wire) -> None:
        filled(messages)(wire)
        for number in range(count):
            shown = {
                key: value.replace("@", str(number)) if isinstance(value, str) else value
                for key, value in config.items()
            }
            consumer(wire, f"C{number}", **shown)

    return prepare


def scenarios() -> list[Scenario]:
    """Return all scenarios."""
    return [*of_clients(), *of_routes(), *of_leaf_nodes(), *of_sql(), *of_gateways()]


def of_routes() -> list[Scenario]:
    """Return the floods of one node of a cluster of three at its port for the others. Those who flood it are strangers,
    or nodes of the cluster without JetStream."""
    joined = partial(floods.hello, cluster=CLUSTER, name="flood")
    works: dict[str, Any] = {"port": "route", "again": True}
    node: dict[str, Any] = {**works, "connections": 4, "hello": joined}
    single = [route_wire.Routed(b"core.%d" % (number % 50), b"", b"", bytes(16), [b""]) for number in range(2000)]
    run = route_wire.RoutedRun(publish("core.@", 16, 2000))
    stored = [route_wire.Routed(b"flood.%d" % (number % 50), b"", b"", bytes(100), [b""]) for number in range(500)]
    names = [b"many.%d.foo" % number for number in range(25_000)]
    interest = [route_wire.RouteInterest([(name, b"", number) for name in names]) for number in (1, 0)]
    garbage = bytes(number * 37 % 256 for number in range(1 << 16))
    large = peer_wire.frame_head(Channel.ROUTE, peer_wire.MAX_FRAME_BYTES - 1)
    piece = bytes(1 << 20)
    wants = route_wire.RouteInterest([(b"core.>", b"", 1)])
    return [
        Scenario(
            "route-half",
            "a node of three: 1,000 connections that send a HELLO of 250,000 bytes byte by byte",
            [
                (
                    floods.unfinished,
                    {"connections": 1000, "port": "route", "start": peer_wire.frame_head(0, 250_000), "drip": b"x"},
                )
            ],
            96 * MIB,
            "128 strangers with 256 KiB each; 1,000 connections of 6 KiB",
            ("closed",),
            nodes=3,
        ),
        Scenario(
            "route-garbage",
            "a node of three: garbage, frames that are too long, and HELLOs of other clusters, versions and servers of "
            "the same name, again and again, by 40 strangers",
            [
                (floods.blast, {**works, "connections": 10, "hello": b"", "chunk": each})
                for each in (
                    garbage,
                    b"GET / HTTP/1.1\r\n\r\n",
                    peer_wire.frame_head(0, 1 << 30) + piece,
                    floods.PING * 1000,
                )
            ]
            + [
                (floods.blast, {**works, "connections": 10, "chunk": floods.PING * 10, "hello": each})
                for each in (
                    partial(floods.hello, cluster="OTHER", name="flood"),
                    partial(floods.hello, cluster=CLUSTER, name="n"),
                    partial(floods.hello, cluster=CLUSTER, name="flood", protocol=99),
                )
            ],
            96 * MIB,
            "128 strangers with 256 KiB each",
            ("closed",),
            nodes=3,
        ),
        Scenario(
            "route-broken",
            "a node of three: 4 nodes of the cluster that send garbage once they are in, and join again",
            [(floods.blast, {**node, "chunk": [floods.routed(single[:20]), _framed(garbage), garbage]})],
            96 * MIB,
            "one read of 256 KiB of each node",
            ("closed",),
            nodes=3,
        ),
        Scenario(
            "route-frames",
            "a node of three: 4 nodes of the cluster that send frames of the largest size",
            [(floods.blast, {**node, "chunk": [large + piece, *[piece] * 300]})],
            1200 * MIB,
            "4 frames of 64 MiB: their parts, the frame, and its content",
            nodes=3,
            keeps=160 * MIB,
        ),
        Scenario(
            "route-messages",
            "a node of three: 4 nodes of the cluster that send small messages, one by one and in runs, to nobody, and "
            "to a stream",
            [
                (floods.blast, {**node, "connections": 2, "chunk": floods.routed(single)}),
                (floods.blast, {**node, "connections": 1, "chunk": floods.routed([run] * 8), "hello": _named("runs")}),
                (
                    floods.blast,
                    {**node, "connections": 1, "chunk": floods.routed(stored), "hello": _named("stored")},
                ),
            ],
            512 * MIB,
            "max_buffered_size 128 MiB three times, one frame and one read of 256 KiB of each node",
            prepare=stream(max_msgs=1000, discard="old"),
            nodes=3,
            keeps=96 * MIB,
        ),
        Scenario(
            "route-interest",
            "a node of three: 4 nodes of the cluster that announce 25,000 subjects each, and withdraw them",
            [
                (
                    floods.blast,
                    {
                        **node,
                        "chunk": b"".join(
                            floods.routed([route_wire.RouteInterest(each.changes[at : at + 1000])])
                            for each in interest
                            for at in range(0, len(names), 1000)
                        ),
                    },
                )
            ],
            256 * MIB,
            "100,000 subscriptions of 1 KiB, twice, and one read of 256 KiB of each node",
            nodes=3,
            keeps=96 * MIB,
        ),
        Scenario(
            "route-unread",
            "a node of three: 4 nodes of the cluster that want all messages and never read, beside publishers",
            [
                (
                    floods.blast,
                    {
                        **node,
                        "chunk": floods.routed([wants]) + floods.PING,
                        "pause_s": 0.2,
                        "reads": False,
                    },
                ),
                (floods.blast, {"connections": 2, "chunk": publish("core.@", 16 << 10, 16)}),
            ],
            160 * MIB,
            "8 MiB on the way to each node, 1 MiB unsent, 1 MiB gathered; twice",
            nodes=3,
        ),
    ]


def of_leaf_nodes() -> list[Scenario]:
    """Return the floods of the port for leaf nodes."""
    garbage = bytes(number * 37 % 256 for number in range(1 << 16))
    leaf: dict[str, Any] = {"port": "leafnode", "hello": JOIN, "connections": 4, "again": True}
    begins = b"".join(b"LS+ many.%d.foo\r\n" % number for number in range(25_000))
    ends = b"".join(b"LS- many.%d.foo\r\n" % number for number in range(25_000))
    return [
        Scenario(
            "leaf-garbage",
            "garbage before and after the login of a leaf node, and messages above max_payload, again and again",
            [
                (floods.blast, {**leaf, "connections": 10, "hello": b"", "chunk": garbage}),
                (floods.blast, {**leaf, "connections": 10, "chunk": garbage}),
                (floods.blast, {**leaf, "connections": 4, "chunk": b"LMSG core.x 2097152\r\n" + bytes(2 << 20)}),
            ],
            96 * MIB,
            "24 connections with one read of 256 KiB; 10,000 closed connections",
            ("Maximum Payload", "Authentication", "Protocol", "closed"),
            config=LEAF,
        ),
        Scenario(
            "leaf-interest",
            "4 leaf nodes that begin and end 25,000 subscriptions each, without end",
            [(floods.blast, {**leaf, "chunk": begins + ends})],
            256 * MIB,
            "100,000 subscriptions of 1 KiB, twice, and one read of 256 KiB of each",
            config=LEAF,
            keeps=96 * MIB,
        ),
        Scenario(
            "leaf-unread",
            "8 leaf nodes that want every message and never read, beside publishers of 16 KiB",
            [
                (
                    floods.blast,
                    {**leaf, "connections": 8, "chunk": b"LS+ core.>\r\n", "times": 1, "reads": False},
                ),
                (floods.blast, {"connections": 2, "chunk": publish("core.@", 16 << 10, 16)}),
            ],
            192 * MIB,
            "max_pending_total 64 MiB (configured), twice, and 1 MiB gathered for each leaf node",
            config=LEAF + "max_pending: 8MB\nmax_pending_total: 64MB\n",
        ),
    ]


def of_sql() -> list[Scenario]:
    """Return the floods of the listeners for SQL, which are processes of their own: their memory is in the bounds."""
    startup = floods.postgres_startup("u")
    garbage = bytes(number * 37 % 256 for number in range(1 << 16))
    postgres: dict[str, Any] = {"port": "postgres", "again": True}
    large = b"Q" + (1 << 20).to_bytes(4, "big") + b"SELECT '" + bytes(1 << 20)
    many = floods.postgres_query("SELECT range, repeat('x', 500) FROM range(100000)")
    return [
        Scenario(
            "postgres-half",
            "500 connections to the Postgres listener that send their first message byte by byte",
            [(floods.unfinished, {"connections": 500, "port": "postgres", "start": startup[:4], "drip": startup[4:]})],
            64 * MIB,
            "128 connections of 64 KiB",
            ("closed",),
            config=SQL,
        ),
        Scenario(
            "postgres",
            "the Postgres listener: garbage, messages of 1 MiB, and logins of 100 clients that ask for large results; "
            "half of them never read",
            [
                (floods.blast, {**postgres, "connections": 20, "hello": b"", "chunk": garbage}),
                (floods.blast, {**postgres, "connections": 10, "hello": startup, "chunk": large}),
                (floods.blast, {**postgres, "connections": 35, "hello": startup, "chunk": many}),
                (floods.blast, {**postgres, "connections": 35, "hello": startup, "chunk": many, "reads": False}),
            ],
            768 * MIB,
            "64 connections with a message of 1 MiB, a read of 256 KiB and a batch; sql.max_queries of sql.max_memory",
            ("closed",),
            config=SQL,
            prepare=asked,
            keeps=256 * MIB,
        ),
        Scenario(
            "flight-half",
            "the Flight SQL listener: 500 connections that send the preface of HTTP/2 byte by byte, beside garbage",
            [
                (
                    floods.unfinished,
                    {"connections": 500, "port": "flight", "start": b"PRI", "drip": b" * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
                ),
                (floods.blast, {"port": "flight", "again": True, "connections": 20, "hello": b"", "chunk": garbage}),
            ],
            128 * MIB,
            "500 connections of 128 KiB, twice",
            config=SQL,
            keeps=96 * MIB,
        ),
        Scenario(
            "flight",
            "the Flight SQL listener: wrong logins, and queries with large results, half of which nobody reads",
            [
                (floods.flight, {"clients": 8, "reads": True}),
                (floods.flight, {"clients": 8, "reads": False}),
            ],
            768 * MIB,
            "sql.max_queries of sql.max_memory; 1 MiB of each result, and 64 results of at most 1 MiB",
            config=SQL + PORTS,
            prepare=asked,
            login=A,
            keeps=256 * MIB,
        ),
    ]


def of_gateways() -> list[Scenario]:
    """Return the floods of gateways over HTTP, whose memory is in the bounds."""
    three = ("registry", "iceberg", "sharing")
    garbage = bytes(number * 37 % 256 for number in range(1 << 16))
    config = 'lake { seal_age: "1h" }\n' + PORTS
    pages = {"registry": "/subjects", "iceberg": "/v1/namespaces", "sharing": "/delta-sharing/shares"}
    heads = {
        "nobody": "",
        "wrong": f"Authorization: Basic {base64.b64encode(b'x:y').decode()}\r\n",
        "bearer": "Authorization: Bearer @\r\n",
    }
    many = {
        name: "".join(f"GET {page} HTTP/1.1\r\nHost: x\r\n{head}\r\n" for head in heads.values()).encode() * 50
        for name, page in pages.items()
    }
    body = b"POST /subjects/a/versions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + bytes(900_000)
    return [
        Scenario(
            "gateways-half",
            "schema registry, Iceberg catalog and Delta Sharing: 1,200 connections to each that send a head byte by "
            "byte, beside garbage",
            [
                (
                    floods.unfinished,
                    {"connections": 1200, "port": name, "start": b"GET / HTTP/1.1\r\nA: ", "drip": b"x"},
                )
                for name in three
            ]
            + [
                (floods.blast, {"connections": 10, "port": name, "hello": b"", "chunk": garbage, "again": True})
                for name in three
            ],
            128 * MIB,
            "1,000 connections of 32 KiB to each",
            ("closed",),
            config=config,
            login=A,
            gateways=three,
        ),
        Scenario(
            "gateways-tls-half",
            "the schema registry with TLS: 2,000 handshakes that are never finished",
            [
                (
                    floods.unfinished,
                    {"connections": 2000, "port": "registry-tls", "start": b"\x16\x03\x01\x02\x00\x01"},
                )
            ],
            64 * MIB,
            "256 handshakes of 100 KiB, twice",
            ("closed",),
            config=config,
            login=A,
            gateways=("registry-tls",),
            keeps=96 * MIB,
        ),
        *(
            Scenario(
                f"gateway-{name}",
                f"{title}: requests without login and with wrong ones, 150 in each read, half of which nobody reads "
                "the answers of, and bodies of 900 KB",
                [
                    (
                        floods.blast,
                        {"connections": 8, "port": name, "hello": b"", "chunk": chunk, "again": True, "reads": reads},
                    )
                    for chunk, reads in ((many[name], True), (many[name], False), (body, True))
                ],
                96 * MIB,
                "16 connections with one read of 256 KiB and their answers; 8 bodies of 1 MiB, 3 times",
                ("401",),
                config=config,
                login=A,
                gateways=(name,),
            )
            for name, title in (
                ("registry", "the schema registry"),
                ("iceberg", "the Iceberg catalog"),
                ("sharing", "Delta Sharing"),
            )
        ),
    ]


def asked(wire: Wire) -> None:
    """Ask two queries at once, as many as an account may have: the processes for them are kept for two minutes."""
    replies = [wire.new_reply() for _ in range(2)]
    for reply in replies:
        wire.publish("$LAKE.API.SQL", b'{"sql": "SELECT count(*) FROM range(50000000)"}', reply=reply)
    waiting = set(replies)
    while waiting:
        waiting.discard(wire.next(timeout=60).subject)


def of_clients() -> list[Scenario]:
    """Return the floods of clients, and of everything that one server serves."""
    blast, unfinished = floods.blast, floods.unfinished
    half = floods_pub("core.x", 1 << 20)[: 900 << 10]
    acked = own(publish("flood.@", 1024, 256, "_INBOX.f@.r"), 4)
    many_streams = [publish(f"flood.{number}.x", 64 << 10, 16, "_INBOX.f0.r") for number in range(20)]
    requests = [
        request("$JS.API.INFO"),
        request("$JS.API.STREAM.INFO.FLOOD"),
        request("$JS.API.STREAM.NAMES", {}),
        request("$JS.API.STREAM.LIST", {}),
        request("$JS.API.CONSUMER.LIST.FLOOD", {}),
        request("$JS.API.STREAM.MSG.GET.FLOOD", {"last_by_subj": "flood.1"}),
        request("$JS.API.STREAM.CREATE.FLOOD", {"name": "FLOOD", "subjects": ["flood.>"]}),
        request("$JS.API.STREAM.INFO.NONE"),
    ]
    api = own(b"".join(requests) * 50, 8)
    gets = own(b"".join(request(f"$JS.API.DIRECT.GET.FLOOD.flood.{number}") for number in range(2000)), 8)
    last = own(
        request(
            "$JS.API.DIRECT.GET.FLOOD", {"multi_last": [f"flood.{number}" for number in range(1000)], "batch": 1000}
        )
        * 50,
        8,
    )
    refused = own(request("$JS.API.DIRECT.GET.FLOOD", {"multi_last": ["flood.>"]}) * 50, 8)
    wild = own(request("$JS.API.DIRECT.GET.FLOOD", {"multi_last": [f"*.{number}" for number in range(900)]}) * 50, 8)
    batch = own(request("$JS.API.DIRECT.GET.FLOOD", {"seq": 1, "batch": 100_000}) * 20, 8)
    pulls = own(request("$JS.API.CONSUMER.MSG.NEXT.FLOOD.C0", {"batch": 1000, "expires": 30_000_000_000}) * 200, 8)
    filters = [f"flood.{'x' * 150}.{number}.>" for number in range(3000)]
    create = {"stream_name": "FLOOD", "action": "create"}
    filtered = [
        request(
            f"$JS.API.CONSUMER.CREATE.FLOOD.F{number}",
            {**create, "config": {"name": f"F{number}", "filter_subjects": filters, "ack_policy": "none"}},
        )
        for number in range(40)
    ]
    deep = ".".join("abcdefgh"[number % 8] for number in range(1500))
    deep_filters = [
        ".".join("*" if (number >> bit) & 1 else "abcdefgh"[bit % 8] for bit in range(12)) + ".>"
        for number in range(200)
    ]
    made = own(
        b"".join(
            request(
                "$JS.API.CONSUMER.CREATE.FLOOD",
                {
                    **create,
                    "config": {"ack_policy": "explicit", "inactive_threshold": 2_000_000_000, "mem_storage": True},
                },
            )
            for _ in range(200)
        ),
        4,
    )
    acks = b"".join(
        f"PUB $JS.ACK.FLOOD.C0.1.{number}.{number}.1.0 {len(body)}\r\n{body}\r\n".encode()
        for number in range(1, 2001)
        for body in (("+ACK", "-NAK", "+WPI", "+TERM", "+NXT")[number % 5],)
    )
    members = [
        b"".join(_member(f"b{client}-{number}-{round_}", number) for round_ in range(1) for number in range(200))
        for client in range(20)
    ]
    fragments = floods.frame(b"PUB a 10\r\n", final=False) + b"".join(floods.frame(b"x", 0, False) for _ in range(500))
    tiny = b"".join(floods.frame(piece) for piece in (b"PUB core.x 1\r\n", b"x\r\n")) * 500
    pings = floods.frame(b"x" * 100, opcode=9) * 1000
    pending = "max_pending: 8MB\nmax_pending_total: 64MB\n"
    pages = b"".join(f"GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for page in PAGES)
    devices = mqtt.connect() + mqtt.subscribe(1, ("unread/#", 0))
    measures = b"".join(mqtt.publish(f"flood/{number % 50}", bytes(16)) for number in range(2000))
    confirmed = b"".join(mqtt.publish(f"flood/{number % 50}", bytes(16), 1, 1 + number) for number in range(200))
    linked = b"".join(f"LMSG core.{number % 50} 16\r\n".encode() + bytes(16) + b"\r\n" for number in range(2000))
    pages_work = (blast, {"connections": 32, "port": "http", "hello": b"", "chunk": pages, "again": True})
    half_pages = (unfinished, {"connections": 200, "port": "http", "start": b"GET /varz HTTP/1.1\r\n", "drip": b"x"})
    measures_work = (blast, {"connections": 4, "port": "mqtt", "hello": mqtt.connect(), "chunk": measures})
    confirmed_work = (blast, {"connections": 4, "port": "mqtt", "hello": mqtt.connect(), "chunk": confirmed})
    unread = mqtt.publish("unread/x", bytes(16 << 10)) * 16
    half_device = mqtt.connect("x" * 200)
    half_devices = (
        unfinished,
        {"connections": 2000, "port": "mqtt", "start": half_device[:1], "drip": half_device[1:-1] + b" "},
    )
    links_work = (blast, {"connections": 4, "port": "leafnode", "hello": JOIN, "chunk": linked})
    half_links = (unfinished, {"connections": 1000, "port": "leafnode", "start": JOIN[:20], "drip": b"x"})
    return [
        Scenario(
            "slow-disk",
            "4 publishers of 1 KiB; each sync of their stream takes 0.5 s",
            [(blast, {"connections": 4, "chunk": acked, "first": INBOX})],
            400 * MIB,
            "max_buffered_size 128 MiB and a write of 4 MiB, each at most three times (gathered, framed, written)",
            ("429", "10167"),
            ("429", "10167"),
            prepare=stream(),
            slow_ms=500,
        ),
        Scenario(
            "slow-disk-many",
            "publishers of 64 KiB to 20 streams; each sync takes 0.25 s (max_buffered_total 8 MiB)",
            [(blast, {"connections": 8, "chunk": many_streams, "first": INBOX})],
            240 * MIB,
            "max_buffered_total 8 MiB, 1.25 MiB for each of 20 streams, at most three times; turns of output",
            ("429", "10167"),
            config="jetstream { max_buffered_total: 8MB }",
            prepare=streams(20),
            slow_ms=250,
        ),
        Scenario(
            "unread",
            "40 core subscribers that never read, beside publishers of 16 KiB",
            [
                (
                    blast,
                    {
                        "connections": 40,
                        "chunk": b"PING\r\n",
                        "times": 1,
                        "first": b"SUB core.> 1\r\n",
                        "reads": False,
                        "again": True,
                    },
                ),
                (blast, {"connections": 2, "chunk": publish("core.@", 16 << 10, 16)}),
            ],
            128 * MIB,
            "max_pending_total 64 MiB (configured) and 1 MiB gathered for each subscriber",
            config=pending,
        ),
        Scenario(
            "unread-push",
            "20 push consumers whose clients never read, 200,000 messages",
            [
                (
                    blast,
                    {"connections": 20, "chunk": b"PING\r\n", "times": 1, "first": b"SUB push.@ 1\r\n", "reads": False},
                )
            ],
            128 * MIB,
            "2 MiB for each client: JetStream stops above 1 MiB unsent",
            prepare=consumers(20, 200_000, deliver_subject="push.@", ack_policy="none"),
        ),
        Scenario(
            "unread-pull",
            "8 clients that ask one consumer for 1,000 messages, without end, and never read",
            [(blast, {"connections": 8, "chunk": pulls, "first": INBOX, "reads": False})],
            128 * MIB,
            "max_waiting 512 requests; 2 MiB for each client; statuses within max_pending_total 64 MiB (configured)",
            prepare=consumers(1, 100_000, max_ack_pending=-1),
            config=pending,
        ),
        Scenario(
            "pulls",
            "the same, and read",
            [(blast, {"connections": 8, "chunk": pulls, "first": INBOX})],
            128 * MIB,
            "max_waiting 512 requests; 1 MiB unsent and one turn of output for each client",
            ("409",),
            ("409",),
            prepare=consumers(1, 100_000, max_ack_pending=100),
        ),
        Scenario(
            "connections",
            "5,000 connections with a subscription",
            [(floods.sleepers, {"connections": 5000, "first": b"SUB s.@ 1\r\nPING\r\n"})],
            64 * MIB,
            "5,000 connections of 6 KiB, twice",
        ),
        Scenario(
            "full",
            "500 connections at max_connections 100, which try again",
            [(floods.sleepers, {"connections": 500, "first": b"PING\r\n"})],
            32 * MIB,
            "max_connections",
            ("maximum connections exceeded",),
            ("maximum connections exceeded",),
            config="max_connections: 100",
        ),
        Scenario(
            "subscriptions",
            "100,000 subscriptions of one connection, made and ended, without end",
            [(blast, {"connections": 1, "chunk": [_subs(100_000), _unsubs(100_000)]})],
            160 * MIB,
            "100,000 subscriptions of 1 KiB, and one read",
            keeps=96 * MIB,
        ),
        Scenario(
            "subscriptions-many",
            "100 subscriptions of each of 1,000 connections",
            [(floods.sleepers, {"connections": 1000, "first": _subs(100, "@"), "starts": 20})],
            160 * MIB,
            "100,000 subscriptions of 1 KiB, 1,000 connections of 6 KiB",
            keeps=96 * MIB,
        ),
        Scenario(
            "subscriptions-full",
            "100,000 subscriptions at max_subscriptions 1,000",
            [(blast, {"connections": 1, "chunk": _subs(100_000)})],
            64 * MIB,
            "max_subscriptions",
            ("maximum subscriptions exceeded",),
            ("maximum subscriptions exceeded",),
            config="max_subscriptions: 1000",
        ),
        Scenario(
            "requests",
            "JetStream API requests of eight kinds by 8 clients",
            [(blast, {"connections": 8, "chunk": api, "first": INBOX})],
            96 * MIB,
            "8 clients with one read of 256 KiB and its answers; request_queue_limit",
            prepare=filled(1000, allow_direct=True),
        ),
        Scenario(
            "requests-unread",
            "the same by 8 clients that never read",
            [(blast, {"connections": 8, "chunk": api, "first": INBOX, "reads": False, "again": True})],
            192 * MIB,
            "max_pending_total 64 MiB (configured) and the answers to one read of 256 KiB of each client",
            config=pending,
            prepare=filled(1000, allow_direct=True),
        ),
        Scenario(
            "system",
            "requests of a system client for all monitoring pages",
            [
                (
                    blast,
                    {
                        "connections": 4,
                        "chunk": own(
                            b"".join(
                                request(f"$SYS.REQ.SERVER.PING.{page}")
                                for page in ("VARZ", "CONNZ", "SUBSZ", "JSZ", "ACCOUNTZ", "STATSZ", "HEALTHZ")
                            )
                            * 100,
                            4,
                        ),
                        "first": INBOX,
                    },
                )
            ],
            96 * MIB,
            "4 clients with one read of 256 KiB and its answers",
            config=PORTS,
            login=A,
            flood_login=SYSTEM,
        ),
        Scenario(
            "direct-gets",
            "direct gets of 100,000 subjects by 8 clients",
            [(blast, {"connections": 8, "chunk": gets, "first": INBOX})],
            96 * MIB,
            "1 MiB unsent and the answers to one read of 256 KiB of each client",
            prepare=filled(100_000, allow_direct=True),
        ),
        Scenario(
            "multi-last",
            "multi_last for 1,000 subjects by 8 clients, 50 at a time",
            [(blast, {"connections": 8, "chunk": last, "first": INBOX})],
            192 * MIB,
            "1 MiB unsent of each client and 1,024 sequences of each request that was read",
            prepare=filled(100_000, allow_direct=True),
        ),
        Scenario(
            "multi-last-all",
            "multi_last for 100,000 subjects by 8 clients",
            [(blast, {"connections": 8, "chunk": refused, "first": INBOX})],
            192 * MIB,
            "as multi-last",
            ("413",),
            ("413",),
            prepare=filled(100_000, allow_direct=True),
        ),
        Scenario(
            "multi-last-wild",
            "multi_last with 900 patterns that begin with a wildcard, for 20,000 subjects, by 8 clients",
            [(blast, {"connections": 8, "chunk": wild, "first": INBOX})],
            192 * MIB,
            "1 MiB unsent of each client; 256 requests of 20 KiB that wait, one snapshot of the subjects",
            prepare=filled(20_000, allow_direct=True),
        ),
        Scenario(
            "batch-gets",
            "batches of 100,000 messages by 8 clients, 20 at a time",
            [(blast, {"connections": 8, "chunk": batch, "first": INBOX})],
            192 * MIB,
            "1 MiB unsent of each client, 4 MiB of a piece, and 1,024 batches",
            ("429",),
            prepare=filled(100_000, allow_direct=True),
        ),
        Scenario(
            "filters",
            "consumers with 3,000 filters of 160 bytes, without end",
            [(blast, {"connections": 1, "chunk": own(b"".join(filtered), 1)[0], "first": INBOX})],
            400 * MIB,
            "40 consumers with 120,000 filters of 3 KiB",
            keeps=300 * MIB,
            prepare=stream(),
        ),
        Scenario(
            "deep",
            "publishes of 1,500 tokens to 200 consumers with wildcards in 12 tokens",
            [(blast, {"connections": 2, "chunk": publish(f"flood.{deep}", 16, 200, "")})],
            160 * MIB,
            "as publishers; 8 MiB of filters",
            prepare=_deep(deep_filters),
        ),
        Scenario(
            "payloads",
            "publishers of 1 MiB to a stream, and to a subscriber that reads",
            [
                (blast, {"connections": 4, "chunk": publish("flood.@", 1 << 20, 4, "_INBOX.f@.r"), "first": INBOX}),
                (blast, {"connections": 2, "chunk": publish("core.@", 1 << 20, 4)}),
                (blast, {"connections": 2, "chunk": b"PING\r\n", "times": 1, "first": b"SUB core.> 1\r\n"}),
            ],
            600 * MIB,
            "max_buffered_size three times; unsent of two subscribers, at most max_pending each",
            prepare=stream(max_msgs=100, discard="old"),
        ),
        Scenario(
            "payloads-64",
            "publishers of 64 MiB (max_payload 64 MiB) to a subscriber that reads",
            [
                (blast, {"connections": 4, "chunk": publish("core.x", 64 << 20, 1)}),
                (blast, {"connections": 1, "chunk": b"PING\r\n", "times": 1, "first": b"SUB core.> 1\r\n"}),
            ],
            1024 * MIB,
            "4 messages while they are read, twice; max_pending 128 MiB (configured), twice",
            config="max_payload: 64MB\nmax_pending: 128MB\nmax_pending_total: 256MB",
        ),
        Scenario(
            "too-large",
            "publishers of more than max_payload",
            [(blast, {"connections": 4, "chunk": publish("core.x", 2 << 20, 1), "again": True})],
            64 * MIB,
            "nothing of such a message is kept",
            ("Maximum Payload Violation",),
            ("Maximum Payload Violation",),
        ),
        Scenario(
            "halves",
            "200 connections that send 900 KiB of a message of 1 MiB, and no more",
            [(blast, {"connections": 200, "chunk": half, "times": 1, "again": True})],
            160 * MIB,
            "max_incomplete_total 64 MiB (configured), at most twice",
            ("maximum incomplete messages exceeded",),
            config="max_incomplete_total: 64MB",
        ),
        Scenario(
            "churn",
            "4 processes that connect, subscribe, ping and leave, and one that leaves at once",
            [(floods.churn, {"polite": True})] * 3 + [(floods.churn, {"polite": False})],
            64 * MIB,
            "10,000 closed connections are kept for monitoring",
        ),
        Scenario(
            "slowloris",
            "2,000 connections that send CONNECT byte by byte (authentication is required)",
            [(unfinished, {"connections": 2000, "start": b"CONN", "drip": b"ECT" + b" " * 100})],
            64 * MIB,
            "2,000 connections of 6 KiB; authorization.timeout",
            ("Authentication Timeout",),
            ("Authentication Timeout",),
            config="authorization { user: a, password: a, timeout: 1 }",
            login=A,
        ),
        Scenario(
            "tls-half",
            "2,000 TLS handshakes that are never finished",
            [(unfinished, {"connections": 2000, "start": b"\x16\x03\x01\x02\x00\x01"})],
            200 * MIB,
            "1,024 handshakes of 100 KiB, other connections of 6 KiB; tls.timeout",
            ("closed",),
            ("closed",),
            keeps=96 * MIB,
            config=TLS,
            tls=True,
        ),
        Scenario(
            "tls",
            "whole TLS handshakes by 16 clients, without end",
            [(floods.handshakes, {"authority": f"{certificates.PLACE}/ca.pem", "parallel": 16})],
            96 * MIB,
            "16 handshakes, and 10,000 closed connections",
            config=TLS,
            tls=True,
        ),
        Scenario(
            "websocket-half",
            "6,000 WebSocket handshakes that are never finished",
            [
                (
                    unfinished,
                    {"connections": 6000, "start": floods.websocket_head()[:100], "drip": b"x", "port": "websocket"},
                )
            ],
            96 * MIB,
            "4,096 sockets of 6 KiB",
            config=WEBSOCKET,
        ),
        Scenario(
            "fragments",
            "messages in fragments without end by 8 WebSocket clients",
            [(floods.websocket, {"connections": 8, "chunk": fragments})],
            96 * MIB,
            "8 clients with max_payload, and one read of 256 KiB",
            config=WEBSOCKET,
        ),
        Scenario(
            "frames",
            "tiny frames and pings by 8 WebSocket clients",
            [
                (floods.websocket, {"connections": 4, "chunk": tiny}),
                (floods.websocket, {"connections": 4, "chunk": pings}),
            ],
            96 * MIB,
            "8 clients with one read of 256 KiB",
            config=WEBSOCKET,
        ),
        Scenario(
            "batches",
            "members of atomic batches that are never finished, by 20 clients",
            [(blast, {"connections": 20, "chunk": members, "first": INBOX})],
            400 * MIB,
            "256 MiB of open batches",
            ("10210", "10211", "429"),
            ("10210", "10211", "10176"),
            prepare=stream(allow_atomic=True),
        ),
        Scenario(
            "consumers",
            "ephemeral consumers without end, at max_consumers 100",
            [(blast, {"connections": 4, "chunk": made, "first": INBOX})],
            96 * MIB,
            "100 consumers of 12 KiB; request_queue_limit",
            ("10026",),
            ("10026",),
            prepare=stream(max_consumers=100),
        ),
        Scenario(
            "acks",
            "acks of all kinds of messages that were never delivered, or often",
            [(blast, {"connections": 4, "chunk": acks})],
            96 * MIB,
            "one read of 256 KiB of each client",
            prepare=consumers(1, 5000),
        ),
        Scenario(
            "pages",
            "all monitoring pages and the console by 32 connections, beside 200 that send a head byte by byte",
            [pages_work, half_pages],
            96 * MIB,
            "128 connections with a page of 256 KiB each",
            config=HTTP,
            prepare=filled(1000),
        ),
        Scenario(
            "mqtt",
            "MQTT devices: 4 that publish with QoS 0, 4 with QoS 1, 20 that subscribe and never read",
            [
                measures_work,
                confirmed_work,
                (
                    blast,
                    {"connections": 20, "port": "mqtt", "hello": devices, "chunk": b"", "times": 1, "reads": False},
                ),
                (blast, {"connections": 1, "port": "mqtt", "hello": mqtt.connect(), "chunk": unread}),
            ],
            192 * MIB,
            "max_pending_total 64 MiB (configured), one read of 256 KiB of each device, max_buffered_size for QoS 1",
            config=MQTT + pending,
        ),
        Scenario(
            "mqtt-half",
            "2,000 MQTT connections that send CONNECT byte by byte",
            [half_devices],
            64 * MIB,
            "2,000 connections of 6 KiB",
            config=MQTT,
        ),
        Scenario(
            "leaf",
            "messages of 4 leaf nodes without subscribers, beside 1,000 that send CONNECT byte by byte",
            [links_work, half_links],
            96 * MIB,
            "one read of 256 KiB of each link; 1,000 connections of 6 KiB",
            config=LEAF,
        ),
        Scenario(
            "all",
            "at once: requests, churn, halves, slowloris, unread, frames, pages, mqtt, mqtt-half, leaf",
            [
                (blast, {"connections": 8, "chunk": api, "first": INBOX}),
                (floods.churn, {"polite": True}),
                (blast, {"connections": 100, "chunk": half, "times": 1, "again": True}),
                (unfinished, {"connections": 500, "start": b"CONN", "drip": b"ECT" + b" " * 100}),
                (
                    blast,
                    {
                        "connections": 20,
                        "chunk": b"PING\r\n",
                        "times": 1,
                        "first": b"SUB core.> 1\r\n",
                        "reads": False,
                        "again": True,
                    },
                ),
                (floods.websocket, {"connections": 4, "chunk": tiny}),
                pages_work,
                half_pages,
                measures_work,
                confirmed_work,
                half_devices,
                links_work,
                half_links,
            ],
            400 * MIB,
            "max_pending_total and max_incomplete_total 64 MiB each (configured), twice; the sums of the others",
            config=MQTT + HTTP + LEAF + WEBSOCKET + pending + "max_incomplete_total: 64MB\n",
            prepare=filled(1000, allow_direct=True),
            keeps=96 * MIB,
        ),
        Scenario(
            "core",
            "publishers of 16 bytes without subscribers",
            [(blast, {"connections": 8, "chunk": publish("core.x", 16, 2000)})],
            64 * MIB,
            "one read of 256 KiB of each client",
        ),
    ]


def _named(name: str) -> Callable[[int], bytes]:
    return partial(floods.hello, cluster=CLUSTER, name=name)


def _framed(data: bytes) -> bytes:
    return peer_wire.frame_head(Channel.ROUTE, len(data)) + data


def _member(batch: str, number: int) -> bytes:
    block = header_block({"Nats-Batch-Id": batch, "Nats-Batch-Sequence": "1"})
    data = bytes(16 << 10)
    sizes = f"{len(block)} {len(block) + len(data)}"
    return f"HPUB flood.{number} _INBOX.f@.r {sizes}\r\n".encode().replace(b"f@", b"f0") + block + data + b"\r\n"


def _subs(count: int, client: str = "x") -> bytes:
    return b"".join(f"SUB many.{client}.{number}.foo {number}\r\n".encode() for number in range(count))


def _unsubs(count: int) -> bytes:
    return b"".join(f"UNSUB {number}\r\n".encode() for number in range(count))


def _deep(filters: list[str]) -> Callable[[Wire], None]:
    def prepare(wire: Wire) -> None:
        stream(max_msgs=1000)(wire)
        consumer(wire, "C0", filter_subject="flood.*.*.*.*.>")
        for number, each in enumerate(filters):
            consumer(wire, f"D{number}", filter_subject=f"flood.{each}", ack_policy="none")

    return prepare
