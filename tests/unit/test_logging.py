"""Tests of log lines: nats-server's format, one line per entry, rotation of files, syslog."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lakestream import logging, syslog
from lakestream.logging import BACKLOG_BYTES, Logger
from lakestream.syslog import Syslog

pytestmark = pytest.mark.unit

LINE = rf"\[{os.getpid()}\] \d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{{6}} \[INF\] Server is ready\n"


def test_a_line_looks_as_nats_server_writes_it(capfd: pytest.CaptureFixture[str]) -> None:
    Logger().info("Server is ready")
    assert re.fullmatch(LINE, capfd.readouterr().err)


def test_levels(capfd: pytest.CaptureFixture[str]) -> None:
    log = Logger(debug=True, trace=True, logtime=False)
    for write in (log.info, log.debug, log.trace, log.warn, log.error, log.fatal):
        write("x")
    pid = f"[{os.getpid()}] "
    levels = ("INF", "DBG", "TRC", "WRN", "ERR", "FTL")
    assert capfd.readouterr().err.splitlines() == [f"{pid}[{level}] x" for level in levels]


def test_debug_and_trace_are_off_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    log = Logger(logtime=False)
    log.debug("x")
    log.trace("x")
    assert not log.debugging
    assert not log.tracing
    log.configure(debug=True, trace=True, logtime=False, utc=False)
    log.debug("y")
    log.trace("y")
    assert capfd.readouterr().err == f"[{os.getpid()}] [DBG] y\n[{os.getpid()}] [TRC] y\n"


def test_utc(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    monkeypatch.setattr("time.time_ns", lambda: 1_767_323_045_000_001_999)
    Logger(utc=True).info("x")
    Logger().info("x")
    monkeypatch.delenv("TZ")
    time.tzset()
    utc, local = capfd.readouterr().err.splitlines()
    assert " 2026/01/02 03:04:05.000001 " in utc
    assert " 2026/01/02 08:34:05.000001 " in local


def test_json(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_767_323_045_000_001_999)
    log = Logger(as_json=True)
    log.warn('a "subject"\nin two lines\x1b \udcff')
    log.configure(debug=False, trace=False, logtime=False, utc=False)
    log.info("as before")
    first, second = capfd.readouterr().err.splitlines()
    assert json.loads(first) == {
        "time": "2026-01-02T03:04:05.000001Z",
        "level": "warn",
        "pid": os.getpid(),
        "message": 'a "subject"\nin two lines\x1b \\udcff',
    }
    assert second == f"[{os.getpid()}] [INF] as before"


def test_a_text_stays_on_its_line_whatever_a_client_put_into_it(capfd: pytest.CaptureFixture[str]) -> None:
    Logger(logtime=False).info("a\r\n[1] [FTL] forged \x1b[31m \ud800")
    assert capfd.readouterr().err == f"[{os.getpid()}] [INF] a\\r\\n[1] [FTL] forged \\x1b[31m \\ud800\n"


def test_an_exception_is_logged_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError as error:
        Logger(logtime=False).exception("handler failed", error)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].endswith("[ERR] handler failed: ValueError: bad\\nthing")
    assert "test_logging.py" in lines[1]
    assert all(line.startswith(f"[{os.getpid()}] [ERR] ") for line in lines)


def test_a_file_is_appended_to_and_reopened_after_rotation(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("before\n")
    log = Logger(str(path), logtime=False)
    log.info("one")
    path.rename(tmp_path / "old.log")
    log.info("two")
    log.reopen()
    log.info("three")
    log.close()
    pid = f"[{os.getpid()}] [INF] "
    assert (tmp_path / "old.log").read_text() == f"before\n{pid}one\n{pid}two\n"
    assert path.read_text() == f"{pid}File log re-opened\n{pid}three\n"


def test_a_reload_may_change_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = Logger(str(tmp_path / "a.log"), logtime=False)
    log.reopen(str(tmp_path / "b.log"))
    log.info("x")
    log.reopen("")
    log.info("y")
    assert (tmp_path / "a.log").read_text() == ""
    assert "[INF] x" in (tmp_path / "b.log").read_text()
    assert capfd.readouterr().err == f"[{os.getpid()}] [INF] y\n"


def test_a_failed_reopen_keeps_the_old_file(tmp_path: Path) -> None:
    log = Logger(str(tmp_path / "a.log"), logtime=False)
    log.reopen(str(tmp_path / "none" / "b.log"))
    log.info("x")
    log.close()
    assert "[ERR] cannot re-open" in (tmp_path / "a.log").read_text()
    assert "[INF] x" in (tmp_path / "a.log").read_text()


def test_reopen_without_a_file_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    Logger(logtime=False).reopen()
    assert "not a file logger" in capfd.readouterr().err


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Logger(str(tmp_path / "none" / "a.log"))


def test_a_line_that_cannot_be_written_is_counted_and_stops_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = Logger(descriptor=writer)
    log.info("x")
    os.close(writer)
    assert log.lost == 1


def _read_all(reader: int) -> list[str]:
    """Return the lines of a pipe whose writer is closed."""
    with os.fdopen(reader) as pipe:
        return pipe.read().splitlines()


def test_a_reader_that_does_not_read_holds_up_nobody_and_gets_every_line_later() -> None:
    reader, writer = os.pipe()
    log = Logger(descriptor=writer, logtime=False)
    for number in range(5000):  # more than a pipe takes
        log.error(f"{number} {'x' * 50}")
    read: list[list[str]] = []
    thread = threading.Thread(target=lambda: read.append(_read_all(reader)))
    thread.start()
    log.close()  # waits until all are written
    os.close(writer)
    thread.join()
    assert [line.split()[2] for line in read[0]] == [str(number) for number in range(5000)]
    assert log.lost == 0


def test_lines_beyond_the_backlog_are_dropped_counted_and_reported() -> None:
    reader, writer = os.pipe()
    log = Logger(descriptor=writer, logtime=False)
    number = 2 * BACKLOG_BYTES // 1000
    for _ in range(number):
        log.error("x" * 1000)
    dropped = log.lost
    assert 0 < dropped < number
    read: list[list[str]] = []
    thread = threading.Thread(target=lambda: read.append(_read_all(reader)))
    thread.start()
    log.close()
    log.error("afterwards")
    log.close()
    os.close(writer)
    thread.join()
    assert len(read[0]) == number - dropped + 2
    assert read[0][-2].endswith(f"[WRN] {dropped} log lines were dropped: the reader of this log was too slow")
    assert read[0][-1].endswith("[ERR] afterwards")


def test_a_line_longer_than_a_pipe_takes_at_once_is_written_whole() -> None:
    reader, writer = os.pipe()
    log = Logger(descriptor=writer, logtime=False)
    text = "x" * 10 * select.PIPE_BUF
    log.error(text)
    log.error("y")
    log.close()
    os.close(writer)
    assert [line.split()[-1] for line in _read_all(reader)] == [text, "y"]


def test_many_lines_are_written_together_in_pieces_that_a_pipe_takes_at_once() -> None:
    reader, writer = os.pipe2(os.O_DIRECT)  # keeps writes apart
    log = Logger(descriptor=writer, logtime=False)
    log.info_all(f"{number} {'x' * 50}" for number in range(200))
    log.info_all([])
    pieces = []
    while sum(piece.count(b"\n") for piece in pieces) < 200:
        pieces.append(os.read(reader, 1 << 16))
    log.close()
    os.close(writer)
    os.close(reader)
    assert [line.split()[2] for line in b"".join(pieces).splitlines()] == [b"%d" % number for number in range(200)]
    assert len(pieces) < 8
    assert max(map(len, pieces)) <= select.PIPE_BUF


def test_a_repeated_failure_is_logged_once_in_its_interval(capfd: pytest.CaptureFixture[str]) -> None:
    log = Logger(logtime=False)
    for key in ("a", "a", "b"):
        log.error_again(f"of {key}", key, 60.0)
    assert [line.split("] ")[2] for line in capfd.readouterr().err.splitlines()] == ["of a", "of b"]


def test_a_file_above_its_limit_is_renamed_and_the_oldest_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    (tmp_path / "server.log.of-somebody-else").write_text("")
    log = Logger(str(path), max_bytes=100, max_files=3, logtime=False)
    for number in range(40):
        log.info(f"line {number:02}")
    log.close()
    backups = sorted(tmp_path.glob("server.log.2*"))
    assert len(backups) == 2  # and the file itself
    assert (tmp_path / "server.log.of-somebody-else").exists()
    lines = [line for file in (*backups, path) for line in file.read_text().splitlines() if "] line " in line]
    assert [int(line[-2:]) for line in lines] == list(range(40 - len(lines), 40))
    assert f'[INF] Rotated log, backup saved as "{backups[-1]}"' in path.read_text()


WRITER = """
import sys
from lakestream.logging import Logger
log = Logger(sys.argv[1], max_bytes=4000, logtime=False)
for number in range(500):
    log.info(f"from {sys.argv[2]} number {number}")
log.close()
"""


def test_workers_that_share_a_file_rotate_it_once_and_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    workers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(each)]) for each in range(4)]
    assert [each.wait(60) for each in workers] == [0] * 4
    files = [*sorted(tmp_path.glob("server.log.*")), path]
    assert all(file.stat().st_size > 4000 for file in files[:-1])
    lines = [line.split("[INF] ")[1] for file in files for line in file.read_text().splitlines()]
    for each in range(4):
        assert [line for line in lines if line.startswith(f"from {each} ")] == [
            f"from {each} number {number}" for number in range(500)
        ]


def test_a_file_that_cannot_be_rotated_stays_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "server.log"
    log = Logger(str(path), max_bytes=50, logtime=False)
    monkeypatch.setattr(os, "rename", refuse)
    for number in range(20):
        log.info(f"line {number:02}")
    log.close()
    text = path.read_text()
    assert text.count("not rotated any more") == 1
    assert [f"line {number:02}" in text for number in range(20)] == [True] * 20


def test_a_daemon_over_a_network_gets_each_line_as_from_nats_server() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(10)
        log = Logger(syslog=Syslog(f"udp://127.0.0.1:{daemon.getsockname()[1]}"), debug=True, trace=True)
        heads = []
        for write in (log.info, log.debug, log.trace, log.warn, log.error, log.fatal):
            write("one\ntwo")
            received = re.fullmatch(
                rb"(<\d>)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d) \S+ lakestream\[\d+\]: one\\ntwo\n",
                daemon.recv(999),
            )
            assert received
            heads.append(received[1])
        log.close()
    assert heads == [b"<5>", b"<7>", b"<6>", b"<4>", b"<3>", b"<2>"]


def test_the_daemon_of_this_machine_gets_lines_of_the_facility_of_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syslog, "LOCAL_SOCKETS", (str(tmp_path / "none"), str(tmp_path / "log")))
    with pytest.raises(OSError, match="no syslog daemon listens"):
        Logger(syslog=Syslog())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(tmp_path / "log"))
        daemon.settimeout(10)
        log = Logger(syslog=Syslog())
        log.warn("x")
        assert re.fullmatch(rb"<28>\w{3} [ \d]\d \d\d:\d\d:\d\d lakestream\[\d+\]: x\n", daemon.recv(999))
        log.close()


def test_lines_wait_while_a_daemon_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "RECONNECT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        log = Logger(syslog=Syslog(f"tcp://127.0.0.1:{port}"))
        first = listener.accept()[0]
    log.info("one")
    assert b"one" in first.recv(999)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.close()  # resets the connection: the next line notices
    for number in range(50):
        log.info(f"line {number}")
    with socket.create_server(("127.0.0.1", port)) as listener:
        second = listener.accept()[0]
        received = b""
        while b"line 49" not in received:
            received += second.recv(9999)
    assert received.count(b"line ") == 50 - log.lost
    assert log.lost == 0
    log.close()
    second.close()


@pytest.mark.parametrize("address", ["junk", "unixgram:///dev/log", "udp://", "tcp://host:514/path"])
def test_an_address_that_is_no_daemon_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="use udp://HOST:514 or tcp://HOST:514"):
        Syslog(address)
