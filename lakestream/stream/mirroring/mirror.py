"""Mirrors: the messages of another stream with their sequences and times.

Belongs here: storing what a mirror's session brings. A run of consecutive sequences is a batch like any other, so
replicas, recovery and the lake need nothing special. Sequences that are missing in the origin are skipped. Messages
that are deleted in the origin later stay (docs/internals/streams.md#mirrors-and-sources).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.batch import Run
from lakestream.stream.core.operations import Skip
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.proposer import Proposer
from lakestream.stream.mirroring.origin import Origin, OriginStart, stored_header
from lakestream.stream.mirroring.session import OriginSession
from lakestream.stream.mirroring.sources import positions_in

NEAR = 10
"""A mirror that lacks fewer messages than this is near its origin."""


class Mirror:
    """The mirror of an origin, on the mirror's leader: the `Taker` of a session.

    Args:
        came_near: called once when the mirror is near its origin.
    """

    seq = 0
    """INFO shows no sequence, which is the stream's last one."""

    session: OriginSession
    """Reads the origin for it; set before it begins."""

    def __init__(self, origin: Origin, pipeline: Pipeline, proposer: Proposer, came_near: Callable[[], None]) -> None:
        self._origin, self._pipeline, self._proposer, self._came_near = origin, pipeline, proposer, came_near
        self.source = origin.source
        self.near = False
        """True once it has been near its origin: then it may answer direct gets for it."""

    def start(self) -> OriginStart:
        following = self._pipeline.next_seq  # behind messages in flight, too
        if following > 1:
            return OriginStart(following)
        return OriginStart(self.source.opt_start_seq, self.source.opt_start_time)

    def opened(self, before: int, identity: str, pending: int) -> bool:
        self._note(pending)
        if before >= self._pipeline.next_seq:
            self._pipeline.skip(before)
            self._pipeline.propose(Skip(before))
        return True

    def renewed(self) -> None:
        """Do nothing: sequences cannot restart, so the mirror continues when the new origin has reached its own."""

    def take(self, run: Run) -> tuple[int, ApiError | None]:
        fresh, proposer = run.after(self._pipeline.next_seq - 1), self._proposer
        known = len(run) - len(fresh)
        if not len(fresh):
            return known, None  # they are stored
        taken, refused = 0, None
        for begin, end in self._parts(fresh):
            part = fresh[begin:end]
            if part.marked:
                part = msgspec.structs.replace(part, headers=[stored_header(part.headers[0])])
                effects = [proposer.effect_of(part.headers[0])]
            else:
                effects = positions_in(part)
            stored, refused = proposer.copy(self._origin.renamed_run(part), effects)
            taken += stored
            if stored < len(part):
                break
        if taken and not self.near:
            self._note(fresh.pending[taken - 1])
        return known + taken, refused

    def _parts(self, run: Run) -> list[tuple[int, int]]:
        """Return (begin, end) of parts of which all or nothing is stored, if there may be positions in it."""
        if not any(run.headers):
            return [(0, len(run))]
        return [(at, at + 1) for at in range(len(run))] if self._proposer.looks_at_each else run.stretches()

    def _note(self, pending: int) -> None:
        """Note how many messages are still to come."""
        if not self.near and pending < NEAR:
            self.near = True
            self._came_near()
