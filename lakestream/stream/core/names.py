"""What a stream may be called.

Belongs here: the rule for names of streams, of those that are made and of those that are named as origins.
"""

from __future__ import annotations

_INVALID = frozenset(" \t\r\n\f.*>\\/")


def valid_name(name: str) -> bool:
    """Whether a stream may have this name: not empty, no blank, `.`, `*`, `>` or path separator."""
    return bool(name) and not _INVALID.intersection(name)
