"""The monitoring port beside nats-server's: the same requests, the same fields of the same kinds."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.conformance.scenarios.system import SYSTEM
from tests.conformance.shapes import order, shape
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance


class Sides(NamedTuple):
    """The two servers and a client of each, in the same state."""

    expected: Server
    tested: Server
    clients: tuple[Wire, Wire]


def settle(server: Server, client: Wire) -> None:
    """The state that the pages show, made by as many requests on every server: they are counted."""
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
def sides(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    servers = [
        Server(of, tmp_path_factory.mktemp("monitored"), args=["-m", "-1"], name="monitored").start()
        for of in (Kind.REAL, kind)
    ]
    clients = [Wire(server.address, {"name": "client"}) for server in servers]
    for server, client in zip(servers, clients, strict=True):
        settle(server, client)
    yield Sides(servers[0], servers[1], (clients[0], clients[1]))
    for client in clients:
        client.close()
    for server in servers:
        server.kill()


def ask(server: Server, target: str) -> tuple[int, str, str]:
    """Status, content type, body."""
    try:
        with urllib.request.urlopen(f"http://{server.host}:{server.http_port}{target}", timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


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
        "/jsz?acc=nope",
        "/connz",
        "/connz?subs=1&auth=1",
        "/connz?subs=detail",
        "/connz?state=closed",
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
    ],
)
def test_pages_have_the_same_fields(sides: Sides, target: str) -> None:
    expected, tested = ask(sides.expected, target), ask(sides.tested, target)
    assert tested[:2] == expected[:2]
    assert shape(json.loads(tested[2])) == shape(json.loads(expected[2]))


@pytest.mark.parametrize("target", ["/varz", "/jsz", "/connz", "/accountz", "/accstatz"])
def test_fields_have_the_same_order(sides: Sides, target: str) -> None:
    assert order(json.loads(ask(sides.tested, target)[2])) == order(json.loads(ask(sides.expected, target)[2]))


FIGURES: dict[str, Callable[[Any], Any]] = {
    "/varz": lambda page: [
        page[name] for name in ("connections", "max_payload", "ping_interval", "auth_timeout", "proto")
    ],
    "/jsz": lambda page: [
        page[name] for name in ("streams", "consumers", "messages", "bytes", "storage", "reserved_memory")
    ],
    "/connz": lambda page: [page["total"], page["connections"][0]["name"], page["connections"][0]["subscriptions"]],
    "/jsz?streams=1&consumers=1&direct-consumers=1": lambda page: sorted(
        (
            one["name"],
            one["state"]["messages"],
            one["state"].get("num_deleted"),
            len(one.get("consumer_detail", ())),
            len(one.get("direct_consumer_detail", ())),
            one.get("mirror", {}).get("lag"),
            [(source["name"], source["seq"]) for source in one.get("sources", ())],
        )
        for one in page["account_details"][0]["stream_detail"]
    ),
}


@pytest.mark.parametrize("target", FIGURES)
def test_figures_are_the_same(sides: Sides, target: str) -> None:
    expected, tested = (json.loads(ask(server, target)[2]) for server in sides[:2])
    assert FIGURES[target](tested) == FIGURES[target](expected)


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
        "/connz?state=x",
        "/subsz?test=q.*",
        "/accountz?acc=X",
        "/jsz?accounts=x",
        "/nope",
        "/varz/",
    ],
)
def test_answers_are_the_same(sides: Sides, target: str) -> None:
    assert ask(sides.tested, target) == ask(sides.expected, target)


# ---------------------------------------------------------------------- with accounts
@pytest.fixture(scope="module")
def several(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """Two servers with accounts, and a client of each in A and B."""
    servers = [
        Server(of, tmp_path_factory.mktemp("accounts"), config=SYSTEM.config, args=["-m", "-1"], name="several").start()
        for of in (Kind.REAL, kind)
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
    yield Sides(servers[0], servers[1], (clients[0], clients[3]))
    for client in clients:
        client.close()
    for server in servers:
        server.kill()


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
    expected, tested = ask(several.expected, target), ask(several.tested, target)
    assert tested[:2] == expected[:2]
    assert shape(json.loads(tested[2])) == shape(json.loads(expected[2]))


def connections(page: Any) -> Any:
    """Who is on a page of connections, and where."""
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
    expected, tested = (json.loads(ask(server, target)[2]) for server in several[:2])
    assert OF_ACCOUNTS[target](tested) == OF_ACCOUNTS[target](expected)


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
    assert ask(several.tested, target) == ask(several.expected, target)
