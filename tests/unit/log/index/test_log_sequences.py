"""Tests of SequenceSet compared with a set of ints."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.index import sequences
from lakestream.log.index.sequences import CHUNK, CHUNK_BITS, GROUP_BITS, SequenceSet, ascending

pytestmark = pytest.mark.unit

SPAN = 3 * CHUNK
near = st.integers(1, SPAN)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("run"), near, st.integers(0, 2 * CHUNK)),
        st.tuples(st.just("discard"), near, st.just(0)),
        st.tuples(st.just("below"), near, st.just(0)),
        st.tuples(st.just("every third"), near, st.integers(0, 2 * CHUNK)),
        st.tuples(st.just("discard run"), near, st.integers(0, 2 * CHUNK)),
        st.tuples(st.just("discard most"), near, st.integers(0, 2 * CHUNK)),
    ),
    max_size=30,
)


@pytest.fixture(autouse=True, scope="module", params=[0, 1, GROUP_BITS])
def group_bits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Count small groups of chunks, too: the sequences here are those of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "GROUP_BITS", request.param)
        yield


def build(made: list[tuple[str, int, int]]) -> tuple[SequenceSet, set[int]]:
    found, model = SequenceSet(), set[int]()
    for step, seq, length in made:
        if step == "run":
            found.add_run(seq, seq + length)
            model |= set(range(seq, seq + length + 1))
        elif step == "discard":
            assert found.discard(seq) == (seq in model)
            model.discard(seq)
        elif step == "every third":
            found.discard_all(range(seq, seq + length, 3))
            model -= set(range(seq, seq + length, 3))
        elif step == "discard run":
            found.discard_all(range(seq, seq + length))
            model -= set(range(seq, seq + length))
        elif step == "discard most":
            some = [number for number in range(seq, seq + length) if number % 7]
            found.discard_all(some)
            model -= set(some)
        else:
            doomed = {number for number in model if number < seq}
            assert found.discard_below(seq) == len(doomed)
            model -= doomed
    return found, model


@settings(max_examples=60, deadline=None)
@given(steps, near, near)
def test_every_question_has_the_models_answer(made: list[tuple[str, int, int]], one: int, other: int) -> None:
    found, model = build(made)
    assert len(found) == len(model)
    for seq in (one, other, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK):
        assert (seq in found) == (seq in model)
        assert found.next_at_or_after(seq) == min((n for n in model if n >= seq), default=0)
        assert found.previous_at_or_before(seq) == max((n for n in model if n <= seq), default=0)
    low, high = min(one, other), max(one, other)
    inside = sorted(n for n in model if low <= n <= high)
    assert found.count(low, high) == len(inside)
    assert found.count(high + 1, low) == 0
    assert list(found.iter_missing(low, high)) == [n for n in range(low, high + 1) if n not in model]
    assert list(found.members(low, SPAN * 3, high)) == inside
    assert found.present(range(low, high + 1)) == inside
    assert [found.nth(place) for place in range(len(model))] == sorted(model)
    assert list(found.members(low, 7, high)) == inside[:7]
    assert list(found.members(low, 7)) == sorted(n for n in model if n >= low)[:7]


@settings(max_examples=60, deadline=None)
@given(steps)
def test_it_comes_back_from_its_bytes(made: list[tuple[str, int, int]]) -> None:
    found, model = build(made)
    again = SequenceSet.from_bytes(found.to_bytes())
    assert list(again.members(1, 10**9)) == sorted(model)
    assert len(again) == len(model)
    again.add_run(5 * CHUNK, 5 * CHUNK)
    assert len(again) == len(model | {5 * CHUNK})


def test_counts_and_places_follow_each_kind_of_removal_across_groups_of_chunks() -> None:
    found, last = SequenceSet(), 5 * (CHUNK << GROUP_BITS)
    found.add_run(1, last)
    middle = last // 2
    assert found.discard(middle)
    found.discard_all(range(middle + 1, middle + 11))
    found.discard_all([middle + 12, middle + 14])
    found.add_run(middle + 1, middle + 2)
    assert found.discard_below(8) == 7
    assert (found.count(1, last), len(found)) == (last - 18, last - 18)
    assert found.count(middle - 10, last - 10) == last - middle - 10
    assert found.nth(middle - 9) == middle - 1
    assert found.nth(middle - 8) == middle + 1
    again = SequenceSet.from_bytes(found.to_bytes())
    assert again.count(1, last) == last - 18
    assert found.discard_below(last) == last - 19
    assert (found.count(1, last), list(found._groups)) == (1, [last >> CHUNK_BITS >> sequences.GROUP_BITS])


def test_an_unbroken_stretch_is_given_as_a_range() -> None:
    found = SequenceSet()
    found.add_run(10, 10 + 3 * CHUNK)
    assert found.members(11, 100) == range(11, 111)


def test_a_jump_of_trillions_costs_nothing() -> None:
    found = SequenceSet()
    found.add_run(1, 3)
    found.add_run(2**63, 2**63 + 1)
    assert found.next_at_or_after(4) == 2**63
    assert found.previous_at_or_before(2**63 - 1) == 3
    assert found.count(1, 2**64 - 1) == 5
    assert list(found.members(2, 10)) == [2, 3, 2**63, 2**63 + 1]
    assert len(found.to_bytes()) < 1000


def test_full_chunks_cost_a_few_bytes_each() -> None:
    found = SequenceSet()
    found.add_run(CHUNK, 1001 * CHUNK - 1)
    assert len(found.to_bytes()) < 1000 * 8
    assert len(found) == 1000 * CHUNK


@settings(max_examples=60, deadline=None)
@given(st.sets(st.one_of(st.integers(1, 300), st.integers((1 << 64) - 300, (1 << 64) - 1)), max_size=200), st.randoms())
def test_numbers_are_put_in_order_however_far_they_are_apart(some: set[int], chance: random.Random) -> None:
    mixed = list(some)
    chance.shuffle(mixed)
    assert list(ascending(array("Q", mixed))) == sorted(some)
