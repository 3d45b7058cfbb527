"""Deleted streams whose files the lake still needs.

Belongs here: handling a stream's files after its deletion, which is one rename (log/store/root.py). The lake is
notified and compacts what it lacks (`LakeLink.deleted`); then the files are removed. If the process ends in between,
the next start continues (`resume`), so the answer to a deletion never waits for the lake.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.store import root
from lakestream.meta.shared import Shared
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.stream.core.operations import CreateStream, decode_operation, stream_name

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


def creation(stream: Stream) -> CreateStream:
    """Return a stream's creation with its present configuration; encoded, it is the note in the deleted directory."""
    return CreateStream(stream.uid, stream.account, msgspec.json.encode(stream.config), stream.created_ns)


def release(shared: Shared, create: CreateStream, directory: str) -> None:
    """Notify the lake of a deleted stream with its files in `directory` ("": none here), then remove them."""

    def cleared(_: object, error: BaseException | None) -> None:
        if error is not None:
            shared.log.error(f"{directory}: cannot remove a deleted stream: {error}; the next start tries again")

    def settled() -> None:
        if directory:
            shared.io.submit(lambda: root.clear(shared.stores.files, directory), cleared)

    shared.lake.deleted(create, directory, settled)


def resume(shared: Shared) -> None:
    """Continue the deletions that an earlier process did not complete. Block, at start.

    A directory whose note cannot be read, or is another stream's, is set aside with its contents.
    """
    for account, name, directory in shared.stores.deleted:
        try:
            create = decode_operation(root.note_in(shared.stores.files, directory))
            if not isinstance(create, CreateStream) or (create.account, stream_name(create)) != (account, name):
                raise msgspec.ValidationError("it is not of this stream")
            msgspec.json.decode(create.config)  # all of it, not only the name
        except (*DECODE_ERRORS, CorruptLog, OSError) as error:
            _set_aside(shared, name, directory, error)
        else:
            release(shared, create, directory)


def _set_aside(shared: Shared, name: str, directory: str, error: Exception) -> None:
    what = f"stream {name}: it was deleted, and its note in {directory} cannot be used ({error})"
    beside_streams = os.path.join(os.path.dirname(os.path.dirname(directory)), root.ASIDE)
    try:
        aside = root.set_aside(shared.stores.files, directory, beside_streams)
    except OSError as again:
        shared.log.error(f"{what}; the directory cannot be set aside: {again}; move it away")
        return
    shared.log.error(
        f"{what}: the directory was set aside as {aside}; remove it unless the stream's table was to be kept and lacks "
        "messages"
    )
