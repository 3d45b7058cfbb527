"""Servers and commands forked from a process that has loaded lakestream: a start costs 15 ms instead of 185.

    python -m tests.nursery SOCKET        the process itself, one for each test process

Belongs here: that process, and the handle of what it has forked, which has of `subprocess.Popen` what tests use. What
runs is `lakestream.cli.main` with the arguments, the environment and the files of a command; only the
interpreter and the modules are there before. Tests of the start itself use `subprocess`.

The nursery has one thread and no event loop, so that forking it is safe. It is the parent of the servers: it waits for
them, and writes how each has ended to a pipe of the handle.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from lakestream.extras import MODULES

_REQUEST_BYTES = 1 << 20
_WITHOUT = {
    "fastavro",
    "jsonschema_rs",
    *(name for names in MODULES.values() for name in names if not name.startswith("lakestream_")),
}
"""Packages that a process loads with the first use of a feature."""


class Forked:
    """A process that the nursery has forked.

    Args:
        command: words of a `lakestream` command, after the program.
        environment, directory: of the process; None: of this one.
        apart: its errors are in `stderr`, not in `stdout`.

    Attributes:
        pid: process id, and that of its group.
        stdout, stderr: what it prints.
        returncode: as of `subprocess.Popen`; None while it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        directory: Path | None = None,
        apart: bool = False,
    ) -> None:
        with _ASKING:  # one nursery, also for the first servers of several threads
            nursery = _nursery()
        printed, to_print = os.pipe()
        errors, to_err = os.pipe() if apart else (os.dup(printed), os.dup(to_print))
        self._ended, to_end = os.pipe()
        self._lock = threading.Lock()
        self.returncode: int | None = None
        variables = dict(os.environ if environment is None else environment)
        request = json.dumps([list(command), variables, str(directory or os.getcwd())]).encode()
        with _ASKING:
            socket.send_fds(nursery, [request], [to_print, to_err, to_end])
            answer = nursery.recv(8)
        assert answer, "the nursery has ended"  # a process id of 0 would be that of our own group
        self.pid = int.from_bytes(answer, "little")
        for file in (to_print, to_err, to_end):
            os.close(file)
        self.stdout, self.stderr = (cast(BinaryIO, open(file, "rb")) for file in (printed, errors))  # noqa: SIM115

    def poll(self) -> int | None:
        """Return how it has ended; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return it. Raise subprocess.TimeoutExpired."""
        with self._lock:
            if self.returncode is None:
                with selectors.PollSelector() as waiting:
                    waiting.register(self._ended, selectors.EVENT_READ)
                    if not waiting.select(timeout):
                        raise subprocess.TimeoutExpired("lakestream", timeout or 0)
                found = array.array("i", os.read(self._ended, 4))
                os.close(self._ended)
                self.returncode = found[0] if found else -signal.SIGKILL  # the nursery is gone, and so are its servers
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    directory: Path | None = None,
    timeout: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a `lakestream` command to its end, as `subprocess.run` does with `capture_output` and `text`.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it is killed then.
    """
    process = Forked(command, environment, directory=directory, apart=True)
    with process.stdout, process.stderr, ThreadPoolExecutor(2) as reading:
        said = [reading.submit(file.read) for file in (process.stdout, process.stderr)]
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out, err = (each.result().decode() for each in said)
    return subprocess.CompletedProcess(["lakestream", *command], process.wait(), out, err)


_ASKING = threading.Lock()


@functools.cache
def _nursery() -> socket.socket:
    """Start the nursery of this process; return the connection to it. It ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-m", "tests.nursery", str(its.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    its.close()
    return ours


def main(requests: socket.socket) -> None:
    """Fork processes until the test process is gone."""
    _load()
    running: dict[int, int] = {}
    woken, wake = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        waiting.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj == woken:
                    os.read(woken, 4096)
                    _reap(running)
                    continue
                content, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
                if not content:
                    return
                to_print, to_err, to_end = files
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    for file in (woken, wake, to_end, requests.fileno(), waiting.fileno(), *running.values()):
                        os.close(file)
                    _become(json.loads(content), to_print, to_err)
                os.close(to_print)
                os.close(to_err)
                running[pid] = to_end
                requests.send(pid.to_bytes(8, "little"))


def _load() -> None:
    """Load what servers and most commands load."""
    import lakestream
    import lakestream_commands

    for name in _WITHOUT:
        sys.modules[name] = None  # type: ignore[assignment]  # it cannot be imported
    for package in (lakestream, lakestream_commands):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    for name in _WITHOUT:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def _reap(running: dict[int, int]) -> None:
    """Tell the handles of the servers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            file = running.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(file, array.array("i", [os.waitstatus_to_exitcode(status)]).tobytes())
            os.close(file)


def _become(request: tuple[list[str], dict[str, str], str], to_print: int, to_err: int) -> NoReturn:
    """Be the process of a command."""
    command, environment, directory = request
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for file, at in ((to_print, 1), (to_err, 2)):
        os.dup2(file, at)
        os.close(file)
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.argv = ["lakestream", *command]
    from lakestream.cli.main import main as lakestream

    try:
        lakestream()
        sys.exit(0)
    except SystemExit as end:
        if isinstance(end.code, int):
            _end(end.code)
        raise


def _end(code: int) -> NoReturn:
    """End as the interpreter does, but leave the memory to the system: to free all modules copies their pages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
