"""The sessions of an account.

Belongs here: a session's state, its record in JetStream, its consumers, taking it over from another connection or
server, and retained messages. What a client sends and gets is in connection.py.

A session is stored before its client is told of it. In a cluster every server hears the answers to the records of the
others: so it learns that a client has come to another one, and closes its own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec

from lakestream.logging import Logger
from lakestream.ports import Bus, ClientInfo, Clock, singly
from lakestream.protocol import headers
from lakestream.protocol.nuid import nuid
from lakestream.protocol.subjects import short_hash
from lakestream_mqtt import stored
from lakestream_mqtt.options import MqttOptions
from lakestream_mqtt.packets import Publish
from lakestream_mqtt.requests import ANSWERS, NOT_FOUND, RECORDED, RequestFailed, Requests, outcome
from lakestream_mqtt.stored import SessionRecord
from lakestream_mqtt.topics import is_kept_from
from lakestream_mqtt.window import Window

MAX_IN_FLIGHT = 0xFFFF
"""Sum of `max_ack_pending` of a session's consumers: there are no more packet ids."""

FLAPPING_S = 1.0
"""Time after a take-over (1 s) in which the client id is not taken over again: the client that then comes is held as
long and closed. So two devices with one id do not throw each other out without a pause."""

RETAINED_AT_ONCE = 32
"""Retained messages that are asked for together (32): other clients' requests are answered between them."""

SUBJECTS_OF_PAGE = 100_000
"""Subjects of one answer about a stream."""


class SessionClient(Protocol):
    """The connection of a session."""

    def replaced(self) -> None:
        """Close: another connection has the session now."""


class Session:
    """One session.

    Attributes:
        id, hash: the client id, and its short hash, which names consumers and subjects.
        clean: it ends with its connection.
        subs: QoS by filter, as subject.
        consumers: configuration by filter, of those with QoS 1 or 2.
        releases: configuration of the consumer of PUBRELs; None: there is none.
        seq: of its record in the stream; 0: it is not stored.
        window: packet ids to the client.
        holds: messages of the client with QoS 2 may wait for their PUBREL.
        client: its connection; None: the client is away.
    """

    def __init__(self, identifier: str) -> None:
        self.id, self.hash = identifier, short_hash(identifier)
        self.clean = True
        self.subs: dict[str, int] = {}
        self.consumers: dict[str, dict[str, Any]] = {}
        self.releases: dict[str, Any] | None = None
        self.seq = 0
        self.window = Window()
        self.holds = False
        self.client: SessionClient | None = None

    def take(self, record: SessionRecord, seq: int) -> None:
        """Become a stored session."""
        self.clean, self.subs, self.releases, self.seq = record.clean, dict(record.subs), record.pubrel, seq
        self.consumers = {sid: config for sid, config in record.cons.items() if config is not None}
        self.holds = True

    def record(self, origin: str) -> bytes:
        """Return the session as it is stored."""
        cons = dict[str, dict[str, Any] | None](self.consumers)
        return msgspec.json.encode(SessionRecord(origin, self.id, self.clean, self.subs, cons, self.releases))

    @property
    def in_flight(self) -> int:
        """Return the sum of the limits of its consumers."""
        configs = (*self.consumers.values(), *((self.releases,) if self.releases is not None else ()))
        return sum(int(config.get("max_ack_pending", 0)) for config in configs)

    def held_subject(self, packet_id: int) -> bytes:
        """Return the subject of a message of the client with QoS 2 that waits for PUBREL."""
        return b"%b%b.%d" % (stored.OF_HELD, self.hash.encode(), packet_id)

    @property
    def release_subject(self) -> bytes:
        """Return the subject of PUBRELs to the client."""
        return stored.OF_RELEASES + self.hash.encode()

    @property
    def release_inbox(self) -> str:
        """Return the subject to which PUBRELs are delivered."""
        return stored.RELEASE_INBOX + self.hash


class AccountSessions:
    """The sessions of one account on this server.

    Args:
        bus: of the account.
        account: its name, for the log.
        server: name of this server.
        domain: of this server's JetStream; "": none.
        replicas: of the streams.
        captures: returns True if a stream of the account that acknowledges its messages captures a subject.

    Attributes:
        bus: of the account.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        log: Logger,
        options: MqttOptions,
        account: str,
        server: str,
        domain: str,
        replicas: int,
        captures: Callable[[bytes], bool],
    ) -> None:
        self.bus, self._clock, self._log, self._options = bus, clock, log, options
        self._account, self._replicas, self.captures = account, replicas, captures
        self.origin = short_hash(server)
        self._domain = options.js_domain or domain
        self.requests = Requests(bus, clock, self.origin, options.js_api_timeout_ns, options.js_domain)
        self._sessions: dict[str, Session] = {}
        self._hashes: dict[str, Session] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._taken: dict[str, float] = {}
        self._opening: asyncio.Task[None] | None = None
        recorded = ANSWERS + b"*." + RECORDED + b".*.*"
        bus.subscribe(recorded, singly(self._recorded))

    # ------------------------------------------------------------------ streams
    async def open(self) -> None:
        """Make the streams of the account, once. Raises RequestFailed."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except RequestFailed:
            if self._opening is opening:
                self._opening = None  # the next client tries again
            raise

    async def _open(self) -> None:
        self._log.info(f'Creating MQTT streams/consumers with replicas {self._replicas} for account "{self._account}"')
        domain = f"{self._domain}." if self._domain else ""
        for name, config in stored.streams(self._replicas, domain).items():
            try:
                await self.requests.call(f"STREAM.INFO.{name}")
            except RequestFailed as error:
                if error.err_code not in NOT_FOUND:
                    raise
                await self.requests.call(f"STREAM.CREATE.{name}", config)
        self._clock.spawn(self._sweep())

    async def _sweep(self) -> None:
        """Remove clean sessions that were connected here when the server ended: their consumers would keep messages."""
        try:
            for subject in await self._subjects(stored.SESSIONS, f"{stored.OF_SESSIONS.decode()}>"):
                found = await self._newest(stored.SESSIONS, subject)
                record = stored.session_record(found[2]) if found is not None else None
                if found is not None and record is not None and record.clean and record.origin == self.origin:
                    session = Session(record.id)
                    async with self.turn(record.id):
                        if record.id not in self._sessions:
                            session.take(record, found[0])
                            await self.clear(session)
        except RequestFailed as error:
            self._log.error(f'MQTT sessions of account "{self._account}" were not cleaned up: {error}')

    # ------------------------------------------------------------------ connections
    def turn(self, identifier: str) -> asyncio.Lock:
        """Return the lock of a session: one connection at a time changes it."""
        if (found := self._turns.get(identifier)) is None:
            found = self._turns[identifier] = asyncio.Lock()
        return found

    def is_flapping(self, identifier: str) -> bool:
        """Return True if the session was taken over a moment ago."""
        since = self._taken.get(identifier)
        return since is not None and self._clock.steady() - since < FLAPPING_S * 1e9

    async def attach(self, client: SessionClient, identifier: str, clean: bool) -> tuple[Session, bool]:
        """Give a client its session, within `turn`; return it, and True if it was there before.

        Raises:
            RequestFailed: it cannot be read or stored.
            ValueError: another client id has the same hash.
        """
        session = self._sessions.get(identifier)
        known = session is not None
        if session is None:
            session = Session(identifier)
            known = await self._load(session)
        present = known and not clean and not session.clean
        if known and not present:
            await self.clear(session)
        before, session.client, session.clean = session.client, client, clean
        self._sessions[identifier] = self._hashes[session.hash] = session
        if before is not None:
            self._take_over(session, before)
        try:
            await self.save(session)
        except RequestFailed:
            self._forget(session)
            self._opening = None  # somebody may have deleted the streams
            raise
        return session, present

    def _take_over(self, session: Session, before: SessionClient) -> None:
        now = self._clock.steady()
        self._taken = {id_: since for id_, since in self._taken.items() if now - since < FLAPPING_S * 1e9}
        self._taken[session.id] = now
        before.replaced()

    def detach(self, session: Session) -> None:
        """Note that a session's client is gone."""
        session.client = None
        self._taken.pop(session.id, None)
        if session.clean:
            self._forget(session)
            self._clock.spawn(self._end(session))

    async def _end(self, session: Session) -> None:
        async with self.turn(session.id):
            if session.id not in self._sessions:
                try:
                    await self.clear(session)
                except RequestFailed as error:
                    self._log.error(f'MQTT session "{session.id}" of account "{self._account}" stays stored: {error}')

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
        if self._hashes.get(session.hash) is session:
            del self._hashes[session.hash]

    def _recorded(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Note that a server has stored a session; another one than this: its client is there now."""
        _, _, origin, _, session_hash, _ = subject.decode("utf-8", "replace").split(".")
        session, answer = self._hashes.get(session_hash), outcome(payload)
        if origin == self.origin or session is None or answer.error is not None or answer.seq < session.seq:
            return
        self._forget(session)
        before, session.client = session.client, None
        if before is not None:
            self._take_over(session, before)

    # ------------------------------------------------------------------ records
    def _subject(self, session: Session) -> bytes:
        domain = f"{self._domain}." if self._domain else ""
        return stored.OF_SESSIONS + f"{domain}{session.hash}".encode()

    async def _load(self, session: Session) -> bool:
        """Read a session's record; return False if there is none."""
        found = await self._newest(stored.SESSIONS, self._subject(session))
        if found is None:
            return False
        seq, _, payload = found
        record = stored.session_record(payload)
        if record is None:
            raise RequestFailed(f"session record at sequence {seq} does not decode")
        if record.id != session.id:
            raise ValueError("stored session does not match client ID")
        session.take(record, seq)
        return True

    async def save(self, session: Session) -> None:
        """Store a session. Raises RequestFailed: it is not stored, or was changed by another server."""
        expected = [(b"Nats-Expected-Last-Subject-Sequence", b"%d" % session.seq)] if session.seq else []
        header = headers.build(expected) if expected else b""
        tag = session.hash.encode() + b"."
        record = session.record(self.origin)
        session.seq = await self.requests.stored(self._subject(session), header, record, RECORDED, tag)

    async def clear(self, session: Session) -> None:
        """Remove what is stored of a session. Raises RequestFailed."""
        consumers, releases, seq = session.consumers, session.releases, session.seq
        session.subs, session.consumers, session.releases, session.seq = {}, {}, None, 0
        session.window = Window()
        holds, session.holds = session.holds, False
        gone = [f"CONSUMER.DELETE.{stored.MESSAGES}.{config['durable_name']}" for config in consumers.values()]
        if releases is not None:
            gone.append(f"CONSUMER.DELETE.{stored.RELEASES}.{releases['durable_name']}")
        for name in gone:
            await self._call_unless_gone(name)
        if holds:
            await self._call_unless_gone(
                f"STREAM.PURGE.{stored.HELD}", {"filter": f"{stored.OF_HELD.decode()}{session.hash}.>"}
            )
        if seq:
            try:
                await self.requests.call(f"STREAM.MSG.DELETE.{stored.SESSIONS}", {"seq": seq, "no_erase": True})
            except RequestFailed as error:
                if not error.err_code:
                    raise  # else the record is gone already

    async def _call_unless_gone(self, name: str, body: Mapping[str, Any] | None = None) -> None:
        try:
            await self.requests.call(name, body)
        except RequestFailed as error:
            if error.err_code not in NOT_FOUND:
                raise

    # ------------------------------------------------------------------ consumers
    async def consume(self, session: Session, subject: str, key: str) -> dict[str, Any]:
        """Return the consumer of a filter with QoS 1 or 2; a new one is made. Raises RequestFailed.

        Args:
            subject: that it delivers.
            key: of the filter's subscription.
        """
        if (found := session.consumers.get(key)) is None:
            durable, inbox = f"{session.hash}_{nuid()}", stored.INBOX + nuid()
            found = stored.consumer(durable, inbox, stored.OF_MESSAGES.decode() + subject, self._limits(session))
            await self._create(stored.MESSAGES, found)
            session.consumers[key] = found
        return found

    async def release(self, session: Session) -> None:
        """Make the consumer of PUBRELs if there is none. Raises RequestFailed."""
        if session.releases is None:
            durable, subject = stored.RELEASE_DURABLE + session.hash, session.release_subject.decode()
            found = stored.consumer(durable, session.release_inbox, subject, self._limits(session))
            await self._create(stored.RELEASES, found)
            session.releases = found

    def _limits(self, session: Session) -> dict[str, Any]:
        options = self._options
        if (total := session.in_flight + options.max_ack_pending) > MAX_IN_FLIGHT:
            raise RequestFailed(
                f"max_ack_pending for all consumers would be {total} which exceeds the limit of {MAX_IN_FLIGHT}"
            )
        found: dict[str, Any] = {"ack_wait": options.ack_wait_ns, "max_ack_pending": options.max_ack_pending}
        if options.consumer_memory_storage:
            found["mem_storage"] = True
        if options.consumer_inactive_threshold_ns:
            found["inactive_threshold"] = options.consumer_inactive_threshold_ns
        return found

    async def _create(self, stream: str, config: dict[str, Any]) -> None:
        name = f"CONSUMER.DURABLE.CREATE.{stream}.{config['durable_name']}"
        await self.requests.call(name, {"stream_name": stream, "config": config})

    def unconsume(self, session: Session, key: str) -> dict[str, Any] | None:
        """Remove the consumer of a filter, without waiting; return its configuration, None if there is none."""
        session.window.forget(f"/{key}")
        if (found := session.consumers.pop(key, None)) is not None:
            session.window.forget(found["durable_name"])
            self.requests.tell(f"CONSUMER.DELETE.{stored.MESSAGES}.{found['durable_name']}")
        return found

    # ------------------------------------------------------------------ messages of streams
    async def _newest(self, stream: str, subject: bytes) -> tuple[int, bytes, bytes] | None:
        """Return sequence, headers and payload of the newest message of a subject."""
        try:
            found = await self.requests.call(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject.decode()})
        except RequestFailed as error:
            if error.err_code in NOT_FOUND:
                return None
            raise
        message = msgspec.convert(found["message"], _StreamMessage)
        return message.seq, message.hdrs, message.data

    async def held(self, session: Session, packet_id: int) -> tuple[int, Publish] | None:
        """Return sequence and content of a message of the client that waits for PUBREL, with its subject as topic;
        None: there is none."""
        found = await self._newest(stored.HELD, session.held_subject(packet_id))
        if found is None:
            return None
        seq, header, payload = found
        read = stored.held(header, payload)
        return None if read is None else (seq, Publish(read[0], payload, 2, read[1], packet_id=packet_id))

    async def retained(self, subject: str) -> AsyncIterator[list[Publish]]:
        """Iterate over the retained messages that match a filter, a few at a time."""
        names = await self._subjects(stored.RETAINED, f"{stored.OF_RETAINED.decode()}{subject}")
        for at in range(0, len(names), RETAINED_AT_ONCE):
            part = [
                name
                for name in names[at : at + RETAINED_AT_ONCE]
                if not is_kept_from(subject.encode(), name.removeprefix(stored.OF_RETAINED))
            ]
            messages = await asyncio.gather(*(self._newest(stored.RETAINED, name) for name in part))
            read = (stored.retained(name, each[1], each[2]) for name, each in zip(part, messages, strict=True) if each)
            yield [publish for publish in read if publish is not None]

    async def _subjects(self, stream: str, wanted: str) -> list[bytes]:
        """Return the subjects of a stream's messages that match."""
        found: dict[str, int] = {}
        while True:
            body = {"subjects_filter": wanted, "offset": len(found)}
            info = await self.requests.call(f"STREAM.INFO.{stream}", body)
            page = info["state"].get("subjects") or {}
            found.update(page)
            if len(page) < SUBJECTS_OF_PAGE:
                return [name.encode() for name in found]

    def retain(self, subject: bytes, publish: Publish, source: str, done: Any) -> None:
        """Store a retained message, or end that of its topic. `done`: called with the stream's answer."""
        header = stored.retained_header(subject, publish, self.origin, source)

        def finished(answer: bytes | None) -> None:
            if not publish.payload and (seq := outcome(answer).seq):
                self.requests.tell(f"STREAM.MSG.DELETE.{stored.RETAINED}", {"seq": seq, "no_erase": True})
            done(answer)

        self.requests.store(stored.OF_RETAINED + subject, header, publish.payload, finished)


class _StreamMessage(msgspec.Struct):
    seq: int
    hdrs: bytes = b""
    data: bytes = b""
