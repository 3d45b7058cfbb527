"""Blocking NATS client over a raw socket, for tests that must see exactly what a server sends.

Belongs here: sending and parsing frames, subscriptions, requests with headers, and waiting for a frame with a timeout.
All frames except PING stay readable, including unexpected ones. It is no general client: one thread, no reconnection.
"""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

DEFAULT_TIMEOUT_S = 5.0
READ_SIZE = 1 << 18

Headers = Mapping[str, str] | bytes | None

_inboxes = itertools.count(1)


class WireTimeout(Exception):
    """Raised when the awaited frame does not arrive in time."""


class Closed(Exception):
    """Raised when the server has closed the connection."""


class Frame(NamedTuple):
    """One protocol message from the server.

    verb is INFO, MSG, HMSG, PING, PONG, +OK or -ERR; text is the rest of the line of those without a payload.
    """

    verb: str
    subject: str = ""
    sid: str = ""
    reply: str = ""
    header: bytes = b""
    data: bytes = b""
    text: str = ""

    @property
    def status(self) -> int:
        """Return the status code in the first line of the header block; 0 without one."""
        words = self.header.split(b"\r\n", 1)[0].split(b" ", 2)
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    @property
    def headers(self) -> dict[str, str]:
        """Return the header fields (the last value of each name), parsed leniently."""
        pairs = (line.split(b":", 1) for line in self.header.split(b"\r\n")[1:] if b":" in line)
        return {key.decode("latin-1"): value.lstrip().decode("latin-1") for key, value in pairs}

    def json(self) -> Any:
        """Return the payload parsed as JSON."""
        return json.loads(self.data)


def header_block(fields: Mapping[str, str]) -> bytes:
    """Return a header block with these fields, in order."""
    lines = [b"NATS/1.0", *(f"{key}: {value}".encode() for key, value in fields.items())]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def pub(subject: str, data: bytes = b"", reply: str = "", headers: Headers = None) -> bytes:
    """Return the bytes of a PUB, or of an HPUB if there are headers (a mapping, or a raw block)."""
    middle = f" {reply}" if reply else ""
    if headers is None:
        return b"PUB %s%s %d\r\n%s\r\n" % (subject.encode(), middle.encode(), len(data), data)
    block = headers if isinstance(headers, bytes) else header_block(headers)
    sizes = (len(block), len(block) + len(data))
    return b"HPUB %s%s %d %d\r\n%s%s\r\n" % (subject.encode(), middle.encode(), *sizes, block, data)


class Reader:
    """Parser that splits a server's byte stream into frames; does no I/O."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Parse the next bytes; return the frames that are complete."""
        buffer = self._buffer + data
        frames: list[Frame] = []
        at = 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            verb, _, rest = buffer[at:end].partition(b" ")
            name = verb.decode("latin-1").upper()
            after = end + 2
            if name not in ("MSG", "HMSG"):
                frames.append(Frame(name, text=rest.decode("utf-8", "replace")))
                at = after
                continue
            words = rest.decode("utf-8", "replace").split()
            total = int(words[-1])
            if len(buffer) < after + total + 2:
                break
            sizes = 1 if name == "MSG" else 2
            header_end = after + (int(words[-2]) if sizes == 2 else 0)
            at = after + total + 2
            assert buffer[at - 2 : at] == b"\r\n", f"payload of {rest!r} not ended by CRLF"
            names = words[: len(words) - sizes]
            reply = names[2] if len(names) > 2 else ""
            frames.append(Frame(name, names[0], names[1], reply, buffer[after:header_end], buffer[header_end : at - 2]))
        self._buffer = buffer[at:]
        return frames


class Socket(Protocol):
    """The part of a socket that a connection uses."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def close(self) -> None: ...


def dial(address: tuple[str, int], timeout: float) -> socket.socket:
    """Return a TCP connection that sends at once what it is given."""
    opened = socket.create_connection(address, timeout)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


class Secure(NamedTuple):
    """TLS of a connection.

    first: the handshake comes before INFO, not after it. name: what the certificate has to be for.
    """

    context: ssl.SSLContext
    first: bool = False
    name: str = "localhost"

    def wrap(self, plain: Any) -> ssl.SSLSocket:
        """Return the connection after its handshake.

        Raises:
            ssl.SSLError: the handshake failed.
            ConnectionError: the server closed the connection.
        """
        return self.context.wrap_socket(plain, server_hostname=self.name)


class Wire:
    """One connection.

    Args:
        address: host and port.
        connect: fields of CONNECT that override the defaults; None sends no CONNECT.
        timeout: default timeout of every wait, in seconds.
        secure: TLS to use, or None.
        opened: a socket, or what has its methods, that is used instead of connecting to the address.

    PINGs of the server are answered and not shown. INFO messages after the first one are kept in `infos`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        connect: Mapping[str, Any] | None = {},
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        secure: Secure | None = None,
        opened: Socket | None = None,
    ) -> None:
        self.timeout = timeout
        self.socket: Socket = opened or dial(address, timeout)
        if secure and secure.first:
            self.socket = secure.wrap(self.socket)
        self.reader = Reader()
        self.waiting: deque[Frame] = deque()
        self.infos: list[dict[str, Any]] = []
        self.inbox = f"_INBOX.t{next(_inboxes)}"
        self._sids = itertools.count(1)
        self._replies = itertools.count(1)
        self.inbox_sid = ""
        self.api_prefix = "$JS.API"
        self.closed = False
        while not self.infos:
            self._receive(time.monotonic() + timeout)
        self.info = self.infos[0]
        if secure and not secure.first:
            self.socket = secure.wrap(self.socket)
        if connect is not None:
            self.connect(connect)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connect(self, fields: Mapping[str, Any], then: bytes = b"") -> None:
        """Send CONNECT with these fields over the usual ones; `then` follows in the same packet.

        A server that refuses may close before a later packet comes; its answer to that would discard what it said.
        """
        usual = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        every = {**usual, "lang": "tests", "version": "1", **fields}
        self.send(b"CONNECT " + json.dumps(every).encode() + b"\r\n" + then)

    def close(self) -> None:
        """Close this end of the connection at once."""
        self.closed = True
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.socket.sendall(data)

    def _receive(self, deadline: float) -> None:
        """Read once from the socket and queue the complete frames."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise WireTimeout
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(READ_SIZE)
        except TimeoutError:
            raise WireTimeout from None
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            raise Closed
        for frame in self.reader.feed(data):
            if frame.verb == "PING":
                self.socket.sendall(b"PONG\r\n")
            elif frame.verb == "INFO":
                self.infos.append(json.loads(frame.text))
            else:
                self.waiting.append(frame)

    def next(self, wanted: Callable[[Frame], bool] = lambda frame: True, timeout: float | None = None) -> Frame:
        """Return the oldest unread frame for which `wanted` is true; the others stay unread, in order.

        Raises:
            WireTimeout: none arrived in time.
            Closed: the server closed the connection first.
        """
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        seen = 0
        while True:
            for position, frame in enumerate(itertools.islice(self.waiting, seen, None), seen):
                if wanted(frame):
                    del self.waiting[position]
                    return frame
            seen = len(self.waiting)
            self._receive(deadline)

    def until(self, verb: str, timeout: float | None = None) -> list[Frame]:
        """Return all unread frames before the next one with this verb."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        frames: list[Frame] = []
        while True:
            while self.waiting:
                frame = self.waiting.popleft()
                if frame.verb == verb:
                    return frames
                frames.append(frame)
            self._receive(deadline)

    def until_closed(self, timeout: float | None = None) -> list[Frame]:
        """Return all frames until the server closes the connection."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        try:
            while True:
                self._receive(deadline)
        except Closed:
            frames = list(self.waiting)
            self.waiting.clear()
            return frames

    def ping(self, timeout: float | None = None) -> list[Frame]:
        """Send PING; return all frames before its PONG. The server has then processed everything sent before."""
        self.send(b"PING\r\n")
        return self.until("PONG", timeout)

    def told(self) -> list[dict[str, Any]]:
        """Return every INFO, including one that follows the first PONG (a second PONG shows that it has arrived)."""
        self.ping()
        self.ping()
        return self.infos

    def subscribe(self, subject: str, queue: str = "") -> str:
        """Send SUB; return the sid."""
        sid = str(next(self._sids))
        self.send(f"SUB {subject} {queue + ' ' if queue else ''}{sid}\r\n".encode())
        return sid

    def unsubscribe(self, sid: str, most: int = 0) -> None:
        """Send UNSUB, effective at once or after `most` deliveries."""
        self.send(f"UNSUB {sid}{f' {most}' if most else ''}\r\n".encode())

    def publish(self, subject: str, data: bytes = b"", reply: str = "", headers: Headers = None) -> None:
        """Send PUB or HPUB."""
        self.send(pub(subject, data, reply, headers))

    def new_reply(self) -> str:
        """Return a new subject under this connection's inbox, which is subscribed to."""
        if not self.inbox_sid:
            self.inbox_sid = self.subscribe(f"{self.inbox}.*")
        return f"{self.inbox}.{next(self._replies)}"

    def message(self, subject: str, timeout: float | None = None) -> Frame:
        """Return the next message delivered on exactly this subject."""
        return self.next(lambda frame: frame.subject == subject, timeout)

    def delivered(self, sid: str, timeout: float | None = None) -> Frame:
        """Return the next message for this subscription."""
        return self.next(lambda frame: frame.sid == sid, timeout)

    def request(self, subject: str, data: bytes = b"", headers: Headers = None, timeout: float | None = None) -> Frame:
        """Publish with a new reply subject and return the first answer."""
        reply = self.new_reply()
        self.publish(subject, data, reply, headers)
        return self.message(reply, timeout)

    def api(self, subject: str, body: Any = None, timeout: float | None = None, headers: Headers = None) -> Any:
        """Send a JetStream API request (subject without `api_prefix`); return its answer as JSON."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.request(f"{self.api_prefix}.{subject}", data, headers, timeout)
        return answer.json() if answer.data else {"status": answer.header.decode("latin-1")}
