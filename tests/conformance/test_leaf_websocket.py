"""Leaf nodes over WebSocket: lakestream and nats-server on either side."""

from __future__ import annotations

import base64
import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.peer_world import Authority
from tests.conformance.leaf_world import both_ways, copied, create, linked, page, until, wanted
from tests.conftest import StartServer
from tests.servers import Kind, Server, StartFailed
from tests.websocket import Framed, WebSocket, frame
from tests.wire import Closed, Wire

pytestmark = pytest.mark.conformance

SOON_S = 20.0
PAIRS = [(Kind.REAL, Kind.OURS), (Kind.OURS, Kind.REAL), (Kind.OURS, Kind.OURS)]
"""Hub and leaf node. `--against real` does not concern them: each pair says itself who is who."""
both = pytest.mark.parametrize(("hub_is", "leaf_is"), PAIRS, ids=[f"{leaf.name} to {hub.name}" for hub, leaf in PAIRS])
with_real = pytest.mark.parametrize(("hub_is", "leaf_is"), PAIRS[:2], ids=["OURS to REAL", "REAL to OURS"])
SIDES = pytest.mark.parametrize("hub_is", [Kind.OURS, Kind.REAL], ids=["OURS", "REAL"])
CONNECT = (
    b'CONNECT {"version":"2.15.1","server_id":"N","name":"peer","cluster":"peer","remote_account":"$G"}\r\nPING\r\n'
)


def hub_of(start_server: StartServer, of: Kind, websocket: str = "no_tls: true", more: str = "") -> Server:
    """Start a server that accepts leaf nodes over WebSocket."""
    text = (
        f"http: '127.0.0.1:-1'\nleafnodes {{ listen: '127.0.0.1:-1' }}\n"
        f"websocket {{ listen: '127.0.0.1:-1'\n{websocket} }}\n{more}\n"
    )
    return start_server(of=of, config=text, name="hub")


def leaf_of(
    start_server: StartServer, of: Kind, port: int, remote: str = "", more: str = "", scheme: str = "ws", path: str = ""
) -> Server:
    """Start a server that joins a hub over WebSocket."""
    text = (
        f"{more}\nhttp: '127.0.0.1:-1'\nleafnodes {{ reconnect: '200ms'\n"
        f"remotes: [{{ url: '{scheme}://127.0.0.1:{port}{path}'\n{remote} }}] }}\n"
    )
    return start_server(of=of, config=text, name="leaf")


def links(*servers: Server) -> list[dict[str, Any]]:
    """Return the link as both sides show it."""
    return [page(server, "/leafz")["leafs"][0] for server in servers]


@both
@pytest.mark.parametrize(
    ("compressed", "masked"), [(False, True), (True, False)], ids=["plain and masked", "compressed and not masked"]
)
def test_messages_pass_both_ways(
    start_server: StartServer, hub_is: Kind, leaf_is: Kind, compressed: bool, masked: bool
) -> None:
    hub = hub_of(start_server, hub_is, f"no_tls: true, compression: {str(compressed).lower()}")
    wishes = f"ws_compression: {str(compressed).lower()}, ws_no_masking: {str(not masked).lower()}"
    leaf = leaf_of(start_server, leaf_is, hub.websocket_port, wishes)
    assert linked(hub, leaf)["name"] == "leaf"
    assert all(link["websocket"] for link in links(hub, leaf))
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        data = b"large " * 160_000
        for sender, receiver in ((here, there), (there, here)):
            sid = receiver.subscribe("large")
            receiver.ping()
            wanted(sender, "large")
            for _ in range(4):
                sender.publish("large", data)
            until(lambda: receiver.delivered(sid).data == data, "the large one", SOON_S)  # noqa: B023
            receiver.unsubscribe(sid)
            receiver.ping()


@pytest.mark.heavy
@both
def test_a_mirror_comes_over_websocket_and_survives_restarts(
    start_server: StartServer, hub_is: Kind, leaf_is: Kind
) -> None:
    hub = hub_of(start_server, hub_is, more="jetstream { domain: hub }")
    port = hub.websocket_port
    hub.config = (hub.config or "").replace("127.0.0.1:-1'\nno_tls", f"127.0.0.1:{port}'\nno_tls")
    leaf = leaf_of(start_server, leaf_is, port, "ws_compression: true", more="jetstream { domain: leaf }")
    linked(hub, leaf)
    with Wire(hub.address) as here:
        create(here, "ORDERS", subjects=["orders.>"])
        for number in range(100):
            here.publish("orders.a", b"%d" % number)
        here.ping()
    with Wire(leaf.address) as there:
        create(there, "COPY", mirror={"name": "ORDERS", "external": {"api": "$JS.hub.API"}})
        copied(there, "COPY", 100)
        hub.kill()
        until(lambda: not page(leaf, "/leafz")["leafs"], "the leaf node notices", SOON_S)
        hub.start()
        linked(hub, leaf)
        with Wire(hub.address) as here:
            for number in range(100):
                here.publish("orders.a", b"%d" % number)
            here.ping()
        copied(there, "COPY", 200)


@both
def test_tls(start_server: StartServer, tmp_path: Path, hub_is: Kind, leaf_is: Kind) -> None:
    of = Authority(tmp_path, "ca").options("127.0.0.1")
    files = f"cert_file: '{of.cert_file}', key_file: '{of.key_file}', ca_file: '{of.ca_file}'"
    hub = hub_of(start_server, hub_is, f"tls {{ {files}, verify: true }}")
    leaf = leaf_of(start_server, leaf_is, hub.websocket_port, f"tls {{ {files} }}", scheme="wss")
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)


@with_real
def test_a_path_before_the_one_of_leaf_nodes(start_server: StartServer, hub_is: Kind, leaf_is: Kind) -> None:
    hub = hub_of(start_server, hub_is)
    leaf = leaf_of(start_server, leaf_is, hub.websocket_port, path="/through/a%20proxy/")
    linked(hub, leaf)


@with_real
def test_credentials_are_those_of_the_url(start_server: StartServer, hub_is: Kind, leaf_is: Kind) -> None:
    users = "accounts { A { users: [ { user: a, password: secret } ] } }"
    hub = hub_of(start_server, hub_is, more=users)
    port = hub.websocket_port
    url = f"url: 'ws://a:%s@127.0.0.1:{port}'"
    wrong = leaf_of(start_server, leaf_is, port, url % "wrong")
    until(lambda: "Authorization Violation" in wrong.log(), "the hub refuses", SOON_S)
    right = leaf_of(start_server, leaf_is, port, url % "secret")
    assert linked(hub, right)["account"] == "A"


@SIDES
def test_the_greeting_of_a_leaf_node_over_websocket(start_server: StartServer, hub_is: Kind) -> None:
    hub = hub_of(start_server, hub_is, "no_tls: true, compression: true")
    fields = {"X-Forwarded-For": "10.1.2.3", "Sec-WebSocket-Extensions": "permessage-deflate"}
    joined = WebSocket(("127.0.0.1", hub.websocket_port), fields, line="GET /any/leafnode HTTP/1.1")
    info = joined.next()
    assert info.data.startswith(b"INFO ")
    assert b'"compression"' not in info.data
    joined.sendall(CONNECT)
    until(lambda: page(hub, "/leafz")["leafs"], "it is in", SOON_S)
    (link,) = page(hub, "/leafz")["leafs"]
    assert (link["name"], link["account"], link["websocket"]) == ("peer", "$G", True)
    assert "10.1.2.3/127.0.0.1:" in hub.log()
    assert " - lid_ws:" in hub.log()
    joined.close()


@SIDES
def test_the_close_code_of_a_refused_leaf_node(start_server: StartServer, hub_is: Kind) -> None:
    hub = hub_of(start_server, hub_is)
    joined = WebSocket(("127.0.0.1", hub.websocket_port), line="GET /leafnode HTTP/1.1")
    joined.next()
    joined.sendall(b"PUB a 0\r\n\r\n")
    assert joined.until_closed() == [
        Framed("BINARY", b"-ERR 'Authorization Violation'\r\n"),
        Framed("CLOSE", b"1008 Authentication Failure"),
    ]


@SIDES
@pytest.mark.parametrize("kind", ["LEAFNODE", "LEAFNODE_WS"])
def test_a_user_may_be_one_of_leaf_nodes_over_websocket(start_server: StartServer, hub_is: Kind, kind: str) -> None:
    users = f"accounts {{ A {{ users: [ {{ user: a, password: p, allowed_connection_types: [{kind}] }} ] }} }}"
    hub = hub_of(start_server, hub_is, more=users)
    joined = WebSocket(("127.0.0.1", hub.websocket_port), line="GET /leafnode HTTP/1.1")
    joined.next()
    joined.sendall(CONNECT.replace(b'{"version"', b'{"user":"a","pass":"p","version"'))
    said = joined.next().data
    assert said.startswith(b"INFO " if kind == "LEAFNODE_WS" else b"-ERR 'Authorization Violation'")
    joined.close()


@SIDES
def test_a_server_without_a_listener_for_leaf_nodes(start_server: StartServer, hub_is: Kind) -> None:
    hub = start_server(of=hub_is, config="websocket { listen: '127.0.0.1:-1', no_tls: true }\n", name="hub")
    joined = WebSocket(("127.0.0.1", hub.websocket_port), line="GET /leafnode HTTP/1.1")
    assert joined.until_closed() == []
    until(lambda: "Not configured to accept leaf node connections" in hub.log(), "the log says why", SOON_S)


# ---------------------------------------------------------------------- what our leaf node finds at the other end


class Answers:
    """A listener that gives each connection the next of some answers to its request; the last one to all later ones."""

    def __init__(self, *answers: bytes) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.requests: list[bytes] = []
        self._answers = answers
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        answers = itertools.chain(self._answers, itertools.repeat(self._answers[-1]))
        with contextlib.suppress(OSError):
            for answer in answers:
                opened, _ = self._listening.accept()
                opened.settimeout(5)
                got = b""
                while b"\r\n\r\n" not in got and (more := opened.recv(4096)):
                    got += more
                self.requests.append(got)
                opened.sendall(answer)
                opened.close()

    def close(self) -> None:
        """Accept no more."""
        self._listening.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "the WebSocket handshake was refused: 404 Not Found"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "the WebSocket handshake was refused: 200 OK"),
        (b"INFO {}\r\n", "no answer of HTTP to the WebSocket handshake"),
        (b"", "connection closed during the WebSocket handshake"),
        (
            b"HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
            "wrong Sec-WebSocket-Accept",
        ),
    ],
    ids=["404", "200", "a port for NATS", "closed", "wrong accept"],
)
def test_what_is_no_websocket_is_named_in_the_log(start_server: StartServer, answer: bytes, said: str) -> None:
    there = Answers(answer)
    leaf = leaf_of(start_server, Kind.OURS, there.port, path="/wrong")
    until(lambda: said in leaf.log(), said, SOON_S)
    assert there.requests[0].startswith(b"GET /wrong/leafnode HTTP/1.1\r\n")
    there.close()


@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.parametrize("login", ["", "username: u, password: p"], ids=["without a login", "with a login"])
def test_a_proxy_of_http(start_server: StartServer, tmp_path: Path, scheme: str, login: str) -> None:
    of = Authority(tmp_path, "ca").options("127.0.0.1")
    files = f"tls {{ cert_file: '{of.cert_file}', key_file: '{of.key_file}', ca_file: '{of.ca_file}' }}"
    hub = hub_of(start_server, Kind.REAL, files if scheme == "wss" else "no_tls: true")
    with tunnel() as proxy:
        remote = f"proxy {{ url: 'http://127.0.0.1:{proxy.port}', {login} }}\n{files if scheme == 'wss' else ''}"
        leaf = leaf_of(start_server, Kind.OURS, hub.websocket_port, remote, scheme=scheme)
        linked(hub, leaf)
        with Wire(hub.address) as here, Wire(leaf.address) as there:
            both_ways(here, there)
        wish = b"Proxy-Authorization: Basic " + base64.b64encode(b"u:p")
        assert proxy.requests[0].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % hub.websocket_port)
        assert (wish in proxy.requests[0]) is bool(login)
        leaf.kill()


@pytest.mark.parametrize("url", ["http://p:99999", "http://p:x", "http://[p"])
def test_a_proxy_s_url_that_is_none(start_server: StartServer, url: str) -> None:
    with pytest.raises(StartFailed, match=r"\.conf:\d+:\d+: invalid proxy URL"):
        leaf_of(start_server, Kind.OURS, 1, f"proxy {{ url: '{url}' }}")


def test_a_proxy_that_refuses(start_server: StartServer) -> None:
    there = Answers(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
    leaf = leaf_of(start_server, Kind.OURS, 1, f"proxy {{ url: 'http://127.0.0.1:{there.port}' }}")
    until(
        lambda: "CONNECT failed: HTTP/1.1 407 Proxy Authentication Required" in leaf.log(), "the log says why", SOON_S
    )
    there.close()


class Tunnel:
    """A proxy of HTTP that passes bytes on."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                opened, _ = self._listening.accept()
                got = b""
                while b"\r\n\r\n" not in got and (more := opened.recv(4096)):
                    got += more
                self.requests.append(got)
                host, _, port = got.split()[1].decode().rpartition(":")
                there = socket.create_connection((host, int(port)))
                opened.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                for source, sink in ((opened, there), (there, opened)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        self._listening.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def tunnel() -> Iterator[Tunnel]:
    """Yield a proxy."""
    made = Tunnel()
    try:
        yield made
    finally:
        made.close()


def test_a_leaf_node_that_sends_wrong_frames_is_closed(start_server: StartServer) -> None:
    hub = hub_of(start_server, Kind.OURS)
    joined = WebSocket(("127.0.0.1", hub.websocket_port), line="GET /leafnode HTTP/1.1")
    joined.next()
    joined.send_raw(frame(3, b"x"))
    assert joined.until_closed() == [Framed("CLOSE", b"1002 unknown opcode 3")]
    with pytest.raises(Closed):
        joined.next()
    until(lambda: "Leafnode connection closed" in hub.log(), "it is gone", SOON_S)
