"""Tests of the formation of a cluster: one node decides, once, and no node starts a second cluster."""

from __future__ import annotations

import itertools

import pytest

from lakestream.meta.meta_join import Apply, Begin, JoinWait, SeenNode, decide
from lakestream.raft.core.messages import Membership

pytestmark = pytest.mark.unit


def _fresh(*sees: str) -> SeenNode:
    return SeenNode(jetstream=True, clustered=False, sees=frozenset(sees))


def _old(*sees: str) -> SeenNode:
    return SeenNode(jetstream=True, clustered=True, sees=frozenset(sees))


def test_the_first_by_name_begins_with_all() -> None:
    others = {"b": _fresh("a", "c"), "c": _fresh("a", "b")}
    assert decide("a", True, others) == Begin(Membership(("a", "b", "c")))


def test_the_others_wait_for_it() -> None:
    assert decide("b", True, {"a": _fresh("b", "c"), "c": _fresh("a", "b")}) == JoinWait("a begins the cluster")


def test_no_cluster_forms_while_a_configured_node_is_missing() -> None:
    assert isinstance(decide("a", False, {"b": _fresh("a")}), JoinWait)


def test_no_cluster_forms_while_nodes_see_different_ones() -> None:
    assert decide("a", True, {"b": _fresh("a"), "c": _fresh("a", "b")}) == JoinWait(
        "b is not connected to the same nodes"
    )
    assert isinstance(decide("a", True, {"b": _fresh("a", "c")}), JoinWait)


def test_a_node_that_finds_a_cluster_applies_to_it() -> None:
    assert decide("a", False, {"b": _old("a", "c"), "c": _fresh("b"), "d": _old()}) == Apply(("b", "d"))


def test_a_node_alone_begins_alone_when_it_knows_no_others() -> None:
    assert decide("a", True, {}) == Begin(Membership(("a",)))


def test_a_node_without_jetstream_is_seen_but_is_no_member() -> None:
    others = {"a": SeenNode(jetstream=False, clustered=False, sees=frozenset(("b", "c"))), "c": _fresh("a", "b")}
    assert decide("b", True, others) == Begin(Membership(("b", "c")))


@pytest.mark.parametrize("links", range(1 << 6))
def test_two_nodes_never_begin_two_clusters_from_the_same_connections(links: int) -> None:
    # Whatever pairs of four nodes are connected: no two of the nodes that start a cluster are connected.
    pairs = [pair for at, pair in enumerate(itertools.combinations("abcd", 2)) if links >> at & 1]
    sees = {name: {a if b == name else b for a, b in pairs if name in (a, b)} for name in "abcd"}
    begun = []
    for name in "abcd":
        step = decide(name, True, {other: _fresh(*sees[other]) for other in sees[name]})
        if isinstance(step, Begin):
            begun.append(set(step.membership.voters))
    for one, other in itertools.combinations(begun, 2):
        assert not one & other
