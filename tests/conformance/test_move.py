"""Tests of `lakestream move` between real servers, as docs/moving.md describes it."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.cluster.peer_world import Authority, free_port
from tests.conformance.leaf_world import connected, hub_config, lake_config
from tests.conformance.remotes import create, fixed_port, messages, publish, state, wait, wait_last, wait_link
from tests.conftest import StartServer
from tests.keys import Operator
from tests.servers import Kind, Server
from tests.terminal import COLOUR, Terminal
from tests.wire import Wire

pytestmark = pytest.mark.conformance
heavy = pytest.mark.heavy

TIMEOUT_S = 90.0
QUICK = ("--quiet", "300ms")
PLAIN = "lake: false\nhttp: 127.0.0.1:-1\n"


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
        assert event is not None, f"{name}: {self.report()}"
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

    def report(self) -> str:
        """Return what the command said."""
        return "\n".join([*map(json.dumps, self.events), *self.errors])

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the events of that name."""
        return [event for event in self.events if event["event"] == name]


def move(old: Server, new: Server, *arguments: str) -> Move:
    """Run the command to its end, and assert that it succeeds."""
    run = Move(old.url, new.url, *arguments)
    code = run.end()
    assert code == 0, run.report()
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
        revision = await bucket.create("k", b"1")
        await bucket.update("k", b"2", last=revision)  # with headers that no mirror has
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
    # Message 8 was acked out of order, above the floor (6): it is delivered again.
    assert await rest(new.url, "ORDERS", "billing", 15) == [*range(7, 22)]
    assert await rest(new.url, "ORDERS", "fresh", 1) == [21]
    client = await nats.connect(new.url)
    bucket = await client.jetstream().key_value("B")
    assert [entry.value for entry in await bucket.history("k")] == [b"1", b"2"]
    assert await bucket.put("k", b"3") == 3
    assert (await (await client.jetstream().object_store("FILES")).get("a")).data == b"x" * 300_000
    await client.close()


def everything(server: Server) -> Any:
    """Return what a server shows of its streams, consumers and links, without times."""
    with Wire(server.address) as wire:
        streams = wire.api("STREAM.LIST")["streams"] or []
        consumers = [wire.api(f"CONSUMER.LIST.{one['config']['name']}")["consumers"] for one in streams]
        whole = [[one["config"], one["state"]] for one in streams]
        links = server.page("/varz").get("remote_servers") if server.kind is Kind.OURS else None
        return json.loads(
            json.dumps([whole, [[one["config"], one["delivered"]] for each in consumers for one in each]])
        ), links


def test_a_rehearsal_names_what_stands_in_the_way_and_changes_nothing(old: Server, new: Server) -> None:
    with Wire(old.address) as there, Wire(new.address) as here:
        fill(there)
        durable(there, "ORDERS", "billing")
        create(there, "JOBS", subjects=["jobs.>"], retention="workqueue")
        durable(there, "JOBS", "worker")
        create(there, "TAKEN", subjects=["taken"])
        create(there, "COUNTS", subjects=["counts"], allow_msg_counter=True)
        create(there, "COPY", mirror={"name": "ORDERS"})
        create(here, "TAKEN", subjects=["else"])
        create(here, "OTHER", subjects=["orders.*"])
        wait_last(there, "COPY", 20)
    before = everything(old), everything(new)
    run = Move(old.url, new.url, "*", "--dry-run")
    assert run.end() == 1, run.report()
    assert (everything(old), everything(new)) == before
    streams = {event["stream"]: event for event in run.named("stream")}
    assert streams["ORDERS"] | {"estimate_s": 0} == {
        "event": "stream",
        "stream": "ORDERS",
        "way": "mirror",
        "messages": 17,
        "bytes": streams["ORDERS"]["bytes"],
        "consumers": 1,
        "estimate_s": 0,
    }
    found = {(event["stream"], event["what"].partition(":")[0]) for event in run.named("obstacle") if event["stops"]}
    assert found == {
        ("ORDERS", "the new server has its subjects in OTHER"),
        ("TAKEN", "the new server has a stream of that name"),
        ("COPY", "it is a mirror of ORDERS"),
        ("COUNTS", "it has counters, which no mirror has"),
        (
            "JOBS",
            "it is a workqueue stream with consumers (1)",
        ),
    }
    alone = Move(old.url, new.url, "NONE*", "--dry-run")
    assert (alone.end(), alone.errors) == (1, ["lakestream: the old server has no stream NONE*"])


async def test_a_work_queue_moves_while_publishers_go_on(old: Server, new: Server) -> None:
    with Wire(old.address) as there:
        create(there, "JOBS", subjects=["jobs.>"], retention="workqueue")
        durable(there, "JOBS", "workers")
        publish(there, "jobs.a", *(b"%d" % number for number in range(50)))
        run = Move(old.url, new.url, "JOBS", "--take-consumers", "--quiet", "1s")
        run.wait_event("source")
        publish(there, "jobs.a", b"50")
        assert run.end() == 0, run.report()
        assert state(there, "JOBS")["messages"] == 0
        assert there.api("CONSUMER.LIST.JOBS")["consumers"] == []
    with Wire(new.address) as here:
        config = here.api("STREAM.INFO.JOBS")["config"]
        assert (config["retention"], "sources" in config) == ("workqueue", False)
        assert [body for *_, body in messages(here, "JOBS")] == [b"%d" % number for number in range(51)]
    assert await rest(new.url, "JOBS", "workers", 51) == [*range(1, 52)]


@pytest.fixture
def lake(start_server: StartServer) -> Server:
    """Return a lakestream that streams leave."""
    return fixed_port(start_server(of=Kind.OURS, config=PLAIN))


@pytest.fixture
def hub(start_server: StartServer) -> Server:
    """Return a nats-server to which they go."""
    return fixed_port(start_server(of=Kind.REAL))


async def test_a_backup_moves_to_nats_server_exactly(lake: Server, hub: Server) -> None:
    with Wire(lake.address) as there:
        fill(there, max_age=3600_000_000_000)
        durable(there, "ORDERS", "billing")
        create(there, "JOBS", subjects=["jobs.>"], retention="workqueue")
        durable(there, "JOBS", "workers")
        publish(there, "jobs.a", b"1", b"2", b"3")
        await acked(lake.url, "ORDERS", "billing", (2, 3, 8, 10), 7)
        await acked(lake.url, "JOBS", "workers", (1,), 1)
        origin, jobs = messages(there, "ORDERS"), messages(there, "JOBS")
        there_now = there.api("CONSUMER.INFO.ORDERS.billing")
    refused = Move(lake.url, hub.url, "ORDERS", "--dry-run")
    assert refused.end() == 1
    assert "--by backup" in refused.named("obstacle")[-1]["what"]
    run = move(lake, hub, "ORDERS", "JOBS", "--by", "backup", "--verify", "full", *QUICK)
    assert {event["stream"]: event["compared"] for event in run.named("verified")} == {"ORDERS": 17, "JOBS": 2}
    with Wire(hub.address) as here:
        assert messages(here, "ORDERS") == origin
        assert messages(here, "JOBS") == jobs
        consumer = here.api("CONSUMER.INFO.ORDERS.billing")
        for key in ("delivered", "ack_floor"):
            assert {k: v for k, v in consumer[key].items() if k.endswith("seq")} == {
                k: v for k, v in there_now[key].items() if k.endswith("seq")
            }
        assert consumer["num_ack_pending"] == there_now["num_ack_pending"] == 3
        assert consumer["config"]["deliver_policy"] == "all"
    assert await rest(hub.url, "ORDERS", "billing", 10) == [*range(11, 21)]


# ---------------------------------------------------------------------------- interruptions

STAGES = ("rehearsed", "link", "created", "copied", "verified", "cut", "moved")


@heavy
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
async def test_an_interrupted_move_continues_from_every_stage(old: Server, new: Server, how: signal.Signals) -> None:
    for stage in STAGES:
        name = stage.upper()
        with Wire(old.address) as there:
            fill(there, name, count=300)
            durable(there, name, "billing")
            origin = messages(there, name)
        await acked(old.url, name, "billing", (2, 3, 6), 7)
        run = Move(old.url, new.url, name, *QUICK)
        run.wait_event(stage)
        code = run.interrupt(how)
        assert code in (130 if how is signal.SIGINT else -signal.SIGKILL, 0), run.report()
        with Wire(old.address) as there:
            assert messages(there, name) == origin
        move(old, new, name, *QUICK)
        with Wire(new.address) as here:
            assert messages(here, name) == origin
            assert "mirror" not in here.api(f"STREAM.INFO.{name}")["config"]
        assert await rest(new.url, name, "billing", 1) == [7]
        again = move(old, new, name, *QUICK)
        assert not again.named("created")


@heavy
@pytest.mark.parametrize("stage", ["created", "source", "taken"])
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_an_interrupted_move_of_a_queue_continues(old: Server, new: Server, stage: str, retention: str) -> None:
    with Wire(old.address) as there:
        create(there, "JOBS", subjects=["jobs.>"], retention=retention)
        durable(there, "JOBS", "workers")
        publish(there, "jobs.a", *(b"%d" % number for number in range(200)))
    await acked(old.url, "JOBS", "workers", (1, 2), 2)
    run = Move(old.url, new.url, "JOBS", "--take-consumers", *QUICK)
    run.wait_event(stage)
    run.interrupt(signal.SIGKILL)
    move(old, new, "JOBS", "--take-consumers", *QUICK)
    with Wire(new.address) as here, Wire(old.address) as there:
        assert [body for *_, body in messages(here, "JOBS")] == [b"%d" % number for number in range(2, 200)]
        assert state(there, "JOBS")["messages"] == 0
    assert await rest(new.url, "JOBS", "workers", 198) == [*range(1, 199)]


@heavy
@pytest.mark.parametrize("stage", ["created", "copied", "cut"])
@pytest.mark.parametrize("side", ["old", "new"])
async def test_a_move_survives_the_end_of_a_server(old: Server, new: Server, stage: str, side: str) -> None:
    with Wire(old.address) as there:
        for number in range(5):
            fill(there, f"S{number}", count=200)
            durable(there, f"S{number}", "billing")
        origins = [messages(there, f"S{number}") for number in range(5)]
    fixed_port(new)
    run = Move(old.url, new.url, "S*", "--quiet", "1s")
    run.wait_event(stage)
    server = old if side == "old" else new
    server.kill()
    server.start()
    assert run.end() == 0, run.report()
    with Wire(new.address) as here:
        for number, origin in enumerate(origins):
            assert messages(here, f"S{number}") == origin
            assert here.api(f"CONSUMER.INFO.S{number}.billing")["config"]["durable_name"] == "billing"


@heavy
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_backup_is_interrupted_and_repeated(lake: Server, hub: Server, how: signal.Signals) -> None:
    with Wire(lake.address) as there:
        create(there, "BIG", subjects=["big"])
        for _ in range(5):  # seconds: with 30 MB all was restored before the signal came, now and then
            publish(there, "big", *(os.urandom(500_000) for _ in range(60)))
        origin = messages(there, "BIG")
    run = Move(lake.url, hub.url, "BIG", "--by", "backup", *QUICK)
    run.wait_event("progress")
    run.interrupt(how)
    with Wire(hub.address) as here:
        if how is signal.SIGINT:
            assert here.api("STREAM.NAMES")["total"] == 0, run.report()
        else:
            assert Move(lake.url, hub.url, "BIG", "--undo").end() == 0
    move(lake, hub, "BIG", "--by", "backup", *QUICK)
    with Wire(hub.address) as here:
        assert messages(here, "BIG") == origin


@heavy
def test_a_link_ends_with_its_command_and_the_mirror_says_so(old: Server, new: Server) -> None:
    with Wire(old.address) as there:
        fill(there)
    run = Move(old.url, new.url, "ORDERS", "--quiet", "60s")
    run.wait_event("copied")
    run.interrupt(signal.SIGKILL)
    with Wire(new.address) as here:
        error = wait("an error", lambda: here.api("STREAM.INFO.ORDERS")["mirror"].get("error"), 120)
        assert "run lakestream move again" in error["description"]
        (link,) = new.page("/varz")["remote_servers"]
        assert (link["connected"], link["temporary"]) == (False, True)
    move(old, new, "ORDERS", *QUICK)


# ---------------------------------------------------------------------------- publishers


@heavy
def test_publishers_that_go_on_are_noticed(old: Server, new: Server) -> None:
    with Wire(old.address) as there:
        fill(there)
        run = Move(old.url, new.url, "ORDERS", "--quiet", "1s")
        run.wait_event("copied")
        for _ in range(30):
            publish(there, "orders.late", b"x")
            if run.named("publishers"):
                break
            time.sleep(0.1)
        run.wait_event("publishers")
        assert not run.named("cut")
        assert run.end() == 0, run.report()
        last = state(there, "ORDERS")["last_seq"]
        publish(there, "orders.late", b"after the end")
        again = Move(old.url, new.url, "ORDERS", "--quiet", "1s")
        assert again.end() == 1
        assert again.named("late") == [{"event": "late", "stream": "ORDERS", "messages": 1}]
    with Wire(new.address) as here:
        assert state(here, "ORDERS")["last_seq"] == last


@heavy
def test_assumed_publishers_end_the_run(old: Server, new: Server) -> None:
    with Wire(old.address) as there:
        fill(there)
        run = Move(old.url, new.url, "ORDERS", "--stop-publishers", "assume", "--quiet", "3s")
        run.wait_event("copied")
        publish(there, "orders.late", b"x")
        assert run.end() == 1
    assert "publishers still write to the old server: ORDERS (20 → 21)" in run.errors[-1]
    undone = move(old, new, "ORDERS", "--undo")
    assert [event["stream"] for event in undone.named("undone")] == ["ORDERS"]
    with Wire(new.address) as here:
        assert here.api("STREAM.NAMES")["total"] == 0


@heavy
def test_publishers_during_a_backup_are_noticed(lake: Server, hub: Server) -> None:
    with Wire(lake.address) as there, Wire(hub.address) as here:
        create(there, "BIG", subjects=["big"])
        publish(there, "big", *(os.urandom(500_000) for _ in range(40)))
        run = Move(lake.url, hub.url, "BIG", "--by", "backup", *QUICK)
        run.wait_event("progress")
        publish(there, "big", b"late")
        assert run.end() == 1, run.report()
        assert "somebody published" in run.errors[-1]
        assert here.api("STREAM.NAMES")["total"] == 0


# ---------------------------------------------------------------------------- more to move


@heavy
async def test_three_hundred_consumers_move(old: Server, new: Server) -> None:
    with Wire(old.address) as there:
        fill(there)
        for number in range(300):
            durable(there, "ORDERS", f"c{number}", deliver_policy="by_start_sequence", opt_start_seq=number % 20 + 1)
    run = move(old, new, "ORDERS", *QUICK)
    assert run.named("moved")[0]["consumers"] == 300
    with Wire(new.address) as here:
        assert here.api("CONSUMER.LIST.ORDERS")["total"] == 300
        assert here.api("CONSUMER.INFO.ORDERS.c9")["num_pending"] == 11


@heavy
@pytest.mark.parametrize("removed", ["purged", "last deleted"])
async def test_sequences_go_on_where_the_last_messages_were_removed(old: Server, new: Server, removed: str) -> None:
    with Wire(old.address) as there:
        fill(there)
        durable(there, "ORDERS", "billing")
        await acked(old.url, "ORDERS", "billing", range(30), 17)
        if removed == "purged":
            there.api("STREAM.PURGE.ORDERS")
        else:
            there.api("STREAM.MSG.DELETE.ORDERS", {"seq": 20})
    move(old, new, "ORDERS", *QUICK)
    with Wire(new.address) as here:
        seq = here.request("orders.a", b"next").json()["seq"]
        assert seq in ((21,) if removed == "purged" else (20, 21))
    assert await rest(new.url, "ORDERS", "billing", 1) == [seq]


@heavy
async def test_streams_move_from_lakestream_to_lakestream(start_server: StartServer, lake: Server, new: Server) -> None:
    with Wire(lake.address) as there:
        fill(there)
        durable(there, "ORDERS", "billing")
        await acked(lake.url, "ORDERS", "billing", (2, 3), 3)
        origin = messages(there, "ORDERS")
    move(lake, new, "ORDERS", "--verify", "full", *QUICK)
    with Wire(new.address) as here:
        assert messages(here, "ORDERS") == origin
    assert await rest(new.url, "ORDERS", "billing", 1) == [6]
    assert new.page("/varz").get("remote_servers") in (None, [])


TEXT = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
WIDER = TEXT.replace('"n": {', '"t": {"type": "string"}, "n": {')


def typed(wire: Wire) -> dict[str, Any]:
    """Register two versions of a schema, and create streams that name it; return the registry."""
    for text in (TEXT, WIDER):
        body = json.dumps({"format": "json", "text": text, "compatibility": "full"}).encode()
        assert "error" not in wire.request("$LAKE.API.SCHEMA.ADD.orders", body).json()
    for stream, version in (("ANY", "latest"), ("ORDERS", "1")):
        metadata = {"lakestream.schema": f"orders@{version}", "lakestream.validate": "reject"}
        create(wire, stream, subjects=[f"{stream.lower()}.>"], metadata=metadata)
        publish(wire, f"{stream.lower()}.a", b'{"n":1}', b'{"n":2}')
    return registry(wire)


def registry(wire: Wire) -> dict[str, Any]:
    """Return the versions of the schema with ids, compatibility and texts."""
    versions = [wire.request(f"$LAKE.API.SCHEMA.GET.orders@{version}").json() for version in (1, 2)]
    return {"versions": versions, "names": wire.request("$LAKE.API.SCHEMA.LIST").json()["total"]}


def check_typed(wire: Wire, before: dict[str, Any]) -> None:
    """Assert that a server has the schemas, and validates by them."""
    assert registry(wire) == before
    for stream in ("any", "orders"):
        assert wire.request(f"{stream}.a", b'{"n":"x"}').json()["error"]["err_code"] == 20006
        assert wire.request(f"{stream}.a", b'{"n":3}').json()["seq"] == 3
    body = json.dumps({"format": "json", "text": WIDER.replace('"t"', '"u"'), "compatibility": "none"}).encode()
    added = wire.request("$LAKE.API.SCHEMA.ADD.orders", body).json()
    assert (added["version"], added["id"]) == (3, before["versions"][1]["id"] + 1)


@heavy
@pytest.mark.parametrize("by", ["mirror", "backup"])
def test_schemas_move_before_the_streams_that_name_them(lake: Server, new: Server, by: str) -> None:
    with Wire(lake.address) as there:
        before = typed(there)
    alone = Move(lake.url, new.url, "ORDERS", "--dry-run")
    assert alone.end() == 1
    assert "no schema orders@1: move KV_SCHEMAS" in alone.named("obstacle")[0]["what"]
    run = move(lake, new, "*", "--by", by, "--verify", "full", *QUICK)
    made = [event["stream"] for event in run.events if event["event"] in ("created", "restored")]
    assert (made[0], sorted(made[1:])) == ("KV_SCHEMAS", ["ANY", "ORDERS"])
    lake.kill()
    with Wire(new.address) as here:
        check_typed(here, before)


@heavy
def test_schemas_move_to_nats_server_and_back(lake: Server, hub: Server, new: Server) -> None:
    """There they are a bucket like any other."""
    with Wire(lake.address) as there:
        before = typed(there)
    move(lake, hub, "*", "--by", "backup", "--verify", "full", *QUICK)
    with Wire(hub.address) as between:
        assert between.api("STREAM.INFO.ORDERS")["config"]["metadata"]["lakestream.validate"] == "reject"
        assert between.request("orders.a", b'{"n":"x"}').json()["seq"] == 3, "nothing is validated"
        assert between.api("STREAM.MSG.DELETE.ORDERS", {"seq": 3})["success"]
    missing = Move(hub.url, new.url, "ANY", "--dry-run")
    assert missing.end() == 1
    move(hub, new, "*", "--verify", "full", *QUICK)
    with Wire(new.address) as here:
        assert registry(here) == before
        assert here.request("any.a", b'{"n":"x"}').json()["error"]["err_code"] == 20006
        assert here.request("any.a", b'{"n":3}').json()["seq"] == 3


@heavy
async def test_streams_move_to_nats_server_through_a_leaf_link(start_server: StartServer) -> None:
    port = free_port()
    hub = fixed_port(start_server(of=Kind.REAL, config=hub_config(port), name="hub"))
    lake = start_server(of=Kind.OURS, config=lake_config(port), name="lake1", args=["-m", "-1"])
    connected(lake, port)
    with Wire(lake.address) as there:
        fill(there)
        durable(there, "ORDERS", "billing")
        await acked(lake.url, "ORDERS", "billing", (2, 3), 3)
        origin = messages(there, "ORDERS")
        create(there, "JOBS", subjects=["jobs"], retention="workqueue")
        durable(there, "JOBS", "workers")
        publish(there, "jobs", b"1", b"2")
    move(lake, hub, "ORDERS,JOBS", "--take-consumers", "--verify", "full", *QUICK)
    with Wire(hub.address) as here:
        assert messages(here, "ORDERS") == origin
        assert here.request("orders.a", b"next").json()["seq"] == 21
        assert [body for *_, body in messages(here, "JOBS")] == [b"1", b"2"]
    assert await rest(hub.url, "ORDERS", "billing", 1) == [6]


# ---------------------------------------------------------------------------- logins and rights


@heavy
async def test_tls_and_credentials_reach_the_old_server(start_server: StartServer, tmp_path: Path) -> None:
    world = Operator()
    creds = tmp_path / "u.creds"
    creds.write_text(world.credentials)
    of = Authority(tmp_path, "ca").options("127.0.0.1")
    tls = f"cert_file: '{of.cert_file}', key_file: '{of.key_file}', ca_file: '{of.ca_file}', verify: true"
    old = start_server(of=Kind.REAL, config=f"{world.config}\ntls {{ {tls} }}")
    new = start_server(of=Kind.OURS, config=PLAIN, args=["-DV"])
    login = ("--from-creds", str(creds), "--from-tlsca", of.ca_file)
    certificate = ("--from-tlscert", of.cert_file, "--from-tlskey", of.key_file)
    context = ssl.create_default_context(cafile=of.ca_file)
    context.load_cert_chain(of.cert_file, of.key_file)
    client = await nats.connect(old.url, user_credentials=str(creds), tls=context)
    await client.jetstream().add_stream(name="ORDERS", subjects=["orders"])
    await client.jetstream().publish("orders", b"1")
    await client.close()
    with Wire(new.address) as spy:
        spy.subscribe("$LAKE.>")
        spy.ping()
        run = Move(old.url, new.url, "*", *login, *certificate, "--quiet", "2s")
        run.wait_event("link")
        links = new.page("/varz")["remote_servers"]
        assert run.end() == 0, run.report()
        requests = b"".join(frame.data for frame in spy.ping())
    assert (links[0]["connected"], links[0]["temporary"]) == (True, True)
    assert b"box" in requests
    page = json.dumps(links)
    seed = world.credentials.split("BEGIN USER NKEY SEED-----")[1].split()[0]
    token = world.credentials.split("BEGIN NATS USER JWT-----")[1].split()[0]
    for secret in (seed, token):
        assert secret not in page
        assert secret not in new.log()
        assert secret.encode() not in requests
        assert secret not in run.report()


@heavy
def test_who_may_open_a_link(start_server: StartServer, old: Server) -> None:
    users = (
        "{user: all, password: p}, "
        "{user: wide, password: p, permissions: {publish: '>', subscribe: '>'}}, "
        "{user: mover, password: p, permissions: {publish: ['>', '$LAKE.API.REMOTE.>'], subscribe: '>'}}"
    )
    new = start_server(of=Kind.OURS, config=f"{PLAIN}authorization {{ users: [{users}] }}")
    with Wire(old.address) as there:
        fill(there)
    for user in ("all", "wide"):
        run = Move(old.url, new.url, "ORDERS", "--user", user, "--password", "p", *QUICK)
        assert run.end() == 1
        said = run.named("obstacle")[-1]["what"]
        assert "permissions do not name $LAKE.API.REMOTE.>" in said
        assert f'remote {{ domain: old, url: "nats://127.0.0.1:{old.port}" }}' in said
        with Wire(new.address, {"user": user, "pass": "p"}) as wire:
            assert wire.request("$LAKE.API.REMOTE.OPEN", b"{}").json()["error"]["code"] == 403
    move(old, new, "ORDERS", "--user", "mover", "--password", "p", *QUICK)


@heavy
def test_a_configured_remote_is_found(start_server: StartServer, old: Server) -> None:
    text = f'{PLAIN}remote {{ domain: any, url: "{old.url}" }}\nauthorization {{ user: u, password: p }}'
    new = start_server(of=Kind.OURS, config=text)
    wait_link(new)
    with Wire(old.address) as there:
        fill(there)
    run = move(old, new, "ORDERS", "--user", "u", "--password", "p", *QUICK)
    assert not run.named("link")


@heavy
def test_missing_permissions_are_found_by_the_rehearsal(start_server: StartServer, new: Server) -> None:
    denied = "{user: u, password: p, permissions: {publish: {deny: ['$JS.API.CONSUMER.CREATE.>']}}}"
    old = start_server(of=Kind.REAL, config=f"authorization {{ users: [{denied}] }}")
    with Wire(old.address, {"user": "u", "pass": "p"}) as there:
        fill(there)
    run = Move(old.url, new.url, "ORDERS", "--from-user", "u", "--from-password", "p", "--dry-run")
    assert run.end() == 1
    assert run.named("obstacle")[0]["what"] == (
        "the user of the old server may not publish to $JS.API.CONSUMER.CREATE.ORDERS.lakestream"
    )


@heavy
def test_a_terminal_shows_bars_and_a_pipe_lines(old: Server, new: Server) -> None:
    with Wire(old.address) as there:
        fill(there, count=300)
        durable(there, "ORDERS", "billing")
    command = [sys.executable, "-m", "lakestream.cli.main", "move", "--from", old.url, "--to", new.url, "ORDERS"]
    with Terminal([*command, *QUICK]) as terminal:
        terminal.read_until("ORDERS (copied)")
        terminal.read_until("Moved: 1 stream.")
        assert terminal.process.wait(TIMEOUT_S) == 0
        assert COLOUR.search(terminal.shown)
    piped = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert "\x1b" not in piped.stdout
    assert "note: ORDERS: it has moved already" in piped.stdout.splitlines()
