"""Messages that a member sends.

Belongs here: holding them back until term and vote are durable, and reading the entries for other members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from lakestream.log.format.errors import Compacted
from lakestream.log.format.files import Io
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import AppendReply, LogEntry, Message, TimeoutNow, entry_of
from lakestream.raft.core.ready import SendEntries
from lakestream.raft.group.unstable import Unstable

Item = tuple[str, Message] | SendEntries


class Outgoing:
    """Outgoing messages of one member. `unsynced`: the hard state must be synced before anything else is sent."""

    def __init__(
        self,
        core: Core,
        io: Io,
        send: Callable[[str, Message], None],
        read_done: Callable[[BaseException | None], None],
    ) -> None:
        """Send by `send(to, message)`; call `read_done` once entries read from the disk are sent, or with the error."""
        self.unsynced = False
        self._core, self._io, self._send, self._read_done = core, io, send, read_done
        self._waiting: deque[Item] = deque()
        self._syncing = False
        self._released = 0

    def put(self, items: Iterable[Item], unstable: Unstable, log: SegmentLog) -> None:
        """Send these, now or once the hard state they depend on is durable."""
        if self.unsynced or self._syncing:
            self._waiting.extend(items)
            return
        for item in items:
            self._leave(item, unstable, log)

    def sync_begins(self) -> None:
        """Note that the hard state is being synced."""
        self.unsynced, self._syncing = False, True
        self._released = len(self._waiting)

    def sync_ended(self, unstable: Unstable, log: SegmentLog) -> None:
        """Send the messages that waited for the sync that ended."""
        if not self._syncing:
            return
        self._syncing = False
        for _ in range(self._released if self.unsynced else len(self._waiting)):
            self._leave(self._waiting.popleft(), unstable, log)

    def give_away(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Send only messages that promise nothing: TimeoutNow, and that this member has stopped."""
        for to, message in messages:
            if isinstance(message, TimeoutNow) or (
                isinstance(message, AppendReply) and message.rejected and message.match_term
            ):
                self._send(to, message)

    def clear(self) -> None:
        """Drop all messages that wait."""
        self._waiting.clear()
        self._released = 0

    def _leave(self, item: Item, unstable: Unstable, log: SegmentLog) -> None:
        if not isinstance(item, SendEntries):
            self._send(item[0], item[1])
            return
        entries = unstable.entries(item.first, item.last, item.max_bytes)
        if entries:
            self._fill(item, entries)
        else:
            self._read(item, log)

    def _read(self, send: SendEntries, log: SegmentLog) -> None:
        def work() -> list[LogEntry]:
            found = log.entries(send.first, send.max_bytes)
            return [entry_of(frame) for frame, _ in found if frame.index <= send.last]

        def done(found: list[LogEntry] | None, error: BaseException | None) -> None:
            if isinstance(error, Compacted | ValueError):
                error = None
                self._core.compacted(log.first_index - 1)
            if error is None:
                self._fill(send, found or [])
            self._read_done(error)

        self._io.submit(work, done)

    def _fill(self, send: SendEntries, entries: list[LogEntry]) -> None:
        append = self._core.fill(send, entries)
        if append is not None:
            self._send(send.to, append)
