"""Answers that tell what a stream is like now.

Belongs here: the wait until such an answer is the truth. Three things can make it untrue. What the same client sent
before it may not be applied yet: publishes without a reply and acks are not confirmed to it in any other way. What is
proposed may never be stored: whoever is told of it before it is committed has seen what never was. And another node may
lead meanwhile, whose acks this one has not heard of: in a group of several, a quorum is asked first whether this node
still leads (ReadIndex, Raft §8), one round for all answers of an event-loop turn.

nats-server gives these answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

Confirmed = Callable[[bool], None]
"""Called with whether this node led the stream at some moment after it was asked for."""


MAX_WAITING = 10_000
"""Answers of one stream that wait for what is in flight; further ones are given at once, and may lag."""

MAX_ROUNDS = 4
"""Maximum number of times that an answer waits again because an operation in flight deferred publishes before it."""


class _Waiting:
    """An answer that waits until the first `left` of the stream's uncommitted proposals are applied."""

    __slots__ = ("left", "put_off", "rounds", "then")

    def __init__(self, left: int, put_off: bool, then: Callable[[], None]) -> None:
        self.left, self.put_off, self.then = left, put_off, then
        self.rounds = MAX_ROUNDS


class Confirming:
    """The answers of one stream that wait, for a quorum or for what is in flight. A part of the stream, see `Part`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._waiting: list[_Waiting] = []
        self._gathered: list[Confirmed] = []
        self._asked: list[list[Confirmed]] = []

    # ------------------------------------------------------------------ what is in flight
    def applied(self, then: Callable[[], None]) -> None:
        """Call `then` once everything that this node took before this call is applied, or will not be: at once where
        nothing is in flight. `then` must not raise."""
        stream = self._stream
        stream.retention.settle()  # what was acked a moment ago is to go
        in_flight = len(stream.uncommitted())
        if not in_flight or len(self._waiting) >= MAX_WAITING:
            then()
        else:
            self._waiting.append(_Waiting(in_flight, stream.intake.waiting, then))

    def committed(self, count: int) -> None:
        """The first `count` uncommitted proposals were applied: give the answers that waited for no more."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        in_flight, put_off = len(self._stream.uncommitted()), self._stream.intake.waiting
        over: list[_Waiting] = []
        for one in waiting:
            one.left -= count
            if one.left <= 0 and one.put_off and one.rounds and in_flight:
                # Publishes that waited for an operation were proposed just now, or wait for another one.
                one.left, one.put_off, one.rounds = in_flight, put_off, one.rounds - 1
            (over if one.left <= 0 else self._waiting).append(one)
        for one in over:
            one.then()

    def release(self) -> None:
        """Give all waiting answers now: proposals in flight will not be applied here, or their outcome is unknown."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.then()

    # ------------------------------------------------------------------ a quorum
    def leading(self, then: Confirmed) -> None:
        """Call `then(True)` once everything that any node had acked before this call is applied here, at once where no
        other node can have acked anything; `then(False)` when this node does not lead, or leads no more."""
        stream = self._stream
        if not stream.replicated or stream.closed:
            then(stream.leading and not stream.closed)
            return
        self._gathered.append(then)
        if len(self._gathered) == 1:
            stream.clock.call_soon(self._ask)

    def _ask(self) -> None:
        asked, self._gathered = self._gathered, []
        if not asked:
            return
        self._asked.append(asked)

        def done(index: int) -> None:
            told, asked[:] = asked[:], []  # nobody any more where `stop` has told them
            self._asked = [each for each in self._asked if each is not asked]
            for then in told:
                then(index >= 0)

        self._stream.group.read_index(done)

    def start(self) -> None:
        """See `Part.start`."""

    def stop(self) -> None:
        """See `Part.stop`: a group that has ended confirms nothing any more."""
        self.release()
        waiting, self._asked = [*self._asked, self._gathered], []
        self._gathered = []
        for asked in waiting:
            told, asked[:] = asked[:], []
            for then in told:
                then(False)


def when_all_applied(streams: Iterable[Stream], then: Callable[[], None]) -> None:
    """Call `then` once everything that these streams took before this call is applied; see `Confirming.applied`."""
    left = 1

    def applied() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    for stream in streams:
        left += 1
        stream.intake.confirming.applied(applied)
    applied()
