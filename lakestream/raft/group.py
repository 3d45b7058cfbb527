"""A group: the members that agree on one stream's log.

Belongs here: proposing entries and handing them out as committed, in index order. This is a group of one, on the path
that more members will take: an entry is committed once it is durable here, and it is applied by nobody before that.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.log.errors import LogError
from lakestream.log.files import Io
from lakestream.log.frame import Frame, Kind
from lakestream.log.memory import Log
from lakestream.log.segment_log import Appended, SealState


class Proposal(msgspec.Struct, gc=False):
    """An entry on its way into the log.

    `body` may be pieces, joined in the I/O thread; `count` is the number of messages in it; `context` comes back with
    the committed entry untouched.
    """

    kind: Kind
    body: bytes | list[bytes]
    count: int
    context: object


class Committed(msgspec.Struct, gc=False):
    """An entry that is durable, where it lies, and what its proposer wants to see again."""

    frame: Frame
    at: Appended
    context: object


class Group:
    """The only member of its group. Everything but the writing happens in the event loop."""

    def __init__(
        self,
        log: Log,
        io: Io,
        on_commit: Callable[[list[Committed]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Lead the group whose entries are in `log`.

        Args:
            log: the store's log.
            io: threads for the writes.
            on_commit: called with committed entries in index order, each exactly once. It is called with none when a
                seal has ended: what was gathered meanwhile can be proposed now.
            on_failure: called once when a write or sync failed (invariant 4). Nothing that was proposed and not handed
                out is committed, as far as this process knows, and nothing will be.
        """
        self._log = log
        self._io = io
        self._on_commit = on_commit
        self._on_failure = on_failure
        self.term = max(log.last_term, 1)
        self.last_index = log.last_index
        self.commit_index = log.last_index
        self.failed: Exception | None = None
        self._queue: list[list[Proposal]] = []
        self._draining = False
        log.on_idle = self._idle

    @property
    def in_flight(self) -> bool:
        """Whether a write or a seal is under way; the caller gathers meanwhile."""
        return self._log.busy

    def propose(self, proposals: list[Proposal]) -> None:
        """Append entries in order: one write, one fdatasync, then `on_commit` in the event loop.

        Invariant: not in_flight. For a stream in memory they are committed before this returns, except when it is
        called from `on_commit`: then they follow after that. Raises the failure of a group that failed.
        """
        assert not self.in_flight, "a write is under way"
        if self.failed is not None:
            raise self.failed
        if not proposals:
            return
        if not self._log.durable:
            self._commit_at_once(proposals)
            return
        state = self._log.seal_state(self._log.now())
        first, term = self.last_index + 1, self.term
        self._log.busy = True
        self._io.submit(lambda: self._write(proposals, first, term, state), self._written)

    def give_up(self, error: Exception) -> None:
        """A committed entry could not be applied: nothing more is written, and no checkpoint of half an entry."""
        if self._log.failed is None:
            what = (
                f"a committed entry could not be applied: {error!r}; the log takes no more entries, restart the server"
            )
            self._log.failed = error if isinstance(error, LogError) else LogError(what)
        self._fail(self._log.failed)

    def sync(self) -> None:
        """Make durable what relaxed writes left (see LogOptions.sync_always). Call it from a timer."""
        if self.in_flight or self.failed is not None or not self._log.unsynced:
            return
        self._log.busy = True
        self._io.submit(self._log.sync, lambda _, error: self._synced(error))

    def _write(self, proposals: list[Proposal], first: int, term: int, state: SealState | None) -> list[Committed]:
        """In the I/O thread. Raises LogFrozen."""
        if state is not None:
            self._log.seal(state)
        frames = _frames(proposals, first, term)
        placed = self._log.append(frames)
        return [
            Committed(frame, at, proposal.context)
            for frame, at, proposal in zip(frames, placed, proposals, strict=True)
        ]

    def _written(self, committed: list[Committed] | None, error: BaseException | None) -> None:
        self._log.busy = False
        if committed is None:
            self._fail(error)
            return
        self.last_index = self.commit_index = committed[-1].frame.index
        self._on_commit(committed)

    def _synced(self, error: BaseException | None) -> None:
        self._log.busy = False
        self._idle(error)

    def _idle(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        elif self.failed is None:
            self._on_commit([])

    def _fail(self, error: BaseException | None) -> None:
        if self.failed is None:
            self.failed = error if isinstance(error, Exception) else RuntimeError(f"the write was given up: {error!r}")
            self._on_failure(self.failed)

    def _commit_at_once(self, proposals: list[Proposal]) -> None:
        self._queue.append(proposals)
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue:
                self._written(self._write(self._queue.pop(0), self.last_index + 1, self.term, None), None)
        except Exception as error:
            self._queue.clear()
            self._fail(error)
            raise
        finally:
            self._draining = False


def _frames(proposals: list[Proposal], first: int, term: int) -> list[Frame]:
    frames = []
    for index, proposal in enumerate(proposals, first):
        body = proposal.body if isinstance(proposal.body, bytes) else b"".join(proposal.body)
        frames.append(Frame(proposal.kind, term, index, proposal.count, body))
    return frames
