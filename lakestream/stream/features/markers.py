"""Delete markers: messages that say that a subject's last message has run out (ADR-43,
docs/internals/streams.md#ttls-and-markers).

Belongs here: what a marker looks like, which message gets one and which stream can take it, as functions over a
configuration and a header block. When a message runs out, and storing the marker, is expiry.py's. A marker rolls up its
subject, so that storing it is what removes the message: the two are one entry of the log.
"""

from __future__ import annotations

from lakestream.protocol import headers
from lakestream.protocol.durations import format_duration
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.features.ttl import SECOND

REASON = b"Nats-Marker-Reason"


def marks(config: StreamConfig) -> bool:
    """Whether the last message of a subject leaves a marker when it runs out."""
    return config.subject_delete_marker_ttl > 0


def block(config: StreamConfig) -> bytes:
    """The header block of the stream's markers; they have no payload. Lifetimes are cut to seconds."""
    lifetime = config.subject_delete_marker_ttl // SECOND * SECOND
    return headers.build(
        [(REASON, b"MaxAge"), (b"Nats-TTL", format_duration(lifetime).encode()), (b"Nats-Rollup", b"sub")]
    )


def takes(config: StreamConfig) -> bool:
    """Whether the stream's own rules let a marker in.

    A counter stream takes nothing but increments, a sealed one nothing, and max_msg_size holds for everything. There
    messages leave without a marker, where nats-server tries again and again and never lets them go.
    """
    refuses = config.allow_msg_counter or config.sealed
    return not refuses and not 0 < config.max_msg_size < len(block(config))


def wanted(header: bytes) -> bool:
    """Whether the message with this header block leaves a marker: none that is itself an end does."""
    return not headers.get(header, REASON) and headers.get(header, b"KV-Operation") != b"PURGE"
