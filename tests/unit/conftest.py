"""Fixtures of all unit tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from lakestream.log.store.segment_store import SegmentStore
from tests.unit.conf_files import options
from tests.unit.group_world import make
from tests.unit.logkit import closing

__all__ = ["closing", "make", "options"]


@pytest.fixture(autouse=True)
def _stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the descriptors of stores that a test ended as a kill would; hundreds of them would be too many."""
    opened: list[SegmentStore] = []
    original = SegmentStore.__init__

    def recorded(store: SegmentStore, *args: Any, **more: Any) -> None:
        original(store, *args, **more)
        opened.append(store)

    monkeypatch.setattr(SegmentStore, "__init__", recorded)
    yield
    for store in opened:
        with contextlib.suppress(Exception):
            store.abandon()
