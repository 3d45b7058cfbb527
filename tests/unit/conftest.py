"""What every unit test gets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from lakestream.log.store.store import Store
from tests.unit.conf_files import options
from tests.unit.group_world import make
from tests.unit.logkit import closing

__all__ = ["closing", "make", "options"]


@pytest.fixture(autouse=True)
def _stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that ends a store as a kill would leaves its descriptors open; hundreds of them are too many."""
    opened: list[Store] = []
    original = Store.open.__func__  # type: ignore[attr-defined]

    def recorded(cls: type[Store], *args: Any, **more: Any) -> Store:
        store: Store = original(cls, *args, **more)
        opened.append(store)
        return store

    monkeypatch.setattr(Store, "open", classmethod(recorded))
    yield
    for store in opened:
        with contextlib.suppress(Exception):
            store.abandon()
