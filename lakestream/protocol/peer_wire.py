"""The wire between two nodes, as bytes and records.

Belongs here: frames (many buffers of several channels on one connection), the control records that the connections
themselves exchange, and the rules that need nothing but records: do two cluster names agree, which of two
connections between the same nodes stays. No sockets, no clock.

A frame is `u32 length | u8 channel | payload`, big-endian; the length counts channel and payload. Channel 0 carries one
control record as MessagePack, the others what their receivers made (raft/group/ports.py `Channel`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

PROTOCOL = 1
"""Version of this wire. A node refuses one that speaks another."""

CONTROL = 0
"""The channel of control records; all others are `Channel`'s."""

MAX_FRAME_BYTES = 256 << 20
"""Length of a frame (256 MiB): above what any queue holds, so that a broken length is noticed and not waited for."""

MAX_GREETING_BYTES = 256 << 10
"""Length of a frame before the handshake is over (256 KiB): a stranger gets no more memory than that."""

_HEAD = struct.Struct(">IB")
_LENGTH_BYTES = 4


class WireError(Exception):
    """What came is not this wire. The text says what was wrong."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself. Sizes are bytes.

    Attributes:
        name: the `server_name`, unique in the cluster: the id of the node everywhere.
        server_id: made anew at every start, so that it tells a restart from a second node of the same name.
        cluster: the cluster's name.
        route: `host:port` where other nodes reach it; without a host: where its connection comes from.
        client_urls: `host:port` where clients reach it; empty when clients are not to be told (no_advertise).
        jetstream: JetStream is on; `domain`, `max_memory` and `max_storage` are its settings.
        clustered: it has a meta log, which is to say that it has been a member of the cluster before.
        lame_duck: it is about to go; clients and leaders move away from it.
        accounts: it can read what belongs to another account than the default one (`Within` in route_wire.py). A
            version without this field cannot, and is sent nothing of the kind.
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


class Address(msgspec.Struct, frozen=True, array_like=True):
    """A node and where it is dialled."""

    name: str
    route: str


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first frame of either side.

    Attributes:
        attempt: a name for this connection, chosen by the dialling side and repeated by the other.
        gone: attempts that ended, as the sender saw it: the receiver lets go of one that it holds for alive.
        dynamic: the cluster's name was made up, because nobody configured one.
        linked: the nodes to which the sender is connected.
    """

    protocol: int
    node: NodeInfo
    attempt: str
    user: str = ""
    password: str = ""
    dynamic: bool = False
    gone: tuple[str, ...] = ()
    linked: tuple[Address, ...] = ()


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The dialling side has seen the other's HELLO: from here on both may send buffers.

    Without it the other side would count on the connection of a node that has long given up waiting for its answer.
    """


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The last frame to a node that is not let in. `code` is one of the constants below, `node` the refusing one."""

    code: str
    text: str
    node: str = ""


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """A heartbeat; `at` is the sender's own clock (ns), which the answer repeats."""

    at: int


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Answers Ping."""

    at: int


class Gossip(msgspec.Struct, frozen=True, array_like=True, tag="gossip"):
    """The nodes to which the sender is connected: all of them, whenever that changes and now and then."""

    linked: tuple[Address, ...]


class Update(msgspec.Struct, frozen=True, array_like=True, tag="update"):
    """What the sender says of itself has changed."""

    node: NodeInfo
    dynamic: bool = False


class Bye(msgspec.Struct, frozen=True, array_like=True, tag="bye"):
    """The sender stops: no need to wait for its silence."""

    reason: str


Control = Hello | Ready | Refused | Ping | Pong | Gossip | Update | Bye

WRONG_CLUSTER = "cluster"
WRONG_CREDENTIALS = "authorization"
WRONG_PROTOCOL = "protocol"
DUPLICATE_NAME = "name"
MYSELF = "self"
ALREADY_CONNECTED = "connected"

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def frame_head(channel: int, length: int) -> bytes:
    """What stands before a payload of `length` bytes."""
    return _HEAD.pack(length + 1, channel)


def encode_control(record: Control) -> bytes:
    """A control record as a whole frame."""
    payload = _encoder.encode(record)
    return _HEAD.pack(len(payload) + 1, CONTROL) + payload


def decode_control(payload: bytes) -> Control:
    """The record of a control frame. Raises WireError."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"a control record that is none: {error}") from error


class FrameReader:
    """Cuts a stream of bytes into frames. `limit` is the longest frame that is taken, in bytes; it may be changed from
    one frame to the next."""

    def __init__(self, limit: int = MAX_GREETING_BYTES) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._have = 0
        self._need = _LENGTH_BYTES

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are complete with `data`, as (channel, payload). To be exhausted before the next call.

        Raises:
            WireError: a length that cannot be; nothing more can be read then.
        """
        # A long frame comes in many reads: they are joined once, when it is whole.
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        buffer = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        at, end, need = 0, len(buffer), _LENGTH_BYTES
        while end - at >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            if not 0 < length <= self.limit:
                raise WireError(f"a frame of {length} bytes; from 1 to {self.limit} are allowed here")
            need = _LENGTH_BYTES + length
            if end - at < need:
                break
            yield buffer[at + _LENGTH_BYTES], buffer[at + _HEAD.size : at + need]
            at += need
            need = _LENGTH_BYTES
        rest = buffer[at:] if at else buffer
        self._parts, self._have, self._need = ([rest] if rest else []), len(rest), need


# ---------------------------------------------------------------------- rules


def agreed_cluster(mine: str, mine_dynamic: bool, other: str, other_dynamic: bool) -> str | None:
    """The name under which two nodes are one cluster, or None when they are not.

    A name that was made up yields to a configured one; of two made-up names the greater one stays, on both sides.
    """
    if mine == other:
        return mine
    if mine_dynamic and other_dynamic:
        return max(mine, other)
    if mine_dynamic:
        return other
    return mine if other_dynamic else None


def my_dial_stays(me: str, other: str) -> bool:
    """Two nodes dial each other at the same time: whether the connection that this node dialled is the one to keep."""
    return me < other
