"""Frames of the NATS protocol, as bytes.

Belongs here: every frame that this server writes, to clients and to the servers that it connects to
(docs/internals/protocol.md). Frames of hot paths are templates for `%`, so that a message costs no function call.
"""

from __future__ import annotations

PING, PONG, OK = b"PING\r\n", b"PONG\r\n", b"+OK\r\n"

INFO = b"INFO %b \r\n"
CONNECT = b"CONNECT %b\r\n"
"""Templates: the JSON document."""

MSG = b"MSG %b %b %d\r\n%b\r\n"
"""Template: subject, sid, size, payload."""
MSG_REPLY = b"MSG %b %b %b %d\r\n%b\r\n"
"""Template: subject, sid, reply, size, payload."""
HMSG = b"HMSG %b %b %b%d %d\r\n%b%b\r\n"
"""Template: subject, sid, reply and blank or b"", size of the header block, total size, header block, payload."""

SUB = b"SUB %b %b%b\r\n"
"""Template: subject, queue group and blank or b"", sid."""
UNSUB = b"UNSUB %b\r\n"
"""Template: sid."""
PUB = b"PUB %b %b%d\r\n%b\r\n"
"""Template: subject, reply and blank or b"", size, payload."""
HPUB = b"HPUB %b %b%d %d\r\n%b%b\r\n"
"""Template: subject, reply and blank or b"", size of the header block, total size, header block, payload."""

LEAF_SUB = b"LS+ %b %b 1\r\n"
"""Template: subject, queue group."""
LEAF_MSG = b"LMSG %b %b%d\r\n%b\r\n"
"""Template: subject, routing words and blank or b"", size, payload."""
LEAF_HMSG = b"HMSG %b %b%d %d\r\n%b%b\r\n"
"""Template: subject, routing words and blank or b"", size of the header block, total size, header block, payload."""


def error(text: str) -> bytes:
    """Return -ERR."""
    return b"-ERR '%b'\r\n" % text.encode()


def no_responders(subject: bytes) -> bytes:
    """Return the header block of the 503 for a request on `subject` that has no responders
    (docs/internals/protocol.md#no-responders)."""
    return b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
