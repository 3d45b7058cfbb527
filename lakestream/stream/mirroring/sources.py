"""Sources: messages of other streams among a stream's own.

Belongs here: what a stream with sources does with what their sessions bring: under a sequence of its own, with where
it came from in its header (docs/internals/streams.md#mirrors-and-sources). How far a source has come follows from that
header and is source_state.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.log.format.record import Record
from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.gotime import format_time
from lakestream.stream.core import limits, publish
from lakestream.stream.core.batch import Effect
from lakestream.stream.core.config import StreamSource
from lakestream.stream.core.proposer import NOT_NOW
from lakestream.stream.core.publish import NotHere, Publish
from lakestream.stream.features import counters
from lakestream.stream.mirroring import source_state
from lakestream.stream.mirroring.origin import Origin, Start
from lakestream.stream.mirroring.runs import Run
from lakestream.stream.mirroring.session import Received, Session
from lakestream.stream.mirroring.source_state import Position

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


class Source:
    """One source of a stream, while this node leads it. See `upstream.Taker`."""

    def __init__(self, stream: Stream, source: StreamSource) -> None:
        self._stream = stream
        self._origin = Origin(source, stream.account, stream.name, mirror=False)
        self.source = source
        self.session = Session(stream.name, self._origin, stream.bus, stream.clock, self)
        known = stream.copying.positions.get(self._origin.key) or Position(0)
        self._seq, self._identity, self._since_ns = known.seq, known.identity, known.since_ns
        """The last message taken, on its way or stored, and of which origin."""
        self._before, self._behind = f"{self._origin.index} ".encode(), f" {self._origin.header_filters} ".encode()
        """What stands around the sequence in the header."""
        self._fetched: Record | None = None
        """A message of the lake that a counter goes on from."""
        self._fetching = False

    @property
    def seq(self) -> int:
        """The last sequence of the origin that is here."""
        return self._seq

    def start(self) -> Start:
        """See `Taker.start`."""
        if self._seq:
            return Start(self._seq + 1, identity=self._identity)
        if self._since_ns:
            return Start(time=format_time(self._since_ns))
        return Start(self.source.opt_start_seq, self.source.opt_start_time, self._identity)

    def opened(self, before: int, identity: str, pending: int) -> bool:
        """See `Taker.opened`."""
        if identity and self._identity and identity != self._identity:
            self.renewed()
            return False
        self._identity = identity or self._identity
        return True

    def renewed(self) -> None:
        """See `Taker.renewed`."""
        self._seq, self._identity, self._since_ns = 0, "", 0

    def take(self, message: Received) -> ApiError | None:
        """See `Taker.take`."""
        stream = self._stream
        if message.seq <= self._seq:
            return None  # it is here
        if stream.intake.moving:
            return NOT_NOW
        where = b"%b%d%b%b" % (self._before, message.seq, self._behind, message.subject)
        if self._identity:
            where += b" " + self._identity.encode()
        header, plain = message.header, b"\r\nNats-" not in message.header
        if not plain:
            header = source_state.of_stream(header)
        taken = Publish(
            stream.intake.renamed(self._origin.renamed(message.subject)),
            b"",
            source_state.with_source(header, where),
            message.payload,
        )
        # No other header can mean anything here.
        effect = Effect(0, source=where) if plain else publish.effect_of(taken.header, stream.config)
        try:
            refused = self._store(taken, effect, message.subject)
        except ApiError as error:  # no more message ids can be remembered
            return error
        if refused is None:
            self._seq = message.seq
        return refused

    def take_run(self, run: Run) -> int:
        """See `Taker.take_run`."""
        stream = self._stream
        news = run.after(self._seq)
        if not len(news):
            return len(run)  # they are here
        if stream.config.allow_msg_counter:
            return 0
        identity = b" " + self._identity.encode() if self._identity else b""
        places = [
            b"%b%d%b%b%b" % (self._before, seq, self._behind, subject, identity)
            for seq, subject in zip(news.seqs, news.subjects, strict=True)
        ]
        blocks = [source_state.with_source(*each) for each in zip(news.headers, places, strict=True)]
        # How far it has come, the last one says.
        effect = Effect(0, source=places[-1])
        if not stream.intake.take_all(self._origin.renamed_run(news).subjects, blocks, news.payloads, effect):
            return 0
        self._seq = news.seqs[-1]
        return len(run)

    def _store(self, message: Publish, effect: Effect, told_by: bytes) -> ApiError | None:
        """Store a message whose subject was `told_by`."""
        stream = self._stream
        view, config = stream.view, stream.config
        if effect.msg_id and config.duplicate_window and view.seen(effect.msg_id):
            return None
        if config.allow_msg_counter:
            if view.unsettled(message.subject, message.header):
                return NOT_NOW
            try:
                counters.merge(self._last(message), message, self._origin.source.name, told_by)
            except NotHere as missing:
                self._fetch(missing.seq)
                return NOT_NOW
            except ApiError as error:
                return error
        if stream.weighed or config.discard == "new":
            length = limits.accounted(config, message.subject, message.header, message.payload)
            refused = view.room(message.subject, length, bool(effect.rollup))
            if refused is not None:
                return refused
        return None if stream.intake.take(message, effect) else NOT_NOW

    def _last(self, message: Publish) -> Record | None:
        """The last message of its subject. Raises NotHere."""
        view = self._stream.view
        seq = view.last_of(message.subject)
        if self._fetched is not None and self._fetched.seq == seq:
            return self._fetched
        return view.record(seq) if seq else None

    def _fetch(self, seq: int) -> None:
        """Have a message at hand that only the lake has."""
        if self._fetching:
            return
        self._fetching = True

        async def fetch() -> None:
            try:
                self._fetched = await self._stream.fetch(seq)
            finally:
                self._fetching = False

        self._stream.clock.spawn(fetch())

    def when_safe(self, then: Callable[[], None]) -> None:
        """See `Taker.when_safe`."""
        self._stream.intake.when_safe(then)
