"""Runs of consecutive numbers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.runs import stretches


@given(st.sets(st.integers(0, 50)))
def test_stretches_cover_the_numbers_and_are_as_few_as_can_be(numbers: set[int]) -> None:
    found = list(stretches(sorted(numbers)))
    assert [n for first, last in found for n in range(first, last + 1)] == sorted(numbers)
    assert all(following > last + 1 for (_, last), (following, _) in itertools.pairwise(found))
