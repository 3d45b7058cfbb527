"""The link to a remote server: a client connection that is made again whenever it is lost.

Belongs here: what outlives one connection: subscriptions, publishing, requests, and callbacks when the link comes up or
is lost. The remote's JetStream as a domain is in domain.py.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from lakestream.config.options import RemoteAddress, RemoteOptions
from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.remote.connection import RemoteConnection, RemoteServer
from lakestream.net.remote.dial import Redial
from lakestream.ports import Clock, Single, Subscribed, Timer
from lakestream.protocol import frames
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import short_hash

MAX_CONTROL_LINE = 4096
"""Maximum length of subject, reply and queue group together with the sizes (4096 bytes): the default of servers. A
longer line would end the connection."""

INBOX = b"_INBOX.lake-"
"""Prefix of the inboxes of all links."""

_SIZES = 32
"""Bytes of that for the verb, the sizes and a sid."""

ANSWER_NS = 5_000_000_000
"""Default timeout of a request (5 s)."""

_word = re.compile(rb"[!-~\x80-\xff]+").fullmatch

Take = Callable[[Sequence[Single]], None]
"""Called in the event loop with a run of messages of a subscription: (subject shown, reply, header, payload)."""


class RemoteAnswer(msgspec.Struct, frozen=True):
    """The response to a request."""

    header: bytes
    payload: bytes


class _RemoteSubscription(Subscribed):
    """A subscription on the remote."""

    __slots__ = ("_link", "queue", "sid", "subject", "take")

    def __init__(self, link: RemoteLink, sid: bytes, subject: bytes, queue: bytes, take: Take) -> None:
        self._link = link
        self.sid, self.subject, self.queue, self.take = sid, subject, queue, take

    @property
    def frame(self) -> bytes:
        """Return its SUB."""
        return frames.SUB % (self.subject, self.queue + b" " if self.queue else b"", self.sid)

    def cancel(self) -> None:
        self._link.leave(self)


class _Watch(Subscribed):
    __slots__ = ("_watches", "changed")

    def __init__(self, watches: list[_Watch], changed: Callable[[bool], None]) -> None:
        self._watches, self.changed = watches, changed

    def cancel(self) -> None:
        if self in self._watches:
            self._watches.remove(self)


class RemoteLink:
    """One remote.

    Args:
        options: the remote.
        hub: of the account in which it is known here.
        server_name: of this server.
        clock, log: of this server.
        call: runs a function in a thread; awaited.

    Attributes:
        name: in the log and monitoring.
        up: the link is connected.
        server: the remote's INFO; None while down.
        since_ns: time of the last change of `up`.
        connected: how often the link came up.
        in_msgs, in_bytes, out_msgs, out_bytes: messages with their headers and payloads.
        refused: -ERR from the remote that did not end the connection.
    """

    def __init__(
        self,
        options: RemoteOptions,
        hub: Hub,
        server_name: str,
        clock: Clock,
        log: Logger,
        call: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self.options, self.hub, self.name = options, hub, options.name
        self.up = False
        self.server: RemoteServer | None = None
        self.address: RemoteAddress | None = None
        self.since_ns = clock.now()
        self.connected = self.refused = 0
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self._server_name, self._clock, self._log, self._call = server_name, clock, log, call
        self._redial = Redial(options, self._attempt, log)
        self._connection: RemoteConnection | None = None
        self._last_error = ""
        """The last -ERR: the same is not logged twice in a row."""
        self._subscriptions: dict[bytes, _RemoteSubscription] = {}
        self._watches: list[_Watch] = []
        self._sids = itertools.count(1)
        self._numbers = itertools.count(1)
        # The same after a restart: push consumers there go on delivering to it.
        self.inbox_prefix = INBOX + short_hash(f"{server_name} {options.account} {options.name}").encode()
        # New at each start: messages for the server before a restart must not arrive.
        self._inboxes = b"%b.i.%b" % (self.inbox_prefix, secrets.token_hex(4).encode())
        self._requests: dict[bytes, tuple[Callable[[RemoteAnswer | None], None], Timer]] = {}
        self._answers = self.inbox() + b"."
        self.subscribe(self._answers + b"*", self._responded)

    @property
    def api(self) -> bytes:
        """Return the prefix of JetStream API requests on the remote."""
        domain = self.options.remote_domain.encode()
        return b"$JS.%b.API." % domain if domain else b"$JS.API."

    @property
    def error(self) -> str:
        """Return why the link is down."""
        return "" if self.up else self._redial.error or "not connected yet"

    def shown(self) -> dict[str, Any]:
        """Return the remote as /varz shows it."""
        connection, server, options = self._connection, self.server, self.options
        page: dict[str, Any] = {
            "domain": options.domain,
            "account": options.account,
            "url": (self.address or options.urls[0]).shown,
            "connected": self.up,
            "since": format_time(self.since_ns),
            "connects": self.connected,
        }
        if server is not None:
            page |= {name: getattr(server, name) for name in ("server_name", "server_id", "version")}
            page["rtt"] = connection.alive.rtt_ns if connection is not None else 0
        if self.error:
            page["error"] = self.error
        page |= {name: getattr(self, name) for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes")}
        return page | {
            "pending_bytes": connection.pending_bytes if connection is not None else 0,
            "refused": self.refused,
            "subscriptions": len(self._subscriptions),
        }

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        """Start dialling."""
        self._redial.start()

    @property
    def started(self) -> bool:
        """Return True while it is connected or dials."""
        return self._redial.started

    async def stop(self, reason: str = "Server Shutdown") -> None:
        """End the connection, and dial no more; `reason` is the link's error from then on."""
        if self._connection is not None:
            self._connection.end(reason, orderly=True)
        await self._redial.stop()
        self._redial.went_down(reason)

    async def _attempt(self, address: RemoteAddress) -> str:
        connection = RemoteConnection(self.options, address, self._server_name, self, self._clock, self.hub.turn)
        self._connection = connection
        try:
            return await connection.run(self._call)
        finally:
            self._connection = None
            if self.up:
                self._went_down(address, connection.reason)

    def came_up(self) -> Iterable[bytes]:
        assert self._connection is not None  # Invariant: only the connection of the attempt under way calls.
        address = self._connection.address
        self.up, self.server, self.address = True, self._connection.server, address
        self.since_ns = self._clock.now()
        self.connected += 1
        self._redial.came_up()
        self._redial.discovered(self.server.connect_urls)
        names = {self.server.server_name: None, self.server.version: None}
        names.pop(self.server.server_id, None)  # the default name is the id
        described = " ".join(names).strip()
        self._log.info(f"Connected to remote {self.name} ({address.shown}, {described})")
        frames = [sub.frame for sub in self._subscriptions.values()]
        self._notify(True)  # later subscriptions send their own SUB, behind these
        return frames

    def _went_down(self, address: RemoteAddress, why: str) -> None:
        self.up, self.server = False, None
        self.since_ns = self._clock.now()
        self._redial.went_down(why)
        self._log.warn(f"Disconnected from remote {self.name} ({address.shown}): {why}")
        requests, self._requests = self._requests, {}
        for done, timer in requests.values():
            timer.cancel()
            done(None)
        self._notify(False)

    def info_changed(self, server: RemoteServer) -> None:
        if not self.up or self._connection is None:
            return
        self.server = server
        self._redial.discovered(server.connect_urls)
        if server.ldm:
            self._connection.end("the remote is shutting down (lame duck mode)", orderly=True)

    def error_received(self, text: str) -> None:
        self.refused += 1
        if text != self._last_error:
            self._log.warn(f"Remote {self.name}: -ERR {text}")
        self._last_error = text

    def watch(self, changed: Callable[[bool], None]) -> Subscribed:
        """Call back with True when the link comes up, and with False when it is lost; soon with its current state."""
        watch = _Watch(self._watches, changed)
        self._watches.append(watch)
        self._clock.call_soon(lambda: changed(self.up) if watch in self._watches else None)
        return watch

    def _notify(self, up: bool) -> None:
        for watch in list(self._watches):
            watch.changed(up)

    # ------------------------------------------------------------------ to it
    @property
    def congested(self) -> bool:
        """Return True above the high-water mark of unsent bytes."""
        return self._connection is not None and self._connection.congested

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once when the link is not congested any more, or is gone; at once if it is not."""
        if self._connection is None:
            callback()
        else:
            self._connection.on_drain(callback)

    def accepts(self, subject: bytes, reply: bytes, header: bytes = b"", payload: bytes = b"") -> bool:
        """Return True if the remote accepts such a message, whatever subject a client chose."""
        if self.server is None or len(header) + len(payload) > self.server.max_payload:
            return False
        return fits_protocol_line(subject, reply)

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """Publish on the remote at the end of this turn; return False when the link is down or rejects the message.

        Messages in flight when the connection ends are lost: use `request` for what must arrive.
        """
        if not self.up or not self.accepts(subject, reply, header, payload):
            return False
        gap = reply + b" " if reply else b""
        if header:
            n = len(header)
            frame = frames.HPUB % (subject, gap, n, n + len(payload), header, payload)
        else:
            frame = frames.PUB % (subject, gap, len(payload), payload)
        self.out_msgs += 1
        self.out_bytes += len(header) + len(payload)
        self._send(frame)
        return True

    def _send(self, frame: bytes) -> None:
        if self._connection is not None:
            self._connection.send(frame)

    def inbox(self) -> bytes:
        """Return a new inbox."""
        return b"%b.%d" % (self._inboxes, next(self._numbers))

    def request(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        done: Callable[[RemoteAnswer | None], None],
        timeout_ns: int = ANSWER_NS,
    ) -> None:
        """Send a request. `done` is called once, later: with None after a timeout, or when the link is down."""
        token = b"%d" % next(self._numbers)
        if not self.publish(subject, self._answers + token, header, payload):
            self._clock.call_soon(lambda: done(None))
            return
        self._requests[token] = done, self._clock.call_later(timeout_ns, lambda: self._time_out(token))

    def _time_out(self, token: bytes) -> None:
        request = self._requests.pop(token, None)
        if request is not None:
            request[0](None)

    def _responded(self, messages: Sequence[Single]) -> None:
        for each in messages:
            request = self._requests.pop(each.subject[len(self._answers) :], None)
            if request is not None:
                request[1].cancel()
                request[0](RemoteAnswer(each.header, each.payload))

    # ------------------------------------------------------------------ from it
    def subscribe(self, subject: bytes, take: Take, queue: bytes = b"") -> Subscribed:
        """Subscribe on the remote until cancelled, across reconnects. See `fits_protocol_line` for valid subjects."""
        assert fits_protocol_line(subject, queue)  # Invariant: who takes them from a client has looked.
        sub = _RemoteSubscription(self, b"%d" % next(self._sids), subject, queue, take)
        self._subscriptions[sub.sid] = sub
        if self.up:
            self._send(sub.frame)
        return sub

    def leave(self, sub: _RemoteSubscription) -> None:
        """End a subscription."""
        if self._subscriptions.pop(sub.sid, None) is not None and self.up:
            self._send(frames.UNSUB % sub.sid)

    def received(self, sid: bytes, messages: Sequence[Single]) -> None:
        self.in_msgs += len(messages)
        self.in_bytes += sum([len(message.header) + len(message.payload) for message in messages])
        sub = self._subscriptions.get(sid)
        if sub is None:
            return  # it has just ended
        turn = self.hub.turn
        turn.overrun = None
        try:
            sub.take(messages)
        except Exception as error:  # a message must not end the link
            self._log.exception(f"remote {self.name}: handling of a message on {sub.subject!r} failed", error)
        if turn.overrun is not None and self._connection is not None:
            self._connection.stall(turn.overrun)


def fits_protocol_line(subject: bytes, other: bytes) -> bool:
    """Return True if a subject with a reply or queue group (b"": none) fits into one protocol line."""
    if len(subject) + len(other) > MAX_CONTROL_LINE - _SIZES:
        return False
    return _word(subject) is not None and (not other or _word(other) is not None)
