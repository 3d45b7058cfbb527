"""Rules of single values that all typed columns share.

Belongs here: instants to UTC, decimals exactly, and the nesting depth of JSON. Used by the codecs of schemas and by
the JSON view of lake/table/json_schema.py, so that a text means the same in both.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Context, Decimal

EXACT = Context(prec=76)
FIRST_US = -62_135_596_800_000_000
"""0001-01-01 in µs since the epoch: the first instant that all readers of tables can represent."""
LAST_US = 253_402_300_799_999_999
"""The last µs of 9999-12-31."""
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The same bounds, in days since the epoch."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UINT64_MAX = 2**64 - 1
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


def utc(value: datetime) -> datetime:
    """Return an instant in UTC; one without a zone is in UTC already.

    Raises:
        OverflowError: the instant is outside of the years 1 to 9999 in UTC.
    """
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def exact_decimal(value: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return a number with exactly `scale` digits after the point; None if it is not exactly a DECIMAL(p, s)."""
    if not value.is_finite() or abs(value) >= Decimal(10) ** (precision - scale):
        return None
    exact = value.quantize(Decimal(1).scaleb(-scale), context=EXACT)
    return exact if exact == value else None


def is_deeper(payload: bytes, limit: int) -> bool:
    """Return True if objects and arrays of a JSON text nest deeper than `limit`."""
    return payload.count(b"[") + payload.count(b"{") > limit and json_depth(payload) > limit


def json_depth(payload: bytes) -> int:
    """Return the nesting depth of objects and arrays, ignoring brackets in strings."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(payload):
        token = match.group()
        if token in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token in b"]}":
            depth -= 1
    return deepest
