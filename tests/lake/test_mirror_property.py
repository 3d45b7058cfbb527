"""Tests of mirrors and sources under random changes and failures of either side and of the lake: copies stay equal.

Rounds of random publishes, deletes and purges in an origin of a random configuration, while servers are killed or
stopped (that of the origin, of the mirror, of the sources), while compactor and maintainer (OPTIMIZE, VACUUM) work on
the tables, and while mirrors are deleted and created again, in some lives as clones of the origin's table. On one
server, and on three with each stream on another one. After each round the copies catch up and are compared by sequence,
subject, time, header block and data; at the end their tables are compared with them as well.

LAKESTREAM_MIRROR_ROUNDS (1): rounds of each life; LAKESTREAM_MIRROR_LIVES (1): lives of each kind, each with streams
and servers of its own. LAKESTREAM_MIRROR_SEED repeats a run's choices, but not the servers' timing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.storage import paths
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import Policy
from tests import copied
from tests.cluster.nodes import Cluster, until
from tests.copied import Mirror, Origin, Sources
from tests.lake import tables
from tests.servers import Kind, Server
from tests.wire import Wire, pub

pytestmark = [pytest.mark.lake, pytest.mark.chaos, pytest.mark.cluster]

ROUNDS = int(os.environ.get("LAKESTREAM_MIRROR_ROUNDS", "1"))
LIVES = int(os.environ.get("LAKESTREAM_MIRROR_LIVES", "1"))
SEED = int(os.environ.get("LAKESTREAM_MIRROR_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
STEPS = (5, 9)
"""Minimum and maximum number of steps in a round."""
BURST = 60
SOON_S = 120.0
LAKE = 'seal_bytes: 8192, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0'
HEADERS = (
    b"",
    b"",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nKind: of blue\r\n\r\n",
    b"NATS/1.0\r\nA:1\r\na:  2 \r\nA: 3\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Stream: L\r\n\r\n",
    b"NATS/1.0\r\nX: y\r\nNats-Expected-Stream: L\r\nZ: \r\n\r\n",
    b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n",
)
MIRRORS: list[tuple[dict[str, Any], Callable[[bytes], bool], Callable[[bytes], bytes]]] = [
    ({}, lambda subject: True, lambda subject: subject),
    ({}, lambda subject: True, lambda subject: subject),
    ({"filter_subject": "l.1"}, lambda subject: subject == b"l.1", lambda subject: subject),
    (
        {"subject_transforms": [{"src": "l.*", "dest": "was.{{wildcard(1)}}.l"}]},
        lambda subject: True,
        lambda subject: b"was.%b.l" % subject[2:],
    ),
]
"""Configurations of mirrors, with their filters and transforms as functions."""


class World:
    """Streams that are copied or copy, their servers, and their expected contents.

    Args:
        homes: the servers of L and W, of M, and of S; all the same, or all different.
        tags: of these servers, in a cluster.
    """

    def __init__(
        self, spark: Any, dice: random.Random, lake: str, homes: list[Server], tags: list[str], ready: Callable[[], Any]
    ) -> None:
        self._dice, self._homes, self._tags, self._ready = dice, homes, tags, ready
        self.lake = lake
        self._compactor = Compactor(spark, lake)
        assert self._compactor.acquire()
        self._maintainer = Maintainer(spark, lake, Policy(min_files=2, retain_ns=0, checkpoint_commits=5))
        self._number = 0
        self.queue, self.origin = Origin("W", queue=True), Origin("L")
        fields, wanted, renamed = dice.choice(MIRRORS)
        self._mirrored: dict[str, Any] = {"mirror": {"name": "L", **fields}}
        self._clones = dice.random() < 0.5
        if self._clones:
            self._mirrored["metadata"] = {"lakestream.clone": "always"}
        self.mirror = Mirror("M", self.origin, wanted, renamed, clone=self._clones)
        from_l: Callable[[bytes], bool] = lambda subject: subject == b"l.2"  # noqa: E731
        self.sources = Sources("S", {"L": (self.origin, from_l), "W": (self.queue, lambda subject: True)})
        self.done: list[str] = []
        """Steps of this round."""

    def begin(self) -> None:
        """Create the streams."""
        limits = self._dice.choice([{}, {}, {"max_msgs_per_subject": 50}, {"max_msgs": 120}])
        self._create(0, {"name": "L", "subjects": ["l.*"], "allow_rollup_hdrs": True, **limits})
        self._create(0, {"name": "W", "subjects": ["w.*"], "retention": "workqueue"})
        self._create_mirror()
        sources = [{"name": "L", "filter_subject": "l.2"}, {"name": "W"}]
        self._create(2, {"name": "S", "subjects": ["own.*"], "sources": sources})

    def _create(self, home: int, config: dict[str, Any]) -> None:
        placed = {"placement": {"tags": [self._tags[home]]}} if self._tags else {}

        def created() -> bool:
            with self.wire(home) as wire:
                answer = wire.api(f"STREAM.CREATE.{config['name']}", config | placed)
            return "config" in answer

        until(created, f"{config['name']} is made", SOON_S)

    def _create_mirror(self) -> None:
        self._create(1, {"name": "M", **self._mirrored})

    @contextmanager
    def wire(self, home: int) -> Iterator[Wire]:
        """Connect to the server of a stream."""
        with Wire(self._homes[home].address, timeout=20) as wire:
            yield wire

    def _look(self, stream: Origin | Mirror | Sources, home: int) -> None:
        """Read a stream once it is available. Timeouts are retried, failed comparisons are not."""

        def served() -> bool:
            with self.wire(home) as wire:
                stream.look(wire)
            return True

        until(served, f"{stream.stream} can be read", SOON_S)

    # ------------------------------------------------------------------ steps
    def step(self) -> None:
        """Do one random step."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (40, self.publish),
            (8, self.publish_and_kill),
            (10, self.delete),
            (6, self.purge),
            (8, self.kill),
            (4, self.stop),
            (8, self.away),
            (8, self.compact),
            (4, self.maintain),
            (5, self.mirror_anew),
        ]
        (chosen,) = self._dice.choices([work for _, work in steps], [weight for weight, _ in steps])
        self.done.append(chosen.__name__)
        chosen()

    def publish(self) -> None:
        """Publish to all streams that accept messages, and await the acks."""
        self._publish(0, self._dice.choices(("l.1", "l.2", "w.1"), (4, 3, 2), k=self._dice.randint(1, BURST)))
        self._publish(2, ["own.1"] * self._dice.randint(0, 3))

    def _burst(self, subjects: list[str]) -> list[tuple[str, bytes, bytes]]:
        """Return messages for these subjects, after recording each."""
        burst = []
        for subject in subjects:
            self._number += 1
            data = b"%d:" % self._number + self._dice.randbytes(self._dice.choice((0, 7, 200)))
            header = self._dice.choice(HEADERS if subject[0] == "l" else HEADERS[:5])
            self._of(subject).publishes(subject.encode(), header, data)
            burst.append((subject, header, data))
        return burst

    def _of(self, subject: str) -> Origin:
        return {"l": self.origin, "w": self.queue, "o": self.sources.own}[subject[0]]

    def _publish(self, home: int, subjects: list[str]) -> None:
        waiting = self._burst(subjects)
        with self.wire(home) as wire:
            while waiting:  # while a stream has no leader after a start, messages get no answer and are published again
                asked = [(wire.new_reply(), one) for one in waiting]
                wire.send(b"".join(pub(one[0], one[2], reply, one[1] or None) for reply, one in asked))
                waiting = []
                for reply, one in asked:
                    seq, error = copied.answered(wire.message(reply).data)
                    if error:
                        assert error == copied.NOBODY, error
                        waiting.append(one)
                    else:
                        self._of(one[0]).acked[seq] = one[2]

    def publish_and_kill(self) -> None:
        """Kill the origin's server during publishes; unacked messages may be stored or not."""
        burst = self._burst(self._dice.choices(("l.1", "l.2", "w.1"), k=4 * BURST))
        with self.wire(0) as wire:
            asked = {wire.new_reply(): one for one in burst}
            wire.send(b"".join(pub(one[0], one[2], reply, one[1] or None) for reply, one in asked.items()))
            came = []
            if self._dice.random() < 0.7:  # in the middle of the publishes
                came.append(wire.message(self._dice.choice(list(asked))))
            self._homes[0].kill()
            with suppress(ConnectionError):
                came += wire.until_closed()
        for frame in came:
            if frame.subject in asked:
                seq, error = copied.answered(frame.data)
                assert error in ("", copied.NOBODY), error
                if not error:
                    subject, _, data = asked[frame.subject]
                    self._of(subject).acked[seq] = data
        self._start(0)

    def delete(self) -> None:
        """Delete one message of the origin, perhaps securely."""
        self._look(self.origin, 0)
        self._look_at_copies()
        if self.origin.live:
            body = {"seq": self._dice.choice(sorted(self.origin.live)), "no_erase": self._dice.random() < 0.5}
            self._change("STREAM.MSG.DELETE.L", body)

    def purge(self) -> None:
        """Purge many messages of the origin."""
        self._look(self.origin, 0)
        self._look_at_copies()
        last = max(self.origin.history, default=0)
        bodies: list[dict[str, Any]] = [{}, {"keep": 10}, {"filter": "l.2"}, {"seq": self._dice.randint(1, last + 2)}]
        self._change("STREAM.PURGE.L", self._dice.choice(bodies))

    def _change(self, subject: str, body: dict[str, Any]) -> None:
        def done() -> bool:
            with self.wire(0) as wire:
                answer = wire.api(subject, body)
            return bool(answer.get("success")) or answer.get("error", {}).get("err_code") == 10057  # by an earlier try

        until(done, f"{subject} {body}", SOON_S)

    def _look_at_copies(self) -> None:
        """Read one of the copies; its present messages must stay, whatever the origin removes."""
        if self._dice.random() < 0.5:
            self._look(self.mirror, 1)
        else:
            self._look(self.sources, 2)

    def kill(self) -> None:
        """Kill a server and start it again."""
        home = self._dice.randrange(3)
        self._homes[home].kill()
        self._start(home)

    def stop(self) -> None:
        """Stop a server and start it again."""
        home = self._dice.randrange(3)
        self._homes[home].stop()
        self._start(home)

    def away(self) -> None:
        """Stop the copies' servers while the origin gets messages, is compacted and maintained."""
        homes = [home for home in (1, 2) if self._homes[home] is not self._homes[0]]
        if not homes:
            self.compact()
            return
        home = self._dice.choice(homes)
        self._homes[home].kill()
        self.publish_there()
        self.compact()
        self.maintain()
        self._start(home)

    def publish_there(self) -> None:
        """Publish to the origins only."""
        self._publish(0, self._dice.choices(("l.1", "l.2", "w.1"), (4, 3, 2), k=2 * BURST))

    def _start(self, home: int) -> None:
        self._homes[home].start()
        self._ready()

    def compact(self) -> None:
        """Compact what is staged."""
        report = self._compactor.once()
        # A table is locked while it is cloned.
        assert all("is under maintenance" in why for why in report.failures.values()), report.failures

    def maintain(self) -> None:
        """Run OPTIMIZE and VACUUM on all tables that need it."""
        for done in self._maintainer.once():
            assert done.failure is None, done

    def mirror_anew(self) -> None:
        """Delete the mirror and create one of the same name."""

        def gone() -> bool:
            with self.wire(1) as wire:
                answer = wire.api("STREAM.DELETE.M")
            return bool(answer.get("success")) or answer.get("error", {}).get("err_code") == 10059

        until(gone, "the mirror is deleted", SOON_S)
        self._look(self.origin, 0)
        self.mirror.anew()
        self._create_mirror()

    def end(self) -> None:
        """Close the lake."""
        self._compactor.stop()
        self._compactor.release()

    # ------------------------------------------------------------------ comparison
    def check(self) -> None:
        """Wait until the copies have caught up, and compare them."""
        self._look(self.origin, 0)

        def complete(copy: Mirror | Sources, home: int) -> bool:
            with self.wire(home) as wire:
                copy.look(wire)
            return not copy.missing()

        def mirrored() -> bool:
            if self._clones:
                self.compact()  # it waits for its table
            return complete(self.mirror, 1)

        until(mirrored, "the mirror has everything", SOON_S)
        until(lambda: complete(self.sources, 2), "the sources' messages are there", SOON_S)
        with self.wire(1) as wire:
            self.mirror.check(wire)
        with self.wire(2) as wire:
            self.sources.check(wire)

        def empty() -> bool:
            with self.wire(0) as wire:
                return not wire.api("STREAM.INFO.W")["state"]["messages"]

        until(empty, "the work queue is empty", SOON_S)

    def check_tables(self) -> None:
        """Assert invariant 6: the copies' tables hold the copies' messages."""
        for stream, home, seen in (("M", 1, self.mirror.seen), ("S", 2, self.sources.seen)):
            if not seen:
                continue
            wanted = [(seq, *message) for seq, message in sorted(seen.items())]
            with self.wire(home) as wire:
                wire.request(f"$LAKE.API.FLUSH.{stream}", timeout=60)

            def same(stream: str = stream, wanted: list[Any] = wanted) -> bool:
                self.compact()
                rows = tables.records(paths.table(self.lake, stream))
                found = [(row.seq, row.subject, row.time_ns, row.header, row.data) for row in rows]
                return found == wanted

            until(same, f"the table of {stream} is the stream", SOON_S)


@contextmanager
def servers(kind: str, directory: Path) -> Iterator[tuple[str, list[Server], list[str], Callable[[], Any]]]:
    """Yield the lake; servers of origin, mirror and sources; their tags; a function that waits until they serve."""
    if kind == "one":
        server = Server(Kind.OURS, directory / "store", config=f"lake {{ {LAKE} }}").start()
        try:
            yield str(directory / "store" / "lake"), [server] * 3, [], lambda: None
        finally:
            server.kill()
        return
    lake = directory / "lake"
    lake.mkdir()
    tags = ["origin", "mirror", "sources"]
    cluster = Cluster(Kind.OURS, directory, 3, tags=[[tag] for tag in tags], config=f'lake {{ url: "{lake}", {LAKE} }}')
    try:
        yield str(lake), list(cluster.start().nodes), tags, cluster.wait_ready
    finally:
        cluster.kill()


@pytest.mark.parametrize("life", range(LIVES))
@pytest.mark.parametrize("kind", ["one", "cluster"])
def test_copies_are_the_history_of_their_origins(spark: Any, tmp_path: Path, kind: str, life: int) -> None:
    print(f"LAKESTREAM_MIRROR_SEED={SEED}")
    dice = random.Random(f"{SEED} {kind} {life}")
    with servers(kind, tmp_path) as (lake, homes, tags, ready):
        world = World(spark, dice, lake, homes, tags, ready)
        try:
            live(world, dice, f"{kind}, life {life}")
        finally:
            world.end()


def live(world: World, dice: random.Random, where: str) -> None:
    """Run all rounds of a life."""
    world.begin()
    for number in range(ROUNDS):
        world.done = []
        for _ in range(dice.randint(*STEPS)):
            world.step()
        print(f"{where}, round {number}: {', '.join(world.done)}")
        world.check()
    world.check_tables()
    read, mirrored, sourced = len(world.origin.history), len(world.mirror.seen), len(world.sources.seen)
    print(f"{read} messages read of the origin, {mirrored} of the mirror, {sourced} of the sources")
