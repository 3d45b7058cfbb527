"""Tests of maintenance beside a compactor: in its own process, and in another one."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.table.at import open_log
from lakestream.lake.table.state import position_of
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.lake_compaction import BatchReport
from lakestream_spark.write.maintainer import Maintainer, MaintenanceResult
from lakestream_spark.write.maintenance_plan import Policy
from lakestream_spark.write.upkeep import Upkeep
from tests.lake.conftest import job
from tests.lake.model import StreamModel, flights
from tests.lake.tables import records
from tests.lake.test_compact_job import Job

pytestmark = pytest.mark.lake

SECONDS = 180.0


@pytest.fixture
def started() -> Iterator[list[Job]]:
    """Yield the list of a test's processes; kill those that still run at its end."""
    running: list[Job] = []
    yield running
    for each in running:
        each.kill()


def operations(table: str) -> list[str]:
    log = open_log(table)
    return [log.summary(version).operation for version in log.versions]


class Compacting:
    """Compactor with upkeep beside it, and their reports."""

    def __init__(self, spark: Any, lake: Path, commits: int) -> None:
        self.done: list[MaintenanceResult] = []
        self.batches: list[BatchReport] = []
        self._news = threading.Condition()
        stopping = threading.Event()
        self.maintainer = Maintainer(spark, str(lake), Policy(min_files=2), stopping.is_set)
        self.upkeep = Upkeep(self.maintainer, 600.0, lambda done: self._add(self.done, done), commits)
        self.compactor = Compactor(spark, str(lake), stopping=stopping, report=self._batch)
        assert self.compactor.acquire()

    def __enter__(self) -> Compacting:
        self.compactor.start(0.1)
        self.upkeep.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.compactor.stop()
        self.upkeep.stop()
        self.compactor.release()

    def wait(self, rows: int, optimized: int) -> None:
        with self._news:
            assert self._news.wait_for(
                lambda: (
                    sum(batch.rows for batch in self.batches) >= rows
                    and sum(done.removed > 0 for done in self.done) >= optimized
                ),
                SECONDS,
            ), (self.batches, self.done)

    def _batch(self, batch: BatchReport) -> None:
        self.upkeep.note(batch.commits)
        self._add(self.batches, batch)

    def _add(self, to: list[Any], what: Any) -> None:
        with self._news:
            to.append(what)
            self._news.notify_all()


def test_a_table_with_many_commits_is_looked_after_while_it_is_compacted(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    model = StreamModel(tmp_path / "log")
    with Compacting(spark, lake, 2) as running:
        for number in range(4):
            if number == 2:
                model.remove([1, 2, 3])
            model.publish(flights(40, subjects=2))
            model.stage(lake)
            running.wait(40 * (number + 1), number // 2)
        running.wait(160, 2)
        other = Maintainer(spark, str(lake))
        assert other.acquire()  # the lock is held for one round at a time
        other.release()
    assert [done.failure for done in running.done if done.failure] == []
    assert operations(model.table(lake)).count("OPTIMIZE") >= 2
    assert records(model.table(lake)) == model.expected()


def test_a_compactor_and_a_maintainer_that_are_two_processes(lake: Path, tmp_path: Path, started: list[Job]) -> None:
    model = StreamModel(tmp_path / "log")
    program = str(job().with_name("maintain.py"))
    compactor = Job(lake, "--interval", "0.2", "--maintain-every", "0", "--report-every", "0")
    maintainer = Job(lake, "--every", "0.1", "--min-files", "2", program=[sys.executable, program])
    started += [compactor, maintainer]
    compactor.wait_for("compactor ready", SECONDS)
    maintainer.wait_for("maintainer ready", SECONDS)
    second = subprocess.Popen(
        [sys.executable, program, "--lake", str(lake), "--once"], stderr=subprocess.PIPE, text=True
    )
    table, said = model.table(lake), 0
    for number in range(4):
        if number:
            model.remove(sorted(model.live)[:5])
        model.publish(flights(60, subjects=3))
        model.stage(lake)
        compactor.wait_for("compacted 1 stream", SECONDS, number + 1)
        said = model.sealed[-1].last_index
    maintainer.wait_for("optimized", SECONDS)
    assert position_of(table, model.identity.uid) == said
    refused = "another maintainer is already running" in second.communicate(timeout=SECONDS)[1]
    assert second.returncode == (1 if refused else 0), "it came in between two rounds of the other one, or was told"
    for each in (maintainer, compactor):
        each.process.send_signal(signal.SIGTERM)
        assert each.end() == 0
        assert not [line for line in each.lines if line.startswith("lakestream:") and "under maintenance" not in line]
    assert "OPTIMIZE" in operations(table)
    assert records(table) == model.expected()
