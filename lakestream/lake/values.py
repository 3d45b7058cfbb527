"""Values of queries as JSON.

Belongs here: what JSON has no type for, and names of columns as keys.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

EXACT = 1 << 53
"""Integers from here on are texts: a browser's numbers would not be exact."""


def as_json(value: Any) -> Any:
    """Return a value of DuckDB's as JSON has it: bytes as base64, times as ISO 8601, what a browser's numbers would not
    hold exactly as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -EXACT < value < EXACT else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(as_json(key)): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def distinct(columns: Iterable[str]) -> list[str]:
    """Return names of columns, later ones of the same name with a number."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names
