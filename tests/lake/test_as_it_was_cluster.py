"""Tests of time travel on a stream with three replicas: over every node, after its leader died, and from the lake."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

from lakestream.lake.staging import scan, staging
from tests.cluster.nodes import Cluster
from tests.lake.compacting import compact as compact_stream
from tests.lake.test_end_to_end import eventually
from tests.lake.was import Model, held, rfc3339
from tests.servers import Kind

pytestmark = [pytest.mark.lake, pytest.mark.cluster]


async def put(client: Client, model: Model, subject: str, data: bytes) -> None:
    """Publish; retry while a node does not know the stream's subscription yet."""
    js = client.jetstream(timeout=20)
    while True:
        try:
            ack = await js.publish(subject, data)
            break
        except (nats.errors.NoRespondersError, APIError):
            await asyncio.sleep(0.1)
    model.publish(ack.seq, subject, data)
    await model.note()


async def rounds(client: Client, model: Model, dice: random.Random, count: int) -> None:
    for number in range(count):
        await put(client, model, f"WAS.{dice.randrange(6)}", b"%d" % number * 30)
        if number % 15 == 14:
            purged = f"WAS.{dice.randrange(6)}"
            answer = await client.request("$JS.API.STREAM.PURGE.WAS", b'{"filter": "%b"}' % purged.encode(), timeout=20)
            assert b'"success": true' in answer.data or b'"success":true' in answer.data
            model.purge(purged)
            await model.note()


async def compare(cluster: Cluster, model: Model, dice: random.Random, most: int) -> None:
    """Compare answers over every running node with the model, since any replica may answer."""
    for node in cluster.running:
        client = await nats.connect(node.url)
        for moment in dice.sample(model.at, most):
            assert await held(client, "WAS", up_to_time=rfc3339(moment.ns)) == moment.held, f"{moment} by {node.name}"
        for seq in dice.sample(sorted(model.after), most):
            assert await held(client, "WAS", up_to_seq=seq) == model.after[seq], f"{seq} by {node.name}"
        await client.close()


async def test_every_replica_knows_the_past_also_after_its_leader_died(spark: Any, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    config = f'lake {{ url: "{lake}", seal_bytes: 4096, seal_age: "200ms", retain_bytes: 0, poll: "100ms" }}'
    dice, model = random.Random(5), Model(per_subject=1)
    cluster = Cluster(Kind.OURS, tmp_path, 3, config=config)
    cluster.start()
    try:
        metadata = {"lakestream.time_travel": "1h"}
        cluster.stream("WAS", ["WAS.>"], 3, max_msgs_per_subject=1, metadata=metadata)
        client = await nats.connect([node.url for node in cluster.nodes])
        await rounds(client, model, dice, 60)
        await compare(cluster, model, dice, 6)
        leader = cluster.stream_leader("WAS")
        await client.close()
        leader.kill()
        cluster.stream_leader("WAS")  # the next leader: requests before its election get no answer
        client = await nats.connect([node.url for node in cluster.running])
        await rounds(client, model, dice, 45)
        await compare(cluster, model, dice, 6)
        leader.start()
        cluster.wait_current("WAS")

        async def staged() -> bool:
            return any(staging.segments(stream.directory) for stream in scan.Scanner(str(lake)).scan())

        await eventually(staged)
        (stream,) = scan.Scanner(str(lake)).scan()
        await asyncio.to_thread(compact_stream, spark, str(lake), stream)
        await compare(cluster, model, dice, 12)
        await client.close()
    finally:
        cluster.kill()
