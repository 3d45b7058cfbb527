"""Tests of a stream's current state in SQL: its table and the segments staged beyond it, as one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from lakestream.lake.staging import staging
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.schema import BOUNDS_METADATA, table_schema
from lakestream.lake.table.state import TableFollower
from lakestream.protocol.instants import rfc3339
from lakestream.schemas.schema import Schema as MessageSchema
from lakestream_client.lake import view as views
from lakestream_client.lake.view import StreamView
from lakestream_sql import uncompacted
from lakestream_sql.catalog import StatementSnapshot
from lakestream_sql.file_views import FileViews
from lakestream_sql.session import Session, SqlError, UnknownStream
from lakestream_sql.statements import parse, rewrite
from lakestream_sql.uncompacted import MANY_REMOVED, FlushServer
from tests.delta_tables import HandmadeTable
from tests.lake.model import T0, StreamModel

pytestmark = pytest.mark.unit

ORDERS = "delta.`streams/ORDERS`"


class Lake:
    """Stream whose segments are staged, and committed when a test says so, without Spark."""

    def __init__(self, base: Path, root: str | None = None) -> None:
        self.root = root or str(base / "lake")
        if root is None:
            Path(self.root).mkdir()
        self.options = open_storage(self.root).delta_options() or None
        self.model = StreamModel(base / "log")
        self.properties: dict[str, str] = {}
        self.partitions = ["subject"]

    def publish(self, count: int) -> None:
        first = self.model.next_seq
        self.model.publish(
            [
                (b"o.%d" % (seq % 3), b"NATS/1.0\r\nN: 1\r\n\r\n" if seq % 2 else b"", b"%d" % seq)
                for seq in range(first, first + count)
            ]
        )

    def stage(self) -> None:
        self.model.stage(self.root)  # type: ignore[arg-type]

    def commit(self) -> None:
        """Commit the staged segments to the table as the compactor does; assert that no table row was removed."""
        view = views.open_view(self.root, "ORDERS", flush=False)
        rows = pa.Table.from_batches(view.tail_batches(), table_schema(view.columns))
        times = rows.column("time_ns").to_pylist()
        progress = TableProgress(uid="UID1", last_index=view.last_index, last_seq=view.last_seq, last_time_ns=times[-1])
        if "token3" in self.partitions:
            tokens = [(subject.split(".") + [None] * 3)[2] for subject in rows.column("subject").to_pylist()]
            rows = rows.append_column("token3", pa.array(tokens, pa.string())) if view.version is None else rows
        if view.version is None:
            DeltaTable.create(
                view.table,
                rows.schema,
                partition_by=self.partitions,
                configuration={"lakestream.uid": "UID1", "lakestream.stream": "ORDERS", **self.properties},
                raise_if_key_not_exists=False,
                storage_options=self.options,
            )
        write_deltalake(
            view.table,
            rows,
            mode="append",
            storage_options=self.options,
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": msgspec.json.encode(progress).decode()},
                app_transactions=[Transaction("lakestream:UID1", view.last_index)],
            ),
        )

    def time(self, seq: int) -> int:
        return T0 + seq * 1_000_003


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def session(lake: Lake) -> Iterator[Session]:
    with Session(lake.root) as session:
        yield session


def seqs(session: Session, source: str = ORDERS, where: str = "") -> list[int]:
    return [seq for (seq,) in session.query(f"SELECT seq FROM {source} {where} ORDER BY seq").fetchall()]


@pytest.mark.parametrize("name", ["ORDERS", ORDERS])
def test_the_history_of_a_stream_without_a_table_is_empty(lake: Lake, name: str) -> None:
    lake.publish(3)
    lake.stage()
    with Session(lake.root) as session:
        found = session.query(f"DESCRIBE HISTORY {name}")
        assert (found.columns[:3], found.fetchall()) == (("version", "timestamp", "operation"), [])
        with pytest.raises(UnknownStream, match=r"Did you mean"):
            session.query("DESCRIBE HISTORY ORDRES")
    lake.commit()
    with Session(lake.root) as session:
        assert [row[0] for row in session.query(f"DESCRIBE HISTORY {name}").fetchall()][-1:] == [0]


def test_a_stream_without_a_table(lake: Lake, session: Session) -> None:
    lake.publish(7)
    lake.stage()
    assert session.tables() == ["streams/ORDERS"]
    assert session.query("SHOW TABLES").fetchall() == [(ORDERS, None, None, 7)]
    found = session.query(f"SELECT seq, subject, time_ns, headers, data FROM {ORDERS} ORDER BY seq").fetchall()
    assert found == [
        (seq, f"o.{seq % 3}", lake.time(seq), {"N": ["1"]} if seq % 2 else None, b"%d" % seq) for seq in range(1, 8)
    ]
    assert seqs(session, f"as_of('ORDERS', {lake.time(3)})") == [1, 2, 3]
    with pytest.raises(UnknownStream, match="ORDERS has no table yet") as without:
        session.query(f"SELECT * FROM {ORDERS} VERSION AS OF 0")
    assert "Did you mean" not in str(without.value), "the name is right"
    with Session(lake.root, committed=True) as committed, pytest.raises(UnknownStream, match="has no table yet"):
        committed.query(f"SELECT * FROM {ORDERS}")


def test_table_and_tail_are_one(lake: Lake, session: Session) -> None:
    lake.publish(5)
    lake.stage()
    lake.commit()
    assert session.query("SHOW TABLES").fetchall() == [(ORDERS, 1, 5, 0)]
    lake.publish(5)
    lake.model.remove([2, 7])
    lake.stage()
    assert seqs(session) == [1, 3, 4, 5, 6, 8, 9, 10]
    assert seqs(session, where="WHERE subject = 'o.1'") == [1, 4, 10]
    assert session.query("SHOW TABLES").fetchall() == [(ORDERS, 1, 5, 4)]
    with Session(lake.root, committed=True) as committed:
        assert seqs(committed) == [1, 2, 3, 4, 5]
        assert committed.query("SHOW TABLES").fetchall() == [(ORDERS, 1, 5, None)]
    columns = session.query(f"SELECT * FROM {ORDERS} LIMIT 0")
    assert (columns.columns, columns.types) == committed_shape(lake)


def committed_shape(lake: Lake) -> tuple[tuple[str, ...], tuple[str, ...]]:
    with Session(lake.root, committed=True) as committed:
        result = committed.query(f"SELECT * FROM {ORDERS} LIMIT 0")
        return result.columns, result.types


def test_the_past_is_the_table_until_it_ends(lake: Lake, session: Session) -> None:
    lake.publish(5)
    lake.stage()
    lake.commit()
    lake.publish(5)
    lake.model.remove([2])
    lake.stage()
    assert seqs(session, f"{ORDERS} VERSION AS OF 1") == [1, 2, 3, 4, 5]
    assert seqs(session, f"{ORDERS} TIMESTAMP AS OF current_timestamp") == [1, 2, 3, 4, 5]
    # as_of knows uncommitted changes from staged segments; 2 is removed by then.
    assert seqs(session, f"as_of('ORDERS', {lake.time(4)})") == [1, 2, 3, 4]
    assert seqs(session, f"as_of('ORDERS', '{rfc3339(lake.time(8) - 1)}')") == [1, 3, 4, 5, 6, 7]
    assert seqs(session, f"as_of('ORDERS', '{rfc3339(lake.time(8))}')") == [1, 3, 4, 5, 6, 7, 8]


def test_what_was_removed_later_is_in_the_past_of_a_quiet_stream(lake: Lake, session: Session) -> None:
    """A later removal is in the past of a stream that got no message after the requested time."""
    lake.publish(5)
    lake.stage()
    lake.commit()
    lake.model.remove([2])
    lake.stage()
    assert seqs(session) == [1, 3, 4, 5]
    assert seqs(session, f"as_of('ORDERS', {lake.time(9)})") == [1, 2, 3, 4, 5]
    assert seqs(session, f"as_of('ORDERS', {lake.time(0)})") == []


def test_as_of_while_the_tail_is_committed(lake: Lake, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments committed between the choice of the version and the opening of the view are not lost."""
    lake.publish(5)
    lake.stage()
    lake.commit()
    lake.publish(5)
    lake.stage()
    real = views.open_view

    def opened(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(uncompacted, "open_view", real)
        lake.commit()
        return real(*arguments, **named)

    monkeypatch.setattr(uncompacted, "open_view", opened)
    assert seqs(session, f"as_of('ORDERS', {lake.time(8)})") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_every_mention_in_a_statement_sees_the_same(
    lake: Lake, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mention in a statement sees the same state, whatever is staged and committed in between."""
    lake.publish(5)
    lake.stage()
    lake.commit()
    lake.publish(3)
    lake.stage()
    real = views.open_view

    def opened(*arguments: Any, **named: Any) -> Any:
        view = real(*arguments, **named)
        lake.publish(3)
        lake.stage()
        return view

    monkeypatch.setattr(uncompacted, "open_view", opened)
    query = f"SELECT (SELECT count(*) FROM {ORDERS}), (SELECT max(seq) FROM {ORDERS}), (SELECT count(*) FROM {ORDERS})"
    assert session.query(query).fetchall() == [(8, 8, 8)]
    joined = f"WITH w AS (SELECT * FROM {ORDERS}) SELECT count(*) FROM w JOIN w x USING (seq)"
    assert session.query(joined).fetchall() == [(11,)]


def test_many_removed_messages(lake: Lake, session: Session) -> None:
    """As of a time, a bucket with many overwritten keys is read."""
    count = 2 * MANY_REMOVED + 10
    lake.publish(count)
    lake.stage()
    lake.commit()
    lake.publish(4)
    lake.model.remove(list(range(2, count, 2)))
    lake.stage()
    left = [*range(1, count, 2), count, *range(count + 1, count + 5)]
    assert seqs(session) == left
    assert seqs(session, where="WHERE seq > 2000") == [seq for seq in left if seq > 2000]


def test_a_tail_beyond_the_limit_says_what_to_do(lake: Lake) -> None:
    lake.publish(5)
    lake.stage()
    with Session(lake.root, tail_bytes=100) as session, pytest.raises(SqlError, match=r"tail_bytes.*--committed"):
        session.query(f"SELECT * FROM {ORDERS}")


def test_no_server_is_said_once(lake: Lake) -> None:
    lake.publish(5)
    lake.stage()
    said: list[str] = []
    with Session(lake.root, server=FlushServer(), notify=said.append) as session:
        assert seqs(session) == seqs(session) == [1, 2, 3, 4, 5]
    [line] = said
    assert line.startswith("messages that are not staged yet are missing: ")
    said.clear()
    nobody = FlushServer("nats://127.0.0.1:1", timeout=2)
    with Session(lake.root, server=nobody, notify=said.append) as session:
        assert seqs(session) == [1, 2, 3, 4, 5]
    assert len(said) == 1
    assert "nats://127.0.0.1:1" in said[0]


def test_a_deleted_stream_has_no_tail(lake: Lake, session: Session) -> None:
    lake.publish(5)
    lake.stage()
    staging.mark_deleted(lake.root, lake.model.identity)
    assert session.tables() == []
    with pytest.raises(UnknownStream):
        session.query(f"SELECT * FROM {ORDERS}")


def test_typed_columns(lake: Lake, session: Session) -> None:
    """A typed view includes staged segments and supports time travel."""
    lake.properties["lakestream.json_schema"] = "id INT, `the name` STRING"
    lake.model.publish(
        [(b"o", b"", b'{"id": 1, "the name": "Zoe"}'), (b"o", b"", b"no json"), (b"o", b"", b'{"id": 3}')]
    )
    lake.stage()
    lake.commit()
    lake.model.publish([(b"o", b"", b'{"id": 4}'), (b"o", b"", b'{"id": "x"}')])
    lake.stage()
    view = "delta.`streams/ORDERS_json`"
    found = session.query(f'SELECT seq, id, "the name" FROM {view} ORDER BY seq')
    assert (found.columns, found.types) == (("seq", "id", "the name"), ("BIGINT", "INTEGER", "VARCHAR"))
    assert found.fetchall() == [(1, 1, "Zoe"), (3, 3, None), (4, 4, None)]
    assert seqs(session, f"{view} VERSION AS OF 1") == [1, 3]
    assert seqs(session, f"as_of('ORDERS_json', {lake.time(4) - 1})") == [1, 3]
    assert seqs(session, "delta.`streams/ORDERS_json_misfits`") == [2, 5]
    with pytest.raises(UnknownStream):
        session.query("SELECT * FROM delta.`streams/OTHER_json`")


def test_a_bucket_with_a_schema_has_typed_values(tmp_path: Path) -> None:
    """Also where a field has the name of a column of the bucket's table."""
    (tmp_path / "lake").mkdir()
    model = StreamModel(tmp_path / "log", "KV_prices", "UIDP")
    model.configure({"lakestream.schema": "prices"})
    fields = {"price": {"type": "number"}, "key": {"type": "string"}, "revision": {"type": "integer"}}
    text = json.dumps({"type": "object", "properties": fields})
    lakes.require(str(tmp_path / "lake"), create=True)
    schemas.write_schema(
        open_storage(str(tmp_path / "lake")), "$G", MessageSchema("prices", 1, "json", text, created_ns=1)
    )
    deletion = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
    model.publish(
        [
            (b"$KV.prices.a", b"", b'{"price": 1, "key": "same", "revision": 9}'),
            (b"$KV.prices.b", b"", b'{"price": 2.5, "key": "same", "revision": 8}'),
            (b"$KV.prices.c", b"", b'{"price": "x"}'),
            (b"$KV.prices.d", b"", b"{}"),
            (b"$KV.prices.d", deletion, b""),
        ]
    )
    model.stage(tmp_path / "lake")
    with Session(str(tmp_path / "lake")) as session:
        found = session.query("SELECT * FROM kv.prices ORDER BY key")
        assert found.columns == ("key", "value", "revision", "created", "schema", "data")
        assert found.types[1] == 'STRUCT(price DOUBLE, "key" VARCHAR, revision BIGINT)'
        found = session.query(
            "SELECT key, value.price, value.key, value.revision, revision FROM kv.prices ORDER BY key"
        )
        assert found.fetchall() == [
            ("a", 1.0, "same", 9, 1),
            ("b", 2.5, "same", 8, 2),
            ("c", None, None, None, 3),
        ]
        query = "SELECT key, value IS NULL, schema, operation, data FROM kv_history.prices WHERE revision > 2"
        assert session.query(f"{query} ORDER BY revision").fetchall() == [
            ("c", True, None, "PUT", b'{"price": "x"}'),
            ("d", False, "prices@1", "PUT", b"{}"),
            ("d", True, None, "DEL", b""),
        ]
        past = session.query("SELECT key, kv.prices.value.price FROM kv.prices VERSION AS OF 1").fetchall()
        assert past == [("a", 1.0)]


def files_read(session: Session, query: str) -> int:
    """Return the number of the table's files that the query reads, from DuckDB's statistics."""
    snapshot = StatementSnapshot(session._catalog, query)
    [statement] = parse(query, session.engine.parser)
    sql = rewrite(statement, snapshot.locate).text
    [(_, plan)] = session.engine.execute(f"EXPLAIN ANALYZE {sql}", snapshot.arrow).fetchall()
    found = re.search(r"Total Files Read: (\d+)", plan)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("subject", ["s.1.b", "s.1", "s.1.d"])
def test_a_subject_is_looked_for_in_its_partition(lake: Lake, session: Session, subject: str) -> None:
    """A subject is searched only in its partition, since file ranges of a table by the third token do not help."""
    lake.partitions = ["token3"]
    for _ in range(2):
        subjects = [f"s.{number}.{token}" for token in "abc" for number in range(3)] + [f"s.{n}" for n in range(3)]
        lake.model.publish([(each.encode(), b"", b"") for each in subjects])
        lake.stage()
        lake.commit()
    lake.model.publish([(subject.encode(), b"", b"")])
    lake.stage()
    where = f"WHERE subject = '{subject}'"
    wanted = sorted(record.seq for record in lake.model.live.values() if record.subject.decode() == subject)
    assert seqs(session, where=where) == wanted
    read = files_read(session, f"SELECT seq FROM {ORDERS} {where}")
    # DuckDB skips no file for IS NULL.
    assert read == {"s.1.b": 2, "s.1": 8, "s.1.d": 0}[subject]


def test_a_subject_is_looked_for_in_few_files(lake: Lake, session: Session) -> None:
    """A subject is searched in few files, by their statistics, through table and staged segments as one."""
    lake.partitions = []
    for first in "abcd":
        lake.model.publish([(b"%c.%d" % (ord(first), number), b"", b"") for number in range(3)])
        lake.stage()
        lake.commit()
    lake.model.publish([(b"c.1", b"", b"")])
    lake.model.remove([1])
    lake.stage()
    assert seqs(session, where="WHERE subject = 'c.1'") == [8, 13]
    assert files_read(session, f"SELECT seq FROM {ORDERS} WHERE subject = 'c.1'") == 1
    assert files_read(session, f"SELECT seq FROM {ORDERS}") == 4


def test_a_subject_is_read_without_deleted_rows_and_with_the_columns_of_every_file(tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path / "streams" / "ORDERS")
    table.append([("a", 1), ("b", 2), ("b", 3)])
    table.append([("b", 4), ("c", 5)])
    table.append([("d", 6)])
    first = next(iter(table.files))
    table.delete(first, [1])
    with Session(tmp_path) as session:
        views = FileViews(str(tmp_path), session.engine.connection)
        state = TableFollower(str(table.path)).advance(bounds=True)
        view = StreamView(lake="", stream="ORDERS", account="", uid="", table=str(table.path), state=state)

        def rows(source: str) -> list[tuple[Any, ...]]:
            return session.engine.connection.execute(f"FROM {source} WHERE subject = 'b' ORDER BY seq").fetchall()

        narrowed = views.narrowed(view, ["b"])
        assert narrowed.count("part-") - narrowed.count("filename =") == 2, "of three files"
        assert rows(narrowed) == rows(views.place(str(table.path), state.version))
        assert [row[1] for row in rows(narrowed)] == [3, 4]
        assert [row[1] for row in rows(views.narrowed(view, ["b"], [4]))] == [4]
        assert views.narrowed(view, ["x"]) == "", "no file has it"


def test_a_subject_of_a_table_by_bucket_is_read_with_its_bucket(tmp_path: Path) -> None:
    table, bounds = tmp_path / "streams" / "ORDERS", "the bounds"
    names = (("subject", "string"), ("seq", "long"), ("price", "double"), ("bucket", "integer"))
    shape = [Field(name, PrimitiveType(kind), metadata={BOUNDS_METADATA: bounds}) for name, kind in names]
    DeltaTable.create(str(table), Schema(shape), partition_by=["bucket"])
    for prices in ({}, {"price": [0.5, 1.5]}):
        rows = {"subject": ["a", "d"], "seq": [1, 2], "bucket": pa.array([0, 1], pa.int32()), **prices}
        write_deltalake(str(table), pa.table(rows), mode="append", schema_mode="merge")
    for log in (table / "_delta_log").glob("*.json"):  # deltalake writes no lists there
        log.write_text(log.read_text().replace(rf"\"{bounds}\"", r"[\"c\"]"))
    with Session(tmp_path) as session:
        views = FileViews(str(tmp_path), session.engine.connection)
        state = TableFollower(str(table)).advance(bounds=True)
        view = StreamView(lake="", stream="ORDERS", account="", uid="", table=str(table), state=state)
        narrowed = views.narrowed(view, ["d"])
        assert narrowed.count("part-") == 2, "of four files"
        found = session.engine.connection.execute(f"FROM {narrowed} WHERE subject = 'd' ORDER BY price NULLS FIRST")
        assert [each[0] for each in found.description or []] == ["subject", "seq", "price", "bucket"]
        assert found.fetchall() == [("d", 2, None, 1), ("d", 2, 1.5, 1)]
        assert views.narrowed(view, ["a", "d"]) == "", "of two buckets"


def test_a_join_of_a_stream_with_itself_reads_its_tail(lake: Lake, session: Session) -> None:
    """DuckDB pushes a Bloom filter of the join into its scans; that of the tail, an Arrow table, takes none."""
    lake.publish(3_000)
    lake.stage()
    lake.commit()
    lake.publish(5)
    lake.stage()
    # A few keys far from each other.
    joined = "SELECT a.seq FROM ORDERS a JOIN ORDERS b ON a.seq = b.seq * 1001 WHERE b.seq % 10 < 5 ORDER BY a.seq"
    assert session.query(joined).fetchall() == [(1001,), (2002,), (3003,)]


def test_columns_without_a_value_are_not_read(lake: Lake, session: Session) -> None:
    """Headers are read as soon as one file of the table may have some."""
    names = ("subject", "headers", "header_block", "subject_bytes")
    found = list[Any]()
    for header in (b"", b"NATS/1.0\r\nN: 1\r\n\r\n"):
        lake.model.publish([(b"o.1", header, b"1"), (b"o.2", header, b"2")])
        lake.stage()
        lake.commit()
        log = Path(lake.root, "streams", "ORDERS", "_delta_log")
        newest = max(log.glob("*.json"))
        counts = {"headers": int(not header), "header_block": 1, "subject_bytes": 1}  # as the compactor writes them
        more = json.dumps(counts, separators=(",", ":"))[1:-1].replace('"', '\\"')
        newest.write_text(newest.read_text().replace('nullCount\\":{', f'nullCount\\":{{{more},'))
        plan = session.query("EXPLAIN SELECT * EXCLUDE (json) FROM ORDERS").fetchall()[0][1]
        scanned = plan.rpartition("DELTA_SCAN")[2]
        assert [name for name in names if f" {name} " in scanned] == list(names[: 1 + bool(header)])
        found += [{"N": ["1"]} if header else None] * 2
        rows = session.query("SELECT headers, header_block, subject_bytes FROM ORDERS ORDER BY seq")
        assert rows.fetchall() == [(each, None, None) for each in found]
        assert rows.types == ("MAP(VARCHAR, VARCHAR[])", "BLOB", "BLOB")
