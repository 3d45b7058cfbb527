"""Tests of runs of consecutive numbers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.format.runs import MAX_GAP, Runs, stretches


@given(st.sets(st.integers(0, 50)))
def test_stretches_cover_the_numbers_and_are_as_few_as_can_be(numbers: set[int]) -> None:
    found = list(stretches(sorted(numbers)))
    assert [n for first, last in found for n in range(first, last + 1)] == sorted(numbers)
    assert all(following > last + 1 for (_, last), (following, _) in itertools.pairwise(found))


@given(
    st.lists(st.tuples(st.sampled_from([0, 3, MAX_GAP + 1, 5 * MAX_GAP]), st.integers(1, 20)), min_size=1), st.data()
)
def test_rows_of_many_are_the_rows_of_each(parts: list[tuple[int, int]], data: st.DataObject) -> None:
    runs, seq, placed = Runs(), 7, []
    for gap, count in parts:
        seq += gap
        runs.extend(seq, count)
        placed += range(seq, seq + count)
        seq += count
    some = sorted(data.draw(st.sets(st.sampled_from(placed))))
    assert runs.rows_of(some) == [runs.row(each) for each in some]
