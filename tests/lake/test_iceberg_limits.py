"""Test of Iceberg tables of a server's stream whose messages end by time: row by row what the server still has."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest

from lakestream.lake.storage import paths
from lakestream_iceberg.keeper import IcebergKeeper
from lakestream_spark.write.maintainer import Maintainer
from tests.lake.iceberg import HINT, READERS
from tests.lake.test_end_to_end import CONFIG, Compaction, eventually
from tests.servers import Kind, Server

pytestmark = [pytest.mark.lake, pytest.mark.timeout(1800)]

DEADLINE_S = 600.0


@pytest.mark.parametrize("form", ["v3", "v2"])
async def test_what_age_and_time_to_live_end_leaves_iceberg_too(spark: Any, tmp_path: Path, form: str) -> None:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    compaction = Compaction(spark, server)
    complaints: list[str] = []
    keeper = IcebergKeeper(spark, compaction.lake, "off", complaints.append)
    client = await nats.connect(server.url)
    js = client.jetstream()
    config = {
        "name": "AGED",
        "subjects": ["AGED.>"],
        "allow_msg_ttl": True,
        "max_age": 20_000_000_000,
        "metadata": {"lakestream.iceberg": form, "lakestream.partition": "subject"},
    }
    await client.request("$JS.API.STREAM.CREATE.AGED", json.dumps(config).encode())
    table = paths.table(compaction.lake, "AGED")

    async def send(count: int) -> None:
        for number in range(count):
            headers = {0: {"Nats-TTL": "3s"}, 1: {"Nats-TTL": "never"}}.get(number % 4)
            await js.publish(f"AGED.{number % 3}", b"%d" % number, headers=headers)

    async def stored() -> list[tuple[int, str, bytes]]:
        state = (await js.stream_info("AGED")).state
        found = []
        for seq in range(state.first_seq, state.last_seq + 1):
            try:
                message = await js.get_msg("AGED", seq)
            except nats.js.errors.NotFoundError:
                continue
            found.append((seq, message.subject or "", message.data or b""))
        return found

    async def same() -> bool:
        await compaction.run()
        await asyncio.to_thread(keeper.note, [table])
        await asyncio.to_thread(keeper.once)
        if not Path(table, "metadata", HINT).exists():
            return False
        wanted = await stored()
        found = {
            name: [(row["seq"], row["subject"], row["data"]) for row in await asyncio.to_thread(read, table)]
            for name, read in READERS.items()
        }
        return wanted == await stored() and all(each == wanted for each in found.values())

    try:
        for number in range(3):
            await send(24)
            await eventually(same, DEADLINE_S)
            if number == 1:
                (done,) = await asyncio.to_thread(Maintainer(spark, compaction.lake).once)
                assert done.failure is None

        async def only_those_without_end() -> bool:
            return len(await stored()) == 3 * 6

        await eventually(only_those_without_end, DEADLINE_S)
        await eventually(same, DEADLINE_S)
        assert complaints == []
    finally:
        keeper.stop()
        compaction.stop()
        await client.close()
        server.kill()
