"""Schemas in the lake: create-only, found by name, id and fingerprint, in both storages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table.schema_files import DamagedSchema, SchemaConflict
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Schema
from lakestream_schemas.avro.fingerprint import fingerprint
from tests.s3_server import S3Server

ORDERS = Schema("shop.orders", 1, "json", '{"type": "object", "properties": {"n": {"type": "integer"}}}', id=7)
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}'


@pytest.fixture(params=["directory", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "directory":
        identify(open_storage(tmp_path))
        return open_storage(tmp_path)
    server: S3Server = request.getfixturevalue("s3_server")
    server.enter(monkeypatch)
    return open_storage(server.url(f"schemas/{tmp_path.name}"))


def test_a_version_is_found_by_its_name_and_id(storage: Storage) -> None:
    assert schemas.write_schema(storage, "$G", ORDERS)
    assert schemas.read_schema(storage, "$G", "shop.orders", 1) == ORDERS
    assert schemas.schema_of_id(storage, "$G", 7) == ORDERS
    assert schemas.read_schema(storage, "$G", "shop.orders", 2) is None
    assert schemas.schema_of_id(storage, "$G", 8) is None


def test_an_avro_schema_is_found_by_its_fingerprint(storage: Storage) -> None:
    order = Schema("orders", 1, "avro", AVRO)
    schemas.write_schema(storage, "$G", order)
    assert schemas.schema_of_fingerprint(storage, "$G", fingerprint(AVRO)) == order
    assert schemas.schema_of_fingerprint(storage, "$G", bytes(8)) is None


def test_two_versions_with_one_fingerprint_are_both_written(storage: Storage) -> None:
    first = Schema("orders", 1, "avro", AVRO)
    second = Schema("orders", 2, "avro", AVRO.replace('"long"', '"long", "doc": "amount"'))
    assert schemas.write_schema(storage, "$G", first)
    assert schemas.write_schema(storage, "$G", second)
    assert schemas.schema_of_fingerprint(storage, "$G", fingerprint(second.text)) == first


def test_a_version_is_written_once(storage: Storage) -> None:
    assert schemas.write_schema(storage, "$G", ORDERS)
    assert not schemas.write_schema(storage, "$G", ORDERS)


def test_a_later_compatibility_mode_is_the_same_version(storage: Storage) -> None:
    schemas.write_schema(storage, "$G", ORDERS)
    assert not schemas.write_schema(storage, "$G", msgspec.structs.replace(ORDERS, compatibility="full"))


def test_another_schema_under_the_same_version_is_refused(storage: Storage) -> None:
    schemas.write_schema(storage, "$G", ORDERS)
    with pytest.raises(SchemaConflict, match="Register the schema"):
        schemas.write_schema(storage, "$G", msgspec.structs.replace(ORDERS, text='{"type": "object"}'))
    assert schemas.read_schema(storage, "$G", "shop.orders", 1) == ORDERS


def test_an_id_stands_for_one_schema(storage: Storage) -> None:
    schemas.write_schema(storage, "$G", ORDERS)
    with pytest.raises(SchemaConflict):
        schemas.write_schema(storage, "$G", msgspec.structs.replace(ORDERS, name="invoices", text='{"type": "object"}'))
    assert schemas.read_schema(storage, "$G", "invoices", 1) is None
    assert schemas.write_schema(storage, "$G", msgspec.structs.replace(ORDERS, name="copies"))  # an equal one shares it
    assert schemas.schema_of_id(storage, "$G", ORDERS.id) == ORDERS


def test_one_of_several_writers_at_once_creates_a_version(storage: Storage) -> None:
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda _: schemas.write_schema(storage, "$G", ORDERS), range(8)))
    assert created.count(True) == 1
    assert schemas.schema_of_id(storage, "$G", 7) == ORDERS


def test_versions_are_numbers_in_order(storage: Storage) -> None:
    for version in (10, 2, 1):
        schemas.write_schema(storage, "$G", msgspec.structs.replace(ORDERS, version=version, id=version))
    assert schemas.versions(storage, "$G", "shop.orders") == [1, 2, 10]
    assert max(schemas.versions(storage, "$G", "shop.orders")) == 10
    assert schemas.versions(storage, "$G", "shop") == []


def test_each_account_has_its_own_schemas(storage: Storage) -> None:
    schemas.write_schema(storage, "$G", ORDERS)
    other = msgspec.structs.replace(ORDERS, text='{"type": "object"}')
    assert schemas.write_schema(storage, "SHOP", other)
    assert schemas.schema_of_id(storage, "SHOP", 7) == other
    assert schemas.schema_of_id(storage, "$G", 7) == ORDERS
    assert schemas.names(storage, "SHOP") == schemas.names(storage, "$G") == ["shop.orders"]
    assert schemas.names(storage, "OTHER") == []


def test_a_damaged_document_names_its_file(storage: Storage) -> None:
    path = paths.schema(storage.root, "orders", 1)
    storage.write(path, b"{")
    with pytest.raises(DamagedSchema, match=r"orders/1\.json is damaged"):
        schemas.read_schema(storage, "$G", "orders", 1)


def test_the_document_of_another_version_is_damage(storage: Storage) -> None:
    storage.write(paths.schema(storage.root, "shop.orders", 2), ORDERS.document())
    with pytest.raises(DamagedSchema, match=r"shop\.orders@1"):
        schemas.read_schema(storage, "$G", "shop.orders", 2)


def test_a_name_that_is_none_writes_nothing(storage: Storage) -> None:
    with pytest.raises(BadSchema):
        schemas.write_schema(storage, "$G", msgspec.structs.replace(ORDERS, name="_ids"))
    assert storage.tree(f"{storage.root}/schemas") == []
