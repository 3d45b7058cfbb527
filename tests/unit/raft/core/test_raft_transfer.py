"""Tests of leadership transfers and requests to campaign, with the scenario names of etcd-io/raft."""

from __future__ import annotations

import pytest

from lakestream.raft.core.messages import AppendReply, Membership, TimeoutNow, Vote
from lakestream.raft.core.ready import NotLeader, Role, Transferring
from tests.unit.raft_net import OPTIONS, Net, entry

pytestmark = pytest.mark.unit


# -- leader transfer ---------------------------------------------------------------------------------------------------


def test_transfer_to_an_up_to_date_follower_is_immediate_and_ignores_leases() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    assert net["a"].transfer("b") == "b"
    net.settle()
    assert (net["b"].role, net["a"].role) == (Role.LEADER, Role.FOLLOWER)
    assert net["a"].leader == "b"
    assert not any(m.pre for m in net.sent(Vote, sender="b"))  # type: ignore[union-attr]


def test_transfer_back_and_forth() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    for old, new in [("a", "b"), ("b", "a"), ("a", "c")]:
        net[old].transfer(new)
        net.settle()
        assert net[new].role is Role.LEADER


def test_transfer_chooses_the_most_caught_up_voter_when_none_is_named() -> None:
    net = Net("a", "b", "c", learners=["d"])
    net.elect("a")
    net.isolate("b")
    net.propose("a", b"x")
    net.heal()
    assert net["a"].transfer() == "c"


def test_transfer_to_a_slow_follower_waits_until_it_has_everything() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.propose("a", b"x", b"y")
    net.heal()
    net["a"].unreachable("c")
    net["a"].transfer("c")
    assert net["a"].transferring == "c"
    net.settle()
    assert net["c"].role is Role.LEADER
    assert net.bodies("c") == [b"x", b"y"]


def test_transfer_to_a_follower_that_needs_a_state_waits_for_it() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.propose("a", b"x", b"y")
    net.tick()
    net.members["a"].compact(3)
    net.heal()
    net["a"].unreachable("c")
    net["a"].transfer("c")
    net.settle()
    assert net["a"].role is Role.LEADER
    net.members["c"].install(net.members["a"])
    net.settle()
    assert net["c"].role is Role.LEADER


def test_transfer_to_self_has_no_effect() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    assert net["a"].transfer("a") == ""
    net.propose("a", b"x")
    assert net.bodies("a") == [b"x"]


@pytest.mark.parametrize("to", ["d", "nobody"])
def test_transfer_to_a_nonvoter_is_refused(to: str) -> None:
    net = Net("a", "b", "c", learners=["d"])
    net.elect("a")
    with pytest.raises(ValueError, match="not a voter"):
        net["a"].transfer(to)
    assert net["a"].transferring == ""


def test_transfer_asked_of_a_follower_is_refused() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    with pytest.raises(NotLeader):
        net["b"].transfer("c")


def test_transfer_times_out_and_the_leader_takes_proposals_again() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("b")
    net["a"].transfer("b")
    with pytest.raises(Transferring):
        net["a"].propose([entry(2, 1)])
    with pytest.raises(Transferring):
        net["a"].propose_membership(Membership(("a", "b")))
    net.tick(OPTIONS.transfer_ticks)
    assert net["a"].transferring == ""
    net.propose("a", b"x")
    assert net.bodies("a") == [b"x"]


def test_transfer_second_call_to_another_replaces_the_first() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("b")
    net["a"].transfer("b")
    net.settle()
    net["a"].transfer("c")
    net.settle()
    assert net["c"].role is Role.LEADER


def test_transfer_second_call_to_the_same_does_not_prolong_it() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("b")
    net["a"].transfer("b")
    net.tick(OPTIONS.transfer_ticks - 1)
    net["a"].transfer("b")
    net.tick()
    assert net["a"].transferring == ""


def test_transfer_a_lost_request_to_campaign_is_repeated() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.drop = lambda sender, to, message: isinstance(message, TimeoutNow)
    net["a"].transfer("b")
    net.settle()
    net.heal()
    net.tick()
    assert net["b"].role is Role.LEADER


def test_transfer_ends_when_a_newer_term_is_seen() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("b")
    net["a"].transfer("b")
    net["a"].step("c", AppendReply(5, 0, True))
    assert net["a"].transferring == ""
    assert net["a"].role is Role.FOLLOWER


def test_transfer_while_a_proposal_is_not_committed_keeps_it() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x", settle=False)
    net["a"].transfer("b")
    net.settle()
    assert net["b"].role is Role.LEADER
    assert net.bodies("b") == [b"x"]


def test_a_request_to_campaign_counts_only_from_the_leader() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net["b"].step("c", TimeoutNow(1))
    assert net["b"].role is Role.FOLLOWER


def test_a_request_to_campaign_to_a_learner_is_ignored() -> None:
    net = Net("a", "b", learners=["c"])
    net.elect("a")
    net["c"].step("a", TimeoutNow(1))
