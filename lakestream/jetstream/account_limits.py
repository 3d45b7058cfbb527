"""What one account may reserve and store.

Belongs here: the limits of one account and the order in which they are checked. What the whole server may hold is in
storage_use.py and stream_rules.py.
"""

from __future__ import annotations

import msgspec


class JetStreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`jetstream` of an account; -1: none. Bytes; `max_consumers` is of one stream."""

    max_memory: int = -1
    max_file: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    disk_max_stream_bytes: int = -1
    max_bytes_required: bool = False


UNLIMITED = JetStreamLimits()
