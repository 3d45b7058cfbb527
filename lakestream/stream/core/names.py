"""Names of streams.

Belongs here: the rule for stream names, in requests and in the origins of mirrors and sources.
"""

from __future__ import annotations

_INVALID = frozenset(" \t\r\n\f.*>\\/")


def valid_name(name: str) -> bool:
    """Return True for a valid stream name (non-empty, without whitespace, `.`, `*`, `>` or path separators)."""
    return bool(name) and not _INVALID.intersection(name)
