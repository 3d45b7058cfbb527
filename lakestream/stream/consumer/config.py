"""A consumer's configuration: its fields as they are on the wire.

Belongs here: the record (fields, order and defaults of API level 5), what follows from it alone, reading it back from
the log, and the body of CONSUMER.CREATE. Defaults and checks are in rules.py.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import Duration, Int, Time, Uint64, enum
from lakestream.protocol.gotime import ZERO, time_ns
from lakestream.protocol.subjects import matches
from lakestream.stream.core.offline import Unsupported, read_stored

DeliverPolicy = Annotated[
    str,
    enum(
        "server.DeliverPolicy",
        "all",
        "last",
        "new",
        "by_start_sequence",
        "by_start_time",
        "last_per_subject",
        "undefined",
    ),
]
AckPolicy = Annotated[str, enum("server.AckPolicy", "none", "all", "explicit", "flow_control")]
ReplayPolicy = Annotated[str, enum("server.ReplayPolicy", "instant", "original")]
PriorityPolicy = Annotated[
    str,
    enum(
        "server.PriorityPolicy",
        "none",
        "overflow",
        "pinned_client",
        "prioritized",
        "",
        refusal="unknown priority policy: {value}",
    ),
]
ConsumerAction = Annotated[
    str, enum("server.ConsumerAction", "", "create", "update", refusal="unknown consumer action: {value}")
]


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's configuration (ADR-13, ADR-15, ADR-34, ADR-42; docs/internals/consumers.md#configuration).

    Durations are ns, `max_bytes` bytes, `rate_limit_bps` bits a second. The defaults are those of an empty request;
    `rules.completed` fills in the server's.
    """

    ALWAYS: ClassVar = frozenset({"deliver_policy", "ack_policy", "replay_policy", "num_replicas"})

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = "all"
    opt_start_seq: Uint64 = 0
    opt_start_time: Time = None
    ack_policy: AckPolicy = "none"
    ack_wait: Duration = 0
    max_deliver: Int = 0
    backoff: list[Duration] = []
    filter_subject: str = ""
    filter_subjects: list[str] = []
    replay_policy: ReplayPolicy = "instant"
    rate_limit_bps: Uint64 = 0
    sample_freq: str = ""
    max_waiting: Int = 0
    max_ack_pending: Int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: Int = 0
    max_expires: Duration = 0
    max_bytes: Int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: Duration = 0
    inactive_threshold: Duration = 0
    num_replicas: Int = 0
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: dict[str, str] = {}
    pause_until: Time = None
    priority_groups: list[str] = []
    priority_policy: PriorityPolicy = "none"
    priority_timeout: Duration = 0

    @property
    def push(self) -> bool:
        """Return True for a push consumer, whose messages go to its deliver subject."""
        return bool(self.deliver_subject)

    @property
    def filters(self) -> tuple[bytes, ...]:
        """Return the subject filters; empty when every message matches."""
        if self.filter_subjects:
            return tuple(subject.encode() for subject in self.filter_subjects)
        return (self.filter_subject.encode(),) if self.filter_subject else ()

    @property
    def pause_until_ns(self) -> int:
        """Return when deliveries go on after a pause, in ns since the epoch; 0 without a pause."""
        return 0 if self.pause_until in (None, ZERO) else time_ns(self.pause_until)

    def wants(self, subject: bytes) -> bool:
        """Return True if the filters match a subject."""
        filters = self.filters
        return not filters or any(matches(one, subject) for one in filters)

    def ack_wait_of(self, deliveries: int) -> int:
        """Return how long the ack of the n-th delivery of a message may take, in ns."""
        backoff = self.backoff
        return backoff[min(deliveries, len(backoff)) - 1] if backoff else self.ack_wait


def stored_config(name: str, stored: bytes) -> ConsumerConfig:
    """Read a consumer's configuration from the log. Raise Unsupported, which takes its stream offline."""
    try:
        return read_stored(stored, ConsumerConfig)
    except JsonError:
        raise Unsupported(f'stopped - unsupported consumer "{name}"') from None


class CreateConsumerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of CONSUMER.CREATE and CONSUMER.DURABLE.CREATE."""

    stream_name: str = ""
    config: ConsumerConfig = ConsumerConfig()
    action: ConsumerAction = ""
    pedantic: bool = False
