"""Tests of kv.<bucket>, kv_history.<bucket> and obj.<store>, against what the clients of the bucket see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest
from nats.js.api import ObjectMeta
from nats.js.client import JetStreamContext

from lakestream.lake.sql.dialect import SqlError
from lakestream.lake.sql.session import Session
from lakestream.lake.sql.uncompacted import Server as Asked
from tests.lake.test_as_it_was import Tables
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.lake

CONFIG = 'lake { seal_bytes: 16384, seal_age: "100ms", retain_bytes: 0, poll: "100ms" }'
Row = tuple[str, bytes, int]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path_factory.mktemp("buckets") / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def js(server: Server) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    yield client.jetstream()
    await client.close()


def rows(session: Session, query: str) -> list[tuple[Any, ...]]:
    return [
        tuple(bytes(value) if isinstance(value, bytes | bytearray) else value for value in row)
        for row in session.query(query).fetchall()
    ]


def values(session: Session, name: str) -> list[Row]:
    return rows(session, f"SELECT key, value, revision FROM {name} ORDER BY key")


@pytest.mark.smoke
async def test_a_bucket_is_a_table_of_its_keys(spark: Any, server: Server, js: JetStreamContext) -> None:
    """Before, while and after the revisions reach the table: present values, by time, by revision, and the history."""
    bucket = await js.create_key_value(bucket="settings", history=3, direct=True)
    moments: list[tuple[int, list[Row]]] = []
    now: dict[str, tuple[bytes, int]] = {}
    history: list[tuple[str, int, str]] = []

    async def change(key: str, value: bytes | None) -> None:
        if value is None:
            await bucket.delete(key)
            revision = (await js.stream_info("KV_settings")).state.last_seq
            now.pop(key)
        else:
            revision = await bucket.put(key, value)
            now[key] = (value, revision)
        history.append((key, revision, "PUT" if value is not None else "DEL"))
        moments.append((revision, [(key, *now[key]) for key in sorted(now)]))

    tables = Tables(spark, server)
    for number in range(3):
        await change("db.host", b"10.0.0.%d" % number)
        await change("db.port", b"54%d" % number)
        await change(f"flag.{number}", b"on")
        await change(f"flag.{number}", None)
        if number == 1:
            await tables.until_in_table("KV_settings")

    def compare() -> None:
        with Session(server.store / "lake", server=Asked(server.url)) as session:
            assert values(session, "kv.settings") == moments[-1][1]
            for revision, wanted in moments:
                assert values(session, f"kv.settings VERSION AS OF {revision}") == wanted, revision
                created = f"(SELECT created FROM kv_history.settings WHERE revision = {revision})"
                [(at,)] = rows(session, f"SELECT CAST(max(created) + INTERVAL 1 MICROSECOND AS STRING) FROM {created}")
                if at is not None:
                    assert values(session, f"kv.settings TIMESTAMP AS OF '{at}'") == wanted, revision
            found = rows(session, "SELECT key, revision, operation FROM kv_history.settings ORDER BY revision")
            kept = [each for at, each in enumerate(history) if sum(one[0] == each[0] for one in history[at:]) <= 3]
            assert found == kept
            joined = "SELECT kv.settings.key FROM kv.settings JOIN kv_history.settings h USING (revision) ORDER BY key"
            assert rows(session, joined) == [(key,) for key, _, _ in moments[-1][1]]
            assert "kv.`settings`" in [row[0] for row in rows(session, "SHOW TABLES")]

    await asyncio.to_thread(compare)
    await tables.until_in_table("KV_settings")
    await asyncio.to_thread(compare)

    def by_spark(name: str) -> list[Row]:
        found = spark.sql(f"SELECT key, value, revision FROM {name} ORDER BY key").collect()
        return [(row.key, bytes(row.value), row.revision) for row in found]

    spark.conf.set("spark.lakestream.lake", str(server.store / "lake"))
    assert by_spark("kv.settings") == moments[-1][1]
    assert [tuple(row) for row in spark.sql("SELECT kv.settings.key FROM kv.settings ORDER BY 1").collect()] == [
        (key,) for key, _, _ in moments[-1][1]
    ]
    for revision, wanted in moments[::4]:
        assert by_spark(f"kv.settings VERSION AS OF {revision}") == wanted, revision
    at = spark.sql("SELECT max(created) + INTERVAL 1 MICROSECOND AS at FROM kv_history.settings").first().at
    assert by_spark(f"kv.settings TIMESTAMP AS OF '{at}'") == moments[-1][1]
    found = spark.sql("SELECT key, revision, operation FROM kv_history.settings ORDER BY revision").collect()
    assert [tuple(row) for row in found] == [
        each for at, each in enumerate(history) if sum(one[0] == each[0] for one in history[at:]) <= 3
    ]
    with pytest.raises(Exception, match="nothing"):
        spark.sql("SELECT * FROM kv.nothing")
    with pytest.raises(Exception, match="there is no revision 0"):
        spark.sql("SELECT * FROM kv.settings VERSION AS OF 0")


async def test_a_removal_by_ttl_is_a_deleted_key(server: Server, js: JetStreamContext) -> None:
    config = {"name": "KV_short", "subjects": ["$KV.short.>"], "max_msgs_per_subject": 1, "allow_direct": True}
    more = {"allow_rollup_hdrs": True, "allow_msg_ttl": True, "subject_delete_marker_ttl": 60_000_000_000}
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.KV_short", {**config, **more})
    await js.publish("$KV.short.stays", b"1")
    await js.publish("$KV.short.goes", b"2", headers={"Nats-TTL": "1"})
    async with asyncio.timeout(30):
        while (await js.stream_info("KV_short")).state.last_seq < 3:
            await asyncio.sleep(0.05)  # the server tells nobody that it has stored a marker

    def compare() -> None:
        with Session(server.store / "lake", server=Asked(server.url)) as session:
            assert values(session, "kv.short") == [("stays", b"1", 1)]
            operations = rows(session, "SELECT key, operation FROM kv_history.short ORDER BY revision")
            assert operations == [("stays", "PUT"), ("goes", "PURGE")]

    await asyncio.to_thread(compare)


async def test_an_object_store_is_a_table_of_its_objects(server: Server, js: JetStreamContext) -> None:
    store = await js.create_object_store("files")
    await store.put("report.pdf", b"x" * 300_000, ObjectMeta(description="Q3"))
    await store.put("gone.txt", b"y")
    await store.delete("gone.txt")
    info = await store.get_info("report.pdf")
    link = {
        "name": "l",
        "metadata": {"by": "me"},
        "headers": {"H": ["1", "2"]},
        "options": {"link": {"bucket": "b", "name": "n"}},
    }
    await js.publish("$O.files.M.bA==", json.dumps(link).encode(), headers={"Nats-Rollup": "sub"})

    def compare() -> None:
        with Session(server.store / "lake", server=Asked(server.url)) as session:
            columns = "name, size, chunks, digest, description, nuid, link, modified IS NOT NULL"
            assert rows(session, f"SELECT {columns} FROM obj.files WHERE metadata IS NULL") == [
                ("report.pdf", 300_000, info.chunks, info.digest, "Q3", info.nuid, None, True)
            ]
            [(metadata, headers, target)] = rows(
                session, "SELECT metadata, headers, link FROM obj.files WHERE name = 'l'"
            )
            assert (metadata, headers, target) == ({"by": "me"}, {"H": ["1", "2"]}, "b/n")

    await asyncio.to_thread(compare)


async def test_a_bucket_that_is_not_there_is_named(server: Server, js: JetStreamContext) -> None:
    await js.create_key_value(bucket="settings", history=1)
    await js.publish("$KV.settings.a", b"1")

    def compare() -> None:
        with Session(server.store / "lake", server=Asked(server.url)) as session:
            with pytest.raises(SqlError, match="KV_nothing"):
                session.query("SELECT * FROM kv.nothing")
            with pytest.raises(SqlError, match="there is no revision 0"):
                session.query("SELECT * FROM kv.settings VERSION AS OF 0")
            assert session.streams("SELECT * FROM kv.settings, kv_history.settings") == ["KV_settings"]

    await asyncio.to_thread(compare)
