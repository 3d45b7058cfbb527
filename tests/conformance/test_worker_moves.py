"""Tests of streams that move between running workers: publishers, consumers and key-value clients notice nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_workers import one_on_each, pids, publish, until
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Closed, Frame, Wire, WireTimeout

pytestmark = pytest.mark.conformance

CONFIG = """
workers: 2
accounts { SYS { users: [{user: sys, password: p}] }, A { jetstream: enabled, users: [{user: a, password: p}] } }
system_account: SYS
no_auth_user: a
"""
WINDOW = 5
SYSTEM = {"user": "sys", "pass": "p"}


def place_of(server: Server, name: str) -> int:
    """Return the worker that has a stream's directory. Between two looks it may move; it is never in both or none."""
    for _ in range(100):
        found = [number for number in range(2) if (store_of(server, number) / "A" / "streams" / name).exists()]
        if len(found) == 1:
            return found[0]
    raise AssertionError(f"{name} is in {found}")


def store_of(server: Server, worker: int) -> Path:
    return (server.store / "workers" / str(worker) if worker else server.store) / "jetstream"


def move(system: Wire, name: str) -> Any:
    """Have a stream moved to the other worker; return the answer."""
    return system.api(f"ACCOUNT.STREAM.MOVE.A.{name}", {}, timeout=15)


def create(wire: Wire, name: str, subjects: list[str], **more: object) -> None:
    made = wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **more})
    assert "error" not in made, made


def all_of(wire: Wire, stream: str, number: int) -> list[Frame]:
    """Return the messages of a stream."""
    sid = wire.subscribe("all")
    wire.api(
        f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": {"deliver_subject": "all", "ack_policy": "none"}}
    )
    return [wire.delivered(sid) for _ in range(number)]


class Client:
    """A thread with a connection, which works in steps until it is told to stop; `failure`: why it ended before."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.steps = 0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def step(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.step()
                self.steps += 1
        except BaseException as error:
            self.failure = error

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)


class Publisher(Client):
    """Publishes numbers, `WINDOW` at a time; every one is acked, in order."""

    def __init__(self, wire: Wire, subject: str) -> None:
        super().__init__(wire)
        self.subject, self.sent, self.acks = subject, 0, list[int]()

    def step(self) -> None:
        replies = [self.wire.new_reply() for _ in range(WINDOW)]
        for reply in replies:
            self.wire.publish(self.subject, b"%d" % self.sent, reply)
            self.sent += 1
        for reply in replies:
            answer = self.wire.message(reply, timeout=10)
            assert answer.data, answer.header
            self.acks.append(answer.json()["seq"])


class Puller(Client):
    """Pulls messages and acks each of them, for which it is thanked."""

    def __init__(self, wire: Wire, stream: str, consumer: str) -> None:
        super().__init__(wire)
        self._next, self.came = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", list[int]()
        self.reply = wire.new_reply()

    def step(self) -> None:
        self.wire.publish(self._next, b'{"batch": 10, "expires": 300000000}', self.reply)
        while True:
            message = self.wire.next(lambda frame: frame.sid == self.wire.inbox_sid, timeout=10)
            if message.header.startswith(b"NATS/1.0"):
                assert message.status in (408, 409), message.header
                return
            numbers = message.reply.split(".")
            assert int(numbers[-5]) == 1, f"{message.reply} is a redelivery"
            self.came.append(int(numbers[-4]))
            answer = self.wire.request(message.reply, b"+ACK", timeout=10)
            assert answer.header == b"", answer.header
            if len(self.came) % 10 == 0:
                return


class Writer(Client):
    """Writes a key, and reads what it has written."""

    def step(self) -> None:
        value = b"%d" % self.steps
        answer = self.wire.request("$KV.K.key", value, timeout=10)
        assert answer.data, answer.header
        got = self.wire.request("$JS.API.DIRECT.GET.KV_K.$KV.K.key", timeout=10)
        assert got.data == value, (got.header, got.data, value)


class World:
    """A server of two workers with clients on both, which use one stream and one bucket."""

    def __init__(self, server: Server, ending: ExitStack) -> None:
        self.server = server
        self.system = Wire(server.address, SYSTEM, timeout=15)
        ending.callback(self.system.close)
        self.wires = [wire for _ in range(4) for wire in one_on_each(server, ending)]
        admin = self.wires[0]
        create(admin, "S", ["s.*"])
        create(admin, "KV_K", ["$KV.K.>"], max_msgs_per_subject=1, allow_direct=True, allow_rollup_hdrs=True)
        durable = {"durable_name": "D", "ack_policy": "explicit", "max_ack_pending": 10_000}
        admin.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": durable})
        ordered = {"deliver_subject": "watched", "ack_policy": "none", "mem_storage": True, "num_replicas": 1}
        self.watcher = self.wires[1]
        self.watched = self.watcher.subscribe("watched")
        self.watcher.subscribe("s.*")  # an ordinary subscriber beside the stream, on each worker
        self.wires[0].subscribe("s.*")
        for wire in self.wires:
            wire.ping()
        self.watcher.api("CONSUMER.CREATE.KV_K", {"stream_name": "KV_K", "config": ordered})
        self.publishers = [Publisher(wire, f"s.{number}") for number, wire in enumerate(self.wires[2:4])]
        self.puller, self.writer = Puller(self.wires[4], "S", "D"), Writer(self.wires[5])
        self.clients: list[Client] = [*self.publishers, self.puller, self.writer]

    def work(self) -> None:
        """Wait until each client has done something more."""
        before = [client.steps for client in self.clients]
        until(
            lambda: all(
                client.steps > was + 1 or client.failure for client, was in zip(self.clients, before, strict=True)
            ),
            "all clients go on",
        )
        assert not any(client.failure for client in self.clients), [client.failure for client in self.clients]

    def check(self) -> None:
        """Check that everything came once, and in order."""
        wire = self.wires[0]
        state = wire.api("STREAM.INFO.S")["state"]
        sent = sum(publisher.sent for publisher in self.publishers)
        assert state["messages"] == state["last_seq"] == sent
        stored: dict[str, list[int]] = {}
        for frame in all_of(self.wires[6], "S", sent):
            stored.setdefault(frame.subject, []).append(int(frame.data))
        for publisher in self.publishers:
            assert stored[publisher.subject] == list(range(publisher.sent))
            assert publisher.acks == sorted(publisher.acks)
        assert self.puller.came == list(range(1, len(self.puller.came) + 1))
        values = [int(frame.data) for frame in self._watched()]
        assert values == sorted(set(values))

    def _watched(self) -> list[Frame]:
        frames, last = list[Frame](), b"%d" % (self.writer.steps - 1)
        while not frames or frames[-1].data != last:
            frame = self.watcher.delivered(self.watched, timeout=10)
            if frame.subject.startswith("$KV"):
                frames.append(frame)
        return frames


@contextmanager
def world(start_server: StartServer) -> Iterator[World]:
    with ExitStack() as ending:
        made = World(start_server(config=CONFIG), ending)
        for client in made.clients:
            client.start()
        try:
            yield made
        finally:
            for client in made.clients:
                client.end()


def moved_under_load(start_server: StartServer, times: int) -> None:
    with world(start_server) as made:
        for _ in range(times):
            for name in ("S", "KV_K"):
                made.work()
                before = place_of(made.server, name)
                answer = move(made.system, name)
                assert "error" not in answer, answer
                assert place_of(made.server, name) == 1 - before
        made.work()
        for client in made.clients:
            client.end()
            assert client.failure is None, repr(client.failure)
        made.check()
        assert "was not compared" not in made.server.log()


def test_nobody_notices_that_a_stream_moves(start_server: StartServer) -> None:
    moved_under_load(start_server, 2)


@pytest.mark.heavy
def test_nobody_notices_that_streams_move_to_and_fro(start_server: StartServer) -> None:
    moved_under_load(start_server, 20)


def test_a_stream_that_is_deleted_while_it_moves_is_gone(start_server: StartServer) -> None:
    server = start_server(config=CONFIG)
    with ExitStack() as ending:
        wires = one_on_each(server, ending)
        system = Wire(server.address, SYSTEM, timeout=15)
        ending.callback(system.close)
        for number in range(5):
            create(wires[0], "G", ["g"])
            for _ in range(number * 20):
                publish(wires[1], "g")
            reply = system.new_reply()
            system.publish("$JS.API.ACCOUNT.STREAM.MOVE.A.G", b"", reply)
            deleted = wires[number % 2].api("STREAM.DELETE.G", timeout=15)
            assert deleted.get("success"), deleted
            system.message(reply, timeout=15)
            for worker in range(2):
                assert not (store_of(server, worker) / "A" / "streams" / "G").exists()
            for wire in wires:
                assert wire.api("STREAM.INFO.G")["error"]["err_code"] == 10059
                assert wire.request("g").status == 503


def test_streams_that_cannot_move_say_why(start_server: StartServer) -> None:
    server = start_server(config=CONFIG)
    with Wire(server.address, SYSTEM, timeout=15) as system, Wire(server.address) as wire:
        create(wire, "M", ["m"], storage="memory")
        assert "it is in memory" in str(move(system, "M"))
        assert move(system, "NONE")["error"]["err_code"] == 10059
        assert publish(wire, "m") == 1


# ---------------------------------------------------------------------- moves that worker 0 decides
EAGER = """
import sys
from lakestream.cli.main import main
from lakestream.meta import worker_load as load
load.LOOK_NS, load.BUSY, load.HOT_LOOKS, load.LEAST_GAIN, load.QUIET_LOOKS = 200_000_000, 0.02, 3, 0.001, 10
main()
"""


class EagerServer(Server):
    """A server that looks at the load of its workers five times a second, and takes one for busy above 2 % of a
    core."""

    def command(self) -> list[str]:
        command = super().command()
        return [sys.executable, "-c", EAGER, *command[command.index("serve") :]]


@contextmanager
def two_busy_streams(path: Path, config: str) -> Iterator[tuple[Server, list[Publisher], list[Wire]]]:
    """Start a server with two streams on one of its workers, which has their publishers, too."""
    server = EagerServer(Kind.OURS, path / "store", config=CONFIG + config)
    with ExitStack() as ending:
        ending.callback(server.kill)
        server.start()
        wires = [wire for _ in range(2) for wire in one_on_each(server, ending)]
        create(wires[0], "P", ["p"])
        create(wires[0], "Q", ["q"])
        if place_of(server, "P") != place_of(server, "Q"):
            with Wire(server.address, SYSTEM, timeout=15) as system:
                assert "error" not in move(system, "Q")
        holder = place_of(server, "P")
        publishers = [Publisher(wire, subject) for wire, subject in zip(wires[holder::2], "pq", strict=True)]
        for publisher in publishers:
            ending.callback(publisher.end)
            publisher.start()
        yield server, publishers, wires[1 - holder :: 2]


def places(server: Server) -> set[int]:
    return {place_of(server, name) for name in "PQ"}


def test_of_two_busy_streams_of_a_worker_one_moves_to_the_idle_worker(tmp_path: Path) -> None:
    with two_busy_streams(tmp_path, "") as (server, publishers, others):
        until(lambda: len(places(server)) == 2, "a stream moves")
        sent = [publisher.sent for publisher in publishers]
        until(lambda: all(p.sent > 10 * WINDOW + was for p, was in zip(publishers, sent, strict=True)), "they go on")
        for publisher in publishers:
            publisher.end()
            assert publisher.failure is None, repr(publisher.failure)
            stored = all_of(others.pop(), publisher.subject.upper(), publisher.sent)
            assert [int(frame.data) for frame in stored] == list(range(publisher.sent))
            assert publisher.acks == [*range(1, publisher.sent + 1)]


def test_no_stream_moves_by_itself_if_the_configuration_says_so(tmp_path: Path) -> None:
    with two_busy_streams(tmp_path, "jetstream { balance_workers: false }") as (server, publishers, _):
        until(lambda: all(publisher.sent >= 100 * WINDOW for publisher in publishers), "they publish")
        assert len(places(server)) == 1


class Persistent(threading.Thread):
    """Publishes numbers with message ids to one subject, again until each is acked, whatever happens to workers."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server, self.acked = server, 0
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with Wire(self.server.address, timeout=5) as wire:
                    while not self.stop.is_set():
                        body = b"%d" % self.acked
                        answer = wire.request("s", body, {"Nats-Msg-Id": body.decode()}, timeout=2)
                        if answer.data and "seq" in answer.json():
                            self.acked += 1
                        else:
                            time.sleep(0.01)
            except (Closed, OSError, WireTimeout):
                time.sleep(0.01)


@pytest.mark.heavy
@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_while_a_stream_moves_loses_nothing_that_was_acked(start_server: StartServer, victim: int) -> None:
    server = start_server(config=CONFIG)
    with Wire(server.address) as wire:
        create(wire, "S", ["s"])
    publisher = Persistent(server)
    publisher.start()
    for delay in (0, 0.002, 0.004, 0.006, 0.01, 0.02):
        until(lambda: len(pids(server)) == 2, "two workers")
        acked = publisher.acked
        until(lambda acked=acked: publisher.acked > acked + 20, "it goes on")
        while True:
            with Wire(server.address, SYSTEM, timeout=15) as system:
                if int(system.info["client_id"] - 1) % 2 == victim:
                    continue
                before = pids(server)
                system.publish("$JS.API.ACCOUNT.STREAM.MOVE.A.S", b"", system.new_reply())
                system.ping()
                time.sleep(delay)
                os.kill(sorted(before)[victim], signal.SIGKILL)
                break
        until(lambda before=before: len(pids(server)) == 2 and pids(server) != before, "it is restarted")
        place_of(server, "S")
    acked = publisher.acked
    until(lambda: publisher.acked > acked + 20, "it goes on")
    publisher.stop.set()
    publisher.join(30)
    with Wire(server.address, timeout=15) as wire:
        state = wire.api("STREAM.INFO.S")["state"]
        assert publisher.acked <= state["messages"] <= publisher.acked + 1
        stored = [int(frame.data) for frame in all_of(wire, "S", publisher.acked)]
        assert stored == list(range(publisher.acked))
