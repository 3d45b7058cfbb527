"""Tests of a lake's id, and of the server names that it stores."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakestream.lake.errors import NotALake
from lakestream.lake.flush import ServerFile, name_server, named_servers, unname_server
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from tests.s3_server import S3Server


@pytest.fixture(params=["directory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "directory":
        return open_storage(tmp_path / "lake")
    s3_server: S3Server = request.getfixturevalue("s3_server")
    s3_server.enter(monkeypatch)
    return open_storage(s3_server.url(tmp_path.name))


def server(name: str, port: int = 4222, server_id: str = "") -> ServerFile:
    return ServerFile(server_id or f"ID-{name}", name or server_id, [f"nats://127.0.0.1:{port}"])


def test_servers_that_make_a_lake_at_the_same_time_agree_about_its_id(storage: Storage) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: lakes.identify(storage), range(32)))
    assert found == {lakes.read_id(storage)}
    assert found != {""}


def test_an_id_that_cannot_be_read_is_made_anew(storage: Storage) -> None:
    storage.write(paths.lake_file(storage.root), b"{")
    assert lakes.read_id(storage) == ""
    made = lakes.identify(storage)
    assert made
    assert lakes.identify(storage) == made


@pytest.mark.parametrize("there", ["_lake.json", "_server.json", "streams/", "segments/", "accounts/", "_compactor/"])
def test_a_lake_is_recognized_by_a_servers_files(tmp_path: Path, there: str) -> None:
    path = tmp_path / there
    if there.endswith("/"):
        path.mkdir()
    else:
        path.touch()
    lakes.require(str(tmp_path))


def test_a_bucket_or_prefix_without_a_lake_is_refused(storage: Storage) -> None:
    with pytest.raises(NotALake):
        lakes.require(storage.root)
    lakes.require(storage.root, create=True)
    lakes.require(storage.root)


def test_what_is_no_lake_is_refused_unless_one_is_to_be_made(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for place in (tmp_path, tmp_path / "none", tmp_path / "photos"):
        with pytest.raises(NotALake, match="there is no lake at"):
            lakes.require(str(place))
    assert not (tmp_path / "none").exists()
    lakes.require(str(tmp_path / "none"), create=True)
    lakes.require(str(tmp_path / "none"))


def test_every_server_has_a_file_that_it_finds_again(storage: Storage) -> None:
    lakes.identify(storage)
    name_server(storage, server("n1"))
    name_server(storage, server("n2", 4223))
    name_server(storage, server("", 4224, "NAMELESS"))
    name_server(storage, server("", 4224, "ITS-NEXT-START"))
    assert {each.server_id for each in named_servers(storage)} == {"ID-n1", "ID-n2", "ITS-NEXT-START"}
    unname_server(storage, server("n1", server_id="AN-EARLIER-START"))
    assert len(named_servers(storage)) == 3
    unname_server(storage, server("n1"))
    unname_server(storage, server("", 4224, "ITS-NEXT-START"))
    assert named_servers(storage) == [server("n2", 4223)]


def test_the_server_that_was_started_last_is_asked_first_and_that_of_older_releases_last(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    storage.write(paths.server_file(storage.root), b'{"server_id": "OLD", "server_name": "x", "urls": ["nats://a:1"]}')
    for number, name in enumerate("bca"):
        name_server(storage, server(name))
        os.utime(paths.server(storage.root, name), (number, number))
    assert [each.server_id for each in named_servers(storage)] == ["ID-a", "ID-c", "ID-b", "OLD"]
    name_server(storage, server("x"))
    assert "OLD" not in [each.server_id for each in named_servers(storage)]
