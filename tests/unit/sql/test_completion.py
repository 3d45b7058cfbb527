"""Tests of completion at the prompt, on a session of each kind of answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pytest

import lakestream_console
from lakestream_sql.buckets import written
from lakestream_sql.completion import Completer
from lakestream_sql.parser import SqlParser
from lakestream_sql.session import Session
from tests.clients.npm import NODE

pytestmark = pytest.mark.unit

PARSER = SqlParser(duckdb.connect())


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    root = tmp_path_factory.mktemp("lake")
    rows = pa.table({"seq": [1], "subject": ["a"], "data": pa.array([b"1"], pa.binary())})
    for name in (
        *(
            "streams/ORDERS",
            "streams/my-orders",
            "accounts/ACME/streams/OTHER",
            "streams/KV_conf",
            "streams/OBJ_my-files",
        ),
        *("accounts/ACME/streams/KV_rates", "streams/GROUP"),
    ):
        deltalake.write_deltalake(root / name, rows)
    with Session(root) as session:
        yield session


@pytest.mark.parametrize(
    ("before", "word", "found"),
    [
        ("SELECT * FROM ", "OR", ["ORDERS"]),
        ("SELECT * FROM ", "or", ["ORDERS"]),
        ("SELECT * FROM ", '"my', ['"my-orders"']),
        ("SELECT 1;\nDESCRIBE ", "acc", ["accounts.ACME.KV_rates", "accounts.ACME.OTHER"]),
        ("FROM a JOIN ", "kv.", ["kv.conf", 'kv."ACME/rates"']),
        ("FROM ", "obj", ['obj."my-files"']),
        ("FROM ", "kv_h", ["kv_history.conf", 'kv_history."ACME/rates"']),
        ("FROM ", '"gr', ['"GROUP"']),
        ("FROM ORDERS SELECT ", "su", ["subject", "SUMMARIZE"]),
        ("FROM orders WHERE ", "js", ["json"]),
        ('FROM "my-orders" WHERE ', "se", ["seq", "SELECT"]),
        ("", "summ", ["SUMMARIZE"]),  # not summary(
        ("SELECT 1; ", "se", ["SELECT"]),
        ("SELECT ", "betw", ["BETWEEN"]),
        ("FROM nothing SELECT ", "seq", []),
        ("SELECT * FROM ORDERS o WHERE ", "o.s", ["o.seq", "o.subject"]),
        ("SELECT * FROM ORDERS AS o WHERE ", "O.js", ["O.json"]),
        ('SELECT * FROM "my-orders" m, ORDERS WHERE ', "m.da", ["m.data"]),
        ("SELECT * FROM ORDERS WHERE ", "ORDERS.su", ["ORDERS.subject"]),
        ("SELECT * FROM delta.`streams/ORDERS` o WHERE ", "o.da", ["o.data"]),
        ("SELECT * FROM ORDERS o WHERE ", "x.s", []),
        ("", ".t", [".tables"]),
        ("", "OR", ["ORDER"]),
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
    found = ["KV_conf", "kv.conf", "kv_history.conf", 'kv."ACME/rates"', 'kv_history."ACME/rates"', None]
    assert [completer.complete("kv", state) for state in range(6)] == found


def test_sparks_names_are_those_that_it_lists() -> None:
    answers = {"SHOW TABLES": ["delta.`streams/ORDERS`"], "SHOW FUNCTIONS": ["explode"]}
    answers["DESCRIBE delta.`streams/ORDERS`"] = ["seq"]
    completer = Completer(lambda text: [[(name,) for name in answers[text]]], "spark", lambda: ("", ""))
    assert completer.candidates("del", "SELECT * FROM ") == ["delta.`streams/ORDERS`"]
    assert completer.candidates("exp", "SELECT ") == ["explode(", "EXPLAIN"]


def test_every_name_is_written_as_duckdb_takes_it_at_the_prompt_and_in_the_console() -> None:
    words = [row[0] for row in duckdb.sql("SELECT keyword_name FROM duckdb_keywords()").fetchall()]
    names = [*words, "ORDERS", "my-orders", 'a"b', "é", "3"]
    module = Path(lakestream_console.__file__).parent / "static/js/lib/completion.js"
    script = (
        "globalThis.location = { hash: '', pathname: '/' }; globalThis.document = { querySelector: () => null };"
        f"const {{ written }} = await import({json.dumps(str(module))});"
        f"console.log(JSON.stringify({json.dumps(names)}.map(written)));"
    )
    node = [str(NODE), "--input-type=module", "-e", script]
    by_console = json.loads(subprocess.run(node, capture_output=True, check=True, timeout=60).stdout)
    for shown in ([*map(written, names)], by_console):
        for name, each in zip(names, shown, strict=True):
            tree = PARSER.tree(f"SELECT * FROM {each} AS t")
            assert tree["node"]["from_table"]["table_name"] == name, each
        plain = ("none", "version", "ORDERS")
        assert [shown[names.index(each)] for each in (*plain, "order")] == [*plain, '"order"']
