"""Tests of the schema registry in a cluster of three: registrations at once on all nodes, and a change of leader."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError

from tests.clients.test_schemas import V1, ask
from tests.cluster.conftest import StartCluster
from tests.cluster.harness import SETTLE_S
from tests.cluster.nodes import until

pytestmark = pytest.mark.cluster


async def registered(client: Client, name: str, text: str) -> dict[str, object]:
    """Register until it is answered, as a new leader may be elected meanwhile."""
    async with asyncio.timeout(SETTLE_S):
        while True:
            try:
                body = {"format": "json", "text": text, "compatibility": "none"}
                answer = await ask(client, f"ADD.{name}", body, timeout=2)
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


async def test_the_leader_of_a_stream_validates_wherever_the_registry_is(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    client = await nats.connect(servers=cluster.urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    await registered(client, "orders", V1)
    js = client.jetstream(timeout=5)
    metadata = {"lakestream.schema": "orders@latest", "lakestream.validate": "reject"}
    await js.add_stream(name="S", subjects=["S.>"], num_replicas=3, metadata=metadata)
    for node in cluster.nodes:
        cluster.wait_current("S")
        cluster.lead("S", node)
        assert (await published(js, b'{"id": "a"}')).seq
        with pytest.raises(APIError, match="id: required"):
            await published(js, b"{}")
    cluster.wait_current("KV_SCHEMAS")
    registry = cluster.stream_leader("KV_SCHEMAS")
    cluster.lead("S", next(node for node in cluster.nodes if node is not registry))
    for number in range(8):  # a version counts from the answer to its registration on, though the leader is elsewhere
        text = V1.replace('"id": {"type": "string"}', f'"id": {{"type": "string"}}, "f{number}": {{}}')
        version = (await registered(client, "orders", text))["version"]
        await js.publish("S.a", b'{"id": "a"}', headers={"Nats-Schema": f"orders@{version}"})
    with pytest.raises(APIError, match="orders@64 is not registered"):
        await js.publish("S.a", b'{"id": "a"}', headers={"Nats-Schema": "orders@64"})
    gone = registry
    await asyncio.to_thread(gone.kill)
    await asyncio.to_thread(until, lambda: cluster.stream_leader("S") not in (None, gone), "another leader", SETTLE_S)
    await registered(client, "orders", V1.replace('"string"', '"integer"'))
    async with asyncio.timeout(SETTLE_S):
        while not await fits(js, b'{"id": 1}'):
            await asyncio.sleep(0.01)
    assert not await fits(js, b'{"id": "a"}')
    await client.close()


async def fits(js: JetStreamContext, payload: bytes) -> bool:
    """Return False if a publish is refused because it does not fit."""
    try:
        await published(js, payload)
    except APIError as error:
        if error.err_code != 20006:
            raise
        return False
    return True


async def published(js: JetStreamContext, payload: bytes) -> PubAck:
    """Publish until there is an answer, as a new leader may be elected meanwhile."""
    async with asyncio.timeout(SETTLE_S):
        while True:
            try:
                return await js.publish("S.a", payload)
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError, nats.js.errors.NoStreamResponseError):
                continue
