"""Tests of staging: adding, removing, marking and finding segments; every step may be repeated."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lakestream.lake.errors import StagingConflict, UnsupportedLake
from lakestream.lake.staging import scan, staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths

pytestmark = pytest.mark.unit

ORDERS = StreamIdentity(name="ORDERS", account="$G", uid="UID1", created_ns=5)


@pytest.fixture(autouse=True)
def lake_of_a_test(tmp_path: Path) -> None:
    lakes.require(str(tmp_path / "lake"), create=True)


def sealed(directory: Path, content: bytes = b"segment") -> Path:
    path = directory / "1.seg"
    path.write_bytes(content)
    return path


def test_staging_twice_is_staging_once(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    source = sealed(tmp_path)
    first = staging.stage(source, 1, 7, ORDERS, str(lake))
    assert staging.stage(source, 1, 7, ORDERS, str(lake)) == first
    assert os.path.samefile(first, source), "on one file system no byte is copied"
    (found,) = staging.segments(os.path.dirname(first))
    assert (found.first_index, found.last_index, found.size) == (1, 7, 7)
    (stream,) = scan.Scanner(str(lake)).scan()
    assert stream.identity == ORDERS
    assert not stream.deleted


def test_a_copy_from_an_earlier_try_counts_as_staged(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    target = staging.stage(sealed(tmp_path), 1, 7, ORDERS, str(lake))
    os.unlink(target)
    Path(target).write_bytes(b"segment")
    assert staging.stage(sealed(tmp_path), 1, 7, ORDERS, str(lake)) == target


def test_other_content_in_the_same_place_is_refused(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    target = staging.stage(sealed(tmp_path), 1, 7, ORDERS, str(lake))
    (tmp_path / "other").mkdir()
    with pytest.raises(StagingConflict, match="already staged"):
        staging.stage(sealed(tmp_path / "other", b"SEGMENT"), 1, 7, ORDERS, str(lake))
    assert Path(target).read_bytes() == b"segment"


def test_without_hard_links_a_copy_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(os, "link", refuse)
    source = sealed(tmp_path)
    target = staging.stage(source, 1, 7, ORDERS, str(tmp_path / "lake"))
    assert Path(target).read_bytes() == b"segment"
    assert not os.path.samefile(source, target)
    assert sorted(os.listdir(os.path.dirname(target))) == sorted([os.path.basename(target), "stream.json"])


def test_another_error_of_the_file_system_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="full"):
        staging.stage(sealed(tmp_path), 1, 7, ORDERS, str(tmp_path / "lake"))


def test_a_deleted_stream_is_marked_and_later_discarded(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    staging.stage(sealed(tmp_path), 1, 7, ORDERS, lake)
    staging.mark_deleted(lake, ORDERS)
    staging.mark_deleted(lake, ORDERS)
    (stream,) = scan.Scanner(lake).scan()
    assert stream.deleted
    assert staging.segments(stream.directory) == []
    staging.discard(stream.directory)
    staging.discard(stream.directory)
    assert scan.Scanner(lake).scan() == []


def test_of_streams_with_one_name_the_youngest_lives(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    younger = StreamIdentity(name="ORDERS", account="$G", uid="UID0", created_ns=9)
    other = StreamIdentity(name="ORDERS", account="TEAM", uid="UID7", created_ns=1)
    for identity in (younger, ORDERS, other):
        staging.stage(sealed(tmp_path), 1, 7, identity, lake)
    live, gone = staging.current(scan.Scanner(lake).scan())
    assert [stream.identity for stream in live] == [other, younger]
    assert [stream.identity for stream in gone] == [ORDERS]
    staging.mark_deleted(lake, younger)
    live, gone = staging.current(scan.Scanner(lake).scan())
    assert [stream.identity for stream in live] == [other], "an older stream does not come back to life"
    assert len(gone) == 2


def test_a_directory_in_the_making_is_not_a_stream(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    os.makedirs(paths.staging(lake, "ORDERS", "UID1"))
    (tmp_path / "lake" / "segments" / "stray").write_bytes(b"")
    assert scan.Scanner(lake).scan() == []


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("ORDERS", "ORDERS"),
        ("KV_a-b_C", "KV_a-b_C"),
        ("größe", "größe"),
        ("a%41:b#?~", "a~25" + "41~3Ab~23~3F~7E"),
        ("$G", "$G"),
    ],
)
def test_names_become_directories(name: str, directory: str) -> None:
    assert paths.directory_name(name) == directory


def test_long_names_stay_apart() -> None:
    one, two = paths.directory_name("%" * 255), paths.directory_name("%" * 254 + "&")
    assert one != two
    assert len(one.encode()) <= 255
    assert len(paths.directory_name("é" * 127).encode()) <= 255


def test_paths_of_tables_and_segments() -> None:
    assert paths.table("/lake", "ORDERS") == "/lake/streams/ORDERS"
    assert paths.table("file:///my%20lake/", "ORDERS", "TEAM") == "/my lake/accounts/TEAM/streams/ORDERS"
    assert paths.table("s3://bucket/lake/", "ORDERS") == "s3://bucket/lake/streams/ORDERS"
    assert paths.staging("/lake", "ORDERS", "U") == "/lake/segments/ORDERS/U"
    assert paths.parse_segment_name(paths.segment_name(3, 40)) == (3, 40)
    assert paths.parse_segment_name("stream.json") is None


@pytest.mark.parametrize("lake", ["s3://bucket/lake", "/data/100%25"])
def test_a_lake_that_cannot_be_used_is_refused_in_words(lake: str) -> None:
    with pytest.raises(UnsupportedLake, match="lake"):
        paths.local_root(lake)
