"""Tests of docs/moving.md as written: a nats-server's streams move to lakestream."""

from __future__ import annotations

import json
from typing import Any

import nats
import pytest

from tests.conformance.remotes import create, fixed_port, messages, publish, state, wait, wait_link
from tests.conftest import StartServer
from tests.docs.blocks import ROOT, blocks
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

PAGE = ROOT / "docs" / "moving.md"


def code(language: str) -> list[str]:
    """Return the code blocks of the page's first half."""
    half = PAGE.read_text().partition("## From lakestream to nats-server")[0].count("\n")
    return [block.text for block in blocks(PAGE) if block.language == language and block.line < half]


def written(old: Server) -> str:
    """Return the configuration of the page, with the address of this nats-server."""
    (block,) = code("conf")
    return f"lake: false\nhttp: 127.0.0.1:-1\n{block.replace('old.example:4222', f'127.0.0.1:{old.port}')}"


@pytest.fixture
def old(start_server: StartServer) -> Server:
    return fixed_port(start_server(of=Kind.REAL, config="authorization { user: mover, password: s3cret }"))


@pytest.fixture
def steps() -> dict[str, Any]:
    """Return the functions of the page."""
    made: dict[str, Any] = {}
    exec("\n".join(code("python")), made)
    return made


LOGIN = {"user": "mover", "pass": "s3cret"}


async def test_streams_buckets_and_consumers_move_as_the_page_says(
    start_server: StartServer, old: Server, steps: dict[str, Any]
) -> None:
    with Wire(old.address, LOGIN) as there:
        create(there, "ORDERS", subjects=["orders.>"], max_age=3600_000_000_000, duplicate_window=60_000_000_000)
        publish(there, "orders.a", b"1", b"2", headers={"A": "b"})
        publish(there, "orders.b", *(b"%d" % number for number in range(3, 21)))
        there.api("STREAM.MSG.DELETE.ORDERS", {"seq": 4})
        body = {"durable_name": "billing", "ack_policy": "explicit", "filter_subject": "orders.>"}
        assert "error" not in there.api(
            "CONSUMER.DURABLE.CREATE.ORDERS.billing", {"stream_name": "ORDERS", "config": body}
        )
        client = await nats.connect(old.url, user="mover", password="s3cret")
        jetstream = client.jetstream()
        for message in await (await jetstream.pull_subscribe_bind("billing", "ORDERS")).fetch(7):
            await message.ack_sync()
        bucket = await jetstream.create_key_value(bucket="B", history=3)
        await bucket.put("k", b"1")
        await bucket.put("k", b"2")
        await client.close()
        origin = messages(there, "ORDERS")

    server = start_server(of=Kind.OURS, config=written(old))
    wait_link(server)
    nc = await nats.connect(server.url)
    for stream in ("ORDERS", "KV_B"):
        await steps["mirror"](nc, stream)
    with Wire(old.address, LOGIN) as there:
        publish(there, "orders.late", b"21")
        origin = messages(there, "ORDERS")
    with Wire(server.address) as here:
        wait("what was sent last", lambda: state(here, "ORDERS").get("last_seq") == 21)
    for stream in ("ORDERS", "KV_B"):
        await steps["finish"](nc, stream)
    old.kill()

    with Wire(server.address) as here:
        assert messages(here, "ORDERS") == origin
        config = here.api("STREAM.INFO.ORDERS")["config"]
        assert "mirror" not in config
        assert (config["subjects"], config["max_age"]) == (["orders.>"], 3600_000_000_000)
        assert here.request("orders.c", b"22").json()["seq"] == 22
    consumer = await nc.jetstream().pull_subscribe_bind("billing", "ORDERS")
    came = await consumer.fetch(14)
    assert [one.metadata.sequence.stream for one in came] == list(range(9, 23))
    bucket = await nc.jetstream().key_value("B")
    assert [entry.value for entry in await bucket.history("k")] == [b"1", b"2"]
    assert await bucket.put("k", b"3") == 3
    await nc.close()


async def test_a_work_queue_moves_without_a_pause(
    start_server: StartServer, old: Server, steps: dict[str, Any]
) -> None:
    with Wire(old.address, LOGIN) as there:
        create(there, "JOBS", subjects=["jobs.>"], retention="workqueue")
        publish(there, "jobs.a", *(b"%d" % number for number in range(50)))
        server = start_server(of=Kind.OURS, config=written(old))
        wait_link(server)
        nc = await nats.connect(server.url)
        await steps["take_over"](nc, "JOBS")
        publish(there, "jobs.a", b"50")
    jetstream = nc.jetstream()
    await jetstream.publish("jobs.b", b"own")
    consumer = await jetstream.pull_subscribe("jobs.>", durable="workers", stream="JOBS")
    done: list[bytes] = []
    while len(done) < 52:
        for message in await consumer.fetch(52, timeout=30):
            done.append(message.data)
            await message.ack_sync()
    assert sorted(done) == sorted([b"own", *(b"%d" % number for number in range(51))])
    with Wire(server.address) as here, Wire(old.address, LOGIN) as there:
        wait("the acks of all", lambda: state(there, "JOBS")["messages"] == 0)
        config = here.api("STREAM.INFO.JOBS")["config"]
        config.pop("sources")
        assert "error" not in here.api("STREAM.UPDATE.JOBS", json.dumps(config).encode())
    await nc.close()
