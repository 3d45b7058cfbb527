"""Tests of the unmodified Python client as users with minimal permissions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import nats
import pytest
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeout

from tests.servers import Kind, Server

pytestmark = pytest.mark.conformance

CONFIG = """\
accounts { A { jetstream: enabled, users: [
  {user: admin, password: p}
  {user: writer, password: p, permissions: {publish: ["orders.>"], subscribe: "_INBOX.>"}}
  {user: reader, password: p, permissions: {
    publish: ["$JS.API.CONSUMER.MSG.NEXT.ORDERS.work", "$JS.API.CONSUMER.INFO.ORDERS.work"]
    subscribe: "_INBOX.>", allow_responses: {max: 2, expires: "1m"}
  }}
  {user: looker, password: p, permissions: {
    publish: ["$JS.API.STREAM.INFO.KV_b", "$JS.API.DIRECT.GET.KV_b.>"], subscribe: "_INBOX.>"
  }}
] } }
"""

Connect = Callable[[str], Awaitable[Client]]


@pytest.fixture(
    scope="module",
    params=[pytest.param(Kind.REAL, marks=pytest.mark.live), Kind.OURS],
    ids=lambda kind: kind.value,
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(request.param, tmp_path_factory.mktemp("permissions") / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def as_user(user: str) -> Client:
            async def told(error: Exception) -> None:
                errors.put_nowait(str(error))

            errors: asyncio.Queue[str] = asyncio.Queue()
            client = await nats.connect(server.url, user=user, password="p", error_cb=told)
            client.errors = errors
            stack.push_async_callback(client.close)
            return client

        yield as_user


async def refused(client: Client, subject: str) -> None:
    """Wait until the client gets the permissions violation for publishing to this subject."""
    async with asyncio.timeout(5):
        while f'publish to "{subject}"' not in await client.errors.get():
            pass


async def test_a_writer_a_reader_and_nothing_else(connect: Connect) -> None:
    admin = (await connect("admin")).jetstream()
    await admin.add_stream(name="ORDERS", subjects=["orders.>"])
    await admin.add_consumer("ORDERS", durable_name="work", ack_policy="explicit")

    writer = await connect("writer")
    for number in range(1, 4):
        assert (await writer.jetstream().publish("orders.new", b"%d" % number)).seq == number
    with pytest.raises(NatsTimeout):
        await writer.request("$JS.API.STREAM.DELETE.ORDERS", b"", timeout=0.2)
    await refused(writer, "$js.api.stream.delete.orders")

    reader = await connect("reader")
    work = await reader.jetstream().pull_subscribe_bind("work", stream="ORDERS")
    for message in await work.fetch(3):
        await message.in_progress()
        await message.ack_sync()
    info = await admin.consumer_info("ORDERS", "work")
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 3)
    await reader.publish("orders.new", b"mine")
    await refused(reader, "orders.new")
    assert (await admin.stream_info("ORDERS")).state.messages == 3


async def test_a_looker_reads_a_bucket_and_can_not_write_it(connect: Connect) -> None:
    admin = (await connect("admin")).jetstream()
    bucket = await admin.create_key_value(bucket="b", direct=True)
    await bucket.put("k", b"v")
    looker = await connect("looker")
    seen = await looker.jetstream().key_value("b")
    assert (await seen.get("k")).value == b"v"
    with pytest.raises(NatsTimeout):
        await looker.request("$KV.b.k", b"w", timeout=0.2)
    await refused(looker, "$kv.b.k")
    assert (await bucket.get("k")).value == b"v"
