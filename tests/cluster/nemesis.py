"""Faults that a running cluster has to survive, and schedules of them that a seed repeats.

Belongs here: each fault with its end, for campaigns and for tests of one; the choice of steps; and the export of a
schedule as faults of the simulator (tests/sim/script.py). A fault leaves every node running, the network whole and the
damaged replica complete, so that faults may follow each other in any order.
"""

from __future__ import annotations

import copy
import os
import random
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec

from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, decode_frame, salt_at
from lakestream.log.format.segment import HEADER_SIZE
from tests.cluster.nodes import Cluster, Node, NotReady, until
from tests.cluster.supply import Power
from tests.power.disk import ONE_DISK
from tests.servers import Kind
from tests.wire import Closed, WireTimeout

LEADER = -1
"""Victim of a step: the node that leads the stream when the step begins."""
DISK_ERRORS = ({"write": "ENOSPC"}, {"sync": "EIO"})
NO_MEMBER = (10040, 10044)
CLOCK_STEPS_S = (-300, -20, 20, 300)
CLOCK_RATES = (0.2, 0.8, 1.5, 5)
_KEY = re.compile(r'\bkey: "([^"]*)"(, prev_key: "[^"]*")?')


class Step(msgspec.Struct, frozen=True):
    """One fault of a schedule.

    Attributes:
        fault: name in `FAULTS`.
        victim: index of the node, or `LEADER`.
        seconds: duration.
        seed: of its further choices.
        calm: seconds without a fault before it.
    """

    fault: str
    victim: int
    seconds: float
    seed: int
    calm: float

    def __str__(self) -> str:
        who = "leader" if self.victim == LEADER else f"n{self.victim + 1}"
        return f"{self.fault} {who} {self.seconds:.1f} s"


class Compactor(Protocol):
    """Process of a compactor."""

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def kill_jvm(self) -> None: ...


class Nemesis:
    """Injects faults into a cluster.

    Args:
        streams: the streams whose leaders and replicas are the targets; the first one is meant by `LEADER`.
        compactor: process of the cluster's compactor, if it has one.
        lake: the lake's directory.
        power: of the nodes, if they can lose it.
        keys: of encrypted stores.
        alone: streams with one replica, which no fault takes back: nobody else has what they acked.
    """

    def __init__(
        self,
        cluster: Cluster,
        streams: Sequence[str],
        compactor: Compactor | None = None,
        lake: Path | None = None,
        power: Power | None = None,
        keys: Sequence[str] = (),
        alone: Sequence[str] = (),
    ) -> None:
        self.cluster = cluster
        self.streams = streams
        self.compactor = compactor
        self.lake = lake
        self.power = power
        self.keys = keys
        self.alone = alone

    def apply(self, step: Step) -> str:
        """Inject one fault and end it; return the name of its victim."""
        node = self.leader() if step.victim == LEADER else self.cluster.nodes[step.victim % len(self.cluster.nodes)]
        FAULTS[step.fault](self, node, step.seconds, random.Random(step.seed))
        return node.name

    def apply_all(self, steps: Sequence[Step]) -> list[str]:
        """Inject faults at once, each with a victim of its own; return the names of the victims.

        Raises:
            NotReady: the cluster did not come to a state that a fault needs.
        """
        left = list(self.cluster.nodes)
        victims: list[Node] = []
        for step in steps:
            wanted = (
                self.leader() if step.victim == LEADER else self.cluster.nodes[step.victim % len(self.cluster.nodes)]
            )
            victims.append(wanted if wanted in left else left[0])
            left.remove(victims[-1])

        def inject(step: Step, node: Node) -> None:
            apart = copy.copy(self)
            apart.cluster = self.cluster.apart()
            FAULTS[step.fault](apart, node, step.seconds, random.Random(step.seed))

        with ThreadPoolExecutor(len(steps)) as threads:
            for done in [threads.submit(inject, *each) for each in zip(steps, victims, strict=True)]:
                done.result()
        return [node.name for node in victims]

    def leader(self) -> Node:
        """Return the leader of the first stream."""
        return self.cluster.stream_leader(self.streams[0])

    def wait_current(self) -> None:
        """Wait until all replicas of all streams are current."""
        for stream in self.streams:
            self.cluster.wait_current(stream, 60)

    # ---- processes

    def kill(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Kill a node with SIGKILL; start it after a while."""
        node.kill()
        wait(seconds)
        node.start()

    def kill_all(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Kill all nodes at about the same time; start them again."""
        for each in self.cluster.nodes:
            each.kill()
        for each in self.cluster.nodes:
            each.start()

    def kill_minority(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Kill as many nodes as the cluster survives: one of three, two of five."""
        others = rng.sample(self.cluster.others(node), (len(self.cluster.nodes) - 1) // 2 - 1)
        for each in (node, *others):
            each.kill()
        wait(seconds)
        for each in (node, *others):
            each.start()

    def pause(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Pause a node with SIGSTOP, then resume it."""
        node.pause()
        wait(seconds)
        node.resume()

    def restart(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Restart one node as an operator does."""
        node.stop(signal.SIGTERM)
        node.start()

    def roll(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Restart all nodes, one after the other, each once the cluster serves again."""
        for each in self.cluster.nodes:
            each.stop(signal.SIGTERM)
            each.start()
            self.cluster.wait_ready(60)
            self.wait_current()

    def lose_power(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Cut a node's power; start it after a while on what it had synced, or a torn part of the rest."""
        self._lose_power([node], rng)
        wait(seconds)
        node.start()

    def lose_all_power(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Cut the power of all nodes at one moment; start them again."""
        self._lose_power(self.cluster.nodes, rng)
        for each in self.cluster.nodes:
            each.start()

    def _lose_power(self, nodes: Sequence[Node], rng: random.Random) -> None:
        """Cut the power of nodes; kill those that have lost it before."""
        assert self.power is not None, "this cluster has no recorders"
        for node in nodes:
            if not self.power.covers(node):
                node.kill()
        self.power.off([node for node in nodes if self.power.covers(node)], rng.choice(ONE_DISK))

    def rotate_key(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Restart a node with another key for its store, and the one before as the previous key."""
        config = node.config or ""
        found = _KEY.search(config)
        assert found is not None, "the store is not encrypted"
        new = rng.choice([key for key in self.keys if key != found[1]])
        node.config = _KEY.sub(f'key: "{new}", prev_key: "{found[1]}"', config, count=1)
        node.stop(signal.SIGTERM)
        node.start()

    # ---- network

    def isolate(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Cut a node off from the others in both directions, but not from its clients."""
        self.cluster.isolate(node)
        self._heal(seconds)

    def one_way(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Drop everything that a node sends to the others, or everything that they send to it."""
        ends = [[node], self.cluster.others(node)]
        rng.shuffle(ends)
        self.cluster.cut(*ends)
        self._heal(seconds)

    def halves(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Split the cluster in two; the node is in the minority."""
        others = rng.sample(self.cluster.others(node), (len(self.cluster.nodes) - 1) // 2 - 1)
        minority = [node, *others]
        majority = self.cluster.others(*minority)
        self.cluster.cut(minority, majority)
        self.cluster.cut(majority, minority)
        self._heal(seconds)

    def bridge(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Split all others in two halves that reach each other only through this node."""
        others = self.cluster.others(node)
        rng.shuffle(others)
        left, right = others[: len(others) // 2], others[len(others) // 2 :]
        self.cluster.cut(left, right)
        self.cluster.cut(right, left)
        self._heal(seconds)

    def slow_network(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Delay everything between a node and the others."""
        self.cluster.slow(node, rng.uniform(0, 0.2))
        self._heal(seconds)

    def reset(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Break a node's connections to the others several times."""
        for _ in range(max(1, int(seconds / 0.3))):
            self.cluster.reset_links(node)
            wait(0.3)

    def _heal(self, seconds: float) -> None:
        wait(seconds)
        self.cluster.heal()

    # ---- disks and clocks (lakestream alone)

    def disk_error(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Let a node's disk be full, or fail to sync; then restart the node with a good disk."""
        node.fail(**rng.choice(DISK_ERRORS))
        wait(seconds)
        node.kill()
        node.fail()
        node.start()

    def slow_disk(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Let each sync of a node take longer."""
        node.fail(sync_seconds=rng.uniform(0, 0.5))
        wait(seconds)
        node.fail()

    def clock(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Step a node's wall clock, and step it back."""
        node.fail(clock_seconds=rng.choice(CLOCK_STEPS_S))
        wait(seconds)
        node.fail()

    def clock_skew(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Let a node's wall clock go slower or faster, then step it to the right time."""
        node.fail(clock_rate=rng.choice(CLOCK_RATES))
        wait(seconds)
        node.fail()

    def roll_back(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Restore a node's disk from a copy that was made a moment before, while the others have everything."""
        saved = node.store.with_name(f"{node.store.name}.saved")
        node.stop(signal.SIGTERM)
        shutil.copytree(node.store, saved)
        node.start()
        self.wait_current()
        wait(seconds)
        self.wait_current()
        self._kill_unrecorded(node)
        for place in (node.stream_directory(stream, self.cluster.user[1]) for stream in self.alone):
            older = saved / place.relative_to(node.store)
            shutil.rmtree(older, ignore_errors=True)
            if place.exists():
                shutil.copytree(place, older)
        shutil.rmtree(node.store)
        saved.rename(node.store)
        node.start()
        self.wait_current()

    def _kill_unrecorded(self, node: Node) -> None:
        """Kill a node whose files are changed past the recorder of its power supply: it cannot lose its power later."""
        node.kill()
        if self.power is not None:
            self.power.leave(node)

    def damage(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Flip a bit in a segment of a killed node, or remove one, while the others have everything."""
        stream = rng.choice(list(self.streams))
        self.cluster.wait_current(stream, 60)
        self._kill_unrecorded(node)
        if found := segments(node, stream, self.cluster.user[1]):
            rng.choice([flip_bit, remove])(rng.choice(found[:-1] or found), rng)
        node.start()
        self.wait_current()

    # ---- operators

    def step_down(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Have the leaders of streams step down a few times."""
        for _ in range(rng.randrange(1, 4)):
            stream = rng.choice(list(self.streams))
            leader = self.cluster.stream_leader(stream)
            self._ask(f"STREAM.LEADER.STEPDOWN.{stream}", None, leader)
            wait(0.1)

    def scale(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Scale a stream from three replicas to one or five, and back."""
        stream = rng.choice(list(self.streams))
        choices = [1, 5] if len(self.cluster.nodes) >= 5 else [1]
        for replicas in (rng.choice(choices), 3):
            scale(self.cluster, stream, replicas)

    def remove_peer(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Move a replica of a stream to another node, mostly the leader's."""
        stream = rng.choice(list(self.streams))
        leader = self.cluster.stream_leader(stream)
        peer = leader
        if rng.random() >= 0.6:  # other faults may keep the cluster from answering for a while
            peer = rng.choice(until(lambda: self.cluster.followers(stream) or [leader], f"replicas of {stream}"))
        subject, body = f"STREAM.PEER.REMOVE.{stream}", {"peer": peer.name}
        until(lambda: _removed(self.cluster.api(subject, body)), f"{peer.name} removed from {stream}")
        self.cluster.wait_current(stream, 60)

    def leave(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Remove a node from the cluster, then let it join again."""
        size = len(self.cluster.nodes)
        until(
            lambda: _removed(self.cluster.system_api("SERVER.REMOVE", {"peer": node.name}, timeout=10.0)),
            f"{node.name} removed",
            60,
        )
        wait(seconds)
        node.stop(signal.SIGTERM)
        node.start()
        until(lambda: self.cluster.meta_leader().page("jsz")["meta_cluster"]["cluster_size"] == size, "all members", 60)
        self.wait_current()

    def _ask(self, subject: str, body: object, node: Node) -> None:
        """Send a request that may fail: the cluster may be about to elect a leader."""
        try:
            self.cluster.api(subject, body, node=node)
        except (OSError, ValueError, LookupError, Closed, WireTimeout, NotReady):
            return

    # ---- the lake

    def kill_compactor(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Kill the compactor with its JVM; start it after a while."""
        if self.compactor is not None:
            self.compactor.kill()
            wait(seconds)
            self.compactor.start()

    def kill_jvm(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Kill the compactor's JVM alone; after a while end what is left, and start the compactor anew."""
        if self.compactor is not None:
            self.compactor.kill_jvm()
            wait(seconds)
            self.compactor.kill()
            self.compactor.start()

    def slow_lake(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Let each operation of a node on the lake's files take longer."""
        node.fail(lake_seconds=rng.uniform(0.05, 2))
        wait(seconds)
        node.fail()

    def lake_away(self, node: Node, seconds: float, rng: random.Random) -> None:
        """Let the lake's directory vanish, as a file system that is not mounted does; then bring it back."""
        if self.lake is None:
            return
        away = self.lake.with_name(f"{self.lake.name}.away")
        os.rename(self.lake, away)
        wait(seconds)
        if self.lake.exists():  # written below the mount point, and hidden by the mount
            os.rename(self.lake, self.lake.with_name(f"{self.lake.name}.hidden{rng.randrange(1 << 30)}"))
        os.rename(away, self.lake)


Fault = Callable[[Nemesis, Node, float, random.Random], None]
FAULTS: dict[str, Fault] = {
    "kill": Nemesis.kill,
    "kill-all": Nemesis.kill_all,
    "power": Nemesis.lose_power,
    "power-all": Nemesis.lose_all_power,
    "kill-minority": Nemesis.kill_minority,
    "pause": Nemesis.pause,
    "restart": Nemesis.restart,
    "roll": Nemesis.roll,
    "rotate-key": Nemesis.rotate_key,
    "isolate": Nemesis.isolate,
    "one-way": Nemesis.one_way,
    "halves": Nemesis.halves,
    "bridge": Nemesis.bridge,
    "slow-network": Nemesis.slow_network,
    "reset": Nemesis.reset,
    "disk-error": Nemesis.disk_error,
    "slow-disk": Nemesis.slow_disk,
    "clock": Nemesis.clock,
    "clock-skew": Nemesis.clock_skew,
    "roll-back": Nemesis.roll_back,
    "damage": Nemesis.damage,
    "step-down": Nemesis.step_down,
    "scale": Nemesis.scale,
    "remove-peer": Nemesis.remove_peer,
    "leave": Nemesis.leave,
    "kill-compactor": Nemesis.kill_compactor,
    "kill-jvm": Nemesis.kill_jvm,
    "slow-lake": Nemesis.slow_lake,
    "lake-away": Nemesis.lake_away,
}
LAKE = ("kill-compactor", "kill-jvm", "slow-lake", "lake-away")
OURS = ("disk-error", "slow-disk", "clock", "clock-skew", "roll-back", "damage", *LAKE)
"""Faults of files and programs that only lakestream has."""
SPARE = ("remove-peer", "leave")
"""Faults that need a node more than the streams have replicas."""
POWER = ("power", "power-all")
SYNCED = ("roll-back", *POWER)
"""Faults that nothing acked outlives unless it was synced before."""
SEALED = ("rotate-key",)


def possible(
    kind: Kind, nodes: int, lake: bool, *, synced: bool = True, power: bool = False, encrypted: bool = False
) -> list[str]:
    """Return the names of the faults that a cluster of this kind and size can have.

    Args:
        synced: acks wait for the sync.
        power: the nodes can lose their power.
        encrypted: their stores are encrypted.
    """
    has = {OURS: kind is Kind.OURS, SPARE: nodes > 3, LAKE: lake, SYNCED: synced, POWER: power, SEALED: encrypted}
    without = [name for names, there in has.items() if not there for name in names]
    return [name for name in FAULTS if name not in without]


def schedule(seed: int, faults: Sequence[str], nodes: int) -> Iterator[Step]:
    """Yield steps without end, which depend on the arguments alone. In each round every fault comes once."""
    rng = random.Random(seed)
    while True:
        for fault in rng.sample(list(faults), len(faults)):
            victim = LEADER if rng.random() < 0.5 else rng.randrange(nodes)
            yield Step(
                fault, victim, round(rng.uniform(0.5, 6), 2), rng.randrange(1 << 32), round(rng.uniform(1, 5), 2)
            )


CLASSES = {
    "process": ("kill", "power", "pause", "restart", "rotate-key", "disk-error", "roll-back", "damage", "leave"),
    "processes": ("kill-all", "power-all", "kill-minority", "roll"),
    "network": ("isolate", "one-way", "halves", "bridge", "slow-network", "reset"),
    "node": ("slow-disk", "clock", "clock-skew", "slow-lake"),
    "operator": ("step-down", "scale", "remove-peer"),
    "lake": ("kill-compactor", "kill-jvm", "lake-away"),
}
"""Faults by what they need for themselves: of each class one at a time."""
APART = (
    frozenset(("process", "processes")),
    frozenset(("damage", "scale")),
    frozenset(("damage", "remove-peer")),
    frozenset(("leave", "scale")),
    frozenset(("leave", "remove-peer")),
    frozenset(("roll-back", "network")),
    frozenset(("roll-back", "scale")),
    frozenset(("roll-back", "remove-peer")),
)
"""Pairs that would stop the same process twice, or take the last whole copy away from a damaged replica, or from one
that was rolled back the members that know it."""


def together(seed: int, faults: Sequence[str], nodes: int, most: int) -> Iterator[list[Step]]:
    """Yield steps that begin at the same time, two to `most` of different classes, without end.

    In each round every fault comes at least once. The first step of each has the time without faults before it.
    """
    rng = random.Random(f"together {seed}")
    of = {fault: name for name, names in CLASSES.items() for fault in names}
    while True:
        for first in rng.sample(list(faults), len(faults)):
            chosen = [first]
            for fault in rng.sample(list(faults), len(faults)):
                pairs = [
                    frozenset(pair)
                    for each in chosen
                    for pair in ((fault, each), (of[fault], of[each]), (fault, of[each]), (of[fault], each))
                ]
                if all(len(pair) == 2 and pair not in APART for pair in pairs):
                    chosen.append(fault)
            calm = round(rng.uniform(1, 5), 2)
            steps = []
            for fault in chosen[: rng.randint(2, most)]:
                victim = LEADER if rng.random() < 0.5 else rng.randrange(nodes)
                steps.append(Step(fault, victim, round(rng.uniform(1, 6), 2), rng.randrange(1 << 32), calm))
                calm = 0.0
            yield steps


# ---- parts of faults that tests use by themselves


def _removed(answer: dict[str, Any]) -> bool:
    """Return True if a member is removed: by this request, or by an earlier one whose answer was lost."""
    return bool(answer.get("success")) or answer.get("error", {}).get("err_code") in NO_MEMBER


def wait(seconds: float) -> None:
    """Let a fault last this long. Clients work in their own threads."""
    threading.Event().wait(seconds)


def scale(cluster: Cluster, stream: str, replicas: int) -> None:
    """Change a stream's number of replicas, and wait until all are current."""
    config = cluster.ask(f"STREAM.INFO.{stream}")["config"]
    cluster.ask(f"STREAM.UPDATE.{stream}", config | {"num_replicas": replicas})
    until(lambda: len(cluster.followers(stream)) == replicas - 1, f"{replicas} replicas", 60)
    cluster.wait_current(stream, 60)


def written(path: str) -> int:
    """Return the length of a file without the zeros that a killed node leaves behind the entries."""
    return len(Path(path).read_bytes().rstrip(b"\0"))


def flip_bit(path: str, rng: random.Random) -> None:
    """Flip a random bit in the first nine tenths of a file, where an entry is followed by others."""
    size = written(path)
    with open(path, "r+b") as file:
        at = rng.randrange(size // 10, size * 9 // 10)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def truncate(path: str, rng: random.Random) -> None:
    """Truncate a file somewhere in the middle."""
    os.truncate(path, rng.randrange(written(path) // 4, written(path) * 3 // 4))


def remove(path: str, rng: random.Random) -> None:
    """Remove a file."""
    os.unlink(path)


def segments(node: Node, stream: str, account: str = "$G") -> list[str]:
    """Return the message files of a node's replica, oldest first."""
    suffix = ".blk" if node.kind is Kind.REAL else ".seg"
    return sorted(
        str(path) for path in node.stream_directory(stream, account).rglob(f"*{suffix}") if path.stat().st_size
    )


def frames_of(path: Path) -> dict[int, int]:
    """Return the offset of each entry of an open segment."""
    content, at, found = path.read_bytes(), HEADER_SIZE, dict[int, int]()
    while isinstance(frame := decode_frame(content, at, len(content), salt_at(content, HEADER_SIZE)), Frame):
        found[frame.index], at = at, at + FRAME_HEADER + len(frame.body)
    return found


def spoil(path: Path, offset: int) -> None:
    """Flip a bit in the body of the entry at an offset."""
    content = bytearray(path.read_bytes())
    content[offset + FRAME_HEADER + 2] ^= 4
    path.write_bytes(content)
