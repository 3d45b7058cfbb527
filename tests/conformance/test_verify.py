"""Tests of verification of a running server, through its requests and `lakestream verify`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import until
from tests.servers import Kind, Server, program
from tests.unit.logkit import flip
from tests.wire import Wire

pytestmark = pytest.mark.conformance

CONFIG = """
lake {{ seal_bytes: {seal}, seal_age: 1h }}
jetstream {{ verify_rate: {rate} }}
accounts {{
  A {{ jetstream: enabled, users: [
    {{ user: a, password: p }}
    {{ user: reader, password: p, permissions: {{ publish: "$JS.API.>", subscribe: ">" }} }}
  ] }}
  B {{ jetstream: enabled, users: [{{ user: b, password: p }}] }}
}}
"""
MESSAGES = 300


def server_of(directory: Path, rate: str = "64MB", seal: int = 32 << 10) -> Server:
    server = Server(Kind.OURS, directory / "store", config=CONFIG.format(rate=rate, seal=seal))
    server.start()
    return server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = server_of(tmp_path)
    yield server
    server.kill()


def wire_of(server: Server, user: str = "a") -> Wire:
    return Wire(server.address, {"user": user, "pass": "p"})


def verify(wire: Wire, stream: str = "S", **options: Any) -> dict[str, Any]:
    """Request a verification; return its answer."""
    body = json.dumps(options).encode() if options else b""
    answer: dict[str, Any] = wire.request(f"$LAKE.API.VERIFY.{stream}", body, timeout=60).json()
    return answer


def filled(wire: Wire, name: str = "S", **config: Any) -> None:
    """Create a stream with a few sealed segments."""
    assert "error" not in wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config})
    for number in range(MESSAGES):
        assert wire.request(f"{name}.{number % 7}", b"%d" % number * 200).json()["seq"] == number + 1


def log_of(server: Server, stream: str = "S") -> list[Path]:
    return sorted((server.store / "jetstream/A/streams" / stream / "log").glob("*.seg"))


def command(*arguments: str, user: str = "a") -> tuple[int, str, str]:
    """Run a command of lakestream; return its exit code and output."""
    login = ["--user", user, "--password", "p"]
    run = subprocess.run(
        [program(Kind.OURS)[0], *arguments, *login], capture_output=True, text=True, timeout=120, check=False
    )
    return run.returncode, run.stdout, run.stderr


def test_a_whole_stream_has_no_findings_while_it_is_used(server: Server) -> None:
    with wire_of(server) as wire:
        filled(wire, max_msgs=250)
        wire.api("STREAM.MSG.DELETE.S", {"seq": 70})
        wire.api("STREAM.PURGE.S", {"filter": "S.3"})
        wire.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}})
        reply = wire.new_reply()
        wire.publish("$LAKE.API.VERIFY.S", b"", reply)
        for number in range(200):
            wire.publish("S.4", b"%d" % number * 200)
        answer = wire.message(reply, timeout=60).json()
        assert (answer["ok"], answer["complete"], answer["exact"]) == (True, True, True)
        assert (answer["findings"], answer["repairs"]) == ([], [])
        assert answer["nodes"][0]["bytes"] > 100_000
        assert wire.request("S.0", b"x").json()["seq"] == MESSAGES + 201
    directory = log_of(server)[0].parent.parent
    until(lambda: not list(directory.glob("verifying-*")), "the links are removed")


def test_a_flipped_byte_is_found_with_file_offset_and_remedy(server: Server) -> None:
    with wire_of(server) as wire:
        filled(wire)
        told = wire.subscribe("$JS.EVENT.ADVISORY.STREAM.DAMAGED.S")
        wire.ping()
        path = log_of(server)[1]
        flip(str(path), 5000)
        answer = verify(wire, lake=False)
        assert not answer["ok"]
        (finding,) = answer["findings"]
        place = f"jetstream/A/streams/S/log/{path.name}"
        expected = {"kind": "frame", "stream": "S", "account": "A", "node": "under-test", "file": place}
        assert expected.items() <= finding.items()
        assert 0 < finding["offset"] <= 5000
        assert str(server.store) not in json.dumps(answer)
        advisory = wire.delivered(told).json()
        assert (advisory["file"], advisory["replicated"]) == (path.name, False)
    until(lambda: server.logged("damaged at offset"), "the log names it")


@pytest.mark.heavy
def test_the_command_shows_findings_of_all_streams_and_their_remedy(server: Server) -> None:
    with wire_of(server) as wire:
        filled(wire)
        filled(wire, "T")
    path = log_of(server)[1]
    flip(str(path), 5000)
    place = f"jetstream/A/streams/S/log/{path.name}"
    code, out, _ = command("verify", server.url, "S", "--no-lake", "--json")
    assert code == 1
    assert json.loads(out)["streams"][0]["findings"][0]["file"] == place
    code, out, _ = command("verify", server.url, "--no-lake")
    assert (code, f"under-test: {place}:" in out, "→ " in out, "2 streams, " in out) == (1, True, True, True)
    code, out, _ = command("repair", server.url, "--stream", "T", "--no-lake", "--yes")
    assert (code, "0 damaged" in out) == (0, True)


def test_a_damaged_checkpoint_is_found_and_written_again(server: Server) -> None:
    with wire_of(server) as wire:
        filled(wire)
    server.stop()
    server.start()
    with wire_of(server) as wire:
        checkpoint = server.store / "jetstream/A/streams/S/checkpoint"
        flip(str(checkpoint), checkpoint.stat().st_size // 2)
        damaged = checkpoint.read_bytes()
        (finding,) = [each for each in verify(wire, lake=False)["findings"] if each["kind"] == "checkpoint"]
        assert (finding["file"], finding["repair"]) == ("jetstream/A/streams/S/checkpoint", "checkpoint")
        until(lambda: checkpoint.read_bytes() != damaged, "the checkpoint is written again")
        assert verify(wire, lake=False)["ok"]


def test_only_who_may_publish_to_the_subject_verifies_and_only_its_own_account(server: Server) -> None:
    with wire_of(server) as wire:
        filled(wire)
    with wire_of(server, "reader") as wire:
        wire.publish("$LAKE.API.VERIFY.S", b"", wire.new_reply())
        told = wire.ping()
        assert any("Permissions Violation for Publish" in str(frame) for frame in told)
    with wire_of(server, "b") as wire:
        assert verify(wire)["error"]["err_code"] == 10059


def test_a_stream_that_is_being_verified_is_busy(tmp_path: Path) -> None:
    server = server_of(tmp_path, rate="100KB")
    try:
        with wire_of(server) as wire, wire_of(server) as other:
            filled(wire)
            filled(wire, "T")
            reply = wire.new_reply()
            wire.publish("$LAKE.API.VERIFY.S", b'{"progress": true}', reply)
            progress = wire.message(reply, timeout=30).json()
            assert 0 <= progress["nodes"]["under-test"]["bytes"] < progress["nodes"]["under-test"]["total"]
            assert "is being verified already" in verify(other, "S")["error"]["description"]
            assert "max_verifications" in verify(other, "T")["error"]["description"]
            assert verify(other, "NONE")["error"]["err_code"] == 10059
            assert verify(other, rows=1)["error"]["code"] == 400
            wire.close()
            until(lambda: "error" not in verify(other, "T", lake=False), "nobody waits for it any more", 60)
    finally:
        server.kill()


@pytest.mark.heavy
def test_memory_streams_and_missing_servers_are_not_verified(server: Server) -> None:
    with wire_of(server) as wire:
        wire.api("STREAM.CREATE.M", {"name": "M", "subjects": ["m"], "storage": "memory"})
        assert "memory storage" in verify(wire, "M")["error"]["description"]
        filled(wire)
    code, out, err = command("verify", server.url, "S", "M", "--no-lake")
    assert (code, "M is not verified" in err, "0 damaged" in out) == (2, True, True)
    assert command("verify", "nats://127.0.0.1:1")[0] == 2
    code, _, err = command("verify", server.url, "S", user="reader")
    assert (code, "S is not verified" in err, "permissions violation" in err.lower()) == (2, True, True)


def resident(server: Server) -> int:
    """Return the bytes of memory that the server's process holds."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


@pytest.mark.heavy
def test_a_large_stream_is_verified_within_the_memory_of_a_few_segments(tmp_path: Path) -> None:
    count, segment = 100_000, 4 << 20
    server = server_of(tmp_path, rate="0", seal=segment)
    try:
        with wire_of(server) as wire, wire_of(server) as other:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"]})
            for number in range(count):
                wire.publish(f"S.{number % 100}", b"%1000d" % number)
                if number % 1000 == 999:
                    wire.ping(timeout=60)
            until(lambda: wire.api("STREAM.INFO.S")["state"]["messages"] == count, "everything is stored", 120)
            assert verify(other, lake=False)["ok"]  # imports the checks
            before = peak = resident(server)
            reply = wire.new_reply()
            wire.publish("$LAKE.API.VERIFY.S", b'{"lake": false, "progress": true}', reply)
            answer: dict[str, Any] = {}
            while not answer.get("done"):
                answer = wire.message(reply, timeout=60).json()
                peak = max(peak, resident(server))
            assert (answer["ok"], answer["nodes"][0]["bytes"] > count * 1000) == (True, True)
            assert peak - before < 12 * segment, f"{(peak - before) >> 20} MiB more"
    finally:
        server.kill()
