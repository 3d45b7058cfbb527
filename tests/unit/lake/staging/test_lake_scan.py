"""Tests of `lakestream.lake.staging.scan`: repeated scans for streams in the staging area."""

from __future__ import annotations

import os
import time
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from lakestream.lake.errors import NewerIdentity
from lakestream.lake.staging import scan, staging
from lakestream.lake.staging.scan import SETTLED_NS, Scanner
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream_spark.write import backlog
from tests.lake.model import unstage_through
from tests.s3_server import S3Server


@pytest.fixture(params=["directory", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "directory":
        lakes.require(str(tmp_path / "lake"), create=True)
        return str(tmp_path / "lake")
    s3_server: S3Server = request.getfixturevalue("s3_server")
    s3_server.enter(monkeypatch)
    return s3_server.url(tmp_path.name)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "one.seg"
    path.write_bytes(b"content")
    return path


def identity(number: int, account: str = "$G", config: bytes = b"{}") -> StreamIdentity:
    return StreamIdentity(
        name=f"S.{number}", account=account, uid=f"u{number}", created_ns=number, config=msgspec.Raw(config)
    )


def seen(scanner: Scanner) -> list[tuple[str, bool, int]]:
    return [(each.identity.uid, each.deleted, each.last_index) for each in scanner.scan()]


def settle(lake: str) -> None:
    """Make the staging area look as if it had not changed for a while."""
    past = time.time_ns() - 2 * SETTLED_NS
    for parent, _, _ in os.walk(lake):
        os.utime(parent, ns=(past, past))


def test_it_sees_what_comes_and_goes(lake: str, segment: Path) -> None:
    scanner = Scanner(lake)
    assert seen(scanner) == []
    staging.stage(segment, 1, 5, identity(1), lake)
    staging.stage(segment, 1, 7, identity(2, account="A/B"), lake)
    assert seen(scanner) == [("u1", False, 5), ("u2", False, 7)]
    settle(lake)
    assert seen(scanner) == [("u1", False, 5), ("u2", False, 7)]
    staging.stage(segment, 6, 9, identity(1), lake)
    assert seen(scanner) == [("u1", False, 9), ("u2", False, 7)]
    settle(lake)
    assert seen(scanner) == seen(scanner)
    unstage_through(lake, identity(1), 9)
    assert seen(scanner) == [("u1", False, 0), ("u2", False, 7)]
    settle(lake)
    assert seen(scanner) == seen(scanner)
    staging.mark_deleted(lake, identity(2, account="A/B"))
    assert seen(scanner) == [("u1", False, 0), ("u2", True, 0)]
    staging.discard(paths.staging(paths.root(lake), "S.2", "u2", "A/B"))
    assert seen(scanner) == [("u1", False, 0)]
    assert scan.Scanner(lake).scan() == scanner.scan()


def test_an_idle_stream_is_not_read_again(lake: str, segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        staging.stage(segment, 1, 5, identity(number), lake)
    settle(lake)
    read: list[str] = []
    original = staging.read_identity
    monkeypatch.setattr(staging, "read_identity", lambda directory: read.append(directory) or original(directory))
    scanner = Scanner(lake)
    first = scanner.scan()
    assert len(read) == 5
    assert scanner.scan() == first
    assert len(read) == 5
    staging.stage(segment, 6, 7, identity(3, config=b'{"max_msgs":1}'), lake)
    changed = next(each for each in scanner.scan() if each.identity.uid == "u3")
    assert bytes(changed.identity.config) == b'{"max_msgs":1}'
    assert len(read) == 6


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff" * 40, b'{"name":1}', b'{"name":"\xff"}', b"another's"])
def test_invariant_a_damaged_place_hides_no_other_stream_and_is_told(lake: str, segment: Path, content: bytes) -> None:
    for number in (1, 2, 3):
        staging.stage(segment, 1, 10, identity(number), lake)
    scanner = Scanner(lake)
    (damaged,) = [stream.directory for stream in scanner.scan() if stream.identity.uid == identity(2).uid]
    if content == b"another's":
        content = msgspec.json.encode(identity(1))
    open_storage(lake).write(f"{damaged}/{paths.STREAM_FILE}", content)
    for _ in range(2):
        assert [stream.identity.uid for stream in scanner.scan()] == [identity(1).uid, identity(3).uid]
        assert list(scanner.troubles) == [damaged]
        assert f"{damaged}/{paths.STREAM_FILE} is damaged" in scanner.troubles[damaged]
    staging.stage(segment, 1, 10, identity(2), lake)
    assert len(scanner.scan()) == 3
    assert scanner.troubles == {}


def test_a_newer_servers_stream_is_told_and_stays_as_it_is(lake: str, segment: Path) -> None:
    for number in (1, 2):
        staging.stage(segment, 1, 10, identity(number), lake)
    storage = open_storage(lake)
    path = f"{staging.directory_of(lake, identity(2))}/{paths.STREAM_FILE}"
    newer = b'{"format":3,"stream":{"names":["S.2"]}}'
    newer = newer[:-1] + b',"crc":%d}' % crc32(newer)
    storage.write(path, newer)
    scanner = Scanner(lake)
    assert [stream.identity.uid for stream in scanner.scan()] == [identity(1).uid]
    (trouble,) = scanner.troubles.values()
    assert trouble == (
        f"{path} is of a newer lakestream (format 3), upgrade this program: its segments are not compacted; "
        "nothing of it is changed"
    )
    with pytest.raises(NewerIdentity, match=r"format 3\), upgrade this program"):
        staging.stage(segment, 11, 12, identity(2), lake)
    assert storage.read(path) == newer
    assert [each.last_index for each in staging.segments(path.rpartition("/")[0])] == [10]


def test_a_stream_that_cannot_be_read_is_work_so_that_it_is_told(lake: str) -> None:
    """`compact --once` ended without a word about it."""
    directory = staging.directory_of(lake, identity(1))
    staging.introduce(open_storage(lake), directory, identity(1))
    assert not backlog.has_work(lake)
    open_storage(lake).write(f"{directory}/{paths.STREAM_FILE}", b"{")
    assert backlog.has_work(lake)


def test_an_encrypted_stream_is_written_in_the_format_that_older_releases_leave_alone(lake: str) -> None:
    """The files as they stay readable."""
    storage, stream = open_storage(lake), identity(1)
    directory = staging.directory_of(lake, stream)
    path = f"{directory}/{paths.STREAM_FILE}"
    common = b'"name":"S.1","account":"$G","uid":"u1","created_ns":1,"config":{}'
    staging.introduce(storage, directory, stream)
    assert storage.read(path) == b'{%b,"encrypted":false,"sealed_segments":false,"crc":978996528}' % common
    sealed = msgspec.structs.replace(stream, sealed_segments=True)
    staging.introduce(storage, directory, sealed)
    stored = b'{"format":2,"stream":{%b,"encrypted":false,"sealed_segments":true},"crc":8834260}' % common
    for _ in range(2):
        assert storage.read(path) == stored
        assert staging.read_identity(directory) == sealed
        staging.introduce(storage, directory, stream)  # by who does not know of it
    storage.write(path, b'{"name":"S.1","account":"$G","uid":"u1","created_ns":1,"config":{},"encrypted":true}')
    assert staging.read_identity(directory) == msgspec.structs.replace(stream, encrypted=True)


def test_a_place_that_is_a_directory_where_a_file_belongs_hides_no_other_stream(tmp_path: Path, segment: Path) -> None:
    lake = str(tmp_path / "lake")
    lakes.require(lake, create=True)
    for number in (1, 2):
        staging.stage(segment, 1, 10, identity(number), lake)
    scanner = Scanner(lake)
    damaged = scanner.scan()[0].directory
    os.unlink(f"{damaged}/{paths.STREAM_FILE}")
    os.mkdir(f"{damaged}/{paths.STREAM_FILE}")
    assert [stream.identity.uid for stream in scanner.scan()] == [identity(2).uid]
    assert list(scanner.troubles) == [damaged]


def test_what_is_not_a_stream_is_passed_over(lake: str) -> None:
    storage = open_storage(lake)
    storage.write(f"{storage.root}/segments/S/u/{paths.segment_name(1, 2)}", b"")
    storage.write(f"{storage.root}/segments/S/stray", b"")
    storage.write(f"{storage.root}/accounts/A/streams/T/_delta_log/0.json", b"")
    assert Scanner(lake).scan() == []
