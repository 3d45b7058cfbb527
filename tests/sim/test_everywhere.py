"""Tests of groups whose files are damaged on two or all members at once.

Nothing is lost silently, what the members have left is put together, and planted bugs are found.
"""

from __future__ import annotations

import pytest

from tests.sim.bugs import DAMAGE_BUGS, planted
from tests.sim.checks import Violation
from tests.sim.everywhere import DAMAGES, damage_everywhere

pytestmark = pytest.mark.unit

SOME = 6
ENOUGH = 60
"""Seeds within which a planted bug must be found."""


def _all(how: str, count: int) -> list[str]:
    return [damage_everywhere(seed, how).partition(": ")[2] for seed in range(1, count + 1)]


@pytest.mark.parametrize("how", ["apart", "behind", "newest"])
def test_what_the_members_have_left_is_put_together(how: str) -> None:
    assert set(_all(how, SOME)) == {"whole"}


@pytest.mark.parametrize("how", sorted(DAMAGES.keys() - {"apart", "behind", "newest"}))
def test_nothing_is_lost_silently_when_most_members_are_damaged(how: str) -> None:
    outcomes = _all(how, SOME)
    if how == "lost":
        assert set(outcomes) == {"stopped"}, "no member has that entry"


@pytest.mark.parametrize(
    ("bug", "how"),
    [
        ("forgets_that_it_was_damaged", "anything"),
        ("votes_by_what_is_left", "behind"),
        ("throws_away_what_follows", "apart"),
    ],
)
def test_members_that_break_a_rule_of_damaged_logs_are_found(bug: str, how: str) -> None:
    with planted(DAMAGE_BUGS[bug]), pytest.raises(Violation):
        _all(how, ENOUGH)
