"""Tests of `jobs/compact.py` as a process: its command line, its exits, and kills."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from lakestream.lake.table.state import position_of
from lakestream_spark import jars
from tests.lake.conftest import job
from tests.lake.model import StreamModel, flights
from tests.lake.tables import records
from tests.lake.test_compactor import until
from tests.servers import Kind, Server
from tests.terminal import Terminal
from tests.wire import Wire

pytestmark = pytest.mark.lake

START_SECONDS = 300
ROUNDS = int(os.environ.get("LAKESTREAM_COMPACTOR_KILLS", "3"))


class Job:
    """One run of the program, with its output.

    Args:
        environment: added to that of the tests.
        cwd: directory in which it runs; workers of Spark import what is there.
    """

    def __init__(
        self,
        lake: Path | str,
        *arguments: str,
        program: list[str] | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [*(program or [sys.executable, str(job())]), "--lake", str(lake), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
            cwd=cwd,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_for(self, text: str, seconds: float = START_SECONDS, times: int = 1) -> None:
        """Wait until it has printed `times` lines that contain `text`."""

        def there() -> bool:
            return sum(text in line for line in self.lines) >= times

        with self._news:
            found = self._news.wait_for(lambda: there() or self._ended(), seconds)
        assert found, "\n".join(self.lines)
        assert there(), "\n".join(self.lines)

    def end(self, seconds: float = START_SECONDS) -> int:
        """Wait until it has exited by itself."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Kill it and all its children."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        self.process.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.wait()

    def _ended(self) -> bool:
        return bool(self.lines) and self.lines[-1] == "(end)"

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._say(line.rstrip())
        self._say("(end)")

    def _say(self, line: str) -> None:
        with self._news:
            self.lines.append(line)
            self._news.notify_all()


@pytest.fixture
def started() -> Iterator[list[Job]]:
    """Yield the list of a test's jobs; kill those that still run at its end."""
    running: list[Job] = []
    yield running
    for each in running:
        each.kill()


def test_help_needs_no_spark_and_works_under_spark_submit() -> None:
    import pyspark

    submit = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    for command in ([sys.executable], [submit]):
        done = subprocess.run(
            [*command, str(job()), "--help"], capture_output=True, text=True, env=environ, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        for flag in ("--lake", "--checkpoint", "--once", "--interval", "--parallel", "--exit-with-parent"):
            assert flag in done.stdout


def test_wrong_flags_and_missing_java_are_one_line_each(lake: Path, tmp_path: Path) -> None:
    def run(*arguments: str, **environ: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, str(job()), *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **environ},
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr.strip().splitlines()

    code, said = run("--lake", str(lake), "--interval", "0")
    assert code != 0
    assert "--interval" in said[-1]
    code, said = run("--lake", "ftp://bucket/lake")
    assert (code, len(said)) == (1, 1)
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
    code, said = run("--lake", "s3://bucket/lake", AWS_ACCESS_KEY_ID="K", AWS_SECRET_ACCESS_KEY="S", **nowhere)
    assert (code, len(said)) == (1, 1)
    code, said = run("--lake", str(lake), JAVA_HOME="", PATH=str(tmp_path))
    assert (code, len(said)) == (1, 1)
    assert "Java 17 or newer" in said[0]


def ended(program: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environ}
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=60, env=environment)


COMMAND = [sys.executable, "-m", "lakestream.cli.main"]


@pytest.mark.parametrize(
    "program",
    [
        [sys.executable, str(job()), "--once"],
        [sys.executable, str(job())],
        [sys.executable, str(job().with_name("maintain.py")), "--once"],
        [sys.executable, str(job().with_name("clone.py")), "--stream", "S", "--target", "/nowhere"],
        [*COMMAND, "compact", "--once"],
        [*COMMAND, "maintain", "--dry-run"],
        [*COMMAND, "sql", "-q", "SHOW TABLES"],
    ],
    ids=["compact.py once", "compact.py", "maintain.py", "clone.py", "compact", "maintain", "sql"],
)
def test_what_is_no_lake_is_refused_and_not_made(tmp_path: Path, program: list[str]) -> None:
    (tmp_path / "photos").mkdir()
    place = tmp_path / ("typo" if "--once" in program else "photos")
    done = ended([*program, "--lake", str(place)], JAVA_HOME="", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"lakestream: there is no lake at {place}: no server has written to it. ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    assert not list((tmp_path / "photos").iterdir())


def test_once_without_anything_to_do_says_so_and_needs_no_java(lake: Path, tmp_path: Path, started: list[Job]) -> None:
    without_java = {"JAVA_HOME": "", "PATH": str(tmp_path)}
    command = [*COMMAND, "compact", "--once"]

    def nothing(place: Path, *options: str) -> None:
        done = ended([*command, "--lake", str(place), *options], **without_java)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(r"compacted 0 streams, 0 rows, \d+\.\d\d s\n", done.stdout)

    nothing(tmp_path / "new", "--create")
    nothing(tmp_path / "new")
    models = StreamModel(tmp_path / "log"), StreamModel(tmp_path / "past", "PAST", "UID2")
    models[1].configure({"lakestream.time_travel": "1h"})
    for model in models:
        model.publish(flights(50))
        model.stage(lake)
        model.remove([2, 3])
        model.stage(lake)
    done = ended([*command, "--lake", str(lake)], **without_java)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Java 17 or newer" in done.stderr
    running = Job(lake, "--once")
    started.append(running)
    assert running.end() == 0, running.lines
    assert sum(int(line.split()[3]) for line in running.lines if line.startswith("compacted ")) >= 96
    nothing(lake)
    models[0].publish(flights(1))
    models[0].stage(lake)
    assert ended([*command, "--lake", str(lake)], **without_java).returncode == 1


def test_work_is_shown_in_a_terminal_and_results_are_json(lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    for _ in range(3):
        model.publish(flights(2000))
        model.stage(lake)
    with Terminal([*COMMAND, "compact", "--once", "--json", "--lake", str(lake)]) as terminal:
        assert terminal.wait(3 * START_SECONDS) == 0, terminal.text
        assert "starting Spark" in terminal.text
        bar = re.search(r"compact +[━╸╺]+ +\d+/(\d+)", terminal.text)
        assert bar is not None, terminal.text
        assert int(bar[1]) == model.sealed[-1].last_index
        results = [json.loads(line) for line in re.findall(r"\{.*?\}", terminal.text)]
    assert sum(each["rows"] for each in results) == 6000
    dry = ended([*COMMAND, "maintain", "--dry-run", "--json", "--lake", str(lake)])
    assert (dry.returncode, dry.stderr) == (0, "")
    [due] = [json.loads(line) for line in dry.stdout.splitlines()]
    assert (due["stream"], due["version"]) == ("ORDERS", 1)


def test_killed_at_any_moment_it_neither_loses_nor_repeats_a_row(
    lake: Path, tmp_path: Path, started: list[Job]
) -> None:
    """A job that is killed at random moments neither loses nor repeats a row.

    Driver and JVM get SIGKILL several times; once, the checkpoint is lost too.
    """
    choose = random.Random(20)
    model = StreamModel(tmp_path / "log")
    for round_number in range(ROUNDS):
        for _ in range(3):
            model.publish(flights(choose.randint(1, 4000), subjects=5, headers=True))
            if round_number:
                model.remove([choose.randint(1, model.next_seq) for _ in range(5)])
            model.stage(lake)
        running = Job(lake, "--interval", "0.2")
        started.append(running)
        running.wait_for("compactor ready")
        time.sleep(choose.uniform(0, 4))  # from before the first commit to after the last one
        running.kill()
    last = Job(lake, "--once")
    started.append(last)
    assert last.end() == 0, last.lines
    assert records(model.table(lake)) == model.expected()
    assert position_of(model.table(lake), "UID1") == model.sealed[-1].last_index


def test_it_runs_under_spark_submit(lake: Path, tmp_path: Path, started: list[Job]) -> None:
    import pyspark

    model = StreamModel(tmp_path / "log")
    model.publish(flights(100))
    model.stage(lake)
    submit = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")
    configuration = job().parents[1] / "spark_conf" / "local" / "spark-defaults.conf"
    options = ["--jars", ",".join(jars.ensure()), "--properties-file", str(configuration)]
    running = Job(lake, "--once", program=["env", f"PYSPARK_PYTHON={sys.executable}", submit, *options, str(job())])
    started.append(running)
    assert running.end() == 0, running.lines
    assert records(model.table(lake)) == model.expected()
    again = Job(lake, "--once", program=["env", f"PYSPARK_PYTHON={sys.executable}", submit, *options, str(job())])
    started.append(again)
    assert again.end() == 0, again.lines
    assert [line for line in again.lines if line.startswith("compacted 0 streams, 0 rows, ")]


def test_it_says_what_it_does_and_how_it_ends(lake: Path, tmp_path: Path, started: list[Job]) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(100))
    model.stage(lake)
    running = Job(lake, "--exit-with-parent")
    started.append(running)
    running.wait_for("compactor ready")
    running.wait_for("compacted 1 stream, 100 rows", START_SECONDS)
    java = [child for child in psutil.Process(running.process.pid).children(recursive=True) if "java" in child.name()]
    assert sum(child.memory_info().rss for child in java) < 1.5 * 2**30
    second = Job(lake)
    started.append(second)
    second.wait_for("another compactor is already running")
    second.process.send_signal(signal.SIGTERM)
    assert second.end() == 0, second.lines
    assert running.process.stdin is not None
    running.process.stdin.close()  # the same effect as its parent's death
    assert running.end() == 0, running.lines
    assert not any("Traceback" in line or "Exception" in line for line in running.lines + second.lines)
    _, alive = psutil.wait_procs(java, timeout=30)
    assert alive == []
    third = Job(lake)
    started.append(third)
    third.wait_for("compactor ready")
    for child in psutil.Process(third.process.pid).children(recursive=True):
        if "java" in child.name():
            child.kill()
    assert third.end() == 1, third.lines
    assert any(line.startswith("lakestream: the compactor ended") for line in third.lines)
    assert records(model.table(lake)) == model.expected()


def test_a_fresh_lake_is_for_its_owner_and_group_only(tmp_path: Path, started: list[Job]) -> None:
    """Files that server and Spark create have the modes of the store, whatever the umask."""
    before = os.umask(0o022)
    # Nothing is old enough to be sealed: with a compactor running it is sealed early.
    config = 'lake { seal_age: "1h", poll: "100ms" }'
    server = Server(Kind.OURS, tmp_path / "store", config=config)
    try:
        server.start()
        with Wire(server.address) as wire:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            for seq in range(1, 101):
                assert wire.request("s", bytes(1000)).json()["seq"] == seq
        compactor = Job(server.store / "lake", "--interval=0.2", "--maintain-every=1")
        started.append(compactor)
        compactor.wait_for("compacted 1 stream")
        table = server.store / "lake" / "streams" / "S"
        compactor.process.terminate()
        assert compactor.end() == 0
    finally:
        server.kill()
        os.umask(before)
    assert any(table.rglob("*.parquet"))
    found = [server.store / "lake", *(server.store / "lake").rglob("*")]
    modes = {str(path.relative_to(server.store)): path.stat().st_mode & 0o777 for path in found}
    wrong = {
        name: oct(modes[name])
        for name, path in zip(modes, found, strict=True)
        if modes[name] != (0o750 if path.is_dir() else 0o640)
    }
    assert wrong == {}


def test_a_lake_that_is_away_while_spark_starts_is_waited_for(lake: Path, tmp_path: Path, started: list[Job]) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(100))
    model.stage(lake)
    running = Job(lake)
    started.append(running)
    # The lake has been looked at before the JVM is started, and the lock is taken long after that.
    until(lambda: any("java" in each.name() for each in psutil.Process(running.process.pid).children(recursive=True)))
    aside = lake.rename(lake.with_name("aside"))
    running.wait_for(f"the lake at {lake} cannot be reached")
    aside.rename(lake)
    running.wait_for(f"the lake at {lake} is back")
    running.wait_for("compacted 1 stream, 100 rows")
    assert records(model.table(lake)) == model.expected()
