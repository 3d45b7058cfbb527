"""Tests of the schedule of maintenance beside a compactor; tests/lake/test_upkeep.py runs it with Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from lakestream_spark.write import upkeep
from lakestream_spark.write.maintainer import Maintainer, MaintenanceResult

pytestmark = pytest.mark.unit

EVERY = 600.0


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Recorded:
    """`Maintainer` of which a table gets many commits whenever it is maintained; that takes a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.upkeep: upkeep.Upkeep
        self.tables = 0
        self.rounds: list[float] = []
        self.done = threading.Event()

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Release nothing."""

    def cancel(self) -> None:
        """Cancel nothing."""

    def maintain(self, table: str) -> None:
        self._clock.now += 60
        self.tables += 1
        if self.tables > 100:
            self.done.set()
        else:
            self.upkeep.note({table: 10})

    def once(self, report: Callable[[MaintenanceResult], None]) -> None:
        self.rounds.append(self._clock.now)
        self.upkeep.note({"busy": 10})
        if len(self.rounds) == 3:
            self.done.set()


def test_a_table_with_many_commits_does_not_put_off_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(upkeep, "time", clock)
    maintainer = Recorded(clock)
    running = maintainer.upkeep = upkeep.Upkeep(cast(Maintainer, maintainer), EVERY, lambda _: None, commits=10)
    running.note({"busy": 10})
    running.start()
    assert maintainer.done.wait(30)
    running.stop()
    assert maintainer.rounds[:3] == [1000 + EVERY, 1000 + 2 * EVERY, 1000 + 3 * EVERY]
    assert maintainer.tables >= 20
