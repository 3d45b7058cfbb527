"""Tests of `lakestream.validate` through the real socket: which publishes are refused or tagged, and how."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamSource
from nats.js.errors import APIError

from lakestream_schemas.avro.fingerprint import fingerprint
from tests.clients.test_schemas import AVRO, PROTO, V1, V2, add, ask
from tests.conftest import StartServer

GOOD, NO_ID, BAD_QTY = b'{"id": "a"}', b'{"qty": 1}', b'{"id": "a", "qty": "x"}'
AVRO_GOOD = b"\x02a"


@pytest.fixture
async def client(start_server: StartServer) -> AsyncIterator[Client]:
    """Yield a client of a server with the schema `orders` in two versions."""
    connected = await nats.connect(start_server().url)
    for text in (V1, V2):
        await add(connected, "orders", text)
    yield connected
    await connected.close()


async def made(client: Client, name: str, schema: str = "orders@latest", mode: str = "reject", **more: Any) -> None:
    """Create a stream of subjects `<name>.>` that validates."""
    metadata = {"lakestream.schema": schema, "lakestream.validate": mode}
    config = StreamConfig(name=name, subjects=[f"{name}.>"], metadata=metadata, **more)
    await client.jetstream().add_stream(config)


async def error_of(
    js: JetStreamContext, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
) -> str | None:
    """Publish; return the description of the refusal, None for none."""
    try:
        await js.publish(subject, payload, headers=dict(headers) if headers else None, timeout=10)
    except APIError as error:
        if (error.code, error.err_code) != (400, 20006):
            raise
        return error.description
    return None


async def test_a_message_that_does_not_fit_is_refused_before_it_gets_a_sequence(client: Client) -> None:
    js = client.jetstream()
    await made(client, "S")
    assert (await js.publish("S.a", GOOD)).seq == 1
    refused = await error_of(js, "S.a", NO_ID)
    assert refused is not None
    assert refused.startswith("message does not fit its schema: id: required: ")
    refused = await error_of(js, "S.a", BAD_QTY, {"Nats-Msg-Id": "m1"})
    assert refused is not None
    assert refused.startswith("message does not fit its schema: qty: type: ")
    assert "payload: json: " in (await error_of(js, "S.a", b"{") or "")
    assert await error_of(js, "S.a", b"") is not None
    ack = await js.publish("S.a", GOOD, headers={"Nats-Msg-Id": "m1"})
    assert (ack.seq, ack.duplicate) == (2, None), "a refused message leaves no trace"
    await asyncio.gather(*(client.publish("S.a", payload) for payload in (GOOD, NO_ID, GOOD)))
    await client.flush()
    info = await js.stream_info("S")
    assert (info.state.messages, info.state.last_seq) == (4, 4)


async def test_a_stream_without_validation_takes_anything(client: Client) -> None:
    js = client.jetstream()
    await made(client, "S", mode="off")
    await js.add_stream(name="T", subjects=["T.>"])
    for stream in "ST":
        for payload in (GOOD, NO_ID, b"\xff"):
            await js.publish(f"{stream}.a", payload, headers={"Nats-Schema": "orders@1"})


async def test_rules_go_by_subject_and_header(client: Client) -> None:
    js = client.jetstream()
    rules = {"S.one.>": "orders@1", "S.two.>": "orders@latest", "S.header.>": "@header"}
    await made(client, "S", json.dumps(rules))
    assert await error_of(js, "S.one.a", BAD_QTY) is None
    assert "qty: type" in (await error_of(js, "S.two.a", BAD_QTY) or "")
    assert await error_of(js, "S.two.a", BAD_QTY, {"Nats-Schema": "orders@1"}) is None
    assert await error_of(js, "S.header.a", BAD_QTY) is None
    assert await error_of(js, "S.other", b"\xff") is None
    assert "qty: type" in (await error_of(js, "S.other", BAD_QTY, {"Nats-Schema": "orders"}) or "")
    unknown = await error_of(js, "S.header.a", GOOD, {"Nats-Schema": "orders@3"})
    assert unknown == "message does not fit its schema: payload: schema: orders@3 is not registered"
    assert "header" in (await error_of(js, "S.header.a", GOOD, {"Nats-Schema": "!"}) or "")


async def test_the_latest_version_counts_from_its_registration_on(client: Client) -> None:
    js = client.jetstream()
    await made(client, "S")
    text = V2.replace('"required"', '"maxProperties": 1, "required"')
    assert await error_of(js, "S.a", b'{"id": "a", "qty": 1}') is None
    await add(client, "orders", text, compatibility="none")
    async with asyncio.timeout(10):
        while await error_of(js, "S.a", b'{"id": "a", "qty": 1}') is None:
            await asyncio.sleep(0.01)
    await ask(client, "DELETE.orders", {"force": True})
    async with asyncio.timeout(10):
        while (await error_of(js, "S.a", GOOD)) is None:
            await asyncio.sleep(0.01)
    assert "not registered" in (await error_of(js, "S.a", GOOD) or "")


async def test_misfits_are_tagged_with_field_and_rule(client: Client) -> None:
    js = client.jetstream()
    await made(client, "S", mode="tag")
    strict = '{"type": "object", "properties": {}, "additionalProperties": {"type": "object", "required": ["id"]}}'
    await add(client, "strict", strict)
    injected = json.dumps({"a\r\nX: 1\r\n\r\n\u00e9": {}}).encode()
    for payload, headers in (
        (GOOD, {"Lakestream-Misfit": "mine", "A": "b"}),
        (NO_ID, None),
        (NO_ID, {"Lakestream-Misfit": "mine", "A": "b", "Nats-Msg-Id": "x"}),
        (injected, {"Nats-Schema": "strict"}),
        (json.dumps({"f" * 1000: {}}).encode(), {"Nats-Schema": "strict"}),
    ):
        await js.publish("S.a", payload, headers=headers)
    found = [await js.get_msg("S", seq) for seq in range(1, 6)]
    tags = [(each.headers or {}).get("Lakestream-Misfit") for each in found]
    assert tags[:3] == [None, "id: required", "id: required"]
    assert tags[3] == "a\\r\\nX: 1\\r\\n\\r\\n\\xe9.id: required"
    assert tags[4] is not None
    assert len(tags[4]) == 300
    assert [(each.headers or {}).get("A") for each in found] == ["b", None, "b", None, None]
    assert "X" not in (found[3].headers or {})


async def test_prefixes_name_schemas_of_each_format(client: Client) -> None:
    js = client.jetstream()
    orders = (await ask(client, "GET.orders"))["id"]
    avro = (await add(client, "a", AVRO, format="avro"))["id"]
    proto = PROTO + " message Other { message Inner { int32 n = 1; } }"
    proto_id = (await add(client, "p", proto, format="protobuf"))["id"]
    await made(client, "C", "@confluent")
    await made(client, "F", "@single-object")

    def framed(number: int, rest: bytes) -> bytes:
        return struct.pack(">xI", number) + rest

    assert await error_of(js, "C.a", framed(orders, GOOD)) is None
    assert "qty" in (await error_of(js, "C.a", framed(orders, BAD_QTY)) or "")
    assert await error_of(js, "C.a", framed(avro, AVRO_GOOD)) is None
    assert await error_of(js, "C.a", framed(avro, b"\x7f")) is not None
    assert await error_of(js, "C.a", framed(proto_id, b"\x00\n\x01a")) is None
    assert await error_of(js, "C.a", framed(proto_id, b"\x04\x02\x00\x08\x01")) is None
    assert await error_of(js, "C.a", framed(proto_id, b"\x04\x02\x00\x08")) is not None
    assert "no message at the path" in (await error_of(js, "C.a", framed(proto_id, b"\x02\x12\n\x01a")) or "")
    assert "id 999 is not registered" in (await error_of(js, "C.a", framed(999, GOOD)) or "")
    assert "prefix" in (await error_of(js, "C.a", GOOD) or "")
    assert await error_of(js, "F.a", b"\xc3\x01" + fingerprint(AVRO) + AVRO_GOOD) is None
    assert "is not registered" in (await error_of(js, "F.a", b"\xc3\x01" + bytes(8) + AVRO_GOOD) or "")


async def test_streams_with_unknown_schemas_are_refused(client: Client) -> None:
    for schema, mode, code in (
        ("none", "reject", 20001),
        ("orders@3", "off", 20001),
        ("orders@x", "off", 10052),
        ('{"a b": "orders"}', "reject", 10052),
        ("orders", "always", 10052),
    ):
        with pytest.raises(APIError) as refused:
            await made(client, "S", schema, mode)
        assert refused.value.err_code == code
    js = client.jetstream()
    with pytest.raises(APIError, match=r"needs lakestream\.schema"):
        await js.add_stream(name="S", metadata={"lakestream.validate": "reject"})
    await made(client, "S")
    with pytest.raises(APIError, match="a mirror holds"):
        await made(client, "M", mirror=StreamSource(name="S"))
    config = (await js.stream_info("S")).config
    config.metadata = {"lakestream.schema": "none", "lakestream.validate": "reject"}
    with pytest.raises(APIError, match="schema not found: none@latest"):
        await js.update_stream(config)
    await ask(client, "DELETE.orders", {"force": True})
    config.metadata = {"lakestream.schema": "orders", "lakestream.validate": "off"}
    await js.update_stream(config)
    assert await error_of(js, "S.a", NO_ID) is None


async def test_a_schema_that_streams_name_is_deleted_by_force_only(client: Client) -> None:
    await made(client, "S", '{"S.a": "orders@1"}')
    refused = (await ask(client, "DELETE.orders"))["error"]
    assert (refused["code"], refused["err_code"]) == (409, 20004)
    assert "schema in use: S: " in refused["description"]
    assert "error" not in await ask(client, "DELETE.orders", {"force": True})


async def test_messages_wait_for_schemas_after_a_start(start_server: StartServer) -> None:
    server = start_server()
    client = await nats.connect(server.url)
    await add(client, "orders", V1)
    await made(client, "S")
    await client.close()
    for end in (server.stop, server.kill):
        end()
        server.start()
        client = await nats.connect(server.url)
        js = client.jetstream()
        found = await asyncio.gather(*(error_of(js, "S.a", payload) for payload in (GOOD, NO_ID) * 20))
        assert [each is None for each in found] == [True, False] * 20
        await client.close()


async def test_markers_of_deleted_keys_are_no_misfits(client: Client) -> None:
    js = client.jetstream()
    metadata = {"lakestream.schema": "orders", "lakestream.validate": "reject"}
    await js.add_stream(name="KV_b", subjects=["$KV.b.>"], allow_rollup_hdrs=True, max_msgs_per_subject=5)
    config = (await js.stream_info("KV_b")).config
    config.metadata = metadata
    await js.update_stream(config)
    bucket = await js.key_value("b")
    await bucket.put("k", GOOD)
    with pytest.raises(APIError):
        await bucket.put("k", NO_ID)
    await bucket.delete("k")
    await bucket.purge("k")
    assert await error_of(js, "$KV.b.k", NO_ID, {"KV-Operation": "DEL"}) is not None


async def test_mirrors_and_sources_take_what_their_origin_holds(client: Client) -> None:
    js = client.jetstream()
    await js.add_stream(name="O", subjects=["O.>"])
    for payload in (GOOD, NO_ID):
        await js.publish("O.a", payload)
    await js.add_stream(
        name="S",
        sources=[StreamSource(name="O")],
        metadata={"lakestream.schema": "orders", "lakestream.validate": "reject"},
    )
    async with asyncio.timeout(20):
        while (await js.stream_info("S")).state.messages < 2:
            await asyncio.sleep(0.05)


async def test_one_misfit_refuses_a_whole_atomic_batch(client: Client) -> None:
    js = client.jetstream()
    await made(client, "S")
    info = await client.request("$JS.API.STREAM.INFO.S", b"")
    config = json.loads(info.data)["config"] | {"allow_atomic": True}
    assert "error" not in json.loads(
        (await client.request("$JS.API.STREAM.UPDATE.S", json.dumps(config).encode())).data
    )
    for batch, payloads, code in (("b1", (GOOD, NO_ID, GOOD), 20006), ("b2", (GOOD, GOOD), None)):
        for number, payload in enumerate(payloads, 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number == len(payloads):
                headers["Nats-Batch-Commit"] = "1"
            answer = await client.request("S.a", payload, headers=headers, timeout=10)
        error = json.loads(answer.data).get("error")
        assert (error and error["err_code"]) == code
    assert (await js.stream_info("S")).state.messages == 2


@pytest.mark.parametrize("mode", ["reject", "tag"])
async def test_messages_that_come_together_are_checked_each(client: Client, mode: str) -> None:
    await made(client, "S", mode=mode)
    await client.publish("S.a", GOOD)  # the codec is loaded
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    for wrong in ((), (0,), (99,), (50, 51, 70)):
        for number in range(100):
            await client.publish("S.a", NO_ID if number in wrong else GOOD, reply=inbox)
        found = [json.loads((await answers.next_msg(timeout=20)).data) for _ in range(100)]
        refused = sum("error" in each for each in found)
        assert refused == (len(wrong) if mode == "reject" else 0)
    info = await client.jetstream().stream_info("S")
    assert info.state.messages == (396 if mode == "reject" else 401)
    if mode == "tag":
        headers = [(await client.jetstream().get_msg("S", seq)).headers for seq in (101, 102, 103)]
        assert headers == [None, {"Lakestream-Misfit": "id: required"}, None]
