"""Tests of the simulator: it finds every planted bug within a number of seeds."""

from __future__ import annotations

import pytest

from tests.sim.bugs import CORE_BUGS, GROUP_BUGS, planted
from tests.sim.runner import run_seed

pytestmark = pytest.mark.unit

ENOUGH = 400
"""Maximum number of seeds. Most bugs are found in the first few; the rare ones need an unlucky order of faults."""

LIKELY = {
    "changes_members_at_once": 106,
    "forgets_that_it_was_damaged": 158,
    "reads_without_asking": 141,
    "trusts_a_disk_that_was_rolled_back": 107,
    "votes_with_a_damaged_log": 101,
}
"""The seed that found a rare bug last, which is tried first."""


def _found(name: str, shell: str) -> str:
    for seed in (*([LIKELY[name]] if name in LIKELY else []), *range(1, ENOUGH + 1)):
        failure = run_seed(seed, shell).failure
        assert " in bugs.py:" not in failure, f"the planted bug itself fails, as its code has changed: {failure}"
        if failure:
            return failure
    return ""


@pytest.mark.parametrize("name", CORE_BUGS)
def test_a_bug_in_the_core_is_found(name: str) -> None:
    with planted(CORE_BUGS[name]):
        assert _found(name, "core"), f"{ENOUGH} seeds did not find that the core {name.replace('_', ' ')}"


@pytest.mark.parametrize("name", GROUP_BUGS)
def test_a_bug_around_the_core_is_found(name: str) -> None:
    with planted(GROUP_BUGS[name]):
        assert _found(name, "group"), f"{ENOUGH} seeds did not find that a member {name.replace('_', ' ')}"
