"""Tests of values and times that a query gets beside its text."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from lakestream_sql import Bindings, statements
from lakestream_sql.explained import BadSql
from lakestream_sql.mentions import Travel
from lakestream_sql.parser import SqlParser
from lakestream_sql.statements import Statement, parse

pytestmark = pytest.mark.unit

PARSER = SqlParser(duckdb.connect())


def bound(text: str, parameters: dict[str, Any] | None = None, as_of: int | str | None = None) -> Statement:
    """Return the only statement of a text with values."""
    (found,) = parse(text, PARSER, Bindings(parameters or {}, as_of))
    return found


def test_values_become_literals() -> None:
    text = "SELECT :a, $b, :c, :d, :a, :e, :f"
    values = {"a": "x' OR :b --", "b": -1, "c": None, "d": True, "e": float("inf"), "f": 1 << 70}
    (row,) = duckdb.sql(bound(text, values).sql).fetchall()
    assert row == ("x' OR :b --", -1, None, True, "x' OR :b --", float("inf"), 1 << 70)


def test_a_colon_within_a_value_is_no_parameter() -> None:
    text = (
        "SELECT {'a':b}.a, l[1:b], l[:b], b::INT, list_transform(l, lambda x:x + 1) FROM (SELECT 1 AS b, [3, 4] AS l)"
    )
    assert bound(text).parameters == ()
    assert duckdb.sql(bound(text).sql).fetchall() == [(1, [3], [3], 1, [4, 5])]
    where = "SELECT 1 WHERE 1 IN (:a, 2) AND 3 BETWEEN :b AND :c OR NOT :d ORDER BY :e LIMIT :f"
    assert bound(where, dict.fromkeys("abcdef", 1)).parameters == tuple("abcdef")


def test_question_marks_are_numbered_in_the_order_of_the_text() -> None:
    text = "WITH c AS (SELECT ? AS w) SELECT ? AS a, '?' FROM c WHERE w = :x AND w > ? ORDER BY ? LIMIT ? -- ?"
    values = {str(number): number for number in range(1, 6)}
    assert statements.parameters(parse(text, PARSER, None)) == ["1", "2", "3", "4", "5", "x"]
    found = bound(text, values | {"x": "it"}).sql
    assert " ".join(found.split()) == (
        "WITH c AS (SELECT 1 AS w) SELECT 2 AS a, '?' FROM c WHERE w = 'it' AND w > 3 ORDER BY 4 LIMIT 5 -- ?"
    )
    several = parse("SELECT ?; SELECT ?, ?", PARSER, None)
    assert [statements.parameters([each]) for each in several] == [["1"], ["2", "3"]]
    with pytest.raises(BadSql, match="column 14"):
        parse("SELECT ? FRM 3", PARSER, None)


def test_parameters_without_values_are_null_where_a_query_is_described() -> None:
    (found,) = parse("SELECT :a, ?", PARSER, Bindings(unbound=True))
    assert found.sql.split() == ["SELECT", "NULL", ",", "NULL"]


@pytest.mark.parametrize(
    ("text", "parameters", "reason"),
    [
        ("SELECT :a", {}, "the parameter :a has no value"),
        ("SELECT :a", {"a": 1, "b": 2}, "the query has no parameter :b"),
        ("SELECT ?", {"a": 1}, "the parameter :1 has no value"),
        ("SELECT $a", {}, "the parameter :a has no value"),
    ],
)
def test_values_and_parameters_have_to_agree(text: str, parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadSql, match=reason):
        bound(text, parameters)


def test_a_time_is_that_of_every_stream_without_one() -> None:
    text = (
        "WITH x AS (SELECT * FROM delta.`streams/A`) "
        "SELECT * FROM x JOIN delta.`streams/B` VERSION AS OF 3 b ON true "
        "JOIN as_of('C', 5) c ON true JOIN D USING (seq)"
    )
    found = {mention.name: mention.travel for mention in bound(text, as_of=7).mentions()}
    assert found["streams/A"] == found["streams/D"] == Travel("MESSAGES", " 7 ")
    assert found["streams/B"] == Travel("VERSION", "3")
    assert found["streams/C"] == Travel("MESSAGES", "5")
    (past,) = bound("FROM ORDERS VERSION AS OF :v", {"v": 3}).mentions()
    assert past.travel == Travel("VERSION", "3")
