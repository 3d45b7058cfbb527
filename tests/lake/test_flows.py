"""A compaction and a read of old messages take the steps of ARCHITECTURE.md."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest

from lakestream.config.options import JetStreamOptions, LakeOptions, Options
from lakestream.logging import Logger
from lakestream.server.node import Node
from lakestream_spark.write.compactor import Compactor
from lakestream_sql.session import Session
from tests.calls import Calls, recorded
from tests.docs.architecture import COMPACTION, READ, flow

pytestmark = pytest.mark.lake

ELSEWHERE = {"SegmentsReader.latestOffset", "WriteTask", "main"}
"""Steps in processes of their own: of Spark's source, of a task, and of SQL over NATS."""


def here(title: str) -> list[tuple[str, str]]:
    """Return the steps of a flow that this process takes."""
    return [step for step in flow(title) if step[1] not in ELSEWHERE]


async def test_a_compaction_and_a_read_take_the_steps_of_the_page(tmp_path: Path, spark: Any) -> None:
    store = JetStreamOptions(store_dir=str(tmp_path), max_memory=1 << 30, max_file=1 << 30)
    lake = LakeOptions(seal_age_ns=10**8, poll_ns=10**8, retain_bytes=0, staged_grace_ns=0)
    with recorded() as calls:
        node = Node(Options(host="127.0.0.1", port=-1, jetstream=store, lake=lake), Logger())
        await node.start()
        compactor = Compactor(spark, str(tmp_path / "lake"))
        try:
            client = await nats.connect(f"nats://127.0.0.1:{node.identity.port}")
            jetstream = client.jetstream()
            await jetstream.add_stream(name="S", subjects=["s.*"])
            calls.first.clear()
            await jetstream.publish("s.a", b"1")
            async with asyncio.timeout(120):
                while not any((tmp_path / "jetstream" / "$G" / "streams" / "S" / "log").glob("*.outline")):
                    await asyncio.to_thread(compactor.once)
                    await jetstream.publish("s.b", b"2")
            compacted = Calls(calls.first)
            calls.first.clear()
            subscription = await jetstream.pull_subscribe("s.*", "C")
            assert [message.data for message in await subscription.fetch(1, timeout=20)] == [b"1"]
            await asyncio.to_thread(_ask, tmp_path / "lake")
            await client.close()
        finally:
            await asyncio.to_thread(compactor.stop)
            await node.stop()
    for made, title in ((compacted, COMPACTION), (calls, READ)):
        assert made.missing(here(title)) == []
        assert made.ordered(here(title)) == here(title)


def _ask(lake: Path) -> None:
    with Session(lake) as session:
        (result,) = session.run("SELECT data FROM delta.`streams/S` WHERE subject = 's.a'")
        assert result.fetchall() == [(b"1",)]
