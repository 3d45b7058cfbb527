"""A listening socket, and the steps from an accepted socket to a connection.

Belongs here: binding, accepting, the reading of a PROXY header, the choice between TLS and plain text by the first
byte, and the TLS handshake. TLS contexts are in tls.py, the protocol spoken on a connection in connection.py.

TLS begins on the raw socket, before it has a transport: INFO is written to it, and what the client sends stays in the
kernel until the event loop's TLS reads it. So no byte that comes early is lost, and no stream is upgraded.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from lakestream.config.errors import reason_in_words
from lakestream.config.options import FREE_PORT, MAX_PORT, SECOND, RouteUrl
from lakestream.logging import Logger
from lakestream.net import proxy
from lakestream.net.client_hello import NOT_TLS, RECORD_HEAD, offered_groups, record_size
from lakestream.net.proxy import ProxyError
from lakestream.ports import Clock

if TYPE_CHECKING:
    from lakestream.net.tls import ServerContext

BACKLOG = 1024
"""Connections that the system accepts before the event loop does (1,024)."""

ACCEPTED_IN_A_TURN = 16
"""Sockets that are accepted in one turn of the event loop (16): many new clients do not hold up the others."""

MAX_HANDSHAKES = 1024
"""TLS handshakes of one listener at the same time (1,024); further clients wait, within the timeout of TLS."""

HANDSHAKES_IN_A_TURN = 4
"""TLS handshakes of one listener that begin in one turn of the event loop (4): each takes about a millisecond of the
processor, and clients that come back together must not hold up the others."""

EXHAUSTED_PAUSE_NS = 1_000_000_000
"""Time without accepting when the process has no file descriptors left (1 s)."""

DRAINED = 1 << 16
"""Bytes that are read before a client is rejected with a word (64 KiB)."""

PROXY_HEADER_S = 5.0
"""Time that a PROXY header may take (5 s)."""

HANDSHAKE_FAILED = "TLS Handshake Failure"
"""Close reason of a connection whose TLS handshake failed, as monitoring shows it."""
THROTTLED = "Connection throttling is active. Please try again later."

_TLS_RECORD = b"\x16"
"""First byte of a TLS handshake; no command of the protocol begins with it."""
_HTTP_STARTS = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")
_PLAIN_HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_WILDCARDS = ("", "0.0.0.0", "::")
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

Level = Literal["debug", "warn", "error"]


class SetupError(Exception):
    """Raised when an accepted socket does not become a connection; the text is for the log.

    Attributes:
        reason: why it ended, for monitoring.
        level: of the log line.
        error: the text of -ERR that the client is sent; "": none.
        http: the client sent a request of HTTP where TLS is required.
        alert: the record of TLS that the client is sent; b"": none.
    """

    def __init__(
        self,
        text: str,
        reason: str,
        level: Level = "error",
        *,
        error: str = "",
        http: bool = False,
        alert: bytes = b"",
    ) -> None:
        super().__init__(text)
        self.reason, self.level, self.error, self.http, self.alert = reason, level, error, http, alert

    def over_https(self, peer: str) -> tuple[str, bytes]:
        """Return the log line ("": none) and the answer for a client of a port for HTTPS, as nats-server has them."""
        text = "client sent an HTTP request to an HTTPS server" if self.http else str(self).partition(": ")[2]
        return f"TLS handshake error from {peer}: {text}" if text else "", _PLAIN_HTTP if self.http else b""


class Arrival(asyncio.Protocol):
    """A connection while its listener sets it up, before it has a transport.

    A listener without TLS and PROXY headers sets up nothing: then `connection_made` comes first.

    Attributes:
        abandon: ends the set-up; None: there is none under way.
        greeted: it was sent its greeting.
        tls_first: TLS began before the greeting.
        secured_by: the TLS that it uses; None: plain text.
    """

    abandon: Callable[[], object] | None = None
    greeted = tls_first = False
    secured_by: ServerContext | None = None

    def arrived(self, host: str, port: int) -> None:
        """Register the connection.

        Raises:
            SetupError: the connection is rejected.
        """

    def greeting(self) -> bytes:
        """Return what is sent before TLS and before a PROXY header is read."""
        return b""

    def came_from(self, host: str, port: int) -> None:
        """Note the client that a PROXY header names."""

    def failed(self, error: SetupError) -> bytes:
        """End the connection, which never gets a transport; return what the client is sent."""
        return b""


class TlsEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of TLS on a listener.

    Attributes:
        server: certificates and settings of new connections.
        optional: plain text is accepted too (allow_non_tls).
        admits: returns False while there are too many handshakes (connection_rate_limit).
    """

    server: ServerContext
    optional: bool = False
    admits: Callable[[], bool] = lambda: True


class RateLimit:
    """The limit of TLS handshakes per second of a listener.

    Args:
        limit: handshakes per second; 0: no limit.
        log: is told once a second how many were rejected.
    """

    def __init__(self, limit: int, clock: Clock, log: Logger) -> None:
        self._limit, self._clock, self._log = limit, clock, log
        self._began = self._count = self._rejected = 0

    def admits(self) -> bool:
        """Count a handshake; return False when it is one too many."""
        now = self._clock.steady()
        if now - self._began >= SECOND:
            self._began, self._count = now, 0
        if not self._limit or self._count < self._limit:
            self._count += 1
            return True
        if not self._rejected:
            self._clock.call_later(SECOND, self._report)
        self._rejected += 1
        return False

    def _report(self) -> None:
        self._log.warn(f"Rejected {self._rejected} connections due to TLS rate limiting")
        self._rejected = 0


class ListenError(OSError):
    """Raised when nothing can listen at an address, with nats-server's text."""


def listen_error(host: str, port: int, error: OSError) -> ListenError:
    """Return the error of an address that the system refused."""
    return ListenError(f"listen tcp {RouteUrl(host, max(port, 0)).address}: bind: {reason_in_words(error)}")


def check_port(port: int) -> None:
    """Raise ListenError for a port that cannot be."""
    if not FREE_PORT <= port <= MAX_PORT:
        raise ListenError(f"listen tcp: address {port}: invalid port")


class Bind(Protocol):
    """Open a listening socket; see `bind`."""

    def __call__(self, host: str, port: int, *, shared: bool = False, listens: bool = True) -> socket.socket:
        """Return the socket. Raise ListenError."""


def bind(host: str, port: int, *, shared: bool = False, listens: bool = True) -> socket.socket:
    """Return a listening socket. A wildcard host listens on IPv4 and IPv6, as in nats-server.

    Args:
        host: name or address; an IPv6 address without brackets.
        port: 0 or less: a free one.
        shared: other processes of this user listen there too, and each connection comes to one of them.
        listens: False: clients are refused until `Listener.start`.

    Raises:
        ListenError: the address cannot be used.
    """
    check_port(port)
    try:
        return _bound(host, max(port, 0), shared, listens=listens)
    except OSError as error:
        raise listen_error(host, port, error) from error


def reserve(host: str, port: int) -> socket.socket:
    """Return a socket that is bound for processes that share the port, and does not listen: it keeps the port for them
    while none of them runs. Arguments and error as for `bind`."""
    bind(host, port).close()  # a port that another program has could be shared too
    check_port(port)
    try:
        return _bound(host, max(port, 0), True, listens=False)
    except OSError as error:
        raise listen_error(host, port, error) from error


def _bound(host: str, port: int, shared: bool, *, listens: bool = True) -> socket.socket:
    if host in _WILDCARDS and socket.has_dualstack_ipv6():
        try:
            return _listening(("::", port), socket.AF_INET6, dual=True, shared=shared, listens=listens)
        except OSError as error:
            if error.errno not in _NO_IPV6:  # a system may know IPv6 and have it turned off
                raise
    name = "0.0.0.0" if host in _WILDCARDS else host
    # A text makes Python load the tables of international names, which take 0.4 MiB.
    found = socket.getaddrinfo(name.encode() if name.isascii() else name, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)  # IPv4 first, as nats-server
    return _listening((str(address[0]), port), family, dual=False, shared=shared, listens=listens)


def _listening(address: tuple[str, int], family: int, *, dual: bool, shared: bool, listens: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        bound.bind(address)
        if listens:
            bound.listen(BACKLOG)
    except BaseException:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def peer_of(address: object) -> tuple[str, int]:
    """Return host and port of a socket address; an IPv4 client of a socket for both has its IPv4 address."""
    if not isinstance(address, tuple) or len(address) < 2:
        return "", 0
    host = str(address[0])
    return host.removeprefix("::ffff:") if "." in host else host, int(address[1])


class Listener:
    """One listening socket.

    Args:
        listening: from `bind`; closed with the listener.
        made: makes the protocol of an accepted connection.
        clock: runs the set-up of connections.
        tls: how TLS begins; None: plain text.
        proxied: connections may begin with a PROXY header.
    """

    def __init__(
        self,
        listening: socket.socket,
        made: Callable[[], Arrival],
        clock: Clock,
        *,
        tls: TlsEntry | None = None,
        proxied: bool = False,
    ) -> None:
        self._socket, self._made, self._clock = listening, made, clock
        self._tls, self._proxied = tls, proxied
        self._loop = asyncio.get_running_loop()
        self._handshakes = asyncio.Semaphore(MAX_HANDSHAKES)
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._server: asyncio.AbstractServer | None = None
        self._accepting = self._closed = False

    @property
    def port(self) -> int:
        """Return the bound port."""
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Begin to accept."""
        self._socket.listen(BACKLOG)
        if self._tls is not None or self._proxied:
            self._accept_again()
        elif self._server is None and not self._closed:
            self._pause()
            # A server closes its socket; this one is needed again when a reload turns on TLS.
            self._server = await self._loop.create_server(self._made, sock=self._socket.dup(), backlog=BACKLOG)

    def secure(self, tls: TlsEntry | None) -> None:
        """Begin TLS in another way, or not at all, on later connections."""
        self._tls = tls
        if tls is None:
            self._clock.spawn(self.start())
        elif self._server is not None:
            self._server.close()
            self._server = None
            self._accept_again()

    def close(self) -> None:
        """Accept no more; connections stay. Idempotent."""
        self._closed = True
        self._pause()
        if self._server is not None:
            self._server.close()
        self._socket.close()

    # ------------------------------------------------------------------ accepting
    def _accept(self) -> None:
        for _ in range(ACCEPTED_IN_A_TURN):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause()
                self._clock.call_later(EXHAUSTED_PAUSE_NS, self._accept_again)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._clock.spawn(self._bring_up(accepted, *peer_of(address)))

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._socket)

    def _accept_again(self) -> None:
        if not self._accepting and not self._closed and self._server is None:
            self._accepting = True
            self._loop.add_reader(self._socket, self._accept)

    # ------------------------------------------------------------------ setting up
    async def _bring_up(self, accepted: socket.socket, host: str, port: int) -> None:
        """Bring an accepted socket to the point where its protocol has a transport."""
        made = self._made()
        task = asyncio.current_task()
        made.abandon = task.cancel if task is not None else None
        try:
            await self._set_up(accepted, made, host, port)
        except SetupError as error:
            self._end(accepted, made, error)
        except (OSError, asyncio.CancelledError) as error:
            self._end(accepted, made, SetupError("", "Client Closed", "debug"))
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            made.abandon = None

    def _end(self, accepted: socket.socket, made: Arrival, error: SetupError) -> None:
        try:
            if answer := made.failed(error) or error.alert:
                accepted.send(answer)
            accepted.recv(DRAINED)  # closing a socket with unread bytes would discard what was sent
        except OSError:
            pass  # the client is gone, or has sent nothing
        finally:
            accepted.close()

    async def _set_up(self, accepted: socket.socket, made: Arrival, host: str, port: int) -> None:
        tls = self._tls
        try:
            made.arrived(host, port)
        except SetupError:
            accepted.send(made.greeting())
            raise
        if tls is None or not tls.server.options.first:
            self._greet(accepted, made)
        if self._proxied:
            fallback_ns = tls.server.options.fallback_ns if tls is not None and not made.greeted else 0
            # A client without a header may wait for the greeting.
            if fallback_ns and await self._first_byte(accepted, fallback_ns) is None:
                self._greet(accepted, made)
            await self._read_proxy_header(accepted, made, f"{host}:{port}")
        if tls is None:
            await self._loop.connect_accepted_socket(lambda: made, accepted)
            return
        until = self._loop.time() + tls.server.options.timeout_ns / 1e9
        if not await self._begins_tls(tls, accepted, made):
            await self._loop.connect_accepted_socket(lambda: made, accepted)
            return
        made.secured_by = tls.server
        async with self._handshakes:
            context = await self._context(tls.server, accepted, until)
            await self._paced()
            left = max(until - self._loop.time(), 0.001)
            try:
                # The event loop closes the socket that it gets; the alert of a failed handshake goes to this one.
                await self._loop.connect_accepted_socket(
                    lambda: made, accepted.dup(), ssl=context, ssl_handshake_timeout=left
                )
            except OSError as error:  # ssl.SSLError is one
                text = tls.server.failure(error)
                level: Level = "debug" if text in (NOT_TLS, "i/o timeout") else "error"
                shown = f"TLS handshake error: {text}"
                raise SetupError(shown, HANDSHAKE_FAILED, level, alert=tls.server.alert(error)) from error
        accepted.close()

    async def _context(self, server: ServerContext, accepted: socket.socket, until: float) -> ssl.SSLContext:
        """Return the context for this client; where it depends on the curves, look at the client's first record."""
        if not server.chooses_curve:
            return server.context
        record = await self._peeked(accepted, RECORD_HEAD, until)
        if len(record) == RECORD_HEAD:
            record = await self._peeked(accepted, record_size(record), until)
        return server.context_for(offered_groups(record))

    async def _peeked(self, accepted: socket.socket, size: int, until: float) -> bytes:
        """Return the first bytes, which stay unread; fewer than `size` at the end of the stream or of the time."""
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        try:
            async with asyncio.timeout_at(until):
                await self._readable(accepted)
        except TimeoutError:
            return b""
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return accepted.recv(size, socket.MSG_PEEK)

    async def _paced(self) -> None:
        """Wait for a turn of the event loop in which a handshake may begin."""
        while self._begun >= HANDSHAKES_IN_A_TURN:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            await waiting
        if not self._begun:
            self._loop.call_soon(self._next_turn)
        self._begun += 1

    def _next_turn(self) -> None:
        self._begun = 0
        for _ in range(min(len(self._waiting), HANDSHAKES_IN_A_TURN)):
            waiting = self._waiting.popleft()
            if not waiting.done():  # its connection was given up
                waiting.set_result(None)
        if self._waiting:
            self._loop.call_soon(self._next_turn)

    def _greet(self, accepted: socket.socket, made: Arrival) -> None:
        accepted.send(made.greeting())
        made.greeted = True

    async def _begins_tls(self, tls: TlsEntry, accepted: socket.socket, made: Arrival) -> bool:
        """Greet the client where the greeting comes before TLS; return True if TLS begins, False for plain text.

        Raises:
            SetupError: TLS is required and does not begin in time, or too many handshakes do.
        """
        options, first = tls.server.options, None
        if not made.greeted:
            first = await self._first_byte(accepted, options.fallback_ns or options.timeout_ns)
            made.tls_first = first == _TLS_RECORD
            if first is None and options.fallback_ns:
                self._greet(accepted, made)
        if made.greeted:
            if not tls.optional:
                self._admit(tls)
            first = await self._first_byte(accepted, options.timeout_ns)
            if tls.optional and first != _TLS_RECORD:
                return False
        if first is None:
            raise SetupError("TLS handshake error: i/o timeout", HANDSHAKE_FAILED, "debug")
        if first != _TLS_RECORD:
            text = f"TLS handshake error: {NOT_TLS if first else 'EOF'}"
            start = accepted.recv(len(_HTTP_STARTS[0]), socket.MSG_PEEK) if first else b""
            raise SetupError(text, HANDSHAKE_FAILED, "debug", http=start in _HTTP_STARTS)
        if made.tls_first or tls.optional:
            self._admit(tls)
        return True

    def _admit(self, tls: TlsEntry) -> None:
        if not tls.admits():
            raise SetupError("", "Maximum Connections Exceeded", "debug", error=THROTTLED)

    async def _first_byte(self, accepted: socket.socket, wait_ns: int) -> bytes | None:
        """Return the first byte, which stays unread; b"" at the end of the stream, None when none comes in time."""
        try:
            async with asyncio.timeout(wait_ns / 1e9):
                await self._readable(accepted)
        except TimeoutError:
            return None
        return accepted.recv(1, socket.MSG_PEEK)

    async def _readable(self, accepted: socket.socket) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(accepted, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_reader(accepted)

    # ------------------------------------------------------------------ the PROXY header
    async def _read_proxy_header(self, accepted: socket.socket, made: Arrival, shown: str) -> None:
        """Read the header, if there is one; bytes behind it stay unread.

        Raises:
            SetupError: it is invalid, or does not come in time.
        """
        reading = "protocol version"
        try:
            async with asyncio.timeout(PROXY_HEADER_S):
                # Peeking at too few bytes would be repeated without a pause.
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, proxy.FIRST_BYTES)
                await self._readable(accepted)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                start = accepted.recv(proxy.FIRST_BYTES, socket.MSG_PEEK)
                if len(start) < proxy.FIRST_BYTES:
                    raise ProxyError(f"failed to read {reading}: EOF")
                if start == proxy.TEXT_START:
                    reading = "v1 line"
                    source = await self._read_text(accepted)
                elif start == proxy.BINARY_START:
                    reading = "v2 header"
                    source = await self._read_binary(accepted)
                else:
                    return
        except TimeoutError:
            raise _bad_header(shown, f"failed to read {reading}: i/o timeout") from None
        except ProxyError as error:
            raise _bad_header(shown, str(error)) from error
        if source is not None:
            made.came_from(*source)

    async def _read_text(self, accepted: socket.socket) -> proxy.Source:
        line = b""
        while len(line) < proxy.MAX_TEXT:
            await self._readable(accepted)
            seen = accepted.recv(proxy.MAX_TEXT - len(line), socket.MSG_PEEK)
            if not seen:
                raise ProxyError("failed to read v1 line: EOF")
            end = (line + seen).find(b"\r\n")
            taken = accepted.recv(len(seen) if end < 0 else end + 2 - len(line))
            line += taken
            if end >= 0:
                return proxy.source_of_text(line[len(proxy.TEXT_START) : end])
        raise ProxyError("invalid PROXY protocol header: v1 line too long")

    async def _read_binary(self, accepted: socket.socket) -> proxy.Source:
        head = await self._exactly(accepted, proxy.BINARY_HEAD)
        return proxy.source_of_binary(head, await self._exactly(accepted, proxy.addresses_length(head)))

    async def _exactly(self, accepted: socket.socket, size: int) -> bytes:
        got = b""
        while len(got) < size:
            await self._readable(accepted)
            more = accepted.recv(size - len(got))
            if not more:
                raise ProxyError("failed to read v2 header: EOF")
            got += more
        return got


def _bad_header(shown: str, text: str) -> SetupError:
    return SetupError(f"Error reading PROXY protocol header from {shown}: {text}", "Client Closed", "warn")
