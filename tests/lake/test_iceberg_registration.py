"""Tests of Iceberg tables in the catalogs of others: pyiceberg finds them by name there, as of the newest commit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.memory import InMemoryCatalog

from lakestream.lake.catalogs.address import parse
from lakestream.lake.table.schema import LAKE_PROPERTY, TABLE_PROPERTY
from lakestream_catalogs.keeper import CatalogKeeper
from lakestream_catalogs.opening import open_catalog
from lakestream_catalogs.plan import SyncResult
from lakestream_catalogs.rest import TOKEN
from lakestream_catalogs.tables import HINT, LakeTables
from tests.hive_server import HiveServer
from tests.iceberg_rest_server import IcebergRestServer
from tests.lake.catalog_lake import CatalogLake
from tests.s3_server import S3Server

pytestmark = pytest.mark.lake

SECRET = "for-these-tests"
Place = tuple[str, Callable[[], Any]]
"""Address of a catalog, and pyiceberg's client for it."""


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Place]:
    monkeypatch.setenv(TOKEN, SECRET)
    monkeypatch.setattr("lakestream_catalogs.rest.REQUEST_SECONDS", 60.0)  # the first ones of a JVM on a busy machine
    server = IcebergRestServer(SECRET, getattr(request, "param", True))
    yield (
        f"iceberg+http://{server.address}/api?namespace=events&warehouse=w",
        lambda: load_catalog("t", type="rest", uri=f"http://{server.address}/api", token=SECRET, warehouse="w"),
    )
    server.close()


@pytest.fixture
def hive(tmp_path: Path) -> Iterator[Place]:
    server = HiveServer(tmp_path)
    server.wait()
    uri = f"127.0.0.1:{server.port}"
    yield f"hive://{uri}/events?format=iceberg", lambda: load_catalog("t", type="hive", uri=f"thrift://{uri}")
    server.stop()


@pytest.fixture
def glue(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    s3_server.enter(monkeypatch)
    url = s3_server.endpoint

    def client() -> Any:
        return load_catalog("t", type="glue", client=boto3.client("glue", region_name="us-east-1", endpoint_url=url))

    return f"glue://us-east-1/events?format=iceberg&endpoint={url}", client


class World:
    """A lake with a stream's table, an Iceberg table in its directory, and a keeper of one catalog."""

    def __init__(self, root: Path, place: Place) -> None:
        self.made = CatalogLake(root / "lake")
        self.table = self.made.write("ORDERS")
        self.made.write("PLAIN")  # has no Iceberg table
        self.address, self.client = parse(place[0]), place[1]
        identity = {LAKE_PROPERTY: LakeTables(self.made.root).read().lake, TABLE_PROPERTY: "streams/ORDERS"}
        writer = InMemoryCatalog("writer", warehouse=str(root / "warehouse"))
        writer.create_namespace("lake")
        fields = pa.schema([pa.field("seq", pa.int64())])
        self.iceberg = writer.create_table("lake.orders", fields, location=self.table, properties=identity)
        self.version = 0
        self.passes: list[SyncResult] = []
        self.troubles: list[str] = []
        self.keeper = CatalogKeeper(self.made.root, [self.address], self.passes.append, self.troubles.append)

    def commit(self) -> None:
        """Let the Iceberg table have another row, as the compactor does, and the catalog follow."""
        self.version += 1
        self.iceberg.append(pa.table({"seq": [self.version]}))
        place = Path(self.table, "metadata")
        shutil.copy(urlsplit(self.iceberg.metadata_location).path, place / f"v{self.version}.metadata.json")
        (place / HINT).write_text(str(self.version))
        self.keeper.note([self.table])
        self.keeper.once()

    def check(self) -> None:
        """Assert that a client that knows the catalog alone finds the rows."""
        rows = self.client().load_table("events.orders").scan().to_arrow().column("seq").to_pylist()
        assert sorted(rows) == list(range(1, self.version + 1))


@pytest.mark.parametrize("rest", [True, False], indirect=True, ids=["overwrites", "registers once"])
def test_a_rest_catalog_of_others_has_the_newest_commit(
    tmp_path: Path, rest: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows(World(tmp_path, rest))
    monkeypatch.setenv(TOKEN, "wrong")
    with pytest.raises(Exception, match=f"the token is wrong; look at the token in {TOKEN}"):
        open_catalog(parse(rest[0]))


def test_a_hive_metastore_has_the_newest_commit(tmp_path: Path, hive: Place) -> None:
    follows(World(tmp_path, hive))


def test_glue_has_the_newest_commit(tmp_path: Path, glue: Place) -> None:
    follows(World(tmp_path, glue))


def follows(world: World) -> None:
    """Assert that entries follow commits, are mended, and go with their streams, and that others' entries stay."""
    for number in range(3):
        world.commit()
        assert world.troubles == []
        assert world.passes[-1].describe() == f"{int(not number)} created, {int(number > 0)} altered, 0 dropped"
        world.check()
    with open_catalog(world.address) as catalog:
        [entry] = catalog.entries("events")
        catalog.drop("events", "orders")  # by another program
    world.commit()
    assert world.passes[-1].describe() == "1 created, 0 altered, 0 dropped"
    world.check()
    world.keeper.once()
    assert len(world.passes) == 5 - 1  # nothing has changed
    shutil.rmtree(Path(world.table, "metadata"))
    world.keeper.note([world.table])
    world.keeper.once()
    assert world.passes[-1].describe() == "0 created, 0 altered, 1 dropped"
    with open_catalog(world.address) as catalog:
        assert catalog.entries("events") == []
    assert entry.name == "orders"
