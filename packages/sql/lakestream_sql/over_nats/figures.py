"""Figures of the service, for metrics and for discovery.

Belongs here: counting queries.
"""

from __future__ import annotations

import msgspec


class SqlFigures(msgspec.Struct):
    """Queries since the start. `refused`: those that a limit or a permission kept from running; `failed`: others that
    ended with an error; `seconds`: time of all from request to end."""

    queries: int = 0
    refused: int = 0
    failed: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    last_error: str = ""

    def __add__(self, other: SqlFigures) -> SqlFigures:
        """Return the sums."""
        return SqlFigures(
            self.queries + other.queries,
            self.refused + other.refused,
            self.failed + other.failed,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
            self.last_error or other.last_error,
        )
