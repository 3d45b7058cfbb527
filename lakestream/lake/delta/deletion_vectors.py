"""Deletion vectors: which rows of a data file are deleted.

Belongs here: finding and decoding them as the Delta protocol writes them ("Deletion Vectors"), a 64-bit Roaring bitmap
in its portable form, to an array of row positions. DataFusion knows them too; this is for files that are read directly.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakestream.lake.delta.log import locate
from lakestream.lake.errors import LakeError

if TYPE_CHECKING:
    import numpy as np

    from lakestream.lake.read.history.index import DeletionVector

_MAGIC = 1681511377
_ARRAYS = 12346  # cookie of a bitmap without run containers
_RUNS = 12347
_OFFSETS_FROM = 4  # a bitmap with runs has offsets from so many containers on
_ARRAY_MOST = 4096  # values of an array container; more make it a bit map

# Z85 (ZeroMQ) has the digits of base64.b85decode in another order.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_FROM_Z85 = bytes.maketrans(_Z85, _B85)
_TO_Z85 = bytes.maketrans(_B85, _Z85)


class BadDeletionVector(LakeError):
    """A deletion vector that does not decode; nothing of its file is read."""


def load(vector: DeletionVector, table: str, read: Callable[[str], bytes]) -> np.ndarray[Any, Any]:
    """Positions of the deleted rows, ascending.

    Args:
        table: the table's path, which the vector's own is relative to.
        read: gives a file's content.

    Raises:
        BadDeletionVector: it is damaged, or of an unknown kind.
    """
    if vector.storage_type == "i":
        return decode(_z85(vector.path_or_inline_dv)[: vector.size_in_bytes])
    path = vector.path_or_inline_dv
    if vector.storage_type == "u":
        prefix, name = path[:-20], uuid.UUID(bytes=_z85(path[-20:]))
        path = f"{table}/{prefix}/deletion_vector_{name}.bin" if prefix else f"{table}/deletion_vector_{name}.bin"
    elif vector.storage_type != "p":
        raise BadDeletionVector(f"{table}: a deletion vector of unknown kind {vector.storage_type!r}")
    else:
        path = locate(table, path)
    return decode(stored(read(path), path, vector.offset or 0, vector.size_in_bytes))


def stored(content: bytes, path: str, at: int, size: int) -> bytes:
    """The bitmap of `size` bytes that lies at an offset of a deletion vector file, with its length before it and its
    checksum behind it.

    Args:
        content: the file's content.
        path: the file's path, for the error.

    Raises:
        BadDeletionVector: it is not there, or damaged.
    """
    body = content[at + 4 : at + 4 + size]
    if len(content) < at + 8 + size or struct.unpack_from(">I", content, at)[0] != size:
        raise BadDeletionVector(f"{path} at offset {at}: no deletion vector of {size} bytes is there")
    if zlib.crc32(body) != struct.unpack_from(">I", content, at + 4 + size)[0]:
        raise BadDeletionVector(f"{path} at offset {at}: the checksum is wrong; restore the file from a copy")
    return body


def decode(body: bytes) -> np.ndarray[Any, Any]:
    """The values of a serialised 64-bit bitmap, ascending. Raises BadDeletionVector."""
    import numpy as np

    try:
        magic, count = struct.unpack_from("<iq", body)
        if magic != _MAGIC:
            raise BadDeletionVector(f"a deletion vector begins with {magic}")
        at = 12
        found = []
        for _ in range(count):
            (key,) = struct.unpack_from("<I", body, at)
            values, at = _bitmap(body, at + 4)
            found.append(values + (key << 32))
    except (struct.error, ValueError) as error:
        raise BadDeletionVector(f"a deletion vector ends too soon: {error}") from None
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _bitmap(body: bytes, at: int) -> tuple[np.ndarray[Any, Any], int]:
    """A 32-bit Roaring bitmap, and where it ends."""
    import numpy as np

    (cookie,) = struct.unpack_from("<I", body, at)
    at += 4
    flags = b""
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        flags = body[at : at + (count + 7) // 8]
        at += len(flags)
    elif cookie == _ARRAYS:
        (count,) = struct.unpack_from("<I", body, at)
        at += 4
    else:
        raise BadDeletionVector(f"a deletion vector has a bitmap of unknown kind {cookie}")
    keys = np.frombuffer(body, "<u2", 2 * count, at).astype(np.int64)
    at += 4 * count
    if not flags or count >= _OFFSETS_FROM:
        at += 4 * count
    found = []
    for number in range(count):
        cardinality = int(keys[2 * number + 1]) + 1
        if flags and flags[number // 8] >> (number % 8) & 1:
            (runs,) = struct.unpack_from("<H", body, at)
            pairs = np.frombuffer(body, "<u2", 2 * runs, at + 2).astype(np.int64)
            values = np.concatenate([np.arange(s, s + n + 1) for s, n in pairs.reshape(-1, 2).tolist()])
            at += 2 + 4 * runs
        elif cardinality > _ARRAY_MOST:
            values = np.flatnonzero(np.unpackbits(np.frombuffer(body, "u1", 8192, at), bitorder="little"))
            at += 8192
        else:
            values = np.frombuffer(body, "<u2", cardinality, at).astype(np.int64)
            at += 2 * cardinality
        found.append(values + (int(keys[2 * number]) << 16))
    return (np.concatenate(found) if found else np.empty(0, np.int64)), at


def _z85(text: str) -> bytes:
    try:
        return base64.b85decode(text.encode().translate(_FROM_Z85))
    except ValueError as error:
        raise BadDeletionVector(f"a deletion vector is not spelled in Z85: {error}") from None


def to_z85(raw: bytes) -> str:
    """Bytes (a multiple of four) in Z85, as names of deletion vectors are spelled."""
    return base64.b85encode(raw).translate(_TO_Z85).decode()
