"""Tests of proposed schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream_commands.infer import infer

pytestmark = pytest.mark.unit


def proposed(*values: Any) -> Any:
    return json.loads(infer([json.dumps(value).encode() for value in values]).schema)


def test_types_nulls_and_required_fields() -> None:
    found = proposed({"a": 1, "b": 1, "c": None, "d": True}, {"a": 2, "b": 1.5, "c": "x", "e": {"f": [1, 2]}})
    assert found["properties"] == {
        "a": {"type": "integer"},
        "b": {"type": "number"},
        "c": {"type": ["string", "null"]},
        "d": {"type": "boolean"},
        "e": {
            "type": "object",
            "properties": {"f": {"type": "array", "items": {"type": "integer"}}},
            "required": ["f"],
        },
    }
    assert found["required"] == ["a", "b", "c"]


def test_enums_and_formats_of_texts() -> None:
    rows = [{"c": "DE" if n % 2 else "FR", "id": f"{n:032x}", "at": f"2026-05-01T00:00:{n:02d}Z"} for n in range(40)]
    rows = [row | {"day": "2026-05-01", "u": "9b2de0f4-7f3e-4bb8-a9a5-0a7b5d7f1c11"} for row in rows]
    found = proposed(*rows)["properties"]
    assert found["c"] == {"type": "string", "enum": ["DE", "FR"]}
    assert found["id"] == {"type": "string"}
    assert [found[name]["format"] for name in ("at", "day", "u")] == ["date-time", "date", "uuid"]


def test_texts_that_may_be_others_tomorrow_are_no_enum() -> None:
    rows = [
        {"day": f"0{n % 2 + 1}.05.2026", "at": "2026-05-01T00:00:00", "sum": "12.50", "kind": "order"}
        for n in range(60)
    ]
    found = proposed(*rows)["properties"]
    assert found == {key: {"type": "string"} for key in rows[0]}


def test_large_integers_have_a_type_that_holds_them() -> None:
    assert proposed({"a": 2**64 - 1})["properties"]["a"] == {"type": "integer", "format": "uint64"}
    assert proposed({"a": 2**64})["properties"]["a"] == {"type": "number"}
    assert proposed({"a": 2**63}, {"a": -1})["properties"]["a"] == {"type": "number"}


def test_an_object_of_many_names_is_a_map() -> None:
    rows = [{"m": {f"user{n}": n}} for n in range(100)]
    assert proposed(*rows)["properties"]["m"] == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_rare_values_are_set_aside_and_listed() -> None:
    rows = [json.dumps({"a": n}).encode() for n in range(300)] + [b'{"a":"x"}', b"[]", b"{"]
    found = infer(rows)
    assert json.loads(found.schema)["properties"]["a"] == {"type": "integer"}
    assert [(each.row, each.misfit.rule) for each in found.misfits] == [(300, "type"), (301, "type"), (302, "json")]


def test_mixed_values_are_free() -> None:
    assert proposed({"a": 1}, {"a": "x"})["properties"]["a"] == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab1-:TZ"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4), min_size=1, max_size=5))
def test_a_sample_without_outliers_fits_its_proposal(values: list[Any]) -> None:
    sample = [json.dumps(value).encode() for value in values]
    found = infer(sample)
    assert found.misfits == []
    assert infer(sample) == found


def test_odd_samples_give_a_schema() -> None:
    assert infer([]).payloads == 0
    assert len(infer([b"", b"\xff", b"[" * 100_000]).misfits) == 3
    wide = [json.dumps({f"n{n}-{row}": 1 for n in range(500)}).encode() for row in range(5)]
    assert infer(wide).payloads == 5


def test_names_that_no_schema_can_have_are_left_out() -> None:
    long, odd = "n" * 256, ['a"b', "a\\b", "a\nb"]
    rows = [
        json.dumps({"größe 大": 1, "in": dict.fromkeys([*odd, long, "k"], "x")}, ensure_ascii=n % 2 == 0).encode()
        for n in range(20)
    ]
    found = infer(rows)
    assert found.misfits == []
    properties = json.loads(found.schema)["properties"]
    assert list(properties) == ["größe 大", "in"]
    assert list(properties["in"]["properties"]) == ["k"]
    left_out = [each.field for each in found.choices if each.choice == "no column"]
    assert sorted(left_out) == sorted(f"in.{name[:80]}" for name in [*odd, long])


def test_a_field_that_changed_its_type_has_the_later_one() -> None:
    rows = [json.dumps({"id": n if n < 60 else f"o{n}"}).encode() for n in range(100)]
    found = infer(rows)
    assert json.loads(found.schema)["properties"]["id"] == {"type": "string"}
    assert [each.row for each in found.misfits] == list(range(60))
    (choice,) = (each for each in found.choices if each.row is not None)
    assert (choice.field, choice.choice, choice.row) == ("id", "string", 60)
    mixed = infer([json.dumps({"id": n if n % 2 else f"o{n}"}).encode() for n in range(100)])
    assert json.loads(mixed.schema)["properties"]["id"] == {}


def test_choices_tell_fields_that_came_and_went() -> None:
    rows = [{"a": {"old": 1} if n < 50 else {"new": 1}, "rare": 1} if n != 7 else {"a": {"old": 1}} for n in range(100)]
    found = infer([json.dumps(row).encode() for row in rows])
    told = {
        each.field: (each.reason.partition(":")[0], each.row) for each in found.choices if each.choice == "optional"
    }
    assert told == {
        "a.old": ("it went", 49),
        "a.new": ("it came later", 50),
        "rare": ("it is in 99 of 100 objects", None),
    }


def test_each_choice_beyond_a_plain_type_has_a_reason() -> None:
    rows = [
        {"state": "new" if n % 2 else "paid", "n": 1 if n % 3 else 1.5, "m": {f"u{n}": 1}, "z": None if n % 5 else 1}
        for n in range(100)
    ]
    found = infer([json.dumps(row).encode() for row in rows])
    assert {(each.field, each.choice) for each in found.choices} == {
        ("state", "enum"),
        ("n", "number"),
        ("m", "map"),
        ("z", "integer or null"),
    }
