"""Tests of statements that only speak to a server of Postgres, and of what is changed in a query."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream_postgres import statements
from lakestream_postgres.errors import PgError
from lakestream_postgres.statements import Statement, read, split, substituted

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        (" ; -- nothing\n;", [""]),
        ("SELECT 1; SELECT 2;", ["SELECT 1", " SELECT 2"]),
        ("SELECT ';', \";\", $$;$$, $a$;$a$, E'\\';', `;` -- ;\n/* ; */;SELECT 2", None),
    ],
)
def test_a_text_is_split_at_its_ends(text: str, parts: list[str] | None) -> None:
    found = split(text)
    assert [part for part, _ in found] == parts if parts is not None else len(found) == 2
    assert all(text.startswith(part, place) for part, place in found if part)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("begin", Statement("begin", tag="BEGIN")),
        ("START TRANSACTION READ ONLY", Statement("begin", tag="BEGIN")),
        ("END", Statement("end", tag="COMMIT")),
        ("ROLLBACK TO SAVEPOINT a", Statement("savepoint", tag="ROLLBACK")),
        ("DISCARD ALL", Statement("nothing", tag="DISCARD ALL", name="all")),
        ("SET application_name TO 'a b'", Statement("set", tag="SET", name="application_name", value="a b")),
        ("SET SESSION DateStyle = ISO, MDY", Statement("set", tag="SET", name="datestyle", value="iso,mdy")),
        ("SET TIME ZONE 'UTC'", Statement("set", tag="SET", name="timezone", value="UTC")),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", Statement("nothing", tag="SET")),
        ("SET my.name = 1", Statement("set", tag="SET", name="my.name", value="1")),
        ("RESET ALL", Statement("reset", tag="RESET", name="all")),
        ("SHOW TRANSACTION ISOLATION LEVEL", Statement("show", tag="SHOW", name="transaction_isolation")),
        ("SHOW TABLES", Statement("query", "SHOW TABLES", place=0)),
        ("DECLARE c NO SCROLL CURSOR FOR SELECT 1", Statement("declare", "SELECT 1", "DECLARE CURSOR", "c")),
        ("FETCH FORWARD 5 FROM c", Statement("fetch", tag="FETCH", name="c", count=5)),
        ("FETCH c", Statement("fetch", tag="FETCH", name="c", count=1)),
        ("FETCH ALL IN c", Statement("fetch", tag="FETCH", name="c")),
        ('COPY (SELECT 1) TO STDOUT (FORMAT csv, DELIMITER ";")', None),
        ("COPY public.a(b, c) TO STDOUT WITH CSV HEADER", None),
    ],
)
def test_statements_have_kinds(text: str, expected: Statement | None) -> None:
    found = read(text)
    if expected is not None:
        assert found == expected
        return
    assert (found.kind, found.options["format"]) == ("copy", "csv")
    assert found.text in ("SELECT 1", "SELECT b, c FROM public.a")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("INSERT INTO a VALUES (1)", "25006"),
        ("SET TRANSACTION READ WRITE", "25006"),
        ("COPY", "42501"),
        ("COPY a FROM STDIN", "42501"),
        ("COPY (SELECT 1) TO '/tmp/x'", "42501"),
        ("COPY (SELECT 1) TO PROGRAM 'x'", "42501"),
        ("COPY a TO STDOUT (FREEZE)", "0A000"),
        ("FETCH BACKWARD 1 FROM c", "0A000"),
        ("DECLARE c SCROLL CURSOR FOR SELECT 1", "0A000"),
    ],
)
def test_statements_that_do_more_than_read_are_refused(text: str, code: str) -> None:
    with pytest.raises(PgError) as refused:
        read(text)
    assert refused.value.code == code


def test_only_parameters_and_the_schema_public_are_replaced() -> None:
    text = (
        'SELECT \'$1\', public.a."b", "public" . "C", x.public, public FROM public.a -- $1\nWHERE $2 = $$$1$$ AND `$1`'
    )
    found = substituted(text, "<{}>".format)
    assert found.text == (
        'SELECT \'$1\',        a."b",            "C", x.public, public FROM        a -- $1\nWHERE <2> = $$$1$$ AND `$1`'
    )
    assert statements.parameters(text) == 2
    assert found.place(0) is None


@given(st.text(alphabet="ae'\"$12 ().public", max_size=40), st.integers(0, 9))
def test_a_place_in_a_query_as_it_is_asked_is_one_in_what_was_sent(text: str, place: int) -> None:
    found = substituted(text, "CAST(${} AS BIGINT)".format, place)
    sent = "." * place + text
    assert found.place(len(found.text)) == len(sent)
    for offset, letter in enumerate(found.text):
        at = found.place(offset)
        assert at is not None
        assert letter == sent[at] or sent[at] == "$" or (letter == " " and sent.startswith("public", at))


@given(st.text(alphabet="aE'\"`$1;-/*\n()., \\:public", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for part, place in split(text):
        assert substituted(part, "${}".format).text == part or "public" in part
        try:
            statements.parameters(read(part, place).text)
        except PgError:
            continue
