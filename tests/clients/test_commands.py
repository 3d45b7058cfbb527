"""Tests of the commands that look at a running server and measure it, by their command lines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import nursery
from tests.certificates import PLACE
from tests.keys import Operator
from tests.servers import Kind, Server
from tests.terminal import COLOUR, Terminal
from tests.wire import Wire

pytestmark = pytest.mark.conformance

PROGRAM = [sys.executable, "-m", "lakestream.cli.main"]
DEAD = "http://127.0.0.1:9"
TLS = f'tls {{ cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key" }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a stream of ten messages, and a consumer that got none of them."""
    server = Server(Kind.OURS, tmp_path_factory.mktemp("commands") / "store", args=["-m", "-1"])
    server.start()
    with Wire(server.address) as wire:
        assert "error" not in wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        for number in range(10):
            wire.request(f"orders.{number}", b"x" * 100)
        config = {"durable_name": "slow", "ack_policy": "explicit"}
        made = wire.api("CONSUMER.DURABLE.CREATE.ORDERS.slow", {"stream_name": "ORDERS", "config": config})
        assert "error" not in made
    yield server
    server.kill()


def monitor(server: Server) -> str:
    return f"http://127.0.0.1:{server.http_port}"


def run(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return nursery.run(arguments, {**os.environ, **environ}, directory=cwd, timeout=180)


def answer(*arguments: str) -> Any:
    """Return the JSON of a command that succeeds."""
    done = run(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_status_shows_a_server_on_one_screen_without_colours_in_a_pipe(server: Server) -> None:
    done = run("status", "--monitor", monitor(server))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert re.search(r"^server +under-test  lakestream .* healthy *$", done.stdout, re.MULTILINE)
    assert re.search(r"^ *ORDERS +10 .* 1 +10 +10 ", done.stdout, re.MULTILINE)
    assert "no compactor is running on the lake: start `lakestream compact`" in done.stdout
    assert len(done.stdout.splitlines()) < 24


def test_status_as_json_has_what_the_screen_has(server: Server) -> None:
    found = answer("status", "--monitor", monitor(server))
    assert (found["healthy"], found["jetstream"], found["lake"]["compactor"]) == (True, True, False)
    [stream] = found["streams"]
    assert (stream["name"], stream["messages"], stream["lag"]) == ("ORDERS", 10, 10)
    [consumer] = stream["consumers"]
    assert (consumer["name"], consumer["pending"]) == ("slow", 10)
    assert found["warnings"]


def test_without_a_monitoring_port_a_command_says_how_to_get_one() -> None:
    for command in ("status", "top"):
        done = run(command, "--monitor", DEAD)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"lakestream: no answer from \S+: .*-m 8222.*--monitor\n", done.stderr)


def test_the_port_of_clients_is_no_monitoring_port(server: Server) -> None:
    done = run("status", "--monitor", f"http://127.0.0.1:{server.port}")
    assert done.returncode == 1
    assert done.stderr.startswith("lakestream: ")
    assert "Traceback" not in done.stderr


def test_top_measures_rates_between_two_looks(server: Server) -> None:
    command = [*PROGRAM, "top", "--monitor", monitor(server), "--once", "--json", "-i", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top, Wire(server.address) as wire:
        assert "error" not in wire.api("STREAM.CREATE.BUSY", {"name": "BUSY", "subjects": ["busy"]})
        while top.poll() is None:
            wire.request("busy", b"x")
        assert top.stdout is not None
        found = json.load(top.stdout)
        wire.api("STREAM.DELETE.BUSY")
    rows = {row["title"]: row for row in found["streams"]}
    assert rows["ORDERS"]["rate"] == 0
    assert rows["ORDERS"]["messages"] == 10
    assert [row["pending"] for row in found["consumers"] if row["consumer"] == "slow"] == [10]
    assert found["server"]["in_msgs_rate"] > 0
    assert found["connections"]


def test_top_is_live_in_a_terminal_and_obeys_keys(server: Server) -> None:
    command = [*PROGRAM, "top", "--monitor", monitor(server), "-i", "0.2"]
    with Terminal(command) as terminal:
        terminal.read_until("ORDERS")
        terminal.read_until("q quit")
        terminal.type("2")
        terminal.read_until("ORDERS > slow")
        terminal.type("3")
        terminal.read_until("3 connections")
        terminal.type("1")
        terminal.type("s")
        terminal.read_until("bytes/s v")
        terminal.type("r")
        terminal.read_until("bytes/s ^")
        assert terminal.mode != terminal.before
        terminal.type("q")
        assert terminal.wait() == 0
        assert COLOUR.search(terminal.shown)
        assert terminal.shown.rstrip().endswith(("\x1b[?25h", "\x1b[?1049l"))  # the screen and the cursor are back
        assert terminal.mode == terminal.before


def test_ctrl_c_ends_top_and_leaves_the_terminal_as_it_was(server: Server) -> None:
    with Terminal([*PROGRAM, "top", "--monitor", monitor(server)], {"NO_COLOR": "1"}) as terminal:
        terminal.read_until("ORDERS")
        terminal.interrupt()
        assert terminal.wait() == 130
        assert terminal.mode == terminal.before
        assert not COLOUR.search(terminal.shown)
        assert "Traceback" not in terminal.text


def test_status_has_colours_in_a_terminal_unless_no_color_is_set(server: Server) -> None:
    command = [*PROGRAM, "status", "--monitor", monitor(server)]
    with Terminal(command) as terminal:
        assert terminal.wait() == 0
        assert COLOUR.search(terminal.shown)
    with Terminal(command, {"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert "healthy" in terminal.text
        assert "\x1b[" not in terminal.shown


def streams(server: Server) -> list[str]:
    with Wire(server.address) as wire:
        return [each for each in wire.api("STREAM.NAMES").get("streams") or [] if each not in ("ORDERS", "BUSY")]


def test_bench_counts_every_message_and_removes_its_stream(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "bench.svg"
    options = ("--messages", "300", "--clients", "2", "--size", "64", "--svg", str(file))
    found = answer("bench", "js", "--server", server.url, *options)
    [result] = found["results"]
    assert (result["messages"], result["clients"], result["size"], result["errors"]) == (300, 2, 64, 0)
    assert 0 < result["p50"] <= result["p99"] <= result["longest"]
    assert sum(result["samples"]) * result["sample_seconds"] == pytest.approx(300)
    assert streams(server) == []
    drawn = xml.etree.ElementTree.parse(file).getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 1


def published(wire: Wire, names: list[str]) -> int:
    """Return the number of messages in some streams; one that is just being made counts 0."""
    answers = [wire.api(f"STREAM.INFO.{name}") for name in names]
    return sum(answer["state"]["messages"] for answer in answers if "state" in answer)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [Kind.OURS, Kind.REAL])
def test_bench_runs_every_workload_on_any_nats_server(kind: Kind, tmp_path: Path) -> None:
    server = Server(kind, tmp_path / "store").start()
    try:
        done = run("bench", "--server", server.url, "--duration", "1", "--size", "32", "--clients", "2")
        assert (done.returncode, done.stderr) == (0, "")
        for workload in ("publish", "js", "consume", "kv", "request"):
            row = re.search(rf"^ *{workload} +2 +32 B +([\d,]+) +([\d.]+) ", done.stdout, re.MULTILINE)
            assert row is not None, done.stdout
            assert int(row[1].replace(",", "")) > 0
            assert f"{workload}, messages/s over time" in done.stdout
        assert "\x1b" not in done.stdout
        assert streams(server) == []
    finally:
        server.kill()


@pytest.mark.heavy
def test_status_and_top_show_a_nats_server(tmp_path: Path) -> None:
    server = Server(Kind.REAL, tmp_path / "store", args=["-m", "-1"]).start()
    try:
        with Wire(server.address) as wire:
            assert "error" not in wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            wire.request("s", b"x")
        done = run("status", "--monitor", monitor(server))
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(r"^server +under-test  nats-server \S+  up .* healthy *$", done.stdout, re.MULTILINE)
        assert re.search(r"^ *S +1 ", done.stdout, re.MULTILINE)
        found = answer("top", "--monitor", monitor(server), "--once", "-i", "0.2")
        assert [(row["title"], row["messages"], row["lag"]) for row in found["streams"]] == [("S", 1, None)]
    finally:
        server.kill()


def test_ctrl_c_ends_a_bench_and_removes_its_stream(server: Server) -> None:
    command = [*PROGRAM, "bench", "js", "--server", server.url, "--duration", "60"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as bench, Wire(server.address) as wire:
        while not published(wire, streams(server)):
            assert bench.poll() is None
            time.sleep(0.02)
        bench.send_signal(signal.SIGINT)
        _, said = bench.communicate(timeout=30)
    assert bench.returncode == 130
    assert said == "stopped; the streams of the bench were removed\n"
    assert streams(server) == []


def test_bench_says_what_keeps_it_from_running(server: Server) -> None:
    done = run("bench", "publish", "--server", "nats://127.0.0.1:9")
    assert done.returncode == 1
    assert re.fullmatch(
        r"lakestream: cannot connect to nats://127.0.0.1:9: .*name the server with --server\n", done.stderr
    )
    done = run("bench", "fly", "--server", server.url)
    assert done.returncode == 2
    assert "choose from publish, js, consume, kv, request" in done.stderr


def test_bench_and_transfers_log_in_with_user_and_password(tmp_path: Path) -> None:
    config = "authorization { user: ann, password: hush-hush }"
    server = Server(Kind.OURS, tmp_path / "store", config=config, jetstream=False).start()
    try:
        command = ("bench", "publish", "--server", server.url, "--messages", "10")
        assert run(*command, "--user", "ann", "--password", "hush-hush").returncode == 0
        refused = run(*command, "--user", "ann", "--password", "wrong-one")
        assert refused.returncode == 1
        assert "wrong-one" not in refused.stderr + refused.stdout
        refused = run("export", "ORDERS", "--to", str(tmp_path / "x.csv"), "--server", server.url, NATS_USER="ann")
        assert refused.returncode == 1
    finally:
        server.kill()


def test_over_https_the_authority_of_the_certificate_is_named(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store", config=TLS, args=["-ms", "-1"]).start()
    try:
        address, authority = f"https://127.0.0.1:{server.http_port}", str(server.certificates / "ca.pem")
        assert answer("status", "--monitor", address, "--tlsca", authority)["healthy"]
        assert answer("top", "--once", "-i", "0.2", "--monitor", address, "--tlsca", authority)["server"]
        config = tmp_path / "nats.conf"
        config.write_text(f"{TLS.replace(PLACE, str(server.certificates))}\nhttps: 127.0.0.1:{server.http_port}")
        checks = json.loads(run("doctor", "-c", str(config), "--tlsca", authority, "--json", cwd=tmp_path).stdout)
        assert [each["level"] for each in checks["findings"] if each["check"] == "server"] == ["ok"]
        for command in ("status", "top"):
            done = run(command, "--monitor", address)
            assert (done.returncode, done.stdout) == (1, "")
            assert re.fullmatch(r"lakestream: .*certificate.*--tlsca\S*.*\n", done.stderr)
            done = run(command, "--monitor", address, "--tlsca", str(tmp_path / "none.pem"))
            assert (done.returncode, done.stdout) == (1, "")
            assert re.fullmatch(r"lakestream: --tlsca \S+none.pem: .*\n", done.stderr)
    finally:
        server.kill()


@pytest.mark.heavy
def test_commands_log_in_with_a_credentials_file_over_tls(tmp_path: Path) -> None:
    operator = Operator()
    server = Server(Kind.OURS, tmp_path / "store", config=f"{TLS}\n{operator.config}").start()
    try:
        file, authority = tmp_path / "user.creds", str(server.certificates / "ca.pem")
        file.write_text(operator.credentials)
        command = ("bench", "js", "--server", f"tls://127.0.0.1:{server.port}", "--messages", "10")
        [result] = answer(*command, "--creds", str(file), "--tlsca", authority)["results"]
        assert result["messages"] == 10
        rows, login = tmp_path / "rows.csv", (*command[2:4], "--creds", str(file), "--tlsca", authority)
        rows.write_text("id,name\n1,one\n2,two\n")
        taken = run(
            "import", str(rows), "--stream", "ROWS", "--subject", "rows.{id}", "--create", *command[2:4], *login
        )
        assert (taken.returncode, taken.stderr) == (0, "")
        given = run("export", "ROWS", "--to", str(tmp_path / "given.csv"), *login)
        assert (given.returncode, given.stderr) == (0, "")
        assert "rows.2" in (tmp_path / "given.csv").read_text()
        for options in (("--creds", str(file)), ("--tlsca", authority)):
            done = run(*command, *options)
            assert (done.returncode, done.stdout) == (1, "")
            assert re.fullmatch(r"lakestream: .*\n", done.stderr)
    finally:
        server.kill()
