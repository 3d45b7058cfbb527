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


class Log:
    """A stream's log: sealed at each poll that finds it due, and else once its first message is `AGE` old."""

    def __init__(self, now: int) -> None:
        self.budget, self.sealed = EarlySeals(AGE), list[int]()
        self._since: int | None = None
        self.budget.due(now, 0, False, False)

    def poll(self, now: int, message: bool, caught_up: bool) -> bool:
        """Poll after a message may have come; return True if the budget has the log sealed."""
        if message and self._since is None:
            self._since = now
        early = self.budget.due(now, len(self.sealed), self._since is not None, caught_up)
        if early:
            assert (self._since is not None, caught_up) == (True, True)
        if early or (self._since is not None and now - self._since >= AGE):
            self.sealed.append(now)
            self._since = None
        return early


@given(polls, st.integers(0, 1 << 60))
def test_in_no_period_are_there_more_seals_than_its_length_and_the_saved_ones_allow(
    steps: list[tuple[int, bool, bool]], now: int
) -> None:
    log = Log(now)
    for step, message, caught_up in steps:
        now += step
        log.poll(now, message, caught_up)
    sealed = log.sealed
    for first, begin in enumerate(sealed):
        for last in range(first, len(sealed)):
            assert last - first + 1 <= (sealed[last] - begin) / EVERY + SAVED + 1


@given(st.integers(0, 1 << 60), st.lists(st.integers(1, 2 * SECOND), min_size=1, max_size=200))
def test_under_continuous_load_a_seal_follows_within_an_interval_and_a_poll(now: int, steps: list[int]) -> None:
    log, before = Log(now), now
    for step in steps:
        now += step
        if log.poll(now, True, True):
            before = now
        assert now - before <= EVERY + max(steps)


@given(polls)
def test_after_a_pause_the_first_poll_with_a_message_seals_it(steps: list[tuple[int, bool, bool]]) -> None:
    log, now = Log(0), 0
    for step, message, caught_up in steps:
        now += step
        log.poll(now, message, caught_up)
    log.poll(now, False, False)
    assert log.poll(now + 2 * EVERY, True, True)


def test_a_busy_day_has_a_third_more_seals_than_the_age_limit_and_a_sparse_one_no_more() -> None:
    day = range(0, 86_400 * SECOND, POLL)
    busy = Log(0)
    for now in day:
        busy.poll(now, True, True)
    assert len(busy.sealed) <= 8_640 / SHARE + SAVED + 1
    sparse = Log(0)
    for now in day:
        sparse.poll(now, now % AGE == 0, True)
    assert len(sparse.sealed) == 8_640


def test_without_a_compactor_that_has_caught_up_nothing_is_due() -> None:
    budget = EarlySeals(AGE)
    for now in range(0, 100 * SECOND, POLL):
        assert not budget.due(now, 5, True, False)
        assert not budget.due(now, 5, False, True)
    assert [budget.due(100 * SECOND, 5 + n, True, True) for n in range(SAVED + 1)] == [True] * SAVED + [False]
