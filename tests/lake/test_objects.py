"""Tests of object stores and the lake: chunks are compacted and released from the log as any message, and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.errors import ObjectNotFoundError
from nats.js.object_store import ObjectStore

from lakestream.lake.storage import paths
from tests.lake import tables
from tests.lake.test_end_to_end import Compaction, eventually
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

STREAM = "OBJ_files"
CONFIG = """
lake { seal_bytes: 1048576, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }
"""
COLD_S = 240.0
"""Timeout: the first commit of a Spark that has just started may take minutes on a busy machine."""
SIZES = {"large": 1_500_000, "middle": 300_000, "small": 10, "empty": 0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


def content(name: str) -> bytes:
    """Return the content of the object with this name."""
    return hashlib.shake_256(name.encode()).digest(SIZES[name])


async def check(store: ObjectStore, names: list[str]) -> None:
    """Assert that exactly these objects exist, complete (the client verifies digests)."""
    for name in names:
        assert (await store.get(name)).data == content(name), name
    assert sorted(info.name or "" for info in await store.list(ignore_deletes=True)) == sorted(names)


async def test_objects_live_in_the_lake(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream(timeout=20)
    store = await js.create_object_store("files")
    for name in SIZES:
        await store.put(name, content(name))
    await store.put("middle", content("middle"))
    await compaction.until_caught_up(STREAM, within_s=COLD_S)
    await check(store, list(SIZES))
    await client.close()
    server.kill()
    server.start()

    client = await nats.connect(server.url)
    js = client.jetstream(timeout=20)
    store = await js.object_store("files")
    await check(store, list(SIZES))
    large = await store.get_info("large")
    table = paths.table(compaction.lake, STREAM)
    rows = [row for row in tables.records(table) if row.subject == f"$O.files.C.{large.nuid}".encode()]
    assert b"".join(row.data for row in rows) == content("large"), "the object can be put together from the table"

    await store.delete("large")
    await store.put("small", content("small"))
    with pytest.raises(ObjectNotFoundError):
        await store.get("large")
    left = ["empty", "middle", "small"]
    await check(store, left)
    state = (await js.stream_info(STREAM)).state

    async def table_is_the_stream() -> bool:
        await compaction.run()
        return len(tables.records(table)) == state.messages

    await eventually(table_is_the_stream, COLD_S)
    assert not any(row.subject == f"$O.files.C.{large.nuid}".encode() for row in tables.records(table))
    await check(store, left)
    await client.close()
    compaction.stop()
