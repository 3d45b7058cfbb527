"""Prefixes by which payloads name their schema, and the `data_format` of rows that had one.

Belongs here: Confluent's wire format, Avro's single-object encoding, and their part of `data_format`.

    Confluent    0x00, the schema's id (4 bytes, big-endian); Protobuf: then the path of the message
    Avro         0xC3 0x01, CRC-64-AVRO of the schema's canonical form (8 bytes, little-endian)
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from lakestream.schemas.errors import Unfit

if TYPE_CHECKING:
    import pyarrow as pa

CONFLUENT, SINGLE_OBJECT = b"\x00", b"\xc3\x01"
MAX_PATH = 20
"""Maximum length of the path of a message in a descriptor set."""
_ID = struct.Struct(">xI")
_MARK = "#"


class Prefix(msgspec.Struct, frozen=True):
    """A prefix. `raw`: its bytes; `id`: Confluent's; `path`: of Confluent's Protobuf; `fingerprint`: Avro's."""

    raw: bytes
    id: int = 0
    path: tuple[int, ...] = ()
    fingerprint: bytes = b""


def confluent(payload: bytes, is_protobuf: bool = False) -> Prefix:
    """Return the prefix of Confluent's wire format.

    Args:
        payload: the message.
        is_protobuf: a path of the message follows. `split_path` takes it off later, if the id has to be looked up.

    Raises:
        Unfit: the payload has none.
    """
    if len(payload) < _ID.size or payload[:1] != CONFLUENT:
        raise Unfit("", "prefix", "it does not begin with Confluent's magic byte 0 and an id")
    (number,) = _ID.unpack_from(payload)
    found = Prefix(payload[: _ID.size], number)
    return split_path(found, payload) if is_protobuf else found


def split_path(prefix: Prefix, payload: bytes) -> Prefix:
    """Return Confluent's prefix with the path of the message that follows it in Protobuf; a single 0 stands for [0].

    Raises:
        Unfit: the path is no list of numbers.
    """
    at = len(prefix.raw)
    try:
        count, at = _varint(payload, at)
        path = [0] if count == 0 else []
        if not 0 <= count <= MAX_PATH:
            raise Unfit("", "prefix", f"a path of {count} numbers to the message")
        for _ in range(count):
            number, at = _varint(payload, at)
            path.append(number)
    except IndexError:
        raise Unfit("", "prefix", "the path to the message ends early") from None
    return Prefix(payload[:at], prefix.id, tuple(path))


def single_object(payload: bytes) -> Prefix:
    """Return the prefix of Avro's single-object encoding.

    Raises:
        Unfit: the payload has none.
    """
    if len(payload) < 10 or payload[:2] != SINGLE_OBJECT:
        raise Unfit("", "prefix", "it does not begin with 0xC3 0x01 and a fingerprint")
    return Prefix(payload[:10], fingerprint=payload[2:10])


def prefixed(formats: pa.DictionaryArray, prefix: bytes) -> pa.DictionaryArray:
    """Return the `data_format` of rows whose payloads had this prefix in front."""
    import pyarrow as pa

    if not prefix:
        return formats
    mark = f"{_MARK}{prefix.hex()}{_MARK}"
    texts = pa.array([mark + text for text in formats.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(formats.indices, texts)


def split_format(text: str) -> tuple[bytes, str]:
    """Return (prefix of the payload, format of the codec) of a `data_format`.

    Raises:
        ValueError: the prefix is not hexadecimal.
    """
    if not text.startswith(_MARK):
        return b"", text
    prefix, mark, rest = text[1:].partition(_MARK)
    if not mark:
        raise ValueError(f"{text[:80]!r} is not a data_format")
    return bytes.fromhex(prefix), rest


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """Return (number, position after it) of a zigzag varint of up to 32 bits."""
    value = shift = 0
    while True:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 28:
            raise Unfit("", "prefix", "a number of the path has more than 32 bits")
