"""Records of a stream beside its messages.

Belongs here: the core's fields of a checkpoint and the order of all fields in it, and what is known of an operation on
its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from lakestream.log.format.pieces import Pieces, map_of
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.operations import CreateStream, Operation

Done = Callable[[object], None]


class StreamState(msgspec.Struct):
    """The core's fields of a checkpoint. A checkpoint is one MessagePack map, in which each feature has its fields."""

    create: CreateStream
    created: bool = True
    """True if the log holds the creation; a group's first entries come before it."""


ORDER = (
    "create",
    "dedupe",
    "last_msg_id",
    "last_msg_id_seq",
    "ttls",
    "consumers",
    "removing",
    "created",
    "ids",
    "schedules",
    "intervals",
    "sources",
    "near",
    "ages",
    "steady_ns",
)
"""Order of the fields on disk, as it has always been. Fields that are not listed follow."""


def encode_checkpoint(fields: Mapping[str, object]) -> Pieces:
    """Return the checkpoint with these fields."""
    known = {name: fields[name] for name in ORDER if name in fields}
    return map_of(known | dict(fields))


class PendingOperation(msgspec.Struct, gc=False):
    """An operation on its way, and the callback of its proposer."""

    operation: Operation
    done: Done | None


class Foreign(msgspec.Struct, gc=False):
    """An entry on its way that was not decided here: part of an archive. It is applied as its bytes are."""

    done: Callable[[ApiError | None], None]
