"""Runs the code blocks of a page: `python -m tests.docs.page docs/sql.md`.

Belongs here: a page's namespaces, its working directory, and running its blocks in their order. Blocks share directory,
environment, server and Python names, as for a reader who types them in. worlds.py has the state in which a page begins.

A page runs in network, mount and process namespaces of its own (`unshare`): its servers have the ports that are
printed, absolute paths such as /srv/lake are directories of the test, names such as nats.example lead to this machine,
and all its processes end with it. There is no other network, so what a page shows works offline.

Blocks run by language:

sh          by bash, command by command; each must succeed. A server (`lakestream up`, `lakestream serve`, `make
            run`), `lakestream compact` and `maintain` without `--once`, `nats sub` and what ends with `&` go on in the
            background. A server replaces the one before it, unless its configuration file has a name of its own
            (`-c hub.conf`).
python      in one interpreter for the page, with `await` at the top.
sql         by `lakestream sql`.
conf        checked by the server's loader, and saved: as nats.conf, or under the name in the comment of the first line.
json, yaml  parsed.
properties  every line must be in a file of spark_conf/.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests import certificates
from tests.docs.blocks import ROOT, Block, blocks, name_of
from tests.docs.worlds import HOSTS, PLACES, World, world
from tests.keys import Operator

BLOCK_S = 600
"""Time for one command or block."""
START_S = 60
"""Time until a server is ready."""

_BACKGROUND = re.compile(
    r"(\w+=\S* )*(lakestream (up|serve)\b(?!.* (-t|-h|-v|-sl)\b)"
    r"|lakestream (compact|maintain) (?!detach|.*--(once|dry-run)\b)|make run\b|nats\b.* sub )"
)
_SERVER = re.compile(r"(\w+=\S* )*(lakestream (up|serve)\b|make run\b)")
_READY = "Server is ready"


class BlockFailed(Exception):
    """Raised when a block does not do what its page says."""


def run_in_namespaces(path: Path, programs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in namespaces of its own.

    Args:
        programs: directory of programs that are not in the virtual environment, such as `nats`.
        folder: an empty directory for the page.
    """
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    page = [sys.executable, "-m", "tests.docs.page", "--inside", "--folder", folder, "--programs", programs, path]
    return subprocess.run(
        [*unshare, *map(str, page)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _furnish(folder: Path) -> None:
    """Make this process's namespaces the machine that the pages assume."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for place in PLACES:
        inside = folder / "places" / place.strip("/")
        inside.mkdir(parents=True)
        top = Path("/", Path(place).parts[1])
        if not top.exists():
            top.mkdir()  # stays behind, empty
        if not Path(place).exists():
            Path(place).mkdir(parents=True)
        subprocess.run(["mount", "--bind", inside, place], check=True)
    hosts = folder / "hosts"
    hosts.write_text(" ".join(("127.0.0.1", "localhost", socket.gethostname(), *HOSTS)) + "\n")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)


class Page:
    """The state that the blocks of a page share.

    Args:
        folder: for working directory, logs and environment.
        world: the state in which the page begins.
    """

    def __init__(self, folder: Path, programs: Path, world: World) -> None:
        self._folder = folder
        self._world = world
        self._work = folder / "work"
        self._work.mkdir()
        temporary = folder / "tmp"  # where a server without a store directory has its store
        temporary.mkdir()
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._loop = asyncio.new_event_loop()
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._logs = 0
        for name in ("jobs", "spark_conf"):
            (self._work / name).symlink_to(ROOT / name)
        certificates.write(folder / "certificates")
        for name in ("server.pem", "server.key", "ca.pem"):
            shutil.copy(folder / "certificates" / name, self._work)
        (self._work / "operator.conf").write_text(Operator().config)
        binaries = f"{programs}:{Path(sys.executable).parent}"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "NATS_"))},
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "HOME": str(folder),
            "TMPDIR": str(temporary),
            "LAKESTREAM_CACHE": str(Path.home() / ".cache" / "lakestream"),
        }
        os.chdir(self._work)

    def begin(self) -> None:
        """Make the state in which the page begins."""
        for name, text in self._world.files.items():
            path = self._work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._shell(self._world.before)
        self._python(self._world.python, "worlds.py")

    def run(self, block: Block) -> None:
        """Run one block. Raises BlockFailed, or what its Python raises."""
        match block.language:
            case "sh":
                self._shell(block.text)
            case "python":
                self._python(block.text, block.place)
            case "sql":
                command = ["lakestream", "sql", "--format", "csv", *self._world.sql]
                self._finish(command, block.text)
            case "conf":
                self._conf(block.text)
            case "json":
                json.loads(block.text)
            case "yaml":
                import yaml

                list(yaml.safe_load_all(block.text))
            case "properties":
                self._properties(block.text)

    def close(self) -> None:
        """Stop the servers. The other processes end with the namespace."""
        for name in list(self._servers):
            self._stop(name)

    # ------------------------------------------------------------------ commands

    def _shell(self, text: str) -> None:
        for command in _commands(text):
            plain = " ".join(line.split("#")[0].strip() for line in command.splitlines())
            if plain.endswith("&") or _BACKGROUND.match(plain):
                self._start(command, plain)
            else:
                self._bash(command)

    def _bash(self, command: str) -> None:
        """Run a command; directory and variables stay for those after it."""
        state = self._folder / "state"
        script = f"set -aeo pipefail\n{command}\n{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {state}\n"
        before = f". {state}\n" if state.exists() else ""
        self._finish(["bash", "-c", before + script], "", shown=command)

    def _finish(self, command: Sequence[str], given: str, shown: str = "") -> None:
        done = subprocess.run(
            command,
            input=given,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_S,
            check=False,
        )
        print(f"> {shown or given}\n{done.stdout}", end="", flush=True)
        if done.returncode:
            raise BlockFailed(f"exit code {done.returncode} of:\n{shown or given}\n{done.stdout}")

    def _start(self, command: str, plain: str) -> None:
        """Run a command in the background; wait for a server to be ready."""
        is_server = bool(_SERVER.match(plain))
        file = re.search(r" -c (?!nats\.conf|seals\.conf)(\S+)", plain)
        name = file[1] if is_server and file else ""
        if is_server:
            self._stop(name)
            command = re.sub(r"^\s*make run", _make_run(), command)
        self._logs += 1
        log = self._folder / f"background-{self._logs}.log"
        print(f"> {command.strip()} &", flush=True)
        with log.open("wb") as output:
            state = self._folder / "state"
            before = f". {state}\n" if state.exists() else ""
            process = subprocess.Popen(
                ["bash", "-c", f"{before}{command}\nwait" if plain.endswith("&") else f"{before}exec env {command}"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + START_S
        while is_server and _READY not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > until:
                raise BlockFailed(f"no server is ready after: {command}\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        if is_server:
            self._servers[name] = process
        elif process.poll() not in (None, 0):
            raise BlockFailed(f"{command}\n{log.read_text(errors='replace')}")

    def _stop(self, name: str) -> None:
        if server := self._servers.pop(name, None):
            server.send_signal(signal.SIGINT)
            server.wait(START_S)

    # ------------------------------------------------------------------ Python

    def _python(self, text: str, place: str) -> None:
        print(f"> Python of {place}", flush=True)
        code = compile(text, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(BLOCK_S)
        environment = dict(os.environ)
        os.environ.update(self._environment)
        try:
            made = eval(code, self._names)
            if inspect.iscoroutine(made):
                asyncio.set_event_loop(self._loop)
                self._loop.run_until_complete(made)
        finally:
            signal.alarm(0)
            os.environ.clear()
            os.environ.update(environment)

    # ------------------------------------------------------------------ files

    def _conf(self, text: str) -> None:
        named = re.match(r"# ([\w-]+\.conf)\b", text)
        path = self._work / (named[1] if named else "nats.conf")
        path.write_text(text)
        self._finish(["lakestream", "serve", "-t", "-c", str(path)], "", shown=text)

    def _properties(self, text: str) -> None:
        known = {" ".join(line.split()) for file in (ROOT / "spark_conf").rglob("*.conf") for line in file.open()}
        if unknown := [line for line in text.splitlines() if " ".join(line.split()) not in known]:
            raise BlockFailed(f"not in spark_conf/: {unknown}")


def _too_long(number: int, frame: FrameType | None) -> None:
    raise BlockFailed(f"a block of Python takes longer than {BLOCK_S} s")


def _make_run() -> str:
    """Return the command of `make run`, as the Makefile has it."""
    makefile = (ROOT / "Makefile").read_text()
    (line,) = re.findall(r"^\texec \$\(BIN\)/(lakestream up .*?) \$\(ARGS\)$", makefile, re.MULTILINE)
    return str(line)


def _commands(text: str) -> Iterator[str]:
    """Yield the commands of a script: as many lines each as bash needs."""
    lines: list[str] = []
    for line in text.splitlines():
        if not lines and (not line.strip() or line.lstrip().startswith("#")):
            continue
        lines.append(line)
        whole = "\n".join(lines)
        check = subprocess.run(["bash", "-n", "-c", whole], capture_output=True, text=True, check=False)
        if line.rstrip().endswith("\\") or check.returncode or check.stderr:
            continue
        yield whole
        lines = []
    if lines:
        raise BlockFailed("incomplete command:\n" + "\n".join(lines))


def main() -> int:
    """Run a page; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("--programs", type=Path, default=Path("/usr/local/bin"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--inside", action="store_true")
    given = parser.parse_args()
    path = (ROOT / given.page).resolve()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="page"))
    if not given.inside:
        done = run_in_namespaces(path, given.programs, folder)
        print(done.stdout)
        return done.returncode
    _furnish(folder)
    chosen = [block for block in blocks(path) if not block.reason]
    page = Page(folder, given.programs, world(name_of(path)))
    place = "preparation"
    try:
        page.begin()
        for block in chosen:
            place = f"{block.place} ({block.language})"
            print(f"=== {place}", flush=True)
            page.run(block)
    except Exception as error:
        import traceback

        traceback.print_exc(limit=-3)
        for log in folder.glob("background-*.log"):
            print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-20:], sep="\n")
        print(f"FAILED: {place}: {error}", flush=True)
        return 1
    finally:
        page.close()
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of Spark and of clients end with the process
