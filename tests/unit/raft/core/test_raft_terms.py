"""Tests of the lookup of an entry's term."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.raft.core.terms import TermMap

pytestmark = pytest.mark.unit


def made(base: int, *terms: int) -> TermMap:
    found = TermMap(base, terms[0])
    for index, term in enumerate(terms[1:], base + 1):
        found.append(index, term)
    return found


def test_an_empty_log_has_entry_0_of_term_0() -> None:
    found = TermMap()
    assert (found.last, found.last_term, found.term(0), found.term(1)) == (0, 0, 0, None)
    assert found.newest(5, 5) == (0, 0)


def test_runs_describe_the_log_and_make_it_again() -> None:
    found = made(10, 2, 2, 2, 3, 5, 5)
    assert found.runs == [(11, 2), (13, 3), (14, 5)]
    again = TermMap(10, 2, found.runs, 15)
    assert [again.term(index) for index in range(9, 17)] == [found.term(index) for index in range(9, 17)]


def test_terms_never_fall_and_entries_have_no_gaps() -> None:
    found = made(0, 0, 1, 2)
    with pytest.raises(AssertionError):
        found.append(3, 1)
    with pytest.raises(AssertionError):
        found.append(4, 2)
    with pytest.raises(AssertionError):
        TermMap(0, 0, [(1, 2), (3, 1)], 5)
    with pytest.raises(AssertionError):
        TermMap(0, 0, [(3, 1)], 2)


@given(
    base=st.integers(0, 5),
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    cut=st.integers(0, 40),
    forget=st.integers(0, 40),
    more=st.lists(st.integers(0, 2), max_size=5),
)
def test_it_answers_like_a_plain_list(base: int, steps: list[int], cut: int, forget: int, more: list[int]) -> None:
    plain = {}
    term = 0
    for index, step in enumerate(steps, base):
        term += step
        plain[index] = term
    found = made(base, *plain.values())
    cut = min(max(cut, base), found.last)
    found.cut(cut)
    plain = {index: term for index, term in plain.items() if index <= cut}
    forget = min(forget, found.last)
    found.forget(forget)
    plain = {index: term for index, term in plain.items() if index >= forget}
    for step in more:
        term = plain[found.last] + step
        found.append(found.last + 1, term)
        plain[found.last] = term
    assert found.base == min(plain)
    assert found.last == max(plain)
    assert found.last_term == plain[found.last]
    for index in range(50):
        assert found.term(index) == plain.get(index)
        for limit in range(max(plain.values()) + 2):
            fit = [at for at, each in plain.items() if at <= index and each <= limit]
            wanted = max(fit, default=found.base)
            assert found.newest(index, limit) == (wanted, plain[wanted])
