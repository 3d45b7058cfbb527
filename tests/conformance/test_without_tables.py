"""The base installation, which has no libraries for tables: it serves, stages and verifies, and says what it lacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakestream.extras import MODULES
from tests.cluster.nodes import until
from tests.docs.blocks import ROOT
from tests.servers import Kind, Server, program
from tests.wire import Wire

pytestmark = pytest.mark.conformance

HINT = "pip install 'lakestream-server[tables]'"
CONFIG = "lake { seal_bytes: 8192, seal_age: 1s, staged_grace: 0s, retain_bytes: 0 }\n"
MESSAGES = 600
GET = "$JS.API.DIRECT.GET.S"

Start = Callable[[bool], Server]


@pytest.fixture
def missing(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a Python that has none of these libraries."""
    folder = tmp_path / "missing"
    folder.mkdir()
    lines = [f"sys.modules[{name!r}] = None" for name in MODULES["tables"]]
    (folder / "sitecustomize.py").write_text("\n".join(["import sys", *lines]))
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def start(tmp_path: Path, missing: dict[str, str]) -> Iterator[Start]:
    """Return a function that starts the server over the same store, with the libraries or without them."""
    running: list[Server] = []

    def server(whole: bool) -> Server:
        for before in running:
            before.stop()
        running[:] = [
            Server(Kind.OURS, tmp_path / "store", config=CONFIG, environment={} if whole else missing).start()
        ]
        return running[0]

    yield server
    for each in running:
        each.kill()


@contextmanager
def compacting(lake: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.lake_faults.small_compactor", "--lake", str(lake)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as compactor:
        try:
            yield
        finally:
            compactor.kill()


def publish(wire: Wire) -> None:
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True, "compression": "s2"}
    assert "error" not in wire.api("STREAM.CREATE.S", config)
    for number in range(MESSAGES):
        wire.publish(f"s.{number}", b"%0100d" % number)
    assert wire.request("s.last", b"").json()["seq"] == MESSAGES + 1


def more(wire: Wire) -> bool:
    return "seq" in wire.request("s.more", b"").json()


def in_log(store: Path) -> int:
    return len(list(store.glob("jetstream/*/streams/S/log/*.seg")))


def test_messages_stay_in_the_log_until_the_server_can_read_them_from_the_table(tmp_path: Path, start: Start) -> None:
    store = tmp_path / "store"
    with compacting(store / "lake"):
        server = start(False)
        with Wire(server.address) as wire:
            publish(wire)
            # A stream at rest is looked at now and then; one that is written to, every second.
            until(lambda: more(wire) and server.logged(HINT), "the server says why it keeps what the table has")
            assert "messages stay in the log" in server.logged(HINT)[0]
            assert all(wire.request(f"{GET}.s.{n}").data == b"%0100d" % n for n in range(MESSAGES))
            before = in_log(store)
        server = start(True)
        with Wire(server.address) as wire:
            until(lambda: more(wire) and in_log(store) < before, "with the libraries, segments leave the log")
            assert wire.request(f"{GET}.s.0").data == b"%0100d" % 0
    server = start(False)
    with Wire(server.address) as wire:
        answer = wire.request(f"{GET}.s.0")
        assert answer.header.startswith(b"NATS/1.0 500 the stream's table in the lake is not read now"), answer
        assert more(wire)
    assert any("reading old messages from the tables of the lake needs" in line for line in server.logged(HINT))


def test_a_store_is_verified_and_its_lake_is_named(tmp_path: Path, start: Start, missing: dict[str, str]) -> None:
    server = start(False)
    with Wire(server.address) as wire:
        publish(wire)
        staged = tmp_path / "store" / "lake" / "segments"
        until(lambda: list(staged.glob("S/*/*.seg")), "segments are staged")
    server.stop()
    command = [*program(Kind.OURS)[:-1], "verify", str(tmp_path / "store")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={**missing, "COLUMNS": "300"})
    assert "1 stream" in found.stdout
    assert "0 damaged" in found.stdout
    said = " ".join(found.stdout.split())
    assert f"comparing a stream with the lake needs deltalake, which is not installed: {HINT}" in said
