"""Tests of the mapping between rows and messages, without files and servers."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakestream.log.format.record import Record
from lakestream_transfer.mapping import BadMapping, MappedRows, Mapper, MappingOptions, is_own, subjects_of
from lakestream_transfer.unmapping import EXACT, Fields, UnmappableMessage, Unmapper, parse_ddl


def mapped(columns: MappingOptions | None, **values: Any) -> MappedRows:
    batch = pa.RecordBatch.from_pydict(values)
    return Mapper(columns, batch.schema).map(batch, 1)


def test_a_template_makes_subjects_of_columns() -> None:
    found = mapped(MappingOptions(subject="orders.{country}.n{id}"), country=["de", "fr"], id=[1, 2], price=[1.5, None])
    assert [message.subject for message in found.messages] == [b"orders.de.n1", b"orders.fr.n2"]
    assert [message.data for message in found.messages] == [b'{"price":1.5}', b'{"price":null}']
    assert [message.seq for message in found.messages] == [1, 2]
    assert found.messages[0].time_ns == 0
    assert subjects_of("orders.{country}.n{id}") == ["orders.*.*"]
    assert subjects_of("=orders.all") == ["orders.all"]
    assert subjects_of("column") == []


@pytest.mark.parametrize("value", ["", "a b", "a.b", "*", ">", "a\tb", "x\n", None])
def test_a_value_that_is_no_token_is_refused_with_row_and_column(value: str | None) -> None:
    found = mapped(MappingOptions(subject="orders.{name}"), name=["good", value])
    assert [message.subject for message in found.messages] == [b"orders.good"]
    (bad,) = found.bad
    assert (bad.row, bad.column) == (2, "name")
    assert "row 2, column name" in str(bad)


def test_a_replacement_mends_tokens() -> None:
    found = mapped(MappingOptions(subject="o.{name}", replacement="_"), name=["a b", "x.y*", None, ""])
    assert [message.subject for message in found.messages] == [b"o.a_b", b"o.x_y_", b"o._", b"o._"]
    found = mapped(MappingOptions(subject="name", replacement="_"), name=["a b.c", "x..y"])
    assert [message.subject for message in found.messages] == [b"a_b.c", b"x._.y"]


def test_a_column_or_a_constant_can_be_the_whole_subject() -> None:
    found = mapped(MappingOptions(subject="where", data="what"), where=["a.b", "a b"], what=["x", "y"])
    assert [(message.subject, message.data) for message in found.messages] == [(b"a.b", b"x")]
    assert found.bad[0].column == "where"
    assert mapped(MappingOptions(subject="=a.b", data="x"), x=[b"\x00\xff", None]).messages[0].data == b"\x00\xff"


def test_json_keeps_what_types_can_say() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([Decimal("12.50")]),
            pa.array([datetime.date(2026, 5, 1)]),
            pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "Europe/Berlin")),
            pa.array([1_700_000_000_123], pa.timestamp("ms")),
            pa.array([b"\x00\xff"]),
            pa.array([{"a": [1, None], "b": {"c": True}}]),
            pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
            pa.array([float("nan")]),
            pa.array([2**63 - 1]),
        ],
        names=["decimal", "date", "instant", "local", "bytes", "nested", "map", "nan", "big"],
    )
    (message,) = Mapper(MappingOptions(subject="=x"), batch.schema).map(batch, 1).messages
    assert b'"decimal":12.50,' in message.data
    assert json.loads(message.data) == {
        "decimal": 12.5,
        "date": "2026-05-01",
        "instant": "2023-11-14T22:13:20.123456789Z",
        "local": "2023-11-14T22:13:20.123",
        "bytes": "AP8=",
        "nested": {"a": [1, None], "b": {"c": True}},
        "map": {"k": 1},
        "nan": None,
        "big": 2**63 - 1,
    }


def test_json_takes_the_columns_asked_for() -> None:
    rows = {"a": [1], "b": [2], "c": [3]}
    assert mapped(MappingOptions(subject="x.{a}"), **rows).messages[0].data == b'{"b":2,"c":3}'
    assert mapped(MappingOptions(subject="x.{a}", data="json:*"), **rows).messages[0].data == b'{"a":1,"b":2,"c":3}'
    assert mapped(MappingOptions(subject="x.{a}", data="json:c,a"), **rows).messages[0].data == b'{"c":3,"a":1}'
    assert mapped(MappingOptions(subject="x.{a}", data="b"), **rows).messages[0].data == b"2"


def test_headers_come_from_columns_and_maps() -> None:
    columns = MappingOptions(subject="=x", data="d", headers=(("A", "a"), ("B", "b")))
    found = mapped(columns, d=["", "", ""], a=["1", None, "x\r\ny"], b=[[1, 2], None, [3]])
    assert found.messages[0].header == b"NATS/1.0\r\nA: 1\r\nB: 1\r\nB: 2\r\n\r\n"
    assert found.messages[1].header == b""
    assert "line break" in str(found.bad[0])
    maps = pa.array([[("K", ["v", "w"])], None], pa.map_(pa.string(), pa.list_(pa.string())))
    found = mapped(MappingOptions(subject="=x", data="d", headers_column="h"), d=["", ""], h=maps)
    assert [message.header for message in found.messages] == [b"NATS/1.0\r\nK: v\r\nK: w\r\n\r\n", b""]


@pytest.mark.parametrize(
    ("column", "unit", "expected"),
    [
        (pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")), "ns", 1_700_000_000_123_456_789),
        (pa.array([1_700_000_000_123_456], pa.timestamp("us")), "ns", 1_700_000_000_123_456_000),
        (pa.array([1_700_000_000]), "s", 1_700_000_000_000_000_000),
        (pa.array([1_700_000_000_123]), "ms", 1_700_000_000_123_000_000),
        (pa.array(["2023-11-14T22:13:20.123456789Z"]), "ns", 1_700_000_000_123_456_789),
        (pa.array(["2023-11-14T23:13:20+01:00"]), "ns", 1_700_000_000_000_000_000),
        (pa.array(["2023-11-14T22:13:20"]), "ns", 1_700_000_000_000_000_000),
        (pa.array([datetime.date(2023, 11, 14)]), "ns", 1_699_920_000_000_000_000),
    ],
)
def test_times_are_exact(column: pa.Array, unit: str, expected: int) -> None:
    batch = pa.RecordBatch.from_arrays([column, pa.array([1])], names=["t", "n"])
    columns = MappingOptions(subject="=x", time="t", time_unit=unit)
    (message,) = Mapper(columns, batch.schema).map(batch, 1).messages
    assert message.time_ns == expected
    assert message.data == b'{"n":1}'


def test_a_row_without_a_time_is_bad() -> None:
    found = mapped(MappingOptions(subject="=x", time="t"), t=[1, None, -5], n=[1, 2, 3])
    assert [str(bad) for bad in found.bad] == [
        "row 2, column t: there is no time",
        "row 3, column t: its time is before 1970",
    ]
    with pytest.raises(BadMapping, match="column t"):
        mapped(MappingOptions(subject="=x", time="t"), t=["yesterday"], n=[1])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (MappingOptions(subject="orders.{nothing}"), "no column 'nothing'"),
        (MappingOptions(subject="nothing"), "no column 'nothing'"),
        (MappingOptions(subject="n"), "int64, not text"),
        (MappingOptions(subject="orders..{n}"), "makes empty tokens"),
        (MappingOptions(subject="= bad"), "not a subject"),
        (MappingOptions(subject="x.{n}", data="nothing"), "--data"),
        (MappingOptions(subject="x.{n}", time="f"), "not a timestamp"),
        (MappingOptions(subject="x.{n}", headers=(("a b", "n"),)), "header's name"),
        (MappingOptions(subject="x.{n}", headers_column="n"), "not a map"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused_before_any_row(columns: MappingOptions, reason: str) -> None:
    with pytest.raises(BadMapping, match=reason):
        mapped(columns, n=[1], f=[1.5])


RECORDS = [
    Record(1, 1_700_000_000_000_000_001, b"orders.de.1", b"", b'{"price": 1.25, "tags": ["a"]}'),
    Record(5, 1_700_000_000_000_000_002, b"orders.fr", b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: 3\r\n\r\n", b"{}"),
    Record(6, 1_700_000_000_000_000_003, b"orders.\xff", b"NATS/1.0\r\nA:1\r\n\r\n", b"\x00\xff"),
    Record(7, 1_700_000_000_000_000_003, b"orders.x", b"NATS/1.0\r\n\r\n", b""),
]


def test_all_columns_give_every_message_back() -> None:
    batch = Unmapper(Fields()).batch(RECORDS, [])
    assert is_own(batch.schema.names)
    assert batch.schema.names == list(EXACT)
    found = Mapper(None, batch.schema).map(batch, 1)
    assert not found.bad
    assert [Record(old.seq, *_rest(new)) for old, new in zip(RECORDS, found.messages, strict=True)] == RECORDS


def _rest(record: Record) -> tuple[int, bytes, bytes, bytes]:
    return record.time_ns, record.subject, record.header, record.data


def test_tokens_headers_and_fields_become_columns() -> None:
    fields = Fields(
        own=("seq",),
        tokens=(("country", 2), ("id", 3)),
        headers=(("a", "A"),),
        json_schema="price DECIMAL(10,2), tags ARRAY<STRING>",
    )
    bad: list[UnmappableMessage] = []
    batch = Unmapper(fields).batch(RECORDS, bad)
    assert batch.to_pylist() == [
        {"seq": 1, "country": "de", "id": "1", "a": None, "price": Decimal("1.25"), "tags": ["a"]},
        {"seq": 5, "country": "fr", "id": None, "a": "1", "price": None, "tags": None},
    ]
    assert [error.seq for error in bad] == [6, 7]
    assert "not JSON" in str(bad[0])


@pytest.mark.parametrize(
    ("ddl", "payload", "expected"),
    [
        ("x INT", "3.0", 3),
        ("x BIGINT", "9007199254740993", 9007199254740993),
        ("x DECIMAL(38,2)", "123456789012345678901234567890.12", Decimal("123456789012345678901234567890.12")),
        ("x DOUBLE", "1", 1.0),
        ("x STRING", '{"a": 1.10}', '{"a":1.10}'),
        ("x BOOLEAN", "true", True),
        ("x DATE", '"2026-05-01"', datetime.date(2026, 5, 1)),
        ("x TIMESTAMP", '"2026-05-01T00:00:00Z"', datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)),
        ("x BINARY", '"AP8="', b"\x00\xff"),
        ("x STRUCT<a: INT, b: ARRAY<DOUBLE>>", '{"a": 1, "b": [2, null]}', {"a": 1, "b": [2.0, None]}),
        ("x MAP<STRING, INT>", '{"k": 1}', [("k", 1)]),
    ],
)
def test_a_field_is_read_in_its_type(ddl: str, payload: str, expected: Any) -> None:
    unmapper = Unmapper(Fields(own=(), json_schema=ddl))
    batch = unmapper.batch([Record(1, 1, b"x", b"", f'{{"x": {payload}}}'.encode())], [])
    assert batch.to_pylist() == [{"x": expected}]


@pytest.mark.parametrize(
    ("ddl", "payload"),
    [
        ("x INT", "1.5"),
        ("x INT", "3000000000"),
        ("x INT", '"1"'),
        ("x INT", "true"),
        ("x DECIMAL(4,2)", "123.45"),
        ("x DECIMAL(4,2)", "1.234"),
        ("x DATE", '"soon"'),
        ("x ARRAY<INT>", "1"),
        ("x BINARY", '"%"'),
    ],
)
def test_a_field_that_does_not_fit_is_reported(ddl: str, payload: str) -> None:
    bad: list[UnmappableMessage] = []
    batch = Unmapper(Fields(own=(), json_schema=ddl)).batch(
        [Record(9, 1, b"x", b"", f'{{"x": {payload}}}'.encode())], bad
    )
    assert batch.num_rows == 0
    assert "message 9: field x" in str(bad[0])


@pytest.mark.parametrize("ddl", ["price", "price NUMBERS", "", "x INT; DROP TABLE t", "x INTERVAL"])
def test_a_ddl_that_is_none_is_refused(ddl: str) -> None:
    with pytest.raises(BadMapping, match="--json-schema"):
        parse_ddl(ddl)


def test_columns_have_to_differ() -> None:
    with pytest.raises(BadMapping, match="two columns"):
        Unmapper(Fields(own=("seq",), json_schema="seq INT"))
    with pytest.raises(BadMapping, match="no column"):
        Unmapper(Fields(own=("sequence",)))
