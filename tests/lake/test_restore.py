"""Tests of `lakestream restore --as-of` against a running server, by its command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakestream.cli.app import app
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.lake


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store")
    server.start()
    yield server
    server.kill()


def run(server: Server, *arguments: str) -> Result:
    lake = str(server.store / "lake")
    return CliRunner().invoke(
        app, ["restore", *arguments, "--lake", lake, "--server", server.url], catch_exceptions=False
    )


def held(wire: Wire, stream: str) -> list[Any]:
    """Return every message of a stream, as answered by MSG.GET."""
    last = wire.api(f"STREAM.INFO.{stream}")["state"]["last_seq"]
    answers = [wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq}) for seq in range(1, last + 1)]
    return [answer["message"] for answer in answers if "message" in answer]


def filled(wire: Wire) -> tuple[list[Any], str]:
    """Fill a stream with gaps and headers; return its content at a time, and that time. Later messages follow."""
    answer = wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], "metadata": {"a": "b"}})
    assert "error" not in answer
    for number in range(20):
        wire.request(f"s.{number % 3}", b"%d" % number, {"N": str(number), "n": " x"} if number % 4 == 0 else None)
    for seq in (1, 2, 7, 20):
        wire.api("STREAM.MSG.DELETE.S", {"seq": seq})
    then = held(wire, "S")
    for number in range(5):
        wire.request("s.9", b"later %d" % number)
    return then, str(then[-1]["time"])


def test_ctrl_c_ends_a_restore_without_a_trace_and_it_can_be_repeated(server: Server) -> None:
    """SIGINT comes while chunks are on their way: another subscription sees the first of them."""
    payloads = [os.urandom(64 << 10) for _ in range(200)]  # 12 MiB that do not compress
    with Wire(server.address) as wire:
        assert "error" not in wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for payload in payloads:
            last = wire.request("s", payload).json()
        then, at = held(wire, "S"), wire.api("STREAM.MSG.GET.S", {"seq": last["seq"]})["message"]["time"]
        options = ["--stream", "S", "--as-of", at, "--to", "OLD"]
        place = ["--lake", str(server.store / "lake"), "--server", server.url]
        command = [sys.executable, "-m", "lakestream.cli.main", "restore", *options, *place]
        chunks = wire.subscribe("$JS.SNAPSHOT.RESTORE.OLD.>")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            wire.delivered(chunks, timeout=30)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, "", "interrupted; nothing was restored\n")
    with Wire(server.address) as wire:
        assert wire.api("STREAM.INFO.OLD")["error"]["err_code"] == 10059
        result = run(server, *options, "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["messages"] == len(payloads)
        assert [{**each, "subject": "s"} for each in held(wire, "OLD")] == then


def test_a_stream_comes_back_under_another_name(server: Server) -> None:
    with Wire(server.address) as wire:
        then, at = filled(wire)
        result = run(server, "--stream", "S", "--as-of", at, "--to", "OLD")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("OLD: 16 messages of S as of ")
        assert held(wire, "OLD") == then
        info = wire.api("STREAM.INFO.OLD")
        assert (info["state"]["first_seq"], info["state"]["last_seq"]) == (3, 19)
        assert info["config"]["subjects"] == ["OLD"]
        assert info["config"]["metadata"]["a"] == "b"
        assert wire.request("OLD", b"goes on").json()["seq"] == 20
        assert len(held(wire, "S")) == 21


def test_limits_hold_or_are_left_out(server: Server) -> None:
    with Wire(server.address) as wire:
        then, at = filled(wire)
        config = wire.api("STREAM.INFO.S")["config"]
        assert "error" not in wire.api("STREAM.UPDATE.S", {**config, "max_msgs_per_subject": 30})
        arguments = ("--stream", "S", "--as-of", at, "--subject", "old.>")
        assert run(server, *arguments, "--to", "ONE").exit_code == 0
        assert run(server, *arguments[:4], "--to", "TWO", "--unlimited", "--subject", "x.>").exit_code == 0
        assert held(wire, "ONE") == held(wire, "TWO") == then
        one, two = (wire.api(f"STREAM.INFO.{name}")["config"] for name in ("ONE", "TWO"))
        assert (one["max_msgs_per_subject"], two["max_msgs_per_subject"]) == (30, -1)
        assert (one["subjects"], two["subjects"]) == (["old.>"], ["x.>"])


def test_what_can_not_be_restored_is_refused_with_the_reason(server: Server) -> None:
    with Wire(server.address) as wire:
        filled(wire)
        for arguments, reason in (
            (("--stream", "S", "--as-of", "2026-01-01"), "exists; name another with --to"),
            (("--stream", "S", "--as-of", "1990-01-01", "--to", "OLD"), "held no message at 1990"),
            (("--stream", "S", "--as-of", "someday", "--to", "OLD"), "cannot read 'someday' as a time"),
            (("--stream", "NONE", "--as-of", "2026-01-01", "--to", "OLD"), "there is no stream NONE"),
            (("--stream", "S", "--as-of", "2100-01-01", "--to", "OLD", "--subject", "s.1"), "overlap"),
        ):
            result = run(server, *arguments)
            assert result.exit_code == 1
            assert result.stderr.startswith("lakestream: "), result.stderr
            assert reason in result.stderr
        assert wire.api("STREAM.NAMES")["streams"] == ["S"]
