"""One client connection.

Belongs here: the effect of each verb on the client's state, the checks that a published message passes in order
(connection, guard, hub), and the end of the connection. Input is in inbox.py, output in outbox.py, routing in hub.py,
parsing in protocol/parser.py.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec.structs import replace

from lakestream.config.options import STANDARD, WEBSOCKET, Options, lower_limit
from lakestream.logging import Logger
from lakestream.net.accounts import auth, permissions
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.auth import (
    ANYBODY,
    Authenticator,
    Credentials,
    Later,
    Login,
    Outcome,
    new_nonce,
)
from lakestream.net.accounts.guard import RESERVED_SUBJECT, Guard
from lakestream.net.accounts.permissions import PermissionViolation
from lakestream.net.client_outbox import ClientOutbox
from lakestream.net.hub import Hub, MessageTracing
from lakestream.net.inbox import COMMANDS, Gathering, Inbox
from lakestream.net.incomplete import Incomplete
from lakestream.net.interest.subscription import Subscription
from lakestream.net.listener import HANDSHAKE_FAILED, Arrival, SetupError, peer_of
from lakestream.net.tracer import Tracer
from lakestream.net.unsent import Unsent
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ports import ClientInfo, Clock, Timer
from lakestream.protocol import frames
from lakestream.protocol.api.request import SERVERS_QUEUE
from lakestream.protocol.client import TRACE_DESTINATION
from lakestream.protocol.commands import Command, Connect, Ping, Pong, Single, Subscribe, Unsubscribe, Violation
from lakestream.protocol.goquote import quoted
from lakestream.protocol.parser import Parser
from lakestream.protocol.publishes import STREAM_MARK, Apart, Publishes
from lakestream.protocol.subjects import subscribable, valid_literal

if TYPE_CHECKING:
    from lakestream.net.tls import PeerCertificate, TlsState

CLOSE_WAIT_NS = 2_000_000_000
"""Time that the last bytes of a closing connection may take (2 s)."""

FIRST_PING_NS = 2_000_000_000
"""Time of the first PING after the connection is made (2 s): it measures the round trip."""

TOO_MANY_SUBS = "maximum subscriptions exceeded"
"""Text of -ERR for a SUB beyond max_subscriptions."""

TOO_MANY_SUBS_LOG_S = 2.0
"""Such refusals are logged once in this time for each account (2 s), as in nats-server."""

TOO_MANY_SUBS_NS = 20_000_000
"""Time from such a login, or from a new limit, to the end (20 ms)."""

RESERVED_REPLIES = (b"$JS.", b"_R_.")
"""Beginnings of reply subjects that clients may not use: an answer there would be a request or an ack in their name."""

APART = Apart(RESERVED_SUBJECT, b"_R_.", STREAM_MARK, TRACE_DESTINATION)
"""A client's publishes that are handled one by one: those that may be refused for reserved words, those that streams
look at, and those that are traced. The mark covers `$JS.` as well."""


class ConnectionOwner(Protocol):
    """The server, as a connection needs it."""

    options: Options
    accounts: Accounts
    log: Logger
    unsent: Unsent
    incomplete: Incomplete
    gathering: Gathering

    def authenticator_for(self, kind: str) -> Authenticator:
        """Return the check of credentials of clients of this kind."""

    @property
    def clock(self) -> Clock:
        """Return the clock."""

    def info(
        self, connection: Connection, second: bool = False, lame_duck: bool = False, *, hidden: bool = False
    ) -> bytes:
        """Return the INFO frame for this client.

        Args:
            second: the one after the first PONG (docs/internals/protocol.md#info).
            lame_duck: tell the client to connect to another server.
            hidden: its address is not known yet: a PROXY header may follow.
        """

    def opened(self, connection: Connection) -> bool:
        """Register a new connection; False when the server is full."""

    def joined(self, connection: Connection) -> None:
        """Announce a client that authenticated and is in its account."""

    def closed(self, connection: Connection) -> None:
        """Unregister a connection."""

    def settling(self, then: Callable[[], None]) -> bool:
        """Call back once every process of this server has taken in what clients sent here: their subscriptions, and
        their messages for its subscribers. Return False if there is no other process."""


TOO_MANY = "maximum connections exceeded"


class Connection(ClientOutbox, Arrival):
    """One accepted client. Runs in the event loop.

    Args:
        upgrade: the handshake of a client over WebSocket; None: it speaks over TCP or TLS.

    Attributes:
        kind: one of `kinds`.
        tls: version, cipher suite and certificates; None: plain text.
        ready: the client authenticated, or need not.
        login: the user that it authenticated as.
        nonce: what the client is to sign; "": nothing.
        max_payload: bytes of the largest message that it may publish.
    """

    kinds = (STANDARD, WEBSOCKET)
    """Its kind over TCP or TLS, and over WebSocket."""

    def __init__(self, owner: ConnectionOwner, identifier: int, upgrade: Upgrade | None = None) -> None:
        self.kind = self.kinds[upgrade is not None]
        self._upgrade = upgrade
        self.account: Account = owner.accounts.default
        client = ClientInfo(id=identifier, host="", account=self.account.name)
        super().__init__(self.account.hub, client, owner.unsent)
        self.owner = owner
        self.id = identifier
        self.echo = True
        self.name = self.lang = self.version = self.user = ""
        self.host, self.port = "", 0
        self.tls: TlsState | None = None
        self.start_ns = self.last_ns = owner.clock.now()
        self.rtt_ns = 0
        self.in_msgs = self.in_bytes = 0
        self.login: Login = ANYBODY
        authenticator = owner.authenticator_for(self.kind)
        self.nonce = new_nonce() if authenticator.challenges else ""
        self.ready = authenticator.anonymous is not None
        self.max_payload = owner.options.max_payload
        options = owner.options
        self._parser = Parser(options.max_control_line, options.max_payload, not options.no_header_support, APART)
        self._no_responders = False
        # nats-server leaves both on until a CONNECT turns them off (checklist, surprise 1).
        self._verbose = self._pedantic = True
        self._protocol = 0
        self._first_pong = True
        self._connected = False  # a CONNECT was accepted
        self._joins = False  # `publish` only routes
        self._inbox = Inbox(self._parser, self.hub.turn)
        self._pings_out = 0
        self._subscribed = 0
        self._settled = (0, 0)  # messages and subscriptions of this client at its last PING
        self._settling = 0  # PONGs that wait for other processes of this server
        self._ping_sent_ns = 0
        self._max_subscriptions = owner.options.max_subscriptions or -1
        self._timer: Timer | None = None
        self._auth_timer: Timer | None = None
        self._login_end = auth.LoginEnd(owner.clock)
        self._registered = False

    # ------------------------------------------------------------------ before there is a transport
    def arrived(self, host: str, port: int) -> None:
        """Register the connection. Raises SetupError when the server is full."""
        self._registered = True
        self._come(host, port)
        if not self.owner.opened(self):
            raise SetupError(TOO_MANY, "Maximum Connections Exceeded", error=TOO_MANY)

    def _come(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.client = ClientInfo(id=self.id, host=self.host, account=self.account.name)
        log = self.owner.log
        self.tracer = Tracer(log, self.label) if log.tracing else None
        log.debug(f"{self.label} - Client connection created")

    def came_from(self, host: str, port: int) -> None:
        self._come(host, port)

    def greeting(self) -> bytes:
        return self.owner.info(self, hidden=self.owner.options.proxy_protocol)

    def failed(self, error: SetupError) -> bytes:
        log = self.owner.log
        if error.level == "warn":
            log.warn(str(error))
        elif str(error):
            (log.error if error.level == "error" else log.debug)(f"{self.label} - {error}")
        self.close_reason = self.close_reason or error.reason
        self.connection_lost(None)
        return frames.error(error.error) if error.error else b""

    @property
    def certificate(self) -> PeerCertificate | None:
        """Return the client's certificate; None where none is required."""
        return self.tls.chain[0] if self.tls is not None and self.tls.chain else None

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        self.use(made)
        if not self._registered:
            self._come(*peer_of(transport.get_extra_info("peername")))
            if not self.owner.opened(self):
                self.send(self.owner.info(self))
                self.write_gathered()  # over WebSocket the error is a frame of its own
                self.owner.log.error(f"{self.label} - {TOO_MANY}")
                self._fail(TOO_MANY, "Maximum Connections Exceeded")
                return
        encrypted = transport.get_extra_info("ssl_object")
        if self.close_reason or not self._secured(encrypted):
            made.abort()
            return
        if not self.greeted:
            self.send(self.owner.info(self))
        if self._upgrade is None and encrypted is None and (sock := transport.get_extra_info("socket")) is not None:
            self._descriptor = sock.fileno()
        if (login := self.owner.authenticator_for(self.kind).anonymous) is not None and not self._bind(login):
            return
        options = self.owner.options
        if not self.ready:
            limit = options.websocket.auth_timeout_ns if self.kind == WEBSOCKET else 0
            self._auth_timer = self.owner.clock.call_later(limit or options.auth_timeout_ns, self._auth_timeout)
        self._timer = self.owner.clock.call_later(min(FIRST_PING_NS, self._ping_interval_ns), self._ping)

    @property
    def label(self) -> str:
        """Return the address and number of the client as the log shows them."""
        if self._upgrade is None:
            return f"{self.host}:{self.port} - cid:{self.id}"
        source = f"{self._upgrade.forwarded_for}/" if self._upgrade.forwarded_for else ""
        return f"{source}{self.host}:{self.port} - wid:{self.id}"

    @property
    def _ping_interval_ns(self) -> int:
        options = self.owner.options
        return (self.kind == WEBSOCKET and options.websocket.ping_interval_ns) or options.ping_interval_ns

    def _secured(self, connection: ssl.SSLObject | None) -> bool:
        """Note what the TLS handshake has shown; return False when the client's certificate is not pinned."""
        if connection is None or self.secured_by is None:
            return True
        self.tls = self.secured_by.state(connection, first=self.tls_first)
        log = self.owner.log
        if not self.secured_by.is_pinned(self.tls.chain):
            log.error(f"{self.label} - TLS handshake error: certificate not pinned")
            self.close_reason = HANDSHAKE_FAILED
            return False
        log.debug(f"{self.label} - TLS handshake complete")
        log.debug(f"{self.label} - TLS version {self.tls.version}, cipher suite {self.tls.cipher}")
        return True

    def data_received(self, data: bytes) -> None:
        self.last_ns = self.owner.clock.now()
        self._pings_out = 0
        if self._upgrade is None:
            self.owner.gathering.read(self, data)
        else:  # its transport handles frames behind these bytes
            self.feed(data)

    # ------------------------------------------------------------------ input
    @property
    def joins(self) -> Hub | None:
        plain = self._joins and self.guard is None and not self.close_reason
        return self.hub if plain and self._inbox.is_free else None

    def feed(self, read: bytes | Single) -> None:
        if self.close_reason:
            return
        try:
            if type(read) is Single:
                self._inbox.publish(self, read)
            else:
                self._inbox.feed(self, read)
        except Exception as error:  # the reads of other clients follow
            self.owner.log.exception(f"{self.label} - reading failed", error)
            self.cut("Internal Error", "")

    def published(self, size: int) -> None:
        self.hub.turn.entered(self)
        self.in_msgs += 1
        self.in_bytes += size

    def begin_reading(self) -> None:
        self._reading = True

    def end_reading(self) -> None:
        self._reading = False
        if self._dirty:
            self.flush()

    def pause(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self._inbox.waits:
            super().resume()

    def holds(self, size: int) -> None:
        self.owner.incomplete.holds(self, size)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.owner.gathering.settle()
        if not self.close_reason:
            self.close_reason = "Client Closed" if exc is None else "Read Error"
        self.owner.log.debug(f"{self.label} - Client connection closed: {self.close_reason}")
        self._descriptor = -1  # the system may give its number to the next connection
        self._leave()
        self.owner.unsent.left(self)
        self.owner.closed(self)

    def _leave(self) -> None:
        """Remove the client from its account and end its subscriptions."""
        self._login_end.cancel()
        self._inbox.end(self)
        for timer in (self._timer, self._auth_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._auth_timer = None
        subs, self.subs = self.subs, {}
        self.hub.turn.run_in_steps(self._ends(self.hub, list(subs.values())))
        self.account.forget(self)
        self.release()

    @staticmethod
    def _ends(hub: Hub, subs: list[Subscription]) -> Iterator[None]:
        """End the subscriptions of a connection that is over."""
        while subs:
            hub.leave(subs.pop())
            yield

    # ------------------------------------------------------------------ ends and announcements
    def send_info(self, *, lame_duck: bool = False) -> None:
        """Announce a change (lame duck, other servers) to clients that understand asynchronous INFO.

        Before its first PONG a client gets none: the INFO after that PONG includes the change.
        """
        if self._protocol >= 1 and not self._first_pong:
            self.send(self.owner.info(self, lame_duck=lame_duck))

    # ------------------------------------------------------------------ verbs
    def publish_run(self, run: Publishes) -> int:
        """Publish a run of messages, as `publish` does each of them, while the turn lasts. Return the first message
        that was not published, else their number."""
        if not self.ready or self._verbose or self._pedantic or (run.heads and not self.headers):
            return self._publish_each(run, 0, len(run))
        if self.hub.may_trace(run):
            return self._publish_each(run, 0, len(run))
        if self.guard is None:
            return self._route_run(run, 0, len(run))
        for begin, end, routed in self.guard.parts(run, self.hub.tracing):
            stopped = self._publish_each(run, begin, end) if routed is None else self._route_run(routed, begin, end)
            if stopped < end:
                return stopped
        return len(run)

    def _publish_each(self, run: Publishes, begin: int, end: int) -> int:
        for at in range(begin, end):
            self.publish(run.message(at))
            if self.close_reason or (not at % COMMANDS and self.hub.turn.is_over()):
                return at + 1
        return end

    def _route_run(self, run: Publishes, begin: int, end: int) -> int:
        """Route messages that may be published under their subjects in `run`."""
        hub = self.hub
        self.in_msgs += end - begin
        self.in_bytes += run.bytes_of(begin, end)
        for first, stop in hub.route_run(self, self.client, run, begin, end, sliced=True):
            if self._no_responders and run.has_replies(first, stop):
                for subject, reply in zip(run.subjects[first:stop], run.replies(first, stop), strict=True):
                    if reply:
                        self._report_no_responders(subject, reply)
        if hub.stopped < end:
            self.in_msgs -= end - hub.stopped
            self.in_bytes -= run.bytes_of(hub.stopped, end)
        return hub.stopped

    def publish(self, command: Single) -> None:
        if not self.ready:
            self._fail("Authorization Violation", "Authentication Failure")
            return
        original = command.subject
        reply = command.reply
        header = command.header
        self.in_msgs += 1
        self.in_bytes += len(command.payload) + len(header)
        if header and not self.headers:
            self.close("Message Header Violation")
            return
        if self._pedantic and not valid_literal(original):
            self._error("Invalid Publish Subject")
        tracing = self.hub.tracing_of(header) if header else None
        subject, mapped = original, None
        if self.guard is None:
            if original.startswith(RESERVED_SUBJECT):
                self.refuse(permissions.publish_refusal(original))
                return
        else:
            mapped = self.guard.mapped(original)
            subject = original if mapped is None else mapped
            if self._rejected(self.guard, command, subject, mapped, tracing):
                return
        if reply and reply.startswith(RESERVED_REPLIES):
            self.refuse(permissions.reply_refusal(reply))
            return
        if self._verbose:
            self.send(frames.OK)
        client = self.client
        if self.guard is not None and self.guard.answered:
            client = replace(client, answers=True)
        if tracing is None:
            found = self.hub.route(self, client, command if mapped is None else command.under(subject))
        else:
            found = tracing.route(self, client, command, mapped)
        if not found and reply and self._no_responders:
            self._report_no_responders(subject, reply)

    def _rejected(
        self, guard: Guard, command: Single, subject: bytes, mapped: bytes | None, tracing: MessageTracing | None
    ) -> bool:
        """Report a message that the guard rejects; return False when it does not."""
        if tracing is not None and (refusal := guard.rejects_trace(tracing, command.header)) is not None:
            self.refuse(refusal)
            return True
        refusal = guard.rejects(subject, mapped=mapped is not None, tracing=self.hub.tracing)
        if refusal is None:
            return False
        self.refuse(refusal)
        if tracing is not None:
            tracing.refused(self.client, command, mapped, refusal.error)
        return True

    def _report_no_responders(self, subject: bytes, reply: bytes) -> None:
        """Send a 503 to the requester if it subscribes to the reply subject itself
        (docs/internals/protocol.md#no-responders)."""
        for sub in self.hub.interest_graph.match(reply).plain:
            if sub.sink is self:
                self.no_responders(sub, subject, reply)
                return

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        if self._no_responders:
            self.take(sub, Single(reply, b"", frames.no_responders(subject), b""), 0, 1, self.client)

    def control(self, command: Command) -> None:
        match command:
            case Ping():
                self._on_ping()
            case Pong():
                self._on_pong()
            case Connect():
                self._connect(command.options)
            case Violation():
                self._fail(command.text, command.reason)
            case Subscribe() if self.ready:
                self._subscribe(command)
            case Unsubscribe() if self.ready:
                self._unsubscribe(command)
            case _:
                self._fail("Authorization Violation", "Authentication Failure")

    def _on_ping(self) -> None:
        if not self.ready:
            self._fail("Authorization Violation", "Authentication Failure")
            return
        # Clients tell PONGs apart by their order: one that needs no waiting still follows those that wait.
        if self._settling or self._settled != (self.in_msgs, self._subscribed):
            self._settled = (self.in_msgs, self._subscribed)
            if self.owner.settling(self._settled_then_pong):
                self._settling += 1
                return
        self._pong()

    def _settled_then_pong(self) -> None:
        self._settling -= 1
        self._pong()

    def _pong(self) -> None:
        if self.close_reason:
            return
        self.send(frames.PONG)
        if self._first_pong:
            self._first_pong = False
            if self._protocol >= 1:
                self.send(self.owner.info(self, second=True))

    def _on_pong(self) -> None:
        self._pings_out = 0
        if self._ping_sent_ns:
            self.rtt_ns = self.owner.clock.steady() - self._ping_sent_ns
            self.client = replace(self.client, rtt_ns=self.rtt_ns)
            self._ping_sent_ns = 0

    def _connect(self, options: dict[str, Any]) -> None:
        if not self.rtt_ns:  # estimated until the first PONG, as in nats-server
            self.rtt_ns = max(1, self.owner.clock.now() - self.start_ns)
        # First, so that rejected clients are reported by name too.
        self.name, self.lang = str(options.get("name", self.name)), str(options.get("lang", self.lang))
        self.version = str(options.get("version", self.version))
        if self._upgrade is not None:
            options = options | {name: text for name, text in self._upgrade.login.items() if not options.get(name)}
        credentials = Credentials.of(
            options,
            nonce=self.nonce,
            kind=self.kind,
            host=self.host,
            id=self.id,
            tls=self.tls,
            certificate=self.certificate,
        )
        self.user = credentials.name or self.user
        if self._auth_timer is not None:  # the client did its part, however long the decision takes
            self._auth_timer.cancel()
            self._auth_timer = None
        outcome: Login | auth.Refusal | Later = auth.REFUSED
        if not options.get("account") and not options.get("new_account"):
            outcome = self.owner.authenticator_for(self.kind).check(credentials)
        if isinstance(outcome, Later):
            self._wait(credentials, outcome)
        else:
            self._decided(credentials, outcome)

    def _wait(self, credentials: Credentials, later: Later) -> None:
        """Wait for a decision about credentials. Meanwhile the connection is not read, and commands that came wait."""
        self._inbox.hold(self)
        authenticator = self.owner.authenticator_for(self.kind)

        def decide(outcome: Outcome) -> None:
            if authenticator is not self.owner.authenticator_for(self.kind):  # a reload may have changed the user
                self._connect(dict(credentials.connect))
            else:
                self._decided(credentials, outcome)

        later.start(lambda outcome: self._inbox.decided(self, lambda: decide(outcome)))

    def _decided(self, credentials: Credentials, outcome: Outcome) -> None:
        if isinstance(outcome, Login):
            self._log_in(credentials.connect, outcome)
        else:
            self._refuse_login(credentials, outcome)

    def _refuse_login(self, credentials: Credentials, refusal: auth.Refusal) -> None:
        log, label = self.owner.log, self.label
        if refusal.reason:
            log.debug(f"{label} - {refusal.reason}")
        for line in refusal.errors:
            log.error(f"{label} - {line}")
        token = self.login.token
        shown = refusal.shown or credentials.shown(token.sub if token is not None else "")
        self.unauthorized(shown, refusal.close)
        for line in refusal.warnings:
            log.warn(line)

    def unauthorized(self, shown: str, reason: str = "Authentication Failure") -> None:
        self.owner.log.error(" - ".join(filter(None, (self.label, "authentication error", shown))))
        self._fail("Authorization Violation", reason)

    def _log_in(self, options: Mapping[str, Any], login: Login) -> None:
        if not self._bind(login):
            return
        token, described_by = login.token, login.described_by
        if token is not None:
            self.user = str(options.get("nkey") or options.get("user") or "")
        if login.called_out and login.user is not None:
            self.user = self.user or login.user.user
        if token is not None:
            self.user = self.user or token.sub
        elif not self.user and login.user is not None:
            self.user = login.user.name  # of no_auth_user
        elif self.owner.authenticator_for(self.kind).by_certificate and login.user is not None:
            self.user = login.user.user
        self._connected = True
        self._verbose = bool(options.get("verbose", self._verbose))
        self._pedantic = bool(options.get("pedantic", self._pedantic))
        self.echo = bool(options.get("echo", self.echo))
        self.headers = self._parser.supports_headers and bool(options.get("headers", self.headers))
        self._no_responders = bool(options.get("no_responders", self._no_responders))
        protocol = options.get("protocol", self._protocol)
        if protocol not in (0, 1):
            self._fail("invalid client protocol", "Bad Client Protocol Version")
            return
        if self._no_responders and not self.headers:
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
            issuer_key=token.iss if token is not None else self.account.name if login.called_out else "",
            name_tag=described_by.name if described_by is not None else "",
            tags=described_by.nats.tags if described_by is not None else (),
            jwt=login.user.shown_token if login.user is not None else "",
            sees=self.account.sees(login.user),
            roles=login.roles,
        )
        self.ready = True
        self._joins = self.headers and self.echo and not (self._verbose or self._pedantic or self.tracer)
        self.owner.joined(self)
        self._ok()

    def _bind(self, login: Login) -> bool:
        """Put the client into the account of its user; return False when that is full and the connection ends.

        Subscriptions made before CONNECT move to the new account, as in nats-server.
        """
        # A second CONNECT changes the user, but not the account, as in nats-server.
        account = self.account if self._connected else self.owner.accounts.of(login.account)
        if not account.admit(self):
            self.account.forget(self)
            self.account = account  # for monitoring and events of the rejection
            self.owner.log.error(f"{self.label} - maximum account active connections exceeded")
            self._fail("maximum account active connections exceeded", "Maximum Account Connections Exceeded")
            return False
        moved: dict[bytes, Subscription] = {}
        if account is not self.account:
            self.account.forget(self)
            moved, self.subs = self.subs, {}
            for sub in moved.values():
                self.hub.leave(sub)
            self.account, self.hub = account, account.hub
            self.client = replace(self.client, account=account.name)
        self.login = replace(login, account=account.name)
        self._login_end.watch(self.login, self._login_ended)
        self.limit()
        self.permit()
        for sid, sub in moved.items():
            if self.guard is None or self.guard.may_subscribe(sub.subject, sub.queue):
                self.subs[sid] = sub
                self.hub.join(sub)
            else:
                self._removed(sub)
        return True

    def _login_ended(self) -> None:
        self.owner.log.debug(f"{self.described()} - {auth.EXPIRED[0]}")
        self.turn_away(*auth.EXPIRED)

    def limit(self) -> None:
        """Apply the limits of the account, or of the server where they are lower."""
        limits, options, user = self.account.options.limits, self.owner.options, self.login.user
        self._max_subscriptions = lower_limit(limits.max_subscriptions, options.max_subscriptions or -1)
        self.max_payload = lower_limit(limits.max_payload, options.max_payload)
        if user is not None and self.login.described_by is not None:
            self._max_subscriptions = lower_limit(user.max_subscriptions, self._max_subscriptions)
            self.max_payload = lower_limit(user.max_payload, self.max_payload)
            if self._max_subscriptions != -1 and len(self.subs) >= self._max_subscriptions:
                self.owner.clock.call_later(TOO_MANY_SUBS_NS, self._end_with_too_many_subscriptions)
        self._parser.max_payload = self.max_payload
        if self._parser.max_control_line != options.max_control_line:
            self._parser.limit_lines(options.max_control_line)

    def _end_with_too_many_subscriptions(self) -> None:
        """End the connection of a signed user who may have no more subscriptions, as nats-server does, after a while:
        a login without any is accepted first."""
        self.turn_away(TOO_MANY_SUBS, "Maximum Subscriptions Exceeded")

    def permit(self) -> None:
        """Apply the user's permissions and its account's mappings. Subscriptions that they deny end."""
        rules, mappings = self.account.rules(self.login.user), self.hub.mappings
        if self.guard is not None and self.guard.is_same(rules, mappings):
            return
        self.client = replace(self.client, sees=None if rules is None else rules.sees())
        if rules is None and mappings is None:
            self.guard = None
            return
        self.guard = guard = Guard(rules, mappings, self.owner.clock)
        for sub in list(self.subs.values()):
            if not guard.may_subscribe(sub.subject, sub.queue):
                self.unsubscribe(sub)
                self._removed(sub)

    def _removed(self, sub: Subscription) -> None:
        refusal = permissions.removal_refusal(sub.subject, sub.sid, self.user)
        self._error(refusal.error)
        self.owner.log.info(refusal.logged)

    def _subscribe(self, command: Subscribe) -> None:
        guard = self.guard
        if command.queue == SERVERS_QUEUE or (
            guard is not None and not guard.may_subscribe(command.subject, command.queue)
        ):
            self.refuse(permissions.subscribe_refusal(command.subject, command.queue, command.sid))
            return
        if 0 < self.owner.options.max_subscription_tokens <= command.subject.count(b"."):
            self.refuse(permissions.too_many_tokens(command.subject, command.sid))
            return
        # a second SUB with a live sid changes nothing (docs/internals/protocol.md#verbs)
        if command.sid not in self.subs:
            if not subscribable(command.subject):
                self._error("Invalid Subject")
                return
            limit = self._max_subscriptions
            if 0 <= limit <= len(self.subs):
                self._error(TOO_MANY_SUBS)
                text, key = f"{self.described()} - {TOO_MANY_SUBS}", f"{TOO_MANY_SUBS} {self.account.name}"
                self.owner.log.error_again(text, key, TOO_MANY_SUBS_LOG_S)
                return
            sub = Subscription(self, command.subject, command.queue, command.sid)
            self.subs[command.sid] = sub
            self._subscribed += 1
            self.hub.join(sub)
        self._ok()

    def _unsubscribe(self, command: Unsubscribe) -> None:
        sub = self.subs.get(command.sid)
        if sub is not None:
            sub.maximum = command.maximum
            if not sub.maximum or sub.delivered >= sub.maximum:
                self.unsubscribe(sub)
        self._ok()

    # ------------------------------------------------------------------ words and ends
    def _ok(self) -> None:
        if self._verbose:
            self.send(frames.OK)

    def _error(self, text: str) -> None:
        self.send(frames.error(text))

    def refuse(self, refusal: PermissionViolation) -> None:
        """Send -ERR for a permission violation and log it."""
        self._error(refusal.error)
        self.owner.log.error(f"{self.described()} - {refusal.logged}")

    def described(self) -> str:
        """Return the address, name and user of the client as the log shows them."""
        words = [word for word in (f"v{self.version}" if self.version else "", self.lang, self.name) if word]
        shown = [self.label] + ([quoted(":".join(words))] if words else [])
        if self.login.user is not None:
            user, account = self.login.user, self.account.name
            if user.token is not None:
                shown.append(quoted(f"{account}/{self.account.options.shown}/jwt:{user.nkey}"))
            else:
                shown.append(quoted(f"{account}/{'nkey' if user.nkey else 'user'}:{user.name}"))
        return " - ".join(shown)

    def _fail(self, text: str, reason: str) -> None:
        if text:
            self._error(text)
        self.close(reason)

    def turn_away(self, text: str, reason: str) -> None:
        """Close, and say why before."""
        if not self.close_reason:
            self._fail(text, reason)

    def close(self, reason: str) -> None:
        """Write what is gathered, then close. `reason` is shown by connz."""
        if self.close_reason:
            return
        self.close_reason = reason
        self.write_gathered()
        self._leave()
        if self.transport is not None:
            self.transport.close()
            # A client that does not read must not keep the connection open.
            self._timer = self.owner.clock.call_later(CLOSE_WAIT_NS, self.transport.abort)
        elif self.abandon is not None:
            self.abandon()

    def _auth_timeout(self) -> None:
        if self.ready or self.close_reason:
            return
        if self.hub.turn.is_over():  # of thousands that came together, some now
            self.hub.turn.wait(self._auth_timeout)
        else:
            self._fail("Authentication Timeout", "Authentication Timeout")

    def _ping(self) -> None:
        options = self.owner.options
        if self._pings_out >= options.ping_max:
            self._fail("Stale Connection", "Stale Connection")
            return
        self._pings_out += 1
        self._ping_sent_ns = self.owner.clock.steady()
        self.send(frames.PING)
        self._timer = self.owner.clock.call_later(self._ping_interval_ns, self._ping)
