"""Entries in a Hive metastore, kept by a compactor and read by another Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pymetastore.metastore import HMS

from lakestream.lake.catalogs.address import CatalogAddress, parse
from lakestream.lake.staging import staging
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.schemas.schema import Schema
from lakestream_catalogs.entries import CatalogEntry
from lakestream_catalogs.hive import INPUT_FORMAT, OUTPUT_FORMAT, SERDE, HiveCatalog
from tests.hive_server import HiveServer
from tests.lake.conftest import job
from tests.lake.model import StreamModel
from tests.lake.test_compact_job import Job

pytestmark = pytest.mark.lake

V1 = {
    "order_id": {"type": "string"},
    "price": {"type": "number"},
    "address": {"type": "object", "properties": {"zip": {"type": "string"}}},
}
V2 = {
    **V1,
    "city": {"type": "string"},
    "address": {"type": "object", "properties": {"zip": {"type": "string"}, "street": {"type": "string"}}},
}


class World:
    """A lake with streams, a metastore, and a compactor that keeps its entries."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.lake = str(base / "lake of $X #1")
        lakes.require(self.lake, create=True)
        self.hive = HiveServer(base)
        self.address: CatalogAddress = parse(f"hive://127.0.0.1:{self.hive.port}/events")
        self.orders = StreamModel(base / "ORDERS")
        self.describe("All orders")
        self.passes = 0
        self.job: Job | None = None

    def describe(self, text: str) -> None:
        config = {"name": "ORDERS", "description": text, "metadata": {"lakestream.schema": "orders"}}
        encoded = msgspec.Raw(msgspec.json.encode(config))
        self.orders.identity = msgspec.structs.replace(self.orders.identity, config=encoded)

    def schema(self, version: int, properties: dict[str, Any]) -> None:
        text = json.dumps({"type": "object", "properties": properties, "required": ["order_id"]})
        made = Schema("orders", version, "json", text, created_ns=version)
        lakes.require(str(self.lake), create=True)
        schemas.write_schema(open_storage(self.lake), "$G", made)

    def publish(self, model: StreamModel, *payloads: Any) -> None:
        model.publish([(b"o", b"", json.dumps(each).encode()) for each in payloads])
        model.stage(self.lake)

    def compactor(self) -> Job:
        self.job = Job(self.lake, "--interval", "0.2", "--report-every", "0", "--catalog", str(self.address))
        return self.job

    def entries(self, database: str = "events") -> dict[str, CatalogEntry]:
        catalog = HiveCatalog(self.address)
        try:
            return {entry.name: entry for entry in catalog.entries(database)} if database in catalog.databases() else {}
        finally:
            catalog.close()

    def until(self, names: set[str], database: str = "events") -> dict[str, CatalogEntry]:
        """Return the entries once they have these names, looking after each pass over the catalog."""
        assert self.job is not None
        while (found := self.entries(database)).keys() != names:
            self.job.wait_for(f"catalog {self.address}:", times=self.passes + 1)
            self.passes += 1
        return found

    def read(self) -> dict[str, Any]:
        """Return what a Spark reads that knows nothing but the metastore."""
        places = [str(self.base / "warehouse"), str(self.base / "elsewhere")]
        done = subprocess.run(
            [sys.executable, "-m", "tests.lake.hive_program", self.hive.uri, *places],
            cwd=self.base,
            env={**os.environ, "PYTHONPATH": str(job().parents[1])},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    if made.job is not None:
        made.job.kill()
    made.hive.stop()


def test_a_compactor_keeps_entries_that_another_spark_reads(world: World) -> None:
    world.hive.wait()
    world.schema(1, V1)
    world.publish(world.orders, {"order_id": "o1", "price": 9.5, "address": {"zip": "10115"}}, {"price": "x"})
    running = world.compactor()
    first = world.until({"orders", "orders_misfits"})["orders"]
    assert first.comment == "All orders"
    assert first.columns is not None
    types = {column.name: column.type for column in first.columns}
    assert (types["seq"], types["price"], types["address"]) == ("bigint", "double", "struct<zip:string>")
    assert first.properties["lakestream.stream"] == "ORDERS"
    world.schema(2, V2)
    world.describe("All orders, with cities")
    world.publish(world.orders, {"order_id": "o2", "price": 12, "city": "Paris", "address": {"street": "Rue X"}})
    running.wait_for("1 altered")
    world.passes = sum(f"catalog {world.address}:" in line for line in running.lines)
    second = world.entries()["orders"]
    assert second.comment == "All orders, with cities"
    assert second.columns is not None
    types = {column.name: column.type for column in second.columns}
    assert (types["city"], types["address"]) == ("string", "struct<zip:string,street:string>")
    audit = StreamModel(world.base / "AUDIT", "AUDIT", "UID2", account="ACME")
    world.publish(audit, {"a": 1})
    world.until({"audit"}, "events_acme")
    seen = world.read()
    assert seen["tables"] == ["mine", "orders", "orders_misfits"]
    assert seen["typed"] == [[1, "o1", 9.5, None], [2, None, None, None], [3, "o2", 12.0, "Paris"]]
    assert seen["nested"] == [["10115", None]]
    assert seen["misfits"] == [[2, "required"]]
    assert seen["version"] == [[2]]
    assert seen["account"] == [[1]]
    assert seen["provider"] == ["delta"]
    assert seen["comment"] == [["lakestream.stream", "ORDERS"]]
    compare_with_sparks_own(world)
    table = Path(paths.table(world.lake, "ORDERS"))
    staging.mark_deleted(world.lake, world.orders.identity)
    world.until({"mine"})
    assert not table.exists()
    assert (world.base / "elsewhere" / "_delta_log").is_dir()
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0


def compare_with_sparks_own(world: World) -> None:
    """Assert that an entry has what Spark states for a Delta table that it registers itself."""
    with HMS.create("127.0.0.1", world.hive.port) as metastore:
        theirs, ours = (metastore.client.get_table("events", name) for name in ("mine", "orders"))
    assert ours.tableType == theirs.tableType == "EXTERNAL_TABLE"
    for name in ("EXTERNAL", "spark.sql.sources.provider"):
        assert ours.parameters[name] == theirs.parameters[name]
    formats = [
        (each.sd.inputFormat, each.sd.outputFormat, each.sd.serdeInfo.serializationLib) for each in (theirs, ours)
    ]
    assert formats == [(INPUT_FORMAT, OUTPUT_FORMAT, SERDE)] * 2
    assert theirs.sd.serdeInfo.parameters["path"] == f"file:{world.base / 'elsewhere'}"
    assert ours.sd.serdeInfo.parameters["path"] == f"file:{paths.table(world.lake, 'ORDERS')}"


def test_a_metastore_that_is_away_does_not_stop_compaction(world: World) -> None:
    world.hive.stop()
    world.schema(1, V1)
    world.publish(world.orders, {"order_id": "o1"})
    running = world.compactor()
    running.wait_for("compacted 1 stream")
    running.wait_for("cannot be used")
    world.publish(world.orders, {"order_id": "o2"})
    running.wait_for("compacted 1 stream", times=2)
    world.hive = HiveServer(world.base, world.hive.port)
    world.hive.wait()
    running.wait_for("works again")
    assert list(world.entries()) == ["orders"]
    assert sum("cannot be used" in line for line in running.lines) == 1
