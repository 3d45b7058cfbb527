"""Tests of lakes and stores restored from older copies, and of segments damaged in transfer."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import StreamConfig
from nats.js.errors import APIError, ServerError

from lakestream.lake.storage import paths
from tests.lake import tables
from tests.lake.test_end_to_end import CONFIG, Compaction, eventually, publish, replay
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG, args=["-m", "-1"])
    server.start()
    yield server
    server.kill()


def errors(server: Server) -> dict[str, str]:
    """Return the errors of tables in /varz."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/varz", timeout=10) as answer:
        found: dict[str, str] = json.load(answer)["lake"]["errors"]
        return found


async def until_error(server: Server, stream: str, text: str) -> None:
    async def said() -> bool:
        return text in (await asyncio.to_thread(errors, server)).get(stream, "")

    await eventually(said)


def bring_back(copy: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(copy, place)


async def test_an_older_lake_is_refused_and_a_newer_one_taken_up_again(
    spark: Any, server: Server, tmp_path: Path
) -> None:
    compaction = Compaction(spark, server)
    lake = server.store / "lake"
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    await publish(client, 1, 100)
    await compaction.until_caught_up("HIST")
    shutil.copytree(lake, tmp_path / "older")
    expected = await publish(client, 101, 100)
    await compaction.until_caught_up("HIST")
    shutil.copytree(lake, tmp_path / "newer")
    await client.close()
    server.stop()
    compaction.stop()

    bring_back(tmp_path / "older", lake)
    server.start()
    client = await nats.connect(server.url)
    await until_error(server, "HIST", "the lake is an older copy")
    expected |= await publish(client, 201, 50)
    with pytest.raises((APIError, ServerError, nats.errors.TimeoutError)):
        await client.jetstream().get_msg("HIST", 150)
    await client.close()
    server.stop()

    bring_back(tmp_path / "newer", lake)
    server.start()
    client = await nats.connect(server.url)
    again = Compaction(spark, server)
    await again.until_caught_up("HIST")
    assert errors(server) == {}
    found = await replay(client)
    assert {seq: found[seq] for seq in found if seq > 100} == expected
    assert len(found) == 250
    await client.close()
    again.stop()


async def test_an_older_lake_that_the_log_still_reaches_is_staged_anew(tmp_path: Path, spark: Any) -> None:
    config = CONFIG.replace("retain_bytes: 0", "retain_bytes: 1000000")
    server = Server(Kind.OURS, tmp_path / "store", config=config)
    server.start()
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"])
    await publish(client, 1, 50)
    table = paths.table(compaction.lake, "HIST")

    async def holds(count: int) -> bool:
        await compaction.run()
        return Path(table, "_delta_log").is_dir() and len(tables.records(table)) == count

    await eventually(lambda: holds(50))
    shutil.copytree(compaction.lake, tmp_path / "older")
    await publish(client, 51, 50)
    await eventually(lambda: holds(100))
    await client.close()
    server.stop()
    compaction.stop()
    bring_back(tmp_path / "older", Path(compaction.lake))
    server.start()
    compaction = Compaction(spark, server)
    await eventually(lambda: holds(100))
    compaction.stop()
    server.kill()


async def test_an_older_store_gives_out_no_sequence_twice(spark: Any, server: Server, tmp_path: Path) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"])
    await publish(client, 1, 50)
    await client.close()
    server.stop()
    shutil.copytree(server.store / "jetstream", tmp_path / "older")
    server.start()
    client = await nats.connect(server.url)
    await publish(client, 51, 50)
    await compaction.until_caught_up("HIST")
    await client.close()
    server.stop()
    bring_back(tmp_path / "older", server.store / "jetstream")
    server.start()
    client = await nats.connect(server.url)
    await until_error(server, "HIST", "the store directory is an older copy")
    with pytest.raises((APIError, nats.errors.TimeoutError)):
        await client.jetstream().publish("HIST.a", b"once more", timeout=2)
    table = paths.table(compaction.lake, "HIST")
    assert [row.seq for row in tables.records(table)] == list(range(1, 101))
    await client.close()
    compaction.stop()


async def test_a_damaged_staged_segment_stops_its_stream_until_the_server_brings_a_good_one(
    spark: Any, server: Server
) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    for name in ("HIST", "OTHER"):
        await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
    expected = await publish(client, 1, 50)
    await client.jetstream().publish("OTHER.a", b"x")
    wanted = {seq: message[:2] for seq, message in expected.items()}

    async def both_staged() -> bool:
        return len({Path(each.path).parent for each in compaction.staged()}) == 2

    await eventually(both_staged)
    victim = next(each for each in compaction.staged() if "/HIST/" in each.path)
    good = Path(victim.path).read_bytes()
    Path(victim.path).unlink()  # not the log's own file, of which it is a hard link
    Path(victim.path).write_bytes(good[:-200] + bytes(100) + good[-100:])
    await compaction.run()
    assert Path(f"{victim.path}.bad").exists() or Path(victim.path).read_bytes() == good
    other = paths.table(compaction.lake, "OTHER")
    assert [row.seq for row in tables.records(other)] == [1], "other streams go on"
    table = paths.table(compaction.lake, "HIST")

    async def caught_up() -> bool:
        await compaction.run()
        if not Path(table, "_delta_log").is_dir():
            return False
        return {row.seq: (row.subject.decode(), row.data) for row in tables.records(table)} == wanted

    await eventually(caught_up)
    await client.close()
    compaction.stop()


async def test_a_segment_that_is_damaged_in_the_log_too_is_shown_as_an_error(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"])
    await publish(client, 1, 50)

    async def staged() -> bool:
        return bool(compaction.staged())

    await eventually(staged)
    victim = compaction.staged()[0]
    content = bytearray(Path(victim.path).read_bytes())
    content[len(content) // 2] ^= 1
    with open(victim.path, "r+b") as file:  # a hard link of the log's file
        file.write(content)
    await compaction.run()
    await until_error(server, "HIST", "was set aside")
    await client.close()
    compaction.stop()


async def test_metadata_that_the_lake_cannot_follow_is_refused(server: Server) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="GOOD", subjects=["GOOD.>"], metadata={"lakestream.partition": "tokens:1,2", "x": "y"})
    for metadata in ({"lakestream.partition": "by day"}, {"lakestream.retention": "never"}, {"lakestream.x": "1"}):
        with pytest.raises(ServerError) as caught:
            await js.add_stream(name="BAD", subjects=["BAD.>"], metadata=metadata)
        assert caught.value.err_code == 10052
        assert next(iter(metadata)) in str(caught.value.description)
        with pytest.raises(ServerError):
            await js.update_stream(StreamConfig(name="GOOD", subjects=["GOOD.>"], metadata=metadata))
    await client.close()
