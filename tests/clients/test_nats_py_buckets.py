"""Tests of key-value buckets and object stores through the unmodified nats-py, on nats-server and lakestream."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, ObjectMeta, ObjectMetaOptions, ObjectStoreConfig, RePublish, StorageType
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    InvalidBucketNameError,
    InvalidKeyError,
    KeyHistoryTooLargeError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoKeysError,
    NotFoundError,
    ObjectAlreadyExists,
    ObjectDeletedError,
    ObjectNotFoundError,
)
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from tests.pairs import Pair

pytestmark = pytest.mark.conformance

CHUNK = 128 * 1024
DEADLINE_S = 15.0
_names = itertools.count(1)


def unique(prefix: str) -> str:
    """Return a name that no other test uses on the shared servers."""
    return f"{prefix}PYB{next(_names)}"


@pytest.fixture(params=[pytest.param("expected", marks=pytest.mark.live), "tested"])
async def client(request: pytest.FixtureRequest, pair: Pair) -> AsyncIterator[Client]:
    """Yield a connection to nats-server, which shows that the test is right, and one to the server under test."""
    server = pair.expected if request.param == "expected" else pair.tested
    client = await nats.connect(server.url, connect_timeout=5)
    yield client
    await client.close()


@pytest.fixture
def js(client: Client) -> JetStreamContext:
    return client.jetstream(timeout=10)


@pytest.fixture
async def bucket(js: JetStreamContext) -> AsyncIterator[KeyValue]:
    name = unique("B")
    yield await js.create_key_value(KeyValueConfig(bucket=name, history=5))
    await js.delete_key_value(name)


@pytest.fixture
async def marked(js: JetStreamContext) -> AsyncIterator[KeyValue]:
    """Yield a bucket in which the server writes markers for removed keys."""
    name = unique("B")
    yield await js.create_key_value(KeyValueConfig(bucket=name, history=5, limit_marker_ttl=1))
    await js.delete_key_value(name)


@pytest.fixture
async def store(js: JetStreamContext) -> AsyncIterator[ObjectStore]:
    name = unique("O")
    yield await js.create_object_store(name)
    await js.delete_object_store(name)


async def eventually(ask: Callable[[], Awaitable[bool]]) -> None:
    """Poll until `ask` returns True, for effects that the server produces asynchronously."""
    async with asyncio.timeout(DEADLINE_S):
        while not await ask():
            await asyncio.sleep(0.02)


async def entries(watcher: Any, count: int) -> list[Any]:
    """Return the next entries of a watcher as (key, value, operation); None marks the end of the initial values."""
    found = [await watcher.updates(10) for _ in range(count)]
    return [entry and (entry.key, entry.value or b"", entry.operation) for entry in found]


async def gone(bucket: KeyValue, key: str) -> str | None:
    """Return the operation of a key's last message, or None if it has none."""
    with pytest.raises(KeyNotFoundError) as error:
        await bucket.get(key)
    operation: str | None = error.value.op
    return operation


# ---- key-value


async def test_put_and_get(bucket: KeyValue) -> None:
    assert await bucket.put("a.b", b"1") == 1
    assert await bucket.put("a.b", b"2") == 2
    entry = await bucket.get("a.b")
    assert (entry.key, entry.value, entry.revision, entry.delta) == ("a.b", b"2", 2, None)
    assert await gone(bucket, "nothing") is None


async def test_a_revision(bucket: KeyValue) -> None:
    for n in range(7):
        await bucket.put("k", str(n).encode())
    await bucket.put("other", b"x")
    assert (await bucket.get("k", revision=4)).value == b"3"
    for revision in (1, 8, 99):  # not in the history any more, of another key, never written
        with pytest.raises(KeyNotFoundError):
            await bucket.get("k", revision=revision)


async def test_keys_that_are_none(bucket: KeyValue) -> None:
    for key in (".a", "a.", "a b", "a*", ">"):
        with pytest.raises(InvalidKeyError):
            await bucket.put(key, b"x")
    for key in ("a-b", "a_b", "a/b", "a=b", "0", "a.b.c"):
        await bucket.put(key, key.encode())
        assert (await bucket.get(key)).value == key.encode()


async def test_create_and_update(bucket: KeyValue) -> None:
    revision = await bucket.create("k", b"1")
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.create("k", b"2")
    revision = await bucket.update("k", b"2", last=revision)
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.update("k", b"3", last=revision - 1)
    await bucket.delete("k")
    assert await bucket.create("k", b"born again") > revision
    await bucket.purge("k")
    await bucket.create("k", b"and again")
    assert (await bucket.get("k")).value == b"and again"


async def test_one_of_many_creates(bucket: KeyValue) -> None:
    tries = await asyncio.gather(*(bucket.create("k", str(n).encode()) for n in range(50)), return_exceptions=True)
    won = [one for one in tries if not isinstance(one, BaseException)]
    assert len(won) == 1
    assert all(isinstance(one, KeyWrongLastSequenceError) for one in tries if isinstance(one, BaseException))
    assert (await bucket.get("k")).revision == won[0]


async def test_delete_and_purge(bucket: KeyValue) -> None:
    for n in range(3):
        await bucket.put("k", str(n).encode())
    with pytest.raises(APIError) as error:
        await bucket.delete("k", last=1)
    assert error.value.err_code == 10071
    assert await bucket.delete("k", last=3)
    assert await gone(bucket, "k") == "DEL"
    assert len(await bucket.history("k")) == 4
    assert await bucket.purge("k")
    assert await gone(bucket, "k") == "PURGE"
    assert [entry.operation for entry in await bucket.history("k")] == ["PURGE"]


async def test_purge_deletes(bucket: KeyValue) -> None:
    for key in ("a", "b", "c"):
        await bucket.put(key, b"x")
    await bucket.delete("a")
    await bucket.purge("b")
    await bucket.purge_deletes()
    assert (await bucket.status()).values == 3, "markers younger than half an hour stay, what they end goes"
    await bucket.purge_deletes(olderthan=-1)
    assert (await bucket.status()).values == 1
    assert await bucket.keys() == ["c"]
    assert await gone(bucket, "a") is None


async def test_history(bucket: KeyValue) -> None:
    for n in range(8):
        await bucket.put("k", str(n).encode())
    await bucket.put("other", b"x")
    history = await bucket.history("k")
    assert [entry.value for entry in history] == [b"3", b"4", b"5", b"6", b"7"]
    assert [(entry.revision, entry.delta) for entry in history] == [(4, 4), (5, 3), (6, 2), (7, 1), (8, 0)]
    with pytest.raises(NoKeysError):
        await bucket.history("nothing")


async def test_keys(bucket: KeyValue) -> None:
    with pytest.raises(NoKeysError):
        await bucket.keys()
    for key in ("b", "a", "c.d"):
        await bucket.put(key, b"x")
    await bucket.delete("b")
    assert sorted(await bucket.keys()) == ["a", "c.d"]
    assert await bucket.keys(filters=["c"]) == ["c.d"]


async def test_watch_all(bucket: KeyValue) -> None:
    await bucket.put("a", b"1")
    await bucket.put("b", b"2")
    watcher = await bucket.watchall()
    assert await entries(watcher, 3) == [("a", b"1", None), ("b", b"2", None), None]
    await bucket.put("a", b"3")
    await bucket.delete("b")
    await bucket.purge("a")
    assert await entries(watcher, 3) == [("a", b"3", None), ("b", b"", "DEL"), ("a", b"", "PURGE")]
    await watcher.stop()


async def test_watch_of_nothing_and_of_a_pattern(bucket: KeyValue) -> None:
    watcher = await bucket.watch("none.*")
    assert await entries(watcher, 1) == [None]
    await bucket.put("none", b"not this")
    await bucket.put("none.such.key", b"nor this")
    await bucket.put("none.such", b"now")
    assert await entries(watcher, 1) == [("none.such", b"now", None)]
    await watcher.stop()


async def test_watch_with_history(bucket: KeyValue) -> None:
    for n in range(7):
        await bucket.put("ab"[n % 2], str(n).encode())
    watcher = await bucket.watchall(include_history=True)
    assert [entry and entry[1] for entry in await entries(watcher, 8)] == [*(str(n).encode() for n in range(7)), None]
    await watcher.stop()


async def test_watch_without_deletes_and_values(bucket: KeyValue) -> None:
    await bucket.put("a", b"1")
    await bucket.put("b", b"2")
    await bucket.delete("a")
    watcher = await bucket.watchall(ignore_deletes=True, meta_only=True)
    assert await entries(watcher, 2) == [("b", b"", None), None]
    await bucket.purge("b")
    await bucket.put("a", b"back")
    assert await entries(watcher, 1) == [("a", b"", None)]
    await watcher.stop()


async def test_watchers_that_come_and_go(bucket: KeyValue) -> None:
    for n in range(20):
        await bucket.put(f"k{n}", b"x")
        watcher = await bucket.watchall()
        assert len([entry async for entry in _until_told(watcher)]) == n + 1
        await watcher.stop()


async def _until_told(watcher: Any) -> AsyncIterator[Any]:
    async for entry in watcher:
        if entry is None:
            return
        yield entry


async def test_status(js: JetStreamContext) -> None:
    name = unique("B")
    config = KeyValueConfig(
        bucket=name, description="what it is for", history=3, ttl=3600, max_bytes=100_000, max_value_size=50,
        storage=StorageType.MEMORY, direct=True, limit_marker_ttl=60,
    )  # fmt: skip
    bucket = await js.create_key_value(config)
    await bucket.put("a", b"1")
    assert (await bucket.get("a")).value == b"1"
    status = await bucket.status()
    assert (status.bucket, status.values, status.history, status.ttl, status.marker_ttl) == (name, 1, 3, 3600, 60)
    made = status.stream_info.config
    assert (made.description, made.max_bytes, made.max_msg_size) == ("what it is for", 100_000, 50)
    assert (made.storage, made.allow_direct, made.allow_msg_ttl, made.duplicate_window) == ("memory", True, True, 120)
    with pytest.raises(APIError) as error:
        await bucket.put("a", b"x" * 51)
    assert error.value.err_code == 10054
    again = await js.key_value(name)
    assert (await again.get("a")).value == b"1"
    with pytest.raises(APIError) as error:
        await js.create_key_value(KeyValueConfig(bucket=name, history=4))
    assert error.value.err_code == 10058
    await js.delete_key_value(name)
    with pytest.raises(BucketNotFoundError):
        await js.key_value(name)


async def test_buckets_that_are_none(js: JetStreamContext) -> None:
    with pytest.raises(InvalidBucketNameError):
        await js.create_key_value(KeyValueConfig(bucket="a.b"))
    with pytest.raises(KeyHistoryTooLargeError):
        await js.create_key_value(KeyValueConfig(bucket="a", history=65))
    with pytest.raises(BucketNotFoundError):
        await js.key_value("nothing")
    with pytest.raises(NotFoundError):
        await js.delete_key_value("nothing")


async def test_the_time_of_a_bucket_ends(js: JetStreamContext) -> None:
    name = unique("B")
    bucket = await js.create_key_value(KeyValueConfig(bucket=name, ttl=1))
    watcher = await bucket.watchall()
    await bucket.put("k", b"short")

    async def empty() -> bool:
        return (await bucket.status()).values == 0

    await eventually(empty)
    assert await gone(bucket, "k") is None
    assert await entries(watcher, 2) == [None, ("k", b"short", None)], "and nobody is told"
    await watcher.stop()
    await js.delete_key_value(name)


async def test_the_time_of_a_key_ends(bucket: KeyValue) -> None:
    await bucket.create("k", b"short", msg_ttl=1)
    await bucket.put("stays", b"x")

    async def one_left() -> bool:
        return (await bucket.status()).values == 1

    await eventually(one_left)
    assert await gone(bucket, "k") is None
    await bucket.create("k", b"again")


async def test_the_time_of_a_key_ends_with_a_marker(marked: KeyValue) -> None:
    watcher = await marked.watchall()
    await marked.create("k", b"short", msg_ttl=1)
    told = [None, ("k", b"short", None), ("k", b"", "PURGE")]
    assert await entries(watcher, 3) == told, "the server's own marker is seen as a purge"

    async def empty() -> bool:
        return (await marked.status()).values == 0

    await eventually(empty)
    await marked.create("k", b"again")
    await watcher.stop()


async def test_a_purge_that_ends(marked: KeyValue) -> None:
    await marked.put("k", b"1")
    await marked.purge("k", msg_ttl=1)
    assert [entry.operation for entry in await marked.history("k")] == ["PURGE"]

    async def empty() -> bool:
        return (await marked.status()).values == 0

    await eventually(empty)
    assert (await marked.status()).stream_info.state.last_seq == 2, "no marker of a marker"


async def test_republished(client: Client, js: JetStreamContext) -> None:
    name = unique("B")
    republish = RePublish(src=">", dest=f"told.{name}.>")
    bucket = await js.create_key_value(KeyValueConfig(bucket=name, republish=republish))
    told = await client.subscribe(f"told.{name}.>")
    await client.flush()
    await bucket.put("a", b"1")
    await bucket.put("a", b"2")
    messages = [await told.next_msg(10) for _ in range(2)]
    assert [(m.subject, m.data) for m in messages] == [
        (f"told.{name}.$KV.{name}.a", b"1"),
        (f"told.{name}.$KV.{name}.a", b"2"),
    ]
    assert [(m.headers or {})["Nats-Last-Sequence"] for m in messages] == ["0", "1"]
    await js.delete_key_value(name)


# ---- object store


def content(size: int) -> bytes:
    """Return the content of an object of this size."""
    return hashlib.shake_256(b"%d" % size).digest(size)


async def messages_of(store: ObjectStore) -> int:
    """Return the number of messages in the store's stream."""
    state = (await store.status()).stream_info.state
    return int(state.messages)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 17])
async def test_objects_of_all_sizes(store: ObjectStore, size: int) -> None:
    data = content(size)
    info = await store.put("o", data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    assert (info.size, info.chunks, info.digest) == (size, -(-size // CHUNK), f"SHA-256={digest}")
    assert (await store.get("o")).data == data
    assert (await store.get_info("o")).digest == info.digest


async def test_objects_from_and_to_files(store: ObjectStore) -> None:
    await store.put("text", "written as a string")
    assert (await store.get("text")).data == b"written as a string"
    data = content(300_000)
    await store.put("file", io.BufferedReader(io.BytesIO(data)))  # type: ignore[arg-type]
    into = io.BytesIO()
    await store.get("file", writeinto=into)  # type: ignore[arg-type]
    assert into.getvalue() == data


async def test_meta_of_objects(store: ObjectStore) -> None:
    meta = ObjectMeta(
        description="what it is",
        headers={"Kind": ["one", "two"]},
        options=ObjectMetaOptions(max_chunk_size=1000),
    )
    await store.put("dir/with space & ünïcödé", content(2500), meta=meta)
    info = await store.get_info("dir/with space & ünïcödé")
    assert (info.description, info.headers, info.chunks) == ("what it is", {"Kind": ["one", "two"]}, 3)
    assert info.options is not None
    assert info.options.max_chunk_size == 1000


async def test_a_replaced_object(store: ObjectStore) -> None:
    await store.put("o", content(4 * CHUNK))
    await store.put("o", b"short")
    assert (await store.get("o")).data == b"short"
    assert await messages_of(store) == 2, "the old chunks are purged, the old meta rolled up"


async def test_a_deleted_object(store: ObjectStore) -> None:
    await store.put("o", content(CHUNK))
    await store.delete("o")
    for ask in (store.get, store.get_info, store.delete):
        with pytest.raises(ObjectNotFoundError):
            await ask("o")
    assert (await store.get_info("o", show_deleted=True)).deleted
    assert await messages_of(store) == 1
    await store.put("o", b"back")
    assert (await store.get("o")).data == b"back"


async def test_lists_and_watches(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError):
        await store.list()
    await store.put("a", b"1")
    await store.put("b", b"22")
    await store.delete("b")
    assert [info.name for info in await store.list()] == ["a", "b"]
    assert [info.name for info in await store.list(ignore_deletes=True)] == ["a"]
    watcher, fresh = await store.watch(), await store.watch(updates_only=True)
    told = [await watcher.updates(10) for _ in range(3)]
    assert [info and (info.name, bool(info.deleted)) for info in told] == [("a", False), ("b", True), None]
    await store.put("c", b"333")
    for one in (watcher, fresh):
        info = await one.updates(10)
        assert (info.name, info.size) == ("c", 3)
        await one.stop()


async def test_updated_meta(store: ObjectStore) -> None:
    await store.put("o", content(1000))
    await store.update_meta("o", ObjectMeta(name="o", description="new"))
    assert (await store.get_info("o")).description == "new"
    assert (await store.get("o")).data == content(1000)
    with pytest.raises(ObjectAlreadyExists):
        await store.update_meta("o", ObjectMeta(name="other"))
    with pytest.raises(ObjectDeletedError):
        await store.update_meta("nothing", ObjectMeta(name="nothing"))


async def test_a_sealed_store(store: ObjectStore) -> None:
    await store.put("o", content(1000))
    await store.seal()
    assert (await store.status()).sealed
    for change in (store.put("o", b"x"), store.delete("o"), store.update_meta("o", ObjectMeta(name="o"))):
        with pytest.raises(APIError) as error:
            await change
        assert error.value.err_code == 10109
    assert (await store.get("o")).data == content(1000)


async def test_status_of_a_store(js: JetStreamContext) -> None:
    name = unique("O")
    config = ObjectStoreConfig(description="what it is for", ttl=3600, max_bytes=1_000_000, storage=StorageType.MEMORY)
    store = await js.create_object_store(name, config=config)
    await store.put("o", content(1000))
    status = await store.status()
    assert (status.bucket, status.description, status.ttl) == (name, "what it is for", 3600)
    assert (status.storage_type, status.replicas, status.sealed) == ("memory", 1, False)
    assert 1000 < status.size < 2000
    again = await js.object_store(name)
    assert (await again.get("o")).data == content(1000)
    await js.delete_object_store(name)
    with pytest.raises(BucketNotFoundError):
        await js.object_store(name)


async def test_an_upload_that_fails_leaves_nothing(store: ObjectStore) -> None:
    class Breaks(io.BytesIO):
        def readinto(self, buffer: Any, /) -> int:
            if self.tell() >= 2 * CHUNK:
                raise OSError("the source broke")
            return super().readinto(buffer)

    await store.put("o", b"old")
    for name in ("o", "new"):
        with pytest.raises(OSError, match="the source broke"):
            await store.put(name, Breaks(content(4 * CHUNK)))  # type: ignore[arg-type]
    assert (await store.get("o")).data == b"old"
    assert await messages_of(store) == 2
    with pytest.raises(ObjectNotFoundError):
        await store.get("new")


async def test_a_full_store(js: JetStreamContext) -> None:
    name = unique("O")
    store = await js.create_object_store(name, config=ObjectStoreConfig(max_bytes=2 * CHUNK))
    await store.put("o", content(1000))
    with pytest.raises(APIError) as error:
        await store.put("large", content(5 * CHUNK))
    assert error.value.err_code == 10077
    assert await messages_of(store) == 2
    assert (await store.get("o")).data == content(1000)
    await js.delete_object_store(name)


async def test_a_chunk_that_is_lost_is_noticed(js: JetStreamContext, store: ObjectStore) -> None:
    info = await store.put("o", content(3 * CHUNK))
    stream = (await store.status()).stream_info.config.name
    assert stream is not None
    await js.purge_stream(stream, subject=f"$O.{info.bucket}.C.{info.nuid}", keep=2)
    with pytest.raises(nats.js.errors.DigestMismatchError):
        await store.get("o")
