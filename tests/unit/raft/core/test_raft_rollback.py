"""Tests of members whose disk was rolled back to an old copy, and of the diverged histories that follow."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from lakestream.log.format.frame import Frame
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    Confirmed,
    Envelope,
    HardState,
    Install,
    Membership,
    Message,
    Vote,
    VoteReply,
    decode_envelopes,
    encode_envelopes,
)
from lakestream.raft.core.ready import Conflict, RaftOptions, Role, RolledBack
from lakestream.raft.core.terms import UNKNOWN, TermMap, reaching, term_in
from tests.unit.raft_net import ELECTION, OPTIONS, Member, Net, append, drain, log_of, lone, terms_in, terms_of

pytestmark = pytest.mark.unit


class Copy(msgspec.Struct):
    """Copy of a member's disk."""

    disk: list[Frame]
    hard: HardState
    confirmed: Sequence[Confirmed]


def copy_of(member: Member) -> Copy:
    return Copy(list(member.disk), member.core.hard, list(member.core.confirmed.values()))


def restore(net: Net, name: str, copy: Copy) -> None:
    """Restart the member with an old copy of its disk."""
    member = net.members[name]
    member.disk, member.hard, member.confirmed = list(copy.disk), copy.hard, copy.confirmed
    member.commit = copy.hard.commit
    member.readies.clear()
    member.start()


def restart(net: Net, name: str) -> None:
    member = net.members[name]
    member.confirmed, member.hard = list(member.core.confirmed.values()), member.core.hard
    member.start()


def reports(net: Net, name: str) -> list[RolledBack | Conflict]:
    """Return a member's reports of rolled-back disks."""
    found: list[RolledBack | Conflict] = []
    for ready in net.members[name].readies:
        found += [each for each in (ready.rolled_back, ready.stopped) if each is not None]
        found += ready.warnings
    return found


def with_confirmed(*confirmed: Confirmed, log: Sequence[int] = (1,), commit: int = 0) -> Core:
    """Return a core of member `a` without peers that has this record of the others."""
    core = Core(
        "a",
        Membership(("a", "b", "c")),
        HardState(max(log), "", commit),
        terms_of(log_of(*log)),
        options=OPTIONS,
        random=Random(1),
        confirmed=confirmed,
    )
    core.heard = -1000
    return core


# -- records of the other members' confirmed entries ---------------------------------------------------------------


def test_every_member_knows_what_every_member_confirmed() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x", b"y")
    net.tick(2)
    for name in "abc":
        assert net[name].confirmed == {member: Confirmed(member, 3, 1) for member in "abc"}


def test_what_is_not_committed_is_not_remembered_as_confirmed() -> None:
    """Uncommitted entries are not recorded as confirmed, since another leader may replace them."""
    net = Net("a", "b", "c", "d", "e")
    net.elect("a")
    net.tick()
    net.isolate("a")
    net.cuts -= {("a", "b"), ("b", "a")}
    net.propose("a", b"x")
    net.tick()
    assert net["a"].match_of("b") == 2
    assert net["a"].confirmed["b"] == Confirmed("b", 1, 1)


def test_the_record_of_a_removed_member_is_dropped() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.tick()
    net.change("a", "a", "b")
    net.tick()
    assert set(net["a"].confirmed) == set(net["b"].confirmed) == {"a", "b"}


def test_a_log_that_is_synced_later_remembers_nothing() -> None:
    core = Core(
        "a", Membership(("a", "b", "c")), HardState(1), TermMap(), options=OPTIONS, random=Random(1), remembers=False
    )
    core.step("b", Append(1, 0, 0, 0, [], 1, (Confirmed("a", 5, 1), Confirmed("b", 5, 1))))
    assert core.confirmed == {}
    assert not core.recovering


def test_reads_do_not_carry_what_is_remembered() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.tick()
    net.seen.clear()
    net["a"].read("now")
    net.settle()
    assert [m.confirmed for m in net.sent(Append) if isinstance(m, Append)] == [(), ()]


# -- members that come back with less ---------------------------------------------------------------------------------


def test_a_rolled_back_member_learns_it_from_its_leader_and_catches_up() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x")
    net.tick()
    copy = copy_of(net.members["b"])
    net.propose("a", b"y", b"z")
    net.tick()
    restore(net, "b", copy)
    net["a"].node_up("b")
    net.settle()
    assert reports(net, "b") == [RolledBack("a", "b", 4, 1, 2)]
    net.tick(3)
    assert not net["b"].recovering
    assert net["b"].last_index == 4
    assert net.bodies("b") == [b"x", b"y", b"z"]


def test_a_rolled_back_member_is_recovering_before_it_acknowledges_anything() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    copy = copy_of(net.members["b"])
    net.propose("a", b"x")
    net.tick()
    restore(net, "b", copy)
    net.cut("a", "c")
    net.seen.clear()
    net["a"].node_up("b")
    net.settle()
    assert net["b"].forgetful, "its hard state is of another day, too: only a majority without it tells who leads"
    assert net.sent(AppendReply, sender="b") == []


def test_the_memory_survives_the_leader() -> None:
    """A restarted member keeps the record that the former leader sent."""
    net = Net("a", "b", "c")
    net.elect("a")
    copy = copy_of(net.members["b"])
    net.propose("a", b"x")
    net.tick()
    net.isolate("a")
    restart(net, "c")
    restore(net, "b", copy)
    net.tick(3 * ELECTION)
    assert reports(net, "b")[0] == RolledBack("c", "b", 2, 1, 1)
    assert net["c"].role is not Role.LEADER, "a majority without b must confirm it"
    net.heal()
    net.leader()
    net.tick(5)
    assert not net["b"].recovering
    assert net.bodies("b") == [b"x"]


def test_a_member_that_lags_does_not_win_with_the_vote_of_one_that_was_rolled_back() -> None:
    """A lagging member does not win an election with the vote of a rolled-back one.

    a and b have the entry, c only knows of it; b is rolled back and a is down: c and b are a majority without it.
    """
    net = Net("a", "b", "c")
    net.elect("a")
    net.tick()
    copy = copy_of(net.members["b"])
    net.drop = lambda sender, to, message: to == "c" and isinstance(message, Append) and bool(message.entries)
    net.propose("a", b"acked")
    net.tick(2)
    assert net["a"].commit == 2
    assert net["c"].last_index == 1
    restart(net, "c")
    restore(net, "b", copy)
    net.drop = lambda sender, to, message: "a" in (sender, to)
    net.tick(8 * ELECTION)
    assert [name for name in "bc" if net[name].role is Role.LEADER] == []
    assert net["b"].recovering
    net.heal()
    net.leader()
    net.tick(5)
    for name in "abc":
        assert net.bodies(name) == [b"acked"]


def test_a_candidate_with_less_than_it_had_confirmed_is_refused_and_hears_why() -> None:
    core = with_confirmed(Confirmed("b", 5, 1))
    core.step("b", Vote(2, 4, 1, True))
    core.step("b", Vote(2, 4, 1))
    assert [(m.granted, m.confirmed_index, m.confirmed_term) for _, m in drain(core)] == [(False, 5, 1)] * 2  # type: ignore[union-attr]
    candidate = lone(1, me="b")
    candidate.campaign()
    drain(candidate)
    candidate.step("a", VoteReply(1, False, True, 5, 1))
    ready = candidate.ready()
    assert ready is not None
    assert ready.rolled_back == RolledBack("a", "b", 5, 1, 1)
    assert candidate.recovering
    assert candidate.role is Role.FOLLOWER


def test_a_voter_hears_what_it_had_confirmed_before_it_votes() -> None:
    candidate = with_confirmed(Confirmed("b", 5, 1))
    assert candidate.campaign()
    asked = {to: message for to, message in drain(candidate) if isinstance(message, Vote)}
    assert (asked["b"].confirmed_index, asked["b"].confirmed_term) == (5, 1)
    assert (asked["c"].confirmed_index, asked["c"].confirmed_term) == (0, 0)
    voter = lone(1, me="b")
    voter.step("a", Vote(2, 9, 1, False, False, 5, 1))
    assert voter.recovering
    assert [m.granted for _, m in drain(voter)] == [False]  # type: ignore[union-attr]
    assert voter.vote == ""


def test_another_entry_where_one_was_confirmed_is_less_than_that() -> None:
    core = lone(1, 2, 2, me="b")
    core.step("a", Vote(3, 9, 2, True, False, 2, 1))
    assert core.recovering


@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_member_with_its_confirmed_entries_votes(index: int) -> None:
    core = lone(1, 1, 1, me="b")
    core.step("a", Vote(2, 9, 1, False, False, index, 1))
    assert not core.recovering
    assert [m.granted for _, m in drain(core)] == [True]  # type: ignore[union-attr]


def test_a_candidate_is_not_believed_against_a_leader_that_is_there() -> None:
    core = lone(1, me="b")
    core.step("c", append(1, (1, 1), read=1))
    core.step("a", Vote(2, 9, 1, True, False, 5, 1))
    assert not core.recovering


def test_a_rolled_back_member_of_two_comes_back_by_itself() -> None:
    net = Net("a", "b")
    net.elect("a")
    copy = copy_of(net.members["b"])
    net.propose("a", b"x")
    net.tick()
    restore(net, "b", copy)
    net["a"].node_up("b")
    net.tick(3)
    assert reports(net, "b") == [RolledBack("a", "b", 2, 1, 1)]
    assert net.members["b"].recovered
    assert net["b"].last_index == 2


def test_a_leader_notices_a_member_that_says_nothing_of_it() -> None:
    """A leader detects and reports a rolled-back member that does not report it.

    Such a member syncs its log late, or runs an older release; it is sent the missing entries.
    """
    core = lone(1, me="a", voters="abc")
    assert core.campaign()
    core.step("b", VoteReply(2, True, True))
    core.step("b", VoteReply(2, True))
    drain(core)
    core.step("b", AppendReply(2, 2))
    assert core.match_of("b") == 2
    core.node_up("b")
    probe = next(m for to, m in drain(core) if to == "b" and isinstance(m, Append))
    core.step("b", AppendReply(2, probe.prev_index, True, 1, 1, probe.read))
    ready = core.ready()
    assert ready is not None
    assert ready.warnings == [RolledBack("a", "b", 2, 2, -1)]
    assert core.match_of("b") == 0
    assert [m.prev_index for to, m in ready.messages if to == "b" and isinstance(m, Append)] == [1]


def test_an_old_refusal_that_comes_late_is_no_sign_of_a_rolled_back_disk() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.propose("a", b"x")
    net["a"].step("b", AppendReply(1, 1, True, 0, 0, 1))
    assert net["a"].match_of("b") == 2
    ready = net["a"].ready()
    assert ready is None or ready.warnings == []


# -- diverged histories -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        append(3, (2, 3), 3),
        append(3, (1, 1), 3),
        append(3, (2, 3), read=1),
        Install(3, 2, 3, Membership(("a", "b", "c"))),
        Install(9, 5, 3, Membership(("a", "b", "c")), ((1, 1), (2, 3))),
    ],
)
def test_another_committed_entry_stops_the_member_and_changes_nothing(message: Message) -> None:
    core = lone(1, 2, commit=2)
    core.step("b", message)
    ready = core.ready()
    assert ready is not None
    assert ready.stopped == Conflict("b", 2, 2, 3)
    assert ready.append == []
    assert ready.truncate_after is None
    assert ready.install is None
    assert [m for _, m in ready.messages] == [AppendReply(message.term, 2, True, match_term=2)]
    assert terms_in(core) == [1, 2]
    assert core.frozen


def test_a_state_that_ends_with_an_older_term_than_what_is_committed_is_another_history() -> None:
    core = lone(1, 4, commit=2)
    core.step("b", Install(5, 9, 3, Membership(("a", "b", "c"))))
    assert core.frozen


@pytest.mark.parametrize("past", [(), ((1, 1), (2, 2)), ((3, UNKNOWN),), ((2, 2), (3, UNKNOWN))])
def test_a_state_that_fits_or_tells_nothing_is_installed(past: tuple[tuple[int, int], ...]) -> None:
    core = lone(1, 2, commit=2)
    core.step("b", Install(3, 5, 3, Membership(("a", "b", "c")), past))
    assert core.installing is not None


def test_the_leader_says_once_which_member_has_another_history() -> None:
    core = lone(1, me="a")
    assert core.campaign()
    core.step("b", VoteReply(2, True, True))
    core.step("b", VoteReply(2, True))
    drain(core)
    for _ in range(3):
        core.step("c", AppendReply(2, 1, True, match_term=7))
    ready = core.ready()
    assert ready is not None
    assert ready.warnings == [Conflict("c", 1, 1, 7)]
    core.node_up("c")
    core.step("c", AppendReply(2, 1, True, match_term=7))
    ready = core.ready()
    assert ready is not None
    assert len(ready.warnings) == 1, "it was started again, and is still there"


def test_the_one_that_still_has_what_was_lost_stops_when_it_comes_back() -> None:
    """A member that still has lost entries stops when it comes back.

    c was down when a and b confirmed the entry, and no running member knows of it: the loss cannot be detected before a
    comes back.
    """
    net = Net("a", "b", "c")
    net.elect("a")
    net.tick()
    copy = copy_of(net.members["b"])
    net.isolate("c")
    net.propose("a", b"acked")
    net.tick()
    kept = list(net.members["a"].disk)
    restore(net, "b", copy)
    net.heal()
    net.isolate("a")
    net.agreed.clear()
    leader = net.leader()
    while leader == "a":
        net.tick()
        leader = net.leader()
    net.propose(leader, b"other", b"more")
    net.tick()
    net.heal()
    net["a"].node_up(leader)
    net[leader].node_up("a")
    net.tick(3)
    (said,) = reports(net, "a")
    assert isinstance(said, Conflict)
    assert (said.index, said.mine) == (2, 1)
    assert net.members["a"].disk == kept
    assert net["a"].frozen
    (heard,) = [each for each in reports(net, leader) if isinstance(each, Conflict)]
    assert (heard.member, heard.index, heard.other) == ("a", 2, 1)
    net.propose(leader, b"on")
    assert net.bodies(leader) == [b"other", b"more", b"on"]


@pytest.mark.parametrize(("match", "term"), [(9, 1), (2, 1), (1, 7)])
def test_an_acknowledgement_of_another_history_counts_for_nothing_and_is_contradicted(match: int, term: int) -> None:
    """An acknowledgement of another history does not count, and is rejected.

    A member assumes that its committed entries equal its leader's, which is wrong after a rollback of a disk.
    """
    core = lone(1, me="a")
    assert core.campaign()
    for reply in (VoteReply(2, True, True), VoteReply(2, True)):
        core.step("b", reply)
    drain(core)
    core.step("b", AppendReply(2, match, match_term=term))
    index, mine = min(match, 2), 2 if match > 1 else 1
    assert drain(core) == [("b", Append(2, index, mine, 0))]
    assert (core.match_of("b"), core.commit) == (0, 0)
    other = lone(*[term] * match, me="b", commit=match)
    other.step("a", Append(2, index, mine, 0))
    if term < 2:
        assert other.frozen


# -- terms of compacted entries -------------------------------------------------------------------------------------


def test_the_terms_of_entries_that_are_gone_are_remembered() -> None:
    terms = TermMap(0, 0, [(1, 1), (4, 2), (6, 5)], 9)
    terms.forget(4)
    terms.forget(7)
    assert [terms.term_once(index) for index in range(1, 10)] == [1, 1, 1, 2, 2, 5, 5, 5, 5]
    assert terms.term(3) is None


def test_what_is_not_known_of_a_gap_is_not_made_up() -> None:
    runs = reaching(((1, 1),), 3, 1, 9, 4)
    assert [term_in(runs, index) for index in (1, 3, 4, 8)] == [1, 1, None, None]
    assert term_in(reaching(((1, 1),), 3, 1, 9, 1), 8) == 1, "terms never fall"
    assert term_in((), 1) is None


# -- older releases -------------------------------------------------------------------------------------------------


class OldAppend(msgspec.Struct, array_like=True, tag="a"):
    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: list[int] = []
    read: int = 0


class OldVote(msgspec.Struct, array_like=True, tag="v"):
    term: int
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class OldEnvelope(msgspec.Struct, array_like=True):
    group: str
    message: OldAppend | OldVote


def test_nodes_of_the_release_before_are_understood_and_understand() -> None:
    new: list[Message] = [Append(1, 2, 1, 2, [], 7, (Confirmed("a", 2, 1),)), Vote(1, 2, 1, True, False, 2, 1)]
    old: list[OldAppend | OldVote] = [OldAppend(1, 2, 1, 2, [], 7), OldVote(1, 2, 1, True, False)]
    sent = encode_envelopes([Envelope("g", message) for message in new])
    assert msgspec.msgpack.decode(sent, type=list[OldEnvelope]) == [OldEnvelope("g", message) for message in old]
    came = decode_envelopes(msgspec.msgpack.encode([OldEnvelope("g", message) for message in old]))
    assert [each.message for each in came] == [Append(1, 2, 1, 2, [], 7), Vote(1, 2, 1, True, False)]


def test_members_that_fall_asleep_know_what_each_of_them_confirmed() -> None:
    """A lone entry may be followed by no heartbeat before the group sleeps."""
    net = Net("a", "b", "c", options=RaftOptions(heartbeat_ticks=3, quiesce_ticks=1))
    net.elect("a")
    net.tick(10)
    net.propose("a", b"x")
    while not all(net[name].quiescent for name in "abc"):
        net.tick()
    last = net["a"].last_index
    assert {each.member: each.index for each in net["b"].confirmed.values()} == {"a": last, "b": last, "c": last}
