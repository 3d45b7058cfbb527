"""Tests of the live view compared with a model: complete and without duplicates, whatever is staged or committed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction, write_deltalake

from lakestream.lake.errors import QuarantinedSegment, SegmentGap, VersionGone
from lakestream.lake.flush import ServerFile, name_server
from lakestream.lake.staging import staging
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import batches, segments
from lakestream.lake.table.progress import application
from lakestream.lake.table.schema import (
    BOUNDS_METADATA,
    END,
    REMOVED_COLUMN,
    SUBJECT,
    TABLE_COLUMNS,
    UID_PROPERTY,
    Layout,
    table_schema,
)
from lakestream.lake.table.state import TableFollower
from lakestream.server.lake.stream_sync import Grace
from lakestream_client.lake import view as views
from lakestream_client.lake.flusher import FlushFailed, StreamNotFound
from lakestream_client.lake.view import SegmentGone, StreamView, open_view
from tests.lake.model import StreamModel, flights, unstage_through


class Table:
    """Commits to a table as the compactor does, with deltalake instead of Spark."""

    def __init__(self, lake: Path, model: StreamModel, layout: Layout = SUBJECT) -> None:
        self.lake, self.model, self.layout = lake, model, layout
        self.path = paths.table(str(lake), model.identity.name)
        self.uid = model.identity.uid
        self.watch = TableFollower(self.path, self.uid)
        self.directory = paths.staging(str(lake), model.identity.name, self.uid)

    def commit(self, most: int = 1 << 30, says: bool = True) -> None:
        """Commit at most `most` segments; with `says` the commit contains its position."""
        position = self.watch.position() or 0
        parts = batches.choose(self.path, position, staging.segments(self.directory))[:most]
        if not parts:
            return
        footers = [staging.footer(part.path) for part in parts]
        batch = batches.gather(self.uid, parts, footers, self.watch.head.progress)
        columns = (*TABLE_COLUMNS, *(name for name in self.layout.columns if name != "subject"))
        columns += (REMOVED_COLUMN,) if batch.policy.archive else ()
        if not position:
            self._create(columns, batch.policy.archive)
        for condition in batches.deletions(position, self.watch.head.progress, batch.dead):
            DeltaTable(self.path).delete(condition)
        for update in batches.updates(position, self.watch.head.progress, batch.removals):
            DeltaTable(self.path).update({update.column: update.value}, predicate=update.condition)
        rows = [
            shaped
            for part in parts
            for decoded in segments.decode(part.path, part.after, batch.dead, removals=batch.removals)
            for shaped in views.shaped(decoded, columns, self.layout, 1, END)
        ]
        write_deltalake(
            self.path,
            pa.Table.from_batches(rows, table_schema(columns)),
            mode="append",
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": msgspec.json.encode(batch.progress).decode()} if says else {},
                app_transactions=[Transaction(application(self.uid), batch.progress.last_index)],
            ),
        )

    def unstage(self) -> None:
        """Remove staged segments as a server without grace period does."""
        position = self.watch.position()
        if position is not None:
            unstage_through(str(self.lake), self.model.identity, position)

    def _create(self, columns: tuple[str, ...], archive: bool) -> None:
        fields = msgspec.json.decode(Schema.from_arrow(table_schema(columns)).to_json())
        for field in fields["fields"]:
            if field["name"] == "bucket":
                field["metadata"] = {BOUNDS_METADATA: list(self.layout.bounds)}
        properties = {UID_PROPERTY: self.uid, **({"lakestream.retention": "archive"} if archive else {})}
        DeltaTable.create(
            self.path,
            Schema.from_json(msgspec.json.encode(fields).decode()),
            partition_by=self.layout.columns,
            configuration=properties,
            raise_if_key_not_exists=False,
        )


def rows(view: StreamView) -> dict[int, tuple[Any, ...]]:
    """Return the view's messages; assert that two engines agree."""
    table: list[pa.RecordBatch] = []
    if view.version is not None:
        spans = view.ranges(1, END)
        table = list(view.table_batches(spans, view.columns))
        arrow = pa.table(
            QueryBuilder()
            .register("t", DeltaTable(view.table, version=view.version))
            .execute("SELECT * FROM t")
            .read_all()
        )
        connection = duckdb.connect()
        connection.execute("SET TimeZone='UTC'")
        connection.register("here", arrow)
        count = connection.execute(f"SELECT count(*) FROM ({view.table_sql('here', ['seq'])})").fetchone()
        assert count == (sum(batch.num_rows for batch in table),)
    tail = list(view.tail_batches())
    found: dict[int, tuple[Any, ...]] = {}
    for batch in [*table, *tail]:
        assert batch.schema == table_schema(view.columns)
        for row in batch.to_pylist():
            assert row["seq"] not in found, "nothing twice"
            found[row["seq"]] = (row["subject"], row["data"], row["time_ns"], row.get(REMOVED_COLUMN))
            assert row["time"].timestamp() == pytest.approx(row["time_ns"] / 1e9, abs=1e-5)
            if view.layout is not None and view.layout.kind == "bucket":
                assert row["bucket"] == sum(bound <= row["subject"] for bound in view.layout.bounds)
    return found


def expected(model: StreamModel) -> dict[int, tuple[Any, ...]]:
    return {record.seq: (record.subject.decode(), record.data, record.time_ns, None) for record in model.expected()}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    root.mkdir()
    return root


@pytest.mark.parametrize(
    "layout", [SUBJECT, Layout("bucket", bounds=("flights.3", "flights.7")), Layout("tokens", (2,))]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_invariant_a_view_is_the_stream_at_any_split(tmp_path: Path, lake: Path, seed: int, layout: Layout) -> None:
    random_ = random.Random(seed)
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model, layout)
    for _ in range(10):
        for _ in range(random_.randrange(1, 3)):
            model.publish(flights(random_.randrange(0, 40), headers=True), per_frame=7)
            if model.live and random_.random() < 0.6:
                gone = random_.sample(sorted(model.live), min(len(model.live), random_.randrange(1, 12)))
                model.remove(gone, erase=random_.random() < 0.5)
            if random_.random() < 0.15:
                model.purge(model.next_seq - random_.randrange(-3, 20))
        model.stage(lake)
        if random_.random() < 0.5:
            table.commit(random_.randrange(1, 4))
            if random_.random() < 0.5:
                table.unstage()
        view = open_view(str(lake), "ORDERS", flush=False)
        assert rows(view) == expected(model)
        assert (view.last_seq, view.last_index) == (model.next_seq - 1, model.sealed[-1].last_index)
        assert not view.flushed
    table.commit()
    table.unstage()
    view = open_view(str(lake), "ORDERS", flush=False)
    assert rows(view) == expected(model)
    assert (view.parts, view.hidden_sql()) == ((), None)


def test_an_archive_keeps_what_expired_and_says_when(tmp_path: Path, lake: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.configure({"lakestream.retention": "archive"})
    table = Table(lake, model)
    model.publish(flights(50))
    model.stage(lake)
    table.commit()
    model.remove([1, 2, 30])
    model.remove([31], erase=True)
    model.publish(flights(50))
    first = model.seal()
    model.stage(lake, first)
    model.remove([3, 77])
    second = model.seal()
    model.stage(lake, second)
    ended = {1: first, 2: first, 30: first, 3: second, 77: second}

    def check() -> StreamView:
        view = open_view(str(lake), "ORDERS", flush=False)
        found = rows(view)
        assert set(found) == set(range(1, 101)) - {31}
        assert {seq: row[3] for seq, row in found.items() if row[3] is not None} == {
            seq: segment.closed_ns for seq, segment in ended.items()
        }
        return view

    assert check().removed_sql() != REMOVED_COLUMN
    table.commit(1)
    check()
    table.commit()
    assert check().removed_sql() == REMOVED_COLUMN


def test_thousands_of_runs_that_ended_in_an_archive_do_not_end_the_process(tmp_path: Path, lake: Path) -> None:
    # DataFusion overflowed its thread's stack on conditions of some 3,000 terms, and the process crashed.
    model = StreamModel(tmp_path / "log")
    model.configure({"lakestream.retention": "archive"})
    table = Table(lake, model)
    model.publish([(b"S", b"", b"")] * 16_001, per_frame=10_000)
    model.stage(lake)
    table.commit()
    gone = [seq for seq in range(1, 16_001) if seq % 4]
    model.remove(gone)
    ended = model.seal()
    model.stage(lake, ended)
    view = open_view(str(lake), "ORDERS", flush=False)
    spans = view.ranges(1, END)
    marked = {
        row["seq"]: row[REMOVED_COLUMN]
        for batch in view.table_batches(spans, ["seq", REMOVED_COLUMN])
        for row in batch.to_pylist()
    }
    assert len(marked) == 16_001
    assert {seq for seq, at in marked.items() if at == ended.closed_ns} == set(gone)
    assert sum(at is None for at in marked.values()) == 16_001 - len(gone)


def test_before_the_first_commit_the_tail_is_all(tmp_path: Path, lake: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(20))
    model.stage(lake)
    view = open_view(str(lake), "ORDERS", flush=False)
    assert (view.version, view.hidden_sql(), view.columns) == (None, None, TABLE_COLUMNS)
    assert rows(view) == expected(model)
    assert [batch.column("seq").to_pylist() for batch in view.tail_batches(5, 7)] == [[5, 6, 7]]


def test_a_hundred_thousand_removed_sequences_are_still_a_condition(tmp_path: Path, lake: Path) -> None:
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model)
    model.publish([(b"S", b"", b"")] * 200_001, per_frame=10_000)
    model.stage(lake)
    table.commit()
    model.remove(range(2, 200_001, 2))
    model.stage(lake)
    view = open_view(str(lake), "ORDERS", flush=False)
    assert len(view.hidden.removed) == 100_000
    assert len(view.hidden_conditions()) == 100_000 // batches.CONDITION_TERMS
    left = list(range(1, 200_002, 2))
    spans = view.ranges(1, END)
    found = view.table_batches(spans, ["seq"])
    assert sorted(seq for batch in found for seq in batch.column("seq").to_pylist()) == left
    connection = duckdb.connect()
    connection.register("here", pa.table({"seq": range(1, 200_002)}))
    assert connection.execute(f"SELECT count(*) FROM ({view.table_sql('here', ['seq'])})").fetchone() == (len(left),)


def test_a_view_says_when_its_files_have_gone(tmp_path: Path, lake: Path) -> None:
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model)
    model.publish(flights(20))
    model.stage(lake)
    view = open_view(str(lake), "ORDERS", flush=False)
    table.commit()
    table.unstage()
    with pytest.raises(SegmentGone, match="staged_grace"):
        list(view.tail_batches())
    assert rows(open_view(str(lake), "ORDERS", flush=False)) == expected(model)


def test_a_view_says_when_its_version_has_gone(tmp_path: Path, lake: Path) -> None:
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model)
    model.publish(flights(20))
    model.stage(lake)
    table.commit()
    view = open_view(str(lake), "ORDERS", flush=False)
    spans = view.ranges(1, END)
    for file in Path(table.path).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(VersionGone, match="retain-hours"):
        list(view.table_batches(spans, view.columns))
    for file in Path(table.path).rglob("*.json"):
        file.unlink()
    with pytest.raises(VersionGone):
        list(view.table_batches(spans, view.columns))


def test_a_table_whose_commits_say_nothing_is_read_all_the_same(tmp_path: Path, lake: Path) -> None:
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model)
    model.publish(flights(40))
    model.stage(lake)
    table.commit(says=False)
    table.unstage()
    view = open_view(str(lake), "ORDERS", flush=False)
    assert (view.last_seq, rows(view)) == (40, expected(model))
    model.purge(11)
    model.remove([20, 30])
    model.publish(flights(5))
    model.stage(lake)
    view = open_view(str(lake), "ORDERS", flush=False)
    assert (view.last_seq, rows(view)) == (45, expected(model))


def test_pieces_of_a_table_are_all_of_it_once(tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model)
    for _ in range(5):
        model.publish(flights(100))
        model.stage(lake)
        table.commit()
    monkeypatch.setattr(views, "RANGE_ROWS", 40)
    view = open_view(str(lake), "ORDERS", flush=False)
    for first, last in ((1, END), (137, 391), (500, 500), (501, 600)):
        spans = view.ranges(first, last)
        numbers = [seq for low, high in spans for seq in range(low, high + 1)]
        assert numbers == list(range(first, min(last, 500) + 1))
    assert len(view.ranges(1, END)) > 10
    assert rows(view) == expected(model)


def test_a_table_of_an_earlier_stream_of_the_name_is_not_looked_at(tmp_path: Path, lake: Path) -> None:
    old = StreamModel(tmp_path / "old", uid="OLD")
    old.publish(flights(30))
    old.stage(lake)
    Table(lake, old).commit()
    staging.mark_deleted(str(lake), old.identity)
    with pytest.raises(StreamNotFound):
        open_view(str(lake), "ORDERS", flush=False)
    new = StreamModel(tmp_path / "new", uid="NEW")
    new.publish(flights(3))
    new.stage(lake)
    view = open_view(str(lake), "ORDERS", flush=False)
    assert (view.uid, view.version) == ("NEW", None)
    assert rows(view) == expected(new)


def test_what_is_missing_or_damaged_is_an_error(tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAUSE_S", 0.0)
    with pytest.raises(StreamNotFound):
        open_view(str(lake), "ORDERS", flush=False)
    model = StreamModel(tmp_path / "log")
    staged = []
    for _ in range(3):
        model.publish(flights(5))
        staged.append(model.stage(lake))
    Path(staged[1]).rename(f"{staged[1]}.bad")
    with pytest.raises(SegmentGap):
        open_view(str(lake), "ORDERS", flush=False)
    Path(f"{staged[1]}.why").write_text("it is torn")
    with pytest.raises(QuarantinedSegment, match="torn"):
        open_view(str(lake), "ORDERS", flush=False)


def test_without_a_server_the_view_reports_that(tmp_path: Path, lake: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(5))
    model.stage(lake)
    view = open_view(str(lake), "ORDERS")
    assert (view.flushed, "_servers" in view.note) == (False, True)
    name_server(open_storage(str(lake)), ServerFile("S1", "gone", ["nats://127.0.0.1:1"]))
    view = open_view(str(lake), "ORDERS", timeout=1.0)
    assert not view.flushed
    assert "127.0.0.1:1" in view.note
    assert rows(view) == expected(model)
    with pytest.raises(FlushFailed, match=r"127\.0\.0\.1:1"):
        open_view(str(lake), "ORDERS", server="127.0.0.1:1", timeout=1.0)


def test_staged_segments_stay_for_their_grace(tmp_path: Path, lake: Path) -> None:
    model = StreamModel(tmp_path / "log")
    for _ in range(4):
        model.publish(flights(50))
        model.stage(lake)
    staged = staging.segments(paths.staging(str(lake), "ORDERS", model.identity.uid))
    grace = Grace(100, 1 << 40)
    assert grace.due(staged, staged[0].last_index, 1_000) == []
    assert grace.due(staged, staged[2].last_index, 1_050) == []
    assert grace.due(staged, staged[2].last_index, 1_100) == [staged[0].path]
    assert grace.due(staged[1:], staged[2].last_index, 1_149) == []
    assert set(grace.due(staged[1:], staged[2].last_index, 1_150)) == {staged[1].path, staged[2].path}
    tight = Grace(1 << 60, staged[1].size + staged[2].size)
    assert tight.due(staged, staged[2].last_index, 0) == [staged[0].path]
    assert len(Grace(0, 1 << 40).due(staged, staged[3].last_index, 0)) == 4
