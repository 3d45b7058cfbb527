"""Tests of SQL on lakes in object stores, with tables that deltalake writes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakestream.lake.storage.lake import open_storage
from lakestream_sql.connection import connect
from lakestream_sql.explained import ForbiddenQuery
from lakestream_sql.file_views import FileViews
from lakestream_sql.session import Session, SqlError
from tests.store_server import StoreServer

CLOUDS = ["s3_server", "gcs_server", pytest.param("azure_server", marks=pytest.mark.heavy)]


@pytest.fixture(params=CLOUDS)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    found: StoreServer = request.getfixturevalue(request.param)
    found.enter(monkeypatch)
    return found


@pytest.fixture
def lake(server: StoreServer, tmp_path: Path) -> str:
    """Return a lake with streams ORDERS of two accounts, of two versions each."""
    root = server.url(tmp_path.name)
    for base in ("", "accounts/OTHER/"):
        table = f"{root}/{base}streams/ORDERS"
        options = open_storage(root).delta_options()
        for version in range(2):
            rows = pa.table({"seq": range(version * 100, version * 100 + 100), "bucket": [version] * 100})
            write_deltalake(table, rows, partition_by=["bucket"], mode="append", storage_options=options)
    return root


@pytest.mark.parametrize("account", [None, "$G"], ids=["free", "confined"])
def test_tables_are_read_at_any_version(lake: str, account: str | None) -> None:
    with Session(lake, account=account) as session:
        assert "streams/ORDERS" in session.tables()
        count = "SELECT count(*), min(seq), max(seq), sum(bucket) FROM delta.`streams/ORDERS`"
        assert session.query(count).fetchall() == [(200, 0, 199, 100)]
        assert session.query(f"{count} WHERE seq >= 150 AND bucket = 1").fetchall() == [(50, 150, 199, 50)]
        assert session.query(f"{count} VERSION AS OF 0").fetchall() == [(100, 0, 99, 0)]
        delta = DeltaTable(f"{lake}/streams/ORDERS", storage_options=open_storage(lake).delta_options())
        delta.delete("seq < 10")
        assert session.query(count).fetchall() == [(190, 10, 199, 100)]
        history = session.query("DESCRIBE HISTORY delta.`streams/ORDERS`").fetchall()
        assert [row[2] for row in history] == ["DELETE", "WRITE", "WRITE"]


def test_a_confined_session_reads_nothing_else_and_knows_no_credentials(lake: str, server: StoreServer) -> None:
    inside = f"{lake}/accounts/OTHER/streams/ORDERS".replace("://", "/", 1)
    with Session(lake, account="$G") as session:
        session.query("SELECT * FROM delta.`streams/ORDERS`").fetchall()
        for text in (
            f"SELECT * FROM delta.`{lake}/accounts/OTHER/streams/ORDERS`",
            f"SELECT * FROM read_parquet('lake://{inside}/*.parquet')",
            "SELECT * FROM read_text('lake://anything')",
            "SELECT * FROM duckdb_secrets()",
            "SELECT * FROM duckdb_settings()",
            f"SELECT * FROM delta_scan('{lake}/streams/ORDERS')",
        ):
            with pytest.raises((ForbiddenQuery, SqlError)):
                session.query(text).fetchall()
        with pytest.raises(SqlError):
            session.query("SELECT getenv('PATH')").fetchall()
        # DuckDB itself, without the checks before it.
        for text in (
            f"SELECT * FROM read_text('lake://{inside}/_delta_log/00000000000000000000.json')",
            f"COPY (SELECT 1) TO 'lake://{lake.replace('://', '/', 1)}/streams/x.csv'",
            "SELECT * FROM read_text('/etc/passwd')",
            "SET enable_external_access = true",
            "SELECT * FROM duckdb_secrets()",
            "LOAD httpfs",
        ):
            with pytest.raises(Exception, match=r"(?i)permission|disabled|locked|cannot|not found"):
                session.engine.connection.execute(text)
        shown = str(session.engine.connection.execute("SELECT * FROM duckdb_settings()").fetchall())
    assert not [secret for secret in server.secrets if secret in shown]


@pytest.mark.parametrize("partitioned", [False, True])
def test_columns_of_all_types_are_read_also_from_files_that_lack_some(tmp_path: Path, partitioned: bool) -> None:
    """Typed columns come with later files, and structs get fields."""
    table = str(tmp_path / "streams" / "ORDERS")
    day, moment = date(2026, 5, 1), datetime(2026, 5, 1, 12, tzinfo=UTC)
    first = pa.table({"seq": [1], "subject": ["a"], "place": [{"zip": "1"}]})
    second = pa.table(
        {
            "seq": [2],
            "subject": ["b"],
            "place": [{"zip": "2", "lines": [{"n": 7}]}],
            "filename": ["f"],
            "price": [1.5],
            "paid": [True],
            "day": [day],
            "at": pa.array([moment], pa.timestamp("us", "UTC")),
            "total": pa.array([Decimal("12.30")], pa.decimal128(10, 2)),
            "big": pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)),
            "tags": [["x", None]],
            "raw": [b"\x00\xff"],
            "labels": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    write_deltalake(table, first, partition_by=["subject"] if partitioned else None)
    write_deltalake(table, second, mode="append", schema_mode="merge")
    connection, files = connect(str(tmp_path), itself=False)
    place = FileViews(str(tmp_path), connection, files).place(table, 1)
    found = connection.execute(
        "SELECT seq, subject, place.zip, place.lines[1].n, filename, price, paid, day, "
        f"\"at\" = '2026-05-01 12:00:00+00', total, big, tags, raw, labels['k'] FROM {place} ORDER BY seq"
    ).fetchall()
    assert found == [
        (1, "a", "1", *[None] * 11),
        (2, "b", "2", 7, "f", 1.5, True, day, True, Decimal("12.30"), Decimal(2**64 - 1), ["x", None], b"\x00\xff", 1),
    ]
    connection.close()
