"""Nodes that consist only of their route connections, in one event loop, for tests of `RoutePeers`.

Belongs here: such nodes and their events, a raw connection to one, and certificates for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lakestream.config.options import ClusterOptions, RouteUrl, TlsOptions
from lakestream.logging import Logger
from lakestream.net.identity import new_server_id
from lakestream.net.peers.peers import RoutePeers
from lakestream.protocol import peer_wire as wire
from lakestream.protocol.peer_wire import FrameReader, Hello, NodeInfo
from lakestream.raft.group.ports import Channel
from lakestream.runtime import LoopClock
from tests.cluster.nodes import free_ports

WAIT_S = 10.0


class Lines(Logger):
    """Log handler that keeps its lines."""

    def __init__(self) -> None:
        super().__init__(logtime=False)
        self.lines: list[str] = []

    def _write(self, level: str, text: str) -> None:
        self.lines.append(f"[{level}] {text}")

    def with_text(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]


class Node:
    """One `RoutePeers` and the events that it reported."""

    def __init__(self, world: World, name: str, /, **options: Any) -> None:
        self.world = world
        self.log = Lines()
        fields = {"name": "C", "host": "127.0.0.1", "port": -1} | options
        clock = LoopClock(asyncio.get_running_loop(), self.log)
        me = NodeInfo(name=name, server_id=new_server_id(), jetstream=True, tags=(f"tag-{name}",))
        self.peers = RoutePeers(me, ClusterOptions(**fields), clock, self.log)
        self.got: list[tuple[str, bytes]] = []
        self.events: list[tuple[str, bool]] = []
        self.links: list[tuple[str, bool]] = []
        self.peers.receive(Channel.RAFT, self._received)
        self.peers.watch(lambda node, up: self._note(self.events, (node, up)))
        self.peers.watch_links(lambda node, up: self._note(self.links, (node.name, up)))
        self.peers.watch_nodes(lambda node: world.changed.set())

    def _received(self, node: str, payload: bytes) -> None:
        self._note(self.got, (node, payload))

    def _note(self, where: list[Any], what: Any) -> None:
        where.append(what)
        self.world.changed.set()

    @property
    def failures(self) -> int:
        """Return the number of consecutive failed attempts at the first configured route."""
        return self.peers._dialler._explicit[0].failures

    @property
    def url(self) -> RouteUrl:
        return RouteUrl("127.0.0.1", self.peers.bound_port)

    async def start(self) -> Node:
        await self.peers.listen()
        await self.peers.start()
        return self


class World:
    """Nodes in this event loop."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.strangers: list[Stranger] = []
        self.changed = asyncio.Event()

    def make(self, name: str, /, **options: Any) -> Node:
        self.nodes.append(Node(self, name, **options))
        return self.nodes[-1]

    async def node(self, name: str, /, *routes: Node | RouteUrl, **options: Any) -> Node:
        urls = tuple(route.url if isinstance(route, Node) else route for route in routes)
        return await self.make(name, routes=urls, **options).start()

    async def stranger(self, node: Node) -> Stranger:
        """Return an established raw connection. It is kept, because the garbage collector would close it."""
        stranger = await Stranger.to(node)
        self.strangers.append(stranger)
        stranger.hello()
        assert isinstance(await stranger.read(), Hello)
        stranger.writer.write(wire.encode_control(wire.PeerReady()))
        await self.until(lambda: node.peers.connected())
        return stranger

    async def until(self, ready: Callable[[], Any], timeout: float = WAIT_S) -> None:
        """Wait until `ready` is true: check at every event, and ten times a second for what causes no event."""
        async with asyncio.timeout(timeout):
            while not ready():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.1)

    async def together(self, *nodes: Node) -> None:
        """Wait until each of these nodes is connected to all others."""
        names = {node.peers.me for node in nodes}
        await self.until(lambda: all({*node.peers.connected(), node.peers.me} >= names for node in nodes))


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def ipv6_works() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class Stranger:
    """A raw connection to a node's route port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader(wire.MAX_FRAME_BYTES)
        self.waiting: list[wire.Control] = []

    @classmethod
    async def to(cls, node: Node) -> Stranger:
        return cls(*await asyncio.open_connection("127.0.0.1", node.peers.bound_port))

    def hello(self, name: str = "stranger", attempt: str = "x", **fields: Any) -> None:
        me = NodeInfo(name=name, server_id=f"id of {name}", cluster="C")
        self.writer.write(wire.encode_control(Hello(wire.PROTOCOL, me, attempt, **fields)))

    async def read(self) -> wire.Control | None:
        """Return the next control record; None at the end of the connection."""
        async with asyncio.timeout(WAIT_S):
            while not self.waiting:
                data = await self.reader.read(1 << 16)
                if not data:
                    return None
                self.waiting += [
                    wire.decode_control(payload) for channel, payload in self.frames.feed(data) if not channel
                ]
        return self.waiting.pop(0)


class Authority:
    """Certificate authority and the certificates that it signs, as files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._builder(self.subject, self.key).add_extension(x509.BasicConstraints(True, None), True)
        self.file = self._write(f"{name}.pem", signed.sign(self.key, hashes.SHA256()))

    def options(self, host: str, **changes: Any) -> TlsOptions:
        """Return certificate and key for a node with this name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            san: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            san = x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        builder = self._builder(subject, key).add_extension(x509.SubjectAlternativeName([san]), False)
        cert = self._write(f"{self.name}-{host}.pem", builder.sign(self.key, hashes.SHA256()))
        file = self.folder / f"{self.name}-{host}.key"
        plain = serialization.NoEncryption()
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return TlsOptions(**({"cert_file": cert, "key_file": str(file), "ca_file": self.file} | changes))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - day).not_valid_after(now + day)

    def _write(self, name: str, certificate: x509.Certificate) -> str:
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)
