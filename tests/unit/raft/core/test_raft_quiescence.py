"""Tests of quiescence: idle groups stop their ticks, and still detect everything, above all a dead leader."""

from __future__ import annotations

import pytest

from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import AppendReply, Membership, Quiesce, Vote
from lakestream.raft.core.ready import RaftOptions, Role
from tests.unit.raft_net import Net, append, drain, lone

pytestmark = pytest.mark.unit

QUIET = 5
OPTIONS = RaftOptions(quiesce_ticks=QUIET)


def quiet_net() -> Net:
    net = Net("a", "b", "c", options=OPTIONS)
    net.elect("a")
    net.propose("a", b"x")
    net.tick(QUIET + 1)
    assert all(net[name].quiescent for name in "abc")
    net.seen.clear()
    return net


def crash(net: Net, name: str) -> None:
    """Report to the other members that this node is down."""
    net.isolate(name)
    for other in net.members:
        if other != name:
            net[other].node_down(name)


def test_an_idle_group_goes_quiet_and_says_nothing_more() -> None:
    net = quiet_net()
    net.tick(100)
    assert net.seen == []
    assert net["a"].role is Role.LEADER
    assert {net[name].commit for name in "abc"} == {2}


def test_a_message_of_a_quiet_group_costs_few_others() -> None:
    """Thousands of streams with a message now and then are mostly quiet: entry, heartbeat, Quiesce, and two answers."""
    net = Net("a", "b", "c", options=RaftOptions())
    net.elect("a")
    net.tick(10)
    assert all(net[name].quiescent for name in "abc")
    net.seen.clear()
    net.propose("a", b"x")
    net.tick(10)
    assert all(net[name].quiescent for name in "abc")
    assert net.bodies("c") == [b"x"]
    assert len(net.seen) <= 2 * 5


def test_an_announced_commit_sends_a_group_to_sleep_if_nothing_is_left_to_do() -> None:
    """The message that tells the followers of the commit is the last one: no heartbeats follow, none can be late."""
    net = Net("a", "b", "c", options=RaftOptions())
    net.elect("a")
    net.tick(10)
    net.seen.clear()
    net.propose("a", b"x")
    net["a"].announce()
    net.settle()
    assert all(net[name].quiescent for name in "abc")
    assert {name: net.bodies(name) for name in "bc"} == {"b": [b"x"], "c": [b"x"]}
    assert len(net.seen) == 2 * 3  # entry, answer, Quiesce


def test_an_announced_commit_keeps_a_group_awake_for_a_member_that_lacks_the_entry() -> None:
    net = Net("a", "b", "c", options=RaftOptions())
    net.elect("a")
    net.tick(10)
    net.isolate("c")
    net.propose("a", b"x")
    net["a"].announce()
    net.settle()
    assert not net["a"].quiescent
    assert net["b"].commit == net["a"].commit


def test_a_group_of_one_goes_quiet() -> None:
    net = Net("a", options=OPTIONS)
    net.elect("a")
    net.tick(QUIET + 1)
    assert net["a"].quiescent


def test_a_proposal_wakes_everybody() -> None:
    net = quiet_net()
    net.propose("a", b"y")
    assert not any(net[name].quiescent for name in "abc")
    net.tick()
    assert net.bodies("c") == [b"x", b"y"]
    net.tick(QUIET + 1)
    assert all(net[name].quiescent for name in "abc")


@pytest.mark.parametrize("what", ["read", "transfer", "membership", "wake", "step_down"])
def test_whatever_else_is_asked_of_the_leader_wakes_the_group(what: str) -> None:
    net = quiet_net()
    core = net["a"]
    if what == "read":
        core.read("r")
    elif what == "transfer":
        core.transfer("b")
    elif what == "membership":
        core.propose_membership(Membership(("a", "b")))
    elif what == "wake":
        core.wake()
    else:
        core.step_down()
    net.settle()
    assert not any(net[name].quiescent for name in "ab")
    if what == "read":
        assert net.members["a"].reads == [("r", 2)]


def test_a_learner_that_missed_quiesce_asks_and_the_leader_answers() -> None:
    net = Net("a", "b", learners=["c"], options=OPTIONS)
    net.elect("a")
    net.drop = lambda sender, to, message: isinstance(message, Quiesce) and to == "c"
    net.tick(QUIET + 1)
    assert net["a"].quiescent
    net.heal()
    net.tick(3 * OPTIONS.election_ticks + 3 * QUIET)
    assert net["c"].quiescent
    assert net["c"].leader == "a"
    assert net["a"].term == 1


def test_followers_notice_that_the_node_of_a_quiet_leader_died() -> None:
    net = quiet_net()
    crash(net, "a")
    assert not net["b"].quiescent
    net.tick(3 * OPTIONS.election_ticks, only=["b", "c"])
    leader = next(name for name in "bc" if net[name].role is Role.LEADER)
    net.propose(leader, b"y")
    assert net.bodies(leader) == [b"x", b"y"]


def test_followers_detect_it_even_if_only_one_was_notified() -> None:
    net = quiet_net()
    net.isolate("a")
    net["b"].node_down("a")
    net.tick(6 * OPTIONS.election_ticks, only=["b", "c"])
    assert Role.LEADER in {net["b"].role, net["c"].role}


def test_a_quiet_leader_whose_nodes_all_died_steps_down() -> None:
    net = quiet_net()
    net.isolate("a")
    net["a"].node_down("b")
    net["a"].node_down("c")
    net.tick(OPTIONS.election_ticks + 1, only=["a"])
    assert net["a"].role is not Role.LEADER


def test_a_group_goes_quiet_again_without_a_dead_member_and_wakes_when_it_returns() -> None:
    net = quiet_net()
    crash(net, "c")
    net.propose("a", b"y")
    net.tick(QUIET + 2, only=["a", "b"])
    assert net["a"].quiescent
    assert net["b"].quiescent
    net.heal()
    net.members["c"].start()
    for name in "ab":
        net[name].node_up("c")
    net.settle()
    net.tick(2)
    assert net.bodies("c") == [b"x", b"y"]
    net.tick(QUIET + 1)
    assert all(net[name].quiescent for name in "abc")


def test_a_group_without_a_majority_does_not_go_quiet() -> None:
    net = Net("a", "b", "c", options=OPTIONS)
    net.elect("a")
    crash(net, "b")
    crash(net, "c")
    net.tick(OPTIONS.election_ticks - 1, only=["a"])
    assert not net["a"].quiescent


def test_a_lagging_member_whose_node_lives_keeps_the_group_awake() -> None:
    net = Net("a", "b", "c", options=OPTIONS)
    net.elect("a")
    net.isolate("c")
    net.propose("a", b"x")
    net.tick(5 * QUIET, only=["a", "b"])
    assert not net["a"].quiescent


def test_a_leader_that_was_restarted_is_replaced_although_everybody_was_quiet() -> None:
    net = quiet_net()
    net.members["a"].start()
    for name in "bc":
        net[name].node_up("a")
    assert not net["b"].quiescent
    leader = net.leader()
    assert net.bodies(leader) == [b"x"]


def test_a_quiet_follower_that_was_restarted_finds_its_leader() -> None:
    net = quiet_net()
    net.members["b"].start()
    net["a"].node_up("b")
    net.settle()
    assert net["b"].leader == "a"
    assert net["a"].role is Role.LEADER


def test_a_quiet_follower_refuses_pre_votes_while_the_leaders_node_lives_and_the_leader_shows_itself() -> None:
    net = quiet_net()
    net["b"].step("c", Vote(2, 2, 1, True))
    net.pump(net.members["b"])
    net["a"].step("c", Vote(2, 2, 1, True))
    net.settle()
    assert net["b"].term == 1
    assert net["b"].leader == "a"
    assert not net["a"].quiescent
    net.tick(3 * QUIET)
    assert net["a"].role is Role.LEADER


def follower() -> Core:
    core = lone(1, 1, commit=1, options=OPTIONS)
    core.step("b", append(1, (2, 1)))
    drain(core)
    return core


def test_quiesce_is_accepted_with_exactly_the_leaders_log_and_commits_it() -> None:
    core = follower()
    core.step("b", Quiesce(1, 2, 1))
    assert core.quiescent
    assert core.commit == 2


@pytest.mark.parametrize(("index", "term"), [(1, 1), (3, 1), (2, 0)])
def test_quiesce_with_another_log_is_refused_which_wakes_the_leader(index: int, term: int) -> None:
    core = follower()
    core.step("b", Quiesce(1, index, term))
    assert not core.quiescent
    ((to, reply),) = drain(core)
    assert to == "b"
    assert isinstance(reply, AppendReply)
    assert reply.rejected


def test_quiesce_from_a_node_that_is_known_to_be_gone_is_not_believed() -> None:
    core = follower()
    core.node_down("b")
    core.step("b", Quiesce(1, 2, 1))
    assert not core.quiescent


def test_a_refused_quiesce_wakes_the_leader() -> None:
    net = quiet_net()
    net["b"].wake()
    net["b"].recovering = True
    net.deliver("a", "b", Quiesce(1, 2, 1))
    net.settle()
    assert not net["a"].quiescent
    assert not net["b"].quiescent


def test_a_follower_that_missed_quiesce_asks_and_the_leader_answers() -> None:
    net = Net("a", "b", "c", options=OPTIONS)
    net.elect("a")
    net.drop = lambda sender, to, message: isinstance(message, Quiesce) and to == "b"
    net.tick(QUIET + 1)
    assert net["a"].quiescent
    assert not net["b"].quiescent
    net.heal()
    net.tick(3 * OPTIONS.election_ticks)
    assert (net["a"].role, net["a"].term) == (Role.LEADER, 1)
    assert net["b"].leader == "a"
    net.tick(2 * QUIET)
    assert net["b"].quiescent


def test_a_late_append_that_wakes_a_follower_does_no_harm() -> None:
    net = quiet_net()
    net["b"].step("a", append(1, (1, 1), read=1))
    net.settle()
    net.tick(4 * OPTIONS.election_ticks)
    assert (net["a"].role, net["a"].term) == (Role.LEADER, 1)
    assert all(net[name].quiescent for name in "abc")


def test_freezing_a_quiet_leader_lets_the_others_elect() -> None:
    net = quiet_net()
    net["a"].freeze()
    net.settle()
    assert net.leader() in "bc"
