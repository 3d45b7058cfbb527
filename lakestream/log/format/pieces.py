"""MessagePack in pieces, so that long values are written without being copied.

Belongs here: the heads of a map, of an array and of bytes. They are those for 32 bits, which every decoder takes for
any length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec


class FiledPart(Protocol):
    """A part of a value that is in a file."""

    def read(self) -> bytes:
        """Return its bytes. Any thread. Raise CorruptLog, FileNotReadable."""


class Pieces(list[bytes]):
    """An encoded value, which is the concatenation of these."""

    blocks: Sequence[bytes | FiledPart] = ()
    """Parts that a checkpoint has beside the value, so that they stay in its file when that is opened."""


def bytes_of(content: Sequence[bytes]) -> Pieces:
    """Encode the concatenation of some bytes as one value."""
    return Pieces([b"\xc6" + sum(map(len, content)).to_bytes(4, "big"), *content])


def array_of(values: Sequence[bytes]) -> Pieces:
    """Encode an array of bytes."""
    pieces = Pieces([b"\xdd" + len(values).to_bytes(4, "big")])
    for value in values:
        pieces += bytes_of([value])
    return pieces


def map_of(fields: Mapping[str, object]) -> Pieces:
    """Encode a map. Values that are `Pieces` are encoded already."""
    encode = msgspec.msgpack.encode
    pieces = Pieces([b"\xdf" + len(fields).to_bytes(4, "big")])
    for name, value in fields.items():
        pieces.append(encode(name))
        pieces += value if isinstance(value, Pieces) else (encode(value),)
        if isinstance(value, Pieces) and value.blocks:
            assert not pieces.blocks, "one value has blocks: nothing tells those of several apart"
            pieces.blocks = value.blocks
    return pieces
