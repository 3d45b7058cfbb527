"""Comparison of answers by their structure: field names and JSON types, without the values.

Belongs here: the structure of an answer, and the fields that only one of the two servers has, with the reason.
"""

from __future__ import annotations

from typing import Any

OURS_ALONE = {"lakestream", "lake"}
"""Fields that nats-server does not have."""

NOT_MEASURED = {"rtt"}
"""Fields that are absent until the server has measured them."""


def shape(value: Any) -> Any:
    """Return field names and JSON types, without the values."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items() if name not in OURS_ALONE | NOT_MEASURED}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        if shapes and isinstance(shapes[0], dict):
            return [{name: item for one in sorted(shapes, key=str) for name, item in one.items()}]
        return shapes[:1]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def order(value: Any) -> list[str]:
    """Return the names of the outermost fields of a page, in order."""
    return [name for name in value if name not in OURS_ALONE | NOT_MEASURED]
