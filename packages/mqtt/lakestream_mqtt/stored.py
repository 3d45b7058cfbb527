"""Streams of an account, their subjects, and the messages in them, all as nats-server has them.

Belongs here: names and configurations of the streams, consumers of a session, headers of messages, retained messages
and session records as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lakestream.protocol import headers
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream_mqtt.packets import Publish
from lakestream_mqtt.topics import topic_of

PREFIX = b"$MQTT."
"""Subjects of MQTT's own messages; no client's filter may begin with it."""

MESSAGES, RETAINED, SESSIONS, HELD, RELEASES = "$MQTT_msgs", "$MQTT_rmsgs", "$MQTT_sess", "$MQTT_qos2in", "$MQTT_out"
"""Streams of an account: messages with QoS 1 and 2 for sessions, retained messages, session records, messages with
QoS 2 of clients until their PUBREL, and PUBRELs to clients until their PUBCOMP."""

OF_MESSAGES, OF_RETAINED, OF_SESSIONS, OF_HELD, OF_RELEASES = (
    *(b"$MQTT.msgs.", b"$MQTT.rmsgs.", b"$MQTT.sess."),
    *(b"$MQTT.qos2.in.", b"$MQTT.out.pubrel."),
)
"""Beginnings of the subjects in them."""

INBOX, RELEASE_INBOX = "$MQTT.sub.", "$MQTT.deliver.pubrel."
"""Beginnings of the subjects to which consumers of a session deliver."""

RELEASE_DURABLE = "$MQTT_PUBREL_"

PUBLISHED = b"Nmqtt-Pub"
"""Header of a message from MQTT: its QoS; of a held one also the flags of PUBLISH, as a hexadecimal digit."""

_SUBJECT, _MAPPED, _RELEASED = b"Nmqtt-Subject", b"Nmqtt-Mapped", b"Nmqtt-PubRel"
_TOPIC, _ORIGIN, _RFLAGS, _SOURCE = b"Nmqtt-RTopic", b"Nmqtt-ROrigin", b"Nmqtt-RFlags", b"Nmqtt-RSource"
_BY_QOS = tuple(b"NATS/1.0\r\n%b:%d\r\n\r\n" % (PUBLISHED, qos) for qos in range(3))
_QOS = {header: qos for qos, header in enumerate(_BY_QOS)}


def streams(replicas: int, domain: str) -> dict[str, dict[str, Any]]:
    """Return the configurations of the streams. `domain`: of the subjects of sessions, with a dot; "": none.

    They are nats-server's, except that those with messages of the protocol alone stay out of the lake.
    """
    once: dict[str, Any] = {"retention": "limits", "max_msgs_per_subject": 1}
    apart: dict[str, Any] = {"metadata": {"lakestream.lake": "off"}}
    made: dict[str, dict[str, Any]] = {
        SESSIONS: {"subjects": [f"{OF_SESSIONS.decode()}{domain}>"], **once, **apart},
        MESSAGES: {"subjects": [f"{OF_MESSAGES.decode()}>"], "retention": "interest"},
        HELD: {"subjects": [f"{OF_HELD.decode()}>"], **once, "discard": "new", "discard_new_per_subject": True} | apart,
        RELEASES: {"subjects": ["$MQTT.out.>"], "retention": "interest", **apart},
        RETAINED: {"subjects": [f"{OF_RETAINED.decode()}>"], **once},
    }
    return {
        name: {"name": name, "storage": "file", "num_replicas": replicas, **config} for name, config in made.items()
    }


# ---------------------------------------------------------------------- messages


def header_of(qos: int) -> bytes:
    """Return the headers of a message with this QoS."""
    return _BY_QOS[qos]


def qos_of(header: bytes) -> int:
    """Return the QoS with which a message was published; 0 for those of NATS clients."""
    if not header:
        return 0
    if (found := _QOS.get(header)) is not None:
        return found
    value = headers.get(header, PUBLISHED) or b""
    return {b"1": 1, b"2": 2}.get(value[:1], 0)


def held_header(publish: Publish, subject: bytes) -> bytes:
    """Return the headers of a message with QoS 2 that waits for its PUBREL."""
    flags = publish.dup << 3 | publish.qos << 1 | publish.retain
    return headers.build([(PUBLISHED, b"%d%x" % (publish.qos, flags)), (_SUBJECT, subject)])


def held(header: bytes, payload: bytes) -> tuple[bytes, bool] | None:
    """Return subject and retain flag of a held message; None if it is none."""
    value, subject = headers.get(header, PUBLISHED), headers.get(header, _SUBJECT)
    if not value or not subject:
        return None
    return subject, len(value) > 1 and bool(int(value[1:2], 16) & 1)


def release_header(packet_id: int) -> bytes:
    """Return the headers of a PUBREL that waits for its PUBCOMP."""
    return headers.build([(_RELEASED, b"%d" % packet_id)])


def released(header: bytes) -> int:
    """Return the packet id of a PUBREL; 0: it is none."""
    value = headers.get(header, _RELEASED) or b""
    return int(value) if value.isdigit() and len(value) < 6 else 0


# ---------------------------------------------------------------------- retained messages


def retained_header(subject: bytes, publish: Publish, origin: str, source: str) -> bytes:
    """Return the headers of a retained message; one without payload ends the retained message of its topic."""
    flags = b"%x" % (publish.dup << 3 | publish.qos << 1 | publish.retain)
    pairs = [(_TOPIC, topic_of(subject)), (_RFLAGS, flags if publish.payload else b"-" + flags)]
    pairs.append((_ORIGIN, origin.encode()))
    if source:
        pairs.append((_SOURCE, source.encode()))
    return headers.build(pairs)


def retained(subject: bytes, header: bytes, payload: bytes) -> Publish | None:
    """Return a retained message as it is sent to a client that subscribes; None: there is none, or not any more.

    Args:
        subject: in its stream.
    """
    value = headers.get(header, _RFLAGS) or b""
    try:
        flags = int(value, 16) if payload else -1
    except ValueError:
        flags = -1
    if not 0 <= flags < 16 or flags >> 1 & 3 == 3:
        return None
    return Publish(topic_of(subject.removeprefix(OF_RETAINED)), payload, flags >> 1 & 3, retain=True)


# ---------------------------------------------------------------------- sessions


class SessionRecord(msgspec.Struct, omit_defaults=True):
    """A session as it is stored.

    Attributes:
        origin: short hash of the server's name.
        id: client id.
        clean: it ends with its connection.
        subs: highest QoS by filter, as subject.
        cons: configuration of the consumer of each subscription with QoS 1 or 2.
        pubrel: configuration of the consumer of PUBRELs.
    """

    origin: str = ""
    id: str = ""
    clean: bool = False
    subs: dict[str, int] = {}
    cons: dict[str, dict[str, Any] | None] = {}
    pubrel: dict[str, Any] | None = None


_RECORD = JsonDecoder(SessionRecord)


def session_record(payload: bytes) -> SessionRecord | None:
    """Return a stored session; None if it does not decode."""
    try:
        return _RECORD.decode(payload)
    except DECODE_ERRORS:
        return None


def consumer(durable: str, inbox: str, subject: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a consumer of a session."""
    return {
        "durable_name": durable,
        "deliver_subject": inbox,
        "filter_subject": subject,
        "deliver_policy": "new",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        **limits,
    }


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """The place of a delivery, from its ack subject. `number`: 1 for the first one."""

    seq: int
    number: int


def delivered(ack: bytes) -> Delivered:
    """Return the place of a delivery. Raises ValueError for a subject that is no ack's."""
    tokens = ack.split(b".")
    at = 4 if len(tokens) == 9 else 6  # with domain and account
    if len(tokens) < 9:
        raise ValueError("no ack subject")
    return Delivered(int(tokens[at + 1]), int(tokens[at]))
