"""Tests of `lakestream schema` by its command lines, against a server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_commands import run
from tests.clients.test_schemas import AVRO, CLOSER, PROTO, V1, V2
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a server that commands find by the environment."""
    server = Server(Kind.OURS, tmp_path / "store")
    server.start()
    monkeypatch.setenv("NATS_URL", server.url)
    yield server
    server.kill()


def schema(*arguments: str, code: int = 0) -> str:
    """Run a command; return stdout, or stderr where it fails."""
    done = run("schema", *arguments)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@pytest.mark.heavy
def test_versions_are_added_checked_compared_and_deleted(server: Server, tmp_path: Path) -> None:
    files = {}
    for name, text in {"v1.json": V1, "v2.json": V2, "closer.json": CLOSER, "a.avsc": AVRO, "p.proto": PROTO}.items():
        files[name] = tmp_path / name
        files[name].write_text(text)
    assert schema("ls", "--json") == "[]\n"
    assert schema("add", "orders", str(files["v1.json"])) == "orders@1 registered: id 1, backward\n"
    assert schema("add", "orders", str(files["v1.json"])) == "orders@1 is registered already: id 1, backward\n"
    assert schema("check", "orders", str(files["v2.json"])) == "orders@2 can be registered: backward\n"
    assert schema("add", "orders", str(files["v2.json"]), "--dry-run") == "orders@2 can be registered: backward\n"
    refused = schema("add", "orders", str(files["closer.json"]), code=1)
    assert "not compatible" in refused
    assert "qty: " in refused
    assert "not backward compatible with version 1" in schema("check", "orders", str(files["closer.json"]), code=1)
    schema("add", "orders", str(files["closer.json"]), "--compatibility", "none")
    schema("add", "a", str(files["a.avsc"]))
    schema("add", "p", str(files["p.proto"]), "--message", "Order")
    listed: list[dict[str, Any]] = json.loads(schema("ls", "--json"))
    assert [(each["name"], each["format"], each["versions"]) for each in listed] == [
        ("a", "avro", [1]),
        ("orders", "json", [1, 2]),
        ("p", "protobuf", [1]),
    ]
    assert "1-2 (2)" in schema("ls")
    assert schema("show", "orders@1") == V1 + "\n"
    compared = schema("diff", "orders")
    assert "--- orders@1\n+++ orders@2\n" in compared
    assert "backward: orders@2 does not read all payloads of orders@1\n" in compared
    assert json.loads(schema("diff", "orders", "1", "2", "--json"))["new"]["version"] == 2
    assert schema("rm", "orders") == "orders deleted\n"
    assert schema("show", "orders", code=1) == "lakestream: schema not found: orders@latest\n"
    assert "not a valid schema name" in schema("show", "", code=1)
    assert "No such file" in schema("add", "orders", str(tmp_path / "absent"), code=1)


@pytest.mark.heavy
def test_schemas_come_back_from_the_lake(server: Server, tmp_path: Path) -> None:
    """With versions and ids, on a server with an empty store; the deleted ones too, since rows of tables name them."""
    for name, text in {"v1.json": V1, "v2.json": V2, "a.avsc": AVRO}.items():
        (tmp_path / name).write_text(text)
    schema("add", "orders", str(tmp_path / "v1.json"), "--compatibility", "full_transitive")
    schema("add", "a", str(tmp_path / "a.avsc"))
    schema("rm", "a")
    schema("add", "orders", str(tmp_path / "v2.json"), "--compatibility", "none")
    lake = str(server.store / "lake")
    assert "has schemas" in schema("restore", "--lake", lake, code=1)
    with Wire(server.address) as wire:
        before = [wire.request(f"$LAKE.API.SCHEMA.GET.orders@{version}").json() for version in (1, 2)]
    server.kill()
    other = Server(Kind.OURS, tmp_path / "other")
    other.start()
    try:
        assert "no schemas of account B" in schema("restore", "--lake", lake, "--account", "B", code=1)
        url = ("--server", other.url)
        assert schema("restore", "--lake", lake, *url) == "2 schemas with 3 versions restored; the last id is 4\n"
        with Wire(other.address) as wire:
            assert [wire.request(f"$LAKE.API.SCHEMA.GET.orders@{version}").json() for version in (1, 2)] == before
            assert wire.request("$LAKE.API.SCHEMA.GET.a@1").json()["id"] == 2
        added = schema("add", "orders", str(tmp_path / "v1.json"), "--compatibility", "none", *url)
        assert added == "orders@3 registered: id 5, none\n"
    finally:
        other.kill()


def test_a_descriptor_set_is_sent_in_base64(server: Server, tmp_path: Path) -> None:
    from lakestream_schemas.protobuf.protoc import compile_proto

    (tmp_path / "order.pb").write_bytes(base64.b64decode(compile_proto(PROTO)))
    assert schema("add", "p", str(tmp_path / "order.pb")) == "p@1 registered: id 1, backward\n"


def test_a_schema_is_inferred_from_all_parts_of_a_stream(server: Server, tmp_path: Path) -> None:
    with Wire(server.address) as wire:
        assert "error" not in wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        for number in range(1, 301):
            payload = {"id": f"o{number}", "qty": number, "state": ("new", "paid")[number % 2]}
            if number > 150:
                payload["at"] = "2026-05-01T12:00:00Z"
            wire.request("orders.eu" if number % 3 else "orders.us", json.dumps(payload).encode())
        wire.request("orders.eu", b"\x1b[31mno json")
    done = run("schema", "infer", "ORDERS")
    assert done.returncode == 0
    properties = json.loads(done.stdout)["properties"]
    assert properties["state"] == {"type": "string", "enum": ["new", "paid"]}
    assert properties["at"] == {"type": "string", "format": "date-time"}
    assert json.loads(done.stdout)["required"] == ["id", "qty", "state"]
    assert "301 messages looked at, 1 would not fit\n  seq 301 orders.eu: " in done.stderr
    assert "\x1b" not in done.stderr
    fewer = json.loads(schema("infer", "ORDERS", "--count", "20", "--subject", "orders.us", "--json"))
    assert (fewer["payloads"], fewer["misfits"]) == (20, [])
    assert "at" in fewer["schema"]["properties"], "the sample is of all parts"
    (tmp_path / "orders.json").write_text(done.stdout)
    assert schema("add", "orders", str(tmp_path / "orders.json")).startswith("orders@1 registered")
    assert schema("infer", "NONE", code=1) == "lakestream: there is no stream NONE\n"
