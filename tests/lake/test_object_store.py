"""Tests of a lake in an object store, end to end: a real server, a real compactor, an S3-compatible store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from lakestream.lake.staging import clone_request, scan, staging
from lakestream.lake.staging.clone_request import CloneRequest
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import COMPACTOR_LOCK, Lease
from lakestream.lake.storage.storage import Storage
from tests.lake.tables import records
from tests.lake.test_compact_job import Job
from tests.lake.test_end_to_end import publish, replay
from tests.s3_proxy import Fault, Proxy
from tests.s3_server import S3Server
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

LEASE_SECONDS = "8"
SECONDS = 600.0
"""Timeout in seconds of any one step, on a busy machine."""


@pytest.fixture
def lake(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    s3_server.enter(monkeypatch)
    monkeypatch.setenv("LAKESTREAM_LEASE_SECONDS", LEASE_SECONDS)
    monkeypatch.setenv("LAKESTREAM_LATE_SECONDS", "1")  # no request of a job that is killed is late here
    return s3_server.url("the/lake")


@pytest.fixture
def server(lake: str, tmp_path: Path) -> Iterator[Server]:
    config = f'lake {{ url: "{lake}", seal_bytes: 16384, seal_age: "200ms", retain_bytes: 0, poll: "100ms" }}'
    server = Server(Kind.OURS, tmp_path / "store", config=config, args=["-D"])
    server.start()
    yield server
    server.kill()


@pytest.fixture
def started() -> Iterator[list[Job]]:
    running: list[Job] = []
    yield running
    for each in running:
        each.kill()


@contextlib.asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Client]:
    client = await nats.connect(server.url)
    yield client
    await client.close()


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition is true, for effects that other processes show in objects only."""
    async with asyncio.timeout(SECONDS):
        while not await condition():
            await asyncio.sleep(0.2)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    found = Proxy(s3_server.endpoint)
    found.start()
    yield found
    found.stop()


async def let_go(server: Server) -> None:
    """Wait until the log holds only its newest segments, because the table has the others."""
    log = server.store / "jetstream" / "$G" / "streams" / "HIST" / "log"

    async def done() -> bool:
        return len(list(log.glob("*.seg"))) <= 2 and any(log.glob("*.outline"))

    await eventually(done)


async def test_publish_compact_kill_resume_and_read_back(
    s3_server: S3Server, lake: str, server: Server, started: list[Job]
) -> None:
    storage = open_storage(lake)
    s3_server.put(f"{storage.root}/streams/HIST/_delta_log/_staged_commits/")  # left by a failed creation
    first = Job(lake, "--interval", "0.2")
    started.append(first)
    async with connected(server) as client:
        await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
        expected = await publish(client, 1, 400)
        await asyncio.to_thread(first.wait_for, "rows", SECONDS)
        assert not await asyncio.to_thread(Lease(f"{lake}/{COMPACTOR_LOCK}").acquire), "there is one compactor"
        publishing = asyncio.create_task(publish(client, 401, 400))
        await asyncio.sleep(0)
        first.kill()
        server_log = server.log()
        expected |= await publishing
        await client.jetstream().delete_msg("HIST", 10)
        await client.jetstream().purge_stream("HIST", subject="HIST.b", seq=100)
    expected = {seq: one for seq, one in expected.items() if seq != 10 and (one[0] != "HIST.b" or seq >= 100)}
    server.kill()
    server.start()
    second = Job(lake, "--interval", "0.2")
    started.append(second)
    await asyncio.to_thread(second.wait_for, "compactor ready", SECONDS)
    async with connected(server) as client:
        await let_go(server)
        expected |= await publish(client, 801, 20)
        assert await replay(client) == expected, "across the border between table and log, after both were killed"
        for seq in (2, 99, 101, 500, 810):
            message = await client.jetstream().get_msg("HIST", seq, direct=True)
            assert (message.subject, message.data) == expected[seq][:2]

        async def table_is_the_stream() -> bool:
            return await asyncio.to_thread(_rows, storage, lake) == {seq: one[:2] for seq, one in expected.items()}

        await eventually(table_is_the_stream)
        info = await client.jetstream().stream_info("HIST")
        copy = StreamIdentity("COPY", paths.DEFAULT_ACCOUNT, "U2", 1)
        uid = await asyncio.to_thread(_owner, lake, "HIST")
        clone_request.request(lake, copy, CloneRequest(origin="HIST", origin_uid=uid))

        async def cloned() -> bool:
            return await asyncio.to_thread(clone_request.answer, lake, copy) is not None

        await eventually(cloned)
        answer = clone_request.answer(lake, copy)
        assert answer is not None
        assert (answer.state, answer.messages) == ("made", info.state.messages), answer
        assert await asyncio.to_thread(_rows, storage, lake, "COPY") == await asyncio.to_thread(_rows, storage, lake)
        clone_request.settle(lake, copy)
        await client.jetstream().delete_stream("HIST")

        async def gone() -> bool:
            return not await asyncio.to_thread(_left, storage, lake, "HIST")

        await eventually(gone)
        copied = await asyncio.to_thread(_rows, storage, lake, "COPY")
        assert copied == {seq: one[:2] for seq, one in expected.items()}, "the copy has files of its own by now"
        staging.mark_deleted(lake, copy)

        async def all_gone() -> bool:
            return not await asyncio.to_thread(_left, storage, lake)

        await eventually(all_gone)
    second.process.terminate()
    assert await asyncio.to_thread(second.end, SECONDS) == 0, second.lines
    assert await asyncio.to_thread(Lease(f"{lake}/{COMPACTOR_LOCK}").acquire), "it let go of its lease"
    said = "\n".join([server_log, server.log(), *first.lines, *second.lines])
    kept = b"".join(storage.read(entry.path) for entry in storage.tree(lake) if entry.size)
    for secret in s3_server.secrets:
        assert secret not in said
        assert secret.encode() not in kept


async def test_a_commit_that_arrives_after_the_deletion_of_its_stream_is_not_one_of_the_next_table(
    s3_server: S3Server,
    lake: str,
    server: Server,
    started: list[Job],
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compactor is killed while its request for a commit is on its way; its stream is deleted and created anew."""
    storage, uid = open_storage(lake), ""

    def job(late: str, **variables: str) -> Job:
        with monkeypatch.context() as patch:
            for name, value in {"LAKESTREAM_LATE_SECONDS": late, **variables}.items():
                patch.setenv(name, value)
            started.append(Job(lake, "--interval", "0.2"))
        return started[-1]

    async def has_rows(count: int) -> bool:
        there = await asyncio.to_thread(storage.exists, f"{lake}/streams/HIST/_delta_log/{0:020}.json")
        return there and len(await asyncio.to_thread(_rows, storage, lake)) == count

    async def removed() -> bool:
        return not await asyncio.to_thread(storage.tree, f"{lake}/{paths.SEGMENTS}/HIST/{uid}")

    async with connected(server) as client:
        js = client.jetstream()
        await js.add_stream(name="HIST", subjects=["HIST.>"])
        first = job("3600", **s3_server.through(proxy.url))
        for start in (1, 101, 201, 301):  # in a commit each, so that the next table's log is shorter
            await publish(client, start, 100)
            await eventually(partial(has_rows, start + 99))
        uid = await asyncio.to_thread(_owner, lake, "HIST")
        proxy.fail(Fault("*_delta_log/*.json", ("PUT",), late=True))
        await publish(client, 401, 100)

        async def on_its_way() -> bool:
            return proxy.hits > 0

        await eventually(on_its_way)
        first.kill()
        proxy.fail()
        await js.delete_stream("HIST")
        await js.add_stream(name="HIST", subjects=["HIST.>"])
        expected = await publish(client, 1, 300)
        second = job("3600")
        await asyncio.to_thread(second.wait_for, "may still arrive", SECONDS)
        assert any(stream.refused for stream in scan.Scanner(lake).scan()), "the server is told why"
        assert proxy.release() == [200], "it arrives in the log of its own table"
        second.kill()
        job("0")
        await eventually(removed)
        await eventually(partial(has_rows, 300))
        expected |= await publish(client, 301, 100)
        await eventually(partial(has_rows, 400))
        assert await asyncio.to_thread(_rows, storage, lake) == {seq: one[:2] for seq, one in expected.items()}


def _rows(storage: Storage, lake: str, stream: str = "HIST") -> dict[int, tuple[str, bytes]]:
    return {row.seq: (row.subject.decode(), row.data) for row in records(paths.table(lake, stream))}


def _owner(lake: str, stream: str) -> str:
    (found,) = [each for each in scan.Scanner(lake).scan() if each.identity.name == stream]
    return found.identity.uid


def _left(storage: Storage, lake: str, stream: str = "") -> list[str]:
    """Return the objects of a stream, or of all, without the empty ones with which Hadoop marks directories."""
    below = f"/{stream}" if stream else ""
    found = [*storage.tree(f"{lake}/{paths.SEGMENTS}{below}"), *storage.tree(f"{lake}/{paths.STREAMS}{below}")]
    return [entry.path for entry in found if entry.size or entry.path.endswith(paths.DELETED_FILE)]
