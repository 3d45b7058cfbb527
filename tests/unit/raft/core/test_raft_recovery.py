"""Tests of a member whose log was damaged, which may have lost acknowledged entries (invariant 3)."""

from __future__ import annotations

import pytest

from lakestream.raft.core.messages import AppendReply, HardState, Recover, RecoverTo, Vote, VoteReply
from lakestream.raft.core.ready import Role
from tests.unit.raft_net import ELECTION, Net, append, drain, log_of, lone

pytestmark = pytest.mark.unit


def damage(net: Net, name: str, keep: int) -> None:
    """Restart the member with its first `keep` entries only."""
    member = net.members[name]
    del member.disk[keep:]
    member.start(recovering=True)


def test_recovering_a_damaged_member_does_not_vote() -> None:
    core = lone(1, recovering=True)
    core.step("b", Vote(2, 9, 9, True))
    core.step("b", Vote(2, 9, 9))
    assert [m.granted for _, m in drain(core)] == [False, False]  # type: ignore[union-attr]
    assert core.vote == ""


def test_recovering_a_damaged_member_does_not_campaign() -> None:
    core = lone(1, recovering=True)
    assert not core.campaign()
    for _ in range(5 * ELECTION):
        core.tick()
    assert core.role is Role.FOLLOWER


def test_recovering_the_lost_entry_is_not_lost_to_the_group() -> None:
    """A lost entry stays committed: acknowledged by a and b, then lost by b, which must not elect c without it."""
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.propose("a", b"x")
    assert net["a"].commit == 2
    net.isolate("a")
    net.cuts -= {("b", "c"), ("c", "b")}
    damage(net, "b", 1)
    net.tick(6 * ELECTION)
    assert net["c"].role is not Role.LEADER
    net.heal()
    leader = net.leader()
    net.tick(2)
    assert net.bodies(leader) == [b"x"]
    assert net.members["b"].recovered
    assert not net["b"].recovering


def test_recovering_ends_when_the_log_holds_all_that_the_leader_had() -> None:
    core = lone(1, recovering=True)
    core.step("b", append(1, (1, 1), read=1))
    sent = drain(core)
    ask = next(m for _, m in sent if isinstance(m, Recover))
    core.step("b", RecoverTo(1, ask.nonce, 3))
    core.step("b", append(1, (1, 1), 1))
    drain(core)
    assert core.recovering
    core.step("b", append(1, (2, 1), 1))
    drain(core, persist=False)
    assert core.recovering, "not before it is durable"
    core.persisted(3, 0)
    ready = core.ready()
    assert ready is not None
    assert ready.recovered
    assert not core.recovering


def test_recovering_asks_once_a_tick() -> None:
    core = lone(1, recovering=True)
    for _ in range(3):
        core.step("b", append(1, (1, 1), read=1))
    assert sum(isinstance(m, Recover) for _, m in drain(core)) == 1
    core.tick()
    core.step("b", append(1, (1, 1), read=1))
    assert sum(isinstance(m, Recover) for _, m in drain(core)) == 1


def test_recovering_an_answer_that_was_not_asked_for_counts_for_nothing() -> None:
    core = lone(1, recovering=True)
    core.step("b", append(1, (1, 1), read=1))
    ask = next(m for _, m in drain(core) if isinstance(m, Recover))
    core.step("b", RecoverTo(1, ask.nonce + 1, 1))
    core.step("c", RecoverTo(1, ask.nonce, 1))
    assert core.recovering


def test_recovering_a_newer_leader_is_asked_anew() -> None:
    core = lone(1, recovering=True)
    core.step("b", append(1, (1, 1), read=1))
    ask = next(m for _, m in drain(core) if isinstance(m, Recover))
    core.step("b", RecoverTo(1, ask.nonce, 5))
    core.step("c", append(2, (1, 1), read=1))
    assert any(isinstance(m, Recover) for _, m in drain(core))
    core.step("c", RecoverTo(2, ask.nonce, 1))
    assert not core.recovering


def test_recovering_the_leader_forgets_what_the_member_acknowledged() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x", b"y", b"z")
    damage(net, "b", 1)
    net.tick(2)
    assert net["b"].last_index == 4
    assert net["a"].match_of("b") == 4
    assert net.members["b"].recovered
    assert net["a"].commit == 4


def test_recovering_an_old_acknowledgement_that_comes_after_the_question_does_not_stick() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x", b"y", b"z")
    damage(net, "b", 1)
    net.drop = lambda sender, to, message: sender == "b" and isinstance(message, AppendReply)
    net.tick()
    net["a"].step("b", AppendReply(1, 4))
    net.heal()
    net.tick(3)
    assert net["b"].last_index == 4
    assert net.members["b"].recovered


def test_recovering_a_former_leader_gets_its_log_back_from_its_successor() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x", b"y")
    net.tick()
    damage(net, "a", 0)
    net.tick(5 * ELECTION)
    leader = net.leader()
    assert leader != "a"
    net.tick(2)
    assert net.bodies("a") == [b"x", b"y"]
    assert net.members["a"].recovered


def test_recovering_by_installing_a_state() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x", b"y")
    net.tick()
    net.members["a"].compact(3)
    damage(net, "b", 0)
    net.tick(2)
    assert net.members["b"].installs
    net.members["b"].install(net.members["a"])
    net.settle()
    net.tick(2)
    assert net.members["b"].recovered
    assert net["b"].commit == 3


def test_recovering_is_remembered_across_another_restart_until_it_is_done() -> None:
    net = Net("a", "b", "c", logs={"b": log_of(1)}, hard={"a": HardState(1), "c": HardState(1)})
    damage(net, "b", 0)
    net.members["b"].start(recovering=not net.members["b"].recovered)
    assert net["b"].recovering


def test_recovering_a_member_that_recovered_votes_again() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x")
    damage(net, "b", 0)
    net.tick(3)
    assert net.members["b"].recovered
    net["b"].heard = -1000
    net["b"].step("c", Vote(5, 9, 9))
    assert drain(net["b"]) == [("c", VoteReply(5, True, False, 2, 1))]


# -- members that lost everything --------------------------------------------------------------------------------------


def wipe(net: Net, name: str) -> None:
    """Restart the member with an empty disk."""
    member = net.members[name]
    member.disk, member.hard = [], HardState()
    member.start(recovering=True, forgetful=True)


def test_forgetful_a_member_with_an_empty_disk_comes_back_through_its_leader() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x", b"y")
    wipe(net, "b")
    net.tick(4)
    assert net.members["b"].recovered
    assert net.bodies("b") == [b"x", b"y"]
    assert net["a"].match_of("b") == 3


def test_forgetful_it_says_nothing_to_a_leader_that_no_majority_confirms() -> None:
    """A forgetful member does not answer a leader that no majority confirms.

    c and b elected c in a newer term; b forgot that, and only hears from the former leader.
    """
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("a")
    net.tick(4 * ELECTION, only=["b", "c"])
    leader = next(name for name in "bc" if net[name].role is Role.LEADER)
    other = "b" if leader == "c" else "c"
    net.propose(leader, b"new")
    net.isolate(leader)
    net.cuts -= {("a", other), (other, "a")}
    wipe(net, other)
    before = net["a"].commit
    net.propose("a", b"old")
    net["a"].node_up(other)
    net.tick(5, only=["a", other])
    assert net["a"].commit == before, "split brain"
    assert net[other].last_index == 0
    assert net[other].forgetful
    net.heal()
    net.tick(6 * ELECTION)
    assert net.members[other].recovered
    assert net.bodies(other) == [b"new"]


def test_forgetful_it_counts_for_no_read_and_no_check_quorum() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    wipe(net, "b")
    net.isolate("c")
    net["a"].read("r")
    net.tick(ELECTION)
    assert net.members["a"].reads == []
    assert net["a"].role is not Role.LEADER


def test_forgetful_it_may_have_voted_in_the_term_of_its_leader() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    wipe(net, "b")
    net.tick(4)
    assert net.members["b"].recovered
    assert net["b"].vote == "a"
    assert net.members["b"].hard.vote == "a"
