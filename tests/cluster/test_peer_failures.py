"""Tests of route connections that break, stall or are slow: detection, and reconnection."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from lakestream.config.options import SECOND, Options, RouteUrl
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.peers import link as peer_link
from lakestream.net.peers.routes import CHANGES_IN_A_BUFFER, Routes
from lakestream.net.turn import Turn
from lakestream.protocol import peer_wire as wire
from lakestream.protocol.route_wire import RoutedRun, RouteInterest, encode
from lakestream.raft.group.ports import Channel
from tests.cluster.links import Network
from tests.cluster.peer_world import Node, Stranger, World, free_port

pytestmark = pytest.mark.cluster


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
    """Return the number of sides on which each connection is up."""
    return list(Counter(link.attempt for node in nodes for link in node.peers.links()).values())


@pytest.mark.parametrize("seed", range(3))
async def test_connections_that_are_cut_at_random_come_again_and_keep_their_order(world: World, seed: int) -> None:
    """Randomly cut connections are made again; within one, nothing is lost, repeated or reordered.

    Both sides agree on which connection they use.
    """
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
    monkeypatch.setattr("lakestream.net.peers.peers.STALE_NS", 2 * SECOND)
    a = await world.node("a")
    await world.stranger(a)
    await world.until(lambda: a.events == [("stranger", True)])
    await world.until(lambda: a.events == [("stranger", True), ("stranger", False)])
    assert (a.peers.connected(), a.peers.alive("stranger")) == (["stranger"], False)
    await world.until(lambda: a.links == [("stranger", True), ("stranger", False)])
    assert a.peers.stale_connections == 1
    assert a.events == [("stranger", True), ("stranger", False)]  # reported once


async def test_a_node_that_speaks_again_is_alive_again(world: World) -> None:
    a = await world.node("a")
    stranger = await world.stranger(a)
    await world.until(lambda: a.events == [("stranger", True), ("stranger", False)])
    stranger.writer.write(wire.encode_control(wire.PeerPing(1)))
    await world.until(lambda: a.events[2:] == [("stranger", True)])
    assert a.links == [("stranger", True)]
    assert a.peers.alive("stranger")


async def test_a_node_that_stood_still_itself_takes_nobody_for_silent(world: World) -> None:
    import time

    a = await world.node("a")
    b = await world.node("b", a)
    await world.together(a, b)
    time.sleep(2)  # both stall: they share this event loop
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
    monkeypatch.setattr("lakestream.net.peers.peers.STALE_NS", 2 * SECOND)
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
    assert a.links == [("b", True)]  # a short pause has no effect
    a.peers.send("b", Channel.RAFT, b"again")
    await world.until(lambda: b.got == [("a", b"again")])

    for direction in cut:
        network.cut(direction)
    await world.until(lambda: not a.peers.connected() and not b.peers.connected())
    await world.until(lambda: a.failures >= 3 and b.failures >= 3)
    assert (len(a.links), len(b.links)) == (2, 2)  # half-made connections are dropped
    for direction in cut:
        network.restore(direction)
    await world.until(lambda: ends([a, b]) == [2])
    a.peers.send("b", Channel.RAFT, b"and again")
    await world.until(lambda: b.got[1:] == [("a", b"and again")])
    for node, other in ((a, "b"), (b, "a")):
        assert [up for _, up in node.links] == [True, False] * (len(node.links) // 2) + [True]
        assert node.peers.alive(other)


# ---------------------------------------------------------------------- slow connections


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
    assert link.pending_bytes <= link.max_pending + 100 * 5
    assert link.dropped == 1
    assert a.peers.congested("stranger")
    assert a.peers.connected() == ["stranger"]


@pytest.mark.parametrize("joined", [False, True])
async def test_a_flood_of_heartbeats_ends_the_connection(world: World, joined: bool) -> None:
    a = await world.node("a")
    stranger = await (world.stranger(a) if joined else Stranger.to(a))
    stranger.writer.write(wire.encode_control(wire.PeerPing(1)) * (5 * peer_link.MAX_CONTROLS))
    answers = 0
    with contextlib.suppress(ConnectionResetError):
        while (record := await stranger.read()) is not None:
            answers += isinstance(record, wire.PeerPong)
    assert answers <= (peer_link.MAX_CONTROLS if joined else 0)
    assert a.peers.connected() == []
    stranger.writer.close()


async def test_a_node_that_takes_nothing_within_the_deadline_is_a_slow_consumer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "WRITE_DEADLINE_NS", 600_000_000)
    a = await world.node("a")
    await world.stranger(a)
    [link] = a.peers.links()
    while not a.peers.congested("stranger"):
        assert a.peers.send("stranger", Channel.RAFT, bytes(1 << 20))
        await asyncio.sleep(0)
    await world.until(lambda: a.links == [("stranger", True), ("stranger", False)])
    assert link.reason == "Slow Consumer (Write Deadline)"
    assert a.peers.slow_consumers == 1


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


async def test_a_broken_run_behind_interest_that_is_still_taken_in_ends_the_connection(world: World) -> None:
    a = await world.node("a")
    loop = asyncio.get_running_loop()
    Routes(Accounts(Options(), Turn(loop.call_soon), a.log), a.peers)
    b = await world.node("b", a)
    await world.together(a, b)
    interest = RouteInterest([(b"x.%d" % number, b"", 1) for number in range(CHANGES_IN_A_BUFFER)])
    b.peers.send("a", Channel.ROUTE, encode([interest]))
    b.peers.send("a", Channel.ROUTE, encode([RoutedRun(b"PUB a 1\r\n")]))
    await world.until(lambda: a.links == [("b", True), ("b", False), ("b", True)])
    assert a.log.with_text("BrokenRunError: no run of publishes")
    assert a.log.with_text("Router connection to b closed: Protocol Violation")
