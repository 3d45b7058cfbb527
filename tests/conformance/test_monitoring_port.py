"""The monitoring port beside nats-server's: the same requests, the same fields of the same kinds."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

OURS_ALONE = {"lakestream", "lake", "sync_always"}
"""Fields that nats-server does not have."""

NOT_MEASURED = {
    # About Go, or parts that this server does not have.
    "git_commit",
    "go",
    "gomaxprocs",
    "tls_timeout",
    "feature_flags",
    "system_account",
    "disk_io_wait_stats",
    "stalled_clients",
    "slow_consumer_stats",
    "stale_connection_stats",
    # nats-server's cache of its subject tree, and service imports of its system account.
    "num_cache",
    "num_inserts",
    "num_removes",
    "num_matches",
    "cache_hit_rate",
    "max_fanout",
    "avg_fanout",
    "sublist_stats",
    "imports",
    # When it is first measured is up to the server.
    "rtt",
    # A sync interval where every ack waits for the disk would mislead.
    "sync_interval",
}


class Sides(NamedTuple):
    """The two servers and a client of each, in the same state."""

    expected: Server
    tested: Server
    clients: tuple[Wire, Wire]


def settle(client: Wire) -> None:
    """The state that the pages show."""
    client.subscribe("orders.*", "workers")
    created = client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    assert "error" not in created, created
    client.api("STREAM.CREATE.M", {"name": "M", "subjects": ["m"], "storage": "memory", "max_bytes": 1000})
    for number in range(3):
        client.request(f"s.{number}", b"x")
    client.api("STREAM.MSG.DELETE.S", {"seq": 2})
    durable = {"durable_name": "D", "ack_policy": "explicit"}
    client.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": durable})
    client.ping()


@pytest.fixture(scope="module")
def sides(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    servers = [
        Server(of, tmp_path_factory.mktemp("monitored"), args=["-m", "-1"], name="monitored").start()
        for of in (Kind.REAL, kind)
    ]
    clients = [Wire(server.address, {"name": "client"}) for server in servers]
    for client in clients:
        settle(client)
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


def shape(value: Any) -> Any:
    """Names and kinds, without the values."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items() if name not in OURS_ALONE | NOT_MEASURED}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        if shapes and isinstance(shapes[0], dict):
            return [{name: item for one in sorted(shapes, key=str) for name, item in one.items()}]
        return shapes[:1]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize(
    "target",
    [
        "/varz",
        "/jsz",
        "/jsz?accounts=1",
        "/jsz?streams=1",
        "/jsz?consumers=1",
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
        "/healthz",
    ],
)
def test_pages_have_the_same_fields(sides: Sides, target: str) -> None:
    expected, tested = ask(sides.expected, target), ask(sides.tested, target)
    assert tested[:2] == expected[:2]
    assert shape(json.loads(tested[2])) == shape(json.loads(expected[2]))


def order(value: Any) -> list[str]:
    """Field names of a page, outermost, in order."""
    return [name for name in value if name not in OURS_ALONE | NOT_MEASURED]


@pytest.mark.parametrize("target", ["/varz", "/jsz", "/connz", "/accountz"])
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
    "/jsz?streams=1&consumers=1": lambda page: sorted(
        (one["name"], one["state"]["messages"], one["state"].get("num_deleted"), len(one.get("consumer_detail", ())))
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
