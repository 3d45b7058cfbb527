"""Answers that depend on the current state of a stream.

Belongs here: the wait until such an answer is true. Three things can make it untrue. Messages that the same client sent
before it may not be applied yet: publishes without a reply and acks are not confirmed to it in any other way. A
proposed message may never be stored: an answer that names it before it is committed may be wrong. And another node may
lead meanwhile, whose acks this one does not know: in a group of several, a quorum is asked first whether this node
still leads (ReadIndex, Raft §8), one round for all answers of an event-loop turn. A follower requests the index from
the leader, and answers once it has applied as much.

nats-server gives these answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from lakestream.log.store.store import Store
from lakestream.ports import Clock
from lakestream.protocol.api.errors import api_error
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.proposer import Proposer

Confirmed = Callable[[bool], None]
"""Called with True if this node led the stream at some moment after the question, else with False."""
AskLeader = Callable[[Callable[[int], None]], None]
"""Requests the leader's read index: entries through it have everything that was acked before; -1: it is unknown."""

MAX_WAITING = 10_000
"""Answers of one stream that wait for what is in flight; further ones are refused, as they would lag."""


class _Waiting(msgspec.Struct, eq=False):
    """An answer that waits until the first `left` of the stream's uncommitted proposals are applied."""

    then: Callable[[], None]
    left: int = 0


class Confirming(Feature):
    """The answers of one stream that wait, for a quorum or for what is in flight.

    Attributes:
        linearizable: direct gets are, also those that do not ask for it.
        ask_leader: set where other nodes may lead the stream.
    """

    def __init__(self, store: Store, pipeline: Pipeline, clock: Clock, proposer: Proposer) -> None:
        self._store, self._pipeline, self._clock, self._proposer = store, pipeline, clock, proposer
        self.linearizable = False
        self.ask_leader: AskLeader = lambda done: done(-1)
        self._following: list[Confirmed] = []
        """Reads of a follower for which the leader is asked at the end of this turn."""
        self._behind: list[tuple[int, list[Confirmed]]] = []
        """Reads of a follower that wait until the entry with this index is applied."""
        self._waiting: list[_Waiting] = []
        self._deferred: dict[_Waiting, None] = {}
        """Answers behind publishes that wait for something in flight themselves."""
        self._due: list[_Waiting] = []
        """Answers to be given once the entries that are being applied have had all their consequences."""
        self._applying = False
        proposer.on_refused = self._undefer
        self._gathered: list[Confirmed] = []
        self._asked: list[list[Confirmed]] = []

    def configure(self, config: StreamConfig) -> None:
        self.linearizable = config.linearizable

    # ------------------------------------------------------------------ entries in flight
    def after_applied(self, then: Callable[[], None]) -> bool:
        """Call `then` once everything that this node took before this call is applied, or will not be: at once where
        nothing is in flight. Return False if too much waits already: then it is not called. `then` must not raise."""
        self._pipeline.settle()  # what was acked a moment ago is to go
        if not len(self._pipeline) and not self._proposer.waiting and not self._applying:
            then()
            return True
        if len(self._waiting) + len(self._deferred) >= MAX_WAITING:
            return False
        return self._wait(_Waiting(then))

    def _wait(self, one: _Waiting) -> bool:
        if self._proposer.waiting:
            # Behind them: once they are proposed, this waits until they are applied.
            if not self._proposer.defer(lambda: self._again(one), b"", 0):
                return False
            self._deferred[one] = None
        elif len(self._pipeline):
            one.left = len(self._pipeline)
            self._waiting.append(one)
        elif self._applying:
            self._due.append(one)
        else:
            one.then()
        return True

    def _again(self, one: _Waiting) -> None:
        if one in self._deferred:
            del self._deferred[one]
            self._wait(one)

    def _undefer(self) -> None:
        """Wait for what is in flight alone: the publishes that waited before these answers were refused."""
        deferred, self._deferred = self._deferred, {}
        for one in deferred:
            self._wait(one)

    def applying(self) -> None:
        """Note that entries are about to be applied. Answers follow with `answer`, once all of them are."""
        self._applying = True

    def landed(self) -> None:
        """Note that the oldest proposal is committed, and about to be applied."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.left -= 1
            (self._due if one.left <= 0 else self._waiting).append(one)

    def answer(self) -> None:
        """Give the answers that waited for no more than the proposals that are applied now."""
        self._applying = False
        if self._due:
            due, self._due = self._due, []
            for one in due:
                one.then()
        if self._behind:
            behind, self._behind = self._behind, []
            for index, callbacks in behind:
                self._applied_through(index, callbacks)

    def release(self) -> None:
        """Give all waiting answers now: proposals in flight will not be applied here, or their outcome is unknown."""
        self._applying = False
        waiting = [*self._due, *self._waiting, *self._deferred]
        self._due, self._waiting, self._deferred = [], [], {}
        for one in waiting:
            one.then()

    # ------------------------------------------------------------------ a quorum
    def leading(self, then: Confirmed) -> None:
        """Call `then(True)` once everything that any node had acked before this call is applied here, at once where no
        other node can have acked anything; `then(False)` when this node does not lead, or leads no more."""
        pipeline = self._pipeline
        if not pipeline.replicated or pipeline.closed:
            then(pipeline.leading and not pipeline.closed)
            return
        self._gathered.append(then)
        if len(self._gathered) == 1:
            self._clock.call_soon(self._ask)

    def caught_up(self, then: Confirmed) -> None:
        """Call `then(True)` once everything that any node had acked before this call is applied here, whether this node
        leads or follows; `then(False)` if no leader says how much that is."""
        pipeline = self._pipeline
        if pipeline.leading or pipeline.closed or not pipeline.replicated:
            self.leading(then)
            return
        self._following.append(then)
        if len(self._following) == 1:
            self._clock.call_soon(self._follow_leader)

    def _follow_leader(self) -> None:
        callbacks, self._following = self._following, []
        self.ask_leader(lambda index: self._applied_through(index, callbacks))

    def _applied_through(self, index: int, callbacks: list[Confirmed]) -> None:
        """Confirm reads once the entry with this index is applied."""
        if 0 <= self._store.applied < index and not self._pipeline.closed:
            self._behind.append((index, callbacks))
            return
        for then in callbacks:
            then(index >= 0 and not self._pipeline.closed)

    def _ask(self) -> None:
        asked, self._gathered = self._gathered, []
        if not asked:
            return
        self._asked.append(asked)

        def done(index: int) -> None:
            callbacks, asked[:] = asked[:], []  # empty if `follow` has called them
            self._asked = [each for each in self._asked if each is not asked]
            for then in callbacks:
                then(index >= 0)

        self._pipeline.group.read_index(done)

    def stop(self, deleted: bool) -> None:
        """Give all answers; of a stream that is deleted, also those of operations that are not applied."""
        self.follow()
        behind, self._behind = self._behind, []
        for _, callbacks in behind:
            self._applied_through(-1, callbacks)
        if deleted:
            self._pipeline.refuse_all(api_error(10059))

    def follow(self) -> None:
        """Give all answers, those that wait for a quorum with False: this node leads no more."""
        self.release()
        waiting, self._asked = [*self._asked, self._gathered], []
        self._gathered = []
        for asked in waiting:
            callbacks, asked[:] = asked[:], []
            for then in callbacks:
                then(False)


def when_all_applied(streams: Iterable[Confirming], then: Callable[[], None]) -> bool:
    """Call `then` once everything that these streams took is applied; see `Confirming.after_applied`."""
    left = 1

    def applied() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    for stream in streams:
        left += 1
        if not stream.after_applied(applied):
            return False
    applied()
    return True
