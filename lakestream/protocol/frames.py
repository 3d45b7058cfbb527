"""What the server says, as bytes.

Belongs here: one constant or function for each frame that leaves the server (docs/internals/protocol.md), and nothing
about when it leaves. Hot callers may write the same %-formats in their own loops.
"""

from __future__ import annotations

PING = b"PING\r\n"
PONG = b"PONG\r\n"
OK = b"+OK\r\n"


def info(document: bytes) -> bytes:
    """INFO with its JSON document."""
    return b"INFO %b \r\n" % document


def error(text: str) -> bytes:
    """-ERR with its text; line ends in the text, which a client could have sent, become blanks."""
    return b"-ERR '%b'\r\n" % text.encode("utf-8", "replace").replace(b"\r", b" ").replace(b"\n", b" ")


def message(subject: bytes, sid: bytes, reply: bytes, payload: bytes) -> bytes:
    """MSG; `reply` b"" when there is none."""
    if reply:
        return b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload)
    return b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(payload), payload)


def header_message(subject: bytes, sid: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """HMSG with a raw header block; `reply` b"" when there is none."""
    n = len(header)
    if reply:
        return b"HMSG %b %b %b %d %d\r\n%b%b\r\n" % (subject, sid, reply, n, n + len(payload), header, payload)
    return b"HMSG %b %b %d %d\r\n%b%b\r\n" % (subject, sid, n, n + len(payload), header, payload)


def no_responders(subject: bytes, sid: bytes, reply: bytes) -> bytes:
    """The 503 for a request on `subject` that nobody listens to, sent to the subscription `sid` on `reply` (§7)."""
    return header_message(reply, sid, b"", b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject, b"")
