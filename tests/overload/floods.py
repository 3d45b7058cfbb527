"""Floods: processes that load a server as fast as they can, and count what it tells them.

Belongs here: one function for each kind of flood, run by `flooding` in a process of its own. Each returns when it is
told to stop; errors and statuses of the server are counted by their text.
"""

from __future__ import annotations

import base64
import contextlib
import json
import multiprocessing
import os
import queue
import re
import secrets
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lakestream.protocol import peer_wire, route_wire
from lakestream.raft.group.ports import Channel

TOLD = re.compile(
    rb"-ERR '([^'\r\n]*)'|NATS/1\.0 (4\d\d[^\r\n]*|5\d\d[^\r\n]*)|\"err_code\":(\d+)|HTTP/1\.1 ([45]\d\d[^\r\n]*)|"
    rb"\0C([0-9A-Z]{5})\0"
)
READ_SIZE = 1 << 20
FAILED = "flood failed: "
"""Begins what a flood that ended by itself has told: it has loaded nobody."""

Told = Counter[str]


class Flood:
    """Place and end of a flood.

    Attributes:
        host: of the server.
        ports: of its listeners; `client` is one.
        login: fields of CONNECT.
    """

    def __init__(self, host: str, ports: Mapping[str, int], login: dict[str, Any], stop: Callable[[], bool]) -> None:
        self.host, self.ports, self.login, self.stopped = host, ports, login, stop
        self.told: Told = Counter()

    @property
    def connect(self) -> bytes:
        """Return the CONNECT of a client."""
        usual = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        return b"CONNECT " + json.dumps({**usual, **self.login}).encode() + b"\r\n"

    def open(self, receive_buffer: int = 0, port: str = "client") -> socket.socket:
        """Return a connection that has not sent anything yet. `receive_buffer`: bytes that its kernel takes unread."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect((self.host, self.ports[port]))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def listen(self, data: bytes) -> None:
        """Count what the server tells."""
        for found in TOLD.finditer(data):
            self.told[b" ".join(filter(None, found.groups())).decode("latin-1")] += 1


Work = Callable[..., None]


def _process(work: Work, host: str, ports: Any, login: Any, core: int, stop: Any, told: Any, some: Any) -> None:
    os.sched_setaffinity(0, {core})
    flood = Flood(host, ports, login, stop.is_set)
    try:
        work(flood, **some)
    except BaseException as error:
        flood.told[f"{FAILED}{error!r}"] += 1
        raise
    finally:
        told.put(dict(flood.told))


class Flooding:
    """Running floods."""

    def __init__(
        self,
        works: Iterable[tuple[Work, dict[str, Any]]],
        host: str,
        ports: Mapping[str, int],
        login: dict[str, Any],
        core: int,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop, self._told = context.Event(), context.Queue()
        common = (host, ports, login, core, self._stop, self._told)
        self._processes = [
            context.Process(target=_process, args=(work, *common, some), daemon=True) for work, some in works
        ]
        for process in self._processes:
            process.start()

    def end(self, patience_s: float = 15.0) -> Told:
        """Stop them; return what the server told them."""
        self._stop.set()
        told: Told = Counter()
        for _ in self._processes:
            with contextlib.suppress(queue.Empty):
                told.update(self._told.get(timeout=patience_s))
        for process in self._processes:
            process.join(patience_s)
            process.kill()
        return told


# ---------------------------------------------------------------------- clients that send, and read or do not
def blast(
    flood: Flood,
    *,
    connections: int,
    chunk: bytes | list[bytes],
    port: str = "client",
    hello: bytes | Callable[[int], bytes] | None = None,
    first: bytes = b"",
    reads: bool = True,
    again: bool = False,
    pause_s: float = 0.0,
    times: int = 0,
) -> None:
    """Send `hello` and `first`, then the chunks without end on each connection.

    Args:
        chunk: the bytes, or several pieces that are sent in turn.
        hello: None: CONNECT of a client; a function gets the number of the connection.
        reads: read what the server sends; otherwise nothing, ever.
        again: open a new connection for one that the server closed.
        pause_s: pause of a connection between two chunks.
        times: chunks of each connection; 0: without end.
    """
    chunks = [chunk] if isinstance(chunk, bytes) else chunk
    selector = selectors.DefaultSelector()

    class Client:
        def __init__(self, number: int) -> None:
            self.sock = flood.open(0 if reads else 4096, port)
            self.sock.setblocking(False)
            if callable(hello):
                begin = hello(number) + first
            else:
                begin = ((flood.connect if hello is None else hello) + first).replace(b"@", b"%d" % number)
            self.out = memoryview(begin)
            self.number = self.at = number
            self.sent, self.due = 0, 0.0

        def write(self) -> None:
            if not self.out:
                if (times and self.sent >= times) or (pause_s and time.monotonic() < self.due):
                    return
                self.out = memoryview(chunks[self.at % len(chunks)])
                self.at, self.sent, self.due = self.at + 1, self.sent + 1, time.monotonic() + pause_s
            self.out = self.out[self.sock.send(self.out[: 1 << 20]) :]

    def join(number: int) -> None:
        try:
            client = Client(number)
        except OSError as error:
            flood.told[f"connect: {error.strerror}"] += 1
            return
        events = selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0)
        selector.register(client.sock, events, client)

    for number in range(connections):
        join(number)
    while not flood.stopped() and selector.get_map():
        ready = selector.select(0.05)
        for key, events in ready:
            client: Client = key.data
            try:
                if events & selectors.EVENT_READ:
                    data = client.sock.recv(READ_SIZE)
                    if not data:
                        raise ConnectionResetError
                    flood.listen(data)
                if events & selectors.EVENT_WRITE:
                    client.write()
            except BlockingIOError:
                pass
            except OSError:
                flood.told["closed"] += 1
                selector.unregister(client.sock)
                client.sock.close()
                if again:
                    join(client.number)
        if pause_s or times:
            time.sleep(0.002)
    if not reads:
        return
    until = time.monotonic() + 0.5  # what was told last
    while time.monotonic() < until and selector.get_map():
        for key, _ in selector.select(0.1):
            with contextlib.suppress(OSError):
                flood.listen(key.data.sock.recv(READ_SIZE))


def sleepers(flood: Flood, *, connections: int, first: bytes, starts: int = 200) -> None:
    """Open many connections, `starts` at a time; each sends `first` and then nothing but answers to PING."""
    selector, opened = selectors.DefaultSelector(), 0
    while not flood.stopped():
        for _ in range(min(starts, connections - opened)):
            try:
                sock = flood.open()
            except OSError as error:
                flood.told[f"connect: {error.strerror}"] += 1
                break
            sock.sendall(flood.connect + first.replace(b"@", b"%d" % opened))
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
            opened += 1
        for key, _ in selector.select(0.02):
            assert isinstance(key.fileobj, socket.socket)
            try:
                data = key.fileobj.recv(1 << 16)
                flood.listen(data)
                if b"PING\r\n" in data:
                    key.fileobj.send(b"PONG\r\n")
                if data:
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            flood.told["closed"] += 1
            selector.unregister(key.fileobj)
            key.fileobj.close()


# ---------------------------------------------------------------------- connections
def churn(flood: Flood, *, polite: bool) -> None:
    """Connect and leave, as fast as possible: after a PONG, or without having said a word."""
    while not flood.stopped():
        try:
            sock = flood.open()
        except OSError as error:
            flood.told[f"connect: {error.strerror}"] += 1
            time.sleep(0.01)
            continue
        with sock, contextlib.suppress(OSError):
            sock.settimeout(5)
            if polite:
                sock.sendall(flood.connect + b"SUB churn 1\r\nPING\r\n")
                data = b""
                while b"PONG" not in data and (more := sock.recv(1 << 16)):
                    data += more
                flood.listen(data)
            else:
                # A reset, so that no port waits at this end.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def unfinished(flood: Flood, *, connections: int, start: bytes, drip: bytes = b"", port: str = "client") -> None:
    """Keep so many connections open that send `start`, then `drip` byte by byte; one that ends is replaced."""
    address = flood.host, flood.ports[port]
    selector: selectors.BaseSelector = selectors.DefaultSelector()
    opened: dict[socket.socket, int] = {}
    while not flood.stopped():
        for _ in range(min(100, connections - len(opened))):
            try:
                sock = socket.create_connection(address, 5)
            except OSError as error:
                flood.told[f"connect: {error.strerror}"] += 1
                break
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.send(start)
            opened[sock] = 0
            selector.register(sock, selectors.EVENT_READ)
        for key, _ in selector.select(0.05):
            assert isinstance(key.fileobj, socket.socket)
            try:
                data = key.fileobj.recv(1 << 16)
                flood.listen(data)
            except OSError:
                data = b""
            if not data:
                flood.told["closed"] += 1
                selector.unregister(key.fileobj)
                key.fileobj.close()
                del opened[key.fileobj]
        for sock, at in list(opened.items()) if drip else ():
            with contextlib.suppress(OSError):
                sock.send(drip[at % len(drip) :][:1])
            opened[sock] = at + 1


def handshakes(flood: Flood, *, authority: str, parallel: int) -> None:
    """Do whole TLS handshakes, as fast as possible, and leave."""
    from concurrent.futures import ThreadPoolExecutor

    context = ssl.create_default_context(cafile=str(Path(authority)))

    def one() -> None:
        while not flood.stopped():
            try:
                with flood.open() as sock:
                    sock.settimeout(5)
                    flood.listen(sock.recv(1 << 16))
                    with context.wrap_socket(sock, server_hostname="localhost") as secure:
                        secure.sendall(flood.connect + b"PING\r\n")
                        secure.recv(1 << 16)
            except OSError as error:
                flood.told[f"handshake: {type(error).__name__}"] += 1

    with ThreadPoolExecutor(parallel) as pool:
        for _ in range(parallel):
            pool.submit(one)


# ---------------------------------------------------------------------- nodes
def hello(number: int, *, cluster: str, name: str, protocol: int = peer_wire.PROTOCOL) -> bytes:
    """Return HELLO and READY of a node without JetStream, at its next start; pipelined, as nothing has to be read."""
    node = peer_wire.NodeInfo(
        name=f"{name}{number}",
        server_id=secrets.token_hex(8),
        cluster=cluster,
        accounts=True,
        runs=True,
        stored=True,
        headed=True,
    )
    greeting = peer_wire.Hello(protocol, node, secrets.token_hex(8))
    return peer_wire.encode_control(greeting) + peer_wire.encode_control(peer_wire.PeerReady())


def routed(records: Sequence[route_wire.Record]) -> bytes:
    """Return a buffer of interest and messages between nodes."""
    buffer = route_wire.encode(records)
    return peer_wire.frame_head(Channel.ROUTE, len(buffer)) + buffer


PING = peer_wire.encode_control(peer_wire.PeerPing(1))


# ---------------------------------------------------------------------- SQL
def postgres_startup(user: str) -> bytes:
    """Return the first message of a client of Postgres."""
    body = (3 << 16).to_bytes(4, "big") + f"user\0{user}\0database\0lake\0\0".encode()
    return (len(body) + 4).to_bytes(4, "big") + body


def postgres_query(text: str) -> bytes:
    """Return a query in Postgres' simple protocol."""
    return b"Q" + (len(text) + 5).to_bytes(4, "big") + text.encode() + b"\0"


def flight(flood: Flood, *, clients: int, reads: bool) -> None:
    """Ask for large results over Flight SQL, each client one after the other, and log in wrongly in between.

    Args:
        clients: threads, each with connections of its own.
        reads: read the results; otherwise the first batch of each, of at most 20 at a time.
    """
    from concurrent.futures import ThreadPoolExecutor

    import pyarrow as pa
    from pyarrow import flight as arrow_flight

    from lakestream_flight import messages

    query = "SELECT range, repeat('x', 500) AS x FROM range(90000)"
    descriptor = arrow_flight.FlightDescriptor.for_command(messages.pack("CommandStatementQuery", {1: query.encode()}))

    def options(user: str) -> Any:
        login = b"Basic " + base64.b64encode(f"{user}:a".encode())
        return arrow_flight.FlightCallOptions(headers=[(b"authorization", login)], timeout=10)

    def one() -> None:
        unread: list[Any] = []
        while not flood.stopped():
            try:
                with contextlib.suppress(arrow_flight.FlightUnauthenticatedError):
                    arrow_flight.connect((flood.host, flood.ports["flight"])).get_flight_info(descriptor, options("b"))
                client = arrow_flight.connect((flood.host, flood.ports["flight"]))
                info = client.get_flight_info(descriptor, options("a"))
                reader = client.do_get(info.endpoints[0].ticket, options("a"))
                if reads:
                    reader.read_all()
                    client.close()
                else:
                    reader.read_chunk()
                    unread = [*unread[-19:], (client, reader)]
            except pa.ArrowException as error:
                flood.told[str(error).partition(".")[0][:80]] += 1

    with ThreadPoolExecutor(clients) as pool:
        for _ in range(clients):
            pool.submit(one)


# ---------------------------------------------------------------------- WebSocket
def websocket_head() -> bytes:
    """Return the request of a handshake."""
    key = base64.b64encode(os.urandom(16))
    return (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: %b\r\nSec-WebSocket-Version: 13\r\n\r\n" % key
    )


def frame(data: bytes, opcode: int = 2, final: bool = True) -> bytes:
    """Return a masked frame (with a mask of zeros)."""
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    if size > 0xFFFF:
        length = b"\xff" + size.to_bytes(8, "big")
    return bytes([(0x80 if final else 0) | opcode]) + length + bytes(4) + data


def websocket(flood: Flood, *, connections: int, chunk: bytes) -> None:
    """Send a chunk of frames without end on each connection, and read."""
    opened = list[list[Any]]()
    for _ in range(connections):
        sock = flood.open(port="websocket")
        sock.sendall(websocket_head())
        sock.recv(1 << 16)
        sock.sendall(frame(flood.connect))
        sock.setblocking(False)
        opened.append([sock, memoryview(chunk)])
    while not flood.stopped() and opened:
        for pair in list(opened):
            sock, out = pair
            try:
                with contextlib.suppress(BlockingIOError):
                    data = sock.recv(READ_SIZE)
                    if not data:
                        raise ConnectionResetError
                    flood.listen(data)
                out = out[sock.send(out[: 1 << 20]) :]
                pair[1] = out or memoryview(chunk)
            except BlockingIOError:
                time.sleep(0.0002)
            except OSError:
                flood.told["closed"] += 1
                opened.remove(pair)
