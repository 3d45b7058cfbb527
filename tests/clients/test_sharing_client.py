"""Tests of Delta Sharing with its own Python client: lists, pandas in both formats, time travel and changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import delta_sharing
import pytest
from delta_sharing.protocol import DeltaSharingProfile, Table
from delta_sharing.rest_client import DataSharingRestClient
from requests.exceptions import HTTPError

from lakestream.lake.storage.lake import open_storage
from tests.delta_tables import BEGIN_MS, HandmadeTable
from tests.s3_server import S3Server
from tests.sharing_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "lake" / "streams").mkdir(parents=True)
    world = World(tmp_path / "lake")
    yield world
    world.close()


def filled(world: World) -> HandmadeTable:
    """Make a table with three messages in two files, of which a deletion vector removes the second."""
    table = world.table("ORDERS", "subject", properties={"delta.enableChangeDataFeed": "true"})
    table.append([("größe/1%", 1), ("größe/1%", 2)])
    first = next(iter(table.files))
    table.append([("o.fr", 3)])
    table.delete(first, [1])
    return table


def test_lists(world: World, tmp_path: Path) -> None:
    world.table("ORDERS")
    world.table("EVENTS")
    client = delta_sharing.SharingClient(world.profile(tmp_path, world.token("ORDERS", "EVENTS")))
    [share] = client.list_shares()
    [schema] = client.list_schemas(share)
    assert [table.name for table in client.list_tables(schema)] == ["EVENTS", "ORDERS"]
    assert [table.name for table in client.list_all_tables()] == ["EVENTS", "ORDERS"]


def test_pandas_reads_the_rows_that_are_there(world: World, tmp_path: Path) -> None:
    filled(world)
    url = world.profile(tmp_path, world.token("ORDERS", history=True)) + "#sales.streams.ORDERS"
    found = delta_sharing.load_as_pandas(url).sort_values("seq")
    assert found["seq"].tolist() == [1, 3]
    assert found["subject"].tolist() == ["größe/1%", "o.fr"]
    assert found["price"].tolist() == [0.5, 1.5], "typed columns too"
    assert found["data"].tolist() == [b"m1", b"m3"]
    assert sorted(delta_sharing.load_as_pandas(url, use_delta_format=True)["seq"]) == [1, 3]
    assert sorted(delta_sharing.load_as_pandas(url, version=2)["seq"]) == [1, 2, 3]
    assert sorted(delta_sharing.load_as_pandas(url, version=1, use_delta_format=False)["seq"]) == [1, 2]
    with pytest.raises(HTTPError, match="DS_UNSUPPORTED_DELTA_TABLE_FEATURES"):
        delta_sharing.load_as_pandas(url, use_delta_format=False)
    assert delta_sharing.get_table_version(url) == 3
    assert delta_sharing.get_table_metadata(url).num_files == 2


def test_pandas_travels_by_time_and_stops_at_a_limit(world: World, tmp_path: Path) -> None:
    filled(world)
    url = world.profile(tmp_path, world.token("ORDERS", history=True)) + "#sales.streams.ORDERS"
    assert BEGIN_MS == 1_790_000_000_000
    assert sorted(delta_sharing.load_as_pandas(url, timestamp="2026-09-21T14:13:22Z")["seq"]) == [1, 2]
    assert len(delta_sharing.load_as_pandas(url, limit=1)) == 1
    assert list(delta_sharing.load_as_pandas(url, limit=0, use_delta_format=False, version=1)["seq"]) == []


def test_changes(world: World, tmp_path: Path) -> None:
    filled(world)
    url = world.profile(tmp_path, world.token("ORDERS", history=True)) + "#sales.streams.ORDERS"
    found = delta_sharing.load_table_changes_as_pandas(url, starting_version=1, use_delta_format=True)
    rows = sorted(zip(found["_commit_version"], found["_change_type"], found["seq"], strict=True))
    assert rows == [(1, "insert", 1), (1, "insert", 2), (2, "insert", 3), (3, "delete", 2)]
    before = delta_sharing.load_table_changes_as_pandas(url, starting_version=1, ending_version=2)
    assert sorted(before["seq"]) == [1, 2, 3]


def test_errors_reach_the_user(world: World, tmp_path: Path) -> None:
    world.table("ORDERS").append([("a", 1)])
    profile = world.profile(tmp_path, world.token("ORDERS"))
    with pytest.raises(HTTPError, match="--history"):
        delta_sharing.load_as_pandas(profile + "#sales.streams.ORDERS", version=0)
    with pytest.raises(HTTPError, match="table NONE does not exist"):
        delta_sharing.load_as_pandas(profile + "#sales.streams.NONE")
    world.entries.clear()
    world.forget()
    with pytest.raises(HTTPError, match="401"):
        delta_sharing.SharingClient(profile).list_shares()


def test_a_lake_in_an_object_store_has_urls_of_the_store(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    table = HandmadeTable(tmp_path / "ORDERS", ("subject",))
    table.append([("größe/1%", 1), ("größe/1%", 2), ("o.fr", 3)])
    table.delete(next(iter(table.files)), [1])
    root = s3_server.url("the/lake")
    storage = open_storage(root)
    for path in filter(Path.is_file, table.path.rglob("*")):
        storage.write(f"{root}/streams/ORDERS/{path.relative_to(table.path)}", path.read_bytes())
    world = World(root)
    profile = world.profile(tmp_path, world.token("ORDERS"))
    found = delta_sharing.load_as_pandas(profile + "#sales.streams.ORDERS").sort_values("seq")
    assert found["seq"].tolist() == [1, 3]
    client = DataSharingRestClient(DeltaSharingProfile.read_from_file(profile))
    client.set_delta_format_header()
    lines = client.list_files_in_table(Table("ORDERS", "sales", "streams")).lines
    assert s3_server.endpoint in lines[2]
    assert all(secret not in line for secret in s3_server.secrets[1:] for line in lines)
    assert "X-Amz-Expires=3600" in lines[2]
    world.close()
