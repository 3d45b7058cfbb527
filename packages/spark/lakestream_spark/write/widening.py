"""Further columns of a table.

Belongs here: a schema as the log spells it, with the columns and the fields of records that it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


def widened(schema: str, fields: Sequence[dict[str, Any]]) -> str:
    """Return the JSON of a table's schema with further columns, and further fields of its records. What is there stays
    as it is."""
    found = msgspec.json.decode(schema)
    _widen(found["fields"], fields)
    return msgspec.json.encode(found).decode()


def _widen(there: list[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> None:
    by_name = {field["name"]: field for field in there}
    for field in wanted:
        known = by_name.get(field["name"])
        if known is None:
            there.append(field)
        else:
            _widen_type(known["type"], field["type"])


def _widen_type(there: Any, wanted: Any) -> None:
    if not (isinstance(there, dict) and isinstance(wanted, dict)):
        return
    if there["type"] == "struct":
        _widen(there["fields"], wanted["fields"])
    elif there["type"] == "array":
        _widen_type(there["elementType"], wanted["elementType"])
    elif there["type"] == "map":
        _widen_type(there["valueType"], wanted["valueType"])
