"""Tests of consumers of replicated streams whose leader dies.

No confirmed ack is redelivered, no message lost, counters are exact. The random test: LAKESTREAM_CLUSTER_ROUNDS (3)
faults; LAKESTREAM_CLUSTER_SEED repeats its choices.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.deliveries import Deliveries
from tests.cluster.conftest import StartCluster
from tests.cluster.harness import SETTLE_S
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind
from tests.wire import Closed, Frame, Wire, WireTimeout

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

ROUNDS = int(os.environ.get("LAKESTREAM_CLUSTER_ROUNDS", "3"))
SECOND = 1_000_000_000
WORK_S = 0.7
RECOVERY_S = 30.0
STREAM = "CS"


def consumer(cluster: Cluster, name: str = "c", **config: Any) -> None:
    """Create a consumer with explicit acks."""
    fields = {"durable_name": name, "ack_policy": "explicit", "ack_wait": SECOND, **config}
    cluster.ask(f"CONSUMER.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": fields})
    heard(cluster, name)


def heard(cluster: Cluster, name: str = "c") -> None:
    """Wait until the consumer is reachable from every running node; the requests sent for this get no message."""
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}"
    for node in cluster.running:
        with cluster.wire(node) as wire:
            until(lambda wire=wire: wire.request(subject, b'{"priority":99}').status == 400, subject, SETTLE_S)


def numbers(cluster: Cluster, name: str = "c") -> dict[str, Any]:
    """Return the counters of CONSUMER.INFO; {} while there is no leader."""
    info = cluster.api(f"CONSUMER.INFO.{STREAM}.{name}")
    if "config" not in info or not info.get("cluster", {}).get("leader"):
        return {}
    counted = {key: info[key] for key in ("num_ack_pending", "num_redelivered", "num_pending")}
    return counted | {key: (info[key]["consumer_seq"], info[key]["stream_seq"]) for key in ("delivered", "ack_floor")}


def pull(wire: Wire, batch: int, name: str = "c", **body: Any) -> list[Frame]:
    """Return the next `batch` messages."""
    reply = wire.new_reply()
    data = json.dumps({"batch": batch, "expires": 8 * SECOND, **body}).encode()
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}", data, reply)
    return [wire.next(lambda frame: frame.subject == reply or frame.reply.startswith("$JS.ACK.")) for _ in range(batch)]


def fill(wire: Wire, count: int) -> None:
    """Publish `count` messages."""
    for number in range(count):
        assert b"seq" in wire.request("cs", b"%d" % number).data


def seq_of(frame: Frame) -> int:
    """Return the stream sequence of a delivery."""
    return int(frame.reply.split(".")[5])


def confirm(wire: Wire, frame: Frame, body: bytes = b"+ACK") -> None:
    """Send an ack of any kind and wait for its confirmation."""
    assert not wire.request(frame.reply, body).data


def away_from(cluster: Cluster, node: Node) -> Node:
    """Return another running node."""
    return cluster.others(node)[0]


@pytest.mark.smoke
def test_what_a_killed_leader_confirmed_is_known_to_the_next(start_cluster: StartCluster, kind: Kind) -> None:
    """The next leader's counters include every confirmed ack of the killed one."""
    if kind is Kind.REAL:
        pytest.skip("nats-server confirms an ack before a majority has it")
    rng = random.Random(7)
    cluster = start_cluster(3)
    cluster.stream(STREAM, ["cs"])
    consumer(cluster, max_deliver=5)
    leader = cluster.stream_leader(STREAM)
    with cluster.wire(away_from(cluster, leader)) as wire:
        fill(wire, 60)
        frames = pull(wire, 40)
        for frame in pull_again(wire, rng.sample(frames, 5)):
            assert frame.reply.split(".")[4] == "2"
        acked = rng.sample(frames, 20)
        for frame in acked:
            confirm(wire, frame, rng.choice((b"+ACK", b"+ACK", b"+TERM")))
        before = numbers(cluster)
        leader.kill()
        after = until(lambda: numbers(cluster), "another leader", SETTLE_S)
        assert after == before
        heard(cluster)
        done = {seq_of(frame) for frame in acked}
        again = pull(wire, 40)
        assert {seq_of(frame) for frame in again} == set(range(1, 61)) - done
        for frame in again:
            confirm(wire, frame)
        assert numbers(cluster)["num_ack_pending"] == 0
        leader.start()
        cluster.wait_current(STREAM)
        before = numbers(cluster)
        cluster.lead(STREAM, leader)
        assert until(lambda: numbers(cluster), "a leader", SETTLE_S) == before


def test_the_next_leader_knows_the_order_of_a_key(start_cluster: StartCluster, kind: Kind) -> None:
    """A message that a killed leader held back stays so until the earlier one of its key is acked."""
    if kind is Kind.REAL:
        pytest.skip("nats-server has no order by key")
    cluster = start_cluster(3)
    cluster.stream(STREAM, ["cs.>"])
    consumer(cluster, ack_wait=60 * SECOND, metadata={"lakestream.key": "header:K"})
    leader = cluster.stream_leader(STREAM)
    with cluster.wire(away_from(cluster, leader)) as wire:
        for key in "aab":
            assert b"seq" in wire.request("cs.x", headers={"K": key}).data
        first, other = pull(wire, 2)
        assert (seq_of(first), seq_of(other)) == (1, 3)
        confirm(wire, other)
        leader.kill()
        until(lambda: numbers(cluster), "another leader", SETTLE_S)
        heard(cluster)
        [answer] = pull(wire, 1, expires=0, no_wait=True)
        assert answer.status == 404
        confirm(wire, first)
        assert seq_of(pull(wire, 1)[0]) == 2


def pull_again(wire: Wire, frames: list[Frame]) -> list[Frame]:
    """Nak these messages and receive them again."""
    for frame in frames:
        confirm(wire, frame, b"-NAK")
    again = pull(wire, len(frames))
    assert {seq_of(frame) for frame in again} == {seq_of(frame) for frame in frames}
    return again


def test_requests_that_wait_are_told_at_each_change(start_cluster: StartCluster) -> None:
    """A leader change ends every waiting request with 409; requests to the next leader are served."""
    cluster = start_cluster(3)
    cluster.stream(STREAM, ["cs"])
    consumer(cluster, "c")
    consumer(cluster, "g", priority_groups=["g"], priority_policy="pinned_client")
    wires = [cluster.wire(node) for node in cluster.nodes]
    replies = []
    for wire in wires:
        for name, group in (("c", {}), ("g", {"group": "g"})):
            replies.append((wire, reply := wire.new_reply()))
            data = json.dumps({"batch": 5, "expires": 60 * SECOND, **group}).encode()
            wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}", data, reply)
    for name in ("c", "g"):
        until(lambda name=name: waiting(cluster, name) == 3, "three requests", SETTLE_S)
    leader = cluster.stream_leader(STREAM)
    cluster.lead(STREAM, away_from(cluster, leader))
    for name in ("c", "g") if cluster.kind is Kind.REAL else ():  # it elects a leader for each consumer
        cluster.ask(f"CONSUMER.LEADER.STEPDOWN.{STREAM}.{name}")
    for wire, reply in replies:
        frame = wire.message(reply)
        assert frame.header.startswith(b"NATS/1.0 409 Leadership Change"), frame
    until(lambda: numbers(cluster) and numbers(cluster, "g"), "another leader", SETTLE_S)
    for name in ("c", "g"):
        heard(cluster, name)
    fill(wires[0], 2)
    assert [seq_of(frame) for frame in pull(wires[1], 2)] == [1, 2]
    [pinned] = pull(wires[2], 1, "g", group="g")
    assert pinned.headers["Nats-Pin-Id"]
    for wire in wires:
        wire.close()


def waiting(cluster: Cluster, name: str) -> int:
    """Return the number of waiting pull requests."""
    return int(cluster.api(f"CONSUMER.INFO.{STREAM}.{name}").get("num_waiting", -1))


def test_a_pin_does_not_outlive_a_killed_leader(start_cluster: StartCluster) -> None:
    """After a kill of the leader the pinned client is refused at its next request, and another one is pinned.

    The new client gets the unacked messages.
    """
    cluster = start_cluster(3)
    cluster.stream(STREAM, ["cs"])
    consumer(cluster, "g", priority_groups=["g"], priority_policy="pinned_client")
    leader = cluster.node(until(lambda: consumer_leader(cluster, "g"), "a leader", SETTLE_S))
    first, second = (cluster.wire(node) for node in cluster.others(leader))
    fill(first, 3)
    frames = pull(first, 2, "g", group="g")
    pin = frames[0].headers["Nats-Pin-Id"]
    confirm(first, frames[0])
    leader.kill()
    until(lambda: consumer_leader(cluster, "g") not in (None, "", leader.name), "another leader", SETTLE_S)
    until(lambda: numbers(cluster, "g").get("num_ack_pending") == 1, "its numbers", SETTLE_S)
    heard(cluster, "g")
    assert pull(first, 1, "g", group="g", id=pin)[0].status == 423
    again = pull(second, 2, "g", group="g")
    assert {seq_of(frame) for frame in again} == {2, 3}
    assert again[0].headers["Nats-Pin-Id"] == again[1].headers["Nats-Pin-Id"] != pin
    first.close()
    second.close()


def consumer_leader(cluster: Cluster, name: str) -> Any:
    """Return the name of the node that leads a consumer."""
    return cluster.api(f"CONSUMER.INFO.{STREAM}.{name}").get("cluster", {}).get("leader")


# ---- random faults


class Client(threading.Thread):
    """Client that uses a stream over any running node, and changes nodes when its node dies."""

    def __init__(self, cluster: Cluster, deliveries: Deliveries, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self.deliveries = deliveries
        self._rng = rng
        self._stopped = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Use the stream until `stop`."""
        while not self._stopped.is_set() and self.failure is None:
            node = self._rng.choice(self._cluster.nodes)
            try:
                with Wire((node.host, node.wanted_port), {}, 2.0) as wire:
                    self.deliveries.begin(wire)
                    while not self._stopped.is_set():
                        self.deliveries.publish(self._rng.choice((0, 0, 1, 3)))
                        self.deliveries.ask(10)
                        self.deliveries.turn()
                        self._stopped.wait(0.01)
            except (OSError, Closed, WireTimeout):
                self._stopped.wait(0.1)
            except BaseException as error:
                self.failure = error
            finally:
                self.deliveries.died()

    def stop(self) -> None:
        """Stop; raise the client's failure, if any."""
        self._stopped.set()
        self.join(10)
        if self.failure is not None:
            raise self.failure


def _kill(cluster: Cluster, node: Node, rng: random.Random) -> None:
    node.kill()
    node.start()


def _stepdown(cluster: Cluster, node: Node, rng: random.Random) -> None:
    cluster.api(f"STREAM.LEADER.STEPDOWN.{rng.choice(('D0', 'D1'))}")


def _hang(cluster: Cluster, node: Node, rng: random.Random) -> None:
    node.pause()
    threading.Event().wait(rng.uniform(0.5, 2.5))
    node.resume()


MISFORTUNES: list[Callable[[Cluster, Node, random.Random], None]] = [_kill, _kill, _stepdown, _hang]


def test_acks_and_messages_survive_changes_of_leaders(start_cluster: StartCluster, kind: Kind) -> None:
    if kind is Kind.REAL:
        pytest.skip("nats-server confirms an ack before a majority has it")
    seed = int(os.environ.get("LAKESTREAM_CLUSTER_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_CLUSTER_SEED={seed}")
    rng = random.Random(seed)
    cluster = start_cluster(3)
    used = [Deliveries(random.Random(rng.random()), f"D{n}", near=False, num_replicas=3) for n in range(2)]
    with cluster.wire() as wire:
        for each in used:
            print(each)
            each.prepare(wire)
            cluster.wait_current(each.name)
    clients = [Client(cluster, each, random.Random(rng.random())) for each in used]
    for client in clients:
        client.start()
    for turn in range(ROUNDS):
        time.sleep(rng.uniform(0, WORK_S))
        node = cluster.stream_leader(rng.choice(used).name) if rng.random() < 0.6 else rng.choice(cluster.nodes)
        misfortune = rng.choice(MISFORTUNES)
        print(f"{turn}: {misfortune.__name__[1:]} {node.name}", flush=True)
        before = [each.confirmed for each in used]
        misfortune(cluster, node, rng)
        until(lambda before=before: goes_on(clients, before), "acks are confirmed again", RECOVERY_S)
    for client in clients:
        client.stop()
    for each in used:
        cluster.wait_current(each.name)
        with cluster.wire(timeout=20.0) as wire:
            each.finish(wire)
    print(f"{[len(each.content) for each in used]} messages, {[each.confirmed for each in used]} confirmed acks")


def goes_on(clients: list[Client], before: list[int]) -> bool:
    """Return True if every client has had new acks confirmed or has failed."""
    pairs = zip(clients, before, strict=True)
    return any(client.failure for client in clients) or all(c.deliveries.confirmed > had for c, had in pairs)
