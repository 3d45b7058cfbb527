"""Tests of the monitoring port compared with nats-server's: the same requests give the same fields and types."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.scenarios.system import SYSTEM
from tests.conformance.shapes import order, shape
from tests.conftest import Agree, Recorded
from tests.recordings import Recordings
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance


class Sides:
    """Server under test, and nats-server if it is started, each with clients and in the same state."""

    def __init__(self, recorded: Recorded, servers: list[Server]) -> None:
        self._recorded = recorded
        self.tested, self._expected = servers[0], servers[-1]

    def agree(self, see: Callable[[Server], Any]) -> None:
        """Assert that `see` returns the same for nats-server and the server under test."""
        assert see(self.tested) == self._recorded(lambda: see(self._expected))


def settle(server: Server, client: Wire) -> None:
    """Bring the server into the state that the pages show; the number of requests is the same, since it is counted."""
    client.subscribe("orders.*", "workers")
    created = client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    assert "error" not in created, created
    client.api("STREAM.CREATE.M", {"name": "M", "subjects": ["m"], "storage": "memory", "max_bytes": 1000})
    for number in range(3):
        client.request(f"s.{number}", b"x")
    client.api("STREAM.MSG.DELETE.S", {"seq": 2})
    durable = {"durable_name": "D", "ack_policy": "explicit"}
    client.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": durable})
    for name, config in (
        ("X", {"mirror": {"name": "S"}}),
        ("Y", {"sources": [{"name": "S", "filter_subject": "s.2"}]}),
    ):
        created = client.api(f"STREAM.CREATE.{name}", {"name": name, **config})
        assert "error" not in created, created
    deadline = time.monotonic() + 10
    while json.loads(ask(server, "/jsz")[2])["messages"] < 2 + 2 + 1:  # of S, X and Y
        assert time.monotonic() < deadline, "nothing is copied"
        time.sleep(0.01)
    client.ping()


@pytest.fixture(scope="module")
def kinds(kind: Kind, recordings: Recordings) -> list[Kind]:
    """Return the programs to start: the server under test, and nats-server if it is asked live."""
    return [kind, Kind.REAL] if recordings.live else [kind]


@pytest.fixture(scope="module")
def plain(kinds: list[Kind], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    servers = [
        Server(of, tmp_path_factory.mktemp("monitored"), args=["-m", "-1"], name="monitored").start() for of in kinds
    ]
    clients = [Wire(server.address, {"name": "client"}) for server in servers]
    for server, client in zip(servers, clients, strict=True):
        settle(server, client)
    yield servers
    for client in clients:
        client.close()
    for server in servers:
        server.kill()


@pytest.fixture
def sides(plain: list[Server], recorded: Recorded) -> Sides:
    return Sides(recorded, plain)


def ask(server: Server, target: str) -> list[Any]:
    """Return status, content type and body."""
    try:
        with urllib.request.urlopen(f"http://{server.host}:{server.http_port}{target}", timeout=10) as answer:
            return [answer.status, answer.headers["Content-Type"], answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.headers["Content-Type"], error.read().decode()]


def page(server: Server, target: str) -> Any:
    """Return the content of a page."""
    return json.loads(ask(server, target)[2])


def fields(server: Server, target: str) -> list[Any]:
    """Return status, content type, and names and types of the fields."""
    status, kind, body = ask(server, target)
    return [status, kind, shape(json.loads(body))]


@pytest.mark.parametrize(
    "target",
    [
        "/varz",
        "/jsz",
        "/jsz?accounts=1",
        "/jsz?streams=1",
        "/jsz?consumers=1",
        "/jsz?consumers=1&direct-consumers=1",
        "/jsz?direct-consumers=1",
        "/jsz?acc=$G&consumers=true&config=true",
        "/jsz?accounts=true&offset=5",
        "/jsz?leader-only=true&accounts=true",
        "/jsz?raft=true&accounts=true",
        "/jsz?stream-leader-only=true&accounts=true&streams=true",
        "/jsz?acc=nope",
        "/connz",
        "/connz?subs=1&auth=1",
        "/connz?subs=detail",
        "/connz?state=closed",
        "/connz?state=any",
        "/connz?cid=12345",
        "/subsz",
        "/subsz?subs=1&test=orders.x",
        "/subsz?acc=nope",
        "/accountz",
        "/accountz?acc=$G",
        "/accountz?acc=$SYS",
        "/accstatz",
        "/accstatz?unused=1",
        "/leafz",
        "/gatewayz",
        "/routez",
        "/healthz",
        "/healthz?js-server-only=true",
        "/healthz?js-meta-only=true",
        "/healthz?js-enabled=true",
    ],
)
def test_pages_have_the_same_fields(sides: Sides, target: str) -> None:
    sides.agree(lambda server: fields(server, target))


@pytest.mark.parametrize("target", ["/varz", "/jsz", "/connz", "/accountz", "/accstatz"])
def test_fields_have_the_same_order(sides: Sides, target: str) -> None:
    sides.agree(lambda server: order(page(server, target)))


FIGURES: dict[str, Callable[[Any], Any]] = {
    "/varz": lambda page: [
        page[name] for name in ("connections", "max_payload", "ping_interval", "auth_timeout", "proto")
    ],
    "/jsz": lambda page: [
        page[name] for name in ("streams", "consumers", "messages", "bytes", "storage", "reserved_memory")
    ],
    "/connz": lambda page: [page["total"], page["connections"][0]["name"], page["connections"][0]["subscriptions"]],
    "/jsz?streams=1&consumers=1&direct-consumers=1": lambda page: sorted(
        [
            one["name"],
            one["state"]["messages"],
            one["state"].get("num_deleted"),
            len(one.get("consumer_detail", ())),
            len(one.get("direct_consumer_detail", ())),
            one.get("mirror", {}).get("lag"),
            [[source["name"], source["seq"]] for source in one.get("sources", ())],
        ]
        for one in page["account_details"][0]["stream_detail"]
    ),
}


@pytest.mark.parametrize("target", FIGURES)
def test_figures_are_the_same(sides: Sides, target: str) -> None:
    sides.agree(lambda server: FIGURES[target](page(server, target)))


@pytest.mark.parametrize(
    "target",
    [
        "/healthz?js-enabled-only=true",
        "/healthz?account=$G",
        "/healthz?account=$G&stream=S",
        "/healthz?account=$G&stream=S&consumer=D",
        "/healthz?account=$G&stream=S&consumer=x",
        "/healthz?account=$G&stream=x",
        "/healthz?account=$G&stream=x&details=true",
        "/healthz?account=nope",
        "/healthz?stream=S",
        "/healthz?stream=S&details=1",
        "/healthz?consumer=D&account=$G",
        "/healthz?details=x",
        "/connz?sort=foo",
        "/connz?sort=stop",
        "/connz?limit=x",
        "/ipqueuesz?all=x",
        "/ipqueuesz?all=1&queues=no-such-queue",
        "/connz?state=x",
        "/subsz?test=q.*",
        "/accountz?acc=X",
        "/jsz?accounts=x",
        "/nope",
        "/varz/",
    ],
)
def test_answers_are_the_same(sides: Sides, target: str) -> None:
    sides.agree(lambda server: ask(server, target))


def test_stacks_are_shown(sides: Sides) -> None:
    sides.agree(lambda server: ask(server, "/stacksz")[:2])


# ---------------------------------------------------------------------- order
def test_pages_of_subscriptions_follow_each_other(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address) as one, Wire(server.address) as two:
            for wire, subjects in ((one, "gfedcbahijkl"), (two, "cabdefghijkl")):
                for subject in subjects:
                    wire.subscribe(f"mine.{subject}")
            two.ping()
            one.ping()
            first = one.info["client_id"]
            listed = page(server, "/subsz?subs=1&acc=$G&limit=500")["subscriptions_list"]
            listed = [sub for sub in listed if sub["subject"].startswith("mine.")]
            return [[sub["cid"] == first, sub["sid"], sub["subject"]] for sub in listed]

    agree(see, args=["-m", "-1"], jetstream=False)


SORTS = ["subs", "pending", "msgs_to", "msgs_from", "bytes_to", "bytes_from", "cid", "start", "uptime"]


@pytest.mark.parametrize("sort", SORTS)
def test_clients_that_are_alike_are_shown_in_one_order(agree: Agree, sort: str) -> None:
    def see(server: Server) -> Any:
        wires = [Wire(server.address, {"name": name}) for name in "abcdef"]
        for wire in wires:
            wire.ping()
        shown = page(server, f"/connz?sort={sort}")["connections"]
        for wire in wires:
            wire.close()
        return [each["name"] for each in shown]

    agree(see, args=["-m", "-1"], jetstream=False)


@pytest.mark.parametrize("sort", ["stop", "reason", "uptime", "cid"])
def test_clients_that_are_gone_are_shown_in_one_order(agree: Agree, sort: str) -> None:
    def see(server: Server) -> Any:
        for name in "abcdef":
            with Wire(server.address, {"name": name}) as wire:
                wire.ping()
        shown: list[Any] = []
        deadline = time.monotonic() + 10
        while len(shown) < 6 and time.monotonic() < deadline:
            shown = page(server, f"/connz?state=closed&sort={sort}")["connections"]
        return sorted(each["name"] for each in shown) if sort == "uptime" else [each["name"] for each in shown]

    agree(see, args=["-m", "-1"], jetstream=False)


# ---------------------------------------------------------------------- with accounts
@pytest.fixture(scope="module")
def with_accounts(kinds: list[Kind], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Yield servers with accounts, and clients of each in A and B."""
    servers = [
        Server(of, tmp_path_factory.mktemp("accounts"), config=SYSTEM.config, args=["-m", "-1"], name="several").start()
        for of in kinds
    ]
    clients = []
    for server in servers:
        for user in ("a", "b", "sys"):
            clients.append(Wire(server.address, {"name": user, "user": user, "pass": "p", "lang": "x"}))
            clients[-1].ping()
        a, b = clients[-3:-1]
        settle(server, a)
        assert "error" not in b.api("STREAM.CREATE.S", {"name": "S", "subjects": ["t.>"], "max_bytes": 500})
        b.request("t.1", b"x")
        gone = Wire(server.address, {"name": "gone", "user": "n", "pass": "p"})
        gone.ping()
        gone.close()
        refused = Wire(server.address, {"name": "refused", "user": "a", "pass": "x"})
        refused.until_closed()
        refused.close()
        while json.loads(ask(server, "/connz?state=closed")[2])["total"] < 2:
            time.sleep(0.01)
    yield servers
    for client in clients:
        client.close()
    for server in servers:
        server.kill()


@pytest.fixture
def several(with_accounts: list[Server], recorded: Recorded) -> Sides:
    return Sides(recorded, with_accounts)


@pytest.mark.parametrize(
    "target",
    [
        "/varz",
        "/jsz",
        "/jsz?accounts=1",
        "/jsz?accounts=1&limit=1&offset=1",
        "/jsz?accounts=1&offset=5",
        "/jsz?acc=A",
        "/jsz?acc=B&streams=1&config=1",
        "/jsz?acc=A&consumers=true",
        "/jsz?acc=N",
        "/jsz?acc=SYS",
        "/jsz?acc=ZZ",
        "/connz?auth=1",
        "/connz?acc=A&auth=1&subs=detail",
        "/connz?acc=ZZ",
        "/connz?acc=A&cid=99",
        "/connz?user=a&auth=1",
        "/subsz",
        "/subsz?acc=A&subs=1",
        "/subsz?acc=N&subs=1&test=orders.x",
        "/subsz?acc=ZZ&subs=1",
        "/accountz",
        "/accountz?acc=A",
        "/accountz?acc=N",
        "/accountz?acc=SYS",
        "/accountz?acc=$G",
        "/accstatz",
    ],
)
def test_pages_of_accounts_have_the_same_fields(several: Sides, target: str) -> None:
    several.agree(lambda server: fields(server, target))


def connections(page: Any) -> Any:
    """Return the clients on a page of connections, with their accounts."""
    kept = ("name", "account", "authorized_user", "name_tag", "reason")
    shown = [{key: one[key] for key in kept if key in one} for one in page["connections"] or ()]
    return [page["total"], page["num_connections"], sorted(shown, key=str)]


OF_ACCOUNTS: dict[str, Callable[[Any], Any]] = {
    "/varz": lambda page: [page["system_account"], page["jetstream"]["stats"]["accounts"], page["auth_required"]],
    "/jsz": lambda page: [page[name] for name in ("accounts", "total", "streams", "consumers", "messages", "bytes")],
    "/jsz?accounts=1": lambda page: [
        [one[name] for name in ("name", "id", "storage", "reserved_memory", "reserved_storage")]
        for one in page["account_details"]
    ],
    "/connz?auth=1": connections,
    "/connz?auth=1&state=closed": connections,
    "/connz?auth=1&state=any&acc=A": connections,
    "/connz?auth=1&state=any&acc=N": connections,
    "/connz?user=b&auth=1": connections,
    "/connz?acc=A&mqtt_client=x": connections,
    "/connz?state=any&mqtt_client=x": connections,
    "/connz?acc=ZZ": lambda page: [page["server_id"], page["connections"], page["total"]],
    "/accountz": lambda page: [page["system_account"], sorted(page["accounts"])],
    "/accountz?acc=A": lambda page: [
        page["account_detail"][name] for name in ("jetstream_enabled", "client_connections", "mappings")
    ],
    "/accstatz": lambda page: sorted(
        [one[name] for name in ("acc", "conns", "total_conns", "received")] for one in page["account_statz"]
    ),
}


@pytest.mark.parametrize("target", OF_ACCOUNTS)
def test_figures_of_accounts_are_the_same(several: Sides, target: str) -> None:
    several.agree(lambda server: OF_ACCOUNTS[target](page(server, target)))


@pytest.mark.parametrize(
    "target",
    [
        "/healthz?account=A",
        "/healthz?account=A&stream=S",
        "/healthz?account=A&stream=S&consumer=D",
        "/healthz?account=B&stream=S&consumer=D",
        "/healthz?account=B&stream=M",
        "/healthz?account=N",
        "/healthz?account=$G",
        "/healthz?account=SYS&details=1",
        "/accountz?acc=ZZ",
    ],
)
def test_answers_about_accounts_are_the_same(several: Sides, target: str) -> None:
    several.agree(lambda server: ask(server, target))


def test_memory_is_shown_by_what_takes_it(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store", args=["-m", "-1"]).start()
    try:
        with Wire(server.address) as wire:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
            wire.api("STREAM.CREATE.M", {"name": "M", "subjects": ["m"], "storage": "memory"})
            config = {"durable_name": "D", "ack_policy": "explicit"}
            wire.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": config})
            for number in range(100):
                wire.request(f"s.{number}", b"x", headers={"Nats-Msg-Id": str(number)})
                wire.request("m", bytes(1000))
            sid = wire.subscribe("pulled")
            wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.D", b'{"batch":50}', "pulled")
            for _ in range(50):
                wire.delivered(sid)
        (account,) = page(server, "/jsz?streams=1&memory=1")["account_details"]
        by_name = {each["name"]: each["lakestream_memory"] for each in account["stream_detail"]}
        assert {name: number for name, number in by_name["M"].items() if number} == {
            "messages": pytest.approx(100 * (1000 + 160), rel=0.1),
            "subjects": pytest.approx(150, rel=0.5),
        }
        figures = by_name["S"]
        assert figures["subjects"] > 100 * 50 < figures["message_ids"]
        assert figures["deliveries"] > 50 * 50
        assert figures["segments"] >= 100 * 8
        assert "messages" not in figures
        assert account["lakestream_memory"] == {
            name: sum(each.get(name, 0) for each in by_name.values()) for name in {**by_name["M"], **figures}
        }
        assert "lakestream_memory" not in page(server, "/jsz?accounts=1")["account_details"][0]
    finally:
        server.kill()
