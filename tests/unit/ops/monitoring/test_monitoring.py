"""Tests of the monitoring pages of a small simulated server, and of their HTTP server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.account_options import (
    AccountOptions,
    Destination,
    Latency,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
    SubjectMapping,
)
from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, STANDARD, Options
from lakestream.http.exchange import MAX_BODY
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.accounts.auth import ANYBODY
from lakestream.net.identity import Identity
from lakestream.net.interest.subscription import Subscription
from lakestream.net.peers.standalone import Standalone
from lakestream.net.statistics import MAX_CLOSED, REFUSED, Statistics
from lakestream.net.turn import Turn
from lakestream.ops.monitoring import port as monitoring
from lakestream.ops.monitoring.jetstream import SHOWN_AT_ONCE, _api, compact, indented
from lakestream.ops.monitoring.pages import HttpAnswer, Pages
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.ports import ClientInfo
from lakestream.protocol.accounts import JetStreamLimits
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.durations import uptime_text
from lakestream.protocol.subjects import finished
from lakestream.runtime import IoWaits, LoopClock

pytestmark = pytest.mark.unit

NOW = 1_767_323_045_000_000_000


class Connection(SimpleNamespace):
    """Attributes of a connection that the pages read."""

    @property
    def client(self) -> ClientInfo:
        return ClientInfo(id=self.id, host=self.host, account=self.account.name)


def connection(number: int, account: str = "$G", **fields: Any) -> Connection:
    plain = {
        "account": SimpleNamespace(name=account, options=AccountOptions(name=account)),
        "id": number,
        "name": f"client {number}",
        "lang": "python3",
        "version": "2.0",
        "user": "",
        "host": "127.0.0.1",
        "port": 50000 + number,
        "start_ns": NOW + number * SECOND,
        "last_ns": NOW + number * SECOND + 5,
        "rtt_ns": 596_000,
        "in_msgs": 1 * number,
        "in_bytes": 10 * number,
        "out_msgs": 2 * number,
        "out_bytes": 20 * number,
        "close_reason": "",
        "subs": {},
        "pending_bytes": 0,
        "kind": STANDARD,
        "tls": None,
        "login": ANYBODY,
    }
    return Connection(**(plain | fields))


def subscription(subject: bytes, queue: bytes = b"", sid: bytes = b"1") -> Subscription:
    return Subscription(None, subject, queue, sid)  # type: ignore[arg-type]


class Node:
    """Server as the pages see it, without JetStream."""

    def __init__(self, **options: Any) -> None:
        self.options = Options(http_port=-1, host="127.0.0.1", **options)
        self.log = Logger(logtime=False)
        self.identity = Identity(
            server_id="NID",
            server_name="one",
            host="127.0.0.1",
            port=4222,
            max_payload=1 << 20,
            jetstream=False,
            domain="",
            auth_required=False,
        )
        self.started_ns = self.config_loaded_ns = NOW
        self.statistics = Statistics()
        self.accounts = Accounts(self.options, Turn(lambda callback: None), self.log)
        self.jetstream = self.remotes = self.leafnodes = self.signed = None
        self.unsent, self.io = SimpleNamespace(stalled=2), SimpleNamespace(waiting=1, waits=IoWaits)
        self.cluster = Standalone()
        self.listeners = SimpleNamespace(http_port=8222, tls=None, websocket=None, mqtt=None)
        self.lame_duck = False
        self._connections: dict[int, Any] = {}

    @property
    def connections(self) -> dict[int, Any]:
        return self._connections

    @connections.setter
    def connections(self, connections: dict[int, Any]) -> None:
        self._connections = connections
        for number, one in (connections or {}).items():
            self.accounts.of(one.account.name).connections[number] = one
            for sub in one.subs.values():
                self.accounts.of(one.account.name).hub.join(sub)


@pytest.fixture
def node() -> Node:
    return Node()


def get(node: Node, target: str) -> HttpAnswer:
    path, _, query = target.partition("?")
    return settled(Pages(node).answer(path, query))


def settled(answer: HttpAnswer | Awaitable[HttpAnswer]) -> HttpAnswer:
    """Return an answer that may take time."""

    async def wait(answer: Awaitable[HttpAnswer]) -> HttpAnswer:
        return await answer

    return answer if isinstance(answer, HttpAnswer) else asyncio.run(wait(answer))


def page(node: Node, target: str) -> Any:
    answer = get(node, target)
    assert (answer.status, answer.content_type) == (200, "application/json"), answer
    return json.loads(answer.body)


def test_varz_counts_live_and_ended_connections(node: Node) -> None:
    node.statistics.total_connections = 3
    node.statistics.ended(connection(1, close_reason="Slow Consumer (Pending Bytes)"), NOW)
    node.statistics.ended(connection(2, close_reason="Stale Connection"), NOW)
    node.connections = {3: connection(3)}
    varz = page(node, "/varz")
    assert (varz["connections"], varz["total_connections"]) == (1, 3)
    assert (varz["in_msgs"], varz["in_bytes"], varz["out_msgs"], varz["out_bytes"]) == (6, 60, 12, 120)
    assert (varz["slow_consumers"], varz["stale_connections"]) == (1, 1)
    assert varz["subscriptions"] == 0
    assert varz["system_account"] == "$SYS"
    assert varz["mem"] > 1_000_000
    assert varz["jetstream"] == {}
    assert varz["start"] == "2026-01-02T03:04:05Z"


def test_varz_shows_the_limits(node: Node) -> None:
    varz = page(node, "/varz")
    assert varz["ping_interval"] == 120_000_000_000
    assert varz["auth_timeout"] == 2
    assert (varz["max_payload"], varz["max_pending"], varz["max_connections"]) == (1 << 20, 64 << 20, 65536)
    assert (varz["port"], varz["http_port"], varz["http_host"]) == (4222, 8222, "127.0.0.1")


def test_requests_are_counted_by_page(node: Node) -> None:
    pages = Pages(node)
    for path in ("/", "/varz", "/healthz", "/raftz", "/varz", "/nope"):
        pages.answer(path, "")
    assert json.loads(pages.answer("/varz", "").body)["http_req_stats"] == {"/": 1, "/healthz": 1, "/varz": 3}


def test_json_is_written_as_go_writes_it(node: Node) -> None:
    node.connections = {1: connection(1, name="<a & b>")}
    body = get(node, "/connz").body
    assert body.startswith(b'{\n  "server_id": "NID",\n  "now": "')
    assert b'"name": "\\u003ca \\u0026 b\\u003e"' in body


def test_connz_of_an_open_connection(node: Node) -> None:
    node.connections = {5: connection(5)}
    connz = page(node, "/connz")
    shown = connz["connections"][0]
    assert (connz["num_connections"], connz["total"], connz["offset"], connz["limit"]) == (1, 1, 0, 1024)
    uptime, idle = shown.pop("uptime"), shown.pop("idle")
    assert uptime.endswith("s")
    assert idle.endswith("s")
    assert shown == {
        "cid": 5,
        "kind": "Client",
        "type": "nats",
        "ip": "127.0.0.1",
        "port": 50005,
        "start": "2026-01-02T03:04:10Z",
        "last_activity": "2026-01-02T03:04:10.000000005Z",
        "rtt": "596µs",
        "pending_bytes": 0,
        "in_msgs": 5,
        "out_msgs": 10,
        "in_bytes": 50,
        "out_bytes": 100,
        "subscriptions": 0,
        "name": "client 5",
        "lang": "python3",
        "version": "2.0",
    }


def cids(node: Node, target: str) -> list[int]:
    return [one["cid"] for one in page(node, target)["connections"]]


def test_connz_states(node: Node) -> None:
    node.connections = {1: connection(1)}
    node.statistics.ended(connection(2, close_reason="Client Closed"), NOW + 60 * SECOND)
    assert cids(node, "/connz") == cids(node, "/connz?state=open") == [1]
    assert cids(node, "/connz?state=any") == [1, 2]
    closed = page(node, "/connz?state=closed")["connections"][0]
    assert (closed["cid"], closed["reason"], closed["stop"]) == (2, "Client Closed", "2026-01-02T03:05:05Z")
    assert (closed["uptime"], closed["idle"]) == ("58s", "57s")


def test_connz_sorts_pages_and_filters(node: Node) -> None:
    node.connections = {number: connection(number, user="ann" if number == 2 else "") for number in (3, 1, 2)}
    node.connections[2].subs = {b"1": subscription(b"a.*"), b"2": subscription(b"b", b"q", b"2")}
    assert cids(node, "/connz") == [1, 2, 3]
    for key in ("msgs_to", "msgs_from", "bytes_to", "bytes_from", "last", "uptime", "pending"):
        assert cids(node, f"/connz?sort={key}") == [3, 2, 1], key
    for key in ("start", "cid"):
        assert cids(node, f"/connz?sort={key}") == [1, 2, 3], key
    assert cids(node, "/connz?sort=idle") == [1, 2, 3]
    assert cids(node, "/connz?sort=subs") == [2, 3, 1]
    assert cids(node, "/connz?limit=1&offset=1") == [2]
    assert cids(node, "/connz?cid=3") == [3]
    assert cids(node, "/connz?user=ann") == [2]
    assert cids(node, "/connz?filter_subject=c&acc=$G") == cids(node, "/connz?filter_subject=c") == [1, 2, 3]
    assert cids(node, "/connz?mqtt_client=x") == cids(node, "/connz?mqtt_client=x&state=any") == []
    assert cids(node, "/connz?acc=$G") == [1, 2, 3]
    assert page(node, "/connz?acc=other")["connections"] is None


def test_connz_filters_by_subject_over_nats_only(node: Node) -> None:
    node.connections = {number: connection(number) for number in (1, 2)}
    node.connections[2].subs = {b"1": subscription(b"a.*"), b"2": subscription(b"b", b"q", b"2")}
    asked = Pages(node).pages["connz"]
    for subject, found in (("a.x", [2]), ("a.>", [2]), ("*", [2]), (">", [1, 2]), ("c", [])):
        shown = asked(Query(acc="$G", filter_subject=subject))["connections"]
        assert [one["cid"] for one in shown] == found, subject
    assert len(asked(Query(filter_subject=">"))["connections"]) == 2
    with pytest.raises(BadQuery, match="filter by subject only valid with account filtering"):
        asked(Query(filter_subject="a.x"))


async def test_stacks_and_queues(node: Node) -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await inner()

    waiting = asyncio.create_task(outer(), name="waiting")
    await asyncio.sleep(0)
    pages = Pages(node)
    stacks = pages.answer("/stacksz", "")
    assert isinstance(stacks, HttpAnswer)
    text = stacks.body.decode()
    assert f"thread {threading.current_thread().name}:\nstacks\n" in text
    task = text[text.index("task waiting:") :]
    assert task.index("inner\n\t") < task.index("outer\n\t")
    waiting.cancel()
    for query, expected in (("", {"disk I/O": {"pending": 1}}), ("all=1&queues=none", {})):
        found = pages.answer("/ipqueuesz", query)
        assert isinstance(found, HttpAnswer)
        assert json.loads(found.body) == expected
    assert page(node, "/varz")["http_req_stats"] == {"/varz": 1}


def test_connz_shows_subscriptions_when_asked(node: Node) -> None:
    node.connections = {1: connection(1, user="ann", subs={b"4": subscription(b"a.*", b"q", b"4")})}
    plain, listed, detailed = (page(node, f"/connz?subs={subs}")["connections"][0] for subs in ("0", "1", "detail"))
    assert plain["subscriptions"] == 1
    assert "subscriptions_list" not in plain
    assert listed["subscriptions_list"] == ["a.*"]
    assert detailed["subscriptions_list_detail"] == [{"subject": "a.*", "qgroup": "q", "sid": "4", "msgs": 0, "cid": 1}]
    assert "authorized_user" not in plain
    assert page(node, "/connz?auth=1")["connections"][0]["authorized_user"] == "ann"


def test_subsz(node: Node) -> None:
    node.connections = {
        1: connection(1, subs={b"4": subscription(b"a.*", b"", b"4"), b"5": subscription(b"b", b"", b"5")})
    }
    assert page(node, "/subsz")["num_subscriptions"] == 2
    assert "subscriptions_list" not in page(node, "/subscriptionsz")
    listed = page(node, "/subsz?subs=1&test=a.x")["subscriptions_list"]
    assert listed == [{"account": "$G", "account_tag": "$G", "subject": "a.*", "sid": "4", "msgs": 0, "cid": 1}]
    assert "subscriptions_list" not in page(node, "/subsz?subs=1&acc=nope")


def test_accountz(node: Node) -> None:
    assert page(node, "/accountz")["accounts"] == ["$G", "$SYS"]
    detail = page(node, "/accountz?acc=$G")["account_detail"]
    assert (detail["account_name"], detail["jetstream_enabled"], detail["client_connections"]) == ("$G", False, 0)


@pytest.fixture
def several() -> Node:
    """Return a server with accounts: A, which exports to B, and SYS."""
    exports = (
        StreamExport(subject="s.>"),
        StreamExport(subject="nobody", accounts=()),
        ServiceExport(subject="q", response="stream", accounts=("B",)),
        ServiceExport(subject="lt", latency=Latency("lat", 50)),
        ServiceExport(subject="lh", latency=Latency("l3", 0), response="chunked"),
    )
    imports = (
        StreamImport(account="A", subject="s.>", prefix="p"),
        StreamImport(account="A", subject="s.b", to="z"),
        StreamImport(account="A", subject="s.c"),
        ServiceImport(account="A", subject="q", to="qq", share=True),
        ServiceImport(account="A", subject="lt"),
    )
    mappings = (
        SubjectMapping("m", (Destination("n"),)),
        SubjectMapping("w", (Destination("w1", 30), Destination("w2", 20))),
        SubjectMapping("c", (Destination("c1", 10, "east"),)),
        SubjectMapping("self", (Destination("other", 80), Destination("self", 10))),
    )
    accounts = (
        AccountOptions(name="A", exports=exports, mappings=mappings, jetstream=JetStreamLimits(max_file=2000)),
        AccountOptions(name="B", imports=imports),
        AccountOptions(name="SYS"),
    )
    node = Node(accounts=accounts, system_account="SYS")
    node.accounts.of("B").imports = imports
    return node


def detail_of(node: Node, account: str) -> Any:
    return page(node, f"/accountz?acc={account}")["account_detail"]


def test_accountz_of_several(several: Node) -> None:
    accountz = page(several, "/accountz")
    assert (accountz["system_account"], accountz["accounts"]) == ("SYS", ["$G", "A", "B", "SYS"])
    assert "is_system" not in detail_of(several, "A")
    system = detail_of(several, "SYS")
    assert system["is_system"] is True
    assert [one["local_subject"] for one in system["imports"]] == ["$SYS.REQ.USER.INFO"]
    assert {one["subject"] for one in system["exports"]} >= {"$JS.API.>", "$SYS.REQ.ACCOUNT.*.STATZ"}


# The fields and weights as nats-server 2.15.1 shows them for the same configuration.
def test_accountz_shows_exports(several: Node) -> None:
    assert detail_of(several, "A")["exports"] == [
        {"subject": "q", "type": "service", "response_type": "Streamed", "approved_accounts": ["B"]},
        {
            "subject": "lt",
            "type": "service",
            "response_type": "Singleton",
            "service_latency": {"sampling": 50, "results": "lat"},
        },
        {
            "subject": "lh",
            "type": "service",
            "response_type": "Chunked",
            "service_latency": {"sampling": "headers", "results": "l3"},
        },
        {"subject": "s.>", "type": "stream"},
        {"subject": "nobody", "type": "stream"},
    ]
    assert "exports" not in detail_of(several, "B")


def test_accountz_shows_imports(several: Node) -> None:
    plain = {"invalid": False, "share": False, "tracking": False}
    shown = detail_of(several, "B")["imports"]
    assert shown[:5] == [
        {"subject": "s.>", "account": "A", "local_subject": "p.s.>", "type": "stream"} | plain,
        {"subject": "s.b", "account": "A", "local_subject": "z", "type": "stream"} | plain,
        {"subject": "s.c", "account": "A", "local_subject": "s.c", "type": "stream"} | plain,
        {"subject": "q", "account": "A", "to": "qq", "local_subject": "qq", "type": "service"}
        | plain
        | {"share": True},
        {"subject": "lt", "account": "A", "to": "lt", "local_subject": "lt", "type": "service"}
        | plain
        | {"latency": {"sampling": 50, "results": "lat"}},
    ]
    assert [(one["subject"], one["local_subject"]) for one in shown[5:]] == [
        ("$SYS.REQ.ACCOUNT.B.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ"),
        ("$SYS.REQ.ACCOUNT.B.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ"),
        ("$SYS.REQ.ACCOUNT.B.STATZ", "$SYS.REQ.ACCOUNT.PING.STATZ"),
        ("$SYS.REQ.USER.B.INFO", "$SYS.REQ.USER.INFO"),
        ("$JS.API.>", "$JS.API.>"),
    ]


def test_accountz_sums_up_the_weights_of_a_mapping(several: Node) -> None:
    def shown(subject: str) -> list[tuple[Any, ...]]:
        found = detail_of(several, "A")["mappings"][subject]
        return [(one["subject"], one["weight"], *([one["cluster"]] if "cluster" in one else [])) for one in found]

    assert shown("m") == [("n", 100)]
    assert shown("w") == [("w2", 20), ("w1", 50), ("w", 100)]
    assert shown("c") == [("c", 100), ("c1", 10, "east"), ("c", 100, "east")]
    assert shown("self") == [("self", 10), ("other", 90)]


def test_connections_by_account(several: Node) -> None:
    several.connections = {
        1: connection(1, "A", user="a", subs={b"1": subscription(b"a.*")}),
        2: connection(2, "B", user="b"),
        3: connection(3),
    }
    several.statistics.ended(connection(4, "A", user="a", close_reason="Client Closed"), NOW)
    several.statistics.ended(connection(5, user="x", close_reason=REFUSED), NOW)
    several.statistics.ended(connection(6, "B", user="b", close_reason=REFUSED), NOW)  # closed by a reload
    assert cids(several, "/connz?acc=A") == [1]
    assert cids(several, "/connz?acc=A&state=any") == [1, 4]
    assert cids(several, "/connz?acc=$G&state=any") == [3]
    nowhere = page(several, "/connz?acc=ZZ")
    assert (nowhere["server_id"], nowhere["total"], nowhere["connections"]) == ("", 0, None)
    of_user = page(several, "/connz?user=b")
    assert (of_user["num_connections"], of_user["total"]) == (
        1,
        1,
    )  # before 2.15.3 nats-server counted all of the account
    shown = {one["cid"]: one for one in page(several, "/connz?auth=1&state=any")["connections"]}
    assert {cid: (one.get("account"), one.get("name_tag")) for cid, one in shown.items()} == {
        1: ("A", "A"),
        2: ("B", "B"),
        3: (None, "$G"),
        4: ("A", "A"),
        5: (None, None),
        6: ("B", "B"),
    }
    assert shown[5]["authorized_user"] == "x"
    subsz = page(several, "/subsz?acc=A&subs=1")
    assert (subsz["num_subscriptions"], [one["account_tag"] for one in subsz["subscriptions_list"]]) == (1, ["A"])
    assert page(several, "/subsz?acc=B")["num_subscriptions"] == 0


def test_accstatz_counts_live_and_ended_clients(several: Node) -> None:
    several.connections = {1: connection(1, "A")}
    several.statistics.ended(connection(2, "A", close_reason="Slow Consumer (Pending Bytes)"), NOW)
    several.statistics.ended(connection(3, "B"), NOW)
    shown = page(several, "/accstatz")["account_statz"]
    assert [one["acc"] for one in shown] == ["A"]
    assert (shown[0]["conns"], shown[0]["total_conns"], shown[0]["slow_consumers"]) == (1, 1, 1)
    nowhere = {"msgs": 0, "bytes": 0}
    others = {"gateways": nowhere, "routes": nowhere, "leafs": nowhere}
    assert shown[0]["sent"] == {"msgs": 6, "bytes": 60} | others
    assert shown[0]["received"] == {"msgs": 3, "bytes": 30} | others
    unused = {one["acc"]: one["received"]["msgs"] for one in page(several, "/accstatz?unused=1")["account_statz"]}
    assert unused == {"$G": 0, "A": 3, "B": 3, "SYS": 0}


def test_pages_about_what_there_never_is(node: Node) -> None:
    leafz, gatewayz = page(node, "/leafz"), page(node, "/gatewayz")
    assert (leafz["leafnodes"], leafz["leafs"]) == (0, [])
    assert (gatewayz["outbound_gateways"], gatewayz["inbound_gateways"]) == ({}, {})


def test_jsz_is_shown_in_steps_of_few_streams() -> None:
    """A page over 3,000 streams kept clients waiting for a second."""
    shown = [{"name": f"S{n}", "of": ["a", {}, []], "text": 'x"\n  y ,é', "n": n} for n in range(2 * SHOWN_AT_ONCE + 1)]
    page = {"account_details": [{"name": "A", "stream_detail": shown}, {"name": "B"}, {"name": "C"}], "total": 3}
    page["account_details"][2]["stream_detail"] = shown[:1]  # type: ignore[index]
    plain = dumps(page)
    assert len(list(compact(copy := json.loads(plain)))) == 4
    assert dumps(copy) == plain
    assert finished(indented(page)) == msgspec.json.format(plain, indent=2)


def test_jsz_without_jetstream(node: Node) -> None:
    jsz = page(node, "/jsz")
    assert (jsz["disabled"], jsz["streams"], jsz["config"]) == (True, 0, {"max_memory": 0, "max_storage": 0})


def test_healthz(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    assert get(node, "/healthz") == HttpAnswer(200, "application/json", b'{"status":"ok"}')
    answer = get(node, "/healthz?account=$G")
    assert (answer.status, answer.body) == (
        404,
        b'{"status":"unavailable","error":"JetStream account \\"$G\\" not found"}',
    )
    assert 'Healthcheck failed: "JetStream account' in capfd.readouterr().err
    answer = get(node, "/healthz?stream=X&details=1")
    assert answer.status == 400
    assert json.loads(answer.body) == {
        "status": "error",
        "errors": [{"type": "BAD_REQUEST", "error": '"account" must not be empty when checking stream health'}],
    }


def test_healthz_in_lame_duck_mode(node: Node) -> None:
    node.lame_duck = True
    assert get(node, "/healthz").status == 500


# Errors as nats-server 2.15.1 words them.
@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("/connz?sort=foo", "invalid sorting option: foo"),
        ("/connz?sort=stop", "sort by stop only valid on closed connections"),
        ("/connz?limit=x", "Error decoding int for 'limit': strconv.Atoi: parsing \"x\": invalid syntax"),
        ("/connz?cid=x", "Error decoding uint64 for 'cid': strconv.ParseUint: parsing \"x\": invalid syntax"),
        ("/connz?subs=x", "Error decoding boolean for 'subs': strconv.ParseBool: parsing \"x\": invalid syntax"),
        ("/connz?state=x", "Error decoding state for x"),
        ("/subsz?test=q.*", "invalid test subject, must be valid publish subject: q.*"),
        ("/accountz?acc=X", "Account X does not exist"),
        ("/jsz?accounts=x", "Error decoding boolean for 'accounts': strconv.ParseBool: parsing \"x\": invalid syntax"),
    ],
)
def test_wrong_parameters(node: Node, target: str, text: str) -> None:
    assert get(node, target) == HttpAnswer(400, "text/plain; charset=utf-8", text.encode())


def test_a_single_server_has_no_routes(node: Node) -> None:
    routez = page(node, "/routez?subs=detail")
    assert (routez["server_name"], routez["num_routes"], routez["routes"]) == ("one", 0, [])
    varz = page(node, "/varz")
    assert (varz["cluster"], varz["routes"], varz["remotes"]) == ({}, 0, 0)


@pytest.mark.parametrize("path", ["/nope", "/VARZ", "/varz/", ""])
def test_unknown_paths(node: Node, path: str) -> None:
    assert get(node, path).status == 404


def test_a_base_path_stands_before_every_page() -> None:
    node = Node(http_base_path="/mon")
    assert get(node, "/mon/varz").status == get(node, "/mon").status == get(node, "/mon/").status == 200
    assert get(node, "/varz").status == 404
    assert b'href="/mon/varz"' in get(node, "/mon").body


@given(
    st.sampled_from(
        ["/varz", "/connz", "/subsz", "/accountz", "/accstatz", "/leafz", "/routez", "/healthz", "/jsz", "/"]
    ),
    st.lists(
        st.sampled_from(["sort", "limit", "offset", "cid", "subs", "state", "acc", "auth", "test", "account", "stream"])
    ),
    st.text(max_size=8),
)
def test_any_query_is_answered(path: str, names: list[str], value: str) -> None:
    answer = settled(Pages(Node()).answer(path, "&".join(f"{name}={value}" for name in names)))
    assert answer.status in (200, 400, 404)


def test_closed_connections_are_remembered_up_to_a_limit() -> None:
    statistics = Statistics()
    for number in range(MAX_CLOSED + 5):
        statistics.ended(connection(number), NOW)
    assert len(statistics.closed) == MAX_CLOSED
    assert statistics.closed[0].id == 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m0s"), (3661, "1h1m1s"), (90000, "1d1h0m0s"), (31_536_061, "1y0d0h1m1s")],
)
def test_uptime(seconds: int, text: str) -> None:
    assert uptime_text(seconds * SECOND) == text


# ---------------------------------------------------------------------- HTTP


class Scrapes:
    """Metrics that are there once the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.came = asyncio.Event()
        self.done: Callable[[HttpAnswer], None] = lambda answer: None

    def scrape(self, accept: str, accept_encoding: str, done: Callable[[HttpAnswer], None]) -> None:
        self.asked.append((accept, accept_encoding))
        self.done = done
        self.came.set()


@pytest.fixture
async def served(node: Node) -> Any:
    scrapes = Scrapes()
    http = await monitoring.serve(
        node, Pages(node), scrapes, LoopClock(asyncio.get_running_loop(), node.log), node.accounts.system.hub.turn
    )
    yield SimpleNamespace(node=node, port=http.port, scrapes=scrapes)
    http.close()


async def exchange(port: int, data: bytes) -> bytes:
    """Send the data; return everything up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def test_a_request_over_http(served: Any) -> None:
    answer = await exchange(served.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: application/json" in head
    assert b"Access-Control-Allow-Origin: *" in head
    assert body == b'{"status":"ok"}'


async def test_one_connection_takes_many_requests(served: Any) -> None:
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    answer = await exchange(served.port, ask + ask + last)
    assert answer.count(b'{"status":"ok"}') == 2
    assert answer.endswith(b"404 page not found\n")


async def test_head_has_no_body(served: Any) -> None:
    answer = await exchange(served.port, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"Content-Length: 15" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 17_000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1) + b"x" * (MAX_BODY + 1), b"413"),
    ],
)
async def test_broken_requests_are_refused_and_the_listener_lives_on(served: Any, data: bytes, status: bytes) -> None:
    assert (await exchange(served.port, data)).startswith(b"HTTP/1.1 " + status)
    assert b"200 OK" in await exchange(served.port, b"GET / HTTP/1.0\r\n\r\n")


async def test_a_page_that_fails_is_a_500_and_the_listener_lives_on(served: Any, capfd: Any) -> None:
    served.node.connections = None
    assert (await exchange(served.port, b"GET /connz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 500")
    assert "monitoring page /connz failed" in capfd.readouterr().err
    assert b"200 OK" in await exchange(served.port, b"GET / HTTP/1.0\r\n\r\n")


async def test_a_taken_port_is_refused(served: Any) -> None:
    node = Node()
    node.options = Options(http_port=served.port, host="127.0.0.1")
    with pytest.raises(StartError, match=rf"127\.0\.0\.1:{served.port}: bind: address already in use"):
        await monitoring.serve(
            node, Pages(node), Scrapes(), LoopClock(asyncio.get_running_loop(), node.log), node.accounts.system.hub.turn
        )


async def test_requests_behind_a_scrape_are_answered_after_it(served: Any) -> None:
    scrape = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\nAccept-Encoding: gzip\r\n\r\n"
    behind = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = asyncio.create_task(exchange(served.port, scrape + behind))
    await asyncio.wait_for(served.scrapes.came.wait(), 10)
    assert b"200 OK" in await exchange(served.port, b"GET / HTTP/1.0\r\n\r\n"), "other clients are served meanwhile"
    assert served.scrapes.asked == [("text/plain", "gzip")]
    served.scrapes.done(HttpAnswer(200, "text/plain", b"page", (("Content-Encoding", "gzip"),)))
    first, _, second = (await answer).partition(b"page")
    assert b"Content-Encoding: gzip" in first
    assert second.endswith(b'{"status":"ok"}')


async def test_a_client_that_goes_during_its_scrape_harms_nothing(served: Any) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(served.scrapes.came.wait(), 10)
    writer.transport.abort()
    assert b"200 OK" in await exchange(served.port, b"GET / HTTP/1.0\r\n\r\n")
    served.scrapes.done(HttpAnswer(200, "text/plain", b"page"))
    assert b"200 OK" in await exchange(served.port, b"GET / HTTP/1.0\r\n\r\n")


def test_internal_errors_are_shown_when_there_were_any() -> None:
    served = [SimpleNamespace(api=SimpleNamespace(total=5, errors=2, internal_errors=count)) for count in (0, 1)]
    assert _api(served[:1], 5) == {"level": 5, "total": 5, "errors": 2}
    assert _api(served, 5) == {"level": 5, "total": 10, "errors": 4, "internal_errors": 1}
