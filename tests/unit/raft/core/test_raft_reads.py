"""Tests of linearizable reads: ReadIndex (Raft §8, thesis §6.4)."""

from __future__ import annotations

import pytest

from lakestream.raft.core.messages import Append, AppendReply
from lakestream.raft.core.ready import NotLeader, Role
from tests.unit.raft.core.test_raft_paper import make_leader
from tests.unit.raft_net import ELECTION, Net, drain, lone

pytestmark = pytest.mark.unit


def test_read_index_is_the_commit_index_once_a_quorum_confirmed() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x")
    net["a"].read("r")
    assert net.members["a"].reads == []
    net.settle()
    assert net.members["a"].reads == [("r", 2)]


def test_reads_of_one_turn_share_a_round() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.seen.clear()
    for at in range(10):
        net["a"].read(at)
    net.settle()
    assert [context for context, _ in net.members["a"].reads] == list(range(10))
    assert len(net.sent(Append, to="b")) == 1


def test_a_read_without_a_quorum_is_not_answered() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("a")
    net["a"].read("r")
    net.tick(ELECTION - 1)
    assert net.members["a"].reads == []


def test_a_read_of_a_deposed_leader_is_reported_lost() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("a")
    net["a"].read("r")
    net.tick(ELECTION)
    assert net["a"].role is not Role.LEADER
    assert net.members["a"].lost_reads == ["r"]
    assert net.members["a"].reads == []


def test_an_answer_from_before_the_read_confirms_nothing() -> None:
    core = lone(1)
    make_leader(core)
    core.step("b", AppendReply(core.term, 2))
    core.persisted(2, 0)
    core.tick()
    before = max(m.read for _, m in drain(core) if isinstance(m, Append))
    assert core.established
    core.read("r")
    drain(core)
    core.step("b", AppendReply(core.term, 2, read=before))
    assert core.ready() is None or not core.out.reads
    core.tick()
    after = max(m.read for _, m in drain(core) if isinstance(m, Append))
    core.step("b", AppendReply(core.term, 2, read=after))
    ready = core.ready()
    assert ready is not None
    assert ready.reads == [("r", 2)]


def test_a_read_waits_until_the_leader_committed_in_its_own_term() -> None:
    net = Net("a", "b", "c")
    for name in "abc":
        net.members[name].hold = True
    net.elect("a")
    net["a"].read("r")
    net.tick(2)
    assert net.members["a"].reads == []
    for name in "abc":
        net.members[name].hold = False
        net.members[name].sync()
    net.settle()
    assert net.members["a"].reads == [("r", 1)]


def test_a_lost_confirmation_comes_with_the_next_heartbeat() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.drop = lambda sender, to, message: isinstance(message, Append)
    net["a"].read("r")
    net.settle()
    net.heal()
    net.tick()
    assert net.members["a"].reads == [("r", 1)]


def test_a_group_of_one_reads_at_once() -> None:
    net = Net("a")
    net.elect("a")
    net["a"].read("r")
    net.settle()
    assert net.members["a"].reads == [("r", 1)]


def test_learners_confirm_nothing() -> None:
    net = Net("a", "b", "c", learners=["d"])
    net.elect("a")
    net.isolate("b")
    net.isolate("c")
    net["a"].read("r")
    net.settle()
    assert net.members["a"].reads == []


def test_a_refusal_confirms_a_read_as_well() -> None:
    """A rejected Append confirms a read as well, since it shows that the follower knows of no newer term."""
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.drop = lambda sender, to, message: isinstance(message, Append) and bool(message.entries)
    net.propose("a", b"x")
    net["a"].read("r")
    net.settle()
    assert net.members["a"].reads == [("r", 1)]


def test_a_follower_does_not_read() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    with pytest.raises(NotLeader):
        net["b"].read("r")


def test_a_deposed_leader_that_does_not_know_it_serves_no_stale_read() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("a")
    net.tick(4 * ELECTION, only=["b", "c"])
    leader = next(name for name in "bc" if net[name].role is Role.LEADER)
    net.propose(leader, b"new")
    assert net["a"].role is Role.LEADER
    net["a"].read("r")
    net.settle()
    net.heal()
    net.tick(2)
    assert net.members["a"].reads == []
    assert net.members["a"].lost_reads == ["r"]
