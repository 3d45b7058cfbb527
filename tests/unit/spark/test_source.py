"""The streaming source: which streams a batch offers, without Spark and without tables."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lakestream.lake.staging import staging
from lakestream.lake.storage.lake import open_storage
from lakestream_spark.write import source
from lakestream_spark.write.source import Segments, SegmentsReader, balanced, offset_of
from tests.lake.model import StreamModel, flights

pytestmark = pytest.mark.unit


class Clock:
    """The clock of the source; a wait for news moves it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def stream(lake: Path, name: str, segments: int = 1, messages: int = 20) -> StreamModel:
    model = StreamModel(lake.parent / name, name, name)
    for _ in range(segments):
        model.publish(flights(messages))
        model.stage(lake)
    return model


def look(reader: SegmentsReader, start: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the end of the next batch, and what it offers."""
    end = reader.latestOffset(start, ReadAllAvailable())
    return end, offset_of(end).offered_since(offset_of(start))


def rows(reader: SegmentsReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
    parts = reader.partitions(start, end)
    return [row for part in parts for row in part.rows if isinstance(part, Segments)]


def test_a_row_is_one_segment_and_follows_on_the_one_before(lake: Path, clock: Clock) -> None:
    model = stream(lake, "A", segments=3)
    reader = SegmentsReader(str(lake))
    start = reader.initialOffset()
    end, offered = look(reader, start)
    assert offered == {"segments/A/A": model.sealed[-1].last_index}
    found = rows(reader, start, end)
    assert [row[2:4] for row in found] == [
        (before, after)
        for before, after in zip(
            [0, *(each.last_index for each in model.sealed[:-1])],
            [each.last_index for each in model.sealed],
            strict=True,
        )
    ]


def test_a_stream_that_its_table_lacks_is_offered_again_after_a_pause(lake: Path, clock: Clock) -> None:
    stream(lake, "A")
    reader = SegmentsReader(str(lake))
    end, _ = look(reader, reader.initialOffset())
    assert look(reader, end) == (end, {}), "not at once"
    clock.now += source.WAIT_SECONDS
    end, offered = look(reader, end)
    assert list(offered) == ["segments/A/A"]


def test_pauses_of_a_failing_stream_grow_and_end_when_it_stages_more(lake: Path, clock: Clock) -> None:
    model = stream(lake, "A")
    reader = SegmentsReader(str(lake))
    end, _ = look(reader, reader.initialOffset())
    staging.refuse(open_storage(str(lake)), str(lake / "segments" / "A" / "A"), "no")
    times = []
    for _ in range(400):
        clock.now += 1.0
        end, offered = look(reader, end)
        if offered:
            times.append(clock.now - 1000.0)
    pauses = [later - before for before, later in itertools.pairwise(times)]
    assert pauses[:6] == [2, 4, 8, 16, 32, source.LONGEST_PAUSE_SECONDS]
    model.publish(flights(5))
    model.stage(lake)
    assert look(reader, end)[1] == {"segments/A/A": model.sealed[-1].last_index}


def test_a_checkpoint_of_an_older_release_is_the_beginning(lake: Path, clock: Clock) -> None:
    stream(lake, "A")
    assert list(look(SegmentsReader(str(lake)), {"segments/A/A": 7})[1]) == ["segments/A/A"]


def test_a_start_offers_what_the_checkpoint_has_and_the_table_lacks(lake: Path, clock: Clock) -> None:
    stream(lake, "A")
    first = SegmentsReader(str(lake))
    end, _ = look(first, first.initialOffset())
    assert list(look(SegmentsReader(str(lake)), end)[1]) == ["segments/A/A"]


def test_a_batch_is_bounded_and_small_backlogs_come_first(
    lake: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = stream(lake, "LARGE", segments=4, messages=200), stream(lake, "SMALL")
    monkeypatch.setattr(source, "BATCH_BYTES", 1)
    reader = SegmentsReader(str(lake))
    reached = {"segments/LARGE/LARGE": 0, "segments/SMALL/SMALL": 0}
    monkeypatch.setattr(reader, "_position", reached.__getitem__)
    start = reader.initialOffset()
    end, offered = look(reader, start)
    assert offered == {
        "segments/LARGE/LARGE": large.sealed[0].last_index,
        "segments/SMALL/SMALL": small.sealed[0].last_index,
    }
    assert look(reader, end) == (end, {}), "the table has none of it yet"
    for each in large.sealed[1:]:
        reached |= offered
        end, offered = look(reader, end)
        assert offered == {"segments/LARGE/LARGE": each.last_index}


def test_tasks_get_the_same_share_and_small_streams_stay_whole() -> None:
    mib = 1 << 20
    large = [("L", f"l{n}", n, n + 1, 16 * mib) for n in range(8)]
    small = [[(f"S{n}", f"s{n}{part}", part, part + 1, mib) for part in range(3)] for n in range(20)]
    parts = balanced([large, *small], 4)
    sizes = [sum(row[4] for row in part) / mib for part in parts]
    assert len(parts) == 4
    assert max(sizes) - min(sizes) < 20
    for number in range(20):
        assert sum(any(row[0] == f"S{number}" for row in part) for part in parts) == 1
    assert len({row[1] for part in parts for row in part}) == 68


def test_little_is_one_task() -> None:
    assert len(balanced([[("A", "a", 0, 1, 1000)], [("B", "b", 0, 1, 1000)]], 8)) == 1
