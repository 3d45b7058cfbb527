"""Tests of the comparison of a store with its lake: staged segments and the table against the log."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from lakestream.lake.staging import staging
from lakestream.log.format.segment import HEADER_SIZE, read_footer
from lakestream.log.store.segment_log import LogOptions
from lakestream_verify.log.findings import Finding, FindingKind, Repair
from lakestream_verify.stores import StoreCheck, lake_beside, root_of
from tests.unit.account.test_engines import World
from tests.unit.lake.read.test_live import Table
from tests.unit.logkit import alter, flip

pytestmark = pytest.mark.unit

OPTIONS = LogOptions(seal_bytes=3000, seal_age_ns=1 << 60, retain_bytes=3500)


def commit(directory: Path, world: World) -> None:
    """Compact what is staged, as a compactor does."""
    stream = world.engines.of("$G").streams["S"]
    identity = staging.StreamIdentity(stream.name, "$G", stream.uid, stream.created_ns)
    model: Any = SimpleNamespace(identity=identity)
    Table(directory / "lake", model).commit()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store whose first messages are only in the table, others also staged, and the newest in the log."""
    directory = tmp_path_factory.mktemp("lake")
    world = World(directory, "$G", lake=True)
    world.stores._options = OPTIONS
    world.create("$G", subjects=["s.>"])
    stream = world.engines.of("$G").streams["S"]
    for number in range(120):
        world.publish("$G", f"s.{number % 7}", b"%d" % number * 9)
        if number % 20 == 7:
            world.ask("$G", "$JS.API.STREAM.MSG.DELETE.S", {"seq": number})
        if number == 30:
            shutil.copytree(directory / "jetstream", directory / "older")
        if number == 60:
            stream.checkpoint()
            world.keeper.when_staged(stream, lambda wrong: None)
            world.settle()
            commit(directory, world)
            world.keeper.when_staged(stream, lambda wrong: None)
            world.settle()
    stream.checkpoint()
    world.keeper.when_staged(stream, lambda wrong: None)
    world.settle()
    assert stream.store.local_floor > 1
    commit(directory, world)
    world.stop()
    return directory


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "store"))


def verify(store: Path, every_row: bool = False) -> list[Finding]:
    root = root_of(str(store))
    check = StoreCheck(root, lambda account, name: True, lake_beside(root), every_row)
    try:
        return list(check.findings(lambda count: None))
    finally:
        check.close()


def table_of(store: Path) -> DeltaTable:
    return DeltaTable(str(store / "lake/streams/S"))


def test_log_staged_segments_and_table_agree(store: Path) -> None:
    assert verify(store) == []
    assert list(store.glob("lake/segments/S/*/*.seg"))


def test_a_damaged_staged_segment_is_found(copy: Path) -> None:
    path = sorted(copy.glob("lake/segments/S/*/*.seg"))[-1]
    flip(str(path), 300)
    (finding,) = verify(copy)
    assert (finding.kind, finding.file, finding.offset > 0) == (FindingKind.STAGED, str(path), True)
    assert finding.repair is Repair.COMPACTOR


def test_damaged_bytes_of_a_staged_segment_are_found_or_harmless(copy: Path) -> None:
    """Bytes between the header's crc and the frames are empty, and nothing reads them."""
    path = sorted(copy.glob("lake/segments/S/*/*.seg"))[-1]
    whole = path.read_bytes()
    for at in Random(1).sample(range(len(whole)), 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        found = [(each.kind, each.file) for each in verify(copy)]
        assert found == [] if 40 <= at < HEADER_SIZE else found == [(FindingKind.STAGED, str(path))], at


def test_a_staged_segment_with_other_messages_is_found(copy: Path) -> None:
    paths = sorted(copy.glob("lake/segments/S/*/*.seg"))
    log = sorted(copy.glob("jetstream/$G/streams/S/log/*.seg"))
    first, last = paths[-1].name.removesuffix(".seg").split("-")
    assert any(each.name == f"{int(first):020d}.seg" for each in log)
    shutil.copyfile(log[0], paths[-1])
    assert any(each.kind is FindingKind.STAGED for each in verify(copy)), (first, last)


def test_the_first_message_that_differs_in_a_staged_segment_is_named(copy: Path) -> None:
    path = sorted(copy.glob("lake/segments/S/*/*.seg"))[-1]
    footer = read_footer(str(path))[0]
    for seq in (footer.last_seq, footer.first_seq):
        alter(path.parent, seq, b"s.9")
        (finding,) = verify(copy)
        assert (finding.kind, finding.sequence, finding.file) == (FindingKind.STAGED, seq, str(path))


def test_rows_that_the_table_lacks_are_found(copy: Path) -> None:
    table_of(copy).delete("seq IN (3, 90)")
    (finding,) = verify(copy)
    assert finding.kind is FindingKind.TABLE
    assert finding.what == "it lacks messages of the stream: 3, 90"


def test_rows_that_were_changed_are_found_by_digest_and_one_by_one(copy: Path) -> None:
    table_of(copy).update({"data": "arrow_cast('wrong', 'Binary')"}, predicate="seq = 4")
    table_of(copy).update({"subject": "'s.other'"}, predicate="seq = 5")
    (finding,) = verify(copy)
    assert finding.what == "subject or size of rows differ from the stream: 4, 5"
    assert len(verify(copy, every_row=True)) == 2


def test_a_row_with_other_bytes_of_the_same_length_is_found_where_the_log_has_the_message(copy: Path) -> None:
    rows = table_of(copy).to_pyarrow_table(columns=["seq", "data"]).to_pylist()
    seq, data = max((row["seq"], row["data"]) for row in rows)
    table_of(copy).update({"data": f"arrow_cast('{'x' * len(data)}', 'Binary')"}, predicate=f"seq = {seq}")
    (finding,) = verify(copy)
    assert finding.what.endswith(f": {seq}")


def test_a_damaged_file_of_the_table_is_found(copy: Path) -> None:
    path = Path(table_of(copy).file_uris()[0].removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-1])
    found = verify(copy)
    assert [(each.kind, each.repair) for each in found] == [(FindingKind.TABLE, Repair.COMPACTOR)]


def test_a_table_that_is_ahead_of_a_restored_log_is_found(copy: Path) -> None:
    shutil.rmtree(copy / "jetstream")
    (copy / "older").rename(copy / "jetstream")
    (finding,) = [each for each in verify(copy) if each.kind is FindingKind.TABLE]
    assert "an older store was restored" in finding.what


def test_a_deleted_stream_that_the_table_still_lacks_is_verified(tmp_path: Path) -> None:
    world = World(tmp_path, "$G", lake=True)
    world.stores._options = OPTIONS
    world.create("$G", subjects=["s.>"], metadata={"lakestream.on_delete": "keep"})
    for number in range(60):
        world.publish("$G", f"s.{number % 7}", b"%d" % number * 9)
        if number == 30:
            stream = world.engines.of("$G").streams["S"]
            world.keeper.when_staged(stream, lambda wrong: None)
            world.settle()
            commit(tmp_path, world)
    (tmp_path / "lake").rename(tmp_path / "away")
    (tmp_path / "lake").write_bytes(b"no directory")
    assert world.ask("$G", "$JS.API.STREAM.DELETE.S")["success"]
    world.stop()
    (tmp_path / "lake").unlink()
    (tmp_path / "away").rename(tmp_path / "lake")
    (directory,) = tmp_path.glob("jetstream/$G/streams/S.deleted-*-owing")
    assert verify(tmp_path) == []
    path = sorted(directory.glob("log/*.seg"))[0]
    flip(str(path), 700)
    found = verify(tmp_path)
    assert {(each.file, each.stream) for each in found if not each.harmless} == {(str(path), "S")}
