"""Tests of the codes and texts of errors that clients of Postgres get."""

from __future__ import annotations

import duckdb
import pytest

from lakestream_client.errors import QueryFailed
from lakestream_postgres.errors import code_of, explained

pytestmark = pytest.mark.unit

TABLE = "CREATE TABLE t (seq BIGINT, subject VARCHAR)"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT 1 +", "42601"),
        ("SELECT nix FROM t", "42703"),
        ("SELECT a.nix FROM t a", "42703"),
        ("SELECT 1 FROM t a JOIN t b USING (nix)", "42703"),
        ("SELECT * EXCLUDE (nix) FROM t", "42703"),
        ("UNPIVOT t ON nix INTO NAME n VALUE v", "42703"),
        ("SELECT seq FROM t ORDER BY nix", "42703"),
        ("SELECT 1 FROM nix", "42P01"),
        ("SELECT nix.seq FROM t", "42P01"),
        ("SELECT 1 FROM nix.t", "42P01"),
        ("SELECT seq FROM t a, t b", "42702"),
        ("SELECT subject, seq FROM t GROUP BY subject", "42803"),
        ("SELECT 1 FROM t WHERE max(seq) > 1", "42803"),
        ("SELECT 1 FROM t WHERE subject > 1", "42804"),
        ("SELECT nix(seq) FROM t", "42883"),
        ("SELECT sum(subject) FROM t", "42883"),
        ("SELECT 'x'::INTEGER", "22P02"),
        ("SELECT '{'::JSON", "22P02"),
        ("SELECT strptime('x', '%Y')", "22P02"),
        ("SELECT 'x'::TIMESTAMP", "22007"),
        ("SELECT DATE '2020-13-01'", "22008"),
        ("SELECT 300::TINYINT", "22003"),
        ("SELECT 9223372036854775807 + 1::BIGINT", "22003"),
        ("SELECT 1 FROM t LIMIT -1", "2201W"),
    ],
)
def test_the_code_is_that_of_postgres(query: str, code: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(TABLE)
        with pytest.raises(duckdb.Error) as failed:
            connection.execute(query).fetchall()
    assert code_of(str(failed.value)) == code, failed.value


def test_the_list_of_tables_is_a_detail_without_margin() -> None:
    said = "there is no table X in the lake\n  line 1, column 6:\n  FROM X\n       ^\n  the tables there are: ORDERS"
    error = explained(QueryFailed(404, said), "FROM X", lambda offset: offset)
    assert (error.code, error.position) == ("42P01", 6)
    assert str(error) == "there is no table X in the lake\nthe tables there are: ORDERS"
