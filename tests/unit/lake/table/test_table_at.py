"""Tests of versions by commit time and by message time, compared with a model and with Delta."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream import lake
from lakestream.lake.table.at import (
    NotATable,
    TableAsOf,
    TimeTravelError,
    as_of,
    instant,
    latest_progress,
    open_log,
    version_for_commit_time,
    version_for_message_time,
)
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.progress import TableProgress
from lakestream.protocol.instants import rfc3339

pytestmark = pytest.mark.unit

MS = 1_000_000
LATER = 10**18


class Table:
    """Transaction log written by the test, with exactly the given content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        self.last_seq = 0
        self.undone: list[tuple[int, int]] = []
        (path / "_delta_log").mkdir(parents=True)

    def commit(
        self,
        *times: int,
        at_ms: int = 0,
        uid: str | None = "u1",
        last_time: int | None = None,
        stats: bool = True,
        in_commit: bool = True,
    ) -> int:
        """Commit messages with these times; without `uid` the commit has no progress of the stream."""
        info: dict[str, Any] = {"operation": "WRITE"}
        if in_commit:
            info["inCommitTimestamp"] = at_ms
        self.last_seq += len(times)
        if uid is not None:
            last = times[-1] if times else last_time or 0
            progress = TableProgress(uid=uid, last_index=self.version, last_seq=self.last_seq, last_time_ns=last)
            progress = msgspec.structs.replace(progress, undone=self.undone)
            info["userMetadata"] = msgspec.json.encode(progress).decode()
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        if times:
            minimum = {"numRecords": len(times), "minValues": {"time_ns": min(times)}}
            actions.append({"add": {"path": "x", "stats": json.dumps(minimum)} if stats else {"path": "x"}})
        file = self.path / "_delta_log" / f"{self.version:020d}.json"
        file.write_text("".join(json.dumps(action) + "\n" for action in actions))
        os.utime(file, ns=(at_ms * MS, at_ms * MS))
        self.version += 1
        return self.version - 1

    @property
    def log(self) -> TableLog:
        return open_log(self.path)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "t")


# ---------------------------------------------------------------------------- commit time


@pytest.mark.parametrize("in_commit", [True, False])
@pytest.mark.parametrize(
    ("at_ns", "version"),
    [
        (1000 * MS, 0),
        (1000 * MS + MS - 1, 0),
        (1999 * MS, 0),
        (2000 * MS, 1),
        (2500 * MS, 1),
        (3000 * MS, 2),
        (LATER, 2),
    ],
)
def test_commit_time_is_the_last_version_committed_by_then(
    table: Table, at_ns: int, version: int, in_commit: bool
) -> None:
    for at_ms in (1000, 2000, 3000):
        table.commit(at_ms=at_ms, in_commit=in_commit)
    assert version_for_commit_time(table.log, at_ns, now_ns=LATER) == version


def test_commit_time_before_the_first_commit_names_the_oldest(table: Table) -> None:
    table.commit(at_ms=1000)
    with pytest.raises(TimeTravelError, match=r"before the first commit .* version 0 of 1970-01-01T00:00:01Z"):
        version_for_commit_time(table.log, 1000 * MS - 1, now_ns=LATER)


def test_commit_time_in_the_future_is_refused(table: Table) -> None:
    table.commit(at_ms=1000)
    assert version_for_commit_time(table.log, LATER, now_ns=LATER) == 0
    with pytest.raises(TimeTravelError, match="is in the future"):
        version_for_commit_time(table.log, LATER + 1, now_ns=LATER)


def test_in_commit_time_wins_over_the_files_time(table: Table) -> None:
    table.commit(at_ms=1000)
    table.commit(at_ms=2000)
    for file in (table.path / "_delta_log").iterdir():
        os.utime(file, ns=(0, 0))  # as after copying a lake
    assert version_for_commit_time(table.log, 1500 * MS, now_ns=LATER) == 0


def test_commit_time_after_log_clean_up_counts_from_what_is_left(table: Table) -> None:
    for at_ms in (1000, 2000, 3000):
        table.commit(at_ms=at_ms)
    (table.path / "_delta_log" / f"{0:020d}.json").unlink()
    assert version_for_commit_time(table.log, 2000 * MS, now_ns=LATER) == 1
    with pytest.raises(TimeTravelError, match=r"version 1 of .*lakestream\.time_travel"):
        version_for_commit_time(table.log, 1999 * MS, now_ns=LATER)


def test_commit_time_agrees_with_delta(tmp_path: Path) -> None:
    """Versions of a real table are those of deltalake's own resolution of timestamps."""
    path = tmp_path / "real"
    for number in range(5):
        write_deltalake(path, pa.table({"x": [number]}), mode="append")
        os.utime(path / "_delta_log" / f"{number:020d}.json", ns=((number + 1) * 10**12, (number + 1) * 10**12))
    log = open_log(path)
    for at_ns in (10**12, 2 * 10**12 - MS, 2 * 10**12, 3 * 10**12 + MS, 5 * 10**12):
        delta = DeltaTable(path)
        delta.load_as_version(rfc3339(at_ns))
        assert version_for_commit_time(log, at_ns, now_ns=LATER) == delta.version(), at_ns


# ---------------------------------------------------------------------------- message time


def test_message_time_at_the_boundaries(table: Table) -> None:
    table.commit(uid=None)  # the table's creation
    table.commit(100, 110, 120)
    table.commit(200, 210)
    expected = {
        0: TableAsOf(None, 0, complete=True),
        99: TableAsOf(None, 99, complete=True),
        100: TableAsOf(1, 100, complete=True),
        110: TableAsOf(1, 110, complete=True),
        120: TableAsOf(1, 120, complete=True),
        199: TableAsOf(1, 199, complete=True),
        200: TableAsOf(2, 200, complete=True),
        209: TableAsOf(2, 209, complete=True),
        210: TableAsOf(2, 210, complete=False),
        999: TableAsOf(2, 999, complete=False),
    }
    assert {at_ns: as_of(table.path, at_ns) for at_ns in expected} == expected


def test_message_time_with_equal_times_on_both_sides_of_a_commit(table: Table) -> None:
    table.commit(100, 150)
    table.commit(150, 150)
    table.commit(150, 200)
    assert as_of(table.path, 149).version == 0
    assert as_of(table.path, 150).version == 2
    assert as_of(table.path, 200).version == 2


def test_message_time_takes_the_first_version_that_reaches_the_message(table: Table) -> None:
    """A message's version is the first that reaches it.

    Deletes, OPTIMIZE and purges come later and may remove messages.
    """
    table.commit(100)
    table.commit(uid=None)  # a DELETE
    table.commit(last_time=100)  # a purge moved the position, nothing was added
    table.commit(300)
    assert as_of(table.path, 100).version == 0
    assert as_of(table.path, 250).version == 0
    assert as_of(table.path, 300).version == 3


def test_message_time_when_later_messages_died_before_they_were_written(table: Table) -> None:
    table.commit(100)
    table.commit(last_time=200)
    assert as_of(table.path, 150) == TableAsOf(0, 150, complete=True)


def test_message_time_without_statistics_errs_on_the_side_of_more(table: Table) -> None:
    table.commit(100)
    table.commit(200, 210, stats=False)
    assert as_of(table.path, 150).version == 1
    assert as_of(table.path, 99).version is None


def test_message_time_counts_only_the_present_stream_of_that_name(table: Table) -> None:
    table.commit(100, uid="old")
    table.last_seq = 0
    table.commit(500, uid="new")
    assert as_of(table.path, 300) == TableAsOf(None, 300, complete=True)
    assert as_of(table.path, 500).version == 1


def test_message_time_of_a_table_that_says_nothing(table: Table) -> None:
    table.commit(100, uid=None)
    assert as_of(table.path, 100) == TableAsOf(None, 100, complete=False)


def test_message_time_whose_version_log_clean_up_has_taken(table: Table) -> None:
    for time in (100, 200, 300):
        table.commit(time, at_ms=time * 10)
    (table.path / "_delta_log" / f"{0:020d}.json").unlink()
    assert as_of(table.path, 200).version == 1
    says = (
        r"are gone; the oldest still known is 1, committed at 1970-01-01T00:00:02Z; to keep .*lakestream\.time_travel"
    )
    with pytest.raises(TimeTravelError, match=says):
        as_of(table.path, 199)


def test_other_peoples_metadata_is_not_progress(table: Table) -> None:
    table.commit(100)
    for text in ('"a note"', "{}", '{"uid": 5}', "not json"):
        file = table.path / "_delta_log" / f"{table.version:020d}.json"
        file.write_text(json.dumps({"commitInfo": {"userMetadata": text, "inCommitTimestamp": 1}}) + "\n")
        table.version += 1
    progress = latest_progress(table.path)
    assert progress is not None
    assert progress.last_seq == 1


def test_no_table(tmp_path: Path) -> None:
    assert latest_progress(tmp_path / "none") is None
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    assert latest_progress(tmp_path / "empty") is None
    with pytest.raises(NotATable, match="empty is not a Delta table"):
        as_of(tmp_path / "empty", 1)


# ---------------------------------------------------------------------------- against a model

Batches = list[list[int]]


@st.composite
def batches(draw: st.DrawFn) -> Batches:
    """Draw message times of successive commits: never decreasing, often equal; some commits add nothing."""
    steps = draw(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=12))
    time, result = 10, []
    for batch in steps:
        times = []
        for step in batch:
            time += step
            times.append(time)
        result.append(times)
    return result


@settings(max_examples=200, deadline=None)
@given(batches(), st.lists(st.booleans(), min_size=12, max_size=12), st.integers(5, 50))
def test_message_time_finds_all_messages_and_no_later_version(
    tmp_path_factory: pytest.TempPathFactory, made: Batches, silent: list[bool], at_ns: int
) -> None:
    """The version has every message stored at or before T, and no earlier version does."""
    table = Table(tmp_path_factory.mktemp("model") / "t")
    held: list[list[int]] = []  # by version: all messages so far
    for times, quiet in zip(made, silent, strict=False):
        so_far = held[-1] if held else []
        if times:
            table.commit(*times)
        elif quiet:
            table.commit(uid=None)
        else:
            table.commit(last_time=so_far[-1] if so_far else 0)
        held.append(so_far + times)
    answer = version_for_message_time(table.log, at_ns)
    wanted = [time for time in held[-1] if time <= at_ns]
    if not wanted:
        assert answer.version is None
    else:
        assert answer.version == next(version for version, times in enumerate(held) if times[: len(wanted)] == wanted)
    if answer.complete:
        assert held[-1]
        assert held[-1][-1] > at_ns


def test_message_time_reads_few_of_many_commits(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2000):
        table.commit(number * 10)
    reads = 0
    real = TableLog.commit

    def counted(self: TableLog, version: int) -> Any:
        nonlocal reads
        reads += 1
        return real(self, version)

    monkeypatch.setattr(TableLog, "commit", counted)
    assert as_of(table.path, 12_345).version == 1234
    assert version_for_commit_time(table.log, 0, now_ns=LATER) == 1999
    assert reads < 50


def test_real_tables_carry_what_is_needed(tmp_path: Path) -> None:
    """A table written by the compactor's libraries has metadata and statistics in its commits."""
    path = tmp_path / "real"
    for first in (1, 4):
        seqs = list(range(first, first + 3))
        progress = TableProgress(uid="u", last_index=seqs[-1], last_seq=seqs[-1], last_time_ns=seqs[-1] * 100)
        write_deltalake(
            path,
            pa.table({"seq": seqs, "time_ns": [seq * 100 for seq in seqs]}),
            mode="append",
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": msgspec.json.encode(progress).decode()}
            ),
        )
    assert [as_of(path, at_ns).version for at_ns in (99, 100, 300, 399, 400, 600)] == [None, 0, 0, 0, 1, 1]
    for at_ns in (100, 250, 300, 399, 400, 600):
        rows = DeltaTable(path, version=as_of(path, at_ns).version).to_pyarrow_table().column("time_ns").to_pylist()
        assert sorted(time for time in rows if time <= at_ns) == [t for t in range(100, 700, 100) if t <= at_ns]


# ---------------------------------------------------------------------------- moments


@pytest.mark.parametrize(
    ("at", "at_ns"),
    [
        (17, 17),
        ("1970-01-01", 0),
        ("1970-01-01 00:01", 60 * 10**9),
        ("1970-01-01 00:00:01.5", 1_500_000_000),
        ("1970-01-01T00:00:01.123456789Z", 1_123_456_789),
        (" 1970-01-01T01:00:00+01:00 ", 0),
        ("1970-01-01T00:00:00-0130", 5_400 * 10**9),
        ("1970-01-01T00:00:00 UTC", 0),
        ("1969-12-31 23:59:59.999999999", -1),
        (datetime(1970, 1, 1, 0, 0, 1, 5), 1_000_005_000),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
    ],
)
def test_moments(at: int | str | datetime, at_ns: int) -> None:
    assert instant(at) == at_ns


@pytest.mark.parametrize(
    "at", ["", "soon", "1970-13-01", "1970-01-01 25:00", "12:00", "3000-01-01", 2**64, "1970-01-01T"]
)
def test_what_is_no_moment_is_said(at: int | str) -> None:
    with pytest.raises(TimeTravelError, match=r"cannot read .* as a time|is outside of the times"):
        instant(at)


def test_what_programs_ask(table: Table) -> None:
    """The functions have the names that lakestream.lake exports."""
    table.commit(100, at_ms=1000)
    table.commit(200, at_ms=2000)
    assert lake.as_of(table.path, 150) == TableAsOf(0, 150, complete=True)
    assert lake.version_at(table.path, "1970-01-01 00:00:01.999") == 0
    assert lake.version_at(table.path, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)) == 1
    assert lake.table_path("/lake/", "A:B", "ACME") == "/lake/accounts/ACME/streams/A~3AB"
    assert {name for name in lake.__all__ if getattr(lake, name) is None} == set()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lake.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("at_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (10 * 10**9, "1970-01-01T00:00:10Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (1_500_000_000, "1970-01-01T00:00:01.5Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_rfc3339(at_ns: int, text: str) -> None:
    assert rfc3339(at_ns) == text


def test_versions_that_a_repair_took_back_are_no_part_of_how_the_stream_went(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    for number in range(1, 6):
        table.commit(number * 100, at_ms=number)
    assert table.log.stream_versions == [0, 1, 2, 3, 4]
    table.last_seq, table.undone = 2, [(2, 4)]
    repair = table.commit(last_time=200, at_ms=6)
    assert repair == 5
    table.commit(300, at_ms=7)
    table.commit(400, 500, at_ms=8)
    assert table.log.stream_versions == [0, 1, 5, 6, 7]
    found = {
        at: version_for_message_time(table.log, at).version for at in (100, 199, 200, 299, 300, 399, 400, 500, 600)
    }
    assert found == {100: 0, 199: 0, 200: 1, 299: 1, 300: 6, 399: 6, 400: 7, 500: 7, 600: 7}
    assert version_for_commit_time(table.log, 4 * MS, LATER) == 3, "what was committed was committed"
