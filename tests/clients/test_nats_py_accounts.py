"""Tests of the unmodified nats-py in an account, and with the JetStream of another account over imports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, KeyValueConfig, StorageType
from nats.js.errors import NotFoundError, ServiceUnavailableError

from tests.conformance.accounts import ACCOUNTS
from tests.pairs import PASSWORD, Pair, Setup
from tests.servers import Server

pytestmark = pytest.mark.conformance

FAR = "$JS.far.API"
"""API prefix under which an importing account reaches the API of account JS."""

Login = Callable[..., Awaitable[Client]]


@pytest.fixture
def server(pairs: dict[Setup, Pair]) -> Server:
    """Return the server under test that has accounts. Scenarios use it too."""
    return pairs[ACCOUNTS].tested


@pytest.fixture
async def login(server: Server) -> AsyncIterator[Login]:
    """Yield a function that connects as a user."""
    clients: list[Client] = []

    async def connect(user: str, **options: Any) -> Client:
        client = await nats.connect(server.url, user=user, password=PASSWORD, connect_timeout=5, **options)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        await client.close()


@pytest.fixture
async def stream(login: Login) -> AsyncIterator[str]:
    """Create a stream with three messages in account JS; yield its name."""
    js = (await login("js")).jetstream()
    await js.add_stream(name="FAR", subjects=["a.>"], storage=StorageType.FILE)
    for number in range(3):
        await js.publish(f"a.{number}", b"%d" % number)
    yield "FAR"
    await js.delete_stream("FAR")


async def test_accounts_keep_apart(login: Login) -> None:
    a, b = await login("a"), await login("b")
    js_a, js_b = a.jetstream(), b.jetstream()
    try:
        for js, subject in ((js_a, "x.a"), (js_b, "x.b")):
            await js.add_stream(name="S", subjects=["x.*"], storage=StorageType.FILE)
            assert (await js.publish(subject, b"m")).seq == 1
        assert (await js_a.get_msg("S", 1)).subject == "x.a"
        assert (await js_b.get_msg("S", 1)).subject == "x.b"
        buckets = [await js.create_key_value(KeyValueConfig(bucket="B")) for js in (js_a, js_b)]
        await buckets[0].put("key", b"a")
        await buckets[1].put("key", b"b")
        assert [(await bucket.get("key")).value for bucket in buckets] == [b"a", b"b"]
        listener = await b.subscribe("x.>")
        await b.flush()
        await js_a.publish("x.a", b"only here")
        with pytest.raises(nats.errors.TimeoutError):
            await listener.next_msg(0.2)
    finally:
        for js in (js_a, js_b):
            await js.delete_stream("S")
            await js.delete_key_value("B")


async def test_a_wrong_password_is_refused(server: Server) -> None:
    async def ignore(error: Exception) -> None:
        """Ignore the error, which the client would print otherwise."""

    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await nats.connect(
            server.url, user="a", password="x", allow_reconnect=False, max_reconnect_attempts=1, error_cb=ignore
        )


async def test_an_account_without_jetstream(login: Login) -> None:
    js = (await login("nojs")).jetstream(timeout=5)
    with pytest.raises(ServiceUnavailableError, match="not enabled for account"):
        await js.account_info()
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await js.publish("s", b"m")


async def test_pulling_over_an_import(login: Login, stream: str) -> None:
    js = (await login("imp")).jetstream(prefix=FAR, timeout=5)
    assert (await js.stream_info(stream)).state.messages == 3
    subscription = await js.pull_subscribe("a.>", durable="c", stream=stream)
    messages = await subscription.fetch(3, timeout=5)
    assert [(m.subject, m.data) for m in messages] == [("a.0", b"0"), ("a.1", b"1"), ("a.2", b"2")]
    for message in messages:
        await message.ack_sync(timeout=5)
    info = await js.consumer_info(stream, "c")
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 3)
    assert (await js.publish("a.4", b"4")).seq == 4
    (last,) = await subscription.fetch(1, timeout=5)
    await last.nak()
    (again,) = await subscription.fetch(1, timeout=5)
    assert (again.data, again.metadata.num_delivered) == (b"4", 2)


async def test_pushing_over_an_import(login: Login, stream: str) -> None:
    client = await login("imp", inbox_prefix=b"dlv")
    js = client.jetstream(prefix=FAR, timeout=5)
    subscription = await js.subscribe("a.>", stream=stream, durable="p", manual_ack=True)
    for number in range(3):
        message = await subscription.next_msg(5)
        assert message.data == b"%d" % number
        await message.ack_sync(timeout=5)
    assert (await js.consumer_info(stream, "p")).push_bound


async def test_an_ordered_consumer_over_an_import(login: Login, stream: str) -> None:
    client = await login("imp", inbox_prefix=b"dlv")
    js = client.jetstream(prefix=FAR, timeout=5)
    config = ConsumerConfig(flow_control=True, idle_heartbeat=0.5)
    subscription = await js.subscribe("a.>", stream=stream, ordered_consumer=True, config=config)
    owner = (await login("js")).jetstream()
    await asyncio.gather(*(owner.publish("a.x", b"x" * 2000) for _ in range(300)))
    got = [await subscription.next_msg(5) for _ in range(303)]
    assert [m.metadata.sequence.stream for m in got] == list(range(1, 304))


async def test_a_bucket_of_another_account(login: Login) -> None:
    owner = (await login("js")).jetstream()
    near = await owner.create_key_value(KeyValueConfig(bucket="B", history=3))
    try:
        client = await login("imp", inbox_prefix=b"dlv")
        far = await client.jetstream(prefix=FAR, timeout=5).key_value("B")
        await near.put("key", b"1")
        assert (await far.get("key")).value == b"1"
        watcher: Any = await far.watchall()
        assert (await watcher.updates(timeout=5)).value == b"1"
        assert await watcher.updates(timeout=5) is None
        await near.put("key", b"2")
        assert (await watcher.updates(timeout=5)).value == b"2"
        assert [entry.value for entry in await far.history("key")] == [b"1", b"2"]
        await watcher.stop()
    finally:
        await owner.delete_key_value("B")


async def test_objects_of_another_account(login: Login) -> None:
    owner = (await login("js")).jetstream()
    near = await owner.create_object_store("O")
    try:
        data = bytes(range(256)) * 2000
        await near.put("file", data)
        client = await login("imp", inbox_prefix=b"dlv")
        far = await client.jetstream(prefix=FAR, timeout=5).object_store("O")
        assert (await far.get("file")).data == data
        assert [info.name for info in await far.list()] == ["file"]
    finally:
        await owner.delete_object_store("O")


async def test_a_stream_that_is_not_there_over_an_import(login: Login) -> None:
    js = (await login("imp")).jetstream(prefix=FAR, timeout=5)
    with pytest.raises(NotFoundError):
        await js.stream_info("NONE")
