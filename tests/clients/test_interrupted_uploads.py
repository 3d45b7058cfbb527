"""Tests of uploads interrupted by the client or the server: an object is whole, or unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
from collections.abc import Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import ObjectNotFoundError
from nats.js.object_store import ObjectStore

from tests.servers import Server

pytestmark = pytest.mark.conformance

CHUNK = 128 * 1024
CHUNKS = 12


def content(version: int) -> bytes:
    """Return the content of a version of the object."""
    return hashlib.shake_256(b"version %d" % version).digest(CHUNKS * CHUNK - version)


class Interrupted(io.BytesIO):
    """Source that calls `act` once, when this many chunks have been read.

    All of them but the last are acked by then.
    """

    def __init__(self, data: bytes, chunks: int, act: Callable[[], Any]) -> None:
        super().__init__(data)
        self._left, self._act = chunks, act

    def readinto(self, buffer: Any, /) -> int:
        self._left -= 1
        if self._left == 0:
            self._act()
        return super().readinto(buffer)


async def connected(server: Server) -> tuple[Client, ObjectStore]:
    client = await nats.connect(server.url, allow_reconnect=False, error_cb=_nothing)
    return client, await client.jetstream(timeout=2).object_store("o")


async def _nothing(error: Exception) -> None:
    """Ignore the lost connection, which the test intends."""


async def close(client: Client) -> None:
    with contextlib.suppress(Exception):
        await client.close()


async def leftovers(client: Client, store: ObjectStore) -> int:
    """Purge the chunks that belong to no object, as an operator would; return their number."""
    js = client.jetstream(timeout=5)
    info = await js.stream_info("OBJ_o", subjects_filter="$O.o.C.>")
    with contextlib.suppress(ObjectNotFoundError):
        info.state.subjects.pop(f"$O.o.C.{(await store.get_info('file')).nuid}")
    for subject in info.state.subjects:
        await js.purge_stream("OBJ_o", subject=subject)
    return sum(info.state.subjects.values())


async def test_a_client_that_goes_away(start_server: Callable[..., Server]) -> None:
    server = start_server()
    client = await nats.connect(server.url)
    store = await client.jetstream(timeout=5).create_object_store("o")
    for version, chunks in ((1, 4), (1, CHUNKS), (2, 1), (2, CHUNKS)):
        uploader, theirs = await connected(server)
        source = Interrupted(content(version), chunks, lambda lost=uploader: lost._transport.close())
        (failed,) = await asyncio.gather(theirs.put("file", source), return_exceptions=True)  # type: ignore[arg-type]
        assert isinstance(failed, Exception), "which one depends on where the client noticed"
        await close(uploader)
        if version == 1:
            with pytest.raises(ObjectNotFoundError):
                await store.get("file")
        else:
            assert (await store.get("file")).data == content(1)
        await leftovers(client, store)
        if (version, chunks) == (1, CHUNKS):
            await store.put("file", content(1))
    assert (await client.jetstream().stream_info("OBJ_o")).state.messages == CHUNKS + 1
    await client.close()


async def test_a_server_that_is_killed(start_server: Callable[..., Server]) -> None:
    server = start_server()
    client = await nats.connect(server.url)
    await client.jetstream(timeout=5).create_object_store("o")
    await client.close()
    acked = 0
    for version, chunks in enumerate((3, CHUNKS + 1, 1, 8, CHUNKS, CHUNKS + 1), 1):
        client, store = await connected(server)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(store.put("file", Interrupted(content(version), chunks, server.kill)), 5)  # type: ignore[arg-type]
        await close(client)
        server.start()
        client, store = await connected(server)
        if acked:
            assert (await store.get("file")).data == content(acked)
        else:
            with pytest.raises(ObjectNotFoundError):
                await store.get("file")
        await store.put("file", content(version))
        acked = version
        await leftovers(client, store)
        assert (await store.get("file")).data == content(version)
        assert (await client.jetstream().stream_info("OBJ_o")).state.messages == CHUNKS + 1
        await close(client)
