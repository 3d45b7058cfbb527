"""What every unit test gets."""

from __future__ import annotations

from tests.unit.group_world import make
from tests.unit.logkit import closing

__all__ = ["closing", "make"]
