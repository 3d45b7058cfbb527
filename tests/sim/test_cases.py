"""Tests of what shrinking found: each kept run fails with its bug, and does not without it; and of shrinking itself.

A case whose bug is "" failed by itself once, and must not fail again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.shrink import CASES, Shrinker, drawn_plan, fewer, kind_of, read, run, write

pytestmark = pytest.mark.unit

LONGEST = 12
"""Acts of a kept run, so that people can read it."""


def _cases() -> Iterator[Any]:
    """Yield the kept runs. Those of servers that need a planted bug are for `make test-all`: each is run twice."""
    for path in sorted(CASES.glob("*.json")):
        case, _ = read(path)
        yield pytest.param(path, id=path.stem, marks=[pytest.mark.heavy] if case.shell == "whole" and case.bug else [])


@pytest.mark.parametrize("path", _cases())
def test_a_kept_run_fails_with_its_bug_alone(path: Path) -> None:
    case, plan = read(path)
    assert plan.acts is not None
    assert len(plan.acts) <= LONGEST
    if case.bug:
        assert kind_of(run(case.shell, case.bug, plan).failure) == case.failure
    assert run(case.shell, "", plan).failure == ""


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), max_size=4))
def test_what_is_left_out_leaves_what_the_failure_needs(items: list[int], needed: list[int]) -> None:
    def fails(kept: tuple[int, ...]) -> bool:
        rest = iter(kept)
        return all(each in rest for each in needed)

    if fails(tuple(items)):
        assert list(fewer(items, fails)) == needed


def test_a_seed_is_shrunk_to_a_run_that_can_be_kept(tmp_path: Path) -> None:
    shell, bug = "core", "votes_for_anybody"
    plan = next(plan for seed in range(1, 99) if run(shell, bug, plan := drawn_plan(seed, shell, bug, 0)).failure)
    first = run(shell, bug, plan)
    shrinker = Shrinker(
        msgspec.structs.replace(plan, acts=first.acts), kind_of(first.failure), partial(run, shell, bug)
    )
    shrinker.shrink()
    assert len(shrinker.plan.acts) <= 3 < len(first.acts)
    write(tmp_path / "case.json", shell, bug, first.failure, shrinker.plan)
    case, again = read(tmp_path / "case.json")
    assert again == shrinker.plan
    assert kind_of(run(shell, bug, again).failure) == case.failure
    assert run(shell, "", again).failure == ""
