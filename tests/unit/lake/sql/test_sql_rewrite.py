"""Tests of the translation of Spark SQL to DuckDB SQL: names, time travel, binary values, places of errors."""

from __future__ import annotations

import re

import pytest

from lakestream.lake.sql.dialect import BadSql, Mention, Selection, SqlError, TableAt, Travel, parse, rewrite, split
from lakestream.lake.table.schema import literal
from tests.fuzzing import growth

pytestmark = pytest.mark.unit

ORDERS = "delta.`streams/ORDERS`"
SCAN = "DELTA_SCAN('/lake/streams/ORDERS', version => 7)"


def locate(mention: Mention) -> TableAt | Selection:
    """Return version 7 or the requested one; 3 for the table T; a SELECT for as_of."""
    name, travel = mention.name, mention.travel
    if travel is not None and travel.kind == "MESSAGES":
        return Selection(f"SELECT '{name}', {travel.value}")
    version = 7 if travel is None else 3 if travel.kind == "TIMESTAMP" else int(travel.value)
    return TableAt(name if name.startswith("/") else f"/lake/{name}", version)


def rewritten(text: str) -> str:
    [statement] = parse(text)
    return rewrite(statement, locate)


def placed(text: str) -> str:
    """Return a query with its scans as they are placed: as queries without the virtual columns of tables."""

    def place(scan: re.Match[str]) -> str:
        query = f"SELECT * FROM delta_scan('{scan[1]}', version = {scan[2]})"
        return f"QUERY({literal(query)})"

    return re.sub(r"DELTA_SCAN\('((?:[^']|'')*)', version => (\d+)\)", place, text)


@pytest.mark.parametrize(
    ("spark", "duckdb"),
    [
        (f"SELECT seq FROM {ORDERS}", f'SELECT seq FROM {SCAN} AS "streams/ORDERS"'),
        (f"SELECT o.seq FROM {ORDERS} o", f"SELECT o.seq FROM {SCAN} AS o"),
        ("select seq from DELTA.`streams/ORDERS`", f'SELECT seq FROM {SCAN} AS "streams/ORDERS"'),
        (
            "SELECT seq FROM delta.'/tmp/t' x",
            "SELECT seq FROM DELTA_SCAN('/tmp/t', version => 7) AS x",
        ),
        (
            "SELECT seq FROM delta.`it's`",
            "SELECT seq FROM DELTA_SCAN('/lake/it''s', version => 7) AS \"it's\"",
        ),
        (
            f"SELECT seq FROM {ORDERS} VERSION AS OF 4 o",
            "SELECT o.seq FROM DELTA_SCAN('/lake/streams/ORDERS', version => 4) AS o".replace("o.seq", "seq"),
        ),
        (
            f"SELECT seq FROM {ORDERS} FOR VERSION AS OF 4",
            "SELECT seq FROM DELTA_SCAN('/lake/streams/ORDERS', version => 4) AS \"streams/ORDERS\"",
        ),
        (
            f"SELECT seq FROM {ORDERS} TIMESTAMP AS OF '2026-01-01'",
            "SELECT seq FROM DELTA_SCAN('/lake/streams/ORDERS', version => 3) AS \"streams/ORDERS\"",
        ),
        (
            f"SELECT delta.`streams/ORDERS`.seq FROM {ORDERS}",
            f'SELECT "streams/ORDERS".seq FROM {SCAN} AS "streams/ORDERS"',
        ),
        (
            f"SELECT a.seq FROM {ORDERS} a JOIN {ORDERS} VERSION AS OF 1 b ON a.seq = b.seq",
            f"SELECT a.seq FROM {SCAN} AS a JOIN DELTA_SCAN('/lake/streams/ORDERS', version => 1) AS b "
            "ON a.seq = b.seq",
        ),
        (
            f"WITH ORDERS AS (SELECT seq FROM {ORDERS}) SELECT seq FROM ORDERS",
            f'WITH ORDERS AS (SELECT seq FROM {SCAN} AS "streams/ORDERS") SELECT seq FROM ORDERS',
        ),
        (
            f"SELECT seq FROM {ORDERS} o WHERE seq IN (SELECT max(seq) AS m FROM {ORDERS} VERSION AS OF 2 p)",
            f"SELECT seq FROM {SCAN} AS o WHERE seq IN "
            "(SELECT MAX(seq) AS m FROM DELTA_SCAN('/lake/streams/ORDERS', version => 2) AS p)",
        ),
        (
            f"SELECT seq FROM {ORDERS} x UNION ALL SELECT seq FROM {ORDERS} y",
            f"SELECT seq FROM {SCAN} AS x UNION ALL SELECT seq FROM {SCAN} AS y",
        ),
        (f"EXPLAIN SELECT seq FROM {ORDERS} o", f"EXPLAIN SELECT seq FROM {SCAN} AS o"),
        (f"DESCRIBE {ORDERS}", f'DESCRIBE SELECT * FROM {SCAN} AS "streams/ORDERS"'),
    ],
)
def test_table_names_and_time_travel(spark: str, duckdb: str) -> None:
    assert rewritten(spark) == placed(duckdb)


@pytest.mark.parametrize(
    ("spark", "duckdb"),
    [
        ("CAST(data AS STRING)", "SPARK_STRING(data)"),
        ("string(data)", "SPARK_STRING(data)"),
        ("CAST('a' AS STRING)", "'a'"),
        ("get_json_object(data, '$.a')", "SPARK_JSON(data) ->> '$.a'"),
        ("get_json_object(CAST(data AS STRING), '$.a')", "SPARK_JSON(SPARK_STRING(data)) ->> '$.a'"),
        (
            "from_json(data, 'a INT, b ARRAY<STRING>')",
            """JSON_TRANSFORM(SPARK_JSON(data), '"STRUCT(a INT, b TEXT[])"')""",
        ),
        (
            "from_json(data, 'a: STRING NOT NULL, `b c` STRUCT<d: DECIMAL(3,1)> COMMENT \"x\"')",
            """JSON_TRANSFORM(SPARK_JSON(data), '"STRUCT(a TEXT, \\"b c\\" STRUCT(d DECIMAL(3, 1)))"')""",
        ),
        ("from_json(data, 'ARRAY<DOUBLE>')", """JSON_TRANSFORM(SPARK_JSON(data), '"DOUBLE[]"')"""),
        (
            "from_json(CAST(max_by(data, seq) AS STRING), 'a INT').a",
            """JSON_TRANSFORM(SPARK_JSON(SPARK_STRING(ARG_MAX(data, seq))), '"STRUCT(a INT)"').a""",
        ),
        ("headers['A'][0]", "headers['A'][1]"),
        ("split(subject, '[.]')[1]", "STR_SPLIT_REGEX(subject, '[.]')[2]"),
        ("date_trunc('hour', time)", "DATE_TRUNC('HOUR', time)"),
        ("collect_list(seq)", "ARRAY_AGG(seq) FILTER(WHERE seq IS NOT NULL)"),
    ],
)
def test_values(spark: str, duckdb: str) -> None:
    assert rewritten(f"SELECT {spark} AS x FROM {ORDERS} o") == placed(f"SELECT {duckdb} AS x FROM {SCAN} AS o")


def test_a_computed_column_keeps_the_name_that_was_written() -> None:
    assert rewritten("SELECT count(*), get_json_object(data, '$.a') FROM delta.`t` t").startswith(
        "SELECT COUNT(*) AS \"count(*)\", SPARK_JSON(data) ->> '$.a' AS \"get_json_object(data, '$.a')\" FROM"
    )


def test_time_travel_takes_any_expression() -> None:
    seen: list[Travel | None] = []

    def remember(mention: Mention) -> TableAt:
        seen.append(mention.travel)
        return TableAt(mention.name, 1)

    [statement] = parse(f"SELECT 1 FROM {ORDERS} TIMESTAMP AS OF current_timestamp() - INTERVAL 1 HOUR")
    rewrite(statement, remember)
    assert seen == [Travel("TIMESTAMP", "CURRENT_TIMESTAMP - INTERVAL '1' HOUR")]


@pytest.mark.parametrize(
    ("call", "name", "travel"),
    [
        ("as_of('ORDERS', 17)", "ORDERS", Travel("MESSAGES", "17")),
        ("AS_OF('A/B', 1 + 2)", "A/B", Travel("MESSAGES", "1 + 2")),
        ("as_of('O', '2026-05-01')", "O", Travel("MESSAGES", "'2026-05-01'", "2026-05-01")),
        (
            "as_of('O', TIMESTAMP '2026-05-01 12:00:00.123456789')",
            "O",
            Travel(
                "MESSAGES",
                "CAST('2026-05-01 12:00:00.123456789' AS TIMESTAMPTZ)",
                "2026-05-01 12:00:00.123456789",
            ),
        ),
        (
            "as_of('O', current_timestamp() - INTERVAL 1 HOUR)",
            "O",
            Travel("MESSAGES", "CURRENT_TIMESTAMP - INTERVAL '1' HOUR"),
        ),
    ],
)
def test_as_of(call: str, name: str, travel: Travel) -> None:
    seen: list[Mention] = []

    def remember(mention: Mention) -> Selection:
        seen.append(mention)
        return Selection("SELECT 'it''s'")

    text = f"SELECT 1 AS x FROM {call} a JOIN {ORDERS} b ON a.seq = b.seq"
    [statement] = parse(text)
    source = "QUERY('SELECT ''it''''s''')"
    assert rewrite(statement, remember) == f"SELECT 1 AS x FROM {source} AS a JOIN {source} AS b ON a.seq = b.seq"
    assert seen[0] == Mention(name, travel, text.lower().index("as_of"))


@pytest.mark.parametrize("call", ["as_of()", "as_of('ORDERS')", "as_of(ORDERS, 1)", "as_of('ORDERS', 1, 2)"])
def test_as_of_says_what_it_takes(call: str) -> None:
    with pytest.raises(SqlError, match=r"as_of\('ORDERS', '2026-05-01 12:00:00'\)"):
        rewritten(f"SELECT * FROM {call}")


@pytest.mark.parametrize(
    ("rest", "subject"),
    [
        ("WHERE subject = 'a.b'", "a.b"),
        ("o WHERE seq > 3 AND 'a.b' = o.subject AND seq < 7", "a.b"),
        ("WHERE subject = 'a.b' OR seq = 1", None),
        ("WHERE NOT subject = 'a.b'", None),
        ("WHERE subject LIKE 'a.b'", None),
        ("TABLESAMPLE (10 PERCENT) WHERE subject = 'a.b'", None),
        (f"a JOIN {ORDERS} b ON true WHERE subject = 'a.b'", None),
        (f", {ORDERS} b WHERE b.subject = 'a.b'", None),
    ],
)
def test_the_only_subject_that_can_be_wanted(rest: str, subject: str | None) -> None:
    seen: list[str | None] = []

    def remember(mention: Mention) -> TableAt:
        seen.append(mention.subject)
        return TableAt(mention.name, 1)

    [statement] = parse(f"SELECT seq FROM {ORDERS} {rest}")
    rewrite(statement, remember)
    assert seen[0] == subject


def test_the_error_for_a_bare_stream_name_gives_its_spelling() -> None:
    with pytest.raises(SqlError, match=r"unknown table ORDERS: .*delta\.`streams/ORDERS`"):
        rewritten("SELECT * FROM ORDERS")


def test_locate_gets_the_place_of_the_name_in_the_whole_text() -> None:
    text = f"SELECT 1;\nSELECT 2 FROM {ORDERS}"
    places: list[int] = []

    def remember(mention: Mention) -> TableAt:
        places.append(mention.place)
        return TableAt(mention.name, 1)

    for statement in parse(text):
        rewrite(statement, remember)
    assert places == [text.index("`streams")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("SELECT * FRM x", "x"),
        (f"SELECT seq\nFROM {ORDERS}\nWHERE seq ==> 3", "3"),
        ("SELECT 1; SELECT 2 blah blah", "blah"),
        ("SELECT 'abc", "'abc"),
        ("SELECT 1; SELECT `abc", "`abc"),
        ("DROP TABLE x", "DROP"),
        ("SELECT 1;\n  INSERT INTO x VALUES (1)", "INSERT"),
        ("frobnicate", "frobnicate"),
    ],
)
def test_bad_sql_shows_the_place(text: str, place: str) -> None:
    with pytest.raises(BadSql) as caught:
        parse(text)
    assert caught.value.offset == text.rindex(place)
    shown, mark = str(caught.value).splitlines()[-2:]
    assert shown[mark.index("^") :].startswith(place)


@pytest.mark.parametrize("begin", ["SELECT 1; SELECT 'x", "SELECT `x", "SELECT /* "])
def test_the_time_for_an_open_quote_is_linear(begin: str) -> None:
    def parsed(words: int) -> None:
        with pytest.raises(BadSql, match="not closed"):
            parse(begin + " a;" * words)

    assert growth(parsed, 1000, times=4, attempts=4) < 8


@pytest.mark.parametrize("text", ["SELECT " + "(" * 2000 + "1" + ")" * 2000, "EXPLAIN " * 2000 + "SELECT 1"])
def test_a_query_that_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(BadSql, match="nested too deeply"):
        parse(text)


@pytest.mark.parametrize("call", ["year()", "datediff(seq)", "map(seq)", "date_trunc()", "regexp_replace(data, 'a')"])
def test_a_function_without_the_arguments_that_it_needs_is_refused(call: str) -> None:
    with pytest.raises(SqlError, match="a function has other arguments than it takes"):
        rewritten(f"SELECT {call} FROM {ORDERS}")


@pytest.mark.parametrize("schema", ["a INT, b NOTATYPE<", "", "a INT b INT c"])
def test_from_json_names_a_schema_that_it_does_not_understand(schema: str) -> None:
    with pytest.raises(SqlError, match="schema"):
        rewritten(f"SELECT from_json(data, '{schema}') FROM {ORDERS}")


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; \n", ["SELECT 1"], ""),
        ("SELECT 1;; SELECT 2; SELECT", ["SELECT 1", " SELECT 2"], " SELECT"),
        ("SELECT ';'; x", ["SELECT ';'"], " x"),
        ("SELECT 1 -- ;\n;", ["SELECT 1 -- ;\n"], ""),
        ("SELECT /* ; */ 1;", ["SELECT /* ; */ 1"], ""),
        ("SELECT 1; SELECT 'a; b", ["SELECT 1"], " SELECT 'a; b"),
        ("SELECT 1; -- the end", ["SELECT 1"], ""),
    ],
)
def test_split_minds_quotes_and_comments(text: str, statements: list[str], rest: str) -> None:
    done, left = split(text)
    assert ([part for part, _ in done], left) == (statements, rest)
    assert all(text[offset:].startswith(part) for part, offset in done)
