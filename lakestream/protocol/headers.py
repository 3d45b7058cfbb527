"""Header blocks as raw bytes.

Belongs here: pure functions over one block, `NATS/1.0[ <status>[ <text>]]␍␊` then `Name: value␍␊` lines then `␍␊`.
A block that a client sent is stored and delivered verbatim (docs/internals/protocol.md), so reading is tolerant and
never raises; only what the server itself adds or removes is rewritten.

Reading follows nats-server 2.15: names are case-sensitive and directly followed by the colon; blanks before a value
are skipped, those after it belong to it; of several lines with one name the first counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LINE = b"NATS/1.0\r\n"
"""First line of a block without a status."""

EMPTY = b"NATS/1.0\r\n\r\n"
"""A block without headers."""

REQUEST_INFO = b"Nats-Request-Info"
"""Header with the requester's identity for services of other accounts. A stream never stores it."""

_OWN = b"\r\nNats-"


class Status(msgspec.Struct, frozen=True):
    """The status of a block's first line: `code` 0 when it has none, and the text after the code."""

    code: int
    text: bytes


_NO_STATUS = Status(0, b"")


def get(block: bytes, name: bytes) -> bytes | None:
    """Return the value of the first `name` line; None when there is none, b"" when its value is empty."""
    start = block.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = block.find(b"\r\n", start)
    return (block[start:end] if end >= 0 else block[start:]).lstrip(b" ")


def plain(text: str) -> str:
    """Return a text for a value: printable ASCII, other characters as escapes."""
    return "".join(each if " " <= each <= "~" else each.encode("unicode_escape").decode() for each in text)


def given(block: bytes) -> dict[bytes, bytes]:
    """Return the value of every `Nats-…` name, as `get` finds it, in one pass; empty ones are left out."""
    found: dict[bytes, bytes] = {}
    empty: list[bytes] = []
    start = block.find(_OWN)
    while start >= 0:
        end = block.find(b"\r\n", start + 2)
        name, colon, value = (block[start + 2 : end] if end >= 0 else block[start + 2 :]).partition(b":")
        if colon and name not in found:
            value = found[name] = value.lstrip(b" ")
            if not value:
                empty.append(name)
        start = block.find(_OWN, end) if end >= 0 else -1
    for name in empty:
        del found[name]
    return found


def parse(block: bytes) -> list[tuple[bytes, bytes]]:
    """Return every (name, value) of the block in order. Lines without a colon are skipped."""
    pairs = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name, value.lstrip(b" ")))
    return pairs


def status(block: bytes) -> Status:
    """Return the status of the block's first line; code 0 when it has none."""
    if not block.startswith(b"NATS/1.0 "):
        return _NO_STATUS
    end = block.find(b"\r\n")
    code, _, text = (block[9:end] if end >= 0 else block[9:]).strip(b" ").partition(b" ")
    if len(code) != 3 or not code.isdigit():
        return _NO_STATUS
    return Status(int(code), text.lstrip(b" "))


def without_status(block: bytes) -> bytes:
    """Return the block as a stream stores it: its first line bare, and b"" when no line is left (nats-server 2.15)."""
    if not block.startswith(b"NATS/1.0") or block.startswith(LINE):
        return block
    end = block.find(b"\r\n")
    if end < 0:
        return block
    bare = b"NATS/1.0" + block[end:]
    return b"" if bare == EMPTY else bare


def build(pairs: Iterable[tuple[bytes, bytes]], status: int = 0, text: bytes = b"") -> bytes:
    """Return a block with these lines, and optionally a status and its text."""
    first = LINE
    if status:
        first = b"NATS/1.0 %d %b\r\n" % (status, text) if text else b"NATS/1.0 %d\r\n" % status
    return first + b"".join([b"%b: %b\r\n" % pair for pair in pairs]) + b"\r\n"


def remove(block: bytes, names: Iterable[bytes]) -> bytes:
    """Return the block without lines of these names; b"" when nothing but an empty block is left."""
    keys = tuple([name + b":" for name in names])
    if any(b"\r\n" + key in block for key in keys):
        first, *lines = block.split(b"\r\n")
        kept = [line for line in lines if not line.startswith(keys)]
        if lines[-1].startswith(keys):
            kept.append(b"")  # for the line end of the last line
        block = b"\r\n".join([first, *kept])
    return b"" if block in (EMPTY, LINE) else block


def replaced(block: bytes, name: bytes, value: bytes) -> bytes:
    """Return the block with another value in its first `name` line, or with a new line at the end."""
    start = block.find(b"\r\n" + name + b":")
    if start < 0:
        return append(block, [(name, value)])
    start += len(name) + 3
    end = block.find(b"\r\n", start)
    return block[:start] + b" " + value + (block[end:] if end >= 0 else b"")


def append(block: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the block with these lines behind its own; a new block when `block` is b""."""
    if not block:
        return build(pairs)
    if block.endswith(b"\r\n\r\n"):
        block = block[:-2]
    elif not block.endswith(b"\r\n"):
        block += b"\r\n"
    return block + b"".join([b"%b: %b\r\n" % pair for pair in pairs]) + b"\r\n"
