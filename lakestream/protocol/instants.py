"""Times as people write them in SQL, options and stream metadata.

Belongs here: the one parser of such texts, exact to the ns, and their form in messages. The RFC 3339 of the NATS API,
with the errors of Go's parser, is gotime.py's, which also knows the calendar.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from lakestream.protocol import gotime

_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(:\d\d)?(\.\d{1,9})?)?\s*(?:(Z|UTC)|([+-]\d\d):?(\d\d)?)?", re.IGNORECASE
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(at: int | datetime | str) -> int:
    """Return a time in ns since the epoch.

    Args:
        at: ns since the epoch; a datetime (UTC where it has no zone); or a text such as `2026-05-01`,
            `2026-05-01 12:00:00`, `2026-05-01T12:00:00.123456789Z` or `2026-05-01T12:00:00+02:00` (UTC without a zone).

    Raises:
        ValueError: the text is no time, or the time is outside of the years 1678 to 2261.
    """
    if isinstance(at, int):
        ns = at
    elif isinstance(at, datetime):
        since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
        ns = since // timedelta(microseconds=1) * 1000
    else:
        ns = _parsed(at)
    # Times of messages have to fit 64 bits.
    if not -(2**63) <= ns < 2**63 - 1_000_000_000:
        raise ValueError(f"{at!s} is outside of the times that a message can have (1678 to 2261)")
    return ns


def has_zone(text: str) -> bool:
    """Return True if a text that `instant` takes names its time zone."""
    match = _INSTANT.fullmatch(text.strip())
    return match is not None and (match[5] or match[6]) is not None


def rfc3339(at_ns: int) -> str:
    """Return a time in ns as RFC 3339 text in UTC, without trailing zeros of the fraction."""
    return gotime.format_time(at_ns) if at_ns else "1970-01-01T00:00:00Z"


def _parsed(text: str) -> int:
    match = _INSTANT.fullmatch(text.strip())
    if match is None:
        forms = "2026-05-01 12:30:00 (UTC) or 2026-05-01T12:30:00+02:00"
        raise ValueError(f"cannot read {text!r} as a time; write {forms}")
    day, clock, seconds, fraction, _, hours, minutes = match.groups()
    zone = f"{hours}:{minutes or '00'}" if hours else "Z"
    try:
        return gotime.time_ns(f"{day}T{clock or '00:00'}{seconds or ':00'}{fraction or ''}{zone}")
    except ValueError as error:
        raise ValueError(f"cannot read {text!r} as a time: {str(error).rpartition(': ')[2]}") from None
