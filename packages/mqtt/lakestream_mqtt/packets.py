"""MQTT 3.1.1 on the wire, without I/O: packets as bytes.

Belongs here: the fixed header, the layout of each packet with the checks that the specification asks of a server
(OASIS, mqtt-v3.1.1-os; the texts of errors are nats-server's), and the limits of what is held while a packet is
incomplete. The packets do not depend on how the byte stream is cut. Topics become subjects in topics.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

import msgspec

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = range(8, 15)
"""Types of packets: the high four bits of the first byte."""

PROTOCOL_LEVEL = 4
"""The level of MQTT 3.1.1 in CONNECT. MQTT 5 has level 5."""

ACCEPTED, BAD_PROTOCOL, BAD_CLIENT_ID, UNAVAILABLE, BAD_LOGIN, NOT_AUTHORIZED = range(6)
"""Return codes of CONNACK."""

QOS2_WILL_REFUSED = 0x10
"""Return code of CONNACK for a will with QoS 2 that the settings reject, as in nats-server."""

SUBSCRIPTION_REFUSED = 0x80
"""Return code of SUBACK for a filter that is refused."""

MAX_OVERHEAD = 5 + 2 + 65535 + 2
"""Bytes of a packet besides its payload: fixed header, longest topic, packet id (65,544)."""

MAX_FILTERS = 8192
"""Topic filters of one packet (8,192): a megabyte of them would keep other clients waiting."""

_MAX_LENGTH_BYTES = 4
_FLAGS = {PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}
_LENGTHS = {PUBACK: 2, PUBREC: 2, PUBREL: 2, PUBCOMP: 2, PINGREQ: 0, DISCONNECT: 0}
_BAD_IN_IDS = re.compile(r"[ \t\r\n\f.*>]")
"""Characters that a client id may not have, as in nats-server."""


class BadPacket(Exception):
    """Raised for bytes that are not MQTT 3.1.1, or that the server does not accept; the connection is closed."""


class TooLarge(BadPacket):
    """Raised for a packet above the limit, before it is complete."""


class ConnectRefused(BadPacket):
    """Raised for a CONNECT that is answered before the connection is closed. `code`: for CONNACK."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# ---------------------------------------------------------------------- packets


class Publish(msgspec.Struct, frozen=True, gc=False):
    """PUBLISH. `packet_id`: 0 with QoS 0."""

    topic: bytes
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0


class Connect(msgspec.Struct, frozen=True):
    """CONNECT. `client_id`: "" for a new one. `keep_alive_s`: 0: none. `user`, `password`: None: not given."""

    client_id: str
    clean: bool = True
    keep_alive_s: int = 0
    will: Publish | None = None
    user: str | None = None
    password: str | None = None


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """PUBACK, PUBREC, PUBREL or PUBCOMP: `kind` tells which."""

    kind: int
    packet_id: int


class Subscribed(msgspec.Struct, frozen=True):
    """SUBSCRIBE: topic filters with the highest QoS of each."""

    packet_id: int
    filters: tuple[tuple[bytes, int], ...]


class Unsubscribed(msgspec.Struct, frozen=True):
    """UNSUBSCRIBE."""

    packet_id: int
    filters: tuple[bytes, ...]


class Pinged(msgspec.Struct, frozen=True):
    """PINGREQ."""


class Disconnected(msgspec.Struct, frozen=True):
    """DISCONNECT."""


Packet = Connect | Publish | Acknowledged | Subscribed | Unsubscribed | Pinged | Disconnected

_PING, _DISCONNECT = Pinged(), Disconnected()


# ---------------------------------------------------------------------- what clients send


class Decoder:
    """The packets of one client.

    Args:
        limit: bytes of the largest packet; -1: none but that of MQTT (256 MiB).

    Attributes:
        limit: may be changed between packets.
        connected: the client has sent its CONNECT: before it no other packet is accepted, after it no second one.
    """

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self.connected = False
        self._buffer = bytearray()
        self._at = 0

    @property
    def pending(self) -> int:
        """Return the number of bytes that are held."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next(self) -> Packet | None:
        """Return the next packet; None while it is incomplete. Raises BadPacket."""
        buffer, start = self._buffer, self._at
        if start >= len(buffer):
            return None
        first = buffer[start]
        kind, flags = first >> 4, first & 15
        if (kind == CONNECT) is self.connected:
            self._out_of_place(kind)
        if kind in _PARSERS and kind != PUBLISH and flags != _FLAGS.get(kind, 0):
            raise BadPacket(f"invalid fixed header flags {flags:x} for packet type {first & 0xF0:x}")
        length, at = self._length(start + 1)
        if at == 0:
            return None
        if kind in _LENGTHS and length != _LENGTHS[kind]:
            raise BadPacket(f"invalid remaining length {length} for packet type {first & 0xF0:x}")
        end = at + length
        if 0 <= self.limit < end - start:
            raise TooLarge("maximum payload exceeded")
        if end > len(buffer):
            return None
        parser = _PARSERS.get(kind)
        if parser is None:
            raise BadPacket(f"received unknown packet type {kind}")
        packet = parser(flags, _Body(bytes(memoryview(buffer)[at:end])))
        self._at = end
        self.connected = True
        return packet

    def _out_of_place(self, kind: int) -> NoReturn:
        if kind == CONNECT:
            raise BadPacket("received a second CONNECT packet")
        if self._buffer.startswith(b"GET ", self._at):
            raise BadPacket("MQTT clients over websocket must connect to the Websocket port, not the MQTT port")
        raise BadPacket(f"the first packet should be a CONNECT ({CONNECT << 4}), got {kind << 4}")

    def _length(self, at: int) -> tuple[int, int]:
        """Return the remaining length that begins at a place, and the place behind it; 0 while it is incomplete."""
        length = shift = 0
        for place in range(at, min(at + _MAX_LENGTH_BYTES, len(self._buffer))):
            byte = self._buffer[place]
            length |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return length, place + 1
            shift += 7
        if shift == 7 * _MAX_LENGTH_BYTES:
            raise BadPacket("malformed variable int")
        return 0, 0


class _Body:
    """The bytes of a packet behind its fixed header, read from the beginning."""

    __slots__ = ("_at", "_bytes")

    def __init__(self, data: bytes) -> None:
        self._bytes, self._at = data, 0

    @property
    def more(self) -> bool:
        return self._at < len(self._bytes)

    def byte(self, field: str) -> int:
        if not self.more:
            raise BadPacket(f"error reading {field}: EOF")
        self._at += 1
        return self._bytes[self._at - 1]

    def number(self, field: str) -> int:
        at = self._at
        if at + 2 > len(self._bytes):
            raise BadPacket(f"error reading {field}: unexpected EOF")
        self._at = at + 2
        return int.from_bytes(self._bytes[at : at + 2])

    def data(self, field: str) -> bytes:
        end = self.number(field) + self._at
        if end > len(self._bytes):
            raise BadPacket(f"error reading {field}: unexpected EOF")
        begin, self._at = self._at, end
        return self._bytes[begin:end]

    def topic(self, field: str) -> bytes:
        """Return a text that is not empty, as its bytes."""
        found = self.data(field)
        if not found:
            raise BadPacket(f"{field} cannot be empty")
        _check_text(found, field)
        return found

    def packet_id(self) -> int:
        if not (found := self.number("packet identifier")):
            raise BadPacket("packet identifier cannot be 0")
        return found

    def rest(self) -> bytes:
        return self._bytes[self._at :]


def _check_text(data: bytes, field: str) -> str:
    """Return the text of these bytes. Raises BadPacket for what is not UTF-8, and for a NUL."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BadPacket(f"invalid utf8 for {field}") from None
    if "\0" in text:
        raise BadPacket(f"invalid null character in {field}")
    return text


def _connect(flags: int, body: _Body) -> Connect:
    name = body.data("protocol name")
    if name != b"MQTT":
        if name == b"MQIsdp":
            raise BadPacket('older protocol "MQIsdp" not supported')
        raise BadPacket('expected connect packet with protocol name "MQTT"')
    if (level := body.byte("protocol level")) != PROTOCOL_LEVEL:
        raise ConnectRefused(BAD_PROTOCOL, f"unacceptable protocol version of {level}")
    given = body.byte("flags")
    clean, has_will, qos, retain = bool(given & 2), bool(given & 4), given >> 3 & 3, bool(given & 32)
    has_password, has_user = bool(given & 64), bool(given & 128)
    if given & 1:
        raise BadPacket("connect flags reserved bit not set to 0")
    if not has_will and qos:
        raise BadPacket(f"if Will flag is set to 0, Will QoS must be 0 too, got {qos}")
    if not has_will and retain:
        raise BadPacket("if Will flag is set to 0, Will Retain flag must be 0 too")
    if qos == 3:
        raise BadPacket("if Will flag is set to 1, Will QoS can be 0, 1 or 2, got 3")
    if has_password and not has_user:
        raise BadPacket("password flag set but username flag is not")
    keep_alive_s = body.number("keep alive")
    client_id = _client_id(body.data("client ID"), clean)
    will = None
    if has_will:
        topic = body.topic("Will topic")
        will = Publish(topic, body.data("Will message"), qos, retain)
    user = _user(body.data("user name")) if has_user else None
    password = body.data("password").decode("utf-8", "replace") if has_password else None
    _at_end(body)
    return Connect(client_id, clean, keep_alive_s, will, user, password)


def _client_id(data: bytes, clean: bool) -> str:
    if not data and not clean:
        raise ConnectRefused(BAD_CLIENT_ID, "when client ID is empty, clean session flag must be set to 1")
    try:
        found = _check_text(data, "client ID")
    except BadPacket as error:
        raise ConnectRefused(BAD_CLIENT_ID, str(error)) from None
    if _BAD_IN_IDS.search(found):
        raise ConnectRefused(BAD_CLIENT_ID, "invalid character in client ID")
    return found


def _user(data: bytes) -> str:
    if not data:
        raise ConnectRefused(BAD_LOGIN, "empty user name not allowed")
    try:
        return _check_text(data, "user name")
    except BadPacket as error:
        raise ConnectRefused(BAD_LOGIN, str(error)) from None


def _publish(flags: int, body: _Body) -> Publish:
    qos = flags >> 1 & 3
    if qos > 2:
        raise BadPacket(f"QoS={qos} is invalid in MQTT")
    topic = body.topic("topic")
    packet_id = body.packet_id() if qos else 0
    return Publish(topic, body.rest(), qos, bool(flags & 1), bool(flags & 8), packet_id)


def _acknowledged(kind: int) -> Callable[[int, _Body], Packet]:
    return lambda flags, body: Acknowledged(kind, body.packet_id())


def _subscribed(flags: int, body: _Body) -> Subscribed:
    packet_id = body.packet_id()
    filters: list[tuple[bytes, int]] = []
    while body.more:
        topic = body.topic("topic filter")
        if (qos := body.byte("QoS")) > 2:
            raise BadPacket(f"subscribe QoS value must be 0, 1 or 2, got {qos}")
        filters.append((topic, qos))
        _check_number(len(filters))
    if not filters:
        raise BadPacket("subscribe protocol must contain at least 1 topic filter")
    return Subscribed(packet_id, tuple(filters))


def _unsubscribed(flags: int, body: _Body) -> Unsubscribed:
    packet_id = body.packet_id()
    filters: list[bytes] = []
    while body.more:
        filters.append(body.topic("topic filter"))
        _check_number(len(filters))
    if not filters:
        raise BadPacket("unsubscribe protocol must contain at least 1 topic filter")
    return Unsubscribed(packet_id, tuple(filters))


def _check_number(filters: int) -> None:
    if filters > MAX_FILTERS:
        raise BadPacket(f"more than {MAX_FILTERS} topic filters")


def _at_end(body: _Body) -> None:
    if body.more:
        raise BadPacket("bytes behind the last field")


_PARSERS: dict[int, Callable[[int, _Body], Packet]] = {
    CONNECT: _connect,
    PUBLISH: _publish,
    **{kind: _acknowledged(kind) for kind in (PUBACK, PUBREC, PUBREL, PUBCOMP)},
    SUBSCRIBE: _subscribed,
    UNSUBSCRIBE: _unsubscribed,
    PINGREQ: lambda flags, body: _PING,
    DISCONNECT: lambda flags, body: _DISCONNECT,
}


# ---------------------------------------------------------------------- what the server sends

PONG = bytes((PINGRESP << 4, 0))


def connack(code: int, present: bool = False) -> bytes:
    """Return CONNACK. `present`: the server has a session of the client; only with ACCEPTED."""
    return bytes((CONNACK << 4, 2, present and code == ACCEPTED, code))


def publish(
    topic: bytes, payload: bytes, qos: int = 0, packet_id: int = 0, *, retain: bool = False, dup: bool = False
) -> bytes:
    """Return PUBLISH. `packet_id` counts with QoS 1 and 2 alone."""
    identifier = packet_id.to_bytes(2) if qos else b""
    size = 2 + len(topic) + len(identifier) + len(payload)
    head = bytes((PUBLISH << 4 | dup << 3 | qos << 1 | retain,)) + _encoded(size) + len(topic).to_bytes(2)
    return b"".join((head, topic, identifier, payload))


def acknowledgement(kind: int, packet_id: int) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return bytes((kind << 4 | _FLAGS.get(kind, 0), 2)) + packet_id.to_bytes(2)


def suback(packet_id: int, codes: list[int]) -> bytes:
    """Return SUBACK: for each filter the QoS that was granted, or SUBSCRIPTION_REFUSED."""
    return bytes((SUBACK << 4,)) + _encoded(2 + len(codes)) + packet_id.to_bytes(2) + bytes(codes)


def unsuback(packet_id: int) -> bytes:
    """Return UNSUBACK."""
    return bytes((UNSUBACK << 4, 2)) + packet_id.to_bytes(2)


def _encoded(length: int) -> bytes:
    """Return a remaining length, seven bits a byte."""
    if length < 128:
        return bytes((length,))
    found = bytearray()
    while length > 127:
        found.append(length & 127 | 128)
        length >>= 7
    found.append(length)
    return bytes(found)
