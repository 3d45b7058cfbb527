"""Tests of the places of tables in DuckDB's SQL: names, time travel, places of errors, and what stays as it is."""

from __future__ import annotations

import random

import duckdb
import pytest

from lakestream.lake.table.schema import literal
from lakestream_sql.explained import BadSql, SqlError
from lakestream_sql.mentions import Mention, Travel, delta_scan
from lakestream_sql.parser import SqlParser
from lakestream_sql.statements import Statement, parse, rewrite
from lakestream_sql.tokens import split, tokens
from tests.fuzzing import growth

pytestmark = pytest.mark.unit

ORDERS = "delta.`streams/ORDERS`"
PARSER = SqlParser(duckdb.connect())


def scan(name: str = "streams/ORDERS", version: int = 7) -> str:
    """Return a table as it is placed: as a query without the virtual columns of tables."""
    return f"query({literal(f'SELECT * FROM delta_scan({literal(name)}, version = {version})')})"


def locate(mention: Mention) -> str | None:
    """Return version 7 or the requested one; 3 for a time; a SELECT for as_of; None for the name `nothing`."""
    name, travel = mention.name, mention.travel
    if name == "streams/nothing":
        return None
    if travel is not None and travel.kind == "MESSAGES":
        return f"SELECT '{name}', {travel.value}"
    version = 7 if travel is None else 3 if travel.kind == "TIMESTAMP" else int(travel.value)
    return f"SELECT * FROM {delta_scan(name, version)}"


def one(text: str) -> Statement:
    (found,) = parse(text, PARSER)
    return found


def rewritten(text: str) -> str:
    statement = one(text)
    return statement.prefix + rewrite(statement, locate).text


@pytest.mark.parametrize(
    ("text", "placed"),
    [
        (f"SELECT seq FROM {ORDERS}", f'SELECT seq FROM {scan()} AS "streams/ORDERS"'),
        (f"SELECT o.seq FROM {ORDERS} o", f"SELECT o.seq FROM {scan()} o"),
        (f"SELECT seq FROM {ORDERS} AS o(a, seq)", f"SELECT seq FROM {scan()} AS o(a, seq)"),
        ("select seq from DELTA . `streams/ORDERS`", f'select seq from {scan()} AS "streams/ORDERS"'),
        ('SELECT seq FROM delta."streams/ORDERS"', f'SELECT seq FROM {scan()} AS "streams/ORDERS"'),
        ("FROM ORDERS", f'FROM {scan()} AS "ORDERS"'),
        ('FROM "ORDERS" SELECT seq', f'FROM {scan()} AS "ORDERS" SELECT seq'),
        ("TABLE ORDERS", f'FROM {scan()} AS "ORDERS"'),
        ("FROM ORDERS TABLESAMPLE 10%", f'FROM {scan()} AS "ORDERS" TABLESAMPLE 10%'),
        ("FROM nothing, ORDERS", f'FROM nothing, {scan()} AS "ORDERS"'),
        ("SELECT seq FROM delta.'/tmp/t' x", f"SELECT seq FROM {scan('/tmp/t')} x"),
        ("SELECT seq FROM delta.`it's`", f'SELECT seq FROM {scan("it" + chr(39) + "s")} AS "it{chr(39)}s"'),
        ('FROM delta.`a``b"c`', f'FROM {scan("a`b" + chr(34) + "c")} AS "a`b""c"'),
        (
            'FROM accounts."ACME".ORDERS, accounts.B.ORDERS b',
            f'FROM {scan("accounts/ACME/streams/ORDERS")} AS "ORDERS", {scan("accounts/B/streams/ORDERS")} b',
        ),
        ("FROM kv.prices", f'FROM {scan("streams/KV_prices")} AS "prices"'),
        ("FROM kv_history.`ACME/prices` p", f"FROM {scan('accounts/ACME/streams/KV_prices')} p"),
        ("FROM obj.files", f'FROM {scan("streams/OBJ_files")} AS "files"'),
        ("FROM misfits.ORDERS m", f"FROM {scan()} m"),
        (f"SELECT seq FROM {ORDERS} VERSION AS OF 4 o", f"SELECT seq FROM {scan(version=4)} o"),
        ("FROM ORDERS FOR VERSION AS OF 4", f'FROM {scan(version=4)} AS "ORDERS"'),
        ("FROM ORDERS TIMESTAMP AS OF '2026-01-01' WHERE x", f'FROM {scan(version=3)} AS "ORDERS" WHERE x'),
        (
            "FROM ORDERS TIMESTAMP AS OF now() - INTERVAL 1 HOUR - INTERVAL '3' DAYS o, ORDERS",
            f'FROM {scan(version=3)} o, {scan()} AS "ORDERS"',
        ),
        (
            "FROM ORDERS TIMESTAMP AS OF ('2026-01-01' || '')::TIMESTAMP AT TIME ZONE 'Asia/Tokyo' JOIN t USING (a)",
            f'FROM {scan(version=3)} AS "ORDERS" JOIN {scan("streams/t")} AS "t" USING (a)',
        ),
        ("FROM ORDERS TIMESTAMP AS OF CAST('2026-01-01' AS DATE) o", f"FROM {scan(version=3)} o"),
        (f"SELECT {ORDERS}.seq FROM {ORDERS}", f'SELECT "streams/ORDERS".seq FROM {scan()} AS "streams/ORDERS"'),
        ("SELECT kv.p.value.x FROM kv.p VERSION AS OF 3", None),
        (
            "SELECT accounts.A.ORDERS.seq, delta.x.seq FROM accounts.A.ORDERS",
            f'SELECT ORDERS.seq, delta.x.seq FROM {scan("accounts/A/streams/ORDERS")} AS "ORDERS"',
        ),
        (
            f"SELECT a.seq FROM {ORDERS} a JOIN {ORDERS} VERSION AS OF 1 b ON a.seq = b.seq",
            f"SELECT a.seq FROM {scan()} a JOIN {scan(version=1)} b ON a.seq = b.seq",
        ),
        (
            "WITH ORDERS AS (FROM ORDERS), b AS (FROM ORDERS) SELECT * FROM ORDERS, b, c",
            f'WITH ORDERS AS (FROM {scan()} AS "ORDERS"), b AS (FROM ORDERS) '
            f'SELECT * FROM ORDERS, b, {scan("streams/c")} AS "c"',
        ),
        (
            "SELECT (WITH ORDERS AS (SELECT 1) FROM orders), * FROM ORDERS",
            f'SELECT (WITH ORDERS AS (SELECT 1) FROM orders), * FROM {scan()} AS "ORDERS"',
        ),
        (
            "WITH RECURSIVE t AS (FROM ORDERS UNION ALL FROM t) FROM t",
            f'WITH RECURSIVE t AS (FROM {scan()} AS "ORDERS" UNION ALL FROM t) FROM t',
        ),
        (
            f"SELECT seq FROM {ORDERS} o WHERE seq IN (SELECT max(seq) FROM {ORDERS} VERSION AS OF 2 p)",
            f"SELECT seq FROM {scan()} o WHERE seq IN (SELECT max(seq) FROM {scan(version=2)} p)",
        ),
        ("FROM a UNION ALL FROM b", f'FROM {scan("streams/a")} AS "a" UNION ALL FROM {scan("streams/b")} AS "b"'),
        ("EXPLAIN FROM ORDERS o", f"EXPLAIN FROM {scan()} o"),
        ("explain analyze FROM ORDERS o", f"explain analyze FROM {scan()} o"),
        ("EXPLAIN (FORMAT json) FROM ORDERS o", f"EXPLAIN (FORMAT json) FROM {scan()} o"),
        ("EXPLAIN (FROM ORDERS o)", f"EXPLAIN (FROM {scan()} o)"),
        ("DESCRIBE ORDERS", f'DESCRIBE FROM {scan()} AS "ORDERS"'),
        (f"DESC {ORDERS}", f'DESC FROM {scan()} AS "streams/ORDERS"'),
        ("DESCRIBE SELECT 1 FROM ORDERS", f'DESCRIBE SELECT 1 FROM {scan()} AS "ORDERS"'),
        ("SUMMARIZE ORDERS", f'SUMMARIZE FROM {scan()} AS "ORDERS"'),
        ("SUMMARIZE FROM ORDERS", f'SUMMARIZE FROM {scan()} AS "ORDERS"'),
        ("SHOW ORDERS", f'SHOW FROM {scan()} AS "ORDERS"'),
        ("PIVOT ORDERS ON a, b USING sum(c)", f'PIVOT {scan()} AS "ORDERS" ON a, b USING sum(c)'),
        ("FROM (PIVOT ORDERS ON a)", f'FROM (PIVOT {scan()} AS "ORDERS" ON a)'),
        ("UNPIVOT ORDERS ON a", f'UNPIVOT {scan()} AS "ORDERS" ON a'),
        ("SELECT 'é', 1 FROM ORDERS é WHERE é.ü = 1", f"SELECT 'é', 1 FROM {scan()} é WHERE é.ü = 1"),
        ("FROM /* \u00a0é */ ORDERS -- \u00a0", f'FROM          {scan()} AS "ORDERS" -- \u00a0'),
        ("SELECT 1\u00a0FROM\u3000ORDERS", f'SELECT 1 FROM {scan()} AS "ORDERS"'),
    ],
)
def test_tables_are_replaced_and_nothing_else(text: str, placed: str | None) -> None:
    if placed is None:  # the revision of a bucket
        placed = "SELECT p.value.x FROM query('SELECT 3') AS \"p\""
        found = rewrite(one(text), lambda mention: f"SELECT {mention.travel and mention.travel.value}").text
    else:
        found = rewritten(text)
    assert found == placed
    PARSER.tree(rewrite(one(text), lambda _: "SELECT 1").text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'FROM ORDERS', $$FROM ORDERS$$, E'\\'FROM ORDERS' -- FROM ORDERS\n /* FROM /* ORDERS */ x */",
        "SELECT version AS of, 3 AS timestamp, x.version AS OF FROM nothing x",
        "SELECT DISTINCT version AS of FROM nothing",
        "SELECT 1::DECIMAL(3, 1), {'a': [1, 2][1:2]}, a->>'$.b', a->'b', x IS DISTINCT FROM y FROM nothing",
        "SELECT EXTRACT(day FROM t), substring('abc' FROM 2), trim(BOTH 'a' FROM 'b'), a NOT IN (1, 2) FROM nothing",
        "SELECT 1 + -2, - -3, 1e-3, .5, 1_000",
        "FROM range(3) t(delta), unnest([1]) u(kv) SELECT delta, kv, t.delta",
        "SELECT COLUMNS('a.*'), * EXCLUDE (a) REPLACE (1 AS b) FROM nothing",
        "VALUES (1, 'ORDERS')",
        "SELECT list_transform([1], lambda x: x + 1), current_timestamp, INTERVAL 1 DAY",
    ],
)
def test_a_query_without_tables_of_ours_stays_as_it_is(text: str) -> None:
    assert rewritten(text) == text


def test_time_travel_takes_any_expression() -> None:
    (mention,) = one(f"SELECT 1 FROM {ORDERS} TIMESTAMP AS OF current_timestamp - INTERVAL 1 HOUR").mentions()
    assert mention.travel == Travel("TIMESTAMP", "current_timestamp - INTERVAL 1 HOUR")


@pytest.mark.parametrize(
    ("call", "name", "travel"),
    [
        ("as_of('ORDERS', 17)", "streams/ORDERS", Travel("MESSAGES", "17")),
        ("AS_OF ('A/B', 1 + 2)", "accounts/A/streams/B", Travel("MESSAGES", "1 + 2")),
        ("as_of(ORDERS, greatest(1, 2))", "streams/ORDERS", Travel("MESSAGES", "greatest(1, 2)")),
        ("as_of(accounts.A.O, 1)", "accounts/A/streams/O", Travel("MESSAGES", "1")),
        (f"as_of({ORDERS}, '2026-05-01')", "streams/ORDERS", Travel("MESSAGES", "'2026-05-01'", "2026-05-01")),
        (
            "as_of(O, TIMESTAMP '2026-05-01 12:00:00.123456789')",
            "streams/O",
            Travel("MESSAGES", "TIMESTAMP '2026-05-01 12:00:00.123456789'", "2026-05-01 12:00:00.123456789"),
        ),
    ],
)
def test_as_of(call: str, name: str, travel: Travel) -> None:
    text = f"SELECT 1 AS x, as_of.seq FROM {call} JOIN {ORDERS} b ON true"
    statement = one(text)
    seen = statement.mentions()[0]
    assert (seen.name, seen.travel, seen.place) == (name, travel, text.index(call))
    source = "query('SELECT ''it''''s''')"
    assert rewrite(statement, lambda _: "SELECT 'it''s'").text == (
        f'SELECT 1 AS x, as_of.seq FROM {source} AS "as_of" JOIN {source} b ON true'
    )


@pytest.mark.parametrize(
    "call", ["as_of()", "as_of('ORDERS')", "as_of(ORDERS, )", "as_of('ORDERS', 1, 2)", "as_of(1, 2)"]
)
def test_as_of_says_what_it_takes(call: str) -> None:
    with pytest.raises(SqlError, match=r"as_of\(ORDERS, '2026-05-01 12:00:00'\)"):
        rewritten(f"SELECT * FROM {call}")


@pytest.mark.parametrize(
    ("rest", "subject"),
    [
        ("WHERE subject = 'a.b'", "a.b"),
        ("WHERE ORDERS.subject = 'a.b'", "a.b"),
        ("o WHERE seq > 3 AND 'a.b' = o.subject AND seq < 7", "a.b"),
        ("o WHERE (seq > 3 AND (subject = 'a.b' AND seq < 7)) GROUP BY seq", "a.b"),
        ("VERSION AS OF 3 WHERE subject = 'a.b'", "a.b"),
        ("WHERE subject = 'a.b' OR seq = 1", None),
        ("WHERE NOT subject = 'a.b'", None),
        ("WHERE subject LIKE 'a.b'", None),
        ("WHERE order_.subject = 'a.b'", None),
        ("WHERE json->>'subject' = 'a.b'", None),
        ("o WHERE x.subject = 'a.b'", None),
        ("TABLESAMPLE 10% WHERE subject = 'a.b'", None),
        ("a JOIN ORDERS b ON true WHERE subject = 'a.b'", None),
        (", ORDERS b WHERE b.subject = 'a.b'", None),
    ],
)
def test_the_only_subject_that_can_be_wanted(rest: str, subject: str | None) -> None:
    assert one(f"SELECT seq FROM ORDERS {rest}").mentions()[0].subject == subject


def test_mentions_have_the_place_of_the_name_in_the_whole_text() -> None:
    text = f"SELECT 'é';\nSELECT 2 FROM {ORDERS}, ORDERS VERSION AS OF 3; EXPLAIN FROM kv.é; DESCRIBE HISTORY LAST"
    places = [mention.place for statement in parse(text, PARSER) for mention in statement.mentions()]
    assert places == [text.index(each) for each in ("`streams", "ORDERS VERSION", "é; DESC", "LAST")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("SELECT * FRM x y", "x y"),
        (f"SELECT seq\nFROM {ORDERS} VERSION AS OF 3\nWHERE é ) 3", ") 3"),
        ("SELECT 1; SELECT 2 blah blah", "blah"),
        ("SELECT 'abc", "'abc"),
        ('SELECT 1; SELECT "abc', '"abc'),
        ("SELECT 1; SELECT $$abc", "$$abc"),
        ("SELECT 1 /* a */ /* b", "/* b"),
        ("DROP TABLE x", "DROP"),
        ("SELECT 1;\n  INSERT INTO x VALUES (1)", "INSERT"),
        ("frobnicate", "frobnicate"),
        ("FROM ORDERS VERSION AS OF ;", "ORDERS"),
        ("SELECT as_of(a, (1)", "(a"),
        ("SELECT 1 UNION ALL", "L"),
        ("EXPLAIN DROP TABLE x", "DROP"),
    ],
)
def test_bad_sql_shows_the_place(text: str, place: str) -> None:
    with pytest.raises(BadSql) as caught:
        parse(text, PARSER)
    assert caught.value.offset == text.rindex(place)
    shown, mark = str(caught.value).splitlines()[-2:]
    assert shown[mark.index("^") :].startswith(place[0])


@pytest.mark.parametrize(
    "begin", ["SELECT 1; SELECT 'x", 'SELECT "x', "SELECT `x", "SELECT /* ", "SELECT $x$", "SELECT E'"]
)
def test_the_time_for_an_open_quote_is_linear(begin: str) -> None:
    def parsed(words: int) -> None:
        with pytest.raises(BadSql, match="not closed"):
            parse(begin + " a\\\\" * words, PARSER)

    assert growth(parsed, 1000, times=4, attempts=4) < 8


def test_a_query_that_is_nested_deeply_is_parsed_or_refused() -> None:
    assert len(parse("SELECT " + "(" * 5000 + "1" + ")" * 5000, PARSER)) == 1
    for text in ("EXPLAIN " * 2000 + "SELECT 1", "SELECT " + "f(" * 5000 + "1" + ")" * 5000, "(" * 5000):
        with pytest.raises(SqlError):
            parse(text, PARSER)


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; \n", ["SELECT 1"], ""),
        ("SELECT 1;; SELECT 2; SELECT", ["SELECT 1", " SELECT 2"], " SELECT"),
        ("SELECT ';'; x", ["SELECT ';'"], " x"),
        ("SELECT 'it''s;'; x", ["SELECT 'it''s;'"], " x"),
        ("SELECT 'a\\'; x", ["SELECT 'a\\'"], " x"),
        ("SELECT E'a\\';'; x", ["SELECT E'a\\';'"], " x"),
        ("SELECT $$;$$; $a$ ; $b$ ;", ["SELECT $$;$$"], " $a$ ; $b$ ;"),
        ("SELECT 1 -- ;\n;", ["SELECT 1 -- ;\n"], ""),
        ("SELECT /* ; /* */ ; */ 1;", ["SELECT /* ; /* */ ; */ 1"], ""),
        ("SELECT 1; SELECT 'a; b", ["SELECT 1"], " SELECT 'a; b"),
        ("SELECT 1; -- the end", ["SELECT 1"], ""),
    ],
)
def test_split_minds_quotes_and_comments(text: str, statements: list[str], rest: str) -> None:
    done, left = split(text)
    assert ([part for part, _ in done], left) == (statements, rest)
    assert all(text[offset:].startswith(part) for part, offset in done)


def test_spark_has_other_quotes() -> None:
    text = "SELECT 'it\\'s;', \"a;\" /* ; */; SELECT r'\\'; x"
    assert split(text, "spark") == (
        [("SELECT 'it\\'s;', \"a;\" /* ; */", 0), (" SELECT r'\\'", text.index(" SELECT r"))],
        " x",
    )


def test_tokens_begin_where_duckdb_says() -> None:
    pieces = "SELECT|'a''b'|\"c\"\"d\"|E'\\''|$$x'y$$|$t$ $$ $t$|1.5e-3|a1_b|-- c'\n|/* '/*\"*/ */|+|::|(|)|,|é|.|[|->>"
    seeded = random.Random(34)
    for _ in range(300):
        text = " ".join(seeded.choices(pieces.split("|"), k=8))
        own = {start for start, _ in duckdb.tokenize(text) if text.encode()[start : start + 1] not in b"+:(),.[-/"}
        ours = [token.start for token in tokens(text) if token.kind != "sign"]
        assert {len(text[:at].encode()) for at in ours} == own, text
