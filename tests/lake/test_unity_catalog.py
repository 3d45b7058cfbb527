"""Entries in Unity Catalog, read by DuckDB through the catalog."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner, Result

from lakestream.cli.app import app
from lakestream.lake.catalogs.address import CatalogAddress, parse
from lakestream_catalogs.catalog import CatalogAway
from lakestream_catalogs.opening import open_catalog
from lakestream_catalogs.plan import SyncResult
from lakestream_catalogs.sync import sync
from lakestream_catalogs.tables import LakeTables
from lakestream_catalogs.unity import PAGE, TOKEN, TOKEN_FILE
from lakestream_sql.connection import extension_path
from tests.lake.catalog_lake import ORDERS, CatalogLake
from tests.unity_server import UnityServer

pytestmark = [pytest.mark.lake, pytest.mark.smoke]

BEARER = "for-these-tests"


@pytest.fixture
def unity(monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityServer]:
    monkeypatch.setenv(TOKEN, BEARER)
    server = UnityServer(BEARER)
    yield server
    server.close()


@pytest.fixture
def made(tmp_path: Path) -> CatalogLake:
    return CatalogLake(tmp_path / "lake")


def at(unity: UnityServer, path: str = "/unity/events") -> CatalogAddress:
    return parse(f"unity+http://{unity.address}{path}")


def synced(made: CatalogLake, address: CatalogAddress) -> SyncResult:
    with open_catalog(address) as catalog:
        return sync(catalog, address, LakeTables(made.root).read())


def test_tables_are_read_by_their_names_with_new_columns_until_they_are_gone(
    unity: UnityServer, made: CatalogLake
) -> None:
    made.write("ORDERS")
    made.describe("ORDERS", "U1", "All orders")
    made.write("EVENTS", account="ACME")
    result = synced(made, at(unity))
    assert (result.describe(), result.reason) == ("2 created, 0 altered, 0 dropped", "")
    entry = unity.objects["tables"]["unity.events.orders"]
    assert (entry["comment"], entry["table_type"], entry["data_source_format"]) == ("All orders", "EXTERNAL", "DELTA")
    assert entry["properties"]["lakestream.stream"] == "ORDERS"
    assert [(column["name"], column["type_text"], column.get("partition_index")) for column in entry["columns"]] == [
        ("subject", "string", 0),
        ("seq", "bigint", None),
        ("order_id", "string", None),
        ("price", "decimal(10,2)", None),
        ("address", "struct<zip:string,tags:array<string>>", None),
    ]
    with connected(unity) as reader:
        found = reader.execute(
            "SELECT seq, order_id, price::VARCHAR, address.zip FROM unity.events.orders ORDER BY seq"
        )
        assert found.fetchall() == [(1, "o1", "9.50", "10115"), (2, "o2", "12.00", None)]
        assert reader.execute("SELECT count(*) FROM unity.events_acme.events").fetchone() == (2,)
    made.write("ORDERS", ORDERS.append_column("city", [["Berlin", "Paris"]]))
    shutil.rmtree(made.write("EVENTS", account="ACME"))
    assert synced(made, at(unity)).describe() == "0 created, 1 altered, 1 dropped"
    with connected(unity) as reader:
        assert reader.execute("SELECT count(city) FROM unity.events.orders").fetchone() == (2,)
    assert list(unity.objects["tables"]) == ["unity.events.orders"]
    assert synced(made, at(unity)).describe() == "0 created, 0 altered, 0 dropped"


def connected(unity: UnityServer) -> duckdb.DuckDBPyConnection:
    reader = duckdb.connect(config={"autoinstall_known_extensions": False, "allow_unsigned_extensions": False})
    for name in ("httpfs", "delta", "unity_catalog"):
        reader.execute(f"LOAD '{extension_path(name)}'")
    reader.execute(f"CREATE SECRET (TYPE UC, TOKEN '{BEARER}', ENDPOINT 'http://{unity.address}', AWS_REGION 'x')")
    reader.execute("ATTACH 'unity' AS unity (TYPE UC_CATALOG)")
    return reader


def test_all_pages_of_a_large_schema_are_read_and_entries_of_others_stay(unity: UnityServer, made: CatalogLake) -> None:
    made.write("ORDERS")
    unity.create("schemas", {"name": "events", "catalog_name": "unity"})
    theirs = {"catalog_name": "unity", "schema_name": "events", "table_type": "EXTERNAL", "columns": []}
    for number in range(2 * PAGE):
        unity.create("tables", {"name": f"t{number:03}", "storage_location": f"file:///other/{number}", **theirs})
    unity.create("tables", {"name": "orders", "storage_location": "file:///other/orders", **theirs})
    before = dict(unity.objects["tables"])
    result = synced(made, at(unity))
    [made_entry] = [name for name in unity.objects["tables"] if name not in before]
    assert made_entry.startswith("unity.events.orders_")
    assert result.entries == 1
    assert synced(made, at(unity)).entries == 1
    assert {name: unity.objects["tables"][name] for name in before} == before


def test_a_wrong_token_a_missing_catalog_and_no_server_are_named(
    unity: UnityServer, made: CatalogLake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made.write("ORDERS")
    monkeypatch.setenv(TOKEN, "wrong")
    with pytest.raises(CatalogAway, match=f"the token is wrong; look at the token in {TOKEN}"):
        synced(made, at(unity))
    file = tmp_path / "token"
    monkeypatch.setenv(TOKEN_FILE, str(file))
    with pytest.raises(CatalogAway, match="cannot be read"):
        synced(made, at(unity))
    file.write_text(f"{BEARER}\n")
    assert synced(made, at(unity)).entries == 1
    with pytest.raises(Exception, match="catalog none not found"):
        synced(made, at(unity, "/none/events"))
    unity.close()
    with pytest.raises(CatalogAway, match="look at Unity Catalog"):
        synced(made, at(unity))


def test_the_commands_show_and_make_the_entries(unity: UnityServer, made: CatalogLake) -> None:
    made.write("ORDERS")

    def run(*words: str) -> Result:
        environ = {"LAKESTREAM_CATALOGS": str(at(unity)), "LAKESTREAM_LAKE": made.root}
        return CliRunner().invoke(app, ["catalog", *words], env=environ)

    done = run("ls", "--json")
    assert done.exit_code == 0
    [listed] = json.loads(done.stdout)
    assert [(each["name"], each["state"]) for each in listed["entries"]] == [("orders", "missing")]
    assert unity.objects["tables"] == {}
    done = run("sync")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == f"{at(unity)}: 1 registered: 1 created, 0 altered, 0 dropped"
    done = run("ls")
    assert done.exit_code == 0
    assert "events.orders" in done.stdout
    assert "registered" in done.stdout
    done = run("ls", "--catalog", "unity+http://127.0.0.1:1/unity")
    assert done.exit_code == 1
    assert "cannot be used" in done.stderr
    assert run("ls", "--catalog", "x").exit_code == 2
