"""Tests of a listener with real sockets: set-up, its ends, TLS by name, reloads, and limits."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lakestream.config.options import SECOND, TlsOptions
from lakestream.net.listener import (
    EXHAUSTED_PAUSE_NS,
    HANDSHAKE_FAILED,
    HANDSHAKES_IN_A_TURN,
    THROTTLED,
    Arrival,
    Listener,
    ListenError,
    RateLimit,
    SetupError,
    TlsEntry,
    bind,
    peer_of,
)
from lakestream.net.tls import ServerContext, TlsError
from lakestream.runtime import LoopClock
from tests.certificates import client_context, fingerprint, write
from tests.unit.api_world import KeptLog
from tests.unit.stream_world import ManualClock

pytestmark = pytest.mark.unit

WAIT_S = 5.0
GREETING = b"INFO {}\r\n"


class PausingClock(LoopClock):
    """A clock whose timers are kept for the test."""

    def __init__(self, log: KeptLog) -> None:
        super().__init__(asyncio.get_running_loop(), log)
        self.pauses: list[tuple[int, Callable[[], None]]] = []

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.pauses.append((delay_ns, callback))
        return asyncio.get_running_loop().call_later(1e6, callback)


class Peer(Arrival):
    """A connection that records its life."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.error: SetupError | None = None
        self.source = ("", 0)
        self.data = b""
        self.transport: asyncio.Transport | None = None
        self.changed = asyncio.Event()

    def arrived(self, host: str, port: int) -> None:
        self.source = (host, port)
        if self._world.full:
            raise SetupError("", "Maximum Connections Exceeded", "debug", error="maximum connections exceeded")

    def greeting(self) -> bytes:
        return GREETING

    def came_from(self, host: str, port: int) -> None:
        self.source = (host, port)

    def failed(self, error: SetupError) -> bytes:
        self.error = error
        self.changed.set()
        return f"-ERR '{error.error}'\r\n".encode() if error.error else b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def ended(self) -> SetupError:
        """Return the error with which the set-up ends."""
        await self.until(lambda: self.error is not None)
        assert self.error is not None
        return self.error


class World:
    """A listener at a free port of the loopback interface, and its connections."""

    def __init__(self, certificates: Path) -> None:
        self.certificates = certificates
        self.log = KeptLog()
        self.clock = PausingClock(self.log)
        self.full = False
        self.peers: list[Peer] = []
        self.arrival = asyncio.Event()
        self.listener: Listener

    async def listen(self, tls: TlsEntry | None = None, *, proxied: bool = False) -> None:
        self.listener = Listener(bind("127.0.0.1", -1), self._made, self.clock, tls=tls, proxied=proxied)
        await self.listener.start()

    def _made(self) -> Peer:
        self.peers.append(Peer(self))
        self.arrival.set()
        return self.peers[-1]

    def entry(
        self, *, optional: bool = False, admits: Callable[[], bool] = lambda: True, **options: object
    ) -> TlsEntry:
        files = {"cert_file": f"{self.certificates}/server.pem", "key_file": f"{self.certificates}/server.key"}
        options = files | options if "certs" not in options else options
        return TlsEntry(server=ServerContext(TlsOptions(**options)), optional=optional, admits=admits)  # type: ignore[arg-type]

    async def plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.listener.port)

    async def secure(self, certificate: str = "", name: str = "localhost") -> str:
        """Connect with TLS after the greeting; return the common name that the server shows."""
        reader, writer = await self.plain()
        assert await reader.readexactly(len(GREETING)) == GREETING
        context = client_context(self.certificates, certificate)
        context.check_hostname = False
        await writer.start_tls(context, server_hostname=name)
        shown = writer.get_extra_info("ssl_object").getpeercert()
        writer.write(b"PING\r\n")
        return str(dict(pair for rdn in shown["subject"] for pair in rdn)["commonName"])

    async def peer(self, number: int = 0) -> Peer:
        """Return a connection; wait until it is there."""
        async with asyncio.timeout(WAIT_S):
            while len(self.peers) <= number:
                self.arrival.clear()
                await self.arrival.wait()
        return self.peers[number]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of certificates."""
    directory = tmp_path_factory.mktemp("listener") / "certificates"
    write(directory)
    return directory


@pytest.fixture
async def world(certificates: Path) -> AsyncIterator[World]:
    """Yield a world; close what is open in it."""
    made = World(certificates)
    yield made
    made.listener.close()
    await made.clock.cancel_all()
    for peer in made.peers:
        if peer.transport is not None:
            peer.transport.abort()


# ---------------------------------------------------------------------- addresses


def test_addresses() -> None:
    assert peer_of(("::ffff:192.0.2.1", 5, 0, 0)) == ("192.0.2.1", 5)
    assert peer_of(("2001:db8::1", 5, 0, 0)) == ("2001:db8::1", 5)
    assert peer_of("") == ("", 0)


def test_a_name_with_addresses_of_both_kinds_is_that_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: both)
    with bind("both.example.com", -1) as bound:
        assert bound.getsockname()[0] == "127.0.0.1"


def test_an_address_that_is_taken() -> None:
    with bind("127.0.0.1", -1) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"listen tcp 127.0.0.1:{port}: bind: address already in use"):
            bind("127.0.0.1", port)
    with pytest.raises(ListenError, match="listen tcp: address 65536: invalid port"):
        bind("127.0.0.1", 65536)


# ---------------------------------------------------------------------- set-up


async def test_tls_follows_the_greeting_and_early_bytes_stay(world: World) -> None:
    await world.listen(world.entry())
    assert await world.secure() == "localhost"
    peer = await world.peer()
    await peer.until(lambda: peer.data == b"PING\r\n")
    assert (peer.greeted, peer.tls_first) == (True, False)
    assert peer.secured_by is not None


async def test_plain_text_where_tls_is_optional(world: World) -> None:
    await world.listen(world.entry(optional=True))
    _, writer = await world.plain()
    writer.write(b"PING\r\n")
    peer = await world.peer()
    await peer.until(lambda: peer.data == b"PING\r\n")
    assert peer.secured_by is None


@pytest.mark.parametrize(
    ("sent", "text", "http"),
    [
        (b"PING\r\n", "TLS handshake error: tls: first record does not look like a TLS handshake", False),
        (b"GET / HTTP/1.1\r\n\r\n", "TLS handshake error: tls: first record does not look like a TLS handshake", True),
        (b"", "TLS handshake error: EOF", False),
        (b"\x16\x03\x01\x00\x05hello", "TLS handshake error: tls: ", False),
    ],
)
async def test_garbage_instead_of_a_handshake(world: World, sent: bytes, text: str, http: bool) -> None:
    await world.listen(world.entry())
    reader, writer = await world.plain()
    assert await reader.readexactly(len(GREETING)) == GREETING
    writer.write(sent)
    writer.write_eof()
    error = await (await world.peer()).ended()
    assert str(error).startswith(text)
    assert (error.reason, error.http) == (HANDSHAKE_FAILED, http)
    assert world.log.errors == []


@pytest.mark.parametrize("first", [True, False])
async def test_a_client_that_sends_nothing(world: World, first: bool) -> None:
    await world.listen(world.entry(first=first, timeout_ns=SECOND // 50))
    reader, _ = await world.plain()
    error = await (await world.peer()).ended()
    assert (str(error), error.level) == ("TLS handshake error: i/o timeout", "debug")
    assert await reader.read() == (b"" if first else GREETING)


async def test_a_connection_that_is_ended_during_its_set_up(world: World) -> None:
    await world.listen(world.entry())
    reader, _ = await world.plain()
    await reader.readexactly(len(GREETING))
    peer = await world.peer()
    assert peer.abandon is not None
    peer.abandon()
    assert (await peer.ended()).reason == "Client Closed"
    assert await reader.read() == b""


async def test_a_listener_that_closes_leaves_connections_in_their_set_up(world: World) -> None:
    await world.listen(world.entry())
    reader, writer = await world.plain()
    await reader.readexactly(len(GREETING))
    port = world.listener.port
    world.listener.close()
    await writer.start_tls(client_context(world.certificates), server_hostname="localhost")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_rejected_client_is_told_why(world: World) -> None:
    await world.listen(world.entry())
    world.full = True
    reader, _ = await world.plain()
    assert await reader.read() == GREETING + b"-ERR 'maximum connections exceeded'\r\n"


# ---------------------------------------------------------------------- certificates


async def test_the_certificate_is_chosen_by_the_name_that_is_asked_for(world: World) -> None:
    names = [f"{world.certificates}/{name}" for name in ("server", "inner")]
    await world.listen(world.entry(certs=tuple((f"{name}.pem", f"{name}.key") for name in names)))
    asked = ["localhost", "a.example", "A.Example", "x.inner.example", "x.y.inner.example", "unknown.example"]
    shown = [await world.secure(name=name) for name in asked]
    assert shown == ["localhost", "a.example", "a.example", "a.example", "localhost", "localhost"]


async def test_pinned_certificates(world: World) -> None:
    pin = fingerprint(world.certificates, "ann")
    entry = world.entry(ca_file=f"{world.certificates}/ca.pem", verify=True, pinned_certs=(pin,))
    await world.listen(entry)
    for number, name in enumerate(("ann", "dns")):
        await world.secure(name)
        peer = await world.peer(number)
        await peer.until(lambda peer=peer: peer.transport is not None)  # type: ignore[misc]
        assert peer.transport is not None
        connection = peer.transport.get_extra_info("ssl_object")
        chain = entry.server.state(connection, first=False).chain
        assert [each.known_subject for each in chain] == [f"CN={name}", "CN=ca"]
        assert entry.server.is_pinned(chain) == (name == "ann")
    assert not entry.server.is_pinned(())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "tls: client didn't provide a certificate"),
        ("impostor", "tls: failed to verify certificate: x509: certificate signed by unknown authority"),
        (
            "late",
            "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: it has expired",
        ),
        (
            "early",
            "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: it is not yet valid",
        ),
    ],
)
async def test_certificates_that_are_not_accepted(world: World, name: str, text: str) -> None:
    await world.listen(world.entry(ca_file=f"{world.certificates}/ca.pem", verify=True))
    await world.secure(name)  # with TLS 1.3 a client learns of it later
    error = await (await world.peer()).ended()
    assert str(error) == f"TLS handshake error: {text}"


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_gets_the_alert_of_its_failed_handshake(world: World, newest: ssl.TLSVersion) -> None:
    await world.listen(world.entry(ca_file=f"{world.certificates}/ca.pem", verify=True, first=True))
    context = client_context(world.certificates, "late")
    context.maximum_version = newest

    async def read() -> None:
        reader, _ = await asyncio.open_connection("localhost", world.listener.port, ssl=context)
        await reader.read()  # with TLS 1.3 a client learns of it later

    with pytest.raises(ssl.SSLError, match="CERTIFICATE_EXPIRED"):
        await read()


def test_a_file_that_cannot_be_used(certificates: Path) -> None:
    with pytest.raises(TlsError, match=r"tls: cannot read '/nope\.pem'"):
        ServerContext(TlsOptions(cert_file="/nope.pem", key_file="/nope.key"))
    with pytest.raises(TlsError, match="No such file"):
        ServerContext(TlsOptions(verify=True, ca_file=f"{certificates}/nope.pem"))


async def test_a_reload_turns_tls_on_changes_it_and_turns_it_off(world: World) -> None:
    await world.listen()
    _, writer = await world.plain()
    writer.write(b"1")
    before = await world.peer()
    await before.until(lambda: before.data == b"1")
    world.listener.secure(world.entry())
    assert await world.secure() == "localhost"
    names = f"{world.certificates}/second"
    world.listener.secure(world.entry(cert_file=f"{names}.pem", key_file=f"{names}.key"))
    assert await world.secure() == "second"
    world.listener.secure(None)
    _, last = await world.plain()
    last.write(b"PING\r\n")
    peer = await world.peer(3)
    await peer.until(lambda: peer.data == b"PING\r\n" or peer.error is not None)
    writer.write(b"2")
    await before.until(lambda: before.data == b"12")


# ---------------------------------------------------------------------- PROXY headers


async def test_a_header_before_tls_names_the_client(world: World) -> None:
    await world.listen(world.entry(), proxied=True)
    reader, writer = await world.plain()
    await reader.readexactly(len(GREETING))
    for piece in (b"PRO", b"XY TCP4 192.0.2.1 192.0.2.2 ", b"7 4222\r", b"\n"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    await writer.start_tls(client_context(world.certificates), server_hostname="localhost")
    assert (await world.peer()).source == ("192.0.2.1", 7)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"PROXY TCP4 x\r\n", "invalid PROXY protocol header: invalid v1 format"),
        (b"PROXY " + b"x" * 200, "invalid PROXY protocol header: v1 line too long"),
        (b"PROXY TCP4", "failed to read v1 line: EOF"),
        (b"\r\n\r\n\x00\rxxxxxxxxxxxx", "invalid PROXY protocol header: invalid signature"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0cxx", "failed to read v2 header: EOF"),
        (b"PR", "failed to read protocol version: EOF"),
    ],
)
async def test_a_wrong_header_ends_the_connection(world: World, sent: bytes, text: str) -> None:
    await world.listen(proxied=True)
    _, writer = await world.plain()
    writer.write(sent)
    writer.write_eof()
    error = await (await world.peer()).ended()
    assert str(error).partition(": ")[2] == text
    assert error.level == "warn"


# ---------------------------------------------------------------------- limits


async def test_clients_that_come_together_are_all_served(world: World) -> None:
    await world.listen(world.entry())
    count = 4 * HANDSHAKES_IN_A_TURN
    async with asyncio.timeout(4 * WAIT_S):
        assert await asyncio.gather(*(world.secure() for _ in range(count))) == ["localhost"] * count


async def test_a_client_that_is_given_up_while_it_waits_does_not_hold_up_the_others(world: World) -> None:
    await world.listen(world.entry())
    hello = _hello()
    writers = [(await world.plain())[1] for _ in range(4 * HANDSHAKES_IN_A_TURN)]
    for writer in writers:
        writer.write(hello)
    await world.peer(len(writers) - 1)
    for peer in world.peers:
        if peer.abandon is not None:
            peer.abandon()
    assert await world.secure() == "localhost"


def _hello() -> bytes:
    """Return the first record of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


async def test_a_process_without_file_descriptors_pauses(world: World) -> None:
    await world.listen(world.entry())
    client = socket.socket()
    client.setblocking(False)
    spare = os.open("/", os.O_RDONLY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        client.connect_ex(("127.0.0.1", world.listener.port))
        async with asyncio.timeout(WAIT_S):
            while not world.clock.pauses:
                await asyncio.sleep(0.001)
        assert world.peers == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ((pause_ns, again),) = world.clock.pauses
    assert pause_ns == EXHAUSTED_PAUSE_NS
    again()
    await world.peer()
    client.close()


async def test_handshakes_over_the_rate_are_rejected_in_plain_text(world: World) -> None:
    limit = RateLimit(1, world.clock, world.log)
    await world.listen(world.entry(admits=limit.admits))
    assert await world.secure() == "localhost"
    reader, _ = await world.plain()
    assert await reader.read() == GREETING + f"-ERR '{THROTTLED}'\r\n".encode()


def test_the_rate_is_counted_by_the_second_and_rejections_are_logged_once() -> None:
    clock, log = ManualClock(), KeptLog()
    limit = RateLimit(2, clock, log)
    assert [limit.admits() for _ in range(5)] == [True, True, False, False, False]
    clock.advance(SECOND)
    assert [limit.admits() for _ in range(3)] == [True, True, False]
    clock.advance(SECOND)
    assert log.warnings == [f"Rejected {count} connections due to TLS rate limiting" for count in (3, 1)]


def test_a_rate_of_nothing_is_no_limit() -> None:
    limit = RateLimit(0, ManualClock(), KeptLog())
    assert all(limit.admits() for _ in range(1000))
