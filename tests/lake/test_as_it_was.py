"""A stream with time travel is read as it was: by the server, from log and table, and by SQL.

The states that a stream was in are known from a model in plain Python. Streams are made, changed and read over the
socket; tables are written by Spark.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from tests.lake.test_end_to_end import Compaction
from tests.lake.was import Model, ask, held, rfc3339
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 4096, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }
"""
CATCH_UP_S = 240.0
SEED = int(os.environ.get("LAKESTREAM_PROPERTY_SEED", "1"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


async def add(client: Client, name: str, **config: Any) -> None:
    """A stream with time travel."""
    config.setdefault("metadata", {"lakestream.time_travel": "30d"})
    await client.jetstream().add_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], allow_direct=True, allow_rollup_hdrs=True, **config)
    )


async def change(client: Client, name: str, model: Model, dice: random.Random) -> None:
    """One change, on the server and in the model."""
    js = client.jetstream()
    kind = dice.choices(["publish", "burst", "rollup", "purge", "delete"], [60, 10, 5, 6, 6])[0]
    subject = f"{name}.{dice.randrange(8)}"
    if kind == "publish":
        data = b"%d" % dice.randrange(1 << 30) * dice.randrange(1, 6)
        model.publish((await js.publish(subject, data)).seq, subject, data)
    elif kind == "burst":  # of one turn of the server: limits act within it
        sent = [(f"{name}.{dice.randrange(8)}", b"%d" % number * 9) for number in range(dice.randrange(2, 40))]
        acks = await asyncio.gather(*[js.publish(*one) for one in sent])
        for ack, (one, data) in sorted(zip(acks, sent, strict=True), key=lambda pair: pair[0].seq):
            model.publish(ack.seq, one, data)
    elif kind == "rollup":
        what = dice.choice(["sub", "sub", "all"])
        ack = await js.publish(subject, b"rolled", headers={"Nats-Rollup": what})
        model.publish(ack.seq, subject, b"rolled", what)
    elif kind == "purge":
        which = dice.choice([None, subject])
        below, keep = dice.choice([(0, 0), (dice.randrange(1, model.last + 2), 0), (0, 2)])
        request = {"filter": which or "", "seq": below, "keep": keep}
        await client.request(f"$JS.API.STREAM.PURGE.{name}", json.dumps(request).encode(), timeout=30)
        model.purge(which, below, keep)
    elif model.live:
        seq = dice.choice(sorted(model.live))
        request = {"seq": seq, "no_erase": True}
        answer = await client.request(f"$JS.API.STREAM.MSG.DELETE.{name}", json.dumps(request).encode(), timeout=30)
        assert json.loads(answer.data)["success"]
        del model.live[seq]
    await model.note()


async def compare(client: Client, name: str, model: Model, dice: random.Random, most: int) -> None:
    """Some moments and some sequences; what the server says of each is what the model knows."""
    for at_ns, last, state in dice.sample(model.at, min(most, len(model.at))):
        answer = await ask(client, name, up_to_time=rfc3339(at_ns))
        assert answer.held == state, f"at {at_ns}, after sequence {last} of {model.last}"
        if state:
            assert answer.through == last
    for seq in dice.sample(sorted(model.after), min(most, len(model.after))):
        subject = f"{name}.{dice.randrange(8)}"
        assert await held(client, name, up_to_seq=seq) == model.after[seq], f"after {seq} of {model.last}"
        expected = {subject: model.after[seq][subject]} if subject in model.after[seq] else {}
        assert await held(client, name, up_to_seq=seq, multi_last=[subject]) == expected


@pytest.mark.parametrize(("max_msgs", "per_subject"), [(-1, 1), (60, -1), (-1, -1), (100, 3)])
async def test_any_moment_and_any_sequence_are_as_they_were(
    spark: Any, server: Server, max_msgs: int, per_subject: int
) -> None:
    dice = random.Random(f"{SEED} {max_msgs} {per_subject}")
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    model = Model(max_msgs, per_subject)
    await add(client, "WAS", max_msgs=max_msgs, max_msgs_per_subject=per_subject)
    for number in range(4):
        for _ in range(40):
            await change(client, "WAS", model, dice)
        await compare(client, "WAS", model, dice, 8)
        if number == 1:
            await compaction.until_caught_up("WAS", within_s=CATCH_UP_S)
        elif number == 2:
            await compaction.run()
        await compare(client, "WAS", model, dice, 12)
    await compaction.until_caught_up("WAS", within_s=CATCH_UP_S)
    await compare(client, "WAS", model, dice, 60)
    await client.close()
    server.kill()
    server.start()
    client = await nats.connect(server.url)
    await compare(client, "WAS", model, dice, 10)
    await client.close()
    compaction.stop()
