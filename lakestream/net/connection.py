"""One client connection.

Belongs here: the thin asyncio shell around the protocol parser: what each verb does to this client's state, what is
written back, when the connection ends and with which words. Routing is the hub's; bytes are the parser's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from msgspec.structs import replace

from lakestream.config.account_options import lower_limit
from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.net.accounts import refusals
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.auth import ANYBODY, Authenticator, Login
from lakestream.net.accounts.guard import RESERVED_REPLIES, RESERVED_SUBJECT, Guard
from lakestream.net.hub import TRACED
from lakestream.net.interest.interest import Subscription
from lakestream.net.tracer import Tracer
from lakestream.net.turn import Congested
from lakestream.net.unsent import Receiver, Unsent
from lakestream.ports import ClientInfo, Clock, Delivery, Timer
from lakestream.protocol.commands import Command, Connect, Ping, Pong, Publish, Subscribe, Unsubscribe, Violation
from lakestream.protocol.parser import Parser
from lakestream.protocol.subjects import subscribable, valid_literal

HIGH_WATER = 1 << 20
"""Unsent bytes (default 1 MiB) above which a connection counts as congested and JetStream holds its deliveries.
What one turn gathers is written as soon as it comes to this, so that this limit and max_pending count within it too."""

CLOSE_WAIT_NS = 2_000_000_000
"""A connection that ends is cut when its last bytes have not left after this long (2 s)."""

FIRST_PING_NS = 2_000_000_000
"""The first PING leaves this long after the connection began (2 s), to measure the round trip."""

RESERVED_QUEUE = b"_sys_"


class Owner(Protocol):
    """What a connection needs of the server that accepted it."""

    options: Options
    accounts: Accounts
    authenticator: Authenticator
    log: Logger
    unsent: Unsent

    @property
    def clock(self) -> Clock:
        """Time and timers."""

    def info(self, connection: Connection, second: bool = False, lame_duck: bool = False) -> bytes:
        """The INFO frame for this client; `second` is the one after the first PONG (docs/internals/protocol.md#info),
        `lame_duck` one that sends it to another server."""

    def opened(self, connection: Connection) -> bool:
        """Register; False when the server is full."""

    def joined(self, connection: Connection) -> None:
        """It has said who it is, and is in its account."""

    def closed(self, connection: Connection) -> None:
        """Forget."""


class Connection(Receiver, asyncio.Protocol):
    """A client's side of the wire. One instance per accepted socket; everything runs in the event loop."""

    def __init__(self, owner: Owner, identifier: int) -> None:
        self.owner = owner
        self.id = identifier
        self.echo = True
        self.name = self.lang = self.version = self.user = ""
        self.host, self.port = "", 0
        self.start_ns = self.last_ns = owner.clock.now()
        self.rtt_ns = 0
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.subs: dict[bytes, Subscription] = {}
        self.close_reason = ""
        self.account: Account = owner.accounts.default
        self.login: Login = ANYBODY
        self.guard: Guard | None = None
        self.client = ClientInfo(id=identifier, host="", account=self.account.name)
        self._hub = self.account.hub
        self._parser = Parser(owner.options.max_control_line, owner.options.max_payload)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._gathered = 0
        self._dirty = False
        self._headers = False
        self._no_responders = False
        # nats-server leaves both on until a CONNECT turns them off (checklist, surprise 1).
        self._verbose = self._pedantic = True
        self._protocol = 0
        self._ready = owner.authenticator.anonymous is not None
        self._first_pong = True
        self._paused = False
        self._stalled = False
        self._drained: list[Callable[[], None]] = []
        self._pings_out = 0
        self._ping_sent_ns = 0
        self._max_subscriptions = owner.options.max_subscriptions or -1
        self.max_payload = owner.options.max_payload
        self._tracer: Tracer | None = None
        self._timer: Timer | None = None
        self._auth_timer: Timer | None = None

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.host, self.port = str(peer[0]), int(peer[1])
        self.client = ClientInfo(id=self.id, host=self.host, account=self.account.name)
        log, label = self.owner.log, f"{self.host}:{self.port} - cid:{self.id}"
        self._tracer = Tracer(log, label) if log.tracing else None
        log.debug(f"{label} - Client connection created")
        if not self.owner.opened(self):
            self._fail("maximum connections exceeded", "Maximum Connections Exceeded")
            return
        self._send(self.owner.info(self))
        if (login := self.owner.authenticator.anonymous) is not None and not self._bind(login):
            return
        options = self.owner.options
        if not self._ready:
            self._auth_timer = self.owner.clock.call_later(options.auth_timeout_ns, self._auth_timeout)
        self._timer = self.owner.clock.call_later(min(FIRST_PING_NS, options.ping_interval_ns), self._ping)

    def data_received(self, data: bytes) -> None:
        self.last_ns = self.owner.clock.now()
        self._pings_out = 0
        publish = self._publish
        commands = self._parser.feed(data)
        if self._tracer is not None:
            self._tracer.inbound(commands)
        turn = self._hub.turn
        turn.overrun = None
        for command in commands:
            if type(command) is Publish:
                publish(command)
            else:
                self._control(command)
                publish = self._publish  # a CONNECT may have bound it to another
            if self.close_reason:
                return
        turn.read(len(data))
        if turn.overrun is not None:
            self._stall(turn.overrun)

    def _stall(self, receiver: Congested) -> None:
        """Read no more from this client until what it publishes to has drained (or is gone), or the turn is over."""
        transport = self._transport
        if self._stalled or transport is None or transport.is_closing():
            return
        self._stalled = True
        transport.pause_reading()
        receiver.on_drain(self._go_on)

    def _go_on(self) -> None:
        self._stalled = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.close_reason:
            self.close_reason = "Client Closed" if exc is None else "Read Error"
        label = f"{self.host}:{self.port} - cid:{self.id}"
        self.owner.log.debug(f"{label} - Client connection closed: {self.close_reason}")
        self._leave()
        self.owner.unsent.left(self)
        self.owner.closed(self)

    def _leave(self) -> None:
        """Nothing is delivered from now on: what would be is somebody else's, or stays pending."""
        for timer in (self._timer, self._auth_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._auth_timer = None
        subs, self.subs = self.subs, {}
        for sub in subs.values():
            self._hub.leave(sub)
        self.account.forget(self)
        self._release()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._release()

    def _release(self) -> None:
        drained, self._drained = self._drained, []
        for callback in drained:
            callback()

    # ------------------------------------------------------------------ sink
    @property
    def congested(self) -> bool:
        """See `Sink.congested`."""
        return self._paused and not self.close_reason

    @property
    def pending_bytes(self) -> int:
        """Bytes handed to the socket but not yet sent."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def on_drain(self, callback: Callable[[], None]) -> None:
        """See `Sink.on_drain`."""
        if self.congested:
            self._drained.append(callback)
        else:
            callback()

    def receive(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        """See `Sink.receive`."""
        if self.close_reason:
            return
        if header and self._headers:
            n = len(header)
            frame = b"HMSG %b %b %b%d %d\r\n%b%b\r\n" % (
                subject,
                sub.sid,
                reply + b" " if reply else b"",
                n,
                n + len(payload),
                header,
                payload,
            )
        elif reply:
            frame = b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sub.sid, reply, len(payload), payload)
        else:
            frame = b"MSG %b %b %d\r\n%b\r\n" % (subject, sub.sid, len(payload), payload)
        self._out.append(frame)
        self.out_msgs += 1
        self.out_bytes += len(payload)
        self._gathered += len(frame)
        if not self._dirty:
            self._dirty = True
            self._hub.dirty(self)
        if self._gathered > HIGH_WATER:
            self._write()
        sub.delivered += 1
        if sub.maximum and sub.delivered >= sub.maximum:
            self._drop(sub)

    def receive_many(self, sub: Subscription, messages: Sequence[Delivery]) -> None:
        """See `Sink.receive_many`."""
        if self.close_reason:
            return
        if sub.maximum or not self._headers:
            for subject, reply, header, payload in messages:
                if sub.maximum and sub.delivered >= sub.maximum:
                    return
                self.receive(sub, subject, reply, header, payload, self.client)
            return
        append, sid, size, headers = self._out.append, sub.sid, 0, 0
        for subject, reply, header, payload in messages:
            length = len(payload)
            size += length
            if header:
                n = len(header)
                headers += n
                gap = reply + b" " if reply else b""
                append(b"HMSG %b %b %b%d %d\r\n%b%b\r\n" % (subject, sid, gap, n, n + length, header, payload))
            elif reply:
                append(b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, length, payload))
            else:
                append(b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, length, payload))
        sub.delivered += len(messages)
        self.out_msgs += len(messages)
        self.out_bytes += size
        self._gathered += size + headers
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
        """Write what was gathered so far; a receiver too far behind is cut (max_pending, max_pending_total)."""
        out, self._out = self._out, []
        self._gathered = 0
        transport = self._transport
        if not out or transport is None or transport.is_closing():
            return
        if self._tracer is not None:
            self._tracer.outbound(out)
        data = b"".join(out)
        transport.write(data)
        self.owner.unsent.wrote(self, len(data), transport.get_write_buffer_size())

    def cut(self, reason: str, detail: str) -> None:
        """See `Receiver.cut`."""
        if not self.close_reason:
            self.close_reason, self.slow = reason, detail
            self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _send(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._dirty:
            self._dirty = True
            self._hub.dirty(self)

    def send_info(self, *, lame_duck: bool = False) -> None:
        """Announce a change (lame duck, other servers) to clients that understand asynchronous INFO.

        Before its first PONG a client hears of nothing: the INFO after that one tells it all.
        """
        if self._protocol >= 1 and not self._first_pong:
            self._send(self.owner.info(self, lame_duck=lame_duck))

    # ------------------------------------------------------------------ verbs
    def _publish(self, command: Publish) -> None:
        if not self._ready:
            self._fail("Authorization Violation", "Authentication Failure")
            return
        subject, reply, header, payload = command.subject, command.reply, command.header, command.payload
        self.in_msgs += 1
        self.in_bytes += len(payload) + len(header)
        if header and not self._headers:
            self.close("Message Header Violation")
            return
        if self._pedantic and not valid_literal(subject):
            self._error("Invalid Publish Subject")
        if subject.startswith(RESERVED_SUBJECT):
            self.refuse(refusals.publish(subject))
            return
        if reply and reply.startswith(RESERVED_REPLIES):
            self.refuse(refusals.reply(reply))
            return
        if self._verbose:
            self._send(b"+OK\r\n")
        tracing = self._hub.tracing if header and TRACED in header else None
        route = self._hub.route if tracing is None else tracing.route
        found = route(self, self.client, subject, reply, header, payload)
        if not found and reply and self._no_responders:
            self._nobody(subject, reply)

    def _nobody(self, subject: bytes, reply: bytes) -> None:
        """503 to the requester, if this very client listens on the reply (docs/internals/protocol.md#no-responders)."""
        for sub in self._hub.interest_graph.match(reply).plain:
            if sub.sink is self:
                self.unheard(sub, subject, reply)
                return

    def unheard(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        """See `Requester.unheard`."""
        if self._no_responders:
            header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
            self.receive(sub, reply, b"", header, b"", self.client)

    def _control(self, command: Command) -> None:
        match command:
            case Ping():
                self._on_ping()
            case Pong():
                self._on_pong()
            case Connect():
                self._connect(command.options)
            case Violation():
                self._fail(command.text, command.reason)
            case Subscribe() if self._ready:
                self._subscribe(command)
            case Unsubscribe() if self._ready:
                self._unsubscribe(command)
            case _:
                self._fail("Authorization Violation", "Authentication Failure")

    def _on_ping(self) -> None:
        if not self._ready:
            self._fail("Authorization Violation", "Authentication Failure")
            return
        self._send(b"PONG\r\n")
        if self._first_pong:
            self._first_pong = False
            if self._protocol >= 1:
                self._send(self.owner.info(self, second=True))

    def _on_pong(self) -> None:
        self._pings_out = 0
        if self._ping_sent_ns:
            self.rtt_ns = self.owner.clock.steady() - self._ping_sent_ns
            self.client = replace(self.client, rtt_ns=self.rtt_ns)
            self._ping_sent_ns = 0

    def _connect(self, options: dict[str, Any]) -> None:
        if not self.rtt_ns:  # until a PING tells better, as nats-server estimates it
            self.rtt_ns = max(1, self.owner.clock.now() - self.start_ns)
        # Before anything may be wrong with it: who is refused is told by name, too.
        self.name, self.lang = str(options.get("name", self.name)), str(options.get("lang", self.lang))
        self.version, self.user = str(options.get("version", self.version)), str(options.get("user", self.user))
        login = self.owner.authenticator.check(options)
        if options.get("account") or options.get("new_account") or login is None:
            self._fail("Authorization Violation", "Authentication Failure")
            return
        if not self._bind(login):
            return
        self._verbose = bool(options.get("verbose", self._verbose))
        self._pedantic = bool(options.get("pedantic", self._pedantic))
        self.echo = bool(options.get("echo", self.echo))
        self._headers = bool(options.get("headers", self._headers))
        self._no_responders = bool(options.get("no_responders", self._no_responders))
        protocol = options.get("protocol", self._protocol)
        if protocol not in (0, 1):
            self._fail("invalid client protocol", "Bad Client Protocol Version")
            return
        if self._no_responders and not self._headers:
            self._fail("no responders requires headers support", "No Responders Requires Headers")
            return
        self._protocol = protocol
        self.client = ClientInfo(
            id=self.id,
            host=self.host,
            account=self.account.name,
            user=self.user,
            name=self.name,
            lang=self.lang,
            version=self.version,
            start_ns=self.start_ns,
            rtt_ns=self.rtt_ns,
        )
        self._ready = True
        if self._auth_timer is not None:
            self._auth_timer.cancel()
            self._auth_timer = None
        self.owner.joined(self)
        self._ok()

    def _bind(self, login: Login) -> bool:
        """Be in the account of that user from now on; False: it is full, and the connection ends.

        Who subscribed before its CONNECT listens in the new account: so does nats-server.
        """
        account = self.owner.accounts.of(login.account)
        if not account.admit(self):
            self.account.forget(self)
            self.account = account  # where it would have been, for those who are told
            self._fail("maximum account active connections exceeded", "Maximum Account Connections Exceeded")
            return False
        moved: dict[bytes, Subscription] = {}
        if account is not self.account:
            self.account.forget(self)
            moved, self.subs = self.subs, {}
            for sub in moved.values():
                self._hub.leave(sub)
            self.account, self._hub = account, account.hub
            self.client = replace(self.client, account=account.name)
        self.login = login
        self.limit()
        self.permit()
        for sid, sub in moved.items():
            if self.guard is None or self.guard.may_subscribe(sub.subject, sub.queue):
                self.subs[sid] = sub
                self._hub.join(sub)
            else:
                self._removed(sub)
        return True

    @property
    def ready(self) -> bool:
        """It has said who it is, or need not."""
        return self._ready

    def limit(self) -> None:
        """Keep to the limits as they are now: the account's, and the server's where they are lower."""
        limits, options = self.account.options.limits, self.owner.options
        self._max_subscriptions = lower_limit(limits.max_subscriptions, options.max_subscriptions or -1)
        self.max_payload = lower_limit(limits.max_payload, options.max_payload)
        self._parser.max_payload = self.max_payload

    def permit(self) -> None:
        """Keep to what the user may do now, and to its account's mappings. What it may hear no more ends."""
        rules, mappings = self.account.rules(self.login.user), self._hub.mappings
        if self.guard is not None and self.guard.same(rules, mappings):
            return
        for name in ("_publish", "receive", "receive_many"):
            self.__dict__.pop(name, None)
        if rules is None and mappings is None:
            self.guard = None
            return
        self.guard = guard = Guard(self, rules, mappings)
        self._publish = guard.publish  # type: ignore[method-assign]
        if rules is not None:
            self.receive, self.receive_many = guard.receive, guard.receive_many  # type: ignore[method-assign]
        for sub in list(self.subs.values()):
            if not guard.may_subscribe(sub.subject, sub.queue):
                self._drop(sub)
                self._removed(sub)

    def _removed(self, sub: Subscription) -> None:
        refusal = refusals.removed(sub.subject, sub.sid, self.user)
        self._error(refusal.told)
        self.owner.log.info(refusal.logged)

    def _subscribe(self, command: Subscribe) -> None:
        guard = self.guard
        if command.queue == RESERVED_QUEUE or (
            guard is not None and not guard.may_subscribe(command.subject, command.queue)
        ):
            self.refuse(refusals.subscribe(command.subject, command.queue, command.sid))
            return
        if command.sid not in self.subs:  # a second SUB with a live sid changes nothing (docs/internals/protocol.md)
            if not subscribable(command.subject):
                self._error("Invalid Subject")
                return
            limit = self._max_subscriptions
            if 0 <= limit <= len(self.subs):
                text = "maximum subscriptions exceeded"
                self.refuse(refusals.Refusal(text, text))
                return
            sub = Subscription(self, command.subject, command.queue, command.sid)
            self.subs[command.sid] = sub
            self._hub.join(sub)
        self._ok()

    def _unsubscribe(self, command: Unsubscribe) -> None:
        sub = self.subs.get(command.sid)
        if sub is not None:
            sub.maximum = command.maximum
            if not sub.maximum or sub.delivered >= sub.maximum:
                self._drop(sub)
        self._ok()

    def _drop(self, sub: Subscription) -> None:
        if self.subs.pop(sub.sid, None) is not None:
            self._hub.leave(sub)

    # ------------------------------------------------------------------ words and ends
    def _ok(self) -> None:
        if self._verbose:
            self._send(b"+OK\r\n")

    def _error(self, text: str) -> None:
        self._send(b"-ERR '%b'\r\n" % text.encode())

    def refuse(self, refusal: refusals.Refusal) -> None:
        """It may not do that."""
        self._error(refusal.told)
        self.owner.log.error(f"{self.described()} - {refusal.logged}")

    def described(self) -> str:
        """Return the client's address, name and user as the log shows them."""
        who = (self.version, self.lang, self.name)
        user = self.login.user.user if self.login.user is not None else ""
        return refusals.described(f"{self.host}:{self.port} - cid:{self.id}", who, (self.account.name, user))

    def _fail(self, text: str, reason: str) -> None:
        if text:
            self._error(text)
        self.close(reason)

    def turn_away(self, text: str, reason: str) -> None:
        """Close, and say why before."""
        if not self.close_reason:
            self._fail(text, reason)

    def close(self, reason: str) -> None:
        """Say what is left to say, then close. `reason` is what connz shows."""
        if self.close_reason:
            return
        self.close_reason = reason
        self._write()
        self._leave()
        if self._transport is not None:
            self._transport.close()
            # A peer that does not read must not keep its connection by that.
            self._timer = self.owner.clock.call_later(CLOSE_WAIT_NS, self._transport.abort)

    def _auth_timeout(self) -> None:
        if not self._ready:
            self._fail("Authentication Timeout", "Authentication Timeout")

    def _ping(self) -> None:
        options = self.owner.options
        if self._pings_out >= options.ping_max:
            self._fail("Stale Connection", "Stale Connection")
            return
        self._pings_out += 1
        self._ping_sent_ns = self.owner.clock.steady()
        self._send(b"PING\r\n")
        self._timer = self.owner.clock.call_later(options.ping_interval_ns, self._ping)
