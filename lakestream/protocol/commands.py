"""What a client said, as records.

Belongs here: one record for each protocol verb that a client can send, after parsing and before anything is decided
about it. Subjects, headers and payloads stay `bytes` from the socket to the disk: the server routes by them and never
needs their text.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Publish(msgspec.Struct, gc=False):
    """PUB or HPUB. An absent reply or header block is `b""`; `header` is the raw block through its blank line."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


class Subscribe(msgspec.Struct, gc=False):
    """SUB. `queue` is `b""` for a plain subscription; `sid` is the client's own token."""

    subject: bytes
    queue: bytes
    sid: bytes


class Unsubscribe(msgspec.Struct, gc=False):
    """UNSUB. `maximum` counts deliveries since SUB; 0 means at once."""

    sid: bytes
    maximum: int


class Connect(msgspec.Struct):
    """CONNECT, its JSON object decoded."""

    options: dict[str, Any]


class Ping(msgspec.Struct, frozen=True):
    """PING."""


class Pong(msgspec.Struct, frozen=True):
    """PONG."""


class Violation(msgspec.Struct, frozen=True):
    """The bytes broke the protocol: answer `-ERR '<text>'` (nothing when empty) and close. Always the last command."""

    text: str
    reason: str


Command = Publish | Subscribe | Unsubscribe | Connect | Ping | Pong | Violation
