"""Conditions on files: none with a matching row is left out, whatever the condition."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.table.actions import AddFile
from lakestream_sharing.predicates import MAX_DEPTH, parsed, rows_of, selected

VALUES = st.one_of(st.none(), st.integers(-3, 3))
ROWS = st.lists(st.tuples(VALUES, st.sampled_from(["", "a", "ab", "b"])), min_size=1, max_size=4)
COMPARISONS = {
    "equal": lambda a, b: a == b,
    "lessThan": lambda a, b: a < b,
    "lessThanOrEqual": lambda a, b: a <= b,
    "greaterThan": lambda a, b: a > b,
    "greaterThanOrEqual": lambda a, b: a >= b,
}


def column(name: str) -> dict[str, Any]:
    return {"op": "column", "name": name, "valueType": "long" if name == "n" else "string"}


def literal(value: object) -> dict[str, Any]:
    return {"op": "literal", "value": str(value), "valueType": "long" if isinstance(value, int) else "string"}


def compared() -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.one_of(
        st.integers(-3, 3).map(lambda value: [column("n"), literal(value)]),
        st.sampled_from(["", "a", "ab", "c"]).map(lambda value: [column("s"), literal(value)]),
    )
    sides = st.tuples(pairs, st.booleans()).map(lambda pair: pair[0][::-1] if pair[1] else pair[0])
    return st.builds(lambda op, children: {"op": op, "children": children}, st.sampled_from([*COMPARISONS]), sides)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.builds(
        lambda op, children: {"op": op, "children": children},
        st.sampled_from(["and", "or"]),
        st.lists(inner, min_size=2, max_size=3),
    )
    return several | inner.map(lambda one: {"op": "not", "children": [one]})


IS_NULL = st.sampled_from(["n", "s"]).map(lambda name: {"op": "isNull", "children": [column(name)]})
CONDITIONS = st.recursive(compared() | IS_NULL, nested, max_leaves=6)


def holds(node: dict[str, Any], row: tuple[int | None, str]) -> bool | None:
    """Return the condition for a row, in SQL's logic."""
    values: dict[str, Any] = {"n": row[0], "s": row[1]}
    op, children = node["op"], node.get("children", [])
    if op == "isNull":
        return values[children[0]["name"]] is None
    if op in COMPARISONS:
        sides = [
            values[each["name"]]
            if each["op"] == "column"
            else (int(each["value"]) if each["valueType"] == "long" else each["value"])
            for each in children
        ]
        return None if None in sides else bool(COMPARISONS[op](*sides))
    found = [holds(each, row) for each in children]
    if op == "not":
        return None if found[0] is None else not found[0]
    decisive = op == "or"
    return decisive if decisive in found else None if None in found else not decisive


def file(rows: list[tuple[int | None, str]], partitioned: bool) -> AddFile:
    numbers = [number for number, _ in rows if number is not None]
    texts = [text for _, text in rows]
    stats: dict[str, Any] = {"numRecords": len(rows), "nullCount": {"n": len(rows) - len(numbers), "s": 0}}
    stats["minValues"], stats["maxValues"] = {"s": min(texts)[:1]}, {"s": max(texts)[:1]}
    if numbers:
        stats["minValues"]["n"], stats["maxValues"]["n"] = min(numbers), max(numbers)
    if partitioned:
        return AddFile("f", {"n": None if rows[0][0] is None else str(rows[0][0])}, stats=json.dumps(stats))
    return AddFile("f", stats=json.dumps(stats))


@given(ROWS, CONDITIONS, st.booleans())
def test_no_file_with_a_matching_row_is_left_out(
    rows: list[tuple[int | None, str]], condition: dict[str, Any], partitioned: bool
) -> None:
    if partitioned:
        rows = [(rows[0][0], text) for _, text in rows]
    kept = selected([file(rows, partitioned)], parsed(json.dumps(condition)))
    if any(holds(condition, row) for row in rows):
        assert kept


def test_files_beyond_the_bounds_are_left_out() -> None:
    some = file([(1, "a"), (3, "b")], False)
    for op, value in (("equal", 4), ("lessThan", 1), ("greaterThan", 3), ("greaterThanOrEqual", 4)):
        node = parsed(json.dumps({"op": op, "children": [column("n"), literal(value)]}))
        assert selected([some], node) == [], op
    assert selected([some], parsed(json.dumps({"op": "isNull", "children": [column("n")]}))) == []


def test_a_condition_that_is_not_understood_leaves_nothing_out() -> None:
    some = file([(1, "a")], False)
    deep: dict[str, Any] = {"op": "equal", "children": [column("n"), literal(9)]}
    for _ in range(MAX_DEPTH + 1):
        deep = (
            {"op": "and", "children": [deep, deep]} if len(json.dumps(deep)) < 500 else {"op": "or", "children": [deep]}
        )
    for text in (
        None,
        "",
        "[",
        "{}",
        json.dumps(deep),
        '{"op": "and"}',
        "[" * 100_000,
        '{"op": "not", "children": []}',
    ):
        assert selected([some], parsed(text)) == [some]
    assert rows_of(AddFile("f")) is None
    assert rows_of(some) == 1
