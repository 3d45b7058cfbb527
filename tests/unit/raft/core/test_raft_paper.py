"""Tests of the rules of the Raft paper, section by section, through §5.3; test_raft_paper_safety.py has the others."""

from __future__ import annotations

import pytest

from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    HardState,
    Vote,
    VoteReply,
)
from lakestream.raft.core.ready import BadMessage, NotLeader, RaftOptions, Role
from tests.unit.raft_net import (
    ELECTION,
    NAMES,
    Net,
    append,
    drain,
    entry,
    log_of,
    lone,
    make_candidate,
    make_leader,
    terms_in,
)

pytestmark = pytest.mark.unit


# -- §5.1: terms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER])
def test_5_1_a_newer_term_makes_everybody_a_follower_in_it(role: Role) -> None:
    core = lone()
    if role is Role.PRE_CANDIDATE:
        core.campaign()
    elif role is Role.CANDIDATE:
        make_candidate(core)
    elif role is Role.LEADER:
        make_leader(core)
    assert core.role is role
    term = core.term + 2
    core.step("b", append(term, (0, 0)))
    assert (core.role, core.term, core.leader) == (Role.FOLLOWER, term, "b")


def test_5_1_a_leader_of_an_older_term_is_refused_with_the_newer_one() -> None:
    core = lone(1, 2, term=3)
    core.step("b", append(2, (2, 2), 2, commit=3))
    assert drain(core) == [("b", AppendReply(3, 0, True))]
    assert terms_in(core) == [1, 2]
    assert (core.commit, core.leader) == (0, "")


def test_5_1_a_leader_that_hears_of_a_newer_term_steps_down() -> None:
    core = lone()
    make_leader(core)
    core.step("b", AppendReply(core.term + 1, 0, True))
    assert (core.role, core.leader) == (Role.FOLLOWER, "")


def test_5_1_an_answer_of_an_older_term_changes_nothing() -> None:
    core = lone()
    make_leader(core)
    drain(core)
    core.step("b", AppendReply(core.term - 1, 1))
    core.step("b", VoteReply(core.term - 1, True))
    assert (core.commit, core.role) == (0, Role.LEADER)
    assert core.ready() is None


# -- §5.2: elections ---------------------------------------------------------------------------------------------------


def test_5_2_members_begin_as_followers() -> None:
    assert lone().role is Role.FOLLOWER
    assert lone(1, 1, 2).role is Role.FOLLOWER


@pytest.mark.parametrize("ticks", [1, 2, 3])
def test_5_2_a_leader_sends_heartbeats_to_everybody(ticks: int) -> None:
    core = lone(1, options=RaftOptions(heartbeat_ticks=ticks, quiesce_ticks=0))
    make_leader(core)
    drain(core)
    for _ in range(3):
        for _ in range(ticks):
            core.tick()
        beats = drain(core)
        assert [(to, type(message)) for to, message in beats] == [("b", Append), ("c", Append)]
        assert all(message.entries == [] and message.prev_index == 1 for _, message in beats)  # type: ignore[union-attr]


def test_5_2_a_follower_that_hears_nothing_campaigns_in_a_new_term_with_its_own_vote() -> None:
    core = lone(1, 1, term=4)
    for _ in range(2 * ELECTION):
        core.tick()
    assert core.role is Role.PRE_CANDIDATE
    drain(core)
    core.step("b", VoteReply(5, True, True))
    assert (core.role, core.term, core.vote) == (Role.CANDIDATE, 5, "a")
    ready = core.ready()
    assert ready is not None
    assert ready.hard == HardState(5, "a", 0)
    assert ready.messages == [("b", Vote(5, 2, 1)), ("c", Vote(5, 2, 1))]


def test_5_2_a_follower_that_hears_its_leader_does_not_campaign() -> None:
    core = lone(1)
    for _ in range(10 * ELECTION):
        core.step("b", append(1, (1, 1)))
        core.tick()
    assert core.role is Role.FOLLOWER


@pytest.mark.parametrize(
    ("size", "answers", "role"),
    [
        (1, {}, Role.LEADER),
        (3, {"b": True, "c": True}, Role.LEADER),
        (3, {"b": True}, Role.LEADER),
        (5, {"b": True, "c": True}, Role.LEADER),
        (5, {"b": True, "c": False, "d": True}, Role.LEADER),
        (5, {"b": True, "c": False, "d": False, "e": False}, Role.FOLLOWER),
        (3, {"b": False, "c": False}, Role.FOLLOWER),
        (3, {}, Role.CANDIDATE),
        (5, {"b": True}, Role.CANDIDATE),
        (5, {"b": False, "c": False}, Role.CANDIDATE),
        (4, {"b": True}, Role.CANDIDATE),
        (4, {"b": True, "c": True}, Role.LEADER),
    ],
)
def test_5_2_a_candidate_wins_with_a_majority_of_all_voters(size: int, answers: dict[str, bool], role: Role) -> None:
    core = lone(voters=NAMES[:size])
    if size == 1:
        core.campaign()
    else:
        make_candidate(core)
    for voter, granted in answers.items():
        core.step(voter, VoteReply(core.term, granted))
    assert core.role is role
    assert core.term == 1


def test_5_2_the_same_voters_answer_counts_once() -> None:
    core = lone(voters="abcde")
    make_candidate(core)
    core.step("b", VoteReply(1, True))
    core.step("b", VoteReply(1, True))
    core.step("z", VoteReply(1, True))
    assert core.role is Role.CANDIDATE


@pytest.mark.parametrize(
    ("vote", "asker", "granted"),
    [("", "b", True), ("", "c", True), ("b", "b", True), ("c", "c", True), ("b", "c", False), ("c", "b", False)],
)
def test_5_2_a_member_votes_for_one_candidate_in_a_term(vote: str, asker: str, granted: bool) -> None:
    core = lone(term=2, vote=vote)
    core.step(asker, Vote(2, 0, 0))
    assert drain(core) == [(asker, VoteReply(2, granted))]


def test_5_2_a_vote_is_durable_before_it_is_answered_and_survives_a_restart() -> None:
    core = lone(term=1)
    core.step("b", Vote(2, 0, 0))
    ready = core.ready()
    assert ready is not None
    assert ready.hard == HardState(2, "b", 0)
    assert ready.messages == [("b", VoteReply(2, True))]
    again = lone(term=ready.hard.term, vote=ready.hard.vote)
    again.step("c", Vote(2, 9, 1))
    again.step("b", Vote(2, 0, 0))
    assert drain(again) == [("c", VoteReply(2, False)), ("b", VoteReply(2, True))]


@pytest.mark.parametrize("term", [1, 2])
def test_5_2_a_candidate_that_hears_a_leader_of_its_term_or_newer_follows_it(term: int) -> None:
    core = lone()
    make_candidate(core)
    core.step("b", append(term, (0, 0)))
    assert (core.role, core.term, core.leader) == (Role.FOLLOWER, term, "b")


def test_5_2_a_candidate_without_a_majority_begins_anew() -> None:
    core = lone()
    make_candidate(core)
    drain(core)
    for _ in range(2 * ELECTION):
        core.tick()
    assert core.role is Role.PRE_CANDIDATE
    core.step("b", VoteReply(2, True, True))
    assert (core.role, core.term) == (Role.CANDIDATE, 2)


def test_5_2_election_timeouts_are_random_between_one_and_two_times_the_setting() -> None:
    waited = set()
    for seed in range(300):
        core, ticks = lone(seed=seed), 0
        while core.role is Role.FOLLOWER:
            core.tick()
            ticks += 1
        waited.add(ticks)
    assert waited == set(range(ELECTION, 2 * ELECTION))


def test_5_2_split_votes_are_rare() -> None:
    """Of many clusters whose members all campaign at once, most elect a leader in the first round."""
    quick = 0
    for seed in range(60):
        net = Net("a", "b", "c")
        for at, member in enumerate(net.members.values()):
            member.seed = seed * 31 + at
            member.start()
        net.tick(2 * ELECTION + 2)
        quick += any(net[name].role is Role.LEADER for name in "abc")
    assert quick >= 55


def test_5_2_two_leaders_in_one_term_are_not_believed() -> None:
    core = lone(1)
    core.step("b", append(1, (1, 1)))
    with pytest.raises(BadMessage):
        core.step("c", append(1, (1, 1), 1))
    assert core.leader == "b"


# -- §5.3: log replication ---------------------------------------------------------------------------------------------


def test_5_3_only_a_leader_takes_proposals() -> None:
    core = lone(1)
    core.step("b", append(1, (1, 1)))
    with pytest.raises(NotLeader) as refused:
        core.propose([entry(2, 1)])
    assert refused.value.leader == "b"


def test_5_3_a_leader_appends_and_sends_at_once_without_waiting_for_its_own_disk() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.members["a"].hold = True
    net.propose("a", b"one", b"two")
    assert net["a"].durable_index == 1
    assert net["b"].last_index == net["c"].last_index == 3
    assert net["a"].commit == 3, "both followers have it on disk: that is a majority (thesis §10.2.1)"


@pytest.mark.parametrize(
    ("size", "acks", "committed"),
    [
        (1, "a", True),
        (3, "a", False),
        (3, "ab", True),
        (3, "bc", True),
        (3, "abc", True),
        (5, "ab", False),
        (5, "abc", True),
        (5, "bcd", True),
        (4, "ab", False),
        (4, "abc", True),
    ],
)
def test_5_3_an_entry_is_committed_once_it_is_durable_on_a_majority(size: int, acks: str, committed: bool) -> None:
    net = Net(*NAMES[:size])
    net.elect("a")
    for name in NAMES[:size]:
        net.members[name].hold = name not in acks
    before = net["a"].commit
    net.propose("a", b"x")
    assert net["a"].commit == before + committed


def test_5_3_what_is_before_a_committed_entry_is_committed_with_it() -> None:
    net = Net("a", "b", "c", logs={"a": log_of(1, 2, 2), "b": log_of(1, 2)})
    net.elect("a")
    assert net["a"].commit == 4
    assert terms_in(net["c"]) == [1, 2, 2, 3]


def test_5_3_followers_learn_what_is_committed_from_the_next_append_or_heartbeat() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x")
    assert net["b"].commit < 2
    net.propose("a", b"y")
    assert net["b"].commit == 2
    net.tick()
    assert net["b"].commit == net["c"].commit == 3


@pytest.mark.parametrize("commit", [0, 1, 2, 3, 9])
def test_5_3_a_follower_commits_no_more_than_it_knows_to_be_the_leaders(commit: int) -> None:
    core = lone(1, 1, 1, 1)
    core.step("b", append(1, (2, 1), 1, commit=commit))
    assert core.commit == min(commit, 3)


@pytest.mark.parametrize(
    ("prev", "refused"),
    [
        ((0, 0), False),
        ((1, 1), False),
        ((2, 2), False),
        ((3, 2), False),
        ((3, 1), True),
        ((3, 3), True),
        ((4, 2), True),
        ((9, 3), True),
    ],
)
def test_5_3_an_append_is_refused_unless_the_entry_before_it_is_there(prev: tuple[int, int], refused: bool) -> None:
    core = lone(1, 2, 2)
    core.step("b", append(3, prev, 3))
    ((_, reply),) = drain(core)
    assert isinstance(reply, AppendReply)
    assert reply.rejected is refused
    assert reply.match == (prev[0] if refused else prev[0] + 1)
    assert (3 in terms_in(core)) is not refused


@pytest.mark.parametrize(
    ("prev", "new", "after"),
    [
        ((2, 2), [3], [1, 2, 3]),
        ((1, 1), [3, 4], [1, 3, 4]),
        ((0, 0), [1], [1, 2]),
        ((0, 0), [3], [3]),
        ((0, 0), [1, 2], [1, 2]),
        ((0, 0), [1, 2, 4], [1, 2, 4]),
        ((1, 1), [2], [1, 2]),
        ((1, 1), [2, 3], [1, 2, 3]),
    ],
)
def test_5_3_a_conflict_cuts_the_followers_log_and_nothing_else_does(
    prev: tuple[int, int], new: list[int], after: list[int]
) -> None:
    core = lone(1, 2)
    core.step("b", append(4, prev, *new))
    assert terms_in(core) == after
    ready = core.ready()
    assert ready is not None
    cut = next((index for index in range(1, 3) if index > len(after) or after[index - 1] != [1, 2][index - 1]), None)
    assert ready.truncate_after == (None if cut is None else cut - 1)


def test_5_3_a_late_append_cuts_nothing() -> None:
    core = lone()
    core.step("b", append(1, (0, 0), 1, 1, 1))
    drain(core)
    core.step("b", append(1, (0, 0), 1))
    assert core.last_index == 3
    assert drain(core) == [("b", AppendReply(1, 3, match_term=1))]


def test_5_3_appends_may_come_twice() -> None:
    core = lone()
    for _ in range(3):
        core.step("b", append(1, (0, 0), 1, 1, commit=1))
    assert (core.last_index, core.commit) == (2, 1)


def test_5_3_an_entry_is_acknowledged_only_when_it_is_durable() -> None:
    core = lone()
    core.step("b", append(1, (0, 0), 1, 1))
    core.step("b", append(1, (2, 1), 1))
    assert drain(core, persist=False) == []
    core.persisted(2, 0)
    assert drain(core) == [("b", AppendReply(1, 2, match_term=1))]
    core.persisted(3, 0)
    assert drain(core) == [("b", AppendReply(1, 3, match_term=1))]


def test_5_3_a_write_that_ends_after_its_entries_were_cut_acknowledges_nothing() -> None:
    core = lone(1)
    core.step("b", append(2, (1, 1), 2, 2, 2))
    first = core.ready()
    core.step("c", append(3, (2, 2), 3))
    second = core.ready()
    assert first is not None
    assert second is not None
    assert (second.truncate_after, second.append[0].index) == (2, 3)
    core.persisted(4, first.epoch)
    assert core.durable_index == 1
    core.persisted(3, second.epoch)
    assert drain(core) == [("c", AppendReply(3, 3, match_term=3))]


def test_5_3_an_entry_that_was_cut_and_came_again_is_durable_with_its_second_write_only() -> None:
    core = lone(1)
    core.step("b", append(2, (1, 1), 2, 2))
    first = core.ready()
    core.step("c", append(3, (1, 1), 3))
    second = core.ready()
    core.step("b", append(4, (1, 1), 2, 2, 4))
    third = core.ready()
    assert first is not None
    assert second is not None
    assert third is not None
    core.persisted(3, first.epoch)
    core.persisted(2, second.epoch)
    assert drain(core) == []
    core.persisted(4, third.epoch)
    assert drain(core) == [("b", AppendReply(4, 4, match_term=4))]


def test_5_3_what_is_cut_before_it_was_handed_out_is_never_written() -> None:
    core = lone(1)
    core.step("b", append(2, (1, 1), 2, 2, 2))
    core.step("c", append(3, (2, 2), 3))
    ready = core.ready()
    assert ready is not None
    assert ready.truncate_after is None
    assert [frame.term for frame in ready.append] == [2, 3]


FIGURE_7 = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("case", list(FIGURE_7))
def test_5_3_figure_7_a_leader_makes_every_log_like_its_own(case: str) -> None:
    log = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
    net = Net(
        "l",
        "x",
        "y",
        logs={"l": log_of(*log), "x": log_of(*FIGURE_7[case])},
        hard={"l": HardState(7, "", 9), "x": HardState(7, "", 0), "y": HardState(7)},
    )
    net.cut("l", "x")
    net.elect("l")
    net.heal()
    net.tick(2)
    assert terms_in(net["x"]) == terms_in(net["l"]) == [*log, 8]
    assert [f.term for f in net.members["x"].disk] == [*log, 8]


def test_5_3_back_off_skips_whole_terms() -> None:
    """Each probe of the back-off rules out a term, not an entry."""
    mine = [1] * 100 + [2] * 100 + [5] * 100
    theirs = [1] * 100 + [2] * 50 + [3] * 100 + [4] * 100
    net = Net("a", "b", "c", logs={"a": log_of(*mine), "b": log_of(*theirs)}, hard={"c": HardState(5)})
    net.elect("a")
    refusals = [m for m in net.sent(AppendReply, to="a", sender="b") if m.rejected]  # type: ignore[union-attr]
    assert len(refusals) <= 3
    assert terms_in(net["b"]) == [*mine, 6]
