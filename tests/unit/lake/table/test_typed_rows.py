"""Tests of typed rows: which schema a message has, misfits, and columns over evolutions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table import typed_columns, typed_rows
from lakestream.lake.table.schema import message_schema, split_headers
from lakestream.lake.table.schema_catalog import SchemaCatalog
from lakestream.lake.table.typed_columns import EMPTY
from lakestream.lake.table.typed_rows import TypedBatch, TypedRows
from lakestream.log.format.runs import SchemaRun
from lakestream.schemas.codec import codec_of
from lakestream.schemas.columns import RecordType
from lakestream.schemas.schema import Schema
from lakestream_schemas.avro.fingerprint import fingerprint
from lakestream_schemas.protobuf.protoc import compile_proto
from tests.unit import schemas_world

pytestmark = pytest.mark.unit

ORDER: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}
PROTO = """syntax = "proto3"; package shop;
message Order { int64 n = 1; message Line { string sku = 1; } }
message Invoice { double sum = 1; }
"""
Message = tuple[str, bytes, bytes]


def batch(messages: list[Message], first_time: int = 1000) -> pa.RecordBatch:
    """Return messages (subject, header block, payload) as a decoded segment has them, a ns apart."""
    pairs = [split_headers(block) if block else (None, None) for _, block, _ in messages]
    count = len(messages)
    columns = {
        "subject": [subject for subject, _, _ in messages],
        "seq": list(range(1, count + 1)),
        "time_ns": list(range(first_time, first_time + count)),
        "headers": [headers for headers, _ in pairs],
        "data": [payload for _, _, payload in messages],
        "header_block": [raw for _, raw in pairs],
        "subject_bytes": [None] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=message_schema())


class Lake:
    """A lake with schemas, and a table that has the columns which its messages needed."""

    def __init__(self, root: Path) -> None:
        self.storage = open_storage(root)
        identify(self.storage)
        self.table: RecordType = EMPTY

    def register(self, version: int, schema: Any, created_ns: int = 0, name: str = "orders", **more: Any) -> Schema:
        kind = more.pop("format", "json")
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found = Schema(name, version, kind, text, created_ns=created_ns, **more)
        schemas.write_schema(self.storage, "$G", found)
        return found

    def add(
        self, rules: str | list[SchemaRun], rows: pa.RecordBatch, drop_data: bool = False, empty_deletes: bool = False
    ) -> TypedBatch:
        runs = [SchemaRun(0, rules)] if isinstance(rules, str) else rules
        while True:
            typed = TypedRows(self.catalog(), runs, self.table, drop_data, empty_deletes)
            found = typed.add(rows)
            if not typed.needed:
                return found
            for each in typed.needed.values():
                self.table, _ = typed_columns.placed(self.table, typed_columns.of_table(each))

    def catalog(self) -> SchemaCatalog:
        return SchemaCatalog(self.storage, "$G")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def references(typed: TypedBatch) -> list[str | None]:
    found: list[str | None] = typed.rows.column("schema").to_pylist()
    return found


def rules_broken(typed: TypedBatch) -> list[tuple[int, str | None, str]]:
    return [(row["seq"], row["schema"], row["rule"]) for row in typed.misfits.to_pylist()]


def test_the_latest_version_is_that_of_the_messages_time(lake: Lake) -> None:
    lake.register(1, ORDER, created_ns=500)
    lake.register(2, ORDER | {"title": "two"}, created_ns=1001)
    lake.register(3, ORDER | {"title": "three"}, created_ns=1003)
    found = lake.add("orders", batch([("o", b"", b'{"n":1}')] * 5))
    assert references(found) == ["orders@1", "orders@2", "orders@2", "orders@3", "orders@3"]


def test_an_empty_payload_is_a_misfit_unless_it_deletes(lake: Lake) -> None:
    lake.register(1, ORDER)
    tag = b"NATS/1.0\r\nTag: x\r\n\r\n"
    rows = batch([("o", b"", b'{"n":1}'), ("o", b"", b""), ("o", tag, b""), ("o", tag, b"{")])
    assert rules_broken(lake.add("orders", rows)) == [(seq, "orders@1", "json") for seq in (2, 3, 4)]
    found = lake.add("orders", rows, empty_deletes=True)
    assert references(found) == ["orders@1", None, None, None]
    assert rules_broken(found) == [(4, "orders@1", "json")]
    whole = lake.add("orders", rows.slice(0, 1), empty_deletes=True)
    assert (references(whole), rules_broken(whole)) == (["orders@1"], [])


def test_messages_before_the_first_version_have_that(lake: Lake) -> None:
    lake.register(1, ORDER, created_ns=5000)
    assert references(lake.add("orders@latest", batch([("o", b"", b'{"n":1}')]))) == ["orders@1"]


def test_each_message_has_the_schemas_that_were_in_force_when_it_was_stored(lake: Lake) -> None:
    text = ORDER | {"properties": {"n": {"type": "string"}}}
    lake.register(1, ORDER, created_ns=500)
    lake.register(2, text, created_ns=1000)
    header = b"NATS/1.0\r\nNats-Schema: orders\r\n\r\n"
    messages = [("o", b"", b'{"n":1}')] * 2 + [("o", b"", b'{"n":"x"}')] * 2 + [("o", b"", b'{"n":1}')] * 2
    messages += [("o", header, b'{"n":1}'), ("o", header, b'{"n":"x"}')]
    runs = [
        SchemaRun(2, "orders@1"),
        SchemaRun(3, '{"o": "orders@2"}'),
        SchemaRun(5, "orders", {"orders": 1}),
        SchemaRun(6, ""),
        SchemaRun(7, "orders", {"orders": 1}),
        SchemaRun(8, "orders"),
    ]
    found = lake.add(runs, batch(messages))
    one, two = "orders@1", "orders@2"
    assert references(found) == [None, one, two, two, one, None, one, two], "a stated version comes before the time"
    assert rules_broken(found) == []


def test_the_header_counts_before_the_rule(lake: Lake) -> None:
    lake.register(1, ORDER)
    lake.register(1, {"properties": {"x": {"type": "string"}}}, name="notes")
    found = lake.add(
        '{"orders.>": "orders@1", "notes": "@header"}',
        batch(
            [
                ("orders.a", b"", b'{"n":1}'),
                ("orders.a", b"NATS/1.0\r\nNats-Schema: notes@1\r\n\r\n", b'{"x":"a"}'),
                ("notes", b"NATS/1.0\r\nNats-Schema:notes@1\r\nA:1\r\n\r\n", b'{"x":"b"}'),
                ("notes", b"NATS/1.0\r\nA: 1\r\n\r\n", b"text"),
                ("other", b"", b"text"),
                ("orders.b", b"NATS/1.0\r\nA: 1\r\n\r\n", b'{"n":2}'),
            ]
        ),
    )
    assert references(found) == ["orders@1", "notes@1", "notes@1", None, None, "orders@1"]
    assert found.rows.column("n").to_pylist() == [1, None, None, None, None, 2]
    assert found.rows.column("x").to_pylist() == [None, "a", "b", None, None, None]
    assert found.misfits.num_rows == 0


def test_deletions_and_markers_have_no_schema(lake: Lake) -> None:
    lake.register(1, ORDER)
    blocks = [b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"]
    found = lake.add("orders@1", batch([("o", block, b"") for block in blocks] + [("o", b"", b"")]))
    assert references(found) == [None] * 3
    assert rules_broken(found) == [(3, "orders@1", "json")]


def test_a_misfit_has_no_columns_and_says_why(lake: Lake) -> None:
    lake.register(1, ORDER)
    found = lake.add("orders@1", batch([("o", b"", b'{"n":1}'), ("o", b"", b'{"n":"x"}'), ("o", b"", b"{")]))
    assert found.rows.column("n").to_pylist() == [1, None, None]
    assert references(found) == ["orders@1", None, None]
    assert found.misfits.to_pylist()[0] | {"time": None} == {
        "seq": 2,
        "time": None,
        "subject": "o",
        "schema": "orders@1",
        "field": "n",
        "rule": "type",
        "reason": '"x" is not of type "integer"',
    }
    assert rules_broken(found)[1:] == [(3, "orders@1", "json")]


def test_messages_of_a_schema_that_the_lake_lacks_are_misfits(lake: Lake) -> None:
    lake.register(1, ORDER)
    given_messages = [
        ("o", b"", b'{"n":1}'),
        ("o", b"NATS/1.0\r\nNats-Schema: orders@7\r\n\r\n", b'{"n":1}'),
        ("o", b"NATS/1.0\r\nNats-Schema: no name\r\n\r\n", b'{"n":1}'),
    ]
    found = lake.add("orders@1", batch(given_messages))
    assert rules_broken(found) == [(2, None, "schema"), (3, None, "header")]
    assert rules_broken(lake.add("bills", batch(given_messages[:1]))) == [(1, None, "schema")]
    assert references(found) == ["orders@1", None, None]


def test_messages_of_a_damaged_schema_are_misfits(lake: Lake) -> None:
    lake.storage.write(paths.schema(lake.storage.root, "orders", 1), b"{")
    lake.storage.write(paths.schema(lake.storage.root, "bad", 1), Schema("bad", 1, "json", "{}{").document())
    for rule in ("orders", "bad@1"):
        assert rules_broken(lake.add(rule, batch([("o", b"", b"{}")]))) == [(1, None, "schema")]


def test_messages_that_need_too_many_columns_are_misfits(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_columns, "MAX_TABLE_FIELDS", 3)
    lake.register(1, ORDER)
    lake.register(2, {"properties": {name: {"type": "string"} for name in "abcd"}})
    assert references(lake.add("orders@1", batch([("o", b"", b'{"n":1}')]))) == ["orders@1"]
    found = lake.add("orders@2", batch([("o", b"", b'{"a":"x"}')]))
    assert rules_broken(found) == [(1, "orders@2", "columns")]


def test_confluents_prefix_names_the_schema(lake: Lake) -> None:
    lake.register(1, json.dumps(AVRO), format="avro", id=7)
    lake.register(1, ORDER, name="json", id=8)
    rows = batch(
        [
            ("o", b"", b"\x00\x00\x00\x00\x07\x04"),
            ("o", b"", b'\x00\x00\x00\x00\x08{"n":3}'),
            ("o", b"", b"\x00\x00\x00\x00\x09\x04"),
            ("o", b"", b"\x01\x00\x00\x00\x07\x04"),
            ("o", b"", b"\x00\x00"),
            ("o", b"", b"\x00\x00\x00\x00\x07\x06"),
        ]
    )
    for drop_data in (False, True):
        found = lake.add("@confluent", rows, drop_data)
        assert references(found) == ["orders@1", "json@1", None, None, None, "orders@1"]
        assert found.rows.column("n").to_pylist() == [2, 3, None, None, None, 3]
        assert rules_broken(found) == [(3, None, "schema"), (4, None, "prefix"), (5, None, "prefix")]
    assert found.rows.column("data").is_null().to_pylist() == [True, True, False, False, False, True]
    made = typed_rows.given_back(lake.catalog(), lake.table, pa.Table.from_batches([found.rows]))
    assert made.to_pylist() == rows.column("data").to_pylist()


def test_confluents_path_names_a_message_of_a_protobuf_schema(lake: Lake) -> None:
    lake.register(1, PROTO, format="protobuf", id=7, descriptors=compile_proto(PROTO))
    head = b"\x00\x00\x00\x00\x07"
    payloads = [
        b"\x00\x08\x05",
        b"\x02\x02\x09\x00\x00\x00\x00\x00\x00\xf8\x3f",
        b"\x04\x00\x00\x0a\x01x",
        b"\x02\x08",
        b"\x02\x00\x08\x06",
    ]
    rows = batch([("o", b"", head + payload) for payload in payloads])
    found = lake.add("@confluent", rows, drop_data=True)
    assert found.rows.column("n").to_pylist() == [5, None, None, None, 6]
    assert found.rows.column("sum").to_pylist() == [None, 1.5, None, None, None]
    assert found.rows.column("sku").to_pylist() == [None, None, "x", None, None]
    assert rules_broken(found) == [(4, None, "schema")]
    made = typed_rows.given_back(lake.catalog(), lake.table, pa.Table.from_batches([found.rows]))
    assert made.to_pylist() == rows.column("data").to_pylist()


def test_a_fingerprint_names_the_schema(lake: Lake) -> None:
    lake.register(1, json.dumps(AVRO), format="avro")
    head = b"\xc3\x01" + fingerprint(json.dumps(AVRO))
    rows = batch([("o", b"", head + b"\x04"), ("o", b"", b"\xc3\x01" + bytes(8) + b"\x04"), ("o", b"", head + b"\x08")])
    found = lake.add("@single-object", rows, drop_data=True)
    assert found.rows.column("n").to_pylist() == [2, None, 4]
    assert rules_broken(found) == [(2, None, "schema")]
    made = typed_rows.given_back(lake.catalog(), lake.table, pa.Table.from_batches([found.rows]))
    assert made.to_pylist() == rows.column("data").to_pylist()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_row_is_what_its_message_alone_decodes_to(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    drop_data = data.draw(st.booleans())
    batches: list[tuple[pa.RecordBatch, TypedBatch]] = []
    versions = data.draw(st.lists(schemas_world.schemas(), min_size=1, max_size=4))
    for number, schema in enumerate(versions, 1):
        lake.register(number, schema)
        payloads = data.draw(st.lists(schemas_world.payloads(schema), min_size=1, max_size=4))
        older = data.draw(st.lists(st.integers(1, number), min_size=len(payloads), max_size=len(payloads)))
        blocks = [b"" if each == number else b"NATS/1.0\r\nNats-Schema: orders@%d\r\n\r\n" % each for each in older]
        rows = batch([("o", block, payload) for block, payload in zip(blocks, payloads, strict=True)])
        typed = lake.add(f"orders@{number}", rows, drop_data)
        batches.append((rows, typed))
        for row, (payload, each) in enumerate(zip(payloads, older, strict=True)):
            _check_row(lake, versions[each - 1], f"orders@{each}", payload, typed, row)
    for rows, typed in batches:
        # The table has further columns by now.
        whole = pa.Table.from_batches([typed.rows])
        if not drop_data:
            assert whole.column("data").combine_chunks() == rows.column("data")
            continue
        made = typed_rows.given_back(lake.catalog(), lake.table, whole)
        assert made.to_pylist() == rows.column("data").to_pylist()


def _check_row(lake: Lake, schema: dict[str, Any], reference: str, payload: bytes, typed: TypedBatch, row: int) -> None:
    """Assert that a row has the values that its payload alone decodes to, and NULLs in other columns."""
    codec = codec_of(Schema("orders", 1, "json", json.dumps(schema)))
    alone = codec.decode([payload])
    found = {name: typed.rows.column(name)[row].as_py() for name in typed.rows.schema.names}
    own = {field.column for field in lake.table.fields}
    if alone.misfits:
        assert found["schema"] is None
        assert all(found[name] is None for name in own & found.keys())
        misfit = next(each for each in typed.misfits.to_pylist() if each["seq"] == row + 1)
        assert (misfit["schema"], misfit["rule"]) == (reference, alone.misfits[0].misfit.rule)
        return
    assert found["schema"] == reference
    wide, places = typed_columns.placed(lake.table, codec.record)
    assert wide is lake.table
    used = {each.column for each in places}
    assert len(used) == len(places)
    assert all(found[name] is None for name in own & found.keys() - used)
    for field, at, array in zip(codec.record.fields, places, alone.columns.columns, strict=True):
        column = typed.rows.column(at.column).slice(row, 1).take(pa.array([0]))
        assert typed_columns.taken_back(column, field.type, at.inside).to_pylist() == array.to_pylist()
