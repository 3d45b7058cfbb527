"""Tests of replication of entries and snapshots: probes, streams, limits, installs."""

from __future__ import annotations

import pytest

from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import Append, AppendReply, HardState, Install, InstallReply, Membership, entry_of
from lakestream.raft.core.progress import Inflight, Pace, Progress
from lakestream.raft.core.ready import BadMessage, RaftOptions, Role, SendEntries, TooMuchUncommitted
from tests.unit.raft.core.test_raft_paper import make_leader
from tests.unit.raft_net import ELECTION, Net, append, drain, entry, log_of, lone, terms_in

pytestmark = pytest.mark.unit


def progress(core: Core, name: str) -> Progress:
    assert core.leading is not None
    return core.leading.progress[name]


def leader(*terms: int, options: RaftOptions | None = None) -> Core:
    """Return a leader that has sent a probe to follower b, and that gets no answers from c."""
    core = lone(*terms, options=options or RaftOptions(quiesce_ticks=0))
    make_leader(core)
    drain(core)
    return core


def streaming(*terms: int, options: RaftOptions | None = None) -> Core:
    """Return a leader that streams to b, which has everything so far."""
    core = leader(*terms, options=options)
    core.step("b", AppendReply(core.term, core.last_index))
    drain(core)
    assert progress(core, "b").pace is Pace.REPLICATE
    return core


def propose(core: Core, *bodies: bytes) -> None:
    core.propose([entry(core.last_index + at, core.term, body) for at, body in enumerate(bodies, 1)])


def sends(core: Core) -> list[SendEntries]:
    found = []
    while (ready := core.ready()) is not None:
        found += ready.sends
    return found


def fill(core: Core, send: SendEntries, count: int = 1, body: bytes = b"x") -> Append | None:
    return core.fill(send, [entry_of(entry(send.first + at, core.term, body)) for at in range(count)])


# -- probes ------------------------------------------------------------------------------------------------------------


def test_probe_is_one_question_without_entries_until_it_is_answered() -> None:
    core = leader(1)
    for at in range(3):
        propose(core, b"%d" % at)
        assert sends(core) == []
        assert drain(core) == []
    assert progress(core, "b").paused


def test_probe_the_heartbeat_repeats_the_question() -> None:
    core = leader(1)
    core.tick()
    assert [(to, m.prev_index, m.entries) for to, m in drain(core)] == [("b", 1, []), ("c", 1, [])]  # type: ignore[union-attr]


def test_probe_becomes_a_stream_when_the_logs_agree() -> None:
    core = leader(1)
    core.step("b", AppendReply(core.term, 1))
    (send,) = sends(core)
    assert (send.to, send.first, send.last, send.prev_term) == ("b", 2, 2, 1)
    made = core.fill(send, [entry_of(entry(2, core.term))])
    assert made is not None
    assert (made.term, made.prev_index, made.prev_term, made.commit) == (core.term, 1, 1, 0)


def test_probe_a_refusal_moves_back_by_the_followers_hint() -> None:
    core = leader(1, 1, 1, 1)
    core.step("b", AppendReply(core.term, 4, True, 2, 1))
    assert [(to, m.prev_index) for to, m in drain(core)] == [("b", 2)]  # type: ignore[union-attr]


def test_probe_a_refusal_of_an_older_question_is_ignored() -> None:
    core = leader(1, 1, 1, 1)
    core.step("b", AppendReply(core.term, 4, True, 2, 1))
    drain(core)
    core.step("b", AppendReply(core.term, 4, True, 0, 0))
    assert drain(core) == []
    assert progress(core, "b").next == 3


def test_probe_moves_back_by_at_least_one_whatever_the_hint_says() -> None:
    core = leader(1, 1, 1, 1)
    core.step("b", AppendReply(core.term, 4, True, 9, 9))
    assert progress(core, "b").next == 4


def test_stuck_probe_a_member_that_was_away_gets_on_with_the_first_answer() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net["a"].unreachable("c")
    net.propose("a", b"x")
    net.tick(3 * ELECTION, only=["a", "b"])
    net.heal()
    net.tick()
    net.tick()
    assert net.bodies("c") == [b"x"]


def test_stream_a_refusal_goes_back_to_probing() -> None:
    core = streaming(1)
    propose(core, b"x")
    (send,) = sends(core)
    fill(core, send)
    core.step("b", AppendReply(core.term, 3, True, 2, core.term))
    assert progress(core, "b").pace is Pace.PROBE
    assert len(progress(core, "b").inflight) == 0


def test_stream_a_late_refusal_is_ignored() -> None:
    core = streaming(1)
    core.step("b", AppendReply(core.term, 1, True, 0, 0))
    assert progress(core, "b").pace is Pace.REPLICATE


def test_stream_a_late_acknowledgement_moves_nothing_back() -> None:
    core = streaming(1, 1)
    core.step("b", AppendReply(core.term, 1))
    assert core.match_of("b") == 3


def test_an_acknowledgement_beyond_the_leaders_log_is_refused() -> None:
    core = streaming(1)
    with pytest.raises(BadMessage):
        core.step("b", AppendReply(core.term, 9))


def test_an_answer_of_a_nonmember_is_ignored() -> None:
    core = streaming(1)
    core.step("z", AppendReply(core.term, 2))
    core.step("z", InstallReply(core.term, 2, True))
    assert core.match_of("z") == 0


def test_unreachable_ends_the_stream_until_the_next_heartbeat_is_answered() -> None:
    core = streaming(1)
    propose(core, b"x")
    (send,) = sends(core)
    fill(core, send)
    core.unreachable("b")
    assert drain(core) == []
    core.tick()
    assert ("b", 2) in [(to, m.prev_index) for to, m in drain(core)]  # type: ignore[union-attr]
    core.step("b", AppendReply(core.term, 2))
    (send,) = sends(core)
    assert send.first == 3


def test_a_node_that_is_back_is_asked_at_once() -> None:
    core = streaming(1)
    core.unreachable("b")
    core.node_up("b")
    assert [to for to, _ in drain(core)] == ["b"]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_inflight_add_and_free() -> None:
    inflight = Inflight(4, 1000)
    for last in (2, 4, 6, 8):
        assert not inflight.full
        inflight.add(last, 10)
    assert inflight.full
    inflight.free(1)
    assert len(inflight) == 4
    inflight.free(5)
    assert len(inflight) == 2
    inflight.add(9, 10)
    inflight.free(9)
    assert len(inflight) == 0


def test_inflight_is_bounded_in_bytes() -> None:
    inflight = Inflight(100, 25)
    inflight.add(1, 20)
    assert not inflight.full
    inflight.add(2, 20)
    assert inflight.full
    inflight.free(1)
    assert not inflight.full


def test_inflight_limit_holds_back_what_is_more_until_an_answer_comes() -> None:
    core = streaming(1, options=RaftOptions(max_inflight=3, quiesce_ticks=0))
    for _ in range(5):
        propose(core, b"x")
        for send in sends(core):
            fill(core, send)
    assert len(progress(core, "b").inflight) == 3
    assert progress(core, "b").next == 6
    core.step("b", AppendReply(core.term, 3))
    (send,) = sends(core)
    assert (send.first, send.last) == (6, 7)


def test_inflight_is_freed_by_the_answer_to_a_heartbeat() -> None:
    core = streaming(1, options=RaftOptions(max_inflight=1, quiesce_ticks=0))
    propose(core, b"x")
    fill(core, sends(core)[0])
    propose(core, b"y")
    assert sends(core) == []
    core.tick()
    core.step("b", AppendReply(core.term, 3, read=1))
    assert [send.first for send in sends(core)] == [4]


def test_append_size_limit_is_the_shells_to_keep_and_the_rest_follows() -> None:
    net = Net("a", "b", "c", options=RaftOptions(max_append_bytes=10, quiesce_ticks=0))
    net.elect("a")
    net.propose("a", *[b"%4d" % at for at in range(20)])
    appends = [m for m in net.sent(Append, to="b") if m.entries]  # type: ignore[union-attr]
    assert max(sum(len(e.body) for e in m.entries) for m in appends) <= 10  # type: ignore[union-attr]
    assert net["b"].last_index == 21


def test_one_entry_larger_than_the_limit_goes_alone() -> None:
    net = Net("a", "b", "c", options=RaftOptions(max_append_bytes=10, max_inflight_bytes=10, quiesce_ticks=0))
    net.elect("a")
    net.propose("a", b"x" * 100, b"y" * 100)
    assert net["b"].last_index == 3
    assert net["a"].commit == 3


def test_uncommitted_size_limit_refuses_more_until_something_is_committed() -> None:
    core = streaming(1, options=RaftOptions(max_uncommitted_bytes=10, quiesce_ticks=0))
    propose(core, b"x" * 6)
    with pytest.raises(TooMuchUncommitted):
        propose(core, b"y" * 6)
    assert core.last_index == 3
    propose(core, b"y" * 4)
    drain(core)
    core.step("b", AppendReply(core.term, 3))
    propose(core, b"z" * 6)
    assert core.last_index == 5


def test_uncommitted_size_limit_lets_one_proposal_through_however_large() -> None:
    core = streaming(1, options=RaftOptions(max_uncommitted_bytes=10, quiesce_ticks=0))
    propose(core, b"x" * 1000)
    with pytest.raises(TooMuchUncommitted):
        propose(core, b"y")


def test_uncommitted_size_begins_anew_with_a_leadership() -> None:
    core = streaming(1, options=RaftOptions(max_uncommitted_bytes=10, quiesce_ticks=0))
    propose(core, b"x" * 10)
    drain(core)
    core.step("b", AppendReply(core.term + 1, 0, True))
    core.heard = -1000
    make_leader(core)
    propose(core, b"y" * 10)


@pytest.mark.parametrize(("first", "term"), [(3, 0), (5, 0), (4, 1), (4, -1)])
def test_proposals_must_follow_the_log_in_the_leaders_term(first: int, term: int) -> None:
    core = streaming(1, 1)
    with pytest.raises(AssertionError):
        core.propose([entry(first, core.term + term)])


# -- reading entries for a follower ------------------------------------------------------------------------------------


def test_entries_are_asked_for_once_at_a_time() -> None:
    core = streaming(1)
    propose(core, b"x")
    (send,) = sends(core)
    propose(core, b"y")
    assert sends(core) == []
    assert fill(core, send) is not None
    (send,) = sends(core)
    assert (send.first, send.last) == (4, 4)


def test_entries_may_be_fewer_than_asked_for() -> None:
    core = streaming(1)
    propose(core, b"x", b"y", b"z")
    (send,) = sends(core)
    assert fill(core, send, 2) is not None
    assert [(s.first, s.last) for s in sends(core)] == [(5, 5)]


@pytest.mark.parametrize("why", ["leader no more", "unreachable", "acknowledged", "removed"])
def test_entries_that_come_too_late_are_not_sent(why: str) -> None:
    core = streaming(1)
    propose(core, b"x")
    (send,) = sends(core)
    if why == "leader no more":
        core.step("b", append(core.term + 1, (1, 1)))
    elif why == "unreachable":
        core.unreachable("b")
    elif why == "acknowledged":
        core.step("b", AppendReply(core.term, 3))
    else:
        core.propose_membership(Membership(("a", "c")))
    assert fill(core, send) is None


def test_entries_that_can_not_be_had_are_asked_for_again_after_the_next_heartbeat() -> None:
    core = streaming(1)
    propose(core, b"x")
    (send,) = sends(core)
    assert core.fill(send, []) is None
    assert sends(core) == []
    core.tick()
    drain(core)
    core.step("b", AppendReply(core.term, 2))
    assert [s.first for s in sends(core)] == [3]


def test_the_commit_index_travels_with_the_entries_as_it_is_when_they_leave() -> None:
    core = streaming(1)
    propose(core, b"x")
    (send,) = sends(core)
    core.persisted(3, 0)
    core.step("c", AppendReply(core.term, 3))
    made = fill(core, send)
    assert made is not None
    assert made.commit == 3


def test_eager_commit_tells_followers_without_waiting() -> None:
    for eager in (False, True):
        net = Net("a", "b", "c", options=RaftOptions(eager_commit=eager, quiesce_ticks=0))
        net.elect("a")
        net.propose("a", b"x")
        assert (net["b"].commit == 2) is eager


def test_an_announcement_tells_followers_what_is_committed() -> None:
    net = Net("a", "b", "c", options=RaftOptions(quiesce_ticks=0))
    net.elect("a")
    net.propose("a", b"x")
    assert net["b"].commit == 1
    net["a"].announce()
    net.settle()
    assert net["b"].commit == net["c"].commit == 2


def test_a_commit_index_sent_alone_is_not_answered() -> None:
    core = lone(1)
    core.step("b", append(1, (1, 1), commit=1))
    assert drain(core) == []
    assert core.commit == 1


def test_many_appends_that_were_written_together_get_one_answer() -> None:
    core = lone(1)
    for at in range(5):
        core.step("b", append(1, (1 + at, 1), 1))
    assert drain(core) == [("b", AppendReply(1, 6, match_term=1))]


def test_a_slow_disk_does_not_delay_the_answer_to_a_heartbeat() -> None:
    core = lone(1)
    core.step("b", append(1, (1, 1), 1))
    core.step("b", append(1, (2, 1), read=7))
    assert drain(core, persist=False) == [("b", AppendReply(1, 1, read=7, match_term=1))]


def test_fast_back_off_with_many_terms_takes_few_questions() -> None:
    """Backing off over forty terms on either side takes few probes."""
    common = [1] * 10
    mine = common + [2 * at for at in range(1, 41) for _ in range(3)]
    theirs = common + [2 * at + 1 for at in range(1, 40) for _ in range(3)]
    net = Net("a", "b", "c", logs={"a": log_of(*mine), "b": log_of(*theirs)}, hard={"c": HardState(80)})
    net.elect("a")
    assert terms_in(net["b"])[: len(mine)] == mine
    refusals = [m for m in net.sent(AppendReply, to="a", sender="b") if m.rejected]  # type: ignore[union-attr]
    assert len(refusals) <= 41


def test_fast_back_off_to_a_follower_with_a_long_tail_of_one_dead_term_takes_two_questions() -> None:
    net = Net(
        "a",
        "b",
        "c",
        logs={"a": log_of(*[1] * 5 + [4] * 50), "b": log_of(*[1] * 5 + [2] * 500)},
        hard={"c": HardState(4)},
    )
    net.elect("a")
    refusals = [m for m in net.sent(AppendReply, to="a", sender="b") if m.rejected]  # type: ignore[union-attr]
    assert len(refusals) <= 2
    assert net["b"].last_index == 56


# -- snapshots (Raft §7) -----------------------------------------------------------------------------------------------


def compacted_net() -> Net:
    """Return a net in which c lacks entries that a has compacted."""
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.propose("a", b"x", b"y", b"z")
    net.tick()
    net.members["a"].compact(3)
    net.heal()
    net["a"].unreachable("c")
    net.tick()
    return net


def test_install_is_offered_when_the_entries_are_gone() -> None:
    net = compacted_net()
    (offer,) = net.sent(Install, to="c")
    assert offer == Install(1, 3, 1, Membership(("a", "b", "c")), ((1, 1),))
    assert net.members["c"].installs == [offer]
    assert progress(net["a"], "c").pace is Pace.INSTALL


def test_install_success_continues_with_the_entries_after_it() -> None:
    net = compacted_net()
    net.propose("a", b"new")
    net.members["c"].install(net.members["a"], 4)
    net.settle()
    assert progress(net["a"], "c").pace is Pace.REPLICATE
    assert net["c"].last_index == 5
    net.tick()
    assert net["c"].commit == 5
    assert net.members["c"].base == 4


def test_install_of_a_newer_state_than_offered_is_fine() -> None:
    net = compacted_net()
    net.propose("a", b"new")
    net.members["c"].install(net.members["a"])
    net.settle()
    assert net["a"].match_of("c") == 5


def test_install_no_entries_are_sent_meanwhile_but_heartbeats_are() -> None:
    net = compacted_net()
    net.seen.clear()
    net.propose("a", b"new")
    net.tick(2 * ELECTION - 1)
    appends = net.sent(Append, to="c")
    assert appends
    assert all(m.entries == [] for m in appends)  # type: ignore[union-attr]
    assert (net["c"].role, net["c"].leader) == (Role.FOLLOWER, "a")


def test_install_failure_is_followed_by_another_offer() -> None:
    net = compacted_net()
    net["c"].install_failed()
    net.settle()
    assert progress(net["a"], "c").pace is Pace.PROBE
    net.tick(2)
    assert len(net.sent(Install, to="c")) == 2
    net.members["c"].install(net.members["a"])
    net.settle()
    assert net["a"].match_of("c") == 4


def test_install_lost_is_offered_again() -> None:
    net = Net("a", "b", "c")
    net.elect("a")
    net.isolate("c")
    net.propose("a", b"x", b"y")
    net.tick()
    net.members["a"].compact(3)
    net.heal()
    net.drop = lambda sender, to, message: isinstance(message, Install)
    net["a"].unreachable("c")
    net.tick(2)
    assert net.members["c"].installs == []
    net.heal()
    net.tick(RaftOptions().install_ticks)
    assert len(net.members["c"].installs) == 1


def test_install_repeated_while_one_is_under_way_is_ignored() -> None:
    net = compacted_net()
    net.tick(3 * RaftOptions().install_ticks)
    assert len(net.sent(Install, to="c")) > 1
    assert len(net.members["c"].installs) == 1


def test_install_abort_when_the_follower_turns_out_to_have_what_it_needs() -> None:
    core = streaming(1, 1, 1)
    core.persisted(4, 0)
    assert core.commit == 4
    core.compacted(3)
    core.step("c", AppendReply(core.term, 3, True, 1, 1))
    drain(core)
    assert progress(core, "c").pace is Pace.INSTALL
    core.step("c", AppendReply(core.term, 3))
    assert progress(core, "c").pace is Pace.REPLICATE
    assert progress(core, "c").next == 4


def test_install_of_what_is_in_the_log_already_only_commits_it() -> None:
    core = lone(1, 1, 1)
    core.step("b", Install(1, 2, 1, Membership(("a", "b", "c"))))
    assert drain(core) == [("b", InstallReply(1, 2, True, 1))]
    assert core.commit == 2
    assert core.last_index == 3


def test_install_of_an_older_state_is_answered_with_what_is_there() -> None:
    core = lone(1, 1, 1, commit=3)
    core.step("b", Install(1, 2, 1, Membership(("a",))))
    assert drain(core) == [("b", InstallReply(1, 3, True, 1))]
    assert core.membership.voters == ("a", "b", "c")


def test_install_replaces_a_log_that_conflicts_and_takes_over_the_membership() -> None:
    core = lone(1, 1, 2, 2, term=3)
    core.step("b", Install(3, 4, 3, Membership(("a", "b", "d"))))
    ready = core.ready()
    assert ready is not None
    assert ready.install is not None
    assert ready.install_from == "b"
    core.installed(5, 3, ready.install.membership)
    ready = core.ready()
    assert ready is not None
    assert ready.messages == [("b", InstallReply(3, 5, True, 3))]
    assert ready.membership == Membership(("a", "b", "d"))
    assert (core.commit, core.last_index, core.durable_index, terms_in(core)) == (5, 5, 5, [])


def test_install_while_it_runs_nothing_is_appended_and_the_member_does_not_campaign() -> None:
    core = lone(1, 1, term=3)
    core.step("b", Install(3, 4, 3, Membership(("a", "b", "c"))))
    core.step("b", append(3, (2, 1), 3, 3, read=5))
    assert core.last_index == 2
    assert [m for _, m in drain(core)] == [AppendReply(3, 0, read=5)]
    for _ in range(5 * ELECTION):
        core.tick()
    assert core.role is Role.FOLLOWER


def test_install_a_write_from_before_it_says_nothing_about_the_new_log() -> None:
    core = lone(1)
    core.step("b", append(3, (1, 1), 3))
    ready = core.ready()
    assert ready is not None
    core.step("b", Install(3, 9, 3, Membership(("a", "b", "c"))))
    drain(core)
    core.installed(9, 3, Membership(("a", "b", "c")))
    core.persisted(2, ready.epoch)
    assert core.durable_index == 9


def test_a_follower_whose_log_was_compacted_agrees_with_everything_before() -> None:
    core = lone(1, 1, 1, 1, commit=3)
    core.compacted(3)
    core.step("b", append(2, (1, 1), 1, 1, 1, 2, commit=5))
    assert terms_in(core) == [1, 2]
    assert core.commit == 5


def test_a_state_older_than_what_is_gone_by_now_is_followed_by_another() -> None:
    net = compacted_net()
    net.propose("a", b"1", b"2", b"3")
    net.tick()
    net.members["a"].compact(6)
    net.members["c"].install(net.members["b"], 4)
    net.settle()
    assert len(net.members["c"].installs) == 2
    net.members["c"].install(net.members["a"])
    net.settle()
    assert net["a"].match_of("c") == net["a"].last_index


def test_what_is_not_committed_and_durable_can_not_be_compacted() -> None:
    core = lone(1, 1, commit=1)
    with pytest.raises(AssertionError):
        core.compacted(2)


def test_a_stream_whose_lost_entries_are_gone_by_now_ends_with_an_install() -> None:
    core = streaming(1, options=RaftOptions(max_inflight=1, quiesce_ticks=0))
    propose(core, b"x")
    fill(core, sends(core)[0])
    propose(core, b"y")
    core.persisted(4, 0)
    core.step("c", AppendReply(core.term, 4))
    assert core.commit == 4
    core.compacted(4)
    core.tick()
    assert any(isinstance(message, Install) and to == "b" for to, message in drain(core))


def test_another_entry_in_the_place_of_one_of_this_leaders_is_refused_and_changes_nothing() -> None:
    core = lone()
    core.step("b", Append(5, 0, 0, 0, [entry_of(entry(1, 5, b"x")), entry_of(entry(2, 5, b"y"))]))
    with pytest.raises(BadMessage, match="had another in this term"):
        core.step("b", Append(5, 0, 0, 0, [entry_of(entry(1, 4, b"other"))]))
    assert core.last_index == 2
    assert not core.frozen
    core.step("b", Append(5, 2, 5, 0, [entry_of(entry(3, 5, b"z"))]))
    assert core.last_index == 3
