"""Tests of the Spark data source `lakestream` with a server that stores messages and a compactor, both running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, DeliverPolicy

from lakestream_client.lake import view as views
from lakestream_spark.datasource import register
from lakestream_spark.session import PUSHDOWN
from lakestream_spark.write.compactor import Compactor
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 65536, seal_age: "1h", poll: "100ms" }
"""
Messages = dict[int, tuple[str, bytes]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def source(spark: Any, server: Server) -> Callable[..., Any]:
    """Return a function `source(name=value …)`, a reader of stream S with these options."""
    register(spark, str(server.store / "lake"))
    assert spark.conf.get(PUSHDOWN) == "true"

    def read(stream: bool = False, **options: object) -> Any:
        reader = (spark.readStream if stream else spark.read).format("lakestream").option("stream", "S")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return read


async def publish(client: Client, held: Messages, count: int) -> None:
    """Publish messages; record the acked ones."""
    js = client.jetstream()
    first = max(held, default=0) + 1
    sent = {seq: (f"S.{seq % 5}", b"message %d" % seq) for seq in range(first, first + count)}
    headers = {"Tag": "t"}
    acks = [
        await js.publish_async(subject, data, headers=headers if seq % 3 == 0 else None)
        for seq, (subject, data) in sent.items()
    ]
    assert [(await ack).seq for ack in acks] == list(sent)
    held |= sent


async def delete(client: Client, held: Messages, *seqs: int) -> None:
    for seq in seqs:
        await client.jetstream().delete_msg("S", seq)
        del held[seq]


async def purge(client: Client, held: Messages, below: int, subject: str) -> None:
    await client.jetstream().purge_stream("S", subject=subject, seq=below)
    for seq in [seq for seq, message in held.items() if seq < below and message[0] == subject]:
        del held[seq]


def of(rows: list[Any]) -> Messages:
    """Return Spark's rows as messages; assert that no sequence occurs twice."""
    found = {row.seq: (row.subject, bytes(row.data)) for row in rows}
    assert len(found) == len(rows), "nothing twice"
    return found


def seen(view: views.StreamView) -> Messages:
    """Return the messages of a live view, read without Spark."""
    found: Messages = {}
    table = view.table_batches(view.ranges(1, (1 << 63) - 1), view.columns)
    for batches in (table, view.tail_batches()):
        for batch in batches:
            for row in batch.select(["seq", "subject", "data"]).to_pylist():
                assert row["seq"] not in found, "nothing twice"
                found[row["seq"]] = (row["subject"], row["data"])
    return found


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(0.05)


async def test_a_batch_is_the_stream_at_that_moment(spark: Any, server: Server, source: Callable[..., Any]) -> None:
    compactor = Compactor(spark, str(server.store / "lake"))
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="S", subjects=["S.>"])
    held: Messages = {}

    async def read(**options: object) -> Messages:
        return of(await asyncio.to_thread(lambda: source(**options).collect()))

    assert await read() == {}, "a stream without messages"
    await publish(client, held, 300)
    assert await read() == held, "nothing of it was in the lake before"
    await asyncio.to_thread(compactor.once)
    await delete(client, held, 7, 100)
    await purge(client, held, 200, "S.3")
    assert await read() == held, "deletes show at once"
    await publish(client, held, 200)
    await delete(client, held, 450)
    assert await read() == held, "table and tail"
    within = {seq: message for seq, message in held.items() if 250 <= seq <= 320}
    assert await read(start_seq=250, end_seq=320) == within

    def filtered() -> list[Any]:
        rows = source().where("subject = 'S.2' AND seq > 150 AND seq IN (147, 152, 302, 303, 307, 312, 449)")
        return list(rows.orderBy("seq").collect())

    rows = await asyncio.to_thread(filtered)
    assert [row.seq for row in rows] == [152, 302, 307, 312]
    assert [row.headers for row in rows] == [None, None, None, {"Tag": ["t"]}]
    assert [row.time.timestamp() for row in rows] == pytest.approx([row.time_ns / 1e9 for row in rows], abs=1e-5)

    staged = dict(held)
    await publish(client, held, 10)
    assert await read(flush="false") == staged, "what the server holds back until the segment is due"
    server.kill()
    view = await asyncio.to_thread(lambda: views.open_view(str(server.store / "lake"), "S"))
    assert not view.flushed
    assert (await asyncio.to_thread(lambda: seen(view)), await read()) == (staged, staged)
    server.start()
    view = await asyncio.to_thread(lambda: views.open_view(str(server.store / "lake"), "S"))
    assert await asyncio.to_thread(lambda: seen(view)) == held, "nothing that was acked is lost"
    await client.close()
    compactor.stop()


async def test_invariant_a_view_under_load_misses_nothing(spark: Any, server: Server) -> None:
    """A live view under load misses nothing.

    Messages are published and deleted, and compaction runs, while views are opened. What was acked before a view was
    opened is in it; what was deleted before is not; and nothing is in it that was never published.
    """
    lake = str(server.store / "lake")
    compactor = Compactor(spark, lake)
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="S", subjects=["S.>"])
    held: Messages = {}
    await publish(client, held, 50)
    deleted: set[int] = set()
    ending = asyncio.Event()

    async def store() -> None:
        while not ending.is_set():
            await publish(client, held, 40)
            victim = next(seq for seq in held if seq % 7 == 0)
            await client.jetstream().delete_msg("S", victim)
            deleted.add(victim)
            del held[victim]

    async def compact() -> None:
        while not ending.is_set():
            await asyncio.to_thread(compactor.once)

    async def look(times: int) -> None:
        for _ in range(times):
            before, gone = dict(held), set(deleted)
            view = await asyncio.to_thread(lambda: views.open_view(lake, "S"))
            found = await asyncio.to_thread(lambda view=view: seen(view))
            assert view.flushed, view.note
            assert not gone & set(found), "what was deleted before shows no more"
            lost = {seq for seq in set(before) - set(found) if seq % 7}
            assert not lost, "what was acked before is there"
            assert all(message == (f"S.{seq % 5}", b"message %d" % seq) for seq, message in found.items())
            versions.add(view.version)

    versions: set[int | None] = set()
    tasks = [asyncio.create_task(work) for work in (store(), compact())]
    try:
        async with asyncio.timeout(300):
            while len(versions) < 3:
                await look(3)
    finally:
        ending.set()
        await asyncio.gather(*tasks)
    view = await asyncio.to_thread(lambda: views.open_view(lake, "S"))
    assert await asyncio.to_thread(lambda: seen(view)) == held == await consumed(client)
    await client.close()
    compactor.stop()


async def consumed(client: Client) -> Messages:
    """Return the stream's messages as read through a consumer."""
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
    sub = await client.jetstream().subscribe("S.>", ordered_consumer=True, config=config)
    found: Messages = {}
    while True:
        message = await sub.next_msg(timeout=20)
        found[message.metadata.sequence.stream] = (message.subject, message.data)
        if message.metadata.num_pending == 0:
            await sub.unsubscribe()
            return found


async def test_invariant_a_stream_gives_each_message_once_over_restarts(
    spark: Any, server: Server, source: Callable[..., Any], tmp_path: Path
) -> None:
    compactor = Compactor(spark, str(server.store / "lake"))
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="S", subjects=["S.>"])
    held: Messages = {}
    sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "checkpoint")

    def run(**options: object) -> int:
        """Run once until there is nothing new; return the number of batches."""
        writer = source(stream=True, **options).writeStream.format("delta").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(sink)
        query.awaitTermination()
        return sum(progress.numInputRows > 0 for progress in query.recentProgress)

    def sunk() -> Messages:
        return of(spark.read.format("delta").load(sink).collect())

    await publish(client, held, 90)
    assert await asyncio.to_thread(lambda: run(maxMessagesPerTrigger=40)) == 3
    assert await asyncio.to_thread(sunk) == held
    await asyncio.to_thread(compactor.once)
    await publish(client, held, 30)
    sent = dict(held)
    await delete(client, held, 5)
    assert await asyncio.to_thread(run) == 1
    assert await asyncio.to_thread(sunk) == sent, "what is deleted later was read all the same"

    # It runs until it is stopped, and survives kills of the server.
    got: list[Any] = []
    reader = source(stream=True, start_seq="latest").writeStream
    query = await asyncio.to_thread(
        lambda: (
            reader.foreachBatch(lambda rows, _: got.extend(rows.collect())).trigger(processingTime="0 seconds").start()
        )
    )

    async def started() -> bool:
        return bool(query.recentProgress) or query.status["message"].startswith("Waiting for data")

    async def arrived() -> bool:
        assert query.exception() is None
        return of(got).keys() >= {seq for seq in held if seq > 120}

    await eventually(started)
    await publish(client, held, 20)
    await eventually(arrived)
    await client.close()
    server.kill()
    server.start()
    client = await nats.connect(server.url)
    await publish(client, held, 20)
    await eventually(arrived)
    await asyncio.to_thread(query.stop)
    assert of(got) == {seq: message for seq, message in held.items() if seq > 120}
    staged = sum(1 for _ in (server.store / "lake" / "segments" / "S").rglob("*.seg"))
    assert staged < 20, "polls without news make no segments"
    await client.close()
    compactor.stop()
