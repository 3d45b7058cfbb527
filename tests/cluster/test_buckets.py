"""Tests of buckets with three replicas through the unmodified nats-py: watchers and readers survive a leader change."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import nats
import pytest
from nats.js.api import KeyValueConfig, ObjectStoreConfig
from nats.js.errors import APIError, KeyWrongLastSequenceError

from tests.cluster.conftest import StartCluster
from tests.cluster.harness import SETTLE_S
from tests.cluster.nodes import until

pytestmark = pytest.mark.cluster

WATCH_S = 40.0
"""Timeout of a watch: a client checks for missing heartbeats every 10 s and then starts its watch anew."""


async def put(bucket: Any, key: str, value: bytes) -> int:
    """Put until it is acked, as clients retry while there is no leader; return the revision."""
    async with asyncio.timeout(SETTLE_S):
        while True:
            try:
                revision: int = await bucket.put(key, value)
            except (
                nats.errors.TimeoutError,
                nats.errors.NoRespondersError,
                nats.js.errors.NoStreamResponseError,
                APIError,
            ):
                await asyncio.sleep(0.05)
            else:
                return revision


async def test_a_watcher_and_an_object_outlive_the_leader(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    client = await nats.connect(servers=cluster.urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    js = client.jetstream(timeout=5)
    bucket = await js.create_key_value(KeyValueConfig(bucket="b", history=5, replicas=3))
    store = await js.create_object_store("o", config=ObjectStoreConfig(replicas=3))
    data = hashlib.shake_256(b"object").digest(1_000_000)
    await store.put("file", data)
    for n in range(5):
        await put(bucket, f"k{n}", b"before")
    watcher = await bucket.watchall()
    assert [entry and entry.revision for entry in [await watcher.updates(5) for _ in range(6)]] == [1, 2, 3, 4, 5, None]

    cluster.wait_current("KV_b")
    cluster.wait_current("OBJ_o")
    gone = cluster.stream_leader("KV_b")
    cluster.lead("OBJ_o", gone)
    await asyncio.to_thread(gone.kill)
    await asyncio.to_thread(until, lambda: cluster.stream_leader("KV_b") is not gone, "another leader", SETTLE_S)
    last = [await put(bucket, f"k{n}", b"after") for n in range(5)][-1]
    seen: dict[str, bytes] = {}
    revisions: list[int] = []
    while not revisions or revisions[-1] < last:
        entry = await watcher.updates(WATCH_S)
        revisions.append(entry.revision)
        seen[entry.key] = entry.value
    assert seen == {f"k{n}": b"after" for n in range(5)}
    assert revisions == sorted(set(revisions)), "in order, and nothing twice"
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.create("k1", b"x")
    assert (await store.get("file")).data == data
    await asyncio.to_thread(gone.start)
    await asyncio.to_thread(cluster.wait_current, "KV_b", SETTLE_S)
    await client.close()
