"""Faults at each step of the operations on tables (steps.py); `python -m tests.lake_faults` has them in S3, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lake import steps
from tests.lake.steps import OPERATIONS, How, Prepared

pytestmark = pytest.mark.lake


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "step", "how"),
    [("optimize", 1, How.LOST), ("optimize", 1, How.LATE), ("compaction", 2, How.LOST)],
)
def test_invariant_13_a_commit_whose_outcome_is_unknown_leaves_a_whole_table(
    spark: Any, tmp_path: Path, name: str, step: int, how: How
) -> None:
    seen = steps.run(Prepared(spark, OPERATIONS[name], str(tmp_path / "lake"), tmp_path / "kept"), step, how)
    assert seen[-1].startswith("commit")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OPERATIONS)
def test_invariant_13_a_fault_at_any_step_leaves_whole_tables(spark: Any, tmp_path: Path, name: str) -> None:
    runs = steps.each(Prepared(spark, OPERATIONS[name], str(tmp_path / "lake"), tmp_path / "kept"), tuple(How))
    assert runs >= len(How) - 1  # AMIDST needs an object store
