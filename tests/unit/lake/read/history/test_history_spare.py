"""Tests of reading old messages from staged segments if the table's files are damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.read.history.staged import FallbackHistory, StagedRows
from lakestream.lake.staging import staging
from lakestream.lake.storage import paths
from lakestream.log.format.record import Record
from tests.lake.model import StreamModel, flights
from tests.unit.lake.read.test_live import Table

pytestmark = pytest.mark.unit

STAGES = 6
EACH = 40


class Half:
    """Table whose newer files are damaged, staged segments of that part, and the expected messages."""

    def __init__(self, tmp_path: Path, seed: int = 1) -> None:
        dice = random.Random(seed)
        self.model = StreamModel(tmp_path / "log")
        table = Table(tmp_path / "lake", self.model)
        for number in range(STAGES):
            self.model.publish(flights(EACH, headers=True), per_frame=7)
            if number:
                self.model.remove(dice.sample(sorted(self.model.live), 5))
            if number == STAGES - 1:
                self.model.purge(4)
            self.model.stage(tmp_path / "lake")
            table.commit()
        self.path = table.path
        staged = staging.segments(table.directory)
        for segment in staged[: STAGES // 2]:
            Path(segment.path).unlink()
        self.spare = StagedRows(paths.staging(str(tmp_path / "lake"), "ORDERS", "UID1"))
        self.begins = EACH * (STAGES // 2) + 1
        for path in DeltaTable(table.path).file_uris():
            if min(pq.read_table(path, columns=["seq"])["seq"].to_pylist()) >= self.begins:
                Path(path).write_bytes(b"")
        self.live = [record for record in self.model.expected() if record.seq in self.model.live]

    def history(self) -> FallbackHistory:
        return FallbackHistory(TableHistory(self.path, below=self.spare.begins()), self.spare)

    def between(self, first: int, last: int) -> list[Record]:
        return [record for record in self.live if first <= record.seq <= last]


@pytest.fixture
def half(tmp_path: Path) -> Half:
    return Half(tmp_path)


def test_the_table_alone_does_not_answer(half: Half) -> None:
    with pytest.raises(HistoryUnavailable):
        TableHistory(half.path).read(1, 240, 240)


def test_reads_join_what_is_whole_with_what_is_staged(half: Half) -> None:
    history = half.history()
    assert half.spare.begins() == half.begins
    living = {record.seq for record in half.live}

    def alive(found: list[Record]) -> list[Record]:
        return [record for record in found if record.seq in living]

    for first, last in ((1, 240), (1, 50), (100, 140), (half.begins - 1, half.begins), (150, 239), (200, 200)):
        assert alive(history.read(first, last, 1000)) == half.between(first, last)
    assert alive(history.read(110, 240, 30)) == [
        r for r in half.between(110, 240) if r.seq <= history.read(110, 240, 30)[-1].seq
    ]
    subject = half.live[-1].subject
    assert alive(history.read(1, 240, 1000, [subject])) == [r for r in half.between(1, 240) if r.subject == subject]
    some = [record.seq for record in half.live[::7]]
    assert history.read_many(some) == half.live[::7]
    assert history.read_many(some, [subject]) == [r for r in half.live[::7] if r.subject == subject]


def test_a_read_with_a_limit_of_bytes_goes_on_where_it_ended(half: Half) -> None:
    history = half.history()
    found: list[Record] = []
    first = 1
    while some := history.read(first, 240, 1000, None, 500):
        assert sum(len(r.subject) + len(r.header) + len(r.data) for r in some) <= 500 or len(some) == 1
        found += some
        first = some[-1].seq + 1
    living = {record.seq for record in half.live}
    assert [record for record in found if record.seq in living] == half.live


def test_the_first_of_a_time_is_found_in_either(half: Half) -> None:
    history = half.history()
    for record in (half.live[0], half.live[40], half.live[-1]):
        assert history.first_at(record.time_ns) == record.seq
    assert history.first_at(half.live[-1].time_ns + 1) == 0


def test_nothing_staged_is_nothing_spare(tmp_path: Path) -> None:
    spare = StagedRows(str(tmp_path / "none"))
    assert spare.begins() == 0
    assert spare.read(1, 10, 10) == []
