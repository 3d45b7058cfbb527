"""Limits of one account on reserved and stored bytes.

Belongs here: the limits of one account, each as the rule that a configuration has to meet. Their order among the other
rules is account/api/streams.py's; stored bytes are counted in storage_use.py, the limits of the whole server are in
stream/rules.py.
"""

from __future__ import annotations

from lakestream.protocol.accounts import JetStreamLimits, tier_of
from lakestream.protocol.api.errors import api_error
from lakestream.stream.core.config import StreamConfig


def of_tier(limits: JetStreamLimits, config: StreamConfig) -> JetStreamLimits:
    """Return the limits for a stream with this configuration. Raise ApiError 10120 if there are none."""
    tier = limits.tier(config.num_replicas)
    if tier is None:
        raise api_error(10120)
    return tier


def in_tier(limits: JetStreamLimits, config: StreamConfig, other: StreamConfig) -> bool:
    """Return True if two streams count for the same limits."""
    return not limits.tiers or tier_of(config.num_replicas) == tier_of(other.num_replicas)


def check_streams(limits: JetStreamLimits, others: int) -> None:
    """Raise ApiError 10027 if the account may not have one more stream beside `others`."""
    if 0 < limits.max_streams <= others:
        raise api_error(10027)


def check_consumers(limits: JetStreamLimits, max_consumers: int) -> None:
    """Raise ApiError 10026 if a stream may not have so many consumers."""
    if 0 < limits.max_consumers < max_consumers:
        raise api_error(10026)


def check_size(limits: JetStreamLimits, config: StreamConfig) -> None:
    """Raise ApiError 10113 or 10122 if a stream may not be that large."""
    if limits.max_bytes_required and config.max_bytes <= 0:
        raise api_error(10113)
    most = limits.memory_max_stream_bytes if config.storage == "memory" else limits.disk_max_stream_bytes
    if 0 < most < config.max_bytes:
        raise api_error(10122)


def check_reserved(limits: JetStreamLimits, config: StreamConfig, reserved: int, replicas: int = 1) -> None:
    """Check that the account has room for what a stream reserves beside what other streams of its storage reserve.

    Args:
        reserved: their sum, of every replica.
        replicas: how often the stream is stored.

    Raises:
        ApiError: 10028, 10047.
    """
    most = limits.storage(config.storage)
    wanted = config.reserved_bytes or 1  # of an unlimited stream there has to be some room
    if 0 <= most < reserved + wanted * replicas:
        raise api_error(10028 if config.storage == "memory" else 10047)


def lowest(*limits: int) -> int:
    """Return the lowest of these limits, of which those below 1 are none; 0 if there is none."""
    return min((limit for limit in limits if limit > 0), default=0)
