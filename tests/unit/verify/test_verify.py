"""Tests of the verification of stores: whole ones without a finding, and each kind of damage with file and offset."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lakestream.account.engines import MARK_NS
from lakestream.log.format.errors import StoreLocked
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Frame, decode_frame, encode_header
from lakestream.log.format.segment import HEADER_SIZE, decode_segment_header
from lakestream.log.store.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from lakestream.log.store.root import StoreRoot
from lakestream_verify.log.findings import Finding, FindingKind, Repair
from lakestream_verify.stores import NoStore, StoreCheck, root_of
from tests.corruption.standalone import build, verify
from tests.unit.account.test_engines import World as Server
from tests.unit.logkit import flip
from tests.unit.replica_world import World, fill

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    build(directory, killed=False)
    return directory


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "store"))


def stream_files(store: Path, name: str, pattern: str) -> list[Path]:
    return sorted((store / "jetstream/A/streams" / name).glob(pattern))


def only(found: list[Finding], kind: FindingKind, path: Path) -> Finding:
    (finding,) = [each for each in found if not each.harmless]
    assert (finding.kind, finding.file) == (kind, str(path)), finding
    return finding


def content(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.rglob("*") if path.is_file()}


def test_a_whole_store_has_no_findings_and_is_not_touched(store: Path) -> None:
    before = content(store)
    assert verify(store) == []
    assert content(store) == before


def test_a_torn_end_is_a_note_and_left_alone(copy: Path) -> None:
    path = stream_files(copy, "S", "log/*.seg")[-1]
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"1FKL half a frame")
    before = content(copy)
    (finding,) = [each for each in verify(copy) if each.file == str(path) or each.kind is FindingKind.TORN]
    assert finding.harmless
    assert finding.repair is Repair.START
    assert f"offset {size}" in finding.what
    assert content(copy) == before


@pytest.mark.parametrize(
    ("pattern", "at", "kind"),
    [
        ("log/*25.seg", 200, FindingKind.FRAME),
        ("log/*25.seg", 10, FindingKind.HEADER),
        ("log/*25.seg", -5, FindingKind.FOOTER),
        ("log/*.outline", -5, FindingKind.OUTLINE),
        ("checkpoint", -5, FindingKind.CHECKPOINT),
    ],
)
def test_damage_is_found_with_its_file(copy: Path, pattern: str, at: int, kind: FindingKind) -> None:
    (path,) = stream_files(copy, "S", pattern)
    flip(str(path), at if at > 0 else path.stat().st_size + at)
    finding = only(verify(copy), kind, path)
    assert (finding.account, finding.stream) == ("A", "S")


def test_all_damages_of_a_segment_are_found(copy: Path) -> None:
    (path,) = stream_files(copy, "S", "log/*25.seg")
    for offset in (100, 1000):
        flip(str(path), offset)
    frames = [each for each in verify(copy) if each.kind is FindingKind.FRAME]
    assert [each.offset < at for each, at in zip(frames, (100, 1000), strict=True)] == [True, True]


def test_a_missing_segment_is_a_gap(copy: Path) -> None:
    paths = stream_files(copy, "Z", "log/*.seg")
    paths[1].unlink()
    assert only(verify(copy), FindingKind.GAP, paths[2]).offset == 0


def rewrite(path: Path, change: Callable[[Frame], None]) -> None:
    """Change the first frame of a segment with a valid CRC, as only a bug of the server would."""
    data = path.read_bytes()
    header = decode_segment_header(data)
    assert not isinstance(header, str)
    frame = decode_frame(data, HEADER_SIZE, len(data), header.salt)
    assert isinstance(frame, Frame)
    change(frame)
    head = encode_header(frame, frame.write, header.salt)
    path.write_bytes(data[:HEADER_SIZE] + head + frame.body + data[HEADER_SIZE + len(head) + len(frame.body) :])


def test_frames_of_another_order_or_count_are_found_although_their_crcs_are_right(copy: Path) -> None:
    (path,) = stream_files(copy, "S", "log/*25.seg")
    rewrite(path, lambda frame: setattr(frame, "count", frame.count + 1))
    assert "and says" in only(verify(copy), FindingKind.FRAME, path).what
    rewrite(path, lambda frame: setattr(frame, "count", frame.count - 1))
    assert verify(copy) == []
    rewrite(path, lambda frame: setattr(frame, "term", 0))
    assert any("last_term" in each.what or "terms" in each.what for each in verify(copy))


def forge(copy: Path, stream: str, **fields: object) -> Path:
    """Change fields of a checkpoint, whose CRC stays right."""
    (path,) = stream_files(copy, stream, "checkpoint")
    found = read_checkpoint(Files(), str(path))
    assert found is not None
    state, subjects = found.state, found.subjects
    write_checkpoint(Files(), str(path), Snapshot(msgspec.structs.replace(state, **fields), subjects.snapshot()))
    return path


def test_a_checkpoint_that_differs_from_a_replay_is_found(copy: Path) -> None:
    path = forge(copy, "Q", last_time=1)
    assert "last_time: 1 by the checkpoint" in only(verify(copy), FindingKind.REPLAY, path).what


def test_a_state_that_differs_from_the_records_is_found_without_the_first_entries(copy: Path) -> None:
    path = forge(copy, "S", size=12)
    assert "bytes, the state has" in only(verify(copy), FindingKind.INDEX, path).what


def test_a_copied_directory_is_found(copy: Path) -> None:
    streams = copy / "jetstream/A/streams"
    shutil.copytree(streams / "Q", streams / "COPY")
    assert "stream Q" in only(verify(copy), FindingKind.IDENTITY, streams / "COPY").what


def test_a_store_that_a_server_uses_is_refused(copy: Path) -> None:
    root = StoreRoot.open(str(copy / "jetstream"))
    with pytest.raises(StoreLocked, match="stop it first"):
        verify(copy)
    root.close()
    check = StoreCheck(root_of(str(copy)), lambda account, name: True)
    with pytest.raises(StoreLocked):
        StoreRoot.open(str(copy / "jetstream"))
    check.close()


def test_only_the_named_streams_are_verified(copy: Path) -> None:
    for name in "SZ":
        flip(str(stream_files(copy, name, "checkpoint")[0]), 100)
    check = StoreCheck(root_of(str(copy / "jetstream")), lambda account, name: name == "S")
    assert {each.stream for each in check.findings(lambda count: None)} == {"S"}
    assert check.streams == 1
    check.close()
    with pytest.raises(NoStore):
        root_of(str(copy / "jetstream/A"))


def test_streams_with_every_feature_have_no_findings(tmp_path: Path) -> None:
    """The checkpoint of each equals a replay of its log."""
    world = Server(tmp_path, "A")
    world.create("A", "TT", subjects=["t.>"], allow_msg_counter=True)
    world.create("A", "D", subjects=["d.>"], max_bytes=2000, duplicate_window=60_000_000_000)
    world.create("A", "I", subjects=["i.>"], retention="interest", allow_atomic=True)
    world.create("A", "L", subjects=["l.>"], max_msgs=7, allow_rollup_hdrs=True, deny_delete=False)
    world.create("A", "M", mirror={"name": "D"})
    consumer = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "i.1"}
    world.ask("A", "$JS.API.CONSUMER.CREATE.I.c.i.1", {"stream_name": "I", "config": consumer})
    for number in range(40):
        for letter in "dil":
            world.publish("A", f"{letter}.{number % 3}", b"x" * number)
        if number == 20:
            for stream in world.engines.streams():
                stream.checkpoint()
            world.settle()
    world.ask("A", "$JS.API.STREAM.PURGE.L", {"filter": "l.1", "keep": 1})
    world.clock.advance(MARK_NS)
    world.settle()
    world.stop()
    assert verify(tmp_path) == []


def test_a_member_of_a_cluster_is_verified_by_what_it_knows(tmp_path: Path) -> None:
    world = World(tmp_path, seal_bytes=20_000)
    world.stream()
    for _ in range(3):
        fill(world, 20)
        world.run(0.1)
    fill(world, 3)
    node = world.followers()[0]
    directory = Path(node.replica.directory)
    root = directory.parents[3]
    node.stop()
    assert verify(root) == []
    flip(str(directory / "checkpoint"), 100)
    assert only(verify(root), FindingKind.CHECKPOINT, directory / "checkpoint").repair is Repair.REPLICAS
    os.unlink(directory / "checkpoint")
    newest = sorted((directory / "log").glob("*.seg"))[-1]
    os.truncate(newest, newest.stat().st_size - 1)
    assert any(each.file == str(newest) and each.repair is Repair.REPLICAS for each in verify(root))
    (directory / "raft").write_bytes(bytes(40_000))
    assert only([each for each in verify(root) if each.kind is FindingKind.RAFT], FindingKind.RAFT, directory / "raft")


@pytest.mark.parametrize("name", ["standalone-stopped", "standalone-killed", "accounts", "cluster"])
def test_recorded_stores_of_earlier_releases_have_no_findings(tmp_path: Path, name: str) -> None:
    """These have a stream for each feature, and members of a cluster."""
    with tarfile.open(Path(__file__).parents[2] / "stored" / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    stores = [path.parent.parent for path in tmp_path.rglob("jetstream/VERSION")]
    assert len(stores) == (3 if name == "cluster" else 1)
    for each in stores:
        assert [finding for finding in verify(each) if not finding.harmless] == []
