"""Tests of replicas whose files are damaged, fail or are in the way: what is repaired, and what is left unchanged."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.packed import read_intact, read_plain
from lakestream.log.format.segment import Header, decode_end, decode_segment_header, iter_frames
from lakestream.log.store.repair import verify
from lakestream.meta.replica_files import names
from lakestream.meta.stores import read_identity
from lakestream.raft.core.messages import Membership
from lakestream.raft.group.hard_state import SLOT
from lakestream.stream.core.operations import DeleteMessage
from tests.unit import logkit
from tests.unit.logkit import MiniStream, flip
from tests.unit.replica_world import Node, World, fill

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "where",
    [
        "open segment",
        "sealed segment",
        "footer",
        "checkpoint",
        "cut",
        "gone",
        "outline",
        "votes",
        "no votes",
        "identity",
    ],
)
def test_a_damaged_replica_is_repaired_by_the_others(tmp_path: Path, where: str) -> None:
    world = World(tmp_path, seal_bytes=20_000, retain_bytes=1)
    world.stream()
    for _ in range(5):
        fill(world, 20)
        world.run(0.1)
    fill(world, 3)
    broken = world.followers()[0]
    if where == "outline":
        broken.stream.checkpoint()
        world.run(0.1)
        broken.stream.store.drop_through(broken.stream.store.applied)
        world.run(0.1)
    directory, name = Path(broken.replica.directory), broken.name
    if where == "checkpoint":
        broken.stop()
    else:
        broken.kill()
    segments = sorted((directory / "log").glob("*.seg"))
    match where:
        case "open segment":
            flip(str(segments[-1]), segments[-1].stat().st_size // 2)
        case "sealed segment":
            flip(str(segments[1]), segments[1].stat().st_size // 2)
        case "footer":
            flip(str(segments[0]), segments[0].stat().st_size - 10)
        case "checkpoint":
            flip(str(directory / "checkpoint"), 100)
        case "cut":
            with open(segments[-1], "r+b") as file:
                file.truncate(100)
        case "gone":
            segments[1].unlink()
        case "votes":
            (directory / "raft").write_bytes(b"")
        case "no votes":
            (directory / "raft").unlink()
        case "identity":
            (directory / "replica").write_bytes(b"?")
        case "outline":
            flip(str(next((directory / "log").glob("*.outline"))), 25)
    fill(world, 20)
    node = world.start(name)
    world.until(lambda: "S" in node.engine.streams and node.stream.store.last_seq == 123)
    assert node.content() == world.leader().content()
    if where != "sealed segment":  # a sealed segment is checked when it is read
        assert any("damaged" in text or "missing" in text or "slots" in text for text in node.log.said)
    world.until(lambda: not node.replica.group.recovering)  # type: ignore[union-attr]
    others = [each for each in world.nodes.values() if each is not node]
    world.leader().replica.transfer(name)
    world.until(lambda: node.replica.leading)
    others[0].kill()
    assert world.acked("s.z")["seq"] == 124


def damaged_segments(node: Node) -> list[str]:
    """Flip a bit in each sealed segment of a running node; return their paths."""
    paths = [each.path for each in node.stream.store.sealed()]
    for path in paths:
        flip(path, os.path.getsize(path) // 2)
    return paths


def test_what_a_read_finds_damaged_is_fetched_from_another_member(tmp_path: Path) -> None:
    world = World(tmp_path, seal_bytes=20_000)
    world.stream()
    world.consumer("c")
    for _ in range(4):
        fill(world, 20)
        world.run(0.1)
    leader = world.leader()
    paths = damaged_segments(leader)
    assert len(paths) >= 3
    delivered: list[bytes] = []

    def read_on() -> bool:
        delivered.extend(data for *_, data in world.pull("c", 100))
        return len(delivered) == 80

    world.until(read_on, 60)
    assert delivered == [record.data for record in world.followers()[0].records()]
    assert leader.replicas.repairs.repaired == len(paths)
    assert leader.replica.leading
    for path in paths:
        verify(Files(), path)
    leader.kill()
    world.start(leader.name)
    assert len(world.converged()) == 80


def test_damage_of_unread_parts_is_found_after_a_start(tmp_path: Path) -> None:
    world = World(tmp_path, seal_bytes=20_000)
    world.stream()
    for _ in range(4):
        fill(world, 20)
        world.run(0.1)
    follower = world.followers()[0]
    name = follower.name
    follower.stop()
    paths = damaged_segments(follower)
    node = world.start(name)
    damage: list[str] = []
    node.replicas.on_damage = lambda replica, what: damage.append(what)
    world.until(lambda: node.replicas.repairs.repaired == len(paths))
    assert len(damage) == len(paths)
    for path in paths:
        verify(Files(), path)


def frames_of(path: str) -> list[tuple[int, int]]:
    """Return offset and length of each frame of an intact sealed segment."""
    content = read_plain(Files(), path)
    header, end = decode_segment_header(content), decode_end(content)
    assert isinstance(header, Header)
    assert end is not None
    return [
        (body_at - FRAME_HEADER, FRAME_HEADER + len(frame.body))
        for frame, body_at in iter_frames(content, path, header, end.frames_end)
    ]


def filled_by_small_writes(tmp_path: Path) -> World:
    """Return three members that have sealed segments of many frames each."""
    world = World(tmp_path, seal_bytes=20_000)
    world.stream()
    for _ in range(30):
        fill(world, 2)
    world.converged()
    return world


def scrub_all(world: World) -> None:
    for node in world.nodes.values():
        node.replicas.repairs.scrub(node.replica)


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAKESTREAM_DAMAGE_CASES", "2"))))
def test_a_segment_that_is_damaged_on_every_member_is_made_of_what_is_intact(tmp_path: Path, seed: int) -> None:
    world = filled_by_small_writes(tmp_path)
    wanted = world.converged()
    nodes, rng = list(world.nodes.values()), random.Random(seed)
    damaged = 0
    for place, each in enumerate(nodes[0].stream.store.sealed()):
        frames = frames_of(each.path)
        assert len(frames) > 3
        for node, kinds in zip(nodes, rng.sample(["frame", "header", "tables", "half"], 3), strict=True):
            path = node.stream.store.sealed()[place].path
            size, mine = os.path.getsize(path), nodes.index(node)
            damaged += 1
            # Of three parts of the frames each member loses one.
            some = frames[mine::3]
            flip(path, {"header": 20, "tables": size - 200}.get(kinds, some[0][0] + 60))
            for offset, length in some if kinds == "half" else some[:1]:
                flip(path, offset + rng.randrange(length))
    scrub_all(world)
    world.until(lambda: sum(node.replicas.repairs.repaired for node in nodes) >= damaged, 120)
    for node in nodes:
        assert node.content() == wanted
        for each in node.stream.store.sealed():
            read_intact(Files(), each.path)
    for node in nodes:
        node.stop()
    for node in nodes:
        world.start(node.name)
    assert world.converged() == wanted


def test_an_entry_that_is_damaged_on_every_member_is_named_and_waits_for_a_good_copy(tmp_path: Path) -> None:
    world = filled_by_small_writes(tmp_path)
    wanted = world.converged()
    nodes = list(world.nodes.values())
    whole = Path(nodes[1].stream.store.sealed()[0].path).read_bytes()
    offset, _ = frames_of(nodes[0].stream.store.sealed()[0].path)[2]
    for node in nodes:
        flip(node.stream.store.sealed()[0].path, offset + 50)
    scrub_all(world)
    entry = nodes[0].stream.store.sealed()[0].first_index + 2
    text = f"entry {entry} is damaged in all 3 copies that could be had"
    world.until(lambda: all(any(text in line for line in node.log.said) for node in nodes), 60)
    assert not any(node.replicas.repairs.repaired for node in nodes)
    assert world.acked("s.z")["seq"] == len(wanted) + 1, "the stream goes on"
    Path(nodes[1].stream.store.sealed()[0].path).write_bytes(whole)  # from a backup
    world.until(lambda: nodes[0].replicas.repairs.repaired == nodes[2].replicas.repairs.repaired == 1, 60)
    assert nodes[0].content()[: len(wanted)] == nodes[2].content()[: len(wanted)] == wanted


@pytest.mark.parametrize("both", [True, False])
def test_a_damaged_segment_that_the_others_released_to_the_lake_is_replaced_by_their_state(
    tmp_path: Path, both: bool
) -> None:
    """If only one of the others has released the segment, and the third has no good copy either, no majority could do
    without this member: the segment stays."""
    world = World(tmp_path, seal_bytes=20_000, retain_bytes=1)
    world.stream()
    for _ in range(4):
        fill(world, 20)
        world.run(0.1)
    follower, other = world.followers()
    name = follower.name
    follower.stop()
    if not both:
        damaged_segments(other)
    for node in (world.leader(), other) if both else (world.leader(),):
        node.stream.checkpoint()
        world.run(0.1)
        node.stream.store.drop_through(node.stream.store.applied)
        world.run(0.1)
        assert node.stream.store.left_through > 0
    paths = damaged_segments(follower)
    node = world.start(name)
    if not both:
        world.until(lambda: any("no other member had a good copy" in line for line in node.log.said), 120)
        world.run(60)
        assert all(os.path.exists(path) for path in paths)
        return
    world.until(lambda: ("reopened", "S") in node.events, 60)
    world.until(lambda: node.stream.store.left_through == world.leader().stream.store.left_through, 60)
    world.until(lambda: not node.replica.group.recovering)  # type: ignore[union-attr]
    assert any("released it to the lake" in line for line in node.log.said)
    assert [store.msgs for store in (one.stream.store for one in world.nodes.values())] == [80] * 3
    world.leader().replica.transfer(name)
    world.until(lambda: node.replica.leading)
    assert world.acked("s.z")["seq"] == 81


def test_damage_that_an_entry_meets_reopens_the_replica(tmp_path: Path) -> None:
    world = World(tmp_path, seal_bytes=20_000)
    world.stream()
    for _ in range(4):
        fill(world, 20)
        world.run(0.1)
    follower = world.followers()[0]
    for each in follower.stream.store.sealed():
        os.truncate(each.path, 200)
    done: list[object] = []
    world.leader().stream.propose(DeleteMessage(12), done.append)  # whose subject has to be read
    world.until(lambda: done)
    world.until(lambda: ("reopened", "S") in follower.events)
    fill(world, 5)
    content = world.leader().content()
    world.until(lambda: follower.stream.store.last_seq == 85)
    assert len(content) == 84
    world.until(lambda: follower.stream.store.applied == world.leader().stream.store.applied)
    assert follower.content() == content


@pytest.mark.parametrize("old_release", [False, True])
@pytest.mark.parametrize("what", ["uid", "text", "config"])
def test_a_damaged_identity_neither_stops_the_node_nor_changes_the_stream(
    tmp_path: Path, what: str, old_release: bool
) -> None:
    """A flipped bit in the file `replica` must not make the replica another stream's, nor give it another
    configuration, which a replay of the log would use."""
    world = World(tmp_path, seal_bytes=20_000)
    world.stream()
    for _ in range(2):
        fill(world, 20)
        world.run(0.1)
    node = world.followers()[0]
    path = Path(node.replica.directory) / "replica"
    node.kill()
    whole = path.read_bytes()[:-8] if old_release else path.read_bytes()  # without the checksum
    old, new = {"uid": (b"u1", b"u0"), "text": (b"u1", b"\xff1"), "config": (b'"max_msgs":-1', b'"max_msgs":11')}[what]
    assert old in whole
    if what == "config" and old_release:
        old, new = b'"name":"S"', b'"name":"\xff"'
    path.write_bytes(whole.replace(old, new, 1))
    fill(world, 5)
    again = world.start(node.name)
    world.until(lambda: "S" in again.engine.streams and again.stream.store.last_seq == 45)
    assert again.content() == world.leader().content()
    identity = read_identity(Files(), str(path.parent))
    assert identity is not None
    assert names(identity, "u1", "$G", "S")


def test_a_hard_state_that_was_cut_is_not_taken_for_an_older_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    fill(world, 20)
    node = world.followers()[0]
    path = Path(node.replica.directory) / "raft"
    node.kill()
    os.truncate(path, SLOT)
    again = world.start(node.name)
    assert any("cut short" in line for line in again.log.said)
    world.until(lambda: "S" in again.engine.streams and again.stream.store.last_seq == 20)
    world.until(lambda: not again.replica.group.recovering)  # type: ignore[union-attr]


def test_a_hard_state_that_has_vanished_is_not_that_of_a_new_member(tmp_path: Path) -> None:
    """A member without term and vote, whose log was cut, and one that was down elect no leader without the third."""
    world = World(tmp_path)
    world.stream()
    fill(world, 20)
    world.converged()
    leader, broken, behind = world.leader(), *world.followers()
    behind.kill()
    fill(world, 20)
    before, directory = leader.content(), Path(broken.replica.directory)
    broken.kill()
    leader.kill()
    (directory / "raft").unlink()
    [segment] = directory.glob("log/*.seg")
    os.truncate(segment, segment.stat().st_size // 2)
    for name in (broken.name, behind.name):
        world.start(name)
    world.run(5)
    assert any("it is missing, and with it term and vote" in line for line in world.nodes[broken.name].log.said)
    assert not any(world.nodes[name].replica.leading for name in (broken.name, behind.name))
    world.start(leader.name)
    assert world.converged() == before
    world.until(lambda: not world.nodes[broken.name].replica.group.recovering)  # type: ignore[union-attr]


class FailingFiles(Files):
    """Files whose syncs fail from some moment on.

    Args:
        files: opens and closes them, and so knows the descriptors.
    """

    failing = False

    def __init__(self, files: Files) -> None:
        self.open, self.create, self.close = files.open, files.create, files.close  # type: ignore[method-assign]

    def sync(self, fd: int) -> None:
        if self.failing:
            raise OSError(errno.EIO, "the disk is gone")
        super().sync(fd)


@pytest.mark.parametrize("leads", [True, False])
def test_invariant_4_a_replica_whose_disk_fails_takes_part_no_more(tmp_path: Path, leads: bool) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    node = world.leader() if leads else world.followers()[0]
    files = FailingFiles(node.stores.files)
    node.stream.store.log.files = files  # type: ignore[union-attr]
    files.failing = True
    reply = world.publish(node, "s.a", b"2") if leads else b""
    world.until(lambda: node.stream.failed is not None or not leads)
    others = "".join(sorted(set("abc") - {node.name}))
    new = world.leader(others)
    answer = world.publish(new, "s.a", b"3")
    world.until(lambda: world.answer(new, answer))
    world.until(lambda: node.stream.failed is not None)
    assert not node.stream.leading
    if leads:
        assert world.answer(node, reply) is None
    files.failing = False
    node.kill()
    world.start(node.name)
    assert world.converged()[-1][2] == b"3"


def test_a_replica_killed_before_it_had_its_file_gets_its_members_from_the_assignment(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    for name in "abc":
        directory = Path(world.nodes[name].replica.directory)
        world.nodes[name].kill()
        (directory / "raft").unlink()
        for path in directory.glob("log/*"):
            path.unlink()
    for name in "abc":
        world.start(name)
    world.run(1)
    assert [node.replica.membership for node in world.nodes.values()] == [Membership(("a", "b", "c"))] * 3
    assert world.acked("s.a", b"2")["seq"] == 1


def test_the_only_voters_damaged_log_is_not_truncated_despite_a_learner(tmp_path: Path) -> None:
    world = World(tmp_path, "ab")
    world.stream("a")
    for number in range(20):
        world.acked("s.a", b"%d" % number)
    told: list[str] = []
    world.leader().replica.propose_membership(Membership(("a",), ("b",)), told.append)
    world.run(1)
    assert told == [""]
    node = world.nodes["a"]
    [segment] = Path(node.replica.directory).glob("log/*.seg")
    node.kill()
    flip(str(segment), segment.stat().st_size // 2)
    before = segment.read_bytes()
    node = world.start("a")
    world.run(2)
    assert node.replica.trouble
    assert segment.read_bytes() == before


def test_a_replica_that_could_not_be_made_is_removed_without_the_files_that_are_in_its_way(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    assert world.create is not None
    node = world.leader()
    other = msgspec.structs.replace(world.create, uid="u2")
    replica = node.replicas.hold(other, world.membership)
    world.run(1)
    assert "another stream's files are in the way" in replica.trouble
    node.replicas.drop("u2", lambda error: None)
    world.run(1)
    name, directory = node.name, replica.directory
    assert os.path.exists(os.path.join(directory, "checkpoint")) or os.path.exists(os.path.join(directory, "log"))
    node.kill()
    world.start(name)
    assert [data for _, _, data in world.converged()] == [b"1"]


@pytest.mark.parametrize("identity", [None, b"?"])
def test_a_replica_neither_takes_over_nor_removes_the_files_of_a_stream_from_before(
    tmp_path: Path, identity: bytes | None
) -> None:
    world = World(tmp_path)
    directory = Path(world.nodes["a"].stores.directory("$G", "S"))
    directory.mkdir(parents=True)
    alone = MiniStream(str(directory))
    alone.publish(logkit.message(1))
    alone.store.describe("u0", "S", "$G", b"{}")
    alone.store.close()
    if identity is not None:
        (directory / "replica").write_bytes(identity)
    before = {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    world.stream()
    world.acked("s.a", b"1")
    replica = world.nodes["a"].replicas.by_uid["u1"]
    assert "another stream's files are in the way" in replica.trouble
    world.nodes["a"].replicas.drop("u1", lambda error: None)
    world.run(1)
    assert {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("removed", [True, False])
def test_a_replica_that_ends_while_it_is_opened_anew_loses_its_files_only_if_it_is_removed(
    tmp_path: Path, removed: bool
) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    node = world.followers()[0]
    work: list[Callable[[], None]] = []
    directory = Path(node.replica.directory)

    def submit(task: Callable[[], object], done: Callable[[object, object], None], brief: bool = False) -> None:
        work.append(lambda: done(task(), None))

    submitted = node.life.submit
    node.life.submit = submit  # type: ignore[assignment, method-assign]
    node.replica.give_up(CorruptLog(str(directory / "log"), 0, "damaged"))
    world.run(0.1)
    assert len(work) == 1
    if removed:
        node.replicas.drop("u1", lambda error: None)
    else:
        node.replicas.stop()
    while work:
        work.pop()()  # threads finish in any order
    node.life.submit = submitted  # type: ignore[method-assign]
    assert directory.exists() is not removed


def test_a_server_that_ends_while_it_opens_a_replica_leaves_its_files(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    name = world.followers()[0].name
    directory = Path(world.nodes[name].replica.directory)
    world.nodes[name].kill()
    (directory / "raft").write_bytes(b"")  # opened once its assignment is known
    work: list[Callable[[], None]] = []
    create, world.create = world.create, None
    assert create is not None
    node = world.start(name)

    def submit(task: Callable[[], object], done: Callable[[object, object], None], brief: bool = False) -> None:
        work.append(lambda: done(task(), None))

    node.life.submit = submit  # type: ignore[assignment, method-assign]
    node.replicas.hold(create, world.membership)
    node.replicas.stop()
    while work:
        work.pop()()
    assert (directory / "log").exists()
