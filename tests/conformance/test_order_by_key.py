"""Order by key through the socket, with nats-py as it is: members come, go and are cut off."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

COUNT, KEYS = 60, 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store")
    server.start()
    yield server
    server.kill()


class Group:
    """The members of one consumer, and what they have done in which order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.done: dict[bytes, list[int]] = defaultdict(list)
        self.at_work: set[bytes] = set()

    async def messages(self, client: Client, batch: int) -> list[Msg]:
        member = await client.jetstream().pull_subscribe_bind("c", stream="ORDERS")
        return await member.fetch(batch, timeout=10)

    async def work(self, how_many: int) -> None:
        """Join, process messages, and leave."""
        client = await nats.connect(self.url)
        member = await client.jetstream().pull_subscribe_bind("c", stream="ORDERS")
        while how_many > 0 and sum(map(len, self.done.values())) < COUNT:
            try:
                messages = await member.fetch(4, timeout=0.5)
            except TimeoutError:
                continue
            for message in messages:
                key, number = message.data.split()
                assert key not in self.at_work, "two members with messages of one key"
                self.at_work.add(key)
            for message in messages:
                key, number = message.data.split()
                await asyncio.sleep(0)
                self.done[key].append(int(number))
                self.at_work.discard(key)
                await message.ack_sync()
            how_many -= len(messages)
        await client.close()


def test_members_come_go_and_are_cut_off(server: Server) -> None:
    async def main() -> None:
        group = Group(f"nats://{server.address[0]}:{server.address[1]}")
        client = await nats.connect(group.url)
        for number in range(COUNT):
            key = number % KEYS
            headers = {"Order-Id": str(key)}
            await client.jetstream().publish("orders.new", b"%d %d" % (key, number), headers=headers)
        lost = await nats.connect(group.url, allow_reconnect=False)
        held = await group.messages(lost, KEYS)
        assert [message.data for message in held] == [b"%d %d" % (key, key) for key in range(KEYS)]
        await held[0].ack_sync()
        group.done[b"0"].append(0)
        lost._transport.close()  # type: ignore[union-attr]  # it has the first messages of the other keys
        await asyncio.gather(group.work(10), group.work(COUNT), group.work(COUNT))
        assert group.done == {b"%d" % key: list(range(key, COUNT, KEYS)) for key in range(KEYS)}
        await client.close()
        await lost.close()

    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], "retention": "workqueue"})
        config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 4_000_000_000}
        config["metadata"] = {"lakestream.key": "header:Order-Id"}
        assert "error" not in wire.api("CONSUMER.DURABLE.CREATE.ORDERS.c", {"stream_name": "ORDERS", "config": config})
        asyncio.run(main())
        assert wire.api("STREAM.INFO.ORDERS")["state"]["messages"] == 0
