"""Members whose files are damaged, lost or behind: nothing that was acknowledged is lost, and they are whole again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lakestream.log.errors import CorruptLog
from lakestream.log.files import Files
from lakestream.log.recovery import open_log
from lakestream.log.segment import read_footer
from lakestream.log.segment_log import LogOptions, SegmentLog, begin_segment
from lakestream.log.store import Store
from lakestream.raft.disk import Replacement
from lakestream.raft.group import Group
from lakestream.raft.hard_state import SLOT, Kept, KeptFile
from lakestream.raft.messages import HardState, Membership
from lakestream.raft.ready import Role
from tests.unit.group_world import Node, World, named
from tests.unit.logkit import Clock, InlineIo, MiniStream, QuickFiles, flip, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    worlds: list[World] = []

    def build(names: str = "ABC", **more: Any) -> World:
        worlds.append(World(tmp_path, names, **more))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


def follower_of(world: World) -> str:
    leader = world.elect()
    return next(name for name in world.nodes if name != leader.name)


# ---------------------------------------------------------------------- the file
def kept(term: int) -> Kept:
    return Kept(HardState(term, "A", term), Membership(("A", "B")), durable=term)


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    file = KeptFile(QuickFiles(), str(tmp_path))
    assert file.read() is None
    for term in range(1, 6):
        file.write(kept(term), sync=term % 2 == 0)
    file.close()
    again = KeptFile(QuickFiles(), str(tmp_path))
    assert again.read() == kept(5)
    again.write(kept(6), sync=True)
    again.close()
    assert KeptFile(QuickFiles(), str(tmp_path)).read() == kept(6)


def test_a_torn_write_leaves_what_was_synced(tmp_path: Path) -> None:
    """Whatever became of the writes since, and of the one that is under way, the newest synced one counts."""
    rng = Random(1)
    for _ in range(200):
        path = tmp_path / "raft"
        path.unlink(missing_ok=True)
        file = KeptFile(QuickFiles(), str(tmp_path))
        synced, whole = 0, b""
        for term in range(1, rng.randrange(2, 12)):
            sync = rng.random() < 0.4 or term == 1
            file.write(kept(term), sync)
            if sync:
                synced, whole = term, path.read_bytes()
        now = path.read_bytes()
        file.close()
        # Of what was written since the last sync the disk has any part.
        at = rng.randrange(len(now) + 1)
        length = rng.randrange(200)
        torn = bytearray(whole.ljust(len(now), b"\0"))
        torn[at : at + length] = now[at : at + length]
        path.write_bytes(torn[: max(len(whole), rng.randrange(len(now) + 1))])
        again = KeptFile(QuickFiles(), str(tmp_path))
        found = again.read()
        again.close()
        assert found is not None
        assert found.hard.term >= synced


def test_a_file_without_a_whole_slot_is_damage(tmp_path: Path) -> None:
    file = KeptFile(QuickFiles(), str(tmp_path))
    file.write(kept(1), sync=True)
    file.close()
    flip(str(tmp_path / "raft"), SLOT + 30)
    with pytest.raises(CorruptLog, match="term and a vote"):
        KeptFile(QuickFiles(), str(tmp_path)).read()


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
    assert not node.member.core.recovering
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
    assert not node.member.core.recovering
    world.kill(leader.name)
    assert world.elect().messages == expected


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
    node = world.start(name)  # what it lost is not forgotten with the next restart
    world.ticks(30, name)
    assert node.group.recovering
    assert node.member.core.forgetful
    assert node.member.core.role is Role.FOLLOWER
    world.heal()
    world.ticks(30)
    assert node.messages == named("x")
    assert not node.member.core.recovering


# ---------------------------------------------------------------------- a state instead of entries
def fetch(world: World, node: Node, sender: str) -> Replacement:
    """Copy what `sender` holds: its state is sealed, so the new log begins behind it."""
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
        log = node.group._member.log  # type: ignore[union-attr]
        node.store = Store(log, node.store._rows, node, "")  # type: ignore[arg-type]
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
    term = node.member.core.hard.term
    done(fetch(world, node, sender))
    world.run()
    leader.publish("after")
    world.ticks(10)
    assert node.restored == named(*range(20))  # type: ignore[attr-defined]
    assert node.store.applied == leader.store.applied
    kept = KeptFile(QuickFiles(), node.directory).read()
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
    assert other.installs  # what the group of one logged has no seals that others could repeat
    other.installs[0][2](fetch(world, other, "A"))
    world.run()
    node.propose("new")
    world.ticks(3)
    assert other.store.applied == node.store.applied


def test_a_group_of_one_has_no_file(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(message(1))
    assert isinstance(stream.group, Group)
    stream.store.close()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "log"]
    assert Files().names(str(tmp_path / "nothing")) == []


def test_a_log_without_a_store_loses_what_a_snapshot_holds(tmp_path: Path) -> None:
    log = open_log(str(tmp_path), QuickFiles(), LogOptions(seal_bytes=100, seal_age_ns=1 << 60), Clock())
    failures: list[Exception] = []
    group = Group(log, InlineIo(), lambda entries: None, failures.append)
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
