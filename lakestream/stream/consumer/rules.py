"""Rules of consumer configurations: defaults, checks and updates.

Belongs here: functions from configuration to configuration, in the order in which nats-server 2.15.1 applies them
(docs/internals/consumers.md#configuration), because the first broken rule is the one reported.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterable

import msgspec

from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.durations import format_duration
from lakestream.protocol.gotime import END_NS, format_time, time_ns
from lakestream.protocol.subjects import (
    Steps,
    SubjectFilters,
    covers,
    is_literal,
    is_reserved,
    redundant,
    valid_subject,
)
from lakestream.stream.consumer import dead_letters, order_by_key
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.core.config import StreamConfig

MAX_DESCRIPTION_BYTES = 4096
MAX_METADATA_BYTES = 128 << 10
MAX_NAME_BYTES = 255
DEFAULT_ACK_WAIT_NS = 30_000_000_000
DEFAULT_MAX_ACK_PENDING = 1000
DEFAULT_MAX_WAITING = 512
DEFAULT_INACTIVE_THRESHOLD_NS = 5_000_000_000
DEFAULT_PINNED_TIMEOUT_NS = 120_000_000_000
MIN_HEARTBEAT_NS = 100_000_000
MIN_MAX_EXPIRES_NS = 1_000_000
FLOW_CONTROL_HEARTBEAT_NS = 1_000_000_000

_NAME_LETTERS = string.digits + string.ascii_letters
_GROUP = re.compile(r"^[a-zA-Z0-9/_=-]{1,16}$")
_GO_INT = re.compile(r"^[+-]?[0-9]+$")
_GO_INT_MAX = (1 << 63) - 1
REQUIRED_LEVEL = "_nats.req.level"
DYNAMIC_METADATA = ("_nats.ver", "_nats.level")
"""Metadata that only replies show."""


class ConsumerCaps(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own limits; 0 = none."""

    max_ack_pending: int = 0
    max_request_batch: int = 0


def check_name(name: str, durable: bool) -> None:
    """Raise ApiError for an invalid consumer name; as in nats-server only durable names have a maximum length."""
    if durable and len(name.encode()) > MAX_NAME_BYTES:
        raise api_error(10102, max=MAX_NAME_BYTES)
    if "/" in name or "\\" in name:
        raise api_error(10127)
    if not name or any(char in ".*>" or char.isspace() for char in name):
        raise api_error(10052, err="consumer name can not contain '.', '*', '>', '\\', '/'")


# ---------------------------------------------------------------------------------------------------- defaults
_NEVER_NEGATIVE = (
    "max_waiting",
    "max_batch",
    "max_expires",
    "max_bytes",
    "idle_heartbeat",
    "inactive_threshold",
    "priority_timeout",
)


def in_utc(text: str) -> str:
    """Return a time as it is stored: in UTC. One before 1970 (Go's zero time) or after 9999 stays as it is written."""
    at = time_ns(text)
    return format_time(at) if 0 < at < END_NS else text


def completed(
    config: ConsumerConfig, stream: StreamConfig, caps: ConsumerCaps, pedantic: bool, ephemeral: bool | None = None
) -> ConsumerConfig:
    """Return the configuration with the server's defaults and caps.

    Args:
        pedantic: refuse (10157) where a value given would be changed.
        ephemeral: True if the consumer never had a durable name, None if it is being created. After an update that
            gives it a durable name inactive_threshold still has its default.

    Raises:
        ApiError: 10157; 10183, 10184 for negative times.
    """
    filled: dict[str, object] = {}
    if config.deliver_policy == "undefined":
        filled["deliver_policy"] = "all"
    if config.pause_until:
        filled["pause_until"] = in_utc(config.pause_until)
    for name in _NEVER_NEGATIVE:
        if getattr(config, name) < 0:
            _adjusted(pedantic, f"{name} must not be negative")
            filled[name] = 0
    if config.max_deliver == 0 or config.max_deliver < -1:
        if config.max_deliver:
            _adjusted(pedantic, "max_deliver must be set to -1")
        filled["max_deliver"] = -1
    config = msgspec.structs.replace(config, **filled)
    config = _times_completed(config, pedantic)
    config = _acks_completed(config, stream, caps, pedantic)
    config = _lifetime_completed(config, stream, config.durable_name == "" if ephemeral is None else ephemeral)
    config = _requests_completed(config, caps, pedantic)
    if any(wait < 0 for wait in config.backoff):
        raise api_error(10184)
    if config.ack_wait < 0:
        raise api_error(10183)
    if config.ack_policy == "flow_control" and config.push and not pedantic:
        config = msgspec.structs.replace(config, flow_control=True, idle_heartbeat=FLOW_CONTROL_HEARTBEAT_NS)
    return config


def _adjusted(pedantic: bool, why: str) -> None:
    if pedantic:
        raise api_error(10157, err=why)


def _times_completed(config: ConsumerConfig, pedantic: bool) -> ConsumerConfig:
    """Fill in ack_wait. The first entry of `backoff` replaces it."""
    wait = config.ack_wait
    if not wait and config.ack_policy in ("explicit", "all"):
        wait = DEFAULT_ACK_WAIT_NS
    if config.backoff:
        if wait != config.backoff[0]:
            _adjusted(pedantic, "first backoff value has to equal batch AckWait")
        wait = config.backoff[0]
    return msgspec.structs.replace(config, ack_wait=wait)


def _acks_completed(config: ConsumerConfig, stream: StreamConfig, caps: ConsumerCaps, pedantic: bool) -> ConsumerConfig:
    """Fill in max_ack_pending."""
    pending, limits = config.max_ack_pending, stream.consumer_limits
    if pending < -1:
        _adjusted(pedantic, "max_ack_pending must be set to -1")
        pending = -1
    if not pending:
        if limits.max_ack_pending > 0:
            _adjusted(pedantic, "max_ack_pending must be set if it's configured in stream limits")
        pending = limits.max_ack_pending
    if not config.inactive_threshold and limits.inactive_threshold > 0:
        _adjusted(pedantic, "inactive_threshold must be set if it's configured in stream limits")
    if not pending and config.ack_policy != "none":
        pending = DEFAULT_MAX_ACK_PENDING
        if 0 < caps.max_ack_pending < pending:
            pending = caps.max_ack_pending
    return msgspec.structs.replace(config, max_ack_pending=pending)


def _lifetime_completed(config: ConsumerConfig, stream: StreamConfig, ephemeral: bool) -> ConsumerConfig:
    threshold = config.inactive_threshold or stream.consumer_limits.inactive_threshold
    if not threshold and ephemeral:
        threshold = DEFAULT_INACTIVE_THRESHOLD_NS
    timeout = config.priority_timeout
    if config.priority_policy == "pinned_client" and not timeout:
        timeout = DEFAULT_PINNED_TIMEOUT_NS
    return msgspec.structs.replace(config, inactive_threshold=threshold, priority_timeout=timeout)


def _requests_completed(config: ConsumerConfig, caps: ConsumerCaps, pedantic: bool) -> ConsumerConfig:
    """Fill in the limits of pull requests."""
    if config.push:
        return config
    batch = config.max_batch
    if not batch and caps.max_request_batch > 0:
        _adjusted(pedantic, "max_request_batch must be set if it's JetStream limits are set")
        batch = caps.max_request_batch
    return msgspec.structs.replace(config, max_waiting=config.max_waiting or DEFAULT_MAX_WAITING, max_batch=batch)


def required_level(config: ConsumerConfig) -> int:
    """Return the API level that a configuration needs (docs/internals/api.md#api-level)."""
    if config.ack_policy == "flow_control":
        return 4
    grouped = config.priority_groups or config.priority_policy not in ("", "none")
    paused = config.pause_until not in (None, format_time(0))
    return 1 if paused or grouped or config.priority_timeout else 0


def with_static_metadata(config: ConsumerConfig) -> ConsumerConfig:
    """Return the configuration as it is stored: with the level it needs, without the metadata of replies."""
    metadata = {key: value for key, value in config.metadata.items() if key not in DYNAMIC_METADATA}
    metadata[REQUIRED_LEVEL] = str(required_level(config))
    return msgspec.structs.replace(config, metadata=metadata)


def for_sourcing(config: ConsumerConfig, retention: str, existing: ConsumerConfig | None) -> ConsumerConfig:
    """Return the configuration for a consumer that a mirror or a source requests
    (docs/internals/streams.md#mirrors-and-sources).

    The request is the same whatever the origin is. Where limits alone remove messages the consumer is hidden and
    without acks. Where acks remove them it is durable, and its acks come with flow control.

    Args:
        retention: the origin's.
        existing: of the origin's consumer of that name.
    """
    name = config.name
    if retention == "limits":
        # Each attempt has its own consumer; that of an earlier one is deleted for inactivity.
        suffix = "".join(random.choices(_NAME_LETTERS, k=8))
        return msgspec.structs.replace(config, name=f"{name}-{suffix}") if name else config
    if existing is not None:  # it keeps its position: only unacked messages are delivered again
        config = msgspec.structs.replace(
            config,
            deliver_policy=existing.deliver_policy,
            opt_start_seq=existing.opt_start_seq,
            opt_start_time=existing.opt_start_time,
        )
    return msgspec.structs.replace(
        config,
        durable_name=name,
        ack_policy="flow_control",
        ack_wait=0,
        max_deliver=-1,
        inactive_threshold=0,
        direct=False,
    )


# ---------------------------------------------------------------------------------------------------- checks
def check(config: ConsumerConfig, stream: StreamConfig, caps: ConsumerCaps, filters: ApiError | None) -> None:
    """Raise ApiError for the first rule that a completed configuration breaks, alone or with its stream.

    Args:
        filters: the error of its filters that `check_filters` has found.
    """
    if config.num_replicas < 0:
        raise api_error(10133)
    if config.num_replicas > stream.num_replicas:
        raise api_error(10126)
    if stream.retention != "limits" and config.num_replicas not in (0, stream.num_replicas):
        raise api_error(10134)
    if config.backoff and config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise api_error(10116)
    if len(config.description.encode()) > MAX_DESCRIPTION_BYTES:
        raise api_error(10107, max=MAX_DESCRIPTION_BYTES)
    if config.ack_policy == "flow_control":
        _check_flow_control_acks(config)
    if config.push:
        _check_push(config, stream)
    else:
        _check_pull(config, stream, caps)
    _check_limits(config, stream, caps)
    if config.direct:
        if not config.push:
            raise api_error(10090)
        if config.durable_name:
            raise api_error(10091)
    if filters is not None:
        raise filters
    _check_start(config)
    _check_sampling(config.sample_freq)
    if config.flow_control and not config.idle_heartbeat:
        raise api_error(10108)
    if config.durable_name and config.name and config.durable_name != config.name:
        raise api_error(10132)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in config.metadata.items())
    if size > MAX_METADATA_BYTES:
        raise api_error(10135, limit="128KB")
    _check_priority(config)
    dead_letters.check(config, stream)
    order_by_key.check(config)


def _check_flow_control_acks(config: ConsumerConfig) -> None:
    if not config.push:
        raise api_error(10218)
    if not config.flow_control:
        raise api_error(10219)
    if config.idle_heartbeat != FLOW_CONTROL_HEARTBEAT_NS:
        raise api_error(10052, err="flow control ack policy heartbeat needs to be 1s")
    if config.max_ack_pending <= 0:
        raise api_error(10220)
    if config.ack_wait or config.backoff:
        raise api_error(10221)
    if config.max_deliver > 0:
        raise api_error(10222)


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    subject = config.deliver_subject.encode()
    if not is_literal(subject):
        raise api_error(10079)
    if not valid_subject(subject) or is_reserved(subject):
        raise api_error(10112)
    if any(covers(own.encode(), subject) for own in stream.subjects):
        raise api_error(10081)
    if config.max_waiting:
        raise api_error(10080)
    if config.max_ack_pending > 0 and config.ack_policy == "none":
        raise api_error(10082)
    if 0 < config.idle_heartbeat < MIN_HEARTBEAT_NS:
        raise api_error(10083)


def _check_pull(config: ConsumerConfig, stream: StreamConfig, caps: ConsumerCaps) -> None:
    if stream.retention == "workqueue" and config.ack_policy == "none":
        raise api_error(10084)
    if config.rate_limit_bps:
        raise api_error(10086)
    if config.idle_heartbeat:
        raise api_error(10088)
    if config.flow_control:
        raise api_error(10089)
    if 0 < config.max_expires < MIN_MAX_EXPIRES_NS:
        raise api_error(10115)
    if 0 < caps.max_request_batch < config.max_batch:
        raise api_error(10125, limit=caps.max_request_batch)


def _check_limits(config: ConsumerConfig, stream: StreamConfig, caps: ConsumerCaps) -> None:
    for cap in (caps.max_ack_pending, stream.consumer_limits.max_ack_pending):
        if 0 < cap < config.max_ack_pending:
            raise api_error(10121, limit=cap)
    threshold = stream.consumer_limits.inactive_threshold
    if 0 < threshold < config.inactive_threshold:
        raise api_error(10153, limit=format_duration(threshold))


def check_filters(config: ConsumerConfig) -> Steps[ApiError | None]:
    """Find the first rule that the filters break, in steps: there may be tens of thousands of them."""
    if config.filter_subject and config.filter_subjects:
        return api_error(10136)
    if any(not subject for subject in config.filter_subjects):
        return api_error(10139)
    filters = config.filters
    for at, one in enumerate(filters):
        if at:
            yield
        if not valid_subject(one):
            return api_error(10052, err="invalid subject")
    return api_error(10138) if (yield from redundant(filters)) else None


def _check_start(config: ConsumerConfig) -> None:
    policy, words = config.deliver_policy, config.deliver_policy.replace("_", " ")

    def also_set(what: str) -> ApiError:
        return api_error(
            10094, err=f"consumer delivery policy is deliver {words}, but optional start {what} is also set"
        )

    def not_set(what: str) -> ApiError:
        return api_error(10094, err=f"consumer delivery policy is deliver {words}, but optional {what} is not set")

    if policy == "by_start_sequence":
        if not config.opt_start_seq:
            raise not_set("start sequence")
        if config.opt_start_time is not None:
            raise also_set("time")
    elif policy == "by_start_time":
        if config.opt_start_time is None:
            raise not_set("start time")
        if config.opt_start_seq:
            raise also_set("start sequence")  # nats-server says "start" twice
    elif config.opt_start_seq:
        raise also_set("sequence")
    elif config.opt_start_time is not None:
        raise also_set("time")
    elif policy == "last_per_subject" and not config.filters:
        raise not_set("filter subject")


def _check_sampling(text: str) -> None:
    if not text:
        return
    number = text.removesuffix("%")
    if not _GO_INT.match(number):
        raise api_error(10095, err=f'strconv.Atoi: parsing "{number}": invalid syntax')
    if not -_GO_INT_MAX - 1 <= int(number) <= _GO_INT_MAX:
        raise api_error(10095, err=f'strconv.Atoi: parsing "{number}": value out of range')
    if int(number) < 0:
        raise api_error(10095, err="<nil>")


def valid_group(name: str) -> bool:
    """Return True if this is a valid name of a priority group."""
    return _GROUP.match(name) is not None


def _check_priority(config: ConsumerConfig) -> None:
    if config.priority_policy in ("", "none"):
        if config.priority_groups:
            raise api_error(10196)
        if config.priority_timeout:
            raise api_error(10197)
        return
    if config.push:
        raise api_error(10178)
    if not config.priority_groups:
        raise api_error(10159)
    for group in config.priority_groups:
        if not group:
            raise api_error(10161)
        if not valid_group(group):
            raise api_error(10162)


def replicas_of(config: ConsumerConfig, stream: StreamConfig) -> int:
    """Return a consumer's number of replicas: 1 for an ephemeral one, except where acks release messages."""
    if config.num_replicas:
        return config.num_replicas
    return stream.num_replicas if config.durable_name or stream.retention != "limits" else 1


def sample_percent(config: ConsumerConfig) -> int:
    """Return the percentage of acks that are reported as metrics."""
    return int(config.sample_freq.removesuffix("%")) if config.sample_freq else 0


# ------------------------------------------------------------------------------------------------ other consumers
def check_unique(
    config: ConsumerConfig, name: str, others: Iterable[tuple[str, ConsumerConfig]]
) -> Steps[ApiError | None]:
    """Find out, in steps, whether another consumer of a work-queue stream wants the same messages (10099, 10100).

    Args:
        config: with valid filters.
    """
    rest = [other for other_name, other in others if other_name != name]
    if not rest:
        return None
    if not config.filters:
        return api_error(10099)
    mine = SubjectFilters(config.filters)
    for other in rest:
        for one in other.filters or (b">",):
            if mine.overlap(one):
                return api_error(10100)
            yield
    return None


def check_work_queue(config: ConsumerConfig, unique: ApiError | None) -> None:
    """Raise ApiError if a work-queue stream can not have this new consumer. `unique`: outcome of `check_unique`."""
    if config.ack_policy not in ("explicit", "flow_control"):
        raise api_error(10098)
    if unique is not None:
        raise unique
    if config.deliver_policy != "all":
        raise api_error(10101)


# ---------------------------------------------------------------------------------------------------- updates
_FIXED = (
    ("mem_storage", "storage type"),
    ("deliver_policy", "deliver policy"),
    ("opt_start_seq", "start sequence"),
    ("ack_policy", "ack policy"),
    ("replay_policy", "replay policy"),
    ("idle_heartbeat", "heart beats"),
    ("flow_control", "flow control"),
)
_FIXED_LATE = (("max_waiting", "max waiting"), ("direct", "direct"), ("sourcing", "sourcing"))


def check_update(old: ConsumerConfig, new: ConsumerConfig, bound: bool) -> None:
    """Raise ApiError if `new` may not replace `old`; `bound`: a client subscribes to the old deliver subject."""
    for field, words in _FIXED:
        if getattr(old, field) != getattr(new, field):
            raise api_error(10012, err=f"{words} can not be updated")
    if _instant(old.opt_start_time) != _instant(new.opt_start_time):
        raise api_error(10012, err="start time can not be updated")
    if old.deliver_subject != new.deliver_subject:
        if not old.push:
            raise api_error(10012, err="can not update pull consumer to push based")
        if not new.push:
            raise api_error(10012, err="can not update push consumer to pull based")
        if is_reserved(new.deliver_subject.encode()):
            raise api_error(10112)
        if bound:
            raise api_error(10013)
    for field, words in _FIXED_LATE:
        if getattr(old, field) != getattr(new, field):
            raise api_error(10012, err=f"{words} can not be updated")


def _instant(text: str | None) -> int | None:
    return None if text is None else time_ns(text)


def same(old: ConsumerConfig, new: ConsumerConfig) -> bool:
    """Return True if two completed configurations are the same except for pause and server metadata."""
    return _comparable(old) == _comparable(new)


def _comparable(config: ConsumerConfig) -> ConsumerConfig:
    metadata = {key: value for key, value in config.metadata.items() if key not in DYNAMIC_METADATA}
    return msgspec.structs.replace(config, pause_until=None, metadata=metadata, name="")
