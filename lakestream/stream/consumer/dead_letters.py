"""Dead letters: messages that a consumer gives up, published to a subject of their own before they are dropped.

Belongs here: whether a consumer's setting can be followed (protocol/dead_letters.py), and the way of a message from its
last delivery, or from +TERM, to the ack of what stores the letter. Until that ack the message stays pending, so a work
queue keeps it, and after a restart or a change of leader it is sent again, under the same `Nats-Msg-Id`: the stream of
the letters stores it once, within its window of duplicates.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Container

import msgspec

from lakestream.log.format.record import Record
from lakestream.log.store.store import Store
from lakestream.ports import Bus, ClientInfo, Clock, Single, Subscribed, singly
from lakestream.protocol import dead_letters, headers
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.dead_letters import KEY, DeadLetterSetting, setting_of
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid
from lakestream.protocol.subjects import covers, publishable
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.reader import Reader

MAX_DELIVER, TERM = "max_deliver", "term"
"""Reasons: it was delivered `max_deliver` times without an ack, or a client refused it (+TERM)."""
AT_ONCE = 64
"""Letters of a consumer that wait for their acks; further messages wait their turn, and stay pending (64)."""
ANSWER_NS = 5_000_000_000
"""Time to wait for the ack of a letter (5 s), and pause after one that nothing has stored."""

_OWN = re.compile(rb"\r\nNats-[^\r]*", re.IGNORECASE)
"""Headers of the protocol: what they ask for was done when the message was stored."""
_REPLY = b"$JSC.R.%b.%d"


class _Ack(msgspec.Struct):
    stream: str = ""


_ACK = JsonDecoder(_Ack)


def stored_setting(config: ConsumerConfig) -> DeadLetterSetting | None:
    """Return the setting of a consumer that may have been created before there were any."""
    try:
        return setting_of(config.metadata)
    except ValueError:
        return None


def check(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Raise ApiError if a consumer's setting cannot be followed."""
    try:
        setting = setting_of(config.metadata)
        if setting is None:
            return
        subject = setting.subject.encode()
        if not publishable(subject):
            raise ValueError(f"{setting.subject!r} is not a subject to publish to")
        if setting.after not in ("", MAX_DELIVER, TERM):
            raise ValueError(f"`after` is {MAX_DELIVER} or {TERM}, not {setting.after!r}")
        if config.ack_policy != "explicit":
            raise ValueError("it needs ack policy explicit")
        if any(covers(own.encode(), subject) for own in stream.subjects) and config.wants(subject):
            raise ValueError(f"the consumer would get its own letters on {setting.subject}")
    except ValueError as error:
        raise api_error(10052, err=f"{KEY}: {error}") from None


class _Letter(msgspec.Struct, eq=False, gc=False):
    """A message on its way: its deliveries, why it is given up, and what the client that refused it waits for."""

    deliveries: int
    reason: bytes
    reply: bytes = b""


class DeadLetters:
    """The dead letters of one consumer, on the node that leads its stream.

    Args:
        origin: names of stream and consumer, and an identifier of this very consumer.
        pending: the messages that are still to be acked.
        stored: called with (sequence, deliveries, reply) once a letter is stored: the message is to be acked.
    """

    def __init__(
        self,
        setting: DeadLetterSetting,
        origin: tuple[str, str, str],
        pending: Container[int],
        store: Store,
        reader: Reader,
        bus: Bus,
        clock: Clock,
        stored: Callable[[int, int, bytes], None],
    ) -> None:
        self._setting, self._origin, self._pending = setting, origin, pending
        self._store, self._reader, self._bus, self._clock, self._stored = store, reader, bus, clock, stored
        self._letters: dict[int, _Letter] = {}
        self._next: deque[int] = deque()
        self._away: set[int] = set()
        self._inbox = nuid().encode()
        self._answers: Subscribed | None = None

    def __contains__(self, seq: int) -> bool:
        return seq in self._letters

    def takes(self, reason: str) -> bool:
        """Return True if messages that are given up for this reason become letters."""
        return self._setting.after in ("", reason)

    def send(self, seq: int, deliveries: int, reason: str, text: str = "", reply: bytes = b"") -> None:
        """Send the letter of a message, and call `stored` once it is stored.

        Args:
            text: what the client said that refused it.
            reply: of that client.
        """
        if seq in self._letters:
            return
        if self._answers is None:
            self._answers = self._bus.subscribe(_REPLY.replace(b"%d", b"*") % self._inbox, singly(self._answered))
        self._letters[seq] = _Letter(deliveries, f"{reason}: {text}".encode() if text else reason.encode(), reply)
        self._next.append(seq)
        self._go_on()

    def stop(self) -> None:
        """Forget all letters: the messages are pending."""
        self._letters.clear()
        self._next.clear()
        self._away.clear()
        if self._answers is not None:
            self._answers.cancel()
            self._answers = None

    def _go_on(self) -> None:
        while self._next and len(self._away) < AT_ONCE:
            seq = self._next.popleft()
            if seq in self._letters:
                self._away.add(seq)
                self._clock.spawn(self._send(seq, self._letters[seq]))

    async def _send(self, seq: int, letter: _Letter) -> None:
        """Publish a letter; without an answer it is published again."""
        try:
            record = self._store.read(seq) or await self._reader.fetch(seq)
        except Exception:
            self._later(seq, letter)
            raise  # to be logged
        if self._letters.get(seq) is not letter:
            return
        if record is None or seq not in self._pending:  # it was removed, or acked late
            self._end(seq)
            return
        block = self._header(record, letter)
        self._bus.send(Single(self._setting.subject.encode(), _REPLY % (self._inbox, seq), block, record.data))
        self._later(seq, letter)

    def _later(self, seq: int, letter: _Letter) -> None:
        def again() -> None:
            if self._letters.get(seq) is letter:
                self._away.discard(seq)
                self._next.append(seq)
                self._go_on()

        self._clock.call_later(ANSWER_NS, again)

    def _answered(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Take the answer to a letter; one that is no ack lets it be sent again later."""
        seq = int(subject.rpartition(b".")[2])
        letter = self._letters.get(seq)
        try:
            stream = _ACK.decode(payload).stream if payload else ""
        except DECODE_ERRORS:
            return
        if letter is not None and stream:
            self._end(seq)
            self._stored(seq, letter.deliveries, letter.reply)

    def _end(self, seq: int) -> None:
        del self._letters[seq]
        self._away.discard(seq)
        self._go_on()

    def _header(self, record: Record, letter: _Letter) -> bytes:
        stream, consumer, identity = self._origin
        pairs = [
            ("Nats-Msg-Id", f"dead.{identity}.{record.seq}".encode()),
            (dead_letters.REASON, letter.reason),
            (dead_letters.DELIVERIES, b"%d" % letter.deliveries),
            (dead_letters.STREAM, stream.encode()),
            (dead_letters.CONSUMER, consumer.encode()),
            (dead_letters.SUBJECT, record.subject),
            (dead_letters.SEQUENCE, b"%d" % record.seq),
            (dead_letters.TIME, format_time(record.time_ns).encode()),
        ]
        return headers.append(_OWN.sub(b"", record.header), [(name.encode(), value) for name, value in pairs])
