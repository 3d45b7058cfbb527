"""Scenarios of each kind in a configured account of a cluster with several accounts.

test_conformance.py runs all scenarios in the default account.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import harness, scenarios
from tests.cluster.conftest import Kept
from tests.cluster.harness import Scenario
from tests.cluster.test_accounts import ACCOUNTS, USER
from tests.cluster.test_conformance import check
from tests.recordings import Recordings
from tests.servers import Kind

pytestmark = [pytest.mark.conformance, pytest.mark.cluster]

scenarios.load()

CHOSEN = {
    "advisories.a_request_is_audited_once",
    "advisories.streams_and_consumers_elect_leaders",
    "backups.a_restored_stream_is_everywhere",
    "batches.atomic_batches_of_a_replicated_stream",
    "consumers.creating_consumers",
    "consumers.pulling_over_any_node",
    "consumers.push_consumers_deliver_to_any_node",
    "leaders.a_stream_leader_steps_down",
    "leaders.the_meta_leader_steps_down",
    "lifetimes.a_counter_under_another_leader",
    "placement.a_stream_of_the_same_name_begins_anew",
    "placement.bad_requests",
    "placement.list_and_account_info",
    "routing.a_queue_group_gets_each_message_once",
    "routing.info_tells_of_the_cluster",
    "routing.requests_are_answered_over_nodes",
    "scaling.removing_servers_that_cannot_be_removed",
    "scaling.up_and_down",
    "schedules.schedules_go_with_the_leader",
    "semantics.ids_and_sequences_outlive_the_leader",
    "stream_config.events_of_streams_are_told_once",
    "tracing.a_replicated_stream_publishes_again_once",
    "tracing.a_trace_into_a_replicated_stream",
    "tracing.a_trace_over_nodes",
}

PLAYED = [scenario for scenario in harness.SCENARIOS if scenario.id in CHOSEN]


@pytest.fixture(scope="module")
def pair(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kept, Kept]]:
    """Yield nats-server's cluster and the one under test, each with several accounts."""
    made = [Kept(of, tmp_path_factory.mktemp("accounts"), accounts=ACCOUNTS, user=USER) for of in (Kind.REAL, kind)]
    yield made[0], made[1]
    for one in made:
        one.drop()


def test_all_chosen_scenarios_exist() -> None:
    assert {scenario.id for scenario in PLAYED} == CHOSEN


@pytest.mark.parametrize("scenario", PLAYED, ids=[scenario.id for scenario in PLAYED])
def test_the_clusters_agree_in_an_account(scenario: Scenario, pair: tuple[Kept, Kept], recordings: Recordings) -> None:
    check(scenario, pair, recordings, f"in_an_account.{scenario.id}")
