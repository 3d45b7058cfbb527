"""Tests of the whole path: published over NATS, compacted by Spark, released from the log, read back by the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pyarrow.parquet as pq
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, DeliverPolicy

from lakestream.lake.errors import LakeError
from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import paths
from lakestream.log.format.segment import HEADER_SIZE
from lakestream.log.sealing import content
from lakestream.log.store.segment_store import CHECKPOINT_FACTOR
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.lake_compaction import WORKER_LATE, BatchReport
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import Policy
from lakestream_sql.session import Session
from tests.lake import tables
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 16384, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }
"""
SUBJECTS = [f"HIST.{name}" for name in ("a", "b", "c.x", "c.y")]
DEADLINE_S = 120.0
EMPTY = (HEADER_SIZE, content.HEADER_SIZE + content.OVERHEAD + HEADER_SIZE)
"""Sizes of a segment without entries, plain and encrypted."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


class Compaction:
    """Compactor over a server's lake, run when the test asks for it."""

    def __init__(self, spark: Any, server: Server) -> None:
        self.lake = str(server.store / "lake")
        self.server = server
        self._compactor = Compactor(spark, self.lake)

    async def until_caught_up(self, stream: str, account: str = "$G", within_s: float = DEADLINE_S) -> None:
        """Compact until everything is sealed and in the table, and the log has released what it can.

        The log keeps its newest segments, and those that are too small to be worth a checkpoint.
        """
        directory = self.server.store / "jetstream" / account / "streams" / stream
        log = directory / "log"

        async def done() -> bool:
            await self.run()
            segments = sorted(log.glob("*.seg"))
            fresh = segments[-1].stat().st_size in EMPTY
            held = sum(path.stat().st_size for path in segments[:-2])
            checkpoint = directory / "checkpoint"
            size = checkpoint.stat().st_size if checkpoint.exists() else 0
            released = held <= CHECKPOINT_FACTOR * size
            return fresh and released and any(log.glob("*.outline")) and not self.staged()

        try:
            await eventually(done, within_s)
        except TimeoutError:
            held = sorted((path.name, path.stat().st_size) for path in log.iterdir())
            raise AssertionError(f"not caught up: log {held}, staged {self.staged()}") from None

    async def run(self) -> None:
        """Compact what is staged."""
        await self.report()

    async def report(self) -> BatchReport:
        """Compact what is staged; return the report."""
        while True:
            try:
                return await asyncio.to_thread(self._compactor.once)
            except LakeError as error:
                if WORKER_LATE not in str(error):  # which tells of the machine, not of the tables
                    raise

    def staged(self) -> list[Any]:
        return [each for stream in scan.Scanner(self.lake).scan() for each in staging.segments(stream.directory)]

    def stop(self) -> None:
        self._compactor.stop()


async def eventually(condition: Callable[[], Awaitable[bool]], within_s: float = DEADLINE_S) -> None:
    """Poll until the condition is true, for effects that other processes show in files only."""
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.05)


async def publish(client: Client, first: int, count: int) -> dict[int, tuple[str, bytes, str]]:
    """Publish messages with sequences from `first` on; return them."""
    js = client.jetstream()
    sent: dict[int, tuple[str, bytes, str]] = {}
    for seq in range(first, first + count):
        subject, data, tag = SUBJECTS[seq % len(SUBJECTS)], b"payload %d " % seq + bytes(range(100)), f"t{seq % 7}"
        ack = await js.publish(subject, data, headers={"Tag": tag} if seq % 3 == 0 else None)
        assert ack.seq == seq
        sent[seq] = (subject, data, tag if seq % 3 == 0 else "")
    return sent


async def replay(client: Client, subject: str = "HIST.>", start: int = 1) -> dict[int, tuple[str, bytes, str]]:
    """Read everything from `start` on through an ordered consumer, which reports gaps."""
    js = client.jetstream()
    config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start)
    sub = await js.subscribe(subject, ordered_consumer=True, config=config)
    got: dict[int, tuple[str, bytes, str]] = {}
    pending = (await sub.consumer_info()).num_pending or 0
    while len(got) < pending or not got:
        message = await sub.next_msg(timeout=20)
        seq = message.metadata.sequence.stream
        assert seq not in got, "nothing is delivered twice"
        assert not got or seq > max(got), "and all in order"
        got[seq] = (message.subject, message.data, (message.headers or {}).get("Tag", ""))
        if message.metadata.num_pending == 0:
            break
    await sub.unsubscribe()
    return got


@pytest.mark.smoke
async def test_a_stream_from_publish_to_maintenance(spark: Any, server: Server) -> None:
    """A stream is published, compacted, read back, and queried by SQL, present and past.

    And again after maintenance.
    """
    compaction = Compaction(spark, server)
    table = paths.table(compaction.lake, "HIST")
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    early = await publish(client, 1, 100)
    await compaction.until_caught_up("HIST")
    version = tables.version(table)
    stored = early | await publish(client, 101, 100)
    await compaction.until_caught_up("HIST")

    def by_sql(suffix: str) -> dict[int, tuple[str, bytes]]:
        with Session(compaction.lake, committed=True) as session:
            query = f"SELECT seq, subject, data FROM delta.`streams/HIST` {suffix}"
            return {seq: (subject, bytes(data)) for seq, subject, data in session.query(query).fetchall()}

    def by_spark(**options: int) -> dict[int, tuple[str, bytes]]:
        read = spark.read.format("delta").options(**options).load(table)
        return {row.seq: (row.subject, bytes(row.data)) for row in read.select("seq", "subject", "data").collect()}

    async def check() -> None:
        assert await replay(client) == stored
        now, then = ({seq: one[:2] for seq, one in each.items()} for each in (stored, early))
        assert by_sql("") == by_spark() == now
        assert by_sql(f"VERSION AS OF {version}") == by_spark(versionAsOf=version) == then

    await check()
    (done,) = await asyncio.to_thread(Maintainer(spark, compaction.lake, Policy(min_files=2)).once)
    assert (done.failure, done.removed > done.added > 0) == (None, True)
    await check()
    await client.close()
    compaction.stop()


@pytest.mark.smoke
async def test_invariant_6_and_7_old_messages_come_back_from_the_table(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    expected = await publish(client, 1, 600)
    for seq in (5, 17, 600):
        await js.delete_msg("HIST", seq)
        del expected[seq]
    await js.purge_stream("HIST", subject="HIST.b", seq=100)
    expected = {seq: one for seq, one in expected.items() if one[0] != "HIST.b" or seq >= 100}
    await compaction.until_caught_up("HIST")
    expected |= await publish(client, 601, 40)

    assert await replay(client) == expected, "across the border between table and log"
    one = {seq: message for seq, message in expected.items() if message[0] == "HIST.c.x"}
    assert await replay(client, "HIST.c.x", 50) == {seq: message for seq, message in one.items() if seq >= 50}
    await _reads_agree(client, expected)
    await client.close()
    server.kill()
    server.start()
    again = await nats.connect(server.url)
    assert await replay(again) == expected, "and after a crash"
    await _reads_agree(again, expected)
    wanted = {seq: message[:2] for seq, message in expected.items()}

    async def table_is_the_stream() -> bool:
        await compaction.run()
        rows = tables.records(paths.table(compaction.lake, "HIST"))
        return {row.seq: (row.subject.decode(), row.data) for row in rows} == wanted

    await eventually(table_is_the_stream)
    await again.close()
    compaction.stop()


async def _reads_agree(client: Client, expected: dict[int, tuple[str, bytes, str]]) -> None:
    js = client.jetstream()
    for seq in (1, 5, 99, 100, 101, 333, 599, 600, 601, 640):
        for direct in (True, False):
            if seq in expected:
                message = await js.get_msg("HIST", seq, direct=direct)
                assert (message.subject, message.data) == expected[seq][:2]
                assert (message.headers or {}).get("Tag", "") == expected[seq][2]
            else:
                with pytest.raises(nats.js.errors.NotFoundError):
                    await js.get_msg("HIST", seq, direct=direct)
    for subject in SUBJECTS:
        last = max(seq for seq, message in expected.items() if message[0] == subject)
        message = await js.get_last_msg("HIST", subject, direct=True)
        assert message.seq == last


async def test_deletes_and_purges_reach_a_table_that_holds_the_messages_already(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    expected = await publish(client, 1, 200)
    await compaction.until_caught_up("HIST")
    await js.delete_msg("HIST", 30)
    await js.purge_stream("HIST", seq=20)
    expected = {seq: message for seq, message in expected.items() if seq >= 20 and seq != 30}
    assert await replay(client) == expected, "at once through the server"
    table = paths.table(compaction.lake, "HIST")

    async def caught_up() -> bool:
        await compaction.run()
        return {row.seq for row in tables.records(table)} == set(expected)

    await eventually(caught_up)
    assert await replay(client) == expected
    await client.close()
    compaction.stop()


@pytest.mark.smoke
async def test_what_age_and_time_to_live_end_leaves_the_table_too(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    await client.request(
        "$JS.API.STREAM.CREATE.AGED",
        b'{"name": "AGED", "subjects": ["AGED.>"], "storage": "file", "retention": "limits", "allow_msg_ttl": true,'
        b' "max_age": 4000000000}',
    )
    js = client.jetstream()
    await js.publish("AGED.soon", b"1", headers={"Nats-TTL": "1s"})
    await js.publish("AGED.later", b"2")
    await js.publish("AGED.never", b"3", headers={"Nats-TTL": "never"})
    table = paths.table(compaction.lake, "AGED")

    def holds(expected: list[int]) -> Callable[[], Awaitable[bool]]:
        async def same() -> bool:
            await compaction.run()
            return Path(table, "_delta_log").is_dir() and [row.seq for row in tables.records(table)] == expected

        return same

    # If compaction is slower than the first message's TTL, the message never comes into the table.
    await eventually(holds([3]))
    state = (await js.stream_info("AGED")).state
    assert (state.messages, state.first_seq) == (1, 3)
    await client.close()
    compaction.stop()


async def test_what_is_deleted_securely_leaves_every_file(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="ERASED", subjects=["ERASED.>"])
    for n in range(40):
        await js.publish("ERASED.a", b"a secret, number %d." % n)
    table = paths.table(compaction.lake, "ERASED")

    async def rows(count: int) -> None:
        async def there() -> bool:
            await compaction.run()
            return Path(table).exists() and len(tables.rows(table)) == count

        try:
            await eventually(there)
        except TimeoutError:
            raise AssertionError(f"no {count} rows; staged {compaction.staged()}\n{server.log()}") from None

    def found() -> list[str]:
        """Return the files of the table, the log and the staging area that contain the message."""
        hits = []
        for path in server.store.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a segment that is removed just now
                hits += [str(path)] if path.is_file() and _holds(path, b"a secret, number 7.") else []
        return hits

    await rows(40)
    assert await js.delete_msg("ERASED", 8)
    await rows(39)
    assert [path for path in found() if path.startswith(table)], "the table's current version does not show it"
    (done,) = await asyncio.to_thread(Maintainer(spark, compaction.lake).once)
    assert (done.failure, done.plan.erase) == (None, 1)

    async def gone() -> bool:
        return not found()

    try:
        await eventually(gone)  # the log waits some seconds to rewrite several at once
    except TimeoutError:
        raise AssertionError(f"still in {found()}\n{server.log()}") from None
    assert len(tables.rows(table)) == 39
    assert (await js.get_msg("ERASED", 9)).data == b"a secret, number 8."
    compaction.stop()
    await client.close()


def _holds(path: Path, payload: bytes) -> bool:
    if path.suffix != ".parquet":
        return payload in path.read_bytes()
    if "_delta_log" in path.parts:
        return False
    with pq.ParquetFile(path) as file:
        return payload in file.read(columns=["data"]).column(0).to_pylist()
