"""Tests of lakes in each cloud, end to end: a real server and a real compactor over the cloud's API."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from lakestream_client import QueryFailed, connect
from lakestream_sql.session import Session
from tests.lake.conftest import job
from tests.lake.test_compact_job import Job
from tests.lake.test_end_to_end import publish, replay
from tests.lake.test_object_store import LEASE_SECONDS, SECONDS, connected, eventually, let_go
from tests.s3_proxy import EXPIRED, THROTTLED, Proxy
from tests.servers import Kind, Server
from tests.store_server import StoreServer

pytestmark = pytest.mark.lake

CONFIG = """
lake {{ url: "{url}", seal_bytes: 16384, seal_age: "200ms", retain_bytes: 0, poll: "100ms" }}
sql {{ max_time: 60s }}
"""


@pytest.fixture(params=["s3_server", "gcs_server", "azure_server"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    found: StoreServer = request.getfixturevalue(request.param)
    found.enter(monkeypatch)
    monkeypatch.setenv("LAKESTREAM_LEASE_SECONDS", LEASE_SECONDS)
    return found


@pytest.fixture
def proxy(store: StoreServer) -> Iterator[Proxy]:
    """Yield the server's way to the store; that of the jobs is direct."""
    found = Proxy(store.endpoint)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def server(store: StoreServer, proxy: Proxy, tmp_path: Path) -> Iterator[Server]:
    found = Server(
        Kind.OURS,
        tmp_path / "store",
        config=CONFIG.format(url=store.url("lake")),
        args=["-D"],
        environment=store.through(proxy.url),
    )
    found.start()
    yield found
    found.kill()


@pytest.fixture
def compactor(store: StoreServer) -> Iterator[Job]:
    found = Job(store.url("lake"), "--interval", "0.2")
    yield found
    found.kill()


async def test_a_lake_in_a_cloud_from_publish_to_maintenance(
    store: StoreServer, proxy: Proxy, server: Server, compactor: Job
) -> None:
    lake = store.url("lake")
    storage, table = open_storage(lake), paths.table(lake, "HIST")
    count = "SELECT count(*) AS n, max(seq) AS last FROM delta.`streams/HIST`"
    async with connected(server) as client, await connect(server.url) as asking:

        async def asked(text: str) -> list[tuple[int, ...]]:
            rows = (await (await asking.sql(text)).to_arrow()).to_pylist()
            return [tuple(row.values()) for row in rows]

        await client.jetstream().add_stream(name="HIST", subjects=["HIST.>"], allow_direct=True)
        expected = await publish(client, 1, 400)
        await asyncio.to_thread(compactor.wait_for, "rows", SECONDS)
        await let_go(server)
        before = datetime.now(UTC).isoformat()
        expected |= await publish(client, 401, 100)
        assert await replay(client) == expected, "old messages are read from the table"
        message = await client.jetstream().get_msg("HIST", 2, direct=True)
        assert (message.subject, message.data) == expected[2][:2]

        # SQL over NATS, with messages that are in no table yet, and of the past.
        assert await asked(count) == [(500, 500)]
        assert await asked(f"SELECT count(*) AS n FROM as_of('HIST', '{before}')") == [(400,)]
        await client.jetstream().delete_msg("HIST", 10)
        del expected[10]
        assert await asked(f"{count} WHERE seq <= 20") == [(19, 20)]

        # The lake does not answer, refuses, and is back.
        proxy.refuse()
        with pytest.raises(QueryFailed):
            await asked(count)
        expected |= await publish(client, 501, 20)
        proxy.pass_all()
        proxy.fail(EXPIRED)
        expected |= await publish(client, 521, 20)
        proxy.fail(THROTTLED)
        expected |= await publish(client, 541, 20)
        proxy.pass_all()

        async def all_there() -> bool:
            return await asked(count) == [(559, 560)]

        await eventually(_patient(all_there))
        assert await replay(client) == expected

        async def all_in_table() -> bool:
            with Session(lake, committed=True) as session:
                return await asyncio.to_thread(lambda: session.query(count).fetchall()) == [(559, 560)]

        await eventually(all_in_table)
    compactor.process.terminate()
    assert await asyncio.to_thread(compactor.end, SECONDS) == 0, compactor.lines

    # Maintenance, and reads by others.
    program = [sys.executable, str(job().with_name("maintain.py")), "--lake", lake, "--once", "--min-files", "2"]
    done = await asyncio.to_thread(
        subprocess.run, [*program, "--retain-hours", "1"], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "HIST: optimized" in done.stdout
    with Session(lake, committed=True) as session:
        assert session.query(count).fetchall() == [(559, 560)]
    delta = DeltaTable(table, storage_options=storage.delta_options())
    assert delta.version() == TableLog(storage, table).commits[-1]
    async with connected(server) as client:
        assert await replay(client) == expected
    checked = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "lakestream", "doctor", "-sd", str(server.store), "--lake", lake],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "lake" in checked.stdout
    server.kill()
    verified = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "lakestream", "verify", str(server.store), "--lake", lake],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    said = "\n".join([server.log(), *compactor.lines, done.stdout, done.stderr, checked.stdout, verified.stdout])
    kept = b"".join(storage.read(entry.path) for entry in storage.tree(lake) if entry.size)
    for secret in store.secrets:
        assert secret not in said
        assert secret.encode() not in kept


def _patient(condition: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    """Return a condition that is false while queries fail."""

    async def check() -> bool:
        try:
            return await condition()
        except (QueryFailed, TimeoutError):
            return False

    return check
