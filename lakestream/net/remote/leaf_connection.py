"""One connection to the leaf node listener of a nats-server.

Belongs here: the asyncio shell around the leaf node protocol, and the interest of the other side as subscriptions in an
account's hub. Only responses and deliveries cross: the connection lets the other side read streams of this server, it
does not join two subject spaces. Dialling is in leaf_link.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import Subscription
from lakestream.net.outbox import Outbox
from lakestream.net.remote.outgoing import OutgoingConnection
from lakestream.ports import ClientInfo, Clock, MessageBlock, Messages, Single
from lakestream.protocol import frames, leaf_wire
from lakestream.protocol.commands import Ping, Pong
from lakestream.protocol.delivered import ErrorLine
from lakestream.protocol.leaf_wire import Event, InterestBegins, InterestEnds, LeafInfo, LeafMessage, LeafParser, Names
from lakestream.protocol.subjects import is_literal, matches

PING_NS = 15_000_000_000
"""Interval of PINGs (15 s); the first one is part of the greeting."""

MAX_PAYLOAD = 1 << 20
"""The other side's maximum payload when its INFO names none (1 MiB)."""

JETSTREAM = b"$JS."
"""Prefix of the subjects that only this server serves."""

REPLY_PREFIXES = (b"_INBOX.", b"_R_.", b"_GR_.", b"$JSC.R.", b"$JS.M.", b"$JS.S.")
"""Prefixes of the subjects that are followed: inboxes of clients, reply subjects of other accounts and clusters, and
those where mirrors and sources of nats-server wait for responses and messages."""

MAX_SUBJECTS = 262_144
"""Subjects of the other side's interest that are kept; further ones receive nothing."""


def _is_followed(subject: bytes) -> bool:
    """Return True if interest in that subject is followed. Each inbox has a token of its own, so a subscriber to all
    inboxes there does not receive responses for clients here."""
    prefix = next((prefix for prefix in REPLY_PREFIXES if subject.startswith(prefix)), b"")
    return bool(prefix) and not subject.startswith((b"*", b">"), len(prefix))


class RemoteSubscribers:
    """The subscribers of the other side, as one sink.

    Args:
        hub: of the connected account.
        names: of this server's own subjects there.
        output: the connection to the other side.
        max_payload: of the other side; a larger message would end the connection.
        too_large: called with subject and size of each message that is dropped because of that.
    """

    echo = columnar = False

    def __init__(
        self, hub: Hub, names: Names, output: LeafConnection, max_payload: int, too_large: Callable[[bytes, int], None]
    ) -> None:
        self._hub, self._names, self._output = hub, names, output
        self._max_payload, self._too_large = max_payload, too_large
        self._subscriptions: dict[tuple[bytes, bytes], Subscription] = {}

    def __len__(self) -> int:
        """Return the number of followed subjects."""
        return len(self._subscriptions)

    def subjects(self) -> list[str]:
        """Return the followed subjects."""
        return [subject.decode("utf-8", "replace") for subject, _ in self._subscriptions]

    # ------------------------------------------------------------------ interest
    def begins(self, interest: InterestBegins) -> bool:
        """Add interest of the other side; return False when there is no room for it."""
        if not _is_followed(interest.subject):
            return True
        key = interest.subject, interest.queue
        old = self._subscriptions.pop(key, None)
        if old is None and len(self._subscriptions) >= MAX_SUBJECTS:
            return False
        sub = Subscription(self, interest.subject, interest.queue, b"")
        sub.elsewhere = True
        sub.weight = max(interest.count, 1) if interest.queue else 1
        self._subscriptions[key] = sub
        # Insert before removing: watchers must not see a gap in the interest.
        self._hub.join(sub)
        if old is not None:
            self._hub.leave(old)
        return True

    def ends(self, interest: InterestEnds) -> None:
        """Remove interest of the other side."""
        sub = self._subscriptions.pop((interest.subject, interest.queue), None)
        if sub is not None:
            self._hub.leave(sub)

    def clear(self) -> None:
        """Remove all interest: the connection has ended."""
        gone, self._subscriptions = self._subscriptions, {}
        for sub in gone.values():
            self._hub.leave(sub)

    # ------------------------------------------------------------------ sink
    @property
    def congested(self) -> bool:
        return self._output.congested

    def on_drain(self, callback: Callable[[], None]) -> None:
        self._output.on_drain(callback)

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        if messages.to and isinstance(messages, MessageBlock):
            self._carry(sub.queue, messages.to, messages.listed[begin:end])
            return end
        end = messages.stop(begin, end)
        for each in messages.messages(begin, end):
            self._carry(sub.queue, each.subject, (each,))
        return end

    def _carry(self, queue: bytes, to: bytes, messages: Sequence[Single]) -> None:
        size = largest = 0
        for each in messages:
            length = len(each.header) + len(each.payload)
            size += length
            if length > largest:
                largest = length
        if largest > self._max_payload:
            messages = self._fitting(messages)
        self._output.send(self._names.deliveries(to, queue, messages), len(messages), size)

    def _fitting(self, messages: Sequence[Single]) -> list[Single]:
        fitting = []
        for one in messages:
            size = one.content_bytes
            if size > self._max_payload:
                self._too_large(one.subject, size)
            else:
                fitting.append(one)
        return fitting

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        self._carry(b"", reply, (Single(reply, header=frames.no_responders(subject)),))


class LeafConnection(OutgoingConnection, Outbox[bytes]):
    """One connection.

    Args:
        hub: of the connected account.
        names: of this server's own subjects there.
        label: the other side in the log.

    Attributes:
        informed: done with True at the first INFO, with False when the connection ended before.
        up: done with True when the greeting is answered, with False when it is refused or the connection ended.
        over: done with the reason when the connection has ended.
        info: the fields of the last INFO.
        subscribers: the interest of the other side; None before the greeting.
        refused: the last -ERR, "" without one.
        unmatched: messages on subjects that this side did not subscribe to.
    """

    def __init__(self, hub: Hub, names: Names, clock: Clock, log: Logger, label: str) -> None:
        OutgoingConnection.__init__(self, clock, PING_NS)
        Outbox.__init__(self, hub.dirty)
        loop = asyncio.get_running_loop()
        self._hub, self._names, self._log, self._label = hub, names, log, label
        self.informed: asyncio.Future[bool] = loop.create_future()
        self.up: asyncio.Future[bool] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        self.info: dict[str, Any] = {}
        self.subscribers: RemoteSubscribers | None = None
        self.refused = self.reason = ""
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.unmatched = 0
        self._below: tuple[bytes, ...] = ()
        self._subjects: tuple[bytes, ...] = ()
        self._client = ClientInfo(id=0, host="", account=hub.account, kind="Leafnode")
        self._parser = LeafParser()
        self._full = False

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self._client = ClientInfo(id=0, host=str(peer[0]), account=self._hub.account, kind="Leafnode")

    def data_received(self, data: bytes) -> None:
        self.alive.received()
        try:
            events = self._parser.feed(data)
        except leaf_wire.LeafWireError as error:
            self.end(f"invalid leaf node protocol: {error}")
            return
        turn = self._hub.turn
        turn.overrun = None
        for event in events:
            if type(event) is LeafMessage:
                self._arrived(event.message)
            else:
                self._control(event)
        if turn.overrun is not None:
            self.stall(turn.overrun)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.alive.end()
        if self.subscribers is not None:
            self.subscribers.clear()
        self.resume_writing()
        reason = self.reason or self.refused or (str(exc) if exc is not None else "connection closed")
        for waiting in (self.informed, self.up):
            if not waiting.done():
                waiting.set_result(False)
        if not self.over.done():
            self.over.set_result(reason)

    # ------------------------------------------------------------------ in
    def _arrived(self, message: Single) -> None:
        """Route a request, an ack or a flow control response."""
        self.in_msgs += 1
        self.in_bytes += len(message.header) + len(message.payload)
        if self.subscribers is None:
            return
        if not (
            message.subject.startswith(self._below) or any(matches(one, message.subject) for one in self._subjects)
        ):
            self._drop_unmatched(message.subject)
            return
        header = message.header
        single = Single(self._names.to_ours(message.subject), message.reply, header, message.payload)
        tracing = self._hub.tracing_of(header)
        if tracing is None:
            found = self._hub.route(self.subscribers, self._client, single)
        else:
            found = tracing.route(self.subscribers, self._client, single)
        if not found and message.reply and message.subject.startswith(JETSTREAM):
            self._respond_no_responders(message)

    def _drop_unmatched(self, subject: bytes) -> None:
        """Drop a message on a subject that this side did not subscribe to."""
        self.unmatched += 1
        if self.unmatched == 1:
            self._log.warn(
                f"{self._label}: dropped a message without a matching subscription, on "
                f"{subject.decode(errors='replace')!r}"
            )

    def _respond_no_responders(self, message: Single) -> None:
        """Send a 503: the other side sees a responder, this server. Only for JetStream subjects; other subjects may
        have subscribers there."""
        header = frames.no_responders(message.subject)
        self.send(self._names.deliveries(message.reply, b"", (Single(message.reply, header=header),)), 1, len(header))

    def _control(self, event: Event) -> None:
        match event:
            case Ping():
                self.write(frames.PONG)
            case Pong():
                self._answered()
            case InterestBegins():
                if self.subscribers is not None and not self.subscribers.begins(event) and not self._full:
                    self._full = True
                    self._log.warn(
                        f"{self._label}: the remote has more than {MAX_SUBJECTS} subscriptions; "
                        "further ones receive no messages"
                    )
            case InterestEnds():
                if self.subscribers is not None:
                    self.subscribers.ends(event)
            case LeafInfo(fields):
                self.info = fields
                if not self.informed.done():
                    self.informed.set_result(True)
            case ErrorLine(text):
                same, self.refused = text == self.refused, text
                if self.up.done() and not same:  # before that, it is reported as the reason of the failed attempt
                    self._log.error(f"{self._label}: -ERR {text}")

    def _answered(self) -> None:
        self.alive.answered()
        if not self.up.done():
            self.up.set_result(True)

    # ------------------------------------------------------------------ out
    def send_connect(self, fields: dict[str, Any], subjects: Sequence[bytes], group: bytes) -> None:
        """Send CONNECT and the subscriptions; each message goes to one connection of the group."""
        most = self.info.get("max_payload")
        self.subscribers = RemoteSubscribers(
            self._hub, self._names, self, most if isinstance(most, int) and most > 0 else MAX_PAYLOAD, self._too_large
        )
        self._below = tuple(one[:-1] for one in subjects if one.endswith(b".>") and is_literal(one[:-2]))
        self._subjects = tuple(one for one in subjects if one[:-1] not in self._below)
        self.write(
            frames.CONNECT % msgspec.json.encode(fields) + b"".join(frames.LEAF_SUB % (one, group) for one in subjects)
        )
        self.alive.begin()

    def _too_large(self, subject: bytes, size: int) -> None:
        self._log.warn(
            f"{self._label}: message of {size} bytes on {subject.decode('utf-8', 'replace')!r} exceeds the remote's "
            "max_payload; a mirror there waits until it is raised"
        )

    def send(self, frames: Sequence[bytes], messages: int, size: int) -> None:
        """Send frames at the end of the turn. `size`: bytes of headers and payloads."""
        self.out_msgs += messages
        self.out_bytes += size
        self._out.extend(frames)
        self.count(size)

    def write_gathered(self) -> None:
        if out := self.taken():
            self.write(b"".join(out))

    def end(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()
