"""Tests of the rules of the Raft paper from §5.4 on: safety, crashes, and input that a core must refuse."""

from __future__ import annotations

from random import Random

import pytest

from lakestream.log.format.frame import Frame, Kind
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    HardState,
    Membership,
    Message,
    Vote,
    VoteReply,
    entry_of,
)
from lakestream.raft.core.ready import BadMessage, Role
from tests.unit.raft_net import (
    ELECTION,
    OPTIONS,
    Net,
    append,
    drain,
    entry,
    log_of,
    lone,
    make_candidate,
    make_leader,
    terms_in,
    terms_of,
)

pytestmark = pytest.mark.unit


# -- §5.4: safety ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "last", "last_term", "granted"),
    [
        ([1], 1, 1, True),
        ([1], 2, 1, True),
        ([1, 1], 1, 1, False),
        ([1], 1, 2, True),
        ([1], 2, 2, True),
        ([1, 1], 1, 2, True),
        ([2], 1, 1, False),
        ([2], 2, 1, False),
        ([1, 2], 1, 1, False),
    ],
)
def test_5_4_1_a_member_votes_only_for_a_log_that_holds_at_least_its_own(
    mine: list[int], last: int, last_term: int, granted: bool
) -> None:
    core = lone(*mine, term=2)
    core.step("b", Vote(3, last, last_term, True))
    core.step("b", Vote(3, last, last_term))
    assert drain(core) == [("b", VoteReply(3 if granted else 2, granted, True)), ("b", VoteReply(3, granted))]


def test_5_4_1_a_candidate_offers_its_log_to_all_voters() -> None:
    core = lone(1, 1, 2, term=4, voters="abcd", learners="e")
    make_candidate(core)
    asked = [(to, m) for to, m in drain(core) if isinstance(m, Vote) and not m.pre]
    assert asked == [(to, Vote(5, 3, 2)) for to in "bcd"]


@pytest.mark.parametrize(("index", "commit"), [(1, 0), (2, 0), (3, 3)])
def test_5_4_2_only_entries_of_the_own_term_are_committed_by_counting(index: int, commit: int) -> None:
    core = lone(1, 2)
    make_leader(core)
    drain(core)
    assert core.term == 3
    core.step("b", AppendReply(3, index))
    assert core.commit == commit


def test_5_4_2_figure_8_an_old_entry_on_a_majority_can_still_be_replaced_until_the_leader_commits_its_own() -> None:
    net = Net("a", "b", "c", "d", "e", logs={"a": log_of(1, 2), "b": log_of(1, 2), "c": log_of(1), "d": log_of(1)})
    net.members["e"].disk = log_of(1, 3)
    net.members["e"].hard = HardState(3)
    for name in "abcd":
        net.members[name].hard = HardState(3)
    for name in "abcde":
        net.members[name].start()
        net[name].heard = -1000
    # (c): a leads again and replicates its entry of term 2 to c, but not its entry of term 4.
    net.isolate("e")
    net.drop = lambda sender, to, message: isinstance(message, Append) and any(e.term == 4 for e in message.entries)
    core = net["a"]
    core.campaign()
    net.settle()
    assert core.role is Role.LEADER
    core.step("c", AppendReply(core.term, 2))
    net.pump(net.members["a"])
    assert core.commit == 0, "an entry of term 2 on a majority is not committed by that"
    # (d): e is elected and replaces it.
    net.heal()
    net.isolate("a")
    for name in "bcd":
        net[name].heard = -1000
    net["e"].campaign()
    net.settle()
    net["e"].tick()
    if net["e"].role is not Role.LEADER:  # its first request gave it the newer term
        net["e"].campaign()
        net.settle()
    assert net["e"].role is Role.LEADER
    assert terms_in(net["b"])[:2] == [1, 3]


def test_5_4_3_a_new_leader_has_every_committed_entry() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.propose("a", b"x", b"y")
    net.tick()
    net.heal()
    net.isolate("a")
    net.tick(6 * ELECTION)
    assert net["c"].role is not Role.LEADER
    assert net["b"].role is Role.LEADER
    assert net.bodies("b") == [b"x", b"y"]


# -- §5.5, §5.6: crashes -----------------------------------------------------------------------------------------------


def test_5_5_a_leader_repeats_what_a_crashed_follower_lost() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.members["b"].hold = True
    net.propose("a", b"x", b"y")
    assert net["b"].last_index == 3
    net.members["b"].start()
    assert net["b"].last_index == 1
    net.members["b"].hold = False
    net["a"].node_up("b")
    net.settle()
    net.tick()
    assert net.bodies("b") == [b"x", b"y"]


def test_5_5_a_leader_notices_lost_entries_with_the_next_heartbeat() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.drop = lambda sender, to, message: to == "b" and isinstance(message, Append) and bool(message.entries)
    net.propose("a", b"x", b"y")
    net.heal()
    net.tick(2)
    assert net.bodies("b") == [b"x", b"y"]


def test_5_5_everything_may_crash() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x")
    for name in "abc":
        net.members[name].start()
    leader = net.leader()
    assert net.bodies(leader) == [b"x"]


def test_5_6_service_returns_after_the_leader_died() -> None:
    net = Net("a", "b", "c", "d", "e")
    net.elect("a")
    net.propose("a", b"x")
    net.isolate("a")
    net.tick(4 * ELECTION)
    leader = next(name for name in "bcde" if net[name].role is Role.LEADER)
    net.propose(leader, b"y")
    assert net.bodies(leader) == [b"x", b"y"]


# -- §8, and input that a core must refuse -----------------------------------------------------------------------------


def test_8_a_leader_begins_with_an_entry_of_its_own() -> None:
    core = lone(1, 1)
    make_leader(core)
    ready = core.ready()
    assert ready is not None
    assert ready.append == [Frame(Kind.NOOP, 2, 3, 0, b"")]
    assert not core.established


def test_a_group_of_one_leads_and_commits_what_is_on_its_disk_without_a_message() -> None:
    net = Net("a")
    net.elect("a")
    net.members["a"].hold = True
    net.propose("a", b"x")
    assert net["a"].commit == 1
    net.members["a"].sync()
    net.settle()
    assert net["a"].commit == 2
    assert net.seen == []


def test_the_commit_index_in_the_hard_state_is_never_ahead_of_the_disk() -> None:
    core = lone(1)
    core.step("b", append(1, (1, 1), 1, commit=2))
    assert core.commit == 2
    assert core.hard.commit == 1
    again = Core(
        "a", Membership(("a", "b", "c")), HardState(1, "", 7), terms_of(log_of(1)), options=OPTIONS, random=Random(1)
    )
    assert again.commit == 1


@pytest.mark.parametrize(
    "message",
    [
        Append(2, 1, 1, 0, [entry_of(entry(3, 2))]),
        Append(2, 1, 1, 0, [entry_of(entry(2, 3))]),
        Append(2, 1, 1, 0, [entry_of(entry(2, 2)), entry_of(entry(3, 1))]),
        Append(2, 1, 1, 0, [entry_of(Frame(Kind.MEMBERSHIP, 2, 2, 0, b"?"))]),
    ],
)
def test_a_malformed_append_is_refused_before_it_changes_the_log(message: Message) -> None:
    core = lone(1)
    with pytest.raises(BadMessage):
        core.step("b", message)
    assert terms_in(core) == [1]
    assert core.log.pending == []


def test_an_entry_of_a_kind_from_a_newer_release_is_refused() -> None:
    core = lone(1)
    bad = entry_of(entry(2, 1))
    bad.kind = 99
    with pytest.raises(BadMessage):
        core.step("b", Append(1, 1, 1, 0, [bad]))


def test_a_different_entry_where_one_is_committed_stops_the_member() -> None:
    core = lone(1, 1, commit=2)
    core.step("b", append(3, (1, 1), 3))
    assert terms_in(core) == [1, 1]
    assert core.frozen
