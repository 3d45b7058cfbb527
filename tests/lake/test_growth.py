"""Test that a maintained table does not grow with its number of commits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.table.policy import HOUR_NS
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import MARGIN_NS, Policy
from tests.bench.bench_growth import CHECKPOINT_EVERY, STEP_NS, SUBJECTS, Sample, Simulation

pytestmark = pytest.mark.lake

COMMITS = 600
EVERY = 100
SMALL = 15 + 16
"""Upper bound of small files in a partition: fewer than 16 of about one size, and some larger than those below."""


def test_files_and_log_of_a_maintained_table_are_bounded(spark: Any, lake: Path) -> None:
    simulation = Simulation(lake, time.time_ns())
    maintainer = Maintainer(spark, str(lake), Policy(retain_ns=HOUR_NS), clock=lambda: simulation.now_ns)
    samples: list[tuple[Sample, Sample]] = []
    for number in range(1, COMMITS + 1):
        simulation.commit()
        if number % EVERY == 0:
            before = simulation.sample()
            (done,) = maintainer.once()
            assert done.failure is None
            samples.append((before, simulation.sample()))
    kept = (HOUR_NS + MARGIN_NS) // STEP_NS  # commits within the retention
    for before, after in samples:
        assert before.files <= len(SUBJECTS) * (SMALL + EVERY)
        assert after.files <= len(SUBJECTS) * SMALL
        assert after.on_disk <= len(SUBJECTS) * (kept + EVERY + SMALL)
        # Commits since the checkpoint before the retention's begin; each is a file, and every 50th has a checkpoint.
        assert after.log_files <= 1.1 * (kept + EVERY + CHECKPOINT_EVERY) + 10
    last = samples[-1][1]
    assert last.files < len(SUBJECTS) * 5
    assert last.on_disk < len(SUBJECTS) * COMMITS
    assert last.log_files < COMMITS
    assert simulation.count() == simulation.rows == COMMITS * len(SUBJECTS) * 10
    assert spark.read.format("delta").load(str(simulation.table)).count() == simulation.rows
