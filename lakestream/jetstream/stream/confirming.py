"""Answers that tell what a stream is like now.

Belongs here: the wait until such an answer is the truth. Two things can make it untrue. What is proposed may never be
stored: whoever is told of it before it is committed has seen what never was. And another node may lead meanwhile, whose
acks this one has not heard of: in a group of several, a quorum is asked first whether this node still leads (ReadIndex,
Raft §8), one round for all answers of an event-loop turn.

nats-server gives these answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakestream.jetstream.stream.stream import Stream

Confirmed = Callable[[bool], None]
"""Called with whether this node led the stream at some moment after it was asked for."""


class Confirming:
    """The answers of one stream that wait for a quorum. A part of the stream, see `Part`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._gathered: list[Confirmed] = []
        self._asked: list[list[Confirmed]] = []

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
        waiting, self._asked = [*self._asked, self._gathered], []
        self._gathered = []
        for asked in waiting:
            told, asked[:] = asked[:], []
            for then in told:
                then(False)
