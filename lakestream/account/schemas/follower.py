"""This node's copy of an account's schemas.

Belongs here: following the bucket, wherever its stream is. A session reads it in order, as one of a mirror does
(stream/mirroring/session.py). It is begun when the bucket appears, and anew when it is another one or nothing comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.account.schemas.bucket import STREAM
from lakestream.account.schemas.calls import CallUnanswered, list_nothing
from lakestream.ports import Bus, Clock, Timer
from lakestream.protocol.api.errors import ApiError
from lakestream.schemas.schema import Schema
from lakestream.stream.core.batch import Run
from lakestream.stream.core.config import StreamSource
from lakestream.stream.mirroring.origin import Origin, OriginStart
from lakestream.stream.mirroring.session import OriginSession

if TYPE_CHECKING:
    from lakestream.account.schemas.bucket import RegisteredSchemas


LOOK_NS = 250_000_000
"""Interval of checks whether there is a bucket, and whether the session goes on (250 ms)."""
SILENT_NS = 8_000_000_000
"""Silence after which the session is replaced, so that long pauses between its attempts do not count (8 s)."""


class _AlwaysSafe:
    """`Commits` of messages that are not stored here."""

    def when_safe(self, then: Callable[[], None]) -> None:
        then()


class Follower:
    """Follows the bucket of one account, from `start` to `stop`.

    Args:
        account: its name.
        reader: name of this reader among those of all nodes.
        uid: returns the identity of the bucket's stream, "" if there is none.
        changed: called after each change; with the version that was registered, if that is it.

    Attributes: `state`: the schemas.
    """

    def __init__(
        self,
        account: str,
        reader: str,
        bus: Bus,
        clock: Clock,
        uid: Callable[[], str],
        state: RegisteredSchemas,
        changed: Callable[[Schema | None], None],
    ) -> None:
        self.state = state
        self._bus, self._clock, self._find, self._changed = bus, clock, uid, changed
        self._origin = Origin(StreamSource(name=STREAM), account, reader, mirror=True)
        self._session: OriginSession | None = None
        self._began_ns = 0
        self._uid = ""
        self._caught_up = False
        self._timer: Timer | None = None
        self._stopped = self._asking = False

    @property
    def is_current(self) -> bool:
        """Return True if the state had everything that the bucket had when it was last read."""
        return self._caught_up and self._timer is not None

    def begin(self) -> None:
        """Begin to follow; once."""
        self._look()

    def stop(self) -> None:
        """End."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end()

    def _end(self) -> None:
        if self._session is not None:
            self._session.end(remove=True)
            self._session = None

    def _look(self) -> None:
        if self._stopped:
            return
        self._timer = self._clock.call_later(LOOK_NS, self._look)
        uid = self._find()
        if uid != self._uid:
            self._end()
            self._uid, self._caught_up = uid, False
            self.state.clear()
            if uid:
                self._read()
            self._changed(None)
        elif self._session is not None and self._is_silent(self._session):
            self._end()
            self._read()
        if not uid and not self._caught_up and not self._asking:
            self._asking = True
            self._clock.spawn(self._ask_for_absence())

    async def _ask_for_absence(self) -> None:
        """Ask the registry whether there are no schemas: after a start this node may not know of the bucket yet."""
        try:
            answer = await list_nothing(self._bus, self._clock)
        except CallUnanswered:
            return
        finally:
            self._asking = False
        if answer.total == 0 and not self._uid and not self._stopped:
            self._is_caught_up()

    def _read(self) -> None:
        self._session = OriginSession(self._origin, self, self._bus, self._clock, _AlwaysSafe())
        self._began_ns = self._clock.steady()
        self._session.begin()

    def _is_silent(self, session: OriginSession) -> bool:
        active = session.active_ns()
        return (active if active >= 0 else self._clock.steady() - self._began_ns) > SILENT_NS

    # ------------------------------------------------------------------ Taker
    def start(self) -> OriginStart:
        return OriginStart(seq=self.state.last_seq + 1 if self.state.last_seq else 0)

    def opened(self, before: int, identity: str, pending: int) -> bool:
        if not pending:
            self._is_caught_up()
        return True

    def renewed(self) -> None: ...

    def take(self, run: Run) -> tuple[int, ApiError | None]:
        for change in zip(run.seqs, run.subjects, run.headers, run.payloads, strict=True):
            schema = self.state.apply(*change)
            if self._caught_up:
                self._changed(schema)
        if not self._caught_up and not run.pending[-1]:
            self._is_caught_up()
        return len(run), None

    def _is_caught_up(self) -> None:
        self._caught_up = True
        self._changed(None)
