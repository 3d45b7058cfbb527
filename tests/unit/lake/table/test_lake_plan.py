"""Tests of commit planning: chosen segments, gaps, removed messages, conditions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.errors import BadSegment, SegmentGap
from lakestream.lake.staging.staging import StagedSegment
from lakestream.lake.table import batches
from lakestream.lake.table.batches import Part, Removal
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.progress import TableProgress
from lakestream.log.format.segment import Footer

pytestmark = pytest.mark.unit


def staged(*ranges: tuple[int, int], size: int = 10) -> list[StagedSegment]:
    return [StagedSegment(first, last, f"{first}-{last}", size) for first, last in ranges]


def footer(last_index: int, **values: object) -> Footer:
    fields: dict[str, object] = {
        "uid": "U", "stream": "S", "account": "$G", "first_index": 1, "last_index": last_index, "last_term": 1,
        "first_seq": 1, "last_seq": 10, "count": 1, "bytes": 1, "first_time": 5, "last_time": 9, "floor": 1,
        "removed": [], "subjects": 3, "config": b"{}", "closed_ns": 0, "runs": [],
    }  # fmt: skip
    return Footer(**{**fields, **values})  # type: ignore[arg-type]


def test_segments_follow_the_position() -> None:
    segments = staged((1, 10), (11, 20), (21, 30))
    assert [(part.last_index, part.after) for part in batches.choose("t", 0, segments)] == [(10, 0), (20, 10), (30, 20)]
    assert [(part.last_index, part.after) for part in batches.choose("t", 20, segments)] == [(30, 20)]
    assert batches.choose("t", 30, segments) == []
    assert batches.choose("t", 99, segments) == []


def test_a_segment_that_the_table_holds_in_part_gives_its_rest() -> None:
    segments = staged((1, 10), (11, 20), (15, 30))
    assert [(part.last_index, part.after) for part in batches.choose("t", 12, segments)] == [(20, 12), (30, 20)]


@pytest.mark.parametrize(
    ("position", "segments"), [(0, [(2, 9)]), (10, [(12, 20)]), (10, [(1, 10), (11, 15), (17, 20)])]
)
def test_a_gap_is_an_error_that_names_it(position: int, segments: list[tuple[int, int]]) -> None:
    with pytest.raises(SegmentGap, match="missing"):
        batches.choose("streams/ORDERS", position, staged(*segments))


def test_a_commit_is_bounded_but_never_empty() -> None:
    segments = staged((1, 1), (2, 2), (3, 3), size=10)
    assert len(batches.choose("t", 0, segments, limit=25)) == 2
    assert len(batches.choose("t", 0, segments, limit=1)) == 1


def test_a_commit_is_bounded_by_what_compressed_segments_hold() -> None:
    footers = [footer(number, bytes=10) for number in (1, 2, 3)]
    assert [batches.fitting(footers, limit) for limit in (1, 10, 19, 20, 29, 30)] == [1, 1, 1, 2, 2, 3]
    batch = batches.gather("U", batches.choose("t", 0, staged((1, 1), (2, 2), (3, 3), size=4)), footers, None)
    assert batch.size == 30


def test_only_what_the_table_has_is_to_be_erased_from_it() -> None:
    progress = TableProgress(uid="U", last_index=5, last_seq=20, last_time_ns=0)
    runs = [(3, 3), (18, 25), (30, 31)]
    assert batches.erasures(0, None, runs) == []
    assert batches.erasures(5, progress, runs) == [(3, 3), (18, 20)]
    assert batches.erasures(5, None, runs) == runs, "it is not known how far the table reaches"
    assert batches.erasures(5, progress, []) == batches.erasures(5, None, []) == []
    footers = [footer(1, shredded=[(3, 3), (7, 9)]), footer(2, shredded=[(3, 3), (4, 4)])]
    batch = batches.gather("U", batches.choose("t", 0, staged((1, 1), (2, 2))), footers, None)
    assert batch.shredded == [(3, 3), (4, 4), (7, 9)]


def test_footers_add_up() -> None:
    parts = [Part("a", 0, 10, 100), Part("b", 10, 20, 50)]
    footers = [
        footer(10, last_seq=100, last_time=7, floor=5, removed=[8, 40]),
        footer(20, last_seq=120, last_time=0, floor=20, removed=[30], subjects=9),
    ]
    batch = batches.gather(
        "U", parts, footers, TableProgress(uid="U", last_index=0, last_seq=4, last_time_ns=6, floor=1)
    )
    assert batch.progress == TableProgress(uid="U", last_index=20, last_seq=120, last_time_ns=7, floor=20)
    assert (batch.dead.floor, list(batch.dead.removed)) == (20, [30, 40])
    assert (batch.subjects, batch.size) == (9, 150)


def test_a_segment_of_another_stream_or_name_is_refused() -> None:
    with pytest.raises(BadSegment, match="uid V"):
        batches.gather("U", [Part("a", 0, 10, 1)], [footer(10, uid="V")], None)
    with pytest.raises(BadSegment, match="ends at index 9"):
        batches.gather("U", [Part("a", 0, 10, 1)], [footer(9)], None)


def progress(last_seq: int, floor: int) -> TableProgress:
    return TableProgress(uid="U", last_index=1, last_seq=last_seq, last_time_ns=1, floor=floor)


def test_an_empty_table_loses_nothing() -> None:
    assert batches.deletions(0, None, DeletedMessages(50, [60])) == []


def test_rows_that_the_table_cannot_hold_are_not_deleted() -> None:
    assert batches.deletions(5, progress(100, 1), DeletedMessages(1, [101, 102])) == []
    assert batches.deletions(5, progress(100, 40), DeletedMessages(40, [])) == []
    assert batches.deletions(5, progress(100, 101), DeletedMessages(500, [])) == []


def test_conditions_name_the_floor_runs_and_single_messages() -> None:
    assert batches.deletions(5, progress(100, 1), DeletedMessages(40, [])) == ["seq < 40"]
    conditions = batches.deletions(5, progress(100, 1), DeletedMessages(10, [20, 30, 31, 50, 51, 52, 53]))
    assert conditions == ["seq < 10 OR seq BETWEEN 50 AND 53", "seq BETWEEN 20 AND 31 AND seq IN (20, 30, 31)"]
    assert batches.deletions(5, None, DeletedMessages(2, [7])) == ["seq < 2", "seq BETWEEN 7 AND 7 AND seq IN (7)"]


def test_spark_is_never_given_more_ranges_than_it_can_compile() -> None:
    # 1,000 `BETWEEN` in one DELETE took minutes, 5,000 the compactor's heap.
    removed = [seq for seq in range(1, 40_001) if seq % 4] + [seq for seq in range(50_001, 90_001) if seq % 200]
    conditions = batches.deletions(5, progress(100_000, 1), DeletedMessages(1, removed))
    assert max(condition.count(" BETWEEN ") for condition in conditions) <= batches.CONDITION_RANGES
    assert len(conditions) == 30_000 // batches.CONDITION_TERMS + 200 // batches.CONDITION_RANGES
    named: set[int] = set()
    for condition in conditions:
        listed = condition.partition(" IN (")[2].rstrip(")")
        if listed:
            named.update(map(int, listed.split(", ")))
            continue
        for term in condition.split(" OR "):
            _, _, first, _, last = term.split()
            named.update(range(int(first), int(last) + 1))
    assert named == set(removed)


def test_endings_of_many_segments_make_updates_of_bounded_size() -> None:
    removals = [Removal(at, 0, [3 * at], 0) for at in range(1, 1_001)]
    found = batches.updates(5, progress(5_000, 1), removals)
    assert len(found) == 1_000 // batches.CONDITION_RANGES
    assert max(update.condition.count(" BETWEEN ") for update in found) <= batches.CONDITION_RANGES


def matches(condition: str, seq: int) -> bool:
    """Evaluate a condition of the few forms that `deletions` produces."""
    return any(_term(term, seq) for term in condition.split(" OR "))


def _term(term: str, seq: int) -> bool:
    words = term.replace(",", "").replace("(", "").replace(")", "").split()
    if words[1] == "<":
        return seq < int(words[2])
    within = int(words[2]) <= seq <= int(words[4])
    return within and (len(words) == 5 or seq in map(int, words[8:]))


@given(st.integers(1, 60), st.sets(st.integers(1, 120)), st.integers(0, 100), st.integers(1, 60))
def test_conditions_hit_the_dead_rows_and_no_others(floor: int, removed: set[int], last_seq: int, before: int) -> None:
    before = min(before, floor)
    dead = DeletedMessages(floor, sorted(seq for seq in removed if seq >= floor))
    conditions = batches.deletions(5, progress(last_seq, before), dead)
    for seq in range(before, last_seq + 1):
        expected = seq < floor or seq in dead.removed
        assert any(matches(condition, seq) for condition in conditions) is expected
