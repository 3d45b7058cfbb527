"""Tests of core NATS in a cluster of real processes: clients on all nodes reach each other, as with nats-server.

`--against real` tries these tests on three nats-servers. JetStream is off: these are the routes alone.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.cluster.nodes import Cluster, Node, free_ports, until
from tests.servers import Kind, Server
from tests.wire import Wire, WireTimeout, pub

pytestmark = pytest.mark.cluster

_numbers = itertools.count(1)

StartRoutes = Callable[..., Cluster]


def start_routes(kind: Kind, directory: Path, **options: Any) -> Cluster:
    """Start three nodes without JetStream, each connected to the others."""
    cluster = Cluster(kind, directory, 3, **options)
    for node in cluster.nodes:
        node.jetstream = False
        node.start()
    until(lambda: all(len(connect_urls(cluster, node)) == 3 for node in cluster.nodes), "three connected nodes")
    return cluster


@pytest.mark.smoke
def test_nodes_that_are_up_know_a_node_once_it_is_ready(tmp_path: Path) -> None:
    ports = free_ports(2)
    config = 'cluster {{ name: C, listen: "127.0.0.1:{}", routes: [{}] }}\n'
    first = Server(Kind.OURS, tmp_path / "first", config=config.format(ports[0], ""), name="first")
    route = f"nats-route://127.0.0.1:{ports[0]}"
    second = Server(Kind.OURS, tmp_path / "second", config=config.format(ports[1], route), name="second")
    try:
        first.start()
        second.start()
        for server in (first, second):
            with Wire(server.address, None) as wire:
                assert len(wire.info["connect_urls"]) == 2
    finally:
        second.stop()
        first.stop()


@pytest.fixture(scope="module")
def routes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster that no test breaks."""
    cluster = start_routes(kind, tmp_path_factory.mktemp("routes"))
    yield cluster
    cluster.kill()


@pytest.fixture
def own_routes(kind: Kind, tmp_path: Path) -> Iterator[StartRoutes]:
    """Yield a function that starts clusters for this test alone."""
    made: list[Cluster] = []

    def start(**options: Any) -> Cluster:
        made.append(start_routes(kind, tmp_path / f"cluster{len(made)}", **options))
        return made[-1]

    yield start
    for cluster in made:
        cluster.kill()


@pytest.fixture
def wires(routes: Cluster) -> Iterator[tuple[Wire, Wire, Wire]]:
    """Yield a client on each node."""
    a, b, c = (routes.wire(node) for node in routes.nodes)
    with a, b, c:
        yield a, b, c


def connect_urls(cluster: Cluster, node: Node) -> list[str]:
    """Return the connect_urls that a new client of a node gets."""
    with cluster.wire(node) as wire:
        return sorted(wire.info.get("connect_urls", ()))


def url(node: Node) -> str:
    return f"{node.host}:{node.wanted_port}"


def unused(name: str = "s") -> str:
    """Return a subject that no other test uses."""
    return f"{name}.{next(_numbers)}"


def told(*wires: Wire) -> None:
    """Return once all nodes know the subscriptions of these clients."""
    for here in wires:
        fence = unused("fence")
        sid = here.subscribe(fence)
        here.ping()
        for there in (wire for wire in wires if wire is not here):
            until(
                lambda there=there, fence=fence: request_status(there, fence) != 503, "interest on another node", 10.0
            )
        here.unsubscribe(sid)
        here.ping()


def untold(wire: Wire, subject: str) -> None:
    """Return once a client's node knows that a subject has no subscribers."""
    until(lambda: request_status(wire, subject) == 503, "the end of interest on another node", 10.0)


def request_status(wire: Wire, subject: str) -> int:
    """Return 503 if the subject has no responders, else 0; a subscriber gets a message without a payload."""
    reply = wire.new_reply()
    wire.publish(subject, b"", reply)
    return next((frame.status for frame in wire.ping() if frame.subject == reply), 0)


def got(wire: Wire, sid: str, count: int, timeout: float = 10.0) -> list[bytes]:
    """Return the payloads of the next messages for a subscription, without the empty ones of `request_status`."""
    payloads: list[bytes] = []
    while len(payloads) < count:
        if data := wire.delivered(sid, timeout).data:
            payloads.append(data)
    return payloads


def drained(wire: Wire, quiet: float = 0.3) -> list[bytes]:
    """Return all payloads until nothing arrives for `quiet` seconds."""
    payloads: list[bytes] = []
    while True:
        try:
            frame = wire.next(lambda frame: frame.verb in ("MSG", "HMSG"), quiet)
        except WireTimeout:
            return payloads
        if frame.data:
            payloads.append(frame.data)


# ---------------------------------------------------------------------- publish, subscribe, request
def test_every_subscriber_on_every_node_gets_each_message_once_and_in_order(wires: tuple[Wire, Wire, Wire]) -> None:
    base = unused()
    sids = [(wire, wire.subscribe(filter_)) for wire in wires for filter_ in (f"{base}.*", f"{base}.>", f"{base}.x")]
    told(*wires)
    for number in range(100):
        wires[0].publish(f"{base}.x", b"%d" % number)
    for wire, sid in sids:
        assert got(wire, sid, 100) == [b"%d" % number for number in range(100)]


def test_a_message_arrives_as_it_was_sent(wires: tuple[Wire, Wire, Wire]) -> None:
    a, b, _ = wires
    subject = unused()
    sid = b.subscribe(subject)
    told(a, b)
    block = b"NATS/1.0\r\nOne: 1\r\none:  2 \r\n\r\n"
    a.publish(subject, b"with\r\nbreaks\x00", "reply.to", block)
    a.publish(subject, b"", "", {"Empty": "payload"})
    a.publish(subject, b"plain")
    first, second, third = (b.delivered(sid) for _ in range(3))
    assert (first.verb, first.reply, first.header, first.data) == ("HMSG", "reply.to", block, b"with\r\nbreaks\x00")
    assert (second.verb, second.reply, second.headers, second.data) == ("HMSG", "", {"Empty": "payload"}, b"")
    assert (third.verb, third.reply, third.header, third.data) == ("MSG", "", b"", b"plain")


def test_requests_are_answered_from_any_node_and_503_tells_that_nobody_is_there(wires: tuple[Wire, Wire, Wire]) -> None:
    a, b, c = wires
    subject = unused("service")
    sid = b.subscribe(subject)
    told(a, b, c)
    for wire in (a, c):
        reply = wire.new_reply()
        wire.publish(subject, b"?", reply)
        assert got(b, sid, 1) == [b"?"]
        b.publish(reply, b"!")
        assert wire.message(reply).data == b"!"
    b.unsubscribe(sid)
    b.ping()
    for wire in (a, c):
        untold(wire, subject)


def test_inbox_and_request_in_one_write_are_answered(wires: tuple[Wire, Wire, Wire]) -> None:
    """The SUB of an inbox reaches the other node before the request sent in the same write."""
    a, b, _ = wires
    subject = unused("service")
    sid = b.subscribe(subject)
    told(a, b)
    for number in range(50):
        inbox = unused("_INBOX.once")
        a.send(f"SUB {inbox} {1000 + number}\r\n".encode() + pub(subject, b"?", inbox))
        frame = b.delivered(sid)
        b.publish(frame.reply, b"!")
        assert a.message(inbox).data == b"!"
        a.unsubscribe(str(1000 + number))


def test_a_client_without_echo(routes: Cluster, wires: tuple[Wire, Wire, Wire]) -> None:
    _, b, _ = wires
    subject = unused()
    with routes.wire(routes.nodes[0], echo=False) as quiet:
        own, other = quiet.subscribe(subject), b.subscribe(subject)
        told(b, quiet)
        quiet.publish(subject, b"x")
        assert got(b, other, 1) == [b"x"]
        assert not [frame for frame in quiet.ping() if frame.sid == own and frame.data]


def test_a_subscription_with_a_maximum_ends_for_all_nodes(wires: tuple[Wire, Wire, Wire]) -> None:
    a, b, _ = wires
    subject = unused()
    told(a, b)
    sid = b.subscribe(subject)
    b.unsubscribe(sid, 3)
    told(a, b)
    for number in range(5):
        a.publish(subject, b"%d" % number)
    untold(a, subject)
    assert drained(b) == [b"0", b"1", b"2"]


def test_large_and_many_messages_keep_their_order(wires: tuple[Wire, Wire, Wire]) -> None:
    a, b, _ = wires
    subject = unused()
    sid = b.subscribe(subject)
    told(a, b)
    big = b"x" * (1 << 20)
    for _ in range(20):
        a.publish(subject, big)
        a.send(b"".join(pub(subject, b"%d" % number) for number in range(500)))
    a.ping()
    for _ in range(20):
        assert got(b, sid, 501) == [big, *(b"%d" % number for number in range(500))]


# ---------------------------------------------------------------------- queue groups
def test_each_member_of_a_queue_group_has_the_same_chance(routes: Cluster, wires: tuple[Wire, Wire, Wire]) -> None:
    """Each member of a queue group on any node has the same chance; the publisher's node is not preferred."""
    subject = unused("work")
    members = [routes.wire(routes.nodes[number]) for number in (0, 1, 1, 1, 2)]
    sids = [(member, member.subscribe(subject, "g")) for member in members]
    told(*members, *wires)
    for wire in wires:
        for number in range(400):
            wire.publish(subject, b"%d" % number)
        wire.ping()
    counts = [sum(data != b"" for data in drained(member)) for member, _ in sids]
    for member in members:
        member.close()
    assert sum(counts) == 1200
    assert all(160 <= count <= 320 for count in counts), counts


def test_a_queue_group_through_different_filters_is_one(wires: tuple[Wire, Wire, Wire]) -> None:
    base = unused("work")
    for wire, filter_ in zip(wires, ("x", "*", ">"), strict=True):
        wire.subscribe(f"{base}.{filter_}", "g")
    told(*wires)
    for _ in range(200):
        wires[0].publish(f"{base}.x", b"x")
    counts = [len(drained(wire)) for wire in wires]
    assert sum(counts) == 200
    assert all(counts)


def test_a_member_without_echo_leaves_its_messages_to_the_other_nodes(routes: Cluster) -> None:
    subject = unused("work")
    with routes.wire(routes.nodes[0], echo=False) as quiet, routes.wire(routes.nodes[1]) as other:
        quiet.subscribe(subject, "g")
        sid = other.subscribe(subject, "g")
        told(quiet, other)
        for _ in range(20):
            quiet.publish(subject, b"x")
        assert len(got(other, sid, 20)) == 20


def test_plain_subscribers_and_several_groups_of_one_node(wires: tuple[Wire, Wire, Wire]) -> None:
    a, b, c = wires
    subject = unused()
    plain, group_one, group_two = b.subscribe(subject), b.subscribe(subject, "one"), b.subscribe(subject, "two")
    c.subscribe(subject)
    told(a, b, c)
    for number in range(50):
        a.publish(subject, b"%d" % number)
    for sid in (plain, group_one, group_two):
        assert got(b, sid, 50) == [b"%d" % number for number in range(50)]
    assert len(drained(c)) == 50


# ---------------------------------------------------------------------- nodes join and leave
def test_clients_hear_which_servers_there_are(own_routes: StartRoutes) -> None:
    cluster = own_routes()
    one, two, three = cluster.nodes
    everyone = sorted(map(url, cluster.nodes))
    with cluster.wire(one) as client, cluster.wire(one) as silent, cluster.wire(one, protocol=0) as old:
        old.ping()
        assert (client.info["cluster"], sorted(client.info["connect_urls"])) == ("TESTS", everyone)
        client.ping()
        client.ping()
        assert sorted(one.page("varz")["connect_urls"]) == everyone
        assert client.infos[-1]["connect_info"] is True
        assert sorted(client.infos[-1]["connect_urls"]) == everyone

        def urls() -> list[str]:
            client.ping()
            return sorted(client.infos[-1]["connect_urls"])

        three.kill()
        until(lambda: urls() == sorted([url(one), url(two)]), "the dead node gone")
        assert "connect_info" not in client.infos[-1]
        two.kill()
        until(lambda: urls() == [url(one)], "alone")
        three.start()
        until(lambda: urls() == sorted([url(one), url(three)]), "the node back")
        old.ping()
        assert len(old.infos) == 1
        assert len(silent.infos) == 1, "nothing before the first PONG"
        silent.ping()
        silent.ping()
        assert sorted(silent.infos[-1]["connect_urls"]) == sorted([url(one), url(three)])


def test_lame_duck_mode_takes_a_node_out_of_all_lists(own_routes: StartRoutes) -> None:
    cluster = own_routes(config="lame_duck_duration: '30s'\nlame_duck_grace_period: '20s'\n")
    one, two, three = cluster.nodes
    rest = sorted([url(one), url(two)])
    with cluster.wire(one) as here, cluster.wire(three) as there:
        here.ping()
        there.ping()
        assert three.process is not None
        three.process.send_signal(signal.SIGUSR2)

        def heard(wire: Wire) -> bool:
            wire.ping()
            return sorted(wire.infos[-1]["connect_urls"]) == rest

        until(lambda: heard(here), "others told")
        until(lambda: heard(there), "own clients told")
        assert there.infos[-1]["ldm"] is True
        assert "ldm" not in here.infos[-1]
        subject = unused()
        sid = there.subscribe(subject)
        told(here, there)
        here.publish(subject, b"still served")
        assert got(there, sid, 1) == [b"still served"]


def test_the_members_of_a_dead_node_get_nothing_any_more(own_routes: StartRoutes) -> None:
    cluster = own_routes()
    a, b, c = (cluster.wire(node) for node in cluster.nodes)
    with a, b, c:
        for wire in (b, c):
            wire.subscribe("work", "g")
        c.subscribe("only.there")
        told(a, b, c)
        cluster.nodes[2].kill()
        untold(a, "only.there")
        for number in range(50):
            a.publish("work", b"%d" % number)
        a.ping()
        assert drained(b) == [b"%d" % number for number in range(50)]


def test_interest_that_changed_behind_a_broken_connection_is_right_after_it(own_routes: StartRoutes) -> None:
    cluster = own_routes(links=True)
    one, two, _ = cluster.nodes
    with cluster.wire(one) as a, cluster.wire(two) as b:
        goes, stays = b.subscribe("goes"), b.subscribe("stays")
        told(a, b)
        cluster.reset_links(two)
        b.unsubscribe(goes)
        b.subscribe("comes")
        b.ping()
        until(lambda: request_status(a, "comes") == 0, "the new interest")
        assert request_status(a, "stays") == 0
        untold(a, "goes")
        drained(b)
        a.publish("stays", b"x")
        assert got(b, stays, 1) == [b"x"]


def test_a_publisher_waits_for_a_node_that_does_not_read_and_nothing_is_lost(own_routes: StartRoutes) -> None:
    """A publisher waits for a node that does not read, and nothing is lost.

    nats-server would in the end drop the connection between the nodes, and with it the messages in flight.
    """
    cluster = own_routes()
    if cluster.kind is Kind.REAL:
        pytest.skip("nats-server does not promise this")
    one, two, three = cluster.nodes
    with (
        cluster.wire(one) as a,
        cluster.wire(two, timeout=30.0) as b,
        cluster.wire(one) as other,
        cluster.wire(three) as c,
    ):
        sid, elsewhere = b.subscribe("flood"), c.subscribe("elsewhere")
        told(a, b, other, c)
        count, chunk = 400, b"x" * (256 << 10)
        two.pause()
        sent = threading.Event()

        def flood() -> None:
            for number in range(count):
                a.send(pub("flood", b"%06d" % number + chunk))
            sent.set()

        sender = threading.Thread(target=flood)
        a.socket.settimeout(60.0)
        sender.start()
        assert not sent.wait(2.0), "100 MiB were taken for a node that reads nothing"
        other.publish("elsewhere", b"is not held up")
        assert got(c, elsewhere, 1) == [b"is not held up"]
        two.resume()
        for number in range(count):
            assert got(b, sid, 1, 30.0)[0][:6] == b"%06d" % number
        sender.join()


async def test_nats_py_moves_to_another_node_and_goes_on(own_routes: StartRoutes) -> None:
    cluster = own_routes()
    moved, received = asyncio.Event(), asyncio.Queue[bytes]()

    async def reconnected() -> None:
        moved.set()

    async def took(message: Any) -> None:
        received.put_nowait(message.data)

    publisher = await nats.connect(cluster.urls[1])
    client = await nats.connect(
        cluster.urls[0], reconnected_cb=reconnected, reconnect_time_wait=0.05, max_reconnect_attempts=100
    )
    try:
        await client.subscribe("news", cb=took)
        await client.flush()
        assert len(client.servers) == 3
        began = time.monotonic()
        cluster.nodes[0].kill()
        await asyncio.wait_for(moved.wait(), 10)
        await client.flush()
        while received.empty() and time.monotonic() < began + 10:
            await publisher.publish("news", b"on another node")
            await asyncio.sleep(0.05)
        assert await asyncio.wait_for(received.get(), 1) == b"on another node"
    finally:
        await client.close()
        await publisher.close()
