"""Entries in AWS Glue, by a server with its API."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakestream.lake.catalogs.address import CatalogAddress, parse
from lakestream_catalogs.catalog import CatalogAway
from lakestream_catalogs.opening import open_catalog
from lakestream_catalogs.plan import SyncResult
from lakestream_catalogs.sync import sync
from lakestream_catalogs.tables import LakeTables
from tests.lake.catalog_lake import ORDERS, CatalogLake
from tests.s3_server import S3Server

pytestmark = [pytest.mark.lake, pytest.mark.smoke]


@pytest.fixture
def address(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> CatalogAddress:
    s3_server.enter(monkeypatch)
    return parse(f"glue://us-east-1/{request.node.name[:40].lower()}?endpoint={s3_server.endpoint}")


@pytest.fixture
def glue(address: CatalogAddress) -> Any:
    return boto3.client("glue", region_name="us-east-1", endpoint_url=address.endpoint)


def synced(made: CatalogLake, address: CatalogAddress) -> SyncResult:
    with open_catalog(address) as catalog:
        return sync(catalog, address, LakeTables(made.root).read())


def test_entries_follow_tables(address: CatalogAddress, glue: Any, tmp_path: Path) -> None:
    made = CatalogLake(tmp_path / "lake")
    path = made.write("ORDERS")
    made.describe("ORDERS", "U1", "All orders")
    made.write("EVENTS")
    assert synced(made, address).describe() == "2 created, 0 altered, 0 dropped"
    table = glue.get_table(DatabaseName=address.database, Name="orders")["Table"]
    assert (table["Description"], table["TableType"]) == ("All orders", "EXTERNAL_TABLE")
    assert (
        table["Parameters"].items()
        >= {
            "spark.sql.sources.provider": "delta",
            "table_type": "DELTA",
            "classification": "delta",
            "lakestream.stream": "ORDERS",
            "lakestream.uid": "U1",
            "lakestream.account": "$G",
            "lakestream.sequence_column": "seq",
        }.items()
    )
    storage = table["StorageDescriptor"]
    assert storage["Location"] == storage["SerdeInfo"]["Parameters"]["path"] == f"file:{path}"
    assert [(column["Name"], column["Type"]) for column in storage["Columns"]] == [
        ("subject", "string"),
        ("seq", "bigint"),
        ("order_id", "string"),
        ("price", "decimal(10,2)"),
        ("address", "struct<zip:string,tags:array<string>>"),
    ]
    assert storage["Columns"][1]["Comment"] == "stream sequence"
    made.write("ORDERS", ORDERS.append_column("city", [["Berlin", "Paris"]]))
    shutil.rmtree(made.write("EVENTS"))
    assert synced(made, address).describe() == "0 created, 1 altered, 1 dropped"
    [table] = glue.get_tables(DatabaseName=address.database)["TableList"]
    assert table["StorageDescriptor"]["Columns"][-1]["Name"] == "city"
    assert synced(made, address).describe() == "0 created, 0 altered, 0 dropped"


def test_entries_of_others_stay(address: CatalogAddress, glue: Any, tmp_path: Path) -> None:
    made = CatalogLake(tmp_path / "lake")
    made.write("ORDERS")
    glue.create_database(DatabaseInput={"Name": address.database})
    for number in range(120):
        glue.create_table(DatabaseName=address.database, TableInput={"Name": f"t{number}"})
    glue.create_table(DatabaseName=address.database, TableInput={"Name": "orders"})
    assert synced(made, address).entries == 1
    pages = glue.get_paginator("get_tables").paginate(DatabaseName=address.database)
    names = [each["Name"] for page in pages for each in page["TableList"]]
    assert len(names) == 122
    [ours] = [name for name in names if name.startswith("orders_")]
    glue.update_table(DatabaseName=address.database, TableInput={"Name": ours, "Description": "mine"})
    assert synced(made, address).describe() == "1 created, 0 altered, 0 dropped", "it is nobody's any more"


def test_glue_that_does_not_answer_is_named(address: CatalogAddress, tmp_path: Path) -> None:
    made = CatalogLake(tmp_path / "lake")
    with pytest.raises(CatalogAway, match="look at the region"):
        synced(made, parse("glue://us-east-1/db?endpoint=http://127.0.0.1:1"))
