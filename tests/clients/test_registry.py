"""Tests of Confluent's Schema Registry API through its socket, by requests and by Confluent's own Python client."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import nats
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.type import date_pb2, money_pb2

from tests.clients.test_schemas import ask as ask_server
from tests.clients.test_sql_over_nats import until
from tests.conftest import StartServer
from tests.registry_world import RegistryWorld

heavy = pytest.mark.heavy  # two processes start for each test

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
ORDER_2 = {**ORDER, "fields": [*ORDER["fields"], {"name": "qty", "type": "int", "default": 0}]}  # type: ignore[misc]
BROKEN = {**ORDER, "fields": [{"name": "qty", "type": "int"}]}
LATEST = "/subjects/orders-value/versions/latest"


def definition(schema: Any, **more: Any) -> dict[str, Any]:
    """Return the body of a registration."""
    return {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}


@pytest.fixture
def url(start_server: StartServer) -> str:
    return start_server().url


@pytest.fixture
def world(url: str) -> Iterator[RegistryWorld]:
    world = RegistryWorld(url)
    yield world
    world.close()


def register(world: RegistryWorld, subject: str, schema: Any, **more: Any) -> int:
    """Register a definition; return its id."""
    status, found = world.ask("POST", f"/subjects/{subject}/versions", definition(schema, **more))
    assert status == 200, found
    return int(found["id"])


# ---------------------------------------------------------------------- requests
@heavy
def test_versions_ids_and_texts_as_confluents_registry_has_them(world: RegistryWorld) -> None:
    assert world.ask("GET", "/subjects") == (200, [])
    assert world.ask("GET", "/schemas/types") == (200, ["JSON", "PROTOBUF", "AVRO"])
    first = register(world, "orders-value", ORDER)
    assert register(world, "orders-value", json.dumps(ORDER, indent=2)) == first
    assert register(world, "copies-value", ORDER) == first
    second = register(world, "orders-value", ORDER_2)
    assert second > first
    assert world.ask("GET", "/subjects") == (200, ["copies-value", "orders-value"])
    assert world.ask("GET", "/subjects?subjectPrefix=ord") == (200, ["orders-value"])
    assert world.ask("GET", "/subjects/orders-value/versions") == (200, [1, 2])
    text = json.dumps(ORDER_2, separators=(",", ":"))
    entry = {"subject": "orders-value", "version": 2, "id": second, "schema": text}
    assert world.ask("GET", LATEST) == (200, entry)
    assert world.ask("GET", "/subjects/orders-value/versions/-1") == (200, entry)
    assert world.ask("GET", f"{LATEST}/schema") == (200, ORDER_2)
    assert world.ask("GET", f"/schemas/ids/{second}") == (200, {"schema": text})
    assert world.ask("GET", f"/schemas/ids/{first}?fetchMaxId=true")[1]["maxId"] == second
    assert world.ask("GET", f"/schemas/ids/{first}/subjects") == (200, ["copies-value", "orders-value"])
    places = [{"subject": "copies-value", "version": 1}, {"subject": "orders-value", "version": 1}]
    assert world.ask("GET", f"/schemas/ids/{first}/versions") == (200, places)
    assert world.ask("POST", "/subjects/orders-value", definition(ORDER_2)) == (200, entry)
    assert [each["version"] for each in world.ask("GET", "/schemas?subjectPrefix=orders")[1]] == [1, 2]
    assert len(world.ask("GET", "/schemas?latestOnly=true")[1]) == 2
    assert world.ask("GET", "/contexts") == (200, ["."])
    assert world.ask("GET", "/") == (200, {})


def test_errors_have_the_codes_of_confluents_registry(world: RegistryWorld) -> None:
    register(world, "orders-value", ORDER)
    versions = "/subjects/orders-value/versions"
    assert world.error("GET", "/subjects/none/versions") == 40401
    assert world.error("GET", "/subjects/none/versions/1") == 40401
    assert world.error("GET", f"{versions}/7") == 40402
    assert world.error("GET", f"{versions}/0") == 42202
    assert world.error("GET", f"{versions}/first") == 42202
    assert world.error("GET", "/schemas/ids/999") == 40403
    assert world.error("POST", "/subjects/none", definition(ORDER)) == 40401
    assert world.error("POST", "/subjects/orders-value", definition(ORDER_2)) == 40403
    assert world.error("POST", versions, definition("{")) == 42201
    assert world.error("POST", versions, definition('{"type": "nothing"}')) == 42201
    assert world.error("POST", versions, definition("")) == 42201
    assert world.error("POST", versions, definition(ORDER, schemaType="XML")) == 42201
    assert (
        world.error("POST", versions, definition(ORDER, references=[{"name": "a", "subject": "b", "version": 1}]))
        == 42201
    )
    assert world.error("POST", versions, definition(BROKEN)) == 409
    assert world.error("PUT", "/config", {"compatibility": "SOME"}) == 42203
    assert world.error("PUT", "/mode", {"mode": "SOME"}) == 42204
    assert world.error("GET", "/config/orders-value") == 40408
    assert world.error("GET", "/mode/orders-value") == 40409
    assert world.error("POST", "/subjects/:.other:orders/versions", definition(ORDER)) == 42208
    assert world.error("DELETE", "/subjects/none") == 40401
    assert world.error("DELETE", "/subjects/orders-value?permanent=true") == 40405
    assert world.error("DELETE", f"{versions}/1?permanent=true") == 40407
    assert world.error("GET", "/nothing") == 404
    assert world.ask("GET", "/subjects/none/versions")[1] == {
        "error_code": 40401,
        "message": "Subject 'none' not found.",
    }


@heavy
def test_deleted_versions_keep_their_ids_for_messages(world: RegistryWorld) -> None:
    first, second = register(world, "orders", ORDER), register(world, "orders", ORDER_2)
    assert world.ask("DELETE", "/subjects/orders/versions/2") == (200, 2)
    assert world.error("DELETE", "/subjects/orders/versions/2") == 40406
    assert world.ask("GET", "/subjects/orders/versions") == (200, [1])
    assert world.ask("GET", "/subjects/orders/versions?deleted=true") == (200, [1, 2])
    assert world.ask("GET", f"/schemas/ids/{second}")[0] == 200
    assert register(world, "orders", ORDER_2) == second
    assert world.ask("GET", "/subjects/orders/versions") == (200, [1, 3])
    assert world.ask("DELETE", "/subjects/orders") == (200, [1, 3])
    assert world.ask("GET", "/subjects") == (200, [])
    assert world.ask("GET", "/subjects?deleted=true") == (200, ["orders"])
    assert world.error("DELETE", "/subjects/orders") == 40404
    assert world.ask("DELETE", "/subjects/orders?permanent=true") == (200, [1, 2, 3])
    assert world.ask("GET", "/subjects?deleted=true") == (200, [])
    assert world.error("GET", f"/schemas/ids/{first}") == 40403
    other = {**ORDER, "name": "Other"}
    assert register(world, "orders", other) > second
    assert register(world, "copies", ORDER) == first


@heavy
def test_compatibility_is_that_of_the_subject_then_of_the_registry(world: RegistryWorld) -> None:
    assert world.ask("GET", "/config") == (200, {"compatibilityLevel": "BACKWARD"})
    register(world, "orders", ORDER)
    check = "/compatibility/subjects/orders/versions"
    assert world.ask("POST", f"{check}/latest", definition(ORDER_2)) == (200, {"is_compatible": True})
    status, found = world.ask("POST", f"{check}?verbose=true", definition(BROKEN))
    assert (status, found["is_compatible"]) == (200, False)
    assert "qty" in found["messages"][0]
    assert world.ask("POST", "/compatibility/subjects/none/versions/latest", definition(ORDER))[1]["is_compatible"]
    assert world.error("POST", "/compatibility/subjects/none/versions/1", definition(ORDER)) == 40402
    assert world.ask("PUT", "/config/orders", {"compatibility": "none"}) == (200, {"compatibility": "NONE"})
    assert world.ask("GET", "/config/orders") == (200, {"compatibilityLevel": "NONE"})
    register(world, "orders", BROKEN)
    assert world.ask("DELETE", "/config/orders") == (200, {"compatibilityLevel": "NONE"})
    assert world.ask("GET", "/config/orders?defaultToGlobal=true") == (200, {"compatibilityLevel": "BACKWARD"})
    world.ask("PUT", "/config", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert world.error("POST", "/subjects/orders/versions", definition(ORDER_2)) == 409
    world.ask("PUT", "/config", {"compatibility": "FORWARD"})
    register(world, "orders", {**ORDER, "fields": [*BROKEN["fields"], *ORDER["fields"]]})  # type: ignore[misc]


@heavy
def test_modes_forbid_writes_and_let_ids_in(world: RegistryWorld) -> None:
    register(world, "orders", ORDER)
    assert world.error("PUT", "/mode", {"mode": "IMPORT"}) == 42205
    assert world.ask("PUT", "/mode/orders", {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    assert world.error("POST", "/subjects/orders/versions", definition(ORDER_2)) == 42205
    register(world, "orders", ORDER)  # it is registered
    assert world.error("DELETE", "/subjects/orders") == 42205
    assert world.ask("DELETE", "/mode/orders") == (200, {"mode": "READONLY"})
    assert world.error("POST", "/subjects/brought/versions", definition(ORDER_2, id=100, version=7)) == 42205
    world.ask("PUT", "/mode/brought", {"mode": "IMPORT"})
    assert register(world, "brought", ORDER_2, id=100, version=7) == 100
    assert world.ask("GET", "/subjects/brought/versions") == (200, [7])
    assert world.error("POST", "/subjects/brought/versions", definition(BROKEN, id=100)) == 42205
    world.ask("PUT", "/config", {"compatibility": "NONE"})
    assert register(world, "orders", BROKEN) == 101  # never one that was brought


@heavy
def test_subjects_may_have_any_name(world: RegistryWorld) -> None:
    for subject in ("a%2Fb", "com.acme.Order", ".hidden", "%C3%A4%20b", "_x41_"):
        register(world, subject, ORDER)
    assert world.ask("GET", "/subjects")[1] == [".hidden", "_x41_", "a/b", "com.acme.Order", "ä b"]
    assert world.ask("GET", "/subjects/a%2Fb/versions") == (200, [1])
    assert world.ask("GET", "/subjects/:.:com.acme.Order/versions") == (200, [1])


@heavy
def test_keys_may_be_primitive_types(world: RegistryWorld) -> None:
    register(world, "orders-key", '"string"')
    assert world.error("POST", "/subjects/orders-key/versions", definition('"long"')) == 409
    register(world, "json-key", '{"type": "string"}', schemaType="JSON")


@heavy
def test_a_referenced_version_cannot_be_deleted(world: RegistryWorld) -> None:
    register(world, "customer", {"type": "record", "name": "Customer", "namespace": "a", "fields": []})
    link = {"name": "a.Customer", "subject": "customer", "version": 1}
    schema = {"type": "record", "name": "O", "fields": [{"name": "c", "type": "a.Customer"}]}
    number = register(world, "orders", schema, references=[link])
    assert world.ask("GET", "/subjects/customer/versions/1/referencedby") == (200, [number])
    assert world.ask("GET", f"/schemas/ids/{number}")[1]["references"] == [link]
    resolved = json.loads(world.ask("GET", f"/schemas/ids/{number}?format=resolved")[1]["schema"])
    assert resolved["fields"][0]["type"]["name"] == "Customer"
    assert world.error("DELETE", "/subjects/customer/versions/1") == 42206
    world.ask("DELETE", "/subjects/orders")
    assert world.ask("DELETE", "/subjects/customer/versions/1") == (200, 1)


async def test_the_servers_own_api_and_the_registry_see_each_other(url: str, world: RegistryWorld) -> None:
    client = await nats.connect(url)
    text = json.dumps(ORDER, separators=(",", ":"))
    added = await ask_server(client, "ADD.orders", {"format": "avro", "text": text})
    assert register(world, "orders", ORDER) == added["id"]
    assert register(world, "copies", ORDER) == added["id"]
    brought = register(world, "orders", ORDER_2)
    assert (await ask_server(client, "GET.orders"))["id"] == brought
    await client.close()


def test_logins_are_users_of_the_server_with_their_permissions(start_server: StartServer) -> None:
    server = start_server(
        config="""
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: reader, password: pw, permissions { publish: ["$SYS.REQ.USER.INFO", "$LAKE.API.SCHEMA.GET.orders"] } } ] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
}
"""
    )
    world = RegistryWorld(server.url, "--user", "ann", "--password", "pw")
    try:
        ann, reader, bob, wrong = (
            f"Basic {base64.b64encode(each.encode()).decode()}" for each in ("ann:pw", "reader:pw", "bob:pw", "ann:no")
        )
        assert world.ask("POST", "/subjects/orders/versions", definition(ORDER), ann)[0] == 200
        assert world.ask("POST", "/subjects/secret/versions", definition(ORDER_2), ann)[0] == 200
        assert world.ask("GET", "/subjects/orders/versions", login=reader) == (200, [1])
        assert world.ask("GET", "/subjects/secret/versions", login=reader)[0] == 403
        assert world.ask("POST", "/subjects/orders/versions", definition(ORDER_2), reader)[0] == 403
        for login in (bob, wrong, ""):
            assert world.ask("GET", "/subjects", login=login)[1]["error_code"] == 401
    finally:
        world.close()


# ---------------------------------------------------------------------- Confluent's client
@pytest.fixture
def client(world: RegistryWorld) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": world.url})


CONTEXT = SerializationContext("orders", MessageField.VALUE)


def test_confluents_avro_serializer(client: SchemaRegistryClient) -> None:
    serializer = AvroSerializer(client, json.dumps(ORDER))
    payload = serializer({"id": "o1"}, CONTEXT)
    assert payload is not None
    assert payload[:1] == b"\x00"
    assert client.get_schema(int.from_bytes(payload[1:5], "big")).schema_type == "AVRO"
    assert AvroDeserializer(client)(payload, CONTEXT) == {"id": "o1"}
    assert client.get_subjects() == ["orders-value"]
    with pytest.raises(SchemaRegistryError) as refused:
        AvroSerializer(client, json.dumps(BROKEN))({"qty": 1}, CONTEXT)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)


@heavy
def test_confluents_avro_serializer_with_references(client: SchemaRegistryClient) -> None:
    customer = {"type": "record", "name": "Customer", "namespace": "a", "fields": [{"name": "n", "type": "string"}]}
    client.register_schema("customer", Schema(json.dumps(customer), "AVRO"))
    order = {"type": "record", "name": "O", "fields": [{"name": "c", "type": "a.Customer"}]}
    schema = Schema(json.dumps(order), "AVRO", [SchemaReference("a.Customer", "customer", 1)])
    payload = AvroSerializer(client, schema)({"c": {"n": "x"}}, CONTEXT)
    assert payload is not None
    assert AvroDeserializer(client)(payload, CONTEXT) == {"c": {"n": "x"}}


@heavy
def test_confluents_json_serializer(client: SchemaRegistryClient) -> None:
    address = {"type": "object", "title": "Address", "properties": {"zip": {"type": "string"}}}
    client.register_schema("address", Schema(json.dumps(address), "JSON"))
    order = {"type": "object", "title": "O", "properties": {"a": {"$ref": "address.json"}, "n": {"type": "integer"}}}
    schema = Schema(json.dumps(order), "JSON", [SchemaReference("address.json", "address", 1)])
    payload = JSONSerializer(schema, client)({"a": {"zip": "1"}, "n": 2}, CONTEXT)
    assert payload is not None
    reader = JSONDeserializer(None, schema_registry_client=client)
    assert reader(payload, CONTEXT) == {"a": {"zip": "1"}, "n": 2}


def event_class() -> Any:
    """Return the class of the second message of a file, which imports a well-known type."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other")
    message = file.message_type.add(name="Event")
    message.field.add(name="at", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp")
    message.field.add(name="text", number=2, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Event"))


@heavy
def test_confluents_protobuf_serializer(client: SchemaRegistryClient, world: RegistryWorld) -> None:
    event = event_class()
    sent = event(text="x")
    sent.at.seconds = 5
    payload = ProtobufSerializer(event, client, {"use.deprecated.format": False})(sent, CONTEXT)
    assert payload is not None
    reader = ProtobufDeserializer(event, {"use.deprecated.format": False}, client)
    assert reader(payload, CONTEXT) == sent
    number = int.from_bytes(payload[1:5], "big")
    assert world.ask("GET", f"/schemas/ids/{number}?format=serialized")[1]["schemaType"] == "PROTOBUF"


def imports_class() -> Any:
    """Return the class of a message with types of the files for which Confluent's clients register no reference."""
    file = descriptor_pb2.FileDescriptorProto(name="booking.proto", package="shop", syntax="proto3")
    modules = (date_pb2, money_pb2, decimal_pb2, meta_pb2, descriptor_pb2)
    file.dependency.extend(each.DESCRIPTOR.name for each in modules[:-1])
    message = file.message_type.add(name="Booking")
    for number, kind in enumerate((".google.type.Date", ".google.type.Money", ".confluent.type.Decimal"), 1):
        message.field.add(name=f"f{number}", number=number, type=11, label=1, type_name=kind)
    message.field[0].options.Extensions[meta_pb2.field_meta].doc = "the day"
    pool = descriptor_pool.DescriptorPool()
    for each in reversed(modules):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Booking"))


@heavy
def test_files_that_every_registry_has_need_no_reference(client: SchemaRegistryClient, world: RegistryWorld) -> None:
    booking = imports_class()
    sent = booking()
    sent.f1.day, sent.f2.units, sent.f3.value = 3, 5, b"\x01"
    payload = ProtobufSerializer(booking, client, {"use.deprecated.format": False})(sent, CONTEXT)
    assert payload is not None
    reader = ProtobufDeserializer(booking, {"use.deprecated.format": False}, client)
    assert reader(payload, CONTEXT) == sent
    text = """syntax = "proto3"; import "google/type/date.proto"; import "confluent/meta.proto";
        import "confluent/type/decimal.proto";
        message B { google.type.Date day = 1 [(confluent.field_meta).doc = "x"]; confluent.type.Decimal price = 2; }"""
    register(world, "texts", text, schemaType="PROTOBUF")  # as Java's clients do
    refused = 'syntax = "proto3"; import "google/api/http.proto"; message C { google.api.Http h = 1; }'
    assert world.error("POST", "/subjects/x/versions", definition(refused, schemaType="PROTOBUF")) == 42201


@heavy
def test_confluents_client_for_settings_and_deletions(client: SchemaRegistryClient) -> None:
    schema = Schema(json.dumps(ORDER), "AVRO")
    number = client.register_schema("orders", schema)
    assert client.lookup_schema("orders", schema).schema_id == number
    assert client.get_latest_version("orders").version == 1
    assert client.test_compatibility("orders", Schema(json.dumps(ORDER_2), "AVRO"))
    assert client.set_compatibility("orders", "FULL") == {"compatibility": "FULL"}
    assert client.get_compatibility("orders") == "FULL"
    assert client.get_versions("orders") == [1]
    assert client.delete_version("orders", 1) == 1
    assert client.delete_subject("orders", permanent=True) == [1]
    with pytest.raises(SchemaRegistryError) as missing:
        client.get_versions("orders")
    assert missing.value.error_code == 40401


@heavy
def test_protobuf_texts_import_others(world: RegistryWorld) -> None:
    inner = 'syntax = "proto3"; package a; message Inner { int32 n = 1; }'
    outer = 'syntax = "proto3"; import "inner.proto"; message Outer { a.Inner i = 1; message Nested { string s = 1; } }'
    register(world, "inner", inner, schemaType="PROTOBUF")
    link = [{"name": "inner.proto", "subject": "inner", "version": 1}]
    number = register(world, "outer", outer, schemaType="PROTOBUF", references=link)
    assert world.ask("GET", f"/schemas/ids/{number}")[1]["schema"] == outer
    assert world.error("POST", "/subjects/x/versions", definition(outer, schemaType="PROTOBUF")) == 42201


# ---------------------------------------------------------------------- messages
async def test_a_publish_in_confluents_wire_format_is_checked_by_its_id(url: str, client: SchemaRegistryClient) -> None:
    connection = await nats.connect(url)
    metadata = {"lakestream.schema": "@confluent", "lakestream.validate": "reject"}
    await connection.jetstream().add_stream(name="ORDERS", subjects=["orders"], metadata=metadata)
    payload = AvroSerializer(client, json.dumps(ORDER))({"id": "o1"}, CONTEXT)
    assert payload is not None
    await connection.jetstream().publish("orders", payload)
    client.delete_subject("orders-value")
    await connection.jetstream().publish("orders", payload)  # the id stays
    with pytest.raises(nats.js.errors.APIError) as refused:
        await connection.jetstream().publish("orders", payload[:5] + b"\xff")
    assert refused.value.err_code == 20006
    event = event_class()
    framed = ProtobufSerializer(event, client, {"use.deprecated.format": False})(event(text="x"), CONTEXT)
    assert framed is not None
    await connection.jetstream().publish("orders", framed)
    with pytest.raises(nats.js.errors.APIError):
        await connection.jetstream().publish("orders", framed + b"\xff")
    await connection.close()


# ---------------------------------------------------------------------- import
@heavy
def test_another_registry_is_imported_with_ids(start_server: StartServer, world: RegistryWorld) -> None:
    from tests.clients.test_commands import run

    first = register(world, "orders", ORDER)
    second = register(world, "orders", ORDER_2)
    link = [{"name": "Order", "subject": "orders", "version": 1}]
    register(
        world, "lists", {"type": "record", "name": "L", "fields": [{"name": "o", "type": "Order"}]}, references=link
    )
    world.ask("PUT", "/config/orders", {"compatibility": "FULL"})
    world.ask("DELETE", "/subjects/orders/versions/2")
    target = start_server()
    done = run("registry", "import", world.url, "--server", target.url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"versions": 3, "deleted": 1, "levels": 1, "refused": []}
    again = run("registry", "import", world.url, "--server", target.url, "--json")
    assert json.loads(again.stdout)["versions"] == 0
    copy = RegistryWorld(target.url)
    try:
        for path in ("/subjects", "/subjects/orders/versions", f"/schemas/ids/{first}", f"/schemas/ids/{second}"):
            assert copy.ask("GET", path) == world.ask("GET", path)
        for path in ("/subjects/orders/versions?deleted=true", "/config/orders", "/subjects/lists/versions/1"):
            assert copy.ask("GET", path) == world.ask("GET", path)
        assert register(copy, "own", {**ORDER, "name": "Own"}) > second
    finally:
        copy.close()


class OtherRegistry(BaseHTTPRequestHandler):
    """Registry in front of ours that answers as Karapace and Redpanda do. `url`: of ours; `kind`: which of them."""

    url, kind = "", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        status, body = 404, json.dumps({"message": "Not found", "code": 404}).encode()
        if self.kind == "karapace" or path != ["schemas"]:  # Redpanda has no list of schemas
            try:
                with urllib.request.urlopen(self.url + self.path, timeout=20) as answer:
                    status, body = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    status, body = error.code, error.read()
        if path[:1] == ["config"] and len(path) == 2 and status == 404:
            body = json.dumps({"error_code": 40401, "message": f"Subject '{path[1]}' not found."}).encode()
        elif status == 200 and self.kind == "karapace" and path[0] in ("schemas", "subjects") and b'"schema"' in body:
            found = json.loads(body)
            for each in found if isinstance(found, list) else [found]:
                each |= {"compatibility": "FULL", "schemaType": each.get("schemaType", "AVRO")}
            body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@heavy
@pytest.mark.parametrize("kind", ["karapace", "redpanda"])
def test_registries_that_answer_otherwise_are_imported_too(
    start_server: StartServer, world: RegistryWorld, kind: str
) -> None:
    from tests.clients.test_commands import run

    numbers = [register(world, "orders-value", each) for each in (ORDER, ORDER_2)]
    numbers.append(register(world, "a%2Fkey", '{"type": "string"}'))
    world.ask("DELETE", "/subjects/orders-value/versions/1")
    world.ask("PUT", "/config/orders-value", {"compatibility": "FULL"})
    handler = type("Handler", (OtherRegistry,), {"url": world.url, "kind": kind})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        source, target = f"http://127.0.0.1:{other.server_port}", start_server()
        for versions in (3, 0):
            done = run("registry", "import", source, "--server", target.url, "--json")
            found = json.loads(done.stdout)
            assert (done.returncode, found["versions"], found["refused"]) == (0, versions, [])
        other.shutdown()
    copy = RegistryWorld(target.url)
    try:
        places = ["/subjects", "/subjects/orders-value/versions?deleted=true", "/subjects/orders-value/versions"]
        for path in (*places, "/config/orders-value", *(f"/schemas/ids/{number}" for number in numbers)):
            assert copy.ask("GET", path) == world.ask("GET", path)
        assert register(copy, "a%2Fkey", '"string"') == numbers[-1], "the same as Java's clients spell it"
    finally:
        copy.close()


@heavy
def test_another_registry_is_followed_until_the_command_ends(start_server: StartServer, world: RegistryWorld) -> None:
    target = start_server()
    copy = RegistryWorld(target.url)
    copy.ask("PUT", "/mode", {"mode": "IMPORT"})
    follow = [sys.executable, "-m", "lakestream", "registry", "follow", world.url, "--every", "0.1"]
    with subprocess.Popen([*follow, "--server", target.url], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("following ")
            assert copy.ask("GET", "/mode") == (200, {"mode": "READONLY_OVERRIDE"})
            assert copy.error("POST", "/subjects/own/versions", definition(ORDER)) == 42205
            first = register(world, "orders", ORDER)
            until(lambda: copy.ask("GET", "/subjects/orders/versions/1")[1].get("id") == first)
            register(world, "orders", ORDER_2)
            world.ask("DELETE", "/subjects/orders/versions/1")
            until(lambda: copy.ask("GET", "/subjects/orders/versions") == (200, [2]))
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert copy.ask("GET", "/mode") == (200, {"mode": "IMPORT"}), "the mode from before"
    copy.close()
