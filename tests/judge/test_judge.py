"""Tests that porcupine and our own checkers agree: on a history without faults of the server, and on planted bugs.

`make test-all` runs them with its cluster tests. Without Go, or where its module cannot be had, they are skipped, and
the reason says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.histories.bugs import BUGS
from tests.histories.campaign import Campaign, Plan
from tests.histories.checks import check, report
from tests.histories.plants import PLANTS
from tests.histories.record import History, load, save
from tests.judge.verdict import NoJudge, build, judge

pytestmark = [pytest.mark.heavy, pytest.mark.cluster]

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "reliability" / "histories.jsonl.xz"
"""History of a campaign, with docs/reliability.md."""
ATTEMPTS = 3
"""A bug of a server shows only if a fault meets the clients at the wrong moment."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built judge; skip the tests where it cannot be built."""
    try:
        return build(tmp_path_factory.mktemp("judge"))
    except NoJudge as error:
        pytest.skip(f"porcupine: {error}")


@pytest.fixture(scope="module")
def published() -> History:
    """Return the published history."""
    return History(load(PUBLISHED))


def judged(program: Path, directory: Path, history: History) -> set[str]:
    """Return the models that have no order for a history."""
    path = directory / "history.jsonl"
    save(path, history.events)
    [verdict] = judge(program, [path])
    assert not verdict.undecided, str(verdict)
    assert all(count.objects for count in verdict.models.values()), "a model has nothing to judge"
    return verdict.broken


def test_the_published_history_keeps_all_promises(program: Path, published: History, tmp_path: Path) -> None:
    violations = check(published)
    assert not violations, report(published, violations)
    assert judged(program, tmp_path, published) == set()


@pytest.mark.parametrize("name", PLANTS)
def test_both_find_a_bug_planted_in_a_history(name: str, program: Path, published: History, tmp_path: Path) -> None:
    plant = PLANTS[name]
    broken = History(plant.change(published))
    assert plant.promise in {violation.promise for violation in check(broken)}
    assert plant.model in judged(program, tmp_path, broken)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS)
def test_both_find_a_bug_of_running_servers(bug: str, program: Path, tmp_path: Path) -> None:
    _, faults, promise, model = BUGS[bug]
    found = []
    for seed in range(1, ATTEMPTS + 1):
        plan = Plan(seed=seed, seconds=20, faults=faults, nodes=3, lake=False, bug=bug)
        result = Campaign(plan, tmp_path / str(seed)).run()
        ours = {violation.promise for violation in result.violations}
        theirs = judged(program, tmp_path, History(result.events))
        if promise in ours and model in theirs:
            return
        found.append((ours, theirs))
    pytest.fail(f"{bug} shows neither as {promise} nor as {model}: {found}")
