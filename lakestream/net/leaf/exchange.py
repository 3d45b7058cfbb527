"""The exchange of one leaf connection that is up: interest and messages of one account.

Belongs here: the interest of the other side as subscriptions in the account's hub, messages in both directions, and
announcements of the account's interest. Both sides of a connection use it. Bytes go out through a `Line`, which is the
connection (accepted.py, dialled.py); what may cross is decided in rights.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NoReturn, Protocol

import msgspec

from lakestream.net.inbox import SMALL_READ_BYTES
from lakestream.net.interest.subscription import MAX_WEIGHT, Congested, Subscription, hand
from lakestream.net.leaf.account import REPLY_PATHS, Key, LeafAccount
from lakestream.net.leaf.rights import Rights
from lakestream.net.outbox import Outbox
from lakestream.ports import ClientInfo, Clock, ListedMessages, MessageBlock, Messages, Single
from lakestream.protocol import frames, headers
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.commands import Ping, Pong
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.delivered import ErrorLine
from lakestream.protocol.leaf_wire import (
    ACK,
    Event,
    InterestBegins,
    InterestEnds,
    LeafConnect,
    LeafInfo,
    LeafMessage,
    LeafParser,
)
from lakestream.protocol.subjects import subscribable

MAX_SUBJECTS = 262_144
"""Subjects of the other side's interest that are kept; the connection is closed beyond that."""

PIECE_BYTES = 8 << 10
"""Bytes of a read that are handled between two looks at the time of a turn (8 KiB): some hundred small messages."""

ANNOUNCED_IN_A_WRITE = 1000
"""Subscriptions announced in one write."""

LOOP_PAUSE_S = 30
"""Time that the text about a loop gives for the next attempt."""

_JETSTREAM = b"$JS."
_RESTORE = b'{"type":"io.nats.jetstream.api.v1.stream_restore'
DOMAIN_SUBJECTS = ("STREAM.>", "CONSUMER.>", "DIRECT.>", "META.>", "SERVER.>", "ACCOUNT.>", "$KV.>", "$OBJ.>", "INFO")
"""Requests behind the prefix of this server's domain, as nats-server announces them."""
USER_INFO = b"$SYS.REQ.USER.INFO"


class LeafEnded(Exception):
    """Raised when the other side did what ends the connection.

    Attributes:
        text: of -ERR.
        reason: the close reason.
        logged: the line for the log; "": none.
    """

    def __init__(self, text: str, reason: str, logged: str = "") -> None:
        super().__init__(text)
        self.text, self.reason, self.logged = text, reason, logged


class Line(Congested, Protocol):
    """A leaf connection, as its exchange uses it."""

    id: int
    name: str

    @property
    def congested(self) -> bool:
        """Return True above the high-water mark of unsent bytes."""

    def write(self, data: bytes) -> None:
        """Write now."""

    def stall(self, receiver: Congested) -> None:
        """Stop reading until a receiver has drained."""

    def complain(self, text: str) -> None:
        """Send -ERR; the connection stays."""

    def answered(self) -> None:
        """Note a PONG."""

    def informed(self, info: LeafInfo) -> None:
        """Note a later INFO."""

    def told(self, error: ErrorLine) -> None:
        """Note an -ERR."""


class Exchange(Outbox[bytes]):
    """The exchange of one connection; a sink in the account's hub.

    Args:
        line: the connection.
        account: its account.
        rights: what may cross.
        client: the other side, as the sender of its messages.
        clock: for permissions to answer.
        cluster: of the other side; leaf connections to one cluster carry nothing among themselves.
        headers: the other side understands HMSG.
        isolated: it is told no interest of other leaf nodes.
        strict: messages and subscriptions that it has no right to end the connection; otherwise they are dropped.

    Attributes:
        subscriptions: the other side's interest.
        over: the connection has ended.
    """

    echo = columnar = False

    def __init__(
        self,
        line: Line,
        account: LeafAccount,
        rights: Rights,
        client: ClientInfo,
        clock: Clock,
        *,
        cluster: str = "",
        headers: bool = True,
        isolated: bool = False,
        strict: bool = True,
    ) -> None:
        super().__init__(account.hub.dirty)
        self.id, self.name = line.id, line.name
        self.cluster, self.isolated = cluster, isolated
        self.over = False
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.subscriptions: dict[Key, Subscription] = {}
        self._line, self._account, self._rights = line, account, rights
        self._hub, self._names, self._client, self._clock = account.hub, account.names, client, clock
        self._headers, self._strict = headers, strict
        self._near: Container[object] = {self}
        self._told: dict[Key, int] = {}
        self._last: tuple[Single, list[bytes]] | None = None
        """A message that more queue groups of the other side may still get, and those that get it."""
        self._acks_told = False
        self._unread = deque[bytes]()

    # ------------------------------------------------------------------ announcing
    def open(self, always: Iterable[bytes]) -> None:
        """Announce the account's interest, now and as it changes. `always`: subjects beside its subscriptions."""
        account, tells = self._account, self._rights.tells
        self._hub.turn.joined()
        self._near = account.join(self)
        changes: dict[Key, int] = {(subject, b""): 1 for subject in always}
        if account.acked:
            self._acks_told = True
            changes |= {(subject, b""): 1 for subject in account.names.subjects}
        changes |= {key: number for key, number in account.all(self) if tells(key[0])}
        self._tell(changes)

    def changed(self, changes: dict[Key, int]) -> None:
        tells = self._rights.tells
        self._tell({key: number for key, number in changes.items() if tells(key[0])})

    def own(self, key: Key) -> int:
        sub = self.subscriptions.get(key)
        return sub.weight if sub is not None else 0

    def _tell(self, changes: dict[Key, int]) -> None:
        """Write what differs from what the other side was told."""
        told, lines = self._told, list[bytes]()
        for key, number in changes.items():
            before = told.get(key, 0)
            subject, queue = key
            if number <= 0:
                if told.pop(key, None):
                    lines.append(b"LS- %b %b\r\n" % key if queue else b"LS- %b\r\n" % subject)
            elif queue and number != before:
                told[key] = number
                lines.append(b"LS+ %b %b %d\r\n" % (subject, queue, min(number, MAX_WEIGHT)))
            elif not queue and not before:
                told[key] = 1
                lines.append(b"LS+ %b\r\n" % subject)
        rest = iter(lines)
        while some := b"".join(islice(rest, ANNOUNCED_IN_A_WRITE)):
            self._line.write(some)

    def _announce_acks(self) -> None:
        """Announce the subjects of acks, once messages that are to be acked cross."""
        self._account.acked = self._acks_told = True
        self._tell({(subject, b""): 1 for subject in self._names.subjects if self._rights.tells(subject)})

    # ------------------------------------------------------------------ sink
    @property
    def congested(self) -> bool:
        return not self.over and self._line.congested

    def on_drain(self, callback: Callable[[], None]) -> None:
        self._line.on_drain(callback)

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        if messages.to and isinstance(messages, MessageBlock):
            self._carry(sub.queue, messages.to, messages.listed[begin:end])
            return end
        end = messages.stop(begin, end)
        for each in messages.messages(begin, end):
            self._route(each, sub.queue)
        return end

    def _route(self, message: Single, queue: bytes) -> None:
        """Send a message to the subscribers of its subject there, in a queue group or (b"") in none."""
        last = self._last
        if queue and last is not None and message is last[0] and queue not in last[1]:
            last[1].append(queue)  # one copy carries all queue groups
            return
        if self.over or not self._may_send(message.subject, message.reply):
            return
        self._settle()
        self._last = message, [queue] if queue else []
        self._count(1, message.content_bytes)

    def _carry(self, queue: bytes, to: bytes, messages: Sequence[Single]) -> None:
        """Send a batch for the subscribers of one subject, in a queue group or (b"") in none."""
        if self.over or not self._may_send(to, b""):
            return
        if not self._headers:
            messages = [Single(each.subject, each.reply, b"", each.payload) for each in messages]
        if not self._acks_told and any(each.reply.startswith(_JETSTREAM) for each in messages):
            self._announce_acks()
        if self._rights.limits_taking:
            now = self._clock.steady()
            for each in messages:
                if each.reply:
                    self._rights.asked(each.reply, now)
        self._settle()
        self._out.extend(self._names.deliveries(to, queue, messages))
        self._count(len(messages), sum(each.content_bytes for each in messages))

    def _may_send(self, subject: bytes, reply: bytes) -> bool:
        rights = self._rights
        if subject.startswith(_JETSTREAM) and rights.is_own(subject):
            return False
        if rights.limits_sending and not rights.sends(subject):
            return False
        if reply:
            if reply.startswith(REPLY_PATHS):
                self._announce_path(reply)
            if rights.limits_taking:
                rights.asked(reply, self._clock.steady())
        return True

    def _announce_path(self, reply: bytes) -> None:
        """Announce the reply subjects of other accounts' requests."""
        paths = self._hub.responses
        if paths is not None and reply.startswith(paths.prefix) and self._rights.tells(reply):
            self._tell({(paths.prefix + b"*", b""): 1})

    def hides(self, subject: bytes) -> bool:
        """Return True if messages with this subject are not sent."""
        rights = self._rights
        return rights.is_own(subject) or (rights.limits_sending and not rights.sends(subject))

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        if not sub.subject.startswith((b"*", b">")):
            self._carry(b"", reply, (Single(reply, header=frames.no_responders(subject)),))

    def _settle(self) -> None:
        """Make a frame of the last message: no more queue groups come."""
        last, self._last = self._last, None
        if last is None:
            return
        message, queues = last
        subject, reply, header, payload = message.subject, message.reply, message.header, message.payload
        if reply.startswith(_JETSTREAM) or payload.startswith(_RESTORE):
            if not self._acks_told:
                self._announce_acks()
            shown = self._names.deliveries(subject, b"", (Single(subject, reply, b"", payload),))[0]
            if not queues and not header:
                self._out.append(shown)
                return
            reply = self._names.to_theirs(reply)
        if queues:
            listed = b" ".join(queues)
            words = b"+ %b %b " % (reply, listed) if reply else b"| %b " % listed
        else:
            words = reply + b" " if reply else b""
        if header and self._headers:
            n = len(header)
            self._out.append(frames.LEAF_HMSG % (subject, words, n, n + len(payload), header, payload))
        else:
            self._out.append(frames.LEAF_MSG % (subject, words, len(payload), payload))

    def _count(self, messages: int, size: int) -> None:
        self.out_msgs += messages
        self.out_bytes += size
        self.count(size)

    def write_gathered(self) -> None:
        if self.over:
            return
        self._settle()
        out = self.taken()
        # Ahead of the messages, so that whoever answers knows the inbox.
        self._account.announce_changes()
        if out:
            self._line.write(b"".join(out))

    # ------------------------------------------------------------------ in
    def feed(self, parser: LeafParser, data: bytes) -> None:
        """Handle a read while the turn of the event loop lasts: the other side may speak for thousands of clients. The
        rest waits, and the line is not read meanwhile.

        Raises:
            LeafEnded, LeafWireError: the connection cannot go on.
        """
        self._hub.turn.entered(self)
        waits = bool(self._unread)
        self._unread.extend(data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
        if not waits:
            self.read_on(parser)

    def read_on(self, parser: LeafParser) -> None:
        """Handle what waits, as `feed`; called when the line is to be read again."""
        turn, unread = self._hub.turn, self._unread
        while unread and not self.over:
            if len(unread[0]) > SMALL_READ_BYTES and turn.is_over():
                self._line.stall(turn.later)
                return
            data = unread.popleft()
            self.handle(parser.feed(data), len(data))
            if turn.overrun is not None:
                return

    def handle(self, events: Sequence[Event], size: int) -> None:
        """Handle what came in a buffer of `size` bytes. Raises LeafEnded."""
        turn = self._hub.turn
        turn.overrun = None
        arrived = self._arrived
        for event in events:
            if type(event) is LeafMessage:
                arrived(event)
            else:
                self._control(event)
            if self.over:
                return
        turn.read(size)
        if turn.overrun is not None:
            self._line.stall(turn.overrun)

    def _control(self, event: Event) -> None:
        match event:
            case InterestBegins():
                self._begins(event)
            case InterestEnds():
                self._ends(event)
            case Ping():
                self.write_gathered()  # it tells that everything before was sent
                self._line.write(frames.PONG)
            case Pong():
                self._line.answered()
            case LeafInfo():
                self._line.informed(event)
            case ErrorLine():
                self._line.told(event)
            case LeafConnect():
                raise LeafEnded("Duplicate Remote LeafNode Connection", "Duplicate Remote LeafNode Connection")

    def _begins(self, interest: InterestBegins) -> None:
        subject, queue = interest.subject, interest.queue
        if subject == self._account.loop_subject:
            text = f'Loop detected for leafnode account="{self._hub.account}". Delaying attempt to reconnect for'
            raise LeafEnded(f"{text} {LOOP_PAUSE_S}s", "Protocol Violation", f"{text} {LOOP_PAUSE_S}s")
        if not subscribable(subject):
            self._line.complain("Invalid Subscription")
            return
        if not self._rights.follows(subject):
            if self._strict:
                _violation("Subscription", subject)
            return
        key = subject, queue
        old = self.subscriptions.pop(key, None)
        if old is None and len(self.subscriptions) >= MAX_SUBJECTS:
            raise LeafEnded("maximum subscriptions exceeded", "Maximum Subscriptions Exceeded")
        weight = max(interest.count, 1) if queue else 1
        if old is not None and old.weight == weight:
            self.subscriptions[key] = old
            return
        sub = Subscription(self, subject, queue, b"")
        sub.elsewhere = True
        sub.weight = weight
        self.subscriptions[key] = sub
        if self._rights.is_own(subject) or subject == USER_INFO:
            return  # answered here
        # Insert before removing: watchers must not see a gap in the interest.
        self._hub.join(sub)
        if old is not None:
            self._hub.leave(old)

    def _ends(self, interest: InterestEnds) -> None:
        sub = self.subscriptions.pop((interest.subject, interest.queue), None)
        if sub is not None:
            self._hub.leave(sub)

    def _arrived(self, event: LeafMessage) -> None:
        """Route a message of the other side."""
        message, queues = event.message, event.queues
        subject, reply, header, payload = message.subject, message.reply, message.header, message.payload
        self.in_msgs += 1
        self.in_bytes += len(header) + len(payload)
        rights, hub = self._rights, self._hub
        if rights.limits_taking and not (rights.takes(subject) or rights.answers(subject, self._clock.steady())):
            if self._strict:
                _violation("Publish", subject)
            return
        if header and reply and headers.REQUEST_INFO in header and not self._account.is_system:
            header = _bound(header, hub.account)
        if subject.startswith(_JETSTREAM):
            subject = self._names.to_ours(subject)
        elif hub.mappings is not None and (mapped := hub.mappings.mapped(subject)) is not None:
            subject = mapped
        if b"@" in reply and reply.startswith(ACK):
            reply, _, shown = reply.rpartition(b"@")
            self._deliver(subject, Single(shown, reply, header, payload), queues)
            return
        tracing, single = hub.tracing_of(header), Single(subject, reply, header, payload)
        if tracing is not None:
            found = tracing.route(self, self._client, single)
        else:
            found = hub.brought(self._near, self._client, single, queues)
        if not found and reply and subject.startswith(_JETSTREAM):
            # The other side saw a subscriber, this server, so it reports nothing itself.
            self._carry(b"", reply, (Single(reply, header=frames.no_responders(message.subject)),))

    def _deliver(self, to: bytes, message: Single, queues: Sequence[bytes]) -> None:
        """Hand a consumer's message to the subscribers of its deliver subject, under the subject that it is stored
        with."""
        match = self._hub.interest_graph.match(to)
        near = self._near
        subs = [sub for sub in match.plain if sub.sink not in near]
        for group in match.queues:
            members = [sub for sub in group if sub.sink not in near] if group[0].queue in queues else []
            subs += members[:1]
        for sub in subs:
            hand(sub, ListedMessages((message,), to=to), 0, 1, self._hub.system)

    # ------------------------------------------------------------------ the end
    def end(self) -> None:
        """Remove the other side's interest and announce no more. Idempotent."""
        if self.over:
            return
        self.over = True
        self._account.leave(self)
        self._out, self._last = [], None
        self._unread.clear()
        self._hub.turn.left(self)
        gone, self.subscriptions = self.subscriptions, {}
        # Queue groups first: messages to a lost member could reach another one.
        self._hub.turn.run_apart(self._forget(sorted(gone.values(), key=lambda sub: not sub.queue)))

    def _forget(self, subs: list[Subscription]) -> Iterator[None]:
        for sub in subs:
            self._hub.leave(sub)
            yield


class _Requester(msgspec.Struct):
    """The account in the header that names a requester."""

    acc: str = ""


_requester = msgspec.json.Decoder(_Requester)
_fields = msgspec.json.Decoder(dict[str, Any])


def _bound(header: bytes, account: str) -> bytes:
    """Return a header block that names no other account than this one as the requester's: a leaf node speaks for the
    account that it has joined alone (as in nats-server 2.15.3). A value that is not a requester's JSON stays."""
    value = headers.get(header, headers.REQUEST_INFO) or b""
    try:
        if _requester.decode(value).acc == account:
            return header
        info = dumps(_fields.decode(value) | {"acc": account})
    except DECODE_ERRORS:
        return header
    return headers.append(headers.remove(header, [headers.REQUEST_INFO]), [(headers.REQUEST_INFO, info)])


def _violation(what: str, subject: bytes) -> NoReturn:
    shown = subject.decode("utf-8", "replace")
    text = f'Permissions Violation for {what} to "{shown}"'
    raise LeafEnded(text, "Permissions Violation", text)
