"""Test of a stream from before the lake was enabled: it is compacted from its first message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nats
import pytest

from lakestream.cli.link import ClientLink
from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import paths
from lakestream.log.format.record import Record
from lakestream.log.format.segment import HEADER_SIZE
from tests.lake import tables
from tests.lake.test_end_to_end import Compaction, eventually
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

TIMING = 'seal_bytes: 8192, seal_age: "200ms", retain_bytes: 0, poll: "100ms"'
OFF = f"lake {{ enabled: false, {TIMING} }}"
ON = f"lake {{ {TIMING} }}"


def content(server: Server, stream: str) -> list[Record]:
    with ClientLink(server.url) as link:
        return [record for block in link.messages(stream, 1, 1 << 40) for record in block]


async def history(server: Server) -> None:
    """Publish, delete, purge and apply limits in two streams."""
    client = await nats.connect(server.url)
    js = client.jetstream()
    if not await js.streams_info():
        await js.add_stream(name="ALL", subjects=["all.>"])
        await js.add_stream(name="SHORT", subjects=["short.>"], max_msgs_per_subject=3, max_msgs=40)
    first = (await js.stream_info("ALL")).state.last_seq + 1
    for number in range(300):
        await client.publish(f"all.{number % 5}", b"%d" % number + b"x" * 100, headers={"N": str(number)})
        await client.publish(f"short.{number % 20}", b"y" * 100)
    await js.publish("short.0", b"last")
    await js.publish("all.0", b"last")  # acked: everything before it is stored
    await js.delete_msg("ALL", first + 7)
    await js.purge_stream("ALL", subject="all.3", keep=2)
    await client.close()


async def all_staged(server: Server, stream: str) -> bool:
    """Return True if every log entry of a stream is in a sealed segment, and all segments are staged."""
    segments = sorted((server.store / "jetstream" / "$G" / "streams" / stream / "log").glob("*.seg"))
    found = [each for each in scan.Scanner(str(server.store / "lake")).scan() if each.identity.name == stream]
    staged = staging.segments(found[0].directory) if found else []
    return segments[-1].stat().st_size == HEADER_SIZE and len(staged) == len(segments) - 1


async def test_a_stream_from_before_the_lake_is_compacted_from_its_first_message(tmp_path: Path, spark: Any) -> None:
    server = Server(Kind.OURS, tmp_path / "store", config=OFF)
    try:
        server.start()
        await history(server)
        server.kill()
        server.start()
        await history(server)
        assert not (server.store / "lake").exists()
        log = server.store / "jetstream" / "$G" / "streams" / "ALL" / "log"
        assert len(list(log.glob("*.seg"))) > 5
        expected = {name: content(server, name) for name in ("ALL", "SHORT")}
        assert expected["ALL"][0].seq == 1
        server.stop()

        server.config = ON
        server.start()
        compaction = Compaction(spark, server)
        try:
            for name in expected:
                await eventually(lambda name=name: all_staged(server, name))
            assert all(
                staging.segments(each.directory)[0].first_index == 1 for each in scan.Scanner(compaction.lake).scan()
            )
            await compaction.run()
            for name, messages in expected.items():
                assert tables.records(paths.table(compaction.lake, name)) == messages
                assert content(server, name) == messages
        finally:
            compaction.stop()
    finally:
        server.kill()


async def test_without_a_lake_nothing_is_written_there(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store", args=["--no-lake"])
    try:
        server.start()
        await history(server)
        server.stop()
        assert "Lake:            off" in server.log()
        assert not (server.store / "lake").exists()
    finally:
        server.kill()
