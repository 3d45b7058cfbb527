"""Tests of the compactor's streaming query over all streams.

New segments, repetition, lost checkpoints, failures, deletions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.lake.errors import LakeError, LeaseLost
from lakestream.lake.staging import staging
from lakestream.lake.staging.clone_request import ANSWER_FILE, REQUEST_FILE
from lakestream.lake.storage import paths
from lakestream.lake.storage.locks import JvmLock
from lakestream.lake.table import batches
from lakestream.lake.table.state import position_of
from lakestream_spark.write import compactor as compactor_module
from lakestream_spark.write import lake_compaction
from lakestream_spark.write.clones import Clone
from lakestream_spark.write.compactor import WORKER_TRIES, Compactor
from lakestream_spark.write.lake_compaction import WORKER_LATE, BatchReport
from lakestream_spark.write.stream_compaction import StreamCompaction
from tests.lake.model import StreamModel, flights
from tests.lake.tables import records, version

pytestmark = pytest.mark.lake


@pytest.fixture
def compactor(spark: Any, lake: Path) -> Iterator[Callable[..., Compactor]]:
    """Yield a function that makes compactors of the test's lake one after the other, as successive processes would."""
    made: list[Compactor] = []

    def make(checkpoint: Path | None = None, **more: Any) -> Compactor:
        if made:
            made[-1].stop()
            made[-1].release()
        made.append(Compactor(spark, str(lake), checkpoint and str(checkpoint), **more))
        assert made[-1].acquire()
        return made[-1]

    yield make
    for each in made:
        each.stop()
        each.release()


def stream(lake: Path, tmp_path: Path, name: str, account: str = "$G", count: int = 50) -> StreamModel:
    model = StreamModel(tmp_path / "logs" / account / name, name, uid=f"U-{name}-{account}", account=account)
    model.publish(flights(count))
    model.stage(lake)
    return model


def check(lake: Path, *models: StreamModel) -> None:
    for model in models:
        assert records(model.table(lake)) == model.expected()


def caught_up(lake: Path, model: StreamModel) -> bool:
    return position_of(model.table(lake), model.identity.uid) == model.sealed[-1].last_index


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Poll until the condition is true, for work of another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def late_worker(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the first Python worker of a streaming source start later than Spark waits.

    Return the file that shows it.
    """
    program, began = tmp_path / "python", tmp_path / "began"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *python_streaming_source_runner*) if mkdir {began} 2>/dev/null; then exec sleep 60; fi;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(program))
    return began


def test_a_python_worker_that_does_not_connect_back_is_started_again(
    spark: Any, lake: Path, tmp_path: Path, late_worker: Path
) -> None:
    model = stream(lake, tmp_path, "A")
    complaints: list[str] = []
    compactor = Compactor(spark, str(lake), complain=complaints.append)
    assert compactor.acquire()
    try:
        report = compactor.once()
    finally:
        compactor.stop()
        compactor.release()
    assert late_worker.exists()
    assert not report.failures
    check(lake, model)
    [said] = complaints
    assert said == f"the streaming query has ended: {WORKER_LATE}; try 1 of {WORKER_TRIES}, the next in 1 s"


def test_workers_that_never_start_end_the_compactor(spark: Any, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[str] = []
    compactor = Compactor(spark, str(lake), complain=complaints.append)

    def late(*_: object) -> None:
        raise RuntimeError("Timed out while waiting for the Python worker to connect back")

    monkeypatch.setattr(compactor_module, "WORKER_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(compactor, "_start", late)
    try:
        with pytest.raises(LakeError, match="the streaming query has ended: Spark's Python worker did not start"):
            compactor.once()
        assert len(complaints) == WORKER_TRIES - 1
        with pytest.raises(LakeError, match="did not start"):
            compactor.start(1)
    finally:
        compactor.stop()


def test_a_checkpoint_that_a_kill_left_half_written_is_begun_anew(
    compactor: Callable[[Path], Compactor], lake: Path, tmp_path: Path
) -> None:
    model = stream(lake, tmp_path, "A")
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_bytes(b"")  # Spark: "offsets should be empty on batch 0"
    (checkpoint / "mine").write_text("not Spark's")
    compactor(checkpoint).once()
    check(lake, model)
    assert (checkpoint / "mine").exists()


def test_a_lake_that_goes_away_in_a_commit_is_not_begun_anew(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stream(lake, tmp_path, "A")
    running = compactor()
    running.once()
    model.publish(flights(20))
    model.stage(lake)
    aside, gather = lake.with_name("aside"), batches.gather

    def unmounted(*arguments: Any) -> Any:
        found = gather(*arguments)
        lake.rename(aside)
        return found

    monkeypatch.setattr(batches, "gather", unmounted)
    with pytest.raises(Exception, match=r"(?s).*"):  # the query, whose checkpoint is away, or the stream's commit
        running.once()
    assert not lake.exists()
    aside.rename(lake)
    monkeypatch.undo()
    compactor().once()
    check(lake, model)


@pytest.mark.smoke
def test_once_compacts_all_streams_and_again_changes_nothing(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    models = [stream(lake, tmp_path, name) for name in ("A", "B", "KV_c%d")]
    models.append(stream(lake, tmp_path, "A", account="TEAM"))
    compactor().once()
    check(lake, *models)
    before = [version(model.table(lake)) for model in models]
    assert compactor().once() == BatchReport(0, 0, pytest.approx(0, abs=60), {})
    models[1].publish(flights(20))
    models[1].stage(lake)
    compactor().once()
    check(lake, *models)
    after = [version(model.table(lake)) for model in models]
    assert [new - old for old, new in zip(before, after, strict=True)] == [0, 1, 0, 0]


def test_a_table_that_went_missing_is_made_again_from_what_is_staged(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    """A missing table is compacted again from staged segments, although the checkpoint counts them as done."""
    model = stream(lake, tmp_path, "A")
    compactor().once()
    shutil.rmtree(model.table(lake))
    compactor().once()
    check(lake, model)


def test_one_streams_trouble_stays_its_own_and_ends_with_its_cause(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    good = stream(lake, tmp_path, "GOOD")
    bad = StreamModel(tmp_path / "bad", "BAD", uid="U-BAD")
    bad.publish(flights(10))
    first = bad.seal()
    bad.publish(flights(10))
    bad.stage(lake)
    report = compactor().once()
    ((directory, reason),) = report.failures.items()
    assert directory == paths.staging(str(lake), "BAD", "U-BAD")
    assert "missing" in reason
    assert "\n" not in reason
    check(lake, good)
    bad.stage(lake, first)
    assert compactor().once().failures == {}
    check(lake, good, bad)


def test_a_damaged_segment_is_reported_in_one_line(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    model = stream(lake, tmp_path, "A", count=1000)
    (segment,) = staging.segments(paths.staging(str(lake), "A", model.identity.uid))
    content = bytearray(Path(segment.path).read_bytes())
    content[len(content) // 3] ^= 1
    os.unlink(segment.path)
    Path(segment.path).write_bytes(content)
    ((_, reason),) = compactor().once().failures.items()
    assert segment.path in reason
    assert "the crc of the frame does not match" in reason


@pytest.mark.smoke
def test_deleted_streams_lose_their_tables(compactor: Callable[[], Compactor], lake: Path, tmp_path: Path) -> None:
    kept, gone = stream(lake, tmp_path, "KEPT"), stream(lake, tmp_path, "GONE")
    never = stream(lake, tmp_path, "NEVER")
    staging.mark_deleted(str(lake), never.identity)
    compactor().once()
    check(lake, kept, gone)
    staging.mark_deleted(str(lake), gone.identity)
    compactor().once()
    check(lake, kept)
    assert os.listdir(lake / "streams") == ["KEPT"]
    assert os.listdir(lake / "segments") == ["KEPT"]
    assert not (lake / "_removed").exists() or os.listdir(lake / "_removed") == []


def test_a_deleted_stream_that_cannot_be_dropped_does_not_end_the_compactor(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    good, gone = stream(lake, tmp_path, "GOOD"), stream(lake, tmp_path, "GONE")
    running = compactor()
    running.once()
    lost = Clone(gone.table(lake), str(tmp_path / "an absent clone"), 1, time.time_ns())
    (lake / paths.CLONES).mkdir()
    entry = lake / paths.CLONES / "entry.json"
    entry.write_bytes(msgspec.json.encode(lost))
    staging.mark_deleted(str(lake), gone.identity)
    good.publish(flights(10))
    good.stage(lake)
    report = running.once()
    ((directory, reason),) = report.failures.items()
    assert directory == paths.staging(str(lake), "GONE", gone.identity.uid)
    assert "cannot be read" in reason
    check(lake, good)
    entry.unlink()
    assert running.once().failures == {}
    assert os.listdir(lake / "streams") == ["GOOD"]


def test_a_table_whose_log_is_damaged_stops_its_own_stream_only(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    good, bad = stream(lake, tmp_path, "GOOD"), stream(lake, tmp_path, "BAD")
    compactor().once()
    log = Path(bad.table(lake)) / "_delta_log"
    newest = max(log.glob("*.json"))
    whole = newest.read_bytes()
    newest.write_bytes(b'{"txn":{"appId":"lakes')
    for model in (good, bad):
        model.publish(flights(10))
        model.stage(lake)
    report = compactor().once()
    assert list(report.failures) == [paths.staging(str(lake), "BAD", bad.identity.uid)]
    check(lake, good)
    newest.write_bytes(whole)
    assert compactor().once().failures == {}
    check(lake, good, bad)


def test_invariant_unreadable_places_of_the_staging_area_stop_no_other_stream(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    """Unreadable entries of the staging area do not stop other streams.

    A truncated identity, a directory in place of one, and a clone request with an invalid answer.
    """
    names = ("CUT", "DIR", "ASKED", "GOOD")
    models = {name: stream(lake, tmp_path, name) for name in names}
    places = {name: Path(paths.staging(str(lake), name, model.identity.uid)) for name, model in models.items()}
    (places["CUT"] / paths.STREAM_FILE).write_bytes(b'{"name":"CU')
    (places["DIR"] / paths.STREAM_FILE).unlink()
    (places["DIR"] / paths.STREAM_FILE).mkdir()
    (places["ASKED"] / REQUEST_FILE).write_bytes(b"")
    (places["ASKED"] / ANSWER_FILE).write_bytes(b"?")
    told: list[str] = []
    running = Compactor(spark, str(lake), complain=told.append)
    assert running.acquire()
    try:
        for _ in range(2):
            failures = running.once().failures
            assert {str(places["CUT"]), str(places["DIR"])} <= failures.keys()
            assert str(places["GOOD"]) not in failures
            check(lake, models["GOOD"])
            models["GOOD"].publish(flights(10))
            models["GOOD"].stage(lake)
    finally:
        running.stop()
        running.release()
    for name in ("CUT", "DIR", "ASKED"):
        assert any(str(places[name]) in line for line in told), (name, told)
    assert len([line for line in told if str(places["CUT"]) in line]) == 1, "once, not at every look"


def test_a_stream_that_is_deleted_while_it_is_planned_is_forgotten(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = stream(lake, tmp_path, "A"), stream(lake, tmp_path, "B")
    running, plan = compactor(), StreamCompaction.plan

    def vanishing(self: StreamCompaction, through: int) -> Any:
        shutil.rmtree(paths.staging(str(lake), "A", model.identity.uid), ignore_errors=True)
        return plan(self, through)

    monkeypatch.setattr(StreamCompaction, "plan", vanishing)
    assert running.once().failures == {}
    check(lake, other)
    assert running.once().failures == {}


@pytest.mark.parametrize("step", ["plan", "commit"])
def test_a_step_that_does_not_end_is_reported_once_and_holds_up_no_housekeeping(
    compactor: Callable[..., Compactor], lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    model, told = stream(lake, tmp_path, "A"), list[str]()
    go_on, real = threading.Event(), getattr(StreamCompaction, step)
    running = compactor(complain=told.append)

    def hanging(self: StreamCompaction, *arguments: Any) -> Any:
        monkeypatch.setattr(lake_compaction, "LONG_SECONDS", 0.0)
        go_on.wait()
        return real(self, *arguments)

    monkeypatch.setattr(StreamCompaction, step, hanging)
    running.start(0.2)
    try:
        until(lambda: running.tend() or any(model.identity.uid in line for line in told))
        running.tend()
        place = f"segments/A/{model.identity.uid}: "
        assert sum(place in line for line in told) == 1, told
    finally:
        go_on.set()
    until(lambda: caught_up(lake, model))


def test_once_that_lost_its_lease_is_not_done(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream(lake, tmp_path, "A")
    running = compactor()

    def lost() -> None:
        raise LeaseLost("the lock")

    monkeypatch.setattr(running._lock, "check", lost)
    with pytest.raises(LeaseLost):
        running.once()


def test_while_it_runs_news_is_compacted_and_stop_waits_for_the_commit(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    model = stream(lake, tmp_path, "A")
    running = compactor()
    running.start(0.2)
    until(lambda: caught_up(lake, model))
    check(lake, model)
    model.remove([3])
    model.publish(flights(70))
    model.stage(lake)
    until(lambda: caught_up(lake, model))
    running.check()
    running.stop()
    check(lake, model)


def test_a_lake_has_one_compactor(compactor: Callable[[], Compactor], spark: Any, lake: Path) -> None:
    first = compactor()
    second = Compactor(spark, str(lake))
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
    second.stop()


def test_a_try_for_a_lock_does_not_take_it_from_its_holder_in_the_same_jvm(spark: Any, lake: Path) -> None:
    path = str(lake / "_locks" / "some.lock")
    holder, other = JvmLock(spark, path), JvmLock(spark, path)
    assert holder.acquire()
    assert not other.acquire()
    elsewhere = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    )

    def is_free() -> bool:
        return subprocess.run([sys.executable, "-c", elsewhere, path], capture_output=True).returncode == 0

    assert not is_free()
    holder.release()
    assert is_free()
    assert other.acquire()
    other.release()
