"""Tests of replicated streams: roles, and rollback of uncommitted entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.ports import Single
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.operations import DeleteMessage, UpdateStream
from lakestream.stream.features.dedupe import Dedupe
from tests.unit.consumer_world import CLIENT, SECOND
from tests.unit.replica_world import World

pytestmark = pytest.mark.unit


def test_what_is_acked_is_on_every_replica(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    for number in range(20):
        assert world.acked("s.a", b"%d" % number)["seq"] == number + 1
    content = world.converged()
    assert [data for _, _, data in content] == [b"%d" % number for number in range(20)]


def test_a_replicas_indexes_are_shared_while_it_takes_part(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    for node in list(world.nodes.values()):
        memory = node.stores._cache.indexes
        assert set(memory.indexes) == {node.stream.store.subjects, node.stream.feature(Dedupe).ids}
        node.stop()
        assert memory.indexes == []


def test_followers_do_not_take_messages(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    follower = world.followers()[0]
    follower.stream.proposer.take(Single(b"s.a", b"_INBOX.me.1", payload=b"x"), 0, 1, None)  # type: ignore[arg-type]
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
    assert old.stream.pipeline.next_seq == 3
    others = "".join(sorted(set("abc") - {old.name}))
    new = world.leader(others)
    kept = world.publish(new, "s.b", b"2", Nats_Msg_Id="two")  # of another publisher, which the new leader serves
    world.until(lambda: world.answer(new, kept))
    world.until(lambda: answers)
    assert isinstance(answers[0], ApiError)
    assert world.answer(old, reply) is None
    assert not old.stream.leading
    world.net.split()
    assert world.converged() == [(1, b"s.a", b"1"), (2, b"s.b", b"2")]
    world.run(5)
    assert world.answer(old, reply) is None
    # Its publisher retries, as it must: the id is free on the node that had accepted the first attempt.
    new.replica.transfer(old.name)
    world.until(lambda: old.replica.leading)
    assert world.acked("s.a", b"lost", Nats_Msg_Id="three")["seq"] == 3
    assert world.acked("s.a", b"again", Nats_Msg_Id="two") == {"stream": "S", "seq": 2, "duplicate": True}


def test_a_publish_before_a_leadership_transfer_is_answered_with_no_responders(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"1")
    old = world.leader()
    reply = world.publish(old, "s.a", b"2")
    old.replica.transfer()
    world.until(lambda: not old.stream.leading)
    assert [payload for subject, payload in old.inbox.got if subject == reply] == [b""]
    world.run(5)
    assert world.converged() == [(1, b"s.a", b"1")]


def test_a_leader_that_hands_over_listens_to_no_client(tmp_path: Path) -> None:
    """A leader that transfers its leadership serves no clients.

    Its successor receives their messages before it knows that it leads, so one of the two must not answer.
    """
    world = World(tmp_path)
    world.stream()
    old = world.leader()
    new = world.nodes[min(set("abc") - {old.name})]
    held: list[Any] = []
    receive = old.link.receive_now
    old.link.receive_now = lambda *what: held.append(what)  # type: ignore[method-assign]
    assert old.replica.transfer(new.name)
    world.until(lambda: new.replica.leading)
    assert old.stream.leading, "it has not heard yet"
    told, taken = (world.publish(node, "s.a", b"1") for node in (old, new))  # one message, routed to both
    assert world.until(lambda: world.answer(new, taken)) == {"stream": "S", "seq": 1}
    old.link.receive_now = receive  # type: ignore[method-assign]
    for what in held:
        receive(*what)
    assert world.converged() == [(1, b"s.a", b"1")]
    assert world.answer(old, told) is None, "it must not say that nobody took it"


def test_a_leader_serves_again_after_a_failed_transfer(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    old = world.leader()
    other = min(set("abc") - {old.name})
    world.net.split({other}, set("abc") - {other})
    assert old.replica.transfer(other)
    assert not old.hub.send(Single(b"s.a", payload=b"nobody"))
    world.until(lambda: not old.replica.group.handing_over)
    world.run(0.1)
    assert world.leader(old.name) is old
    assert world.acked("s.a", b"taken") == {"stream": "S", "seq": 1}
    assert not old.replica.group.gave_up
    world.net.split()
    assert world.converged() == [(1, b"s.a", b"taken")]


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
    assert new.stream.consumers["c"].ledger.delivered_stream == 0
    world.until(lambda: not old.stream.leading)
    world.net.split()
    world.converged()
    assert [data for *_, data in world.pull("c", 2)] == [b"0", b"1"]
    world.run(1)
    world.converged()
    # The node that had delivered them before has the same state as the others.
    states = [node.stream.consumers["c"].ledger.whole() for node in world.nodes.values()]
    assert all(state.pending == states[0].pending for state in states)
    assert all(state.delivered_consumer == 2 for state in states)


def test_waiting_pull_requests_hear_of_the_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.consumer("c")
    old = world.leader()
    request = b'{"batch":1,"expires":%d}' % (60 * SECOND)
    old.hub.route(None, CLIENT, Single(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_INBOX.me.pull", b"", request))
    world.run(0.1)
    assert old.replica.transfer()
    world.until(lambda: not old.stream.leading)
    headers = [header for _, _, header, _ in old.inbox.all]
    assert any(header.startswith(b"NATS/1.0 409 Leadership Change") for header in headers)
    # The old leader does not subscribe to it any more.
    assert not old.hub.send(Single(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_INBOX.me.pull"))


def test_a_work_queue_removes_acked_messages_under_any_leader(tmp_path: Path) -> None:
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
    world.until(lambda: follower.replica.readable)
    follower.hub.send(Single(b"$JS.API.DIRECT.GET.S.s.a", b"_INBOX.me.get"))
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
