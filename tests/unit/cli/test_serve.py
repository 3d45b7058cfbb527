"""Tests of `lakestream serve`: options that do not serve, and failed starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestream import __version__
from lakestream.cli.serve import run, serve
from lakestream.config.errors import StartError, reason_of
from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.server.early_signals import ENDING, KEPT

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def restored_signals() -> Iterator[None]:
    """Give this process its handlers back: `run` handles signals."""
    before = {number: signal.getsignal(number) for number in (*ENDING, *KEPT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["-v"]) == 0
    assert capsys.readouterr().out == f"lakestream: v{__version__}\n"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["-h"]) == 0
    assert "-p, --port <port>" in capsys.readouterr().out


def test_a_wrong_flag_is_one_line_and_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["-p", "x"]) == 0  # as nats-server does
    out, err = capsys.readouterr()
    assert "-p, --port <port>" in out
    assert err == 'invalid value "x" for flag -p: parse error\n'


def test_a_wrong_file_is_one_line_and_exit_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "nats.conf").write_text("port: 4222\njetstrem {}")
    assert serve(["-c", str(tmp_path / "nats.conf")]) == 1
    expected = f'lakestream: {tmp_path}/nats.conf:2:1: unknown field "jetstrem", did you mean "jetstream"?\n\n'
    assert capsys.readouterr().err == expected


def test_t_checks_the_file_and_exits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text("port: 4222")
    assert serve(["-t", "-c", str(path)]) == 0
    assert capsys.readouterr().err.startswith(f"lakestream: configuration file {path} is valid (sha256:")
    path.write_text("port: x")
    assert serve(["-t", "-c", str(path)]) == 1
    assert serve(["-t"]) == 1
    assert "must specify [-c, --config]" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["serve", "up"])
def test_t_judges_the_lake_as_the_start_does(tmp_path: Path, program: str) -> None:
    path = tmp_path / "nats.conf"
    path.write_text("jetstream {}\nlake { url: ftp://bucket/lake }")
    for more in (["-t"], []):
        done = run_to_end(program, "-p", "-1", "-c", str(path), *more)
        assert done.returncode == 1
        assert done.stderr == (
            f"lakestream: {path}:2:8: lake 'ftp://bucket/lake': it must be a directory (a path or a file: URL), "
            "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix\n\n"
        )


def test_a_lake_is_refused_where_there_are_no_streams(tmp_path: Path) -> None:
    done = run_to_end("serve", "-p", "-1", "--lake", str(tmp_path / "lake"))
    assert done.returncode == 1
    assert done.stderr == (
        "lakestream: --lake needs JetStream: add -js, or a jetstream block to the configuration file\n"
    )
    assert not (tmp_path / "lake").exists()


def run_to_end(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakestream.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_log_file_that_cannot_be_opened_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert serve(["-l", str(tmp_path / "none" / "a.log")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


class FailingNode:
    """Node that cannot start."""

    def __init__(self, options: Options, log: Logger, worker: object) -> None:
        self.log = log

    def run(self) -> int:
        self.log.info("Starting")
        raise StartError("cannot listen on 0.0.0.0:4222: Address already in use")


def test_a_failed_start_is_a_fatal_line_and_exit_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(Options(), Logger(logtime=False), FailingNode) == 1  # type: ignore[arg-type]
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == f"[{os.getpid()}] [FTL] cannot listen on 0.0.0.0:4222: Address already in use"


def test_a_failed_start_is_seen_on_stderr_when_the_log_goes_to_a_file(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "a.log")
    assert run(Options(log_file=path), Logger(path), FailingNode) == 1  # type: ignore[arg-type]
    assert capfd.readouterr().err == "lakestream: cannot listen on 0.0.0.0:4222: Address already in use\n"
    assert "[FTL] cannot listen" in Path(path).read_text()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("stop", signal.SIGKILL),
        ("quit", signal.SIGINT),
        ("term", signal.SIGTERM),
        ("reopen", signal.SIGUSR1),
        ("reload", signal.SIGHUP),
        ("ldm", signal.SIGUSR2),
    ],
)
def test_signals_reach_the_process(name: str, number: int, tmp_path: Path) -> None:
    def heed() -> None:
        """Heed the signal, which a shell without job control (SIGINT) or nohup (SIGHUP) lets children ignore."""
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)

    with subprocess.Popen(["sleep", "60"], preexec_fn=heed) as process:
        (tmp_path / "x.pid").write_text(f"{process.pid}\n")
        target = str(tmp_path / "x.pid") if name == "term" else str(process.pid)
        assert serve(["-sl", f"{name}={target}"]) == 0
        assert process.wait(10) == -number


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("foo=1", 'unknown signal "foo"'),
        ("stop", "-sl stop needs a process"),
        ("stop=", "-sl stop needs a process"),
        ("stop=0", "invalid pid: 0"),
        ("stop=-1", "invalid pid: -1"),
        ("stop=/none.pid", "invalid pid: /none.pid"),
        ("term=99999999", "no such process"),
        ("term=999999999999999999999", "term"),
    ],
)
def test_a_wrong_signal_is_one_line(request_: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["-sl", request_]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert err.splitlines()[:-1] in ([], ["lakestream: "])  # an empty line where nats-server has one


def test_reasons_are_those_of_the_system() -> None:
    assert reason_of(OSError(98, "error while attempting to bind on address")) == os.strerror(98)
    assert reason_of(socket.gaierror(socket.EAI_NONAME, "Name or service not known")) == "Name or service not known"
    assert reason_of(OSError("odd")) == "odd"


@pytest.mark.parametrize("arguments", [["serve", "-v"], ["-v"], ["--version"]])
def test_the_entry_point_takes_flags_with_and_without_serve(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lakestream.cli.main", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"lakestream: v{__version__}\n"
