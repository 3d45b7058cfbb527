"""Tests of answers about a stream's state: none before the state is durable, and none from a replaced leader."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakestream.account.api.subjects import Api
from lakestream.log.format.files import Files
from lakestream.ports import Single
from tests.unit import replica_world
from tests.unit.consumer_world import CLIENT
from tests.unit.replica_world import Node
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit

EXPECTED: dict[str, Any] = {"Nats-Expected-Last-Subject-Sequence": "0"}


def test_a_refusal_waits_until_what_it_tells_of_is_stored(tmp_path: Path) -> None:
    world = World(str(tmp_path / "log"))
    stored = world.publish("s.a")
    refused = world.publish("s.a", **EXPECTED)
    world.clock.turn()
    assert world.answer(refused) is None, "the message that it speaks of is not on the disk"
    world.settle()
    ack, refusal = world.answer(stored), world.answer(refused)
    assert ack is not None
    assert ack["seq"] == 1
    assert refusal is not None
    assert refusal["error"]["description"] == "wrong last sequence: 1"


def test_a_refusal_of_what_is_stored_does_not_wait(tmp_path: Path) -> None:
    world = World(str(tmp_path / "log"))
    world.acked("s.a")
    refused = world.publish("s.a", **EXPECTED)
    world.clock.turn()
    refusal = world.answer(refused)
    assert refusal is not None
    assert refusal["error"]["err_code"] == 10071


class FullDisk(Files):
    full = False

    def write(self, fd: int, buffers: Any, offset: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, buffers, offset)


def test_a_message_that_could_not_be_stored_is_never_reported(tmp_path: Path) -> None:
    files = FullDisk()
    world = World(str(tmp_path / "log"), files=files)
    files.full = True
    world.publish("s.a")
    refused = world.publish("s.a", **EXPECTED)
    world.settle()
    refusal = world.answer(refused)
    assert refusal is not None
    assert refusal["error"]["err_code"] == 10077


@pytest.mark.parametrize(
    "headers", [EXPECTED, {"Nats-Expected-Last-Sequence": "7"}, {"Nats-Expected-Last-Msg-Id": "x"}]
)
def test_a_leader_that_may_be_replaced_refuses_nothing(tmp_path: Path, headers: dict[str, Any]) -> None:
    world = replica_world.World(tmp_path)
    world.stream()
    world.acked("s.a")
    leader = world.leader()
    others = set("abc") - {leader.name}
    world.net.split({leader.name}, others)
    reply = world.publish(leader, "s.a", **headers)
    world.run(0.2)
    assert leader.stream.leading, "it does not know yet"
    assert world.answer(leader, reply) is None
    world.leader("".join(others))
    assert world.answer(leader, reply) is None
    world.net.split()
    assert len(world.converged()) == 1


def test_a_refusal_that_tells_of_what_never_came_to_a_majority_is_not_sent(tmp_path: Path) -> None:
    world = replica_world.World(tmp_path)
    world.stream()
    world.acked("s.a")
    leader = world.leader()
    others = set("abc") - {leader.name}
    world.net.split({leader.name}, others)
    world.publish(leader, "s.a", b"forgotten")
    reply = world.publish(leader, "s.a", **EXPECTED)
    other = world.leader("".join(others))
    world.net.split()
    assert [data for _, _, data in world.converged()] == [b""]
    assert world.answer(leader, reply) is None
    kept = world.publish(other, "s.a", **EXPECTED | {"Nats-Expected-Last-Subject-Sequence": "1"})
    assert world.until(lambda: world.answer(other, kept))["seq"] == 2


def _get(node: Node) -> bytes:
    reply = b"_INBOX.me.get"
    node.hub.route(None, CLIENT, Single(b"$JS.API.STREAM.MSG.GET.S", reply, b"", b'{"last_by_subj":"s.a"}'))
    return reply


def test_a_leader_answers_a_get_once_a_quorum_follows_it(tmp_path: Path) -> None:
    world = replica_world.World(tmp_path)
    world.stream()
    world.acked("s.a")
    leader = world.leader()
    Api(leader.engine)
    reply = _get(leader)
    answer: dict[str, Any] = world.until(lambda: world.answer(leader, reply))
    assert answer["message"]["seq"] == 1


def test_a_leader_that_may_be_replaced_answers_no_get(tmp_path: Path) -> None:
    world = replica_world.World(tmp_path)
    world.stream()
    world.acked("s.a")
    leader = world.leader()
    Api(leader.engine)
    world.net.split({leader.name}, set("abc") - {leader.name})
    reply = _get(leader)
    world.run(0.2)
    assert leader.stream.leading, "it does not know yet"
    assert world.answer(leader, reply) is None
    assert world.until(lambda: world.answer(leader, reply))["error"]["err_code"] == 10008


def test_one_round_serves_all_gets_of_a_turn(tmp_path: Path) -> None:
    world = replica_world.World(tmp_path)
    world.stream()
    world.acked("s.a")
    leader = world.leader()
    Api(leader.engine)
    rounds: list[int] = []
    ask = leader.stream.group.read_index

    def counted(done: Callable[[int], None]) -> None:
        rounds.append(1)
        ask(done)

    leader.stream.group.read_index = counted  # type: ignore[method-assign]
    for _ in range(100):
        reply = _get(leader)
    world.until(lambda: world.answer(leader, reply))
    assert len([subject for subject, _ in leader.inbox.got if subject == reply]) == 100
    assert len(rounds) == 1


def _waiting(world: replica_world.World, node: Node) -> bytes:
    """Publish to the leader a message that it does not propose yet, because an operation is before it.

    Return the reply.
    """
    world.publish(node, "s.a")
    node.stream.pipeline.operations += 1
    reply = world.publish(node, "s.b", **EXPECTED)
    node.stream.pipeline.operations -= 1
    return reply


def test_a_leader_that_was_replaced_does_not_say_that_nobody_took_a_message(tmp_path: Path) -> None:
    """A replaced leader sends no 503 for waiting messages.

    Its successor may have received them, and a client that gets a 503 would publish again.
    """
    world = replica_world.World(tmp_path)
    world.stream()
    leader = world.leader()
    world.net.split({leader.name}, set("abc") - {leader.name})
    replies = [_waiting(world, leader), world.publish(leader, "s.a", **EXPECTED)]
    world.until(lambda: not leader.stream.leading)
    world.net.split()
    world.converged()
    assert [world.answer(leader, reply) for reply in replies] == [None, None]


def test_a_leader_that_steps_down_says_that_nobody_took_what_it_did_not_propose(tmp_path: Path) -> None:
    world = replica_world.World(tmp_path)
    world.stream()
    leader = world.leader()
    reply = _waiting(world, leader)
    leader.replica.step_down()
    world.until(lambda: not leader.stream.leading)
    assert world.answer(leader, reply) == {"error": "503"}


def test_nobody_waits_for_a_stream_that_has_ended(tmp_path: Path) -> None:
    world = replica_world.World(tmp_path)
    world.stream()
    world.acked("s.a")
    leader = world.leader()
    Api(leader.engine)
    reply = _get(leader)
    leader.stream.stop()
    answer = world.answer(leader, reply)
    assert answer is not None
    assert answer["error"]["err_code"] == 10008
    leader.inbox.got.clear()
    world.run(1)
    assert world.answer(leader, reply) is None, "it is answered once"
