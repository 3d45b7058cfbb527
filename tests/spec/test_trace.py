"""Tests that runs of the simulator are runs of the models, and that steps which the models do not have are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.sim.bugs import CORE_BUGS, planted
from tests.sim.shrink import CASES, read
from tests.sim.traced import Trace, traced
from tests.sim.world import plan_of
from tests.spec.trace import Ack, Change, Claim, Commit, Cut, Event, Lead, NotPermitted, Reopen, Term, Write

pytestmark = pytest.mark.unit

SEEDS = 20
BROKEN = {
    "votes_twice": "Elect",
    "votes_for_anybody": "VotesForTheNewest",
    "counts_old_terms": "CommitsItsOwnTerm",
    "counts_one_too_few": "AckedIsOnAMajority",
    "counts_itself_before_the_disk": "AckedIsOnAMajority",
    "counts_learners": "AckedIsOnAMajority",
    "changes_members_at_once": "OwnEntryFirst",
    "cuts_on_every_append": "Replicate",
    "loses_a_promise_on_replies": "AckedIsOnAMajority",
}
"""Guard that a planted bug breaks, by its name."""


@cache
def good() -> Trace:
    """Return a run with members that change, several terms and cuts."""
    for seed in range(1, 400):
        trace = traced(plan_of(seed))
        seen = Counter(type(event) for event in trace.events)
        if seen[Change] > 1 and seen[Cut] > 1 and seen[Lead] > 2:
            return trace
    raise AssertionError("no seed has all of it")


@pytest.mark.parametrize("shell", ["core", "group"])
def test_a_run_is_a_run_of_the_models(shell: str) -> None:
    steps: Counter[str] = Counter()
    for seed in range(1, SEEDS + 1):
        trace = traced(plan_of(seed, shell))
        assert trace.failure == ""
        steps.update(trace.check().steps)
    wanted: list[type[Event]] = [Term, Claim, Lead, Change, Write, Cut, Commit, Ack]
    if shell == "group":
        wanted.append(Reopen)
    assert all(steps[kind.__name__] for kind in wanted), steps


@pytest.mark.parametrize("bug", BROKEN)
def test_a_planted_bug_takes_a_step_that_the_models_do_not_have(bug: str) -> None:
    _, plan = read(CASES / f"core-{bug.replace('_', '-')}.json")
    with planted(CORE_BUGS[bug]):
        trace = traced(plan)
    with pytest.raises(NotPermitted) as refused:
        trace.check()
    assert refused.value.guard == BROKEN[bug]


def test_a_changed_step_is_refused() -> None:
    trace = good()
    trace.check()
    wrong: list[tuple[str, type[Event], Callable[[Event], Event | None]]] = [
        ("VotersDecide", Term, lambda event: msgspec.structs.replace(event, vote="")),
        ("Elect", Claim, lambda event: None),
        ("VotesForTheNewest", Claim, lambda event: msgspec.structs.replace(event, last_term=0, last_index=0)),
        ("Publish", Lead, lambda event: None),
        ("Change", Change, lambda event: None),
        ("OneMember", Change, lambda event: msgspec.structs.replace(event, voters=("x", "y"))),
        ("AckedIsOnAMajority", Commit, lambda event: msgspec.structs.replace(event, index=event.index + 1000)),
        ("Replicate", Cut, lambda event: None),
        ("Replicate", Write, lambda event: msgspec.structs.replace(event, first=event.first + 1)),
        ("OwnEntryFirst", Commit, lambda event: None),
        ("Ack", Ack, lambda event: msgspec.structs.replace(event, index=event.index + 1000)),
    ]
    for guard, kind, change in wrong:
        events = [change(event) if type(event) is kind else event for event in trace.events]
        changed = Trace([event for event in events if event is not None], trace.founders, "")
        with pytest.raises(NotPermitted) as refused:
            changed.check()
        assert refused.value.guard == guard, (kind, refused.value)


def test_a_second_change_of_members_before_the_first_is_committed_is_refused() -> None:
    trace = good()
    at, first = next((at, event) for at, event in enumerate(trace.events) if isinstance(event, Change))
    second = msgspec.structs.replace(first, index=first.index + 1)
    with pytest.raises(NotPermitted) as refused:
        Trace([*trace.events[: at + 1], second], trace.founders, "").check()
    assert refused.value.guard == "OneAtATime"


def test_the_guards_are_those_of_the_models() -> None:
    """Each guard that a planted bug breaks is a guard, a step or an invariant of a model."""
    models = "".join(path.read_text() for path in Path(__file__).parent.glob("*.tla"))
    assert all(guard in models for guard in BROKEN.values())
