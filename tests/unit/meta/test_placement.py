"""Tests of placement: the nodes chosen for a stream, and refusals in the words of nats-server 2.15.1."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lakestream.meta.placement import Candidate, Requirements, choose, choose_leader, peer_id
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.config import Placement

pytestmark = pytest.mark.unit

THREE = [Candidate(name=f"n{n}", cluster="C1", tags=(f"az:{n}", "ssd")) for n in (1, 2, 3)]


def _refusal(wanted: Requirements, candidates: list[Candidate] = THREE, **more: tuple[str, ...]) -> str:
    with pytest.raises(ApiError) as caught:
        choose(wanted, candidates, **more)
    assert (caught.value.code, caught.value.err_code) == (400, 10005)
    return caught.value.description


@pytest.mark.parametrize(("name", "short"), [("n1", "fjFyEjc1"), ("n2", "44jzkV9D"), ("n3", "BXScrY9i")])
def test_a_nodes_short_id_is_that_of_nats_server(name: str, short: str) -> None:
    assert peer_id(name) == short


def test_the_emptiest_nodes_are_chosen() -> None:
    busy = [replace(THREE[0], replicas=4), replace(THREE[1], replicas=1), replace(THREE[2], replicas=2)]
    assert choose(Requirements(replicas=2), busy) == ("n2", "n3")


def test_the_node_with_the_fewest_leaders_is_preferred() -> None:
    nodes = [replace(THREE[0], leads=2), replace(THREE[1], leads=1), replace(THREE[2], leads=0)]
    assert choose(Requirements(replicas=3), nodes) == ("n3", "n2", "n1")


def test_more_replicas_than_nodes_are_refused() -> None:
    assert _refusal(Requirements(replicas=5)) == "no suitable peers for placement"


def test_another_cluster_has_no_nodes_here() -> None:
    wanted = Requirements(replicas=1, placement=Placement(cluster="XX"))
    assert _refusal(wanted) == "no suitable peers for placement"


def test_tags_choose_nodes_whatever_their_case() -> None:
    assert choose(Requirements(replicas=1, placement=Placement(tags=["AZ:2", "ssd"])), THREE) == ("n2",)


def test_a_negated_tag_keeps_away_from_nodes() -> None:
    assert set(choose(Requirements(replicas=2, placement=Placement(tags=["!az:2"])), THREE)) == {"n1", "n3"}
    wanted = Requirements(replicas=3, placement=Placement(tags=["!AZ:2"]))
    assert _refusal(wanted) == "no suitable peers for placement, tags not matched ['!AZ:2']"


def test_tags_that_no_node_has_are_named() -> None:
    wanted = Requirements(replicas=1, placement=Placement(tags=["nix", "ssd"]))
    assert _refusal(wanted) == "no suitable peers for placement, tags not matched ['nix']"


def test_a_node_that_is_away_is_chosen_last_and_only_beside_a_majority() -> None:
    nodes = [replace(THREE[0], alive=False), *THREE[1:]]
    assert choose(Requirements(replicas=2), nodes) == ("n2", "n3")
    assert choose(Requirements(replicas=3), nodes) == ("n2", "n3", "n1")
    nodes[1] = replace(nodes[1], alive=False)
    assert choose(Requirements(replicas=1), nodes) == ("n3",)
    assert _refusal(Requirements(replicas=2), nodes) == "no suitable peers for placement, peer offline"
    assert _refusal(Requirements(replicas=3), nodes) == "no suitable peers for placement, peer offline"


def test_a_node_without_room_is_not_chosen() -> None:
    nodes = [replace(THREE[0], max_file=100, reserved_file=60), *THREE[1:]]
    assert choose(Requirements(replicas=2, size=41), nodes) == ("n2", "n3")
    assert set(choose(Requirements(replicas=3, size=40), nodes)) == {"n1", "n2", "n3"}
    assert set(choose(Requirements(replicas=3, size=41, storage="memory"), nodes)) == {"n1", "n2", "n3"}
    assert _refusal(Requirements(replicas=3, size=41), nodes) == "no suitable peers for placement, insufficient storage"


def test_a_node_that_is_set_apart_keeps_what_it_has_and_gets_nothing_new() -> None:
    nodes = [replace(THREE[0], tags=("!jetstream",)), *THREE[1:]]
    assert _refusal(Requirements(replicas=3), nodes) == "no suitable peers for placement, exclude tag set"
    assert choose(Requirements(replicas=3), nodes, keep=("n1",))[0] == "n1"


def test_a_unique_tag_spreads_replicas() -> None:
    nodes = [replace(THREE[0], tags=("az:1",)), replace(THREE[1], tags=("az:1",)), replace(THREE[2], tags=("az:3",))]
    assert choose(Requirements(replicas=2, unique_tag="az:"), nodes) == ("n1", "n3")
    refusal = _refusal(Requirements(replicas=3, unique_tag="az:"), nodes)
    assert refusal == "no suitable peers for placement, server tag not unique"


def test_a_unique_tag_looks_at_those_that_stay_too() -> None:
    nodes = [replace(THREE[0], tags=("az:1",)), replace(THREE[1], tags=("az:1",)), replace(THREE[2], tags=("az:3",))]
    assert choose(Requirements(replicas=2, unique_tag="az:"), nodes, keep=("n2",)) == ("n2", "n3")


def test_growing_keeps_the_nodes_that_hold_the_stream() -> None:
    nodes = [replace(THREE[0], replicas=9), *THREE[1:]]
    assert choose(Requirements(replicas=3), nodes, keep=("n1",)) == ("n1", "n2", "n3")


def test_shrinking_keeps_the_first() -> None:
    assert choose(Requirements(replicas=1), THREE, keep=("n3", "n1", "n2")) == ("n3",)


def test_a_node_that_is_only_away_stays() -> None:
    nodes = [replace(THREE[0], alive=False), *THREE[1:]]
    assert choose(Requirements(replicas=3), nodes, keep=("n1", "n2", "n3")) == ("n1", "n2", "n3")


def test_a_node_to_avoid_is_replaced() -> None:
    four = [*THREE, Candidate(name="n4", cluster="C1")]
    assert choose(Requirements(replicas=3), four, keep=("n1", "n2", "n3"), avoid={"n2"}) == ("n1", "n3", "n4")
    assert _refusal(Requirements(replicas=3), THREE, keep=("n1", "n2", "n3"), avoid=("n2",))


def test_a_stream_moves_off_nodes_that_its_new_tags_leave_out() -> None:
    wanted = Requirements(replicas=1, placement=Placement(tags=["az:3"]))
    assert choose(wanted, THREE, keep=("n1",)) == ("n3",)


def test_a_leader_transfers_to_the_node_of_the_placement() -> None:
    members = ["n1", "n2", "n3"]
    assert choose_leader(Placement(), members, THREE, "n1") == ""
    assert choose_leader(Placement(preferred="n3"), members, THREE, "n1") == "n3"
    assert choose_leader(Placement(tags=["az:2"]), members, THREE, "n1") == "n2"
    assert choose_leader(Placement(cluster="C1"), members, THREE, "n1") == "n2"


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (Placement(preferred="zz"), 'preferred server "zz" not known'),
        (Placement(preferred="n1"), 'preferred server "n1" is already leader'),
        (Placement(tags=["az:9"]), "no replacement peer connected"),
        (Placement(tags=["az:1"]), "no replacement peer connected"),
        (Placement(cluster="XX"), "no replacement peer connected"),
    ],
)
def test_a_leader_without_a_successor_stays(placement: Placement, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        choose_leader(placement, ["n1", "n2", "n3"], THREE, "n1")
    assert (caught.value.err_code, caught.value.description) == (10005, text)
