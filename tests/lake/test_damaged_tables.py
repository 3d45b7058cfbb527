"""Tests of tables whose committed files a power loss has removed, emptied or zeroed."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import nats
import pyarrow.parquet as pq
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError, ServerError

from lakestream.lake.storage import paths
from lakestream.lake.storage.locks import COMPACTOR_LOCK, open_lock
from lakestream.log.format.segment import HEADER_SIZE
from lakestream_sql.session import Session
from tests.lake import tables
from tests.lake.test_as_it_was import Tables
from tests.lake.test_end_to_end import Compaction, eventually, publish, replay
from tests.lake.was import held, rfc3339
from tests.servers import LOG_LINES_KEPT, Kind, Server

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 16384, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: "%s" }
"""


def serve(directory: Path, grace: str) -> Server:
    server = Server(Kind.OURS, directory, config=CONFIG % grace, args=["-m", "-1"])
    server.start()
    return server


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Server]:
    """Yield a server that keeps segments staged after the table holds them."""
    server = serve(tmp_path / "store", "1h")
    yield server
    server.kill()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Server]:
    """Yield a server that removes staged segments at once."""
    server = serve(tmp_path / "store", "0s")
    yield server
    server.kill()


def shown(server: Server) -> dict[str, Any]:
    """Return the `lake` object of /varz."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/varz", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)["lake"]
        return found


async def until_shown(server: Server, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async def said() -> bool:
        return right(await asyncio.to_thread(shown, server))

    await eventually(said)
    return shown(server)


def log_of(server: Server, stream: str = "HIST") -> Path:
    return server.store / "jetstream" / "$G" / "streams" / stream / "log"


async def until_let_go(server: Server, stream: str = "HIST") -> None:
    async def gone() -> bool:
        return any(log_of(server, stream).glob("*.outline"))

    await eventually(gone)


async def until_staged(compaction: Compaction, server: Server) -> None:
    """Wait until everything is sealed and staged."""

    async def done() -> bool:
        newest = sorted(log_of(server).glob("*.seg"))[-1]
        staged = compaction.staged()
        return bool(staged) and newest.stat().st_size == HEADER_SIZE and staged[-1].last_index + 1 == int(newest.stem)

    await eventually(done)


def data_files(table: Path) -> set[Path]:
    return {
        path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts and "_departures" not in str(path)
    }


HARMS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "gone": lambda path: path.unlink(),
}


def harm_all(files: Iterable[Path]) -> None:
    """Damage a table's files as a power loss does, each in another way."""
    for number, path in enumerate(sorted(files)):
        list(HARMS.values())[number % len(HARMS)](path)


async def until_table_holds(compaction: Compaction, wanted: dict[int, tuple[str, bytes, str]]) -> None:
    """Compact until SQL returns exactly these messages, each once."""
    table = paths.table(compaction.lake, "HIST")

    async def same() -> bool:
        await compaction.run()
        rows = [(row.seq, row.subject.decode(), row.data) for row in tables.records(table)]
        return rows == [(seq, *message[:2]) for seq, message in sorted(wanted.items())]

    await eventually(same)


async def made(server: Server, **metadata: str) -> Client:
    """Create the stream; return a client."""
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True, metadata=metadata)
    return client


async def test_invariant_10_segments_stay_until_the_files_that_hold_them_are_whole(spark: Any, hasty: Server) -> None:
    """Segments stay in the log until the table's files that hold them are undamaged.

    The commit happens while the server is down, and the damage before it is back: the log has the segments and releases
    none.
    """
    compaction, server = Compaction(spark, hasty), hasty
    table = Path(paths.table(compaction.lake, "HIST"))
    client = await made(server, **{"lakestream.time_travel": "1h"})
    expected = await publish(client, 1, 200)
    await compaction.until_caught_up("HIST")
    before = data_files(table)
    expected |= await publish(client, 201, 200)
    await until_staged(compaction, server)
    was = {seq: await held(client, "HIST", up_to_seq=seq) for seq in (100, 300, 400)}
    await client.close()
    server.kill()
    await compaction.run()
    damaged = data_files(table) - before
    assert damaged
    harm_all(damaged)
    segments = sorted(log_of(server).glob("*.seg"))

    server.start()
    client = await nats.connect(server.url)
    found = await until_shown(server, lambda lake: "is damaged" in lake["errors"].get("HIST", ""))
    assert any(path.name in found["errors"]["HIST"] for path in damaged)
    assert "the compactor makes it whole again" in found["errors"]["HIST"]
    assert await replay(client) == expected
    assert set(segments) <= set(log_of(server).glob("*.seg"))
    told = [line for line in server.log(LOG_LINES_KEPT).splitlines() if "is damaged" in line]
    assert len(told) == 1
    assert "[ERR] stream HIST" in told[0]

    await until_table_holds(compaction, expected)
    shown_now = await until_shown(server, lambda lake: not lake["errors"])
    assert shown_now["lag"]["HIST"] == 0
    assert await replay(client) == expected, "the index of the table's files has followed"
    expected |= await publish(client, 401, 50)
    await until_table_holds(compaction, expected)
    assert await replay(client) == expected
    assert {seq: await held(client, "HIST", up_to_seq=seq) for seq in was} == was, "and the past is what it was"
    with Session(compaction.lake) as sql:
        for seq in was:
            at = sql.query(f"SELECT time_ns FROM delta.`streams/HIST` WHERE seq = {seq}").fetchall()[0][0]
            rows = sql.query(f"SELECT count(*), max(seq) FROM as_of('HIST', '{rfc3339(at)}')").fetchall()
            assert rows == [(seq, seq)]
    await client.close()
    compaction.stop()


async def test_what_left_the_log_is_read_from_staged_segments_and_the_table_made_anew(
    spark: Any, patient: Server
) -> None:
    compaction, server = Tables(spark, patient), patient
    table = Path(paths.table(compaction.lake, "HIST"))
    client = await made(server)
    js = client.jetstream()
    expected = await publish(client, 1, 300)
    await compaction.until_in_table("HIST")
    for seq in (7, 8, 250):
        await js.delete_msg("HIST", seq)
        del expected[seq]
    await compaction.until_in_table("HIST")
    vectors = list(table.rglob("*.bin"))
    assert vectors
    metadata = {"lakestream.partition": "bucket:2"}
    await js.update_stream(name="HIST", subjects=["HIST.>"], allow_direct=True, metadata=metadata)
    expected |= await publish(client, 301, 20)
    await compaction.until_in_table("HIST")
    assert tables.partition_columns(str(table)) == ["bucket"], "the version that is gone back to has another schema"
    await until_let_go(server)
    expected |= await publish(client, 321, 20)  # still in the log
    await client.close()
    server.kill()
    harm_all([*data_files(table), *vectors])
    server.start()
    client = await nats.connect(server.url)
    js = client.jetstream()
    await until_shown(server, lambda lake: "is damaged" in lake["errors"].get("HIST", ""))
    assert await replay(client) == expected
    assert await replay(client, "HIST.c.x", 50) == {
        seq: one for seq, one in expected.items() if seq >= 50 and one[0] == "HIST.c.x"
    }
    for seq in (1, 6, 9, 100, 251, 300, 310):
        message = await js.get_msg("HIST", seq, direct=True)
        assert (message.subject, message.data) == expected[seq][:2]
    with pytest.raises(NotFoundError):
        await js.get_msg("HIST", 7, direct=True)
    last = await held(client, "HIST", multi_last=["HIST.>"], up_to_seq=250)
    newest = {one[0]: (seq, one[1]) for seq, one in expected.items() if seq <= 250}
    assert last == newest
    await until_table_holds(compaction, expected)
    await until_shown(server, lambda lake: not lake["errors"] and lake["lag"]["HIST"] == 0)
    assert await replay(client) == expected
    assert not list(table.parents[1].rglob("damaged.json"))
    assert tables.partition_columns(str(table)) == ["bucket"]
    assert "older copy" not in server.log(LOG_LINES_KEPT)
    await client.close()


async def test_what_is_in_no_segment_any_more_is_named_and_nothing_else_suffers(spark: Any, hasty: Server) -> None:
    compaction, server = Compaction(spark, hasty), hasty
    table = Path(paths.table(compaction.lake, "HIST"))
    client = await made(server)
    js = client.jetstream()
    await js.add_stream(name="OTHER", subjects=["OTHER.>"])
    expected = await publish(client, 1, 200)
    await compaction.until_caught_up("HIST")
    victim = next(path for path in data_files(table) if path.stat().st_size)
    lost = pq.read_table(victim, columns=["seq"])["seq"][0].as_py()
    content, names = victim.read_bytes(), data_files(table)
    await client.close()
    server.kill()
    victim.write_bytes(b"")
    server.start()
    client = await nats.connect(server.url)
    js = client.jetstream()
    found = await until_shown(server, lambda lake: "cannot be read" in lake["errors"].get("HIST", ""))
    assert victim.name in found["errors"]["HIST"]
    assert "0 bytes instead of" in found["errors"]["HIST"]
    with pytest.raises((APIError, ServerError, nats.errors.TimeoutError)):
        await js.get_msg("HIST", lost)
    assert (await js.publish("OTHER.a", b"x")).seq == 1
    expected |= await publish(client, 201, 50)
    failures = (await compaction.report()).failures
    assert len(failures) == 1
    assert "cannot be repaired" in next(iter(failures.values()))
    assert "Nothing was changed" in next(iter(failures.values()))
    assert names <= data_files(table)
    assert (await js.get_msg("HIST", 220)).data == expected[220][1], "the log keeps what is new"
    victim.write_bytes(content)  # restored from a copy
    await until_shown(server, lambda lake: not lake["errors"])
    await until_table_holds(compaction, expected)
    assert await replay(client) == expected
    await client.close()
    compaction.stop()


async def test_the_lag_is_that_of_messages_and_ends(spark: Any, hasty: Server) -> None:
    compaction, server = Tables(spark, hasty), hasty
    client = await made(server)
    js = client.jetstream()
    await publish(client, 1, 60)
    behind = await asyncio.to_thread(shown, server)
    assert behind["lag"] == {"HIST": 60}
    assert behind["lag_seconds"]["HIST"] > 0
    assert behind["last_commit"] == {}
    assert behind["compactor"] == {"alive": False}
    await compaction.until_in_table("HIST")
    lock = open_lock(spark, f"{compaction.lake}/{COMPACTOR_LOCK}")
    assert lock.acquire()
    try:
        await until_shown(server, lambda lake: lake["compactor"]["alive"])
    finally:
        lock.release()
    await until_shown(server, lambda lake: lake["lag"]["HIST"] == 0)
    sub = await js.pull_subscribe("HIST.>", "d")
    for _ in range(6):
        for message in await sub.fetch(10):
            await message.ack_sync()
    whole = await until_shown(server, lambda lake: not lake["compactor"]["alive"])
    assert whole["lag"] == {"HIST": 0}
    assert whole["lag_seconds"] == {"HIST": 0}
    assert whole["last_commit"]["HIST"] > "2020"
    await client.close()
