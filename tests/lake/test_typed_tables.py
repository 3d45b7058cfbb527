"""Tests of typed columns over the whole path: published over NATS, decoded by the compactor, read by everybody."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import nats
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from google.protobuf import message_factory
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import ServerError

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import schema_files as schemas
from lakestream.schemas.schema import Format, Schema
from lakestream_schemas.protobuf.model import message_of, read_files
from tests.lake.foreign import Readers
from tests.lake.test_end_to_end import CONFIG, Compaction, eventually
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

COUNT = 150
Value = dict[str, Any]


class Case(msgspec.Struct, frozen=True):
    """Versions of a schema in one format.

    Attributes: `texts`: the versions; `values`: the fields of message `number` of a version, as rows have them;
    `encode`: its payload; `misfit`: a payload that never fits, with the rule that it breaks; `columns`: of the table in
    the end; `renamed`: column of a field by version, where it is not its name.
    """

    format: Format
    rules: str
    texts: list[str]
    values: Callable[[int, int], Value]
    encode: Callable[[Schema, Value], bytes]
    misfit: tuple[bytes, str]
    columns: list[str]
    renamed: dict[tuple[int, str], str] = {}


def json_text(properties: dict[str, Any]) -> str:
    return json.dumps({"type": "object", "properties": properties, "required": ["id"]})


def json_value(version: int, number: int) -> Value:
    found: Value = {"id": f"o-{number}", "qty": number if version < 3 else number + 0.5}
    if version < 3:
        found["note"] = "Grüße" * 30 if number % 3 else None
    lines: list[Value] = [{"sku": f"s{at}", "n": at} for at in range(number % 3)]
    if version > 1:
        found["created"] = datetime(2026, 5, 1, 12, number % 60, 1, 123000, tzinfo=UTC)
        lines = [{**line, "price": line["n"] * 1.5} for line in lines]
    return {**found, "lines": lines, "at": {"zip": str(number)} | ({"city": None} if version > 1 else {})}


def json_payload(schema: Schema, value: Value) -> bytes:
    texts = {
        name: each.isoformat(timespec="milliseconds").replace("+00:00", "Z") if isinstance(each, datetime) else each
        for name, each in value.items()
    }
    return json.dumps(texts, separators=(",", ":"), ensure_ascii=False).encode()


LINES = {"sku": {"type": "string"}, "n": {"type": "integer"}}
TEXT_OR_NULL = {"type": ["string", "null"]}


def json_versions() -> list[str]:
    lines = {"type": "array", "items": {"type": "object", "properties": LINES}}
    wider = {"type": "array", "items": {"type": "object", "properties": LINES | {"price": {"type": "number"}}}}
    at: Value = {"type": "object", "properties": {"zip": {"type": "string"}}}
    there: Value = {"type": "object", "properties": {"zip": {"type": "string"}, "city": TEXT_OR_NULL}}
    first: Value = {
        "id": {"type": "string"},
        "qty": {"type": "integer"},
        "note": TEXT_OR_NULL,
        "lines": lines,
        "at": at,
    }
    second = first | {"created": {"type": "string", "format": "date-time"}, "lines": wider, "at": there}
    third = {name: each for name, each in second.items() if name != "note"} | {"qty": {"type": "number"}}
    return [json_text(each) for each in (first, second, third)]


def avro_versions() -> list[str]:
    first: list[Any] = [
        {"name": "id", "type": "string"},
        {"name": "qty", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
    ]
    second = [*first, {"name": "day", "type": {"type": "int", "logicalType": "date"}}, _RECORD]
    third = [second[0], {"name": "qty", "type": "double"}, *second[3:]]
    return [json.dumps({"type": "record", "name": "Order", "fields": each}) for each in (first, second, third)]


_RECORD = {
    "name": "at",
    "type": {"type": "record", "name": "At", "fields": [{"name": "tags", "type": {"type": "map", "values": "long"}}]},
}


def avro_value(version: int, number: int) -> Value:
    found: Value = {"id": f"o-{number}", "qty": number if version < 3 else number + 0.5}
    if version < 3:
        found["note"] = "note " * 30 if number % 3 else None
    if version > 1:
        found |= {"day": date(2026, 5, 1 + number % 28), "at": {"tags": {"a": number}}}
    return found


def avro_payload(schema: Schema, value: Value) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(schema.text), value)
    return b"\0" + schema.id.to_bytes(4, "big") + out.getvalue()


PROTOS = [
    """syntax = "proto3"; message Order { string id = 1; int32 qty = 2; string note = 3; }""",
    """syntax = "proto3"; message Order { string id = 1; int32 qty = 2; string note = 3; repeated int64 marks = 4;
    message At { string zip = 1; } At at = 5; }""",
    """syntax = "proto3"; message Order { string id = 1; int64 qty = 2; reserved 3; repeated int64 marks = 4;
    message At { string zip = 1; double lat = 2; } At at = 5; }""",
]


def proto_value(version: int, number: int) -> Value:
    found: Value = {"id": f"o-{number}", "qty": number if version < 3 else number << 40}
    if version < 3:
        found["note"] = "note " * 30
    if version > 1:
        found |= {"marks": [number, -1], "at": {"zip": str(number)} | ({"lat": 0.5} if version > 2 else {})}
    return found


def proto_payload(schema: Schema, value: Value) -> bytes:
    kind: Any = message_factory.GetMessageClass(message_of(read_files(schema.descriptors)))
    message = kind(**{name: each for name, each in value.items() if name != "at"})
    if "at" in value:
        for name, each in value["at"].items():
            setattr(message.at, name, each)
    found: bytes = message.SerializeToString(deterministic=True)
    return found


CASES = {
    "json": Case(
        "json", "orders@latest", json_versions(), json_value, json_payload, (b'{"id":7}', "type"),
        ["id", "qty", "note", "lines", "at", "created", "qty_double"], {(3, "qty"): "qty_double"},
    ),
    "avro": Case(
        "avro", "@confluent", avro_versions(), avro_value, avro_payload, (b"\0\0\0\0\1\x02", "encoding"),
        ["id", "qty", "note", "day", "at", "qty_double"], {(3, "qty"): "qty_double"},
    ),
    "protobuf": Case(
        "protobuf", '{"orders.>": "orders"}', PROTOS, proto_value, proto_payload, (b"\x0a\xff", "encoding"),
        ["id", "qty", "note", "marks", "at"],
    ),
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", args=["-m", "-1"], config=CONFIG)
    server.start()
    yield server
    server.kill()


def wide(case: Case, version: int, value: Value, columns: list[str]) -> Value:
    """Return the row of a message in a table with these columns. Structs have the fields of all versions."""
    found: Value = dict.fromkeys(columns)
    for name, each in value.items():
        found[case.renamed.get((version, name), name)] = each
    if case.format == "json" and "created" in columns:
        found["lines"] = [{"price": None} | line for line in found["lines"]]
        found["at"] = {"city": None} | found["at"]
    if case.format == "protobuf" and found.get("at"):
        found["at"] = {"lat": None} | found["at"]
    return found


def plain(value: Any) -> Any:
    """Return a value in one form for all readers."""
    if hasattr(value, "tolist") and not isinstance(value, str | bytes):
        value = value.tolist()
    if value is None or value != value or repr(value) in ("<NA>", "NaT"):
        return None
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple) and len(value[0]) == 2:  # a map
            return {name: plain(each) for name, each in value}
        if value and isinstance(value[0], dict) and value[0].keys() == {"key", "value"}:
            return {each["key"]: plain(each["value"]) for each in value}
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # Spark's rows have times in this machine's zone
    return value


@pytest.mark.parametrize("data", ["keep", "drop-when-typed"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_table_follows_two_evolutions_of_a_schema(spark: Any, server: Server, case: Case, data: str) -> None:
    compaction = Compaction(spark, server)
    storage = open_storage(compaction.lake)
    client = await nats.connect(server.url)
    js = client.jetstream()
    metadata = {"lakestream.schema": case.rules, "lakestream.data": data}
    sent: dict[int, bytes] = {}
    rows: dict[int, tuple[int, Value] | None] = {}
    ends: list[tuple[int, int]] = []  # of each stage: version of the table, last sequence
    for version, text in enumerate(case.texts, 1):
        schema = await registered(client, storage, case.format, text)
        if version == 1:
            await js.add_stream(name="ORDERS", subjects=["orders.>"], allow_direct=True, metadata=metadata)
        for number in range(COUNT):
            value: Value | None = case.values(version, number)
            assert value is not None
            payload = case.encode(schema, value)
            if number == 50:
                value, payload = None, case.misfit[0]
            seq = (await js.publish(f"orders.{number % 4}", payload)).seq
            sent[seq], rows[seq] = payload, None if value is None else (version, value)
        await compaction.until_caught_up("ORDERS")
        ends.append((DeltaTable(paths.table(compaction.lake, "ORDERS")).version(), seq))
    table = paths.table(compaction.lake, "ORDERS")
    names = [field.name for field in DeltaTable(table).schema().fields]
    assert names[names.index("schema") :] == ["schema", *(["data_format"] if data != "keep" else []), *case.columns]

    # Every reader finds the same rows.
    readers = Readers(spark)
    for name, read in readers.all.items():
        found = sorted(read(table, None), key=lambda row: int(row["seq"]))
        assert [int(row["seq"]) for row in found] == sorted(sent), name
        for row in found:
            seq = int(row["seq"])
            expected = rows[seq]
            typed = {column: plain(row[column]) for column in case.columns}
            if expected is None:
                assert (plain(row["schema"]), typed) == (None, dict.fromkeys(case.columns)), name
                assert bytes(row["data"]) == sent[seq], name
                continue
            assert plain(row["schema"]) == f"orders@{expected[0]}", name
            assert typed == wide(case, *expected, case.columns), (name, seq)
            kept = plain(row["data"])
            assert kept == sent[seq] if data == "keep" else kept is None, (name, seq, kept)

    # The table as it was has the columns that it had.
    for at, (version, last) in enumerate(ends[:2], 1):
        then = DeltaTable(table, version=version)
        columns = [field.name for field in then.schema().fields]
        own = [column for column in case.columns if column in columns]
        assert len(own) < len(case.columns) or case.format == "protobuf"
        sql = f"SELECT seq, {', '.join(own)} FROM t ORDER BY seq"
        found = pa.table(QueryBuilder().register("t", then).execute(sql).read_all()).to_pylist()
        assert [row["seq"] for row in found] == [seq for seq in sorted(sent) if seq <= last]
        first = next(each for seq in sorted(rows) if (each := rows[seq]) is not None and each[0] == at)
        chosen = next(row for row in found if row["seq"] == next(seq for seq, each in rows.items() if each == first))
        assert plain(chosen["id"]) == first[1]["id"]

    # Misfits are listed.
    misfits = pa.table(
        QueryBuilder().register("t", DeltaTable(f"{table}_misfits")).execute("SELECT * FROM t ORDER BY seq").read_all()
    ).to_pylist()
    assert [row["seq"] for row in misfits] == [seq for seq in sorted(rows) if rows[seq] is None]
    assert {row["rule"] for row in misfits} == {case.misfit[1]}
    assert server.page("/varz")["lake"]["misfits"] == {"ORDERS": len(case.texts)}

    # And NATS clients get their bytes. The readers have kept the event loop from answering the server.
    await client.close()
    client = await nats.connect(server.url)
    assert await read_back(client) == sent
    direct = await client.jetstream().get_msg("ORDERS", 1, direct=True)
    assert direct.data == sent[1]
    await client.close()


async def registered(client: Client, storage: Storage, format: Format, text: str) -> Schema:
    """Register a version, and return it as the lake has it."""
    asked = {"format": format, "text": text, "compatibility": "none"}
    answer = await client.request("$LAKE.API.SCHEMA.ADD.orders", json.dumps(asked).encode(), timeout=60)
    found = json.loads(answer.data)
    assert "error" not in found, found
    schema = schemas.schema_of_id(storage, "$G", found["id"])
    assert schema is not None
    assert schema.version == found["version"]
    return schema


async def register(client: Client, format: Format, text: str) -> int:
    """Register a version of the schema `orders`, unless it is registered; return its number."""
    body = json.dumps({"format": format, "text": text, "compatibility": "none"}).encode()
    answer = json.loads((await client.request("$LAKE.API.SCHEMA.ADD.orders", body, timeout=30)).data)
    return int(answer["version"])


async def read_back(client: Client) -> dict[int, bytes]:
    """Return the payloads of all messages from an ordered consumer, by sequence."""
    js = client.jetstream()
    last = (await js.stream_info("ORDERS")).state.last_seq
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
    sub = await js.subscribe("orders.>", ordered_consumer=True, config=config)
    found: dict[int, bytes] = {}
    while last not in found:
        message = await sub.next_msg(timeout=30)
        found[message.metadata.sequence.stream] = message.data
    await sub.unsubscribe()
    return found


async def test_misfits_are_sent_once_to_the_stream_of_their_subject_also_through_kills(
    spark: Any, server: Server
) -> None:
    compaction = Compaction(spark, server)
    client = await nats.connect(server.url)
    js = client.jetstream()
    text = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
    await registered(client, open_storage(compaction.lake), "json", text)
    metadata = {"lakestream.schema": "orders", "lakestream.misfits.subject": "dead.orders"}
    await js.add_stream(name="ORDERS", subjects=["orders.>"], metadata=metadata)
    own = {"lakestream.misfits.subject": "other.misfits"}
    with pytest.raises(ServerError, match="its own misfits"):
        await js.add_stream(name="OTHER", subjects=["other.>"], metadata=own)
    for number in range(20):
        await js.publish("orders.de", b"no json" if number % 4 == 0 else b'{"n": 1}')
    listed = paths.table(compaction.lake, "ORDERS") + "_misfits"

    async def is_listed() -> bool:
        await compaction.run()
        return Path(listed).exists() and DeltaTable(listed).count() == 5

    await eventually(is_listed)
    # Nothing stores them yet; neither does a server that is killed lose them.
    await client.close()
    server.kill()
    server.start()
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="DEAD", subjects=["dead.>"])

    async def count() -> int:
        return int((await js.stream_info("DEAD")).state.messages)

    async def stored(wanted: int) -> None:
        async def done() -> bool:
            await compaction.run()
            return await count() >= wanted

        await eventually(done)

    await stored(5)
    await js.publish("orders.de", b'{"n": "x"}')
    await stored(6)
    await client.close()
    server.kill()
    server.start()
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.publish("orders.de", b"again no json")
    await stored(7)
    letters = [await js.get_msg("DEAD", seq) for seq in range(1, await count() + 1)]
    assert sorted(int((each.headers or {})["Dead-Letter-Sequence"]) for each in letters) == [1, 5, 9, 13, 17, 21, 22]
    letter = next(each for each in letters if (each.headers or {})["Dead-Letter-Sequence"] == "21")
    assert letter.data == b'{"n": "x"}'
    assert (letter.headers or {})["Dead-Letter-Reason"] == 'misfit: n: type: "x" is not of type "integer"'
    assert (letter.headers or {})["Dead-Letter-Schema"] == "orders@1"
    await client.close()
