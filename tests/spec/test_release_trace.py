"""Tests that runs of servers with a lake are runs of Release.tla, and that steps which it does not have are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.sim.events import MS, S
from tests.sim.whole.bugs import LAKE_BUGS
from tests.sim.whole.traced import LakeTrace, traced
from tests.sim.whole.world import Plan, plan_of
from tests.spec.release_trace import Made, OfTable, Planned, Released, Stage, Taken, Unstage, Verified
from tests.spec.trace import NotPermitted

pytestmark = pytest.mark.unit

FAULTS = ("kill", "lake_away", "lake_cut", "lake_slow", "lake_flaky", "kill_compactor", "pause_compactor")
SEEDS = 6
ENOUGH = 10
"""Seeds within which a planted bug must take a step that the model does not have."""
FIRST = "drops_what_is_only_staged"
"""The planted bug of the quick stage."""


def plan(seed: int, seconds: int = 4) -> Plan:
    """Return a run with a lake that fails in every way, and with work that only adds messages and deletes streams."""
    drawn = plan_of(seed, seconds)
    return msgspec.structs.replace(
        drawn,
        work=("events", "limits"),
        faults=FAULTS,
        nodes=3,
        lake=True,
        fault_ns=seconds * S,
        faults_every_ns=500 * MS,
    )


@cache
def good() -> LakeTrace:
    """Return a run in which segments leave a log and the staging area."""
    for seed in range(1, ENOUGH + 1):
        trace = traced(plan(seed))
        seen = Counter(type(event) for event in trace.events)
        if not trace.failure and seen[Released] and seen[Unstage] and seen[Made] > 3:
            return trace
    raise AssertionError("no seed has all of it")


@pytest.mark.heavy
def test_runs_with_a_lake_are_runs_of_the_model() -> None:
    steps: Counter[str] = Counter()
    for seed in range(1, SEEDS + 1):
        trace = traced(plan(seed))
        assert trace.failure == ""
        steps.update(trace.check().steps)
    steps.update(good().check().steps)
    assert all(steps[name] for name in ("Stage", "Begin", "Planned", "Made", "Verified", "Released", "Unstage")), steps


def test_a_run_with_a_lake_is_a_run_of_the_model() -> None:
    good().check()


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=[pytest.mark.heavy] if bug != FIRST else []) for bug in LAKE_BUGS]
)
def test_a_planted_bug_of_the_lake_breaks_its_guard(bug: str) -> None:
    plant, guard = LAKE_BUGS[bug]
    with ExitStack() as stack:
        plant(stack)
        found = next(filter(None, (refusal(traced(plan(seed))) for seed in range(1, ENOUGH + 1))), None)
    assert found is not None, f"{ENOUGH} seeds did not show it"
    assert found.guard == guard, found


def refusal(trace: LakeTrace) -> NotPermitted | None:
    """Return the refusal of a run; None if it is one of the model."""
    try:
        trace.check()
    except NotPermitted as refused:
        return refused
    return None


CHANGES: list[tuple[str, type[OfTable], Callable[[OfTable], list[OfTable]]]] = [
    ("Begin", Stage, lambda event: []),
    ("Begin", Planned, lambda event: []),
    ("ChecksPosition", Planned, lambda event: [msgspec.structs.replace(event, at=event.at + 1)]),
    ("CommitSyncs", Made, lambda event: [msgspec.structs.replace(event, added=(*event.added, "x"))]),
    ("Verify", Verified, lambda event: [msgspec.structs.replace(event, held=event.held + 1000)]),
    ("StaysForRepair", Unstage, lambda event: [msgspec.structs.replace(event, node="another")]),
    ("WaitsForTheTable", Released, lambda event: [msgspec.structs.replace(event, last=event.last + 1000)]),
]


@pytest.mark.parametrize(
    ("guard", "kind", "change"), CHANGES, ids=[f"{guard}-{kind.__name__}" for guard, kind, _ in CHANGES]
)
def test_a_changed_step_of_the_lake_is_refused(
    guard: str, kind: type[OfTable], change: Callable[[OfTable], list[OfTable]]
) -> None:
    events: list[OfTable] = []
    for event in good().events:
        events += change(event) if type(event) is kind else [event]
    with pytest.raises(NotPermitted) as refused:
        LakeTrace(events, "").check()
    assert refused.value.guard == guard


@pytest.mark.parametrize(("guard", "before"), [("Verifies", Verified), ("LooksBeforeDeleting", Released)])
def test_nothing_goes_while_a_file_is_missing(guard: str, before: type[OfTable]) -> None:
    """A file is taken right before the step."""
    trace = good()
    at = max(number for number, event in enumerate(trace.events) if type(event) is before)
    event = trace.events[at]
    made = [each for each in trace.events[:at] if isinstance(each, Made) and each.table == event.table and each.added]
    taken = [Taken("", event.table, path) for each in made for path in each.added]
    with pytest.raises(NotPermitted) as refused:
        LakeTrace([*trace.events[:at], *taken, event], "").check()
    assert refused.value.guard == guard


def test_the_guards_are_those_of_the_model_of_releases() -> None:
    model = Path(__file__).with_name("Release.tla").read_text()
    assert all(
        guard in model for guard in [*(guard for _, guard in LAKE_BUGS.values()), *(each[0] for each in CHANGES)]
    )
