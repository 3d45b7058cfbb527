"""The file beside a table that says when messages left their stream, and the version that a point is in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakestream.lake import departed
from lakestream.lake.departed import DeparturesGone
from lakestream.lake.segments import Dead
from lakestream.lake.storage import open_storage
from lakestream.lake.timetravel import CommitLog, NotKept, Progress, TimeTravelError, as_of, version_of_point
from lakestream.log.departures import Departures, Point

pytestmark = pytest.mark.unit


def left() -> Departures:
    departures = Departures()
    departures.note((4,), 9, 100)
    departures.note(range(1, 4), 10, 200)
    departures.note((9,), 11, 300)
    return departures


def commit(table: Path, version: int, progress: Progress | None, operation: str = "WRITE", first_ns: int = 0) -> None:
    """One commit as the compactor writes it, as far as times are asked of it."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    told = (
        None if progress is None else json.dumps({name: getattr(progress, name) for name in progress.__struct_fields__})
    )
    info = {"commitInfo": {"operation": operation, "inCommitTimestamp": version, "userMetadata": told}}
    add = {"add": {"path": "x", "stats": json.dumps({"minValues": {"time_ns": first_ns}})}}
    lines = [info, add] if operation == "WRITE" and progress else [info]
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def reached(last_seq: int, moment_ns: int, departed_: int = 0, deletes: int = 0) -> Progress:
    return Progress(
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
    departed.write(storage, table, 77, left())
    again = departed.read(storage, table, 77)
    assert departed.gone(again, Point(seq=8)) == Dead(runs=[])
    assert departed.gone(again, Point(seq=9)) == Dead(runs=[(4, 4)])
    assert departed.gone(again, Point(before_ns=201)) == Dead(runs=[(1, 4)]), "neighbours are one run, ascending"
    assert departed.gone(again) == Dead(runs=[(1, 4), (9, 9)])
    assert departed.sequences(departed.gone(again)).tolist() == [1, 2, 3, 4, 9]
    with pytest.raises(DeparturesGone, match="00078"):
        departed.read(storage, table, 78)


def test_a_point_is_in_the_first_commit_that_reaches_it(tmp_path: Path) -> None:
    commit(tmp_path, 0, None, "CREATE TABLE")
    commit(tmp_path, 1, reached(10, 1000), first_ns=500)
    commit(tmp_path, 2, reached(20, 2000, departed_=3, deletes=1), first_ns=1001)
    commit(tmp_path, 3, None, "DELETE")
    commit(tmp_path, 4, None, "OPTIMIZE")
    commit(tmp_path, 5, reached(30, 3000, departed_=1, deletes=1), first_ns=2001)
    log = CommitLog(tmp_path)

    def version(point: Point) -> int | None:
        return version_of_point(log, point).version

    assert [version(Point(seq=seq)) for seq in (1, 10, 11, 20, 21, 30, 31)] == [1, 1, 2, 2, 5, 5, None]
    # What happened at T did not happen before it, so that a commit whose last event is earlier than T is not enough.
    assert [version(Point(before_ns=ns)) for ns in (1, 1000, 1001, 2000, 2001, 3000)] == [1, 1, 2, 2, 5, 5]
    beyond = version_of_point(log, Point(before_ns=3001))
    assert (beyond.version, beyond.progress) == (None, log.commit(5).progress)
    assert log.uncleared(5) == log.commit(5).progress, "its deletes have not been seen"
    assert log.uncleared(4) is None
    assert as_of(tmp_path, 499).version is None, "before the first message"
    assert as_of(tmp_path, 1500).version == 2


def test_a_past_that_is_gone_or_was_not_kept_is_an_error(tmp_path: Path) -> None:
    commit(tmp_path, 7, reached(10, 1000))
    commit(tmp_path, 8, Progress(uid="U", last_index=200, last_seq=20, last_time_ns=2000))
    commit(tmp_path, 9, reached(30, 3000))
    log = CommitLog(tmp_path)
    with pytest.raises(TimeTravelError, match=r"sequence 10 is before the versions .*lakestream\.time_travel"):
        version_of_point(log, Point(seq=10))
    with pytest.raises(NotKept, match="sequence 20"):
        version_of_point(log, Point(seq=20))
    assert version_of_point(log, Point(seq=21)).version == 9


def test_files_go_with_the_commits_that_log_cleanup_takes(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    for version, seq in ((3, 10), (4, 20), (5, 30)):
        commit(tmp_path, version, reached(seq, seq * 100, 3, 1))
        departed.write(storage, str(tmp_path), seq * 10, left())
    assert departed.sweep(storage, str(tmp_path)) == 0
    (tmp_path / "_delta_log" / f"{3:020d}.json").unlink()
    assert departed.sweep(storage, str(tmp_path)) == 1
    with pytest.raises(DeparturesGone):
        departed.read(storage, str(tmp_path), 100)
    assert len(departed.read(storage, str(tmp_path), 200)) == 3
