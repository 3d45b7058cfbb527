"""Tokens of accounts in a cluster: directories that servers exchange, and caches that ask the others.

`--against real` tries these tests on three nats-servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.nodes import until
from tests.cluster.peer_world import free_ports
from tests.keys import ISSUED_AT, account_jwt, account_key, login, operator_jwt, operator_key, user_jwt, user_key
from tests.servers import Kind, Server
from tests.wire import Closed, Wire

pytestmark = pytest.mark.cluster

OPERATOR, SYSTEM = operator_key("cluster resolver"), account_key("cluster resolver SYS")
A, B = account_key("cluster resolver A"), account_key("cluster resolver B")
USER = user_key("cluster resolver")
TRUSTED = operator_jwt(OPERATOR, system_account=SYSTEM.public)


class World:
    """Three servers with a resolver each.

    Args:
        kinds: of each server: `full` or `cache`.
    """

    def __init__(self, kind: Kind, folder: Path, kinds: Sequence[str]) -> None:
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
                jetstream=False,
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
