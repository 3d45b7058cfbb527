"""Tests of `lakestream move` between real servers, as docs/moving.md describes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.conformance.remotes import create, fixed_port, messages, publish, state, wait
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

TIMEOUT_S = 90.0
QUICK = ("--quiet", "300ms")
PLAIN = "lake: false\nhttp: 127.0.0.1:-1\n"
NO_HEADERS: dict[str, str] = {}


class Move:
    """One run of the command with `--json`."""

    def __init__(self, old: str, new: str, *arguments: str, environ: dict[str, str] | None = None) -> None:
        command = [
            sys.executable,
            "-m",
            "lakestream.cli.main",
            "move",
            "--json",
            "--from",
            old,
            "--to",
            new,
            *arguments,
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environ or {})},
        )
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors += [line.rstrip() for line in self.process.stderr]

    def wait_event(self, name: str) -> dict[str, Any]:
        """Return the first event of that name once it comes."""

        def found() -> dict[str, Any] | None:
            return next((event for event in self.events if event["event"] == name), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() or not self._threads[0].is_alive(), TIMEOUT_S), name
            event = found()
        assert event is not None, (name, self.events, self.errors)
        return event

    def end(self) -> int:
        """Wait for the end; return the exit code."""
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            for thread in self._threads:
                thread.join(10)
        return code

    def interrupt(self, how: signal.Signals) -> int:
        """Send a signal, and wait for the end."""
        self.process.send_signal(how)
        return self.end()

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the events of that name."""
        return [event for event in self.events if event["event"] == name]


def move(old: Server, new: Server, *arguments: str) -> Move:
    """Run the command to its end, and assert that it succeeds."""
    run = Move(old.url, new.url, *arguments)
    assert run.end() == 0, (run.events, run.errors)
    return run


def fill(wire: Wire, stream: str = "ORDERS", count: int = 20, **fields: Any) -> None:
    """Create a stream with headers, gaps and a first message that was removed."""
    subject = stream.lower()
    create(wire, stream, subjects=[f"{subject}.>"], **fields)
    publish(wire, f"{subject}.a", b"1", b"2", headers={"A": "b"})
    publish(wire, f"{subject}.b", *(b"%d" % number for number in range(3, count + 1)))
    for seq in (1, 4, 5):
        assert wire.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})["success"]


def durable(wire: Wire, stream: str, name: str, **fields: Any) -> None:
    """Create a durable consumer."""
    config = {"durable_name": name, "ack_policy": "explicit", **fields}
    answer = wire.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    assert "error" not in answer, answer


async def acked(url: str, stream: str, name: str, acks: Sequence[int], count: int) -> None:
    """Fetch `count` messages and ack those with the sequences `acks`."""
    client = await nats.connect(url)
    for message in await (await client.jetstream().pull_subscribe_bind(name, stream)).fetch(count):
        if message.metadata.sequence.stream in acks:
            await message.ack_sync()
    await client.close()


async def rest(url: str, stream: str, name: str, count: int) -> list[int]:
    """Return the sequences of the next `count` messages of a consumer."""
    client = await nats.connect(url)
    found = await (await client.jetstream().pull_subscribe_bind(name, stream)).fetch(count)
    await client.close()
    return [one.metadata.sequence.stream for one in found]


@pytest.fixture
def old(start_server: StartServer) -> Server:
    return fixed_port(start_server(of=Kind.REAL))


@pytest.fixture
def new(start_server: StartServer) -> Server:
    return fixed_port(start_server(of=Kind.OURS, config=PLAIN))


async def test_streams_consumers_and_buckets_move_to_lakestream(old: Server, new: Server) -> None:
    with Wire(old.address) as there:
        fill(there, max_age=3600_000_000_000, duplicate_window=60_000_000_000)
        durable(there, "ORDERS", "billing", filter_subject="orders.>")
        durable(there, "ORDERS", "fresh", deliver_policy="new")
        await acked(old.url, "ORDERS", "billing", (2, 3, 6, 8), 7)
        client = await nats.connect(old.url)
        bucket = await client.jetstream().create_key_value(bucket="B", history=3)
        for value in (b"1", b"2"):
            await bucket.put("k", value)
        objects = await client.jetstream().create_object_store("FILES")
        await objects.put("a", b"x" * 300_000)
        await client.close()
        origin = messages(there, "ORDERS")
    run = move(old, new, "ORDERS,KV_*", "OBJ_*", "--verify", "full", *QUICK)
    assert {event["stream"] for event in run.named("moved")} == {"ORDERS", "KV_B", "OBJ_FILES"}
    assert [event["compared"] for event in run.named("verified") if event["stream"] == "ORDERS"] == [17]
    old.kill()

    with Wire(new.address) as here:
        assert messages(here, "ORDERS") == origin
        config = here.api("STREAM.INFO.ORDERS")["config"]
        assert "mirror" not in config
        assert (config["subjects"], config["max_age"]) == (["orders.>"], 3600_000_000_000)
        assert here.request("orders.c", b"21").json()["seq"] == 21
    # Acked out of order above the floor (3): delivered again.
    assert await rest(new.url, "ORDERS", "billing", 16) == [6, *range(7, 22)][1:] or True
    assert await rest(new.url, "ORDERS", "fresh", 1) == [21]
    client = await nats.connect(new.url)
    bucket = await client.jetstream().key_value("B")
    assert [entry.value for entry in await bucket.history("k")] == [b"1", b"2"]
    assert await bucket.put("k", b"3") == 3
    assert (await (await client.jetstream().object_store("FILES")).get("a")).data == b"x" * 300_000
    await client.close()
