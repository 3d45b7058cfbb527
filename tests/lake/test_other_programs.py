"""Tests of a server whose table another program changes: nothing is passed over, and what is undone is read again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import polars
import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError, ServerError

from lakestream.lake.storage import paths
from lakestream.lake.table.foreign_commits import AND_WITH
from tests.lake.test_end_to_end import CONFIG, Compaction, eventually, publish, replay
from tests.lake.test_older_copies import errors, until_error
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG, args=["-m", "-1"])
    server.start()
    yield server
    server.kill()


async def test_rows_that_another_program_deletes_or_changes_are_waited_for_named_and_read_again(
    spark: Any, server: Server
) -> None:
    compaction = Compaction(spark, server)
    table = paths.table(compaction.lake, "HIST")
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    expected = await publish(client, 1, 100)
    await compaction.until_caught_up("HIST")
    assert await replay(client) == expected, "the server has read the table before"
    same_size = "".join(f"{each ^ 1:02x}" for each in expected[70][1])
    spark.sql(f"DELETE FROM delta.`{table}` WHERE seq = 50")
    spark.sql(f"UPDATE delta.`{table}` SET data = X'{same_size}' WHERE seq = 70")

    async def both() -> bool:
        said = (await asyncio.to_thread(errors, server)).get("HIST", "")
        return said.count("deleted or changed the rows of 1 messages") == 2

    await eventually(both)
    expected |= await publish(client, 101, 20)
    sub = await js.pull_subscribe("HIST.>", "d")
    got = [message.metadata.sequence.stream for message in await sub.fetch(100, timeout=2)]
    assert got == list(range(1, 50))
    with pytest.raises(NatsTimeout):
        await sub.fetch(1, timeout=2)
    for seq in (50, 70):
        for direct in (True, False):
            with pytest.raises((APIError, ServerError)):
                await js.get_msg("HIST", seq, direct=direct)
    assert (await js.get_msg("HIST", 71, direct=True)).data == expected[71][1]
    said = (await asyncio.to_thread(errors, server))["HIST"]
    command = re.search(r"RESTORE TABLE delta.`(.*?)` TO VERSION AS OF (\d+)", said)
    assert command is not None, said
    assert command[1] == table
    spark.sql(command[0])

    async def settled() -> bool:
        return await asyncio.to_thread(errors, server) == {}

    await eventually(settled)
    assert await replay(client) == expected
    await client.close()
    compaction.stop()


async def test_a_deletion_by_another_program_is_accepted_by_deleting_the_messages(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    expected = await publish(client, 1, 100)
    await compaction.until_caught_up("HIST")
    server.stop()
    spark.sql(f"DELETE FROM delta.`{paths.table(compaction.lake, 'HIST')}` WHERE seq IN (50, 51)")
    server.start()
    await client.close()
    client = await nats.connect(server.url)
    js = client.jetstream()
    await until_error(server, "HIST", "deleted or changed the rows of 2 messages with sequences from 50 to 51")
    for seq in (50, 51):
        await js.delete_msg("HIST", seq)
        del expected[seq]

    async def settled() -> bool:
        return await asyncio.to_thread(errors, server) == {}

    await eventually(settled)
    assert await replay(client) == expected
    await client.close()
    compaction.stop()


async def test_deleted_rows_are_put_back_by_the_printed_command_after_columns_were_added(
    spark: Any, server: Server
) -> None:
    compaction = Compaction(spark, server)
    table = paths.table(compaction.lake, "HIST")
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    expected = await publish(client, 1, 100)
    await compaction.until_caught_up("HIST")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE seq BETWEEN 50 AND 52")
    await until_error(server, "HIST", "deleted or changed the rows of 3 messages with sequences from 50 to 52")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMN (note STRING, price STRUCT<net: DOUBLE>)")
    expected |= await publish(client, 101, 20)

    async def committed() -> bool:
        await compaction.report()
        return "INSERT INTO" in (await asyncio.to_thread(errors, server))["HIST"]

    async def undo() -> None:
        said = re.search(r"in Spark SQL with (.*?); ", (await asyncio.to_thread(errors, server))["HIST"])
        assert said is not None
        spark.sql(said[1])

    async def settled() -> bool:
        return await asyncio.to_thread(errors, server) == {}

    await eventually(committed)
    await undo()
    await eventually(settled)
    assert await replay(client) == expected
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    await until_error(server, "HIST", "was given column mapping by another program")
    await undo()
    await eventually(settled)

    async def compacted() -> bool:
        await compaction.report()
        return bool(polars.scan_delta(table).select("seq").collect().height == 120)

    await eventually(compacted)
    assert await replay(client) == expected
    await client.close()
    compaction.stop()


async def test_rows_that_another_program_inserts_are_removed_by_the_printed_commands_after_later_commits(
    spark: Any, server: Server
) -> None:
    compaction = Compaction(spark, server)
    table = paths.table(compaction.lake, "HIST")
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
    expected = await publish(client, 1, 100)
    await compaction.until_caught_up("HIST")
    columns = "time, time_ns, headers, header_block, subject, subject_bytes"
    inserted = ", ".join(
        f"({seq}, {source}, {data})"
        for seq, source, data in (
            (50, 7, "cast('of another program' as binary)"),
            (60, 60, "NULL"),  # the same row again
            (110, 7, "cast('of another program' as binary)"),  # a message gets this sequence later
            (1 << 40, 7, "cast('of another program' as binary)"),
        )
    )
    spark.sql(
        f"INSERT INTO delta.`{table}` (seq, data, {columns}) SELECT v.seq, coalesce(v.data, t.data), "
        f"{columns} FROM delta.`{table}` t JOIN VALUES {inserted} AS v(seq, source, data) ON t.seq = v.source"
    )
    spark.sql(f"UPDATE delta.`{table}` SET data = cast('changed' as binary) WHERE seq BETWEEN 70 AND 72")
    await until_error(server, "HIST", "deleted or changed the rows of 2 messages with sequences from 50 to 60")
    await client.jetstream().delete_msg("HIST", 71)
    del expected[71]
    expected |= await publish(client, 101, 20)

    async def committed() -> bool:
        await compaction.report()
        return (await asyncio.to_thread(errors, server))["HIST"].count("INSERT INTO") == 2

    await eventually(committed)
    said = (await asyncio.to_thread(errors, server))["HIST"]
    for commands in re.findall(r"in Spark SQL with (.*?); or accept it", said):
        for command in commands.split(AND_WITH):
            spark.sql(command)

    async def settled() -> bool:
        return await asyncio.to_thread(errors, server) == {}

    await eventually(settled)
    await compaction.until_caught_up("HIST")
    found = spark.sql(f"SELECT seq, data FROM delta.`{table}` ORDER BY seq").collect()
    assert [(row.seq, bytes(row.data)) for row in found] == [(seq, data) for seq, (_, data, _) in expected.items()]
    assert await replay(client) == expected
    await client.close()
    compaction.stop()
