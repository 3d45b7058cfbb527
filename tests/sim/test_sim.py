"""Tests that run a fixed number of seeds; `python -m tests.sim --seeds N` runs any number.

`LAKESTREAM_SIM_SEEDS` multiplies the number of seeds, `LAKESTREAM_SIM_FIRST` is the first seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.sim.runner import command, run_seed

pytestmark = pytest.mark.unit

TIMES = int(os.environ.get("LAKESTREAM_SIM_SEEDS", "1"))
FIRST = int(os.environ.get("LAKESTREAM_SIM_FIRST", "1"))
BATCH = 50
"""Seeds per test, which several workers share."""
CORE, GROUP = 12 * TIMES, 8 * TIMES
SOME_CORES, SOME_GROUPS = 8, 3
"""Tests in `make test`; the others are heavy. Those of the core are the 400 seeds in which tests/sim/test_bugs.py has
to find each planted bug."""


def _run(shell: str, batch: int) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in range(FIRST + batch * BATCH, FIRST + (batch + 1) * BATCH):
        outcome = run_seed(seed, shell)
        assert not outcome.failure, f"seed {seed}: {outcome.failure}\nrepeat it with: {command(seed, shell)}"
        happened.update(outcome.counts)
    return happened


def _batches(count: int, some: int) -> list[Any]:
    return [pytest.param(each, marks=[pytest.mark.heavy] if each >= some else []) for each in range(count)]


@pytest.mark.parametrize("batch", _batches(CORE, SOME_CORES))
def test_the_core_keeps_its_promises_under_faults(batch: int) -> None:
    happened = _run("core", batch)
    for what in (
        "acked",
        "reads answered",
        "truncations",
        "recovered",
        "installs",
        "membership changes",
        "rolled back",
    ):
        assert happened[what], f"in {BATCH} seeds there was nothing of this: {what}"
    assert happened["rolled back"] <= happened["restores"], "nobody else has less than it had confirmed"


@pytest.mark.parametrize("batch", _batches(GROUP, SOME_GROUPS))
def test_a_group_with_its_log_keeps_its_promises_under_faults(batch: int) -> None:
    happened = _run("group", batch)
    for what in ("acked", "reads answered", "truncations", "seals", "membership changes"):
        assert happened[what], f"in {BATCH} seeds there was nothing of this: {what}"


@pytest.mark.parametrize("shell", ["core", "group"])
def test_a_seed_is_the_whole_run(shell: str) -> None:
    """A seed gives the same run in another process, where hashes of strings differ."""
    traces = []
    for hashing in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim", "--shell", shell, "--seed", "7", "--seeds", "3", "--trace"],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        traces.append(done.stdout)
    assert len(traces[0]) > 10_000
    assert traces[0] == traces[1]
