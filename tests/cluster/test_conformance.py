"""Every scenario gives the same transcript on a cluster of lakestream as on nats-server's, recorded or live."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster import harness, scenarios
from tests.cluster.conftest import Kept
from tests.cluster.harness import Scenario, clean, compare, play
from tests.conformance.harness import stopped
from tests.recordings import Recordings, Transcript
from tests.servers import Kind

pytestmark = [pytest.mark.conformance, pytest.mark.cluster]

TIMEOUT_S = 5.0
PLAYS = 3
"""Answers depend on when elections end, on nats-server too: only a difference in each of this many runs counts."""
REAL_TRIES = 3
"""Number of attempts at a scenario that nats-server's own nodes do not complete."""

BREAKING_SMOKE = {"outages.the_leader_is_gone", "consumer_acks.terms_and_counts_outlive_the_leader"}
"""Scenarios of those that take nodes down that are smoke tests; each needs a cluster of its own."""

scenarios.load()


def _parameter(scenario: Scenario) -> Any:
    smoke = not scenario.breaks or scenario.id in BREAKING_SMOKE
    return pytest.param(scenario, id=scenario.id, marks=[pytest.mark.smoke] if smoke else [])


@pytest.mark.parametrize("scenario", [_parameter(scenario) for scenario in harness.SCENARIOS])
def test_the_clusters_agree(scenario: Scenario, clusters: tuple[Kept, Kept], recordings: Recordings) -> None:
    check(scenario, clusters, recordings, scenario.id)


def check(scenario: Scenario, clusters: tuple[Kept, Kept], recordings: Recordings, recording: str) -> None:
    """Run a scenario on the cluster under test; compare with nats-server's transcript, recorded or live."""
    for left in reversed(range(PLAYS)):
        difference = _difference(scenario, clusters, recordings, recording, last=not left)
        if not difference:
            return
        warnings.warn(f"{scenario.id} differed:\n{difference}", stacklevel=1)
    pytest.fail(f"{scenario.id}\n{difference}", pytrace=False)


def _difference(
    scenario: Scenario, clusters: tuple[Kept, Kept], recordings: Recordings, recording: str, *, last: bool
) -> str:
    if not recordings.asks(recording):
        return compare(scenario.id, recordings.get(recording), _play(scenario, clusters[1]))
    for _ in range(REAL_TRIES):
        with ThreadPoolExecutor(2) as threads:
            expected, got = threads.map(lambda kept: _play(scenario, kept), clusters)
        if not stopped(expected):
            break
        # On a busy machine nats-server's just restored stream sometimes stays without a leader.
        warnings.warn(f"{scenario.id} stopped on nats-server: {stopped(expected)}", stacklevel=1)
        clusters[0].drop()
    else:
        return f"the scenario does not work against nats-server: {stopped(expected)}"
    assert expected, "a scenario that records nothing proves nothing"
    stale = recordings.stale(recording, expected, lambda _, *both: compare(scenario.id, *both), last=last)
    return stale or compare(scenario.id, recordings.expected(recording, expected), got)


def _play(scenario: Scenario, kept: Kept) -> Transcript:
    try:
        cluster = kept.get()
    except Exception as error:  # without a transcript: the other server still shows if the scenario works
        said = f"{type(error).__name__}: {error}\n{kept.log()}"
        kept.drop()
        return [("STOPPED", said)]
    transcript = play(scenario, cluster, TIMEOUT_S)
    try:
        clean(cluster, TIMEOUT_S)
    except Exception as error:  # the next scenario needs a clean cluster, whatever the error
        if kept.kind is Kind.OURS:
            transcript.append(("CLEANING UP", f"{type(error).__name__}: {error}"))
        kept.drop()
    return transcript
