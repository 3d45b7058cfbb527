"""Tests of MQTT's packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream_mqtt import packets
from lakestream_mqtt.packets import (
    Acknowledged,
    BadPacket,
    Connect,
    ConnectRefused,
    Decoder,
    Disconnected,
    Packet,
    Pinged,
    Publish,
    Subscribed,
    TooLarge,
    Unsubscribed,
)
from tests import mqtt

pytestmark = pytest.mark.unit

HELLO = mqtt.connect("c")
CASES: list[tuple[bytes, Packet]] = [
    (mqtt.publish("a/b", b"x"), Publish(b"a/b", b"x")),
    (mqtt.publish("a", b"", 1, 7, retain=True), Publish(b"a", b"", 1, True, packet_id=7)),
    (mqtt.publish("a", b"y", 2, 65535, dup=True), Publish(b"a", b"y", 2, dup=True, packet_id=65535)),
    (mqtt.answer(packets.PUBACK, 1), Acknowledged(packets.PUBACK, 1)),
    (mqtt.answer(packets.PUBREC, 2), Acknowledged(packets.PUBREC, 2)),
    (mqtt.answer(packets.PUBREL, 3), Acknowledged(packets.PUBREL, 3)),
    (mqtt.answer(packets.PUBCOMP, 4), Acknowledged(packets.PUBCOMP, 4)),
    (mqtt.subscribe(5, ("a/#", 0), ("+", 2)), Subscribed(5, ((b"a/#", 0), (b"+", 2)))),
    (mqtt.unsubscribe(6, "a", "b"), Unsubscribed(6, (b"a", b"b"))),
    (mqtt.PING, Pinged()),
    (mqtt.BYE, Disconnected()),
]
CONNECTS: list[tuple[bytes, Connect]] = [
    (mqtt.connect("c", keep_alive=30), Connect("c", keep_alive_s=30)),
    (mqtt.connect("c", clean=False), Connect("c", clean=False)),
    (mqtt.connect(""), Connect("")),
    (mqtt.connect("c", user="u", password="p"), Connect("c", user="u", password="p")),
    (mqtt.connect("c", will=("w/t", b"gone", 1, True)), Connect("c", will=Publish(b"w/t", b"gone", 1, True))),
]
WRONG: list[tuple[bytes, str]] = [
    (mqtt.packet(packets.PUBLISH, mqtt.text("a"), 6), "QoS=3 is invalid in MQTT"),
    (mqtt.publish("", b"x"), "topic cannot be empty"),
    (mqtt.publish(b"\xff", b"x"), "invalid utf8 for topic"),
    (mqtt.publish("a\0b", b"x"), "invalid null character in topic"),
    (mqtt.publish("a", b"", 1, 0), "packet identifier cannot be 0"),
    (mqtt.packet(packets.PUBLISH, b"\0\5a"), "error reading topic: unexpected EOF"),
    (mqtt.packet(packets.PUBACK, b"\0\1", 1), "invalid fixed header flags 1 for packet type 40"),
    (mqtt.packet(packets.PUBREL, b"\0\1"), "invalid fixed header flags 0 for packet type 60"),
    (mqtt.packet(packets.PUBACK, b"\0\1\0"), "invalid remaining length 3 for packet type 40"),
    (mqtt.packet(packets.PINGREQ, b"\0"), "invalid remaining length 1 for packet type c0"),
    (mqtt.packet(packets.SUBSCRIBE, b"\0\1", 2), "subscribe protocol must contain at least 1 topic filter"),
    (mqtt.packet(packets.SUBSCRIBE, b"\0\1" + mqtt.text("a"), 2), "error reading QoS: EOF"),
    (mqtt.subscribe(1, ("a", 3)), "subscribe QoS value must be 0, 1 or 2, got 3"),
    (mqtt.subscribe(1, ("", 0)), "topic filter cannot be empty"),
    (mqtt.subscribe(1, *[("a", 0)] * 8193), "more than 8192 topic filters"),
    (mqtt.unsubscribe(1, *["a"] * 8193), "more than 8192 topic filters"),
    (mqtt.unsubscribe(1), "unsubscribe protocol must contain at least 1 topic filter"),
    (b"\xf0\0", "received unknown packet type 15"),
    (b"\x30\xff\xff\xff\xff\x01", "malformed variable int"),
    (HELLO, "received a second CONNECT packet"),
]
WRONG_CONNECTS: list[tuple[bytes, str]] = [
    (mqtt.PING, "the first packet should be a CONNECT (16), got 192"),
    (b"GET /mqtt HTTP/1.1\r\n", "MQTT clients over websocket must connect to the Websocket port, not the MQTT port"),
    (mqtt.connect("c", name="MQIsdp", level=3), 'older protocol "MQIsdp" not supported'),
    (mqtt.connect("c", name="x"), 'expected connect packet with protocol name "MQTT"'),
    (mqtt.connect("c", flags=1), "connect flags reserved bit not set to 0"),
    (mqtt.connect("c", flags=8), "if Will flag is set to 0, Will QoS must be 0 too, got 1"),
    (mqtt.connect("c", flags=32), "if Will flag is set to 0, Will Retain flag must be 0 too"),
    (mqtt.connect("c", will=("a", b"", 3, False)), "if Will flag is set to 1, Will QoS can be 0, 1 or 2, got 3"),
    (mqtt.connect("c", will=("", b"", 0, False)), "Will topic cannot be empty"),
    (mqtt.connect("c", password="p"), "password flag set but username flag is not"),
    (mqtt.connect("c") + b"", "bytes behind the last field"),
]
WRONG_CONNECTS[-1] = (mqtt.packet(packets.CONNECT, HELLO[2:] + b"x"), "bytes behind the last field")
REFUSED: list[tuple[bytes, int]] = [
    (mqtt.connect("c", level=5), packets.BAD_PROTOCOL),
    (mqtt.connect("", clean=False), packets.BAD_CLIENT_ID),
    (mqtt.connect(b"\xff"), packets.BAD_CLIENT_ID),
    (mqtt.connect("a b"), packets.BAD_CLIENT_ID),
    (mqtt.connect("c", user=""), packets.BAD_LOGIN),
    (mqtt.connect("c", user=b"\xff"), packets.BAD_LOGIN),
]


def connected(limit: int = -1) -> Decoder:
    decoder = Decoder(limit)
    decoder.feed(HELLO)
    assert decoder.next() == Connect("c")
    return decoder


def read(decoder: Decoder, stream: bytes, sizes: list[int]) -> list[Packet | str]:
    """Return the packets of a stream that comes in pieces of these sizes, the last one often; an error ends it."""
    found: list[Packet | str] = []
    at = 0
    while at < len(stream):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        decoder.feed(stream[at : at + size])
        at += size
        try:
            while (each := decoder.next()) is not None:
                found.append(each)
        except BadPacket as error:
            return [*found, str(error)]
    return found


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_a_packet_is_read(data: bytes, expected: Packet) -> None:
    decoder = connected()
    decoder.feed(data)
    assert decoder.next() == expected
    assert decoder.next() is None
    assert decoder.pending == 0


@pytest.mark.parametrize(("data", "expected"), CONNECTS)
def test_connect_is_read(data: bytes, expected: Connect) -> None:
    decoder = Decoder()
    decoder.feed(data)
    assert decoder.next() == expected


@pytest.mark.parametrize(("data", "said"), WRONG)
def test_a_wrong_packet_is_told(data: bytes, said: str) -> None:
    decoder = connected()
    decoder.feed(data)
    with pytest.raises(BadPacket) as raised:
        decoder.next()
    assert str(raised.value) == said


@pytest.mark.parametrize(("data", "said"), WRONG_CONNECTS)
def test_a_wrong_first_packet_is_told(data: bytes, said: str) -> None:
    decoder = Decoder()
    decoder.feed(data)
    with pytest.raises(BadPacket) as raised:
        decoder.next()
    assert str(raised.value) == said


@pytest.mark.parametrize(("data", "code"), REFUSED)
def test_a_refused_client_gets_a_code(data: bytes, code: int) -> None:
    decoder = Decoder()
    decoder.feed(data)
    with pytest.raises(ConnectRefused) as raised:
        decoder.next()
    assert raised.value.code == code


def test_a_packet_above_the_limit_is_told_before_it_is_complete() -> None:
    decoder = connected(100)
    decoder.feed(mqtt.publish("a", bytes(95)))
    assert isinstance(decoder.next(), Publish)
    decoder.feed(mqtt.publish("a", bytes(200))[:3])
    with pytest.raises(TooLarge):
        decoder.next()


@given(
    st.lists(st.sampled_from([data for data, _ in CASES]), max_size=8),
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
)
def test_packets_do_not_depend_on_how_the_stream_is_cut(sent: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(sent)
    whole = read(connected(), stream, [max(1, len(stream))])
    assert read(connected(), stream, sizes) == whole
    assert len(whole) == len(sent)


@given(st.binary(max_size=60), st.lists(st.integers(1, 5), min_size=1, max_size=20), st.booleans())
def test_any_bytes_are_packets_or_an_error(data: bytes, sizes: list[int], is_connected: bool) -> None:
    def made() -> Decoder:
        return connected() if is_connected else Decoder()

    assert read(made(), data, sizes) == read(made(), data, [max(1, len(data))])


@given(st.binary(max_size=300), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(1, 65535))
def test_a_message_for_a_client_is_read_by_a_server(
    payload: bytes, qos: int, retain: bool, dup: bool, number: int
) -> None:
    decoder = connected()
    decoder.feed(packets.publish(b"t", payload, qos, number, retain=retain, dup=dup))
    assert decoder.next() == Publish(b"t", payload, qos, retain, dup, number if qos else 0)


def test_answers_for_clients() -> None:
    assert packets.connack(packets.ACCEPTED, True) == b"\x20\2\1\0"
    assert packets.connack(packets.NOT_AUTHORIZED, True) == b"\x20\2\0\5"
    assert packets.acknowledgement(packets.PUBREL, 258) == b"\x62\2\1\2"
    assert packets.suback(1, [0, 1, 2, packets.SUBSCRIPTION_REFUSED]) == b"\x90\6\0\1\0\1\2\x80"
    assert packets.unsuback(2) == b"\xb0\2\0\2"
