"""Tests of the file beside a table that stores removal times, and of the version that contains a point in time."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.read.history.past_table import TablePast
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.lake.table import at, batches
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.at import NotRecorded, TimeTravelError, as_of, open_log, version_of_point
from lakestream.lake.table.departures import DeletedMessages, DeparturesGone
from lakestream.lake.table.progress import TableProgress
from lakestream.log.format.departures import Departures, Point
from lakestream.log.format.segment import Footer

pytestmark = pytest.mark.unit


def left() -> Departures:
    departures = Departures()
    departures.note((4,), 9, 100)
    departures.note(range(1, 4), 10, 200)
    departures.note((9,), 11, 300)
    return departures


def commit(
    table: Path, version: int, progress: TableProgress | None, operation: str = "WRITE", first_ns: int = 0
) -> None:
    """Write a commit with the fields of the compactor's that times depend on."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    told = (
        None if progress is None else json.dumps({name: getattr(progress, name) for name in progress.__struct_fields__})
    )
    info = {"commitInfo": {"operation": operation, "inCommitTimestamp": version, "userMetadata": told}}
    add = {"add": {"path": "x", "stats": json.dumps({"minValues": {"time_ns": first_ns}})}}
    lines = [info, add] if operation == "WRITE" and progress else [info]
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def reached(last_seq: int, moment_ns: int, departed_: int = 0, deletes: int = 0) -> TableProgress:
    return TableProgress(
        uid="U",
        last_index=last_seq * 10,
        last_seq=last_seq,
        last_time_ns=moment_ns - 5,
        moment_ns=moment_ns,
        departed=departed_,
        deletes=deletes,
    )


def test_what_was_gone_at_a_point_is_in_the_file(tmp_path: Path) -> None:
    storage, table = open_storage(tmp_path), str(tmp_path / "streams" / "S")
    identify(storage)
    departure_files.write(storage, table, 77, left())
    again = departure_files.read(storage, table, 77)
    assert departure_files.gone(again, Point(seq=8)) == DeletedMessages(runs=[])
    assert departure_files.gone(again, Point(seq=9)) == DeletedMessages(runs=[(4, 4)])
    assert departure_files.gone(again, Point(before_ns=201)) == DeletedMessages(runs=[(1, 4)]), (
        "neighbours are one run, ascending"
    )
    assert departure_files.gone(again) == DeletedMessages(runs=[(1, 4), (9, 9)])
    assert departure_files.sequences(departure_files.gone(again)).tolist() == [1, 2, 3, 4, 9]
    with pytest.raises(DeparturesGone, match="00078"):
        departure_files.read(storage, table, 78)


def test_a_point_is_in_the_first_commit_that_reaches_it(tmp_path: Path) -> None:
    commit(tmp_path, 0, None, "CREATE TABLE")
    commit(tmp_path, 1, reached(10, 1000), first_ns=500)
    commit(tmp_path, 2, reached(20, 2000, departed_=3, deletes=1), first_ns=1001)
    commit(tmp_path, 3, None, "DELETE")
    commit(tmp_path, 4, None, "OPTIMIZE")
    commit(tmp_path, 5, reached(30, 3000, departed_=1, deletes=1), first_ns=2001)
    log = open_log(tmp_path)

    def version(point: Point) -> int | None:
        return version_of_point(log, point).version

    assert [version(Point(seq=seq)) for seq in (1, 10, 11, 20, 21, 30, 31)] == [1, 1, 2, 2, 5, 5, None]
    # What happened at T did not happen before it: a commit whose last event is earlier than T does not suffice.
    assert [version(Point(before_ns=ns)) for ns in (1, 1000, 1001, 2000, 2001, 3000)] == [1, 1, 2, 2, 5, 5]
    beyond = version_of_point(log, Point(before_ns=3001))
    assert (beyond.version, beyond.progress) == (None, log.summary(5).progress)
    assert log.pending_deletes(5) == log.summary(5).progress, "its deletes have not been seen"
    assert log.pending_deletes(4) is None
    assert as_of(tmp_path, 499).version is None, "before the first message"
    assert as_of(tmp_path, 1500).version == 2


def test_a_past_that_is_gone_or_was_not_kept_is_an_error(tmp_path: Path) -> None:
    commit(tmp_path, 7, reached(10, 1000))
    commit(tmp_path, 8, TableProgress(uid="U", last_index=200, last_seq=20, last_time_ns=2000))
    commit(tmp_path, 9, reached(30, 3000))
    log = open_log(tmp_path)
    with pytest.raises(TimeTravelError, match=r"sequence 10 is before the versions .*lakestream\.time_travel"):
        version_of_point(log, Point(seq=10))
    with pytest.raises(NotRecorded, match="sequence 20"):
        version_of_point(log, Point(seq=20))
    assert version_of_point(log, Point(seq=21)).version == 9


def test_files_go_with_the_commits_that_log_cleanup_takes(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    for version, seq in ((3, 10), (4, 20), (5, 30)):
        commit(tmp_path, version, reached(seq, seq * 100, 3, 1))
        departure_files.write(storage, str(tmp_path), seq * 10, left())
    assert departure_files.sweep(storage, str(tmp_path)) == 0
    (tmp_path / "_delta_log" / f"{3:020d}.json").unlink()
    assert departure_files.sweep(storage, str(tmp_path)) == 1
    with pytest.raises(DeparturesGone):
        departure_files.read(storage, str(tmp_path), 100)
    assert len(departure_files.read(storage, str(tmp_path), 200)) == 3


def unkept(last_seq: int, last_time_ns: int, moment_ns: int = 0) -> TableProgress:
    """Return the progress that a commit stores for a stream without time travel."""
    return TableProgress(
        uid="U", last_index=last_seq * 10 + 5, last_seq=last_seq, last_time_ns=last_time_ns, moment_ns=moment_ns
    )


def test_commits_that_come_while_a_point_is_looked_for_do_not_move_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, 0, None, "CREATE TABLE")
    commit(tmp_path, 1, reached(10, 1000), first_ns=500)
    past = TablePast(str(tmp_path), "U")
    past._find(Point(seq=1))
    bisect = at.bisect_left

    def meanwhile(*arguments: Any, **named: Any) -> int:
        found = bisect(*arguments, **named)
        if not (tmp_path / "_delta_log" / f"{2:020d}.json").exists():
            commit(tmp_path, 2, reached(20, 2000), first_ns=1100)
            asking = threading.Thread(target=lambda: past._find(Point(seq=1)))
            asking.start()
            asking.join()
        return found

    monkeypatch.setattr(at, "bisect_left", meanwhile)
    kept = past._find(Point(seq=25))
    assert (kept.version, kept.progress) == (None, reached(10, 1000)), "beyond the table as it was listed"
    assert past._find(Point(seq=15)).version == 2


def test_threads_that_list_commits_anew_do_not_disturb_each_other(tmp_path: Path) -> None:
    for version in range(600):
        commit(tmp_path, version, reached(version + 1, version * 10 + 10))
    past = TablePast(str(tmp_path), "U")

    def ask(start: int) -> list[int | None]:
        return [past._find(Point(seq=seq)).version for seq in range(start, 600, 37)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(ask, (1, 2, 3)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [[seq - 1 for seq in range(start, 600, 37)] for start in (1, 2, 3)]


def test_the_age_when_a_stream_kept_its_past_is_read_as_before_when_it_does_not_any_more(tmp_path: Path) -> None:
    commit(tmp_path, 0, None, "CREATE TABLE")
    commit(tmp_path, 1, reached(10, 1005, departed_=3, deletes=1), first_ns=500)
    commit(tmp_path, 2, None, "DELETE")
    before = as_of(tmp_path, 900)
    assert (before.version, before.progress) == (1, reached(10, 1005, 3, 1))
    commit(tmp_path, 3, unkept(20, 3000, 1005), first_ns=2000)
    assert as_of(tmp_path, 900) == before, "version 1 has dead rows too: its departures have to be left out"
    assert as_of(tmp_path, 2500).version == 3
    assert as_of(tmp_path, 3500).version == 3
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    assert as_of(tmp_path, 2500).version == 3
    commit(tmp_path, 2, reached(10, 1005, departed_=3, deletes=1), first_ns=500)
    with pytest.raises(TimeTravelError, match="is before the versions"):
        as_of(tmp_path, 900)


def test_a_moment_before_the_first_message_of_the_past_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 0, None, "CREATE TABLE")
    commit(tmp_path, 1, unkept(10, 1000), first_ns=500)
    commit(tmp_path, 2, None, "DELETE")
    commit(tmp_path, 3, unkept(10, 1000))  # a purge at 1500 whose time was not stored
    commit(tmp_path, 4, reached(20, 3005), first_ns=2500)
    log = open_log(tmp_path)
    for before_ns in (1001, 1200, 2500):
        with pytest.raises(NotRecorded, match="was not kept at"):
            version_of_point(log, Point(before_ns=before_ns))
    assert version_of_point(log, Point(before_ns=2501)).version == 4
    assert version_of_point(log, Point(seq=11)).version == 4
    assert TablePast(str(tmp_path), "U").was([b">"], Point(before_ns=4000), 10).kept
    commit(tmp_path, 5, unkept(20, 3000, 3005))
    assert not TablePast(str(tmp_path), "U").was([b">"], Point(before_ns=4000), 10).kept


def segment_footer(last_seq: int, last_time: int, left_: Departures | None, metadata: dict[str, str]) -> Footer:
    return Footer(
        uid="U",
        stream="S",
        account="$G",
        first_index=last_seq,
        last_index=last_seq,
        last_term=1,
        first_seq=last_seq,
        last_seq=last_seq,
        first_time=last_time,
        last_time=last_time,
        runs=[(last_seq, 1)],
        count=1,
        bytes=1,
        closed_ns=last_time,
        floor=1,
        removed=[],
        subjects=1,
        config=json.dumps({"name": "S", "metadata": metadata}).encode(),
        departures=None if left_ is None else left_.pack(),
    )


def test_moments_ascend_over_the_commits_of_a_stream(tmp_path: Path) -> None:
    removed = Departures()
    removed.note((1,), 2, 2000)  # a purge, long after the only message
    later = Departures()
    later.note((2,), 3, 1500)  # in a mirror messages have the times of their origin
    travels = {"lakestream.time_travel": "1d"}
    footers = [
        segment_footer(1, 1000, removed, travels),
        segment_footer(2, 1400, None, {}),
        segment_footer(3, 1500, later, travels),
    ]
    before: TableProgress | None = None
    for version, footer in enumerate(footers):
        batch = batches.gather("U", [batches.Part("x", version, footer.last_index, 1)], [footer], before)
        assert batch.progress.moment_ns == 2000
        commit(tmp_path, version, batch.progress, first_ns=footer.last_time)
        before = batch.progress
    assert version_of_point(open_log(tmp_path), Point(before_ns=1800)).version == 0


def test_the_table_of_another_stream_of_that_name_has_no_past(tmp_path: Path) -> None:
    table = tmp_path / "t"
    commit(table, 0, None, "CREATE TABLE")
    commit(table, 1, reached(10, 1005), first_ns=500)
    past = TablePast(str(table), "V")
    found = past.was([b">"], Point(seq=3), 10)
    assert (found.within, found.position) == (False, 0), "the log alone can know"
    shutil.rmtree(table)
    commit(table, 0, None, "CREATE TABLE")
    mine = TableProgress(uid="V", last_index=999, last_seq=99, last_time_ns=9000, moment_ns=9000, departed=0)
    commit(table, 1, mine, first_ns=8000)
    assert past._find(Point(seq=3)).progress == mine, "not what was read of the table before"
