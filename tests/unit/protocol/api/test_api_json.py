"""Tests of the API's JSON: output as of Go's encoder, and nats-server 2.15.1's errors for invalid bodies."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol import gotime
from lakestream.protocol.api.errors import ERRORS, ApiError, api_error
from lakestream.protocol.api.json_syntax import JsonError, end_of_value, next_value
from lakestream.protocol.api.jsonio import dumps, enum, parse
from lakestream.stream.core.config import StreamConfig, StreamConfigRequest

pytestmark = pytest.mark.unit


# ---------------------------------------------------------------------------------------------------- output
def test_output_is_escaped_like_go() -> None:
    assert dumps({"d": 'd<>&é\u2028"\x07\x7f'}) == b'{"d":"d\\u003c\\u003e\\u0026\xc3\xa9\\u2028\\"\\u0007\x7f"}'


@given(
    st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner))
)
def test_escaping_changes_no_value(value: Any) -> None:
    try:
        encoded = dumps({"v": value})
    except UnicodeEncodeError:
        return  # `parse` never returns lone surrogates
    assert json.loads(encoded) == {"v": value}
    assert not set(b"<>&") & set(encoded)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0001-01-01T00:00:00Z"),
        (1_700_000_000_000_000_000, "2023-11-14T22:13:20Z"),
        (1_700_000_000_100_000_000, "2023-11-14T22:13:20.1Z"),
        (1_700_000_000_000_000_001, "2023-11-14T22:13:20.000000001Z"),
        (1_700_000_000_120_300_000, "2023-11-14T22:13:20.1203Z"),
    ],
)
def test_times_drop_trailing_zeros(ns: int, text: str) -> None:
    assert gotime.format_time(ns) == text
    if ns:
        assert gotime.Stamps().format(ns) == text.encode()


@given(st.lists(st.integers(1, 4_102_444_800_000_000_000), min_size=1))
def test_times_survive_the_way_there_and_back(times: list[int]) -> None:
    stamps = gotime.Stamps()
    for ns in times:
        text = gotime.format_time(ns)
        assert gotime.time_ns(text) == ns
        assert stamps.format(ns) == text.encode()
        assert gotime.normal_time(text) == text


@pytest.mark.parametrize(
    ("text", "normal", "ns"),
    [
        ("2024-01-01T00:00:00.50+00:00", "2024-01-01T00:00:00.5Z", 1_704_067_200_500_000_000),
        ("2024-01-01T02:00:00.5+02:00", "2024-01-01T02:00:00.5+02:00", 1_704_067_200_500_000_000),
        ("2023-12-31T22:30:00-01:30", "2023-12-31T22:30:00-01:30", 1_704_067_200_000_000_000),
        ("2024-01-01T00:00:00,5Z", "2024-01-01T00:00:00.5Z", 1_704_067_200_500_000_000),
        ("2024-01-01T0:00:00Z", "2024-01-01T00:00:00Z", 1_704_067_200_000_000_000),
        ("2024-01-01T00:00:00.1234567891Z", "2024-01-01T00:00:00.123456789Z", 1_704_067_200_123_456_789),
    ],
)
def test_times_are_kept_in_go_s_normal_form(text: str, normal: str, ns: int) -> None:
    assert gotime.normal_time(text) == normal
    assert gotime.time_ns(text) == ns


LAYOUT = "2006-01-02T15:04:05Z07:00"


@pytest.mark.parametrize(
    ("text", "rest", "element"),
    [
        ("x", "x", "2006"),
        ("", "", "2006"),
        ("2024-01-01", "", "T"),
        ("2024-01-01 00:00:00Z", " 00:00:00Z", "T"),
        ("2024-01-01T00:00:00", "", "Z07:00"),
        ("2024-01-01T00:00:00.Z", ".Z", "Z07:00"),
        ("2024-01-01T00:00:00z", "z", "Z07:00"),
        ("2024-01-01T00:00:00+0200", "+0200", "Z07:00"),
    ],
)
def test_bad_times_in_go_s_words(text: str, rest: str, element: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        gotime.normal_time(text)
    assert str(raised.value) == f'parsing time "{text}" as "{LAYOUT}": cannot parse "{rest}" as "{element}"'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2024-13-01T00:00:00Z", "month out of range"),
        ("2024-02-30T00:00:00Z", "day out of range"),
        ("2023-02-29T00:00:00Z", "day out of range"),
        ("2024-01-01T25:00:00Z", "hour out of range"),
        ("2024-01-01T00:00:60Z", "second out of range"),
        ("2024-01-01T00:00:00+25:00", "time zone offset hour out of range"),
        ("2024-01-01T00:00:00Zx", 'extra text: "x"'),
    ],
)
def test_impossible_times_in_go_s_words(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        gotime.time_ns(text)
    assert str(raised.value) == f'parsing time "{text}": {problem}'


# ---------------------------------------------------------------------------------------------------- input
def refused(body: bytes) -> str:
    with pytest.raises(JsonError) as raised:
        parse(body, StreamConfigRequest)
    return str(raised.value)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "unexpected EOF"),
        (b'{"name":"B"', "unexpected EOF"),
        (b'{"name":"B', "unexpected EOF"),
        (b"nul", "unexpected EOF"),
        (b'{"name":"A"} {', "unexpected EOF"),
        (b'{"name":"A"} nul', "unexpected EOF"),
        (b"junk", "invalid character 'j' looking for beginning of value at offset 1"),
        (b"\x01", "invalid character '\\x01' looking for beginning of value at offset 1"),
        ("é".encode(), "invalid character 'é' looking for beginning of value at offset 2"),
        (b'{"name":"B",}', "invalid character '}' looking for beginning of object key string at offset 13"),
        (b'{name:"x"}', "invalid character 'n' looking for beginning of object key string at offset 2"),
        (b"{'a'}", "invalid character '\\'' looking for beginning of object key string at offset 2"),
        (b'{"name":"B"} x', "invalid character 'x' looking for beginning of value at offset 14"),
        (b'{"name":"A"} ]', "invalid character ']' looking for beginning of value at offset 14"),
        (b'{"name":"A"},', "invalid character ',' looking for beginning of value at offset 13"),
        (b'{"name":B}', "invalid character 'B' looking for beginning of value at offset 9"),
        (b'{"name":"B" "x"}', "invalid character '\"' after object key:value pair at offset 13"),
        (b'{"name" "x"}', "invalid character '\"' after object key at offset 9"),
        (b'{"name":"B","subjects":["a" "b"]}', "invalid character '\"' after array element at offset 29"),
        (b'{"name":"B","subjects":["a",]}', "invalid character ']' looking for beginning of value at offset 29"),
        (b'{"name":"B","description":"a\tb"}', "invalid character '\\t' in string at offset 29"),
        (b'{"name":"B","description":"\\x"}', "invalid escape sequence `\\x` in string at offset 29"),
        (b'{"name":"B","description":"\\u12G4"}', "invalid escape sequence `\\u12G4` in string at offset 33"),
        (b'{"name":"B","max_msgs":01}', "invalid character '1' after object key:value pair at offset 25"),
        (b'{"name":"B","max_msgs":-}', "invalid character '}' in numeric literal at offset 25"),
        (b'{"name":"B","max_msgs":1.}', "invalid character '}' in numeric literal at offset 26"),
        (b'{"name":"B","max_msgs":tru}', "invalid character '}' in literal true (expecting 'e') at offset 27"),
        (b'{"name":"A","foo":1,"max_msgs":tru}', "invalid character '}' in literal true (expecting 'e') at offset 35"),
        (b'{"name":"A","foo":' + b"[" * 11_000 + b"]" * 11_000 + b"}", "exceeded max depth at offset 10018"),
    ],
)
def test_broken_json_in_the_server_s_words(body: bytes, text: str) -> None:
    assert refused(body) == text


FIELD = "json: cannot unmarshal {} into Go struct field StreamConfigRequest.{} of type {}"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "json: cannot unmarshal array into Go value of type server.StreamConfigRequest"),
        (b'"x"', "json: cannot unmarshal string into Go value of type server.StreamConfigRequest"),
        (b"5", "json: cannot unmarshal number into Go value of type server.StreamConfigRequest"),
        (b'{"name":"A"}5', "json: cannot unmarshal number into Go value of type server.StreamConfigRequest"),
        (b'{"foo":1}', 'json: unknown field "foo"'),
        (b'{"f\\u00e9<\\"":1}', 'json: unknown field "fé<\\""'),
        (b'{"template_owner":"x"}', 'json: unknown field "template_owner"'),
        (b'{"placement":{"foo":5}}', 'json: unknown field "foo"'),
        (b'{"NAME":"B","foo":1,"max_msgs":"x"}', 'json: unknown field "foo"'),
        (b'{"max_msgs":"x","foo":1}', FIELD.format("string", "max_msgs", "int64")),
        (b'{"na\\u006de":"B","max_msgs":"x"}', FIELD.format("string", "max_msgs", "int64")),
        (b'{"max_msgs":1.5}', FIELD.format("number 1.5", "max_msgs", "int64")),
        (b'{"max_msgs":1e3}', FIELD.format("number 1e3", "max_msgs", "int64")),
        (b'{"max_msgs":true}', FIELD.format("bool", "max_msgs", "int64")),
        (b'{"max_msgs":{}}', FIELD.format("object", "max_msgs", "int64")),
        (b'{"max_msgs":[1]}', FIELD.format("array", "max_msgs", "int64")),
        (b'{"max_msgs":99999999999999999999}', FIELD.format("number 99999999999999999999", "max_msgs", "int64")),
        (b'{"max_msgs":-9223372036854775809}', FIELD.format("number -9223372036854775809", "max_msgs", "int64")),
        (b'{"max_msg_size":3000000000}', FIELD.format("number 3000000000", "max_msg_size", "int32")),
        (b'{"first_seq":-1}', FIELD.format("number -1", "first_seq", "uint64")),
        (b'{"max_consumers":"x"}', FIELD.format("string", "max_consumers", "int")),
        (b'{"name":5}', FIELD.format("number", "name", "string")),
        (b'{"no_ack":1}', FIELD.format("number", "no_ack", "bool")),
        (b'{"pedantic":5}', FIELD.format("number", "pedantic", "bool")),
        (b'{"max_age":"1s"}', FIELD.format("string", "max_age", "time.Duration")),
        (b'{"max_age":1.5}', FIELD.format("number 1.5", "max_age", "time.Duration")),
        (b'{"subjects":"x"}', FIELD.format("string", "subjects", "[]string")),
        (b'{"subjects":[1]}', "json: cannot unmarshal number into StreamConfigRequest.subjects.0 of type string"),
        (b'{"placement":5}', FIELD.format("number", "placement", "server.Placement")),
        (b'{"placement":{"cluster":5}}', FIELD.format("number", "placement.cluster", "string")),
        (b'{"mirror":"x"}', FIELD.format("string", "mirror", "server.StreamSource")),
        (b'{"sources":{}}', FIELD.format("object", "sources", "[]*server.StreamSource")),
        (
            b'{"sources":[5]}',
            "json: cannot unmarshal number into StreamConfigRequest.sources.0 of type server.StreamSource",
        ),
        (b'{"sources":[{"name":5}]}', FIELD.format("number", "sources.0.name", "string")),
        (b'{"sources":[{"opt_start_time":5}]}', FIELD.format("number", "sources.0.opt_start_time", "time.Time")),
        (
            b'{"sources":[{"subject_transforms":5}]}',
            FIELD.format("number", "sources.0.subject_transforms", "[]server.SubjectTransformConfig"),
        ),
        (
            b'{"sources":[{"subject_transforms":[{"src":5}]}]}',
            FIELD.format("number", "sources.0.subject_transforms.0.src", "string"),
        ),
        (b'{"metadata":{"a":5}}', FIELD.format("number", "metadata.a", "string")),
        (b'{"metadata":[]}', FIELD.format("array", "metadata", "map[string]string")),
        (b'{"consumer_limits":5}', FIELD.format("number", "consumer_limits", "server.StreamConsumerLimits")),
        (b'{"retention":"x"}', 'can not unmarshal "\\"x\\""'),
        (b'{"retention":5}', 'can not unmarshal "5"'),
        (b'{"retention":"Limits"}', 'can not unmarshal "\\"Limits\\""'),
        (b'{"name":null,"retention":null}', 'can not unmarshal "null"'),
        (b'{"storage":"any"}', 'can not unmarshal "\\"any\\""'),
        (b'{"storage":""}', 'can not unmarshal "\\"\\""'),
        (b'{"persist_mode":1}', 'can not unmarshal "1"'),
        (b'{"compression":"x"}', "unknown compression algorithm"),
        (b'{"compression":null}', "unknown compression algorithm"),
        (
            b'{"sources":[{"opt_start_time":"x"}]}',
            'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"',
        ),
    ],
)
def test_wrong_types_in_go_s_words(body: bytes, text: str) -> None:
    assert refused(body) == text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", {}),
        (b" \n", {}),
        (b"null", {}),
        (b"{}{}", {}),
        (b'{"NAME":"B","Max_Msgs":3}', {"name": "B", "max_msgs": 3}),
        (b'{"name":"B"}{"max_msgs":3} {"name":"C"}', {"name": "C", "max_msgs": 3}),
        (b'{"max_msgs":3,"no_ack":true}{"max_msgs":0}{"no_ack":false}', {}),
        (b'{"max_msgs":3,"MAX_MSGS":0,"discard":"new","Discard":"old"}', {}),
        (b'{"subjects":null,"metadata":null,"placement":null,"max_msgs":null,"sources":null}', {}),
        (b'{"discard":"NEW"}', {"discard": "new"}),
        (b'{"subjects":["a",null]}', {"subjects": ["a", ""]}),
        (b'{"description":"a\xffb"}', {"description": "a\ufffdb"}),
        (b'{"description":"\\ud800"}', {"description": "\ufffd"}),
        (b'{"description":"\\ud83d\\ude00"}', {"description": "😀"}),
    ],
)
def test_what_go_takes_is_taken(body: bytes, expected: dict[str, Any]) -> None:
    assert parse(body, StreamConfigRequest) == StreamConfigRequest(**expected)


def test_unknown_fields_are_passed_over_when_not_strict() -> None:
    assert parse(b'{"foo":{"a":[1]},"name":"A"}', StreamConfig, strict=False) == StreamConfig(name="A")


def test_a_choice_may_have_its_own_words() -> None:
    class Ask(msgspec.Struct):
        action: Annotated[str, enum("server.Action", "", "go", refusal="unknown action: {value}")] = ""

    with pytest.raises(JsonError, match=r'^unknown action: "zz"$'):
        parse(b'{"action":"zz"}', Ask)


@given(st.binary(max_size=40) | st.text('{}[]",:\\u0123456789.eE-+truefalsn \té', max_size=40).map(str.encode))
def test_syntax_agrees_with_another_parser(text: bytes) -> None:
    """The parser and Python's agree on which texts are valid: one value with valid syntax."""
    try:
        at = next_value(text, 0)
        ours = next_value(text, end_of_value(text, at)) == len(text)
    except JsonError:
        ours = False
    try:
        json.loads(text.decode("utf-8", "replace").strip(" \t\r\n"), parse_constant=lambda name: 1 / 0)
        other = True
    except (ValueError, ZeroDivisionError):
        other = False
    assert ours == other


@given(st.binary(max_size=60) | st.text('{}[]",:namxsubject015-.e ', max_size=60).map(str.encode))
def test_no_body_does_worse_than_a_refusal(body: bytes) -> None:
    try:
        parse(body, StreamConfigRequest)
    except JsonError:
        return


# ---------------------------------------------------------------------------------------------------- errors
def test_every_error_code_is_known() -> None:
    assert sorted(ERRORS) == list(range(10002, 10229))


def test_errors_are_filled_in() -> None:
    error = api_error(10071, seq=5)
    assert error.as_dict() == {"code": 400, "err_code": 10071, "description": "wrong last sequence: 5"}
    assert ApiError(404, 0, "").as_dict() == {"code": 404}


def test_generic_codes_do_not_hide_precise_ones() -> None:
    precise = api_error(10059)
    assert api_error(10049, err=precise) is precise


def test_texts_with_braces_stay_as_they_are() -> None:
    assert api_error(10052, err="{x}").description == "{x}"
