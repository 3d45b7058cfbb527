"""Acks: the replies of clients to delivered messages.

Belongs here: the subjects `$JS.ACK.>` and `$JS.FC.>` of a server (docs/internals/api.md#acks), finding the consumer
that a reply is for, the meaning of its payload, the change of that consumer's ledger, the confirmation of an ack once
it is on disk (invariant 1), and the metric of sampled acks. This is a hot path: one call for each ack.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from lakestream.ports import Bus, ClientInfo, Clock, Subscribed
from lakestream.protocol import headers
from lakestream.protocol.domain_subjects import MARK
from lakestream.protocol.durations import parse_duration
from lakestream.stream.consumer.advisories import Advisories
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.consumer.lifetime import Inactivity
from lakestream.stream.consumer.redelivery import Redelivery
from lakestream.stream.consumer.rules import sample_percent

ACKS = frozenset((b"", b"+ACK", b"+OK"))
NAK, PROGRESS, TERM, NEXT = b"-NAK", b"+WPI", b"+TERM", b"+NXT"

LAST_CONSUMER, LAST_STREAM = b"Nats-Last-Consumer", b"Nats-Last-Stream"

V2_TOKENS = 11
"""`$JS.ACK.<domain>.<account>.<stream>.<consumer>.` and five numbers; a twelfth token is ignored."""

KNOWN = 16_384
"""Maximum number of consumers cached by subject prefix; the cache is cleared when it is exceeded."""

MAX_DELAY_NS = (1 << 63) - 1
"""The longest delay of a negative ack: what fits into 64 bits (292 years)."""


# ---------------------------------------------------------------------------------------------------- one consumer
class AckHandler:
    """Applies the acks of one consumer.

    Args:
        subject_of: returns the subject of a message, b"" if it does not exist.
        request_progress: lets the stream log the consumer's progress soon.
        progress_now: logs the consumer's progress at once, then calls back.
        released: called with messages of an interest or work-queue stream that the consumer is done with.
        wake: called when there may be something to deliver.
    """

    def __init__(
        self,
        ledger: Ledger,
        redelivery: Redelivery,
        inactivity: Inactivity,
        advisories: Advisories,
        clock: Clock,
        bus: Bus,
        subject_of: Callable[[int], bytes],
        request_progress: Callable[[], None],
        progress_now: Callable[[Callable[[], None]], None],
        released: Callable[[Sequence[int]], None],
        wake: Callable[[], None],
    ) -> None:
        self._ledger, self._redelivery = ledger, redelivery
        self._inactivity, self._advisories = inactivity, advisories
        self._clock, self._bus, self._subject_of = clock, bus, subject_of
        self._request_progress, self._progress_now = request_progress, progress_now
        self._released, self._wake = released, wake
        self._confirmations: list[bytes] = []

    def adopt(self, config: ConsumerConfig, retention: str, volatile: bool) -> None:
        """Take the consumer's configuration and the stream's retention: what follows from them is computed once.

        `volatile`: progress is never logged.
        """
        self._config = config
        self._acked = config.ack_policy in ("explicit", "all")
        self._explicit = config.ack_policy == "explicit"
        self._max_pending = config.max_ack_pending if self._acked and config.max_ack_pending > 0 else 0
        self._sample = sample_percent(config)
        self._releases = retention != "limits"
        self._volatile = volatile

    def rest(self) -> None:
        """Drop the confirmations that wait: another node takes the acks."""
        self._confirmations = []

    def reply(self, seq: int, consumer_seq: int, deliveries: int, payload: bytes, reply: bytes) -> None:
        """Apply a reply to a delivered message that is no plain ack. Never +NXT."""
        if seq > self._ledger.delivered_stream:
            return
        if payload.startswith(TERM):
            reason = payload[len(TERM) :].strip().decode("utf-8", "replace")
            if seq in self._ledger.pending:
                self._advisories.terminated(consumer_seq, seq, deliveries, reason)
            self.ack(seq, consumer_seq, deliveries, reply, plain=False)
            return
        if payload.startswith(NAK):
            self._nak(seq, consumer_seq, deliveries, _delay(payload[len(NAK) :]))
        elif payload == PROGRESS:
            self._in_progress(seq)
        if reply:
            self._bus.reply_many([(reply, b"")])

    def ack(self, seq: int, consumer_seq: int, deliveries: int, reply: bytes, plain: bool = True) -> bool:
        """Apply an ack. Return False if the message was never delivered, without an answer to `reply`.

        Args:
            consumer_seq, deliveries: as in the ack subject, for the metric only.
            reply: gets the confirmation once the ack is on disk (invariant 1); `b""` = none.
            plain: False for +TERM, which is no sample of how long acks take.
        """
        ledger = self._ledger
        if seq > ledger.delivered_stream:
            return False
        full = bool(self._max_pending) and len(ledger.pending) >= self._max_pending
        now = self._clock.steady()
        self._inactivity.last_ns = now
        if self._explicit:
            if self._sample and plain and seq in ledger.pending:
                self._sampled(seq, consumer_seq, deliveries, now)
            acked = ledger.ack(seq, now)
            if len(self._redelivery):
                self._redelivery.dequeue(seq)
            if self._releases and (acked or self._kept(seq)):
                self._released([seq])
        elif self._acked:
            self._ack_through(seq, now, consumer_seq)
        if not self._volatile:
            self._request_progress()
        if reply:
            self._confirm(reply)
        if full:
            self._wake()
        return True

    def _ack_through(self, seq: int, now: int, consumer_seq: int) -> None:
        done = self._ledger.ack_through(seq, now, consumer_seq)
        if len(self._redelivery):
            for other in done:
                self._redelivery.dequeue(other)
        if done and self._releases:
            self._released(done)

    def _sampled(self, seq: int, consumer_seq: int, deliveries: int, now: int) -> None:
        if self._sample >= 100 or random.randrange(100) < self._sample:
            delivered = self._ledger.deadline[seq] - self._config.ack_wait_of(self._ledger.deliveries(seq))
            self._advisories.acked(consumer_seq, seq, max(now - delivered, 0), deliveries)

    def _kept(self, seq: int) -> bool:
        """Return True if a message exists and matches though it is not pending: it was delivered max_deliver times
        without an ack. As in nats-server a late ack releases it."""
        subject = self._subject_of(seq)
        return bool(subject) and self._config.wants(subject)

    def confirmed(self, header: bytes) -> None:
        """Apply the answer to a flow control request, which is the ack under ack policy flow_control."""
        consumer_seq, seq = headers.get(header, LAST_CONSUMER), headers.get(header, LAST_STREAM)
        if not (consumer_seq and seq and consumer_seq.isdigit() and seq.isdigit()):
            return  # an answer without numbers acks nothing
        done = self._ledger.confirm(int(consumer_seq[:20]), int(seq[:20]), self._clock.steady())
        if done and self._releases:
            self._released(done)
        self._progressed()
        self._wake()

    def _nak(self, seq: int, consumer_seq: int, deliveries: int, delay: int) -> None:
        """Apply a negative ack: deliver the message again at once, or after `delay` ns."""
        ledger = self._ledger
        if seq not in ledger.pending:
            return
        self._advisories.naked(consumer_seq, seq, deliveries)
        if delay > 0:
            self._redelivery.dequeue(seq)
            self._postpone(seq, self._clock.steady() + delay)
        else:
            self._redelivery.enqueue((seq,))
        self._wake()

    def _in_progress(self, seq: int) -> None:
        """Begin the ack_wait of a message anew: a client is still at work on it."""
        if seq in self._ledger.pending:
            self._postpone(seq, self._clock.steady() + self._config.ack_wait_of(self._ledger.deliveries(seq)))

    def _postpone(self, seq: int, deadline: int) -> None:
        self._ledger.postpone(seq, deadline)
        self._redelivery.expect(seq, deadline)
        self._progressed()

    def _progressed(self) -> None:
        if not self._volatile:
            self._request_progress()

    def _confirm(self, reply: bytes) -> None:
        """Answer an ack once it is on disk; all acks of one turn share one entry."""
        if self._volatile:
            self._bus.reply_many([(reply, b"")])
            return
        if not self._confirmations:
            self._clock.call_soon(self._log_confirmations)
        self._confirmations.append(reply)

    def _log_confirmations(self) -> None:
        replies, self._confirmations = self._confirmations, []
        self._progress_now(lambda: self._bus.reply_many([(reply, b"") for reply in replies]))


class _NakOptions(msgspec.Struct):
    delay: int = 0


_nak_options = msgspec.json.Decoder(_NakOptions)


def _delay(text: bytes) -> int:
    """Return the delay of a negative ack in ns: `{"delay": ns}` or a Go duration; 0 if absent or not understood."""
    text = text.strip()
    if not text:
        return 0
    try:
        delay = _nak_options.decode(text).delay if text[:1] == b"{" else parse_duration(text.decode())
        # What does not fit into Go's durations is not understood; nor could such a deadline be logged.
        return delay if delay <= MAX_DELAY_NS else 0
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return 0


# ---------------------------------------------------------------------------------------------------- all consumers
class Acked(Protocol):
    """A consumer, as the listener for acks uses it."""

    @property
    def serving(self) -> bool:
        """Return True while the consumer takes acks on this node."""

    @property
    def config(self) -> ConsumerConfig:
        """Return the consumer's configuration."""

    @property
    def acks(self) -> AckHandler:
        """Return what applies the acks."""

    def request(self, reply: bytes, body: bytes) -> None:
        """Take a pull request."""

    def flow_control_reply(self, subject: bytes, header: bytes) -> None:
        """Take the answer to a flow control request."""


class AckedStream(Protocol):
    """A stream, as the listener for acks uses it."""

    @property
    def consumers(self) -> Mapping[str, Acked]:
        """Return the stream's consumers by name."""


class Streams(Protocol):
    """The streams of an account."""

    @property
    def bus(self) -> Bus:
        """Return the account's way to clients."""

    @property
    def streams(self) -> Mapping[str, AckedStream]:
        """Return the streams by name."""


class Acks:
    """Listens for the acks of all consumers of an account."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._bus = streams, streams.bus
        # Weak references: a deleted consumer must not stay in memory, and its stream with it, until others come.
        self._known: dict[bytes, weakref.ref[Acked]] = {}
        self._subscriptions: list[Subscribed] = []
        self._attached: dict[str, list[Subscribed]] = {}

    def attach(self, stream: str) -> None:
        """Listen for the acks of one stream, which this node of a cluster leads."""
        self.detach(stream)
        name = stream.encode()
        self._attached[stream] = [
            self._bus.subscribe(subject, handler)
            for kind, handler in ((b"ACK", self.acked), (b"FC", self.flow_control))
            for subject in (b"$JS.%b.%b.>" % (kind, name), b"$JS.%b.*.*.%b.>" % (kind, name))
        ]

    def detach(self, stream: str) -> None:
        """Stop listening for the acks of a stream that this node leads no more."""
        for subscription in self._attached.pop(stream, []):
            subscription.cancel()

    def listen(self) -> None:
        """Listen for the acks of all streams, on a server without a cluster."""
        self._subscriptions = [
            self._bus.subscribe(b"$JS.ACK.>", self.acked),
            self._bus.subscribe(b"$JS.FC.>", self.flow_control),
        ]

    def close(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []
        for stream in list(self._attached):
            self.detach(stream)

    def acked(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Take one message on an ack subject."""
        parts = subject.rsplit(b".", 5)
        known = self._known.get(parts[0])
        consumer = known() if known is not None else None
        if consumer is None or not consumer.serving:
            found = self._find(subject)
            if found is None or found[0].config.ack_policy == "flow_control":
                # nats-server listens for each consumer, but for none whose acks are those of flow control.
                if reply:
                    self._bus.declined(subject, reply)
                return
            consumer, parts = found
            if not consumer.serving:
                return
        if not (parts[1].isdigit() and parts[2].isdigit() and parts[3].isdigit()):
            return
        deliveries, seq, consumer_seq = int(parts[1]), int(parts[2]), int(parts[3])
        if payload in ACKS:
            consumer.acks.ack(seq, consumer_seq, deliveries, reply)
        elif not payload.startswith(NEXT):
            consumer.acks.reply(seq, consumer_seq, deliveries, payload, reply)
        elif consumer.acks.ack(seq, consumer_seq, deliveries, b"") and reply:
            consumer.request(reply, payload[len(NEXT) :])

    def _find(self, subject: bytes) -> tuple[Acked, list[bytes]] | None:
        """Return the consumer of an ack subject that is not cached, and the subject's numbers after a prefix."""
        tokens = subject.split(b".")
        version2 = len(tokens) >= V2_TOKENS
        if not version2 and len(tokens) != 9:
            return None
        if version2 and tokens[3].startswith(MARK):
            return None  # of a remote server, which may have a consumer of that name, too
        at = 4 if version2 else 2
        consumer = self._consumer(tokens[at], tokens[at + 1])
        if consumer is None:
            return None
        if not version2 and consumer.serving and consumer.config.ack_policy != "flow_control":
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[b".".join(tokens[:4])] = weakref.ref(consumer)
        return consumer, [b"", *tokens[at + 2 : at + 7]]

    def _consumer(self, stream: bytes, name: bytes) -> Acked | None:
        found = self._streams.streams.get(stream.decode("utf-8", "replace"))
        return found.consumers.get(name.decode("utf-8", "replace")) if found is not None else None

    def flow_control(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Take one answer to a flow control request."""
        tokens = subject.split(b".")
        at = {5: 2, 7: 4}.get(len(tokens))
        if at is None:
            return
        consumer = self._consumer(tokens[at], tokens[at + 1])
        if consumer is not None and consumer.serving:
            consumer.flow_control_reply(subject, header)
