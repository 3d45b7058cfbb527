"""Tests of `lakestream mcp` with the client of the SDK, over stdio and HTTP: sessions of the page, rights, limits."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from lakestream.cli.link import ClientLink
from lakestream.cli.server_options import Server as Login
from lakestream.lake.flush import ServerCredentials
from lakestream.log.format.record import Record
from lakestream.protocol.instants import instant
from lakestream_mcp import shown
from lakestream_transfer.sending import StreamSender
from tests.docs.blocks import ROOT, blocks
from tests.servers import Kind, Server
from tests.sql_escapes import EVERYTHING
from tests.wire import Wire

pytestmark = pytest.mark.conformance

LAKESTREAM = str(Path(sys.executable).parent / "lakestream")
CONFIG = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: few, password: pw, permissions { publish: {
      deny: ["$LAKE.API.SQL", "$JS.API.STREAM.LIST", "$JS.API.STREAM.MSG.GET.ORDERS", "orders.>"] } } } ] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
  C { users: [{ user: cid, password: pw }] }
}
lake { seal_age: "1h" }
sql { max_time: 60s }
"""
SESSIONS = [block for block in blocks(ROOT / "docs/assistants.md") if block.text.startswith("[")]
ORDERS = [
    ("10:00", "orders.de", {"item": "apple", "price": 3.0}),
    ("10:05", "orders.fr", {"item": "pear", "price": 2.5}),
    ("12:40", "orders.de", {"item": "apple", "price": 4.5}),
    ("12:50", "orders.de", {"item": "plum", "price": 1.0}),
]
PRICES = [("09:00", "apple", "3.00"), ("12:30", "apple", "4.50"), ("12:31", "pear", "2.50")]
INVOICES = {"durable_name": "invoices", "ack_policy": "explicit", "filter_subject": "orders.de"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with the stream and the bucket of the page."""
    server = Server(Kind.OURS, tmp_path_factory.mktemp("mcp") / "store", config=CONFIG)
    server.start()
    kept = {"allow_direct": True, "metadata": {"lakestream.time_travel": "3650d"}}
    with Wire(server.address, {"user": "ann", "pass": "pw"}) as wire:
        wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], **kept})
        bucket = {"name": "KV_prices", "subjects": ["$KV.prices.>"], "max_msgs_per_subject": 5, **kept}
        wire.api("STREAM.CREATE.KV_prices", bucket)
        wire.api("STREAM.CREATE.KV_plain", {"name": "KV_plain", "subjects": ["$KV.plain.>"], "max_msgs_per_subject": 5})
        for value in (b"1", b"2"):
            wire.request("$KV.plain.key", value)
        wire.api("CONSUMER.CREATE.ORDERS.invoices", {"stream_name": "ORDERS", "config": INVOICES})
    with Wire(server.address, {"user": "bob", "pass": "pw"}) as wire:
        wire.api("STREAM.CREATE.NOTES", {"name": "NOTES", "subjects": ["notes"]})
    host, port = server.address
    login = ServerCredentials(user="ann", password="pw")
    with ClientLink(Login(f"nats://{host}:{port}", login)) as link:
        days = [(at, subject, json.dumps(order)) for at, subject, order in ORDERS]
        for stream, messages in (("ORDERS", days), ("KV_prices", [(at, f"$KV.prices.{k}", v) for at, k, v in PRICES])):
            sender = StreamSender(link, stream, 0)
            times = [instant(f"2026-05-01 {at}") for at, _, _ in messages]
            sender.put(
                Record(row, time_ns, subject.encode(), b"", data.encode())
                for row, (time_ns, (_, subject, data)) in enumerate(zip(times, messages, strict=True), 1)
            )
            sender.finish()
    yield server
    server.kill()


def arguments(server: Server, *more: str, user: str = "ann") -> list[str]:
    """Return the arguments of the command."""
    host, port = server.address
    return ["mcp", "--server", f"nats://{host}:{port}", "--user", user, "--password", "pw", *more]


@contextlib.asynccontextmanager
async def over_http(server: Server, *more: str) -> AsyncIterator[str]:
    """Run the command with `--listen`; yield its URL."""
    command = [LAKESTREAM, *arguments(server, "--listen", "127.0.0.1:0", *more)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        line = (await process.stderr.readline()).decode()
        yield line.removeprefix("MCP on ").strip()
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def assistant(server: Server, *more: str, user: str = "ann", http: bool = False) -> AsyncIterator[Client]:
    """Run the command, and yield a client of it."""
    async with contextlib.AsyncExitStack() as stack:
        if http:
            yield await stack.enter_async_context(Client(await stack.enter_async_context(over_http(server, *more))))
        else:
            command = StdioServerParameters(command=LAKESTREAM, args=arguments(server, *more, user=user))
            yield await stack.enter_async_context(Client(command))


async def text(client: Client, tool: str, **given: Any) -> str:
    """Return what a tool answers; its errors begin as those of the SDK."""
    found = await client.call_tool(tool, given)
    (content,) = found.content
    assert content.type == "text"
    assert bool(found.is_error) == content.text.startswith(("Error executing tool ", "Unknown tool: "))
    return content.text


def differences(found: Any, expected: Any) -> list[tuple[Any, Any]]:
    """Return where an answer is not as expected; it may have more fields."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [each for key, value in expected.items() for each in differences(found.get(key), value)]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        return [each for one, other in zip(found, expected, strict=True) for each in differences(one, other)]
    return [] if found == expected else [(found, expected)]


async def test_without_allow_writes_nothing_can_be_written(server: Server) -> None:
    """Also not by a name that carries a line of the protocol."""
    async with assistant(server) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"query", "read_messages", "kv_history"} <= names
        assert not names & {"publish", "kv_put"}
        before = await text(client, "describe_stream", stream="ORDERS")
        assert "Unknown tool" in await text(client, "publish", subject="orders.de", data="{}")
        injected = "ORDERS\r\nPUB orders.de 2\r\n{}\r\n"
        for tool in ("describe_stream", "list_consumers", "last_message", "read_messages"):
            assert "is not the name of a stream" in await text(client, tool, stream=injected)
        assert "is not the name" in await text(client, "query", sql="SELECT 1", stream=injected)
        assert "is not the name" in await text(client, "describe_schema", name=injected)
        assert "is not the name" in await text(client, "kv_keys", bucket=injected)
        for subject in (injected, "orders. x"):
            assert "is not valid" in await text(client, "last_message", stream="ORDERS", subject=subject)
        for tool in ("kv_get", "kv_history"):
            assert "is not" in await text(client, tool, bucket=injected, key="apple")
            assert "is not a key" in await text(client, tool, bucket="prices", key=injected)
        assert "a statement here reads" in await text(client, "query", sql="DROP TABLE ORDERS")
        assert await text(client, "describe_stream", stream="ORDERS") == before


@pytest.mark.heavy
async def test_a_user_sees_what_it_may_see(server: Server) -> None:
    async with assistant(server, "--allow-writes", user="few") as client:
        refused = "this user may not publish to {}: have it allowed, or log in as another user"
        assert refused.format("$JS.API.STREAM.LIST") in await text(client, "list_streams")
        assert refused.format("orders.de") in await text(client, "publish", subject="orders.de", data="{}")
        read = await text(client, "last_message", stream="ORDERS")
        assert refused.format("$JS.API.STREAM.MSG.GET.ORDERS") in read
        assert "this user may not ask SQL" in await text(client, "query", sql="SELECT 1")
        assert json.loads(await text(client, "describe_stream", stream="ORDERS"))["name"] == "ORDERS"
    async with assistant(server) as client:
        listed = json.loads(await text(client, "list_streams", subject="other.>"))
        assert listed == {"streams": []}
    async with assistant(server, user="bob") as client:
        assert [each["name"] for each in json.loads(await text(client, "list_streams"))["streams"]] == ["NOTES"]
        assert "there is no stream ORDERS: list_streams shows" in await text(client, "describe_stream", stream="ORDERS")
        assert "there is no bucket prices" in await text(client, "kv_get", bucket="prices", key="apple")
        assert "there is no table ORDERS" in await text(client, "query", sql="SELECT * FROM ORDERS")
    async with assistant(server, user="cid") as client:
        assert "JetStream is off for this account" in await text(client, "list_streams")


async def test_a_server_without_sql_says_how_to_turn_it_on(tmp_path: Path) -> None:
    """nats-server serves the streams; the tools of the lake say what is missing."""
    real = Server(
        Kind.REAL,
        tmp_path / "store",
        config="accounts { A { jetstream: enabled, users: [ { user: ann, password: pw } ] } }",
    )
    real.start()
    try:
        async with assistant(real) as client:
            assert json.loads(await text(client, "list_streams")) == {"streams": []}
            assert "configure `sql { enabled: true }`" in await text(client, "query", sql="SELECT 1")
            assert "the server must be a lakestream" in await text(client, "list_schemas")
    finally:
        real.kill()


@pytest.mark.heavy
async def test_buckets_tables_and_schemas_are_described(server: Server) -> None:
    with Wire(server.address, {"user": "ann", "pass": "pw"}) as wire:
        schema = {"format": "json", "text": '{"type": "object"}'}
        wire.request("$LAKE.API.SCHEMA.ADD.order", json.dumps(schema).encode())
    async with assistant(server) as client:
        buckets = json.loads(await text(client, "list_buckets"))
        assert {(each["name"], each["history"]) for each in buckets["key_value"]} >= {("prices", 5), ("plain", 5)}
        assert json.loads(await text(client, "kv_keys", bucket="prices", filter="a*")) == {"keys": []}
        assert "apple" in json.loads(await text(client, "kv_keys", bucket="prices"))["keys"]

        found = json.loads(await text(client, "describe_table", table="ORDERS"))
        last = json.loads(await text(client, "describe_stream", stream="ORDERS"))["last_seq"]
        assert (found["columns"]["seq"], found["columns"]["json"]) == ("BIGINT", "JSON")
        assert (found["version"], found["tail"]) == (None, last), "nothing is compacted"
        assert "value" in json.loads(await text(client, "describe_table", table="kv.prices"))["columns"]
        tables = json.loads(await text(client, "list_tables"))["tables"]
        assert {"ORDERS", "kv.prices"} <= {each["table"] for each in tables}
        assert "there is no table NONE" in await text(client, "describe_table", table="NONE")

        assert [each["name"] for each in json.loads(await text(client, "list_schemas"))["schemas"]] == ["order"]
        assert json.loads(await text(client, "describe_schema", name="order"))["text"] == schema["text"]
        assert "schema not found: order@7" in await text(client, "describe_schema", name="order", version=7)


@pytest.mark.heavy
async def test_answers_are_bounded(server: Server) -> None:
    async with assistant(server, "--allow-writes") as client:
        names = "SELECT i FROM range(2000) t(i)"
        few = json.loads(await text(client, "query", sql=names, max_rows=10))
        assert (len(few["rows"]), few["truncated"]) == (10, True)
        wide = json.loads(
            await text(client, "query", sql="SELECT repeat('x', 3000) AS x FROM range(500)", max_rows=500)
        )
        assert 80 < len(wide["rows"]) < 90, "as many as RESULT_BYTES has room for"
        assert wide["truncated"]
        long = json.loads(await text(client, "query", sql="SELECT repeat('x', 9000) AS x"))
        assert long["rows"] == [{"x": "x" * shown.MESSAGE_BYTES + "… (9000 characters)"}]
        endless = "SELECT count(*) FROM range(10000000000) a, range(1000000) b"
        assert "longer than 1 s and was ended" in await text(client, "query", sql=endless, max_seconds=1)
        huge = await text(client, "query", sql="SELECT range(100000) AS l")
        assert "the answer is too large: ask for less" in huge
        assert "less than or equal to 1000" in await text(client, "query", sql=names, max_rows=1001)

        await text(client, "kv_put", bucket="plain", key="long", value="ä" * 5000)
        cut = json.loads(await text(client, "kv_get", bucket="plain", key="long", max_bytes=5))
        assert (cut["value"], cut["bytes"], cut["truncated"]) == ("ää", 10_000, True)
        with Wire(server.address, {"user": "ann", "pass": "pw"}) as wire:
            wire.request("$KV.plain.binary", b"\xff\x00")
        binary = json.loads(await text(client, "kv_get", bucket="plain", key="binary"))
        assert base64.b64decode(binary["value_base64"]) == b"\xff\x00"
        page = json.loads(await text(client, "read_messages", stream="ORDERS", seq=2, limit=2))
        assert ([each["seq"] for each in page["messages"]], page["next_seq"]) == ([2, 3], 4)


async def test_queries_of_anything_else_are_refused(server: Server) -> None:
    async with assistant(server) as client:
        for query in (each.replace("\x00", "") for each in EVERYTHING):
            said = await text(client, "query", sql=query.replace("{lake}", str(server.store / "lake")))
            assert said.startswith("Error executing tool query: "), query
            assert not any(word in said for word in ("root:", "TypeError", f"{server.store}/jetstream"))
        assert json.loads(await text(client, "query", sql="SELECT 1 AS a"))["rows"] == [{"a": 1}]


@pytest.mark.heavy
async def test_streams_without_direct_gets_and_without_a_recorded_past(server: Server) -> None:
    async with assistant(server) as client:
        found = json.loads(await text(client, "kv_history", bucket="plain", key="key"))
        assert [each["value"] for each in found["revisions"]] == ["2", "1"]
    async with assistant(server, user="bob") as client:
        past = await text(client, "last_message", stream="NOTES", as_of="2026-05-01")
        assert "the earlier states of stream NOTES are not known exactly" in past
        past = await text(client, "last_message", stream="NOTES", as_of="2026-05-01", exact=False)
        assert "stream NOTES does not allow direct gets" in past


async def test_what_is_refused_to_writers(server: Server) -> None:
    async with assistant(server, "--allow-writes") as client:
        requests = ("$JS.API.STREAM.DELETE.ORDERS", "$KV.prices.apple", "_INBOX.x")
        for subject in requests:
            assert "is a subject of the system" in await text(client, "publish", subject=subject, data="")
        assert "is not valid" in await text(client, "publish", subject="orders.*", data="")
        nobody = await text(client, "publish", subject="nobody.listens", data="")
        assert "no stream captures nobody.listens, so the message was not stored" in nobody
        broken = await text(client, "publish", subject="orders.de", data="", headers={"a": "b\r\nNats-Rollup: all"})
        assert "a header is not valid" in broken
        assert "there is no bucket none" in await text(client, "kv_put", bucket="none", key="a", value="")
        stale = await text(client, "kv_put", bucket="plain", key="key", value="3", revision=1)
        assert "key key of bucket plain has another revision" in stale


@pytest.mark.heavy
async def test_over_http_only_this_machine_gets_at_the_tools(server: Server) -> None:
    async with over_http(server) as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json", "Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, request, timeout=20)
        assert refused.value.code == 421


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--listen", "0.0.0.0:8765"], "is not a loopback address"),
        (["--listen", "8765"], "is not HOST:PORT"),
        (["--server", "nats://127.0.0.1:9"], "cannot connect to nats://127.0.0.1:9"),
        (["--creds", "/none"], "cannot log in with /none"),
    ],
)
def test_a_command_that_cannot_serve_says_why(more: list[str], expected: str) -> None:
    done = subprocess.run([LAKESTREAM, "mcp", *more], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert expected in " ".join(re.sub("[│╭╮╰╯─]", " ", done.stderr).split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "http"), [(0, False), (1, True), (2, False)])
async def test_a_session_of_the_page(server: Server, number: int, http: bool) -> None:
    """The last one publishes, so it comes last."""
    async with assistant(server, *(["--allow-writes"] if number == 2 else []), http=http) as client:
        for call in json.loads(SESSIONS[number].text):
            answer = await text(client, call["tool"], **call.get("arguments", {}))
            assert differences(json.loads(answer), call["answer"]) == [], call
