"""Tests of the images: what their Dockerfiles say is run in a clean root directory (see images.py)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packages.environments import ROOT
from tests.packages.images import Image, debian, network_of, read, suites

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]

SERVER = ROOT / "docker" / "Dockerfile"
COMPACTOR = ROOT / "docker" / "Dockerfile.compactor"
OWNER = 10001
MESSAGES = 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clean Debian with Python."""
    [suite] = {*suites(read(SERVER)), *suites(read(COMPACTOR))}
    return debian(tmp_path_factory.mktemp("debian") / "root", suite)


@pytest.fixture(scope="module")
def server(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    image = Image(base, tmp_path_factory.mktemp("server") / "root", ROOT)
    image.build(read(SERVER))
    return image


@pytest.fixture(scope="module")
def compactor(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    image = Image(base, tmp_path_factory.mktemp("compactor") / "root", ROOT)
    image.build(read(COMPACTOR))
    return image


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    path = tmp_path / "volume"
    path.mkdir(mode=0o750)
    os.chown(path, OWNER, OWNER)
    return path


class Running:
    """A container, and how to ask it."""

    def __init__(self, image: Image, volume: Path, *arguments: str, **options: Any) -> None:
        self.image = image
        self.process = image.start(volume, *arguments, **options)

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return self.image.execute(self.process, *command)

    def wait_healthy(self, seconds: float) -> None:
        """Wait until the health check of the image succeeds."""
        deadline = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None, "the container has ended"
            done = self.call(*self.image.health)
            if done.returncode == 0:
                return
            assert time.monotonic() < deadline, done
            time.sleep(1)


def publish(serving: Running) -> None:
    """Publish MESSAGES messages from inside the container, and have them staged."""
    program = (
        "import asyncio, nats\n"
        "async def main():\n"
        "    client = await nats.connect('nats://127.0.0.1:4222')\n"
        "    js = client.jetstream()\n"
        "    await js.add_stream(name='ORDERS', subjects=['orders.*'])\n"
        f"    for number in range({MESSAGES}): await js.publish(f'orders.{{number}}', b'%d' % number)\n"
        "    await client.request('$LAKE.API.FLUSH.ORDERS', timeout=30)\n"
        "    await client.close()\n"
        "asyncio.run(main())\n"
    )
    done = serving.call("python", "-c", program)
    assert done.returncode == 0, done.stderr


def wait_committed(container: Running) -> None:
    """Wait until the table has the messages."""
    query = "SELECT count(*) AS n FROM delta.`streams/ORDERS`"
    sql = ("lakestream", "sql", "--lake", "/data/lake", "--committed", "--format", "csv", "-q", query)
    deadline = time.monotonic() + 180
    while (done := container.call(*sql)).stdout.split()[-1:] != [str(MESSAGES)]:
        assert time.monotonic() < deadline, done
        time.sleep(1)


def wait_port(container: Running, port: int) -> None:
    """Wait until a port of the container's network takes connections."""
    probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"
    deadline = time.monotonic() + 90
    while (done := container.call("python", "-c", probe)).returncode:
        assert time.monotonic() < deadline, done
        time.sleep(1)


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """Yield a list of containers, which are ended after the test."""
    containers: list[Running] = []
    yield containers
    for container in containers:
        container.process.kill()
        container.process.wait()


def test_the_servers_image_has_neither_java_nor_spark(server: Image) -> None:
    assert not list((server.root / "usr" / "lib").glob("jvm/*"))
    packages = {path.name for path in (server.root / "usr/local/lib").glob("python3*/site-packages/*")}
    assert packages & {"pyspark", "pandas", "duckdb"} == set()
    assert {"deltalake", "lakestream_sharing"} <= packages


def test_server_and_compactor_share_a_volume(
    server: Image, compactor: Image, volume: Path, running: list[Running]
) -> None:
    serving = Running(server, volume)
    running.append(serving)
    serving.wait_healthy(60)
    assert serving.call("id", "-u").stdout.strip() == str(OWNER)
    assert serving.call("touch", "/usr/local/x").returncode != 0, "the root can be written"
    assert serving.call("python", "-c", "from lakestream import native; print(native.WHY)").stdout == "\n"
    publish(serving)

    compacting = Running(compactor, volume)
    running.append(compacting)
    compacting.wait_healthy(180)
    wait_committed(compacting)
    for container in (serving, compacting):
        assert container.call("sh", "-c", "kill -TERM 1").returncode == 0
        assert container.process.wait(60) == 0


def test_a_health_check_fails_without_a_server(server: Image, volume: Path, running: list[Running]) -> None:
    sleeping = Running(server, volume, "serve", "-a", "0.0.0.0", "-sd", "/data")  # without a monitoring port
    running.append(sleeping)
    wait_port(sleeping, 4222)
    assert sleeping.call(*server.health).returncode != 0


def test_the_same_image_is_a_spark_cluster(
    server: Image, compactor: Image, volume: Path, running: list[Running]
) -> None:
    serving = Running(server, volume)
    running.append(serving)
    serving.wait_healthy(60)
    publish(serving)
    variables = {"SPARK_HOST": "127.0.0.1", "SPARK_MASTER": "spark://127.0.0.1:7077", "SPARK_NO_DAEMONIZE": "1"}
    together: dict[str, Any] = {"network": network_of(serving.process), "environ": variables}
    master = Running(compactor, volume, "master", **together)
    running.append(master)
    wait_port(serving, 7077)
    worker = Running(compactor, volume, "worker", variables["SPARK_MASTER"], **together)
    running.append(worker)
    wait_port(serving, 8081)
    job = Running(compactor, volume, "job", "compact", "--lake", "/data/lake", "--once", **together)
    running.append(job)
    assert job.process.wait(300) == 0
    wait_committed(worker)
