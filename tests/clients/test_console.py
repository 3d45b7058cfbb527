"""Tests of the web console's pages in headless Chromium (`js/console/console.mjs` drives it).

With `LAKESTREAM_PICTURES=1` in the environment the trials `pictures`, `the-cluster` and
`the-slider-shows-the-old-value` write the screenshots of docs/pictures/console. With `LAKESTREAM_LOOKS=FOLDER` the
trials of each page write screenshots of it at three widths, light and dark, into that folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, KeyValueConfig, StreamConfig

from tests.clients import npm
from tests.cluster.nodes import Cluster
from tests.servers import Kind, Server

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

SCRIPT = "console/console.mjs"
PICTURES = Path(__file__).parents[2] / "docs" / "pictures" / "console"
PICTURES_TIMEOUT_S = 300
COMPACT_S = 300
WAIT_S = 20
ORDERS = 240
REPORT = b"day,orders\n" + b"".join(b"%d,%d\n" % (day, 2000 + 37 * day) for day in range(1, 9000))
MONITORED = ["-m", "-1"]
USERS = """
authorization {
  users: [
    {user: ann, password: secret}
    {user: reader, password: secret, permissions: {publish: {deny: ["$JS.API.STREAM.PURGE.>", "$JS.API.*.*.DELETE.>"]}}}
  ]
}
"""
ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [{user: ann, password: secret}] }
  B { jetstream: enabled, users: [{user: bob, password: secret}] }
  SYS { users: [{user: sys, password: secret}] }
}
system_account: SYS
"""


async def _time_travelling(client: Client, stream: str, period: str) -> None:
    """Set the metadata of time travel on the stream of a bucket."""
    js = client.jetstream()
    config = (await js.stream_info(stream)).config
    config.metadata = {**(config.metadata or {}), "lakestream.time_travel": period}
    await js.update_stream(config)


async def _fill(server: Server) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    metadata = {"lakestream.time_travel": "30d"}
    orders = StreamConfig(
        name="ORDERS",
        subjects=["orders.>"],
        description="Orders of the shop, by region",
        allow_direct=True,
        metadata=metadata,
    )
    await js.add_stream(orders)
    await js.add_stream(
        StreamConfig(name="SENSORS", subjects=["sensors.*.*"], max_msgs_per_subject=100, allow_direct=True)
    )
    await js.add_stream(StreamConfig(name="AUDIT", subjects=["audit.>"], allow_direct=True))
    for name, subject in (("billing", None), ("shipping", "orders.eu.>")):
        consumer = ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT, filter_subject=subject)
        await js.add_consumer("ORDERS", consumer)
    for number in range(ORDERS):
        region = ("eu", "us", "apac")[number % 3]
        order = {"id": 400_000 + number, "region": region, "total": round(number * 7.3 % 300, 2), "currency": "EUR"}
        headers = {"Content-Type": "application/json", "Nats-Msg-Id": f"order-{number}"}
        await js.publish(f"orders.{region}.{number % 97}", json.dumps(order).encode(), headers=headers)
        await js.publish(f"sensors.{number % 9}.temp", b"%.1f" % (18 + number % 7))
    await js.publish("audit.login", bytes(range(64)))
    pull = await js.pull_subscribe_bind("billing", "ORDERS")
    for message in await pull.fetch(170):
        await message.ack_sync()
    await js.create_key_value(KeyValueConfig(bucket="scratch", history=5, direct=True))
    bucket = await js.create_key_value(KeyValueConfig(bucket="conf", history=10, direct=True))
    await _time_travelling(client, "KV_conf", "30d")
    writes = {
        "db.host": ["10.0.0.7", "10.0.0.8"],
        "db.port": ["5432"],
        "feature.checkout": ['{"enabled": false}', '{"enabled": true, "share": 0.25}'],
        "limits.rate": ["120", "180"],
        "mail.from": ["shop@example.com"],
    }
    await bucket.put("old.key", b"gone")
    for turn in (0, 1):
        for key, values in writes.items():
            if turn < len(values):
                await bucket.put(key, values[turn].encode())
                await asyncio.sleep(0.05)  # revisions with times of their own
    await bucket.delete("old.key")
    store = await js.create_object_store("reports")
    await store.put("2026/november.csv", REPORT)
    await store.put("logo.svg", b"<svg/>")
    await client.close()


async def _store(server: Server, user: str, stream: str) -> None:
    """Make a stream with one message as this user."""
    client = await nats.connect(server.url, user=user, password="secret")
    js = client.jetstream()
    await js.add_stream(StreamConfig(name=stream, subjects=[f"{stream.lower()}.>"], allow_direct=True))
    await js.publish(f"{stream.lower()}.one", b"stays")
    await client.close()


async def _replicate(node: Server) -> None:
    client = await nats.connect(node.url)
    js = client.jetstream(timeout=WAIT_S)
    for name in ("ORDERS", "PAYMENTS"):
        await js.add_stream(StreamConfig(name=name, subjects=[f"{name.lower()}.>"], num_replicas=3, allow_direct=True))
        for number in range(50):
            await js.publish(f"{name.lower()}.{number}", b"replicated")
    await client.close()


@contextlib.contextmanager
def _compactor(server: Server, *, keeps_running: bool) -> Iterator[None]:
    """Write what the server has staged to the tables; return once messages are in both log and table."""
    command = [str(Path(sys.executable).parent / "lakestream"), "compact", "--lake", str(server.store / "lake")]
    if not keeps_running:
        subprocess.run([*command, "--once"], check=True, capture_output=True, timeout=COMPACT_S)
        yield
        return
    compactor = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + COMPACT_S
        while server.page("/varz")["lake"]["lag"].get("ORDERS", 1):
            assert time.monotonic() < deadline, "nothing was compacted"
            time.sleep(0.5)
        yield
    finally:
        os.killpg(compactor.pid, signal.SIGTERM)
        compactor.wait()


def _console(server: Server) -> str:
    return f"http://127.0.0.1:{server.http_port}/console"


@pytest.fixture(scope="module")
def addresses(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Yield the environment of a trial: a server with content, one with users, one with accounts, a cluster, and
    Chromium."""
    folder = tmp_path_factory.mktemp("console")
    npm.install()
    npm.install(npm.SCRIPTS / "console")
    chromium = npm.chromium()
    config = "lake { seal_age: 1s }\n"
    server = Server(kind, folder / "shop", config=config, args=MONITORED, name="shop-1")
    guarded = Server(kind, folder / "users", config=USERS, args=MONITORED, name="guarded-1")
    empty = Server(kind, folder / "empty", args=MONITORED, name="empty-1")
    divided = Server(kind, folder / "accounts", config=ACCOUNTS, args=MONITORED, name="divided-1")
    cluster = Cluster(kind, folder / "cluster")
    pictures = str(PICTURES) if os.environ.get("LAKESTREAM_PICTURES") else ""
    try:
        server.start()
        guarded.start()
        divided.start()
        empty.start()
        cluster.start()
        asyncio.run(_fill(server))
        asyncio.run(_store(guarded, "ann", "GUARDED"))
        asyncio.run(_store(divided, "ann", "OF_ANN"))
        asyncio.run(_store(divided, "bob", "OF_BOB"))
        asyncio.run(_replicate(cluster.nodes[0]))
        with _compactor(server, keeps_running=bool(pictures)):
            yield {
                "CHROMIUM": chromium,
                "CONSOLE": _console(server),
                "USERS": _console(guarded),
                "ACCOUNTS": _console(divided),
                "ACCOUNTS_PORT": str(divided.port),
                "EMPTY": _console(empty),
                "LAKE": str(server.store / "lake"),
                "LAKESTREAM": str(Path(sys.executable).parent / "lakestream"),
                "COMPACTOR": pictures,
                "LOOKS": os.environ.get("LAKESTREAM_LOOKS", ""),
                "CLUSTER": _console(cluster.nodes[0]),
                "NATS": server.url,
                "OBJECT_BYTES": str(len(REPORT)),
                "PICTURES": pictures,
            }
    finally:
        cluster.kill()
        server.kill()
        guarded.kill()
        divided.kill()
        empty.kill()


@pytest.mark.parametrize("trial", npm.listed(SCRIPT))
def test_the_console(addresses: Mapping[str, str], trial: str) -> None:
    if addresses["PICTURES"]:
        PICTURES.mkdir(parents=True, exist_ok=True)
    npm.passes(SCRIPT, trial, environment=addresses, timeout=PICTURES_TIMEOUT_S)
