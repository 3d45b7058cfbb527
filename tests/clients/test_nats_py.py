"""Tests of the unmodified nats-py against the server under test, through the real socket."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import (
    APIError,
    BadRequestError,
    NotFoundError,
)

from tests.servers import Server

pytestmark = pytest.mark.conformance

_names = itertools.count(1)


def unique(prefix: str) -> str:
    """Return a name that no other test uses on the shared server."""
    return f"{prefix}PY{next(_names)}"


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    client = await nats.connect(server.url, connect_timeout=5)
    yield client
    await client.close()


@pytest.fixture
def js(client: Client) -> JetStreamContext:
    return client.jetstream(timeout=5)


@pytest.fixture
async def stream(js: JetStreamContext) -> AsyncIterator[str]:
    name = unique("S")
    await js.add_stream(name=name, subjects=[f"{name}.>"], storage=StorageType.FILE)
    yield name
    await js.delete_stream(name)


# ---- core


async def test_core_publish_and_subscribe(client: Client) -> None:
    subscription = await client.subscribe("core.*")
    await client.publish("core.1", b"hello", headers={"A": "b"})
    message = await subscription.next_msg(5)
    assert (message.subject, message.data, message.headers) == ("core.1", b"hello", {"A": "b"})


async def test_core_request_and_no_responders(client: Client) -> None:
    async def answer(message: Any) -> None:
        await message.respond(message.data.upper())

    await client.subscribe("service", cb=answer)
    assert (await client.request("service", b"abc", timeout=5)).data == b"ABC"
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("nobody", b"", timeout=5)


async def test_core_queue_group(client: Client) -> None:
    got: list[bytes] = []

    async def take(message: Any) -> None:
        got.append(message.data)

    for _ in range(3):
        await client.subscribe("work", queue="g", cb=take)
    for n in range(30):
        await client.publish("work", str(n).encode())
    await client.drain()
    assert sorted(got, key=int) == [str(n).encode() for n in range(30)]


# ---- streams


async def test_publish_is_acked_in_sequence(js: JetStreamContext, stream: str) -> None:
    acks = [await js.publish(f"{stream}.{n}", b"x") for n in range(10)]
    assert [(ack.stream, ack.seq) for ack in acks] == [(stream, n) for n in range(1, 11)]
    state = (await js.stream_info(stream)).state
    assert (state.messages, state.first_seq, state.last_seq) == (10, 1, 10)


async def test_publish_async(js: JetStreamContext, stream: str) -> None:
    futures = [await js.publish_async(f"{stream}.a", str(n).encode()) for n in range(500)]
    acks = await asyncio.wait_for(asyncio.gather(*futures), 20)
    assert [ack.seq for ack in acks] == list(range(1, 501))


async def test_publish_duplicate_and_wrong_sequence(js: JetStreamContext, stream: str) -> None:
    await js.publish(f"{stream}.a", b"1", headers={"Nats-Msg-Id": "x"})
    again = await js.publish(f"{stream}.a", b"1", headers={"Nats-Msg-Id": "x"})
    assert (again.seq, again.duplicate) == (1, True)
    with pytest.raises(BadRequestError) as error:
        await js.publish(f"{stream}.a", b"2", headers={"Nats-Expected-Last-Sequence": "7"})
    assert error.value.err_code == 10071


async def test_streams_are_managed(js: JetStreamContext) -> None:
    name = unique("S")
    config = StreamConfig(name=name, subjects=[name], max_msgs=3, discard=DiscardPolicy.OLD)
    info = await js.add_stream(config)
    assert info.config.max_msgs == 3
    config.max_msgs = 2
    assert (await js.update_stream(config)).config.max_msgs == 2
    for n in range(4):
        await js.publish(name, str(n).encode())
    assert (await js.stream_info(name)).state.messages == 2
    assert name in [info.config.name for info in await js.streams_info()]
    assert await js.find_stream_name_by_subject(name) == name
    assert await js.delete_stream(name)
    with pytest.raises(NotFoundError):
        await js.stream_info(name)


async def test_messages_are_read_and_deleted(js: JetStreamContext, stream: str) -> None:
    for n in range(1, 4):
        await js.publish(f"{stream}.{n % 2}", f"m{n}".encode(), headers={"N": str(n)})
    message = await js.get_msg(stream, 2)
    assert (message.subject, message.data, message.headers) == (f"{stream}.0", b"m2", {"N": "2"})
    assert (await js.get_last_msg(stream, f"{stream}.1")).seq == 3
    assert await js.delete_msg(stream, 2)
    with pytest.raises(NotFoundError):
        await js.get_msg(stream, 2)
    await js.purge_stream(stream, subject=f"{stream}.1")
    assert (await js.stream_info(stream)).state.messages == 0


async def test_direct_get(js: JetStreamContext) -> None:
    name = unique("S")
    await js.add_stream(name=name, subjects=[f"{name}.*"], allow_direct=True)
    await js.publish(f"{name}.a", b"1")
    await js.publish(f"{name}.a", b"2", headers={"A": "b"})
    assert (await js.get_msg(name, 1, direct=True)).data == b"1"
    last = await js.get_last_msg(name, f"{name}.a", direct=True)
    assert (last.data, last.seq) == (b"2", 2)
    with pytest.raises(NotFoundError):
        await js.get_msg(name, 9, direct=True)
    await js.delete_stream(name)


async def test_account_info(js: JetStreamContext, stream: str) -> None:
    info = await js.account_info()
    assert info.streams >= 1
    assert info.api.total > 0


# ---- consumers


async def test_fetch_and_ack(js: JetStreamContext, stream: str) -> None:
    for n in range(10):
        await js.publish(f"{stream}.a", str(n).encode())
    consumer = await js.pull_subscribe(f"{stream}.>", durable="d", stream=stream)
    messages = [*await consumer.fetch(4, timeout=5), *await consumer.fetch(6, timeout=5)]
    assert [int(m.data) for m in messages] == list(range(10))
    assert [m.metadata.sequence.stream for m in messages] == list(range(1, 11))
    for message in messages:
        await message.ack_sync()
    info = await consumer.consumer_info()
    assert (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (0, 0, 10)
    with pytest.raises(nats.errors.TimeoutError):
        await consumer.fetch(1, timeout=0.2)


async def test_fetch_with_heartbeat(js: JetStreamContext, stream: str) -> None:
    consumer = await js.pull_subscribe(f"{stream}.>", durable="d", stream=stream)
    waiting = asyncio.ensure_future(consumer.fetch(1, timeout=5, heartbeat=0.2))
    await asyncio.sleep(0.5)  # one or two heartbeats pass
    await js.publish(f"{stream}.a", b"late")
    assert (await waiting)[0].data == b"late"


async def test_nak_term_and_redelivery(js: JetStreamContext, stream: str) -> None:
    for n in range(3):
        await js.publish(f"{stream}.a", str(n).encode())
    config = ConsumerConfig(ack_wait=0.3, max_deliver=5)
    consumer = await js.pull_subscribe(f"{stream}.>", durable="d", stream=stream, config=config)
    nak, term, forgotten = await consumer.fetch(3, timeout=5)
    await nak.nak()
    await term.term()
    for expected in (nak.data, forgotten.data):
        (again,) = await consumer.fetch(1, timeout=5)
        assert (again.data, again.metadata.num_delivered) == (expected, 2)
        await again.ack_sync()
    info = await consumer.consumer_info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 3)


async def test_in_progress_holds_back_redelivery(js: JetStreamContext, stream: str) -> None:
    await js.publish(f"{stream}.a", b"x")
    config = ConsumerConfig(ack_wait=0.6)
    consumer = await js.pull_subscribe(f"{stream}.>", durable="d", stream=stream, config=config)
    (message,) = await consumer.fetch(1, timeout=5)
    for _ in range(4):
        await asyncio.sleep(0.25)
        await message.in_progress()
    await message.ack_sync()
    assert (await consumer.consumer_info()).delivered.consumer_seq == 1


async def test_push_subscribe_durable_and_queue(js: JetStreamContext, stream: str) -> None:
    got: asyncio.Queue[int] = asyncio.Queue()

    async def take(message: Any) -> None:
        got.put_nowait(int(message.data))
        await message.ack()

    for _ in range(2):
        await js.subscribe(f"{stream}.>", queue="workers", durable="workers", stream=stream, cb=take, manual_ack=True)
    for n in range(20):
        await js.publish(f"{stream}.a", str(n).encode())
    numbers = [await asyncio.wait_for(got.get(), 5) for _ in range(20)]
    assert sorted(numbers) == list(range(20))


async def test_push_subscribe_ephemeral_from_a_sequence(js: JetStreamContext, stream: str) -> None:
    for n in range(1, 6):
        await js.publish(f"{stream}.a", str(n).encode())
    config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=4, ack_policy=AckPolicy.NONE)
    subscription = await js.subscribe(f"{stream}.>", stream=stream, config=config)
    assert [(await subscription.next_msg(5)).data for _ in range(2)] == [b"4", b"5"]
    await subscription.unsubscribe()


async def test_ordered_consumer(js: JetStreamContext, stream: str) -> None:
    count, body = 2000, b"x" * 512
    futures = [await js.publish_async(f"{stream}.{n}", body) for n in range(count)]
    await asyncio.wait_for(asyncio.gather(*futures), 20)
    subscription = await js.subscribe(f"{stream}.>", stream=stream, ordered_consumer=True, idle_heartbeat=0.5)
    sequences = [(await subscription.next_msg(5)).metadata.sequence.stream for _ in range(count)]
    assert sequences == list(range(1, count + 1))
    await asyncio.sleep(1.2)  # heartbeats pass; with wrong ones the client would create the consumer anew
    await js.publish(f"{stream}.more", b"y")
    assert (await subscription.next_msg(5)).metadata.sequence.stream == count + 1
    await subscription.unsubscribe()


async def test_consumers_are_managed(js: JetStreamContext, stream: str) -> None:
    for name in ("a", "b"):
        await js.add_consumer(stream, ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT))
    assert sorted(info.name for info in await js.consumers_info(stream)) == ["a", "b"]
    assert await js.delete_consumer(stream, "a")
    with pytest.raises(NotFoundError):
        await js.consumer_info(stream, "a")


async def test_an_api_error_has_its_code(js: JetStreamContext) -> None:
    name = unique("S")
    with pytest.raises(APIError) as error:
        await js.add_stream(name=name, subjects=["a..b"])
    assert error.value.err_code == 10052
