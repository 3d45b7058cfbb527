"""The tables of a lake that are registered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from lakestream.lake.errors import NotALake
from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage, read_id
from lakestream_catalogs.tables import LakeTables


@pytest.fixture
def lake(tmp_path: Path) -> str:
    root = tmp_path / "lake of $X #1"
    lakes.require(str(root), create=True)
    return str(root)


def write(lake: str, stream: str, *columns: str, account: str = "$G", properties: dict[str, str] | None = None) -> str:
    """Write a commit that declares the columns of a stream's table, the first one or another."""
    path = paths.table(lake, stream, account)
    log = Path(path, "_delta_log")
    log.mkdir(parents=True, exist_ok=True)
    types = {"seq": "long", "time": "timestamp", "subject": "string", "price": "double"}
    names = ("seq", "time", "subject", "price", *columns)
    fields = [{"name": each, "type": types.get(each, "long"), "nullable": True, "metadata": {}} for each in names]
    metadata = {
        "id": f"{stream}-{len(columns)}",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["subject"],
        "configuration": {"lakestream.uid": f"uid of {stream}", "lakestream.stream": stream}
        if properties is None
        else properties,
    }
    commit(path, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata})
    return path


def commit(path: str, *actions: dict[str, object]) -> None:
    """Write the next commit."""
    log = Path(path, "_delta_log")
    version = len(list(log.iterdir()))
    (log / f"{version:020d}.json").write_text(
        "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in actions)
    )


def introduce(lake: str, stream: str, description: str, account: str = "$G") -> None:
    config = json.dumps({"name": stream, "description": description}).encode()
    lakes.require(lake, create=True)
    identity = StreamIdentity(stream, account, f"uid of {stream}", 1, msgspec.Raw(config))
    staging.introduce(open_storage(lake), staging.directory_of(lake, identity), identity)


def test_tables_of_all_accounts_with_columns_comments_and_properties(lake: str) -> None:
    write(lake, "ORDERS")
    introduce(lake, "ORDERS", "All orders")
    write(lake, "ORDERS_misfits", properties={"lakestream.misfits_of": "uid of ORDERS"})
    write(lake, "EVENTS", account="ACME")
    write(lake, "plain", properties={})
    found = LakeTables(lake).read()
    assert found.lake == read_id(open_storage(lake)) != ""
    tables = {table.key: table for table in found.tables}
    assert sorted(tables) == [
        "accounts/ACME/streams/EVENTS",
        "streams/ORDERS",
        "streams/ORDERS_misfits",
        "streams/plain",
    ]
    orders = tables["streams/ORDERS"]
    assert (orders.stream, orders.account, orders.comment) == ("ORDERS", "$G", "All orders")
    assert [(column.name, column.type) for column in orders.columns] == [
        ("seq", "long"),
        ("time", "timestamp"),
        ("subject", "string"),
        ("price", "double"),
    ]
    assert orders.columns[0].comment == "stream sequence"
    assert orders.properties == {
        "lakestream.table": "streams/ORDERS",
        "lakestream.account": "$G",
        "lakestream.stream": "ORDERS",
        "lakestream.uid": "uid of ORDERS",
        "lakestream.time_column": "time",
        "lakestream.sequence_column": "seq",
    }
    assert tables["streams/ORDERS_misfits"].properties["lakestream.misfits_of"] == "ORDERS"
    assert tables["streams/ORDERS_misfits"].stream == "ORDERS_misfits"
    assert tables["accounts/ACME/streams/EVENTS"].comment == "Stream EVENTS"
    assert tables["streams/plain"].stream == "plain"
    assert orders.partitioned_by == ("subject",)


def test_only_announced_tables_are_read_again_and_new_and_deleted_ones_are_found(lake: str) -> None:
    path = write(lake, "ORDERS")
    write(lake, "OLD")
    reader = LakeTables(lake)
    first = reader.read()
    write(lake, "ORDERS", "city")
    write(lake, "NEW")
    shutil.rmtree(paths.table(lake, "OLD"))
    second = reader.read(changed=())
    assert [table.stream for table in second.tables] == ["NEW", "ORDERS"]
    assert second.tables[1] == first.tables[1]
    third = reader.read(changed={path})
    assert [column.name for column in third.tables[1].columns][-1] == "city"
    introduce(lake, "ORDERS", "now with words")
    assert reader.read(changed=()).tables[1].comment == "now with words"


def test_a_table_that_was_made_anew_is_read_from_its_own_log(lake: str) -> None:
    path = write(lake, "ORDERS")
    reader = LakeTables(lake)
    reader.read()
    shutil.rmtree(path)
    write(lake, "ORDERS", "other")
    for _ in range(3):
        commit(path, {"commitInfo": {"operation": "WRITE"}})
    [table] = reader.read(changed={path}).tables
    assert table.columns[-1].name == "other"


def test_a_table_whose_log_is_damaged_stays_as_it_was(lake: str) -> None:
    path = write(lake, "ORDERS")
    reader = LakeTables(lake)
    first = reader.read()
    Path(path, "_delta_log", f"{1:020d}.json").write_bytes(b'{"metaData":')
    found = reader.read()
    assert found.tables == first.tables
    assert list(found.troubles) == [path]
    assert found.unread == frozenset()
    found = LakeTables(lake).read()
    assert (found.tables, found.unread) == ((), {"streams/ORDERS"}), "its entry stays, if it has one"


def test_a_lake_that_vanishes_is_no_lake_without_tables(lake: str) -> None:
    write(lake, "ORDERS")
    reader = LakeTables(lake)
    reader.read()
    shutil.rmtree(lake)
    with pytest.raises(NotALake):
        reader.read()
