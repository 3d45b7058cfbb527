"""Tests of `lakestream up`: supervision of the compactor, with real processes as stand-ins."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

import lakestream
from lakestream.cli.supervisor import ChildSupervisor, StartPostponed, Timing
from lakestream.cli.up import Compaction, flags_of, level_of, settle, welcome
from lakestream.config.loading import load
from lakestream.config.options import Flags, LakeOptions
from lakestream.logging import Logger
from lakestream_spark import commands as jobs

pytestmark = pytest.mark.unit

QUICK = Timing(first=0.05, longest=0.2, healthy=60, recheck=0.02, grace=5)
FOREVER = "import sys; print('ready', flush=True); sys.stdin.buffer.read()"


class Watched:
    """Supervisor whose child runs a piece of Python, and its log."""

    def __init__(self, program: str, timing: Timing = QUICK, command: Callable[[], list[str]] | None = None) -> None:
        self.lines: queue.Queue[str] = queue.Queue()
        self.reports: queue.Queue[tuple[float, str, str]] = queue.Queue()
        self.supervisor = ChildSupervisor(
            "child",
            command or (lambda: [sys.executable, "-c", textwrap.dedent(program)]),
            output=self.lines.put,
            report=lambda level, text: self.reports.put((time.monotonic(), level, text)),
            timing=timing,
        )
        self.supervisor.start()

    def line(self) -> str:
        return self.lines.get(timeout=20)

    def report(self) -> str:
        return self.reports.get(timeout=20)[2]


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(*arguments: object, **named: object) -> Watched:
        made.append(Watched(*arguments, **named))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for watched in made:
        watched.supervisor.stop()


def gone(pid: int, timeout: float = 20) -> bool:
    """Return True if a process exits in time. A zombie that waits for its parent counts as exited."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


# ---------------------------------------------------------------------------- one child


def test_a_dead_child_is_started_again_ever_more_slowly(watch: Callable[..., Watched]) -> None:
    watched = watch("raise SystemExit(3)")
    stamps = []
    for delay in ("0.05", "0.1", "0.2", "0.2"):
        at, level, text = watched.reports.get(timeout=20)
        stamps.append(at)
        assert level == "warn"
        assert re.fullmatch(rf"child ended with exit code 3 after \d+ s; starting it again in {delay} s", text)
    waits = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    assert all(wait >= delay for wait, delay in zip(waits, (0.05, 0.1, 0.2), strict=True))
    watched.supervisor.stop()
    starts = watched.supervisor.starts
    assert starts >= 4
    time.sleep(0.3)  # longer than any pause: it would have been started by now
    assert watched.supervisor.starts == starts


def test_health_resets_the_wait(watch: Callable[..., Watched]) -> None:
    watched = watch("pass", Timing(first=0.01, longest=1, healthy=0.0, grace=5))
    assert [watched.report().rpartition(" in ")[2] for _ in range(4)] == ["0.01 s"] * 4


def test_a_signal_is_named(watch: Callable[..., Watched]) -> None:
    watched = watch(FOREVER)
    assert watched.line() == "ready"
    pid = watched.supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert watched.report().startswith("child was ended by SIGKILL after")
    assert watched.line() == "ready"
    assert watched.supervisor.pid not in (None, pid)


def test_a_program_that_is_not_there(watch: Callable[..., Watched]) -> None:
    watched = watch("", command=lambda: ["/nonexistent/program"])
    assert "child cannot be started ([Errno 2]" in watched.report()


def test_output_is_passed_on_line_by_line(watch: Callable[..., Watched]) -> None:
    watched = watch(
        """
        import sys
        print("one\\n\\ntwo  ")
        sys.stdout.buffer.write(b"\\xff\\n" + b"x" * 20000 + b"\\n")
        print("err", file=sys.stderr)
        sys.stdout.flush()
        sys.stdin.buffer.read()
        """
    )
    lines = sorted(watched.line() for _ in range(6))
    assert lines == sorted(["one", "two", "\ufffd", "x" * 16384, "x" * (20000 - 16384), "err"])


def test_stop_lets_the_child_finish(watch: Callable[..., Watched], tmp_path: Path) -> None:
    watched = watch(
        f"""
        import signal, sys, time
        def stop(*_):
            time.sleep(0.2)
            open({str(tmp_path / "finished")!r}, "w").close()
            print("finished", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        while True: signal.pause()
        """
    )
    assert watched.line() == "ready"
    watched.supervisor.stop()
    assert (tmp_path / "finished").exists()
    assert watched.line() == "finished"
    assert watched.supervisor.pid is None
    assert watched.reports.empty()


def test_a_child_that_does_not_stop_is_killed_with_all_it_started(watch: Callable[..., Watched]) -> None:
    watched = watch(
        """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        jvm = subprocess.Popen([sys.executable, "-c", "import signal, time\\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nprint('up', flush=True)\\ntime.sleep(600)"])
        print(jvm.pid, flush=True)
        time.sleep(600)
        """,
        Timing(grace=0.3),
    )
    lines = {watched.line(), watched.line()}
    [jvm] = [int(line) for line in lines if line != "up"]
    child = watched.supervisor.pid
    assert child is not None
    watched.supervisor.stop()
    assert gone(child, 0.5)
    assert gone(jvm, 0.5)
    assert watched.report() == "child did not end within 0.3 s; killing it"


def test_what_a_dead_child_leaves_behind_goes_too(watch: Callable[..., Watched]) -> None:
    watched = watch(
        """
        import subprocess, sys
        jvm = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(jvm.pid, flush=True)
        sys.exit(1)
        """
    )
    jvm = int(watched.line())
    assert watched.report().startswith("child ended with exit code 1")
    assert gone(jvm)


def test_a_missing_prerequisite_is_said_once_and_looked_for_again(watch: Callable[..., Watched]) -> None:
    asked = 0

    def command() -> list[str]:
        nonlocal asked
        asked += 1
        if asked < 5:
            raise StartPostponed("the child waits for Java")
        return [sys.executable, "-c", FOREVER]

    watched = watch("", command=command)
    assert watched.line() == "ready"
    assert watched.report() == "the child waits for Java"
    assert watched.reports.empty()
    assert asked == 5


def test_stop_while_waiting_is_immediate(watch: Callable[..., Watched]) -> None:
    watched = watch("raise SystemExit(1)", Timing(first=600, longest=600))
    watched.report()
    began = time.monotonic()
    watched.supervisor.stop()
    assert time.monotonic() - began < 2


PARENT = """
import sys
from lakestream.cli.supervisor import ChildSupervisor
program = '''
import subprocess, sys
# The grandchild stands for the JVM, which ends when its own standard input does.
jvm = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.buffer.read()"], stdin=subprocess.PIPE)
print(jvm.pid, flush=True)
sys.stdin.buffer.read()
'''
supervisor = ChildSupervisor("child", lambda: [sys.executable, "-c", program],
    output=lambda line: print(supervisor.pid, line, flush=True), report=print)
supervisor.start()
sys.stdin.read()
"""


def test_no_orphan_when_the_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, jvm = (int(pid) for pid in parent.stdout.readline().split())
    assert psutil.pid_exists(child)
    assert psutil.pid_exists(jvm)
    parent.kill()
    assert gone(child)
    assert gone(jvm)
    parent.communicate()


# ---------------------------------------------------------------------------- the compactor's command line


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that installs a fake Java of a version as the only one to be found."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def install(version: int) -> None:
        program = programs / "java"
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}.0.1\" 2025-01-01' >&2\n")
        program.chmod(0o755)

    return install


def test_the_compactor_waits_for_java_and_starts_when_it_appears(
    java: Callable[[int], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compaction = Compaction("/lake", Logger())
    with pytest.raises(StartPostponed, match=r"needs Java 17 or newer and found none: install .*openjdk"):
        compaction()
    java(11)
    with pytest.raises(StartPostponed, match=r"found only an older one \(.* is Java 11\)"):
        compaction()
    java(17)
    command = compaction()
    assert command[0] == sys.executable
    assert Path(command[1]).parts[-2:] == ("jobs", "compact.py")
    assert Path(command[1]).is_file()
    assert command[2:] == ["--lake", "/lake", "--exit-with-parent"]
    never = Compaction("/lake", Logger(), LakeOptions(maintain_every_ns=0))()
    assert never[2:] == ["--lake", "/lake", "--exit-with-parent", "--maintain-every=0"]
    assert Compaction("/lake", Logger(), LakeOptions(maintain_every_ns=90_500_000_000))()[-1] == "--maintain-every=90.5"
    assert f"Starting the compactor with Java 17 ({tmp_path})" in capfd.readouterr().err


def test_jobs_may_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESTREAM_JOBS", str(tmp_path))
    with pytest.raises(jobs.JobMissing, match="LAKESTREAM_JOBS"):
        jobs.find("compact.py")
    (tmp_path / "compact.py").touch()
    assert jobs.find("compact.py") == tmp_path / "compact.py"


def test_jobs_are_found_where_a_wheel_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "lib" / "lakestream_server-9.dist-info" / "RECORD"
    program = tmp_path / "share" / "lakestream" / "jobs" / "compact.py"
    for file in (record, program):
        file.parent.mkdir(parents=True)
        file.touch()
    record.write_text("../share/lakestream/jobs/compact.py,,\nlakestream/extras.py,,\n")
    (record.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: lakestream\nVersion: 9\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.setattr(lakestream, "__file__", str(tmp_path / "lib" / "lakestream" / "__init__.py"))
    assert jobs.find("compact.py") == program
    with pytest.raises(jobs.JobMissing, match=r"jobs/other\.py is not there: looked for .*Reinstall"):
        jobs.find("other.py")


def test_up_without_flags_is_jetstream_in_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = settle(Flags())
    assert options.jetstream is not None
    assert options.jetstream.store_dir == str(tmp_path / "data")
    assert not options.jetstream.temporary_store
    chosen = settle(Flags(store_dir="elsewhere")).jetstream
    assert chosen is not None
    assert chosen.store_dir == str(tmp_path / "elsewhere")


def test_up_takes_the_store_of_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"
    file.write_text('jetstream { store_dir: "/tmp/from-file" }\n')
    options = settle(Flags(config=str(file)))
    assert options.jetstream is not None
    assert options.jetstream.store_dir == "/tmp/from-file"


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "nats://127.0.0.1:4222"), ("10.0.0.5", "nats://10.0.0.5:4222"), ("::1", "nats://[::1]:4222")],
)
def test_the_welcome_says_where_and_what_to_try(host: str, url: str, tmp_path: Path) -> None:
    text = welcome(host, 4222, str(tmp_path / "the lake"), "http://h:1", True, "127.0.0.1:0")
    assert f"connect   {url} " in text
    assert f"lake      {tmp_path}/the lake\n" in text
    assert text.count(f"'{tmp_path}/the lake'") == 1
    assert "console   http://h:1/console\n" in text
    assert "metrics   http://h:1/metrics\n" in text
    assert f"--create ORDERS --server {url}\n" in text
    off = welcome(host, 4222, str(tmp_path), "http://h:1", False, "127.0.0.1:9464")
    assert "console   off (http://h:1 has the monitoring pages)\n" in off
    assert "metrics   http://h:1/metrics, of the compactor http://127.0.0.1:9464/metrics\n" in off


@pytest.mark.parametrize(
    ("flags", "config", "host"),
    [
        (Flags(), "", "127.0.0.1"),
        (Flags(host="0.0.0.0"), "", "0.0.0.0"),
        (Flags(user="u", password="p"), "", "0.0.0.0"),
        (Flags(token="t"), "", "0.0.0.0"),
        (Flags(), "listen: 0.0.0.0:4222", "0.0.0.0"),
        (Flags(), "authorization { users: [{user: u, password: p}] }", "0.0.0.0"),
        (Flags(), "accounts { A { users: [{user: u, password: p}] } }", "0.0.0.0"),
        (Flags(), "max_payload: 1MB", "127.0.0.1"),
    ],
)
def test_without_a_login_up_listens_at_the_loopback_interface(
    flags: Flags, config: str, host: str, tmp_path: Path
) -> None:
    (tmp_path / "nats.conf").write_text(config)
    options = settle(replace(flags, config=str(tmp_path / "nats.conf") if config else ""))
    assert options.host == host
    assert load(options.flags).host == host, "a reload keeps it"
    (tmp_path / "nats.conf").write_text("authorization { users: [{user: u, password: p}] }")
    if host == "127.0.0.1":
        assert load(options.flags).host == host, "also one that adds users"


def test_up_has_monitoring_at_8222_or_where_flag_and_file_say(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # another program has it: the better
            taken.bind(("127.0.0.1", 8222))
            taken.listen()
        options = settle(Flags())
        assert (options.http_host, options.http_port) == ("127.0.0.1", -1), "a free one"
    assert settle(Flags(http_port=8333)).http_port == 8333
    assert settle(Flags(http_port=8333)).http_host == ""
    (tmp_path / "nats.conf").write_text("http: 10.0.0.5:8444")
    options = settle(Flags(config=str(tmp_path / "nats.conf")))
    assert (options.http_host, options.http_port) == ("10.0.0.5", 8444)


# ---------------------------------------------------------------------------- the whole command

STAND_IN = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("stand-in", *sys.argv[1:], flush=True)
print("26/01/01 WARN something", flush=True)
sys.stdin.buffer.read()
"""


class Up:
    """Running `lakestream up` whose compactor is a stand-in."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        (directory / "jobs").mkdir()
        (directory / "jobs" / "compact.py").write_text(STAND_IN)
        self.log = directory / "server.log"
        self.out = directory / "out"
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "lakestream.cli.main",
                    "up",
                    "-a",
                    "127.0.0.1",
                    "-p",
                    "-1",
                    "-m",
                    "-1",
                    "-sd",
                    directory / "d",
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**os.environ, "LAKESTREAM_JOBS": str(directory / "jobs")},
            )

    def expect(self, text: str, times: int = 1) -> str:
        """Wait until the log contains `text` `times` times; return the log."""
        deadline = time.monotonic() + 20
        while (log := self.log.read_text()).count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{log}"
            assert self.process.poll() is None, f"the server ended:\n{log}"
            time.sleep(0.01)
        return log

    def child(self) -> int:
        [child] = psutil.Process(self.process.pid).children()
        return int(child.pid)


@pytest.fixture
def up(tmp_path: Path, java: Callable[[int], None]) -> Iterator[Up]:
    java(17)
    up = Up(tmp_path)
    yield up
    up.process.kill()
    up.process.wait()


def test_with_json_lines_nothing_else_is_printed(tmp_path: Path, java: Callable[[int], None]) -> None:
    java(17)
    (tmp_path / "nats.conf").write_text("log { format: json }\n")
    up = Up(tmp_path, "-c", str(tmp_path / "nats.conf"))
    try:
        up.expect("compactor: stand-in")
    finally:
        up.process.kill()
        up.process.wait()
    assert up.out.read_text() == ""
    assert all("message" in json.loads(line) for line in up.log.read_text().splitlines())


def test_up_runs_the_compactor_beside_the_server(up: Up) -> None:
    lake = up.directory / "d" / "lake"
    log = up.expect(f"[INF] compactor: stand-in --lake {lake} --exit-with-parent")
    assert log.index("Server is ready") < log.index("compactor: stand-in")
    up.expect("[WRN] compactor: 26/01/01 WARN something")
    shown = up.out.read_text()
    assert f"lake      {lake}" in shown
    (console,) = re.findall(r"console   (http://127\.0\.0\.1:\d+/console)\n", shown)
    with urllib.request.urlopen(console) as page:
        assert b"<title>" in page.read()
    first = up.child()
    os.kill(first, signal.SIGKILL)
    up.expect("compactor was ended by SIGKILL")
    up.expect("compactor: stand-in", times=2)
    assert gone(first)
    child = up.child()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(10) == 0
    assert gone(child, 1)
    assert "killing it" not in up.log.read_text()


def test_up_killed_leaves_no_compactor(up: Up) -> None:
    up.expect("compactor: stand-in")
    child = up.child()
    up.process.kill()
    assert gone(child)


def test_up_without_java_serves_and_says_so_once(tmp_path: Path, java: Callable[[int], None]) -> None:
    up = Up(tmp_path)
    try:
        log = up.expect("the compactor needs Java 17 or newer and found none")
        assert "Server is ready" in log
        assert "the compactor starts by itself then" in log
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(10) == 0
    finally:
        up.process.kill()
        up.process.wait()


def test_up_on_a_taken_port_starts_no_compactor(up: Up, tmp_path: Path) -> None:
    up.expect("compactor: stand-in")
    [port] = re.findall(r"Listening for client connections on 127\.0\.0\.1:(\d+)", up.log.read_text())
    done = subprocess.run(
        [sys.executable, "-m", "lakestream.cli.main", "up", "-a", "127.0.0.1", "-p", port, "-sd", tmp_path / "other"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={**os.environ, "LAKESTREAM_JOBS": str(up.directory / "jobs")},
    )
    assert done.returncode == 1
    assert f"Error listening on port: 127.0.0.1:{port}" in done.stderr
    assert "compactor" not in done.stderr


def test_a_stack_trace_of_the_compactor_is_one_warning_and_for_the_rest_debugging() -> None:
    said = """\
compacted 1 stream, 50 rows, 0.90 s
WARNING: Using incubator modules: jdk.incubator.vector
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
2026-05-01 12:00:00 ERROR MicroBatchExecution: Query lakestream terminated with error
java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back
\tat org.apache.spark.api.python.PythonWorkerFactory.create(PythonWorkerFactory.scala:184)
Caused by: java.lang.IllegalStateException: gone
\t... 12 more
2026-05-01 12:00:00 WARN Utils: a name
lakestream: the streaming query has ended
Traceback (most recent call last):
  File "compact.py", line 3, in <module>
    main()
    ^^^^
py4j.protocol.Py4JJavaError: An error occurred
During handling of the above exception, another exception occurred:
KeyError
compactor ready"""
    levels = [
        "info",
        *["debug"] * 3,
        "error",
        "warn",
        "debug",
        "debug",
        "debug",
        "warn",
        "warn",
        *["debug"] * 4,
        "warn",
        "debug",
        "warn",
    ]
    assert [level_of(line) for line in said.splitlines()] == [*levels, "info"]


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        ("", []),
        ("compactor_metrics: 9464", ["--metrics=127.0.0.1:9464"]),
        ('compactor_metrics: "0.0.0.0:9464"', ["--metrics=0.0.0.0:9464"]),
        ('compactor_metrics: "[::1]:9464"', ["--metrics=[::1]:9464"]),
        ('catalogs: ["hive://a", "glue://b"]', ["--catalog=hive://a", "--catalog=glue://b"]),
        ("spark_connect: true", ["--connect=127.0.0.1:15002"]),
        ("spark_connect: false", []),
        ('spark_connect: "[::1]:15003"', ["--connect=[::1]:15003"]),
        ('spark_connect { token: "s3cret" }', ["--connect=127.0.0.1:15002"]),
        ('spark_connect { listen: 15004, token: "s3cret" }', ["--connect=127.0.0.1:15004"]),
    ],
)
def test_the_compactor_gets_its_settings_of_the_file(tmp_path: Path, text: str, metrics: list[str]) -> None:
    file = tmp_path / "nats.conf"
    file.write_text(f"lake {{ maintain_every: 30s, {text} }}\n")
    options = settle(Flags(config=str(file), store_dir=str(tmp_path / "store")))
    assert flags_of(options.lake) == ["--maintain-every=30", *metrics]
