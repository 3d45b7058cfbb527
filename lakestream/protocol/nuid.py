"""NUIDs: unique ids of events, pins and transfer subjects."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
LENGTH = 22


def nuid() -> str:
    """Return a new NUID."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(LENGTH))
