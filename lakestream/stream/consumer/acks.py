"""Acks and flow control answers from clients.

Belongs here: the subjects `$JS.ACK.>` and `$JS.FC.>` of a server (docs/internals/api.md#acks), finding the consumer
that one is for, and what its payload means. This is a hot path: one call for each ack.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import msgspec

from lakestream.ports import ClientInfo, Subscribed
from lakestream.protocol.domain_subjects import MARK
from lakestream.protocol.durations import parse_duration
from lakestream.stream.consumer.consumer import Consumer

if TYPE_CHECKING:
    from lakestream.account.engine import Engine

ACKS = frozenset((b"", b"+ACK", b"+OK"))
NAK, PROGRESS, TERM, NEXT = b"-NAK", b"+WPI", b"+TERM", b"+NXT"

V2_TOKENS = 11
"""`$JS.ACK.<domain>.<account>.<stream>.<consumer>.` and five numbers; a twelfth token is ignored."""

KNOWN = 16_384
"""Consumers remembered by subject prefix; forgotten together when there are more."""


MAX_DELAY_NS = (1 << 63) - 1
"""The longest delay of a nak: what fits into 64 bits (292 years)."""


class _NakOptions(msgspec.Struct):
    delay: int = 0


_nak_options = msgspec.json.Decoder(_NakOptions)


class Acks:
    """Listens for the acks of all consumers of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._bus = engine, engine.bus
        # Weak: a consumer that is gone must not stay here, and its stream with it, until others come.
        self._known: dict[bytes, weakref.ref[Consumer]] = {}
        self._subscriptions: list[Subscribed] = []
        self._attached: dict[str, list[Subscribed]] = {}

    def attach(self, stream: str) -> None:
        """In a cluster: listen for the acks of one stream, which leads here, and not for those of others."""
        self.detach(stream)
        name = stream.encode()
        self._attached[stream] = [
            self._bus.subscribe(subject, handler)
            for kind, handler in ((b"ACK", self.acked), (b"FC", self.flow_control))
            for subject in (b"$JS.%b.%b.>" % (kind, name), b"$JS.%b.*.*.%b.>" % (kind, name))
        ]

    def detach(self, stream: str) -> None:
        """The stream does not lead here any more."""
        for subscription in self._attached.pop(stream, []):
            subscription.cancel()

    def listen(self) -> None:
        """Begin, for all streams: on a server without a cluster."""
        self._subscriptions = [
            self._bus.subscribe(b"$JS.ACK.>", self.acked),
            self._bus.subscribe(b"$JS.FC.>", self.flow_control),
        ]

    def close(self) -> None:
        """End."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []
        for stream in list(self._attached):
            self.detach(stream)

    def acked(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """One message on an ack subject."""
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
            consumer.acking.ack(seq, consumer_seq, deliveries, reply)
        else:
            self._other(consumer, seq, consumer_seq, deliveries, payload, reply)

    def _find(self, subject: bytes) -> tuple[Consumer, list[bytes]] | None:
        """The consumer of an ack subject seen for the first time, and the subject's numbers after a prefix."""
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

    def _consumer(self, stream: bytes, name: bytes) -> Consumer | None:
        found = self._engine.streams.get(stream.decode("utf-8", "replace"))
        return found.consumers.get(name.decode("utf-8", "replace")) if found is not None else None

    def _other(
        self, consumer: Consumer, seq: int, consumer_seq: int, deliveries: int, payload: bytes, reply: bytes
    ) -> None:
        """Whatever is not a plain ack."""
        if seq > consumer.ledger.delivered_stream:
            return
        if payload.startswith(NEXT):
            if consumer.acking.ack(seq, consumer_seq, deliveries, b"") and reply:
                consumer.request(reply, payload[len(NEXT) :])
            return
        if payload.startswith(TERM):
            reason = payload[len(TERM) :].strip().decode("utf-8", "replace")
            if seq in consumer.ledger.pending:
                consumer.events.terminated(consumer_seq, seq, deliveries, reason)
            consumer.acking.ack(seq, consumer_seq, deliveries, reply, plain=False)
            return
        if payload.startswith(NAK):
            consumer.acking.nak(seq, consumer_seq, deliveries, _delay(payload[len(NAK) :]))
        elif payload == PROGRESS:
            consumer.acking.in_progress(seq)
        if reply:
            self._bus.reply_many([(reply, b"")])

    def flow_control(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """One answer to a flow control request."""
        tokens = subject.split(b".")
        at = {5: 2, 7: 4}.get(len(tokens))
        if at is None:
            return
        consumer = self._consumer(tokens[at], tokens[at + 1])
        if consumer is not None and consumer.serving:
            consumer.flow_control_reply(subject, header)


def _delay(text: bytes) -> int:
    """The delay of a nak in ns: `{"delay": ns}` or a Go duration; 0 when absent or not understood."""
    text = text.strip()
    if not text:
        return 0
    try:
        delay = _nak_options.decode(text).delay if text[:1] == b"{" else parse_duration(text.decode())
        # What does not fit into Go's durations is not understood; nor could a deadline so far away be logged.
        return delay if delay <= MAX_DELAY_NS else 0
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return 0
