"""Tests of the Iceberg REST catalog by pyiceberg's own client: a login sees its account, and what it may read."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, OAuthError, UnauthorizedError

from lakestream.lake.storage.lake import open_storage
from lakestream_iceberg.export import TableExport
from lakestream_iceberg.library import IcebergLibrary
from tests.docs.blocks import ROOT
from tests.lake.iceberg import duckdb_of_catalog, record, serving
from tests.lake.model import StreamModel, flights
from tests.lake.test_maintenance import compact
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

CONFIG = """
accounts {
  ACME {
    jetstream: enabled
    users: [
      { user: all, password: secret }
      { user: one, password: secret, permissions: {
        publish: ["$SYS.REQ.USER.INFO", "$JS.API.STREAM.MSG.GET.ORDERS"], subscribe: [">"]
      } }
    ]
  }
  OTHER { jetstream: enabled, users: [{ user: other, password: secret }] }
}
"""

ALICE = "authorization { user: alice, password: secret }"
STREAMS = (
    ("ORDERS", "ORDERS", "ACME"),
    ("SECRET", "SECRET", "ACME"),
    ("PLAIN", "PLAIN", "ACME"),
    ("MINE", "ORDERS", "$G"),
    ("SALES", "SALES", "$G"),
)
"""Key, name and account of the streams."""


class World:
    """A server, a lake with the tables of an account, and the catalog."""

    def __init__(self, server: Server, models: dict[str, StreamModel], lake: Path, url: str) -> None:
        self.server, self.models, self.lake, self.url = server, models, lake, url

    def client(self, user: str, password: str = "secret") -> Any:
        return load_catalog("test", type="rest", uri=self.url, credential=f"{user}:{password}")

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("catalog")
    server = Server(Kind.OURS, root / "store", config=CONFIG)
    server.start()
    lake = root / "lake"
    models = {}
    for number, (key, name, account) in enumerate(STREAMS):
        model = models[key] = StreamModel(root / key, name, f"UID{number}", account)
        keyed = {"lakestream.table": "latest"} if key == "ORDERS" else {}
        model.configure({} if name == "PLAIN" else {"lakestream.iceberg": "v3", **keyed})
        model.publish(flights(20) if account == "ACME" else [(b"%s.de" % name.lower().encode(), b"", b"1")] * 3)
        model.remove([2])
        model.stage(lake)
        compact(spark, lake, model)
        for end in ("", "_latest") if keyed else ("",):
            TableExport(IcebergLibrary(spark, str(lake)), open_storage(str(lake)), model.table(lake) + end).run()
    with serving(lake, server.url) as url:
        yield World(server, models, lake, url)
    server.kill()


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/iceberg.md"])
def test_the_four_lines_of_a_page_run_as_they_are(world: World, tmp_path: Path, page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    [text] = [block for block in blocks if "load_catalog" in block]
    assert len(text.split("\n")) <= 6
    server = Server(Kind.OURS, tmp_path / "store", config=ALICE if "alice:secret" in text else "")
    server.start()
    try:
        with serving(world.lake, server.url) as url:
            assert text.count("http://127.0.0.1:8481") == 1
            *lines, last = text.replace("http://127.0.0.1:8481", url).strip().splitlines()
            names: dict[str, Any] = {}
            exec("\n".join(lines), names)
            found = eval(last, names)
    finally:
        server.kill()
    [subject] = set(found["subject"])
    wanted = world.models["SALES" if "SALES" in text else "MINE"].expected()
    assert sorted(found["seq"]) == [each.seq for each in wanted if each.subject == subject.encode()]


def test_pyiceberg_finds_the_streams_of_an_account(world: World) -> None:
    catalog = world.client("all")
    assert catalog.list_namespaces() == [("ACME",)]
    assert catalog.list_tables("ACME") == [("ACME", "ORDERS"), ("ACME", "ORDERS_latest"), ("ACME", "SECRET")]
    assert catalog.table_exists("ACME.ORDERS")
    assert not catalog.table_exists("ACME.PLAIN")
    rows = catalog.load_table("ACME.ORDERS").scan().to_arrow().sort_by("seq").to_pylist()
    assert [record(row) for row in rows] == world.models["ORDERS"].expected()


def test_duckdb_reads_a_stream_by_the_catalog(world: World) -> None:
    with duckdb_of_catalog(world.url, "all", "secret") as duckdb:
        rows = duckdb.execute('SELECT seq, data FROM lake."ACME"."ORDERS" ORDER BY seq').fetchall()
    assert rows == [(each.seq, each.data) for each in world.models["ORDERS"].expected()]


def test_polars_reads_a_stream_by_the_catalog(world: World) -> None:
    rows = polars.scan_iceberg(world.client("all").load_table("ACME.ORDERS")).sort("seq").collect().to_dicts()
    assert [record(row) for row in rows] == world.models["ORDERS"].expected()


def test_a_token_request_may_have_the_login_in_its_header(world: World) -> None:
    def ask(login: str) -> int:
        headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        request = urllib.request.Request(world.url + "/v1/oauth/tokens", b"grant_type=client_credentials", headers)
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request) as answer:
            return int(answer.status)
        return 401

    assert [ask(login) for login in ("all:secret", "%61ll:secret", "all:wrong", "all")] == [200, 200, 401, 401]


def test_a_user_sees_what_it_may_read(world: World) -> None:
    catalog = world.client("one")
    assert catalog.list_tables("ACME") == [("ACME", "ORDERS"), ("ACME", "ORDERS_latest")]
    assert catalog.load_table("ACME.ORDERS").scan().count() == 19
    subjects = {each.subject.decode() for each in world.models["ORDERS"].expected()}
    latest = catalog.load_table("ACME.ORDERS_latest").scan().to_arrow()  # of a stream that the user may read
    assert sorted(latest["subject"].to_pylist()) == sorted(subjects)
    with pytest.raises(NoSuchTableError):
        catalog.load_table("ACME.SECRET")
    other = world.client("other")
    assert other.list_namespaces() == [("OTHER",)]
    assert other.list_tables("OTHER") == []
    with pytest.raises(NoSuchNamespaceError):
        other.list_tables("ACME")


def test_nobody_else_is_let_in(world: World) -> None:
    with pytest.raises((OAuthError, UnauthorizedError)):
        world.client("all", "wrong")
    for authorization in ("", "Bearer x", "Basic !", "Basic YWxs", "Digest x"):
        status, _, body = world.ask("/v1/namespaces", Authorization=authorization)
        assert (status, json.loads(body)["error"]["type"]) == (401, "NotAuthorizedException"), authorization
    assert world.ask("/v1/config")[0] == 200


BASIC = {"Authorization": "Basic YWxsOnNlY3JldA=="}


def test_it_is_read_only_and_says_so(world: World) -> None:
    path = "/v1/namespaces/ACME/tables/ORDERS"
    for method, where in (("DELETE", path), ("POST", path), ("POST", "/v1/namespaces")):
        assert world.ask(where, method, **BASIC)[0] == 406
    assert world.ask(path + "/metrics", "POST", **BASIC)[0] == 204
    assert world.ask("/v1/namespaces/ACME/views", **BASIC)[0] == 404
    assert world.ask("/", **BASIC)[0] == 404
    assert world.ask("/v1/namespaces/ACME/tables/..%2F..%2FORDERS", **BASIC)[0] == 404
    assert world.ask(path, "HEAD", **BASIC)[2] == b""


def test_a_client_that_has_the_newest_metadata_gets_none(world: World, spark: Any) -> None:
    path = "/v1/namespaces/ACME/tables/SECRET"
    status, headers, body = world.ask(path, **BASIC)
    found = json.loads(body)
    assert status == 200
    assert found["metadata"] == json.loads(Path(found["metadata-location"]).read_text())
    tag = {"If-None-Match": headers["ETag"]}
    assert world.ask(path, **BASIC, **tag)[0] == 304
    assert world.ask(path + "?snapshots=refs", **BASIC, **tag)[0] == 200
    model = world.models["SECRET"]
    model.publish(flights(5))
    model.stage(world.lake)
    compact(spark, world.lake, model)
    TableExport(IcebergLibrary(spark, str(world.lake)), open_storage(str(world.lake)), model.table(world.lake)).run()
    status, _, body = world.ask(path, **BASIC, **tag)
    assert (status, len(json.loads(body)["metadata"]["snapshots"])) == (200, 2)
    refs = json.loads(world.ask(path + "?snapshots=refs", **BASIC)[2])["metadata"]
    assert [each["snapshot-id"] for each in refs["snapshots"]] == [refs["current-snapshot-id"]]


def test_without_the_server_nobody_reads_anything(world: World) -> None:
    world.server.kill()
    try:
        status, headers, _ = world.ask("/v1/namespaces", Authorization="Basic bmV3OnNlY3JldA==")
        assert (status, headers["Retry-After"]) == (503, "1")
    finally:
        world.server.start()
