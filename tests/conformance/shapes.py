"""Comparison of answers by their structure: field names and JSON types, without the values.

Belongs here: the structure of an answer, and the fields that only one of the two servers has, with the reason.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

OURS_ALONE = {"lakestream", "lake"}
"""Fields that nats-server does not have."""

NOT_MEASURED = {"rtt"}
"""Fields that are absent until the server has measured them."""


def shape(value: Any) -> Any:
    """Return field names and JSON types, without the values."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items() if name not in OURS_ALONE | NOT_MEASURED}
    if isinstance(value, list):  # of which nats-server shows some in any order
        return [reduce(_joined, map(shape, value))] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _joined(one: Any, other: Any) -> Any:
    """Return the fields that either of two entries of a list has."""
    if isinstance(one, dict) and isinstance(other, dict):
        both = one.keys() & other.keys()
        return {**one, **other, **{name: _joined(one[name], other[name]) for name in both}}
    if isinstance(one, list) and isinstance(other, list):
        return [reduce(_joined, [*one, *other])] if one or other else []
    return max(one, other, key=str)


def order(value: Any) -> list[str]:
    """Return the names of the outermost fields of a page, in order."""
    return [name for name in value if name not in OURS_ALONE | NOT_MEASURED]
