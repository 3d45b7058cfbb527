"""Tests of consumers and direct gets that read from the table while it is compacted, optimized and vacuumed."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import Policy
from tests.lake.test_end_to_end import CONFIG, SUBJECTS, Compaction, publish
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

ROUNDS, COUNT, BATCH = 2, 300, 40
NOW = Policy(min_files=2, retain_ns=0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


async def read(client: Client, name: str, config: ConsumerConfig, wanted: int, paced: asyncio.Semaphore) -> list[int]:
    """Pull everything in small batches, each after `paced` allows it; return the sequences in order of delivery."""
    sub = await client.jetstream().pull_subscribe(config.filter_subject or "", name, "HIST", config=config)
    seqs: list[int] = []
    while len(seqs) < wanted:
        await paced.acquire()
        for message in await sub.fetch(min(25, wanted - len(seqs)), timeout=20):
            await message.ack()
            seqs.append(message.metadata.sequence.stream)
    return seqs


async def answers(client: Client, asked: dict[str, object]) -> list[int]:
    """Return the sequences in the answers to a direct get of several messages."""
    inbox = client.new_inbox()
    sub = await client.subscribe(inbox)
    await client.publish("$JS.API.DIRECT.GET.HIST", json.dumps(asked).encode(), reply=inbox)
    seqs: list[int] = []
    while True:
        headers = (await sub.next_msg(timeout=20)).headers or {}
        if "Status" in headers:
            assert headers["Status"] == "204", headers
            await sub.unsubscribe()
            return seqs
        seqs.append(int(headers["Nats-Sequence"]))


async def get(client: Client, sent: dict[int, tuple[str, bytes, str]], live: list[int], over: asyncio.Event) -> int:
    """Send direct gets of every kind until `over`; return their number."""
    choose, rounds = random.Random(4), 0
    while not over.is_set():
        at = choose.randrange(len(live) - BATCH)
        seq, rounds = live[at], rounds + 1
        one = await client.request("$JS.API.DIRECT.GET.HIST", json.dumps({"seq": seq}).encode(), timeout=20)
        assert one.data == sent[seq][1]
        newest = {sent[each][0]: each for each in live[: at + 1]}
        assert await answers(client, {"multi_last": ["HIST.>"], "up_to_seq": seq}) == sorted(newest.values())
        assert await answers(client, {"seq": seq, "batch": BATCH}) == live[at : at + BATCH]
    return rounds


async def test_consumers_read_a_table_that_is_rewritten_and_vacuumed_meanwhile(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    maintainer = Maintainer(spark, compaction.lake, NOW, clock=time.time_ns)
    client = await nats.connect(server.url)
    sent: dict[int, tuple[str, bytes, str]] = {}
    await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    for _ in range(ROUNDS):
        sent |= await publish(client, len(sent) + 1, COUNT)
        await compaction.until_caught_up("HIST")
    await client.jetstream().delete_msg("HIST", 77)
    deep = [seq for seq in sorted(sent) if seq != 77]
    narrow = [seq for seq in deep if sent[seq][0].startswith("HIST.c.")]
    paced = asyncio.Semaphore(0)
    explicit = AckPolicy.EXPLICIT
    readers = [
        asyncio.create_task(read(client, name, config, wanted, paced))
        for name, config, wanted in (
            ("all", ConsumerConfig(ack_policy=explicit), len(deep) + COUNT),
            ("narrow", ConsumerConfig(ack_policy=explicit, filter_subject="HIST.c.*"), len(narrow)),
            ("last", ConsumerConfig(
                ack_policy=explicit, filter_subject="HIST.>", deliver_policy=DeliverPolicy.LAST_PER_SUBJECT
            ), len(SUBJECTS)),
        )
    ]  # fmt: skip
    over = asyncio.Event()
    gets = asyncio.create_task(get(client, dict(sent), deep, over))
    for _ in range(2):  # files are merged; then the replaced ones are removed
        for _ in range(9):
            paced.release()
        (done,) = await asyncio.to_thread(maintainer.once)
        assert done.failure is None
    over.set()
    assert await gets >= 2, "before and after what was read has gone"
    more = await publish(client, len(sent) + 1, COUNT)
    for _ in range(10 * ROUNDS * COUNT):
        paced.release()
    await compaction.run()  # further compaction runs while they read
    async with asyncio.timeout(120):
        everything, some, last = await asyncio.gather(*readers)
    assert everything == [*deep, *sorted(more)], "no gap, no repeat, in order, from the table into the log"
    assert some == narrow
    newest = {subject: seq for seq, (subject, _, _) in sorted(sent.items())}
    assert last == sorted(newest.values())
    compaction.stop()
    await client.close()
