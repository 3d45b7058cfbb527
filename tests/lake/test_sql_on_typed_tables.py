"""Tests that both engines give the same rows of tables whose columns come from a schema of the registry."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import message_factory

from lakestream.lake.staging import scan
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table.at import open_log
from lakestream.protocol.instants import rfc3339
from lakestream.schemas.schema import Format, Schema
from lakestream.spark import session as spark_session
from lakestream_schemas.formats import prepared
from lakestream_schemas.protobuf.model import message_of, read_files
from lakestream_sql.session import Session
from tests.lake import common_sql
from tests.lake.compacting import compact
from tests.lake.model import T0, StreamModel

pytestmark = pytest.mark.lake

FORMATS: tuple[Format, ...] = ("json", "avro", "protobuf")
KINDS = ("BUY", "SELL", "SWAP")
COUNT = 40
"""Messages of each version."""
MISFITS = (7, 23)
Trade = dict[str, Any]


def trade(number: int) -> Trade:
    """Return the fields of a message; Protobuf has neither decimals nor dates, JSON no bytes."""
    return {
        "id": number,
        "price": number * 1.25 - 10,
        "amount": Decimal(number * 37).scaleb(-2),
        "who": None if number % 5 == 0 else f"Zoë {number % 3}",
        "ok": number % 2 == 0,
        "kind": KINDS[number % 3],
        "placed": datetime.datetime(2026, 5, 1 + number % 9, number % 24, 30, 1, 123_000, datetime.UTC),
        "day": datetime.date(2026, 5, 1 + number % 6),
        "place": {"city": f"Köln {number % 4}", "at": {"lat": number / 4, "lon": -0.5}},
        "lines": [{"sku": f"s{at}", "n": at + number} for at in range(number % 3)],
        "tags": [f"tag {number % 4}", "b"][: 1 + number % 2],
        "counts": {"a": number, "b": number % 2},
        "raw": b"\0\xff" * (number % 3),
    }


def _json_texts() -> list[str]:
    number, text = {"type": "number"}, {"type": "string"}
    integer: Trade = {"type": "integer"}
    at: Trade = {"type": "object", "properties": {"lat": number, "lon": number}}
    first: Trade = {
        "id": integer,
        "price": number,
        "amount": {"type": "string", "format": "decimal(9,2)"},
        "who": {"type": ["string", "null"]},
        "ok": {"type": "boolean"},
        "kind": {"type": "string", "enum": list(KINDS)},
        "placed": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "place": {"type": "object", "properties": {"city": text, "at": at}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": text, "n": integer}}},
        "tags": {"type": "array", "items": text},
        "counts": {"type": "object", "additionalProperties": integer},
    }
    return [
        json.dumps({"type": "object", "properties": each, "required": ["id"]})
        for each in (first, first | {"note": {"type": ["string", "null"]}})
    ]


def _avro_texts() -> list[str]:
    at: Trade = {
        "type": "record",
        "name": "At",
        "fields": [{"name": each, "type": "double"} for each in ("lat", "lon")],
    }
    place: list[Trade] = [{"name": "city", "type": "string"}, {"name": "at", "type": at}]
    line: list[Trade] = [{"name": "sku", "type": "string"}, {"name": "n", "type": "long"}]
    types: Trade = {
        "id": "long",
        "price": "double",
        "amount": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "who": ["null", "string"],
        "ok": "boolean",
        "kind": {"type": "enum", "name": "Kind", "symbols": list(KINDS)},
        "placed": {"type": "long", "logicalType": "timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"},
        "place": {"type": "record", "name": "Place", "fields": place},
        "lines": {"type": "array", "items": {"type": "record", "name": "Line", "fields": line}},
        "tags": {"type": "array", "items": "string"},
        "counts": {"type": "map", "values": "long"},
        "raw": "bytes",
    }
    return [
        json.dumps({"type": "record", "name": "Trade", "fields": [{"name": n, "type": t} for n, t in each.items()]})
        for each in (types, types | {"note": ["null", "string"]})
    ]


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Kind { BUY = 0; SELL = 1; SWAP = 2; }
message At { double lat = 1; double lon = 2; }
message Place { string city = 1; At at = 2; }
message Line { string sku = 1; int64 n = 2; }
message Trade {
  int64 id = 1; double price = 2; uint64 amount = 3; optional string who = 4; bool ok = 5; Kind kind = 6;
  google.protobuf.Timestamp placed = 7; Place place = 8; repeated Line lines = 9; repeated string tags = 10;
  map<string, int64> counts = 11; bytes raw = 12;%s
}
"""
TEXTS: dict[Format, list[str]] = {
    "json": _json_texts(),
    "avro": _avro_texts(),
    "protobuf": [PROTO % "", PROTO % " optional string note = 13;"],
}


def _json(schema: Schema, value: Trade) -> bytes:
    texts = {name: str(each) if name in ("amount", "day", "placed") else each for name, each in value.items()}
    return json.dumps({name: each for name, each in texts.items() if name != "raw"}).encode()


def _avro(schema: Schema, value: Trade) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(schema.text), value)
    return out.getvalue()


def _protobuf(schema: Schema, value: Trade) -> bytes:
    kind: Any = message_factory.GetMessageClass(message_of(read_files(schema.descriptors), "Trade"))
    known = {name: each for name, each in value.items() if name not in ("amount", "day")}
    message = kind(**{name: each for name, each in known.items() if each is not None})
    message.amount = int(value["amount"] * 100)
    return bytes(message.SerializeToString(deterministic=True))


ENCODE: dict[Format, Callable[[Schema, Trade], bytes]] = {"json": _json, "avro": _avro, "protobuf": _protobuf}


class Typed:
    """A lake with a stream of each format, two versions of its schema, and both engines."""

    def __init__(self, spark: Any, base: Path) -> None:
        self.root, self.streams = base / "lake", dict[Format, tuple[StreamModel, dict[str, object]]]()
        self.root.mkdir()
        identify(open_storage(str(self.root)))
        for format in FORMATS:
            self.streams[format] = self._stream(spark, base, format)
        self.session, self._spark = Session(self.root), spark_session(str(self.root))

    def _stream(self, spark: Any, base: Path, format: Format) -> tuple[StreamModel, dict[str, object]]:
        name = format.upper()
        model = StreamModel(base / name, name, f"UID of {name}")
        for version, text in enumerate(TEXTS[format], 1):
            made = Schema(name, version, format, text, created_ns=T0, message="Trade" if format == "protobuf" else "")
            schema = prepared(made)
            schemas.write_schema(open_storage(str(self.root)), "$G", schema)
            model.configure({"lakestream.schema": f"{name}@{version}"})
            more = {} if version == 1 else {"note": "grüße"}
            values = [trade(number) | more for number in range((version - 1) * COUNT, version * COUNT)]
            payloads = [ENCODE[format](schema, each) if each["id"] not in MISFITS else b"\xff\xff" for each in values]
            subjects = [b"trades.%d" % (each["id"] % 4) for each in values]
            stored = model.publish(list(zip(subjects, [b""] * COUNT, payloads, strict=True)))
            if version == 1:
                moment = stored[COUNT // 2].time_ns
            else:
                model.remove([4, 5])
            model.stage(self.root)
            [stream] = [each for each in scan.Scanner(str(self.root)).scan() if each.identity.name == name]
            compact(spark, str(self.root), stream)
            if version == 1:
                log = open_log(model.table(self.root))
                first, time_ms = log.latest, log.summary(log.latest).time_ms
        at = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        return model, {"first": first, "at": at, "ns": moment, "text": rfc3339(moment)}

    def rows(self, format: Format, statement: str) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        """Return the rows of DuckDB and those of Spark."""
        name, known = format.upper(), self.streams[format][1]
        text = statement.format(t=f"delta.`streams/{name}`", m=f"delta.`streams/{name}_misfits`", n=name, **known)
        ours = [tuple(map(common_sql.comparable, row)) for row in self.session.query(text)]
        return ours, [tuple(map(common_sql.comparable, row)) for row in self._spark.sql(text).collect()]


@pytest.fixture(scope="module")
def typed(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    found = Typed(spark, tmp_path_factory.mktemp("typed"))
    yield found
    found.session.close()


def of(format: Format, wanted: list[str]) -> list[str]:
    """Return the statements or values of a corpus that a format has the types for."""
    missing = {"json": ("raw",), "avro": (), "protobuf": ("day", "amount /")}[format]
    return [each for each in wanted if not any(word in each for word in missing)]


@pytest.mark.parametrize("format", FORMATS)
def test_the_tables_have_what_was_published(typed: Typed, format: Format) -> None:
    """Without this, engines that both lose a column would agree."""
    columns = "id, price, amount, who, ok, kind, placed, place, lines, tags, counts"
    ours, _ = typed.rows(format, f"SELECT {columns} FROM {{t}} WHERE id IS NOT NULL ORDER BY seq")
    values = [trade(number) for number in range(2 * COUNT) if number not in (3, 4, *MISFITS)]
    if format == "protobuf":
        values = [each | {"amount": each["amount"] * 100} for each in values]
    assert ours == [tuple(common_sql.comparable(each[name]) for name in columns.split(", ")) for each in values]


@pytest.mark.parametrize("format", FORMATS)
def test_typed_values_are_the_same_in_both_engines(typed: Typed, format: Format) -> None:
    values = of(format, common_sql.typed_values())
    assert len(values) >= 90
    columns = ", ".join(f"{value} AS v{number}" for number, value in enumerate(values))
    ours, theirs = typed.rows(format, f"SELECT {columns} FROM {{t}} ORDER BY seq")
    pairs = list(zip(values, zip(*ours, strict=True), zip(*theirs, strict=True), strict=True))
    assert [value for value, one, other in pairs if one != other] == []
    assert [value for value, one, _ in pairs if all(each is None for each in one)] == ["counts['c']"]


@pytest.mark.parametrize("format", FORMATS)
def test_typed_aggregates_are_the_same_in_both_engines(typed: Typed, format: Format) -> None:
    values = of(format, common_sql.typed_aggregates())
    columns = ", ".join(f"{value} AS v{number}" for number, value in enumerate(values))
    ours, theirs = typed.rows(format, f"SELECT kind, {columns} FROM {{t}} GROUP BY kind ORDER BY kind NULLS LAST")
    pairs = zip(["kind", *values], zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
    assert [value for value, one, other in pairs if one != other] == []


def asked() -> list[tuple[Format, str]]:
    """Return the statements: those of misfits and of times for each format, the others for one of them in turn."""
    found = list[tuple[Format, str]]()
    for format in FORMATS:
        for number, each in enumerate(common_sql.typed_statements()):
            own = FORMATS[number % len(FORMATS)] if of(FORMATS[number % len(FORMATS)], [each]) else "avro"
            found += [(format, each)] if format == own or "{m}" in each or " AS OF " in each or "as_of" in each else []
    return found


@pytest.mark.parametrize(("format", "statement"), asked())
def test_typed_statements_are_the_same_in_both_engines(typed: Typed, format: Format, statement: str) -> None:
    ours, theirs = typed.rows(format, statement)
    assert ours == theirs
    assert ours
