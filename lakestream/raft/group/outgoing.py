"""What a member sends.

Belongs here: that nothing leaves before term and vote are durable, and where the entries for the others come from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.errors import Compacted
from lakestream.log.format.files import Io
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import AppendReply, Entry, Message, TimeoutNow, entry_of
from lakestream.raft.core.ready import SendEntries

if TYPE_CHECKING:
    from lakestream.log.store.segment_log import SegmentLog
    from lakestream.raft.group.raft_group import Member
    from lakestream.raft.group.unstable import Tail

Item = tuple[str, Message] | SendEntries


class Outlet(msgspec.Struct):
    """What a member needs of its node: see `Groups`."""

    io: Io
    send: Callable[[str, str, Message], None]
    """(group, to, message)"""
    flush: Callable[[bool], None]
    """What was sent may leave; at once, if True."""
    active: Callable[[str, bool], None]
    """(group, whether it needs ticks)"""
    committed: Callable[[str], None]
    """(group) This node leads it, and its followers are to hear soon of a commit."""
    joined: Callable[[str, Member], None]
    left: Callable[[str], None]


class Outgoing:
    """The messages of one member. `unsynced`: what is kept has to be synced before anything else leaves."""

    def __init__(
        self, group: str, core: Core, outlet: Outlet, read_done: Callable[[BaseException | None], None]
    ) -> None:
        """`read_done` is called after entries were read from the disk and sent, or could not be read."""
        self.unsynced = False
        self._group, self._core, self._outlet, self._read_done = group, core, outlet, read_done
        self._waiting: deque[Item] = deque()
        self._syncing = False
        self._released = 0

    def put(self, items: Iterable[Item], tail: Tail, log: SegmentLog) -> None:
        """Send these, now or once what they rest on is durable."""
        if self.unsynced or self._syncing:
            self._waiting.extend(items)
            return
        for item in items:
            self._leave(item, tail, log)

    def sync_begins(self) -> None:
        """What is kept is on its way to the disk."""
        self.unsynced, self._syncing = False, True
        self._released = len(self._waiting)

    def sync_ended(self, tail: Tail, log: SegmentLog) -> None:
        """It is durable: what waited for it leaves."""
        if not self._syncing:
            return
        self._syncing = False
        for _ in range(self._released if self.unsynced else len(self._waiting)):
            self._leave(self._waiting.popleft(), tail, log)

    def give_away(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Send what promises nothing: what asks another member to lead, and that this one has stopped."""
        for to, message in messages:
            if isinstance(message, TimeoutNow) or (
                isinstance(message, AppendReply) and message.rejected and message.match_term
            ):
                self._outlet.send(self._group, to, message)

    def clear(self) -> None:
        """Nothing of it leaves any more."""
        self._waiting.clear()
        self._released = 0

    def _leave(self, item: Item, tail: Tail, log: SegmentLog) -> None:
        if not isinstance(item, SendEntries):
            self._outlet.send(self._group, item[0], item[1])
            return
        entries = tail.entries(item.first, item.last, item.max_bytes)
        if entries:
            self._fill(item, entries)
        else:
            self._read(item, log)

    def _read(self, send: SendEntries, log: SegmentLog) -> None:
        def work() -> list[Entry]:
            found = log.entries(send.first, send.max_bytes)
            return [entry_of(frame) for frame, _ in found if frame.index <= send.last]

        def done(found: list[Entry] | None, error: BaseException | None) -> None:
            if isinstance(error, Compacted | ValueError):
                error = None
                self._core.compacted(log.first_index - 1)
            if error is None:
                self._fill(send, found or [])
            self._read_done(error)

        self._outlet.io.submit(work, done)

    def _fill(self, send: SendEntries, entries: list[Entry]) -> None:
        append = self._core.fill(send, entries)
        if append is not None:
            self._outlet.send(self._group, send.to, append)
