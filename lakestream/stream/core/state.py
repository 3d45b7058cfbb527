"""What belongs to a stream beside its messages.

Belongs here: what its checkpoint keeps, and what is known of an operation on its way.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.operations import CreateStream, Operation

Done = Callable[[object], None]


class StreamState(msgspec.Struct):
    """What the checkpoint keeps of a stream beside the store's own indexes."""

    create: CreateStream
    dedupe: list[tuple[int, bytes, int]]
    """Where releases before `ids` kept them."""
    last_msg_id: bytes
    last_msg_id_seq: int
    ttls: list[tuple[int, int]]
    consumers: list[tuple[str, bytes]]
    removing: list[int] = []
    """Messages whose removal was decided but not on disk: acks and TTLs that led to it are no longer known."""
    created: bool = True
    """Whether the log holds the creation; a group's first entries come before it."""
    ids: list[bytes] = []
    """The duplicate window; see `Dedupe.dump`."""
    schedules: list[tuple[bytes, int, int]] = []
    """Message schedules: (subject, sequence, when it fires next)."""
    intervals: list[tuple[bytes, int]] = []
    """(subject, interval) of those that fire at intervals."""
    sources: list[tuple[str, int, str, int]] = []
    """How far it has come in its sources; see `source_state.Positions.dump`."""
    near: bool = False
    """See `Copying.near`."""
    ages: list[tuple[int, int, int]] = []
    """See `Ages.dump`; the times of `ttls` and `ids` are the steady clock's, too."""
    steady_ns: int = 0
    """Reading of the steady clock in ns; 0 in a checkpoint of an earlier release, which has wall-clock times."""


class Asked(msgspec.Struct, gc=False):
    """An operation on its way, and who waits for its result."""

    operation: Operation
    done: Done | None


class Foreign(msgspec.Struct, gc=False):
    """An entry on its way that was not decided here: part of an archive. It is applied as its bytes are."""

    done: Callable[[ApiError | None], None]
