"""Tests of unmodified clients over WebSocket: nats-py (ws and wss), and the npm packages `nats.ws` and `@nats-io/*`.

What all clients do alike is in the other files of this folder; here are the ways that differ between transports.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError

from tests.certificates import PLACE, client_context, fingerprint
from tests.clients import npm
from tests.conformance.remotes import wait
from tests.conftest import StartServer
from tests.servers import Kind, Server

pytestmark = pytest.mark.conformance

PLAIN = "no_tls: true"
TLS = f'tls {{ cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key" }}'
TRIALS = ("core", "streams", "keyValue", "objects")


def _config(inside: str, more: str = "") -> str:
    return f'{more}\nwebsocket {{ listen: "127.0.0.1:-1", {inside} }}\n'


@pytest.fixture(scope="module")
def web_server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with WebSocket and compression, shared by this module."""
    server = Server(kind, tmp_path_factory.mktemp("web"), config=_config(f"{PLAIN}, compression: true"))
    server.start()
    yield server
    server.kill()


# ---- nats-py
def _url(server: Server, scheme: str) -> str:
    return f"{scheme}://127.0.0.1:{server.websocket_port}"


@pytest.fixture(params=["ws", "wss"])
async def client(request: pytest.FixtureRequest, start_server: StartServer) -> AsyncIterator[Client]:
    server = start_server(config=_config(PLAIN if request.param == "ws" else TLS))
    context: ssl.SSLContext | None = client_context(server.certificates, "") if request.param == "wss" else None
    client = await nats.connect(_url(server, request.param), tls=context, connect_timeout=5)
    yield client
    await client.close()


async def test_nats_py_requests_of_all_sizes(client: Client) -> None:
    async def answer(message: nats.aio.msg.Msg) -> None:
        await message.respond(message.data)

    await client.subscribe("service", cb=answer)
    for size in (0, 1, 125, 126, 65_535, 65_536, 1_000_000):
        body = os.urandom(size)
        assert (await client.request("service", body, timeout=10)).data == body
    with pytest.raises(NoRespondersError):
        await client.request("nobody", b"", timeout=5)


async def test_nats_py_streams_and_consumers(client: Client) -> None:
    js = client.jetstream(timeout=10)
    await js.add_stream(name="S", subjects=["s.*"])
    futures = [await js.publish_async("s.a", b"%d" % n, headers={"N": str(n)}) for n in range(1000)]
    acks = await asyncio.wait_for(asyncio.gather(*futures), 20)
    assert [ack.seq for ack in acks] == list(range(1, 1001))
    pull = await js.pull_subscribe("s.*", durable="c")
    seen: list[bytes] = []
    while len(seen) < 1000:
        for message in await pull.fetch(100, timeout=5):
            seen.append(message.data)
            await message.ack()
    assert seen == [b"%d" % n for n in range(1000)]


async def test_nats_py_buckets_and_objects(client: Client) -> None:
    js = client.jetstream(timeout=10)
    bucket = await js.create_key_value(bucket="B")
    watch = await bucket.watchall()
    for n in range(20):
        await bucket.put("k", b"%d" % n)
    values: list[bytes | None] = []
    while len(values) < 20:
        entry = await watch.updates(timeout=5)
        if entry is not None:
            values.append(entry.value)
    assert values == [b"%d" % n for n in range(20)]
    store = await js.create_object_store("O")
    body = os.urandom(3_000_000)
    await store.put("o", body)
    assert (await store.get("o")).data == body


async def test_nats_py_connects_again_after_a_restart(kind: Kind, tmp_path: Path) -> None:
    server = Server(kind, tmp_path / "store", config=_config(PLAIN))
    server.start()
    again, port = asyncio.Event(), server.websocket_port

    async def connected() -> None:
        again.set()

    client = await nats.connect(_url(server, "ws"), reconnected_cb=connected, reconnect_time_wait=0.1)
    try:
        server.stop()
        server = Server(kind, tmp_path / "store", config=_config(PLAIN).replace(":-1", f":{port}"))
        server.start()
        await asyncio.wait_for(again.wait(), 20)
        subscription = await client.subscribe("a")
        await client.publish("a", b"x")
        assert (await subscription.next_msg(5)).data == b"x"
    finally:
        await client.close()
        server.kill()


async def test_nats_py_logs_in_with_cookies(start_server: StartServer) -> None:
    users = "authorization { users: [{user: ann, password: secret}] }"
    server = start_server(config=_config(f"{PLAIN}, user_cookie: name, pass_cookie: word", users))
    headers = {"Cookie": ["name=ann; word=secret"]}
    client = await nats.connect(_url(server, "ws"), ws_connection_headers=headers)
    assert (await client.request("$SYS.REQ.USER.INFO", b"", timeout=5)).data.count(b'"ann"') == 1
    await client.close()


async def test_only_pinned_certificates_are_accepted(start_server: StartServer, tmp_path: Path) -> None:
    """nats-server reads the key in this block and does not enforce it."""
    pin = fingerprint(Server(Kind.OURS, tmp_path / "unused").certificates, "ann")
    tls = TLS.replace("}", f', verify: true, ca_file: "{PLACE}/ca.pem", pinned_certs: ["{pin}"] }}')
    server = start_server(of=Kind.OURS, config=_config(tls))
    for certificate in ("ann", "dns"):
        context = client_context(server.certificates, certificate)
        connecting = nats.connect(_url(server, "wss"), tls=context, allow_reconnect=False, connect_timeout=5)
        if certificate == "ann":
            client = await connecting
            await client.flush()
            await client.close()
        else:
            with pytest.raises(nats.errors.Error):
                await connecting
    wait("a log line", lambda: server.logged("not pinned"))
    assert any("wid:2 - TLS handshake error: certificate not pinned" in line for line in server.logged("not pinned"))


# ---- npm
@pytest.fixture(scope="module")
def _packages() -> None:
    npm.install()


@pytest.mark.usefixtures("_packages")
def test_every_trial_is_run() -> None:
    assert npm.listed("websocket.mjs") == TRIALS


@pytest.mark.usefixtures("_packages")
@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("library", ["nats.ws", "nats-io"])
def test_npm_over_websocket(web_server: Server, trials: npm.Trials, library: str, trial: str) -> None:
    trials.passes("websocket.mjs", library, trial, _url(web_server, "ws"))
