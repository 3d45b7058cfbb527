"""Test of a server whose lake does not answer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import nats
import pytest

from lakestream.config.options import JetStreamOptions, Options
from lakestream.logging import Logger
from lakestream.server.jetstream import LAKE_THREADS
from lakestream.server.lake.stream_sync import LookResult, StreamSync
from lakestream.server.node import Node

pytestmark = pytest.mark.unit


@pytest.mark.heavy
async def test_a_lake_that_does_not_answer_does_not_hold_up_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, looks at tables took the log's threads: with eight streams nothing more was written."""
    answered, looking = threading.Event(), threading.Semaphore(0)

    def look(self: StreamSync, *arguments: Any) -> LookResult:
        looking.release()
        answered.wait()
        return LookResult(None)

    monkeypatch.setattr(StreamSync, "look", look)
    options = Options(
        host="127.0.0.1",
        port=-1,
        jetstream=JetStreamOptions(store_dir=str(tmp_path), max_memory=1 << 30, max_file=1 << 30),
    )
    node = Node(options, Logger())
    await node.start()
    try:
        client = await nats.connect(f"nats://127.0.0.1:{node.identity.port}")
        jetstream = client.jetstream(timeout=20)
        for number in range(LAKE_THREADS):
            await jetstream.add_stream(name=f"S{number}", subjects=[f"s{number}"])
        for _ in range(LAKE_THREADS):
            await asyncio.to_thread(looking.acquire)
        for _ in range(10):
            await asyncio.gather(*(jetstream.publish(f"s{number}", b"x") for number in range(LAKE_THREADS)))
        await client.close()
    finally:
        answered.set()
        await node.stop()
