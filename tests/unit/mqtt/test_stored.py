"""Tests of the forms in which MQTT is kept in JetStream. The examples are what nats-server 2.15 stores."""

from __future__ import annotations

import pytest

from lakestream_mqtt import stored
from lakestream_mqtt.packets import Publish

pytestmark = pytest.mark.unit

RETAINED = b"NATS/1.0\r\nNmqtt-RTopic:a/b\r\nNmqtt-RFlags:3\r\nNmqtt-ROrigin:4wkjL2Pa\r\nNmqtt-RSource:ann\r\n\r\n"
HELD = b"NATS/1.0\r\nNmqtt-Pub:25\r\nNmqtt-Subject:a.b\r\n\r\n"


def test_the_qos_of_a_message() -> None:
    assert [stored.qos_of(stored.header_of(qos)) for qos in range(3)] == [0, 1, 2]
    assert stored.qos_of(b"") == stored.qos_of(b"NATS/1.0\r\nX: 1\r\n\r\n") == 0
    assert stored.qos_of(b"NATS/1.0\r\nX: 1\r\nNmqtt-Pub: 2\r\n\r\n") == 2


@pytest.mark.parametrize(("value", "qos"), [(b" 1", 1), (b"  2", 2), (b"25", 2), (b"", 0), (b"9", 0), (b"x", 0)])
def test_the_qos_of_a_message_of_a_nats_client(value: bytes, qos: int) -> None:
    assert stored.qos_of(b"NATS/1.0\r\nNmqtt-Pub:%b\r\n\r\n" % value) == qos


def test_a_retained_message_of_nats_server() -> None:
    expected = Publish(b"a/b", b"x", 1, retain=True)
    assert stored.retained(b"$MQTT.rmsgs.a.b", RETAINED, b"x") == expected
    made = stored.retained_header(b"a.b", Publish(b"", b"x", 1, True), "4wkjL2Pa", "ann")
    assert stored.retained(b"$MQTT.rmsgs.a.b", made, b"x") == expected


@pytest.mark.parametrize(
    ("header", "payload"),
    [(RETAINED, b""), (b"", b"x"), (RETAINED.replace(b":3", b":f"), b"x"), (RETAINED.replace(b":3", b":x"), b"x")],
)
def test_what_is_no_retained_message(header: bytes, payload: bytes) -> None:
    assert stored.retained(b"$MQTT.rmsgs.a.b", header, payload) is None


def test_a_held_message_of_nats_server() -> None:
    assert stored.held(HELD, b"x") == (b"a.b", True)
    assert stored.held(HELD.replace(b":25", b":2"), b"x") == (b"a.b", False)
    assert stored.held(b"", b"x") is None
    assert stored.held(stored.held_header(Publish(b"", b"x", 2, True), b"a.b"), b"x") == (b"a.b", True)


def test_a_release() -> None:
    assert stored.released(b"NATS/1.0\r\nNmqtt-PubRel:123\r\n\r\n") == 123
    assert stored.released(stored.release_header(65535)) == 65535
    assert stored.released(b"") == stored.released(b"NATS/1.0\r\nNmqtt-PubRel:x\r\n\r\n") == 0


def test_a_session_of_nats_server() -> None:
    text = (
        b'{"origin":"4wkjL2Pa","id":"dev","subs":{"a.\\u003e":1},"cons":{"a.\\u003e":{"durable_name":"x_y","deliver_subject":'
        b'"$MQTT.sub.z","deliver_policy":"new","ack_policy":"explicit","ack_wait":30000000000,"max_ack_pending":1024,'
        b'"filter_subject":"$MQTT.msgs.a.\\u003e","replay_policy":"instant","num_replicas":0}}}'
    )
    record = stored.session_record(text)
    assert record is not None
    assert (record.id, record.clean, record.subs, record.pubrel) == ("dev", False, {"a.>": 1}, None)
    assert record.cons["a.>"] is not None
    assert record.cons["a.>"]["deliver_subject"] == "$MQTT.sub.z"
    assert stored.session_record(b"{") is None


def test_the_place_of_a_delivery() -> None:
    assert stored.delivered(b"$JS.ACK.$MQTT_msgs.c.2.7.9.1700000000.0") == stored.Delivered(7, 2)
    assert stored.delivered(b"$JS.ACK.dom.acc.$MQTT_msgs.c.2.7.9.1700000000.0.x") == stored.Delivered(7, 2)
    with pytest.raises(ValueError, match="no ack subject"):
        stored.delivered(b"a.b")
