"""Tests of groups whose logs are damaged on two or all members at once: no silent loss; a planted one is found."""

from __future__ import annotations

import pytest

from tests.sim.bugs import GROUP_BUGS, planted
from tests.sim.checks import Violation
from tests.sim.everywhere import damage_everywhere

pytestmark = pytest.mark.unit

SOME = 25
ENOUGH = 60
"""Seeds within which members that forget their damage must be found."""


def _all(count: int) -> list[str]:
    return [damage_everywhere(seed) for seed in range(1, count + 1)]


def test_nothing_is_lost_silently_when_most_members_are_damaged() -> None:
    outcomes = _all(SOME)
    assert any(outcome.startswith("whole") for outcome in outcomes)
    assert any(outcome.startswith("stopped") for outcome in outcomes), "a majority without its newest entries"


def test_members_that_forget_their_damage_are_found() -> None:
    with planted(GROUP_BUGS["forgets_that_it_was_damaged"]), pytest.raises(Violation):
        _all(ENOUGH)
