"""A replica of a mirror that begins as a clone.

Belongs here: what a replica does with the entry that says so before it knows what the copy holds: it reads that from
the stream's table, in the version that the entry names, as the leader did before it proposed the entry. What follows in
the log waits meanwhile, so that entries are applied in order on every replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.base import Base, NoBase, Origin
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.group.group import Committed
from lakestream.stream.core.operations import Fork, decode_operation

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

HELD_BYTES = 64 << 20
"""Entries that wait for the table are kept in memory up to so many bytes (64 MiB); with more the replica is opened
anew, which reads the table first."""
YIELD_NS = 1_000_000_000
"""A replica that was elected while it waits for the table leads no more after so long (1 s)."""
AGAIN_NS = 2_000_000_000
"""Pause before a table that could not be read is read again (2 s)."""


class BaseUnreadable(LogError):
    """What a stream began with is not known here, and its table can not be read now; later it may."""


class Bases(Protocol):
    """Who reads tables for streams that begin with a copy."""

    def make_base(self, files: Files, directory: str, account: str, name: str, origin: Origin) -> Base:
        """The base of the stream whose files are in `directory`; made, unless it is there. Blocks for seconds.

        Raises BaseUnreadable, LogError, OSError.
        """

    def read_base(
        self,
        files: Files,
        directory: str,
        account: str,
        name: str,
        origin: Origin,
        done: Callable[[Base | None, BaseException | None], None],
    ) -> None:
        """The same in a thread."""


def fork_in(frame: Frame) -> Origin | None:
    """What a stream began with, if this entry says it."""
    if frame.kind != Kind.OPERATION:
        return None
    operation = decode_operation(frame.body)
    return Origin(operation.version, operation.through) if isinstance(operation, Fork) else None


def prepare(stream: Stream, frame: Frame, bases: Bases | None) -> None:
    """Before an entry is applied at recovery: have the base that it names, if it names one. Blocks. Raises NoBase."""
    origin = fork_in(frame)
    if origin is None or stream.config.mirror is None:  # what `apply_fork` does nothing about
        return
    store = stream.store
    assert isinstance(store.log, SegmentLog), "a replica's log has files"
    base = store.upkeep.find_base()
    if base is None or base.origin != origin:
        if bases is None:
            raise NoBase(store.upkeep.directory)
        base = bases.make_base(store.log.files, store.upkeep.directory, stream.account, stream.name, origin)
    store.upkeep.ready = base


class Holding:
    """Committed entries that wait for a base.

    Args:
        stream: whose entries they are.
        later: calls back after some ns.
        warn: says what is wrong, for people.
        done: called with all of them once the base is there.
    """

    def __init__(
        self,
        stream: Stream,
        bases: Bases,
        origin: Origin,
        warn: Callable[[str], None],
        done: Callable[[list[Committed]], None],
    ) -> None:
        self._entries: list[Committed] = []
        self._size = 0
        self._overrun = False
        self.ended = False
        self._stream, self._bases, self._origin = stream, bases, origin
        self._warn, self._done = warn, done

    def add(self, entries: list[Committed]) -> bool:
        """Hold these too. False, once: that is too much, the replica has to be opened anew.

        Until it is, what else comes is dropped: it must not be applied without what came before, and the log has it.
        """
        if self._overrun:
            return True
        self._entries += entries
        self._size += sum(len(entry.frame.body) for entry in entries)
        if self._size <= HELD_BYTES:
            return True
        self.ended = self._overrun = True
        self._entries = []
        return False

    def begin(self) -> None:
        """Read the table."""
        stream, store = self._stream, self._stream.store
        assert isinstance(store.log, SegmentLog), "a replica's log has files"
        files, directory = store.log.files, store.upkeep.directory
        self._bases.read_base(files, directory, stream.account, stream.name, self._origin, self._read)

    def end(self) -> None:
        """Nobody waits any more."""
        self.ended = True

    def _read(self, base: Base | None, error: BaseException | None) -> None:
        if self.ended or self._stream.closed:
            return
        if base is None:
            self._warn(f"stream {self._stream.name}: what it began with can not be read from its table yet: {error}")
            self._stream.clock.call_later(AGAIN_NS, lambda: None if self.ended else self.begin())
            return
        self.ended = True
        self._stream.store.upkeep.ready = base
        self._done(self._entries)


def held_from(stream: Stream, entries: list[Committed]) -> tuple[int, Origin] | None:
    """The first of these entries that can not be applied yet, and what it waits for; None: all of them can."""
    if stream.store.last_seq and stream.store.upkeep.based:
        return None
    for at, entry in enumerate(entries):
        origin = fork_in(entry.frame) if entry.frame.kind == Kind.OPERATION else None
        if origin is not None:
            ready = stream.store.upkeep.ready
            return None if ready is not None and ready.origin == origin else (at, origin)
    return None
