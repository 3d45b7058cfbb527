"""Tests of TableHistory's reads of single sequences, subjects and times, from small files and from large ones."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.errors import HistoryUnavailable, StorageFailed
from lakestream.lake.read.history import scan as history_scan
from lakestream.lake.read.history.cache import BlockCache
from lakestream.lake.read.history.history import READERS, TableHistory
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import deletion_vectors, scan, schema
from lakestream.lake.table.actions import to_z85
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.schema import END
from lakestream.lake.table.state import TableFollower
from lakestream.log.format.record import Record
from lakestream.logging import Logger
from lakestream.protocol.subjects import matches
from lakestream.runtime import LoopClock, ThreadIo
from lakestream.server.lake.history import FAILING, FAILING_RETRY_S, PER_STREAM, SharedCache, ThreadHistory
from lakestream.server.lake.presence import Presence
from lakestream.stream.core.reader import HistoryUnavailableError
from lakestream_spark.write import data_files, layouts
from tests.s3_server import S3Server

pytestmark = pytest.mark.unit

T0 = 1_700_000_000_000_000_000
SUBJECTS = (b"a", b"a.b", b"a.b.c", b"b.\xff", b"b.\\xff", b"o'brien", "größe.1".encode(), b"z.1", b"z.2")


@pytest.fixture(params=["whole", "parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select the size of what is read at once; each test must pass with both."""
    if request.param == "parts":
        monkeypatch.setattr(history_scan, "STEP_ROWS", 50)
        monkeypatch.setattr(scan, "PIECE_BYTES", 2_000)
    return str(request.param)


def record(seq: int, subject: bytes = b"") -> Record:
    header = b"NATS/1.0\r\nA: %d\r\n\r\n" % seq if seq % 3 == 0 else b""
    return Record(seq, T0 + seq // 2 * 1000, subject or SUBJECTS[seq * 7 % len(SUBJECTS)], header, b"%d" % seq)


def columns(rows: Sequence[Record]) -> dict[str, Any]:
    texts = [schema.subject_text(row.subject) for row in rows]
    split = [schema.split_headers(row.header) if row.header else (None, None) for row in rows]
    return {
        "subject": pa.array([text for text, _ in texts], pa.string()),
        "seq": pa.array([row.seq for row in rows], pa.int64()),
        "time_ns": pa.array([row.time_ns for row in rows], pa.int64()),
        "headers": pa.array([headers for headers, _ in split], schema.headers_type()),
        "data": pa.array([row.data for row in rows], pa.binary()),
        "header_block": pa.array([block for _, block in split], pa.binary()),
        "subject_bytes": pa.array([raw for _, raw in texts], pa.binary()),
    }


def write(table: Path, rows: Sequence[Record], by: str | None = None, **more: Any) -> None:
    data = {**columns(rows), **more}
    if by == "bucket":
        bounds = layouts.choose_bounds((schema.subject_text(subject)[0] for subject in SUBJECTS), 3)
        data["bucket"] = pa.array([schema.bucket_of(text, bounds) for text in data["subject"].to_pylist()], pa.int32())
    elif by == "token1":
        data["token1"] = pa.array([text.split(".")[0] for text in data["subject"].to_pylist()])
    write_deltalake(str(table), pa.table(data), mode="append", partition_by=by)


@pytest.mark.parametrize("by", [None, "subject", "bucket", "token1"])
def test_every_read_of_every_layout(tmp_path: Path, way: str, by: str | None) -> None:
    """Every read returns the messages that were written, with gaps, in commits of several sizes."""
    choose = random.Random(11)
    stored = [record(seq) for seq in range(1, 700) if choose.random() > 0.2]
    at = 0
    while at < len(stored):
        step = choose.randint(1, 150)
        write(tmp_path / "t", stored[at : at + step], by)
        at += step
    history = TableHistory(str(tmp_path / "t"), BlockCache(100_000))
    for _ in range(12):
        first, last, limit = choose.randint(1, 700), choose.randint(1, 750), choose.randint(1, 300)
        within = [row for row in stored if first <= row.seq <= last]
        assert history.read(first, last, limit) == within[:limit]
        some = choose.sample(SUBJECTS, choose.randint(1, 4))
        assert history.read(first, last, limit, some) == [row for row in within if row.subject in some][:limit]
        chosen = [*some[:1], choose.choice([b"a.>", b"*.1", b">", b"b.*", b"z.*", b"*.b.c", b"none.>"])]
        meant = [row for row in within if any(matches(one, row.subject) for one in chosen)]
        assert history.read(first, last, limit, chosen) == meant[:limit]
        seqs = sorted(choose.sample(range(1, 720), choose.randint(1, 60)))
        wanted = [row for row in stored if row.seq in seqs]
        assert history.read_many(seqs) == wanted
        assert history.read_many(seqs, some) == [row for row in wanted if row.subject in some]
        time_ns = T0 + choose.randint(-500, 400_000)
        assert history.first_at(time_ns) == next((row.seq for row in stored if row.time_ns >= time_ns), 0)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 400),
    spool=st.integers(1_000, 60_000),
    group=st.integers(1, 60),
    step=st.integers(1, 200),
    piece=st.integers(200, 20_000),
    looked=st.sampled_from([0, 1e-5, 1e-4, 3]),
    looked_files=st.sampled_from([1, 2, 1_024]),
    by_subject=st.booleans(),
    data=st.data(),
)
def test_reads_of_files_of_many_row_groups(
    rows: int,
    spool: int,
    group: int,
    step: int,
    piece: int,
    looked: float,
    looked_files: int,
    by_subject: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The compactor's files: runs of sequences sorted by subject, in groups and steps of any size, with deletions."""
    path = tmp_path_factory.mktemp("groups")
    stored = [record(seq) for seq in range(1, rows + 1) if seq % 11]
    layout = schema.SUBJECT if by_subject else schema.Layout("bucket", bounds=("b", "o"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "GROUP_ROWS", group)
        patch.setattr(data_files, "RUN_SEQS", 64)
        patch.setattr(history_scan, "STEP_ROWS", step)
        patch.setattr(history_scan, "LOOKED_STEPS", looked)
        patch.setattr(history_scan, "LOOKED_FILES", looked_files)
        patch.setattr(scan, "PIECE_BYTES", piece)
        batch = pa.RecordBatch.from_pydict(columns(stored)).select(schema.message_schema().names)
        files = data_files.DataFiles(str(path), layout, spool_bytes=spool).write(
            batch.slice(at, 50) for at in range(0, len(stored), 50)
        )
        commit_files(path, files, layout)
        gone = data.draw(st.sets(st.sampled_from(stored).map(lambda each: each.seq), max_size=20))
        if gone:
            delete_rows(path, gone)
            stored = [each for each in stored if each.seq not in gone]
        history = TableHistory(str(path), BlockCache(20_000))
        assert history.read(1, END, 1000) == stored
        for each in data.draw(st.lists(st.sampled_from(stored), max_size=5)) if stored else ():
            assert history.read(each.seq, each.seq, 1, [each.subject]) == [each]
            assert history.first_at(each.time_ns) == next(one.seq for one in stored if one.time_ns >= each.time_ns)
            assert (
                history.read(each.seq, END, 7, [each.subject])
                == [one for one in stored if one.seq >= each.seq and one.subject == each.subject][:7]
            )
        some = data.draw(st.lists(st.integers(1, rows + 5), min_size=1, max_size=30, unique=True).map(sorted))
        assert history.read_many(some) == [each for each in stored if each.seq in some]
        first, width, limit = data.draw(st.tuples(st.integers(1, rows), st.integers(0, rows), st.integers(1, 90)))
        assert (
            history.read(first, first + width, limit)
            == [each for each in stored if first <= each.seq <= first + width][:limit]
        )


def commit_files(path: Path, files: Sequence[data_files.NewFile], layout: schema.Layout) -> None:
    """Commit data files as version 0 of a table."""
    kinds = {"seq": "long", "time_ns": "long", "time": "timestamp", "bucket": "integer", "subject": "string"}
    texts = {"type": "array", "elementType": "string", "containsNull": True}
    headers = {"type": "map", "keyType": "string", "valueType": texts, "valueContainsNull": True}
    names = dict.fromkeys((*schema.TABLE_COLUMNS, *layout.columns))
    fields = [
        {
            "name": name,
            "nullable": True,
            "metadata": {},
            "type": headers if name == "headers" else kinds.get(name, "binary"),
        }
        for name in names
    ]
    described = {"id": "x", "format": {"provider": "parquet", "options": {}}, "configuration": {}}
    described |= {"schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": layout.columns}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}, {"metaData": described}]
    actions += [{"add": msgspec.to_builtins(file)} for file in files]
    (path / "_delta_log").mkdir()
    (path / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def delete_rows(path: Path, gone: set[int]) -> None:
    """Delete messages by deletion vectors, as version 1."""
    actions: list[dict[str, Any]] = []
    for line in (path / "_delta_log" / f"{0:020d}.json").read_text().splitlines():
        add = json.loads(line).get("add")
        if add is None:
            continue
        seqs = pq.read_table(path / unquote(add["path"]), columns=["seq"])["seq"].to_numpy()
        places = np.flatnonzero(np.isin(seqs, list(gone)))
        if not len(places):
            continue
        body = deletion_vectors.encode(places)
        body += bytes(-len(body) % 4)
        vector = {"storageType": "i", "pathOrInlineDv": to_z85(body), "sizeInBytes": len(body)}
        actions.append({"remove": {"path": add["path"], "dataChange": True}})
        actions.append({"add": {**add, "deletionVector": {**vector, "cardinality": len(places)}}})
    (path / "_delta_log" / f"{1:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def test_single_messages_far_apart(tmp_path: Path, way: str) -> None:
    stored = [record(seq) for seq in range(1, 5001)]
    write(tmp_path / "t", stored)
    history = TableHistory(str(tmp_path / "t"))
    for seq in (2500, 1, 5000, 2499, 2501, 4000, 3, 2):
        assert history.read(seq, seq, 1) == [stored[seq - 1]]
        assert history.read(seq, seq, 1, [stored[seq - 1].subject]) == [stored[seq - 1]]
    assert history.read(2500, 2500, 1, [b"other"]) == []
    assert history.read(5001, 5001, 1) == []
    assert history.read_many([]) == []
    assert history.read_many([0, 7, 9000]) == [stored[6]]
    assert history.read(1, END, 10_000) == stored


def test_what_an_archive_kept_is_not_in_the_stream(tmp_path: Path, way: str) -> None:
    """Messages kept by an archive are not in the stream.

    Files from before the table was an archive have no such column.
    """
    stored = [record(seq) for seq in range(1, 201)]
    write(tmp_path / "t", stored[:50])
    gone = [row.time_ns if row.seq % 4 == 0 else None for row in stored[50:]]
    data = {**columns(stored[50:]), "removed_time_ns": pa.array(gone, pa.int64())}
    write_deltalake(str(tmp_path / "t"), pa.table(data), mode="append", schema_mode="merge")
    live = stored[:50] + [row for row in stored[50:] if row.seq % 4]
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(1, END, 1000) == live
    assert history.read(1, END, 1000, [SUBJECTS[0]]) == [row for row in live if row.subject == SUBJECTS[0]]
    assert history.read_many(range(40, 60)) == [row for row in live if 40 <= row.seq < 60]
    assert history.read(52, 52, 1) == []
    for row in stored[::3]:
        assert history.first_at(row.time_ns) == next(each.seq for each in live if each.time_ns >= row.time_ns)


def test_files_that_go_under_any_read_are_not_missed(tmp_path: Path, way: str) -> None:
    stored = [record(seq) for seq in range(1, 201)]
    for start in range(0, 200, 25):
        write(tmp_path / "t", stored[start : start + 25])
    reads: list[Any] = [
        lambda history: history.read(1, END, 1000) == stored,
        lambda history: history.read(60, 60, 1) == [stored[59]],
        lambda history: history.read(1, END, 1000, [b"a"]) == [row for row in stored if row.subject == b"a"],
        lambda history: history.read(1, END, 1000, [b"z.*"]) == [row for row in stored if row.subject[:2] == b"z."],
        lambda history: history.read_many([3, 99, 150]) == [stored[2], stored[98], stored[149]],
        lambda history: history.first_at(stored[99].time_ns) == 100,
    ]
    histories = [TableHistory(str(tmp_path / "t")) for _ in reads]
    for history in histories:
        assert history.read(170, 170, 1) == [stored[169]]
    table = DeltaTable(str(tmp_path / "t"))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    for read, history in zip(reads, histories, strict=True):
        assert read(history)
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    for history in histories:
        history.close()
    with pytest.raises(HistoryUnavailable, match="could not be read"):
        histories[0].read(1, END, 10)


def test_reads_of_every_kind_go_on_while_the_table_grows_and_is_rewritten_and_vacuumed(
    tmp_path: Path, way: str
) -> None:
    """Reads of every kind continue while the table grows and is optimized and vacuumed.

    Concurrent readers share one history, as a server's consumers and direct gets do, and read everything in turn.
    """
    table = tmp_path / "t"
    stored = [record(seq) for seq in range(1, 1001)]
    write(table, stored[:400])
    history = TableHistory(str(table), BlockCache(50_000))
    over, failures = threading.Event(), []

    def all_of(chosen: list[bytes] | None, limit: int) -> None:
        first, expected = 1, [row for row in stored if not chosen or any(matches(one, row.subject) for one in chosen)]
        at = 0
        last = max(row.seq for row in expected if row.seq <= 400)
        while first <= last:
            found = history.read(first, 1000, limit, chosen)
            assert found == expected[at : at + len(found)]
            assert found
            at, first = at + len(found), found[-1].seq + 1

    def some(seed: int) -> None:
        choose = random.Random(seed)
        seqs = sorted(choose.sample(range(1, 401), 20))
        rows = [stored[seq - 1] for seq in seqs]
        assert history.read_many(seqs) == rows
        assert history.read_many(seqs, [row.subject for row in rows]) == rows
        assert stored[history.first_at(rows[0].time_ns) - 1].time_ns == rows[0].time_ns

    def again_and_again(work: Callable[[int], None]) -> None:
        turn = 0
        try:
            while not over.is_set():
                work(turn)
                turn += 1
        except BaseException as error:
            failures.append(error)
            raise

    works: list[Callable[[int], None]] = [
        lambda turn: all_of(None, 64), lambda turn: all_of([b"a.>"], 30), lambda turn: all_of([b"a", b"z.1"], 10), some,
    ]  # fmt: skip
    threads = [threading.Thread(target=again_and_again, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for start in range(400, 1000, 200):
        for at in range(start, start + 200, 50):
            write(table, stored[at : at + 50])
        found = DeltaTable(str(table))
        found.optimize.compact()
        found.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert history.read(1, END, 2000) == stored


def test_a_file_that_unpacks_to_too_much_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PIECE_BYTES", 1000)
    stored = [record(seq) for seq in range(1, 301)]
    write(tmp_path / "t", stored)
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(1, END, 1000) == stored
    assert history.read_many([5, 100]) == [stored[4], stored[99]]
    assert history.read(1, END, 1000, [b"a"]) == [row for row in stored if row.subject == b"a"]


def test_what_is_read_stays_within_the_cache(tmp_path: Path, way: str) -> None:
    stored = [Record(seq, T0, b"s", b"", bytes(500)) for seq in range(1, 4001)]
    for start in range(0, 4000, 1000):
        write(tmp_path / "t", stored[start : start + 1000])
    cache = BlockCache(1_000_000)
    history = TableHistory(str(tmp_path / "t"), cache)
    choose = random.Random(5)
    for _ in range(60):
        seq = choose.randint(1, 4000)
        assert history.read(seq, seq, 1) == [stored[seq - 1]]
        assert cache.size <= 1_000_000
    history.close()
    assert cache.size == 0


CHOICES: tuple[tuple[bytes, ...], ...] = ((), (b"a",), (b"a.>", b"z.1"), (b"b.*",), (b"*.1",))


@settings(max_examples=25, deadline=None)
@given(
    reads=st.lists(
        st.tuples(st.integers(1, 900), st.integers(0, 600), st.integers(1, 900), st.sampled_from(CHOICES)), max_size=12
    )
)
def test_blocks_of_any_order_of_reads_fit_together(
    reads: list[tuple[int, int, int, tuple[bytes, ...]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.getbasetemp() / "blocks"
    stored = [record(seq) for seq in range(1, 850) if seq % 13]
    if not base.exists():
        for start in range(0, len(stored), 100):
            write(base, stored[start : start + 100], "bucket")
    history = TableHistory(str(base), BlockCache(60_000))
    for first, width, limit, chosen in reads:
        within = [row for row in stored if first <= row.seq <= first + width]
        expected = [row for row in within if not chosen or any(matches(one, row.subject) for one in chosen)][:limit]
        at_once, ahead = history.at_once(first, first + width, limit)
        assert at_once is None or at_once == within[:limit]
        if ahead:
            history.load(ahead)
        assert history.read(first, first + width, limit, chosen or None) == expected


def test_a_pattern_leaves_out_the_files_that_have_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [record(seq, b"%c.%d.x" % (b"abcdefgh"[seq % 8], seq % 40)) for seq in range(1, 801)]
    for start in range(0, 800, 200):
        rows = stored[start : start + 200]
        data = {**columns(rows), "token1": pa.array([row.subject[:1].decode() for row in rows])}
        write_deltalake(str(tmp_path / "t"), pa.table(data), mode="append", partition_by="token1")
    opened: list[str] = []
    real = scan.FileReader.read

    def noted(reader: Any, file: Any, *more: Any) -> Any:
        opened.append(file.min_subject)
        return real(reader, file, *more)

    monkeypatch.setattr(scan.FileReader, "read", noted)
    history = TableHistory(str(tmp_path / "t"))
    for pattern, first in ((b"c.>", b"c"), (b"c.*.x", b"c"), (b"f.5.*", b"f")):
        opened.clear()
        found = history.read(1, END, 1000, [pattern])
        assert found == [row for row in stored if matches(pattern, row.subject)]
        assert {subject[:1].encode() for subject in opened} == {first}
        assert len(opened) == 4


def test_successive_reads_of_a_pattern_return_each_message_once(tmp_path: Path, way: str) -> None:
    stored = [record(seq, b"s.%d" % (seq % 7)) for seq in range(1, 3001)]
    for start in range(0, 3000, 500):
        write(tmp_path / "t", stored[start : start + 500])
    history = TableHistory(str(tmp_path / "t"))
    asked: list[int] = []
    real = history._scan.step

    def noted(snapshot: Any, first: int, *more: Any) -> Any:
        found = real(snapshot, first, *more)
        asked.append(0 if found[0] is None else found[0].num_rows)
        return found

    history._scan.step = noted  # type: ignore[method-assign]
    for chosen in ([b"s.3"], [b"s.*"], [b"s.1", b"s.2"]):
        asked.clear()
        first, got = 1, []
        while records := history.read(first, 3000, 50, chosen):
            got += records
            first = records[-1].seq + 1
        assert got == [row for row in stored if any(matches(one, row.subject) for one in chosen)]
        assert sum(asked) == len(got)
        assert len(asked) <= (8 if way == "whole" else 60), "not a step for each read"


def test_choices_that_are_not_read_any_more_leave_the_cache(tmp_path: Path) -> None:
    stored = [record(seq, b"s.%d" % (seq % 200)) for seq in range(1, 401)]
    write(tmp_path / "t", stored)
    cache = BlockCache()
    history = TableHistory(str(tmp_path / "t"), cache)
    for number in range(200):
        assert len(history.read(1, 400, 400, [b"s.%d" % number])) == 2
    assert len(history._narrows) == READERS
    assert len(cache._blocks) == READERS
    history.close()
    assert cache.size == 0


def test_a_table_in_an_object_store(
    s3_server: S3Server, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    url = f"{s3_server.url(tmp_path.name)}/streams/ORDERS"
    options = open_storage(url).delta_options()
    stored = [record(seq) for seq in range(1, 121)]
    for start in range(0, 120, 40):
        data = pa.table(columns(stored[start : start + 40]))
        write_deltalake(url, data, mode="append", partition_by="subject", storage_options=options)
    history = TableHistory(url)
    assert history.read(1, 90, 1000) == stored[:90]
    table = DeltaTable(url, storage_options=options)
    table.create_checkpoint()
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    for reader in (TableHistory(url), TableHistory(url, history._cache), history):
        reader._cache.drop(reader._blocks)
        reader._cache.drop(reader._singles)
        assert reader.read(1, END, 1000) == stored
        assert reader.read_many([7, 80], [stored[6].subject, stored[79].subject]) == [stored[6], stored[79]]
        assert reader.first_at(stored[99].time_ns) == 100


def _history(directory: Path, io: ThreadIo) -> ThreadHistory:
    presence = Presence(str(directory), LoopClock(asyncio.get_running_loop(), Logger()), io, Logger())
    follower = TableFollower(str(directory / "t"))
    staged = str(directory / "staged")
    return ThreadHistory(follower.table, lambda: follower, "u1", staged, presence, SharedCache(), print)


async def test_what_was_read_is_dropped_once_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache kept 96 MiB for as long as the server ran."""
    monkeypatch.setattr("lakestream.server.lake.history.CACHE_IDLE_S", 0.2)
    stored = [record(seq) for seq in range(1, 501)]
    write(tmp_path / "t", stored)
    history = _history(tmp_path, ThreadIo(asyncio.get_running_loop()))
    for _ in range(2):
        assert await history.read(1, 500, 500) == stored
        cache = history._shared.get()
        assert cache.size > 0 < cache.footers.size
        deadline = time.monotonic() + 30
        while cache.size or cache.footers.size:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert cache.find(history._table._blocks, 1) is None  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 3000])
async def test_a_reader_in_sequence_finds_what_follows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Each step of a replay was read when the one before was used up, and each part of it came through a thread."""
    monkeypatch.setattr(history_scan, "STEP_ROWS", 300)
    stored = [record(seq) for seq in range(1, 1201) if seq % 5]
    for start in range(0, len(stored), 240):
        write(tmp_path / "t", stored[start : start + 240], "bucket")
    io = ThreadIo(asyncio.get_running_loop())
    history = _history(tmp_path, io)
    submit, under_way = history._shared.submit, list[asyncio.Future[Any]]()

    def noted(work: Callable[[], Any]) -> asyncio.Future[Any]:
        under_way.append(submit(work))
        return under_way[-1]

    history._shared.submit = noted  # type: ignore[method-assign, assignment]
    first, found, waited = 1, list[Record](), 0
    while first < 1200:
        before = len(under_way)
        read = asyncio.ensure_future(history.read(first, 1200, 20, None, size))
        await asyncio.sleep(0)
        waited += not read.done()
        some = await read
        found += some
        first = some[-1].seq + 1
        await asyncio.sleep(0)
        await asyncio.gather(*under_way[before:])
    assert found == stored
    assert waited <= 3, "for the first messages, and to open the table"
    assert 5 < len(under_way) < 20, "each block was loaded once"
    history.close()
    io.close()


async def test_reads_of_one_stream_run_side_by_side_and_no_more_than_allowed(tmp_path: Path) -> None:
    stored = [record(seq) for seq in range(1, 501)]
    write(tmp_path / "t", stored)
    io = ThreadIo(asyncio.get_running_loop())
    history = _history(tmp_path, io)
    assert await history.first_at(T0) == 1
    together = threading.Barrier(PER_STREAM)
    table = history._table
    assert table is not None
    under_way, most, real = 0, 0, table.read_many

    def slowly(seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> list[Record]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        together.wait(30)  # continues only when this many threads are here at the same time
        found = real(seqs, subjects)
        under_way -= 1
        return found

    table.read_many = slowly  # type: ignore[method-assign]
    results = await asyncio.gather(*(history.read_many([seq]) for seq in range(1, 2 * PER_STREAM + 1)))
    assert results == [[row] for row in stored[: 2 * PER_STREAM]]
    assert most == PER_STREAM
    table.read_many = real  # type: ignore[method-assign]
    assert await history.read(1, 500, 1000) == stored
    history.refuse("an older copy")
    with pytest.raises(HistoryUnavailableError, match="an older copy"):
        await history.read(1, 1, 1)
    history.refuse("")
    assert await history.read(1, 1, 1) == stored[:1]
    history.close()
    io.close()


async def test_reads_that_the_object_store_fails_say_when_to_try_again(tmp_path: Path) -> None:
    """With half of the requests throttled the lake is not away; the error was that of a damaged table, without a time.

    Found by the simulator (seed 2023 of whole servers).
    """
    stored = [record(seq) for seq in range(1, 51)]
    write(tmp_path / "t", stored)
    io = ThreadIo(asyncio.get_running_loop())
    history = _history(tmp_path, io)
    assert await history.first_at(T0) == 1
    table = history._table
    assert table is not None
    real = table._scan.step

    def throttled(*_: object) -> None:
        raise StorageFailed("read", "t/part-1.parquet", "503 SlowDown")

    table._scan.step = throttled  # type: ignore[method-assign, assignment]
    with pytest.raises(HistoryUnavailableError, match="503 SlowDown") as caught:
        await history.read(1, 50, 100)
    assert (caught.value.retry_s, caught.value.for_clients) == (FAILING_RETRY_S, FAILING)
    table._scan.step = real  # type: ignore[method-assign]
    assert await history.read(1, 50, 100) == stored
    history.close()
    io.close()


async def test_the_event_loop_does_not_wait_for_a_read_that_holds_the_table(tmp_path: Path) -> None:
    # The index is locked while it reads the lake: dropping it waited for that in the event loop, with S3 for seconds.
    stored = [record(seq) for seq in range(1, 11)]
    write(tmp_path / "t", stored)
    io = ThreadIo(asyncio.get_running_loop())
    history = _history(tmp_path, io)
    for forget in (lambda: history.refuse("an older copy"), history.close):
        history.refuse("")
        assert await history.read(1, 10, 10) == stored
        assert history._table is not None
        lock = history._follower()._lock
        lock.acquire()
        threading.Timer(2.0, lock.release).start()
        began = time.monotonic()
        forget()
        assert time.monotonic() - began < 1.0
    io.close()


def test_a_look_at_a_lake_that_does_not_answer_holds_up_no_read_that_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper's look and reads of history share the follower of a table, which looks under a lock."""
    stored = [record(seq) for seq in range(1, 201)]
    write(tmp_path / "t", stored[:100])
    follower = TableFollower(str(tmp_path / "t"))
    history = TableHistory(follower.table, follower=follower)
    assert history.read(1, END, 1000) == stored[:100]
    write(tmp_path / "t", stored[100:])
    follower.newest()  # the last look that ended
    hangs, released, real = threading.Event(), threading.Event(), TableLog.tag

    def tag(log: TableLog, version: int) -> str | None:
        hangs.set()
        assert released.wait(60)
        return real(log, version)

    monkeypatch.setattr(TableLog, "tag", tag)
    with ThreadPoolExecutor(2) as threads:
        look = threads.submit(follower.newest)
        assert hangs.wait(60)
        try:
            found = threads.submit(history.read_many, [7, 150]).result(30)
        finally:
            released.set()
        assert look.result().version == 1
    assert found == [stored[6], stored[149]]
