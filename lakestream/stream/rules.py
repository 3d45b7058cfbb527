"""Which stream configurations are allowed.

Belongs here: the defaults, limits and refusals of STREAM.CREATE and STREAM.UPDATE, in the order in which nats-server
2.15.1 tests them (docs/internals/streams.md), as functions over configurations. Rules for mirrors and sources are in
mirroring/origin_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lakestream.protocol.accounts import UNLIMITED, JetStreamLimits
from lakestream.protocol.api.errors import api_error, invalid
from lakestream.protocol.subjects import SubjectFilters, overlaps, valid_subject
from lakestream.protocol.transforms import Transform, TransformError, check_destination
from lakestream.stream.core.account_limits import check_size
from lakestream.stream.core.config import (
    CONSISTENCY,
    EVENTUAL,
    LAKE,
    LAST_SEQ,
    LINEARIZABLE,
    REQUIRED_LEVEL,
    StreamConfig,
    StreamConsumerLimits,
    valid_name,
)
from lakestream.stream.mirroring.origin_rules import checked_origins

if TYPE_CHECKING:
    from lakestream.stream.consumer.config import ConsumerConfig
    from lakestream.stream.mirroring.origin_rules import Find


MAX_NAME = 255
"""Longest stream name in bytes."""
MAX_DESCRIPTION = 4096
"""Longest description in bytes."""
MAX_METADATA = 128 << 10
"""Most bytes that the keys and values of the metadata may have together."""
MAX_REPLICAS = 5
DUPLICATE_WINDOW_NS = 120_000_000_000
"""Default duplicate window (2 minutes)."""
SHORTEST_NS = 100_000_000
"""Shortest max_age and duplicate_window (100 ms)."""
SHORTEST_MARKER_TTL_NS = 1_000_000_000

DYNAMIC_METADATA = ("_nats.ver", "_nats.level")

_NAME_RULE = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
_NO_COUNTER_TTL = "counter stream cannot use message TTLs"
_API_SUBJECTS = (b"$JS.>", b"$JSC.>", b"$NRG.>")
_UNLIMITED_FIELDS = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers")


def checked(
    config: StreamConfig,
    *,
    pedantic: bool = False,
    window_limit_ns: int = 0,
    clustered: bool = False,
    limits: JetStreamLimits = UNLIMITED,
    find: Find = lambda name: None,
) -> StreamConfig:
    """Return a requested configuration with its defaults filled in.

    Args:
        config: as requested.
        pedantic: refuse with 10157 where a value that was given would be changed.
        window_limit_ns: the server's cap on duplicate windows; 0 = none.
        clustered: whether there are other servers to hold replicas.
        limits: of the account, for how large a stream may be.
        find: the account's other streams, which it may mirror or source from.

    Raises:
        ApiError: the first rule that is broken.
    """
    _check_texts(config)
    config = _with_metadata(config)
    config = _with_limits(config, pedantic)
    config = _with_ages(config, pedantic, window_limit_ns)
    if config.deny_purge and config.allow_rollup_hdrs:
        raise invalid("roll-ups require the purge permission")
    if config.discard_new_per_subject:
        if config.discard != "new":
            raise invalid("discard new per subject requires discard new policy to be set")
        if config.max_msgs_per_subject <= 0:
            raise invalid("discard new per subject requires max msgs per subject > 0")
    config = _with_features(config, pedantic)
    config = checked_origins(config, find, pedantic=pedantic)
    config = _with_subjects(config)
    _check_transform(config)
    config = _with_republish(config, pedantic)
    if config.placement is not None and config.placement.preferred:
        raise invalid("preferred server not permitted in placement")
    if config.first_seq > LAST_SEQ:
        raise invalid(f"first sequence must not be above {LAST_SEQ}")
    check_size(limits, config)
    if config.num_replicas > 1 and not clustered:
        raise api_error(10074)
    return config


def check_create(config: StreamConfig) -> None:
    """Check what only STREAM.CREATE refuses, before all other rules. Raise ApiError."""
    if "/" in config.name or "\\" in config.name:
        raise api_error(10128)
    if config.sealed:
        raise invalid("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise invalid("stream has no mirror but does have mirror direct")


def check_reserved(config: StreamConfig, reserved: Callable[[], int], max_memory: int, max_file: int) -> None:
    """Check that the server's storage has room for what the stream reserves beside the bytes that others reserve there.

    The limits are in bytes; below 0 there is none. Raise ApiError 10028 for memory, 10047 for files.
    """
    limit = max_memory if config.storage == "memory" else max_file
    if limit < 0:
        return
    if reserved() + (config.reserved_bytes or 1) > limit:
        raise api_error(10028 if config.storage == "memory" else 10047)


def updated(old: StreamConfig, new: StreamConfig, consumers: Mapping[str, ConsumerConfig]) -> StreamConfig:
    """Return the configuration that an update from `old` to the checked `new` gives.

    `consumers` are the configurations of the stream's consumers by name. Raises ApiError.
    """
    change = "stream configuration update can not change "
    if new.allow_msg_counter and new.allow_msg_ttl:
        raise invalid(_NO_COUNTER_TTL)  # creating lets the TTLs through that delete markers bring with them
    if new.storage != old.storage:
        raise invalid(change + "storage type")
    if new.in_lake != old.in_lake:
        raise invalid(f"{change}{LAKE}; mirror the stream into a new one")
    if new.retention != old.retention and "workqueue" in (new.retention, old.retention):
        raise invalid(change + "retention policy to/from workqueue")
    if old.sealed and not new.sealed:
        raise invalid("stream configuration update can not unseal a sealed stream")
    if old.deny_delete and not new.deny_delete:
        raise invalid("stream configuration update can not cancel deny message deletes")
    if old.deny_purge and not new.deny_purge:
        raise invalid("stream configuration update can not cancel deny purge")
    if new.allow_msg_counter != old.allow_msg_counter:
        raise invalid(change + "message counter setting")
    if old.allow_msg_ttl and not new.allow_msg_ttl:
        raise invalid("message TTL status can not be disabled")
    if old.allow_msg_schedules and not new.allow_msg_schedules:
        raise invalid("message schedules can not be disabled")
    if new.persist_mode != old.persist_mode:
        raise invalid(change + "persist mode")
    if new.mirror is not None and new.mirror != old.mirror:
        raise api_error(10055)
    _check_consumers(old.consumer_limits, new.consumer_limits, consumers)
    if new.sealed:
        new = replace(new, max_age=0, discard="new", deny_delete=True, deny_purge=True, allow_rollup_hdrs=False)
    return new


def required_level(config: StreamConfig) -> int:
    """Return the API level that this configuration needs (docs/internals/api.md#api-level)."""
    if config.allow_batched:
        return 4
    if config.allow_msg_counter or config.allow_atomic or config.allow_msg_schedules or config.persist_mode == "async":
        return 2
    if config.allow_msg_ttl or config.subject_delete_marker_ttl > 0:
        return 1
    return 0


# ------------------------------------------------------------------------------------------------ the single rules
def _check_texts(config: StreamConfig) -> None:
    if not valid_name(config.name):
        raise invalid(_NAME_RULE)
    if len(config.name.encode()) > MAX_NAME:
        raise invalid(f"stream name is too long, maximum allowed is {MAX_NAME}")
    if len(config.description.encode()) > MAX_DESCRIPTION:
        raise invalid(f"stream description is too long, maximum allowed is {MAX_DESCRIPTION}")


def _with_metadata(config: StreamConfig) -> StreamConfig:
    """Compute the required API level, and drop the dynamic metadata that clients echo from a reply."""
    metadata = {key: value for key, value in config.metadata.items() if key not in DYNAMIC_METADATA}
    metadata[REQUIRED_LEVEL] = str(required_level(config))
    if sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items()) > MAX_METADATA:
        raise invalid(f"stream metadata exceeds maximum size of {MAX_METADATA} bytes")
    if metadata.get(CONSISTENCY, EVENTUAL) not in (EVENTUAL, LINEARIZABLE.decode()):
        raise invalid(f"{CONSISTENCY} is {EVENTUAL} or {LINEARIZABLE.decode()}")
    return replace(config, metadata=metadata)


def _with_limits(config: StreamConfig, pedantic: bool) -> StreamConfig:
    if config.num_replicas > MAX_REPLICAS:
        raise invalid(f"maximum replicas is {MAX_REPLICAS}")
    if config.num_replicas < 0:
        raise api_error(10133)
    changes: dict[str, object] = {"num_replicas": config.num_replicas or 1}
    for name in _UNLIMITED_FIELDS:
        value = getattr(config, name)
        if pedantic and value < -1:
            raise api_error(10157, err=f"{name} must be set to -1")
        if value <= 0:
            changes[name] = -1
    if config.persist_mode == "default":
        changes["persist_mode"] = ""
    placement = config.placement
    if placement is not None and not (placement.cluster or placement.preferred) and placement.tags is None:
        changes["placement"] = None
    return replace(config, **changes)


def _with_ages(config: StreamConfig, pedantic: bool, window_limit_ns: int) -> StreamConfig:
    if config.max_age < 0:
        raise invalid("max age can not be negative")
    window = config.duplicate_window
    if window == 0 and config.mirror is None and not config.sources:
        window = DUPLICATE_WINDOW_NS
        if 0 < window_limit_ns < window:
            if pedantic:
                raise api_error(10157, err="duplicate window limits are higher than current limits")
            window = window_limit_ns
        if 0 < config.max_age < window:
            if pedantic:
                raise api_error(10157, err="duplicate window cannot be bigger than max age")
            window = config.max_age
    if 0 < config.max_age < SHORTEST_NS:
        raise invalid("max age needs to be >= 100ms")
    if window < 0:
        raise invalid("duplicates window can not be negative")
    if 0 < config.max_age < window:
        raise invalid("duplicates window can not be larger then max age")
    if 0 < window_limit_ns < window:
        raise invalid(f"duplicates window can not be larger then server limit of {window_limit_ns // 1_000_000_000}s")
    if 0 < window < SHORTEST_NS:
        raise invalid("duplicates window needs to be >= 100ms")
    return replace(config, duplicate_window=window)


def _with_features(config: StreamConfig, pedantic: bool) -> StreamConfig:
    """Apply the rules between markers, counters, schedules and persist mode."""
    if config.allow_msg_counter and config.allow_msg_ttl:
        raise invalid(_NO_COUNTER_TTL)
    if config.subject_delete_marker_ttl:
        _check_markers(config, pedantic)
        config = replace(config, allow_msg_ttl=True, allow_rollup_hdrs=True, deny_purge=False)
    if config.allow_msg_counter:
        if config.discard == "new":
            raise invalid("counter stream cannot use discard new")
        if config.allow_msg_schedules:
            raise invalid("counter stream cannot use message schedules")
        if config.retention != "limits":
            raise invalid("counter stream can only use limits retention")
    if config.allow_msg_schedules:
        if config.discard == "new":
            raise invalid("message scheduling cannot use discard new")
        if pedantic and not config.allow_rollup_hdrs:
            raise invalid("message scheduling cannot be set if roll-ups are disabled")
        if config.mirror is None and not config.sources:
            config = replace(config, allow_rollup_hdrs=True, deny_purge=False)
    if config.persist_mode == "async":
        if config.storage != "file":
            raise invalid("async persist mode is only supported on file storage")
        if config.allow_atomic:
            raise invalid("async persist mode is not supported with atomic batch publish")
        if config.num_replicas > 1:
            raise invalid("async persist mode is not supported on replicated streams")
    return config


def _check_markers(config: StreamConfig, pedantic: bool) -> None:
    if config.subject_delete_marker_ttl < 0:
        raise invalid("subject delete marker TTL must not be negative")
    if config.subject_delete_marker_ttl < SHORTEST_MARKER_TTL_NS:
        raise invalid("subject delete marker TTL must be at least 1 second")
    if pedantic and not config.allow_msg_ttl:
        raise invalid("subject delete marker cannot be set if message TTLs are disabled")
    if pedantic and not config.allow_rollup_hdrs:
        raise invalid("subject delete marker cannot be set if roll-ups are disabled")
    if config.mirror is not None:
        raise invalid("subject delete markers forbidden on mirrors")


def _with_subjects(config: StreamConfig) -> StreamConfig:
    if not config.subjects:
        if config.mirror is None and not config.sources:
            return replace(config, subjects=[config.name])
        return config
    seen = SubjectFilters()
    for at, text in enumerate(config.subjects):
        subject = text.encode()
        if not valid_subject(subject):
            raise invalid("invalid subject")
        _check_scope(config, subject)
        if seen.overlap(subject):
            other = next(one for one in config.subjects[:at] if overlaps(one.encode(), subject))
            raise invalid(f'subject "{other}" overlaps with "{text}"')
        seen.add(subject)
    return config


def _check_scope(config: StreamConfig, subject: bytes) -> None:
    """Raise ApiError for subjects where a pub ack would loop or mislead, unless the stream sends none."""
    if subject == b">":
        if not config.no_ack:
            raise invalid("capturing all subjects requires no-ack to be true")
        if config.num_replicas != 1:
            raise invalid("capturing all subjects requires replicas of 1")
        return
    if config.no_ack or subject[:1] not in (b"$", b"*"):
        return  # a stream may have thousands of subjects: all of these begin with a `$`
    if any(overlaps(subject, api) for api in _API_SUBJECTS) and not subject.startswith(b"$JS.EVENT."):
        raise invalid("subjects that overlap with jetstream api require no-ack to be true")
    if overlaps(subject, b"$SYS.>") and not subject.startswith(b"$SYS.ACCOUNT."):
        raise invalid("subjects that overlap with system api require no-ack to be true")


def _check_transform(config: StreamConfig) -> None:
    transform = config.subject_transform
    if transform is None:
        return
    source, destination = transform.src.encode(), transform.dest.encode()
    if source and not valid_subject(source):
        raise api_error(10155, err=f"invalid subject {transform.src}")
    if destination:
        try:
            check_destination(destination)
            Transform(source, destination)
        except TransformError as error:
            raise api_error(10156, err=error) from error


def _with_republish(config: StreamConfig, pedantic: bool) -> StreamConfig:
    republish = config.republish
    if republish is None:
        return config
    if not republish.src:
        if pedantic:
            raise api_error(10157, err="republish source can not be empty")
        republish = replace(republish, src=">")
    if republish.dest:
        destination = republish.dest.encode()
        if any(overlaps(destination, subject.encode()) for subject in config.subjects):
            raise invalid("stream configuration for republish destination forms a cycle")
        try:
            Transform(republish.src.encode(), destination)
        except TransformError as error:
            way = f"from '{republish.src}' to '{republish.dest}'"
            raise invalid(f"stream configuration for republish with transform {way} not valid") from error
    return replace(config, republish=republish)


def _check_consumers(
    old: StreamConsumerLimits, new: StreamConsumerLimits, consumers: Mapping[str, ConsumerConfig]
) -> None:
    if new == old:
        return
    violating = [
        name
        for name, consumer in consumers.items()
        if 0 < new.max_ack_pending < consumer.max_ack_pending
        or 0 < new.inactive_threshold < consumer.inactive_threshold
    ]
    if violating:
        raise api_error(10069, err=f"change to limits violates consumers: {', '.join(violating)}")
