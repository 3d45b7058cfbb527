"""Target: what clients of MQTT send, and what is stored of it.

Packets must not depend on how the byte stream is cut. Topics become subjects and come back; what a stream has of a
message, a session or a retained message is read.
"""

from __future__ import annotations

import re

from lakestream.protocol.subjects import valid_literal
from lakestream_mqtt import packets, stored
from lakestream_mqtt.packets import BadPacket, Decoder, Packet, Publish, Subscribed
from lakestream_mqtt.topics import BadTopic, subject_of, topic_of
from tests.fuzz.target import Target
from tests.mqtt import BYE, PING, answer, connect, publish, subscribe, unsubscribe

CUTS = (1, 2, 3, 7, 16, 64, 256, 1 << 20)
"""Sizes of the pieces in which a stream is read, in bytes."""
LIMIT = 1 << 16
_HELLO = connect("c")


def _packets(data: bytes, size: int) -> list[Packet | str]:
    decoder = Decoder(LIMIT)
    found: list[Packet | str] = []
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
        assert decoder.pending <= LIMIT + size
        try:
            while (each := decoder.next()) is not None:
                found.append(each)
        except BadPacket as error:
            return [*found, str(error)]
    return found


def _mqtt(data: bytes) -> None:
    if not data:
        return
    how, sent = data[0], data[1:]
    stream = _HELLO + sent if how & 8 else sent
    whole = _packets(stream, len(stream) or 1)
    assert whole == _packets(stream, CUTS[how & 7])
    refused: BadTopic | None = None
    for packet in whole:
        try:
            if isinstance(packet, Publish):
                subject = subject_of(packet.topic)
                assert valid_literal(subject) or re.search(rb"(^|/)[*>](/|$)", packet.topic)
                assert topic_of(subject) == packet.topic
                header = stored.held_header(packet, subject)
                assert stored.qos_of(header) == packet.qos
                stored.retained(stored.OF_RETAINED + subject, packet.payload, b"x")
                stored.session_record(packet.payload)
                stored.released(packet.payload)
                stored.held(packet.payload, b"")
                again = packets.publish(
                    packet.topic, packet.payload, packet.qos, packet.packet_id, retain=packet.retain, dup=packet.dup
                )
                assert _packets(_HELLO + again, len(again))[1:] == [packet]
            elif isinstance(packet, Subscribed):
                for topic, _ in packet.filters:
                    subject_of(topic, wildcards=True)
        except BadTopic as error:
            refused = error
    if whole and isinstance(whole[-1], str):
        raise BadPacket(whole[-1])
    if refused is not None:
        raise refused


def _seeds() -> list[bytes]:
    will = connect("dev", will=("a/b", b"gone", 1, True), user="u", password="p", keep_alive=9)
    sent = [publish("a//b.c", b"x", qos, qos, retain=True) for qos in range(3)]
    sent += [subscribe(1, ("+/a/#", 2), ("$S/x", 0)), unsubscribe(2, "a/b"), PING, BYE]
    sent += [answer(kind, 7) for kind in (packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP)]
    return [b"\7" + will + b"".join(sent), *(b"\x0a" + each for each in sent), b"\0" + connect("c", level=5)]


TARGETS = (
    Target(
        "mqtt",
        "MQTT: packets, topics, what is stored of messages and sessions",
        _mqtt,
        (BadPacket, BadTopic),
        _seeds,
        (b"\0\4MQTT\4", b"\x30", b"\x82", b"$MQTT/", b"//", b"/.", b"Nmqtt-Pub:", b'{"id":"'),
    ),
)
