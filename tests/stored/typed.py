"""Stores of one server with schemas.

The stream of one was checked by several of them and is not in its table yet; another has a definition as a client of
the registry's API gave it, and a stream whose misfits were sent, but for the last one.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import nats
from nats.js.errors import APIError

from lakestream.lake.storage import paths
from lakestream.lake.table.scan import Scan
from lakestream.protocol import headers
from lakestream_client.lake.view import open_view
from tests.registry_world import RegistryWorld
from tests.servers import Server
from tests.stored import lake
from tests.stored.facts import asked
from tests.wire import Wire

CONFIG = 'lake { seal_bytes: 1m, seal_age: "1h", poll: "100ms" }'
"""Configuration in which segments are sealed by a request only."""
KINDS = ("integer", "string")
"""Type of the field `n` in each version of the schema `evo`."""
REJECT = {"lakestream.validate": "reject"}


def fill(server: Server) -> list[tuple[int, str]]:
    """Publish by versions pinned and latest; return sequence and version of each message."""
    return asyncio.run(_fill(server.url))


async def _fill(url: str) -> list[tuple[int, str]]:
    client = await nats.connect(url)
    js = client.jetstream()
    found: list[tuple[int, str]] = []

    async def publish(value: Any, version: int) -> None:
        async with asyncio.timeout(30):
            while True:
                try:
                    ack = await js.publish("typed", json.dumps({"n": value}).encode())
                except APIError:  # this version is not the latest one yet
                    await asyncio.sleep(0.01)
                    continue
                found.append((ack.seq, f"evo@{version}"))
                return

    async def pin(reference: str) -> None:
        await js.update_stream(name="TYPED", subjects=["typed"], metadata={"lakestream.schema": reference, **REJECT})

    for version, kind in enumerate(KINDS, 1):
        text = json.dumps({"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]})
        body = {"format": "json", "text": text, "compatibility": "none"}
        answer = await client.request("$LAKE.API.SCHEMA.ADD.evo", json.dumps(body).encode(), timeout=30)
        assert json.loads(answer.data)["version"] == version, answer.data
        if version == 1:
            metadata = {"lakestream.schema": "evo@latest", **REJECT}
            await js.add_stream(name="TYPED", subjects=["typed"], metadata=metadata)
            await publish(1, 1)
        else:
            await publish("x", 2)
    await pin("evo@1")
    await publish(2, 1)
    await pin("evo@2")
    await publish("y", 2)
    await client.close()
    return found


def go_on(server: Server) -> tuple[int, str]:
    """Publish another message; return its sequence and version."""

    async def publish() -> int:
        client = await nats.connect(server.url)
        seq = (await client.jetstream().publish("typed", b'{"n": "z"}')).seq
        await client.close()
        return seq

    return asyncio.run(publish()), "evo@2"


def versions(server: Server, lake: Path) -> list[tuple[int, str]]:
    """Have everything staged; return sequence and version of each message, as the lake has them."""
    rows = open_view(str(lake), "TYPED", server=server.url).tail()
    return list(zip(rows.column("seq").to_pylist(), rows.column("schema").to_pylist(), strict=True))


LETTERS = {"lakestream.schema": "evo@latest", "lakestream.misfits.subject": "dead.typed"}
SUBJECT = "/subjects/orders/versions"
ITEM = '{"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}'
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}'


def fill_letters(server: Server, directory: Path) -> dict[str, Any]:
    """Register definitions that refer to each other, and have misfits sent; the last one is listed by the compactor
    when the server has ended."""
    world = RegistryWorld(server.url)
    try:
        world.ask("POST", "/subjects/items/versions", {"schema": ITEM})
        references = [{"name": "Item", "subject": "items", "version": 1}]
        world.ask("POST", SUBJECT, {"schema": ORDER, "references": references})
        definition = world.ask("GET", f"{SUBJECT}/1")[1]
    finally:
        world.close()
    text = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
    with Wire(server.address, timeout=60) as wire, lake.compacting(directory):
        wire.request("$LAKE.API.SCHEMA.ADD.evo", json.dumps({"format": "json", "text": text}).encode())
        asked(wire, "STREAM.CREATE.DEAD", {"name": "DEAD", "subjects": ["dead.>"], "allow_direct": True})
        asked(wire, "STREAM.CREATE.TYPED", {"name": "TYPED", "subjects": ["typed"], "metadata": LETTERS})
        for payload in (b"no json", b'{"n": 1}', b"no json"):
            wire.request("typed", payload)
        lake.until(lambda: letters(wire) == [1, 3], "the misfits are sent")
        time.sleep(1)  # the log says so
        wire.request("typed", b"no json")
        wire.request("$LAKE.API.FLUSH.TYPED", b"")
        server.kill()
        table = f"{paths.table(str(directory), 'TYPED')}_misfits"
        lake.until(lambda: Scan(table).query("SELECT count(*) FROM t").column(0)[0].as_py() == 3, "all are listed")
    return {"definition": definition}


def letters(wire: Wire) -> list[int]:
    """Return the sequences of the misfits that were sent."""
    last = asked(wire, "STREAM.INFO.DEAD")["state"]["last_seq"]
    found = []
    for seq in range(1, last + 1):
        message = wire.request("$JS.API.DIRECT.GET.DEAD", json.dumps({"seq": seq}).encode())
        found.append(int(headers.get(message.header, b"Dead-Letter-Sequence") or b"0"))
    return found
