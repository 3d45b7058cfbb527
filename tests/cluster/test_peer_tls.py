"""Tests of route connections with certificates, and of server processes that find each other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, RouteUrl, TlsOptions
from lakestream.net.outbox import HIGH_WATER
from lakestream.net.peers import link as peer_link
from lakestream.net.tls import certificate_of
from lakestream.raft.group.ports import Channel
from tests.cluster.peer_world import WAIT_S, Authority, World, free_port
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.cluster


async def test_nodes_with_certificates_of_one_authority_connect(world: World, tmp_path: Path) -> None:
    tls = Authority(tmp_path, "ca").options("127.0.0.1")
    seed = await world.node("seed", tls=tls)
    a, b = [await world.node(name, seed, tls=tls) for name in "ab"]
    await world.together(seed, a, b)
    big = os.urandom(3 << 20)
    a.peers.send("b", Channel.RAFT, big)
    await world.until(lambda: b.got == [("a", big)])


async def test_a_node_that_was_learnt_of_by_address_may_show_the_name_of_a_route(world: World, tmp_path: Path) -> None:
    tls = Authority(tmp_path, "ca").options("localhost")
    seed = await world.node("seed", tls=tls)
    by_name = RouteUrl("localhost", seed.peers.bound_port)
    a, b = [await world.node(name, by_name, tls=tls) for name in "ab"]
    await world.together(seed, a, b)


@pytest.mark.parametrize("theirs", ["other authority", "no TLS", "wrong name", "unknown to the other"])
async def test_a_node_without_the_right_certificate_is_not_connected(world: World, tmp_path: Path, theirs: str) -> None:
    ours = Authority(tmp_path, "ca")
    good = ours.options("127.0.0.1")
    seed = await world.node("seed", tls=ours.options("elsewhere.example") if theirs == "wrong name" else good)
    other = Authority(tmp_path, "x").options("127.0.0.1")
    unknown = msgspec.structs.replace(other, ca_file=good.ca_file)
    tls = {"other authority": other, "no TLS": None, "wrong name": good, "unknown to the other": unknown}[theirs]
    b = await world.node("b", seed, tls=tls, auth_timeout_ns=SECOND)
    await world.until(lambda: b.log.with_text("Error trying to connect to route"))
    assert (seed.peers.connected(), b.peers.connected()) == ([], [])
    said = {
        "no TLS": "Client Closed before it said HELLO: does it want TLS?",
        "unknown to the other": "before it said HELLO: does it know this node's certificate?",
    }.get(theirs, "certificate verify failed")
    assert b.log.with_text(said), b.log.lines
    if told := {"other authority": "unknown ca", "wrong name": "bad certificate"}.get(theirs):
        await world.until(lambda: seed.log.with_text(f"TLS route handshake error: remote error: tls: {told}"))


async def test_an_insecure_node_takes_any_certificate_of_the_other(world: World, tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    seed = await world.node("seed", tls=ca.options("elsewhere.example"))
    b = await world.node("b", seed, tls=ca.options("127.0.0.1", insecure=True))
    await world.together(seed, b)


async def test_a_pinned_certificate_is_the_only_one_that_connects(world: World, tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    known, unknown = ca.options("127.0.0.1"), ca.options("localhost")
    pins = (certificate_of(ssl.PEM_cert_to_DER_cert(Path(known.cert_file).read_text())).key_sha256,)
    known = msgspec.structs.replace(known, pinned_certs=pins)
    seed = await world.node("seed", tls=known)
    good = await world.node("good", seed, tls=known)
    await world.together(seed, good)
    await world.node("bad", seed, tls=unknown, auth_timeout_ns=SECOND)
    await world.until(lambda: seed.log.with_text("TLS handshake error: certificate not pinned"))
    assert seed.peers.connected() == ["good"]


@pytest.mark.parametrize(
    ("checks", "name", "is_node"),
    [
        ({"verify_and_map": True}, "node.example", True),
        ({"verify_and_map": True}, "other.example", False),
        ({"known_urls": True}, "route.example", True),
        ({"known_urls": True}, "*.example", True),
        ({"known_urls": True}, "node.example.org", False),
        ({"known_urls": True, "verify_and_map": True}, "node.example", True),
    ],
)
async def test_a_certificate_tells_that_a_node_is_one(
    world: World, tmp_path: Path, checks: dict[str, bool], name: str, is_node: bool
) -> None:
    ca = Authority(tmp_path, "ca")
    seed = await world.node(
        "seed",
        RouteUrl("route.example", 1),  # is not there; only its name counts
        tls=ca.options("127.0.0.1", **checks),
        user="node.example",
        password="ignored",
    )
    b = await world.node("b", seed, tls=ca.options(name), user="node.example", password="wrong")
    if is_node:
        await world.together(seed, b)
    else:
        await world.until(lambda: b.log.with_text("Authorization Violation"))
        assert seed.peers.connected() == []


@pytest.mark.parametrize("version", ["", "1.3"])
async def test_versions_and_ciphers(world: World, tmp_path: Path, version: str) -> None:
    ca = Authority(tmp_path, "ca")
    limits = {"min_version": version, "cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)}
    a = await world.node("a", tls=ca.options("127.0.0.1", **limits))
    b = await world.node("b", a, tls=ca.options("127.0.0.1", **limits))
    await world.together(a, b)
    with socket.create_connection(("127.0.0.1", a.peers.bound_port)) as plain:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert a.peers.options.tls is not None
        context.load_cert_chain(a.peers.options.tls.cert_file, a.peers.options.tls.key_file)
        shake = asyncio.to_thread(context.wrap_socket, plain)
        if version:
            with pytest.raises(ssl.SSLError):
                await shake
        else:
            assert (await shake).cipher()[0] == "ECDHE-ECDSA-AES128-GCM-SHA256"


async def test_a_reload_reads_new_certificates_from_the_same_files(world: World, tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    tls, good = ca.options("elsewhere.example"), ca.options("127.0.0.1")
    a = await world.node("a", tls=tls)
    b = await world.node("b", a, tls=good)
    await world.until(lambda: b.log.with_text("certificate verify failed"))
    Path(tls.cert_file).write_bytes(Path(good.cert_file).read_bytes())
    Path(tls.key_file).write_bytes(Path(good.key_file).read_bytes())
    a.peers.reload(a.peers.options)
    await world.together(a, b)
    Path(tls.cert_file).write_text("nothing")
    with pytest.raises(StartError, match="tls: cannot use"):
        a.peers.reload(a.peers.options)
    assert a.peers.connected() == ["b"]


@pytest.mark.smoke
async def test_handshakes_that_fail_are_logged_and_leave_room_for_nodes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestream.net.peers.peers.MAX_STRANGERS", 3)
    tls = Authority(tmp_path, "ca").options("127.0.0.1")
    a = await world.node("a", tls=tls)
    without = ssl.create_default_context(cafile=tls.ca_file)
    for _ in range(8):
        reader, writer = await asyncio.open_connection("127.0.0.1", a.peers.bound_port, ssl=without)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await reader.read()
        writer.close()
    idle = [await asyncio.open_connection("127.0.0.1", a.peers.bound_port) for _ in range(8)]
    b = await world.node("b", a, tls=tls)
    await world.together(a, b)
    assert len(a.log.with_text("TLS route handshake error: tls: client didn't provide a certificate")) == 8
    for _, writer in idle:
        writer.close()


async def test_a_certificate_that_cannot_be_read_stops_the_start(world: World, tmp_path: Path) -> None:
    missing = TlsOptions(cert_file=str(tmp_path / "no.pem"), key_file=str(tmp_path / "no.key"))
    with pytest.raises(StartError, match=r"tls: cannot read '.*no\.pem': No such file"):
        await world.node("a", tls=missing)
    (tmp_path / "bad.pem").write_text("nothing")
    bad = TlsOptions(cert_file=str(tmp_path / "bad.pem"), key_file=str(tmp_path / "bad.pem"))
    with pytest.raises(StartError, match=r"tls: cannot use '.*bad\.pem'"):
        await world.node("a", tls=bad)


# ---------------------------------------------------------------------- processes


class Processes:
    """Server processes of one cluster, with password and TLS."""

    def __init__(self, folder: Path) -> None:
        tls = Authority(folder, "ca").options("127.0.0.1")
        self.ports = [free_port() for _ in range(3)]
        routes = ", ".join(f'"nats-route://u:p@127.0.0.1:{port}"' for port in self.ports)
        self.servers = [
            Server(
                Kind.OURS,
                folder / f"n{number}",
                config=f"""
                    http: "127.0.0.1:-1"
                    ports_file_dir: "{folder}"
                    cluster {{
                        name: C, listen: "127.0.0.1:{port}", routes: [{routes}]
                        authorization {{ user: u, password: p }}
                        tls {{ cert_file: "{tls.cert_file}", key_file: "{tls.key_file}", ca_file: "{tls.ca_file}" }}
                    }}
                """,
                name=f"n{number}",
                jetstream=False,
            )
            for number, port in enumerate(self.ports, 1)
        ]

    def page(self, number: int, path: str) -> Any:
        server = self.servers[number - 1]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/{path}", timeout=WAIT_S) as answer:
            return json.load(answer)

    def alive(self, number: int) -> dict[str, bool]:
        """Return from /routez which other nodes are alive."""
        return {route["remote_name"]: route["link"]["alive"] for route in self.page(number, "routez")["routes"]}

    async def until(self, ready: Callable[[], bool], timeout: float = WAIT_S) -> None:
        async with asyncio.timeout(timeout):
            while not await asyncio.to_thread(ready):
                await asyncio.sleep(0.05)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    try:
        for server in processes.servers:
            server.start()
        yield processes
    finally:
        for server in processes.servers:
            server.kill()


def subscribed_elsewhere(processes: Processes) -> None:
    """Wait until /routez shows the subscriptions of another node's clients."""
    with Wire(processes.servers[1].address) as client:
        client.subscribe("a.*", "q")
        client.ping()
        wanted = {"account": "$G", "subject": "a.*", "qgroup": "q"}
        for _ in range(100):
            routes = {route["remote_name"]: route for route in processes.page(1, "routez?subs=detail")["routes"]}
            if wanted in routes["n2"].get("subscriptions_list_detail", []):
                return
        raise AssertionError(routes)


async def test_processes_find_each_other_and_notice_who_is_stopped_killed_and_back(processes: Processes) -> None:
    whole = {number: {f"n{other}": True for other in (1, 2, 3) if other != number} for number in (1, 2, 3)}
    await processes.until(lambda: all(processes.alive(number) == whole[number] for number in whole))
    varz = processes.page(1, "varz")
    assert (varz["routes"], varz["cluster"]["name"], varz["cluster"]["cluster_port"]) == (2, "C", processes.ports[0])
    ports_file = processes.servers[0].store.parent / f"nats-server_{processes.servers[0].process.pid}.ports"
    await asyncio.to_thread(subscribed_elsewhere, processes)
    assert json.loads(ports_file.read_text())["cluster"] == [f"nats://127.0.0.1:{processes.ports[0]}"]

    stopped, killed = processes.servers[1].process, processes.servers[2]
    os.killpg(stopped.pid, signal.SIGSTOP)
    await processes.until(lambda: processes.alive(1) == {"n2": False, "n3": True}, 3)
    os.killpg(stopped.pid, signal.SIGCONT)
    await processes.until(lambda: processes.alive(1) == {"n2": True, "n3": True}, 3)
    os.killpg(stopped.pid, signal.SIGSTOP)
    await processes.until(lambda: processes.alive(1) == {"n3": True}, 8)  # the stale connection is closed
    os.killpg(stopped.pid, signal.SIGCONT)
    await processes.until(lambda: all(processes.alive(number) == whole[number] for number in whole))

    killed.kill()
    await processes.until(lambda: processes.alive(1) == {"n2": True}, 1)
    killed.start()
    await processes.until(lambda: all(processes.alive(number) == whole[number] for number in whole))
    killed.stop()
    await processes.until(lambda: processes.alive(1) == {"n2": True}, 1)
    assert killed.log().count("Router connection to n1 closed: Server Shutdown") == 1


def test_the_limits_of_a_connection_are_as_documented() -> None:
    assert (peer_link.MAX_PENDING_BYTES, HIGH_WATER) == (64 << 20, 1 << 20)
    assert (peer_link.ALIVE_NS, peer_link.STALE_NS) == (SECOND, 5 * SECOND)
    assert peer_link.WRITE_DEADLINE_NS == 10 * SECOND
