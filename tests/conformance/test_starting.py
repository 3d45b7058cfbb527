"""Tests of starting, watching and stopping a server in ways that tools rely on. Runs against either program."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import Kind, Server, program, run_to_end
from tests.unit.native.test_native import changed_sources
from tests.wire import Wire

pytestmark = pytest.mark.conformance

StartServer = Callable[..., Server]


def wait_for(what: Callable[[], object], timeout: float = 10.0) -> object:
    """Poll until `what` is true, for files and log lines, which cause no event."""
    deadline = time.monotonic() + timeout
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def test_log_lines_that_tools_wait_for(start_server: StartServer) -> None:
    server = start_server()
    lines = [line for line in server.log().splitlines() if not line.startswith("---")]
    pid = server.process.pid if server.process else 0
    assert all(line.startswith(f"[{pid}] 20") for line in lines), lines
    texts = [line.partition("[INF]")[2].strip() for line in lines]
    assert texts[0].startswith("Starting ")
    assert "Starting JetStream" in texts
    listening = texts.index(f"Listening for client connections on 127.0.0.1:{server.port}")
    assert texts.index("Server is ready") > listening


def test_a_server_whose_compiled_module_is_of_other_sources_says_what_to_do(tmp_path: Path) -> None:
    """Such as in a clone behind a pull. lakestream alone."""
    changed_sources(tmp_path)
    command = [sys.executable, "-m", "lakestream", "serve", "-p", "-1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        warned = next((line for line in process.stderr if "[WRN]" in line), "")
        process.kill()
    assert "The compiled module does not serve" in warned
    assert "run `make setup` in a clone, else install lakestream again" in warned


def test_a_ready_server_answers(start_server: StartServer) -> None:
    with Wire(start_server().address) as client:
        client.ping()


def test_ports_file_and_pid_file(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(args=["--ports_file_dir", str(tmp_path), "-P", str(tmp_path / "x.pid"), "-m", "-1"])
    assert server.process is not None
    path = tmp_path / f"nats-server_{server.process.pid}.ports"
    wait_for(path.exists)  # nats-server writes it after "ready"
    ports = json.loads(path.read_text())
    assert ports == {"nats": [server.url], "monitoring": [f"http://127.0.0.1:{server.http_port}"]}
    assert (tmp_path / "x.pid").read_text() == str(server.process.pid)
    server.stop()
    assert not path.exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(start_server: StartServer, how: signal.Signals) -> None:
    server = start_server()
    with Wire(server.address) as client:
        client.ping()
        assert server.stop(how) in (0, 1)
    assert "Server Exiting.." in server.log()


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.heavy), signal.SIGTERM])
@pytest.mark.parametrize(
    "after", ["Starting ", "Starting JetStream", "to start JetStream", "Listening for client", "Server is ready"]
)
def test_a_signal_during_the_start_stops_it_cleanly(
    kind: Kind, tmp_path: Path, after: str, how: signal.Signals
) -> None:
    command = [*program(kind), "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path)]
    for _ in range(3):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if after in line:
                    break
            process.send_signal(how)
            rest = process.stderr.read()
            assert process.wait(10) == 0
        assert rest.splitlines()[-1].endswith("Server Exiting..")
        assert "Traceback" not in rest


def test_a_reload_during_the_start_does_not_end_it(kind: Kind, tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("debug: false\n")
    command = [*program(kind), "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path), "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Starting JetStream" in line:
                process.send_signal(signal.SIGHUP)
            if "Server is ready" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(10) == 0


def test_stopping_with_a_held_monitoring_connection_says_nothing_odd(start_server: StartServer) -> None:
    server = start_server(args=["-m", "-1"])
    with socket.create_connection((server.host, server.http_port)) as held:
        held.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in held.recv(4096)
        server.stop()
    assert "Traceback" not in server.log()


def test_sl_sends_the_signal(kind: Kind, start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(args=["-P", str(tmp_path / "x.pid")])
    assert run_to_end(kind, "-sl", f"term={tmp_path / 'x.pid'}").returncode == 0
    assert server.process is not None
    assert server.process.wait(20) in (0, 1)


def test_reload_changes_what_it_may_and_refuses_the_rest(start_server: StartServer) -> None:
    # With the name: nats-server takes its absence from the file for a change of the flag's value.
    server = start_server(config="server_name: under-test\nmax_payload: 1000\n", port=-1)
    assert server.process is not None
    config = server.store.parent / f"{server.store.name}.conf"
    config.write_text("server_name: under-test\nmax_payload: 2000\n")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "Reloaded server configuration" in server.log())
    with Wire(server.address) as client:
        assert client.info["max_payload"] == 2000
    config.write_text("max_payload: [")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "[ERR] Failed to reload server configuration" in server.log())
    with Wire(server.address) as client:
        assert client.info["max_payload"] == 2000


def test_lame_duck_mode_tells_clients_and_takes_no_new_ones(start_server: StartServer) -> None:
    server = start_server(config="lame_duck_duration: '30s'\nlame_duck_grace_period: '20s'\n", args=["-m", "-1"])
    assert server.process is not None
    with Wire(server.address) as client:
        client.ping()
        server.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: "Entering lame duck mode" in server.log())
        client.ping()
        assert client.infos[-1]["ldm"] is True
        with pytest.raises(OSError, match=r"refused"):
            socket.create_connection(server.address, timeout=5)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{server.host}:{server.http_port}/healthz")
    assert caught.value.code == 500


def test_a_log_file_is_reopened_after_rotation(kind: Kind, tmp_path: Path) -> None:
    log, moved, ports = tmp_path / "server.log", tmp_path / "moved.log", tmp_path / "ports"
    ports.mkdir()
    command = [*program(kind), "-a", "127.0.0.1", "-p", "-1", "-l", str(log), "--ports_file_dir", str(ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            wait_for(lambda: list(ports.glob("*.ports")))
            log.rename(moved)
            process.send_signal(signal.SIGUSR1)
            wait_for(lambda: log.exists() and "File log re-opened" in log.read_text())
        finally:
            process.terminate()
        assert process.communicate()[0] == b"", "with a log file nothing goes to stderr"
    assert "Server is ready" in moved.read_text()
    assert "Server Exiting.." in log.read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-t"], ["-c, --config"]),
        (["-sl", "foo=1"], ["foo"]),
        (["-l", "/nowhere/x.log"], ["/nowhere/x.log", "o such file"]),
    ],
)
def test_a_start_that_cannot_be_is_told_on_stderr_with_exit_1(kind: Kind, flags: list[str], words: list[str]) -> None:
    done = run_to_end(kind, *flags)
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_monitoring_port_is_fatal(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_to_end(kind, "-a", "127.0.0.1", "-p", "-1", "-m", port)
    assert done.returncode == 1
    assert "[FTL]" in done.stderr
    assert port in done.stderr
    assert "ddress already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_t_checks_a_file(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text("port: 4222\njetstream { max_mem: 1G }")
    done = run_to_end(kind, "-t", "-c", str(path))
    assert done.returncode == 0
    assert f"configuration file {path} is valid (sha256:" in done.stderr
    path.write_text("port: 4222\njetstrem {}")
    done = run_to_end(kind, "-t", "-c", str(path))
    assert done.returncode == 1
    assert f"{path}:2:" in done.stderr
    assert 'unknown field "jetstrem"' in done.stderr


def test_lame_duck_mode_without_clients_ends_at_once(start_server: StartServer) -> None:
    server = start_server()
    assert server.stop(signal.SIGUSR2) in (0, 1)
