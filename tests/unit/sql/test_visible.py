"""Tests of rows by permission: no query tells of rows whose subjects its user may not subscribe to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.errors import LakeError
from lakestream.protocol.client import Sight
from lakestream.protocol.subjects import matches
from lakestream_sql.explained import ForbiddenQuery
from lakestream_sql.session import Session
from lakestream_sql.visible import Viewer, visible, within
from tests.sql_escapes import ROWS, TELLING

pytestmark = pytest.mark.unit

SIGHTS = (Sight(("*.eu.*", "_INBOX.>"), ("*.*.secret",)),)
MESSAGES = [
    (1, "orders.eu.1", b"1"),
    (2, "orders.eu.2", b'{"a": 2}'),
    (3, "orders.us.3", b"SECRET-3"),
    (4, "orders.us.4", b"SECRET-4"),
    (5, "orders.eu.1", b"5"),
    (6, "orders.eu.secret", b"SECRET-6"),
    (7, "zebra", b'{"secret": "SECRET-7"}'),
]


def write(root: Path, messages: list[tuple[int, str, bytes]]) -> Path:
    """Write a lake whose stream ORDERS has these messages, in two files."""
    for some in ([each for each in messages if each[0] <= 3], [each for each in messages if each[0] > 3]):
        columns = {
            "seq": pa.array([seq for seq, _, _ in some], pa.int64()),
            "subject": [subject for _, subject, _ in some],
            "time": pa.array([seq * 1_000_000 for seq, _, _ in some], pa.timestamp("us", "UTC")),
            "data": pa.array([data for _, _, data in some], pa.binary()),
        }
        deltalake.write_deltalake(root / "streams/ORDERS", pa.table(columns), mode="append")
    return root


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a session of a user that sees some rows."""
    with Session(write(tmp_path_factory.mktemp("all"), MESSAGES), account="$G") as session:
        session.viewer = Viewer(SIGHTS)
        yield session


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a session over a stream that has these rows alone."""
    shown = [each for each in MESSAGES if each[1].startswith("orders.eu.") and each[0] != 6]
    with Session(write(tmp_path_factory.mktemp("some"), shown), account="$G") as session:
        yield session


def answer(session: Session, query: str) -> Any:
    """Return columns, types and rows of an answer, or the text of the error."""
    try:
        found = session.query(query)
        return found.columns, found.types, sorted(map(repr, found))
    except LakeError as error:
        return type(error), str(error)


@pytest.mark.parametrize("query", ROWS)
def test_a_query_has_the_answer_that_it_has_without_the_other_rows(
    restricted: Session, alone: Session, query: str
) -> None:
    found = answer(restricted, query)
    assert found == answer(alone, query)
    assert "SECRET" in query or "SECRET" not in repr(found)


@pytest.mark.parametrize("query", TELLING)
def test_what_tells_of_other_rows_is_refused(restricted: Session, alone: Session, query: str) -> None:
    assert answer(restricted, query)[0] is ForbiddenQuery
    assert answer(alone, query)[0] is not ForbiddenQuery


def test_the_state_of_the_stream_is_not_told(restricted: Session) -> None:
    assert list(restricted.query("SHOW TABLES")) == [("delta.`streams/ORDERS`", None, None, None)]
    assert {row[3:] for row in restricted.query("DESCRIBE HISTORY ORDERS")} == {(None, None)}


TOKENS = st.sampled_from(["a", "b", "ab", "-", "$K"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
FILTERS = st.builds(
    lambda tokens, tail: ".".join([*tokens, *tail]) or ">",
    st.lists(TOKENS | st.just("*"), max_size=3),
    st.sampled_from([[], [">"]]),
)
SEEN = st.lists(
    st.builds(Sight, st.none() | st.lists(FILTERS, max_size=3).map(tuple), st.lists(FILTERS, max_size=2).map(tuple)),
    max_size=2,
)


@given(st.lists(SUBJECTS, min_size=1, max_size=20), SEEN)
def test_the_condition_selects_the_subjects_that_match(subjects: list[str], sights: list[Sight]) -> None:
    import duckdb

    def match(filters: tuple[str, ...], subject: str) -> bool:
        return any(matches(each.encode(), subject.encode()) for each in filters)

    rows = pa.table({"subject": subjects, "seq": range(len(subjects))})
    connection = duckdb.connect()
    connection.register("rows", rows)
    found = connection.execute(visible("FROM rows", sights)).fetchall()
    assert connection.execute(visible("FROM rows", within(sights, min(subjects), max(subjects)))).fetchall() == found
    assert connection.execute(visible("FROM rows", within(sights, "", max(subjects)[:2]))).fetchall() == found
    wanted = [
        (subject, seq)
        for seq, subject in enumerate(subjects)
        if any((each.allow is None or match(each.allow, subject)) and not match(each.deny, subject) for each in sights)
    ]
    assert sorted(found) == sorted(wanted)


def test_filters_that_no_subject_of_the_stream_matches_are_left_out() -> None:
    """One range leaves out files and row groups by their statistics, several with OR leave out none."""
    sees = [Sight(("orders.eu.>", "_INBOX.>", "orders.*.1", "orders.x.1"), ("x.*", "orders.*.z")), Sight(("_INBOX.>",))]
    assert within(sees, "orders.eu.1", "orders.us.") == [Sight(("orders.eu.>", "orders.*.1"), ("orders.*.z",))]
    assert within([Sight(None, ("x.>",))], "a", "b") == [Sight()]
    assert within(sees[1:], "orders.eu.1", "orders.us.4") == []
    assert visible("FROM rows", []) == "SELECT * FROM (FROM rows) WHERE false OFFSET 0"


def test_no_expression_of_a_user_comes_below_the_barrier() -> None:
    """In a table by subject the subject is that of the file, and conditions on payloads go to the files alone."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("CREATE TABLE r AS FROM (VALUES (1, '7'), (2, 'SECRET')) t(file, text)")
    connection.execute("CREATE TABLE f AS FROM (VALUES (1, 'orders.eu.1'), (2, 'orders.us.1')) t(file, subject)")
    rows = visible("SELECT f.subject, r.text FROM r JOIN f ON r.file = f.file", SIGHTS)
    ((_, plan),) = connection.execute(f"EXPLAIN SELECT subject FROM ({rows}) WHERE text > 'SEC'").fetchall()
    assert plan.index("SEC") < plan.index("STREAMING_LIMIT") < plan.index("SEQ_SCAN") < plan.index(".eu")
    assert connection.execute(f"SELECT text::INT FROM ({rows})").fetchall() == [(7,)]
