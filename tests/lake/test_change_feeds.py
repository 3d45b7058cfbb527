"""Tests of change feeds over the whole path: events of Confluent's serializers become the source table.

They are published over NATS, with schemas in the registry. The referee is a plain loop over the same events.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import nats
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import paths
from lakestream.lake.table.state import TableFollower
from tests.lake.compacting import compact
from tests.lake.test_end_to_end import CONFIG, eventually
from tests.lake.test_keyed_tables import rows
from tests.lake.test_typed_tables import plain
from tests.registry_world import RegistryWorld
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

SUBJECT = "shop.public.customers"
CONTEXT = SerializationContext(SUBJECT, MessageField.VALUE)
Row = dict[str, Any]
Event = dict[str, Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", args=["-m", "-1"], config=CONFIG)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def registry(server: Server) -> Iterator[SchemaRegistryClient]:
    world = RegistryWorld(server.url)
    yield SchemaRegistryClient({"url": world.url})
    world.close()


class Feed:
    """Change feed of a table with the key `id`: what was published, and the rows that the source has."""

    def __init__(self, spark: Any, server: Server, cdc: str) -> None:
        self._spark, self._server, self._cdc = spark, server, cdc
        self._lake = str(server.store / "lake")
        self._table = f"{paths.table(self._lake, 'CUSTOMERS')}_latest"
        self.source: dict[Any, Row] = {}

    async def begin(self) -> None:
        """Create the stream."""
        self._client = await nats.connect(self._server.url)
        metadata = {"lakestream.schema": "@confluent", "lakestream.validate": "reject"}
        metadata |= {"lakestream.table": "latest($.id)", "lakestream.cdc": self._cdc}
        await self._client.jetstream().add_stream(name="CUSTOMERS", subjects=[SUBJECT], metadata=metadata)

    async def publish(self, serializer: Callable[..., bytes | None], *events: Event) -> None:
        """Publish events as a serializer of the registry writes them, and tombstones of Kafka between them."""
        for event in events:
            payload = serializer(event, CONTEXT)
            assert payload is not None
            assert payload[:1] == b"\0"
            await self._client.jetstream().publish(SUBJECT, payload)
            if event.get("op") == "d":
                await self._client.jetstream().publish(SUBJECT, b"")

    async def check(self, *columns: str) -> None:
        """Compact all that was published; the upsert table is the source table, and has these columns."""
        last = (await self._client.jetstream().stream_info("CUSTOMERS")).state.last_seq
        wanted = sorted(([row.get(name) for name in columns] for row in self.source.values()), key=repr)

        async def is_staged() -> bool:
            staged = [each for each in scan.Scanner(self._lake).scan() if each.identity.name == "CUSTOMERS"]
            if not staged or staging.segments(staged[0].directory) == []:
                return False
            outcome = await asyncio.to_thread(compact, self._spark, self._lake, staged[0])
            assert outcome.misfits == 0
            follower = TableFollower(paths.table(self._lake, "CUSTOMERS"), staged[0].identity.uid)
            progress = follower.newest().progress
            return progress is not None and progress.last_seq == last

        await eventually(is_staged)
        found = sorted(([plain(row[name]) for name in columns] for row in rows(self._table)), key=repr)
        assert found == wanted

    async def end(self) -> None:
        """Close the connection."""
        await self._client.close()


def connect(kind: str, name: str, **more: Any) -> Row:
    """Return a type as Connect's Avro converter names it."""
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


FIELDS: dict[str, Any] = {
    "id": "long",
    "name": ["null", "string"],
    "balance": connect("bytes", "org.apache.kafka.connect.data.Decimal", logicalType="decimal", precision=10, scale=2),
    "born": ["null", connect("int", "org.apache.kafka.connect.data.Date", logicalType="date")],
    "created": connect("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis"),
    "photo": ["null", "bytes"],
    "tags": {"type": "array", "items": ["null", "string"]},
    "active": {"type": "boolean", "connect.default": True},
    "score": ["null", "double"],
}


def envelope(fields: dict[str, Any]) -> str:
    """Return the Avro schema of Debezium's events for a table with these columns."""
    value = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": name, "type": kind} | ({"default": None} if isinstance(kind, list) else {})
            for name, kind in fields.items()
        ],
        "connect.name": f"{SUBJECT}.Value",
    }
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [
            {"name": "connector", "type": "string"},
            {"name": "ts_ms", "type": "long"},
            {
                "name": "snapshot",
                "type": [connect("string", "io.debezium.data.Enum", **{"connect.default": "false"}), "null"],
                "default": "false",
            },
            {"name": "lsn", "type": ["null", "long"], "default": None},
        ],
        "connect.name": "io.debezium.connector.postgresql.Source",
    }
    return json.dumps(
        {
            "type": "record",
            "name": "Envelope",
            "namespace": SUBJECT,
            "fields": [
                {"name": "before", "type": ["null", value], "default": None},
                {"name": "after", "type": ["null", "Value"], "default": None},
                {"name": "source", "type": source},
                {"name": "op", "type": "string"},
                {"name": "ts_ms", "type": ["null", "long"], "default": None},
            ],
            "connect.name": f"{SUBJECT}.Envelope",
        }
    )


def customer(draw: random.Random, number: int) -> Row:
    return {
        "id": number,
        "name": draw.choice([None, "Ann", "Grüße", ""]),
        "balance": Decimal(draw.randrange(-(10**10) + 1, 10**10)).scaleb(-2),
        "born": draw.choice([None, date(1969, 12, 31), date(2026, 2, 28)]),
        "created": datetime(2026, 5, 1, 12, draw.randrange(60), tzinfo=UTC),
        "photo": draw.choice([None, b"", b"\0\xff"]),
        "tags": [draw.choice([None, "a", "b"]) for _ in range(draw.randrange(3))],
        "active": draw.random() < 0.5,
        "score": draw.choice([None, 0.1, -1e300]),
    }


def debezium(op: str, before: Row | None, after: Row | None) -> Event:
    snapshot = "true" if op == "r" else "false"
    source = {"connector": "postgresql", "ts_ms": 1, "snapshot": snapshot, "lsn": 7}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 2}


def changed(draw: random.Random, source: dict[Any, Row], make: Callable[[int], Row]) -> Iterator[tuple[str, Any, Any]]:
    """Change the source at random; yield (kind, row before, row after)."""
    for _ in range(60):
        key = draw.randrange(15)
        before = source.get(key)
        if before is not None and draw.random() < 0.3:
            yield "delete", source.pop(key), None
        elif before is not None and draw.random() < 0.2 and key + 100 not in source:
            del source[key]
            source[key + 100] = {**before, "id": key + 100}
            yield "update", before, source[key + 100]
        else:
            source[key] = make(key)
            yield ("insert" if before is None else "update"), before, source[key]


async def test_debeziums_avro_events_are_the_source_table_through_changes_of_its_columns(
    spark: Any, server: Server, registry: SchemaRegistryClient
) -> None:
    registry.set_compatibility(level="NONE")
    draw, feed = random.Random(5), Feed(spark, server, "debezium")
    await feed.begin()
    ops = {"delete": "d", "update": "u", "insert": "c"}

    def events(make: Callable[[int], Row]) -> list[Event]:
        return [debezium(ops[kind], *both) for kind, *both in changed(draw, feed.source, make)]

    for number in range(10):  # the snapshot, as of which rows are read
        feed.source[number] = customer(draw, number)
    write = AvroSerializer(registry, envelope(FIELDS))
    await feed.publish(write, *(debezium("r", None, row) for row in feed.source.values()))
    await feed.publish(write, *events(lambda key: customer(draw, key)))
    await feed.check(*FIELDS)

    # A column comes, and one goes.
    fields = {**FIELDS, "email": ["null", "string"]}
    del fields["photo"]

    def wider(key: int) -> Row:
        return {name: each for name, each in customer(draw, key).items() if name != "photo"} | {"email": f"{key}@x"}

    for row in feed.source.values():
        row.pop("photo")
    await feed.publish(AvroSerializer(registry, envelope(fields)), debezium("t", None, None))
    feed.source.clear()
    write = AvroSerializer(registry, envelope(fields))
    await feed.publish(write, *events(wider))
    await feed.check(*fields)

    # A column has another type: new rows have it beside the old one, as the append table does.
    fields = {**fields, "score": ["null", "string"]}

    def other(key: int) -> Row:
        return wider(key) | {"score": None, "score_string": draw.choice(["high", "low"])}

    feed.source |= {key: other(key) for key in list(feed.source)[:3]}
    texts = [{**row, "score": row["score_string"]} for row in feed.source.values() if "score_string" in row]
    await feed.publish(AvroSerializer(registry, envelope(fields)), *(debezium("u", None, row) for row in texts))
    await feed.check(*fields, "score_string")
    await feed.end()


MAXWELL = {
    "title": "Change",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "database": {"type": "string"},
        "table": {"type": "string"},
        "ts": {"type": "integer"},
        "data": {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "name": {"type": ["string", "null"]},
                "price": {"type": ["number", "null"]},
                "born": {"type": ["string", "null"], "format": "date"},
            },
        },
        "old": {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": ["string", "null"]}}},
    },
    "required": ["type"],
}


async def test_maxwells_events_are_the_source_table(spark: Any, server: Server, registry: SchemaRegistryClient) -> None:
    draw, feed = random.Random(6), Feed(spark, server, "maxwell")
    await feed.begin()
    write = JSONSerializer(json.dumps(MAXWELL), registry)
    fixed = {"database": "shop", "table": "customers", "ts": 1}

    def row(key: int) -> Row:
        name, price = draw.choice([None, "Ann", "Bé"]), draw.choice([None, 9.5])
        return {"id": key, "name": name, "price": price, "born": "2026-02-28"}

    def event(kind: str, before: Row | None, after: Row | None) -> Event:
        found = {"type": kind, **fixed, "data": after or before}
        if kind == "update":
            assert before is not None
            assert after is not None
            found["old"] = {name: before[name] for name in ("id", "name") if before[name] != after[name]}
        return found

    await feed.publish(write, {"type": "table-create", **fixed})
    for number in range(5):
        feed.source[number] = row(number)
    await feed.publish(write, {"type": "bootstrap-start", **fixed, "data": {}})
    await feed.publish(write, *(event("bootstrap-insert", None, each) for each in feed.source.values()))
    await feed.publish(write, {"type": "bootstrap-complete", **fixed, "data": {}})
    await feed.publish(write, *(event(*change) for change in changed(draw, feed.source, row)))
    feed.source = {key: {**each, "born": date(2026, 2, 28)} for key, each in feed.source.items()}
    await feed.check("id", "name", "price", "born")
    await feed.end()
