"""The streaming query over all streams: news, repetition, lost checkpoints, failures that stay alone, deletion."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake import paths, position, staging
from lakestream.lake.compactor import BatchReport, Compactor
from tests.lake.model import StreamModel, flights
from tests.lake.tables import records, version

pytestmark = pytest.mark.lake


@pytest.fixture
def compactor(spark: Any, lake: Path) -> Iterator[Callable[[], Compactor]]:
    """Makes compactors of the test's lake, one after the other, as one process after the other would."""
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


def stream(lake: Path, tmp_path: Path, name: str, account: str = "$G", count: int = 50) -> StreamModel:
    model = StreamModel(tmp_path / "logs" / account / name, name, uid=f"U-{name}-{account}", account=account)
    model.publish(flights(count))
    model.stage(lake)
    return model


def check(lake: Path, *models: StreamModel) -> None:
    for model in models:
        assert records(model.table(lake)) == model.expected()


def caught_up(lake: Path, model: StreamModel) -> bool:
    return position.read(model.table(lake), model.identity.uid) == model.sealed[-1].last_index


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_a_checkpoint_that_a_kill_left_half_written_is_begun_anew(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    model = stream(lake, tmp_path, "A")
    checkpoint = Path(paths.checkpoint(str(lake)))
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_bytes(b"")  # Spark: "offsets should be empty on batch 0"
    (checkpoint / "mine").write_text("not Spark's")
    compactor().once()
    check(lake, model)
    assert (checkpoint / "mine").exists()


def test_once_compacts_all_streams_and_again_changes_nothing(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    models = [stream(lake, tmp_path, name) for name in ("A", "B", "KV_c%d")]
    models.append(stream(lake, tmp_path, "A", account="TEAM"))
    compactor().once()
    check(lake, *models)
    before = [version(model.table(lake)) for model in models]
    assert compactor().once() == BatchReport(0, 0, pytest.approx(0, abs=5), {})
    models[1].publish(flights(20))
    models[1].stage(lake)
    shutil.rmtree(paths.checkpoint(str(lake)))  # a lost checkpoint, and news
    compactor().once()
    check(lake, *models)
    after = [version(model.table(lake)) for model in models]
    assert [new - old for old, new in zip(before, after, strict=True)] == [0, 1, 0, 0]


def test_a_table_that_went_missing_is_made_again_from_what_is_staged(
    compactor: Callable[[], Compactor], lake: Path, tmp_path: Path
) -> None:
    """The checkpoint believes these segments done; the table decides."""
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
