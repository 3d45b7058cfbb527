"""Tests of the schema registry in a cluster of three: registrations at once on all nodes, and a change of leader."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest
from nats.aio.client import Client

from tests.clients.test_schemas import V1, add, ask
from tests.cluster.conftest import StartCluster
from tests.cluster.harness import SETTLE_S
from tests.cluster.nodes import until

pytestmark = pytest.mark.cluster


async def registered(client: Client, name: str, text: str) -> dict[str, object]:
    """Register until it is answered, as a new leader may be elected meanwhile."""
    async with asyncio.timeout(SETTLE_S):
        while True:
            try:
                answer = await add(client, name, text, compatibility="none")
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                continue
            if "error" not in answer:
                return answer
            assert answer["error"]["err_code"] == 20005, answer


async def test_registrations_at_once_on_all_nodes_make_each_version_once(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    clients = [await nats.connect(url) for url in cluster.urls]
    assert [(await ask(each, "LIST"))["total"] for each in clients] == [0, 0, 0]
    texts = [json.dumps({"type": "object", "properties": {f"f{n}": {"type": "string"}}}) for n in range(8)]
    asked = [registered(client, "orders", text) for text in texts for client in clients]
    answers = await asyncio.gather(*asked)
    assert sorted({each["version"] for each in answers}) == list(range(1, 9))  # type: ignore[type-var]
    assert len({each["id"] for each in answers}) == 8
    info = await clients[0].jetstream().stream_info("KV_SCHEMAS")
    assert (info.config.num_replicas, info.state.messages) == (3, 8)
    for each in clients:
        assert (await ask(each, "GET.orders@8"))["latest"] is True
        await each.close()


async def test_the_registry_outlives_its_leader(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    client = await nats.connect(servers=cluster.urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    first = await registered(client, "orders", V1)
    cluster.wait_current("KV_SCHEMAS")
    gone = cluster.stream_leader("KV_SCHEMAS")
    await asyncio.to_thread(gone.kill)
    await asyncio.to_thread(until, lambda: cluster.stream_leader("KV_SCHEMAS") is not gone, "another leader", SETTLE_S)
    again = await registered(client, "orders", V1)
    assert (again["version"], again["id"]) == (1, first["id"])
    assert (await registered(client, "other", V1))["version"] == 1
    await client.close()
