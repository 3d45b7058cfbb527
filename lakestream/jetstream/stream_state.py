"""What belongs to a stream beside its messages.

Belongs here: what its checkpoint keeps, and what is known of an operation on its way.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.jetstream.operations import CreateStream, Operation

Done = Callable[[object], None]


class StreamState(msgspec.Struct):
    """What the checkpoint keeps of a stream beside the store's own indexes."""

    create: CreateStream
    dedupe: list[tuple[int, bytes, int]]
    last_msg_id: bytes
    last_msg_id_seq: int
    ttls: list[tuple[int, int]]
    consumers: list[tuple[str, bytes]]
    removing: list[int] = []
    """Messages whose removal was decided but not on disk: acks and TTLs that led to it are no longer known."""
    created: bool = True
    """Whether the log holds the creation; a group's first entries come before it."""


class Asked(msgspec.Struct, gc=False):
    """An operation on its way, and who waits for its result."""

    operation: Operation
    done: Done | None
