"""Tests of the pipeline: the streaming query is the compaction, whatever became of its checkpoint."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.staging.staging import REFUSAL_FILE
from lakestream.lake.storage import paths
from lakestream_spark.write import lake_compaction as module
from lakestream_spark.write.compactor import Checkpoint, Compactor
from tests.lake.model import StreamModel, flights
from tests.lake.tables import records, version

pytestmark = pytest.mark.lake


@pytest.fixture
def compactor(spark: Any, lake: Path) -> Iterator[Callable[[], Compactor]]:
    """Yield a function that makes compactors of the test's lake one after the other, as successive processes would."""
    made: list[Compactor] = []

    def make() -> Compactor:
        if made:
            made[-1].stop()
            made[-1].release()
        made.append(Compactor(spark, str(lake)))
        assert made[-1].acquire()
        return made[-1]

    yield make
    for each in made:
        each.stop()
        each.release()


def streams(lake: Path, tmp_path: Path, count: int) -> list[StreamModel]:
    models = [StreamModel(tmp_path / f"S{n}", f"S{n}", f"U{n}") for n in range(count)]
    publish(lake, models)
    return models


def publish(lake: Path, models: list[StreamModel]) -> None:
    for model in models:
        model.publish(flights(30, subjects=2))
        model.stage(lake)


def check(lake: Path, models: list[StreamModel]) -> None:
    for model in models:
        assert records(model.table(lake)) == model.expected()


@pytest.mark.smoke
def test_without_the_query_nothing_reaches_a_table_and_with_it_everything(
    spark: Any, compactor: Callable[[], Compactor], lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README: "written exactly once by Spark". A micro-batch is one Spark job, whatever the number of streams."""
    models = streams(lake, tmp_path, 5)
    running = compactor()
    for _ in range(3):
        running.tend()
    assert not (lake / "streams").exists()
    running.once()
    check(lake, models)
    publish(lake, models)
    jobs: list[int] = []
    batch, next_job = Compactor.batch, spark.sparkContext._jsc.sc().dagScheduler().nextJobId

    def counted(self: Compactor, *given: Any) -> None:
        before = next_job()
        batch(self, *given)
        jobs.append(next_job() - before)

    monkeypatch.setattr(Compactor, "batch", counted)
    assert compactor().once().streams == 5
    assert jobs == [1]
    check(lake, models)


def test_a_restart_goes_on_where_the_checkpoint_stands(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    models = streams(lake, tmp_path, 2)
    compactor().once()
    checkpoint = Checkpoint(paths.checkpoint(str(lake)))
    assert set(checkpoint.offered(0)) == {f"segments/S{n}/U{n}" for n in range(2)}
    publish(lake, models[:1])
    assert compactor().once().streams == 1
    assert checkpoint.offered(1) == {"segments/S0/U0": models[0].sealed[-1].last_index}
    check(lake, models)


def test_a_checkpoint_that_is_lost_stale_or_ahead_neither_loses_nor_repeats_a_row(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    models, place, stale = streams(lake, tmp_path, 2), lake / "_compactor", tmp_path / "stale"
    compactor().once()
    shutil.copytree(place, stale)
    publish(lake, models)
    compactor().once()
    before = [version(model.table(lake)) for model in models]
    shutil.rmtree(place)
    assert compactor().once().rows == 0, "it was lost"
    shutil.rmtree(place)
    shutil.copytree(stale, place)
    assert compactor().once().rows == 0, "it is older than the tables"
    assert [version(model.table(lake)) for model in models] == before
    shutil.rmtree(models[0].table(lake))
    assert compactor().once().rows == len(models[0].expected()), "it is ahead of a table"
    check(lake, models)


def test_a_job_that_fails_as_a_whole_fails_only_the_stream_that_it_was(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, written = streams(lake, tmp_path, 3), module.written

    def failing(rows: Any, tasks: Any) -> Any:
        if "segments/S1/U1" in tasks:
            raise RuntimeError("Python worker exited unexpectedly (crashed)")
        return written(rows, tasks)

    with monkeypatch.context() as patch:
        patch.setattr(module, "written", failing)
        report = compactor().once()
    assert list(report.failures) == [paths.staging(str(lake), "S1", "U1")]
    check(lake, [models[0], models[2]])
    assert compactor().once().failures == {}
    check(lake, models)


def test_what_fails_while_the_compactor_stops_is_no_failure_of_a_stream(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = streams(lake, tmp_path, 2)
    running = compactor()

    def ended(rows: Any, tasks: Any) -> Any:
        running._stopping.set()
        raise RuntimeError("Answer from Java side is empty")

    with monkeypatch.context() as patch:
        patch.setattr(module, "written", ended)
        running.once()
    for model in models:
        assert not Path(paths.staging(str(lake), model.identity.name, model.identity.uid), REFUSAL_FILE).exists()
    compactor().once()
    check(lake, models)


PROGRAM = """
import sys
from lakestream_spark import session as sessions
from lakestream_spark.write.compactor import Compactor

master, lake = sys.argv[1:]
spark = sessions.session("scale out", extra={"spark.master": master, "spark.executor.memory": "600m",
                                             "spark.executor.cores": "1", "spark.cores.max": "2"})
running = Compactor(spark, lake)
assert running.acquire()
report = running.once()
executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
worked = sorted(each.id() for each in (executors.apply(n) for n in range(executors.size())) if each.totalTasks())
print("rows", report.rows, "failures", len(report.failures), "executors", worked, flush=True)
running.stop()
running.release()
spark.stop()
"""


def scaled_out(lake: Path, tmp_path: Path, master: str) -> str:
    """Run the compactor on a cluster; return what it prints."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), master, str(lake)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def large(lake: Path, tmp_path: Path) -> list[StreamModel]:
    """Return two streams whose segments are worth two tasks."""
    models = [StreamModel(tmp_path / f"L{n}", f"L{n}", f"UL{n}") for n in range(2)]
    for model in models:
        for _ in range(2):
            model.publish([(b"s.1", b"", os.urandom(1 << 16)) for _ in range(300)])
            model.stage(lake)
    return models


@pytest.mark.heavy
def test_tasks_run_on_both_executors_of_a_local_cluster(lake: Path, tmp_path: Path) -> None:
    models = large(lake, tmp_path)
    assert "rows 1200 failures 0 executors ['0', '1']" in scaled_out(lake, tmp_path, "local-cluster[2,1,1024]")
    check(lake, models)


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a standalone cluster with two workers."""
    import pyspark

    from lakestream_spark import session as sessions

    runner = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    environment = {**os.environ, **sessions.environ(), "SPARK_NO_DAEMONIZE": "1"}
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    parts = [["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    worker = ["worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g", "--webui-port", "0"]
    parts += [[*worker, "-d", f"{tmp_path}/w{number}", url] for number in range(2)]
    running = [
        subprocess.Popen(
            [runner, f"org.apache.spark.deploy.{part[0]}", *part[1:]],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for part in parts
    ]  # fmt: skip
    yield url
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.heavy
def test_tasks_run_on_both_workers_of_a_standalone_cluster(lake: Path, tmp_path: Path, standalone: str) -> None:
    models = large(lake, tmp_path)
    assert "rows 1200 failures 0 executors ['0', '1']" in scaled_out(lake, tmp_path, standalone)
    check(lake, models)
