"""Every registered scenario gives the same transcript on lakestream as on nats-server, recorded or live."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance import harness, scenarios
from tests.conformance.harness import Scenario, compare, play, remove_streams, stopped
from tests.pairs import Pair, Setup
from tests.recordings import Recordings, Transcript

pytestmark = pytest.mark.conformance

TIMEOUT_S = 5.0
PLAYS = 2
"""Number of runs before a difference counts.

In some scenarios the order of two events is random on a busy machine, on either server. What differs in each run is a
difference; what differed once is shown as a warning, to be looked at.
"""

SMALL_TABLE = 10
"""Rows of a table that `make test` plays in any case; of further rows it plays every fourth, `make test-all` all."""

scenarios.load()


def _chosen(*, with_heavy: bool) -> Iterator[Any]:
    """Yield the scenarios as parameters; those are heavy that `make test` leaves out."""
    rows: Counter[str] = Counter()
    for each in harness.SCENARIOS:
        table = each.id.partition("[")[0]
        left_out = rows[table] >= SMALL_TABLE and rows[table] % 4
        rows[table] += 1
        if with_heavy or not left_out:
            yield pytest.param(each, id=each.id, marks=[pytest.mark.heavy] if left_out else [])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each scenario; `make test` does not even collect those that it leaves out."""
    with_heavy = metafunc.config.getoption("markexpr") != "not heavy"
    metafunc.parametrize("scenario", [*_chosen(with_heavy=with_heavy)])


def test_the_servers_agree(scenario: Scenario, pairs: dict[Setup, Pair], recordings: Recordings) -> None:
    difference = ""
    for left in reversed(range(PLAYS)):
        difference = _difference(scenario, pairs[scenario.setup], recordings, last=not left)
        if not difference:
            return
        warnings.warn(f"{scenario.id} differed:\n{difference}", stacklevel=1)
    pytest.fail(f"{scenario.id}\n{difference}", pytrace=False)


def _difference(scenario: Scenario, pair: Pair, recordings: Recordings, *, last: bool) -> str:
    if scenario.recorded and not recordings.asks(scenario.id):
        return compare(scenario.id, recordings.get(scenario.id), _play(scenario, pair, 1))
    with ThreadPoolExecutor(2) as threads:
        expected, got = threads.map(lambda s: _play(scenario, pair, s), (0, 1))
    if stopped(expected):
        return f"the scenario does not work against {pair.expected.kind.value}: {stopped(expected)}"
    assert expected, "a scenario that records nothing proves nothing"
    stale = recordings.stale(scenario.id, expected, compare, last=last) if scenario.recorded else ""
    return stale or compare(scenario.id, recordings.expected(scenario.id, expected), got)


def _play(scenario: Scenario, pair: Pair, side: int) -> Transcript:
    server = pair.alive(side)
    transcript = play(scenario, server, TIMEOUT_S)
    try:
        remove_streams(server, TIMEOUT_S, scenario.setup.users)
    except Exception as error:  # the next scenario needs a clean server, whatever the error
        transcript.append(("CLEANING UP", f"{type(error).__name__}: {error}"))
        pair.renew(side)
    return transcript
