"""Tests of campaigns, pre-votes, check-quorum, votes within a lease, and stepping down."""

from __future__ import annotations

from random import Random

import pytest

from lakestream.raft.core.messages import HardState, Membership, Vote, VoteReply
from lakestream.raft.core.ready import RaftOptions, Role
from tests.unit.raft_net import ELECTION, Net, append, drain, log_of, lone, terms_in

pytestmark = pytest.mark.unit


def forget_lease(net: Net, *names: str) -> None:
    """Make members behave as if they had not heard from a leader for long."""
    for name in names:
        net[name].heard = -1000


# -- campaign ----------------------------------------------------------------------------------------------------------


def test_a_campaign_asks_for_pre_votes_then_for_votes() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    assert [m.pre for m in net.sent(Vote, to="b")] == [True, False]  # type: ignore[union-attr]
    assert {net[name].term for name in "abc"} == {1}
    assert {net[name].leader for name in "abc"} == {"a"}


@pytest.mark.parametrize(("down", "wins"), [("", True), ("c", True), ("bc", False)])
def test_leader_election_needs_a_majority_that_answers(down: str, wins: bool) -> None:
    net = Net("a", "b", "c")
    for name in down:
        net.isolate(name)
    net["a"].campaign()
    net.settle()
    assert (net["a"].role is Role.LEADER) is wins


def test_leader_cycle_everybody_can_be_elected_after_the_other() -> None:
    net = Net("a", "b", "c")
    for at, name in enumerate("abcabc", 1):
        forget_lease(net, *"abc")
        if net["abc"[(at - 2) % 3]].role is Role.LEADER:
            net["abc"[(at - 2) % 3]].become_follower(net["a"].term, "")
        net.elect(name)
        net.tick()
        assert {net[other].leader for other in "abc"} == {name}


def test_a_new_leader_overwrites_entries_of_leaders_that_committed_nothing() -> None:
    net = Net("a", "b", "c", logs={"a": log_of(1), "b": log_of(1, 2, 2), "c": log_of(1, 1)}, hard={"a": HardState(3)})
    net.isolate("b")
    net["c"].campaign()
    net.settle()
    net.elect("c")  # the first request only gave it the newer term
    net.heal()
    net.tick(2)
    assert terms_in(net["b"]) == terms_in(net["c"]) == [1, 1, net["c"].term]


def test_dueling_candidates_one_of_them_leads_in_the_end() -> None:
    net = Net("a", "b", "c")
    net.cut("a", "c")
    net["a"].campaign()
    net["c"].campaign()
    net.settle()
    net.heal()
    leader = net.leader()
    net.tick(2)
    assert {net[name].leader for name in "abc"} == {leader}


def test_a_lost_question_is_repeated_with_the_next_tick() -> None:
    net = Net("a", "b", "c")
    net.drop = lambda sender, to, message: isinstance(message, Vote)
    net["a"].campaign()
    net.settle()
    net.heal()
    net.tick(2)
    assert net["a"].role is Role.LEADER


def test_a_leader_does_not_campaign() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    assert not net["a"].campaign()
    assert net["a"].term == 1


def test_a_learner_does_not_campaign_and_is_not_asked() -> None:
    net = Net("a", "b", learners=["c"])
    net.tick(10 * ELECTION, only=["c"])
    assert net["c"].role is Role.FOLLOWER
    assert not net["c"].campaign()
    net.elect("a")
    assert net.sent(Vote, to="c") == []
    assert net["c"].leader == "a"


def test_a_learner_votes_when_it_is_asked() -> None:
    """A learner votes on request: the candidate may have a newer membership in which the learner is a voter."""
    core = lone(me="c", voters="ab", learners="c")
    core.step("a", Vote(1, 0, 0))
    assert drain(core) == [("a", VoteReply(1, True))]


def test_a_learner_forgets_a_leader_that_it_does_not_hear() -> None:
    net = Net("a", "b", learners=["c"])
    net.elect("a")
    net.isolate("c")
    net.tick(2 * ELECTION)
    assert net["c"].leader == ""


def test_a_member_without_a_membership_waits() -> None:
    core = lone(voters="")
    for _ in range(5 * ELECTION):
        core.tick()
    assert core.role is Role.FOLLOWER
    assert drain(core) == []


# -- pre-vote ----------------------------------------------------------------------------------------------------------


def test_pre_vote_changes_neither_term_nor_vote() -> None:
    core = lone(1)
    core.step("b", Vote(2, 1, 1, True))
    ready = core.ready()
    assert ready is not None
    assert ready.hard is None
    assert ready.messages == [("b", VoteReply(2, True, True))]
    assert (core.term, core.vote) == (1, "")


def test_pre_vote_is_given_to_many() -> None:
    core = lone(1, vote="c")
    core.step("b", Vote(2, 1, 1, True))
    core.step("c", Vote(2, 1, 1, True))
    assert [reply.granted for _, reply in drain(core)] == [True, True]  # type: ignore[union-attr]


def test_pre_vote_an_isolated_member_does_not_raise_the_term_and_follows_when_it_returns() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.tick(20 * ELECTION)
    assert net["c"].role is Role.PRE_CANDIDATE
    assert net["c"].term == 1
    net.heal()
    net.tick(2)
    assert net["a"].role is Role.LEADER
    assert (net["c"].role, net["c"].leader, net["c"].term) == (Role.FOLLOWER, "a", 1)


def test_pre_vote_is_refused_for_a_shorter_log_and_the_candidate_becomes_a_follower() -> None:
    net = Net("a", "b", "c", logs={"b": log_of(1, 1), "c": log_of(1, 1)}, hard={"a": HardState(1)})
    net["a"].campaign()
    net.settle()
    assert (net["a"].role, net["a"].term) == (Role.FOLLOWER, 1)


def test_pre_vote_with_check_quorum_is_refused_while_the_leader_is_heard() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net["b"].step("c", Vote(2, 9, 9, True))
    assert drain(net["b"]) == [("c", VoteReply(1, False, True))]
    net.tick()
    assert net["a"].role is Role.LEADER


def test_pre_vote_a_candidate_of_an_older_term_learns_the_newer_one_and_is_then_elected() -> None:
    net = Net("a", "b", "c", logs={"a": log_of(1), "b": log_of(1), "c": log_of(1)}, hard={"b": HardState(5)})
    net.isolate("c")
    net["a"].campaign()
    net.settle()
    assert (net["a"].role, net["a"].term) == (Role.FOLLOWER, 5)
    net.elect("a")
    assert net["a"].term == 6


def test_pre_vote_a_late_consent_starts_nothing() -> None:
    core = lone(1)
    core.step("b", VoteReply(2, True, True))
    assert core.role is Role.FOLLOWER
    core.campaign()
    core.step("b", VoteReply(1, True, True))
    assert core.role is Role.PRE_CANDIDATE
    core.step("b", VoteReply(2, True))
    assert core.role is not Role.LEADER


def test_pre_vote_a_split_pre_vote_is_repeated_until_a_candidate_wins() -> None:
    net = Net("a", "b", "c")
    for name in "abc":
        net[name].campaign()
    net.settle()
    leader = net.leader()
    assert sum(net[name].role is Role.LEADER for name in "abc") == 1
    assert net[leader].term >= 1


def test_a_member_with_a_newer_term_frees_itself_by_deposing_the_leader() -> None:
    """A member with a newer term cannot follow a leader of an older term, so it causes an election."""
    net = Net("a", "b", "c")
    net.elect("a")
    net["c"].become_follower(7, "")
    net.tick(5 * ELECTION)
    leader = net.leader()
    net.tick(2)
    assert net[leader].term > 7
    assert {net[name].leader for name in "abc"} == {leader}


# -- check-quorum and the lease ----------------------------------------------------------------------------------------


def test_check_quorum_a_leader_without_answers_steps_down() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("a")
    net.tick(ELECTION - 1, only=["a"])
    assert net["a"].role is Role.LEADER
    net.tick(1, only=["a"])
    assert net["a"].role is not Role.LEADER
    assert (net["a"].leader, net["a"].term) == ("", 1)


def test_check_quorum_a_leader_with_a_majority_goes_on() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.tick(5 * ELECTION)
    assert net["a"].role is Role.LEADER


def test_check_quorum_learners_do_not_count() -> None:
    net = Net("a", "b", "c", learners=["d", "e"])
    net.elect("a")
    net.isolate("b")
    net.isolate("c")
    net.tick(ELECTION)
    assert net["a"].role is not Role.LEADER


def test_check_quorum_a_leader_that_can_send_but_not_hear_steps_down() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.cuts = {("b", "a"), ("c", "a")}
    net.tick(ELECTION + 1)
    assert net["a"].role is not Role.LEADER
    net.tick(4 * ELECTION)
    assert net.leader() != "a"


def test_leader_lease_no_vote_within_an_election_timeout_of_the_leaders_last_message() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    for age in range(ELECTION):
        net["b"].step("c", Vote(9, 9, 9))
        assert (net["b"].term, drain(net["b"])) == (1, []), f"after {age} ticks"
        if age < ELECTION - 1:
            net["b"].tick()
    net["b"].tick()
    net["b"].step("c", Vote(9, 9, 9))
    assert net["b"].vote == "c"


def test_leader_lease_a_leader_does_not_vote_while_it_hears_a_quorum() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net["a"].step("c", Vote(9, 9, 9))
    assert net["a"].role is Role.LEADER
    assert net["a"].term == 1


def test_leader_superseding_with_check_quorum_a_new_leader_comes_when_the_old_one_is_silent() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("a")
    net.tick(ELECTION, only=["b"])
    net.tick(3 * ELECTION, only=["c", "b"])
    assert "a" not in {net["b"].leader, net["c"].leader}
    assert net["a"].role is Role.LEADER, "it was not ticked"
    net.heal()
    net.tick(2)
    assert net["a"].role is Role.FOLLOWER


def test_disruptive_follower_with_a_newer_term_gets_no_votes_while_the_leader_is_heard() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net["c"].heard = -1000
    net["c"].become_follower(net["c"].term, "")
    net.cut("a", "c")
    assert net["c"].campaign()
    net.tick(5, only=["c"])
    assert net["c"].role is Role.PRE_CANDIDATE
    assert {net[name].term for name in "abc"} == {1}


def test_a_free_stuck_candidate_with_check_quorum_gets_a_leader_again() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    core = net["c"]
    core.become_follower(4, "")
    net.heal()
    net.tick()
    assert net["a"].term == 4, "its refusal of the older term told the leader"
    assert net.leader() in "abc"


def test_a_restarted_member_keeps_the_promise_that_it_may_have_made() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.members["b"].start()
    net["b"].step("c", Vote(9, 9, 9))
    assert net["b"].term == 1
    for _ in range(ELECTION):
        net["b"].tick()
    net["b"].become_follower(net["b"].term, "")
    net["b"].step("c", Vote(9, 9, 9))
    assert net["b"].vote == "c"


def test_step_down_lets_the_most_caught_up_voter_take_over_at_once() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.propose("a", b"x")
    net.heal()
    net["a"].step_down()
    assert net["a"].role is Role.FOLLOWER
    net.settle()
    assert net["b"].role is Role.LEADER


def test_step_down_of_a_lone_leader_leaves_it_to_its_clock() -> None:
    net = Net("a")
    net.elect("a")
    net["a"].step_down()
    net.settle()
    assert net["a"].role is Role.FOLLOWER
    net.tick(2 * ELECTION)
    assert net["a"].role is Role.LEADER


def test_a_frozen_member_neither_votes_nor_acknowledges_nor_leads() -> None:
    core = lone(1)
    core.step("b", append(1, (1, 1), 1))
    drain(core, persist=False)
    core.freeze()
    core.persisted(2, 0)
    core.step("c", Vote(5, 9, 9))
    core.step("b", append(1, (2, 1), 1, read=4))
    for _ in range(5 * ELECTION):
        core.tick()
    assert drain(core) == []
    assert core.role is Role.FOLLOWER


def test_a_leader_that_freezes_hands_over() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net["a"].freeze()
    net.settle()
    assert net["a"].role is Role.FOLLOWER
    leader = net.leader()
    assert leader in "bc"
    net.propose(leader, b"x")
    assert net.bodies(leader) == [b"x"]


def test_changes_of_role_leader_and_term_are_reported_once() -> None:
    core = lone(1)
    core.step("b", append(2, (1, 1)))
    ready = core.ready()
    assert ready is not None
    assert ready.changed
    assert core.ready() is None
    core.step("b", append(2, (1, 1), read=1))
    ready = core.ready()
    assert ready is not None
    assert not ready.changed


def test_options_that_can_not_work_are_refused() -> None:
    with pytest.raises(AssertionError):
        lone(options=RaftOptions(election_ticks=2))
    with pytest.raises(AssertionError):
        lone(options=RaftOptions(election_ticks=10, heartbeat_ticks=10))


# -- any state ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("pre", [False, True])
def test_vote_from_any_state(role: Role, pre: bool) -> None:
    """A newer term with an up-to-date log gets the vote of all but a leader; a pre-vote changes no state."""
    net = Net("a", "b", "c")
    core = net["a"]
    if role is Role.LEADER:
        net.elect("a")
    elif role is not Role.FOLLOWER:
        core.campaign()
        if role is Role.CANDIDATE:
            core.step("b", VoteReply(1, True, True))
    assert core.role is role
    drain(core)
    term = core.term
    core.step("c", Vote(term + 1, 9, 9, pre))
    reply = drain(core)
    if pre:
        assert (core.role, core.term) == (role, term)
        granted = role is not Role.LEADER
        assert reply == [("c", VoteReply(term + granted, granted, True))]
    elif role is Role.LEADER:
        assert (core.role, core.term, reply) == (role, term, [])
    else:
        assert (core.role, core.term, core.vote) == (Role.FOLLOWER, term + 1, "c")
        assert reply == [("c", VoteReply(term + 1, True))]


def test_a_member_with_a_smaller_term_can_complete_an_election() -> None:
    """A member with a smaller term can complete an election.

    The one with the newest term has an outdated log; the up-to-date one must not be blocked by its own term.
    """
    net = Net("a", "b", "c", logs={"a": log_of(1, 1), "b": log_of(1, 1), "c": log_of(1)}, hard={"c": HardState(9)})
    net.isolate("b")
    leader = net.leader()
    assert leader == "a"
    assert net["a"].term > 9


def test_a_member_whose_change_is_not_committed_yet_may_campaign() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.add("d", Membership(()))
    net.propose("a", b"x")
    net["a"].propose_membership(Membership(("a", "b", "c", "d")))
    net.settle()
    net.isolate("a")
    net.cuts -= {("b", "c"), ("c", "b"), ("c", "d"), ("d", "c")}
    net.tick(6 * ELECTION)
    assert Role.LEADER in {net["b"].role, net["d"].role}


@pytest.mark.parametrize(("reached", "stored"), [("", {0, 1}), ("b", {1}), ("bc", {1})])
@pytest.mark.parametrize("seed", range(5))
def test_one_proposal_is_committed_at_most_once_whatever_elections_fail(
    reached: str, stored: set[int], seed: int
) -> None:
    net, random = Net("a", "b", "c"), Random(seed)
    net.elect("a")
    net.propose("a", b"before")
    net.drop = lambda sender, to, message: sender != "a" or to not in reached  # nothing is confirmed
    net.propose("a", b"one")
    net.drop = lambda sender, to, message: isinstance(message, VoteReply)
    for _ in range(8):
        forget_lease(net, *"abc")
        name = random.choice("abc")
        if net[name].role is not Role.LEADER:
            net[name].campaign()
            net.settle()
        net.isolate(random.choice("abc"))
        net.tick(random.randrange(1, ELECTION))
        net.cuts.clear()
    net.heal()
    leader = net.leader()
    net.propose(leader, b"after")
    net.tick(ELECTION)
    assert {tuple(net.bodies(name)) for name in "abc"} == {tuple(net.bodies(leader))}
    assert net.bodies(leader).count(b"one") in stored
    assert net.bodies(leader)[-1] == b"after"
