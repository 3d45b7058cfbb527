"""Tests of fairness between many streams of one compactor."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.errors import LeaseLost
from lakestream.lake.table.at import open_log
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.state import TableFollower
from lakestream_spark.write import compactor as module
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.stream_compaction import CompactionOptions, StreamCompaction
from tests.lake.model import StreamModel, flights
from tests.lake.tables import records

pytestmark = pytest.mark.lake

BACKLOG = 10


def publish(model: StreamModel, lake: Path, segments: int = 1) -> None:
    for _ in range(segments):
        model.publish(flights(20, subjects=2))
        model.stage(lake)


def first_append(log: TableLog) -> int:
    """Return the time of the first commit with messages, in ms."""
    return min(log.summary(version).time_ms for version in log.versions if log.summary(version).adds)


def test_a_backlog_does_not_keep_another_streams_news_waiting(spark: Any, lake: Path, tmp_path: Path) -> None:
    busy = StreamModel(tmp_path / "busy", "BUSY", "busy")
    quiet = StreamModel(tmp_path / "quiet", "QUIET", "quiet")
    publish(busy, lake, BACKLOG)

    def stage_later() -> None:
        watch, pause = TableFollower(busy.table(lake), "busy"), threading.Event()
        while not watch.position():
            pause.wait(0.01)
        publish(quiet, lake)

    later = threading.Thread(target=stage_later)
    later.start()
    compactor = Compactor(spark, str(lake), parallel=1, options=CompactionOptions(commit_bytes=1))
    compactor.start(0.1)
    for model in (busy, quiet):
        watch = TableFollower(model.table(lake), model.identity.uid)
        while not model.sealed or watch.position() != model.sealed[-1].last_index:
            compactor.check()
            time.sleep(0.05)
    later.join()
    compactor.stop()
    assert records(busy.table(lake)) == busy.expected()
    assert records(quiet.table(lake)) == quiet.expected()
    log = open_log(busy.table(lake))
    assert first_append(open_log(quiet.table(lake))) < log.summary(log.latest).time_ms


def test_a_stream_whose_plan_takes_long_holds_no_other_up(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = (StreamModel(tmp_path / name, name, name) for name in ("SLOW", "QUICK"))
    for model in (slow, quick):
        publish(model, lake)
    go_on, plan = threading.Event(), StreamCompaction.plan

    def planned(self: StreamCompaction, through: int) -> Any:
        if self.table == slow.table(lake):
            go_on.wait(60)
        return plan(self, through)

    monkeypatch.setattr(StreamCompaction, "plan", planned)
    monkeypatch.setattr(module, "PLAN_SECONDS", 0.2)
    compactor = Compactor(spark, str(lake), options=CompactionOptions(commit_bytes=1))
    compactor.start(0.1)
    for model in (quick, slow):
        watch = TableFollower(model.table(lake), model.identity.uid)
        while watch.position() != model.sealed[-1].last_index:
            compactor.check()
            time.sleep(0.05)
        go_on.set()
    compactor.stop()
    for model in (slow, quick):
        assert records(model.table(lake)) == model.expected()


class Wavering:
    """Lock that is uncertain for a while, as a lease whose store answers slowly."""

    def __init__(self, doubts: range) -> None:
        self._doubts = doubts
        self.asked = 0

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def check(self) -> None:
        self.asked += 1
        if self.asked in self._doubts:
            raise LeaseLost("lock")


def test_what_a_doubtful_lease_held_up_is_taken_up_again(spark: Any, lake: Path, tmp_path: Path) -> None:
    models = [StreamModel(tmp_path / name, name, name) for name in ("ONE", "OTHER")]
    for model in models:
        publish(model, lake, 3)
    compactor = Compactor(spark, str(lake), parallel=2, options=CompactionOptions(commit_bytes=1))
    compactor._lock = Wavering(range(6, 14))
    compactor.start(0.1)
    for model in models:
        watch = TableFollower(model.table(lake), model.identity.uid)
        while watch.position() != model.sealed[-1].last_index:
            time.sleep(0.05)
    compactor.stop()
    assert compactor._lock.asked >= 14
    for model in models:
        assert records(model.table(lake)) == model.expected()
