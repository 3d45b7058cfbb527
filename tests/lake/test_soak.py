"""Soak test: publishes, overwrites, deletes and purges while server and compactor are killed repeatedly.

LAKESTREAM_SOAK_ROUNDS sets the number of rounds (default 3); LAKESTREAM_SOAK_SEED repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nats
import psutil
import pytest
from deltalake.exceptions import TableNotFoundError
from nats.js.errors import APIError, NoStreamResponseError

from lakestream.lake.storage import paths
from tests.lake import tables
from tests.lake.conftest import job
from tests.lake.test_end_to_end import eventually
from tests.servers import Kind, Server

pytestmark = [pytest.mark.lake, pytest.mark.chaos]

CONFIG = """
lake { seal_bytes: 16384, seal_age: "300ms", retain_bytes: 0, poll: "100ms" }
"""
ROUNDS = int(os.environ.get("LAKESTREAM_SOAK_ROUNDS", "3"))
SEED = int(os.environ.get("LAKESTREAM_SOAK_SEED", str(random.randrange(1 << 30))))
OPERATIONS = 400
"""Number of changes in one round."""


class Compactor:
    """The compactor's job as a process, which is killed together with its JVM."""

    def __init__(self, lake: Path, *options: str) -> None:
        self._lake, self._options = lake, options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._lake.with_name("compactor.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(job()), "--lake", str(self._lake), "--interval", "0.3", *self._options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_jvm(self) -> None:
        """Kill the JVM alone; the program ends by itself, or goes on and fails."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children(recursive=True):
            if "java" in child.name():
                child.kill()

    def kill(self) -> None:
        assert self._process is not None
        children = list[psutil.Process]()
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            children = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.wait()
        psutil.wait_procs(children, timeout=20)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[Server, Compactor]]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    compactor = Compactor(tmp_path / "store" / "lake")
    compactor.start()
    yield server, compactor
    compactor.kill()
    server.kill()


async def change(url: str, dice: random.Random, count: int) -> None:
    """Make random changes to the stream; the stream alone shows the outcome of one that a kill interrupts."""
    client = await nats.connect(url, allow_reconnect=False)
    js = client.jetstream(timeout=2)
    with contextlib.suppress(APIError, NoStreamResponseError, TimeoutError, nats.errors.Error):
        for _ in range(count):
            what = dice.random()
            if what < 0.9:
                subject, data = f"SOAK.{dice.randrange(8)}", dice.randbytes(dice.randrange(300))
                await js.publish(subject, data, headers={"N": str(dice.random())} if what < 0.2 else None)
            elif what < 0.97:
                state = (await js.stream_info("SOAK")).state
                last = max(1, state.last_seq)  # an empty stream's first sequence is the next one
                with contextlib.suppress(APIError):
                    await js.delete_msg("SOAK", dice.randint(max(1, min(state.first_seq, last)), last))
            elif what < 0.99:
                await js.purge_stream("SOAK", subject=f"SOAK.{dice.randrange(8)}", keep=dice.choice([0, 3]) or None)
            else:
                state = (await js.stream_info("SOAK")).state
                await js.purge_stream("SOAK", seq=dice.randint(state.first_seq, state.last_seq + 1))
    await client.close()


async def stream_content(url: str) -> dict[int, tuple[str, bytes]]:
    """Return the stream's messages as a client reads them from the first one on, from table and log."""
    client = await nats.connect(url)
    js = client.jetstream()
    sub = await js.subscribe("SOAK.>", ordered_consumer=True)
    left = (await sub.consumer_info()).num_pending or 0
    state = (await js.stream_info("SOAK")).state
    found: dict[int, tuple[str, bytes]] = {}
    if state.messages:
        while True:
            message = await sub.next_msg(timeout=20)
            found[message.metadata.sequence.stream] = (message.subject, message.data)
            if message.metadata.num_pending == 0:
                break
    assert len(found) == state.messages, f"replay gives what the state says ({left} were pending)"
    await client.close()
    return found


async def test_the_table_is_the_stream_whatever_was_killed(world: tuple[Server, Compactor]) -> None:
    server, compactor = world
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="SOAK", subjects=["SOAK.>"], max_msgs_per_subject=60, max_msgs=300)
    await client.close()
    for _ in range(ROUNDS):
        changes = asyncio.create_task(change(server.url, dice, OPERATIONS))
        victim = dice.choice(["server", "compactor", "both"])
        await asyncio.sleep(dice.uniform(0.3, 4))  # a random moment for the kill
        if victim in ("compactor", "both"):
            compactor.kill()
            compactor.start()
        if victim in ("server", "both"):
            server.kill()
            server.start()
        await changes
    await change(server.url, dice, 50)
    expected = await stream_content(server.url)
    table = paths.table(str(server.store / "lake"), "SOAK")

    async def same() -> bool:
        try:
            rows = tables.records(table)
        except TableNotFoundError:  # it is being created
            return False
        return {row.seq: (row.subject.decode(), row.data) for row in rows} == expected

    await eventually(same)
    assert await stream_content(server.url) == expected, "and the server still reads the same"
