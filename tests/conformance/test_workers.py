"""Tests of a server of several worker processes: a client cannot tell which of them it is connected to."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.servers import Kind, Server, run_to_end
from tests.wire import Wire, WireTimeout

pytestmark = pytest.mark.conformance

WORKERS = 2
SOON_S = 15.0


def until(look: Callable[[], object], what: str) -> None:
    """Wait until `look` returns something true."""
    deadline = time.monotonic() + SOON_S
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def pids(server: Server) -> list[int]:
    """Return the processes of the workers."""
    assert server.process is not None
    listed = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def worker_of(wire: Wire, workers: int = WORKERS) -> int:
    """Return the number of the worker that has a connection."""
    return int((wire.info["client_id"] - 1) % workers)


def one_on_each(server: Server, ending: ExitStack, workers: int = WORKERS) -> list[Wire]:
    """Return a connection to each worker, by its number."""
    found: dict[int, Wire] = {}
    while len(found) < workers:
        wire = Wire(server.address, timeout=SOON_S)
        found.setdefault(worker_of(wire, workers), wire)
        ending.callback(wire.close)
    return [found[number] for number in range(workers)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("workers")
    server = Server(Kind.OURS, folder / "store", args=["--workers", str(WORKERS), "-m", "-1"]).start()
    yield server
    server.kill()


@pytest.fixture
def wires(server: Server) -> Iterator[list[Wire]]:
    with ExitStack() as ending:
        yield one_on_each(server, ending)


def publish(wire: Wire, subject: str, data: bytes = b"") -> int:
    """Publish until there is an ack, as clients do; return the sequence."""
    deadline = time.monotonic() + SOON_S
    while True:
        with contextlib.suppress(WireTimeout):  # of a message that its worker took to its end
            answer = wire.request(subject, data, timeout=1)
            if answer.data and "seq" in (ack := answer.json()):
                return int(ack["seq"])
        assert time.monotonic() < deadline, "no ack"
        time.sleep(0.02)


def test_all_workers_introduce_themselves_as_one_server(wires: list[Wire]) -> None:
    own = {"client_id", "client_ip", "xkey"}
    first, second = ({name: value for name, value in wire.info.items() if name not in own} for wire in wires)
    assert first == second
    assert not {"cluster", "connect_urls"} & first.keys()


def test_a_subscription_is_known_everywhere_once_its_client_has_a_pong(wires: list[Wire]) -> None:
    for number in range(50):
        for there, here in (wires, wires[::-1]):
            sid = there.subscribe(f"known.{number}")
            there.ping()
            here.publish(f"known.{number}", b"x")
            assert there.delivered(sid).data == b"x"


def test_no_pong_overtakes_one_that_waits_for_another_worker(server: Server, wires: list[Wire]) -> None:
    here, _ = wires
    stopped = pids(server)[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        here.send(b"SUB pongs p\r\nPING\r\nPING\r\n")
        with pytest.raises(WireTimeout):
            here.until("PONG", timeout=0.3)
    finally:
        os.kill(stopped, signal.SIGCONT)
    here.until("PONG")
    here.until("PONG")


def test_members_of_a_queue_group_share_the_work_wherever_they_are(wires: list[Wire]) -> None:
    sids = [wire.subscribe("work", "group") for wire in wires]
    for wire in wires:
        wire.ping()
    for _ in range(200):
        wires[0].publish("work", b"x")
    counts = [0, 0]

    def all_came() -> bool:
        for number, (wire, sid) in enumerate(zip(wires, sids, strict=True)):
            counts[number] += sum(1 for frame in wire.ping() if frame.sid == sid)
        return sum(counts) == 200

    until(all_came, "every message is delivered once")
    assert min(counts) > 20, counts


def test_requests_without_a_responder_fail_at_once(wires: list[Wire]) -> None:
    for wire in wires:
        assert wire.request("nobody.listens").status == 503


def test_an_ack_that_nobody_takes_has_no_responders_on_any_worker(wires: list[Wire]) -> None:
    wires[0].api("STREAM.CREATE.U", {"name": "U", "subjects": ["u"]})
    for wire in wires:
        answer = wire.request("$JS.ACK.U.nobody.1.1.1.1700000000000000000.0")
        assert answer.status == 503
        assert answer.headers["Nats-Subject"].startswith("$JS.ACK.U.nobody.")


def test_every_stream_serves_clients_of_every_worker(server: Server, wires: list[Wire]) -> None:
    for number in range(4):
        created = wires[number % 2].api(
            f"STREAM.CREATE.E{number}", {"name": f"E{number}", "subjects": [f"e{number}.>"]}
        )
        assert "error" not in created, created
    for number in range(4):
        for wire in wires:
            publish(wire, f"e{number}.a", b"x")
        for wire in wires:
            info = wire.api(f"STREAM.INFO.E{number}")
            assert info["state"]["messages"] == 2
            assert info["cluster"] == {"leader": server.name}
            durable = {"durable_name": "D", "ack_policy": "explicit"}
            wire.api(f"CONSUMER.CREATE.E{number}.D", {"stream_name": f"E{number}", "config": durable})
            pull = b'{"batch":1,"expires":5000000000}'
            wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.E{number}.D", pull, wire.new_reply())
            message = wire.next(lambda frame: frame.subject.startswith("e"))
            assert message.data == b"x"
            wire.request(message.reply, b"+ACK")
            place = f"deliver.{number}.{worker_of(wire)}"
            wire.subscribe(place)
            pushing = {"deliver_subject": place, "ack_policy": "none", "deliver_policy": "last"}
            wire.api(f"CONSUMER.CREATE.E{number}", {"stream_name": f"E{number}", "config": pushing})
            assert wire.next(lambda frame: frame.subject.startswith("e")).data == b"x"
            assert wire.request(f"$JS.API.DIRECT.GET.E{number}", b'{"seq":1}').status in (0, 503)
        waiting = wires[0].api(f"CONSUMER.INFO.E{number}.D")
        assert (waiting["num_pending"], waiting["num_ack_pending"]) == (0, 0)
    both = [set(wire.api("STREAM.NAMES")["streams"]) for wire in wires]
    assert both[0] == both[1] >= {"E0", "E1", "E2", "E3"}
    for wire in wires:
        assert wire.api("STREAM.CREATE.E9", {"name": "E9", "subjects": ["e0.b"]})["error"]["err_code"] == 10065
        refused = wire.api("STREAM.CREATE.R", {"name": "R", "subjects": ["r"], "num_replicas": 3})
        assert refused["error"]["err_code"] == 10074
    held = [
        list((place / "jetstream" / "$G" / "streams").iterdir())
        for place in (server.store, server.store / "workers" / "1")
    ]
    assert all(len(each) >= 2 for each in held)
    for number in range(4):
        assert wires[number % 2].api(f"STREAM.DELETE.E{number}")["success"]
    for wire in wires:
        assert wire.api("STREAM.INFO.E0")["error"]["err_code"] == 10059


def test_a_stream_takes_messages_from_all_workers_as_soon_as_it_is_created(wires: list[Wire]) -> None:
    for number in range(20):
        name = f"Q{number}"
        wires[number % 2].api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"q{number}"], "storage": "memory"})
        for wire in wires:
            assert wire.request(f"q{number}").status == 0
        wires[0].api(f"STREAM.DELETE.{name}")


def test_monitoring_shows_the_sum_of_the_workers(server: Server, wires: list[Wire]) -> None:
    before = server.page("/varz")
    for number in range(2):
        wires[0].api(f"STREAM.CREATE.M{number}", {"name": f"M{number}", "subjects": [f"m{number}"]})
    for wire in wires:
        wire.subscribe("seen.by.monitoring")
        for number in range(2):
            publish(wire, f"m{number}", b"12345")
    connections = server.page("/connz?subs=1")["connections"]
    assert [each["cid"] for each in connections] == sorted(each["cid"] for each in connections)
    assert {wire.info["client_id"] for wire in wires} <= {each["cid"] for each in connections}
    page = server.page("/varz")
    assert page["in_msgs"] >= before["in_msgs"] + 4
    assert page["connections"] == len(connections)
    assert page["cluster"] == {}
    assert page["routes"] == 0
    jsz = server.page("/jsz?streams=1")
    shown = {stream["name"]: stream["state"]["messages"] for stream in jsz["account_details"][0]["stream_detail"]}
    assert shown["M0"] == shown["M1"] == 2
    assert jsz["streams"] == len(shown)
    found = server.page("/subsz?subs=1&test=seen.by.monitoring")["subscriptions_list"]
    assert len(found) == 2
    assert server.page("/healthz") == {"status": "ok"}
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    [messages] = [line for line in lines if line.startswith("jetstream_server_total_messages{")]
    assert float(messages.rpartition(" ")[2]) == jsz["messages"]


@pytest.mark.heavy
def test_sigterm_stops_all_processes(start_server: StartServer) -> None:
    server = start_server(args=["--workers", "2"])
    workers = pids(server)
    assert len(workers) == 2
    assert server.stop() == 0
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_killed_worker_is_restarted_with_all_that_was_acked(start_server: StartServer) -> None:
    server = start_server(args=["--workers", "2"])
    with ExitStack() as ending:
        wires = one_on_each(server, ending)
        for number in range(2):
            wires[0].api(f"STREAM.CREATE.K{number}", {"name": f"K{number}", "subjects": [f"k{number}"]})
        for _ in range(20):
            for number in range(2):
                publish(wires[1], f"k{number}")
        before = pids(server)
        os.kill(before[0], signal.SIGKILL)
        for number in range(2):
            assert publish(wires[1], f"k{number}") >= 21
        until(lambda: len(pids(server)) == 2 and pids(server) != before, "it is restarted")
        with Wire(server.address, timeout=SOON_S) as wire:
            for number in range(2):
                assert wire.api(f"STREAM.INFO.K{number}")["state"]["messages"] >= 21


@pytest.mark.heavy
def test_workers_end_when_the_supervisor_is_killed(start_server: StartServer) -> None:
    server = start_server(args=["--workers", "2"])
    assert server.process is not None
    workers = pids(server)
    server.process.kill()
    until(lambda: not [pid for pid in workers if Path(f"/proc/{pid}").exists()], "the workers end")


@pytest.mark.heavy
def test_another_number_of_workers_keeps_all_streams(start_server: StartServer) -> None:
    server = start_server(args=[])
    with Wire(server.address) as wire:
        for number in range(6):
            wire.api(f"STREAM.CREATE.N{number}", {"name": f"N{number}", "subjects": [f"n{number}"]})
            publish(wire, f"n{number}")
    for count in (3, 2, 1, 2):
        server.stop()
        server.args = ["--workers", str(count)]
        server.start()
        with Wire(server.address, timeout=SOON_S) as wire:
            assert wire.api("STREAM.NAMES")["streams"] == [f"N{number}" for number in range(6)]
            for number in range(6):
                publish(wire, f"n{number}")
        places = [server.store, *(server.store / "workers" / str(each) for each in range(1, 3))]
        held = [len(list((each / "jetstream" / "$G" / "streams").glob("*"))) for each in places]
        assert held == [6 // count if each < count else 0 for each in range(3)]
    with Wire(server.address) as wire:
        for number in range(6):
            assert wire.api(f"STREAM.INFO.N{number}")["state"]["messages"] == 5


@pytest.mark.heavy
def test_pid_file_and_ports_file_name_the_supervisor(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        args=["--workers", "2", "-P", str(tmp_path / "pid"), "--ports_file_dir", str(tmp_path), "-m", "-1"]
    )
    assert server.process is not None
    ports = server.wait_ports(tmp_path)
    assert ports["nats"] == [f"nats://127.0.0.1:{server.port}"]
    assert ports["monitoring"] == [f"http://127.0.0.1:{server.http_port}"]
    assert (tmp_path / "pid").read_text() == str(server.process.pid)
    server.stop()
    assert not list(tmp_path.glob("*ports")) + list(tmp_path.glob("pid"))


@pytest.mark.heavy
def test_a_reload_reaches_all_workers(start_server: StartServer) -> None:
    server = start_server(config="workers: 2\nmax_payload: 1000")
    server.reload("workers: 2\nmax_payload: 2000")

    def reloaded() -> bool:
        with ExitStack() as ending:
            return [wire.info["max_payload"] for wire in one_on_each(server, ending)] == [2000, 2000]

    until(reloaded, "both workers have the new limit")


@pytest.mark.heavy
def test_max_connections_counts_those_of_all_workers(start_server: StartServer) -> None:
    server = start_server(config="workers: 2\nmax_connections: 4")
    with ExitStack() as ending:
        for _ in range(4):
            wire = Wire(server.address)
            ending.callback(wire.close)
            wire.ping()
        refused = Wire(server.address)
        ending.callback(refused.close)
        assert "maximum connections exceeded" in refused.next(lambda frame: frame.verb == "-ERR").text


@pytest.mark.heavy
def test_workers_refuse_what_they_cannot_serve(tmp_path: Path) -> None:
    config = tmp_path / "conf"
    for text, expected in (
        ('workers: 2\nserver_name: a\ncluster { name: c, listen: "127.0.0.1:-1" }', "cannot be used together"),
        ("workers: 0", 'neither "auto" nor a number from 1 to 64'),
        ("workers: many", 'neither "auto" nor a number from 1 to 64'),
    ):
        config.write_text(text)
        ended = run_to_end(Kind.OURS, "-c", str(config))
        assert ended.returncode == 1
        assert expected in ended.stderr, ended.stderr


@pytest.mark.heavy
def test_in_lame_duck_mode_streams_serve_until_the_last_client_is_gone(start_server: StartServer) -> None:
    server = start_server(config="workers: 2\nlame_duck_duration: 30s\nlame_duck_grace_period: 2s")
    assert server.process is not None
    with ExitStack() as ending:
        wires = one_on_each(server, ending)
        for number in range(2):
            wires[0].api(f"STREAM.CREATE.L{number}", {"name": f"L{number}", "subjects": [f"l{number}"]})
        os.kill(server.process.pid, signal.SIGUSR2)
        for wire in wires:
            until(lambda wire=wire: wire.ping() is not None and wire.infos[-1].get("ldm"), "all clients are told")
            for number in range(2):
                publish(wire, f"l{number}")
        wires[0].until_closed(60)
        wires[1].until_closed(60)
    assert server.process.wait(60) == 0
