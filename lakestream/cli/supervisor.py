"""Supervision of one child process.

Belongs here: starting a program, passing on its output line by line, restarting it when it dies, and ending it with
everything that it started. All of it happens in threads of its own, so the caller never waits for the child.

The child's standard input is a pipe that this process alone holds and never writes to, and its parent is this process:
whichever the child watches, it notices the end of this process even when that is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

LINE_BYTES = 16 * 1024
"""Longer lines of output are passed on in parts."""


class StartPostponed(Exception):
    """Raised while the program cannot be started yet; the text says what is missing."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Restart times in seconds.

    The wait doubles from `first` to `longest` with each death, and begins at `first` again once the child has lived for
    `healthy`. `recheck` is the interval of checks for a missing prerequisite. After SIGTERM the child has `grace`.
    """

    first: float = 1.0
    longest: float = 60.0
    healthy: float = 60.0
    recheck: float = 5.0
    grace: float = 10.0


class ChildSupervisor:
    """One supervised child.

    Args:
        name: its name in messages.
        command: returns the command line for each start; raises `StartPostponed` when it cannot start yet.
        output: takes each line that the child writes to stdout or stderr.
        report: takes (level, text) for events of the child; level is "info" or "warn".
        timing: see `Timing`.
        environ: added to the child's environment.

    `output` and `report` are called from other threads.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        output: Callable[[str], None],
        report: Callable[[str, str], None],
        timing: Timing | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._command = command
        self._output = output
        self._report = report
        self._timing = timing or Timing()
        self._environ = dict(environ or {})
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"supervise-{name}", daemon=True)
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Return the child's process id while it runs."""
        with self._lock:
            return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start the child; return at once."""
        self._thread.start()

    def request_stop(self) -> None:
        """Ask the child to stop, for good; return at once. Idempotent."""
        self._stopping.set()
        with self._lock:
            if self._child is not None:
                self._child.terminate()

    def stop(self) -> None:
        """Stop the child and wait until it and all that it started are gone. Takes at most the grace."""
        self.request_stop()
        if self._thread.ident is None:
            return
        self._thread.join(self._timing.grace)
        if self._thread.is_alive():
            with self._lock:
                if self._child is not None:
                    self._report("warn", f"{self._name} did not end within {self._timing.grace:g} s; killing it")
                    _kill_group(self._child.pid)
            self._thread.join()

    # ---- in the supervising thread

    def _run(self) -> None:
        delay = self._timing.first
        waits_for = ""
        while not self._stopping.is_set():
            try:
                command = self._command()
            except StartPostponed as reason:
                if str(reason) != waits_for:
                    waits_for = str(reason)
                    self._report("warn", waits_for)
                self._stopping.wait(self._timing.recheck)
                continue
            waits_for = ""
            began = time.monotonic()
            ending = self._live(command)
            if self._stopping.is_set():
                break
            lived = time.monotonic() - began
            if lived >= self._timing.healthy:
                delay = self._timing.first
            self._report("warn", f"{self._name} {ending} after {lived:.0f} s; starting it again in {delay:g} s")
            self._stopping.wait(delay)
            delay = min(delay * 2, self._timing.longest)

    def _live(self, command: Sequence[str]) -> str:
        """Run the child once; return how it ended."""
        with self._lock:
            if self._stopping.is_set():
                return "was not started"
            try:
                # A session of its own: Ctrl-C in the terminal reaches only this process, which then ends the child.
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **self._environ},
                )
            except OSError as error:
                return f"cannot be started ({error})"
            self._child = child
            self.starts += 1
        reader = threading.Thread(target=self._pass_on, args=(child,), name=f"read-{self._name}", daemon=True)
        reader.start()
        code = child.wait()
        with self._lock:
            self._child = None
            # Its own children (a JVM) would go on unsupervised, and keep the pipe open.
            _kill_group(child.pid)
        reader.join()
        assert child.stdin is not None
        child.stdin.close()
        return f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

    def _pass_on(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with child.stdout as stream:
            while line := stream.readline(LINE_BYTES):
                if text := line.decode("utf-8", "replace").rstrip():
                    self._output(text)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # already gone; macOS says EPERM for zombies
        os.killpg(group, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
