"""Streams recovered from their files outside a server.

Belongs here: the stand-ins for time, threads and clients that a stream needs to apply its log, and the comparison of
two recoveries of one stream. A stream that is recovered like this never leads: it delivers and expires nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files, InlineIo
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.runs import joined
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.log import Appended
from lakestream.log.store.segment_store import SegmentStore, open_store
from lakestream.log.store.store import Store
from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.turn import Turn
from lakestream.ports import Timer
from lakestream.stream.assembly import Stream
from lakestream.stream.core.operations import CreateStream, decode_operation
from lakestream.stream.core.state import StreamState
from lakestream_verify.log.findings import Step

LOCAL_FIELDS = frozenset({"ages", "removing", "steady_ns"})
"""Fields of a checkpoint that depend on the clock of the node that wrote it, or on what was in flight there."""

_STREAM_STATE = msgspec.msgpack.Decoder(StreamState)


class _NoTimer:
    def cancel(self) -> None:
        """Do nothing."""


class StillClock:
    """`Clock` that calls nothing: a stream that only applies its log needs no timer."""

    def __init__(self) -> None:
        self._now = time.time_ns()

    def now(self) -> int:
        return self._now

    steady = now

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        return _NoTimer()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Do nothing."""

    call_with_output = call_soon

    def spawn(self, awaitable: Awaitable[Any]) -> None:
        """Do nothing."""


class NoStream(LogError):
    """Raised when a log does not begin with the creation of a stream."""


class RecoveredStream:
    """A stream as a start would recover it. `stream` is None if its log has no entry."""

    def __init__(self, stream: Stream | None, store: Store, cache: ReadCache) -> None:
        self.stream, self._store, self._cache = stream, store, cache

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._store.abandon()
        self._cache.sweep()


def recover(
    files: Files,
    directory: str,
    durable_through: int | None,
    commit_through: int | None,
    step: Step = lambda count: None,
) -> RecoveredStream:
    """Return the stream of a directory as a start would recover it; close it after use. Block.

    Args:
        files: an overlay, unless the files may be changed.
        durable_through: see `open_store`.
        commit_through: the last entry that is known to be committed; None: all are.
        step: called between entries, with 0.

    Raises:
        LogError, OSError: the files cannot be used.
    """
    io, clock = InlineIo(), StillClock()
    cache = ReadCache(files)
    store = open_store(directory, io, files=files, durable_through=durable_through, cache=cache)
    made = RecoveredStream(None, store, cache)
    try:
        made.stream = _replayed(store, io, clock, commit_through, step)
    except BaseException:
        made.close()
        raise
    return made


def _replayed(store: Store, io: InlineIo, clock: StillClock, commit_through: int | None, step: Step) -> Stream | None:
    frames = store.replay(through=commit_through)
    early: list[tuple[Frame, Appended]] = []
    if store.extra:
        create = _STREAM_STATE.decode(store.extra).create
    else:
        found = _creation(frames, early)
        if found is None:
            return None
        create = found
    stream = Stream(create, store, Hub(Turn(clock.call_soon), Logger()), clock, io, alone=False)
    if store.extra:
        stream.load(store.extra)
    for frame, at in early:
        stream.apply_frame(frame, at)
    for frame, at in frames:
        stream.apply_frame(frame, at)
        step(0)
    return stream


def _creation(frames: Iterator[tuple[Frame, Appended]], read: list[tuple[Frame, Appended]]) -> CreateStream | None:
    """Return the creation of the stream, and add the entries through it to `read`; None if there is none yet."""
    for frame, at in frames:
        read.append((frame, at))
        if frame.kind in (Kind.NOOP, Kind.MEMBERSHIP):
            continue
        operation = decode_operation(frame.body) if frame.kind == Kind.OPERATION else None
        if not isinstance(operation, CreateStream):
            raise NoStream(f"the log begins with a {frame.kind.name} entry instead of the creation of its stream")
        return operation
    return None


def differences(one: Stream, other: Stream) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value in `one`, value in `other`) of each difference between two recoveries of a stream."""
    for name in ("uid", "msgs", "bytes", "first_seq", "last_seq", "last_time", "applied", "config"):
        left, right = getattr(one.store, name), getattr(other.store, name)
        if left != right:
            yield name, str(left), str(right)
    if one.store.live.to_bytes() != other.store.live.to_bytes():
        yield "live messages", _span(one), _span(other)
    yield from _subjects(one, other)
    yield from _removals(one, other)
    left, right = (_comparable(stream) for stream in (one, other))
    for name in sorted((left.keys() | right.keys()) - LOCAL_FIELDS):
        if left.get(name) != right.get(name):
            yield name, _shown(left.get(name)), _shown(right.get(name))


def _comparable(stream: Stream) -> dict[str, object]:
    """Return the fields of a checkpoint that follow from the log. The progress of consumers is logged with delay, so
    that a checkpoint may be ahead: of them only the names are compared."""
    fields: dict[str, object] = msgspec.msgpack.decode(b"".join(stream.dump()))
    return fields | {"consumers": sorted(stream.consumers)}


def _subjects(one: Stream, other: Stream) -> Iterator[tuple[str, str, str]]:
    left, right = one.store.subjects, other.store.subjects
    if len(left) != len(right):
        yield "number of subjects", str(len(left)), str(len(right))
        return
    for subject, _ in left.items():
        if left.seqs(subject) != right.seqs(subject):
            yield f"messages of subject {subject.decode(errors='backslashreplace')}", "those", "others"
            return


def _removals(one: Stream, other: Stream) -> Iterator[tuple[str, str, str]]:
    """Compare what the footer of the open segment will say about removals."""
    left, right = one.store, other.store
    if not isinstance(left, SegmentStore) or not isinstance(right, SegmentStore):
        return
    mine, theirs = left.removals(), right.removals()
    floor = left.first_seq
    for name, first, second in (
        ("removed", *(sorted(seq for seq in each.removed if seq >= floor) for each in (mine, theirs))),
        ("erased", *(joined(each.erased) for each in (mine, theirs))),
        ("shredded", sorted(mine.shredded), sorted(theirs.shredded)),
    ):
        if first != second:
            yield f"{name} messages", _shown(first), _shown(second)


def _span(stream: Stream) -> str:
    return f"{stream.store.msgs} from {stream.store.first_seq} through {stream.store.last_seq}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
