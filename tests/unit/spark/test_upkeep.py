"""Tests of the schedule of maintenance beside a compactor; tests/lake/test_upkeep.py runs it with Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from lakestream.lake.staging import compactor_files
from lakestream.lake.staging.compactor_files import UpkeepRequest
from lakestream.lake.storage import lake as lakes
from lakestream_spark.write import upkeep
from lakestream_spark.write.maintainer import Maintainer, MaintenanceResult
from lakestream_spark.write.maintenance_plan import MaintenancePlan

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


class Asked:
    """`Maintainer` that notes the tables; `turn` is set after each round."""

    def __init__(self) -> None:
        self.tables: list[str] = []
        self.turn = threading.Event()

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Release nothing."""

    def cancel(self) -> None:
        """Cancel nothing."""

    def maintain(self, table: str) -> MaintenanceResult:
        self.tables.append(table)
        self.turn.set()
        return MaintenanceResult("ORDERS", MaintenancePlan(), removed=32, added=1, seconds=2.0)


def test_a_table_is_maintained_when_a_server_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.01)
    lake, maintainer, told = str(tmp_path), Asked(), threading.Event()
    lakes.require(lake, create=True)
    running = upkeep.Upkeep(cast(Maintainer, maintainer), EVERY, lambda done: told.set(), lake=lake)
    table = f"{lake}/streams/ORDERS"
    assert compactor_files.ask(lake, UpkeepRequest(table))
    assert compactor_files.ask(lake, UpkeepRequest(table))  # again: the same request
    running.start()
    assert told.wait(30)
    running.stop()
    assert maintainer.tables == [table]
    assert compactor_files.take(lake) == []
    state = compactor_files.UPKEEP.read(lake)
    assert state is not None
    assert (state.running, state.last) == ("", "ORDERS: optimized 32 files into 1, 2.00 s")
    assert 0 < state.next_ns - time.time_ns() <= EVERY * 1e9


def test_a_request_that_fails_is_not_made_again_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.01)
    lake, told = str(tmp_path), threading.Event()
    lakes.require(lake, create=True)

    class Failing(Asked):
        def maintain(self, table: str) -> MaintenanceResult:
            done = super().maintain(table)
            if len(self.tables) == 1:
                raise OSError("no such table")
            return done

    maintainer = Failing()
    running = upkeep.Upkeep(
        cast(Maintainer, maintainer), EVERY, lambda done: None if done.failure else told.set(), lake=lake
    )
    tables = [f"{lake}/streams/{name}" for name in ("GONE", "ORDERS")]
    assert all(compactor_files.ask(lake, UpkeepRequest(table)) for table in tables)
    running.start()
    assert told.wait(30)
    running.stop()
    assert sorted(maintainer.tables) == tables


def test_a_replay_waits_for_a_compactor_that_knows_it(tmp_path: Path) -> None:
    """Earlier ones take and remove every `.json`, and would maintain the table instead."""
    lake, wanted = str(tmp_path), UpkeepRequest(f"{tmp_path}/streams/ORDERS", replay=True)
    lakes.require(lake, create=True)
    assert compactor_files.ask(lake, wanted)
    (request,) = (tmp_path / "_compactor" / "maintain").iterdir()
    assert request.suffix == ".replay"
    assert compactor_files.take(lake) == [wanted]
    assert not request.exists()


def test_requests_are_limited_and_damaged_ones_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = str(tmp_path)
    lakes.require(lake, create=True)
    monkeypatch.setattr(compactor_files, "MAX_REQUESTS", 2)
    assert [compactor_files.ask(lake, UpkeepRequest(f"{lake}/{name}")) for name in "abc"] == [True, True, False]
    first = next((tmp_path / "_compactor" / "maintain").iterdir())
    first.write_bytes(b"{")
    assert len(compactor_files.take(lake)) == 1
    assert compactor_files.take(lake) == []
