"""Dead letters: messages that a consumer gives up, published to a subject of their own before they are dropped.

Belongs here: whether a consumer's setting can be followed (protocol/dead_letters.py), and the way of a message from its
last delivery, or from +TERM, to the ack of what stores the letter. Until that ack the message stays pending, so a work
queue keeps it, and after a restart or a change of leader it is sent again, under the same `Nats-Msg-Id`: the stream of
the letters stores it once, within its window of duplicates.

Misfits of a stream, whose payloads do not fit their schemas, are sent in the same way to `lakestream.misfits.subject`.
The compactor finds them, and lists them in a table of the lake; the server reads that and gives them to `Misfits`
(server/lake/stream_sync.py), on the node that leads the stream. Each is sent at least once. The sequence through which
all are done is logged, as an entry of progress under `SENT`, which releases without it ignore; what was done after the
last such entry is sent again after a crash or by another leader. The list is committed before the stream's own table,
and in the order of sequences, so neither a crash of the compactor in between nor its repetition leaves one out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from lakestream.log.format.record import Record
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.store.store import Store
from lakestream.ports import Bus, ClientInfo, Clock, Single, Subscribed, singly
from lakestream.protocol import dead_letters, headers
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.dead_letters import KEY, DeadLetterSetting, setting_of
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder, PackDecoder
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid
from lakestream.protocol.subjects import covers, publishable
from lakestream.schemas.naming import MISFITS_SUBJECT_KEY
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.feature import NEVER, Feature
from lakestream.stream.core.operations import ConsumerProgress
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.reader import Reader

MAX_DELIVER, TERM = "max_deliver", "term"
"""Reasons: it was delivered `max_deliver` times without an ack, or a client refused it (+TERM)."""
AT_ONCE = 64
"""Letters of a consumer that wait for their acks; further messages wait their turn, and stay pending (64)."""
ANSWER_NS = 5_000_000_000
"""Time to wait for the ack of a letter (5 s), and pause after one that nothing has stored."""

MISFIT = "misfit"
"""Reason of these letters; field, rule and explanation follow."""
SENT = ".misfits"
"""Name of the entries of progress; no consumer can have it."""
MOST_MISFITS = 1_000
"""Maximum number of misfits that are read from the lake at once; the others follow when these are done (1,000)."""
MAX_TEXT = 500
"""Maximum length of the explanation in a letter, in characters."""

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
    """A message on its way: its deliveries, why it is given up, what the client that refused it waits for, and the
    schema that a misfit does not fit."""

    deliveries: int
    reason: bytes
    reply: bytes = b""
    schema: bytes = b""


class DeadLetters:
    """The dead letters of one consumer, or of a stream's misfits, on the node that leads the stream.

    Args:
        origin: names of stream and consumer ("": of misfits), and an identifier of this very consumer.
        pending: the messages that are still to be acked.
        stored: called with (sequence, deliveries, reply) once a letter is stored: the message is to be acked.
        dropped: called with the sequence of a message that needs no letter any more.
    """

    def __init__(
        self,
        setting: DeadLetterSetting,
        origin: tuple[str, str, str],
        pending: Container[int] | SequenceSet,
        store: Store,
        reader: Reader,
        bus: Bus,
        clock: Clock,
        stored: Callable[[int, int, bytes], None],
        dropped: Callable[[int], None] = lambda seq: None,
    ) -> None:
        self._setting, self._origin, self._pending, self._dropped = setting, origin, pending, dropped
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

    def send(
        self, seq: int, deliveries: int, reason: str, text: str = "", reply: bytes = b"", schema: bytes = b""
    ) -> None:
        """Send the letter of a message, and call `stored` once it is stored.

        Args:
            text: what the client said that refused it, or why it does not fit.
            reply: of that client.
            schema: the version that it does not fit.
        """
        if seq in self._letters:
            return
        if self._answers is None:
            self._answers = self._bus.subscribe(_REPLY.replace(b"%d", b"*") % self._inbox, singly(self._answered))
        said = f"{reason}: {text}" if text else reason
        self._letters[seq] = _Letter(deliveries, said.encode(), reply, schema)
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
        if record is None or seq not in self._pending or self._is_again(record):  # it was removed, or acked late
            self._end(seq)
            self._dropped(seq)
            return
        block = self._header(record, letter)
        self._bus.send(Single(self._setting.subject.encode(), _REPLY % (self._inbox, seq), block, record.data))
        self._later(seq, letter)

    def _is_again(self, record: Record) -> bool:
        """Return True for a misfit that is a letter already: two streams could send it to and fro for ever."""
        return not self._origin[1] and headers.get(record.header, dead_letters.SEQUENCE.encode()) is not None

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
        own = [(dead_letters.DELIVERIES, b"%d" % letter.deliveries), (dead_letters.CONSUMER, consumer.encode())]
        pairs = [
            ("Nats-Msg-Id", f"dead.{identity}.{record.seq}".encode()),
            (dead_letters.REASON, letter.reason),
            (dead_letters.STREAM, stream.encode()),
            *(own if consumer else [(dead_letters.SCHEMA, letter.schema)] if letter.schema else []),
            (dead_letters.SUBJECT, record.subject),
            (dead_letters.SEQUENCE, b"%d" % record.seq),
            (dead_letters.TIME, format_time(record.time_ns).encode()),
        ]
        return headers.append(_OWN.sub(b"", record.header), [(name.encode(), value) for name, value in pairs])


class ListedMisfit(msgspec.Struct, frozen=True):
    """A row of the table of misfits."""

    seq: int
    schema: str | None
    field: str | None
    rule: str
    reason: str


class _Sent(msgspec.Struct, frozen=True):
    """The feature's field of a checkpoint. Earlier releases wrote none."""

    misfits_sent: int = 0


_CHECKPOINT, _SEQ = PackDecoder(_Sent), PackDecoder(int)


class Misfits(Feature):
    """Sends the misfits of one stream, if its metadata says where to.

    Args:
        origin: name and uid of the stream.
    """

    def __init__(
        self, origin: tuple[str, str], store: Store, reader: Reader, bus: Bus, clock: Clock, pipeline: Pipeline
    ) -> None:
        name, uid = origin
        self._origin, self._store, self._reader = (name, "", f"{uid}.misfits"), store, reader
        self._bus, self._clock, self._pipeline = bus, clock, pipeline
        self._subject = ""
        self._letters: DeadLetters | None = None
        self._due: deque[int] = deque()
        self._sent = self._logged = 0
        self.begun = 0
        """Number of times that this node has begun to send: after each, the table is to be read from `after` on."""

    def active(self, hook: str) -> bool:
        return hook != "progressed" or bool(self._subject)

    def configure(self, config: StreamConfig) -> None:
        subject = config.metadata.get(MISFITS_SUBJECT_KEY, "")
        if subject != self._subject:
            self._subject = subject
            self.follow()

    @property
    def after(self) -> int | None:
        """Return the sequence after which misfits are wanted from the table, None while none are."""
        wanted = self._subject and self._pipeline.leading and not self._due
        return self._sent if wanted else None

    def send(self, misfits: Sequence[ListedMisfit]) -> None:
        """Send misfits that were read from the table beyond `after`, ascending."""
        if self.after is None:  # it was configured anew, or does not lead any more
            return
        if self._letters is None:
            parts = (self._store.live, self._store, self._reader, self._bus, self._clock)
            setting = DeadLetterSetting(self._subject)
            self._letters = DeadLetters(setting, self._origin, *parts, lambda seq, *_: self._advance(), self._dropped)
        new = [each for each in misfits if each.seq > self._sent]
        for each in new:
            text = headers.plain(": ".join(filter(None, (each.field or "payload", each.rule, each.reason))))[:MAX_TEXT]
            self._letters.send(each.seq, 0, MISFIT, text, schema=headers.plain(each.schema or "").encode())
        self._due.extend(each.seq for each in new)
        self._advance()  # over those that are done already

    def _dropped(self, seq: int) -> None:
        self._advance()

    def _advance(self) -> None:
        """Move the sequence through which all are done; log it when many are, or all that were read."""
        due = self._due
        while due and (self._letters is None or due[0] not in self._letters):
            self._sent = due.popleft()
        if (not due or self._sent - self._logged >= AT_ONCE) and self._sent > self._logged and self._pipeline.accepts:
            self._logged = self._sent
            self._pipeline.log_progress([ConsumerProgress(SENT, msgspec.msgpack.encode(self._sent))])

    # ------------------------------------------------------------------ leading, state
    def lead(self, recovered: bool) -> None:
        self.begun += 1

    def follow(self) -> None:
        self.begun += 1
        self._due.clear()
        if self._letters is not None:
            self._letters.stop()
            self._letters = None

    def acts_at(self) -> int:
        return 0 if self._subject else NEVER

    def rewound(self, last_seq: int) -> None:
        self._logged = 0

    def progressed(self, entries: Sequence[ConsumerProgress]) -> None:
        for entry in entries:
            if entry.name == SENT:
                self._sent = self._logged = _SEQ.decode(entry.state)

    def dump(self) -> Mapping[str, object]:
        return {"misfits_sent": self._sent} if self._sent else {}

    def load(self, checkpoint: bytes) -> None:
        self._sent = self._logged = _CHECKPOINT.decode(checkpoint).misfits_sent
