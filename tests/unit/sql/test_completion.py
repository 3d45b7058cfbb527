"""Tests of completion at the prompt, on a session of each kind of answers."""

from __future__ import annotations

from collections.abc import Iterator

import deltalake
import pyarrow as pa
import pytest

from lakestream_sql.completion import Completer
from lakestream_sql.session import Session

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    root = tmp_path_factory.mktemp("lake")
    rows = pa.table({"seq": [1], "subject": ["a"], "data": pa.array([b"1"], pa.binary())})
    for name in ("streams/ORDERS", "streams/my-orders", "accounts/ACME/streams/OTHER", "streams/KV_conf"):
        deltalake.write_deltalake(root / name, rows)
    with Session(root) as session:
        yield session


@pytest.mark.parametrize(
    ("before", "word", "found"),
    [
        ("SELECT * FROM ", "OR", ["ORDERS"]),
        ("SELECT * FROM ", "or", ["ORDERS"]),
        ("SELECT * FROM ", '"my', ['"my-orders"']),
        ("SELECT 1;\nDESCRIBE ", "acc", ["accounts.ACME.OTHER"]),
        ("FROM a JOIN ", "kv", ["KV_conf", "kv.conf", "kv_history.conf"]),
        ("FROM ORDERS SELECT ", "su", ["subject"]),
        ("FROM orders WHERE ", "js", ["json"]),
        ('FROM "my-orders" WHERE ', "se", ["seq", "SELECT"]),
        ("SELECT ", "betw", ["BETWEEN"]),
        ("FROM nothing SELECT ", "seq", []),
        ("SELECT * FROM ORDERS o WHERE ", "o.s", ["o.seq", "o.subject"]),
        ("SELECT * FROM ORDERS AS o WHERE ", "O.js", ["O.json"]),
        ('SELECT * FROM "my-orders" m, ORDERS WHERE ', "m.da", ["m.data"]),
        ("SELECT * FROM ORDERS WHERE ", "ORDERS.su", ["ORDERS.subject"]),
        ("SELECT * FROM delta.`streams/ORDERS` o WHERE ", "o.da", ["o.data"]),
        ("SELECT * FROM ORDERS o WHERE ", "x.s", []),
        ("", ".t", [".tables"]),
        ("SELECT ", ".t", []),
    ],
)
def test_candidates(session: Session, before: str, word: str, found: list[str]) -> None:
    seen = Completer(session.run, "duckdb", lambda: (before, "")).candidates(word, before)
    assert [each for each in seen if not each.endswith("(")] == found


def test_functions_come_with_their_parenthesis(session: Session) -> None:
    completer = Completer(session.run, "duckdb", lambda: ("", ""))
    assert completer.candidates("as_o", "SELECT * FROM ORDERS, ") == ["as_of("]
    assert {"sum(", "text("} <= {*completer.candidates("", "SELECT ")}


def test_tables_named_behind_the_word_count(session: Session) -> None:
    completer = Completer(session.run, "duckdb", lambda: ("SELECT ", " FROM ORDERS o"))
    assert [completer.complete("o.se", state) for state in range(2)] == ["o.seq", None]
    assert completer.candidates("subj", "SELECT ", " FROM ORDERS") == ["subject"]


def test_table_functions_stand_behind_from(session: Session) -> None:
    completer = Completer(session.run, "duckdb", lambda: ("", ""))
    assert completer.candidates("las", "SELECT * FROM ") == ["last("]
    assert completer.candidates("as_", "SELECT * FROM ") == ["as_of("]
    assert completer.candidates("OR", "SELECT * FROM last(")[0] == "ORDERS"


def test_readline_gets_one_after_the_other(session: Session) -> None:
    completer = Completer(session.run, "duckdb", lambda: ("FROM ", ""))
    assert [completer.complete("kv", state) for state in range(4)] == ["KV_conf", "kv.conf", "kv_history.conf", None]


def test_sparks_names_are_those_that_it_lists() -> None:
    answers = {"SHOW TABLES": ["delta.`streams/ORDERS`"], "SHOW FUNCTIONS": ["explode"]}
    answers["DESCRIBE delta.`streams/ORDERS`"] = ["seq"]
    completer = Completer(lambda text: [[(name,) for name in answers[text]]], "spark", lambda: ("", ""))
    assert completer.candidates("del", "SELECT * FROM ") == ["delta.`streams/ORDERS`"]
    assert completer.candidates("exp", "SELECT ") == ["explode(", "EXPLAIN"]
