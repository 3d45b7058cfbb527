"""Tests of the changes of an upsert table that follow from messages."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from lakestream.lake.errors import BadPolicy
from lakestream.lake.table import policy
from lakestream.lake.table.policy import KeyedPolicy
from lakestream_spark.write.keyed_rows import KeyedChanges, changes, key_texts

pytestmark = pytest.mark.unit


def messages(rows: list[dict[str, Any]], **types: pa.DataType) -> pa.Table:
    """Return rows of a stream's table."""
    base: dict[str, pa.DataType] = {
        "subject": pa.string(),
        "seq": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "headers": pa.map_(pa.string(), pa.list_(pa.string())),
        "data": pa.binary(),
    }
    filled = [
        {"subject": "s", "seq": at, "time": 0, "data": b"{}", "headers": None, **row} for at, row in enumerate(rows, 1)
    ]
    return pa.Table.from_pylist(filled, schema=pa.schema(base | types))


def applied(
    table: dict[str, dict[str, Any]], found: KeyedChanges, fields: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Apply changes to a table by key."""
    gone = set(found.keys.to_pylist())
    kept = {} if found.truncated else {key: row for key, row in table.items() if key not in gone}
    return kept | dict(zip(key_texts(found.rows, fields).to_pylist(), found.rows.to_pylist(), strict=True))


def test_a_row_for_each_subject_without_those_that_markers_delete() -> None:
    rows = [
        {"subject": "a", "data": b"1"},
        {"subject": "b", "data": b"2"},
        {"subject": "a", "data": b"3"},
        {"subject": "b", "data": b""},
        {"subject": "c", "data": b"4"},
        {"subject": "c", "data": b"x", "headers": [("KV-Operation", ["DEL"])]},
        {"subject": "d", "data": b"5", "headers": [("Other", ["DEL"])]},
    ]
    found = changes(messages(rows), KeyedPolicy())
    assert [(row["subject"], row["seq"], row["data"]) for row in found.rows.to_pylist()] == [
        ("a", 3, b"3"),
        ("d", 7, b"5"),
    ]
    assert sorted(found.keys.to_pylist()) == ["a", "b", "c", "d"]


def test_rows_by_several_fields_and_an_operation() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "n": 1, "op": "insert"},
        {"id": "a", "n": 2, "op": "insert"},
        {"id": "a", "n": 1, "op": "DELETE"},
        {"id": None, "n": 1, "op": None},
    ]
    found = changes(messages(rows, id=pa.string(), n=pa.int64(), op=pa.string()), KeyedPolicy(("id", "n"), "op:$.op"))
    assert [(row["id"], row["n"]) for row in found.rows.to_pylist()] == [("a", 2)]
    assert len(found.keys) == 2
    assert "data" not in found.rows.column_names


def test_key_fields_may_have_the_names_of_columns_that_every_table_has() -> None:
    rows: list[dict[str, Any]] = [{"time_": 7, "seq_": "a"}, {"time_": 7, "seq_": "b"}, {"time_": 7, "seq_": "a"}]
    policy = KeyedPolicy(("time", "seq"))
    found = changes(messages(rows, time_=pa.int64(), seq_=pa.string()), policy)
    assert [(row["seq"], row["time_"], row["seq_"]) for row in found.rows.to_pylist()] == [(2, 7, "b"), (3, 7, "a")]
    state = pa.struct([("subject", pa.string()), ("by_day", pa.int64())])
    one, two = {"subject": "x", "by_day": 1}, {"subject": "y", "by_day": 2}
    events: list[dict[str, Any]] = [
        {"before": None, "after": one, "op": "c"},
        {"before": None, "after": two, "op": "c"},
        {"before": one, "after": None, "op": "d"},
    ]
    envelope = messages(events, before=state, after=state, op=pa.string())
    found = changes(envelope, KeyedPolicy(("subject",), "debezium"))
    assert [(row["subject_"], row["by_day_"]) for row in found.rows.to_pylist()] == [("y", 2)]
    assert sorted(found.keys.to_pylist()) == ["x", "y"]
    marked: list[dict[str, Any]] = [{"id": 1, "data_": "insert"}, {"id": 1, "data_": "delete"}]
    found = changes(messages(marked, id=pa.int64(), data_=pa.string()), KeyedPolicy(("id",), "op:$.data"))
    assert (found.rows.num_rows, found.keys.to_pylist()) == (0, ["1"])


STATE = pa.struct([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_debezium_feed_is_the_source_table(wrapped: bool) -> None:
    """The referee is a plain loop over the same events."""
    draw = random.Random(7)
    source: dict[int, str] = {}
    table: dict[str, dict[str, Any]] = {}
    envelope = pa.struct([("before", STATE), ("after", STATE), ("op", pa.string())])
    for _ in range(40):
        events: list[dict[str, Any]] = []
        for _ in range(draw.randrange(1, 30)):
            key, name = draw.randrange(12), f"n{draw.randrange(1000)}"
            kind = draw.choice(["write", "write", "delete", "move", "truncate", "tombstone", "snapshot"])
            before = {"id": key, "name": source[key]} if key in source else None
            if kind == "truncate" and draw.random() < 0.3:
                source.clear()
                events.append({"before": None, "after": None, "op": "t"})
            elif kind == "tombstone":
                events.append({"before": None, "after": None, "op": None})
            elif kind == "delete" and before:
                del source[key]
                events.append({"before": before, "after": None, "op": "d"})
            elif kind == "move" and before and key + 100 not in source:
                del source[key]
                source[key + 100] = name
                events.append({"before": before, "after": {"id": key + 100, "name": name}, "op": "u"})
            elif kind in ("write", "snapshot"):
                source[key] = name
                op = "r" if kind == "snapshot" else "u" if before else "c"
                events.append({"before": before, "after": {"id": key, "name": name}, "op": op})
        if not events:
            continue
        if wrapped:
            rows = messages([{"payload": each} for each in events], payload=envelope)
        else:
            rows = messages(events, before=STATE, after=STATE, op=pa.string())
        table = applied(table, changes(rows, KeyedPolicy(("id",), "debezium")), ("id",))
        assert {row["id"]: row["name"] for row in table.values()} == source


def test_a_maxwell_feed_is_the_source_table() -> None:
    old = pa.struct([("id", pa.int64()), ("name", pa.string())])
    rows: list[dict[str, Any]] = [
        {"type": "bootstrap-start", "data": None, "old": None},
        {"type": "bootstrap-insert", "data": {"id": 1, "name": "a"}, "old": None},
        {"type": "insert", "data": {"id": 2, "name": "b"}, "old": None},
        {"type": "update", "data": {"id": 1, "name": "c"}, "old": {"id": None, "name": "a"}},
        {"type": "update", "data": {"id": 3, "name": "b"}, "old": {"id": 2, "name": None}},
        {"type": "insert", "data": {"id": 4, "name": "d"}, "old": None},
        {"type": "delete", "data": {"id": 4, "name": "d"}, "old": None},
    ]
    named = [{"data_" if name == "data" else name: value for name, value in row.items()} for row in rows]
    found = changes(messages(named, type=pa.string(), data_=STATE, old=old), KeyedPolicy(("id",), "maxwell"))
    assert [(row["id"], row["name"]) for row in found.rows.to_pylist()] == [(1, "c"), (3, "b")]
    assert sorted(found.keys.to_pylist()) == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"lakestream.table": "newest"},
        {"lakestream.table": "latest($.id)"},
        {"lakestream.table": "latest(id)", "lakestream.schema": "o"},
        {"lakestream.table": "latest($.id, $.id)", "lakestream.schema": "o"},
        {"lakestream.cdc": "debezium", "lakestream.schema": "o"},
        {
            "lakestream.cdc": "debezium",
            "lakestream.table": "latest($.id)",
            "lakestream.schema": "o",
            "lakestream.mask": '{"after.email": "null"}',
        },
        {"lakestream.cdc": "other", "lakestream.table": "latest($.id)", "lakestream.schema": "o"},
    ],
)
def test_options_outside_the_grammar_are_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(BadPolicy):
        policy.parse(metadata)


def test_options_are_parsed() -> None:
    found = policy.parse(
        {"lakestream.table": "latest( $.id,$.n )", "lakestream.cdc": "op:$.op", "lakestream.schema": "o"}
    )
    assert found.keyed == KeyedPolicy(("id", "n"), "op:$.op")
    assert policy.parse({"lakestream.table": "latest"}).keyed == KeyedPolicy()
    assert policy.parse({}).keyed is None
