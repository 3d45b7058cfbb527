"""Tests of the system account of a small simulated server: requests, and events when they are due."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.account_options import (
    AccountLimits,
    AccountOptions,
    AllowResponses,
    Permissions,
    SubjectRule,
)
from lakestream.config.account_options import User as UserOptions
from lakestream.config.options import SECOND, STANDARD, Options
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.auth import ANYBODY, Login
from lakestream.net.identity import Identity
from lakestream.net.interest.subscription import Subscription
from lakestream.net.peers.standalone import Standalone
from lakestream.net.statistics import REFUSED, Statistics
from lakestream.net.turn import Turn
from lakestream.ops.monitoring.jetstream import JetStreamPages
from lakestream.ops.system.events import ClientCounts
from lakestream.ops.system.messages import OPTIONS, SystemMessages, concerns, encoded, read
from lakestream.ops.system.requests import permissions_shown
from lakestream.ops.system.system import System
from lakestream.ports import ClientInfo, Single, singly
from lakestream.protocol import s2
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.subjects import Steps
from lakestream.runtime import IoWaits
from tests.unit.odd_bodies import BODIES, ODD
from tests.unit.stream_world import ManualClock

pytestmark = pytest.mark.unit

SID = "NID"
WITH_ACCOUNTS = {"accounts": (AccountOptions(name="A"), AccountOptions(name="SYS")), "system_account": "SYS"}


class Client(SimpleNamespace):
    """Connection as the system account sees it."""

    def close(self, reason: str) -> None:
        self.close_reason = reason

    def send_info(self, *, lame_duck: bool) -> None:
        self.told_to_leave = lame_duck

    @property
    def client(self) -> ClientInfo:
        return ClientInfo(id=self.id, host=self.host, account=self.account.name)


class Node:
    """Server without sockets, whose time the test advances."""

    def __init__(self, **options: Any) -> None:
        self.options = Options(host="127.0.0.1", **options)
        self.log = Logger(logtime=False)
        self.identity = Identity(SID, "one", "127.0.0.1", 4222, 1 << 20, jetstream=False, domain="", auth_required=True)
        self.clock = ManualClock()
        self.started_ns = self.config_loaded_ns = self.clock.now()
        self.statistics = Statistics()
        self.accounts = Accounts(self.options, Turn(lambda callback: None), self.log)
        self.jetstream = self.remotes = self.leafnodes = self.signed = None
        self.unsent, self.io = SimpleNamespace(stalled=0), SimpleNamespace(waiting=0, waits=IoWaits)
        self.cluster = Standalone()
        self.listeners = SimpleNamespace(http_port=0, tls=None, websocket=None, mqtt=None)
        self.lame_duck = False
        self.connections: dict[int, Any] = {}
        self.wrong = ""
        self.system = System(self, self.clock)  # type: ignore[arg-type]
        self._ids = itertools.count(1)

    def reload(self) -> str:
        return self.wrong

    def join(self, account: str, **fields: Any) -> Client:
        """Connect a client."""
        number = next(self._ids)
        counted = dict.fromkeys(("in_msgs", "in_bytes", "out_msgs", "out_bytes", "rtt_ns", "port"), 0)
        texts = dict.fromkeys(("user", "lang", "version", "close_reason"), "")
        times = {"start_ns": self.clock.now(), "last_ns": self.clock.now()}
        of = self.accounts.of(account)
        known = {"kind": STANDARD, "tls": None}
        known |= {"account": of, "login": ANYBODY, "subs": {}, "pending_bytes": 0, "host": "h", "name": f"c{number}"}
        client = Client(id=number, **(counted | texts | times | known | fields))
        self.connections[number] = of.connections[number] = client  # type: ignore[assignment]
        self.system.events.connected(client)  # type: ignore[arg-type]
        return client

    def leave(self, client: Client, reason: str = "Client Closed") -> None:
        """Disconnect a client."""
        client.close_reason = reason
        del self.connections[client.id]
        client.account.connections.pop(client.id)
        self.statistics.ended(client, self.clock.now())  # type: ignore[arg-type]
        self.system.events.disconnected(client)  # type: ignore[arg-type]


class Ear:
    """Subscriber to all messages of an account."""

    def __init__(self, account: Account, *subjects: str) -> None:
        self.heard: list[tuple[str, bytes, bytes]] = []
        self._account = account
        for subject in subjects:
            account.hub.subscribe(subject.encode(), singly(self._hear))

    def _hear(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        self.heard.append((subject.decode(), header, payload))

    def take(self) -> list[tuple[str, Any]]:
        heard, self.heard = self.heard, []
        return [(subject, json.loads(payload)) for subject, _, payload in heard]

    def ask(self, subject: str, body: bytes = b"", header: bytes = b"", client: int = 0) -> list[Any]:
        """Return the answers to a request."""
        inbox = self._account.hub.subscribe(b"to.me", singly(self._hear))
        asking = ClientInfo(client, "h", self._account.name, user="u")
        self._account.hub.route(None, asking, Single(f"$SYS.REQ.{subject}".encode(), b"to.me", header, body))
        inbox.cancel()
        return [answer for _, answer in self.take()]


@pytest.fixture
def node() -> Node:
    made = Node(**WITH_ACCOUNTS)
    made.system.start()
    return made


def subjects(ear: Ear) -> list[str]:
    return [subject for subject, _ in ear.take()]


# ---------------------------------------------------------------------- events
def test_connects_and_disconnects_are_published_in_order(node: Node) -> None:
    ear = Ear(node.accounts.system, "$SYS.ACCOUNT.>", "$SYS.SERVER.ACCOUNT.*.CONNS")
    client = node.join("A", user="ann")
    coming = ear.take()
    assert [subject for subject, _ in coming] == [
        "$SYS.SERVER.ACCOUNT.A.CONNS",
        "$SYS.ACCOUNT.A.SERVER.CONNS",
        "$SYS.ACCOUNT.A.CONNECT",
    ]
    first, second, connect = (event for _, event in coming)
    assert first["id"] == second["id"] != connect["id"]
    assert [event["server"]["seq"] for event in (first, second, connect)] == [1, 2, 3]
    assert first["conns"] == 1
    assert "rtt" not in connect["client"]
    client.rtt_ns, client.in_msgs, client.in_bytes = 5000, 1, 7
    node.leave(client)
    (_, gone), (_, counted), _ = ear.take()
    assert (gone["client"]["rtt"], gone["sent"], gone["reason"]) == (5000, {"msgs": 1, "bytes": 7}, "Client Closed")
    assert (counted["conns"], counted["received"]["msgs"]) == (0, 1)


def test_events_without_subscribers_are_not_built(node: Node) -> None:
    node.leave(node.join("A"))
    node.clock.advance(60 * SECOND)
    node.system.events.lame_duck()
    assert node.system.messages.server()["seq"] == 1


def test_a_refused_client_does_not_change_its_accounts_connection_count(node: Node) -> None:
    ear = Ear(node.accounts.system, "$SYS.ACCOUNT.>", f"$SYS.SERVER.{SID}.>")
    client = node.join("A")
    ear.take()
    node.system.events.disconnected(Client(**(vars(client) | {"id": 99, "close_reason": "Full"})))  # type: ignore[arg-type]
    assert subjects(ear) == ["$SYS.ACCOUNT.A.DISCONNECT"]
    node.system.events.disconnected(Client(**(vars(client) | {"id": 98, "close_reason": REFUSED})))  # type: ignore[arg-type]
    assert subjects(ear) == [f"$SYS.SERVER.{SID}.CLIENT.AUTH.ERR", "$SYS.ACCOUNT.A.DISCONNECT"]


def test_figures_come_at_growing_intervals(node: Node) -> None:
    ear, began = Ear(node.accounts.system, f"$SYS.SERVER.{SID}.STATSZ"), node.clock.now()
    times = []
    while len(times) < 8:
        node.clock.advance(SECOND // 4)
        times += [(node.clock.now() - began) / SECOND] * len(ear.take())
    assert times == [0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 25.75, 35.75]


def test_accounts_with_clients_are_published_every_half_minute(node: Node) -> None:
    ear = Ear(node.accounts.system, "$SYS.SERVER.ACCOUNT.*.CONNS")
    client = node.join("A")
    ear.take()
    node.clock.advance(29 * SECOND)
    assert subjects(ear) == []
    node.clock.advance(SECOND)
    assert subjects(ear) == ["$SYS.SERVER.ACCOUNT.A.CONNS"]
    node.leave(client)
    ear.take()
    node.clock.advance(60 * SECOND)
    assert subjects(ear) == []


def test_a_shutdown_is_published_once_without_events_for_each_client(node: Node) -> None:
    ear = Ear(node.accounts.system, "$SYS.SERVER.*.*", "$SYS.ACCOUNT.>")
    client = node.join("A")
    ear.take()
    node.system.events.lame_duck()
    node.system.events.stopping()
    node.leave(client, "Server Shutdown")
    told = ear.take()
    assert [subject for subject, _ in told] == [f"$SYS.SERVER.{SID}.LAMEDUCK", f"$SYS.SERVER.{SID}.SHUTDOWN"]
    assert told[0][1]["name"] == "one"


def test_without_accounts_only_refused_logins_are_published() -> None:
    node = Node()
    node.system.start()
    ear = Ear(node.accounts.default, ">")
    client = node.join("$G")
    node.leave(client)
    assert not ear.heard
    refused = Client(**(vars(client) | {"close_reason": REFUSED}))
    node.system.events.disconnected(refused)  # type: ignore[arg-type]
    assert subjects(ear) == ["$SYS.ACCOUNT.CLIENT.AUTH.ERR"]
    assert Ear(node.accounts.system).ask("SERVER.PING.VARZ") == []


def test_the_first_account_by_a_reload_brings_the_system_account() -> None:
    node = Node()
    node.system.start()
    node.options = Options(accounts=(AccountOptions(name="A"),))
    node.accounts.configure(node.options)
    node.system.configured()
    node.system.configured()
    assert len(Ear(node.accounts.system).ask("SERVER.PING.IDZ")) == 1
    assert len(Ear(node.accounts.of("A")).ask("USER.INFO")) == 1


def test_an_account_that_a_reload_takes_away_is_shown_no_more(node: Node) -> None:
    system = Ear(node.accounts.system)
    assert system.ask("SERVER.PING.ACCOUNTZ")[0]["data"]["accounts"] == ["$G", "A", "SYS"]
    node.options = Options(accounts=(AccountOptions(name="SYS"),), system_account="SYS")
    node.accounts.configure(node.options)
    node.accounts.of("ELSEWHERE")
    assert system.ask("SERVER.PING.ACCOUNTZ")[0]["data"]["accounts"] == ["$G", "SYS"]
    assert system.ask("ACCOUNT.A.INFO")[0]["error"]["description"] == "Account A does not exist"
    assert system.ask("ACCOUNT.A.CONNZ")[0]["data"]["connections"] is None


def test_clients_on_other_nodes_count_where_the_number_is_limited() -> None:
    few = AccountOptions(name="FEW", limits=AccountLimits(max_connections=3))
    options = Options(accounts=(few, AccountOptions(name="A")))
    accounts = Accounts(options, Turn(lambda callback: None), Logger())
    up = [(SimpleNamespace(remote=SimpleNamespace(server_id=name)), None) for name in ("N2", "N3")]
    cluster: Any = SimpleNamespace(name="C", links=lambda: [*up, (SimpleNamespace(remote=None), None)])
    counts, ear = ClientCounts(accounts, cluster), Ear(accounts.system, "$SYS.REQ.>")
    counts.configured()
    assert [subject for subject, _, _ in ear.heard] == ["$SYS.REQ.ACCOUNT.FEW.CONNS"]

    def told(server: str, conns: int, account: str = "FEW") -> None:
        event = {"server": {"id": server}, "acc": account, "conns": conns}
        accounts.system.hub.send(
            Single(f"$SYS.ACCOUNT.{account}.SERVER.CONNS".encode(), payload=json.dumps(event).encode())
        )

    told("N2", 2)
    told("N3", 1)
    told("N9", 5)
    told("N2", 7, "A")
    accounts.system.hub.send(Single(b"$SYS.ACCOUNT.FEW.SERVER.CONNS", payload=b"made up"))
    client: Any = SimpleNamespace(id=1)
    assert (accounts.of("FEW").others(), accounts.of("A").others()) == (3, 0)
    assert not accounts.of("FEW").admit(client)
    told("N2", 1)
    assert accounts.of("FEW").admit(client)
    up.pop()
    assert accounts.of("FEW").others() == 1
    accounts.configure(Options(accounts=(AccountOptions(name="FEW"),)))
    counts.configured()
    told("N2", 4)
    assert accounts.of("FEW").others() == 0


def test_without_a_cluster_nobody_is_asked_for_clients() -> None:
    few = AccountOptions(name="FEW", limits=AccountLimits(max_connections=3))
    accounts = Accounts(Options(accounts=(few,)), Turn(lambda callback: None), Logger())
    before, ear = len(accounts.system.hub.interest_graph), Ear(accounts.system, "$SYS.REQ.>")
    ClientCounts(accounts, Standalone()).configured()
    assert ear.heard == []
    assert len(accounts.system.hub.interest_graph) == before + 1, "only the ear"
    assert accounts.of("FEW").others() == 0


# ---------------------------------------------------------------------- requests
def test_a_client_is_kicked_or_sent_elsewhere(node: Node) -> None:
    system, client = Ear(node.accounts.system), node.join("A")
    assert "error" not in system.ask(f"SERVER.{SID}.LDM", b'{"cid": 1}')[0]
    assert client.told_to_leave
    assert "error" not in system.ask(f"SERVER.{SID}.KICK", b'{"cid": 1}')[0]
    assert client.close_reason == "Kicked"
    assert system.ask(f"SERVER.{SID}.KICK", b"{") == []


def test_a_reload_answers_with_the_configuration_error(node: Node) -> None:
    system = Ear(node.accounts.system)
    assert list(system.ask(f"SERVER.{SID}.RELOAD")[0]) == ["server"]
    node.wrong = "m.conf:1:1: no"
    assert system.ask(f"SERVER.{SID}.RELOAD")[0]["error"] == {"code": 500, "description": "m.conf:1:1: no"}


def test_other_accounts_get_answers_about_themselves_only(node: Node) -> None:
    other = Ear(node.accounts.of("A"))
    assert other.ask("SERVER.PING.VARZ") == other.ask(f"SERVER.{SID}.KICK") == other.ask("ACCOUNT.A.INFO") == []
    assert len(other.ask("ACCOUNT.PING.STATZ")) == len(other.ask("SERVER.PING.CONNZ")) == 1


def test_an_account_hears_of_its_own_clients_whatever_it_asks(node: Node) -> None:
    node.join("A")
    node.join("SYS")
    answer = Ear(node.accounts.of("A")).ask("SERVER.PING.CONNZ", b'{"acc": "SYS"}')[0]
    assert [one["name"] for one in answer["data"]["connections"]] == ["c1"]
    answer = Ear(node.accounts.system).ask("SERVER.PING.CONNZ", b'{"acc": "A"}')[0]
    assert [one["name"] for one in answer["data"]["connections"]] == ["c1"]


def test_requests_without_reply_are_not_answered(node: Node) -> None:
    asking = ClientInfo(0, "h", "SYS")
    for subject in ("SERVER.PING", "SERVER.PING.IDZ", f"SERVER.{SID}.KICK", "ACCOUNT.SYS.CONNS", "USER.INFO"):
        node.accounts.system.hub.route(None, asking, Single(f"$SYS.REQ.{subject}".encode(), b"", b"", b"{}"))


def test_user_info(node: Node) -> None:
    rules = Permissions(publish=SubjectRule(("a", "b"), ("c",)), responses=AllowResponses(3, 5))
    node.join("A", login=Login("A", UserOptions("u", "p", rules)))
    data = Ear(node.accounts.of("A")).ask("USER.INFO", client=1)[0]["data"]
    assert data == {
        "user": "u",
        "account": "A",
        "account_name": "A",
        "permissions": {
            "publish": {"allow": ["a", "b"], "deny": ["c"]},
            "subscribe": {},
            "responses": {"max": 3, "ttl": 5},
        },
    }
    assert "permissions" not in Ear(node.accounts.of("A")).ask("USER.INFO", client=2)[0]["data"]
    assert permissions_shown(Permissions()) == {"publish": {}, "subscribe": {}}


def test_subscribers_are_counted(node: Node) -> None:
    held = [("foo.*", ""), ("foo.bar", ""), ("foo.bar", "g"), (">", "")]
    found = [Subscription(None, subject.encode(), queue.encode(), b"1") for subject, queue in held]  # type: ignore[arg-type]
    node.join("SYS", subs=dict(enumerate(found)))
    counts = {}
    for wanted in ("foo.bar", "foo.bar g", "foo.*", "nobody", ""):
        ear = Ear(node.accounts.system, "to.me")
        asking = ClientInfo(1, "h", "SYS")
        node.accounts.system.hub.route(None, asking, Single(b"$SYS.DEBUG.SUBSCRIBERS", b"to.me", b"", wanted.encode()))
        counts[wanted] = ear.take()[0][1]
    assert counts == {"foo.bar": 4, "foo.bar g": 1, "foo.*": 3, "nobody": 1, "": 0}


# ---------------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, True),
        ({"server_name": "on"}, True),
        ({"server_name": "on", "exact_match": True}, False),
        ({"server_name": "one", "exact_match": True}, True),
        ({"server_name": "two"}, False),
        ({"host": "127"}, True),
        ({"cluster": "c"}, False),
        ({"domain": "d"}, False),
        ({"tags": ["x"]}, True),
        ({"tags": ["x", "y"]}, False),
    ],
)
def test_which_servers_answer(fields: dict[str, Any], answers: bool) -> None:
    assert concerns(Node(server_tags=("x", "z")), fields) is answers


def test_options_become_a_query() -> None:
    asked = read(
        "Connz", b'{"AUTH": true, "subscriptions_detail": true, "limit": 3, "state": 1, "nope": [], "acc": null}'
    )
    query = asked.query
    assert (query.flag("auth"), query.text("subs"), query.number("limit"), query.text("state")) == (
        True,
        "detail",
        3,
        "closed",
    )
    assert query.text("acc") == ""
    assert read("Jsz", b'{"consumer": true}').query.flag("consumers")


@pytest.mark.parametrize("body", [b" ", b"\t\r\n", b"{"])
def test_blanks_are_no_options(body: bytes) -> None:
    with pytest.raises(JsonError, match="unexpected end of JSON input"):
        read("Varz", body)


def test_a_request_is_one_value() -> None:
    with pytest.raises(JsonError, match=r"invalid character '\[' after top-level value"):
        read("Varz", b'{"tags": []} []')


@given(
    st.sampled_from([*OPTIONS, "Varz"]),
    st.one_of(
        st.binary(max_size=20),
        st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists).map(
            lambda value: json.dumps(value).encode()
        ),
        st.dictionaries(
            st.sampled_from(["limit", "offset", "auth", "cid", "state", "tags", "acc", "accounts", "js-enabled", "x"]),
            st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_any_options_are_understood_or_refused(kind: str, body: bytes) -> None:
    with contextlib.suppress(JsonError):
        read(kind, body)


async def test_the_streams_of_an_account_are_shown_in_steps_between_which_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def account(pages: JetStreamPages, name: str, serving: object, query: object) -> Steps[dict[str, Any]]:
        yield
        yield
        return {"name": name, "stream_detail": [{"name": "S"}]}

    waiting, spawned = list[Callable[[], None]](), list[asyncio.Future[Any]]()
    monkeypatch.setattr(JetStreamPages, "account", account)
    monkeypatch.setattr(Turn, "is_over", lambda turn: True)
    monkeypatch.setattr(Turn, "wait", lambda turn, callback: waiting.append(callback))
    node = Node(**WITH_ACCOUNTS)
    node.system.start()
    node.jetstream = SimpleNamespace(served={"A": None})
    monkeypatch.setattr(node.clock, "spawn", lambda work: spawned.append(asyncio.ensure_future(work)))
    ear = Ear(node.accounts.system, "to.me")
    assert ear.ask("ACCOUNT.A.JSZ", b'{"streams":true}') == []
    turns = 0
    while not spawned[0].done():
        await asyncio.sleep(0)
        if waiting:
            assert ear.heard == []
            waiting.pop()()
            turns += 1
    assert turns == 5  # two and the end of the page, one and the end of its JSON
    [(_, _, answer)] = ear.heard
    assert json.loads(answer)["data"] == {"name": "A", "stream_detail": [{"name": "S"}]}


@given(st.sampled_from(["VARZ", "CONNZ", "SUBSZ", "JSZ", "ACCOUNTZ", "HEALTHZ", "ROUTEZ"]), st.binary(max_size=30))
def test_any_request_is_answered(page: str, body: bytes) -> None:
    node = Node(**WITH_ACCOUNTS)
    node.system.start()
    assert len(Ear(node.accounts.system).ask(f"SERVER.PING.{page}", body)) == 1


@pytest.mark.heavy
def test_any_value_of_any_option_is_answered() -> None:
    node = Node(**WITH_ACCOUNTS)
    node.system.start()
    node.join("A")
    asked = [("SERVER.PING.", "Varz"), *(("SERVER.PING.", kind) for kind in OPTIONS if kind not in ("AccountStatz",))]
    asked += [("ACCOUNT.A.", "Connz"), ("ACCOUNT.PING.", "Connz"), ("ACCOUNT.PING.", "Statz"), ("ACCOUNT.A.", "Jsz")]
    ear = Ear(node.accounts.system)
    for prefix, kind in asked:
        options = OPTIONS.get(kind, {}) | {"exact_match": ("", bool), "tags": ("", list), "x": ("", str)}
        bodies = [b'{"%b":%b}' % (key.encode(), value.encode()) for key in options for value in ODD]
        for body in (*bodies, *BODIES):
            found = ear.ask(f"{prefix}{kind.upper()}", body)
            assert len(found) <= 1  # no answers to requests for another server
            assert not found or "internal error" not in json.dumps(found), (prefix, kind, body[:100])


def test_what_a_page_lets_escape_is_answered_and_logged(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    def escapes(asked: object) -> None:
        raise ZeroDivisionError

    replies = SystemMessages(node, node.clock)  # type: ignore[arg-type]
    answer = json.loads(replies.answer("Varz", b"", escapes) or b"")
    assert answer["error"] == {"code": 500, "description": "internal error, see the server's log"}
    assert "[ERR] system request for Varz: internal error: ZeroDivisionError" in capfd.readouterr().err


def test_answers_are_compressed_as_the_request_accepts() -> None:
    def with_header(accepted: bytes) -> tuple[bytes, bytes]:
        return encoded(b"NATS/1.0\r\nAccept-Encoding: " + accepted + b"\r\n\r\n", b"body" * 50)

    def header(name: bytes) -> bytes:
        return b"NATS/1.0\r\nContent-Encoding: " + name + b"\r\n\r\n"

    assert encoded(b"", b"body") == (b"", b"body")
    assert encoded(b"NATS/1.0\r\nA: b\r\n\r\n", b"body") == (b"", b"body")
    for accepted in (b"s2", b"snappy", b"gzip, s2"):
        name, body = with_header(accepted)
        assert name == header(b"snappy")
        assert b"".join(s2.Decoder().feed(body)) == b"body" * 50
    name, body = with_header(b"gzip")
    assert (name, gzip.decompress(body)) == (header(b"gzip"), b"body" * 50)
    assert with_header(b"br") == (header(b"identity"), b"body" * 50)
