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

from lakestream_sql.explained import SqlError
from lakestream_sql.session import Session
from lakestream_sql.uncompacted import FlushServer as Asked
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


Typed = tuple[str, Any, str | None]
"""Key, `value` as a dictionary (None: NULL), and the version of its schema."""


@pytest.mark.parametrize("data", ["keep", "drop-when-typed"])
async def test_a_bucket_with_a_schema_has_typed_values(
    spark: Any, server: Server, js: JetStreamContext, data: str
) -> None:
    """Present values, by revision, by time and the history, while versions of the schema come: in DuckDB also of
    revisions that are not compacted yet."""
    price = {"price": {"type": "number"}, "note": {"type": ["string", "null"]}}
    tags = {"tags": {"type": "array", "items": {"type": "string"}}}

    async def register(properties: dict[str, Any]) -> None:
        text = json.dumps({"type": "object", "properties": properties})
        body = json.dumps({"format": "json", "text": text}).encode()
        answer = json.loads((await js._nc.request("$LAKE.API.SCHEMA.ADD.prices", body, timeout=30)).data)
        assert "error" not in answer, answer

    await register(price)
    metadata = {"lakestream.schema": "prices@latest", "lakestream.data": data}
    config: dict[str, Any] = {"subjects": ["$KV.prices.>"], "max_msgs_per_subject": 3, "allow_rollup_hdrs": True}
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.KV_prices", {"name": "KV_prices", "allow_direct": True, "metadata": metadata} | config)
    bucket = await js.key_value("prices")
    now: dict[str, tuple[Any, str | None]] = {}
    moments: dict[int, list[Typed]] = {}
    history: list[tuple[str, Any, str | None, str]] = []
    payloads: dict[int, bytes] = {}

    async def put(key: str, payload: bytes, value: Any, schema: str | None) -> None:
        revision = await bucket.put(key, payload)
        now[key] = (value, schema)
        payloads[revision] = payload
        moments[revision] = [(key, *now[key]) for key in sorted(now)]
        history.append((key, value, schema, "PUT"))

    async def remove(key: str) -> None:
        await bucket.delete(key)
        now.pop(key)
        history.append((key, None, None, "DEL"))
        moments[(await js.stream_info("KV_prices")).state.last_seq] = [(key, *now[key]) for key in sorted(now)]

    async def some(begin: int) -> None:
        for number in range(begin, begin + 3):
            value = {"price": number + 0.5, "note": "x" * number if number % 2 else None}
            await put(f"car.{number % 2}", json.dumps(value, separators=(",", ":")).encode(), value, "prices@1")
        await put("odd", b'{"price": "dear"}', None, None)
        await put(f"gone.{begin}", b'{"price":1.0,"note":"-"}', {"price": 1.0, "note": "-"}, "prices@1")
        await remove(f"gone.{begin}")

    def shown(value: Any, columns: tuple[str, ...]) -> Any:
        return None if value is None else dict.fromkeys(columns) | value

    def wanted(moment: list[Typed], columns: tuple[str, ...]) -> list[Typed]:
        return [(key, shown(value, columns), schema) for key, value, schema in moment]

    def compare(*columns: str) -> None:
        last = moments[max(moments)]
        kept = [each for at, each in enumerate(history) if sum(one[0] == each[0] for one in history[at:]) <= 3]
        with Session(server.store / "lake", server=Asked(server.url)) as session:
            typed = "SELECT key, value, schema FROM"
            assert rows(session, f"{typed} kv.prices ORDER BY key") == wanted(last, columns)
            for revision, moment in moments.items():
                found = rows(session, f"{typed} kv.prices VERSION AS OF {revision} ORDER BY key")
                names = columns if found and "tags" in (found[0][1] or found[-1][1] or {}) else columns[:2]
                assert found == wanted(moment, names), revision
            at = rows(session, "SELECT max(created) + INTERVAL 1 MICROSECOND AS at FROM kv_history.prices")[0][0]
            assert rows(session, f"{typed} kv.prices TIMESTAMP AS OF '{at}' ORDER BY key") == wanted(last, columns)
            query = "SELECT key, value, schema, operation FROM kv_history.prices ORDER BY revision"
            assert rows(session, query) == [(key, shown(value, columns), *more) for key, value, *more in kept]
            dear = rows(session, "SELECT key FROM kv.prices WHERE value.price > 2 ORDER BY key")
            assert dear == [(key,) for key, value, _ in last if value and value["price"] > 2]

    tables = Tables(spark, server)
    await some(0)
    await asyncio.to_thread(compare, "price", "note")
    await tables.until_in_table("KV_prices")
    await some(3)
    await asyncio.to_thread(compare, "price", "note")
    await register(price | tags)
    tagged = {"price": 9.0, "note": None, "tags": ["a", "b"]}
    await put("tagged", json.dumps(tagged, separators=(",", ":")).encode(), tagged, "prices@2")
    await asyncio.to_thread(compare, "price", "note", "tags")
    await tables.until_in_table("KV_prices")
    await asyncio.to_thread(compare, "price", "note", "tags")

    spark.conf.set("spark.lakestream.lake", str(server.store / "lake"))
    columns = ("price", "note", "tags")

    def by_spark(name: str) -> list[Typed]:
        found = spark.sql(f"SELECT key, value, schema FROM {name} ORDER BY key").collect()
        return [(row.key, None if row.value is None else row.value.asDict(True), row.schema) for row in found]

    last = max(moments)
    assert by_spark("kv.prices") == wanted(moments[last], columns)
    assert by_spark(f"kv.prices VERSION AS OF {last - 1}") == wanted(moments[last - 1], columns)
    at = spark.sql("SELECT max(created) + INTERVAL 1 MICROSECOND AS at FROM kv_history.prices").first().at
    assert by_spark(f"kv.prices TIMESTAMP AS OF '{at}'") == wanted(moments[last], columns)
    found = spark.sql("SELECT key, value.price FROM kv.prices WHERE value.price > 2 ORDER BY key").collect()
    assert [tuple(row) for row in found] == [(key, v["price"]) for key, v, _ in moments[last] if v and v["price"] > 2]
    found = spark.sql("SELECT revision, data, value, operation FROM kv_history.prices").collect()
    for row in found:
        if row.operation == "PUT":
            dropped = data != "keep" and row.value is not None
            assert row.data == (None if dropped else payloads[row.revision]), row.revision
    assert (await bucket.get("tagged")).value == payloads[last], "clients get the bytes in any case"


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
            with pytest.raises(SqlError, match=r"no table kv\.nothing"):
                session.query("SELECT * FROM kv.nothing")
            with pytest.raises(SqlError, match="there is no revision 0"):
                session.query("SELECT * FROM kv.settings VERSION AS OF 0")
            assert session.mentioned("SELECT * FROM kv.settings, kv_history.settings").streams == ["KV_settings"]

    await asyncio.to_thread(compare)
