"""Tests of the Python client over a table that Spark wrote and the messages beyond it.

Arrow data, SQL, direct gets and consumers have to agree, now and as of earlier times.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from lakestream_client import Client, TooManySubjects, connect, sync
from lakestream_sql.session import Session
from lakestream_sql.uncompacted import FlushServer as Asked
from tests.lake.test_end_to_end import Compaction
from tests.servers import Kind, Server
from tests.unit.client.test_filters import row_fits, some_filters

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 16384, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }
"""
SUBJECTS = ["c.de", "c.de.x", "c.fr.x", "c.fr.y", "c.it's", "c.ö.ü"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


async def publish(client: Client, dice: random.Random, count: int) -> None:
    for _ in range(count):
        data, headers = b"%d " % dice.randrange(1 << 30) * 9, {"Tag": "t"} if dice.random() < 0.4 else None
        await client.jetstream.publish(dice.choice(SUBJECTS), data, headers=headers)


async def delivered(client: Client, count: int) -> list[tuple[int, str, bytes]]:
    """Return the stream as an ordered consumer delivers it."""
    subscription = await client.jetstream.subscribe("c.>", ordered_consumer=True, config=ConsumerConfig())
    messages = [await subscription.next_msg(timeout=30) for _ in range(count)]
    assert (await subscription.consumer_info()).num_pending == 0
    await subscription.unsubscribe()
    return [(each.metadata.sequence.stream, each.subject, each.data) for each in messages]


def by_sql(server: Server, relation: str) -> list[tuple[int, str, bytes]]:
    with Session(server.store / "lake", server=Asked(server.url)) as session:
        rows = session.query(f"SELECT seq, subject, data FROM {relation} ORDER BY seq").fetchall()
    return [(seq, subject, bytes(data)) for seq, subject, data in rows]


def messages(table: Any) -> list[tuple[int, str, bytes]]:
    return [(row["seq"], row["subject"], row["data"]) for row in table.to_pylist()]


async def test_all_readers_agree_on_table_and_tail(spark: Any, server: Server) -> None:
    dice = random.Random(5)
    compaction = Compaction(spark, server)
    async with await connect(server.url) as client:
        config = StreamConfig(name="C", subjects=["c.>"], allow_direct=True, max_msgs_per_subject=150)
        config.metadata = {"lakestream.time_travel": "30d"}
        await client.jetstream.add_stream(config)
        moments: list[tuple[int, int, list[tuple[int, str, bytes]]]] = []
        for number in range(4):
            await publish(client, dice, 300)
            if number == 1:
                await client.jetstream.purge_stream("C", subject="c.de")
            if number < 3:
                await compaction.until_caught_up("C")
            held = messages(await client.to_arrow("C"))
            moments.append((time.time_ns(), 300 * (number + 1), held))
        for seq in dice.sample([seq for seq, _, _ in held], 20):
            # Not securely: that would remove the message from earlier states as well.
            request = json.dumps({"seq": seq, "no_erase": True}).encode()
            assert json.loads((await client.nats.request("$JS.API.STREAM.MSG.DELETE.C", request)).data)["success"]
        rows = (await client.to_arrow("C", source="lake")).to_pylist()
        held = [(row["seq"], row["subject"], row["data"]) for row in rows]
        assert held == await delivered(client, len(held))
        assert held == await asyncio.to_thread(by_sql, server, "delta.`streams/C`")
        assert rows == (await client.to_arrow("C", source="nats")).to_pylist()
        reader = await client.scan("C", ["seq"], batch_size=50)
        batches = await asyncio.to_thread(lambda: list(reader))
        assert max(batch.num_rows for batch in batches) <= 50
        assert sorted(seq for batch in batches for seq in batch.column("seq").to_pylist()) == [
            seq for seq, _, _ in held
        ]
        for _ in range(30):
            filters = some_filters(dice, SUBJECTS, [row["time_ns"] for row in rows])
            wanted = [row for row in rows if row_fits(row, filters)]
            assert (await client.to_arrow("C", **filters)).to_pylist() == wanted, filters

        for at_ns, last, then in moments:
            table = await client.to_arrow("C", as_of=at_ns)
            assert messages(table) == then, "as Arrow data"
            assert await asyncio.to_thread(by_sql, server, f"as_of('C', {at_ns})") == then, "by SQL"
            newest = {subject: (seq, data) for seq, subject, data in then}
            for as_of in (client.as_of("C", at_ns), client.as_of("C", seq=last)):
                if last != 600:  # the purge came after that sequence, and before that time
                    assert {each.subject: (each.seq, each.data) async for each in as_of.last()} == newest
            some = await client.to_arrow("C", as_of=at_ns, subject="c.*.x", first_seq=100)
            assert messages(some) == [each for each in then if each[1] in ("c.de.x", "c.fr.x") and each[0] >= 100], (
                "filters apply to the past as well"
            )
        last_of_first = max(seq for seq, subject, _ in moments[0][2] if subject == "c.fr.x")
        history = [each.seq async for each in client.history("C", "c.fr.x")]
        assert history == sorted(history, reverse=True)
        assert last_of_first in history
    compaction.stop()


async def test_a_bucket_with_many_keys_as_it_was(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    async with await connect(server.url) as client:
        kv = await client.jetstream.create_key_value(bucket="many", direct=True)
        config = (await client.jetstream.stream_info("KV_many")).config
        config.metadata = {"lakestream.time_travel": "30d"}
        await client.jetstream.update_stream(config)
        for number in range(1300):
            await kv.put(f"k.{number}", b"old")
        before = time.time_ns()
        for number in range(0, 1300, 2):
            await kv.put(f"k.{number}", b"new")
        await kv.delete("k.1")
        await compaction.until_caught_up("KV_many")
    compaction.stop()
    with sync.connect(server.url) as blocking:
        then = blocking.bucket("many").at(before)
        assert {entry.key: entry.value for entry in then.items()} == {f"k.{n}": b"old" for n in range(1300)}
        assert then.get("k.0").value == b"old"
        with pytest.raises(TooManySubjects):
            blocking.bucket("many").at(seq=1300).keys()
        assert [entry.operation for entry in blocking.bucket("many").history("k.1")] == ["DEL", "PUT"]
