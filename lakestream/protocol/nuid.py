"""Identifiers as NATS makes them.

Belongs here: NUIDs, by which events, pins and the subjects of transfers are told apart.
"""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
LENGTH = 22


def nuid() -> str:
    """A fresh identifier."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(LENGTH))
