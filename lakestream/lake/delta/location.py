"""Where a stream's table is, also after the stream was deleted.

Belongs here: telling whether a stream's table lies in its own place or was moved aside when a new stream took the
name, and how far it reaches in either.
"""

from __future__ import annotations

from lakestream.lake.delta import verify
from lakestream.lake.delta.log import log_directory
from lakestream.lake.delta.position import PositionWatch
from lakestream.lake.delta.verify import Damage
from lakestream.lake.files import paths
from lakestream.lake.files.staging import StreamIdentity
from lakestream.lake.files.storage import Storage


def own(storage: Storage, stream: StreamIdentity) -> str:
    """Where the table of a living stream is."""
    return paths.table(storage.root, stream.name, stream.account)


def aside(storage: Storage, stream: StreamIdentity) -> str:
    """Where it is once a new stream has taken the name, if it was to be kept."""
    return paths.kept(storage.root, stream.name, stream.uid, stream.account)


def is_aside(storage: Storage, stream: StreamIdentity) -> bool:
    """Whether the table was moved, or is being made, there."""
    return bool(storage.names(log_directory(aside(storage, stream))))


def reached(storage: Storage, stream: StreamIdentity) -> int:
    """The log index through which a table holds the stream, wherever it is; 0 when none does."""
    places = (own(storage, stream), aside(storage, stream))
    return max(PositionWatch(place, stream.uid).read() or 0 for place in places)


def damaged(storage: Storage, stream: StreamIdentity) -> list[Damage]:
    """Check the files of the stream's table, wherever it is; return those that are damaged."""
    for place in (own(storage, stream), aside(storage, stream)):
        if PositionWatch(place, stream.uid).read() is not None:
            return verify.look_over(storage, place)
    return []
