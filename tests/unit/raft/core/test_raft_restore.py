"""Tests of damaged logs without a leader: votes, and entries that come back from any member that has them."""

from __future__ import annotations

import pytest

from lakestream.log.format.frame import Frame, Held
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import HardState, Recover, RecoverTo, Vote, VoteReply, entry_of
from lakestream.raft.core.ready import BadMessage, Role, SendEntries
from tests.unit.raft_net import ELECTION, Net, append, drain, log_of, lone, terms_in

pytestmark = pytest.mark.unit

WHOLE = log_of(1, 1, 1, 1, 1, 1)


def damage(net: Net, name: str, *gone: int) -> None:
    """Restart a member whose entries `gone` are damaged: it cuts its log before the first one."""
    member = net.members[name]
    log, cut = list(member.disk), min(gone) - 1
    aside = [frame for frame in log if frame.index > cut and frame.index not in gone]
    del member.disk[cut:]
    newest = (log[-1].index, log[-1].term)
    at = (cut, member.disk[-1].term) if cut else (0, 0)
    member.start(recovering=True, held=Held(newest, at, {frame.index: frame for frame in aside}))
    member.core.heard = -1000


def net_of(**logs: list[Frame]) -> Net:
    return Net("a", "b", "c", logs=logs)


def votes(core: Core, index: int, term: int) -> bool:
    core.step("b", Vote(core.term + 1, index, term))
    (reply,) = [m for _, m in drain(core) if isinstance(m, VoteReply)]
    return reply.granted


# ---------------------------------------------------------------------- votes
@pytest.mark.parametrize(("index", "term", "granted"), [(6, 2, True), (1, 3, True), (5, 2, False), (9, 1, False)])
def test_a_damaged_member_votes_as_the_log_that_it_had(index: int, term: int, granted: bool) -> None:
    assert votes(lone(1, 1, recovering=True, held=Held((6, 2))), index, term) is granted


def test_a_damaged_member_that_does_not_know_what_it_had_does_not_vote() -> None:
    assert not votes(lone(1, 1, recovering=True), 99, 99)
    assert not votes(lone(1, 1, recovering=True, forgetful=True, held=Held((2, 1))), 99, 99)


def test_a_member_without_damage_is_elected_by_damaged_ones_and_fills_them() -> None:
    net = net_of(a=WHOLE, b=WHOLE, c=WHOLE)
    damage(net, "a", 6)
    damage(net, "b", 3, 6)
    assert net.leader() == "c"
    net.tick(3)
    assert not net["a"].recovering
    assert not net["b"].recovering
    assert net.bodies("a") == net.bodies("b") == [frame.body for frame in WHOLE]


def test_the_newest_entry_of_two_is_not_given_up_for_a_member_without_it() -> None:
    net = net_of(a=WHOLE, b=WHOLE, c=WHOLE[:5])
    damage(net, "a", 6)
    damage(net, "b", 6)
    net.tick(8 * ELECTION)
    assert all(net[name].role is not Role.LEADER for name in "abc")
    assert [ready.missing for ready in net.members["a"].readies if ready.missing] == [(6, 6)]


def test_what_a_voter_knows_to_be_confirmed_raises_what_the_member_had() -> None:
    """The file `raft` is written without a sync: after a power failure it may be behind."""
    core = lone(1, 1, recovering=True, held=Held((4, 1)))
    core.step("c", Vote(core.term + 1, 5, 1, True, confirmed_index=6, confirmed_term=1))
    drain(core)
    assert core.held.newest == (6, 1)
    assert not votes(core, 5, 1)


# ---------------------------------------------------------------------- entries
@pytest.mark.parametrize(
    "gone", [((2,), (4,), (6,)), ((6,), (1,), (3, 5)), ((1, 2, 3), (4, 5), (6,)), ((2, 5), (3,), (4,))]
)
def test_every_entry_comes_back_that_one_member_has(gone: tuple[tuple[int, ...], ...]) -> None:
    net = net_of(a=WHOLE, b=WHOLE, c=WHOLE)
    for name, entries in zip("abc", gone, strict=True):
        damage(net, name, *entries)
    leader = net.leader()
    net.tick(3)
    for name in "abc":
        assert not net[name].recovering
        assert net.bodies(name) == [frame.body for frame in WHOLE], leader


def test_a_member_that_is_behind_fills_a_gap_with_entries_of_the_term_behind_it() -> None:
    """Entries that were set aside are not in its log (seed 83 of tests.damage)."""
    whole = log_of(1, 2, 2, 2, 2, 2)
    net = net_of(a=whole, b=whole, c=whole[:4])
    damage(net, "a", 4)
    damage(net, "b", 3, 4)
    net.leader()
    net.tick(3)
    assert [net.bodies(name)[:6] for name in "abc"] == [[frame.body for frame in whole]] * 3


def test_a_member_that_is_behind_fills_no_gap_with_entries_of_another_term() -> None:
    whole = log_of(1, 1, 1, 2, 2, 2)
    net = net_of(a=whole, b=whole, c=log_of(1, 1, 1, 1))
    damage(net, "a", 4)
    damage(net, "b", 4)
    net.tick(8 * ELECTION)
    assert all(net[name].role is not Role.LEADER for name in "abc")
    assert [net[name].log.last for name in "ab"] == [3, 3]


def empty(net: Net, name: str, first: int) -> None:
    """Restart a member that lost its state: its log is emptied, what it had from `first` on is set aside."""
    member = net.members[name]
    log = list(member.disk)
    member.disk.clear()
    member.start(
        recovering=True, held=Held((log[-1].index, log[-1].term), frames={f.index: f for f in log[first - 1 :]})
    )
    member.core.heard = -1000


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_a_whole_member_that_is_behind_gets_what_members_without_a_state_had(behind: int) -> None:
    """Their checkpoints are damaged, and their first entries are in the lake: only this one can send a state."""
    net = net_of(a=WHOLE, b=WHOLE, c=WHOLE[: 6 - behind])
    whole = net.members["c"]
    whole.hard = HardState(1, "", 2)
    whole.start()
    whole.compact(2)
    empty(net, "a", 3)
    empty(net, "b", 3)
    net.tick(8 * ELECTION)
    assert net["c"].role is Role.LEADER
    assert [frame.body for frame in net.members["c"].log][:4] == [frame.body for frame in WHOLE[2:]]
    assert net.members["a"].installs


def test_a_whole_member_takes_nothing_that_does_not_follow_its_log() -> None:
    net = net_of(a=log_of(1, 1, 1, 2, 3, 3), b=log_of(1, 1, 1, 2, 3), c=log_of(1, 1, 1, 1))
    whole = net.members["c"]
    whole.hard = HardState(1, "", 2)
    whole.start()
    whole.compact(2)
    empty(net, "a", 3)
    empty(net, "b", 3)
    net.tick(8 * ELECTION)
    assert all(net[name].role is not Role.LEADER for name in "abc")
    assert terms_in(net["c"]) == [1, 1]


def test_answers_that_a_whole_member_has_not_asked_for_are_ignored() -> None:
    core = lone(1, 1)
    late = Recover(core.term, core.nonce, False, 2, 1, 4, 1)
    core.step("b", RecoverTo(core.term, core.nonce, 0, late, [entry_of(frame) for frame in WHOLE[2:4]]))
    assert core.log.last == 2


def test_gaps_that_touch_each_other_are_filled() -> None:
    """Neither member has the next entry that the other one had (seed 2926 of tests.sim.everywhere)."""
    net = net_of(a=WHOLE, b=WHOLE, c=WHOLE)
    damage(net, "a", 4)
    damage(net, "b", 4)
    damage(net, "c", 3)
    net.leader()
    net.tick(3)
    assert [net.bodies(name) for name in "abc"] == [[frame.body for frame in WHOLE]] * 3


def test_questions_name_entries_further_and_further_behind_the_gap() -> None:
    """A member whose log ends early has only the nearest ones (seed 8326 of tests.sim.everywhere)."""
    whole = log_of(*[1] * 20)
    core = lone(1, 1, recovering=True, held=held((20, 1), (2, 1), *whole[3:]))
    found: list[int] = []
    while len(found) < 7:
        core.tick()
        found += [m.held for to, m in drain(core) if isinstance(m, Recover) and to == "b"]
    assert found == [4, 5, 6, 8, 12, 20, 4]


def test_a_gap_is_filled_across_changes_of_leaders() -> None:
    log = log_of(1, 2, 2, 5, 5, 7)
    net = net_of(a=log, b=log, c=log)
    damage(net, "a", 2, 3, 4)
    damage(net, "b", 5)
    damage(net, "c", 6)
    net.leader()
    net.tick(3)
    assert [terms_in(net[name])[:6] for name in "abc"] == [[1, 2, 2, 5, 5, 7]] * 3


def test_an_entry_that_no_member_has_stops_the_group_and_is_named() -> None:
    net = net_of(a=WHOLE, b=WHOLE, c=WHOLE)
    for name, entries in (("a", (3, 4)), ("b", (4,)), ("c", (4, 6))):
        damage(net, name, *entries)
    net.tick(10 * ELECTION)
    assert all(net[name].role is not Role.LEADER for name in "abc")
    assert {net[name].last_index for name in "abc"} == {3}, "what can be filled is filled"
    for name in "abc":
        assert [ready.missing for ready in net.members[name].readies if ready.missing] == [(4, 4)]


def test_a_log_that_has_everything_takes_part_at_once() -> None:
    core = lone(1, 1, recovering=True, held=Held((2, 1)))
    ready = core.ready()
    assert ready is not None
    assert ready.recovered
    assert core.campaign()


def held(newest: tuple[int, int], cut: tuple[int, int], *frames: Frame) -> Held:
    return Held(newest, cut, {frame.index: frame for frame in frames})


def asking() -> tuple[Core, Recover]:
    """Return a damaged core, and its first question."""
    core = lone(1, 1, recovering=True, held=held((6, 1), (2, 1), WHOLE[4]))
    found: list[Recover] = []
    while not found:
        core.tick()
        found = [m for to, m in drain(core) if isinstance(m, Recover) and to == "b"]
    return core, found[0]


def test_it_asks_for_what_is_before_the_next_entry_that_it_had() -> None:
    core, question = asking()
    assert (question.last, question.last_term, question.held, question.held_term) == (2, 1, 5, 1)
    core.step("b", RecoverTo(0, question.nonce, 0, question, [entry_of(frame) for frame in WHOLE[2:4]]))
    (again,) = [m for to, m in drain(core) if isinstance(m, Recover) and to == "b"]
    assert (again.last, again.held) == (5, 6), "its own entry 5 follows"


@pytest.mark.parametrize("late", ["led", "another nonce", "another log"])
def test_an_answer_to_another_question_changes_nothing(late: str) -> None:
    core, question = asking()
    answer = RecoverTo(core.term, question.nonce, 0, question, [entry_of(frame) for frame in WHOLE[2:4]])
    if late == "led":
        core.step("b", append(core.term + 1, (2, 1)))
    elif late == "another nonce":
        answer.nonce += 1
    else:
        core.step("b", append(core.term + 1, (1, 1), 2))
        core.become_follower(core.term + 1, "")
    drain(core)
    before = terms_in(core)
    core.step("c", answer)
    assert terms_in(core) == before


@pytest.mark.parametrize("entries", [[WHOLE[3]], log_of(1, 1, 2)[2:], log_of(1, 1, 1, 0)[2:]])
def test_entries_that_cannot_be_the_lost_ones_are_refused(entries: list[Frame]) -> None:
    core, question = asking()
    with pytest.raises(BadMessage):
        core.step("b", RecoverTo(core.term, question.nonce, 0, question, [entry_of(frame) for frame in entries]))
    assert terms_in(core) == [1, 1]


def answer(core: Core, question: Recover) -> RecoverTo | SendEntries | None:
    """Return the answer to a question; a SendEntries for one that is read from the log first."""
    core.step("d", question)
    ready = core.ready()
    if ready is None:
        return None
    if ready.sends:
        return ready.sends[0]
    (found,) = [m for _, m in ready.messages]
    assert isinstance(found, RecoverTo)
    return found


def wants(last: tuple[int, int], held: tuple[int, int]) -> Recover:
    return Recover(1, 5, False, *last, *held)


def test_a_member_answers_only_if_its_log_has_both_ends_or_entries_of_the_second_ones_term() -> None:
    """Otherwise its entries may be those of another leader, and were never in the log of the one that asks."""
    core = lone(1, 1, 2, 2, 2)
    assert answer(core, wants((2, 1), (5, 3))) is None
    assert answer(core, wants((3, 1), (5, 2))) is None
    assert answer(core, wants((2, 1), (6, 3))) is None
    assert answer(core, wants((5, 2), (6, 2))) is None
    part = answer(core, wants((2, 1), (6, 2)))
    assert isinstance(part, SendEntries)
    assert (part.first, part.last) == (3, 5)
    send = answer(core, wants((2, 1), (5, 2)))
    assert isinstance(send, SendEntries)
    assert (send.first, send.last) == (3, 5)
    found = core.fill(send, [entry_of(frame) for frame in log_of(1, 1, 2, 2)[2:]])
    assert isinstance(found, RecoverTo)
    assert [entry.index for entry in found.entries] == [3, 4]


def test_a_damaged_member_answers_from_what_it_set_aside() -> None:
    core = lone(1, 1, recovering=True, held=held((6, 1), (2, 1), *WHOLE[3:5]))
    found = answer(core, wants((3, 1), (6, 1)))
    assert found is None, "whether entry 3 was its own cannot be told"
    found = answer(core, wants((4, 1), (6, 1)))
    assert isinstance(found, RecoverTo)
    assert [entry.index for entry in found.entries] == [5]
    send = answer(core, wants((1, 1), (5, 1)))
    assert isinstance(send, SendEntries)
    assert (send.first, send.last) == (2, 2)


def test_two_logs_of_a_member_are_not_mixed() -> None:
    """A leader replaced entry 2 after the damage: the one set aside does not follow it."""
    core = lone(1, 2, recovering=True, held=held((6, 3), (2, 1), *log_of(1, 1, 3, 3)[2:]))
    assert answer(core, wants((2, 2), (3, 3))) is None
