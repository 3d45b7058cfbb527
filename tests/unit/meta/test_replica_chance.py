"""Random tests of replicated streams: after any failures of nodes, acked messages are there, once and in order.

A seed decides everything except random bytes that do not affect the run; a failure names it.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from lakestream.ports import Single
from tests.unit.consumer_world import CLIENT
from tests.unit.logkit import flip
from tests.unit.replica_world import Node, World

pytestmark = pytest.mark.unit

STEPS = 60


class Publisher:
    """Publishes one message after the other, each until it is acked; its data tells attempts apart."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.acked: dict[int, int] = {}
        self._number = 0
        self._open: tuple[Node, bytes] | None = None

    def step(self, chance: Random) -> None:
        """Check for the answer to the last attempt, then retry or publish the next message."""
        world = self.world
        if self._open is not None:
            answer = world.answer(*self._open)
            if answer is not None and "error" not in answer:
                self.acked[self._number] = answer["seq"]
                self._number += 1
            self._open = None
        leaders = [node for node in world.nodes.values() if node.replica.leading]
        if leaders:
            node = chance.choice(leaders)
            number = self._number
            reply = world.publish(node, f"s.{number % 3}", b"%d" % number, Nats_Msg_Id=str(number))
            self._open = (node, reply)


class Worker:
    """Pulls messages from a consumer and acks most of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[int] = set()

    def step(self, chance: Random) -> None:
        for node in list(self.world.nodes.values()):
            if not node.replica.leading:
                continue
            at = len(node.inbox.all)
            node.hub.route(
                None,
                CLIENT,
                Single(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_INBOX.me.pull", b"", b'{"batch":5,"no_wait":true}'),
            )
            self.world.run(0.01)
            for _, reply, _, data in node.inbox.all[at:]:
                if reply.startswith(b"$JS.ACK."):
                    self.seen.add(int(data))
                    if chance.random() < 0.8:
                        confirm = b"_INBOX.me.ok" if chance.random() < 0.3 else b""
                        node.hub.route(None, CLIENT, Single(reply, confirm, b"", b"+ACK"))


def damage(world: World, chance: Random) -> None:
    """Flip a bit, or remove the end, of one of the files of stopped node a."""
    files = sorted((world.directory / "a").rglob("*.seg"))
    if files:
        path = chance.choice(files)
        size = path.stat().st_size
        if chance.random() < 0.5:
            flip(str(path), chance.randrange(size), chance.randrange(8))
        else:
            os.truncate(path, chance.randrange(size))


def let_go_of_the_dead(world: World, node: Node) -> None:
    """Release segments without stored messages, so that members that need their entries need a snapshot."""
    if "S" not in node.engine.streams or node.stream.closed:
        return
    store = node.stream.store
    dead = [each.last_index for each in store.sealed() if each.last_seq < store.first_seq]
    if dead:
        node.stream.checkpoint()
        world.run(0.0)
        store.drop_through(dead[-1])


def disturb(world: World, chance: Random) -> None:
    """Cause a random event: a kill, stop, start, partition or the like."""
    names = sorted(world.nodes)
    away = sorted(set("abc") - set(names))
    match chance.randrange(10):
        case 0 | 1 if len(names) > 1:
            node = world.nodes[chance.choice(names)]
            (node.kill if chance.random() < 0.7 else node.stop)()
        case 2 | 3 | 4 if away:
            name = chance.choice(away)
            if name == "a" and chance.random() < 0.5:  # one node only: data lost on two nodes would be lost altogether
                damage(world, chance)
            world.start(name)
        case 5:
            alone = chance.choice("abc")
            world.net.split({alone}, set("abc") - {alone})
        case 6:
            world.net.split()
        case 7:
            for node in world.nodes.values():
                if node.replica.leading:
                    node.replica.transfer()
                    break
        case 8 | 9:
            for node in world.nodes.values():
                let_go_of_the_dead(world, node)


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_what_was_acked_is_there_once_and_in_order(tmp_path: Path, seed: int, retention: str) -> None:
    run(tmp_path, seed, retention)


def run(directory: Path, seed: int, retention: str, steps: int = STEPS) -> None:
    """Run a seed.

    Raises:
        AssertionError: an acked message is not as it must be.
    """
    chance = Random(seed)
    world = World(directory, seed=seed, seal_bytes=3_000, retain_bytes=1)
    world.stream(retention=retention)
    world.consumer("c", ack_wait=2_000_000_000)
    publisher, worker = Publisher(world), Worker(world)
    for _ in range(steps):
        if chance.random() < 0.25:
            disturb(world, chance)
        for _ in range(chance.randrange(1, 8)):
            publisher.step(chance)
            world.run(chance.choice((0.0, 0.005, 0.05)))
        worker.step(chance)
        world.run(chance.choice((0.0, 0.02, 0.3)))
    world.net.split()
    for name in sorted(set("abc") - set(world.nodes)):
        world.start(name)
    world.leader()
    for _ in range(40):
        publisher.step(chance)
        world.run(0.05)
    world.run(10)  # read what was damaged and not read yet
    content = world.converged()
    seqs = list(publisher.acked.values())
    assert seqs == sorted(set(seqs)), f"seed {seed}: sequences of acks {seqs}"
    stored = {int(data): seq for seq, _, data in content}
    assert len(stored) == len(content), f"seed {seed}: a message is stored twice"
    if retention == "limits":
        wrong = {number: seq for number, seq in publisher.acked.items() if stored.get(number) != seq}
        assert wrong == {}, f"seed {seed}: acked and not there: {wrong}"
    worker_until(world, worker, chance, publisher, seed)


def worker_until(world: World, worker: Worker, chance: Random, publisher: Publisher, seed: int) -> None:
    """Wait until everything is delivered, and a work queue is empty."""
    for _ in range(400):
        worker.step(chance)
        world.run(0.5)
        leader = world.leader()
        consumer = leader.stream.consumers["c"]
        if consumer.feed.pending() == 0 and not consumer.ledger.pending:
            break
    missing = set(publisher.acked) - worker.seen
    assert not missing, f"seed {seed}: never delivered: {missing}"
    if leader.stream.config.retention == "workqueue":
        world.run(1)
        assert world.converged() == [], f"seed {seed}: the work queue keeps what was acked"
