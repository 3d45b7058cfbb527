"""Tests of all promises over histories of clients of every kind, without faults and under all of them.

LAKESTREAM_HISTORY_SECONDS (600) is the duration, LAKESTREAM_HISTORY_SEED repeats the faults. A failure prints the
events of the messages concerned, and the command that repeats the run.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.cluster.nemesis import possible
from tests.histories.campaign import Campaign, Plan, is_encrypted
from tests.histories.checks import report
from tests.histories.record import History
from tests.servers import Kind

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

SECONDS = float(os.environ.get("LAKESTREAM_HISTORY_SECONDS", "600"))
POWERED_SECONDS = 300.0
"""Longest run with power losses: each node can lose its power once, and is recorded until then."""


def run(plan: Plan, directory: Path) -> int:
    """Run a campaign; assert that no promise is broken. Return the number of faults."""
    print(plan.command)
    result = Campaign(plan, directory).run()
    print(f"{len(result.steps)} faults, {result.figures()}; {result.seconds:.0f} s")
    assert not result.violations, f"{report(History(result.events), result.violations)}\nrepeat: {plan.command}"
    return len(result.steps)


@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_a_few_seconds_with_one_killed_leader_break_no_promise(tmp_path: Path, encrypted: bool) -> None:
    assert run(Plan(seed=2630, seconds=3, faults=("kill",), nodes=3, lake=False, encrypted=encrypted), tmp_path) > 0
    assert encrypted is all((node / "jetstream/sealing.key").exists() for node in tmp_path.glob("n?"))


def test_half_of_the_seeds_are_runs_on_encrypted_stores() -> None:
    assert 480 < sum(map(is_encrypted, range(1000))) < 520


@pytest.mark.heavy
@pytest.mark.timeout(1800 + 3 * SECONDS)
def test_no_promise_is_broken_under_several_faults_at_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("LAKESTREAM_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    encrypted = is_encrypted(seed)
    faults = tuple(possible(Kind.OURS, 5, lake=True, synced=False, encrypted=encrypted))
    plan = Plan(seed, SECONDS / 2, faults, nodes=5, lake=True, together=4, sync="2s", encrypted=encrypted)
    run(plan, tmp_path)


@pytest.mark.heavy
@pytest.mark.timeout(1800 + 3 * SECONDS)
def test_no_promise_is_broken_under_all_faults(tmp_path: Path) -> None:
    seed = int(os.environ.get("LAKESTREAM_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    encrypted = is_encrypted(seed)
    faults = tuple(possible(Kind.OURS, 5, lake=True, encrypted=encrypted))
    run(Plan(seed, SECONDS, faults, nodes=5, lake=True, encrypted=encrypted), tmp_path)


@pytest.mark.heavy
@pytest.mark.timeout(1800 + 3 * SECONDS)
def test_no_promise_is_broken_by_power_losses_among_other_faults_at_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("LAKESTREAM_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    encrypted, seconds = is_encrypted(seed), min(SECONDS / 4, POWERED_SECONDS)
    faults = tuple(possible(Kind.OURS, 5, lake=True, power=True, encrypted=encrypted))
    plan = Plan(seed, seconds, faults, nodes=5, lake=True, together=4, encrypted=encrypted, power=True, iceberg=True)
    run(plan, tmp_path)
