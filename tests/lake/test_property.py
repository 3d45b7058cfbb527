"""Tests of random changes and failures: the table and the server's reads both equal the stream.

Rounds of random publishes, deletes, purges and updates, with kills of the server, crashes of the compactor between any
two of its steps, OPTIMIZE and VACUUM between them. After each round the table has caught up and is compared with a
model in plain Python, and the server replays the stream from sequence 1 out of table and log. One Spark serves all.

LAKESTREAM_PROPERTY_ROUNDS sets the number of rounds (default 200), LAKESTREAM_PROPERTY_SEED the choices (default 1, or
`random`; a failure names it).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import StreamConfig

from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import paths
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import Policy
from lakestream_spark.write.stream_compaction import CompactionOptions, StreamCompaction
from tests.lake import compacting, tables
from tests.servers import Kind, Server

pytestmark = [pytest.mark.lake, pytest.mark.chaos]

CONFIG = """
lake { seal_bytes: 8192, seal_age: "100ms", retain_bytes: 0, poll: "50ms" }
"""
ROUNDS = int(os.environ.get("LAKESTREAM_PROPERTY_ROUNDS", "200"))
SEED = os.environ.get("LAKESTREAM_PROPERTY_SEED", "1")
if SEED == "random":
    SEED = str(random.randrange(1 << 30))
ROUNDS_OF_A_LIFE = 20
"""Number of rounds on one lake; there are as many lakes as ROUNDS requires."""
ROUNDS_OF_A_STREAM = 10
OPERATIONS = 40
"""Changes in one round."""
CATCH_UP_SECONDS = 120.0
STEPS = ["_append", "_end_rows", "_table.create", "_table.delta", "_table.rewrite", "_table.adapt", "clear"]
"""Methods before which a compactor crashes."""

Content = dict[int, tuple[str, bytes]]


class Crash(BaseException):
    """Raised to end the compactor in the middle of a step."""


class Model:
    """Expected messages of a stream, and those that limits have removed (`ended`)."""

    def __init__(self) -> None:
        self.live: Content = {}
        self.ended: Content = {}
        self.last = 0
        self.max_msgs = -1
        self.per_subject = -1

    def publish(self, seq: int, subject: str, data: bytes, rollup: str | None) -> None:
        self.last = seq
        self.live[seq] = (subject, data)
        self.limit_subjects()
        self.limit()
        for earlier in list(self.live) if rollup else ():  # limits apply first, as in nats-server
            if earlier < seq and (rollup == "all" or self.live[earlier][0] == subject):
                self.ended[earlier] = self.live.pop(earlier)

    def update(self) -> None:
        """Apply changed limits; those of the whole stream first."""
        self.limit()
        self.limit_subjects()

    def limit_subjects(self) -> None:
        if self.per_subject > 0:
            by_subject: dict[str, list[int]] = {}
            for seq, (subject, _) in sorted(self.live.items()):
                by_subject.setdefault(subject, []).append(seq)
            for seqs in by_subject.values():
                for seq in seqs[: max(0, len(seqs) - self.per_subject)]:
                    self.ended[seq] = self.live.pop(seq)

    def limit(self) -> None:
        if self.max_msgs > 0:
            for seq in sorted(self.live)[: max(0, len(self.live) - self.max_msgs)]:
                self.ended[seq] = self.live.pop(seq)

    def purge(self, subject: str | None, below: int, keep: int) -> None:
        found = [seq for seq in sorted(self.live) if subject in (None, self.live[seq][0])]
        if keep:
            found = found[: max(0, len(found) - keep)]
        for seq in found:
            if not below or seq < below:
                del self.live[seq]


class World:
    """One stream on a real server, with compactor and maintainer, and its model."""

    def __init__(self, spark: Any, server: Server, dice: random.Random) -> None:
        self.spark, self.server, self.dice = spark, server, dice
        self.lake = str(server.store / "lake")
        self.model = Model()
        self.name = ""
        self.metadata: dict[str, str] = {}

    def config(self) -> StreamConfig:
        return StreamConfig(
            name=self.name,
            subjects=[f"{self.name}.>"],
            max_msgs=self.model.max_msgs,
            max_msgs_per_subject=self.model.per_subject,
            metadata=self.metadata,
            allow_rollup_hdrs=True,
        )

    async def begin(self, number: int) -> None:
        """Create a new stream; delete the previous one."""
        client = await nats.connect(self.server.url)
        if self.name:
            await client.jetstream().delete_stream(self.name)
        # Some get the name of a stream that was deleted a moment ago.
        self.name, self.model = "SAME" if number % 3 else f"S{number}", Model()
        self.choose()
        await client.jetstream().add_stream(self.config())
        await client.close()

    def choose(self) -> None:
        """Draw new limits and metadata."""
        dice, model = self.dice, self.model
        model.max_msgs = dice.choice([-1, -1, 50, 200])
        model.per_subject = dice.choice([-1, -1, 1, 5])
        self.metadata = {"lakestream.partition": dice.choice(["auto", "subject", "tokens:2", "bucket:3"])}
        if self.archive:
            self.metadata["lakestream.retention"] = "archive"

    archive = False

    async def change(self) -> None:
        """Make one round of changes, each acknowledged."""
        dice, model = self.dice, self.model
        client = await nats.connect(self.server.url)
        js = client.jetstream()
        for _ in range(dice.randrange(1, OPERATIONS)):
            what = dice.random()
            if what < 0.85:
                for _ in range(dice.choice([1, 1, 1, 30])):
                    subject = f"{self.name}.{dice.randrange(3)}.{dice.randrange(dice.choice([3, 80]))}"
                    data = dice.randbytes(dice.randrange(200))
                    scope = dice.choice(["sub", "all"]) if dice.random() < 0.01 else None
                    ack = await js.publish(subject, data, headers={"Nats-Rollup": scope} if scope else None)
                    model.publish(ack.seq, subject, data, scope)
            elif what < 0.93 and model.live:
                seq = dice.choice(sorted(model.live))
                await js.delete_msg(self.name, seq)
                del model.live[seq]
            elif what < 0.99:
                some = sorted({subject for subject, _ in model.live.values()})
                subject = dice.choice([None, *some[:5]])
                keep = dice.choice([0, 0, 3])
                below = 0 if keep else dice.choice([0, dice.randint(1, max(1, model.last))])
                await js.purge_stream(self.name, subject=subject, seq=below or None, keep=keep or None)
                model.purge(subject, below, keep)
            else:
                self.choose()
                await js.update_stream(self.config())
                model.update()
        await client.close()

    async def replay(self) -> Content:
        """Return the stream's messages as a client reads them from the first one on."""
        client = await nats.connect(self.server.url)
        js = client.jetstream()
        left = (await js.stream_info(self.name)).state.messages
        found: Content = {}
        if left:
            sub = await js.subscribe(f"{self.name}.>", ordered_consumer=True)
            while left:
                message = await sub.next_msg(timeout=30)
                found[message.metadata.sequence.stream] = (message.subject, message.data)
                left = message.metadata.num_pending or 0
        await client.close()
        return found

    def compact(self, crash: bool) -> None:
        """Run a compactor once over the streams of the lake; with `crash` it ends at a random step."""
        live, gone = staging.current(scan.Scanner(self.lake).scan())
        for stream in gone:
            StreamCompaction(self.spark, self.lake, stream).drop_table()
            staging.discard(stream.directory)
        for stream in live:
            compaction = StreamCompaction(
                # Mostly all in one commit, since commits take most of the time.
                self.spark,
                self.lake,
                stream,
                CompactionOptions(commit_bytes=self.dice.choice([20_000, *[1 << 28] * 15])),
            )
            if not crash:
                compacting.run(self.spark, compaction, stream.last_index)
                continue
            owner, _, step = self.dice.choice(STEPS).rpartition(".")
            target = getattr(compaction, owner) if owner else compaction
            work, before = getattr(target, step), self.dice.random() < 0.5

            def crashing(*args: Any, work: Any = work, before: bool = before) -> None:
                if not before:
                    work(*args)
                raise Crash

            setattr(target, step, crashing)
            try:
                compacting.run(self.spark, compaction, stream.last_index)
            except Crash:
                continue

    def table_rows(self) -> tuple[Content, Content]:
        """Return the table's (present messages, removed messages)."""
        table = paths.table(self.lake, self.name)
        if not os.path.isdir(os.path.join(table, "_delta_log")):
            return {}, {}
        live: Content = {}
        ended: Content = {}
        for row in tables.rows(table):
            assert row["seq"] not in {*live, *ended}, f"{row['seq']} is twice in the table"
            kind = live if row.get("removed_time_ns") is None else ended
            kind[row["seq"]] = (row["subject"], row["data"])
        return live, ended

    async def check(self, where: str) -> None:
        """Compact everything, then compare table, stream and model."""
        expected = (self.model.live, self.model.ended if self.archive else {})
        until = asyncio.get_running_loop().time() + CATCH_UP_SECONDS
        found = None
        client = await nats.connect(self.server.url)
        await client.request(f"$LAKE.API.FLUSH.{self.name}", timeout=30)  # all in one commit, where possible
        await client.close()
        while found != expected:
            assert asyncio.get_running_loop().time() < until, f"{where}: {describe(found, expected)}"
            self.compact(crash=False)
            found = self.table_rows()
        assert await self.replay() == self.model.live, f"{where}: replay"


def describe(found: tuple[Content, Content] | None, expected: tuple[Content, Content]) -> str:
    """Return the sequences that are unexpected or missing."""
    words = []
    for kind, have, want in zip(("live", "ended"), found or ({}, {}), expected, strict=True):
        words.append(
            f"{kind}: too much {sorted(have.keys() - want.keys())}, missing {sorted(want.keys() - have.keys())}"
        )
    return "; ".join(words)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    found.start()
    yield found
    found.kill()


@pytest.mark.parametrize("life", range(max(1, ROUNDS // ROUNDS_OF_A_LIFE)))
async def test_table_and_replay_are_the_stream_in_every_round(spark: Any, server: Server, life: int) -> None:
    dice = random.Random(f"{SEED} {life}")
    world = World(spark, server, dice)
    maintainer = Maintainer(spark, world.lake, Policy(min_files=2, retain_ns=0, checkpoint_commits=5))
    for number in range(min(ROUNDS, ROUNDS_OF_A_LIFE)):
        where = f"LAKESTREAM_PROPERTY_SEED={SEED}, life {life}, round {number}"
        if number % ROUNDS_OF_A_STREAM == 0:
            world.archive = dice.random() < 0.3
            await world.begin(number // ROUNDS_OF_A_STREAM)
        await world.change()
        if dice.random() < 0.2:
            world.compact(crash=True)
        if dice.random() < 0.2:
            server.kill()
            server.start()
        await world.check(where)
        if dice.random() < 0.1:
            for done in maintainer.once():
                assert done.failure is None, f"{where}: {done.failure}"
            await world.check(f"{where}, after maintenance")
