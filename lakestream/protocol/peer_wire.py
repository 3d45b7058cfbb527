"""The protocol between two nodes, as bytes and records.

Belongs here: frames (buffers of several channels on one connection), the control records of the connections
themselves, and rules that need only records: whether two cluster names agree, and which of two connections between
the same nodes stays. No sockets, no clock.

A frame is `u32 length | u8 channel | payload`, big-endian; the length counts channel and payload. Channel 0 carries one
control record as MessagePack, the others the buffers of their users (raft/group/ports.py `Channel`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import cast

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS, PackDecoder

PROTOCOL = 1
"""Version of this protocol. A node refuses other versions."""

CONTROL = 0
"""Channel of control records; all others are `Channel`'s."""

MAX_FRAME_BYTES = 65 << 20
"""Maximum length of a frame (65 MiB): above the 64 MiB that the queue to a node holds, so that a broken length is
noticed."""

LONG_BYTES = 1 << 20
"""Frames above this (1 MiB) are filled as they come."""

MAX_GREETING_BYTES = 256 << 10
"""Maximum length of a frame before the handshake is over (256 KiB), which limits the memory of strangers."""

_HEAD = struct.Struct(">IB")
_LENGTH_BYTES = 4


class PeerWireError(Exception):
    """Raised for bytes that are not this protocol; the text says why."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a node. Sizes are bytes.

    Attributes:
        name: the `server_name`, unique in the cluster: the id of the node everywhere.
        server_id: new at every start, to tell a restart from a second node of the same name.
        cluster: the cluster's name.
        route: `host:port` where other nodes reach it; without a host: where its connection comes from.
        client_urls: `host:port` where clients reach it; empty with no_advertise. `websocket_urls`: over WebSocket;
            `leaf_urls`: leaf nodes.
        jetstream: JetStream is on; `domain`, `max_memory` and `max_storage` are its settings.
        clustered: it has a meta log, so it has been a member of the cluster before.
        lame_duck: it is about to stop; clients and leaders move away from it.
        accounts: it understands records of other accounts than the default one (`Within` in route_wire.py). Versions
            without this field do not, and are sent none.
        runs: it understands runs of publishes (`RoutedRun` in route_wire.py). Other versions are sent each message by
            itself.
        stored: it understands stored messages in columns (`Stored` in route_wire.py). Other versions are sent each as
            in a `Batch`.
        headed: the runs that it understands may have messages with header blocks. Other versions are sent each message
            of such a run by itself.
    """

    name: str
    server_id: str
    cluster: str = ""
    version: str = ""
    host: str = ""
    route: str = ""
    client_urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    jetstream: bool = False
    domain: str = ""
    max_memory: int = 0
    max_storage: int = 0
    clustered: bool = False
    lame_duck: bool = False
    started_ns: int = 0
    accounts: bool = False
    websocket_urls: tuple[str, ...] = ()
    leaf_urls: tuple[str, ...] = ()
    runs: bool = False
    stored: bool = False
    headed: bool = False


class PeerAddress(msgspec.Struct, frozen=True, array_like=True):
    """A node and the address that it is dialled at."""

    name: str
    route: str


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first frame of either side.

    Attributes:
        attempt: the connection's name, chosen by the dialling side and repeated by the other.
        gone: attempts that ended at the sender: the receiver drops one that it still holds for alive.
        dynamic: the cluster's name was generated.
        linked: the nodes to which the sender is connected.
    """

    protocol: int
    node: NodeInfo
    attempt: str
    user: str = ""
    password: str = ""
    dynamic: bool = False
    gone: tuple[str, ...] = ()
    linked: tuple[PeerAddress, ...] = ()


class PeerReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The dialling side has seen the other's HELLO: both may send buffers from here on.

    Without it the other side would rely on the connection of a node that has stopped waiting for its answer.
    """


class PeerRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The last frame to a refused node. `code` is one of the constants below, `node` the refusing node."""

    code: str
    text: str
    node: str = ""


class PeerPing(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """A heartbeat; `at` is the sender's clock (ns), which the answer repeats."""

    at: int


class PeerPong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Answers Ping."""

    at: int


class Gossip(msgspec.Struct, frozen=True, array_like=True, tag="gossip"):
    """The nodes to which the sender is connected: all of them, at each change and periodically."""

    linked: tuple[PeerAddress, ...]


class PeerUpdate(msgspec.Struct, frozen=True, array_like=True, tag="update"):
    """A changed description of the sender."""

    node: NodeInfo
    dynamic: bool = False


class Bye(msgspec.Struct, frozen=True, array_like=True, tag="bye"):
    """The sender stops: it falls silent on purpose."""

    reason: str


Control = Hello | PeerReady | PeerRefused | PeerPing | PeerPong | Gossip | PeerUpdate | Bye

WRONG_CLUSTER = "cluster"
WRONG_CREDENTIALS = "authorization"
WRONG_PROTOCOL = "protocol"
DUPLICATE_NAME = "name"
MYSELF = "self"
ALREADY_CONNECTED = "connected"

_encoder = msgspec.msgpack.Encoder()
_decoder: PackDecoder[Control] = PackDecoder(Control)


def frame_head(channel: int, length: int) -> bytes:
    """Return the head of a frame with a payload of `length` bytes."""
    return _HEAD.pack(length + 1, channel)


def encode_control(record: Control) -> bytes:
    """Return a control record as a whole frame."""
    payload = _encoder.encode(record)
    return _HEAD.pack(len(payload) + 1, CONTROL) + payload


def decode_control(payload: bytes) -> Control:
    """Return the record of a control frame. Raises PeerWireError."""
    try:
        return _decoder.decode(payload)
    except DECODE_ERRORS as error:
        raise PeerWireError(f"a control record that is none: {error}") from error


class FrameReader:
    """Cuts a byte stream into frames. `limit`: maximum length of a frame in bytes; it may change between frames."""

    def __init__(self, limit: int = MAX_GREETING_BYTES) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._have = 0
        self._need = _LENGTH_BYTES
        self._long = memoryview(b"")
        self._filled = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the frames that `data` completes, as (channel, payload), which may be a view. Exhaust it before the
        next call.

        Raises:
            PeerWireError: an impossible length; nothing more can be read then.
        """
        # A long frame comes in many reads. Joining them at its end would hold up the event loop for tens of ms.
        if self._long:
            taken = data[: len(self._long) - self._filled]
            self._long[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            if self._filled < len(self._long):
                return
            long, self._long, data = self._long, memoryview(b""), data[len(taken) :]
            yield long[0], cast(bytes, long[1:])
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        buffer = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        at, end, need = 0, len(buffer), _LENGTH_BYTES
        while end - at >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            if not 0 < length <= self.limit:
                raise PeerWireError(f"a frame of {length} bytes; from 1 to {self.limit} are allowed here")
            need = _LENGTH_BYTES + length
            if end - at < need:
                if need > LONG_BYTES:
                    self._long, self._filled = memoryview(bytearray(length)), end - at - _LENGTH_BYTES
                    self._long[: self._filled] = buffer[at + _LENGTH_BYTES :]
                    at, need = end, _LENGTH_BYTES
                break
            yield buffer[at + _LENGTH_BYTES], buffer[at + _HEAD.size : at + need]
            at += need
            need = _LENGTH_BYTES
        rest = buffer[at:] if at else buffer
        self._parts, self._have, self._need = ([rest] if rest else []), len(rest), need


# ---------------------------------------------------------------------- rules


def agreed_cluster(mine: str, mine_dynamic: bool, other: str, other_dynamic: bool) -> str | None:
    """Return the name under which two nodes are one cluster, None when they are not.

    A generated name yields to a configured one; of two generated names the greater one stays, on both sides.
    """
    if mine == other:
        return mine
    if mine_dynamic and other_dynamic:
        return max(mine, other)
    if mine_dynamic:
        return other
    return mine if other_dynamic else None


def my_dial_stays(me: str, other: str) -> bool:
    """Return True if the connection that this node dialled stays when two nodes dial each other at the same time."""
    return me < other
