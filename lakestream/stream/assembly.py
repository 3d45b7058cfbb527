"""Assembly: the list of a stream's features, and the stream that is made of the core and all of them.

Belongs here: naming every feature once, with what it uses. Adding one is its own file in `features/`, its test, and one
line of `FEATURES`. Consumers and mirroring are features too, in folders of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakestream.log.store.store import Store
from lakestream.metrics.histogram import SECONDS, Histogram
from lakestream.ports import Bus, Clock, Io
from lakestream.spans import Spans
from lakestream.stream.consumer.consumers import Consumers
from lakestream.stream.consumer.dead_letters import Misfits
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.operations import CreateStream
from lakestream.stream.core.pipeline import Uncommitted
from lakestream.stream.core.proposer import BufferLimits
from lakestream.stream.core.stream import StreamCore
from lakestream.stream.features import counters
from lakestream.stream.features.ack_latency import AckLatency
from lakestream.stream.features.ages import Ages
from lakestream.stream.features.async_persist import AsyncPersist
from lakestream.stream.features.atomic import Atomic
from lakestream.stream.features.batches import BatchRoom
from lakestream.stream.features.counters import Counters
from lakestream.stream.features.dedupe import Dedupe
from lakestream.stream.features.expected import Expected
from lakestream.stream.features.expiry import Expiry
from lakestream.stream.features.fast import Fast
from lakestream.stream.features.republish import Republish
from lakestream.stream.features.rollup import Rollup
from lakestream.stream.features.schedules import Schedules
from lakestream.stream.features.secure_delete import SecureDelete
from lakestream.stream.features.spans import PublishSpans
from lakestream.stream.features.subject_transform import SubjectTransform
from lakestream.stream.features.time_travel import Past, TimeTravel
from lakestream.stream.features.traces import Traces
from lakestream.stream.features.ttl import Ttl
from lakestream.stream.features.validation import Definitions, NoDefinitions, Validation
from lakestream.stream.mirroring.mirroring import Mirroring


class Stream(StreamCore):
    """One stream on this server, with all its features."""

    def __init__(
        self,
        create: CreateStream,
        store: Store,
        bus: Bus,
        clock: Clock,
        io: Io,
        domain: str = "",
        alone: bool = True,
        batches: BatchRoom | None = None,
        buffer: BufferLimits | None = None,
        uncommitted: Uncommitted | None = None,
        features: Sequence[MakeFeature] | None = None,
        ack_seconds: Histogram | None = None,
        spans: Spans | None = None,
        definitions: Definitions | None = None,
    ) -> None:
        """Open a stream over `store`; see `StreamCore`.

        Args:
            batches: shared by the server's streams for their batches; one of its own without.
            buffer, uncommitted: see `StreamCore`.
            features: instead of `FEATURES`.
            ack_seconds: observes times from publish to pub ack; shared by the server's streams.
            spans: exports the spans of traced messages.
            definitions: the schemas of the account, if the server has a registry.
        """
        self.ack_seconds, self.exporter = ack_seconds or Histogram(SECONDS), spans
        self.definitions = definitions or NoDefinitions()
        self.batches = batches or BatchRoom()
        made = FEATURES if features is None else features
        super().__init__(create, store, bus, clock, io, domain, alone, buffer, uncommitted, made)
        self.consumers = self.feature(Consumers)
        """The stream's consumers by name."""
        self.mirroring = self.feature(Mirroring)
        """The stream's mirror, or its sources."""
        self.spans = self.feature(PublishSpans)
        """Spans of the stream's traced messages."""

    @property
    def consumer_count(self) -> int:
        """Return the number of consumers that are shown: not those of mirrors and sources."""
        return sum(not consumer.config.direct for consumer in self.consumers.values())

    @property
    def has_open_batches(self) -> bool:
        """Return True while a client publishes a batch."""
        return not (self.feature(Fast).acts_at() and self.feature(Atomic).acts_at())

    @property
    def past(self) -> Past | None:
        """Return the stream's past, None if it keeps none."""
        return self.feature(TimeTravel).past


EXPECTED, ROLLUP, TTL = Expected(), Rollup(), Ttl()
"""Features without a state of their own, which all streams share."""

MakeFeature = Callable[[Stream], Feature]
"""Makes one feature of a stream, which has the features before it in the list."""

FEATURES: tuple[MakeFeature, ...] = (
    lambda s: Validation(s.definitions, s.store, s.pipeline),
    lambda s: Ages(s.clock, s.store),
    lambda s: Dedupe(s.clock, s.store, s.feature(Ages)),
    lambda s: EXPECTED,
    lambda s: ROLLUP,
    lambda s: TTL,
    lambda s: Counters(),
    lambda s: SubjectTransform(),
    lambda s: Traces(s.name, s.unwanted),
    lambda s: Republish(s.name, s.bus, s.view, s.unwanted),
    lambda s: TimeTravel(s.name, s.clock, s.io, s.store, s.reader, s.pipeline),
    lambda s: SecureDelete(s.clock, s.store, s.pipeline),
    lambda s: AsyncPersist(s.clock, s.store, s.pipeline),
    lambda s: Schedules(
        s.created_ns, s.clock, s.store, s.reader, s.pipeline, s.proposer, s.applier.supersede, s.no_room
    ),
    lambda s: Expiry(s.clock, s.store, s.reader, s.pipeline, s.proposer, s.feature(Ages)),
    lambda s: Fast(s.batches, s.clock, s.pipeline, s.proposer),
    lambda s: Atomic(s.batches, s.clock, s.pipeline, s.proposer, s.bus, s.advise),
    lambda s: Mirroring(s, counters.merge),
    lambda s: AckLatency(s.clock, s.ack_seconds),
    lambda s: PublishSpans((s.account, s.name, s.uid), s.clock, s.exporter),
    lambda s: s.confirming,
    lambda s: Consumers(s, s.exporter),
    lambda s: Misfits((s.name, s.uid), s.store, s.reader, s.bus, s.clock, s.pipeline),
)
"""Features in the order in which their hooks are called."""
