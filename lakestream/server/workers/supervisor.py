"""The process that starts the workers of a server and keeps them running.

Belongs here: forking workers, restarting those that die, passing signals on, and reporting that the server is ready.
The supervisor serves nothing itself: it has one thread and no event loop, so that it can fork at any time, and a new
worker starts with all modules loaded.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from types import FrameType

import msgspec

from lakestream.config.errors import StartError
from lakestream.config.loading import reload
from lakestream.config.options import BoundPorts, Options
from lakestream.logging import Logger
from lakestream.net.identity import new_server_id
from lakestream.net.listener import ListenError, reserve
from lakestream.ops import ports_file
from lakestream.protocol.nkeys import SERVER, new_key
from lakestream.server.early_signals import EARLY, ENDING, KEPT
from lakestream.server.workers.stores import distribute
from lakestream.server.workers.worker import WORKERS, Counts, Worker

FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 10.0
"""Pause before a worker is restarted for the second time in a row, which doubles each time (100 ms), and its maximum
(10 s). The first restart is at once."""
HEALTHY_S = 60.0
"""A worker that lived for this long (60 s) is restarted at once again."""
GIVE_UP_AFTER = 10
"""Deaths in a row (10) after which the server stops, so that whatever runs it takes notice."""
STOP_WAIT_S = 30.0
"""Time that the workers have to stop (30 s) before they are killed."""
RETIRED_CHECK_S = 0.1
"""Interval of checks for the end of lame duck mode in all workers (100 ms)."""
MAX_SOCKET_PATH = 90
"""Longest path of the sockets' directory (bytes); a longer one is reached by its file descriptor."""

HANDLED = (*ENDING, *KEPT, signal.SIGCHLD)

RunWorker = Callable[[Options, Worker], int]
"""Runs a worker with its settings in this process; returns the exit code."""


class _Process:
    """One worker's process: its pid while it runs, and its history."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = 0
        self.ready = -1
        self.is_ready = False
        self.began = 0.0
        self.deaths = 0
        self.due = 0.0


class WorkerSupervisor:
    """The workers of one server.

    Args:
        options: with `workers` above 1.
        run_worker: see `RunWorker`.
    """

    def __init__(self, options: Options, log: Logger, run_worker: RunWorker) -> None:
        self._options, self._log, self._run_worker = options, log, run_worker
        self._processes = [_Process(index) for index in range(options.workers)]
        self._listening: dict[str, list[str]] = {}
        self._announced = self._stopping = self._retiring = False
        self._code = 0
        self._files: list[str] = []
        self._signals: list[int] = []

    def run(self) -> int:
        """Serve until stopped; return the exit code. Raises StartError."""
        options, count = self._options, self._options.workers
        if options.jetstream is not None:
            for line in distribute(options.jetstream, count):
                self._log.info(line)
        with contextlib.ExitStack() as ending:
            self._wakeup = self._catch_signals(ending)
            self._sockets = self._make_directory(ending)
            self._ports = self._reserve(ending)
            self._connections, self._retired = Counts(count), Counts(count)
            needs_key = options.callout is not None or options.operators is not None
            self._key = new_key(SERVER) if needs_key else None
            self._server_id = new_server_id()
            self._alive, self._lifeline = os.pipe()
            ending.callback(os.close, self._lifeline)
            ending.callback(self._remove_files)
            gc.collect()
            gc.freeze()  # collections in a worker would copy the pages that all share
            gc.enable()
            self._log.info(f"Starting {count} workers")
            for process in self._processes:
                self._start(process)
            self._watch()
        self._log.info("Server Exiting..")
        return self._code

    # ------------------------------------------------------------------ set-up
    def _make_directory(self, ending: contextlib.ExitStack) -> str:
        """Return the directory of the sockets, which only this user may enter."""
        if self._options.jetstream is None:
            directory = tempfile.mkdtemp(prefix="lakestream-")
            ending.callback(shutil.rmtree, directory, True)
        else:
            directory = os.path.join(self._options.jetstream.store_dir, WORKERS)
            os.makedirs(directory, mode=0o700, exist_ok=True)
            os.chmod(directory, 0o700)
        if len(os.fsencode(directory)) <= MAX_SOCKET_PATH:
            return directory
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        ending.callback(os.close, opened)
        return f"/proc/self/fd/{opened}"

    def _reserve(self, ending: contextlib.ExitStack) -> tuple[int, int]:
        """Bind the ports that the workers share; return those for clients and for WebSocket (0: none)."""
        options, found = self._options, list[int]()
        for host, port in ((options.host, options.port), (options.websocket.host, options.websocket.port)):
            if found and not port:
                found.append(0)
                continue
            try:
                bound = reserve(host, port)
            except ListenError as error:
                raise StartError(f'Error listening on port: {host}:{max(port, 0)}, "{error}"') from error
            ending.callback(bound.close)
            found.append(int(bound.getsockname()[1]))
        return found[0], found[1]

    def _catch_signals(self, ending: contextlib.ExitStack) -> socket.socket:
        """Collect signals in `_signals`; return a socket that is readable when there are new ones."""
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)

        def note(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)

        signal.set_wakeup_fd(writing.fileno())
        for number in HANDLED:
            signal.signal(number, note)
        EARLY.release()

        def end() -> None:
            signal.set_wakeup_fd(-1)
            reading.close()
            writing.close()

        ending.callback(end)
        return reading

    # ------------------------------------------------------------------ workers
    def _start(self, process: _Process) -> None:
        ready, report = os.pipe()
        process.ready, process.is_ready, process.began = ready, False, time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # the worker has the supervisor's handlers at first
        process.pid = os.fork()
        if process.pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            os.close(report)
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            EARLY.log = None  # the supervisor tells of the end
            EARLY.catch()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            os.close(self._lifeline)
            os.close(ready)
            worker = Worker(
                process.index,
                len(self._processes),
                self._ports,
                self._sockets,
                self._server_id,
                self._key,
                self._connections,
                self._retired,
                report,
                self._alive,
            )
            code = self._run_worker(worker.options_of(self._options), worker)
        except BaseException as error:
            self._log.exception(f"worker {process.index} failed", error)
        finally:
            os._exit(code)  # what the supervisor does at its end is not a worker's

    def _watch(self) -> None:
        """Wait for signals and workers until all are gone."""
        deadline = 0.0
        while any(process.pid for process in self._processes) or not self._stopping:
            pipes = [process.ready for process in self._processes if process.ready >= 0]
            readable, _, _ = select.select([self._wakeup.fileno(), *pipes], [], [], self._wait_s(deadline))
            if self._wakeup.fileno() in readable:
                with contextlib.suppress(BlockingIOError):
                    while self._wakeup.recv(4096):
                        pass
            for process in self._processes:
                if process.ready in readable:
                    self._read(process)
            signals, self._signals = self._signals, []
            for number in signals:
                self._take(number)
            self._reap()
            if self._stopping:
                deadline = deadline or time.monotonic() + STOP_WAIT_S
                if time.monotonic() >= deadline:
                    self._log.warn(f"workers did not end within {STOP_WAIT_S:g} s; killing them")
                    self._send(signal.SIGKILL)
            elif self._retiring:
                if self._retired.total() == len(self._processes):
                    self._stop(0)
            else:
                self._restart()

    def _wait_s(self, deadline: float) -> float | None:
        now = time.monotonic()
        if self._stopping:
            return max(0.0, deadline - now) if deadline else 0.0
        if self._retiring:
            return RETIRED_CHECK_S
        dues = [process.due for process in self._processes if not process.pid]
        return max(0.0, min(dues) - now) if dues else None

    def _take(self, number: int) -> None:
        if number in ENDING:
            if not self._stopping:
                self._log.info("Initiating Shutdown...")
                self._stop(0)
        elif number in KEPT:
            if number == signal.SIGUSR1:
                self._log.reopen()
            if number == signal.SIGHUP:
                self._reload()
            # Workers that end after a lame duck are not restarted.
            self._retiring |= number == signal.SIGUSR2
            self._send(number)

    def _reload(self) -> None:
        """Read the configuration again for workers that are started later; the running ones do so themselves."""
        try:
            options, changed = reload(self._options, self._bound())
        except StartError:
            return  # the workers log it
        self._options = options
        if "log_file" in changed:
            self._log.reopen(options.log_file)
        self._log.configure(
            debug=options.debug,
            trace=options.trace,
            logtime=options.logtime,
            utc=options.logtime_utc,
            as_json=options.log_json,
        )

    def _bound(self) -> BoundPorts:
        clients, websocket = self._ports
        leafnodes = self._listening.get("leafnodes")
        return BoundPorts(clients, 0, int(leafnodes[0].rpartition(":")[2]) if leafnodes else 0, websocket)

    def _read(self, process: _Process) -> None:
        """Read what a worker reports; its pipe ends when it is ready or gone."""
        report = b""
        while part := os.read(process.ready, 65536):
            report += part
        os.close(process.ready)
        process.ready = -1
        if not report:
            return
        process.is_ready = True
        if process.index == 0:
            self._listening = msgspec.json.decode(report, type=dict[str, list[str]])
        if not self._announced and all(each.is_ready for each in self._processes):
            self._announced = True
            self._announce()

    def _announce(self) -> None:
        """Write the PID file and the ports file, and the line that the server is ready."""
        options = self._options
        try:
            if options.pid_file:
                ports_file.write_pid_file(options.pid_file)
                self._files.append(options.pid_file)
        except StartError as error:
            self._log.fatal(str(error))
            self._stop(1)
            return
        try:
            if options.ports_file_dir:
                self._files.append(ports_file.write_ports_file(options.ports_file_dir, self._listening))
        except StartError as error:
            self._log.error(str(error))
        self._log.info("Server is ready")

    def _reap(self) -> None:
        for process in self._processes:
            if not process.pid:
                continue
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if not pid:
                continue
            process.pid = 0
            if process.ready >= 0:
                self._read(process)
            self._connections.put(process.index, 0)
            if not self._stopping:
                self._died(process, os.waitstatus_to_exitcode(status))

    def _died(self, process: _Process, code: int) -> None:
        now = time.monotonic()
        if self._retiring:
            self._retired.put(process.index, 1)
            return
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if not self._announced:
            self._log.fatal(f"worker {process.index} {how} before the server was ready")
            self._stop(1)
            return
        process.deaths = 1 if now - process.began >= HEALTHY_S else process.deaths + 1
        if process.deaths > GIVE_UP_AFTER:
            self._log.fatal(f"worker {process.index} {how}, {process.deaths} times in a row: giving up")
            self._stop(1)
            return
        delay = 0.0 if process.deaths == 1 else min(FIRST_DELAY_S * 2 ** (process.deaths - 2), LONGEST_DELAY_S)
        process.due = now + delay
        self._log.error(f"worker {process.index} {how}; restarting it" + (f" in {delay:g} s" if delay else ""))

    def _restart(self) -> None:
        now = time.monotonic()
        for process in self._processes:
            if not process.pid and process.due <= now:
                self._start(process)

    def _stop(self, code: int) -> None:
        self._stopping, self._code = True, code
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals | int) -> None:
        """Pass a signal on; to the first worker last, whose lines in the log tell that it was handled."""
        for process in reversed(self._processes):
            if process.pid:
                os.kill(process.pid, number)

    def _remove_files(self) -> None:
        for path in reversed(self._files):
            ports_file.remove(path)
