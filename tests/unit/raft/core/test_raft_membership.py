"""Tests of membership changes: one server at a time, learners, leaders that remove themselves, changes rolled back."""

from __future__ import annotations

import pytest

from lakestream.log.format.frame import Frame, Kind
from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    HardState,
    Membership,
    TimeoutNow,
    encode_membership,
    entry_of,
)
from lakestream.raft.core.ready import ChangePending, NotLeader, Role
from tests.unit.raft_net import ELECTION, Net, append, drain, log_of, lone

pytestmark = pytest.mark.unit


def change_frame(index: int, term: int, *voters: str) -> Frame:
    return Frame(Kind.MEMBERSHIP, term, index, 0, encode_membership(Membership(voters)))


def test_add_node_counts_as_soon_as_it_is_appended() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.add("d", Membership(()))
    net.isolate("b")
    net.isolate("c")
    index = net["a"].propose_membership(Membership(("a", "b", "c", "d")))
    net.settle()
    assert net["a"].membership.voters == ("a", "b", "c", "d")
    assert net["a"].commit < index, "two of four are no majority"
    net.heal()
    net.tick(2)
    assert net["a"].commit == index
    assert net["d"].membership.voters == ("a", "b", "c", "d")


def test_add_learner_gets_everything_and_counts_for_nothing() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x")
    net.add("d", Membership(()))
    net.change("a", "a", "b", "c", learners=["d"])
    net.tick()
    assert net.bodies("d") == [b"x"]
    net.isolate("b")
    net.isolate("c")
    before = net["a"].commit
    net.propose("a", b"y")
    assert net["a"].commit == before
    assert net["d"].last_index == net["a"].last_index


def test_learner_promotion_makes_it_a_voter_that_can_be_elected() -> None:
    net = Net("a", "b", learners=["c"])
    net.elect("a")
    net.change("a", "a", "b", "c")
    net.tick()
    net["a"].transfer("c")
    net.settle()
    assert net["c"].role is Role.LEADER


def test_a_voter_can_become_a_learner() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.change("a", "a", "b", learners=["c"])
    net.tick(5 * ELECTION, only=["c"])
    assert net["c"].role is Role.FOLLOWER
    assert net["a"].membership == Membership(("a", "b"), ("c",))


def test_remove_node_shrinks_the_majority() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    index = net.change("a", "a", "b")
    assert net["a"].commit == index
    net.isolate("b")
    net.propose("a", b"x")
    assert net["a"].commit == index
    net.heal()
    net.tick(2)
    assert net["a"].commit == index + 1


def test_remove_node_commits_what_waited_for_it() -> None:
    """Removing a node commits waiting entries, since the smaller group's durable copies may suffice."""
    net = Net("a", "b")
    net.elect("a")
    net.isolate("b")
    net.propose("a", b"x")
    before = net["a"].commit
    net.change("a", "a")
    assert net["a"].commit == before + 2
    assert net["a"].membership.voters == ("a",)


def test_remove_node_is_sent_nothing_more() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.change("a", "a", "b")
    net.seen.clear()
    net.propose("a", b"x")
    net.tick(3)
    assert net.sent(Append, to="c") == []


def test_a_removed_node_that_does_not_know_it_does_not_disturb_the_group() -> None:
    net = Net("a", "b", "c", "d")
    net.elect("a")
    net.isolate("d")
    net.change("a", "a", "b", "c")
    net.heal()
    net.tick(5 * ELECTION)
    assert net["a"].role is Role.LEADER
    assert net["a"].term == 1
    assert net["d"].role is not Role.LEADER


def test_a_removed_node_can_not_be_elected_by_the_remaining_members() -> None:
    net = Net("a", "b", "c", "d")
    net.elect("a")
    net.isolate("d")
    net.change("a", "a", "b", "c")
    net.heal()
    net.isolate("a")
    net.tick(8 * ELECTION)
    assert net["d"].role is not Role.LEADER
    assert Role.LEADER in {net["b"].role, net["c"].role}


def test_leader_removal_the_leader_steps_down_once_it_is_committed() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("b")
    net.isolate("c")
    net["a"].propose_membership(Membership(("b", "c")))
    net.settle()
    assert net["a"].role is Role.LEADER
    net.heal()
    net.tick()
    net.tick()
    assert net["a"].role is Role.FOLLOWER
    assert Role.LEADER in {net["b"].role, net["c"].role}, "it asked one of them to take over"
    assert net.sent(TimeoutNow, sender="a")


def test_leader_removal_the_leader_does_not_count_itself() -> None:
    net = Net("a", "b", "c", "d")
    net.elect("a")
    net.isolate("c")
    net.isolate("d")
    index = net.change("a", "b", "c", "d")
    assert net["a"].commit < index, "b alone is no majority of b, c, d"


def test_a_leader_that_is_demoted_to_learner_steps_down() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.change("a", "b", "c", learners=["a"])
    net.tick(3 * ELECTION)
    leader = net.leader()
    assert leader in "bc"
    net.propose(leader, b"x")
    net.tick()
    assert net.bodies("a") == [b"x"]


def test_a_member_that_its_own_log_removes_may_still_be_needed_as_leader() -> None:
    """A member that its own log removes may still be needed as leader.

    Thesis §4.2.2: b has the removal of b uncommitted; a lacks entries that b has.
    """
    net = Net("a", "b", logs={"b": [*log_of(1), change_frame(2, 1, "a")]}, hard={"a": HardState(1)})
    assert net["b"].membership.voters == ("a",)
    assert net["b"].campaign()
    net.settle()
    assert "b" in net.leaders.values()
    assert net["a"].membership.voters == ("a",)
    assert net["b"].role is Role.FOLLOWER
    net.tick(3 * ELECTION)
    assert net["a"].role is Role.LEADER


def test_one_change_at_a_time() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("b")
    net.isolate("c")
    net["a"].propose_membership(Membership(("a", "b", "c", "d")))
    with pytest.raises(ChangePending):
        net["a"].propose_membership(Membership(("a", "b", "c")))


def test_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    """No membership change before an entry of the leader's own term is committed.

    This was the bug in the first description of single-server changes: two leaders with disjoint majorities.
    """
    net = Net("a", "b", "c")
    for name in "abc":
        net.members[name].hold = True
    net.elect("a")
    with pytest.raises(ChangePending):
        net["a"].propose_membership(Membership(("a", "b")))
    for name in "abc":
        net.members[name].hold = False
        net.members[name].sync()
    net.tick()
    net.change("a", "a", "b")


@pytest.mark.parametrize(
    "membership",
    [
        Membership(("a",)),
        Membership(("a", "b", "c", "d", "e")),
        Membership(("a", "b", "d")),
        Membership(("a",), ("b",)),
    ],
)
def test_more_than_one_voter_at_a_time_is_refused(membership: Membership) -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    with pytest.raises(ValueError, match="more than one voter"):
        net["a"].propose_membership(membership)


def test_a_group_without_voters_and_a_member_twice_are_refused() -> None:
    net = Net("a")
    net.elect("a")
    with pytest.raises(ValueError, match="needs a voter"):
        net["a"].propose_membership(Membership(()))
    with pytest.raises(ValueError, match="twice"):
        net["a"].propose_membership(Membership(("a",), ("a",)))


def test_only_the_leader_changes_the_membership() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    with pytest.raises(NotLeader):
        net["b"].propose_membership(Membership(("a", "b")))


def test_a_change_that_is_cut_from_the_log_is_undone() -> None:
    core = lone(1)
    core.step("b", Append(2, 1, 1, 1, [entry_of(change_frame(2, 2, "a", "b", "c", "d"))]))
    ready = core.ready()
    assert ready is not None
    assert ready.membership == Membership(("a", "b", "c", "d"))
    core.step("c", append(3, (1, 1), 3))
    ready = core.ready()
    assert ready is not None
    assert ready.membership == core.membership == Membership(("a", "b", "c"))


def test_a_change_that_is_committed_is_not_undone_by_a_cut_after_it() -> None:
    core = lone(1)
    core.step("b", Append(2, 1, 1, 2, [entry_of(change_frame(2, 2, "a", "b", "c", "d"))]))
    core.step("b", append(2, (2, 2), 2))
    core.step("c", append(3, (2, 2), 3))
    assert core.membership == Membership(("a", "b", "c", "d"))


def test_a_leader_whose_change_is_cut_follows_the_former_membership() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("a")
    net["a"].propose_membership(Membership(("a", "b")))
    net.settle()
    assert net["a"].membership.voters == ("a", "b")
    net.tick(5 * ELECTION)
    net.heal()
    net.tick(3)
    assert net["a"].membership.voters == ("a", "b", "c")
    assert net["a"].role is Role.FOLLOWER


def test_a_restarted_member_knows_the_changes_in_its_log() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.change("a", "a", "b")
    net.members["a"].start()
    assert net["a"].membership.voters == ("a", "b")


def test_a_new_leader_finishes_the_change_of_the_former_one() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.drop = lambda sender, to, message: isinstance(message, AppendReply)
    net["a"].propose_membership(Membership(("a", "b", "c", "d")))
    net.settle()
    net.heal()
    net.add("d", Membership(()))
    net.isolate("a")
    net.tick(5 * ELECTION)
    leader = next(name for name in "bcd" if net[name].role is Role.LEADER)
    assert net[leader].membership.voters == ("a", "b", "c", "d")
    assert not net[leader].log.change_pending
    net.change(leader, "b", "c", "d")
    assert net["d"].membership.voters == ("b", "c", "d")


def test_grow_from_one_to_five_and_back_while_writing() -> None:
    net = Net("a")
    net.elect("a")
    wanted = []
    voters = ["a"]
    for name in "bcde":
        net.add(name, Membership(()))
        net.change("a", *voters, learners=[name])
        voters.append(name)
        net.change("a", *voters)
        wanted.append(name.encode())
        net.propose("a", name.encode())
        net.tick()
    assert {tuple(net.bodies(name)) for name in "abcde"} == {tuple(wanted)}
    while len(voters) > 1:
        voters.pop()
        net.change("a", *voters)
        net.propose("a", b"%d" % len(voters))
        wanted.append(b"%d" % len(voters))
    net.tick()
    assert net.bodies("a") == wanted
    assert net["a"].role is Role.LEADER


def test_move_a_group_to_other_members_leader_last() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x")
    voters = ["a", "b", "c"]
    for new, old in [("d", "c"), ("e", "b")]:
        net.add(new, Membership(()))
        net.change("a", *voters, learners=[new])
        net.change("a", *voters, new)
        voters = [name for name in [*voters, new] if name != old]
        net.change("a", *voters)
    net.add("f", Membership(()))
    net.change("a", *voters, "f")
    net.change("a", "d", "e", "f")
    net.tick(3 * ELECTION)
    leader = net.leader()
    assert leader in "def"
    assert net.bodies(leader) == [b"x"]


def test_a_transfer_target_that_is_removed_ends_the_transfer() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("b")
    net["a"].transfer("b")
    leading = net["a"].leading
    assert leading is not None
    net["a"].log.memberships[-1] = (0, Membership(("a", "c")))
    leading._follow_membership()
    assert net["a"].transferring == ""


def test_ready_tells_of_each_membership_once() -> None:
    core = lone(1)
    core.step("b", Append(2, 1, 1, 1, [entry_of(change_frame(2, 2, "a", "b"))]))
    assert core.ready() is not None
    drain(core)
    core.step("b", append(2, (2, 2), 2))
    ready = core.ready()
    assert ready is not None
    assert ready.membership is None
