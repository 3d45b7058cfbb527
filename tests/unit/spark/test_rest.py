"""Tests of the collections that shrink the heap of a session's JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakestream_spark.session import Rest

pytestmark = pytest.mark.unit


class Collections:
    """A session that counts the full collections of its JVM."""

    def __init__(self) -> None:
        self.count = 0
        self.sparkContext = SimpleNamespace(_jvm=SimpleNamespace(System=self))

    def gc(self) -> None:
        self.count += 1


def test_the_heap_is_collected_once_after_each_work() -> None:
    spark = Collections()
    rest = Rest(cast(Any, spark), seconds=0)
    for _ in range(3):
        rest.check()
    assert spark.count == 1
    rest.worked()
    for _ in range(3):
        rest.check()
    assert spark.count == 2


def test_there_is_no_collection_soon_after_work() -> None:
    spark = Collections()
    rest = Rest(cast(Any, spark), seconds=3600)
    rest.check()
    assert spark.count == 0
