"""Streams that several nodes hold: roles, what is rolled back, and state that travels."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lakestream.jetstream.errors import ApiError
from lakestream.jetstream.operations import DeleteMessage, UpdateStream
from lakestream.log.errors import CorruptLog
from lakestream.log.files import Files
from lakestream.log.mend import verify
from lakestream.raft.messages import Membership
from tests.unit import logkit
from tests.unit.consumer_world import CLIENT, SECOND
from tests.unit.logkit import MiniStream, flip
from tests.unit.replica_world import Node, World

pytestmark = pytest.mark.unit


def test_what_is_acked_is_on_every_replica(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    for number in range(20):
        assert world.acked("s.a", b"%d" % number)["seq"] == number + 1
    content = world.converged()
    assert [data for _, _, data in content] == [b"%d" % number for number in range(20)]


def test_followers_do_not_take_messages(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    follower = world.followers()[0]
    follower.stream.ingest(b"s.a", b"_INBOX.me.1", b"", b"x", None)  # type: ignore[arg-type]
    answers: list[object] = []
    follower.stream.propose(DeleteMessage(1), answers.append)
    world.run(1)
    assert world.converged() == []
    assert isinstance(answers[0], ApiError)
    assert answers[0].err_code == 10008
    assert follower.inbox.got == []


def test_another_node_leads_when_the_leader_dies_and_nothing_acked_is_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    for number in range(10):
        world.acked("s.a", b"%d" % number)
    name = world.leader().name
    world.leader().kill()
    assert world.acked("s.a", b"10")["seq"] == 11
    world.start(name)
    assert [data for _, _, data in world.converged()] == [b"%d" % number for number in range(11)]


def test_every_node_restarts_in_turn_and_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    for name in "abc":
        world.acked("s.a", name.encode())
        world.nodes[name].stop()
        world.acked("s.b", name.encode())
        world.start(name)
    content = world.converged()
    for name in "abc":
        world.nodes[name].kill()
    for name in "abc":
        world.start(name)
    assert world.converged() == content
    assert world.acked("s.c")["seq"] == 7


def test_what_a_cut_off_leader_took_is_forgotten_and_never_acked(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1", Nats_Msg_Id="one")
    old = world.leader()
    world.net.split({old.name}, {name for name in "abc" if name != old.name})
    reply = world.publish(old, "s.a", b"lost", Nats_Msg_Id="two")
    answers: list[object] = []
    old.stream.propose(DeleteMessage(1), answers.append)
    world.run(0.01)
    assert old.stream.next_seq == 3
    others = "".join(sorted(set("abc") - {old.name}))
    new = world.leader(others)
    kept = world.publish(new, "s.b", b"2", Nats_Msg_Id="two")  # of another publisher, whose turn it is now
    world.until(lambda: world.answer(new, kept))
    world.until(lambda: answers)
    assert isinstance(answers[0], ApiError)
    assert world.answer(old, reply) is None
    assert not old.stream.leading
    world.net.split()
    assert world.converged() == [(1, b"s.a", b"1"), (2, b"s.b", b"2")]
    world.run(5)
    assert world.answer(old, reply) is None
    # Its publisher tries again, as it must: the id is free on the node that had taken the first try.
    new.replica.transfer(old.name)
    world.until(lambda: old.replica.leading)
    assert world.acked("s.a", b"lost", Nats_Msg_Id="three")["seq"] == 3
    assert world.acked("s.a", b"again", Nats_Msg_Id="two") == {"stream": "S", "seq": 2, "duplicate": True}


def test_a_publish_that_came_while_the_leader_handed_over_is_told_that_nobody_took_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    old = world.leader()
    old.replica.transfer()
    reply = world.publish(old, "s.a", b"2")
    world.until(lambda: not old.stream.leading)
    assert [payload for subject, payload in old.inbox.got if subject == reply] == [b""]
    world.run(5)
    assert world.converged() == [(1, b"s.a", b"1")]


def test_the_id_of_a_message_that_was_lost_with_its_leader_is_free_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    old = world.leader()
    others = {name for name in "abc" if name != old.name}
    world.net.split({old.name}, others)
    world.publish(old, "s.a", b"lost", Nats_Msg_Id="one")
    new = world.leader("".join(sorted(others)))
    world.until(lambda: not old.stream.leading)
    world.net.split()
    world.converged()
    new.replica.transfer(old.name)
    world.until(lambda: old.replica.leading)
    assert world.acked("s.a", b"again", Nats_Msg_Id="one") == {"stream": "S", "seq": 1}


def test_times_never_go_back_when_another_node_leads(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a")
    world.leader().kill()
    world.acked("s.a")
    times = [record.time_ns for record in world.leader().records()]
    assert times == sorted(times)


def test_a_consumer_goes_on_where_its_log_says(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.consumer("c")
    for number in range(6):
        world.acked("s.a", b"%d" % number)
    first = world.pull("c", 3)
    assert [data for *_, data in first] == [b"0", b"1", b"2"]
    world.ack(first[0], confirmed=True)
    world.run(1)  # its progress is logged
    world.leader().kill()
    consumer = world.leader().stream.consumers["c"]
    assert (consumer.ledger.floor()[1], sorted(consumer.ledger.pending)) == (1, [2, 3])
    assert [data for *_, data in world.pull("c", 10)] == [b"3", b"4", b"5"]
    world.run(31)  # the earlier deliveries were never acked
    assert [data for *_, data in world.pull("c", 10)] == [b"1", b"2", b"3", b"4", b"5"]


def test_deliveries_that_were_not_logged_are_repeated_by_the_next_leader(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.consumer("c")
    for number in range(4):
        world.acked("s.a", b"%d" % number)
    world.run(1)
    old = world.leader()
    world.net.split({old.name}, {name for name in "abc" if name != old.name})
    for message in world.pull("c", 2):
        world.ack(message)
    new = world.leader("".join(sorted(set("abc") - {old.name})))
    assert not old.stream.leading or old.stream.uncommitted()
    assert new.stream.consumers["c"].ledger.delivered_stream == 0
    world.until(lambda: not old.stream.leading)
    world.net.split()
    world.converged()
    assert [data for *_, data in world.pull("c", 2)] == [b"0", b"1"]
    world.run(1)
    world.converged()
    # The node that had delivered them before holds what the others hold.
    states = [node.stream.consumers["c"].ledger.whole() for node in world.nodes.values()]
    assert all(state.pending == states[0].pending for state in states)
    assert all(state.delivered_consumer == 2 for state in states)


def test_waiting_pull_requests_hear_of_the_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.consumer("c")
    old = world.leader()
    request = b'{"batch":1,"expires":%d}' % (60 * SECOND)
    old.hub.route(None, CLIENT, b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_INBOX.me.pull", b"", request)
    world.run(0.1)
    assert old.replica.transfer()
    world.until(lambda: not old.stream.leading)
    headers = [header for _, _, header, _ in old.inbox.all]
    assert any(header.startswith(b"NATS/1.0 409 Leadership Change") for header in headers)
    # The old leader has no ears for it any more.
    assert not old.hub.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_INBOX.me.pull", b"", b"")


def test_a_work_queue_forgets_what_was_acked_whoever_leads(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream(retention="workqueue")
    world.consumer("c")
    for number in range(6):
        world.acked("s.a", b"%d" % number)
    for message in world.pull("c", 2):
        world.ack(message)
    world.run(1)
    assert [seq for seq, *_ in world.converged()] == [3, 4, 5, 6]
    world.leader().replica.transfer()
    world.run(3)
    for message in world.pull("c", 10):
        world.ack(message)
    world.run(1)
    assert world.converged() == []


def test_messages_expire_on_every_replica_and_after_a_change_of_leaders(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream(max_age=10 * SECOND, allow_msg_ttl=True)
    world.acked("s.a", b"old")
    world.acked("s.t", b"short", Nats_TTL="3s")
    world.run(1)
    world.leader().kill()
    world.leader()
    world.run(5)
    assert [seq for seq, *_ in world.leader().content()] == [1]
    world.run(10)
    assert world.leader().content() == []
    assert [node.stream.store.msgs for node in world.nodes.values()] == [0, 0]


def test_an_update_reaches_every_replica(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    for number in range(5):
        world.acked("s.a", b"%d" % number)
    stream = world.leader().stream
    config = msgspec.structs.replace(stream.config, max_msgs=2, subjects=["s.>", "t.>"])
    done: list[object] = []
    stream.propose(UpdateStream(msgspec.json.encode(config)), done.append)
    world.until(lambda: done)
    assert [seq for seq, *_ in world.converged()] == [4, 5]
    world.leader().kill()
    world.acked("t.new")
    assert all(node.stream.config.max_msgs == 2 for node in world.nodes.values())


def test_a_stream_in_memory_survives_its_leader(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream(storage="memory")
    world.acked("s.a", b"1")
    world.leader().kill()
    assert world.acked("s.a", b"2")["seq"] == 2
    assert len(world.converged()) == 2


def test_followers_answer_direct_gets(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    world.converged()
    follower = world.followers()[0]
    follower.hub.publish(b"$JS.API.DIRECT.GET.S.s.a", b"_INBOX.me.get", b"", b"")
    world.run(0.1)
    assert follower.inbox.got[-1] == (b"_INBOX.me.get", b"1")


def test_a_removed_replica_leaves_no_files(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    directories = [node.replica.directory for node in world.nodes.values()]
    done: list[object] = []
    for node in world.nodes.values():
        node.replicas.drop("u1", done.append)
    world.until(lambda: len(done) == 3)
    assert done == [None, None, None]
    assert not any(Path(directory).exists() for directory in directories)
    world.stream()
    assert world.acked("s.a", b"1")["seq"] == 1


def test_many_writes_are_on_their_way_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    node = world.leader()
    replies = []
    for number in range(500):
        replies.append(world.publish(node, f"s.{number % 7}", b"x" * 100))
        if number % 10 == 0:
            world.run(0.0)
    world.until(lambda: all(world.answer(node, reply) for reply in replies))
    answers = [world.answer(node, reply) for reply in replies]
    assert [answer["seq"] for answer in answers if answer] == list(range(1, 501))
    assert len(world.converged()) == 500


# ---------------------------------------------------------------- members come and go
def change(world: World, voters: str, learners: str = "") -> None:
    """Change the group's members, on the leader."""
    done: list[str] = []
    world.leader().replica.propose_membership(Membership(tuple(voters), tuple(learners)), done.append)
    world.until(lambda: done)
    assert done == [""]


def test_a_stream_gets_another_replica_while_it_is_written_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream("a")
    for number in range(20):
        world.acked("s.a", b"%d" % number)
    for name in "bc":
        world.hold(name, Membership(("a",)))
        voters = "".join(sorted(world.leader().replica.membership.voters))
        change(world, voters, name)
        world.acked("s.b", name.encode())
        change(world, "".join(sorted(voters + name)))
    assert len(world.converged()) == 22
    world.leader().kill()
    assert world.acked("s.c")["seq"] == 23


def test_a_replica_that_left_is_not_missed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a")
    leader = world.leader()
    gone = world.followers()[0].name
    change(world, "".join(sorted(set("abc") - {gone})))
    done: list[object] = []
    world.nodes[gone].replicas.drop("u1", done.append)
    world.until(lambda: done)
    del world.nodes[gone]
    assert world.acked("s.a")["seq"] == 2
    assert world.leader() is leader


# ---------------------------------------------------------------- state from another node
def fill(world: World, count: int, size: int = 1000) -> None:
    node = world.leader()
    replies = [world.publish(node, f"s.{number % 5}", b"%d:" % number + b"x" * size) for number in range(count)]
    world.until(lambda: all(world.answer(node, reply) for reply in replies))


def let_go(world: World, name: str = "") -> int:
    """Have the leader's log let go of what is sealed, as if the lake held it; the entry through which it did."""
    store = world.leader().stream.store
    world.leader().stream.checkpoint()
    world.run(0.1)
    store.drop_through(store.applied)
    world.run(0.1)
    assert store.left_through > 0
    return store.left_through


def test_a_replica_that_lacks_what_has_left_the_log_gets_the_state(tmp_path: Path) -> None:
    world = World(tmp_path, seal_bytes=20_000, retain_bytes=1)
    world.stream()
    world.consumer("c")
    away = world.followers()[0].name
    world.nodes[away].kill()
    for _ in range(10):
        fill(world, 20)
        world.run(0.1)
    world.pull("c", 3)
    world.run(1)
    let_go(world)
    node = world.start(away)
    leader = world.leader()
    world.until(lambda: ("reopened", "S") in node.events)
    world.until(lambda: node.stream.store.applied == leader.stream.group.last_index)
    for one in (node, leader):
        store = one.stream.store
        assert (store.msgs, store.first_seq, store.last_seq) == (200, 1, 200)
        assert [store.subject_of(seq) for seq in range(1, 6)] == [b"s.0", b"s.1", b"s.2", b"s.3", b"s.4"]
        assert one.records() == leader.records()
        assert sorted(one.stream.consumers["c"].ledger.pending) == [1, 2, 3]
    assert leader.replicas.sender.bytes_sent > 10_000
    # It is a member like the others, also as the leader and after a restart.
    leader.replica.transfer(away)
    world.until(lambda: node.replica.leading)
    assert world.acked("s.z")["seq"] == 201
    node.stop()
    world.start(away)
    world.until(lambda: "S" in world.nodes[away].engine.streams)
    world.run(1)
    assert world.acked("s.z")["seq"] == 202
    world.until(lambda: {node.stream.store.last_seq for node in world.nodes.values()} == {202})


def test_a_new_replica_gets_the_state_and_then_the_rest(tmp_path: Path) -> None:
    world = World(tmp_path, "abcd", seal_bytes=20_000, retain_bytes=1)
    world.stream("abc")
    for _ in range(5):
        fill(world, 20)
        world.run(0.1)
    let_go(world)
    world.hold("d", Membership(tuple("abc")))
    change(world, "abc", "d")
    fill(world, 20)
    node = world.nodes["d"]
    world.until(lambda: "S" in node.engine.streams and node.stream.store.last_seq == 120)
    change(world, "abcd")
    assert node.records() == world.leader().records()
    assert [record.seq for record in node.records()][-1] == 120


def test_a_state_that_is_not_whole_yet_is_fetched_anew_after_a_kill(tmp_path: Path) -> None:
    world = World(tmp_path, seal_bytes=20_000, retain_bytes=1)
    world.stream()
    away = world.followers()[0].name
    world.nodes[away].kill()
    for _ in range(5):
        fill(world, 20)
        world.run(0.1)
    let_go(world)
    node = world.start(away)
    directory = Path(node.replica.directory)
    incoming = directory.with_name(directory.name + ".incoming")
    world.until(lambda: incoming.exists() or ("reopened", "S") in node.events)
    node.kill()
    node = world.start(away)
    world.until(lambda: "S" in node.engine.streams and node.stream.store.last_seq == 100)
    assert not incoming.exists()


# ---------------------------------------------------------------- damage
@pytest.mark.parametrize(
    "where", ["open segment", "sealed segment", "footer", "checkpoint", "cut", "gone", "outline", "votes", "identity"]
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
        case "identity":
            (directory / "replica").write_bytes(b"?")
        case "outline":
            flip(str(next((directory / "log").glob("*.outline"))), 25)
    fill(world, 20)
    node = world.start(name)
    world.until(lambda: "S" in node.engine.streams and node.stream.store.last_seq == 123)
    assert node.content() == world.leader().content()
    if where != "sealed segment":  # what is sealed is looked at when it is read
        assert any("damaged" in text or "missing" in text or "slots" in text for text in node.log.said)
    world.until(lambda: not node.replica.group._member.recovering)  # type: ignore[union-attr]
    others = [each for each in world.nodes.values() if each is not node]
    world.leader().replica.transfer(name)
    world.until(lambda: node.replica.leading)
    others[0].kill()
    assert world.acked("s.z")["seq"] == 124


def damaged_segments(node: Node) -> list[str]:
    """Turn a bit in each sealed segment of a node while it runs; their paths."""
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
    assert leader.replicas.repairs.mended == len(paths)
    assert leader.replica.leading
    for path in paths:
        verify(Files(), path)
    leader.kill()
    world.start(leader.name)
    assert len(world.converged()) == 80


def test_damage_that_nobody_reads_is_found_after_a_start(tmp_path: Path) -> None:
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
    world.until(lambda: node.replicas.repairs.mended == len(paths))
    assert len(damage) == len(paths)
    for path in paths:
        verify(Files(), path)


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


class FailingFiles(Files):
    """Files whose syncs fail from a moment on."""

    failing = False

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
    files = FailingFiles()
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


def test_a_replica_that_was_killed_before_it_had_its_file_is_told_by_its_assignment_who_belongs_to_it(
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


def test_the_only_voters_damaged_log_is_not_cut_because_somebody_learns_from_it(tmp_path: Path) -> None:
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
    assert "another stream" in replica.trouble
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
    directory = Path(world.nodes["a"].stores.replicas.directory("$G", "S"))
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
    assert "another stream" in replica.trouble
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
        work.pop()()  # threads keep no order
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
