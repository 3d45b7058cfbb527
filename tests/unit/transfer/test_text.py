"""Tests of text sources: every value keeps its spelling, and has a type only on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream_transfer import csv_types
from lakestream_transfer.finding import BadSource, find
from lakestream_transfer.mapping import BadMapping, MappedRows, MappingOptions
from lakestream_transfer.tabular import sorted_messages
from lakestream_transfer.text import TextSource
from lakestream_transfer.text_mapping import TextMapper


def source(tmp_path: Path, content: bytes | str, name: str = "a.csv", separator: str = "") -> TextSource:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return TextSource(find(str(path)), separator)


def mapped(made: TextSource, types: str = "", order_by: str = "", **columns: str) -> MappedRows:
    options = {"subject": "=x", **columns}
    header = tuple((name[2:], options.pop(name)) for name in list(options) if name.startswith("h_"))
    order = tuple(order_by.split(",")) if order_by else ()
    mapper = TextMapper(MappingOptions(**options, headers=header), made, csv_types.parse(types), order)  # type: ignore[arg-type]
    (chunk,) = made.batches()
    return mapper.map(chunk, 1)


def payloads(made: TextSource, types: str = "", **columns: str) -> list[bytes]:
    found = mapped(made, types, **columns)
    assert found.bad == []
    return [message.data for message in found.messages]


SPELLED = "01234,12345678901234567890,12:00,1.50,,n/a,NULL,2026-05-01, x ,1_000,\\N"


def test_csv_fields_keep_their_spelling(tmp_path: Path) -> None:
    names = [f"c{at}" for at in range(11)]
    made = source(tmp_path, f"{','.join(names)}\n{SPELLED}\n")
    fields = SPELLED.split(",")
    for name, field in zip(names, fields, strict=True):
        assert payloads(made, data=name) == [field.encode()]
    escaped = [each.replace("\\", "\\\\") for each in fields]
    members = ",".join(f'"{name}":"{field}"' for name, field in zip(names, escaped, strict=True))
    assert payloads(made) == [f"{{{members}}}".encode()]
    assert mapped(made, subject="a.{c0}.{c1}").messages[0].subject == b"a.01234.12345678901234567890"


def test_csv_bytes_that_are_not_utf8_are_kept_as_payload_and_refused_in_json(tmp_path: Path) -> None:
    made = source(tmp_path, b"id,name\n1,caf\xe9\n2,x\n")
    assert payloads(made, data="name") == [b"caf\xe9", b"x"]
    found = mapped(made)
    assert [message.data for message in found.messages] == [b'{"id":"2","name":"x"}']
    assert str(found.bad[0]).startswith("row 1, column name: it is not UTF-8: convert the file")


def test_a_csv_row_with_other_columns_is_named(tmp_path: Path) -> None:
    found = mapped(source(tmp_path, "a,b\n1,2\n\n3\n4,5,6\n"))
    assert [message.seq for message in found.messages] == [1]
    assert [str(bad) for bad in found.bad] == [
        "row 2: it has 1 fields, and the header 2",
        "row 3: it has 3 fields, and the header 2",
    ]


@pytest.mark.parametrize(
    ("content", "separator"),
    [
        ("id;price\n1;1,50\n2;2,75\n", ";"),
        ("id\tprice\n1\t1,50\n", "\t"),
        ("id|a;b\n1|2,3\n", "|"),
        ("id,note\n1,a;b\n2,c\n", ","),
        ("note\na;b\nc;d\n", ","),
        ('id,note\n1,"a;b\nc;d"\n', ","),
        ("\ufeffid;x\r\n1;a\r\n", ";"),
    ],
)
def test_the_separator_is_found_in_the_file(tmp_path: Path, content: str, separator: str) -> None:
    assert source(tmp_path, content).separator == separator


def test_a_separator_that_cannot_be_told_has_to_be_named(tmp_path: Path) -> None:
    content = "name;price,EUR\nx;1,50\n"
    with pytest.raises(BadSource, match=r"',' and ';' could separate its fields; name the one"):
        source(tmp_path, content)
    assert source(tmp_path, content, separator=";").names == ["name", "price,EUR"]


def test_broken_csv_is_named_with_its_line(tmp_path: Path) -> None:
    made = source(tmp_path, 'a,b\n1,2\n3,"open\n')
    with pytest.raises(BadSource, match="line 3 is not CSV"):
        list(made.batches())
    with pytest.raises(BadSource, match="two columns are named 'a'"):
        source(tmp_path, "a,a\n")
    with pytest.raises(BadSource, match="is empty"):
        source(tmp_path, "")


def test_files_of_a_directory_have_the_same_columns_in_any_order(tmp_path: Path) -> None:
    for name, content in (("country=de/1.csv", "a,b\n1,2\n"), ("country=fr/2.csv", "b,a\n2,1\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    made = TextSource(find(str(tmp_path)))
    mapper = TextMapper(MappingOptions(subject="x.{country}"), made)
    found = [message for chunk in made.batches() for message in mapper.map(chunk, 1).messages]
    assert [(message.subject, message.data) for message in found] == [
        (b"x.de", b'{"a":"1","b":"2"}'),
        (b"x.fr", b'{"a":"1","b":"2"}'),
    ]
    (tmp_path / "country=fr" / "2.csv").write_text("b,c\n2,1\n")
    with pytest.raises(BadSource, match=r"has the columns b, c, country, and a file before it a, b, country"):
        TextSource(find(str(tmp_path)))


# ---------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("double", "1.50", "1.50"),
        ("double", ".5", "0.5"),
        ("double", "0.10000000000000001", "0.10000000000000001"),
        ("bigint", "007", "7"),
        ("bigint", "-9223372036854775808", "-9223372036854775808"),
        ("decimal", "12345678901234567890.10", "12345678901234567890.10"),
        ("decimal(5,2)", "123.450", "123.450"),
        ("boolean", "TRUE", "true"),
        ("json", '{"a": 1.50}', '{"a": 1.50}'),
        ("string", "007", '"007"'),
        ("string", "", '""'),
        ("bigint", "", "null"),
    ],
)
def test_a_field_of_a_type_is_that_value_in_json(tmp_path: Path, kind: str, field: str, value: str) -> None:
    quoted = field.replace('"', '""')
    made = source(tmp_path, f'v,w\n"{quoted}",\n')
    assert payloads(made, f"v:{kind}", data="json:v") == [f'{{"v":{value}}}'.encode()]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("double", "n/a"),
        ("double", "1_000"),
        ("double", " 5"),
        ("double", "1e400"),
        ("double", "12345678901234567890"),
        ("double", "9007199254740993"),
        ("double", "nan"),
        ("int", "2147483648"),
        ("bigint", "1.0"),
        ("decimal", "-"),
        ("decimal(4,2)", "123.45"),
        ("decimal(4,2)", "1.234"),
        ("boolean", "yes"),
        ("json", "{a}"),
    ],
)
def test_a_field_that_a_type_would_change_does_not_fit(tmp_path: Path, kind: str, field: str) -> None:
    made = source(tmp_path, f"v,w\n1,2\n{field},3\n" if kind != "boolean" else f"v,w\ntrue,2\n{field},3\n")
    types = csv_types.parse(f"v:{kind}")
    found = csv_types.misfits(types, made.names, made.numbered())
    assert (found["v"].count, found["v"].row) == (1, 2)
    assert "1 field does not fit, the first in row 2" in str(csv_types.BadTypes(types, found))
    assert mapped(made, f"v:{kind}").bad[0].column == "v"
    assert mapped(made, f"v:{kind}", data="w").bad[0].column == "v", "the types hold for columns without another use"


def test_inferred_types_hold_for_every_row_and_change_no_spelling(tmp_path: Path) -> None:
    late = "007,9007199254740993,1.5,true,x\n"
    made = source(tmp_path, "zip,big,price,flag,note\n" + "1234,2,1.50,false,\n" * 30_000 + late)
    found = csv_types.infer(made.names, made.numbered())
    assert found.types == {"big": "bigint", "price": "double", "flag": "boolean"}
    assert found.notes == [
        "column zip stays text (bigint was near): 1 field does not fit, the first in row 30,001 ('007')"
    ]
    assert csv_types.spelled(found.types) == "big:bigint,price:double,flag:boolean"
    assert csv_types.parse(csv_types.spelled(found.types)) == found.types


@pytest.mark.parametrize("text", ["zip", "zip:", ":int", "zip:number", "zip:decimal(10"])
def test_types_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadMapping, match="--types"):
        csv_types.parse(text)


def test_types_are_parsed_with_their_arguments() -> None:
    assert csv_types.parse("a:decimal(10,2),b c:STRING") == {"a": "decimal(10,2)", "b c": "string"}


# ---------------------------------------------------------------------- JSON lines

LINES = [
    b'{"id": 1, "n": 9007199254740993, "d":"2026-05-01"}',
    b'  {"id":2.50,"n":123456789012345678901234567890, "late": {"a" : [1 , null]}} ',
    b'{"Id":1,"id":1e400,"id":"\\u00fc\\ud800"}',
    '{"id": "ü"}'.encode(),
]


def test_json_lines_are_stored_byte_for_byte(tmp_path: Path) -> None:
    made = source(tmp_path, b"\xef\xbb\xbf" + b"\r\n".join(LINES) + b"\n\n[1]", "a.jsonl")
    assert payloads(made) == [*LINES, b"[1]"]
    assert payloads(made, data="json:*") == [*LINES, b"[1]"]


def test_fields_of_json_lines_keep_their_spelling(tmp_path: Path) -> None:
    made = source(tmp_path, b"\n".join([*LINES[:2], b'{"id":null,"late":"t\\n","odd":"\\ud800"}']), "a.jsonl")
    assert payloads(made, data="late") == [b"", b'{"a" : [1 , null]}', b"t\n"]
    assert payloads(made, data="id") == [b"1", b"2.50", b""]
    assert payloads(made, data="json:late,n") == [
        b'{"n":9007199254740993}',
        b'{"late":{"a" : [1 , null]},"n":123456789012345678901234567890}',
        b'{"late":"t\\n"}',
    ]
    found = mapped(made, subject="x.{n}", h_N="n", data="json")
    assert found.messages[0].subject == b"x.9007199254740993"
    assert found.messages[0].header == b"NATS/1.0\r\nN: 9007199254740993\r\n\r\n"
    assert found.messages[0].data == b'{"id":1,"d":"2026-05-01"}'
    assert [bad.column for bad in found.bad] == ["n"]
    assert mapped(made, data="odd").bad[0].column == "odd"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "is not JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "is not an object"),
        (b'{"a": {}}', "is not a text, number or boolean"),
    ],
)
def test_a_line_that_cannot_be_a_message_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    found = mapped(source(tmp_path, b'{"a":1}\n' + line + b'\n{"a":2}', "a.jsonl"), subject="x.{a}")
    assert [message.subject for message in found.messages] == [b"x.1", b"x.2"]
    assert [bad.row for bad in found.bad] == [2]
    assert reason in str(found.bad[0])


def test_a_payload_of_a_field_that_no_line_has_is_refused(tmp_path: Path) -> None:
    made = source(tmp_path, b'{"a":1}\n{"b":2}\n', "a.jsonl")
    assert payloads(made, data="b") == [b"", b"2"]
    with pytest.raises(BadMapping, match="--data: no line at the beginning has a field 'c'; there are a, b"):
        mapped(made, data="c")


def test_types_are_for_csv(tmp_path: Path) -> None:
    with pytest.raises(BadMapping, match="JSON lines have types"):
        mapped(source(tmp_path, b"{}", "a.jsonl"), "a:int")


# ---------------------------------------------------------------------- times and order


@pytest.mark.parametrize(
    ("field", "unit", "expected"),
    [
        ("2023-11-14T22:13:20.123456789Z", "", 1_700_000_000_123_456_789),
        ("2023-11-14 23:13:20+01:00", "", 1_700_000_000_000_000_000),
        ("1700000000", "s", 1_700_000_000_000_000_000),
    ],
)
def test_times_of_text_are_exact(tmp_path: Path, field: str, unit: str, expected: int) -> None:
    for made in (source(tmp_path, f"t\n{field}\n"), source(tmp_path, f'{{"t": "{field}"}}', "a.jsonl")):
        (message,) = mapped(made, time="t", time_unit=unit).messages
        assert message.time_ns == expected
    number = source(tmp_path, '{"t": 1700000000000000001}', "b.jsonl")
    assert mapped(number, time="t").messages[0].time_ns == 1_700_000_000_000_000_001


def test_a_number_in_text_is_no_time_without_its_unit(tmp_path: Path) -> None:
    (bad,) = mapped(source(tmp_path, "t\n20260501\n"), time="t").bad
    assert str(bad) == "row 1, column t: 20260501 is a number and no time; say its unit with --time-unit"


def test_the_order_of_a_csv_column_needs_its_type(tmp_path: Path) -> None:
    made = source(tmp_path, "id,v\n10,a\n9,b\n-1.5,c\n,d\n100,e\n")
    with pytest.raises(BadMapping, match="--types id:bigint orders it by number"):
        mapped(made, order_by="id")
    for kind, expected in (("decimal", b"dcbae"), ("string", b"dcaeb")):
        ordered = sorted_messages([mapped(made, f"id:{kind}", order_by="id", data="v")])
        assert b"".join(message.data for some in ordered for message in some) == expected


def test_json_lines_are_ordered_by_the_kinds_of_their_values(tmp_path: Path) -> None:
    numbers = ["-1e400", "-20", "-3.5", "-3", "0", "0.001", "9007199254740992", "9007199254740993", "1e30"]
    values = ["null", *numbers, '""', '"10"', '"9"', '"a"', '"a\\u0000"', '"b"']
    lines = [f'{{"v": {value}}}' for value in values]
    made = source(tmp_path, "\n".join(reversed(lines)), "a.jsonl")
    ordered = sorted_messages([mapped(made, order_by="v")])
    assert [message.data.decode() for some in ordered for message in some] == lines


def test_rows_of_any_size_are_read(tmp_path: Path) -> None:
    long = "x" * 1_500_000
    made = source(tmp_path, "id;t\n" + f'1;"{long}\n"\n' * 5)
    assert [len(chunk.rows) for chunk in made.batches()] == [3, 2], "a chunk has about 4 MiB"
    lines = source(tmp_path, f'{{"t": "{long}"}}\n' * 5, "a.jsonl")
    assert [len(row) for chunk in lines.batches() for row in chunk.rows] == [len(long) + 9] * 5


def test_a_copied_source_is_the_same_and_a_changed_one_is_not(tmp_path: Path) -> None:
    first, second = source(tmp_path, "a\n1\n"), source(tmp_path, "a\n1\n", "b.csv")
    assert first.identity == second.identity
    assert source(tmp_path, "a\n2\n", "b.csv").identity != first.identity
