"""A store of one server with schemas, and a stream that was checked by several of them and is not in its table yet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
from nats.js.errors import APIError

from lakestream.lake.view import open_view
from tests.servers import Server

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
