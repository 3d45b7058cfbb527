"""Tests of route connections through real sockets: delivery, formation of the cluster, and authorization.

Several `RoutePeers` run in one event loop.
"""

from __future__ import annotations

import asyncio
import os

import bcrypt
import msgspec
import pytest
import uvloop

from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, RouteUrl
from lakestream.net.peers.link import Link
from lakestream.protocol import peer_wire as wire
from lakestream.protocol.peer_wire import Hello, NodeInfo
from lakestream.raft.group.ports import Channel
from tests.cluster.peer_world import WAIT_S, Stranger, World, free_port, ipv6_works

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]


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


async def test_what_one_turn_sends_leaves_in_onewrite_gathered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a = await world.node("a")
    b = await world.node("b", a)
    await world.together(a, b)
    writes: list[int] = []
    real = Link.write_gathered
    monkeypatch.setattr(Link, "write_gathered", lambda self: (writes.append(len(self._out)), real(self))[1])
    for number in range(100):
        a.peers.send("b", Channel.RAFT, b"%d" % number)
    await world.until(lambda: len(b.got) == 100)
    assert max(writes) >= 200  # each buffer with its header


async def test_nothing_can_be_sent_to_a_node_that_is_not_there(world: World) -> None:
    a = await world.node("a")
    assert not a.peers.send("b", Channel.RAFT, b"x")
    assert not a.peers.congested("b")
    called: list[bool] = []
    a.peers.on_drain("b", lambda: called.append(True))
    assert called


async def test_calls_cross_the_connection(world: World) -> None:
    a = await world.node("a")
    b = await world.node("b", a)
    await world.together(a, b)
    b.peers.serve("upper", lambda node, body, answer: answer(body.upper()))
    done: asyncio.Future[tuple[bytes | None, str]] = asyncio.get_running_loop().create_future()
    a.peers.call("b", "upper", b"body", lambda body, why: done.set_result((body, why)), SECOND)
    assert await asyncio.wait_for(done, WAIT_S) == (b"BODY", "")


# ---------------------------------------------------------------------- forming a cluster


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
    """A node that listens on all addresses is advertised with the address that its connections come from."""
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
    # Between a node's HELLO and the end of the handshake the connection gets no updates, which go to established ones
    # only. Without this update the other node would take this one for a node outside any cluster, and could start a
    # second cluster.
    a = await world.node("a")
    stranger = await Stranger.to(a)
    stranger.hello()
    hello = await stranger.read()
    assert isinstance(hello, Hello)
    assert not hello.node.clustered
    a.peers.update(clustered=True)
    stranger.writer.write(wire.encode_control(wire.PeerReady()))
    said = [await stranger.read() for _ in range(2)]
    # It comes before the node's own peers, from which others judge if they may start a cluster.
    assert [type(record) for record in said] == [wire.PeerUpdate, wire.Gossip]
    assert isinstance(said[0], wire.PeerUpdate)
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


@pytest.mark.parametrize("turns", range(30))
def test_a_node_stops_cleanly_at_any_moment_of_its_start(turns: int) -> None:
    async def stop_after() -> None:
        world = World()
        a = await world.node("a")
        b = await world.node("b", a)
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await b.peers.stop()
        assert b.peers.links() == []
        await a.peers.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the server's own event loop
        runner.run(stop_after())


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
        StartError,
        match=r"Error listening on router port: \d+ - listen tcp 127\.0\.0\.1:\d+: bind: address already in use",
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


# ---------------------------------------------------------------------- authorization


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
    early = [wire.frame_head(Channel.RAFT, 1) + b"x", *map(wire.encode_control, (wire.PeerReady(), wire.Gossip(())))]
    for data in [*garbage, too_long, *early, b""]:
        stranger = await Stranger.to(a)
        stranger.writer.write(data)
        assert await stranger.read() is None
    assert a.peers.connected() == []
    assert a.got == []


async def test_strangers_cannot_take_all_connections(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.net.peers.peers.MAX_STRANGERS", 3)
    a = await world.node("a", auth_timeout_ns=60 * SECOND)
    strangers = [await Stranger.to(a) for _ in range(4)]
    assert await strangers[0].read() is None
    await world.until(lambda: len(a.peers._links) == 3)
    b = await world.node("b", a)
    await world.together(a, b)
    assert await strangers[1].read() is None


@pytest.mark.parametrize(
    "data",
    [
        wire.encode_control(wire.PeerReady()),
        wire.encode_control(wire.PeerRefused("x", "y")),
        wire.encode_control(Hello(wire.PROTOCOL, NodeInfo(name="other", server_id="x"), "y")),
        wire.encode_control(wire.PeerUpdate(NodeInfo(name="other", server_id="x"))),
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
    """An old connection in a stopped process's accept queue (HELLO, then EOF) makes no link."""
    a = await world.node("a")
    stranger = await Stranger.to(a)
    stranger.hello()
    stranger.writer.write_eof()
    assert isinstance(await stranger.read(), Hello)
    assert await stranger.read() is None
    assert (a.events, a.links) == ([], [])
