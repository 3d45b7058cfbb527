"""How accounts are spelled as directories of a store.

Belongs here: the spelling and its inverse. Account names are free text in nats-server (`A/B` and `..` are names);
stream names can stand as they are. The lake spells names of its own accord (lake/files/paths.py).
"""

from __future__ import annotations

import re

RESERVED = frozenset({"VERSION", "LOCK", "_meta_"})
"""What else lies beside the accounts."""

_UNSAFE = re.compile(r"[\x00-#%-,./:-@\[-^`{-\x7f]")
_SPELLED = re.compile(r"~([0-9A-F]{2})")


def account_directory(account: str) -> str:
    """Letters, digits, `_`, `-`, `$` and everything beyond ASCII stand as they are; any other character becomes `~` and
    two hex digits. So does the last one of a reserved name."""
    spelled = _UNSAFE.sub(lambda found: f"~{ord(found.group()):02X}", account)
    return spelled if spelled not in RESERVED else f"{spelled[:-1]}~{ord(spelled[-1]):02X}"


def account_of(directory: str) -> str:
    """The account whose directory has this name: the inverse of `account_directory`."""
    return _SPELLED.sub(lambda found: chr(int(found.group(1), 16)), directory)
