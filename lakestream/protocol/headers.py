"""Header blocks: reading and writing them as raw bytes.

Belongs here: pure functions over one block, `NATS/1.0[ <status>[ <text>]]␍␊` then `Name: value␍␊` lines then `␍␊`.
A block that a client sent is stored and delivered verbatim, whatever it holds (protocol.md §1), so reading is tolerant
and never raises; only what the server itself adds or removes is rewritten.

Reading follows nats-server 2.15: names are case-sensitive and directly followed by the colon; blanks before a value
are skipped, those after it belong to it; of several lines with one name the first counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LINE = b"NATS/1.0\r\n"
"""First line of a block without a status."""

EMPTY = b"NATS/1.0\r\n\r\n"
"""A block with nothing in it."""


class Status(msgspec.Struct, frozen=True):
    """The status of a block's first line: `code` 0 when it has none, and the words after the code."""

    code: int
    text: bytes


_NO_STATUS = Status(0, b"")


def get(block: bytes, name: bytes) -> bytes | None:
    """The value of the first `name` line; None when there is none, b"" when its value is empty."""
    start = block.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = block.find(b"\r\n", start)
    return (block[start:end] if end >= 0 else block[start:]).lstrip(b" ")


def parse(block: bytes) -> list[tuple[bytes, bytes]]:
    """Every (name, value) of the block in order. Lines without a colon are passed over."""
    pairs = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name, value.lstrip(b" ")))
    return pairs


def status(block: bytes) -> Status:
    """The status in the block's first line; code 0 when it has none or is no such line."""
    if not block.startswith(b"NATS/1.0 "):
        return _NO_STATUS
    end = block.find(b"\r\n")
    code, _, text = (block[9:end] if end >= 0 else block[9:]).strip(b" ").partition(b" ")
    if len(code) != 3 or not code.isdigit():
        return _NO_STATUS
    return Status(int(code), text.lstrip(b" "))


def without_status(block: bytes) -> bytes:
    """The block as a stream keeps it: its first line bare, and b"" when no line is left (nats-server 2.15)."""
    if not block.startswith(b"NATS/1.0") or block.startswith(LINE):
        return block
    end = block.find(b"\r\n")
    if end < 0:
        return block
    bare = b"NATS/1.0" + block[end:]
    return b"" if bare == EMPTY else bare


def build(pairs: Iterable[tuple[bytes, bytes]], status: int = 0, text: bytes = b"") -> bytes:
    """A block with these lines, and with a status and its words when given."""
    first = LINE
    if status:
        first = b"NATS/1.0 %d %b\r\n" % (status, text) if text else b"NATS/1.0 %d\r\n" % status
    return first + b"".join([b"%b: %b\r\n" % pair for pair in pairs]) + b"\r\n"


def remove(block: bytes, names: Iterable[bytes]) -> bytes:
    """The block without any line of these names; b"" when nothing but an empty block would be left."""
    for name in names:
        key = b"\r\n" + name + b":"
        start = block.find(key)
        while start >= 0:
            end = block.find(b"\r\n", start + len(key))
            # The line end that was found belongs to the line before: it stays, and this line's own goes.
            block = block[: start + 2] + (block[end + 2 :] if end >= 0 else b"")
            start = block.find(key, start)
    return b"" if block in (EMPTY, LINE) else block


def append(block: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The block with these lines after its own; a new block when `block` is b""."""
    if not block:
        return build(pairs)
    if block.endswith(b"\r\n\r\n"):
        block = block[:-2]
    elif not block.endswith(b"\r\n"):
        block += b"\r\n"
    return block + b"".join([b"%b: %b\r\n" % pair for pair in pairs]) + b"\r\n"
