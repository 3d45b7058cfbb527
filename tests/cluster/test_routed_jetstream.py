"""Tests of JetStream for clients on nodes that do not lead the stream: publishing, all kinds of consumers, direct gets.

`--against real` tries these tests on three nats-servers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind
from tests.wire import pub

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]

_numbers = itertools.count(1)

COUNT = 2000


@pytest.fixture(scope="module")
def cluster(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster that no test breaks."""
    made = Cluster(kind, tmp_path_factory.mktemp("routed"))
    made.start()
    yield made
    made.kill()


class Place:
    """Stream, the node that leads it and one that does not."""

    def __init__(self, cluster: Cluster, replicas: int) -> None:
        self.cluster = cluster
        self.name = f"S{next(_numbers)}"
        cluster.ask(
            f"STREAM.CREATE.{self.name}",
            {"name": self.name, "subjects": [f"{self.name}.>"], "num_replicas": replicas, "allow_direct": True},
        )
        cluster.wait_current(self.name)
        self.leader = cluster.stream_leader(self.name)
        self.away: Node = cluster.others(self.leader)[0]

    def fill(self, count: int, size: int = 100) -> None:
        """Publish `count` messages `<name>.<number>`, whose payloads begin with their numbers."""
        with self.cluster.wire(self.leader) as wire:
            reply = wire.new_reply()
            for start in range(0, count, 500):
                numbers = range(start, min(start + 500, count))
                wire.send(b"".join(pub(f"{self.name}.{n}", b"%08d" % n + b"x" * size, reply) for n in numbers))
                for n in numbers:
                    assert wire.message(reply).json()["seq"] == n + 1


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
def place(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(cluster, request.param)
    yield made
    cluster.api(f"STREAM.DELETE.{made.name}")


@pytest.fixture
async def client(place: Place) -> AsyncIterator[Client]:
    """Yield a client on a node that does not lead the stream."""
    connected = await nats.connect(f"nats://{place.away.host}:{place.away.wanted_port}", allow_reconnect=False)
    yield connected
    await connected.close()


@pytest.fixture
async def js(client: Client) -> JetStreamContext:
    return client.jetstream(timeout=10)


async def test_publishing(place: Place, js: JetStreamContext) -> None:
    acks = [await js.publish(f"{place.name}.x", b"%d" % number) for number in range(20)]
    assert [ack.seq for ack in acks] == list(range(1, 21))
    futures = [await js.publish_async(f"{place.name}.y", b"%d" % number) for number in range(1000)]
    await js.publish_async_completed()
    assert [future.result().seq for future in futures] == list(range(21, 1021))


async def test_pulling_and_acknowledging(place: Place, js: JetStreamContext) -> None:
    place.fill(COUNT)
    sub = await js.pull_subscribe(f"{place.name}.>", "d", place.name)
    seen: list[int] = []
    while len(seen) < COUNT:
        for message in await sub.fetch(500, timeout=10):
            seen.append(int(message.data[:8]))
            await message.ack()
    assert seen == list(range(COUNT))

    async def settled() -> bool:
        return (await js.consumer_info(place.name, "d")).ack_floor.stream_seq == COUNT

    async with asyncio.timeout(10):
        while not await settled():
            await asyncio.sleep(0.05)


async def test_a_nak_and_an_ack_that_is_answered(place: Place, js: JetStreamContext) -> None:
    place.fill(1)
    sub = await js.pull_subscribe(f"{place.name}.>", "d", place.name)
    (message,) = await sub.fetch(1, timeout=10)
    await message.nak()
    (again,) = await sub.fetch(1, timeout=10)
    assert again.metadata.num_delivered == 2
    await again.ack_sync(timeout=10)
    assert (await js.consumer_info(place.name, "d")).num_ack_pending == 0


async def test_pushing(place: Place, js: JetStreamContext) -> None:
    place.fill(COUNT)
    sub = await js.subscribe(f"{place.name}.>", stream=place.name, config=ConsumerConfig(ack_policy=AckPolicy.NONE))
    assert [int((await sub.next_msg(timeout=10)).data[:8]) for _ in range(COUNT)] == list(range(COUNT))


async def test_an_ordered_consumer_with_flow_control_and_heartbeats(place: Place, js: JetStreamContext) -> None:
    place.fill(COUNT, size=2000)
    sub = await js.subscribe(f"{place.name}.>", stream=place.name, ordered_consumer=True)
    assert [int((await sub.next_msg(timeout=10)).data[:8]) for _ in range(COUNT)] == list(range(COUNT))


async def test_a_push_consumer_starts_when_its_client_comes_and_waits_when_it_goes(
    place: Place, client: Client, js: JetStreamContext
) -> None:
    place.fill(10)
    to = f"deliver.{place.name}"
    config = ConsumerConfig(
        durable_name="p", deliver_subject=to, ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL
    )
    await js.add_consumer(place.name, config)
    assert not (await js.consumer_info(place.name, "p")).push_bound
    sub = await client.subscribe(to)
    for _ in range(10):
        await (await sub.next_msg(timeout=10)).ack()
    assert (await js.consumer_info(place.name, "p")).push_bound
    await sub.unsubscribe()
    await client.flush()

    async def bound() -> bool | None:
        return (await js.consumer_info(place.name, "p")).push_bound

    async with asyncio.timeout(10):
        while await bound():
            await asyncio.sleep(0.05)


async def test_the_members_of_a_deliver_group_on_all_nodes_share_the_messages(
    place: Place, js: JetStreamContext
) -> None:
    to = f"deliver.{place.name}"
    clients = [await nats.connect(url) for url in place.cluster.urls]
    try:
        subs = [await one.subscribe(to, queue="g") for one in clients]
        for one in clients:
            await one.flush()
        config = ConsumerConfig(durable_name="p", deliver_subject=to, deliver_group="g", ack_policy=AckPolicy.NONE)
        await js.add_consumer(place.name, config)
        place.fill(300)
        async with asyncio.timeout(10):
            while sum(sub.pending_msgs for sub in subs) < 300:
                await asyncio.sleep(0.05)
        numbers = [int((await sub.next_msg()).data[:8]) for sub in subs for _ in range(sub.pending_msgs)]
        assert sorted(numbers) == list(range(300))
        assert all(sub.delivered for sub in subs), "each member has its part"
    finally:
        for one in clients:
            await one.close()


async def test_direct_gets(place: Place, js: JetStreamContext) -> None:
    """Any replica may answer, also one that does not know yet that the newest messages are committed."""
    place.fill(10)

    async def get(seq: int) -> bytes:
        async with asyncio.timeout(10):
            while True:
                try:
                    return (await js.get_msg(place.name, seq=seq, direct=True)).data or b""
                except NotFoundError:
                    await asyncio.sleep(0.05)

    for number in range(10):
        assert int((await get(number + 1))[:8]) == number
    assert (await js.get_last_msg(place.name, f"{place.name}.7", direct=True)).seq == 8


async def test_key_value(cluster: Cluster, client: Client, js: JetStreamContext, place: Place) -> None:
    values = await js.create_key_value(bucket=f"B{place.name}", replicas=3)
    watcher = await values.watchall()
    assert await watcher.updates(timeout=10) is None
    for number in range(20):
        await values.put(f"key.{number}", b"%d" % number)
    for number in range(20):
        entry = await watcher.updates(timeout=10)
        assert entry is not None
        assert (entry.key, entry.value) == (f"key.{number}", b"%d" % number)
    assert (await values.get("key.7")).value == b"7"
    await js.delete_key_value(f"B{place.name}")


def test_a_client_that_reads_slowly_is_waited_for(cluster: Cluster, place: Place) -> None:
    """A push consumer without flow control waits for a client that pauses reading 80 MB (more than max_pending)."""
    if cluster.kind is Kind.REAL:
        pytest.skip("nats-server cuts such a client")
    place.fill(800, size=100_000)
    to = f"deliver.{place.name}"
    with cluster.wire(place.away, timeout=30.0) as slow:
        sid = slow.subscribe(to)
        slow.ping()
        until(lambda: cluster.api("INFO", node=place.leader), "an answer")
        config = {"durable_name": "p", "deliver_subject": to, "ack_policy": "none"}
        created = cluster.api(
            f"CONSUMER.CREATE.{place.name}.p", {"stream_name": place.name, "config": config}, node=place.leader
        )
        assert "error" not in created

        def delivered() -> int:
            info = cluster.api(f"CONSUMER.INFO.{place.name}.p", node=place.leader)
            return int(info["delivered"]["stream_seq"])

        before = until(delivered, "something delivered")
        while (now := delivered()) != before or now == 0:
            before = now
        assert before < 800, "the consumer has not waited"
        assert [int(slow.delivered(sid).data[:8]) for _ in range(800)] == list(range(800))


def test_requests_of_a_fresh_inbox_are_answered_at_once(cluster: Cluster, place: Place) -> None:
    """A request sent in one write with the SUB of its inbox is answered at once, on whichever node."""
    for node in cluster.nodes:
        with cluster.wire(node) as wire:
            for number in range(30):
                inbox = f"_INBOX.once.{next(_numbers)}"
                request = pub(f"$JS.API.STREAM.INFO.{place.name}", b"", inbox)
                wire.send(f"SUB {inbox} {1000 + number}\r\n".encode() + request)
                assert json.loads(wire.message(inbox).data)["config"]["name"] == place.name
                wire.unsubscribe(str(1000 + number))


def test_clients_of_a_node_without_jetstream_use_it_all_the_same(kind: Kind, tmp_path: Path) -> None:
    cluster = Cluster(kind, tmp_path, 3)
    bare = cluster.nodes[0]
    bare.jetstream = False
    for node in cluster.nodes:
        node.start()
    try:
        with cluster.wire(bare) as wire:
            until(lambda: wire.api("INFO", timeout=1.0).get("api"), "an answer")

            def created() -> bool:
                answer = wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]}, timeout=1.0)
                return "error" not in answer

            until(created, "a stream")
            until(lambda: wire.request("s.1", b"first", timeout=1.0).data, "an ack")
            config = {"stream_name": "S", "config": {"durable_name": "d", "ack_policy": "explicit"}}
            assert "error" not in wire.api("CONSUMER.CREATE.S.d", config)

            def pulled() -> bool:
                wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", b"1", wire.new_reply())
                return bool(wire.next(lambda frame: frame.data == b"first", 1.0))

            until(pulled, "a message")
    finally:
        cluster.kill()


def test_lame_duck_mode_moves_the_leader_before_the_node_goes(start_cluster: StartCluster) -> None:
    cluster = start_cluster(config="lame_duck_duration: '30s'\nlame_duck_grace_period: '20s'\n")
    place = Place(cluster, 3)
    place.fill(10)
    assert place.leader.process is not None
    place.leader.process.send_signal(signal.SIGUSR2)
    rest = cluster.others(place.leader)

    def moved() -> bool:
        leader = cluster.api(f"STREAM.INFO.{place.name}", node=rest[0], timeout=1.0)["cluster"].get("leader")
        return leader in [node.name for node in rest]

    until(moved, "another leader", 10.0)
    with cluster.wire(rest[0]) as wire:
        assert wire.request(f"{place.name}.next", b"x").json()["seq"] == 11
