"""Tests of `lakestream doctor` and `lakestream config`, by their command lines."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import nursery
from tests.certificates import Authority
from tests.s3_server import S3Server
from tests.servers import Kind, Server

pytestmark = pytest.mark.conformance

NO_SERVER = "http://127.0.0.1:9"


def run(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    if not environ:
        return nursery.run(arguments, directory=cwd, timeout=180)
    command = [sys.executable, "-m", "lakestream.cli.main", *arguments]  # some are read when modules are loaded
    environment = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180, env=environment, cwd=cwd)


class Findings:
    """The findings of `doctor --json`, by check."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.stderr == ""
        self.code = done.returncode
        self.all: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        assert json.loads(done.stdout)["ok"] == (self.code == 0)
        assert self.code == (1 if any(each["level"] == "fail" for each in self.all) else 0)

    def level(self, check: str) -> str:
        """Return the worst level of a check."""
        levels = [each["level"] for each in self.all if each["check"] == check]
        assert levels, f"no finding of {check}: {self.all}"
        return max(levels, key=["ok", "warn", "fail"].index)

    def one(self, check: str, level: str) -> dict[str, Any]:
        """Return the only finding of a check at a level."""
        (found,) = [each for each in self.all if (each["check"], each["level"]) == (check, level)]
        return found


def doctor(*arguments: str, cwd: Path | None = None, **environ: str) -> Findings:
    return Findings(run("doctor", "--json", *arguments, cwd=cwd, **environ))


@pytest.fixture
def taken() -> Iterator[int]:
    """Yield a port that this process listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_sound_machine_has_no_failure_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = doctor("-sd", str(tmp_path / "store"), "-c", _conf(tmp_path, "port: -1"), cwd=tmp_path)
    checks = {each["check"] for each in found.all}
    assert {
        "configuration",
        "python",
        "native",
        "extras",
        "java",
        "jars",
        "lake",
        "clock",
        "fsync",
        "disk",
        "files",
    } <= checks
    assert "fail" not in {found.level(check) for check in ("configuration", "lake", "fsync", "disk", "files")}
    sync = next(each for each in found.all if each["check"] == "fsync")
    assert sync["data"]["acks_per_second"] == pytest.approx(1 / sync["data"]["median_seconds"], rel=0.05, abs=1)
    assert "acks/s one after the other" in sync["text"] or sync["level"] == "warn"
    assert "write, link and rename work" in found.one("lake", "ok")["text"]
    assert all(each["remedy"] for each in found.all if each["level"] != "ok")
    assert [each.name for each in tmp_path.iterdir()] == ["nats.conf"]


def test_it_says_whether_the_compiled_module_serves(tmp_path: Path) -> None:
    conf = _conf(tmp_path, "port: -1")
    assert "serves" in doctor("-c", conf, cwd=tmp_path, LAKESTREAM_NATIVE="").one("native", "ok")["text"]
    found = doctor("-c", conf, cwd=tmp_path, LAKESTREAM_NATIVE="off").one("native", "warn")
    assert "LAKESTREAM_NATIVE=off" in found["text"]


def _conf(tmp_path: Path, text: str) -> str:
    (tmp_path / "nats.conf").write_text(text)
    return str(tmp_path / "nats.conf")


def test_the_screen_says_what_to_do_and_how_many_checks_failed(tmp_path: Path, taken: int) -> None:
    done = run("doctor", "-c", _conf(tmp_path, f"listen: 127.0.0.1:{taken}\nlog_sise: 5"), cwd=tmp_path)
    assert done.returncode == 1
    assert "fail  configuration" in done.stdout
    assert 'unknown field "log_sise"' in done.stdout
    assert "→ correct these lines of the file" in done.stdout
    assert "\x1b" not in done.stdout
    assert "1 failures" in done.stdout


def test_a_port_that_another_program_has_is_a_failure_with_its_name(tmp_path: Path, taken: int) -> None:
    found = doctor("-c", _conf(tmp_path, f"listen: 127.0.0.1:{taken}"), cwd=tmp_path)
    wrong = found.one("ports", "fail")
    assert f"by process {os.getpid()} (" in wrong["text"]
    assert wrong["remedy"].startswith("stop that program, or choose another port")
    assert found.code == 1


def test_an_address_of_another_machine_is_a_failure(tmp_path: Path) -> None:
    found = doctor("-c", _conf(tmp_path, "listen: 203.0.113.7:4222"), cwd=tmp_path)
    assert found.one("ports", "fail")["remedy"] == "choose an address of this machine, or 0.0.0.0"


def test_a_running_server_is_recognised_and_looked_at(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store", args=["-m", "-1"], forked=False).start()
    try:
        config = _conf(tmp_path, f"listen: 127.0.0.1:{server.port}\nhttp: 127.0.0.1:{server.http_port}")
        found = doctor("-c", config, "-sd", str(tmp_path / "store"))
        assert found.level("ports") == "ok"
        assert "is that of a running server" in next(each for each in found.all if each["check"] == "ports")["text"]
        assert "is healthy" in found.one("server", "ok")["text"]
        assert abs(found.one("clock of the server", "ok")["data"]["skew_seconds"]) < 1
    finally:
        server.kill()
    assert doctor("-sd", str(tmp_path / "store"), "--monitor", NO_SERVER).level("server") == "fail"


def test_without_arguments_it_examines_the_store_of_the_running_server(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store", args=["-m", "-1"]).start()
    (tmp_path / "elsewhere").mkdir()
    try:
        found = doctor("--monitor", f"http://127.0.0.1:{server.http_port}", cwd=tmp_path / "elsewhere")
    finally:
        server.kill()
    assert f" in {tmp_path / 'store'}: " in found.one("fsync", "ok")["text"]
    assert str(tmp_path / "store" / "lake") in found.one("lake", "ok")["text"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_certificates_that_expire_are_found(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    authority.issue("good", days=(-1, 365))
    authority.issue("soon", days=(-1, 10))
    authority.issue("gone", days=(-20, -2))

    def levels(name: str) -> str:
        config = f"port: -1\ntls {{ cert_file: '{tmp_path}/{name}.pem', key_file: '{tmp_path}/{name}.key' }}"
        return doctor("-c", _conf(tmp_path, config)).level("tls")

    assert [levels(name) for name in ("good", "soon", "gone")] == ["ok", "warn", "fail"]


def test_without_java_the_remedy_is_an_installation(tmp_path: Path) -> None:
    found = doctor("-sd", str(tmp_path), PATH="/nowhere", JAVA_HOME="")
    wrong = found.one("java", "fail")
    assert "install a JDK" in wrong["remedy"]
    assert found.code == 1


def test_a_store_below_a_file_fails(tmp_path: Path) -> None:
    """Root may write to any directory, but not below a file."""
    (tmp_path / "file").touch()
    found = doctor("-c", _conf(tmp_path, "port: -1"), "-sd", str(tmp_path / "file" / "store"))
    assert (found.level("fsync"), found.code) == ("fail", 1)
    assert "is not a directory" in found.one("fsync", "fail")["text"]


@pytest.mark.heavy
def test_an_object_store_is_tried_with_conditional_writes(s3_server: S3Server, tmp_path: Path) -> None:
    environ = s3_server.variables()
    found = doctor("-sd", str(tmp_path), "--lake", s3_server.url("doctor"), **environ)
    assert "write and conditional write work" in found.one("lake", "ok")["text"]
    assert found.level("clock of the lake") == "ok"
    refused = doctor("-sd", str(tmp_path), "--lake", "s3://no-such-bucket/lake", **environ)
    assert "credentials" in refused.one("lake", "fail")["remedy"]


def test_config_check_gives_the_lines_and_an_exit_code(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    good.write_text("port: 4333\nmax_closed_clients: 10\n")
    bad.write_text("port: x\nfoo: 1\n")
    done = run("config", "check", str(good))
    assert (done.returncode, done.stderr) == (0, f'lakestream: {good}:2: "max_closed_clients" has no effect here\n')
    assert done.stdout.startswith(f"{good} is valid (sha256:")
    done = run("config", "check", str(bad))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{bad}:1:" in done.stderr
    assert f"{bad}:2:" in done.stderr
    done = run("config", "check", str(bad), "--json")
    assert (done.returncode, len(json.loads(done.stdout)["errors"])) == (1, 2)
    assert run("config", "check", str(tmp_path / "none.conf")).returncode == 1


def test_config_show_names_file_and_line_and_no_secret(tmp_path: Path) -> None:
    config = _conf(tmp_path, "port: 4333\nauthorization { user: ann, password: hush-hush }\n")
    done = run("config", "show", config, "--changed")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split() == ["port", "4333", f"{config}:1"]
    assert "hush-hush" not in done.stdout
    settings = {each["key"]: each for each in json.loads(run("config", "show", config, "--json").stdout)["settings"]}
    assert settings["ping_interval"] == {"key": "ping_interval", "value": "2m0s", "origin": "default"}
