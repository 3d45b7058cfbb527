"""Keeping entries: the schedule and its failures."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakestream.lake.catalogs.address import parse
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream_catalogs import keeper as keeping
from lakestream_catalogs.keeper import CatalogKeeper
from lakestream_catalogs.plan import SyncResult
from tests.unit.catalogs.memory import MemoryCatalog

ADDRESS, SECOND = parse("hive://one/db"), parse("hive://two/db")


class World:
    """A lake, two catalogs in memory, and a keeper whose clock is moved by hand."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake = str(base / "lake")
        lakes.require(self.lake, create=True)
        self.catalogs = {ADDRESS: MemoryCatalog(), SECOND: MemoryCatalog()}
        self.results: list[SyncResult] = []
        self.complaints: list[str] = []
        self.now = 1000.0
        monkeypatch.setattr(keeping.time, "monotonic", lambda: self.now)
        self.keeper = CatalogKeeper(
            self.lake,
            [ADDRESS, SECOND],
            self.results.append,
            self.complaints.append,
            connect=self.catalogs.__getitem__,
        )

    def write(self, stream: str, **columns: list[object]) -> str:
        path = paths.table(self.lake, stream)
        write_deltalake(path, pa.table({"seq": [1], **columns}), mode="append", schema_mode="merge")
        return path

    def names(self, address: object = ADDRESS) -> list[str]:
        return sorted(self.catalogs[address].kept.get("db", {}))  # type: ignore[index]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_entries_follow_new_tables_columns_and_removals(world: World) -> None:
    path = world.write("ORDERS")
    world.keeper.once()
    assert world.names(ADDRESS) == world.names(SECOND) == ["orders"]
    world.write("ORDERS", price=[1.5])
    world.keeper.note([path])
    [first, _] = world.keeper.once()
    assert first.describe() == "0 created, 1 altered, 0 dropped"
    columns = world.catalogs[ADDRESS].kept["db"]["orders"].columns
    assert columns is not None
    assert [column.name for column in columns] == ["seq", "price"]
    Path(path, "_delta_log").rename(Path(world.lake, "gone"))
    Path(path).rename(Path(world.lake, "gone too"))
    world.keeper.once()
    assert world.names() == []


def test_no_request_is_made_while_nothing_changes(world: World) -> None:
    path = world.write("ORDERS")
    world.keeper.once()
    requests = list(world.catalogs[ADDRESS].requests)
    world.write("ORDERS")
    world.keeper.note([path])
    assert world.keeper.once() == []
    assert world.catalogs[ADDRESS].requests == requests


def test_a_change_by_another_program_is_undone_at_the_next_full_comparison(world: World) -> None:
    world.write("ORDERS")
    world.keeper.once()
    world.catalogs[ADDRESS].touch("db", "orders", comment="mine")
    assert world.keeper.once() == []
    world.now += keeping.FULL_SECONDS
    assert world.keeper.once()[0].describe() == "0 created, 1 altered, 0 dropped"


def test_a_catalog_that_is_away_delays_only_its_own_entries(world: World) -> None:
    world.catalogs[ADDRESS].away = "no route"
    world.write("ORDERS")
    [first, second] = world.keeper.once()
    assert "no route" in first.reason
    assert second.reason == ""
    assert (world.names(), world.names(SECOND)) == ([], ["orders"])
    assert len(world.complaints) == 1
    assert world.keeper.once() == [], "before the pause is over"
    world.now += keeping.FIRST_RETRY_SECONDS
    assert [each.catalog for each in world.keeper.once()] == [str(ADDRESS)]
    assert len(world.complaints) == 1, "the same error is told once"
    world.now += 2 * keeping.FIRST_RETRY_SECONDS - 1
    assert world.keeper.once() == [], "pauses grow"
    world.catalogs[ADDRESS].away = ""
    world.now += 1
    world.keeper.once()
    assert world.names() == ["orders"]
    assert world.complaints[1:] == [f"catalog {ADDRESS} works again"]


def test_a_refused_entry_does_not_stop_the_others_and_is_tried_again(world: World) -> None:
    world.catalogs[ADDRESS].refused = {"events"}
    world.write("EVENTS")
    world.write("ORDERS")
    [first, _] = world.keeper.once()
    assert world.names() == ["orders"]
    assert (first.entries, len(first.failures)) == (1, 1)
    world.catalogs[ADDRESS].refused = set()
    world.now += keeping.FIRST_RETRY_SECONDS
    world.keeper.once()
    assert world.names() == ["events", "orders"]


def test_entries_stay_while_the_lake_is_away(world: World) -> None:
    world.write("ORDERS")
    world.keeper.once()
    Path(world.lake).rename(Path(world.lake).parent / "unmounted")
    world.now += keeping.FULL_SECONDS
    assert world.keeper.once() == []
    assert world.names() == ["orders"]
    assert "cannot be listed" in world.complaints[0]


def test_the_thread_follows_an_announced_commit_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "LEAST_SECONDS", 0.01)
    lake = str(tmp_path / "lake")
    lakes.require(lake, create=True)
    catalog, told = MemoryCatalog(), threading.Semaphore(0)
    keeper = CatalogKeeper(lake, [ADDRESS], lambda _: told.release(), print, connect=lambda _: catalog)
    path = paths.table(lake, "ORDERS")
    write_deltalake(path, pa.table({"seq": [1]}))
    keeper.start()
    assert told.acquire(timeout=60)
    write_deltalake(path, pa.table({"seq": [2], "n": [1]}), mode="append", schema_mode="merge")
    keeper.note([path])
    assert told.acquire(timeout=60)
    keeper.stop()
    columns = catalog.kept["db"]["orders"].columns
    assert columns is not None
    assert len(columns) == 2


def test_an_entry_follows_its_iceberg_table_without_a_look_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    iceberg = parse("hive://one/db?format=iceberg")
    catalog = world.catalogs[iceberg] = MemoryCatalog()
    keeper = CatalogKeeper(
        world.lake, [iceberg], world.results.append, world.complaints.append, connect=world.catalogs.__getitem__
    )
    tables = [world.write(name) for name in ("A", "B", "PLAIN")]

    def commit(table: str, version: int) -> str:
        """Let the table have a version in Iceberg, and return what was done in the catalog."""
        Path(table, "metadata").mkdir(exist_ok=True)
        Path(table, "metadata", "version-hint.text").write_text(str(version))
        catalog.requests.clear()
        keeper.note([table])
        return "; ".join(each.describe() for each in keeper.once())

    assert commit(tables[0], 1) == "1 created, 0 altered, 0 dropped"
    assert commit(tables[1], 1) == "1 created, 0 altered, 0 dropped"
    assert list(catalog.kept["db"]) == ["a", "b"]
    assert commit(tables[1], 2) == "0 created, 1 altered, 0 dropped"
    assert catalog.requests == ["entry db.b", "alter db.b"]
    assert catalog.kept["db"]["b"].properties["metadata_location"] == f"{tables[1]}/metadata/v2.metadata.json"
    catalog.touch("db", "b", properties={}, location="/elsewhere")  # of another program now
    assert commit(tables[1], 3) == "1 created, 0 altered, 0 dropped"
    [theirs, ours] = [name for name in catalog.kept["db"] if name.startswith("b")]
    assert (theirs, catalog.kept["db"][theirs].properties) == ("b", {})
    Path(tables[1], "metadata", "version-hint.text").unlink()
    catalog.requests.clear()
    keeper.note([tables[1]])
    assert [each.describe() for each in keeper.once()] == ["0 created, 0 altered, 1 dropped"]
    assert catalog.requests == [f"entry db.{ours}", f"drop db.{ours}"]
