"""Tests that run fixed seeds of the simulation of servers; `python -m tests.sim --whole` runs any.

`LAKESTREAM_WHOLE_SEEDS` is the number of seeds, `LAKESTREAM_SIM_FIRST` the first one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.sim.whole.bugs import BUGS, planted
from tests.sim.whole.world import command, plan_of, run_seed

FIRST = int(os.environ.get("LAKESTREAM_SIM_FIRST", "1"))
SEEDS = int(os.environ.get("LAKESTREAM_WHOLE_SEEDS", "20"))
QUICK = 2
"""Seeds of the quick stage."""
SECONDS = 4
"""Virtual seconds of faults in the quick stage."""
ENOUGH = 25
"""Maximum number of seeds until a planted bug must be found. Most are found in the first ones."""


def _run(seed: int, seconds: int) -> None:
    outcome = run_seed(seed, seconds)
    assert not outcome.failure, f"seed {seed}: {outcome.failure}\nrepeat it with: {command(seed, seconds)}"
    for what in ("acked", "reads", "changes", "confirmed acks", "batches committed", "streams deleted"):
        assert outcome.counts[what], f"seed {seed}: there was nothing of this: {what}"


@pytest.mark.unit
@pytest.mark.parametrize("seed", range(1, QUICK + 1))
def test_servers_keep_their_promises_under_faults(seed: int) -> None:
    _run(seed, SECONDS)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_servers_keep_their_promises_under_many_faults(seed: int) -> None:
    _run(seed, 20)


@pytest.mark.heavy
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_servers_is_found(name: str) -> None:
    bug = BUGS[name]
    with planted(bug):
        found = any(run_seed(seed, plan=bug.plan(seed)).failure for seed in range(1, ENOUGH + 1))
    assert found, f"{ENOUGH} seeds did not find that a server {name.replace('_', ' ')}"


@pytest.mark.unit
def test_a_swarm_may_have_an_operator_alone() -> None:
    plan = msgspec.structs.replace(plan_of(1, 2), work=("operator",), faults=("heal",), nodes=3, lake=False)
    assert run_seed(1, plan=plan).failure == ""


@pytest.mark.unit
def test_a_bug_is_found_and_a_seed_is_the_whole_run() -> None:
    """The digest of everything that happened is the same in another process, where hashes of strings differ."""
    bug = "purges_only_the_leader"
    ends = []
    for hashing in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim", "--whole", "--seed", "20", "--seconds", "2", "--bug", bug],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
        )
        ends.append([line for line in done.stdout.splitlines() if "digest" in line or "seed 20:" in line])
        assert done.returncode == 1, done.stdout + done.stderr
    assert "LIMITS" in ends[0][0], "the stream that the bug concerns"
    assert ends[0] == ends[1]
