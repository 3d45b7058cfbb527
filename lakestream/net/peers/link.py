"""One connection to another node.

Belongs here: the asyncio shell around the frames of protocol/peer_wire.py: one write per turn, the limit of the queue,
the time limit of the handshake. Admission is decided in handshake.py, buffers are handled by their receivers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from typing import Protocol, cast

from lakestream.config.options import RouteUrl
from lakestream.net.listener import Arrival, SetupError, peer_of
from lakestream.net.outbox import Drain, Outbox
from lakestream.net.tls import PeerCertificate, certificate_of
from lakestream.protocol import peer_wire as wire
from lakestream.protocol.peer_wire import Control, FrameReader, NodeInfo, PeerWireError
from lakestream.raft.group.ports import Channel

MAX_PENDING_BYTES = 64 << 20
"""Maximum of unsent bytes to one node (64 MiB). A buffer beyond that is dropped and counted; on a route, where none may
be missing, the connection ends instead."""

MAX_CONTROLS = 1000
"""Control records in one read, which are answered at once (some 4 ms). A node that stood still gets twenty of them."""

JOIN_BELOW = 1 << 16
"""Output of a turn below this size (64 KiB) is copied into one buffer, which is cheaper than passing each part."""

AT_ONCE_BELOW = 1 << 13
"""Messages for another worker are sent without another look at the sockets if they have less than this (8 KiB)."""

ALIVE_NS = 1_000_000_000
"""A node that sends nothing for this long (1 s) is not alive."""

WRITE_DEADLINE_NS = 10_000_000_000
"""A node that takes none of the bytes that wait for it for this long (10 s) is a slow consumer, as in nats-server: its
publishers wait meanwhile."""

STALE_NS = 5_000_000_000
"""A connection that receives nothing for this long (5 s) is closed."""

HANDSHAKE_TIMEOUT = "Handshake Timeout"
"""Close reason of a connection whose other side did not finish the handshake."""

CLOSE_WAIT_S = 1.0
"""Time that the last bytes of a closing connection may take (1 s)."""


class DialPlace(Protocol):
    """A place that this node dials; see `Target` in dialler.py."""

    url: RouteUrl
    explicit: bool

    def reached(self, name: str) -> None:
        """Note that the node of this name answered there."""


class LinkOwner(Protocol):
    """The node, as a connection needs it."""

    def made(self, link: Link) -> None:
        """Begin the handshake of a new connection."""

    def control(self, link: Link, record: Control) -> None:
        """Handle a control record."""

    def payload(self, link: Link, channel: int, payload: bytes) -> None:
        """Handle a buffer."""

    def answers_again(self, link: Link) -> None:
        """Note that a silent node sends again."""

    def lost(self, link: Link) -> None:
        """Note the end of the connection, for `link.reason`."""

    def insecure(self, link: Link, error: SetupError) -> None:
        """Note that TLS failed with a node that dialled this one."""


class Link(Drain, Outbox[bytes], Arrival):
    """One connection.

    Args:
        number: for the log and /routez.
        handshake_s: seconds that the handshake may take.
        target: the place that this node dialled; None: the other node dialled.

    Attributes:
        attempt: the connection's name, chosen by the dialling side; the other side reads it from HELLO.
        up: the handshake is over.
        silent: nothing was received within the liveness limit.
        full: nothing more is queued.
        held: nothing is read at the moment.
        remote, said: the `NodeInfo` of the other side, and that of this side in its HELLO.
        over, gone: done when the connection is not used any more, for `reason`, and when its socket is closed too.
    """

    def __init__(self, owner: LinkOwner, number: int, handshake_s: float, target: DialPlace | None = None) -> None:
        Drain.__init__(self)
        Outbox.__init__(self, lambda outbox: asyncio.get_running_loop().call_soon(outbox.flush))
        self.owner = owner
        self.number = number
        self.target = target
        self.attempt = "" if target is None else secrets.token_hex(8)
        self.remote: NodeInfo | None = None
        self.said: NodeInfo | None = None
        self.linked: tuple[wire.PeerAddress, ...] = ()
        self.up = self.was_up = False
        self.silent = False
        self.full = self.held = False
        self.reason = ""
        self.refused: wire.PeerRefused | None = None
        self.host, self.port = "", 0
        self.heard_ns = time.monotonic_ns()
        self.start_ns = time.time_ns()
        self.rtt_ns = 0
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = self.dropped = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.max_pending = MAX_PENDING_BYTES
        self._written = self._taken = self._taken_ns = 0
        self._descriptor = -1  # of a socket between workers
        self._handshake_s = handshake_s
        self._reader = FrameReader()
        self._timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} - rid:{self.number}"

    @property
    def made(self) -> bool:
        """Return True once there was a socket."""
        return self.transport is not None

    @property
    def certificate(self) -> PeerCertificate | None:
        """Return the other side's certificate; None without TLS."""
        tls = self.transport.get_extra_info("ssl_object") if self.transport is not None else None
        der = tls.getpeercert(binary_form=True) if tls is not None else None
        return certificate_of(der) if der else None

    @property
    def dialled(self) -> bool:
        """Return True if this node dialled."""
        return self.target is not None

    @property
    def name(self) -> str:
        """Return the other node's name, "" before its HELLO."""
        return self.remote.name if self.remote is not None else ""

    @property
    def alive(self) -> bool:
        return time.monotonic_ns() - self.heard_ns < ALIVE_NS

    # ------------------------------------------------------------------ Arrival
    def arrived(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def failed(self, error: SetupError) -> bytes:
        self.owner.insecure(self, error)
        self.drop(error.reason)
        return b""

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        self.use(made)
        if self.reason:
            made.abort()  # ended before it was made
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        elif sock is not None:
            self._descriptor = sock.fileno()
        peer = transport.get_extra_info("peername")
        self.host, self.port = peer_of(peer) if isinstance(peer, tuple) else ("worker", 0)
        self.heard_ns = time.monotonic_ns()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._handshake_s, lambda: self.abort(HANDSHAKE_TIMEOUT))
        self.owner.made(self)

    def data_received(self, data: bytes) -> None:
        if self.reason:
            return
        self.heard_ns = time.monotonic_ns()
        if self.silent:
            self.silent = False
            self.owner.answers_again(self)
        controls = 0
        try:
            for channel, payload in self._reader.feed(data):
                self.in_bytes += len(payload)
                if channel == wire.CONTROL:
                    controls += 1
                    if controls > MAX_CONTROLS:
                        raise PeerWireError("too many control records in a read")
                    self.owner.control(self, wire.decode_control(payload))
                elif self.up:
                    self.in_msgs += 1
                    self.owner.payload(self, channel, payload)
                else:
                    raise PeerWireError("a buffer before the handshake is over")
                if self.reason:
                    return
        except PeerWireError as error:
            self.abort(f"Protocol Violation: {error}")

    def hold(self, on: bool) -> None:
        """Read nothing from now on, or read again."""
        if on != self.held and self.transport is not None and not self.transport.is_closing():
            self.held = on
            (self.transport.pause_reading if on else self.transport.resume_reading)()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._descriptor = -1  # the system may give its number to another connection
        self._end("Client Closed" if exc is None else f"Read Error: {exc}")
        if not self.gone.done():
            self.gone.set_result(None)

    # ------------------------------------------------------------------ handshake
    def rise(self) -> None:
        """End the handshake: the connection is up."""
        self.up = self.was_up = True
        self._reader.limit = wire.MAX_FRAME_BYTES
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ out
    def send(self, channel: int, payload: bytes) -> bool:
        """Send a buffer at the end of this turn; few messages for another worker, which come at its end, at once.
        False: the queue is full, or the connection over."""
        size = len(payload)
        if self.reason or self.full or self.pending_bytes + size > self.max_pending:
            self.dropped += 1
            return False
        self._out.append(wire.frame_head(channel, size))
        self._out.append(payload)
        self.out_msgs += 1
        if channel == Channel.ROUTE and self._descriptor >= 0 and size < AT_ONCE_BELOW:
            self.out_bytes += size
            self.write_gathered()
        else:
            self._sent(size)
        return True

    def tell(self, record: Control) -> None:
        """Send a control record at the end of this turn. They are few and small: the queue's bound is not theirs."""
        if not self.reason:
            frame = wire.encode_control(record)
            self._out.append(frame)
            self._sent(len(frame))

    @property
    def pending_bytes(self) -> int:
        """Return the unsent bytes."""
        return self._gathered + super().pending_bytes

    def _sent(self, size: int) -> None:
        self.out_bytes += size
        self.count(size)

    def write_gathered(self) -> None:
        size, out, transport = self._gathered, self.taken(), self.transport
        if not out or transport is None or transport.is_closing():
            return
        if size >= JOIN_BELOW:
            self._written += sum(map(len, out))
            transport.writelines(out)
            return
        data = b"".join(out)
        self._written += len(data)
        if self._descriptor >= 0 and not transport.get_write_buffer_size():
            with contextlib.suppress(OSError):  # full, or broken: the transport finds the same and deals with it
                data = data[os.write(self._descriptor, data) :]
        if data:
            transport.write(data)

    def is_stuck(self, now: int) -> bool:
        """Return True if the node has taken nothing within the deadline. `now`: monotonic time, ns."""
        taken = self._written - super().pending_bytes
        if taken != self._taken or not self.congested:
            self._taken, self._taken_ns = taken, now
        return now - self._taken_ns > WRITE_DEADLINE_NS

    # ------------------------------------------------------------------ end
    def close(self, reason: str) -> None:
        """Write what is queued, then close."""
        if self.reason:
            return
        self.write_gathered()
        transport = self.transport
        self._end(reason)
        if transport is not None:
            transport.close()
            # A node that does not read must not keep the connection open.
            asyncio.get_running_loop().call_later(CLOSE_WAIT_S, transport.abort)

    def abort(self, reason: str) -> None:
        """Close without another word."""
        transport = self.transport
        self._end(reason)
        if transport is not None:
            transport.abort()

    def drop(self, reason: str) -> None:
        """End a connection whose socket the event loop has closed: dialling was cancelled or took too long."""
        self.transport = None
        self._end(reason)

    def _end(self, reason: str) -> None:
        """End the connection. Invariant: the owner is told once."""
        if self.reason:
            return
        self.reason = reason
        if self._timer is not None:
            self._timer.cancel()
        self._out, self._gathered = [], 0
        self.owner.lost(self)
        self.up = False
        self.release()
        if not self.over.done():
            self.over.set_result(None)
        if self.transport is None and not self.gone.done():
            self.gone.set_result(None)
