"""Deleted streams whose files the lake still needs.

Belongs here: what becomes of a stream's files once its deletion is decided, which is one rename (log/store/root.py).
The lake is told, and gets what it is owed (`LakeLink.deleted`); then the files go. Whatever ends the process in
between, the next start goes on (`resume`): so a deletion is answered when it is decided, and never waits for the lake.
"""

from __future__ import annotations

import os

import msgspec

from lakestream.log.store import root
from lakestream.meta.shared import Shared
from lakestream.stream.assembly import Stream
from lakestream.stream.core.operations import CreateStream, decode_operation, stream_name


def creation(stream: Stream) -> CreateStream:
    """Return the creation of a stream, with its present configuration. Encoded it is the note beside its files."""
    return CreateStream(stream.uid, stream.account, msgspec.json.encode(stream.config), stream.created_ns)


def release(shared: Shared, create: CreateStream, directory: str) -> None:
    """Tell the lake of a deleted stream whose files are in `directory` ("": it has none here), then remove them."""

    def cleared(_: object, error: BaseException | None) -> None:
        if error is not None:
            shared.log.error(f"{directory}: what is left of a deleted stream goes with the next start: {error}")

    def settled() -> None:
        if directory:
            shared.io.submit(lambda: root.clear(shared.stores.files, directory), cleared)

    shared.lake.deleted(create, directory, settled)


def resume(shared: Shared) -> None:
    """Continue the deletions that an earlier process did not complete. Block, at start.

    One whose note cannot be read, or is another stream's, belongs to nobody who could be told: it is set aside with
    all it holds.
    """
    for account, name, directory in shared.stores.deleted:
        try:
            create = decode_operation(root.note_in(shared.stores.files, directory))
            if not isinstance(create, CreateStream) or (create.account, stream_name(create)) != (account, name):
                raise msgspec.ValidationError("it is not of this stream")
        except (msgspec.MsgspecError, OSError) as error:
            _set_aside(shared, name, directory, error)
        else:
            release(shared, create, directory)


def _set_aside(shared: Shared, name: str, directory: str, error: Exception) -> None:
    what = f"stream {name}: it was deleted, and the note of that in {directory} cannot be used ({error})"
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
