"""What one account may reserve and store.

Belongs here: the limits of one account, each as the rule that a configuration has to meet. In which order they are
asked among the other rules is api/streams.py's; what is stored is counted in storage_use.py, what the whole server may
hold is rules.py's.
"""

from __future__ import annotations

from lakestream.protocol.accounts import JetStreamLimits
from lakestream.protocol.api.errors import api_error
from lakestream.stream.core.config import StreamConfig


def check_streams(limits: JetStreamLimits, others: int) -> None:
    """Whether there may be one more stream beside so many. Raises ApiError 10027."""
    if 0 < limits.max_streams <= others:
        raise api_error(10027)


def check_consumers(limits: JetStreamLimits, max_consumers: int) -> None:
    """Whether a stream may have so many consumers. Raises ApiError 10026."""
    if 0 < limits.max_consumers < max_consumers:
        raise api_error(10026)


def check_size(limits: JetStreamLimits, config: StreamConfig) -> None:
    """Whether a stream may be that large. Raises ApiError 10113, 10122."""
    if limits.max_bytes_required and config.max_bytes <= 0:
        raise api_error(10113)
    most = limits.memory_max_stream_bytes if config.storage == "memory" else limits.disk_max_stream_bytes
    if 0 < most < config.max_bytes:
        raise api_error(10122)


def check_reserved(limits: JetStreamLimits, config: StreamConfig, reserved: int, replicas: int = 1) -> None:
    """Whether the account has room for a stream's max_bytes beside what others of its storage reserve.

    Args:
        reserved: their sum, of every replica.
        replicas: how often the stream is stored.

    Raises:
        ApiError: 10028, 10047.
    """
    most = limits.storage(config.storage)
    wanted = config.max_bytes if config.max_bytes > 0 else 1  # of an unlimited stream there has to be some room
    if 0 <= most < reserved + wanted * replicas:
        raise api_error(10028 if config.storage == "memory" else 10047)


def lowest(*limits: int) -> int:
    """The lowest of limits of which those below 1 are none; 0 where all are."""
    return min((limit for limit in limits if limit > 0), default=0)
