"""A mirror: the messages of another stream with their sequences and times.

Belongs here: what a mirror does with what its session brings. A run of consecutive sequences is a batch like any, so
replicas, recovery and the lake see nothing new; sequences that the origin has not got any more are not given out here
either. What is deleted in the origin later stays (docs/internals/streams.md#mirrors-and-sources).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core import publish
from lakestream.stream.core.config import StreamSource
from lakestream.stream.core.operations import Near, Skip
from lakestream.stream.mirroring import source_state
from lakestream.stream.mirroring.clone import CloneFirst
from lakestream.stream.mirroring.origin import Origin, Start
from lakestream.stream.mirroring.runs import Run
from lakestream.stream.mirroring.session import Received

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


NEAR = 10
"""A mirror that lacks fewer messages is close to its origin."""


class Mirror:
    """What fills one mirror, while this node leads it. See `upstream.Taker`."""

    def __init__(self, stream: Stream, source: StreamSource) -> None:
        self._stream = stream
        self._origin = Origin(source, stream.account, stream.name, mirror=True)
        self.source = source
        self.session = CloneFirst(stream, source, self._origin, self)

        self.near = False
        """Whether it has come close to its origin, for which it may answer direct gets then."""

    @property
    def seq(self) -> int:
        """Not shown: it is the stream's last sequence."""
        return 0

    def start(self) -> Start:
        """See `Taker.start`: after what is here already, that which is on its way included."""
        following = self._stream.intake.next_seq
        if following > 1:
            return Start(following)
        return Start(self.source.opt_start_seq, self.source.opt_start_time)

    def opened(self, before: int, identity: str, pending: int) -> bool:
        """See `Taker.opened`."""
        stream = self._stream
        self._note(pending)
        if before >= stream.intake.next_seq:
            stream.intake.skip(before)
            stream.propose(Skip(before))
        return True

    def renewed(self) -> None:
        """See `Taker.renewed`: sequences can not begin anew, so it goes on when the origin has come that far."""

    def take(self, message: Received) -> ApiError | None:
        """See `Taker.take`."""
        stream = self._stream
        if message.seq < stream.intake.next_seq:
            return None  # it is here
        subject = self._origin.renamed(message.subject)
        header = source_state.of_stream(message.header)
        effect = publish.effect_of(header, stream.config)
        refused = stream.intake.take_at(message.seq, message.time_ns, subject, header, message.payload, effect)
        if not self.near and refused is None:
            self._note(message.pending)
        return refused

    def take_run(self, run: Run) -> int:
        """See `Taker.take_run`."""
        intake = self._stream.intake
        news = run.after(intake.next_seq - 1)
        if not len(news):
            return len(run)  # they are here
        taken = intake.take_run(self._origin.renamed_run(news))
        if taken and not self.near:
            self._note(news.pending[taken - 1])
        return len(run) - len(news) + taken

    def _note(self, pending: int) -> None:
        """So many messages are still to come."""
        if self.near or pending >= NEAR:
            return
        self.near, stream = True, self._stream
        if not stream.copying.near:
            stream.propose(Near())
        elif not stream.replicated:
            stream.on_updated(stream)  # known since before a restart, and true again

    def when_safe(self, then: Callable[[], None]) -> None:
        """See `Taker.when_safe`."""
        self._stream.intake.when_safe(then)
