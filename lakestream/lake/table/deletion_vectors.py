"""Deletion vectors: which rows of a data file are deleted.

Belongs here: loading a vector from its file or descriptor, and an array of row positions as a vector. DataFusion
applies vectors by itself; this is for files that are read directly.

Source: Delta protocol, "Deletion Vector Format": a magic number, then a 64-bit Roaring bitmap in its portable form.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakestream.lake.errors import BadDeletionVector
from lakestream.lake.table.actions import DeletionVector, from_z85, vector_file

if TYPE_CHECKING:
    import numpy as np

_MAGIC = struct.pack("<i", 1681511377)


def load(vector: DeletionVector, table: str, read: Callable[[str], bytes]) -> np.ndarray[Any, Any]:
    """Return the positions of the deleted rows, ascending.

    Args:
        table: the table's path, which the vector's own is relative to.
        read: returns a file's content.

    Raises:
        BadDeletionVector: the vector is damaged, or of an unknown kind.
    """
    path = vector_file(table, vector)
    if path is None:
        return decode(from_z85(vector.path_or_inline_dv)[: vector.size_in_bytes])
    return decode(stored(read(path), path, vector.offset or 0, vector.size_in_bytes))


def stored(content: bytes, path: str, at: int, size: int) -> bytes:
    """Return the vector of `size` bytes at an offset of a deletion vector file, after checking length and checksum.

    Args:
        content: the file's content.
        path: the file's path, for the error.

    Raises:
        BadDeletionVector: no vector of that size is there, or it is damaged.
    """
    body = content[at + 4 : at + 4 + size]
    if len(content) < at + 8 + size or struct.unpack_from(">I", content, at)[0] != size:
        raise BadDeletionVector(f"{path} at offset {at}: no deletion vector of {size} bytes is there")
    if zlib.crc32(body) != struct.unpack_from(">I", content, at + 4 + size)[0]:
        raise BadDeletionVector(f"{path} at offset {at}: the checksum is wrong; restore the file from a copy")
    return body


def end_of(vector: DeletionVector) -> int:
    """Return the offset in its file behind a deletion vector, with its length and checksum."""
    return (vector.offset or 0) + 8 + vector.size_in_bytes


def decode(body: bytes) -> np.ndarray[Any, Any]:
    """Return the values of a serialised vector, ascending. Raises BadDeletionVector."""
    import numpy as np
    from pyroaring import BitMap64

    if body[:4] != _MAGIC:
        raise BadDeletionVector(f"a deletion vector begins with {body[:4].hex()}, not with {_MAGIC.hex()}")
    try:
        values = BitMap64.deserialize(body[4:]).to_array()
    except ValueError as error:
        raise BadDeletionVector(f"a deletion vector does not decode: {error}") from None
    return np.frombuffer(values, np.int64) if values else np.empty(0, np.int64)


def encode(positions: np.ndarray[Any, Any]) -> bytes:
    """Return ascending positions as a serialised vector."""
    from pyroaring import BitMap64

    return _MAGIC + BitMap64(positions.tolist()).serialize()
