"""Tests of values and times that a query gets beside its text."""

from __future__ import annotations

from typing import Any

import pytest

from lakestream.lake.sql import dialect
from lakestream.lake.sql.dialect import BadSql, Bindings, Travel

pytestmark = pytest.mark.unit


def bound(text: str, parameters: dict[str, Any] | None = None, as_of: int | str | None = None) -> dialect.Statement:
    """Return the only statement of a text with values."""
    (found,) = dialect.bound(dialect.parse(text), Bindings(parameters or {}, as_of), text)
    return found


def test_values_become_literals() -> None:
    found = bound("SELECT :a, :b, :c, :d, :a", {"a": "x' OR :b --", "b": -1, "c": None, "d": True})
    assert found.tree.sql(dialect="duckdb") == "SELECT 'x'' OR :b --', -1, NULL, TRUE, 'x'' OR :b --'"


def test_question_marks_are_numbered_in_the_order_of_the_text() -> None:
    text = "WITH c AS (SELECT ? AS w) SELECT ? AS a, '?' FROM c WHERE w = :x AND w > ? ORDER BY ? LIMIT ? -- ?"
    values = {str(number): number for number in range(1, 6)}
    assert dialect.parameters(dialect.parse(text)) == ["1", "2", "3", "4", "5", "x"]
    found = bound(text, values | {"x": "it"}).tree.sql(dialect="duckdb", comments=False)
    assert found == (
        "WITH c AS (SELECT 1 AS w) SELECT 2 AS a, '?' FROM c WHERE w = 'it' AND w > 3 ORDER BY 4 NULLS FIRST LIMIT 5"
    )
    several = dialect.parse("SELECT ?; SELECT ?, ?")
    assert [dialect.parameters([each]) for each in several] == [["1"], ["2", "3"]]
    with pytest.raises(BadSql, match="column 12"):
        dialect.parse("SELECT ? ? FROM")


def test_parameters_without_values_are_null_where_a_query_is_described() -> None:
    (found,) = dialect.bound(dialect.parse("SELECT :a, ?"), Bindings(unbound=True), "SELECT :a, ?")
    assert found.tree.sql() == "SELECT NULL, NULL"


@pytest.mark.parametrize(
    ("text", "parameters", "reason"),
    [
        ("SELECT :a", {}, "the parameter :a has no value"),
        ("SELECT :a", {"a": 1, "b": 2}, "the query has no parameter :b"),
        ("SELECT ?", {"a": 1}, "the parameter :1 has no value"),
    ],
)
def test_values_and_parameters_have_to_agree(text: str, parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadSql, match=reason):
        bound(text, parameters)


def test_a_time_is_that_of_every_stream_without_one() -> None:
    text = (
        "WITH x AS (SELECT * FROM delta.`streams/A`) "
        "SELECT * FROM x JOIN delta.`streams/B` VERSION AS OF 3 b JOIN as_of('C', 5) c"
    )
    found = {mention.name: mention.travel for mention in dialect.mentions(bound(text, as_of=7))}
    assert found["streams/A"] == Travel("MESSAGES", "7")
    assert found["streams/B"] == Travel("VERSION", "3")
    assert found["C"] == Travel("MESSAGES", "5")
