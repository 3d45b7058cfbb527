"""Tokens of accounts in a cluster: directories that servers exchange, and caches that ask the others.

`--against real` tries these tests on three nats-servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import until
from tests.cluster.peer_world import free_ports
from tests.keys import (
    ISSUED_AT,
    JETSTREAM,
    account_jwt,
    account_key,
    login,
    operator_jwt,
    operator_key,
    user_jwt,
    user_key,
)
from tests.servers import Kind, Server
from tests.wire import Closed, Wire, WireTimeout

pytestmark = pytest.mark.cluster

OPERATOR, SYSTEM = operator_key("cluster resolver"), account_key("cluster resolver SYS")
A, B = account_key("cluster resolver A"), account_key("cluster resolver B")
USER = user_key("cluster resolver")
TRUSTED = operator_jwt(OPERATOR, system_account=SYSTEM.public)


class World:
    """Three servers with a resolver each.

    Args:
        kinds: of each server: `full` or `cache`.
        jetstream: they have JetStream.
    """

    def __init__(self, kind: Kind, folder: Path, kinds: Sequence[str], *, jetstream: bool = False) -> None:
        ports = free_ports(3)
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        self.servers = [
            Server(
                kind,
                folder / f"n{number}",
                config=f"""
                    operator: {TRUSTED}
                    resolver: {{ type: {resolver}, dir: $TOKENS{", interval: '1s'" if resolver == "full" else ""} }}
                    resolver_preload {{ {SYSTEM.public}: {account_jwt(SYSTEM, "SYS", OPERATOR)} }}
                    http: "127.0.0.1:-1"
                    cluster {{ name: C, listen: "127.0.0.1:{port}", routes: [{routes}] }}
                """,
                name=f"n{number}",
                jetstream=jetstream,
            )
            for number, (port, resolver) in enumerate(zip(ports, kinds, strict=True))
        ]

    def start(self, *servers: Server) -> None:
        for server in servers:
            server.start()
        running = [server for server in self.servers if server.process is not None]
        for server in running:
            until(lambda server=server: self._routes(server) >= {one.name for one in running} - {server.name}, "routes")

    @staticmethod
    def _routes(server: Server) -> set[str]:
        return {route.get("remote_name", "") for route in server.page("/routez")["routes"]}

    def system(self, server: Server) -> Wire:
        return login(server.address, USER, user_jwt(USER, "system", SYSTEM))


@pytest.fixture
def world(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(kind, tmp_path, request.param)
    yield made
    for server in made.servers:
        server.kill()


def admitted(server: Server, account: object) -> bool:
    """Return True if a user of an account may log in."""
    try:
        with login(server.address, USER, user_jwt(USER, "u", account)) as wire:
            wire.ping()
            return True
    except Closed:
        return False


def stored(server: Server, key: str) -> str:
    path = server.tokens / f"{key}.jwt"
    return path.read_text() if path.exists() else ""


def push(world: World, server: Server, token: str, answers: int) -> None:
    """Push a token, and await the answers of so many servers."""
    with world.system(server) as wire:
        reply = wire.new_reply()
        wire.publish("$SYS.REQ.CLAIMS.UPDATE", token.encode(), reply)
        told = [wire.message(reply).json() for _ in range(answers)]
    assert [answer["data"]["message"] for answer in told] == ["jwt updated"] * answers
    assert len({answer["server"]["name"] for answer in told}) == answers


@pytest.mark.parametrize("world", [("full", "full", "full")], indirect=True)
def test_servers_keep_the_same_tokens(world: World) -> None:
    first, second, third = world.servers
    world.start(first, second, third)
    token = account_jwt(A, "A", OPERATOR)
    push(world, first, token, 3)
    assert [stored(server, A.public) for server in world.servers] == [token] * 3
    assert all(admitted(server, A) for server in world.servers)
    third.kill()
    until(lambda: world._routes(first) == {second.name}, "the end of the route")
    later = account_jwt(A, "A", OPERATOR, claims={"iat": ISSUED_AT + 1}, revocations={"*": ISSUED_AT})
    for missed in (later, account_jwt(B, "B", OPERATOR)):
        push(world, second, missed, 2)
    world.start(third)
    until(lambda: stored(third, A.public) == later and stored(third, B.public), "what was missed")
    assert admitted(third, B)
    assert not admitted(third, A)


@pytest.mark.parametrize("world", [("full", "full", "cache")], indirect=True)
def test_a_cache_asks_the_other_servers(world: World) -> None:
    *full, cache = world.servers
    world.start(*world.servers)
    token = account_jwt(A, "A", OPERATOR)
    for server in full:
        (server.tokens / f"{A.public}.jwt").write_text(token)
    assert admitted(cache, A)
    assert stored(cache, A.public) == token
    assert not admitted(cache, B)


@pytest.mark.parametrize("world", [("full", "full", "full")], indirect=True)
def test_an_empty_answer_is_not_the_last_one(world: World, kind: Kind) -> None:
    """nats-server takes the first answer, even of a server without the token."""
    first, second, third = world.servers
    world.start(*world.servers)
    token = account_jwt(A, "A", OPERATOR)
    (first.tokens / f"{A.public}.jwt").write_text(token)
    assert admitted(third, A) or kind is Kind.REAL
    assert stored(third, A.public) == token or kind is Kind.REAL
    assert not stored(second, A.public)


def _api(wire: Wire, subject: str, body: object) -> Any:
    """Ask until a leader of the cluster answers without a passing error."""

    def answer() -> Any:
        with contextlib.suppress(WireTimeout):
            said = wire.api(subject, body)
            return None if said.get("error", {}).get("err_code") in (10008, 10023, 10005) else said
        return None

    return until(answer, subject)


@pytest.fixture
def storing(kind: Kind, tmp_path: Path) -> Iterator[World]:
    made = World(kind, tmp_path, ("full",) * 3, jetstream=True)
    yield made
    for server in made.servers:
        server.kill()


def _held(server: Server, account: str) -> dict[str, int]:
    """Return the messages of the account's streams on one server."""
    accounts = server.page("/jsz?accounts=true&streams=true").get("account_details") or []
    streams = [stream for one in accounts if one["id"] == account for stream in one.get("stream_detail") or []]
    return {stream["name"]: stream["state"]["messages"] for stream in streams}


def test_nodes_serve_streams_of_accounts_that_nobody_logged_into_there(storing: World) -> None:
    servers = storing.servers
    storing.start(*servers)
    push(storing, servers[0], account_jwt(A, "A", OPERATOR, limits=JETSTREAM), 3)
    with login(servers[0].address, USER, user_jwt(USER, "u", A), timeout=10) as wire:
        for number in range(6):  # more streams than nodes: no node has them all
            config = {"name": f"S{number}", "subjects": [f"s{number}.>"], "storage": "file", "num_replicas": 1}
            config["allow_msg_schedules"] = True
            assert "error" not in _api(wire, f"STREAM.CREATE.S{number}", config)
            assert "error" not in wire.request(f"s{number}.x", b"x").json()
            plan = {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": f"s{number}.now"}
            assert "error" not in wire.request(f"s{number}.plan", b"x", plan).json()
    held = [set(_held(server, A.public)) for server in servers]
    assert sum(map(len, held)) == 6
    assert max(map(len, held)) < 6
    for server in servers:
        server.stop()
    storing.start(*servers)
    before = {name: count for server in servers for name, count in _held(server, A.public).items()}

    def grown() -> bool:
        now = {name: count for server in servers for name, count in _held(server, A.public).items()}
        return len(now) == 6 and all(count > before.get(name, 0) + 1 for name, count in now.items())

    until(grown, "schedules without clients")


def test_tiers_of_an_account_are_limits_of_one_replica(storing: World) -> None:
    """As measured on nats-server, by which this test passes, too (`--against real`)."""
    storing.start(*storing.servers)
    tiers = {
        "R1": {"mem_storage": 0, "disk_storage": 10_000, "streams": 2, "consumer": 2},
        "R3": {"mem_storage": 0, "disk_storage": 30_000, "streams": 1, "consumer": 2},
    }
    push(storing, storing.servers[0], account_jwt(A, "A", OPERATOR, limits={"tiered_limits": tiers}), 3)
    for server in storing.servers:
        with login(server.address, USER, user_jwt(USER, "u", A), timeout=10) as wire:
            told = []
            for name, replicas, size in (
                ("ONE", 1, 5000),
                ("THREE", 3, 5000),
                ("BIG", 1, 6000),
                ("TWO", 1, 5000),
                ("FULL", 1, -1),
                ("MORE", 3, 1000),
                ("PAIR", 2, 1000),
            ):
                config = {
                    "name": name,
                    "subjects": [name],
                    "storage": "file",
                    "num_replicas": replicas,
                    "max_bytes": size,
                }
                told.append(_api(wire, f"STREAM.CREATE.{name}", config).get("error", {}).get("err_code", 0))
            shown = _api(wire, "INFO", {})["tiers"]
            used = {name: (tier["reserved_storage"], tier["streams"]) for name, tier in shown.items()}
            for name in ("ONE", "THREE", "TWO"):
                assert _api(wire, f"STREAM.DELETE.{name}", None)["success"]
        assert told == [0, 0, 10047, 0, 10027, 10027, 10120]
        assert used == {"R1": (10_000, 2), "R3": (5000, 1)}
