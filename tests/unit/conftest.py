"""What every unit test gets."""

from __future__ import annotations

from tests.unit.logkit import closing

__all__ = ["closing"]
