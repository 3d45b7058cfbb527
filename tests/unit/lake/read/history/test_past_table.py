"""Tests of a stream's past read from a table: the messages found, those excluded, and the amount read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from lakestream.lake.read.history import past_table
from lakestream.lake.read.history.past_table import TablePast
from lakestream.lake.read.history.rows import COLUMNS
from lakestream.lake.read.history.scan import TableScan
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table import erasures
from lakestream.lake.table.at import as_of
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.schema import table_schema
from lakestream.log.format.departures import Departures, Point
from lakestream_client.lake.view import StreamView

pytestmark = pytest.mark.unit

LAST = 400
END = Point(seq=LAST)


def table_of(path: Path, subjects: Sequence[str], data: bytes = b"x", departures: Departures | None = None) -> str:
    """Create a table of one commit: sequences from 1 on, each stored at its own time in ns."""
    table, count = str(path / "streams" / "S"), len(subjects)
    numbers = list(range(1, count + 1))
    columns: dict[str, list[Any]] = dict.fromkeys(COLUMNS, [None] * count) | {
        "seq": numbers,
        "time_ns": numbers,
        "subject": list(subjects),
        "data": [data] * count,
    }
    wanted = table_schema(COLUMNS)
    rows = pa.table([pa.array(columns[field.name], field.type) for field in wanted], schema=wanted)
    told = {"uid": "U", "last_index": count, "last_seq": count, "last_time_ns": count, "moment_ns": count}
    told["departed"] = 0 if departures is None else len(departures)
    if departures is not None:
        lakes.require(str(path), create=True)
        departure_files.write(open_storage(path), table, count, departures)
    write_deltalake(table, rows, commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(told)}))
    return table


def test_what_is_to_be_erased_is_no_part_of_the_past(tmp_path: Path) -> None:
    table = table_of(tmp_path, ["K.a", "K.a", "K.b"], b"secret")
    past = TablePast(table, "U")
    assert past.was([b"K.>"], Point(seq=3), 9).newest == [2, 3]
    DeltaTable(table).delete("seq = 2")
    erasures.leave_note(open_storage(tmp_path), table, "U", 4, [(2, 2)])
    assert past.was([b"K.>"], Point(seq=3), 9).newest == [1, 3], "of K.a there is the message before it"
    assert [record.seq for record in past.rows([1, 2, 3], Point(seq=3), 1 << 20)] == [1, 3]
    assert past.was([b"K.>"], Point(seq=3), 9, [(1, 1)]).newest == [3], "the log knows of another one"
    found = as_of(table, 3)
    assert departure_files.gone_as_of(open_storage(tmp_path), table, found) == DeletedMessages(runs=[(2, 2)]), (
        "nor of SQL's"
    )


def test_what_was_deleted_securely_beyond_the_table_is_no_part_of_sqls_past() -> None:
    departures = Departures()
    departures.note((1, 2), 4, 4)
    names = {"lake": "", "stream": "S", "account": "$G", "uid": "U", "table": ""}
    view = StreamView(**names, hidden=DeletedMessages(runs=[(1, 2)]), departures=departures, shredded=((2, 2),))
    assert view.at(Point(seq=3)).hidden == DeletedMessages(runs=[(2, 2)])
    assert view.at(Point(seq=4)).hidden == DeletedMessages(runs=[(1, 2)])


def test_a_read_stops_where_its_bytes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 << 10
    past = TablePast(table_of(tmp_path, [f"K.{number}" for number in range(LAST)], b"x" * size), "U")
    decoded, decode = [], past_table.records

    def counted(rows: pa.Table) -> Any:
        decoded.append(rows.num_rows)
        return decode(rows)

    monkeypatch.setattr(past_table, "records", counted)
    seqs = list(range(1, LAST + 1))
    assert [record.seq for record in past.rows(seqs, END, 16 * size)] == seqs[:15]
    assert sum(decoded) == past_table.FIRST_ROWS
    decoded.clear()
    assert [record.seq for record in past.rows(seqs, END, 100 * size)] == seqs[:99]
    assert sum(decoded) <= 2 * 100
    assert [record.seq for record in past.rows(seqs, END, 1)] == [1]
    assert len(past.rows(seqs, END, 1 << 30)) == LAST


def test_too_many_subjects_are_refused_before_all_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = TablePast(table_of(tmp_path, [f"K.{number}" for number in range(LAST)]), "U")
    looked: list[int] = []
    newest = past_table._newest
    monkeypatch.setattr(past_table, "_newest", lambda batch: (looked.append(1), newest(batch))[1])
    parts = TableScan.parts

    def small(*arguments: Any) -> Any:
        for rows in parts(*arguments):
            yield from (rows.slice(at, 10) for at in range(0, rows.num_rows, 10))

    monkeypatch.setattr(TableScan, "parts", small)
    assert past.was([b">"], END, 25).newest is None
    assert len(looked) == 3
    assert past.was([b"K.1", b"K.2"], END, 2).newest == [2, 3], "others do not count"


def test_departures_are_read_once_for_a_client_that_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    departures = Departures()
    departures.note((1,), 2, 2)
    departures.note((2,), 3, 3)
    past = TablePast(table_of(tmp_path, ["K.a", "K.a", "K.a"], departures=departures), "U")
    reads, read = [], departure_files.read

    def counted(*arguments: Any) -> Departures:
        reads.append(arguments)
        return read(*arguments)

    monkeypatch.setattr(departure_files, "read", counted)
    for _ in range(3):
        assert past.was([b"K.a"], Point(seq=2), 9).newest == [2]
    assert len(reads) == 1
    assert past.was([b"K.a"], Point(seq=1), 9).newest == [1]
    assert len(reads) == 2
    monkeypatch.setattr(past_table, "MAX_LEFT", 0)
    assert past.was([b"K.a"], Point(seq=3), 9).newest == [3]
    assert list(past._left) == [(3, Point(seq=3))], "the others made room"
