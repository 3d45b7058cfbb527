"""One stored message as bytes.

Belongs here: the record layout and nothing around it. Little-endian:

    u32 crc     of everything after it
    u64 seq
    i64 time    ns since the epoch
    u16 subject length
    u16 flags   bit 0: a header block is present
    u32 data length
    u16 -       reserved, 0
    [u32 header length, if flagged]
    subject, header block, data

The fixed part is 30 bytes, 34 with headers, so that a record's length is exactly what nats-server 2.15 accounts for
the message (streams.md §4): `state.bytes` is a sum of record lengths.
"""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False):
    """A stored message: stream sequence, store time in ns, raw subject, raw header block (`b""` = none), payload."""

    seq: int
    time_ns: int
    subject: bytes
    header: bytes
    data: bytes
