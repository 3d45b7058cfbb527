"""Tests of the defects that the campaign has found, each of one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakestream.lake.errors import BadIdentity, DamagedFile, DamagedLog, HistoryUnavailable
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.read.history.past_table import TablePast
from lakestream.lake.staging import staging
from lakestream.lake.storage.lake import identify, open_storage, read_id
from lakestream.lake.table import departures, erasures
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.schema import TABLE_COLUMNS, table_schema
from lakestream.lake.table.state import TableFollower, position_of
from lakestream.log.format.departures import Point
from lakestream.log.format.errors import CorruptLog, StoreVersionError
from lakestream.log.format.files import Files
from lakestream.log.format.record import Record, encode_record
from lakestream.log.format.records import Records, back_to_back
from lakestream.log.store.checkpoint import read_checkpoint
from lakestream.ports import History
from lakestream.stream.core.reader import HistoryUnavailableError
from tests.corruption import lake, members, standalone
from tests.corruption.cases import Case
from tests.corruption.members import ReplicaJudge
from tests.unit.account.test_engines import World

pytestmark = pytest.mark.unit

TABLE = "lake/streams/PAST"


def put(path: Path, offset: int, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] = byte
    path.write_bytes(bytes(content))


class Altered:
    """History whose messages have another field."""

    def __init__(self, history: History, **fields: bytes) -> None:
        self._history, self._fields = history, fields

    async def read(self, *arguments: Any) -> list[Record]:
        return [msgspec.structs.replace(each, **self._fields) for each in await self._history.read(*arguments)]

    async def read_many(self, *arguments: Any) -> list[Record]:
        return [msgspec.structs.replace(each, **self._fields) for each in await self._history.read_many(*arguments)]

    def forget(self) -> bool:
        return self._history.forget()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the place of a stream whose oldest messages are only in its table."""
    lake.build(tmp_path / "place", "PAST")
    return tmp_path / "place"


def one(place: Path, pattern: str) -> Path:
    (found,) = place.glob(pattern)
    return found


def test_a_damaged_page_of_a_data_file_is_refused(place: Path) -> None:
    """Pages have checksums, which no reader verifies unless it is told to."""
    path = one(place, f"{TABLE}/dM/*.parquet")
    history = TableHistory(str(place / TABLE))
    before = history.read(1, 1 << 40, 1000)
    history.close()
    content = path.read_bytes()
    refused = 0
    for offset in range(30, 300, 3):
        put(path, offset, content[offset] ^ 1)
        history = TableHistory(str(place / TABLE))
        try:
            assert history.read(1, 1 << 40, 1000) == before, offset
        except HistoryUnavailable:
            refused += 1
        history.close()
        path.write_bytes(content)
    assert refused > 30


def test_a_damaged_page_of_a_past_version_is_refused(place: Path) -> None:
    uid = one(place, "lake/segments/PAST/*").name
    was = TablePast(str(place / TABLE), uid).rows([16, 17, 18, 19, 20], Point(20), 1 << 20)
    refused = 0
    for path in place.glob(f"{TABLE}/??/*.parquet"):
        content = path.read_bytes()
        for offset in range(30, 300, 30):
            put(path, offset, content[offset] ^ 1)
            try:
                found = TablePast(str(place / TABLE), uid).rows([16, 17, 18, 19, 20], Point(20), 1 << 20)
                assert found == was, (path.name, offset)
            except DamagedFile as error:
                refused += path.name in str(error)
        path.write_bytes(content)
    assert refused > 10


def test_a_damaged_end_of_a_large_file_is_refused(tmp_path: Path) -> None:
    """No checksum of Parquet covers the end of a file."""
    table, count = tmp_path / "lake/streams/BIG", 20_001
    schema = table_schema(TABLE_COLUMNS)
    values: dict[str, Any] = {"seq": range(1, count + 1), "time_ns": range(count), "subject": ["s"] * count}
    values |= {"data": [b"x"] * count, "time": [0] * count}
    columns = [pa.array(values.get(field.name, [None] * count), field.type) for field in schema]
    write_deltalake(table, pa.table(columns, schema=schema))
    commit = one(table, "_delta_log/*.json")
    commit.write_bytes(lake.tagged(commit))
    history = TableHistory(str(table))
    assert len(history.read(1, count, 1 << 30)) == count
    history.close()
    path = one(table, "*.parquet")
    put(path, path.read_bytes().rindex(b"time_ns"), ord("T"))
    with pytest.raises(HistoryUnavailable, match=f"{path.name}.*crc"):
        TableHistory(str(table)).read(1, count, 1 << 30)


def test_a_damaged_end_of_a_file_of_a_past_version_is_refused(place: Path) -> None:
    uid = one(place, "lake/segments/PAST/*").name
    was = TablePast(str(place / TABLE), uid).was([b">"], Point(20), 100)
    assert was.newest == [16, 17, 18, 19, 20]
    refused = 0
    for path in place.glob(f"{TABLE}/??/*.parquet"):
        content = path.read_bytes()
        put(path, content.rindex(b"time_ns"), ord("T"))
        try:
            assert TablePast(str(place / TABLE), uid).was([b">"], Point(20), 100).newest == was.newest
        except DamagedFile as error:
            refused += path.name in str(error)
        path.write_bytes(content)
    assert refused >= 5


async def test_a_message_of_the_lake_that_is_not_as_it_was_stored_is_refused(tmp_path: Path) -> None:
    """The footer of a data file has no checksum: a damaged one may name another place or another column."""
    lake.build(tmp_path, "PART")
    world = World(tmp_path, "$G", lake=True)
    stream = world.engines.of("$G").streams["PART"]
    reader, history = stream.reader, stream.reader.history
    assert history is not None
    first = stream.store.first_seq
    assert not stream.store.is_local(first)
    record = await reader.fetch(first)
    assert record is not None
    rows = await reader.fetch_run(first, 3, 1 << 20)
    assert isinstance(rows, Records)
    assert stream.store.outlined_so(rows)
    for change in ({"subject": b"x" * len(record.subject)}, {"data": record.data + b"!"}):
        other = msgspec.structs.replace(record, **change)
        altered = [
            encode_record(each.seq, each.time_ns, each.subject, each.header, each.data) for each in (other, *rows[1:])
        ]
        assert not stream.store.outlined_so(back_to_back(altered, rows.seqs))
    reader.history = Altered(history, data=record.data + b"!")
    for read in (reader.fetch(first), reader.fetch_many([first]), reader.fetch_run(first, 1, 1000)):
        with pytest.raises(HistoryUnavailableError, match=f"sequence {first} is not in the lake as it was stored"):
            await read
    reader.history = Altered(history, subject=b"other")
    with pytest.raises(HistoryUnavailableError):
        await reader.fetch(first)
    for each in world.engines.streams():
        each.store.abandon()
    world.stores.close()


def test_a_damaged_note_of_an_erasure_is_named(place: Path) -> None:
    path = one(place, f"{TABLE}/_erasures/*.json")
    put(path, 1, 0xFF)
    with pytest.raises(erasures.BadNote, match=path.name):
        erasures.notes(open_storage(place / "lake"), str(place / TABLE))


def test_damaged_removals_of_a_commit_are_named(place: Path) -> None:
    path = one(place, f"{TABLE}/_departures/*152.parquet")
    put(path, 1300, 0xFF)
    with pytest.raises(departures.DeparturesDamaged, match=path.name):
        departures.read(open_storage(place / "lake"), str(place / TABLE), 152)


def test_an_identity_with_another_letter_is_refused(place: Path) -> None:
    path = one(place, "lake/segments/PAST/*/stream.json")
    at = path.read_bytes().index(b'"max_age"')
    put(path, at + 1, ord("M"))
    with pytest.raises(BadIdentity, match="crc"):
        staging.read_identity(str(path.parent))


def test_an_identity_of_an_earlier_release_has_no_crc(place: Path) -> None:
    path = one(place, "lake/segments/PAST/*/stream.json")
    found = staging.read_identity(str(path.parent))
    path.write_bytes(path.read_bytes().partition(b',"crc"')[0] + b"}")
    assert staging.read_identity(str(path.parent)) == found


def test_an_id_of_a_lake_that_is_no_text_is_made_again(place: Path) -> None:
    put(place / "lake/_lake.json", 10, 0xFF)
    storage = open_storage(place / "lake")
    assert read_id(storage) == ""
    assert identify(storage) == read_id(storage) != ""


def test_a_hint_that_is_no_text_is_not_used(tmp_path: Path) -> None:
    lake.build(tmp_path, "CLONE")
    table = tmp_path / "lake/streams/CLONE"
    log = TableLog(open_storage(tmp_path / "lake"), str(table))
    assert log.newest_checkpoint()[0] == 0
    hint = table / "_delta_log/_last_checkpoint"
    hint.write_bytes(hint.read_bytes().replace(b'"version"', b'"versi\xff\xfe"'))
    assert log.newest_checkpoint() == (-1, [])  # as without it: the first commit is still there


def test_a_damaged_checkpoint_of_a_table_is_named(tmp_path: Path) -> None:
    lake.build(tmp_path, "CLONE")
    path = one(tmp_path, "lake/streams/CLONE/_delta_log/*.checkpoint.parquet")
    log = TableLog(open_storage(tmp_path / "lake"), str(path.parent.parent))
    before, content = log.state().files, path.read_bytes()
    reasons = []
    for offset in range(8, len(content), 499):
        put(path, offset, content[offset] ^ 16)
        try:
            assert log.state().files == before, offset
        except DamagedLog as error:
            reasons.append(str(error))
        path.write_bytes(content)
    assert len(reasons) > 5
    assert all(path.name in each for each in reasons)


def test_a_position_with_another_digit_is_no_position(tmp_path: Path) -> None:
    lake.build(tmp_path, "CLONE")
    path = tmp_path / "lake/streams/CLONE/_delta_log/00000000000000000003.json"
    uid = one(tmp_path, "lake/segments/CLONE/*").name
    watch = TableFollower(str(tmp_path / "lake/streams/CLONE"), uid)
    assert watch.position() == 33
    path.write_bytes(path.read_bytes().replace(b'"version":33', b'"version":34'))
    with pytest.raises(DamagedLog, match="34 and 33"):
        position_of(str(tmp_path / "lake/streams/CLONE"), uid)


def test_a_note_of_a_deleted_stream_with_odd_text_is_set_aside(tmp_path: Path) -> None:
    lake.build(tmp_path, "PART", "OWED")
    path = one(tmp_path, "jetstream/*/streams/OWED*/leaving")
    path.write_bytes(path.read_bytes()[8:])  # as earlier releases wrote it, without a checksum
    put(path, 870, 0xE4)
    _, said = lake.serve(tmp_path)
    assert any("was set aside" in line and "OWED" in line for line in said), said


def test_a_note_of_a_deleted_stream_with_another_letter_is_set_aside(tmp_path: Path) -> None:
    lake.build(tmp_path, "PART", "OWED")
    path = one(tmp_path, "jetstream/*/streams/OWED*/leaving")
    put(path, path.read_bytes().index(b"max_age") + 1, ord("A"))
    _, said = lake.serve(tmp_path)
    assert any("was set aside" in line and "crc" in line for line in said), said


def test_a_note_of_a_deleted_stream_of_an_earlier_release_has_no_crc(tmp_path: Path) -> None:
    lake.build(tmp_path, "PART", "OWED")
    path = one(tmp_path, "jetstream/*/streams/OWED*/leaving")
    path.write_bytes(path.read_bytes()[8:])
    assert lake.serve(tmp_path)[1] == []


def test_a_checkpoint_whose_version_is_damaged_is_not_one_of_a_newer_release(tmp_path: Path) -> None:
    standalone.build(tmp_path, killed=False, names="SB")
    path = one(tmp_path, "jetstream/A/streams/S/checkpoint")
    put(path, 7, 0x80)
    with pytest.raises(CorruptLog, match="the version of the checkpoint is damaged") as error:
        read_checkpoint(Files(), str(path))
    assert error.value.offset == 4
    put(path, 60, 0)
    with pytest.raises(StoreVersionError, match="newer"):
        read_checkpoint(Files(), str(path))


def test_a_replica_whose_checkpoint_has_a_damaged_version_is_repaired(tmp_path: Path) -> None:
    members.build_replicas(tmp_path / "place")
    file = next(each for each in members.files_of_replica(tmp_path / "place", leads=False) if "checkpoint" in each)
    outcome = ReplicaJudge(tmp_path / "place", tmp_path / "scratch").judge(Case(file, 7, 0x80))
    assert outcome.kind == "repaired", outcome
