"""How long single messages live.

Belongs here: what `Nats-TTL` may say, and the shortest lifetime in a stream with delete markers, as functions of a
header block and a configuration (docs/internals/streams.md#ttls-and-markers). When a message goes is expiry.py's.
"""

from __future__ import annotations

from lakestream.protocol import headers
from lakestream.protocol.durations import parse_duration
from lakestream.stream.core.config import StreamConfig

HEADER = b"Nats-TTL"
SECOND = 1_000_000_000

MAX_TTL_NS = 1 << 62
"""A longer lifetime counts as this one (146 years), so that a deadline stays below 2^63 ns."""

_MAX_INT64 = (1 << 63) - 1
_MAX_DIGITS = 19
"""Digits of the largest int64."""


def parse_ttl(value: bytes) -> int:
    """Nats-TTL in ns (ADR-43): whole seconds or a Go duration ≥ 1 s cut to seconds; -1 for `never`; 0 when invalid.

    Blanks after the value belong to it and make it invalid.
    """
    text = value.decode("utf-8", "replace")
    if text.lower() == "never":
        return -1
    if text.isdigit() and text.isascii():
        digits = text.lstrip("0")
        seconds = int(digits or "0") if len(digits) <= _MAX_DIGITS else _MAX_INT64 + 1
        return min(seconds * SECOND, MAX_TTL_NS) if seconds <= _MAX_INT64 else 0
    try:
        duration = parse_duration(text)
    except ValueError:
        return 0
    if not SECOND <= duration <= _MAX_INT64:
        return 0
    return min(duration // SECOND * SECOND, MAX_TTL_NS)


def raised(header: bytes, config: StreamConfig) -> bytes:
    """The header block with a lifetime that is not shorter than that of the stream's delete markers.

    Only where a subject keeps more than its last message: there a marker that outlives the message tells of its end.
    The line that was given goes, and one in whole seconds is appended, as nats-server does it.
    """
    shortest = config.subject_delete_marker_ttl // SECOND
    if shortest <= 0 or config.max_msgs_per_subject == 1:
        return header
    given = headers.get(header, HEADER)
    ttl = parse_ttl(given) if given else 0
    if not 0 < ttl < shortest * SECOND:
        return header
    return headers.append(headers.remove(header, [HEADER]), [(HEADER, b"%d" % shortest)])
