"""One accepted leaf connection.

Belongs here: the order of its greeting (INFO, compression, CONNECT, login), PINGs, its output, and its end. What is
exchanged afterwards is in exchange.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from lakestream.config.account_options import Permissions
from lakestream.config.leafnodes import version_of
from lakestream.config.options import (
    LEAFNODE,
    LEAFNODE_WS,
    OFF,
    LeafOptions,
    Options,
    lower_limit,
)
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Account
from lakestream.net.accounts.auth import (
    ANYBODY,
    EXPIRED,
    Authenticator,
    Credentials,
    Later,
    Login,
    LoginEnd,
    Outcome,
    Refusal,
    new_nonce,
)
from lakestream.net.client_hello import NOT_TLS
from lakestream.net.keep_alive import KeepAlive, unconfirmed
from lakestream.net.leaf.exchange import Exchange, LeafEnded
from lakestream.net.leaf.packing import LeafPacking, agreed
from lakestream.net.listener import Arrival, SetupError, peer_of
from lakestream.net.outbox import Accepted
from lakestream.net.tls import PeerCertificate, TlsState
from lakestream.net.turn import Turn
from lakestream.net.unsent import Unsent
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ports import Clock, Timer
from lakestream.protocol import frames
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.delivered import ErrorLine
from lakestream.protocol.leaf_wire import MAX_LINE, LeafInfo, LeafParser, LeafWireError
from lakestream.protocol.s2 import S2Error

FIRST_PING_NS = 1_000_000_000
"""Time of the first PING after the connection is made (1 s): it measures the round trip."""

CLOSE_WAIT_NS = 2_000_000_000
"""Time that the last bytes of a closing connection may take (2 s)."""

VIOLATION, REFUSED = "Authorization Violation", "Authentication Failure"
_FIRST_WORDS = (b"CONNECT ", b"INFO ")
_object = msgspec.json.Decoder(dict[str, Any])


class Peer(msgspec.Struct, frozen=True):
    """The leaf node as its CONNECT describes it. Its fields are not those of a client."""

    version: str = ""
    name: str = ""
    server_id: str = ""
    cluster: str = ""
    domain: str = ""
    remote_account: str = ""
    jetstream: bool = False
    headers: bool = False
    is_hub: bool = False
    isolate: bool = False
    deny_pub: tuple[str, ...] = ()
    lang: str = ""


class LeafOwner(Protocol):
    """The leaf nodes of a server, as an accepted connection needs them."""

    @property
    def log(self) -> Logger:
        """Return the log."""

    @property
    def clock(self) -> Clock:
        """Return the clock."""

    @property
    def unsent(self) -> Unsent:
        """Return the count of unsent bytes."""

    @property
    def turn(self) -> Turn:
        """Return the turn of the event loop that all clients share."""

    @property
    def authenticator(self) -> Authenticator:
        """Return the check of credentials."""

    @property
    def options(self) -> Options:
        """Return the settings of the server."""

    def info(self, leaf: AcceptedLeaf, *, second: bool = False) -> bytes:
        """Return the INFO frame. `second`: the one after the login."""

    def opened(self, leaf: AcceptedLeaf) -> None:
        """Register a connection."""

    def enter(self, leaf: AcceptedLeaf, login: Login) -> Exchange:
        """Put a leaf node into the account of its login. Raises Ended."""

    def entered(self, leaf: AcceptedLeaf, exchange: Exchange) -> None:
        """Announce the account's interest to a leaf node that was told that it is in."""

    def closed(self, leaf: AcceptedLeaf) -> None:
        """Unregister a connection."""


class AcceptedLeaf(Accepted, Arrival):
    """One leaf node.

    Args:
        upgrade: the handshake of one over WebSocket; None: it speaks over TCP or TLS.

    Attributes:
        kind: LEAFNODE.
        upgrade: that handshake.
        peer: as its CONNECT describes it; None before.
        account: the account that it is in; None before the login.
        login: its user; that of nobody before it logged in.
        permissions: of its user when it logged in; None: all.
        exchange: None before the login.
        nonce: what it is to sign.
        compression: the mode that is shown.
    """

    kind = LEAFNODE
    patient = True

    def __init__(self, owner: LeafOwner, identifier: int, upgrade: Upgrade | None = None) -> None:
        super().__init__(owner.unsent)
        self.id, self.upgrade = identifier, upgrade
        self.name = self.user = self.lang = self.version = ""
        self.host, self.port = "", 0
        self.nonce = new_nonce()
        self.peer: Peer | None = None
        self.account: Account | None = None
        self.login: Login = ANYBODY
        self.permissions: Permissions | None = None
        self._login_end = LoginEnd(owner.clock)
        self.exchange: Exchange | None = None
        self.compression = OFF
        self.tls: TlsState | None = None
        self.start_ns = self.last_ns = owner.clock.now()
        self._owner = owner
        self._greeting = bytearray()
        self._held: list[bytes] | None = None
        """Bytes that came while the login is being decided; None: it is not."""
        self._packing: LeafPacking | None = None
        self._negotiated = False
        self._parser = LeafParser(owner.options.max_payload)
        self._registered = False
        self._alive = KeepAlive(
            owner.clock,
            lambda: self._pings,
            lambda: self.write(frames.PING),
            lambda: (self.written, unconfirmed(self.transport)),
            lambda: self.fail("Stale Connection", "Stale Connection"),
        )
        self._timer: Timer | None = None
        self._auth_timer: Timer | None = None

    # ------------------------------------------------------------------ counters
    @property
    def rtt_ns(self) -> int:
        return self._alive.rtt_ns

    @property
    def in_msgs(self) -> int:
        return self.exchange.in_msgs if self.exchange is not None else 0

    @property
    def in_bytes(self) -> int:
        return self.exchange.in_bytes if self.exchange is not None else 0

    @property
    def out_msgs(self) -> int:
        return self.exchange.out_msgs if self.exchange is not None else 0

    @property
    def out_bytes(self) -> int:
        return self.exchange.out_bytes if self.exchange is not None else 0

    # ------------------------------------------------------------------ before there is a transport
    @property
    def label(self) -> str:
        """Return the address and number of the connection as the log shows them."""
        if self.upgrade is None:
            return f"{self.host}:{self.port} - lid:{self.id}"
        source = f"{self.upgrade.forwarded_for}/" if self.upgrade.forwarded_for else ""
        return f"{source}{self.host}:{self.port} - lid_ws:{self.id}"

    def described(self) -> str:
        """Return how the log shows the leaf node."""
        return self.label

    @property
    def max_payload(self) -> int:
        """Return the bytes of the largest message that is accepted."""
        return self._parser.max_payload

    def arrived(self, host: str, port: int) -> None:
        self._registered = True
        self._come(host, port)

    def _come(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._owner.opened(self)
        self._owner.log.info(f"{self.label} - Leafnode connection created")

    def greeting(self) -> bytes:
        return self._owner.info(self)

    def failed(self, error: SetupError) -> bytes:
        log = self._owner.log
        if str(error) and not str(error).endswith(NOT_TLS):  # plain text is not worth a line, as in nats-server
            text = str(error).replace("TLS handshake error", "TLS leafnode handshake error")
            (log.error if error.level == "error" else log.debug)(f"{self.label} - {text}")
        self.close_reason = self.close_reason or error.reason
        self.connection_lost(None)
        return frames.error(error.error) if error.error else b""

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.use(cast(asyncio.Transport, transport))
        if not self._registered:
            self.arrived(*peer_of(transport.get_extra_info("peername")))
        connection = transport.get_extra_info("ssl_object")
        if connection is not None and self.secured_by is not None:
            self.tls = self.secured_by.state(connection, first=self.tls_first)
            if not self.secured_by.is_pinned(self.tls.chain):
                self._owner.log.error(f"{self.label} - TLS leafnode handshake error: certificate not pinned")
                self.close("TLS Handshake Failure")
                return
        if not self.greeted:
            self.write(self.greeting())
        self._auth_timer = self._owner.clock.call_later(self._settings.auth_timeout_ns, self._auth_timeout)

    @property
    def _pings(self) -> tuple[int, int]:
        settings, options = self._settings, self._owner.options
        over_websocket = options.websocket.ping_interval_ns if self.upgrade is not None else 0
        interval_ns = over_websocket or settings.ping_interval_ns or options.ping_interval_ns
        return interval_ns, settings.ping_max or options.ping_max

    @property
    def _settings(self) -> LeafOptions:
        return self._owner.options.leafnodes

    @property
    def offered(self) -> str:
        """Return the compression that it is offered. Over WebSocket none: nats-server puts the frames into the stream
        of S2 then, so that nothing on the way could read them."""
        return OFF if self.upgrade is not None else self._settings.compression

    @property
    def certificate(self) -> PeerCertificate | None:
        """Return its certificate; None where none is required."""
        return self.tls.chain[0] if self.tls is not None and self.tls.chain else None

    def data_received(self, data: bytes) -> None:
        if self.close_reason:
            return
        self.last_ns = self._owner.clock.now()
        self._alive.received()
        self._guarded(lambda: self._received(self._packing.unpacked(data) if self._packing is not None else data))

    def read_on(self) -> None:
        exchange = self.exchange
        if exchange is not None and not self.close_reason:
            self._guarded(lambda: exchange.read_on(self._parser))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Handle what came; end the connection where it cannot go on."""
        try:
            work()
        except S2Error as error:
            self._owner.log.error(f"{self.label} - {error}")
            self.close("Read Error")
        except LeafWireError as error:
            self._owner.log.debug(f"{self.label} - invalid leaf node protocol: {error}")
            self.fail(error.error, "Protocol Violation" if error.error else "Client Closed")
        except LeafEnded as ended:
            self._ended(ended)

    def _received(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
        elif self.exchange is not None:
            self.exchange.feed(self._parser, data)
        else:
            self._greeting += data
            self._greet()
            if self._greeting and self.transport is not None and not self.close_reason:
                self.transport.pause_reading()  # thousands that send byte by byte take turns
                self._owner.turn.wait_for_more(self.resume)

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.close_reason:
            self.close_reason = "Client Closed" if exc is None else "Read Error"
        self._leave()
        where = f" - Account: {self.account.name}" if self.account is not None else ""
        self._owner.log.info(f"{self.label} - Leafnode connection closed: {self.close_reason}{where}")
        self._owner.unsent.left(self)
        self._owner.closed(self)

    def _leave(self) -> None:
        for timer in (self._timer, self._auth_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._auth_timer = None
        self._login_end.cancel()
        self._alive.end()
        if self.exchange is not None:
            self.exchange.end()
        self.release()

    # ------------------------------------------------------------------ the greeting
    def _greet(self) -> None:
        """Handle what comes before the login: an INFO about compression, and CONNECT."""
        start = bytes(self._greeting[: len(_FIRST_WORDS[0])]).upper()
        word = next((word for word in _FIRST_WORDS if word.startswith(start[: len(word)])), None)
        if word is None or (word == b"INFO " and (self._negotiated or self.offered == OFF)):
            self._refuse("")
            return
        end = self._greeting.find(b"\n")
        if end < 0:
            if len(self._greeting) > MAX_LINE:
                self._refuse("")
            return
        line, rest = bytes(self._greeting[len(word) : end]), bytes(self._greeting[end + 1 :])
        self._greeting.clear()
        try:
            fields = _object.decode(line)
        except DECODE_ERRORS:
            self.close("Client Closed")
            return
        if word == b"INFO ":
            self._negotiate(str(fields.get("compression") or ""), rest)
        else:
            self._connect(fields, rest)

    def _negotiate(self, wanted: str, rest: bytes) -> None:
        """Begin to compress if both sides want it."""
        self._negotiated = True
        try:
            self.compression = agreed(self.offered, wanted)
        except ValueError as error:
            raise LeafEnded(str(error), "Compression Error") from None
        if self.compression != OFF:
            self._packing = LeafPacking()
            self.write(self._owner.info(self))
        if rest:
            self._received(self._packing.unpacked(rest) if self._packing is not None else rest)

    def _connect(self, fields: dict[str, Any], rest: bytes) -> None:
        try:
            peer = self.peer = msgspec.convert(fields, Peer, strict=False)
        except msgspec.ValidationError:
            self.close("Client Closed")
            return
        self.name, self.version = peer.name, peer.version
        if peer.lang:
            raise LeafEnded("attempted to connect to leaf node port", "Wrong Port")
        if any(char.isspace() for char in peer.cluster):
            raise LeafEnded("cluster name cannot contain spaces", "Protocol Violation")
        kind = LEAFNODE if self.upgrade is None else LEAFNODE_WS
        credentials = Credentials.of(fields, nonce=self.nonce, kind=kind, host=self.host, certificate=self.certificate)
        self.user = credentials.nkey or credentials.user
        if self._auth_timer is not None:  # it did its part, however long the decision takes
            self._auth_timer.cancel()
            self._auth_timer = None
        outcome = self._owner.authenticator.check(credentials)
        self._held = [rest] if rest else []
        if isinstance(outcome, Later):
            if self.transport is not None:
                self.transport.pause_reading()
            outcome.start(lambda later: self._later(credentials, later))
        else:
            self._decided(credentials, outcome)

    def _later(self, credentials: Credentials, outcome: Outcome) -> None:
        if self.close_reason:
            return
        try:
            self._decided(credentials, outcome)
        except LeafWireError as error:
            self.fail(error.error, "Protocol Violation")
        except LeafEnded as ended:
            self._ended(ended)
        self.resume()

    def _decided(self, credentials: Credentials, outcome: Outcome) -> None:
        held, self._held = self._held or [], None
        if not isinstance(outcome, Login):
            self._refused(credentials, outcome)
            return
        least, peer = self._settings.min_version, self.peer
        assert peer is not None, "its CONNECT has come"
        exchange = self._owner.enter(self, outcome)
        self.write(self._owner.info(self, second=True))
        if least and (version_of(peer.version) or (0, 0, 0)) < (version_of(least) or (0, 0, 0)):
            text = f'connection rejected since minimum version required is "{least}"'
            raise LeafEnded(text, "Minimum Version Required", text)
        self.exchange = exchange
        self.limit()
        self._owner.entered(self, exchange)
        self._alive.begin(min(FIRST_PING_NS, self._pings[0]))
        self._login_end.watch(self.login, self._login_ended)
        for data in held:
            if not self.close_reason:
                self._received(data)

    def _login_ended(self) -> None:
        self._owner.log.debug(f"{self.label} - {EXPIRED[0]}")
        self.fail(*EXPIRED)

    def _refused(self, credentials: Credentials, refusal: Refusal) -> None:
        log, label = self._owner.log, self.label
        if refusal.reason:
            log.debug(f"{label} - {refusal.reason}")
        for line in refusal.errors:
            log.error(f"{label} - {line}")
        for line in refusal.warnings:
            log.warn(line)
        self._refuse(credentials.shown(), refusal.close)

    def _refuse(self, user: str, reason: str = REFUSED) -> None:
        self._owner.log.error(" - ".join(filter(None, (self.label, "authentication error", user))))
        self.fail(VIOLATION, reason)

    # ------------------------------------------------------------------ member of an account
    def limit(self) -> None:
        options, user = self._owner.options, self.login.user
        most = options.max_payload
        if self.account is not None:
            most = lower_limit(self.account.options.limits.max_payload, most)
        if user is not None and self.login.described_by is not None:
            most = lower_limit(user.max_payload, most)
        self._parser.max_payload = most

    def permit(self) -> None:
        """Close when the permissions are not those of the login: the other side was told them in INFO."""
        if self.account is not None and self.account.permissions(self.login.user) != self.permissions:
            self.fail(VIOLATION, REFUSED)

    def unauthorized(self, shown: str) -> None:
        self._refuse(shown)

    # ------------------------------------------------------------------ Line
    def answered(self) -> None:
        self._alive.answered()

    def informed(self, info: LeafInfo) -> None:
        """Ignore an INFO: a leaf node has nothing to announce."""

    def told(self, error: ErrorLine) -> None:
        self._owner.log.error(f"{self.label} - Leafnode Error '{error.text}'")

    def complain(self, text: str) -> None:
        self.write(frames.error(text))

    def reads(self, on: bool) -> None:
        super().reads(on)
        self._alive.reads(on)

    def resume(self) -> None:
        if self._held is None:
            super().resume()

    def write(self, data: bytes) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._packing is not None:
            data = self._packing.packed(data)
        transport.write(data)
        self._owner.unsent.wrote(self, len(data), transport.get_write_buffer_size())

    # ------------------------------------------------------------------ ends
    def _ended(self, ended: LeafEnded) -> None:
        if ended.logged:
            self._owner.log.error(f"{self.label} - {ended.logged}")
        self.fail(ended.text, ended.reason)

    def fail(self, text: str, reason: str) -> None:
        """Close, with -ERR where there is a text."""
        if self.close_reason:
            return
        if self.exchange is not None:
            self.exchange.flush()
        if text:
            self.write(frames.error(text))
        self.close(reason)

    def turn_away(self, text: str, reason: str) -> None:
        """Close with -ERR `text`; `reason` is shown by monitoring."""
        self.fail(text, reason)

    def close(self, reason: str) -> None:
        """Write what is gathered, then close. Idempotent."""
        if self.close_reason:
            return
        if self.exchange is not None:
            self.exchange.flush()
        self.close_reason = reason
        self._leave()
        if self.transport is not None:
            self.transport.close()
            self._timer = self._owner.clock.call_later(CLOSE_WAIT_NS, self.transport.abort)
        elif self.abandon is not None:
            self.abandon()

    def _auth_timeout(self) -> None:
        if self._auth_timer is None:
            return  # it has sent its CONNECT meanwhile, or is gone
        if self._owner.turn.is_over():  # of thousands that came together, some now
            self._owner.turn.wait(self._auth_timeout)
        else:
            self.fail("Authentication Timeout", "Authentication Timeout")
