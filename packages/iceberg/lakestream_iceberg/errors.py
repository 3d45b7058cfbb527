"""Tables that Iceberg cannot have.

Belongs here: the errors of this package, for people.
"""

from __future__ import annotations

from lakestream.lake.errors import LakeError


class NotInIceberg(LakeError):
    """Raised for a table that has no equivalent in Iceberg."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"{table} has no Iceberg metadata: {reason}. The Delta table is not affected")
