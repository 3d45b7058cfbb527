"""Tests of masked fields: what a user without a role gets in their place, and that no query leads around them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.errors import BadPolicy, LakeError
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import masks, policy
from lakestream.lake.table.masks import Mask, Masks
from lakestream_spark.write.table import table_properties
from lakestream_sql.connection import add_functions
from lakestream_sql.explained import ForbiddenQuery
from lakestream_sql.masking import OWN_FUNCTIONS, Masking, NoMaskKey
from lakestream_sql.session import Session
from lakestream_sql.visible import Viewer
from tests.sql_escapes import COLUMNS

pytestmark = pytest.mark.unit

MASK = '{"$.card": "hash", "email": "null", "ssn": "last4", "$.address.street": "null"}'
CLEAR = '["alice", "tag:support"]'
CARD, EMAIL, SSN, STREET = "4111111111111111", "SECRET@example.com", "SECRET-SSN-6789", "SECRET Road 1"
ROWS = [
    {"n": 1, "card": CARD, "email": EMAIL, "ssn": SSN, "address": {"street": STREET, "zip": "1"}},
    {"n": 2, "card": CARD, "email": None, "ssn": "SECRET6", "address": None, "Card": "SECRET-C"},
]
HIDDEN = ("SECRET", CARD)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with a stream whose payloads have typed columns, a table of its misfits, and a bucket."""
    root = tmp_path_factory.mktemp("masked") / "lake"
    marked = {"lakestream.mask": MASK, "lakestream.mask_clear": CLEAR, "lakestream.uid": "U", "lakestream.stream": "P"}
    marked["lakestream.json_schema"] = "n BIGINT, card STRING, email STRING"
    payloads = [json.dumps(row).encode() for row in ROWS]
    own: dict[str, Any] = {
        "seq": pa.array([1, 2], pa.int64()),
        "subject": ["p.a", "p.b"],
        "time": pa.array([1, 2], pa.timestamp("us", "UTC")),
        "time_ns": pa.array([1000, 2000], pa.int64()),
        "data": pa.array(payloads, pa.binary()),
    }
    address = pa.array([row["address"] for row in ROWS])
    typed = {name: [row[name] for row in ROWS] for name in ("card", "email", "ssn")} | {"address": address}
    typed["schema"] = ["p@1", "p@1"]
    typed["by_field1"] = typed["card"]

    def write(name: str, columns: dict[str, Any], properties: dict[str, str] | None = None) -> None:
        table = root / "streams" / name
        deltalake.write_deltalake(table, pa.table(columns))
        commit = table / "_delta_log" / f"{0:020}.json"  # deltalake takes Delta's own properties alone
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"] = properties or {}
        commit.write_text("\n".join(map(json.dumps, actions)))

    write("P", own | typed, marked)
    write("P_misfits", own | {"reason": ["SECRET is no number"] * 2})
    write(
        "J",
        own | {"headers": pa.array([{}, {}], pa.map_(pa.string(), pa.string()))},
        marked | {"lakestream.stream": "J"},
    )
    bucket = (
        own
        | typed
        | {"subject": ["$KV.conf.a", "$KV.conf.b"], "headers": pa.nulls(2, pa.map_(pa.string(), pa.list_(pa.string())))}
    )
    write("KV_conf", bucket, marked)
    return root


@pytest.fixture(scope="module")
def session(lake: Path) -> Iterator[Session]:
    with Session(lake, account="$G") as session:
        session.viewer = Viewer(roles=("bob", "tag:sales"), mask_key="k")
        yield session


def rows(session: Session, query: str) -> list[dict[str, Any]]:
    found = session.query(query)
    return [dict(zip(found.columns, row, strict=True)) for row in found]


def test_fields_are_masked_in_payloads_and_columns(session: Session) -> None:
    first, second = rows(session, "SELECT *, json->>'card' AS j FROM P ORDER BY seq")
    assert first["by_field1"] is None
    hashed = first["card"]
    assert len(hashed) == 32
    assert second["card"] == hashed == first["j"]
    assert (first["email"], first["ssn"], second["ssn"]) == (None, "****6789", "****")
    assert (first["address"], second["address"]) == ({"street": None, "zip": "1"}, None)
    assert json.loads(first["data"]) == {
        "n": 1,
        "card": hashed,
        "email": None,
        "ssn": "****6789",
        "address": {"street": None, "zip": "1"},
    }


NESTED = '{"$.a.s": "null", "$.a.l.n": "last4", "$.a.l.h": "hash", "$.l.x": "null", "$.m.k": "null", "$.t.u": "null"}'


def test_a_field_inside_a_column_is_masked_there() -> None:
    """As in the payload: in structs, in lists of them, in lists of lists, whatever the fields are called."""
    import duckdb

    masking = Masking(masks.parse(NESTED, None), "A/S", "k")
    columns = {
        "A": "STRUCT(s INTEGER, l STRUCT(n VARCHAR, h VARCHAR, o BIGINT)[], d STRUCT(s VARCHAR))",
        "l": 'STRUCT(x DOUBLE, "it\'s" VARCHAR)[][]',
        "m": "MAP(VARCHAR, VARCHAR)",
        "t": "VARCHAR",
    }
    inner = {"s": 1, "l": [{"n": "SECRET-6789", "h": "SECRET", "o": 1}, None, {"n": None, "h": None, "o": 2}]}
    values: list[dict[str, Any]] = [
        {"A": inner | {"d": {"s": "stays"}}, "l": [[{"x": 1.5, "it's": "stays"}], []], "m": {"k": "SECRET"}, "t": "S"},
        {"A": {"s": 2, "l": None, "d": None}, "l": None, "m": None, "t": None},
        {"A": None, "l": [], "m": {}, "t": None},
    ]
    connection = duckdb.connect()
    add_functions(connection, masking.functions())
    connection.execute(f"CREATE TABLE rows ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", [list(row.values()) for row in values])
    found = connection.execute(masking.select("FROM rows", columns)).fetchall()
    wanted = [json.loads(masking._payload(json.dumps(row).encode()) or b"") for row in values]
    assert [row[:2] for row in found] == [(row["A"], row["l"]) for row in wanted]
    assert {row[2:] for row in found} == {(None, None)}  # a map has one type for all its fields, and a text none


@pytest.mark.parametrize("roles", [("alice",), ("bob", "tag:support")])
def test_a_role_sees_them(lake: Path, roles: tuple[str, ...]) -> None:
    with Session(lake, account="$G") as session:
        session.viewer = Viewer(roles=roles)
        assert [row["email"] for row in rows(session, "FROM P ORDER BY seq")] == [EMAIL, None]
        assert rows(session, "EXPLAIN FROM P")


def test_the_streams_that_another_engine_may_not_read_are_named(session: Session) -> None:
    assert session.masked(["P", "NONE", "P_misfits"], ["bob"]) == ["P", "P_misfits"]
    assert session.masked(["P", "NONE", "P_misfits"], ["alice"]) == []


def test_hashes_are_those_of_a_key_and_a_stream() -> None:
    fields = Masks((Mask(("a",), "hash"),))
    found = {Masking(fields, stream, key)._masked("hash", "x") for stream in ("A/S", "A/T") for key in ("k", "l")}
    assert len(found) == 4
    with pytest.raises(NoMaskKey, match="mask_key"):
        Masking(fields, "A/S", "")
    Masking(Masks((Mask(("a",), "null"),)), "A/S", "")


@pytest.mark.parametrize("query", COLUMNS)
def test_no_query_shows_a_masked_field(session: Session, query: str) -> None:
    try:
        found = repr(rows(session, query))
    except LakeError as error:
        found = str(error).partition("\n")[0]
    assert not any(each in found for each in HIDDEN), found


@pytest.mark.parametrize("query", ["EXPLAIN FROM P", "SELECT stats(email) FROM P"])
def test_what_tells_of_fields_is_refused(session: Session, query: str) -> None:
    with pytest.raises(ForbiddenQuery):
        rows(session, query)


def test_the_functions_of_masks_are_not_for_queries(session: Session) -> None:
    """Else whoever has a list of possible values could find one that is hashed."""
    rows(session, "FROM P")
    known = {row["function"] for row in rows(session, "SHOW FUNCTIONS")}
    name = next(each for each in known if each.startswith(OWN_FUNCTIONS) and each.endswith("_hash"))
    for query in (f"SELECT {name}('x')", f"SELECT list_transform(['x'], lambda x: {name.upper()}(x))"):
        with pytest.raises(ForbiddenQuery, match="not for queries"):
            rows(session, query)


def test_a_payload_that_is_no_object_is_not_shown() -> None:
    masking = Masking(Masks((Mask(("a",), "null"),)), "A/S", "")
    for payload in (b"SECRET", b'"SECRET"', b'["SECRET"]', b'{"a": 1} SECRET', b"\xff", b"", b"[" * 100_000):
        assert masking._payload(payload) is None
    assert masking._payload('{"a": "SECRET", "b": [{"a": 1}], "a": "SECRET"}'.encode("utf-16")) == (
        b'{"a": null, "b": [{"a": 1}]}'
    )


JSON = st.recursive(
    st.text(max_size=3) | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "A", "c"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "A", "c"]), JSON, max_size=4))
def test_what_is_not_masked_stays(payload: dict[str, Any]) -> None:
    masking = Masking(Masks((Mask(("a",), "null"), Mask(("b", "c"), "null"))), "A/S", "")

    def inner(value: Any) -> Any:
        if isinstance(value, list):
            return [inner(each) for each in value]
        return (
            {name: None if name == "c" else each for name, each in value.items()} if isinstance(value, dict) else value
        )

    wanted = {name: None if name in "aA" else inner(value) if name == "b" else value for name, value in payload.items()}
    assert json.loads(masking._payload(json.dumps(payload).encode()) or b"") == wanted


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"lakestream.mask": "x"}, "object of fields"),
        ({"lakestream.mask": '{"a": "md5"}'}, "hash, null or last4"),
        ({"lakestream.mask": "{}"}, "1 to 64 fields"),
        ({"lakestream.mask": '{"$": "null"}'}, "not a field"),
        ({"lakestream.mask": '{"a[0]": "null"}'}, "not a field"),
        ({"lakestream.mask": '{"$..a": "null"}'}, "not a field"),
        ({"lakestream.mask_clear": "[]"}, "nothing to see clear"),
        ({"lakestream.mask": MASK, "lakestream.mask_clear": "alice"}, "a list is expected"),
        ({"lakestream.mask": MASK, "lakestream.mask_clear": '[""]'}, "names are expected"),
    ],
)
def test_wrong_masks_are_named(metadata: dict[str, str], reason: str) -> None:
    with pytest.raises(BadPolicy, match=reason):
        policy.parse(metadata)


def test_tables_beside_a_stream_have_its_masks_whatever_their_names_are(lake: Path) -> None:
    """Their names end with further underscores if another table has the plain one."""
    found = {
        end: masks.of_table(open_storage(str(lake)), f"{lake}/streams/P{end}").fields
        for end in ("", "_misfits", "_latest", "_latest_", "_misfits__", "_other")
    }
    assert [end for end, fields in found.items() if not fields] == ["_other"]


def test_masks_are_properties_of_the_table() -> None:
    metadata = {"lakestream.mask": MASK, "lakestream.mask_clear": CLEAR}
    assert table_properties(policy.parse(metadata)) == metadata
    found = masks.parse(MASK, CLEAR)
    assert found.fields[-1] == Mask(("address", "street"), "null")
    assert (found.hide_from(["tag:support"]), found.hide_from([])) == (False, True)
