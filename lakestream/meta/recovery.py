"""Opening the log of a group of one that was found on disk.

Belongs here: identifying the stream of a log, and recovering the stream from it. In a cluster such a log was created
before the server joined (adoption.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.store import Store
from lakestream.meta.site import Site
from lakestream.protocol.decoding import PackDecoder
from lakestream.stream.core.operations import CreateStream, decode_operation, stream_name
from lakestream.stream.core.state import StreamState

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

_STREAM_STATE = PackDecoder(StreamState)


class RecoveredLog(msgspec.Struct):
    """A log that was opened. `stream` is None without an `error` if there never was a stream; `create` is the stream's
    creation, if known."""

    account: str
    name: str
    stream: Stream | None = None
    create: CreateStream | None = None
    error: BaseException | None = None


def recover(site: Site, account: str, name: str) -> RecoveredLog:
    """Open a log and apply it. Block. Any error is in the result."""
    found = RecoveredLog(account, name)
    try:
        store = site.shared.stores.open(account, name)
        for note in store.notes:
            site.log.warn(f"stream {name}: {note}")
        try:
            found.stream = _replayed(site, store, found)
        except BaseException:
            store.abandon()
            raise
    except Exception as error:  # a damaged log, a full disk, no permission, or a bug: the other streams still serve
        found.error = error
    return found


def _replayed(site: Site, store: Store, found: RecoveredLog) -> Stream | None:
    frames = store.replay()
    state = _STREAM_STATE.decode(store.extra) if store.extra else None
    if state is not None:
        found.create = _owned(found, state.create)
        stream = site.stream(state.create, store)
        stream.load(store.extra)
    else:
        first = next(frames, None)
        if first is None:
            # Killed between creating the directory and its first entry: the creation was not acknowledged.
            store.check_unused()
            site.log.warn(f"stream {found.name}: removing an unfinished creation: {store.directory}")
            site.shared.stores.files.remove_tree(store.destroy())
            return None
        before = [first]
        while before[-1][0].kind in (Kind.NOOP, Kind.MEMBERSHIP):  # a replica's log, see docs/replication.md
            following = next(frames, None)
            if following is None:
                break
            before.append(following)
        found.create = _owned(found, _creation(before[-1][0]))
        stream = site.stream(found.create, store)
        for frame, at in before:
            stream.apply_frame(frame, at)
    for frame, at in frames:
        stream.apply_frame(frame, at)
    if stream.applier.restoring:
        # The restore was not acknowledged; its client repeats it.
        site.log.warn(f"stream {found.name}: removing an unfinished restore")
        site.shared.stores.files.remove_tree(store.destroy())
        return None
    stream.hidden = False
    stream.applier.created = True
    return stream


def _owned(found: RecoveredLog, create: CreateStream) -> CreateStream:
    """Return the creation. Raise LogError unless the directory is that stream's."""
    theirs = stream_name(create)
    if (theirs, create.account) != (found.name, found.account):
        raise LogError(
            f'its directory holds the log of stream {theirs} of account "{create.account}": a copied or renamed '
            "directory is never served; move it back, or away"
        )
    return create


def _creation(frame: Frame) -> CreateStream:
    operation = decode_operation(frame.body) if frame.kind == Kind.OPERATION else None
    if not isinstance(operation, CreateStream):
        raise LogError(f"the log does not begin with the creation of its stream but with a {frame.kind.name} entry")
    return operation
