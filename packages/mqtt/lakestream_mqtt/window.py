"""Packet ids of messages on their way to a client, without I/O.

Belongs here: which id a delivery gets, that a redelivery keeps it, and what is still to be answered by the client. Ids
of a session outlive its connections, so a message that is sent again after a reconnect is the same to the client.
"""

from __future__ import annotations

import msgspec

IDS = 0xFFFF
"""Packet ids are from 1 to 65,535."""


class Sent(msgspec.Struct):
    """A message that the client has not acknowledged.

    Attributes:
        source: durable name of the consumer that delivers it; of a retained message the filter, which begins with `/`.
        seq: of the message in its stream.
        ack: ack subject of the last delivery; b"": it is not of a consumer.
        qos: of the delivery.
    """

    source: str
    seq: int
    ack: bytes
    qos: int


class Window:
    """The packet ids of one session.

    Attributes:
        sent: PUBLISH that waits for PUBACK or PUBREC, by packet id.
        released: PUBREL that waits for PUBCOMP: ack subject by packet id; b"": it is not stored yet.
    """

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}
        self.released: dict[int, bytes] = {}
        self._ids: dict[tuple[str, int], int] = {}
        self._kept: dict[int, tuple[str, int]] = {}
        self._last = 0

    def _new(self) -> int:
        """Return a free id, not the one freed last; 0: there is none."""
        if len(self.sent) + len(self.released) >= IDS:
            return 0
        found = self._last
        while True:
            found = found % IDS + 1
            if found not in self.sent and found not in self.released:
                self._last = found
                return found

    def send(self, source: str, seq: int, ack: bytes, qos: int, limit: int) -> int:
        """Return the packet id of a delivery: the one that the message has, or a new one. 0: it is not sent now,
        because `limit` messages wait for the client, or the client has acknowledged it."""
        key = source, seq
        if found := self._ids.get(key, 0):
            if found not in self.sent:
                return 0
            self.sent[found].ack = ack
            return found
        if len(self.sent) >= limit or not (found := self._new()):
            return 0
        self._ids[key] = found
        self.sent[found] = Sent(source, seq, ack, qos)
        return found

    def retain(self, topic_filter: str, qos: int, limit: int) -> int:
        """Return a packet id for a retained message, which no consumer delivers again; 0: there is none."""
        if len(self.sent) >= limit or not (found := self._new()):
            return 0
        source = f"/{topic_filter}"
        self._ids[source, found] = found
        self.sent[found] = Sent(source, found, b"", qos)
        return found

    def acknowledged(self, packet_id: int) -> bytes:
        """Note PUBACK; return the ack subject, b"" for none."""
        sent = self.sent.pop(packet_id, None)
        if sent is None:
            return b""
        self._ids.pop((sent.source, sent.seq), None)
        return sent.ack

    def received(self, packet_id: int) -> bytes | None:
        """Note PUBREC: the id waits for PUBCOMP now. Return the ack subject; None: there is no such message with QoS
        2."""
        sent = self.sent.get(packet_id)
        if sent is None or sent.qos != 2:
            return None
        del self.sent[packet_id]
        self.released[packet_id] = b""
        # Its consumer may deliver the message once more before the ack arrives: the client must not get it again.
        self._kept[packet_id] = sent.source, sent.seq
        return sent.ack

    def releasing(self, packet_id: int, ack: bytes) -> None:
        """Note the delivery of a PUBREL."""
        self.released[packet_id] = ack

    def completed(self, packet_id: int) -> bytes:
        """Note PUBCOMP; return the ack subject, b"" for none."""
        if (key := self._kept.pop(packet_id, None)) is not None:
            self._ids.pop(key, None)
        return self.released.pop(packet_id, b"")

    def forget(self, source: str) -> None:
        """Drop what a consumer, or a filter's retained messages, have sent: the subscription is gone."""
        for packet_id, sent in list(self.sent.items()):
            if sent.source == source:
                self.acknowledged(packet_id)

    def unanswered(self) -> list[bytes]:
        """Return the ack subjects of what a client has to get again after it has reconnected, in order."""
        return [ack for ack in (*(sent.ack for sent in self.sent.values()), *self.released.values()) if ack]
