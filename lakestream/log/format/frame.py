"""One log entry as bytes.

Belongs here: the frame layout, encoding, decoding, the search for frames in damaged bytes, and what was found there.
Little-endian:

    u32 magic
    u32 crc      of the rest of the header and the body
    u32 length   of the body
    u8  kind, u8 version, u16 flags (0)
    u64 write    the index of the first entry that shared this entry's fdatasync
    u64 index, u64 term
    u32 count    messages in the body (MESSAGES), else 0
    u32 salt     the segment's random number
    body

`write` numbers the synced writes by their first index. A frame of a later write is only written once every earlier
write is durable; so a damaged frame with index i can be the trace of a crash iff no valid frame with `write` > i
follows it. The salt prevents bytes that a client sent, or that an older file left on the disk, from passing for a
frame. Zeros are never a frame: an open segment may end with any number of them, as room for the next ones.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from lakestream.native import crc32

MAGIC = 0x4C4B4631  # "1FKL" on disk
MAGIC_BYTES = struct.pack("<I", MAGIC)
VERSION = 1
HEADER_SIZE = 48
LENGTH_AT = 8
"""Offset of the body's length in a frame."""
MAX_BODY = 1 << 30
"""Maximum bytes of a body: with the default seal size a segment stays far below the 4 GiB limit of its u32 offsets."""

_HEADER = struct.Struct("<IIIBBHQQQII")
_REST = struct.Struct("<IBBHQQQII")
_PREFIX = struct.Struct("<II")
assert _HEADER.size == HEADER_SIZE


class Kind(IntEnum):
    """Kind of a frame's body.

    MESSAGES are records back to back; OPERATION and PROGRESS are opaque to the log, MEMBERSHIP to all but Raft. SEAL is
    empty: the segment ends with it, on every replica.
    """

    MESSAGES = 1
    OPERATION = 2
    PROGRESS = 3
    NOOP = 4
    MEMBERSHIP = 5
    SEAL = 6


_KINDS = {int(kind): kind for kind in Kind}


class Frame(msgspec.Struct, gc=False):
    """One log entry. `write` is set by the log when it writes the frame, or read back from it."""

    kind: Kind
    term: int
    index: int
    count: int
    body: bytes
    write: int = 0


UNKNOWN = (0, 0)
"""Index and term of no entry."""


class Held(msgspec.Struct, frozen=True):
    """Knowledge of a damaged log as it was before: see raft/core/restore.py.

    newest: index and term of its last entry, or UNKNOWN.
    cut: of the entry before the first damage, where the log was cut.
    frames: intact entries behind the damage, by index.
    """

    newest: tuple[int, int] = UNKNOWN
    cut: tuple[int, int] = UNKNOWN
    frames: dict[int, Frame] = {}


def encode_header(frame: Frame, write: int, salt: int) -> bytes:
    """Return the 48 bytes before the body of `frame`, with the crc over both."""
    body = frame.body
    rest = _REST.pack(len(body), frame.kind, VERSION, 0, write, frame.index, frame.term, frame.count, salt)
    return _PREFIX.pack(MAGIC, crc32(body, crc32(rest))) + rest


def decode_frame(buf: bytes, offset: int, end: int, salt: int) -> Frame | str:
    """Return the frame at `offset`, or a description of the damage there. Nothing past `end` is read."""
    if end - offset < HEADER_SIZE:
        return f"{end - offset} bytes are left where a frame header of {HEADER_SIZE} belongs"
    magic, crc, length, kind, version, flags, write, index, term, count, found_salt = _HEADER.unpack_from(buf, offset)
    if magic != MAGIC:
        return "no frame starts here"
    if found_salt != salt:  # before the crc: a search through a payload full of magics must stay cheap
        return "the frame does not carry the salt of its segment"
    body_at = offset + HEADER_SIZE
    if length > end - body_at:
        return f"the frame claims a body of {length} bytes where {end - body_at} are left"
    body = buf[body_at : body_at + length]
    if crc32(body, crc32(buf[offset + 8 : body_at])) != crc:
        return "the crc of the frame does not match"
    if version != VERSION or flags or kind not in _KINDS:
        return f"the frame has kind {kind}, version {version}, flags {flags}, which this release does not know"
    return Frame(_KINDS[kind], term, index, count, body, write)


def claimed(buf: bytes, offset: int) -> tuple[Frame, int] | None:
    """Return a frame of messages as a header at `offset` describes it, without its body, and the length of that.

    Nothing is verified: `encode_header` of the whole frame has to give the same bytes.
    """
    if len(buf) - offset < HEADER_SIZE:
        return None
    _, _, length, kind, _, _, write, index, term, count, _ = _HEADER.unpack_from(buf, offset)
    return (Frame(Kind.MESSAGES, term, index, count, b"", write), length) if kind == Kind.MESSAGES else None


def salt_at(buf: bytes, offset: int) -> int:
    """Return the salt in the header of a frame that may be damaged; 0 if there is no room for one."""
    return _HEADER.unpack_from(buf, offset)[-1] if len(buf) - offset >= HEADER_SIZE else 0


def unwritten(buf: bytes, offset: int, end: int) -> bool:
    """Return True if `buf[offset:end]` has zeros only: no frame, and no part of one that a reader could use."""
    return buf.count(0, offset, end) == end - offset


def later_write(buf: bytes, offset: int, end: int, salt: int, index: int) -> int:
    """Return the offset of a valid frame in `buf[offset:end]` whose write began after entry `index`, or -1."""
    at = buf.find(MAGIC_BYTES, offset, end)
    while at >= 0:
        frame = decode_frame(buf, at, end, salt)
        if isinstance(frame, Frame) and frame.write > index:
            return at
        at = buf.find(MAGIC_BYTES, at + 1, end)
    return -1
