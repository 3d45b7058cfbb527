"""The identity of a stream, by which mirrors and sources notice that it was made anew.

Belongs here: the header `Nats-Stream-Identity`, in requests for consumers and in the answers.
"""

from __future__ import annotations

import hashlib
import string

from lakestream.protocol import headers

IDENTITY_HEADER = b"Nats-Stream-Identity"
LENGTH = 8
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase


def identity(uid: str) -> str:
    """Return eight characters for a stream's uid: the same on every replica, others for another stream."""
    number = int.from_bytes(hashlib.sha256(uid.encode()).digest(), "big")
    made = []
    for _ in range(LENGTH):
        number, at = divmod(number, len(_ALPHABET))
        made.append(_ALPHABET[at])
    return "".join(made)


def asked(header: bytes) -> str | None:
    """Return the identity that a request names: "" if it is empty, None without the header."""
    value = headers.get(header, IDENTITY_HEADER) if header else None
    return None if value is None else value.decode("utf-8", "replace")


def shown(uid: str) -> bytes:
    """Return the header block of an answer that names the identity."""
    return b"NATS/1.0\r\n%b: %b\r\n\r\n" % (IDENTITY_HEADER, identity(uid).encode())
