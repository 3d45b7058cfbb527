"""The first record of a TLS client, as far as the choice of a certificate's context needs it.

Belongs here: the length of the record, and the curves that its ClientHello offers (RFC 8446, 4.1.2 and 4.2.7). OpenSSL
judges everything else. No I/O: `listener.py` looks at the bytes.
"""

from __future__ import annotations

NOT_TLS = "tls: first record does not look like a TLS handshake"
"""Error of a client that sends plain text where TLS is required."""

RECORD_HEAD = 5
"""Bytes of a record before its content."""

GROUPS = {
    "CurveP256": 0x0017,
    "CurveP384": 0x0018,
    "CurveP521": 0x0019,
    "X25519": 0x001D,
    "SecP256r1MLKEM768": 0x11EB,
    "X25519MLKEM768": 0x11EC,
    "SecP384r1MLKEM1024": 0x11ED,
}
"""Numbers of the curves by their names in the configuration."""

_SUPPORTED_GROUPS = 0x000A
_FIXED = 4 + 2 + 32
"""Bytes of a ClientHello before its session's id: type and length, version, random bytes."""


def record_size(head: bytes) -> int:
    """Return the bytes of a record, its head included."""
    return RECORD_HEAD + int.from_bytes(head[3:RECORD_HEAD])


def offered_groups(record: bytes) -> frozenset[int]:
    """Return the curves that a client offers; none if its first record does not tell."""
    try:
        _, rest = _vector(record[RECORD_HEAD + _FIXED :], 1)  # id of the session
        _, rest = _vector(rest, 2)  # cipher suites
        _, rest = _vector(rest, 1)  # compression
        extensions, _ = _vector(rest, 2)
        while extensions:
            kind = int.from_bytes(extensions[:2])
            content, extensions = _vector(extensions[2:], 2)
            if kind == _SUPPORTED_GROUPS:
                groups, _ = _vector(content, 2)
                return frozenset(int.from_bytes(groups[at : at + 2]) for at in range(0, len(groups) - 1, 2))
    except ValueError:
        pass  # not a ClientHello: the handshake fails with OpenSSL's reason
    return frozenset()


def _vector(data: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the bytes whose number is in the first `size` bytes, and the rest. Raises ValueError."""
    end = size + int.from_bytes(data[:size])
    if len(data) < end or len(data) < size:
        raise ValueError("cut short")
    return data[size:end], data[end:]
