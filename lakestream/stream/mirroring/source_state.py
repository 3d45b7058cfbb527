"""How far a stream has come in its sources.

Belongs here: the header `Nats-Stream-Source` and the positions that follow from it. A position is never stored for
itself: it is an effect of the message that was stored with it, on every replica and at recovery, so that a message of
an origin is stored once, whatever stops in between.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakestream.protocol import headers

HEADER = b"Nats-Stream-Source"
STRIPPED = (b"Nats-Expected-", b"Nats-Batch-")
"""What a message asked of the stream that it was published to; of no other."""

MAX_SOURCES = 10_000
"""Sources of a stream whose positions are kept; with more, those are forgotten from which nothing came for longest. A
mirror keeps what its origin's messages name."""
MAX_DIGITS = 18
"""Of a sequence; who names a higher one is no stream."""

_MARK = b"\r\n" + HEADER + b":"


class Position(msgspec.Struct, frozen=True):
    """The last message that came: its sequence in the origin, and which stream of that name the origin was. Before
    there is one (`seq` 0): `since_ns`, from when on messages are wanted; 0: as the configuration says."""

    seq: int
    identity: str = ""
    since_ns: int = 0


class Positions:
    """The positions of all sources that a stream has or had."""

    def __init__(self) -> None:
        self._known: dict[str, Position] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Position | None:
        """That of a source (`Origin.key`)."""
        return self._known.get(key)

    def note(self, value: bytes) -> None:
        """A message with this `Nats-Stream-Source` was stored."""
        # <index name> <sequence> <filters> <destinations> <subject there> [<identity>]
        parts = value.decode("utf-8", "replace").split(" ")
        if len(parts) < 5 or not parts[1].isascii() or not parts[1].isdigit() or len(parts[1]) > MAX_DIGITS:
            return
        key, identity = f"{parts[0]} {parts[2]} {parts[3]}", parts[5] if len(parts) > 5 else ""
        self._known.pop(key, None)
        self._known[key] = Position(int(parts[1]), identity)
        if len(self._known) > MAX_SOURCES:
            del self._known[next(iter(self._known))]

    def added(self, keys: Iterable[str], since_ns: int) -> None:
        """A stream whose beginning is gone, and whose last message is from `since_ns`, got sources: nothing older is
        taken from those that it never had, as by nats-server, which can not tell then whether it had them."""
        for key in keys:
            self._known.setdefault(key, Position(0, "", since_ns))

    def dump(self) -> list[tuple[str, int, str, int]]:
        """For the checkpoint."""
        return [(key, at.seq, at.identity, at.since_ns) for key, at in self._known.items()]

    def load(self, dumped: list[tuple[str, int, str, int]]) -> None:
        """Take back what `dump` gave."""
        self._known = {key: Position(seq, identity, since_ns) for key, seq, identity, since_ns in dumped}


def of_stream(header: bytes) -> bytes:
    """The header block as another stream keeps it: without what concerned the first one only."""
    if b"\r\nNats-" in header and any(b"\r\n" + name in header for name in STRIPPED):
        first, *lines = header.split(b"\r\n")
        header = b"\r\n".join([first, *(line for line in lines if not line.startswith(STRIPPED))])
        return b"" if header == headers.EMPTY else header
    return header  # as it is, also when there is nothing in it


def with_source(header: bytes, value: bytes) -> bytes:
    """The header block of a message that came from a source; what an earlier stream said of its own goes."""
    if not header:
        return b"NATS/1.0%b %b\r\n\r\n" % (_MARK, value)
    if _MARK in header:
        header = headers.remove(header, [HEADER])
    return headers.append(header, [(HEADER, value)])
