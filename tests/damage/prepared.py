"""Stores of three stopped nodes, and what their clients were told: where every case begins.

Belongs here: streams of each retention, the work on them until the nodes are stopped or killed, and the record of it.
Many cases begin with a copy of one such store, at the same path: that of its lake is part of it.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from lakestream.lake.staging import scan, staging
from tests.cluster.nodes import Cluster, Node, until
from tests.lake_faults import small_compactor
from tests.servers import Kind
from tests.wire import Closed, Frame, Wire, WireTimeout

NODES = 3
CONFIG = 'lake {{ url: "{lake}", seal_bytes: 16k, seal_age: "1s", poll: "200ms", retain_bytes: 16k }}'
TABLED = "TABLED"
"""Stream whose first messages are in its table alone; those of the others stay in the log."""
ALONE = "ALONE"
"""Stream with one replica."""
STREAMS: dict[str, dict[str, Any]] = {
    TABLED: {},
    "ORDERS": {},
    "JOBS": {"retention": "workqueue"},
    "NEWS": {"retention": "interest"},
    "KV_keys": {"subjects": ["$KV.keys.>"], "max_msgs_per_subject": 3},
    "RING": {"max_msgs": 120},
    ALONE: {"num_replicas": 1},
}
CONSUMERS: dict[str, Sequence[str]] = {"ORDERS": ("c",), "JOBS": ("c",), "NEWS": ("c", "d")}
ENDS = ("stopped", "killed", "behind")
"""Ends of the nodes: a clean stop; a kill while clients publish; the same, one node earlier than the others."""
WAIT_S = 60.0
SUBJECTS = 12
FIRST = 150
"""Messages of each stream before the old copy of the files is made."""
MORE = 90
BATCH = 10
"""Publishes without an answer, at most."""


@dataclass
class Known:
    """Knowledge that clients have of a stream.

    Attributes:
        sent: subject by payload, of all publishes.
        acked: payload by sequence, of those that were acked and not removed.
        gone: sequences whose removal was confirmed, or that a limit has removed.
        taken: by consumer, the sequences whose ack was confirmed.
        last: highest sequence that was acked.
        limit: most messages, 0: any number.
        keeps: most messages of a subject, 0: any number.
    """

    sent: dict[bytes, str] = field(default_factory=dict)
    acked: dict[int, bytes] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    taken: dict[str, set[int]] = field(default_factory=dict)
    last: int = 0
    limit: int = 0
    keeps: int = 0

    def publish(self, wire: Wire, subjects: Sequence[str], dice: Random) -> None:
        """Publish messages at once, one to each subject, and record the acks that come."""
        replies = dict[str, bytes]()
        for subject in subjects:
            data = b"%d %s " % (len(self.sent), subject.encode()) + dice.randbytes(dice.randrange(100, 500))
            self.sent[data] = subject
            replies[reply := wire.new_reply()] = data
            wire.publish(subject, data, reply)
        for reply, data in replies.items():
            answer = wire.message(reply).json()
            if "error" in answer:
                raise ValueError(answer)
            self.stored(answer["seq"], data)

    def stored(self, seq: int, data: bytes) -> None:
        """Record an ack."""
        self.acked[seq] = data
        self.last = max(self.last, seq)
        same = [each for each in sorted(self.acked) if self.sent[self.acked[each]] == self.sent[data]]
        self.remove(same[: -self.keeps] if self.keeps else ())
        self.remove(sorted(self.acked)[: -self.limit] if self.limit else ())

    def remove(self, seqs: Iterable[int]) -> None:
        """Record that messages are gone."""
        for seq in list(seqs):
            self.acked.pop(seq, None)
            self.gone.add(seq)


@dataclass
class Prepared:
    """Stopped nodes.

    Attributes:
        kept: directory of the nodes' stores and the lake.
        old: the same, some messages earlier.
        run: the path at which they were made, and at which each case runs.
        known: by stream.
        end: how the nodes ended, one of `ENDS`.
    """

    kept: Path
    old: Path
    run: Path
    known: dict[str, Known]
    end: str

    def begin(self) -> tuple[Cluster, dict[str, Known]]:
        """Put a copy of the stores in place; return a cluster that is not started, and what is known, for one case."""
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.kept, self.run)
        return made(self.run), copy.deepcopy(self.known)


def made(place: Path) -> Cluster:
    """Return the cluster whose stores are in this directory."""
    return Cluster(Kind.OURS, place, NODES, config=CONFIG.format(lake=place / "lake"))


def prepare(place: Path, seed: int) -> Prepared:
    """Make a store in this directory, which is new."""
    dice = Random(f"store {seed}")
    prepared = Prepared(place / "kept", place / "old", place / "run", {}, ENDS[seed % len(ENDS)])
    (prepared.run / "lake").mkdir(parents=True)
    cluster = made(prepared.run)
    try:
        cluster.start()
        _create(cluster, prepared.known)
        _work(cluster, prepared, dice)
        _end(cluster, prepared, dice)
    finally:
        cluster.kill()
    prepared.run.rename(prepared.kept)
    return prepared


def subjects_of(stream: str, dice: Random, count: int) -> list[str]:
    """Return random subjects of a stream."""
    prefix = STREAMS[stream].get("subjects", [f"{stream}.>"])[0].removesuffix(">")
    return [f"{prefix}{dice.randrange(SUBJECTS)}" for _ in range(count)]


def _create(cluster: Cluster, known: dict[str, Known]) -> None:
    for name, fields in STREAMS.items():
        config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": NODES, "allow_direct": True, **fields}
        cluster.ask(f"STREAM.CREATE.{name}", config)
        known[name] = Known(limit=fields.get("max_msgs", 0), keeps=fields.get("max_msgs_per_subject", 0))
        for consumer in CONSUMERS.get(name, ()):
            config = {"durable_name": consumer, "ack_policy": "explicit", "max_ack_pending": -1}
            cluster.ask(f"CONSUMER.CREATE.{name}.{consumer}", {"stream_name": name, "config": config})
            known[name].taken[consumer] = set()
    for name in STREAMS:
        cluster.wait_current(name, WAIT_S)


def _work(cluster: Cluster, prepared: Prepared, dice: Random) -> None:
    lake = str(prepared.run / "lake")
    with cluster.wire(timeout=WAIT_S) as wire:
        for name, known in prepared.known.items():
            for _ in range(FIRST // BATCH):
                known.publish(wire, subjects_of(name, dice, BATCH), dice)
        _compact(cluster, lake)
        for name in STREAMS:
            cluster.wait_current(name, WAIT_S)
        for node in cluster.nodes:  # what is being written may be torn in it, as in other copies of running systems
            shutil.copytree(node.store, prepared.old / node.name, ignore=shutil.ignore_patterns("*.tmp", "LOCK"))
        for name, known in prepared.known.items():
            for number in range(MORE // BATCH):
                known.publish(wire, subjects_of(name, dice, BATCH), dice)
                if number % 3 == 0:
                    _change(wire, name, known, dice)


def _compact(cluster: Cluster, lake: str) -> None:
    """Commit the first messages of one stream to its table, until they have left the log."""

    def released() -> bool:
        for stream in staging.current(scan.Scanner(lake).scan())[0]:
            if stream.identity.name == TABLED:
                with contextlib.suppress(Exception):  # nothing is staged yet, say: the next round does it
                    small_compactor.compact(lake, stream)
        return all(any((node.stream_directory(TABLED) / "log").glob("*.outline")) for node in cluster.nodes)

    until(released, "messages in the table", WAIT_S)


def _change(wire: Wire, name: str, known: Known, dice: Random) -> None:
    """Delete messages, also securely, or take some as a consumer."""
    for consumer in CONSUMERS.get(name, ()):
        taken = take(wire, name, consumer, 12)
        for seq, frame in taken.items():
            if seq % 3:
                assert not wire.request(frame.reply, b"+ACK").data
                known.taken[consumer].add(seq)
    if name in ("JOBS", "NEWS"):
        known.remove(set.intersection(*known.taken.values()))
    else:
        for seq in dice.sample(sorted(known.acked), 4):
            answer = wire.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq, "no_erase": dice.random() < 0.5})
            assert answer.get("success"), answer
            known.remove([seq])


def take(wire: Wire, stream: str, consumer: str, count: int) -> dict[int, Frame]:
    """Return the next messages of a consumer, by sequence."""
    reply = wire.new_reply()
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", b'{"batch":%d,"no_wait":true}' % count, reply)
    found = dict[int, Frame]()
    while len(found) < count:
        frame = wire.next(lambda frame: frame.subject == reply or ".ACK." in frame.reply)
        if frame.status:
            break
        found[int(frame.reply.split(".")[5])] = frame
    return found


def _end(cluster: Cluster, prepared: Prepared, dice: Random) -> None:
    if prepared.end == "stopped":
        for name in STREAMS:
            cluster.wait_current(name, WAIT_S)
        each(cluster.nodes, lambda node: node.stop(signal.SIGTERM))
        return
    if prepared.end == "behind":
        holder = cluster.stream_leader(ALONE)
        cluster.others(holder)[0].kill()
        for name in STREAMS:
            cluster.stream_leader(name)
    entrance, enough = cluster.running[0], threading.Event()

    def publish() -> None:
        done = 0
        try:
            with cluster.wire(entrance, WAIT_S) as wire:
                while True:
                    for name, known in prepared.known.items():
                        known.publish(wire, subjects_of(name, dice, BATCH), dice)
                    done += 1
                    if done == 3:
                        enough.set()
        except (Closed, OSError):
            return
        except (WireTimeout, ValueError):  # the others were killed a little earlier
            return
        finally:
            enough.set()

    thread = threading.Thread(target=publish)
    thread.start()
    enough.wait(WAIT_S)
    each(cluster.running, Node.kill)
    thread.join()


def each(nodes: Iterable[Node], work: Callable[[Node], Any]) -> None:
    """Do something with all nodes at once."""
    with ThreadPoolExecutor(NODES) as threads:
        list(threads.map(work, list(nodes)))
