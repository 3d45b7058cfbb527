"""Tests of members whose files are damaged, lost or outdated: acknowledged entries stay, and the members recover."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files, InlineIo
from lakestream.log.format.segment import read_footer
from lakestream.log.store.recovery import open_log
from lakestream.log.store.repair import ASIDE, read_aside, salvage
from lakestream.log.store.segment_log import LogOptions, SegmentLog, begin_segment
from lakestream.log.store.segment_store import SegmentStore
from lakestream.raft.core.messages import Append, HardState, Membership, RecoverTo
from lakestream.raft.core.ready import RaftOptions, Role
from lakestream.raft.group.group import Callbacks, Replacement
from lakestream.raft.group.hard_state import SLOT, PersistentState, StateFile
from lakestream.raft.group.outgoing import Outgoing
from lakestream.raft.group.solo import SoloGroup
from tests.unit.group_world import Make, Node, World, named
from tests.unit.logkit import Clock, MiniStream, QuickFiles, flip, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]


def follower_of(world: World) -> str:
    leader = world.elect()
    return next(name for name in world.nodes if name != leader.name)


# ---------------------------------------------------------------------- the file
def kept(term: int) -> PersistentState:
    return PersistentState(HardState(term, "A", term), Membership(("A", "B")), durable=term)


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    file = StateFile(QuickFiles(), str(tmp_path))
    assert file.read() is None
    for term in range(1, 6):
        file.write(kept(term), sync=term % 2 == 0)
    file.close()
    again = StateFile(QuickFiles(), str(tmp_path))
    assert again.read() == kept(5)
    again.write(kept(6), sync=True)
    again.close()
    assert StateFile(QuickFiles(), str(tmp_path)).read() == kept(6)


def test_a_torn_write_leaves_what_was_synced(tmp_path: Path) -> None:
    """Whatever remains of later writes, and of the one in progress, the newest synced state is read."""
    rng = Random(1)
    for _ in range(200):
        path = tmp_path / "raft"
        path.unlink(missing_ok=True)
        file = StateFile(QuickFiles(), str(tmp_path))
        synced, whole = 0, b""
        for term in range(1, rng.randrange(2, 12)):
            sync = rng.random() < 0.4 or term == 1
            file.write(kept(term), sync)
            if sync:
                synced, whole = term, path.read_bytes()
        now = path.read_bytes()
        file.close()
        # Any part of the data written since the last sync may be on disk.
        at = rng.randrange(len(now) + 1)
        length = rng.randrange(200)
        torn = bytearray(whole.ljust(len(now), b"\0"))
        torn[at : at + length] = now[at : at + length]
        path.write_bytes(torn[: max(len(whole), rng.randrange(len(now) + 1))])
        again = StateFile(QuickFiles(), str(tmp_path))
        found = again.read()
        again.close()
        assert found is not None
        assert found.hard.term >= synced


def test_a_file_that_a_kill_left_without_its_first_content_is_not_there(tmp_path: Path) -> None:
    class Killed(QuickFiles):
        def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        StateFile(Killed(), str(tmp_path)).write(kept(1), sync=True)
    assert StateFile(QuickFiles(), str(tmp_path)).read() is None


def test_a_file_without_a_whole_slot_is_damage(tmp_path: Path) -> None:
    file = StateFile(QuickFiles(), str(tmp_path))
    file.write(kept(1), sync=True)
    file.close()
    flip(str(tmp_path / "raft"), SLOT + 30)
    with pytest.raises(CorruptLog, match="term and a vote"):
        StateFile(QuickFiles(), str(tmp_path)).read()


def test_a_damaged_file_stays_until_another_is_in_its_place(make: Make) -> None:
    """A damaged file stays until another is in its place.

    Without one, a member killed in between would be taken for a new one that never voted.
    """
    world = make()
    name = follower_of(world)
    world.kill(name)
    directory = world.directory / name
    for slot in (0, SLOT):
        flip(str(directory / "raft"), slot + 22)
    groups = next(iter(world.nodes.values())).groups
    groups.member("S-2", str(directory), Membership(("A", "B", "C")), lost=True)  # and killed before it takes part
    with pytest.raises(CorruptLog):
        StateFile(QuickFiles(), str(directory)).read()


def test_what_was_given_up_while_a_sync_was_under_way_does_not_leave_when_it_ends() -> None:
    out = Outgoing(None, None, None, lambda error: None)  # type: ignore[arg-type]
    out.unsynced = True
    out.put([("B", Append(1, 0, 0, 0))], None, None)  # type: ignore[arg-type]
    out.sync_begins()
    out.unsynced = True
    out.clear()
    out.sync_ended(None, None)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- damage
def test_a_flipped_bit_in_the_newest_entry_is_damage_and_not_a_torn_write(make: Make) -> None:
    world = make()
    name = follower_of(world)
    world.elect().publish("x")
    directory = world.nodes[name].directory
    world.kill(name)
    path = segment_files(directory)[-1]
    flip(path, os.path.getsize(path) - 3)
    with pytest.raises(CorruptLog):
        world.start(name)
    node = world.start(name, mend=True)
    assert node.salvaged is not None
    assert node.salvaged.intact_through == world.elect().log.last_index - 1
    world.ticks(25)
    assert node.messages == named("x")
    assert not node.group._core.recovering
    world.kill(name)
    assert not world.start(name).group.recovering


def test_a_log_that_is_cut_short_is_damage(make: Make) -> None:
    world = make()
    name = follower_of(world)
    leader = world.elect()
    for turn in range(5):
        leader.publish(turn)
    node = world.nodes[name]
    offset = node.log.open_segment.frame_offsets[3]
    world.kill(name)
    os.truncate(segment_files(node.directory)[-1], offset)
    with pytest.raises(CorruptLog, match="durable"):
        world.start(name)
    node = world.start(name, mend=True)
    world.ticks(25)
    assert node.messages == named(*range(5))


@pytest.mark.parametrize("seed", range(12))
def test_any_damage_in_a_followers_segments_is_made_good(make: Make, seed: int) -> None:
    rng = Random(seed)
    world = make(seal_bytes=2000)
    name = follower_of(world)
    leader = world.elect()
    for turn in range(20):
        leader.publish(turn, size=300)
        if turn == seed:
            world.nodes[name].store.checkpoint(b"extra")
            world.run()
    world.ticks(2)
    directory = world.nodes[name].directory
    world.kill(name)
    path = rng.choice(segment_files(directory))
    if rng.random() < 0.3:
        os.unlink(path)
    else:
        flip(path, rng.randrange(os.path.getsize(path)), rng.randrange(8))
    node = world.start(name, mend=True)
    leader.publish("after")
    world.ticks(30)
    expected = named(*range(20), "after")
    assert node.messages == expected
    assert node.sealed == leader.sealed
    assert not node.group._core.recovering
    world.kill(leader.name)
    assert world.elect().messages == expected


def test_a_first_segment_that_is_gone_is_had_again_from_the_others(make: Make) -> None:
    world = make(seal_bytes=2000)
    name = follower_of(world)
    leader = world.elect()
    for turn in range(20):
        leader.publish(turn, size=300)
    world.ticks(2)
    world.nodes[name].store.checkpoint(b"extra")
    world.run()
    directory = world.nodes[name].directory
    world.kill(name)
    os.unlink(segment_files(directory)[0])
    with pytest.raises(CorruptLog, match="missing"):
        world.start(name)
    node = world.start(name, mend=True)
    world.ticks(30)
    assert node.messages == named(*range(20))


def test_a_damaged_member_does_not_make_a_leader_of_itself_or_of_another_that_lacks_entries(make: Make) -> None:
    world = make()
    leader = world.lead("A")
    world.ticks(2)
    world.isolate("C")
    leader.publish("x")  # A and B have it
    world.kill("B")
    world.kill("A")
    directory = str(world.directory / "B")
    path = segment_files(directory)[-1]
    flip(path, os.path.getsize(path) - 3)
    world.heal()
    node = world.start("B", mend=True)
    world.ticks(100)
    assert not node.leads
    assert not world.nodes["C"].leads  # its vote and B's would have been a majority
    world.start("A")
    world.elect()
    world.ticks(30)
    assert [each.messages for each in world.nodes.values()] == [named("x")] * 3


# ---------------------------------------------------------------------- damage of several members
def spoil(world: World, damage: dict[str, Sequence[int]]) -> None:
    """End all members, flip a bit in these entries of each, and start all again."""
    offsets = {name: list(node.log.open_segment.frame_offsets) for name, node in world.nodes.items()}
    firsts = {name: node.log.open_segment.first_index for name, node in world.nodes.items()}
    for name in list(world.nodes):
        world.kill(name)
    for name, entries in damage.items():
        for entry in entries:
            flip(segment_files(str(world.directory / name))[-1], offsets[name][entry - firsts[name]] + 60)
    for name in offsets:
        world.start(name, mend=name in damage)


def aside_of(world: World, name: str) -> Path:
    return world.directory / name / ASIDE


DAMAGES: list[dict[str, Sequence[int]]] = [
    {"A": (4,), "B": (6,), "C": (8,)},
    {"A": (9,), "B": (9,)},
    {"A": (9,), "B": (9,), "C": (5,)},
    {"A": (3, 5, 7), "B": (4, 6, 8), "C": (9,)},
    {"A": (2, 3, 4, 5, 6, 7, 8, 9), "B": (5,), "C": (7, 9)},
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_damaged_members_have_left_is_put_together(make: Make, damage: dict[str, Sequence[int]]) -> None:
    """An entry may be damaged on two of three members, if it is intact on the third one."""
    world = make()
    for turn in range(8):
        world.elect().publish(turn, size=100)
    world.ticks(3)
    spoil(world, damage)
    assert all(aside_of(world, name).exists() for name in damage)
    world.ticks(80)
    world.elect().publish("after")
    world.ticks(5)
    for name, node in world.nodes.items():
        assert node.messages == named(*range(8), "after")
        assert not node.group.recovering
        assert not aside_of(world, name).exists(), "until it has recovered"


def test_an_entry_that_is_damaged_everywhere_stops_the_group_and_is_named(make: Make) -> None:
    world = make()
    for turn in range(8):
        world.elect().publish(turn, size=100)
    world.ticks(3)
    spoil(world, {"A": (5,), "B": (5, 7), "C": (5,)})
    world.ticks(150)
    for name, node in world.nodes.items():
        assert not node.leads
        assert node.log.last_index == 4
        assert node.salvaged is not None
        assert "entries 5 to 5 cannot be read here (messages: sequences 4 to 4)" in node.salvaged.damage
        assert [text for text, bad in node.notices if bad and text.startswith("entries 5 to 5 are damaged here")]
        assert aside_of(world, name).exists()


def test_a_node_that_comes_back_later_brings_what_the_others_lost(make: Make) -> None:
    world = make()
    for turn in range(8):
        world.elect().publish(turn, size=100)
    world.ticks(3)
    spoil(world, {"A": (5, 9), "B": (5,)})
    world.kill("C")
    world.ticks(100)
    assert not any(node.leads for node in world.nodes.values())
    world.start("C")
    world.ticks(60)
    assert [node.messages for node in world.nodes.values()] == [named(*range(8))] * 3


def test_a_second_salvage_takes_nothing_away(make: Make) -> None:
    """A kill between what salvage does leaves a log that is damaged still, with fewer entries behind the damage."""
    world = make(seal_bytes=600)
    for turn in range(8):
        world.elect().publish(turn, size=200)
    world.ticks(3)
    node = world.nodes["A"]
    world.kill("A")
    paths = segment_files(node.directory)
    assert len(paths) > 2
    flip(paths[0], 400)
    files = QuickFiles()
    whole = salvage(node.directory, files)
    kept = read_aside(files, node.directory)
    assert len(kept.frames) > 4
    flip(paths[0], 200)
    assert salvage(node.directory, files).intact_through < whole.intact_through
    assert read_aside(files, node.directory) == kept


def test_damage_of_what_was_set_aside_is_noticed(make: Make) -> None:
    world = make()
    for turn in range(8):
        world.elect().publish(turn, size=100)
    world.ticks(3)
    directory = world.nodes["A"].directory
    spoil(world, {"A": (4,)})
    assert len(read_aside(QuickFiles(), directory).frames) == 5
    world.kill("A")
    flip(str(aside_of(world, "A")), 80)
    assert read_aside(QuickFiles(), directory).frames == {}
    world.start("A")
    world.ticks(60)
    assert world.nodes["A"].messages == named(*range(8))


def test_a_member_that_cannot_use_its_checkpoint_keeps_its_entries(make: Make) -> None:
    """The messages before them have left the log: without a checkpoint there is no state, but others may lack these."""
    world = make(seal_bytes=600, retain_segments=0)
    for turn in range(8):
        world.elect().publish(turn, size=200)
    world.ticks(3)
    node = world.nodes["A"]
    node.store.checkpoint(b"")
    world.run()
    assert node.store.drop_through(node.store.applied)
    world.run()
    world.kill("A")
    flip(f"{node.directory}/checkpoint", 60)
    found = salvage(node.directory, QuickFiles())
    assert found.intact_through == 0
    assert max(read_aside(QuickFiles(), node.directory).frames) == node.log.last_index


def test_a_member_whose_disk_was_replaced_is_filled_before_it_votes(make: Make) -> None:
    world = make()
    name = follower_of(world)
    world.elect().publish("x")
    world.kill(name)
    shutil.rmtree(world.directory / name)
    world.cut = {pair for other in world.nodes for pair in ((name, other), (other, name))}
    node = world.start(name, lost=True)
    world.ticks(30, name)
    world.kill(name)
    node = world.start(name)  # the loss is still known after the next restart
    world.ticks(30, name)
    assert node.group.recovering
    assert node.group._core.forgetful
    assert node.group._core.role is Role.FOLLOWER
    world.heal()
    world.ticks(30)
    assert node.messages == named("x")
    assert not node.group._core.recovering


# ---------------------------------------------------------------------- snapshots instead of entries
def fetch(world: World, node: Node, sender: str) -> Replacement:
    """Copy the state of `sender`, which is sealed, so that the new log begins after it."""
    source = world.nodes[sender]
    snapshot = source.group.snapshot()
    aside = node.directory + ".new"
    shutil.rmtree(aside, ignore_errors=True)
    os.makedirs(os.path.join(aside, "log"))
    records = source.store.read_run(1, 1 << 30, 1 << 40)
    log = SegmentLog(
        os.path.join(aside, "log"),
        node.files,
        LogOptions(),
        node.clock,
        [begin_segment(os.path.join(aside, "log"), node.files, snapshot.index + 1, len(records) + 1, 1)[0]],
        snapshot.last_term,
    )
    log.close()

    def swap() -> SegmentLog:
        node.store.log.close()
        shutil.rmtree(node.directory)
        os.rename(aside, node.directory)
        return open_log(os.path.join(node.directory, "log"), node.files, world.log, node.clock)

    def swapped() -> None:
        log = node.group._log
        node.store = SegmentStore(log, node.store._rows, node, "")  # type: ignore[arg-type]
        node.store.applied = snapshot.index
        node.store.last_seq = source.store.last_seq
        node.restored = [record.data.rstrip(b".") for record in records]  # type: ignore[attr-defined]

    return Replacement(snapshot.index, snapshot.last_term, snapshot.membership, aside, swap, swapped)


def test_a_member_for_which_the_log_begins_too_late_installs_a_state(make: Make) -> None:
    world = make(seal_bytes=1500)
    name = follower_of(world)
    leader = world.elect()
    world.kill(name)
    for turn in range(20):
        leader.publish(turn, size=300)
    leader.store.checkpoint(b"")
    world.run()
    for node in world.nodes.values():
        leaving = node.log.segments[:-2]
        node.log.forget(leaving)
    node = world.start(name)
    world.ticks(10)
    assert node.messages == []
    [(sender, install, done)] = node.installs[:1]
    assert sender == leader.name
    assert install.index >= leader.log.first_index - 1
    term = node.group._core.hard.term
    done(fetch(world, node, sender))
    world.run()
    leader.publish("after")
    world.ticks(10)
    assert node.restored == named(*range(20))  # type: ignore[attr-defined]
    assert node.store.applied == leader.store.applied
    kept = StateFile(QuickFiles(), node.directory).read()
    assert kept is not None
    assert kept.hard.term >= term
    assert kept.base == install.index or kept.base > install.index


def test_an_install_that_could_not_be_had_is_offered_again(make: Make) -> None:
    world = make(seal_bytes=1500)
    name = follower_of(world)
    leader = world.elect()
    world.kill(name)
    for turn in range(20):
        leader.publish(turn, size=300)
    leader.log.forget(leader.log.segments[:-2])
    node = world.start(name)
    world.ticks(10)
    node.installs.pop(0)[2](None)
    world.ticks(60)
    assert node.installs


def test_a_member_that_stops_while_a_state_is_put_in_place_keeps_the_facts_of_that_state(make: Make) -> None:
    """A member that stops during an install keeps the metadata of the new state.

    The members of the old log may be a majority of another group than the present one.
    """
    world = make(seal_bytes=1500)
    name = follower_of(world)
    leader = world.elect()
    world.kill(name)
    done: list[bool] = []
    grown = Membership(("A", "B", "C"), ("D",))
    leader.group.propose_membership(grown, done.append)
    world.run()
    assert done == [True]
    for turn in range(20):
        leader.publish(turn, size=300)
    for other in world.nodes.values():
        other.log.forget(other.log.segments[:-2])
    node = world.start(name)
    world.ticks(10)
    sender, install, fetched = node.installs[0]
    fetched(fetch(world, node, sender))
    assert node.work
    node.group.stop()  # the other state is being put in place
    while node.work:
        node.do_work()
    kept = StateFile(QuickFiles(), node.directory).read()
    assert kept is not None
    assert kept.membership == grown
    assert kept.base >= install.index
    assert kept.durable == kept.base


def test_a_member_that_stops_while_a_state_could_not_be_put_in_place_leaves_its_file_alone(make: Make) -> None:
    world = make(seal_bytes=1500)
    name = follower_of(world)
    leader = world.elect()
    world.kill(name)
    for turn in range(20):
        leader.publish(turn, size=300)
    leader.log.forget(leader.log.segments[:-2])
    node = world.start(name)
    world.ticks(10)
    sender, _, fetched = node.installs[0]
    replacement = fetch(world, node, sender)
    before = Path(node.directory, "raft").read_bytes()

    def swap() -> SegmentLog:
        raise OSError("no space")

    fetched(structs.replace(replacement, swap=swap))
    node.group.stop()
    while node.work:
        node.do_work()
    assert Path(node.directory, "raft").read_bytes() == before


def test_a_member_that_joins_votes_for_the_leader_without_which_it_can_not_catch_up(make: Make) -> None:
    world = make("A")
    world.run()
    done: list[bool] = []
    world.dropping = lambda sender, to, envelope: isinstance(envelope.message, RecoverTo)
    world.elect().group.propose_membership(Membership(("A",), ("B",)), done.append)
    world.start("B", membership=Membership(("A",), ("B",)))
    world.ticks(5)
    world.nodes["A"].group.propose_membership(Membership(("A", "B")), done.append)
    world.ticks(5)
    assert done == [True, True]
    assert world.nodes["B"].group.recovering
    for name in ("A", "B"):
        world.kill(name)
    for name in ("A", "B"):
        world.start(name)
    assert world.elect().name == "A"
    assert world.nodes["B"].group.recovering
    world.dropping = lambda sender, to, envelope: False
    world.ticks(5)
    assert not world.nodes["B"].group.recovering


def test_what_is_read_from_a_log_that_is_being_replaced_may_fail(make: Make) -> None:
    world = make(seal_bytes=1500)
    name = follower_of(world)
    leader = world.elect()
    world.kill(name)
    for turn in range(20):
        leader.publish(turn, size=300)
    for other in world.nodes.values():
        other.log.forget(other.log.segments[:-2])
    node = world.start(name)
    world.ticks(10)
    sender, _, fetched = node.installs[0]
    node.group._load(1)
    [reading] = node.work
    node.work.clear()
    fetched(fetch(world, node, sender))
    [(replace, replaced)] = node.work
    node.work.clear()
    result = replace()
    reading[1](None, FileNotFoundError("its directory is gone"))
    replaced(result, None)
    world.ticks(5)
    assert node.failures == []
    assert node.store.applied == leader.store.applied


def test_a_member_that_joins_again_does_not_lead_the_group_of_its_former_days(make: Make) -> None:
    """A member that joins again does not lead its former group.

    While it replays the log it passes the entries by which it once was the only voter.
    """
    world = make("A", options=RaftOptions(max_append_bytes=1))
    node = world.nodes["A"]
    world.run()

    def change(voters: str, learners: str = "") -> None:
        done: list[bool] = []
        world.elect().group.propose_membership(Membership(tuple(voters), tuple(learners)), done.append)
        world.run()
        world.ticks(5)
        assert done == [True]

    node.publish("x")
    change("A", "B")
    alone = node.log.last_index
    world.start("B", membership=Membership(("A",), ("B",)))
    world.ticks(5)
    node.publish("y")
    change("AB")
    world.lead("B")
    change("B")
    world.kill("A")
    shutil.rmtree(world.directory / "A")
    change("B", "A")
    world.nodes["B"].publish("z")
    world.dropping = lambda sender, to, envelope: (
        isinstance(envelope.message, Append) and any(entry.index > alone for entry in envelope.message.entries)
    )
    node = world.start("A", membership=Membership(("B",), ("A",)))
    world.ticks(5)
    assert node.log.last_index == alone
    assert node.group.membership == Membership(("A",), ("B",))
    world.isolate("A")
    world.ticks(40, "A")
    assert not node.leads
    world.kill("A")
    node = world.start("A", membership=Membership(("B",), ("A",)))
    world.ticks(40, "A")
    assert not node.leads
    world.heal()
    world.dropping = lambda sender, to, envelope: False
    world.ticks(40)
    assert node.messages == named("x", "y", "z")
    change("AB")
    world.lead("A").publish("again")
    world.ticks(2)
    assert world.nodes["B"].messages == named("x", "y", "z", "again")


# ---------------------------------------------------------------------- a group of one that grows
def test_a_group_of_one_gets_members(make: Make, tmp_path: Path) -> None:
    (tmp_path / "A").mkdir()
    before = MiniStream(str(tmp_path / "A"), LogOptions(seal_bytes=300, seal_age_ns=1 << 60))
    for number in range(1, 8):
        before.publish(message(number))
    expected = [record.data for record in before.all()]
    before.store.close()
    world = make("A")
    node = world.nodes["A"]
    world.run()
    assert node.leads
    assert [record.data for record in node.store.read_run(1, 100, 1 << 30)] == expected
    done: list[bool] = []
    node.group.propose_membership(Membership(("A",), ("B",)), done.append)
    world.run()
    world.start("B", membership=Membership(("A",), ("B",)))
    world.ticks(5)
    assert done == [True]
    other = world.nodes["B"]
    assert other.installs  # the log of the group of one has no seals that others could repeat
    other.installs[0][2](fetch(world, other, "A"))
    world.run()
    node.propose("new")
    world.ticks(3)
    assert other.store.applied == node.store.applied


def test_a_group_of_one_has_no_file(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(message(1))
    assert stream.group.membership == Membership(("",))
    stream.store.close()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "log"]
    assert Files().names(str(tmp_path / "nothing")) == []


def test_a_log_without_a_store_loses_what_a_snapshot_holds(tmp_path: Path) -> None:
    log = open_log(str(tmp_path), QuickFiles(), LogOptions(seal_bytes=100, seal_age_ns=1 << 60), Clock())
    failures: list[Exception] = []
    group = SoloGroup(log, InlineIo(), Callbacks(lambda entries: None, failures.append))
    assert group.is_leader
    log.close()


def test_footers_tell_the_terms_of_their_entries(make: Make) -> None:
    world = make(seal_bytes=2000)
    for turn in range(6):
        world.lead("ABC"[turn % 3]).publish(turn, size=700)
    world.ticks(3)
    node = world.elect()
    runs = [run for each in node.store.sealed() for run in read_footer(each.path)[0].terms]
    assert sorted(runs) == runs
    for first, term in runs:
        [(frame, _)] = node.log.entries(first, 1)
        assert frame.term == term
    assert node.log.terms[-1][1] == node.log.last_term
