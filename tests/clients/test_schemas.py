"""Tests of the schema registry through the real socket: versions, compatibility, the bucket, accounts, permissions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema_files as schemas
from tests.conftest import StartServer

V1 = '{"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}'
V2 = '{"type": "object", "properties": {"id": {"type": "string"}, "qty": {"type": "integer"}}, "required": ["id"]}'
CLOSER = '{"type": "object", "properties": {"id": {"type": "string"}, "qty": {"type": "integer"}}, "required": ["qty"]}'
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'
PROTO = 'syntax = "proto3"; message Order { string id = 1; }'
WRONG: list[tuple[str, dict[str, Any] | None, int | None]] = [
    ("ADD.orders", {"format": "json", "text": "{"}, 20002),
    ("ADD.orders", {"format": "json", "text": '{"type": "array"}'}, 20002),
    ("ADD.orders", {"format": "xml", "text": "{}"}, 10025),
    ("ADD.orders", {"format": "json"}, 10025),
    ("ADD.orders", {"format": "json", "text": V1, "version": 3}, 10025),
    ("ADD.ord/ers", {"format": "json", "text": V1}, 20002),
    ("ADD.orders", {"format": "json", "text": '{"description": "' + "x" * (300 << 10) + '"}'}, 20002),
    ("ADD.orders", {"format": "avro", "text": '{"type": "nothing"}'}, 20002),
    ("ADD.orders", {"format": "protobuf", "text": 'syntax = "proto3"; import "/etc/passwd";'}, 20002),
    ("ADD", {"format": "json", "text": V1}, 20002),
    ("GET", None, 20002),
    ("NOTHING", None, None),
]
"""Requests that are refused, with the code of the error."""
ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: reader, password: pw, permissions { publish: ["$LAKE.API.SCHEMA.GET.>", "$LAKE.API.SCHEMA.LIST"] } } ] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
}
"""


async def ask(client: Client, subject: str, body: dict[str, Any] | None = None, timeout: float = 10) -> dict[str, Any]:
    """Make a request to the registry."""
    data = b"" if body is None else json.dumps(body).encode()
    answer = await client.request(f"$LAKE.API.SCHEMA.{subject}", data, timeout=timeout)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def add(client: Client, name: str, text: str, **more: Any) -> dict[str, Any]:
    """Register a version of a JSON Schema, unless `format` says otherwise."""
    return await ask(client, f"ADD.{name}", {"format": "json", "text": text, **more}, timeout=30)


@pytest.fixture
async def client(start_server: StartServer) -> AsyncIterator[Client]:
    """Yield a client of a server."""
    connected = await nats.connect(start_server().url)
    yield connected
    await connected.close()


async def test_a_version_is_registered_once(client: Client) -> None:
    assert (await ask(client, "LIST"))["schemas"] == []
    first = await add(client, "orders", V1)
    assert (first["type"], first["version"], first["created_version"]) == (
        "io.lakestream.api.v1.schema_add_response",
        1,
        True,
    )
    again = await add(client, "orders", V1)
    assert (again["version"], again["id"], again["created_version"]) == (1, first["id"], False)
    second = await add(client, "orders", V2)
    assert (second["version"], second["compatibility"]) == (2, "backward")
    assert second["id"] != first["id"]
    other = await add(client, "eu.orders", V1)
    assert other["version"] == 1
    assert other["id"] == first["id"]  # an equal schema
    listed = (await ask(client, "LIST"))["schemas"]
    assert [(each["name"], each["versions"]) for each in listed] == [("eu.orders", [1]), ("orders", [1, 2])]


async def test_versions_are_the_history_of_a_key(client: Client) -> None:
    for text in (V1, V2):
        await add(client, "orders", text)
    bucket = await client.jetstream().key_value("SCHEMAS")
    history = [json.loads(entry.value) for entry in await bucket.history("orders") if entry.value]
    assert [(each["version"], each["text"]) for each in history] == [(1, V1), (2, V2)]
    entry = await bucket.get("orders")
    assert entry.revision == json.loads(entry.value)["id"]


async def test_a_version_is_found_by_its_reference(client: Client) -> None:
    for text in (V1, V2):
        await add(client, "orders", text)
    for reference, text in {"orders": V2, "orders@latest": V2, "orders@1": V1, "orders.1": V1, "orders@2": V2}.items():
        assert (await ask(client, f"GET.{reference}"))["text"] == text
    assert (await ask(client, "GET.orders@3"))["error"] == {
        "code": 404,
        "err_code": 20001,
        "description": "schema not found: orders@3",
    }


async def test_an_incompatible_version_is_refused_with_field_and_rule(client: Client) -> None:
    await add(client, "orders", V1)
    refused = await add(client, "orders", CLOSER)
    assert (refused["error"]["code"], refused["error"]["err_code"]) == (409, 20003)
    assert "qty" in refused["error"]["description"]
    assert {(each["version"], each["mode"], each["field"]) for each in refused["conflicts"]} == {(1, "backward", "qty")}
    assert (await add(client, "orders", CLOSER, compatibility="none"))["version"] == 2
    checked = await ask(client, "CHECK.orders", {"format": "json", "text": V1, "compatibility": "full_transitive"})
    assert not checked["compatible"]
    assert len((await ask(client, "GET.orders"))["text"]) == len(CLOSER)


async def test_a_check_registers_nothing(client: Client) -> None:
    checked = await ask(client, "CHECK.orders", {"format": "json", "text": V1})
    assert (checked["compatible"], checked["version"], checked["exists"]) == (True, 1, False)
    assert (await add(client, "orders", V1, dry_run=True))["version"] == 1
    assert (await ask(client, "LIST"))["total"] == 0
    await add(client, "orders", V1)
    assert (await ask(client, "CHECK.orders", {"format": "json", "text": V1}))["exists"]


async def test_avro_and_protobuf_are_registered(client: Client) -> None:
    assert (await add(client, "a", AVRO, format="avro"))["version"] == 1
    added = await add(client, "p", PROTO, format="protobuf", message="Order")
    assert (added.get("error"), added["message"]) == (None, "Order")
    await add(client, "p", PROTO.replace("string id = 1;", "string id = 1; int64 qty = 2;"), format="protobuf")
    diff = await ask(client, "DIFF.p")
    assert [each["field"] for each in diff["backward"]] == ["qty"]


async def test_differences_name_fields_and_direction(client: Client) -> None:
    await add(client, "orders", V1)
    assert (await ask(client, "DIFF.orders"))["error"]["err_code"] == 20001
    await add(client, "orders", CLOSER, compatibility="none")
    diff = await ask(client, "DIFF.orders", {"old": 1, "new": 2})
    assert (diff["old"]["version"], diff["new"]["version"]) == (1, 2)
    assert not all(each["compatible"] for each in diff["backward"])


async def test_a_wrong_request_is_refused(client: Client) -> None:
    for subject, body, code in WRONG:
        answer = await ask(client, subject, body, timeout=30)
        assert answer["error"].get("err_code") == code, subject
    assert (await ask(client, "LIST"))["total"] == 0


async def test_a_deleted_schema_continues_its_numbers(client: Client) -> None:
    await add(client, "orders", V1)
    assert await ask(client, "DELETE.orders") == {
        "type": "io.lakestream.api.v1.schema_delete_response",
        "success": True,
    }
    assert (await ask(client, "GET.orders"))["error"]["err_code"] == 20001
    assert (await ask(client, "DELETE.orders"))["error"]["err_code"] == 20001
    assert (await add(client, "orders", CLOSER))["version"] == 2
    assert (await ask(client, "GET.orders@1"))["error"]["err_code"] == 20001


async def test_puts_of_clients_that_are_no_documents_are_ignored(start_server: StartServer) -> None:
    server = start_server()
    client = await nats.connect(server.url)
    await add(client, "orders", V1)
    bucket = await client.jetstream().key_value("SCHEMAS")
    for key, value in (("orders", b"{"), ("a.b", b"\xff"), ("orders", b"{}"), ("other", b""), ("x=y", b'{"name": 1}')):
        await bucket.put(key, value)
    moved = json.loads((await bucket.history("orders"))[0].value)
    await bucket.put("elsewhere", json.dumps(moved).encode())
    assert [each["name"] for each in (await ask(client, "LIST"))["schemas"]] == ["orders"]
    assert (await add(client, "orders", V2))["version"] == 2
    moved |= {"name": "copied", "version": 7, "id": 77}
    await bucket.put("copied", json.dumps(moved).encode())
    assert (await ask(client, "GET.copied"))["version"] == 7, "a document that fits is one"
    await client.close()
    server.stop()
    assert "of the bucket SCHEMAS is ignored" in server.log()


async def test_the_registry_outlives_a_restart_and_a_crash(start_server: StartServer) -> None:
    server = start_server()
    client = await nats.connect(server.url)
    first = await add(client, "orders", V1)
    await client.close()
    for end in (server.stop, server.kill):
        end()
        server.start()
        client = await nats.connect(server.url)
        assert (await add(client, "orders", V1))["id"] == first["id"]
        assert (await ask(client, "GET.orders"))["text"] == V1
        await client.close()


async def test_a_purged_bucket_has_no_schemas(client: Client) -> None:
    await add(client, "orders", V1)
    await client.jetstream().purge_stream("KV_SCHEMAS")
    assert (await ask(client, "LIST"))["total"] == 0
    assert (await add(client, "orders", V2))["version"] == 1
    await client.jetstream().delete_stream("KV_SCHEMAS")
    assert (await ask(client, "LIST"))["total"] == 0
    assert (await add(client, "orders", V2))["version"] == 1


async def test_registrations_at_once_make_each_version_once(client: Client) -> None:
    texts = [json.dumps({"type": "object", "properties": {f"f{n}": {"type": "string"}}}) for n in range(12)]
    answers = await asyncio.gather(*(add(client, "orders", text, compatibility="none") for text in texts * 2))
    versions = {(each["version"], each["id"]) for each in answers}
    assert sorted(version for version, _ in versions) == list(range(1, 13))
    assert len({number for _, number in versions}) == 12
    others = await asyncio.gather(*(add(client, f"o{n}", V1) for n in range(20)))
    assert len({each["id"] for each in others}) == 1  # equal schemas share it


async def test_a_bucket_that_a_client_made_serves_as_well(client: Client) -> None:
    await client.jetstream().create_key_value(KeyValueConfig(bucket="SCHEMAS", history=64))
    assert (await add(client, "orders", V1))["version"] == 1


async def test_accounts_have_registries_of_their_own(start_server: StartServer) -> None:
    server = start_server(config=ACCOUNTS)
    ann, bob, reader = [
        await nats.connect(server.url, user=user, password="pw", error_cb=_quiet) for user in ("ann", "bob", "reader")
    ]
    assert (await add(ann, "orders", V1))["version"] == 1
    assert (await ask(bob, "LIST"))["total"] == 0
    assert (await ask(bob, "GET.orders"))["error"]["err_code"] == 20001
    assert (await ask(reader, "GET.orders"))["text"] == V1
    with pytest.raises(nats.errors.TimeoutError):
        await ask(reader, "DELETE.orders", timeout=1)
    assert (await ask(ann, "LIST"))["total"] == 1
    for each in (ann, bob, reader):
        await each.close()


async def _quiet(_: Exception) -> None:
    return None


async def test_the_lake_has_each_version_when_its_registration_is_answered(start_server: StartServer) -> None:
    server = start_server(config=ACCOUNTS)
    ann = await nats.connect(server.url, user="ann", password="pw")
    first = await add(ann, "orders", V1)
    storage = open_storage(str(server.store / "lake"))
    found = schemas.read_schema(storage, "A", "orders", 1)
    assert found is not None
    assert (found.text, found.id) == (V1, first["id"])
    assert schemas.schema_of_id(storage, "A", first["id"]) == found
    assert schemas.names(storage, "$G") == []
    await add(ann, "p", PROTO, format="protobuf")
    proto = schemas.read_schema(storage, "A", "p", 1)
    assert proto is not None
    assert proto.descriptors
    server.kill()
    (server.store / "lake" / "accounts" / "A" / "schemas" / "orders" / "1.json").unlink()
    server.start()
    async with asyncio.timeout(20):
        while schemas.read_schema(storage, "A", "orders", 1) is None:
            await asyncio.sleep(0.05)
    await ann.close()


async def test_a_registration_does_not_need_the_lake(start_server: StartServer) -> None:
    server = start_server()
    client = await nats.connect(server.url)
    lake, away = server.store / "lake", server.store / "away"
    async with asyncio.timeout(20):
        while not lake.is_dir():
            await asyncio.sleep(0.05)
    lake.rename(away)
    assert (await add(client, "orders", V1))["version"] == 1
    assert not lake.exists()
    away.rename(lake)
    storage = open_storage(str(lake))
    async with asyncio.timeout(30):
        while schemas.read_schema(storage, "$G", "orders", 1) is None:
            await asyncio.sleep(0.05)
    await client.close()


async def test_a_server_without_a_lake_has_a_registry(start_server: StartServer) -> None:
    client = await nats.connect(start_server(config="lake { enabled: false }").url)
    assert (await add(client, "orders", V1))["version"] == 1
    await client.close()
