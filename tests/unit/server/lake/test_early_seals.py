"""The budget of early seals, as a model of one stream: bounded seals, bounded waiting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakestream.server.lake.early_seals import SAVED, SHARE, EarlySeals

SECOND = 1_000_000_000
AGE = 10 * SECOND
EVERY = round(AGE * SHARE)
POLL = SECOND

polls = st.lists(st.tuples(st.integers(0, 3 * SECOND), st.booleans(), st.booleans()), max_size=200)


@given(polls, st.integers(0, 1 << 60))
def test_in_no_period_are_there_more_seals_than_its_length_and_the_saved_ones_allow(
    steps: list[tuple[int, bool, bool]], now: int
) -> None:
    budget, sealed = EarlySeals(AGE), []
    for step, waiting, caught_up in steps:
        now += step
        if budget.due(now, waiting, caught_up):
            assert (waiting, caught_up) == (True, True)
            sealed.append(now)
    for first, begin in enumerate(sealed):
        for last in range(first, len(sealed)):
            assert last - first + 1 <= (sealed[last] - begin) / EVERY + SAVED


@given(st.integers(0, 1 << 60), st.lists(st.integers(1, 2 * SECOND), min_size=1, max_size=200))
def test_under_continuous_load_a_seal_follows_within_an_interval_and_a_poll(now: int, steps: list[int]) -> None:
    budget, before = EarlySeals(AGE), now
    for step in steps:
        now += step
        if budget.due(now, True, True):
            before = now
        assert now - before < EVERY


@given(polls)
def test_after_a_pause_the_first_poll_with_a_message_seals_it(steps: list[tuple[int, bool, bool]]) -> None:
    budget, now = EarlySeals(AGE), 0
    for step, waiting, caught_up in steps:
        now += step
        budget.due(now, waiting, caught_up)
    assert budget.due(now + EVERY, True, True)


def test_a_busy_day_has_a_quarter_more_seals_than_the_age_limit_and_a_sparse_one_no_more() -> None:
    budget = EarlySeals(AGE)
    day = range(0, 86_400 * SECOND, POLL)
    assert sum(budget.due(now, True, True) for now in day) <= 8_640 / SHARE + SAVED
    budget, sealed = EarlySeals(AGE), 0
    waiting = False
    for now in day:
        waiting = waiting or now % AGE == 0
        if budget.due(now, waiting, True):
            waiting, sealed = False, sealed + 1
    assert sealed == 8_640


def test_without_a_compactor_that_has_caught_up_nothing_is_sealed_or_spent() -> None:
    budget = EarlySeals(AGE)
    assert not any(budget.due(now, True, False) or budget.due(now, False, True) for now in range(0, 100 * SECOND, POLL))
    assert [budget.due(100 * SECOND, True, True) for _ in range(SAVED + 1)] == [True] * SAVED + [False]
