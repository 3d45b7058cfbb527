"""One MQTT client, as a connection of the server.

Belongs here: the effect of each packet, and messages for the client as packets. Login, account, permissions, limits and
monitoring are those of every connection (lakestream/net/connection.py). Sessions are in sessions.py.

A packet that needs JetStream before the next one may be read (CONNECT, SUBSCRIBE, UNSUBSCRIBE, PUBREL) is handled by a
coroutine; meanwhile the client is not read. All others are handled at once: their answers (PUBACK, PUBREC, PUBCOMP) are
owed in order, and leave when JetStream has stored what they promise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from lakestream.config.options import MQTT, MQTT_WS
from lakestream.net.accounts import permissions
from lakestream.net.accounts.accounts import Account
from lakestream.net.accounts.auth import Login
from lakestream.net.accounts.guard import RESERVED_SUBJECT
from lakestream.net.connection import Connection, ConnectionOwner
from lakestream.net.inbox import SMALL_READ_BYTES
from lakestream.net.interest.subscription import Subscription
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ports import ClientInfo, Single, Timer
from lakestream.protocol.goquote import quoted
from lakestream.protocol.messages import Messages
from lakestream.protocol.nuid import nuid
from lakestream.protocol.subjects import valid_literal
from lakestream_mqtt import packets, stored
from lakestream_mqtt.options import MqttOptions
from lakestream_mqtt.packets import (
    Acknowledged,
    BadPacket,
    Connect,
    ConnectRefused,
    Decoder,
    Disconnected,
    Packet,
    Pinged,
    Publish,
    Subscribed,
    TooLarge,
    Unsubscribed,
)
from lakestream_mqtt.requests import RequestFailed, Stored, outcome
from lakestream_mqtt.sessions import FLAPPING_S, AccountSessions, Session
from lakestream_mqtt.topics import BadTopic, is_kept_from, level_above, subject_of, topic_of

MAX_OWED = 1024
"""Answers that a client is owed (1,024); with more it is not read."""

PACKETS = 8
"""Packets that are handled between two looks at the time."""

MAX_PACKET = 0xFFFFFFF
"""Bytes of the largest packet (256 MiB): longer messages of NATS clients are cut, as in nats-server."""

TEMPORARY = 500
"""Code of an error (500) from which on a stream may take the same message later: the client is closed and sends it
again. Errors below it would come again: they are logged, and the message counts as taken."""

ABOVE = " fwc"
"""End of the id of the subscription to the level above a filter with # at its end, as in nats-server."""

PROTOCOL_VIOLATION, DUPLICATE = "Protocol Violation", "Duplicate Client ID"


class MqttServer(Protocol):
    """The listener, as a connection needs it."""

    options: MqttOptions

    @property
    def node(self) -> ConnectionOwner:
        """Return the server."""

    def sessions(self, account: Account) -> AccountSessions:
        """Return the sessions of an account."""


class _Filter(Subscription):
    """The subscription of a filter to its subject, or of a consumer to its inbox.

    Attributes:
        filter: the filter as subject. qos: the highest one. durable: of the consumer; "": it is the filter's own.
    """

    __slots__ = ("durable", "filter", "qos")

    def __init__(
        self, sink: MqttConnection, subject: bytes, sid: bytes, filter_subject: bytes, qos: int, durable: str = ""
    ) -> None:
        super().__init__(sink, subject, b"", sid)
        self.filter, self.qos, self.durable = filter_subject, qos, durable


class _Owed:
    """An answer that waits for JetStream."""

    __slots__ = ("frame", "waits")

    def __init__(self, frame: bytes) -> None:
        self.frame, self.waits = frame, 0


class MqttConnection(Connection):
    """One MQTT client.

    Args:
        listener: of MQTT, which has the sessions.
        identifier: number of the connection.
        upgrade: see `Connection`.

    Attributes:
        mqtt_client: its client id.
    """

    kinds = (MQTT, MQTT_WS)
    greeted = True

    def __init__(self, listener: MqttServer, identifier: int, upgrade: Upgrade | None = None) -> None:
        super().__init__(listener.node, identifier, upgrade)
        self._listener = listener
        self.mqtt_client = ""
        self._decoder = Decoder(self.max_payload)
        self._connecting: Connect | None = None
        self._will: Publish | None = None
        self._sessions: AccountSessions | None = None
        self._session: Session | None = None
        self._inboxes: dict[bytes, _Filter] = {}
        self._owed: deque[_Owed] = deque()
        self._behind: list[bytes] | None = None  # messages that are held back until a SUBACK
        self._busy = self._full = self._later = self._partly = False
        self._alive: Timer | None = None

    # ------------------------------------------------------------------ as a connection of the server
    def greeting(self) -> bytes:
        return b""

    def send(self, frame: bytes) -> None:
        """Send nothing: the frames of NATS are not for this client."""

    def send_info(self, *, lame_duck: bool = False) -> None:
        """Send nothing: MQTT 3.1.1 has no such packet."""

    def _ping(self) -> None:
        """Send nothing: clients of MQTT ping, servers do not."""

    def _come(self, host: str, port: int) -> None:
        super()._come(host, port)
        self.tracer = None  # it traces NATS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._auth_timer is not None and (limit := self._listener.options.auth_timeout_ns):
            self._auth_timer.cancel()
            self._auth_timer = self.owner.clock.call_later(limit, self._auth_timeout)

    def _removed(self, sub: Subscription) -> None:
        super()._removed(sub)
        for inbox in [each for each in self._inboxes.values() if each.filter == sub.subject]:
            self._unlisten(inbox.subject.decode())

    @property
    def label(self) -> str:
        address = super().label.rpartition(" - ")[0]
        shown = f"{address} - mid:{self.id}"
        return f"{shown} - {quoted(self.mqtt_client)}" if self.mqtt_client else shown

    def put(self, frame: bytes) -> None:
        """Write a packet at the end of the turn."""
        if not self.close_reason:
            self._out.append(frame)
            self.count(len(frame))

    def unauthorized(self, shown: str, reason: str = "Authentication Failure") -> None:
        self.put(packets.connack(packets.NOT_AUTHORIZED))
        super().unauthorized(shown, reason)

    def replaced(self) -> None:
        """Close: another connection has the session now. As in nats-server, the will is not published."""
        self._will = self._session = None
        self.owner.log.warn(f"{self.label} - Replaced by a client with the same client ID")
        self.close(DUPLICATE)

    def _leave(self) -> None:
        session, self._session = self._session, None
        if self._alive is not None:
            self._alive.cancel()
            self._alive = None
        if session is not None and self._sessions is not None:
            will, self._will = self._will, None
            if will is not None:
                self._publish(will, None)
            self._sessions.detach(session)
        inboxes, self._inboxes = self._inboxes, {}
        for sub in inboxes.values():
            self.hub.leave(sub)
        super()._leave()

    # ------------------------------------------------------------------ input
    def data_received(self, data: bytes) -> None:
        self.last_ns = self.owner.clock.now()
        self.hub.turn.entered(self)
        self.hub.turn.overrun = None
        self._decoder.feed(data)
        if not (self._busy or self._full or self._later):
            self._work()
            if len(data) <= SMALL_READ_BYTES and self._decoder.pending and not self._waits:
                self._partly = True  # thousands that send byte by byte take turns
                self.hub.turn.wait_for_more(self._read_more)
                self._read_or_not()
        self.hub.turn.read(len(data))
        if self.hub.turn.overrun is not None:
            self.stall(self.hub.turn.overrun)

    def _work(self) -> None:
        """Handle packets, as long as none has to wait, and this turn of the event loop has time."""
        self._later = False
        if self.close_reason:
            return
        self._decoder.limit = self.max_payload + (packets.MAX_OVERHEAD if self._decoder.connected else 0)
        if self.max_payload < 0:
            self._decoder.limit = -1
        self.begin_reading()
        try:
            for number in range(1, 1 << 30):
                packet = self._decoder.next()
                if packet is None:
                    break
                self._handle(packet)
                if self.close_reason or self._busy or self._full:
                    break
                if not number % PACKETS and self.hub.turn.is_over():
                    self._later = True
                    self.hub.turn.wait(self._work)
                    break
        except BadPacket as error:
            self._violated(error)
        finally:
            self.end_reading()
        self._read_or_not()

    @property
    def _waits(self) -> bool:
        """Return True while the client is not to be read."""
        return self._busy or self._full or self._later or self._partly

    def resume(self) -> None:
        if not self._waits:
            super().resume()

    def _read_more(self) -> None:
        self._partly = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if self._waits:
            self.transport.pause_reading()
        else:
            self.resume()

    def _violated(self, error: BadPacket) -> None:
        if isinstance(error, ConnectRefused):
            self.put(packets.connack(error.code))
        self.owner.log.error(f"{self.label} - {error}")
        self.close("Maximum Message Payload Exceeded" if isinstance(error, TooLarge) else PROTOCOL_VIOLATION)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Handle a packet in a coroutine; read on when it is done."""
        self._busy = True

        async def run() -> None:
            if self.close_reason:  # before this had its turn
                work.close()
                return
            try:
                await work
            except (RequestFailed, ValueError) as error:
                if not self.close_reason:
                    self.owner.log.error(f"{self.label} - {error}")
                    self.close(PROTOCOL_VIOLATION)
            except Exception:
                self.close("Internal Client")
                raise
            self._busy = False
            self._work()

        self.owner.clock.spawn(run())

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._on_publish(packet)
            case Acknowledged():
                self._on_acknowledged(packet)
            case Pinged():
                self.put(packets.PONG)
            case Subscribed():
                self._run(self._on_subscribe(packet))
            case Unsubscribed():
                self._run(self._on_unsubscribe(packet))
            case Connect():
                self._on_connect(packet)
            case Disconnected():
                self._will = None
                self.close("Client Closed")

    # ------------------------------------------------------------------ CONNECT
    def _on_connect(self, packet: Connect) -> None:
        if packet.will is not None:
            if self._listener.options.reject_qos2_publish and packet.will.qos == 2:
                raise ConnectRefused(packets.QOS2_WILL_REFUSED, "server does not accept QoS2 for Will messages")
            try:
                subject_of(packet.will.topic)
            except BadTopic as error:
                raise BadPacket(f"invalid will topic: {error}") from None
        self._connecting = packet
        self.mqtt_client = packet.client_id or nuid()
        self._busy = True
        options: dict[str, Any] = {"verbose": False, "pedantic": False, "headers": True}
        if packet.user is not None:
            options["user"] = packet.user
        if packet.password is not None:
            options |= {"pass": packet.password, "auth_token": packet.password}
            if self.owner.options.operators is not None:
                options["jwt"] = packet.password
        self._connect(options)

    def _log_in(self, options: Mapping[str, Any], login: Login) -> None:
        super()._log_in(options, login)
        if not self.close_reason and self._connecting is not None:
            self._run(self._begin(self._connecting))

    async def _begin(self, packet: Connect) -> None:
        """Begin or go on with the session of a client that has logged in."""
        self._sessions = sessions = self._listener.sessions(self.account)
        await sessions.open()
        if sessions.is_flapping(self.mqtt_client):
            await asyncio.sleep(FLAPPING_S)
            self.close(DUPLICATE)
            return
        async with sessions.turn(self.mqtt_client):
            if self.close_reason:
                return
            try:
                session, present = await sessions.attach(self, self.mqtt_client, packet.clean)
            except ValueError:
                self.put(packets.connack(packets.BAD_CLIENT_ID))
                raise
            if self.close_reason:
                if session.client is self:
                    sessions.detach(session)
                return
            self._session, self._will = session, packet.will
            self.put(packets.connack(packets.ACCEPTED, present))
            if packet.keep_alive_s:
                self._keep_alive(packet.keep_alive_s * 1_500_000_000)
            if session.subs:
                await self._join(session, list(session.subs.items()))
                for ack in session.window.unanswered():
                    sessions.requests.acknowledge(ack, b"-NAK")

    def _keep_alive(self, limit_ns: int) -> None:
        """Close the client when it has been silent for longer than one and a half times its keep-alive."""

        def look() -> None:
            left = self.last_ns + limit_ns - self.owner.clock.now()
            if left > 0:
                self._alive = self.owner.clock.call_later(left, look)
            elif not self.close_reason:
                self.close("Read Error")

        self._alive = self.owner.clock.call_later(limit_ns, look)

    # ------------------------------------------------------------------ PUBLISH
    def _on_publish(self, packet: Publish) -> None:
        try:
            subject = subject_of(packet.topic)
        except BadTopic as error:
            raise BadPacket(f"{error}: {packet.topic!r}") from None
        if packet.qos == 2 and self._listener.options.reject_qos2_publish:
            raise BadPacket("QoS=2 is disabled for PUBLISH messages")
        size = len(stored.header_of(packet.qos)) + len(packet.payload)
        if 0 <= self.max_payload < size:
            raise TooLarge("maximum payload exceeded")
        if packet.qos == 2:
            self._hold(packet, subject)
            return
        owed = self._owe(packets.acknowledgement(packets.PUBACK, packet.packet_id)) if packet.qos else None
        self._publish(packet, owed, subject)
        self._pay()

    def _publish(self, packet: Publish, owed: _Owed | None, subject: bytes = b"", number: int = 0) -> None:
        """Publish a message as far as the user may.

        Args:
            owed: waits until it is stored; None: nobody does.
            number: sequence of the held message that it is, by which a stream tells a repetition; 0: it is none.
        """
        assert self._sessions is not None
        requests, qos = self._sessions.requests, packet.qos
        header = stored.header_of(qos)
        self.in_msgs += 1
        self.in_bytes += len(header) + len(packet.payload)
        to = self._permitted(subject or subject_of(packet.topic), packet.payload, header)
        if to is None:
            return
        if packet.retain and valid_literal(to):
            self._sessions.retain(to, packet, self.user, self._done(owed, "retained message"))
        reply = b""
        if qos and self._sessions.captures(to):
            reply = requests.reply(self._done(owed, f"message to {to.decode('utf-8', 'replace')}"))
        self.hub.route(self, self.client, Single(to, reply, header, packet.payload))
        if qos:
            if number:
                header = header[:-2] + b"Nats-Msg-Id: q2-%d\r\n\r\n" % number
            requests.store(stored.OF_MESSAGES + to, header, packet.payload, self._done(owed, "message"))

    def _permitted(self, subject: bytes, payload: bytes, header: bytes) -> bytes | None:
        """Return the subject that a message is published to; None: the user may not."""
        message = Single(subject, b"", header, payload)
        if self.guard is None:
            if subject.startswith(RESERVED_SUBJECT):
                self.refuse(permissions.publish_refusal(subject))
                return None
            return subject
        mapped = self.guard.mapped(subject)
        to = subject if mapped is None else mapped
        return None if self._rejected(self.guard, message, to, mapped, None) else to

    def _hold(self, packet: Publish, subject: bytes) -> None:
        """Store a message with QoS 2 until its PUBREL."""
        assert self._sessions is not None
        assert self._session is not None
        owed = self._owe(packets.acknowledgement(packets.PUBREC, packet.packet_id))
        self._session.holds = True
        where, header = self._session.held_subject(packet.packet_id), stored.held_header(packet, subject)
        self._sessions.requests.store(where, header, packet.payload, self._done(owed, "held message", is_held=True))

    async def _release(self, packet_id: int) -> None:
        """Publish the message with QoS 2 of this packet id."""
        sessions, session = self._sessions, self._session
        assert sessions is not None
        assert session is not None
        found = await sessions.held(session, packet_id)
        if self.close_reason:
            return
        owed = self._owe(packets.acknowledgement(packets.PUBCOMP, packet_id))
        if found is not None:
            seq, message = found
            self._publish(message, owed, message.topic, seq)
            body = {"seq": seq, "no_erase": True}
            sessions.requests.tell(f"STREAM.MSG.DELETE.{stored.HELD}", body)
        self._pay()

    # ------------------------------------------------------------------ what the client is owed
    def _owe(self, frame: bytes) -> _Owed:
        owed = _Owed(frame)
        self._owed.append(owed)
        self._full = len(self._owed) >= MAX_OWED
        return owed

    def _done(self, owed: _Owed | None, what: str, *, is_held: bool = False) -> Any:
        """Return what is called with a stream's answer; what is owed waits for it."""
        if owed is not None:
            owed.waits += 1

        def done(answer: bytes | None) -> None:
            found = outcome(answer)
            if found.error is not None and not (is_held and _is_repetition(found)):
                self._not_stored(found, what, closes=owed is not None)
            if owed is not None:
                owed.waits -= 1
                self._pay()

        return done

    def _not_stored(self, found: Stored, what: str, *, closes: bool) -> None:
        assert found.error is not None
        text = f"{what}: {found.error.description}"
        if closes and found.error.code >= TEMPORARY and not self.close_reason:
            self.owner.log.error(f"{self.label} - JetStream did not store a {text}; closing the connection")
            self.close(PROTOCOL_VIOLATION)
        else:
            self.owner.log.error(f"{self.label} - JetStream refused a {text}")

    def _pay(self) -> None:
        """Send the answers whose turn it is."""
        owed = self._owed
        while owed and not owed[0].waits:
            self.put(owed.popleft().frame)
        if self._full and len(owed) < MAX_OWED // 2:
            self._full = False
            if not (self._busy or self._later):
                self._later = True
                self.hub.turn.wait(self._work)

    # ------------------------------------------------------------------ answers of the client
    def _on_acknowledged(self, packet: Acknowledged) -> None:
        sessions, session = self._sessions, self._session
        assert sessions is not None
        assert session is not None
        window, packet_id = session.window, packet.packet_id
        match packet.kind:
            case packets.PUBACK:
                sessions.requests.acknowledge(window.acknowledged(packet_id))
            case packets.PUBREC:
                ack = window.received(packet_id)
                if ack is None or session.releases is None:
                    self.put(packets.acknowledgement(packets.PUBREL, packet_id))
                    return
                self._store_release(sessions, session, packet_id, ack)
            case packets.PUBCOMP:
                sessions.requests.acknowledge(window.completed(packet_id))
            case _:
                self._run(self._release(packet_id))

    def _store_release(self, sessions: AccountSessions, session: Session, packet_id: int, ack: bytes) -> None:
        """Store a PUBREL; its consumer delivers it until PUBCOMP."""

        def done(answer: bytes | None) -> None:
            found = outcome(answer)
            if found.error is None:
                sessions.requests.acknowledge(ack)
            else:
                self._not_stored(found, "PUBREL", closes=True)

        sessions.requests.store(session.release_subject, stored.release_header(packet_id), b"", done)

    # ------------------------------------------------------------------ SUBSCRIBE
    async def _on_subscribe(self, packet: Subscribed) -> None:
        sessions, session = self._sessions, self._session
        assert sessions is not None
        assert session is not None
        async with sessions.turn(session.id):
            wanted: list[tuple[str, int]] = []
            for topic, qos in packet.filters:
                try:
                    subject = subject_of(topic, wildcards=True).decode()
                except BadTopic as error:
                    self.owner.log.error(f"{self.label} - invalid topic {topic!r}: {error}")
                    subject = ""
                wanted.append((subject, qos))
            self._behind = []
            codes = await self._join(session, wanted)
            granted = {subject: code for (subject, _), code in zip(wanted, codes, strict=True) if code < 3}
            if {subject: session.subs.get(subject) for subject in granted} != granted:
                session.subs.update(granted)
                await sessions.save(session)
        self.put(packets.suback(packet.packet_id, codes))
        for subject, qos in granted.items():
            for name in filter(None, (level_above(subject.encode()).decode(), subject)):
                async for part in sessions.retained(name):
                    for publish in part:
                        self._put_retained(session, subject, publish, qos)
                    self._put_behind()
                    await self._room()
        self._put_behind()
        self._behind = None

    def _put_behind(self) -> None:
        """Send what came while retained messages were read."""
        behind, self._behind = self._behind, []
        for frame in behind or ():
            self.put(frame)

    async def _room(self) -> None:
        """Wait until the client has taken enough, and this turn of the event loop has time."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.congested:
            self.on_drain(lambda: ready.set_result(None))
        elif self.hub.turn.is_over():
            self.hub.turn.wait(lambda: ready.set_result(None))
        else:
            return
        await ready

    def _put_retained(self, session: Session, subject: str, publish: Publish, granted: int) -> None:
        to = subject_of(publish.topic)
        if self.hides(to):
            return
        qos = min(publish.qos, granted)
        limit = self._listener.options.max_ack_pending
        packet_id = session.window.retain(subject, qos, limit) if qos else 0
        qos = qos if packet_id else 0
        self.put(packets.publish(publish.topic, publish.payload, qos, packet_id, retain=True))

    async def _join(self, session: Session, wanted: list[tuple[str, int]]) -> list[int]:
        """Subscribe to filters; return the code of each for SUBACK."""
        codes: list[int] = []
        for subject, qos in wanted:
            if qos == 2 and self._listener.options.downgrade_qos2_subscribe:
                qos = 1
            codes.append(await self._join_one(session, subject, qos) if subject else packets.SUBSCRIPTION_REFUSED)
            await self._room()
        return codes

    async def _join_one(self, session: Session, subject: str, qos: int) -> int:
        assert self._sessions is not None
        above = level_above(subject.encode()).decode()
        refused = subject.startswith(stored.PREFIX.decode())
        names = [(subject, subject.encode())] + ([(above, above.encode() + ABOVE.encode())] if above else [])
        try:
            if refused or not all(self._add(name, sid, subject, qos) for name, sid in names):
                return packets.SUBSCRIPTION_REFUSED
            if qos == 2:
                await self._sessions.release(session)
                self._listen(session.release_inbox, "", "", 0)
            for name, sid in names:
                key = sid.decode()
                if qos:
                    config = await self._sessions.consume(session, name, key)
                    self._listen(config["deliver_subject"], subject, config["durable_name"], qos)
                elif (gone := self._sessions.unconsume(session, key)) is not None:
                    self._unlisten(gone["deliver_subject"])
        except RequestFailed as error:
            self.owner.log.error(
                f'{self.label} - Unable to add JetStream consumer for subscription on "{subject}": {error}'
            )
            for _, sid in names:
                if (sub := self.subs.get(sid)) is not None:
                    self.unsubscribe(sub)
            return packets.SUBSCRIPTION_REFUSED
        return qos

    def _add(self, name: str, sid: bytes, subject: str, qos: int) -> bool:
        """Subscribe to a subject as far as the user may; return False if it may not."""
        to = name.encode()
        sub = self.subs.get(sid)
        if isinstance(sub, _Filter):
            sub.qos = qos
            return True
        if self.close_reason:  # meanwhile
            return False
        if self.guard is not None and not self.guard.may_subscribe(to, b""):
            self.refuse(permissions.subscribe_refusal(to, b"", sid))
            return False
        if 0 <= self._max_subscriptions <= len(self.subs):
            return False
        self.subs[sid] = made = _Filter(self, to, sid, subject.encode(), qos)
        self.hub.join(made)
        return True

    def _listen(self, inbox: str, subject: str, durable: str, qos: int) -> None:
        """Take what a consumer delivers."""
        to = inbox.encode()
        if (sub := self._inboxes.get(to)) is not None:
            sub.qos = qos
        elif not self.close_reason:
            self._inboxes[to] = sub = _Filter(self, to, to, subject.encode(), qos, durable)
            self.hub.join(sub)

    def _unlisten(self, inbox: str) -> None:
        if (sub := self._inboxes.pop(inbox.encode(), None)) is not None:
            self.hub.leave(sub)

    async def _on_unsubscribe(self, packet: Unsubscribed) -> None:
        sessions, session = self._sessions, self._session
        assert sessions is not None
        assert session is not None
        async with sessions.turn(session.id):
            changed = False
            for topic in packet.filters:
                try:
                    subject = subject_of(topic, wildcards=True).decode()
                except BadTopic:
                    continue
                above = level_above(subject.encode()).decode()
                for sid in (subject, f"{above}{ABOVE}") if above else (subject,):
                    if (gone := sessions.unconsume(session, sid)) is not None:
                        self._unlisten(gone["deliver_subject"])
                    if (sub := self.subs.get(sid.encode())) is not None:
                        self.unsubscribe(sub)
                changed |= session.subs.pop(subject, None) is not None
                await self._room()
            if changed:
                await sessions.save(session)
        self.put(packets.unsuback(packet.packet_id))

    # ------------------------------------------------------------------ messages for the client
    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        end = messages.stop(begin, end)
        if self.close_reason or self._session is None:
            return end
        assert isinstance(sub, _Filter)
        for each in messages.messages(begin, end):
            sub.delivered += 1
            if sub.durable:
                self._deliver(self._session, sub, each)
            elif sub.filter:
                self._receive(sub, each)
            else:
                self._deliver_release(self._session, each)
        return end

    def _receive(self, sub: _Filter, message: Single) -> None:
        """Send a message that comes to the filter's subject. With QoS on both sides it comes from the consumer."""
        subject = message.subject
        if sub.qos and stored.qos_of(message.header):
            return
        if message.reply.startswith(b"$JS.ACK.") or is_kept_from(sub.filter, subject):
            return
        if self.guard is None or self.guard.admits(subject, message.reply):
            self._put_message(topic_of(subject), message.payload, 0, 0)

    def _deliver(self, session: Session, sub: _Filter, message: Single) -> None:
        """Send a message that the consumer of a filter delivers."""
        assert self._sessions is not None
        subject = message.subject.removeprefix(stored.OF_MESSAGES)
        qos = min(stored.qos_of(message.header), sub.qos)
        if not qos or is_kept_from(sub.filter, subject) or self.hides(subject):
            self._sessions.requests.acknowledge(message.reply)
            return
        try:
            place = stored.delivered(message.reply)
        except ValueError:
            return  # not from a consumer
        limit = self._listener.options.max_ack_pending
        if packet_id := session.window.send(sub.durable, place.seq, message.reply, qos, limit):
            self._put_message(topic_of(subject), message.payload, qos, packet_id, dup=place.number > 1)

    def _put_message(self, topic: bytes, payload: bytes, qos: int, packet_id: int, *, dup: bool = False) -> None:
        if len(payload) > MAX_PACKET - packets.MAX_OVERHEAD:
            payload = payload[: MAX_PACKET - packets.MAX_OVERHEAD]
        self.out_msgs += 1
        self.out_bytes += len(payload)
        frame = packets.publish(topic, payload, qos, packet_id, dup=dup)
        if self._behind is not None:
            self._behind.append(frame)
        else:
            self.put(frame)

    def _deliver_release(self, session: Session, message: Single) -> None:
        """Send a PUBREL that waits for its PUBCOMP."""
        if message.reply and (packet_id := stored.released(message.header)):
            session.window.releasing(packet_id, message.reply)
            self.put(packets.acknowledgement(packets.PUBREL, packet_id))


def _is_repetition(found: Stored) -> bool:
    """Return True if a stream has a held message already."""
    return found.error is not None and "maximum messages per subject" in found.error.description
