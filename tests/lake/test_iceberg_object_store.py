"""Tests of Iceberg tables of a lake in an object store: with a client's own credentials, and with vended ones."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import polars
import pytest
from botocore.exceptions import ClientError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StaticTable

from lakestream.lake.storage.lake import open_storage
from lakestream_spark.write import iceberg_files
from tests.lake.iceberg import duckdb_of_catalog, record, serving
from tests.lake.model import StreamModel, flights
from tests.lake.test_compact_job import Job
from tests.s3_server import AWS_VARIABLES, GuardedS3Server
from tests.servers import Kind, Server

pytestmark = [pytest.mark.lake, pytest.mark.timeout(1800)]

CONFIG = """
authorization { users: [
  { user: alice, password: secret }
  { user: bob, password: secret, permissions: {
    publish: ["$SYS.REQ.USER.INFO", "$JS.API.STREAM.MSG.GET.SECRET"], subscribe: ">"
  } }
] }
"""


class World:
    """A guarded store with a lake, and a catalog that vends credentials. Tests have none of their own."""

    def __init__(self, store: GuardedS3Server, models: dict[str, StreamModel], lake: str, url: str) -> None:
        self.store, self.models, self.lake, self.url = store, models, lake, url

    def catalog(self, user: str = "alice", **more: str) -> Any:
        return load_catalog("t", type="rest", uri=self.url, credential=f"{user}:secret", **more)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root, store = tmp_path_factory.mktemp("store"), GuardedS3Server()
    store.start()
    server = Server(Kind.OURS, root / "nats", config=CONFIG)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        store.enter(patch)
        lake, models = store.url("the/lake"), {}
        for number, name in enumerate(("ORDERS", "SECRET")):
            model = models[name] = StreamModel(root / name, name, f"UID{number}")
            for count in range(2):
                model.publish(flights(50))
                model.remove([count + 1])
                model.stage(lake)
        job = Job(lake, "--once", "--iceberg", "v3")
        try:
            assert job.end() == 0, job.lines
        finally:
            job.kill()
        with serving(lake, server.url, "--vend-role", store.role) as url:
            for name in (*store.variables(), *AWS_VARIABLES):
                patch.delenv(name, raising=False)
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            yield World(store, models, lake, url)
    server.kill()
    store.stop()


def test_pyiceberg_reads_a_stream_in_a_bucket_with_credentials_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, store = world.models["ORDERS"], world.store
    store.enter(monkeypatch)
    found = iceberg_files.newest(open_storage(world.lake), model.table(world.lake))
    assert found is not None
    assert json.loads(found.content)["location"] == model.table(world.lake)
    options = {"s3.endpoint": store.endpoint, "s3.access-key-id": store.access_key, "s3.region": "us-east-1"}
    table = StaticTable.from_metadata(found.location, {**options, "s3.secret-access-key": store.secret_key})
    rows = table.scan().to_arrow().sort_by("seq").to_pylist()
    assert [record(row) for row in rows] == model.expected()


def test_readers_need_the_catalog_alone_as_it_vends_credentials(world: World) -> None:
    wanted = world.models["ORDERS"].expected()
    table = world.catalog().load_table("lakestream.ORDERS")
    assert [record(row) for row in table.scan().to_arrow().sort_by("seq").to_pylist()] == wanted
    frame = polars.scan_iceberg(table, reader_override="pyiceberg")  # its own reader looks for the store elsewhere
    assert [record(row) for row in frame.sort("seq").collect().to_dicts()] == wanted
    with duckdb_of_catalog(world.url, "alice", "secret") as duckdb:
        rows = duckdb.execute('SELECT seq, data FROM lake.lakestream."ORDERS" ORDER BY seq').fetchall()
    assert rows == [(each.seq, each.data) for each in wanted]


def test_a_client_that_asks_for_no_credentials_gets_none(world: World) -> None:
    catalog = world.catalog(**{"header.X-Iceberg-Access-Delegation": "remote-signing"})
    table = catalog.load_table("lakestream.ORDERS")
    assert not [name for name in table.config if "key" in name]
    with pytest.raises(OSError, match=r"(?i)access|credential|bucket"):
        table.scan().to_arrow()


def test_credentials_read_one_table_and_write_nothing(world: World) -> None:
    config = world.catalog().load_table("lakestream.ORDERS").config
    client = boto3.client(
        "s3",
        region_name=config["s3.region"],
        endpoint_url=config["s3.endpoint"],
        aws_access_key_id=config["s3.access-key-id"],
        aws_secret_access_key=config["s3.secret-access-key"],
        aws_session_token=config["s3.session-token"],
    )

    def key(name: str) -> str:
        return f"the/lake/streams/{name}/metadata/version-hint.text"

    assert client.get_object(Bucket="lakes", Key=key("ORDERS"))["Body"].read().isdigit()
    for refused in (
        lambda: client.get_object(Bucket="lakes", Key=key("SECRET")),
        lambda: client.put_object(Bucket="lakes", Key=key("ORDERS"), Body=b"9"),
        lambda: client.delete_object(Bucket="lakes", Key=key("ORDERS")),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            refused()


def test_who_may_not_read_a_stream_gets_no_credentials_for_it(world: World) -> None:
    catalog = world.catalog("bob")
    assert catalog.load_table("lakestream.SECRET").scan().count() == len(world.models["SECRET"].expected())
    with pytest.raises(NoSuchTableError):
        catalog.load_table("lakestream.ORDERS")
    basic = {"Authorization": "Basic Ym9iOnNlY3JldA=="}

    def ask(path: str, **headers: str) -> tuple[int, Any, str]:
        request = urllib.request.Request(f"{world.url}/v1/namespaces/lakestream/tables/{path}", headers=basic | headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.loads(answer.read()), answer.headers.get("ETag", "")
        except urllib.error.HTTPError as error:
            return error.code, None, ""

    assert ask("ORDERS/credentials")[0] == 404
    status, found, _ = ask("SECRET/credentials")
    assert status == 200
    [one] = found["storage-credentials"]
    assert one["prefix"] == f"{world.lake}/streams/SECRET/"
    asking = {"X-Iceberg-Access-Delegation": "vended-credentials"}
    _, table, tag = ask("SECRET", **asking)
    assert table["storage-credentials"] == [one]
    assert ask("SECRET", **asking, **{"If-None-Match": tag})[0] == 304
    assert ask("SECRET", **{"If-None-Match": tag})[0] == 200  # without credentials it is another answer
