"""Ack subjects: the consumers that the replies of clients are for.

Belongs here: the subjects `$JS.ACK.>` and `$JS.FC.>` of an account (docs/internals/api.md#acks). consumer/acks.py
applies a reply to its consumer. This is a hot path: one call for each ack, or for a run of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakestream.ports import Bus, ClientInfo, Messages, Single, Subscribed, singly
from lakestream.protocol.domain_subjects import MARK
from lakestream.protocol.publishes import WIDTH, Publishes

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.consumer.consumer import Consumer


ACKS, NEXT = frozenset((b"", b"+ACK", b"+OK")), b"+NXT"

UNHEARD = frozenset(("none", "flow_control"))
"""Ack policies whose consumers listen to no acks: a request on their ack subjects has no responders."""

V1_TOKENS = 9
"""`$JS.ACK.<stream>.<consumer>.` and five numbers."""

V2_TOKENS = 11
"""`$JS.ACK.<domain>.<account>.<stream>.<consumer>.` and five numbers; a twelfth token is ignored."""

KNOWN = 16_384
"""Maximum number of consumers cached by subject prefix; the cache is cleared when it is exceeded."""


class Acks:
    """Listens for the acks of all consumers of an account. `bus`: the account's way to clients; `streams`: by name."""

    def __init__(self, bus: Bus, streams: Mapping[str, Stream]) -> None:
        self._bus, self._streams = bus, streams
        # Weak references: a deleted consumer must not stay in memory, and its stream with it, until others come.
        self._known: dict[bytes, weakref.ref[Consumer]] = {}
        self._subscriptions: list[Subscribed] = []
        self._attached: dict[str, list[Subscribed]] = {}

    def attach(self, stream: str) -> None:
        """Listen for the acks of one stream, which this node of a cluster leads."""
        self.detach(stream)
        name = stream.encode()
        self._attached[stream] = [
            self._bus.subscribe(subject, take, runs=runs)
            for kind, take, runs in ((b"ACK", self.take, True), (b"FC", singly(self.flow_control), False))
            for subject in (b"$JS.%b.%b.>" % (kind, name), b"$JS.%b.*.*.%b.>" % (kind, name))
        ]

    def detach(self, stream: str) -> None:
        """Stop listening for the acks of a stream that this node leads no more."""
        for subscription in self._attached.pop(stream, []):
            subscription.cancel()

    def listen(self) -> None:
        """Listen for the acks of all streams, on a server without a cluster."""
        self._subscriptions = [
            self._bus.subscribe(b"$JS.ACK.>", self.take, runs=True),
            self._bus.subscribe(b"$JS.FC.>", singly(self.flow_control)),
        ]

    def close(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []
        for stream in list(self._attached):
            self.detach(stream)

    def take(self, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        """Take messages on ack subjects."""
        if type(messages) is Single:
            one = messages
        elif type(messages) is Publishes and messages.offer(self._take_run, begin, end):
            return end
        else:
            one = messages.message(begin)
        self._take_one(one.subject, one.reply, one.payload)
        return begin + 1

    def _take_one(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        parts = subject.rsplit(b".", 5)
        known = self._known.get(parts[0])
        consumer = known() if known is not None else None
        if consumer is None or not consumer.serving:
            found = self._find(subject)
            if found is None or found[0].config.ack_policy in UNHEARD:
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

    def _take_run(self, run: Publishes, begin: int, end: int) -> bool:
        """Take plain acks of one consumer that nobody waits for; return False for any others."""
        buf, places = run.buf, run.places[begin * WIDTH : end * WIDTH]
        if run.heads or any(places[1::WIDTH]):
            return False
        payloads = {buf[at : at + size] for at, size in zip(places[2::WIDTH], places[3::WIDTH], strict=True)}
        tokens = b".".join(run.subjects[begin:end]).split(b".")
        count = end - begin
        # Tokens that are shifted against each other do not all have the name of the consumer at its place.
        if not payloads <= ACKS or len(tokens) != V1_TOKENS * count or tokens[0::V1_TOKENS] != [b"$JS"] * count:
            return False
        known = self._known.get(b".".join(tokens[:4]))
        consumer = known() if known is not None else None
        if consumer is None or not consumer.serving:
            return False
        if tokens[2::V1_TOKENS] != [tokens[2]] * count or tokens[3::V1_TOKENS] != [tokens[3]] * count:
            return False
        for each in (tokens[4::V1_TOKENS], tokens[5::V1_TOKENS], tokens[6::V1_TOKENS]):
            if b"" in each or not b"".join(each).isdigit():
                return False
        return consumer.acks.ack_run(list(map(int, tokens[5::V1_TOKENS])))

    def _find(self, subject: bytes) -> tuple[Consumer, list[bytes]] | None:
        """Return the consumer of an ack subject that is not cached, and the subject's numbers after a prefix."""
        tokens = subject.split(b".")
        version2 = len(tokens) >= V2_TOKENS
        if not version2 and len(tokens) != V1_TOKENS:
            return None
        if version2 and tokens[3].startswith(MARK):
            return None  # of a remote server, which may have a consumer of that name, too
        at = 4 if version2 else 2
        consumer = self._consumer(tokens[at], tokens[at + 1])
        if consumer is None:
            return None
        if not version2 and consumer.serving and consumer.config.ack_policy not in UNHEARD:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[b".".join(tokens[:4])] = weakref.ref(consumer)
        return consumer, [b"", *tokens[at + 2 : at + 7]]

    def _consumer(self, stream: bytes, name: bytes) -> Consumer | None:
        found = self._streams.get(stream.decode("utf-8", "replace"))
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
