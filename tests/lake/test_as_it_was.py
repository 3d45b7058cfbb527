"""Tests of time travel: past states of a stream, read by the server from log and table, and by SQL.

A model in plain Python knows the past states. Streams are created, changed and read over the socket; tables are written
by Spark.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from lakestream.lake.staging import scan
from lakestream.lake.storage import paths
from lakestream.lake.table.at import latest_progress
from lakestream.log.format.segment import HEADER_SIZE
from lakestream_client.lake.past import open_past
from lakestream_spark.functions import as_of as spark_as_of
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import Policy
from lakestream_spark.write.stream_compaction import StreamCompaction
from lakestream_spark.write.table import StreamTable
from lakestream_sql.session import Session
from lakestream_sql.uncompacted import FlushServer as Asked
from tests.lake import compacting
from tests.lake.tables import records
from tests.lake.test_end_to_end import Compaction, eventually
from tests.lake.was import Model, Refused, ask, held, rfc3339
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 4096, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }
"""
CATCH_UP_S = 240.0
LONG = int(os.environ.get("LAKESTREAM_PROPERTY_ROUNDS", "200")) > 200
LIMITS = [(-1, 1), (100, 3), (60, -1), (-1, -1)]
"""(max_msgs, max_msgs_per_subject) of the streams; tests with little time use the first two."""
SEED = os.environ.get("LAKESTREAM_PROPERTY_SEED", "1")
if SEED == "random":
    SEED = str(random.randrange(1 << 30))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


class Tables(Compaction):
    """Tables of a server's streams, compacted when the test asks for it, without a streaming query."""

    def __init__(self, spark: Any, server: Server) -> None:
        self.server, self.lake = server, str(server.store / "lake")
        self._spark = spark
        self._streams: dict[str, StreamCompaction] = {}

    async def run(self) -> None:
        await asyncio.to_thread(self.compact)

    async def until_in_table(self, stream: str) -> None:
        """Compact until the table has everything stored, even if the log still has it too."""
        log = self.server.store / "jetstream" / "$G" / "streams" / stream / "log"

        async def done() -> bool:
            await self.run()
            newest = sorted(log.glob("*.seg"))[-1]
            reached = latest_progress(paths.table(self.lake, stream))
            sealed = newest.stat().st_size == HEADER_SIZE
            return sealed and reached is not None and reached.last_index >= int(newest.stem) - 1

        await eventually(done, CATCH_UP_S)

    def compact(self) -> None:
        for stream in scan.Scanner(self.lake).scan():
            if stream.directory not in self._streams:
                self._streams[stream.directory] = StreamCompaction(self._spark, self.lake, stream)
            compacting.run(self._spark, self._streams[stream.directory], stream.last_index)


async def add(client: Client, name: str, **config: Any) -> None:
    """Create a stream with time travel."""
    config.setdefault("metadata", {"lakestream.time_travel": "30d"})
    await client.jetstream().add_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], allow_direct=True, allow_rollup_hdrs=True, **config)
    )


async def change(client: Client, name: str, model: Model, dice: random.Random) -> None:
    """Make one random change on the server and in the model."""
    js = client.jetstream()
    kind = dice.choices(["publish", "burst", "rollup", "purge", "delete"], [60, 10, 5, 6, 6])[0]
    subject = f"{name}.{dice.randrange(8)}"
    if kind == "publish":
        data = b"%d" % dice.randrange(1 << 30) * dice.randrange(1, 6)
        model.publish((await js.publish(subject, data)).seq, subject, data)
    elif kind == "burst":  # handled by the server in one turn, within which limits apply
        sent = [(f"{name}.{dice.randrange(8)}", b"%d" % number * 9) for number in range(dice.randrange(2, 40))]
        acks = await asyncio.gather(*[js.publish(*one) for one in sent])
        for ack, (one, data) in sorted(zip(acks, sent, strict=True), key=lambda pair: pair[0].seq):
            model.publish(ack.seq, one, data)
    elif kind == "rollup":
        what = dice.choice(["sub", "sub", "all"])
        ack = await js.publish(subject, b"rolled", headers={"Nats-Rollup": what})
        model.publish(ack.seq, subject, b"rolled", what)
    elif kind == "purge":
        which = dice.choice([None, subject])
        below, keep = dice.choice([(0, 0), (dice.randrange(1, model.last + 2), 0), (0, 2)])
        request = {"filter": which or "", "seq": below, "keep": keep}
        await client.request(f"$JS.API.STREAM.PURGE.{name}", json.dumps(request).encode(), timeout=30)
        model.purge(which, below, keep)
    elif model.live:
        seq = dice.choice(sorted(model.live))
        request = {"seq": seq, "no_erase": True}
        answer = await client.request(f"$JS.API.STREAM.MSG.DELETE.{name}", json.dumps(request).encode(), timeout=30)
        assert json.loads(answer.data)["success"]
        del model.live[seq]
    await model.note()


async def compare(client: Client, name: str, model: Model, dice: random.Random, most: int) -> None:
    """Compare the server's answers with the model at random times and sequences."""
    for moment in dice.sample(model.at, min(most, len(model.at))):
        answer = await ask(client, name, up_to_time=rfc3339(moment.ns))
        assert answer.held == moment.held, f"at {moment.ns}, after sequence {moment.last} of {model.last}"
        if moment.held:
            assert answer.through == moment.last
    for seq in dice.sample(sorted(model.after), min(most, len(model.after))):
        subject = f"{name}.{dice.randrange(8)}"
        assert await held(client, name, up_to_seq=seq) == model.after[seq], f"after {seq} of {model.last}"
        expected = {subject: model.after[seq][subject]} if subject in model.after[seq] else {}
        assert await held(client, name, up_to_seq=seq, multi_last=[subject]) == expected


def by_sql(session: Session, name: str, at_ns: int) -> dict[int, tuple[str, bytes]]:
    """Return all messages as of a time from `lakestream sql`.

    The API's time is exclusive, that of SQL inclusive.
    """
    rows = session.query(f"SELECT seq, subject, data FROM as_of('{name}', {at_ns - 1})").fetchall()
    return {seq: (subject, bytes(data)) for seq, subject, data in rows}


def compare_sql(server: Server, name: str, model: Model, dice: random.Random, most: int) -> None:
    """Compare `lakestream sql` and `restore --as-of` with the model.

    The server stages its newest messages for them.
    """
    with Session(server.store / "lake", server=Asked(server.url)) as session:
        for moment in dice.sample(model.at, min(most, len(model.at))):
            past = open_past(str(server.store / "lake"), name, moment.ns - 1, server=server.url)
            found = [record for block in past.messages() for record in block]
            assert {each.seq: (each.subject.decode(), each.data) for each in found} == moment.live
            assert by_sql(session, name, moment.ns) == moment.live, f"at {moment.ns}, {moment.last} of {model.last}"
    for seq in dice.sample(sorted(model.after), min(most, len(model.after))):
        past = open_past(str(server.store / "lake"), name, 0, server=server.url, seq=seq)
        last = {each.subject.decode(): (each.seq, each.data) for block in past.messages() for each in block}
        assert last == model.after[seq], f"after {seq} of {model.last}"


@pytest.mark.parametrize(("max_msgs", "per_subject"), LIMITS if LONG else LIMITS[:2])
async def test_any_moment_and_any_sequence_are_as_they_were(
    spark: Any, server: Server, max_msgs: int, per_subject: int
) -> None:
    dice = random.Random(f"{SEED} {max_msgs} {per_subject}")
    compaction = Tables(spark, server)
    client = await nats.connect(server.url)
    model = Model(max_msgs, per_subject)
    await add(client, "WAS", max_msgs=max_msgs, max_msgs_per_subject=per_subject)
    for number in range(4):
        for _ in range(40):
            await change(client, "WAS", model, dice)
        await compare(client, "WAS", model, dice, 8)
        if number == 1:
            await compaction.until_caught_up("WAS", within_s=CATCH_UP_S)
        elif number == 2:
            await compaction.run()
        await compare(client, "WAS", model, dice, 12)
        await asyncio.to_thread(compare_sql, server, "WAS", model, dice, 4)
    await compaction.until_caught_up("WAS", within_s=CATCH_UP_S)
    await compare(client, "WAS", model, dice, 60)
    await asyncio.to_thread(compare_sql, server, "WAS", model, dice, 20)
    for moment in dice.sample(model.at, 5):
        found = spark_as_of(spark, "WAS", moment.ns - 1, compaction.lake).select("seq", "subject", "data").collect()
        assert {row.seq: (row.subject, bytes(row.data)) for row in found} == moment.live
    await client.close()
    server.kill()
    server.start()
    client = await nats.connect(server.url)
    await compare(client, "WAS", model, dice, 10)
    await client.close()


async def test_what_time_took_is_there_before_it_did(spark: Any, server: Server) -> None:
    tables = Tables(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await add(client, "AGED", max_age=1.5)
    model = Model()
    for number in range(6):
        ack = await js.publish(f"AGED.{number % 2}", b"%d" % number)
        model.publish(ack.seq, f"AGED.{number % 2}", b"%d" % number)
    await model.note()

    async def empty() -> bool:
        return (await js.stream_info("AGED")).state.messages == 0

    await eventually(empty)
    model.live.clear()
    await model.note()
    ack = await js.publish("AGED.0", b"after")
    model.publish(ack.seq, "AGED.0", b"after")
    await model.note()
    for _ in range(2):
        for moment in model.at:
            assert await held(client, "AGED", up_to_time=rfc3339(moment.ns)) == moment.held
        await tables.until_in_table("AGED")
    await client.close()


async def test_a_page_at_a_time_is_one_moment_while_all_of_it_is_overwritten(spark: Any, server: Server) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await add(client, "KV_conf", max_msgs_per_subject=1)
    model = Model(per_subject=1)
    for number in range(50):
        ack = await js.publish(f"KV_conf.{number}", b"old")
        model.publish(ack.seq, f"KV_conf.{number}", b"old")
    await model.note()
    for point in ({"up_to_time": rfc3339(model.at[0].ns)}, {"up_to_seq": 50}):
        found: dict[str, Any] = {}
        start = 1
        while True:
            answer = await ask(client, "KV_conf", batch=7, seq=start, **point)
            found |= answer.held
            assert answer.through == 50
            for number in range(50):
                await js.publish(f"KV_conf.{number}", b"new")
            if not answer.pending:
                break
            start = max(seq for seq, _ in answer.held.values()) + 1
        assert found == model.at[0].held
    await client.close()


async def test_what_was_deleted_securely_is_in_no_past(spark: Any, server: Server) -> None:
    tables = Tables(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await add(client, "SAFE")
    for number in range(4):
        await js.publish(f"SAFE.{number}", b"secret")
    await js.delete_msg("SAFE", 2)
    await js.publish("SAFE.9", b"last")
    for _ in range(2):
        assert sorted(await held(client, "SAFE", up_to_seq=4)) == ["SAFE.0", "SAFE.2", "SAFE.3"]
        await tables.until_in_table("SAFE")
    await client.close()


async def test_a_past_that_was_not_kept_is_refused_and_one_without_metadata_is_jetstreams(
    spark: Any, server: Server
) -> None:
    tables = Tables(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await add(client, "PLAIN", max_msgs_per_subject=1, metadata={})
    for number in range(4):
        await js.publish("PLAIN.a", b"%d" % number)
    assert await held(client, "PLAIN", up_to_seq=3) == {}, "what has been removed is gone"
    await tables.until_in_table("PLAIN")
    config = StreamConfig(
        name="PLAIN",
        subjects=["PLAIN.>"],
        allow_direct=True,
        allow_rollup_hdrs=True,
        max_msgs_per_subject=1,
        metadata={"lakestream.time_travel": "30d"},
    )
    await js.update_stream(config)
    for number in range(4, 8):
        await js.publish("PLAIN.a", b"%d" % number)
    with pytest.raises(Refused, match=r"500 .*not kept"):
        await ask(client, "PLAIN", up_to_seq=3)
    assert await held(client, "PLAIN", up_to_seq=6) == {"PLAIN.a": (6, b"5")}
    await tables.until_in_table("PLAIN")
    assert await held(client, "PLAIN", up_to_seq=6) == {"PLAIN.a": (6, b"5")}
    await client.close()


async def test_a_compactor_that_dies_between_rows_and_deletes_leaves_no_dead_in_sight(
    spark: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await add(client, "HALF", max_msgs_per_subject=1)
    model = Model(per_subject=1)
    for number in range(90):
        ack = await js.publish(f"HALF.{number % 5}", b"%d" % number * 20)
        model.publish(ack.seq, f"HALF.{number % 5}", b"%d" % number * 20)
        await model.note()
    table = paths.table(tables.lake, "HALF")

    def dies(self: StreamTable) -> Any:
        raise OSError("the compactor's end")

    with monkeypatch.context() as patched:
        patched.setattr(StreamTable, "delta", dies)
        await eventually(staged_all(tables))
        with pytest.raises(OSError, match="the compactor's end"):
            tables.compact()
    assert len(records(table)) > len(model.live), "the dead are still in the table"
    with Session(tables.lake, server=Asked(server.url)) as session:
        seqs = session.query("SELECT seq FROM delta.`streams/HALF` ORDER BY seq").fetchall()
        assert [seq for (seq,) in seqs] == sorted(model.live)
    await compare(client, "HALF", model, random.Random(1), 10)
    again = Tables(spark, server)  # a new compactor
    await again.until_in_table("HALF")
    assert [record.seq for record in records(table)] == sorted(model.live)
    await compare(client, "HALF", model, random.Random(2), 10)
    await client.close()


def staged_all(tables: Tables) -> Any:
    """Return a condition that is true once the server has staged the published messages."""

    async def staged() -> bool:
        return len(tables.staged()) >= 2

    return staged


async def test_versions_that_maintenance_has_taken_away_are_said_to_be_gone(spark: Any, server: Server) -> None:
    tables = Tables(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await add(client, "OLD", max_msgs_per_subject=1, metadata={"lakestream.time_travel": "1h"})
    for round_ in range(3):
        for number in range(60):
            await js.publish(f"OLD.{number % 3}", b"%d" % round_ * 100)
        await tables.until_in_table("OLD")
    assert await held(client, "OLD", up_to_seq=10) == {f"OLD.{n}": (8 + (n + 2) % 3, b"0" * 100) for n in range(3)}
    policy = Policy(min_files=2, checkpoint_commits=1)
    later = lambda: time.time_ns() + 2 * 3600 * 1_000_000_000  # noqa: E731
    for _ in range(2):
        (done,) = await asyncio.to_thread(Maintainer(spark, tables.lake, policy, clock=later).once)
        assert done.failure is None
    with pytest.raises(Refused, match=r"500 .*lakestream.time_travel"):
        await ask(client, "OLD", up_to_seq=10)
    assert len(await held(client, "OLD", up_to_seq=180)) == 3
    await client.close()
