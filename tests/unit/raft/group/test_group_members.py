"""Tests of a group of several members: agreement on the order of the log, and delivery of committed entries."""

from __future__ import annotations

import pytest

from lakestream.log.format.frame import Kind
from lakestream.log.store.log import Appended, SealState
from lakestream.raft.core.messages import Append, Envelope
from tests.faults.files import FaultyFiles
from tests.unit.group_world import Make, Node, World, named

pytestmark = pytest.mark.unit


def test_one_of_three_is_elected_and_all_know_it(make: Make) -> None:
    world = make()
    leader = world.elect()
    world.ticks(2)
    assert [node.group.leader for node in world.nodes.values()] == [leader.name] * 3
    assert leader.roles[-1] == (True, leader.name, leader.group.term)
    assert sum(node.leads for node in world.nodes.values()) == 1


def test_what_the_leader_proposes_is_handed_out_everywhere_in_order(make: Make) -> None:
    world = make()
    leader = world.elect()
    for turn in range(5):
        leader.publish(f"a{turn}", f"b{turn}")
    world.ticks(2)
    expected = [f"{letter}{turn}" for turn in range(5) for letter in "ab"]
    for node in world.nodes.values():
        assert node.messages == named(*expected)
        assert node.contexts == (expected if node is leader else [])


def test_nothing_is_handed_out_before_a_majority_has_it(make: Make) -> None:
    world = make()
    leader = world.elect()
    followers = [name for name in world.nodes if name != leader.name]
    world.isolate(leader.name)
    before = leader.store.applied
    leader.publish("x")
    assert leader.store.applied == before
    assert leader.group.last_index == before + 1
    world.heal()
    world.isolate(followers[0])
    world.ticks(2)
    assert leader.messages == named("x")
    assert world.nodes[followers[1]].messages == named("x")
    assert world.nodes[followers[0]].messages == []


def test_the_next_write_begins_while_followers_still_work_on_the_one_before(make: Make) -> None:
    world = make()
    leader = world.elect()
    world.isolate(leader.name)
    for turn in range(4):
        assert not leader.group.in_flight
        leader.publish(turn)
    assert leader.contexts == []
    assert leader.woken >= 4  # after each local write it may continue
    world.heal()
    world.ticks(2)
    assert leader.contexts == [0, 1, 2, 3]


def test_the_leader_sends_before_its_own_write_is_done(make: Make) -> None:
    world = make()
    leader = world.elect()
    leader.propose("x")
    leader.turn(work=False)
    [task] = leader.work  # its write has not started
    assert any(wire for (sender, _), wire in world.wires.items() if sender == leader.name)
    leader.work.clear()
    world.run()
    assert leader.contexts == []  # two of three have it, but the leader's own copy is not durable yet
    leader.work.append(task)
    world.run()
    assert leader.contexts == ["x"]


def test_a_follower_that_was_away_is_served_from_the_disk(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.raft.group.raft_group.RECENT_BYTES", 2000)
    world = make(seal_bytes=20_000)
    leader = world.elect()
    away = next(name for name in world.nodes if name != leader.name)
    world.kill(away)
    for turn in range(60):
        leader.publish(turn, size=1000)
    assert len(leader.sealed) == 3
    world.start(away)
    world.ticks(10)
    assert world.nodes[away].messages == named(*range(60))
    assert world.nodes[away].sealed == leader.sealed


def test_segments_end_with_the_same_entry_on_every_replica(make: Make) -> None:
    world = make(seal_bytes=3000)
    leader = world.elect()
    for turn in range(20):
        leader.publish(turn, size=500)
    world.ticks(2)
    ranges = [node.sealed for node in world.nodes.values()]
    assert len(ranges[0]) >= 3
    assert ranges == [ranges[0]] * 3
    assert [node.messages for node in world.nodes.values()] == [named(*range(20))] * 3


def lose_the_commit_of_a_seal(world: World) -> list[tuple[int, int]]:
    """Let A lead and seal, and fail before the others, which have the SEAL, learn that it is committed.

    Returns the segments that A sealed.
    """
    leader = world.lead("A")
    world.ticks(2)
    seen: list[int] = []

    def drop(sender: str, to: str, envelope: Envelope) -> bool:
        message = envelope.message
        if sender != "A" or not isinstance(message, Append):
            return False
        if any(entry.kind == Kind.SEAL for entry in message.entries):
            seen.append(message.entries[-1].index)
        return bool(seen) and message.commit >= seen[0]

    world.dropping = drop
    leader.publish("y", size=4000)
    assert seen
    sealed = leader.sealed
    assert sealed[-1][1] == seen[0]
    for name in "BC":
        assert world.nodes[name].log.last_index == seen[0]
        assert world.nodes[name].store.applied < seen[0]
    world.kill("A")
    world.dropping = lambda sender, to, envelope: False
    return sealed


@pytest.mark.parametrize("restarted", [False, True])
def test_a_seal_that_another_leader_went_beyond_ends_the_segment_all_the_same(make: Make, restarted: bool) -> None:
    world = make(seal_bytes=3000)
    sealed = lose_the_commit_of_a_seal(world)
    if restarted:
        for name in "BC":
            world.kill(name)
        for name in "BC":
            world.start(name)
    following = world.elect("B", "C")
    following.publish("z")
    world.start("A")
    world.ticks(5)
    assert following.sealed == sealed
    assert [node.sealed for node in world.nodes.values()] == [sealed] * 3
    assert [node.messages for node in world.nodes.values()] == [named("y", "z")] * 3
    following.publish("w", size=4000)
    world.ticks(3)
    assert len(following.sealed) == len(sealed) + 1
    assert [node.sealed for node in world.nodes.values()] == [following.sealed] * 3


@pytest.mark.parametrize("after", range(8))
@pytest.mark.parametrize("operation", ["write", "sync", "create", "sync_directory", "truncate"])
def test_a_seal_with_entries_behind_it_that_breaks_off_is_made_good(make: Make, operation: str, after: int) -> None:
    world = make(seal_bytes=3000)
    sealed = lose_the_commit_of_a_seal(world)
    seen: list[int] = []

    def begin(node: Node) -> None:
        split = node.log._split

        def failing(state: SealState, index: int) -> list[Appended]:
            seen.append(index)
            files = node.files
            assert isinstance(files, FaultyFiles)
            files.fail, files.after = operation, after
            try:
                return split(state, index)
            finally:
                files.fail = ""

        node.log._split = failing  # type: ignore[method-assign]

    for name in "BC":
        begin(world.nodes[name])
    world.ticks(40)  # without A, whose sealed segment would show that the SEAL is committed
    world.start("A")
    world.ticks(40)
    assert len(seen) == 2
    for name in "ABC":
        world.kill(name)
    for name in "ABC":
        world.start(name)
    leader = world.elect()
    leader.publish("z")
    world.ticks(5)
    assert [node.sealed for node in world.nodes.values()] == [sealed] * 3
    assert [node.messages for node in world.nodes.values()] == [named("y", "z")] * 3


def test_uncommitted_entries_of_a_deposed_leader_are_truncated_and_reported(make: Make) -> None:
    world = make()
    leader = world.elect()
    leader.publish("kept")
    world.isolate(leader.name)
    leader.publish("gone", "too")
    others = [name for name in world.nodes if name != leader.name]
    following = world.elect(*others)
    following.publish("new")
    world.heal()
    world.ticks(3)
    assert leader.lost == ["gone", "too"]
    assert not leader.leads
    assert [node.messages for node in world.nodes.values()] == [named("kept", "new")] * 3
    assert leader.log.terms == following.log.terms


def test_entries_of_unknown_fate_come_back_without_context(make: Make) -> None:
    world = make()
    leader = world.elect()
    world.dropping = lambda sender, to, envelope: to == leader.name
    leader.publish("x")  # the others have it
    following = world.elect(*(name for name in world.nodes if name != leader.name))
    world.dropping = lambda sender, to, envelope: False
    world.ticks(3)
    assert leader.lost == ["x"]
    assert leader.contexts == []
    assert leader.messages == following.messages == named("x")


def test_a_new_leader_hears_of_it_when_everything_before_is_handed_out(make: Make) -> None:
    world = make()
    leader = world.elect()
    world.dropping = lambda sender, to, envelope: to == leader.name
    leader.publish("x")
    seen: list[list[bytes]] = []
    for node in world.nodes.values():
        if node is not leader:
            node.callbacks.on_role = lambda leads, *_, node=node: (
                seen.append(node.messages) if leads else None,
                node.roles.append((leads, *_)),
            )
    world.elect(*(name for name in world.nodes if name != leader.name))
    assert seen == [named("x")]


def test_a_restarted_member_hands_out_what_it_did_not_know_to_be_committed(make: Make) -> None:
    world = make()
    leader = world.elect()
    for turn in range(5):
        leader.publish(turn)
    name = next(name for name in world.nodes if name != leader.name)
    world.dropping = lambda sender, to, envelope: to == name and not getattr(envelope.message, "entries", [])
    leader.publish("last")
    world.kill(name)
    world.dropping = lambda sender, to, envelope: False
    node = world.start(name)
    assert node.log.last_index == leader.log.last_index
    assert node.replayed < node.log.last_index
    world.ticks(3)
    assert node.messages == leader.messages
    assert node.store.applied == leader.store.applied


def test_all_members_killed_come_back_with_everything(make: Make) -> None:
    world = make(seal_bytes=2000)
    leader = world.elect()
    for turn in range(10):
        leader.publish(turn, size=400)
    for name in "ABC":
        world.kill(name)
    for name in "ABC":
        world.start(name)
    world.elect()
    world.ticks(3)
    assert [node.messages for node in world.nodes.values()] == [named(*range(10))] * 3
    ranges = [node.sealed for node in world.nodes.values()]
    assert ranges == [ranges[0]] * 3


def test_a_member_does_not_forget_its_term_and_vote(make: Make) -> None:
    world = make()
    leader = world.elect()
    hard = {name: node.group._core.hard for name, node in world.nodes.items()}
    for name in "ABC":
        world.kill(name)
    for name in "ABC":
        node = world.start(name)
        assert node.group._core.hard.term == hard[name].term
        assert node.group._core.hard.vote == hard[name].vote == leader.name


def test_only_the_leader_proposes(make: Make) -> None:
    from lakestream.raft.core.ready import NotLeader

    world = make()
    leader = world.elect()
    world.ticks(2)
    follower = next(node for node in world.nodes.values() if node is not leader)
    with pytest.raises(NotLeader, match=leader.name):
        follower.propose("x")


def test_leadership_is_handed_over(make: Make) -> None:
    world = make()
    leader = world.elect()
    leader.publish("x")
    other = next(name for name in world.nodes if name != leader.name)
    assert leader.group.transfer(other)
    world.run()
    world.ticks(1)
    assert world.nodes[other].leads
    assert not leader.leads
    world.nodes[other].publish("y")
    assert world.nodes[other].messages == named("x", "y")


def test_a_handover_that_comes_to_nothing_lets_the_leader_go_on(make: Make) -> None:
    world = make()
    leader = world.elect()
    other = next(name for name in world.nodes if name != leader.name)
    world.isolate(other)
    leader.group.transfer(other)
    world.run()
    assert leader.group.in_flight
    woken = leader.woken
    world.ticks(15)
    assert leader.leads
    assert not leader.group.in_flight
    assert leader.woken > woken


def test_what_is_read_after_read_index_is_not_older_than_the_question(make: Make) -> None:
    world = make()
    leader = world.elect()
    leader.publish("x")
    answers: list[int] = []
    leader.group.read_index(answers.append)
    world.run()
    world.ticks(1)
    assert answers == [leader.store.applied]
    follower = next(node for node in world.nodes.values() if node is not leader)
    follower.group.read_index(answers.append)
    assert answers[1:] == [-1]


def test_a_member_is_added_and_another_taken_out(make: Make) -> None:
    from lakestream.raft.core.messages import Membership

    world = make()
    leader = world.elect()
    for turn in range(3):
        leader.publish(turn)
    done: list[bool] = []
    leader.group.propose_membership(Membership(("A", "B", "C"), ("D",)), done.append)
    world.run()
    world.start("D", membership=Membership(("A", "B", "C"), ("D",)))
    world.ticks(3)
    assert world.nodes["D"].messages == named(0, 1, 2)
    leader.group.propose_membership(Membership(("A", "B", "C", "D")), done.append)
    world.run()
    out = next(name for name in "ABC" if name != leader.name)
    leader.group.propose_membership(Membership(tuple(name for name in "ABCD" if name != out)), done.append)
    world.run()
    assert done == [True] * 3
    world.kill(out)
    leader.publish("later")
    world.ticks(1)
    assert world.nodes["D"].messages == named(0, 1, 2, "later")
    world.kill("D")
    assert world.start("D").group.membership == leader.group.membership


def test_progress_shows_lagging_members(make: Make) -> None:
    world = make()
    leader = world.elect()
    behind = next(name for name in world.nodes if name != leader.name)
    leader.publish(1)
    world.isolate(behind)
    leader.publish(2)
    world.ticks(15, leader.name)
    progress = {each.name: each for each in leader.group.progress()}
    assert set(progress) == {"A", "B", "C"}
    assert progress[leader.name].match == leader.group.last_index
    assert progress[behind].match < leader.group.last_index
    assert not progress[behind].active
    assert progress[behind].contact_ns > 1_000_000_000
    assert all(node.group.progress() == [] for node in world.nodes.values() if node is not leader)


def test_a_failed_sync_ends_a_members_part(make: Make) -> None:
    world = make()
    leader = world.elect()
    leader.publish("x")
    leader.files.fail = "sync"  # type: ignore[attr-defined]
    leader.publish("y")
    assert len(leader.failures) == 1
    assert leader.group.failed is not None
    assert not leader.leads
    world.ticks(1)
    following = next(node for node in world.nodes.values() if node.leads)  # it was asked to campaign, and did not wait
    following.publish("z")
    world.ticks(2)
    assert following.messages[-1] == b"z"
    assert leader.store.log.failed is not None


def test_one_voter_with_a_member_leads_at_once(make: Make) -> None:
    world = make("A")
    node = world.nodes["A"]
    world.run()
    assert node.leads
    node.publish("x")
    assert node.contexts == ["x"]
    world.kill("A")
    world.start("A")
    assert world.nodes["A"].leads
    assert world.nodes["A"].messages == named("x")


def test_a_quiet_group_stops_ticking_and_wakes(make: Make) -> None:
    world = make()
    leader = world.elect()
    leader.publish("x")
    world.ticks(60)
    assert all(node.group._core.quiescent for node in world.nodes.values())
    assert all(not node.groups._awake for node in world.nodes.values())
    leader.publish("y")
    assert leader.messages == named("x", "y")
    world.ticks(60)
    world.kill(leader.name)
    assert world.elect().messages == named("x", "y")
