"""A consumer's configuration: its fields as they are on the wire.

Belongs here: the record (fields, order and defaults of API level 5) and the body of CONSUMER.CREATE. What values are
allowed, and what the server fills in, is in rules.py.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from lakestream.protocol.api.jsonio import Duration, Int, Time, Uint64, enum

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

    Durations are ns, `max_bytes` bytes, `rate_limit_bps` bits a second. A configuration is complete only after
    `consumer_rules.completed`: the defaults here are those of an empty request.
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
        """Whether messages go to a subject of the consumer's own; else clients ask for them."""
        return bool(self.deliver_subject)

    @property
    def filters(self) -> tuple[bytes, ...]:
        """The subject filters; empty when every message is meant."""
        if self.filter_subjects:
            return tuple(subject.encode() for subject in self.filter_subjects)
        return (self.filter_subject.encode(),) if self.filter_subject else ()


class CreateConsumerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of CONSUMER.CREATE and CONSUMER.DURABLE.CREATE."""

    stream_name: str = ""
    config: ConsumerConfig = ConsumerConfig()
    action: ConsumerAction = ""
    pedantic: bool = False
