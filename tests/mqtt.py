"""A client of MQTT 3.1.1 for tests: packets as bytes, and what the server sends as lines.

Belongs here: packets of clients, whatever they say, and reading those of a server one by one. Unlike the libraries it
answers nothing by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Self

from lakestream_mqtt.packets import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from tests.wire import Secure, Socket, WireTimeout, dial

ANSWERS = {PUBACK: "PUBACK", PUBREC: "PUBREC", PUBREL: "PUBREL", PUBCOMP: "PUBCOMP", UNSUBACK: "UNSUBACK"}
PING, BYE = bytes((PINGREQ << 4, 0)), bytes((DISCONNECT << 4, 0))


def text(data: str | bytes) -> bytes:
    """Return a string with its length."""
    encoded = data.encode() if isinstance(data, str) else data
    return len(encoded).to_bytes(2) + encoded


def packet(kind: int, body: bytes, flags: int = 0) -> bytes:
    """Return a packet."""
    length, left = bytearray(), len(body)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    return bytes((kind << 4 | flags, *length, left)) + body


def connect(
    client: str | bytes = "",
    *,
    clean: bool = True,
    keep_alive: int = 0,
    will: tuple[str | bytes, bytes, int, bool] | None = None,
    user: str | bytes | None = None,
    password: str | bytes | None = None,
    level: int = 4,
    name: str = "MQTT",
    flags: int = 0,
) -> bytes:
    """Return CONNECT. `will`: topic, payload, QoS, retain. `flags`: set besides those that follow from the rest."""
    flags |= clean << 1
    body = text(client)
    if will is not None:
        topic, payload, qos, retain = will
        flags |= 4 | qos << 3 | retain << 5
        body += text(topic) + text(payload)
    for given, flag in ((user, 128), (password, 64)):
        if given is not None:
            flags |= flag
            body += text(given)
    return packet(CONNECT, text(name) + bytes((level, flags)) + keep_alive.to_bytes(2) + body)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    identifier: int = 0,
    *,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """Return PUBLISH."""
    return packet(
        PUBLISH, text(topic) + (identifier.to_bytes(2) if qos else b"") + payload, dup << 3 | qos << 1 | retain
    )


def subscribe(identifier: int, *filters: tuple[str | bytes, int]) -> bytes:
    """Return SUBSCRIBE."""
    return packet(SUBSCRIBE, identifier.to_bytes(2) + b"".join(text(name) + bytes((qos,)) for name, qos in filters), 2)


def unsubscribe(identifier: int, *filters: str | bytes) -> bytes:
    """Return UNSUBSCRIBE."""
    return packet(UNSUBSCRIBE, identifier.to_bytes(2) + b"".join(map(text, filters)), 2)


def answer(kind: int, identifier: int) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return packet(kind, identifier.to_bytes(2), 2 if kind == PUBREL else 0)


class Device:
    """One connection.

    Args:
        address: of the server.
        sent: what is sent at once, usually CONNECT; then CONNACK is read into `connack`.
        opened: the socket, such as a WebSocket; None: a new one.
    """

    def __init__(
        self,
        address: tuple[str, int],
        sent: bytes = b"",
        *,
        secure: Secure | None = None,
        opened: Socket | None = None,
        timeout: float = 10.0,
    ) -> None:
        plain = opened or dial(address, timeout)
        self._socket: Socket = secure.wrap(plain) if secure is not None else plain
        self._socket.settimeout(timeout)
        self._held = b""
        self.connack = ""
        if sent:
            self.send(sent)
            self.connack = self.next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket without DISCONNECT."""
        self._socket.close()

    def leave(self) -> None:
        """Send DISCONNECT and wait for the end."""
        self.send(BYE)
        self.rest()
        self.close()

    def send(self, *packets: bytes) -> None:
        """Send packets."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(b"".join(packets))

    def next(self) -> str:
        """Return the next packet as a line; `closed` at the end of the connection."""
        while (found := self._taken()) is None:
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                data = b""
            except TimeoutError:
                raise WireTimeout(f"no packet; held: {self._held!r}") from None
            if not data:
                return "closed"
            self._held += data
        return found

    def many(self, number: int) -> list[str]:
        """Return that many packets."""
        return [self.next() for _ in range(number)]

    def until(self, wanted: str) -> list[str]:
        """Return packets to before the one that begins so."""
        found: list[str] = []
        while not (line := self.next()).startswith(wanted):
            found.append(line)
            assert line != "closed", found
        return found

    def ping(self) -> list[str]:
        """Return the packets before the answer to PINGREQ."""
        self.send(PING)
        return self.until("PINGRESP")

    def rest(self) -> list[str]:
        """Return packets until the server closes the connection."""
        found: list[str] = []
        while (line := self.next()) != "closed":
            found.append(line)
        return found

    def told(self, packet_: bytes, wanted: str) -> str:
        """Send a packet; return the next one that begins so."""
        self.send(packet_)
        while not (line := self.next()).startswith(wanted):
            assert line != "closed", wanted
        return line

    def subscribe(self, *filters: tuple[str | bytes, int]) -> str:
        """Subscribe; return SUBACK."""
        return self.told(subscribe(1, *filters), "SUBACK")

    def _taken(self) -> str | None:
        held, at, length, shift = self._held, 1, 0, 0
        while True:
            if at >= len(held):
                return None
            length |= (held[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if not held[at - 1] & 128:
                break
        if len(held) < at + length:
            return None
        first, body, self._held = held[0], held[at : at + length], held[at + length :]
        return _line(first, body)


def _line(first: int, body: bytes) -> str:
    kind, flags = first >> 4, first & 15
    if kind == CONNACK:
        return f"CONNACK present={body[0]} code={body[1]}"
    if kind == SUBACK:
        return f"SUBACK {int.from_bytes(body[:2])} {list(body[2:])}"
    if kind == PINGRESP:
        return "PINGRESP"
    if kind != PUBLISH:
        return f"{ANSWERS[kind]} {int.from_bytes(body)}"
    end = 2 + int.from_bytes(body[:2])
    qos = flags >> 1 & 3
    identifier = f" id={int.from_bytes(body[end : end + 2])}" if qos else ""
    shown = [body[2:end].decode(), repr(body[end + (2 if qos else 0) :]), f"qos={qos}{identifier}"]
    return " ".join(["PUBLISH", *shown, *(["retain"] if flags & 1 else []), *(["dup"] if flags & 8 else [])])


def lines(devices: Sequence[Device]) -> list[list[str]]:
    """Return what each device gets before the answer to its PINGREQ."""
    return [device.ping() for device in devices]
