"""One connection to the leaf node listener of a nats-server.

Belongs here: the asyncio shell around the wire: what each thing that is said does, what is written back, and when the
connection ends. Whom it leads to and how often is leaf_link.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from lakestream.logging import Logger
from lakestream.net.hub import TRACED, Hub, Sink
from lakestream.net.remote.keepalive import Drain, KeepAlive, unconfirmed
from lakestream.net.remote.leaf_interest import MAX_SUBJECTS, Listeners
from lakestream.ports import ClientInfo, Clock
from lakestream.protocol import leaf_wire
from lakestream.protocol.leaf_wire import Info, LeafParser, Left, Listens, Message, Names, Refused, Said, Word
from lakestream.protocol.subjects import is_literal, matches

HIGH_WATER = 1 << 20
"""Unsent bytes (1 MiB) above which the connection counts as congested and JetStream holds its deliveries."""

MAX_UNSENT = 64 << 20
"""Unsent bytes (64 MiB) at which the connection is given up."""

PING_NS = 15_000_000_000
"""Pause between two PINGs (15 s); the first one is part of the greeting."""

MAX_PINGS = 2
"""PINGs without an answer, while nothing else gets through, after which the connection is given up."""

MAX_PAYLOAD = 1 << 20
"""What the other side takes when it does not say (1 MiB)."""

JETSTREAM = b"$JS."
"""How all subjects of this server begin that nobody else listens to there."""


class LeafConnection(asyncio.Protocol):
    """From the first byte to the last.

    Args:
        hub: of the account here that is connected.
        names: of this server's own subjects there.
        label: how the log calls the other side.

    Attributes:
        said_info: done with the fields of the first INFO, or when the connection has ended before that.
        up: done when the other side has answered the greeting, or refused it (`refused`), or the connection has ended.
        over: done when it has ended, with the reason.
        info: the fields of the last INFO.
        listeners: who listens over there; None before the greeting.
        refused: what the other side said of us last, "" for nothing.
        unasked: messages that came on subjects that do not lead here.
    """

    def __init__(self, hub: Hub, names: Names, clock: Clock, log: Logger, label: str) -> None:
        loop = asyncio.get_running_loop()
        self._hub, self._names, self._clock, self._log, self._label = hub, names, clock, log, label
        self.said_info: asyncio.Future[bool] = loop.create_future()
        self.up: asyncio.Future[bool] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        self.info: dict[str, Any] = {}
        self.listeners: Listeners | None = None
        self.refused = self.reason = ""
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.unasked = 0
        self._below: tuple[bytes, ...] = ()
        self._subjects: tuple[bytes, ...] = ()
        self.transport: asyncio.Transport | None = None
        self._client = ClientInfo(id=0, host="", account=hub.account, kind="Leafnode")
        self._parser = LeafParser()
        self._out: list[bytes] = []
        self._gathered = self._written = 0
        self._dirty = self._stalled = self._full = False
        self._drain = Drain()
        self._alive = KeepAlive(
            clock,
            PING_NS,
            MAX_PINGS,
            lambda: self.write(b"PING\r\n"),
            lambda: (self._written, unconfirmed(self.transport)),
            lambda: self.end("Stale Connection"),
        )

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.secured(cast(asyncio.Transport, transport))
        peer = transport.get_extra_info("peername") or ("", 0)
        self._client = ClientInfo(id=0, host=str(peer[0]), account=self._hub.account, kind="Leafnode")

    def secured(self, transport: asyncio.Transport) -> None:
        """This transport takes the bytes from now on."""
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        self._alive.heard()
        try:
            said = self._parser.feed(data)
        except leaf_wire.WireError as error:
            self.end(f"it does not speak as to a leaf node: {error}")
            return
        turn = self._hub.turn
        turn.overrun = None
        for one in said:
            if type(one) is Message:
                self._arrived(one)
            else:
                self._control(one)
        if turn.overrun is not None:
            self._stall(turn.overrun)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._alive.end()
        if self.listeners is not None:
            self.listeners.clear()
        self._drain.resume()
        reason = self.reason or self.refused or (str(exc) if exc is not None else "the connection was closed")
        for waiting in (self.said_info, self.up):
            if not waiting.done():
                waiting.set_result(False)
        if not self.over.done():
            self.over.set_result(reason)

    def pause_writing(self) -> None:
        self._drain.pause()

    def resume_writing(self) -> None:
        self._drain.resume()

    # ------------------------------------------------------------------ in
    def _arrived(self, came: Message) -> None:
        """A request, an ack or an answer to flow control."""
        self.in_msgs += 1
        self.in_bytes += len(came.header) + len(came.payload)
        if self.listeners is None:
            return
        if not (came.subject.startswith(self._below) or any(matches(one, came.subject) for one in self._subjects)):
            self._unasked(came.subject)
            return
        subject, header = self._names.to_ours(came.subject), came.header
        tracing = self._hub.tracing if header and TRACED in header else None
        route = self._hub.route if tracing is None else tracing.route
        found = route(self.listeners, self._client, subject, came.reply, header, came.payload)
        if not found and came.reply and came.subject.startswith(JETSTREAM):
            self._nobody(came)

    def _unasked(self, subject: bytes) -> None:
        """What nobody here asked for goes to nobody: the other side is trusted with what leads here, and no more."""
        self.unasked += 1
        if self.unasked == 1:
            self._log.warn(
                f"{self._label}: it sends what it was not asked for, as on {subject.decode(errors='replace')!r}"
            )

    def _nobody(self, came: Message) -> None:
        """The other side can not tell that nobody listens: to it, this server does. Only for what leads nowhere else:
        to other subjects somebody may listen there."""
        header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % came.subject
        self.send(self._names.deliveries(came.reply, b"", ((came.reply, b"", header, b""),)), 1, len(header))

    def _control(self, said: Said) -> None:
        match said:
            case Word(b"PING"):
                self.write(b"PONG\r\n")
            case Word(b"PONG"):
                self._answered()
            case Listens():
                if self.listeners is not None and not self.listeners.begins(said) and not self._full:
                    self._full = True
                    self._log.warn(f"{self._label}: more than {MAX_SUBJECTS} subjects are listened to there")
            case Left():
                if self.listeners is not None:
                    self.listeners.ends(said)
            case Info(fields):
                self.info = fields
                if not self.said_info.done():
                    self.said_info.set_result(True)
            case Refused(text):
                same, self.refused = text == self.refused, text
                if self.up.done() and not same:  # before that, it is why the attempt failed, and reported as such
                    self._log.error(f"{self._label}: it says: {text}")
            case _:
                pass

    def _answered(self) -> None:
        self._alive.answered()
        if not self.up.done():
            self.up.set_result(True)

    def _stall(self, receiver: Sink) -> None:
        """Read no more until what came goes to has drained (or is gone)."""
        transport = self.transport
        if self._stalled or transport is None or transport.is_closing():
            return
        self._stalled = True
        self._alive.reads(False)
        transport.pause_reading()
        receiver.on_drain(self._go_on)

    def _go_on(self) -> None:
        self._stalled = False
        self._alive.reads(True)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    # ------------------------------------------------------------------ out
    def greet(self, fields: dict[str, Any], subjects: Sequence[bytes], group: bytes) -> None:
        """Say who this is and which subjects lead here; of the connections of a group each message takes one."""
        most = self.info.get("max_payload")
        self.listeners = Listeners(
            self._hub, self._names, self, most if isinstance(most, int) and most > 0 else MAX_PAYLOAD, self._too_large
        )
        self._below = tuple(one[:-1] for one in subjects if one.endswith(b".>") and is_literal(one[:-2]))
        self._subjects = tuple(one for one in subjects if one[:-1] not in self._below)
        self.write(leaf_wire.connect(fields) + b"".join(leaf_wire.listen(one, group) for one in subjects))
        self._alive.begin()

    def _too_large(self, subject: bytes, size: int) -> None:
        self._log.warn(
            f"{self._label}: a message of {size} bytes on {subject.decode('utf-8', 'replace')!r} is larger than its "
            "max_payload; a mirror there waits for it until that is raised"
        )

    @property
    def rtt_ns(self) -> int:
        """How long the last PING took; 0: none was answered yet."""
        return self._alive.rtt_ns

    @property
    def congested(self) -> bool:
        """See `Way.congested`."""
        return self._drain.paused

    def on_drain(self, callback: Callable[[], None]) -> None:
        """See `Way.on_drain`."""
        self._drain.wait(callback)

    def send(self, frames: Sequence[bytes], messages: int, size: int) -> None:
        """See `Way.send`."""
        self.out_msgs += messages
        self.out_bytes += size
        self._out.extend(frames)
        self._gathered += size
        if not self._dirty:
            self._dirty = True
            self._hub.dirty(self)
        if self._gathered > HIGH_WATER:
            self._write()

    def flush(self) -> None:
        """Write what this turn gathered."""
        self._dirty = False
        self._write()

    def _write(self) -> None:
        out, self._out = self._out, []
        self._gathered = 0
        if out:
            self.write(b"".join(out))

    def write(self, data: bytes) -> None:
        """Write now."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._written += len(data)
        transport.write(data)
        if transport.get_write_buffer_size() > MAX_UNSENT:
            self.end("it is too slow: more than 64 MiB wait for it")

    def end(self, reason: str) -> None:
        """End the connection."""
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()
