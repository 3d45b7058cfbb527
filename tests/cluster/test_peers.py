"""Connections between nodes through real sockets: who is let in, what arrives, and who is told when nodes come and go.

Most tests run several `Peers` in one event loop; what needs a process of its own (a stopped one, a killed one) starts
real servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import bcrypt
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lakestream.raft.ports import Channel
from lakestream.server import peer_link
from lakestream.server import peer_wire as wire
from lakestream.server.errors import StartError
from lakestream.server.identity import new_server_id
from lakestream.server.logging import Logger
from lakestream.server.options import SECOND, ClusterOptions, RouteUrl, TlsOptions
from lakestream.server.peer_calls import PeerCalls
from lakestream.server.peer_link import Link
from lakestream.server.peer_wire import FrameReader, Hello, NodeInfo
from lakestream.server.peers import Peers
from lakestream.server.runtime import LoopClock
from tests.cluster.links import Network
from tests.cluster.nodes import free_ports
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.cluster

WAIT_S = 10.0


class Lines(Logger):
    """A log that is kept."""

    def __init__(self) -> None:
        super().__init__(logtime=False)
        self.lines: list[str] = []

    def _write(self, level: str, text: str) -> None:
        self.lines.append(f"[{level}] {text}")

    def with_text(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]


class Node:
    """One `Peers`, and all that it told."""

    def __init__(self, world: World, name: str, /, **options: Any) -> None:
        self.world = world
        self.log = Lines()
        fields = {"name": "C", "host": "127.0.0.1", "port": -1} | options
        me = NodeInfo(name=name, server_id=new_server_id(), jetstream=True, tags=(f"tag-{name}",))
        self.peers = Peers(me, ClusterOptions(**fields), self.log)
        self.got: list[tuple[str, bytes]] = []
        self.events: list[tuple[str, bool]] = []
        self.links: list[tuple[str, bool]] = []
        self.peers.receive(Channel.RAFT, self._received)
        self.peers.watch(lambda node, up: self._note(self.events, (node, up)))
        self.peers.watch_links(lambda node, up: self._note(self.links, (node.name, up)))
        self.peers.watch_nodes(lambda node: world.changed.set())

    def _received(self, node: str, payload: bytes) -> None:
        self._note(self.got, (node, payload))

    def _note(self, where: list[Any], what: Any) -> None:
        where.append(what)
        self.world.changed.set()

    @property
    def failures(self) -> int:
        """Attempts at the first configured route that failed in a row."""
        return self.peers._dialler._explicit[0].failures

    @property
    def url(self) -> RouteUrl:
        return RouteUrl("127.0.0.1", self.peers.bound_port)

    async def start(self) -> Node:
        await self.peers.listen()
        await self.peers.start()
        return self


class World:
    """Nodes in this event loop."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.strangers: list[Stranger] = []
        self.changed = asyncio.Event()

    def make(self, name: str, /, **options: Any) -> Node:
        self.nodes.append(Node(self, name, **options))
        return self.nodes[-1]

    async def node(self, name: str, /, *routes: Node | RouteUrl, **options: Any) -> Node:
        urls = tuple(route.url if isinstance(route, Node) else route for route in routes)
        return await self.make(name, routes=urls, **options).start()

    async def stranger(self, node: Node) -> Stranger:
        """A raw connection that is up. It is kept: the garbage collector would close it."""
        stranger = await Stranger.to(node)
        self.strangers.append(stranger)
        stranger.hello()
        assert isinstance(await stranger.read(), Hello)
        stranger.writer.write(wire.encode_control(wire.Ready()))
        await self.until(lambda: node.peers.connected())
        return stranger

    async def until(self, ready: Callable[[], Any], timeout: float = WAIT_S) -> None:
        """Wait until something that nodes tell makes it true. What nobody tells is looked at ten times a second."""
        async with asyncio.timeout(timeout):
            while not ready():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.1)

    async def together(self, *nodes: Node) -> None:
        """Wait until each of them is connected to all others."""
        names = {node.peers.me for node in nodes}
        await self.until(lambda: all({*node.peers.connected(), node.peers.me} >= names for node in nodes))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await asyncio.gather(*(node.peers.stop() for node in world.nodes))


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def ipv6_works() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class Stranger:
    """A raw connection to a node's route port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader(wire.MAX_FRAME_BYTES)
        self.waiting: list[wire.Control] = []

    @classmethod
    async def to(cls, node: Node) -> Stranger:
        return cls(*await asyncio.open_connection("127.0.0.1", node.peers.bound_port))

    def hello(self, name: str = "stranger", attempt: str = "x", **fields: Any) -> None:
        me = NodeInfo(name=name, server_id=f"id of {name}", cluster="C")
        self.writer.write(wire.encode_control(Hello(wire.PROTOCOL, me, attempt, **fields)))

    async def read(self) -> wire.Control | None:
        """The next control record; None at the end of the connection."""
        async with asyncio.timeout(WAIT_S):
            while not self.waiting:
                data = await self.reader.read(1 << 16)
                if not data:
                    return None
                self.waiting += [
                    wire.decode_control(payload) for channel, payload in self.frames.feed(data) if not channel
                ]
        return self.waiting.pop(0)


# ---------------------------------------------------------------------- buffers


async def test_buffers_arrive_in_order_whatever_their_size(world: World) -> None:
    a = await world.node("a")
    b = await world.node("b", a)
    await world.together(a, b)
    buffers = [b"", b"x", b"y" * 70_000, b"z" * (9 << 20), b"last"]
    for buffer in buffers:
        assert a.peers.send("b", Channel.RAFT, buffer)
        assert b.peers.send("a", Channel.RAFT, buffer)
    await world.until(lambda: len(a.got) == len(b.got) == len(buffers))
    assert a.got == [("b", buffer) for buffer in buffers]
    assert b.got == [("a", buffer) for buffer in buffers]


async def test_what_one_turn_sends_leaves_in_one_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a = await world.node("a")
    b = await world.node("b", a)
    await world.together(a, b)
    writes: list[int] = []
    real = Link._write
    monkeypatch.setattr(Link, "_write", lambda self: (writes.append(len(self._out)), real(self))[1])
    for number in range(100):
        a.peers.send("b", Channel.RAFT, b"%d" % number)
    await world.until(lambda: len(b.got) == 100)
    assert max(writes) >= 200  # each buffer with its head


async def test_nothing_can_be_sent_to_a_node_that_is_not_there(world: World) -> None:
    a = await world.node("a")
    assert not a.peers.send("b", Channel.RAFT, b"x")
    assert not a.peers.congested("b")
    assert a.peers.pending_bytes("b") == 0
    called: list[bool] = []
    a.peers.on_drain("b", lambda: called.append(True))
    assert called


async def test_calls_cross_the_connection(world: World) -> None:
    a = await world.node("a")
    b = await world.node("b", a)
    clock = LoopClock(asyncio.get_running_loop(), a.log)
    calls = {node.peers.me: PeerCalls(node.peers, clock, node.log) for node in (a, b)}
    await world.together(a, b)
    calls["b"].serve("upper", lambda node, body, answer: answer(body.upper()))
    done: asyncio.Future[tuple[bytes | None, str]] = asyncio.get_running_loop().create_future()
    calls["a"].call("b", "upper", b"body", lambda body, why: done.set_result((body, why)), SECOND)
    assert await asyncio.wait_for(done, WAIT_S) == (b"BODY", "")


# ---------------------------------------------------------------------- coming together


async def test_two_nodes_that_dial_each_other_have_one_connection(world: World) -> None:
    ports = free_port(), free_port()
    urls = tuple(RouteUrl("127.0.0.1", port) for port in ports)
    a, b = (world.make(name, port=port, routes=urls) for name, port in zip("ab", ports, strict=True))
    await asyncio.gather(a.peers.listen(), b.peers.listen())
    await asyncio.gather(a.peers.start(), b.peers.start())
    await world.together(a, b)
    await world.until(lambda: a.peers.routes_met() and b.peers.routes_met())
    assert (a.links, b.links) == ([("b", True)], [("a", True)])
    [one], [other] = a.peers.links(), b.peers.links()
    assert one.attempt == other.attempt
    assert one.dialled != other.dialled


async def test_a_node_learns_of_the_third_from_the_second(world: World) -> None:
    seed = await world.node("seed")
    nodes = [seed, *[await world.node(name, seed) for name in ("a", "b", "c")]]
    await world.together(*nodes)
    everybody = {"seed", "a", "b", "c"}
    await world.until(
        lambda: all(one.peers.sees(two.peers.me) | {two.peers.me} == everybody for one in nodes for two in nodes)
    )
    assert nodes[1].peers.info("c").tags == ("tag-c",)
    assert sorted(nodes[1].peers.nodes()) == ["b", "c", "seed"]


@pytest.mark.parametrize(("host", "seen"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("localhost", "localhost")])
async def test_a_node_is_told_of_where_it_is_reached(world: World, host: str, seen: str) -> None:
    """A listener on every address of its machine is told of by the address that its connections come from."""
    if host == "::1" and not ipv6_works():
        pytest.skip("no IPv6 here")
    seed = await world.node("seed", host=host)
    route = RouteUrl("127.0.0.1" if host == "0.0.0.0" else host, seed.peers.bound_port)
    a, b = [await world.node(name, route, host=host) for name in "ab"]
    await world.together(seed, a, b)
    assert seed.peers.info("a").route == f"{seen}:{a.peers.bound_port}"


async def test_a_node_that_moved_is_dialled_where_it_is_now(world: World) -> None:
    seed = await world.node("seed")
    a = await world.node("a", seed)
    b = await world.node("b", seed)
    await world.together(seed, a, b)
    await b.peers.stop()
    await world.until(lambda: a.peers.connected() == ["seed"])
    again = await world.node("b", seed)
    await world.together(seed, a, again)
    assert a.peers.info("b").route == again.url.address


async def test_routes_are_met_when_every_configured_node_is_there(world: World) -> None:
    ports = [free_port() for _ in range(3)]
    urls = [RouteUrl("127.0.0.1", port) for port in ports]
    a = await world.node("a", *urls, port=ports[0])
    b = await world.node("b", *urls, port=ports[1])
    await world.together(a, b)
    assert not a.peers.routes_met()
    c = await world.node("c", *urls, port=ports[2])
    await world.together(a, b, c)
    await world.until(lambda: all(node.peers.routes_met() for node in (a, b, c)))
    await c.peers.stop()
    await world.until(lambda: not a.peers.routes_met())


async def test_what_a_node_says_of_itself_reaches_the_others(world: World) -> None:
    a = await world.node("a")
    b = await world.node("b", a)
    await world.together(a, b)
    b.peers.update(clustered=True, lame_duck=True)
    await world.until(lambda: a.peers.info("b").lame_duck)
    assert a.peers.info("b").clustered
    c = await world.node("c", a)
    await world.together(a, b, c)
    assert c.peers.info("b").lame_duck


async def test_what_a_node_says_of_itself_during_a_handshake_reaches_the_other(world: World) -> None:
    # Between a node's HELLO and the end of the handshake: an update goes to connections that are up, of which this is
    # none. The other node would take it for one that is in no cluster, and could begin a second one.
    a = await world.node("a")
    stranger = await Stranger.to(a)
    stranger.hello()
    hello = await stranger.read()
    assert isinstance(hello, Hello)
    assert not hello.node.clustered
    a.peers.update(clustered=True)
    stranger.writer.write(wire.encode_control(wire.Ready()))
    said = [await stranger.read() for _ in range(2)]
    # Before it says whom it is connected to: by that nodes judge whether they may begin.
    assert [type(record) for record in said] == [wire.Update, wire.Gossip]
    assert isinstance(said[0], wire.Update)
    assert said[0].node.clustered


async def test_cluster_names_that_were_made_up_give_way_to_a_configured_one(world: World) -> None:
    a = await world.node("a", name="")
    b = await world.node("b", a, name="")
    await world.together(a, b)
    await world.until(lambda: a.peers.node.cluster == b.peers.node.cluster)
    c = await world.node("c", b, name="named")
    await world.together(a, b, c)
    await world.until(lambda: {node.peers.node.cluster for node in (a, b, c)} == {"named"})
    assert a.log.with_text("Cluster name was dynamically generated, consider setting one")


async def test_a_node_dials_until_the_other_is_there(world: World) -> None:
    port = free_port()
    a = await world.node("a", RouteUrl("127.0.0.1", port))
    await world.until(lambda: a.log.with_text("(attempt 1): Connection refused"))
    b = await world.node("b", port=port)
    await world.together(a, b)
    assert len(a.log.with_text("Error trying to connect")) == 1


async def test_a_port_that_is_taken_stops_the_start_with_what_to_do(world: World) -> None:
    a = await world.node("a")
    with pytest.raises(
        StartError, match=r"cannot listen for routes on 127\.0\.0\.1:\d+: Address already in use; choose"
    ):
        await world.node("b", port=a.peers.bound_port)


async def test_a_reload_adds_routes_and_takes_them_away(world: World) -> None:
    port = free_port()
    a, b = await world.node("a"), await world.node("b", port=port)
    there, nowhere = RouteUrl("127.0.0.1", port), RouteUrl("127.0.0.1", free_port())
    a.peers.reload(msgspec.structs.replace(a.peers.options, routes=(there, nowhere)))
    await world.together(a, b)
    assert not a.peers.routes_met()
    a.peers.reload(msgspec.structs.replace(a.peers.options, routes=(there,)))
    await world.until(lambda: a.peers.routes_met() and len(a.peers._dialler._tasks) == 1)
    a.peers.reload(msgspec.structs.replace(a.peers.options, routes=()))
    await world.until(lambda: not a.peers._dialler._tasks)
    assert a.links == [("b", True)]


# ---------------------------------------------------------------------- who is let in


async def test_a_node_of_another_cluster_is_refused_with_one_line_on_each_side(world: World) -> None:
    a = await world.node("a")
    b = await world.node("b", a, name="D")
    await world.until(lambda: b.failures >= 3)
    assert (a.peers.connected(), b.peers.connected()) == ([], [])
    assert len(a.log.with_text('Rejecting connection of \'b\': cluster name "D" does not match "C" of a')) == 1
    assert len(b.log.with_text('cluster name "D" does not match "C" of a')) == 1


@pytest.mark.parametrize(
    "secret", ["s3cret", bcrypt.hashpw(b"s3cret", bcrypt.gensalt(4)).decode()], ids=["plain", "hash"]
)
async def test_a_password_is_asked_for(world: World, secret: str) -> None:
    a = await world.node("a", user="route", password=secret)
    url = a.url
    wrong = await world.node("b", RouteUrl(url.host, url.port, "route", "guess"))
    none = await world.node("c", url)
    right = await world.node("d", RouteUrl(url.host, url.port, "route", "s3cret"))
    await world.together(a, right)
    await world.until(lambda: wrong.log.with_text("Authorization Violation") and none.log.with_text("Authorization"))
    assert a.peers.connected() == ["d"]


async def test_nodes_that_learn_of_each_other_use_their_own_credentials(world: World) -> None:
    secret = {"user": "route", "password": "s3cret"}
    seed = await world.node("seed", **secret)
    a, b = [await world.node(name, seed, **secret) for name in "ab"]
    await world.together(seed, a, b)


async def test_a_second_node_of_the_same_name_is_refused(world: World) -> None:
    a = await world.node("a")
    first = await world.node("b", a)
    await world.together(a, first)
    second = await world.node("b", a)
    await world.until(lambda: second.failures >= 2)
    assert a.peers.info("b").server_id == first.peers.node.server_id
    assert a.links == [("b", True)]
    assert len(a.log.with_text('Remote server has a duplicate name: "b"')) == 1
    assert len(second.log.with_text('Remote server has a duplicate name: "b"')) == 1


async def test_a_node_with_the_name_of_this_one_is_refused(world: World) -> None:
    a = await world.node("a")
    other = await world.node("a", a)
    await world.until(lambda: other.log.with_text('Remote server has a duplicate name: "a"'))
    assert a.peers.connected() == []


async def test_nodes_are_not_let_in_before_the_start_is_over(world: World) -> None:
    a = world.make("a")
    await a.peers.listen()
    with pytest.raises(ConnectionRefusedError):
        await Stranger.to(a)


async def test_a_stranger_gets_no_further_than_hello(world: World) -> None:
    a = await world.node("a", auth_timeout_ns=SECOND // 5)
    garbage = [b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"INFO {}\r\nCONNECT {}\r\n", b"\0\0\0\1\0"]
    too_long = wire.frame_head(wire.CONTROL, wire.MAX_GREETING_BYTES + 1)
    early = [wire.frame_head(Channel.RAFT, 1) + b"x", *map(wire.encode_control, (wire.Ready(), wire.Gossip(())))]
    for data in [*garbage, too_long, *early, b""]:
        stranger = await Stranger.to(a)
        stranger.writer.write(data)
        assert await stranger.read() is None
    assert a.peers.connected() == []
    assert a.got == []


async def test_strangers_cannot_take_all_connections(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.server.peers.MAX_STRANGERS", 3)
    a = await world.node("a", auth_timeout_ns=60 * SECOND)
    strangers = [await Stranger.to(a) for _ in range(4)]
    assert await strangers[3].read() is None
    strangers[0].writer.close()
    await world.until(lambda: len(a.peers._links) == 2)
    b = await world.node("b", a)
    await world.together(a, b)


@pytest.mark.parametrize(
    "data",
    [
        wire.encode_control(wire.Ready()),
        wire.encode_control(wire.Refused("x", "y")),
        wire.encode_control(Hello(wire.PROTOCOL, NodeInfo(name="other", server_id="x"), "y")),
        wire.encode_control(wire.Update(NodeInfo(name="other", server_id="x"))),
        wire.frame_head(Channel.RAFT, wire.MAX_FRAME_BYTES),
        wire.frame_head(wire.CONTROL, 3) + b"abc",
        b"\0\0\0\0",
    ],
)
async def test_what_a_connected_node_must_not_say_ends_its_connection(world: World, data: bytes) -> None:
    a = await world.node("a")
    stranger = await world.stranger(a)
    stranger.writer.write(data)
    await world.until(lambda: a.links == [("stranger", True), ("stranger", False)])
    assert a.log.with_text("Protocol Violation")
    assert await world.stranger(a)


async def test_a_channel_that_nobody_receives_is_ignored(world: World) -> None:
    a = await world.node("a")
    stranger = await world.stranger(a)
    stranger.writer.write(wire.frame_head(99, 1) + b"x" + wire.frame_head(Channel.RAFT, 1) + b"y")
    await world.until(lambda: a.got == [("stranger", b"y")])


async def test_a_dial_that_was_given_up_long_ago_makes_no_connection(world: World) -> None:
    """What a stopped process left in the listener's queue: HELLO and the end of the connection."""
    a = await world.node("a")
    stranger = await Stranger.to(a)
    stranger.hello()
    stranger.writer.write_eof()
    assert isinstance(await stranger.read(), Hello)
    assert await stranger.read() is None
    assert (a.events, a.links) == ([], [])


# ---------------------------------------------------------------------- going


async def test_a_node_that_stops_is_gone_at_once_and_comes_again(world: World) -> None:
    a = await world.node("a")
    port = free_port()
    b = await world.node("b", a, port=port)
    await world.together(a, b)
    began = asyncio.get_running_loop().time()
    await b.peers.stop()
    await world.until(lambda: a.events == [("b", True), ("b", False)])
    assert asyncio.get_running_loop().time() - began < 0.5
    assert a.log.with_text("Router connection to b closed: Peer Closed: Server Shutdown")
    again = await world.node("b", a, port=port)
    await world.together(a, again)
    assert a.links == [("b", True), ("b", False), ("b", True)]
    assert a.peers.info("b").server_id == again.peers.node.server_id


async def test_a_connection_that_is_cut_is_made_anew(world: World) -> None:
    a = await world.node("a")
    b = await world.node("b", a)
    for round in range(1, 4):
        await world.until(lambda count=round: len(a.links) == len(b.links) == 2 * count - 1)
        (a if round % 2 else b).peers.links()[0].abort("cut by the test")
    await world.together(a, b)
    assert a.links == [("b", True), ("b", False)] * 3 + [("b", True)]


def ends(nodes: list[Node]) -> list[int]:
    """How many sides hold each connection for up."""
    return list(Counter(link.attempt for node in nodes for link in node.peers.links()).values())


@pytest.mark.parametrize("seed", range(3))
async def test_connections_that_are_cut_at_random_come_again_and_keep_their_order(world: World, seed: int) -> None:
    """Within one connection nothing is lost, repeated or out of order; both sides agree on which one it is."""
    random = Random(seed)
    ports = [free_port() for _ in range(4)]
    urls = [RouteUrl("127.0.0.1", port) for port in ports]
    nodes = [await world.node(name, *urls, port=port) for name, port in zip("abcd", ports, strict=True)]
    for number in range(60):
        await asyncio.sleep(random.random() * 0.02)
        for node in nodes:
            for link in node.peers.links():
                node.peers.send(link.name, Channel.RAFT, f"{link.attempt} {number}".encode())
        for node in random.sample(nodes, random.randrange(3)):
            for link in node.peers._links.copy():
                if link.made and random.random() < 0.4:
                    link.abort("cut by the test")
    await world.until(lambda: ends(nodes) == [2] * 6)
    for node in nodes:
        for other in nodes:
            told = [up for name, up in node.links if name == other.peers.me]
            assert told == [True, False] * (len(told) // 2) + [True] * (len(told) % 2)
            got = [payload.split() for name, payload in node.got if name == other.peers.me]
            for attempt in {first for first, _ in got}:
                numbers = [int(second) for first, second in got if first == attempt]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_a_node_that_was_learnt_of_comes_back_by_gossip(world: World) -> None:
    seed = await world.node("seed")
    a = await world.node("a", seed, connect_retries=1)
    port = free_port()
    b = await world.node("b", seed, port=port)
    await world.together(seed, a, b)
    await b.peers.stop()
    await world.until(lambda: len(a.peers._dialler._tasks) == 1)  # forgotten after its retries
    again = await world.node("b", seed, port=port)
    await world.together(seed, a, again)


async def test_a_silent_node_is_not_alive_and_is_closed_as_stale(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.server.peers.STALE_NS", 2 * SECOND)
    a = await world.node("a")
    await world.stranger(a)
    await world.until(lambda: a.events == [("stranger", True)])
    await world.until(lambda: a.events == [("stranger", True), ("stranger", False)])
    assert (a.peers.connected(), a.peers.alive("stranger")) == (["stranger"], False)
    await world.until(lambda: a.links == [("stranger", True), ("stranger", False)])
    assert a.peers.stale_connections == 1
    assert a.events == [("stranger", True), ("stranger", False)]  # told once


async def test_a_node_that_speaks_again_is_alive_again(world: World) -> None:
    a = await world.node("a")
    stranger = await world.stranger(a)
    await world.until(lambda: a.events == [("stranger", True), ("stranger", False)])
    stranger.writer.write(wire.encode_control(wire.Ping(1)))
    await world.until(lambda: a.events[2:] == [("stranger", True)])
    assert a.links == [("stranger", True)]
    assert a.peers.alive("stranger")


async def test_a_node_that_stood_still_itself_takes_nobody_for_silent(world: World) -> None:
    import time

    a = await world.node("a")
    b = await world.node("b", a)
    await world.together(a, b)
    time.sleep(2)  # both stand still: they share this event loop
    await world.until(lambda: all(node.peers._beats > 3 for node in (a, b)))
    assert (a.events, b.events) == ([("b", True)], [("a", True)])


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.mark.parametrize("ways", ["both ways", "one way"])
async def test_nodes_that_were_parted_come_together_when_the_network_heals(
    world: World, network: Network, monkeypatch: pytest.MonkeyPatch, ways: str
) -> None:
    monkeypatch.setattr("lakestream.server.peers.STALE_NS", 2 * SECOND)
    ports, links = (free_port(), free_port()), (free_port(), free_port())
    there, back = network.direction(), network.direction()
    network.connect(links[0], ("127.0.0.1", ports[1]), there, back)
    network.connect(links[1], ("127.0.0.1", ports[0]), back, there)
    options = {"auth_timeout_ns": SECOND // 2, "advertise": "127.0.0.1:1"}
    a = await world.node("a", RouteUrl("127.0.0.1", links[0]), port=ports[0], **options)
    b = await world.node("b", RouteUrl("127.0.0.1", links[1]), port=ports[1], **options)
    await world.together(a, b)
    cut = [there] if ways == "one way" else [there, back]

    for direction in cut:
        network.cut(direction)
    await world.until(lambda: b.events[1:] == [("a", False)])
    assert b.links == [("a", True)]
    for direction in cut:
        network.restore(direction)
    await world.until(lambda: b.peers.alive("a") and a.peers.alive("b"))
    assert a.links == [("b", True)]  # a short one costs nothing
    a.peers.send("b", Channel.RAFT, b"again")
    await world.until(lambda: b.got == [("a", b"again")])

    for direction in cut:
        network.cut(direction)
    await world.until(lambda: not a.peers.connected() and not b.peers.connected())
    await world.until(lambda: a.failures >= 3 and b.failures >= 3)
    assert (len(a.links), len(b.links)) == (2, 2)  # attempts that do not get through come to nothing
    for direction in cut:
        network.restore(direction)
    await world.until(lambda: ends([a, b]) == [2])
    a.peers.send("b", Channel.RAFT, b"and again")
    await world.until(lambda: b.got[1:] == [("a", b"and again")])
    for node, other in ((a, "b"), (b, "a")):
        assert [up for _, up in node.links] == [True, False] * (len(node.links) // 2) + [True]
        assert node.peers.alive(other)


# ---------------------------------------------------------------------- slow ones


async def test_a_full_queue_drops_what_may_be_lost(world: World) -> None:
    a = await world.node("a")
    await world.stranger(a)  # it never reads
    [link] = a.peers.links()
    link.max_pending = 4 << 20
    sent = 0
    while a.peers.send("stranger", Channel.RAFT, b"x" * (1 << 20)):
        sent += 1
        await asyncio.sleep(0)
        assert sent < 100
    assert a.peers.pending_bytes("stranger") <= link.max_pending + 100 * 5
    assert link.dropped == 1
    assert a.peers.congested("stranger")
    assert a.peers.connected() == ["stranger"]


async def test_a_full_queue_of_routed_messages_ends_the_connection(world: World) -> None:
    a = await world.node("a")
    await world.stranger(a)
    [link] = a.peers.links()
    link.max_pending = 4 << 20
    drained: list[bool] = []
    while a.peers.send("stranger", Channel.ROUTE, b"x" * (1 << 20)):
        await asyncio.sleep(0)
        if a.peers.congested("stranger") and not drained:
            drained.append(False)
            a.peers.on_drain("stranger", lambda: drained.append(True))
    assert not a.peers.send("stranger", Channel.ROUTE, b"small, but after what was lost")
    await world.until(lambda: a.links == [("stranger", True), ("stranger", False)])
    assert a.peers.slow_consumers == 1
    assert drained == [False, True]
    assert a.log.with_text("Slow Consumer Detected")


async def test_a_congested_node_is_told_of_when_it_has_caught_up(world: World) -> None:
    a = await world.node("a")
    stranger = await world.stranger(a)
    while not a.peers.congested("stranger"):
        a.peers.send("stranger", Channel.ROUTE, b"x" * (1 << 20))
        await asyncio.sleep(0)
    drained = asyncio.Event()
    a.peers.on_drain("stranger", drained.set)
    assert not drained.is_set()
    while not drained.is_set():
        await stranger.reader.read(1 << 16)
    assert not a.peers.congested("stranger")
    assert a.links == [("stranger", True)]


@pytest.mark.parametrize(("channel", "stays"), [(Channel.RAFT, True), (Channel.ROUTE, False)])
async def test_a_receiver_that_fails_costs_its_buffer_or_the_routes_connection(
    world: World, channel: Channel, stays: bool
) -> None:
    def failing(node: str, payload: bytes) -> None:
        raise ValueError("cannot be read")

    a = await world.node("a")
    b = await world.node("b", a)
    await world.together(a, b)
    a.peers.receive(channel, failing)
    b.peers.send("a", channel, b"x")
    await world.until(lambda: a.log.with_text("ValueError: cannot be read"))
    assert (len(a.links) == 1) == stays
    await world.together(a, b)


# ---------------------------------------------------------------------- TLS


class Authority:
    """A certificate authority and what it signs, as files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._builder(self.subject, self.key).add_extension(x509.BasicConstraints(True, None), True)
        self.file = self._write(f"{name}.pem", signed.sign(self.key, hashes.SHA256()))

    def options(self, host: str, **changes: Any) -> TlsOptions:
        """Certificate and key for a node with this name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            san: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            san = x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        builder = self._builder(subject, key).add_extension(x509.SubjectAlternativeName([san]), False)
        cert = self._write(f"{self.name}-{host}.pem", builder.sign(self.key, hashes.SHA256()))
        file = self.folder / f"{self.name}-{host}.key"
        plain = serialization.NoEncryption()
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return TlsOptions(**({"cert_file": cert, "key_file": str(file), "ca_file": self.file} | changes))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - day).not_valid_after(now + day)

    def _write(self, name: str, certificate: x509.Certificate) -> str:
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)


async def test_nodes_with_certificates_of_one_authority_connect(world: World, tmp_path: Path) -> None:
    tls = Authority(tmp_path, "ca").options("127.0.0.1")
    seed = await world.node("seed", tls=tls)
    a, b = [await world.node(name, seed, tls=tls) for name in "ab"]
    await world.together(seed, a, b)
    big = os.urandom(3 << 20)
    a.peers.send("b", Channel.RAFT, big)
    await world.until(lambda: b.got == [("a", big)])


async def test_a_node_that_was_learnt_of_by_address_may_show_the_name_of_a_route(world: World, tmp_path: Path) -> None:
    tls = Authority(tmp_path, "ca").options("localhost")
    seed = await world.node("seed", tls=tls)
    by_name = RouteUrl("localhost", seed.peers.bound_port)
    a, b = [await world.node(name, by_name, tls=tls) for name in "ab"]
    await world.together(seed, a, b)


@pytest.mark.parametrize("theirs", ["other authority", "no TLS", "wrong name", "unknown to the other"])
async def test_a_node_without_the_right_certificate_is_not_connected(world: World, tmp_path: Path, theirs: str) -> None:
    ours = Authority(tmp_path, "ca")
    good = ours.options("127.0.0.1")
    seed = await world.node("seed", tls=ours.options("elsewhere.example") if theirs == "wrong name" else good)
    other = Authority(tmp_path, "x").options("127.0.0.1")
    unknown = msgspec.structs.replace(other, ca_file=good.ca_file)
    tls = {"other authority": other, "no TLS": None, "wrong name": good, "unknown to the other": unknown}[theirs]
    b = await world.node("b", seed, tls=tls, auth_timeout_ns=SECOND)
    await world.until(lambda: b.log.with_text("Error trying to connect to route"))
    assert (seed.peers.connected(), b.peers.connected()) == ([], [])
    said = {
        "no TLS": "Client Closed before it said HELLO: does it want TLS?",
        "unknown to the other": "before it said HELLO: does it know this node's certificate?",
    }.get(theirs, "certificate verify failed")
    assert b.log.with_text(said), b.log.lines


async def test_an_insecure_node_takes_any_certificate_of_the_other(world: World, tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    seed = await world.node("seed", tls=ca.options("elsewhere.example"))
    b = await world.node("b", seed, tls=ca.options("127.0.0.1", insecure=True))
    await world.together(seed, b)


async def test_a_reload_reads_new_certificates_from_the_same_files(world: World, tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    tls, good = ca.options("elsewhere.example"), ca.options("127.0.0.1")
    a = await world.node("a", tls=tls)
    b = await world.node("b", a, tls=good)
    await world.until(lambda: b.log.with_text("certificate verify failed"))
    Path(tls.cert_file).write_bytes(Path(good.cert_file).read_bytes())
    Path(tls.key_file).write_bytes(Path(good.key_file).read_bytes())
    a.peers.reload(a.peers.options)
    await world.together(a, b)
    Path(tls.cert_file).write_text("nothing")
    with pytest.raises(StartError, match="cluster: tls: cannot use"):
        a.peers.reload(a.peers.options)
    assert a.peers.connected() == ["b"]


async def test_a_certificate_that_cannot_be_read_stops_the_start(world: World, tmp_path: Path) -> None:
    missing = TlsOptions(cert_file=str(tmp_path / "no.pem"), key_file=str(tmp_path / "no.key"))
    with pytest.raises(StartError, match=r"cluster: tls: cannot read '.*no\.pem': No such file"):
        await world.node("a", tls=missing)
    (tmp_path / "bad.pem").write_text("nothing")
    bad = TlsOptions(cert_file=str(tmp_path / "bad.pem"), key_file=str(tmp_path / "bad.pem"))
    with pytest.raises(StartError, match=r"cluster: tls: cannot use '.*bad\.pem'"):
        await world.node("a", tls=bad)


# ---------------------------------------------------------------------- processes


class Processes:
    """Real servers of one cluster, with password and TLS."""

    def __init__(self, folder: Path) -> None:
        tls = Authority(folder, "ca").options("127.0.0.1")
        self.ports = [free_port() for _ in range(3)]
        routes = ", ".join(f'"nats-route://u:p@127.0.0.1:{port}"' for port in self.ports)
        self.servers = [
            Server(
                Kind.OURS,
                folder / f"n{number}",
                config=f"""
                    http: "127.0.0.1:-1"
                    ports_file_dir: "{folder}"
                    cluster {{
                        name: C, listen: "127.0.0.1:{port}", routes: [{routes}]
                        authorization {{ user: u, password: p }}
                        tls {{ cert_file: "{tls.cert_file}", key_file: "{tls.key_file}", ca_file: "{tls.ca_file}" }}
                    }}
                """,
                name=f"n{number}",
                jetstream=False,
            )
            for number, port in enumerate(self.ports, 1)
        ]

    def page(self, number: int, path: str) -> Any:
        server = self.servers[number - 1]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/{path}", timeout=WAIT_S) as answer:
            return json.load(answer)

    def alive(self, number: int) -> dict[str, bool]:
        """What /routez says of the other nodes."""
        return {route["remote_name"]: route["link"]["alive"] for route in self.page(number, "routez")["routes"]}

    async def until(self, ready: Callable[[], bool], timeout: float = WAIT_S) -> None:
        async with asyncio.timeout(timeout):
            while not await asyncio.to_thread(ready):
                await asyncio.sleep(0.05)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    try:
        for server in processes.servers:
            server.start()
        yield processes
    finally:
        for server in processes.servers:
            server.kill()


def subscribed_elsewhere(processes: Processes) -> None:
    """/routez shows what the clients of another node listen to, once that node has told it."""
    with Wire(processes.servers[1].address) as client:
        client.subscribe("a.*", "q")
        client.ping()
        wanted = {"account": "$G", "subject": "a.*", "qgroup": "q"}
        for _ in range(100):
            routes = {route["remote_name"]: route for route in processes.page(1, "routez?subs=detail")["routes"]}
            if wanted in routes["n2"].get("subscriptions_list_detail", []):
                return
        raise AssertionError(routes)


async def test_processes_find_each_other_and_notice_who_is_stopped_killed_and_back(processes: Processes) -> None:
    whole = {number: {f"n{other}": True for other in (1, 2, 3) if other != number} for number in (1, 2, 3)}
    await processes.until(lambda: all(processes.alive(number) == whole[number] for number in whole))
    varz = processes.page(1, "varz")
    assert (varz["routes"], varz["cluster"]["name"], varz["cluster"]["cluster_port"]) == (2, "C", processes.ports[0])
    ports_file = processes.servers[0].store.parent / f"nats-server_{processes.servers[0].process.pid}.ports"
    await asyncio.to_thread(subscribed_elsewhere, processes)
    assert json.loads(ports_file.read_text())["cluster"] == [f"nats://127.0.0.1:{processes.ports[0]}"]

    stopped, killed = processes.servers[1].process, processes.servers[2]
    os.killpg(stopped.pid, signal.SIGSTOP)
    await processes.until(lambda: processes.alive(1) == {"n2": False, "n3": True}, 3)
    os.killpg(stopped.pid, signal.SIGCONT)
    await processes.until(lambda: processes.alive(1) == {"n2": True, "n3": True}, 3)
    os.killpg(stopped.pid, signal.SIGSTOP)
    await processes.until(lambda: processes.alive(1) == {"n3": True}, 8)  # stale: closed
    os.killpg(stopped.pid, signal.SIGCONT)
    await processes.until(lambda: all(processes.alive(number) == whole[number] for number in whole))

    killed.kill()
    await processes.until(lambda: processes.alive(1) == {"n2": True}, 1)
    killed.start()
    await processes.until(lambda: all(processes.alive(number) == whole[number] for number in whole))
    killed.stop()
    await processes.until(lambda: processes.alive(1) == {"n2": True}, 1)
    assert killed.log().count("Router connection to n1 closed: Server Shutdown") == 1


def test_the_limits_of_a_connection_are_as_documented() -> None:
    assert (peer_link.MAX_PENDING_BYTES, peer_link.HIGH_WATER) == (64 << 20, 1 << 20)
    assert (peer_link.ALIVE_NS, peer_link.STALE_NS) == (SECOND, 5 * SECOND)
