"""`lakestream up`: the server with its compactor.

Belongs here: what `up` adds to `serve`: JetStream on, a store in ./data, monitoring and console, loopback addresses as
long as nobody needs a login, the compactor as a supervised child, and the lines that show all addresses and paths. The
server works the same with or without the child.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Sequence

import msgspec

from lakestream.cli import serve
from lakestream.cli.supervisor import ChildSupervisor, StartPostponed, Timing
from lakestream.config.loading import load
from lakestream.config.options import FREE_PORT, LOOPBACK, Flags, LakeOptions, Options
from lakestream.logging import Logger
from lakestream.server.node import Node
from lakestream.server.workers.worker import Worker

DEFAULT_STORE = "data"
MONITOR_PORT = 8222
"""Default port of monitoring, metrics and console, at the loopback interface; a free one if it is taken."""
METRICS_PORT = 9464
"""Default port of the compactor's metrics, at the loopback interface; there are none if it is taken."""

_TRACE = re.compile(
    r"\s|Traceback \(|Caused by: |Suppressed: |(During handling|The above exception)\b"
    r"|Setting (default|Spark) log level |To adjust logging level |WARNING: Using incubator modules"
)
"""Lines of a stack trace of Java or Python, except for the first or last one, which has the error; and what every Spark
prints when it starts."""
_COMPLAINT = re.compile(r"lakestream: |[\w.$]+(Error|Exception|Failure)(:|$)")


def up(arguments: Sequence[str]) -> int:
    """Run `lakestream up` with the arguments after that word (those of serve); returns the exit code."""
    return serve.start(arguments, "lakestream up", settle, run)


def settle(flags: Flags) -> Options:
    """Return the options of serve with JetStream on, in ./data unless flag or file names a store, and with monitoring.
    Without authorization it listens on the loopback interface, unless flag or file names another address.

    What is decided here becomes part of the flags, so that a reload keeps it.

    Raises:
        StartError: as `load`.
    """
    flags = msgspec.structs.replace(flags, jetstream=True, local=True)
    options = load(flags)
    if options.jetstream is not None and options.jetstream.temporary_store:
        flags = msgspec.structs.replace(flags, store_dir=DEFAULT_STORE)
    if options.host == LOOPBACK:
        flags = msgspec.structs.replace(flags, host=LOOPBACK)
    if not options.http_port and not options.https_port:
        port = MONITOR_PORT if is_free(MONITOR_PORT) else FREE_PORT
        flags = msgspec.structs.replace(flags, http_host=LOOPBACK, http_port=port)
    return load(flags)


def is_free(port: int) -> bool:
    """Return True if nothing listens at a port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def run(options: Options, log: Logger) -> int:
    """Run a node with a compactor until it is stopped; return the exit code."""
    return serve.run(options, log, _make)


def _make(options: Options, log: Logger, worker: Worker | None) -> Node:
    """Return the node that starts the compactor; of several workers only the first one does."""
    return ServerWithCompactor(options, log, worker) if worker is None or worker.first else Node(options, log, worker)


class ServerWithCompactor(Node):
    """A node that starts the compactor once it is ready, and stops it with itself."""

    def __init__(
        self, options: Options, log: Logger, worker: Worker | None = None, timing: Timing | None = None
    ) -> None:
        super().__init__(options, log, worker)
        self.compactor: ChildSupervisor | None = None
        self._timing = timing

    async def start(self) -> None:
        """Start the node, then the compactor, without waiting for it."""
        await super().start()
        if self.keeper is None:
            return
        lake = self.options.lake
        if not lake.compactor_metrics_port and is_free(METRICS_PORT):
            lake = msgspec.structs.replace(lake, compactor_metrics_port=METRICS_PORT)
        self.keeper.starting = True
        self.compactor = ChildSupervisor(
            "compactor",
            Compaction(self.keeper.root, self.log, lake),
            output=self._pass_on,
            report=self._report,
            timing=self._timing,
            environ=self._environ(),
        )
        self.compactor.start()
        shown = (
            self._url(),
            self.listeners.has_console,
            f"{lake.compactor_metrics_host}:{lake.compactor_metrics_port}",
        )
        if not self.options.log_json:  # each line is an object then
            print(welcome(self.options.host, self.identity.port, self.keeper.root, *shown), flush=True)

    async def stop(self) -> None:
        """Stop the node and the compactor; return when both are gone."""
        if self.compactor is None:
            await super().stop()
            return
        self.compactor.request_stop()
        try:
            await super().stop()
        finally:
            await asyncio.get_running_loop().run_in_executor(None, self.compactor.stop)

    def _url(self) -> str:
        """Return the URL of the monitoring port."""
        options, port = self.options, self.listeners.http_port
        scheme = "https" if options.https_port else "http"
        return f"{scheme}://{_reachable(options.http_host or options.host)}:{port}{options.http_base_path}"

    def _environ(self) -> dict[str, str]:
        """Return the variables by which the compactor learns of settings that other programs have in variables."""
        added = {"LAKESTREAM_SPARK_LOG": "error"} if self.log.debugging else {}
        if self.options.otel.endpoint:
            added |= {"OTEL_EXPORTER_OTLP_ENDPOINT": self.options.otel.endpoint}
        if self.options.lake.spark_connect_token:  # not on the command line, which every user of the machine may read
            added |= {"SPARK_CONNECT_AUTHENTICATE_TOKEN": self.options.lake.spark_connect_token}
        return added

    def _pass_on(self, line: str) -> None:
        write = {"error": self.log.error, "warn": self.log.warn, "info": self.log.info, "debug": self.log.debug}
        write[level_of(line)](f"compactor: {line}")

    def _report(self, level: str, text: str) -> None:
        if level == "warn" and self.keeper is not None:  # it waits for Java, say, or has ended
            self.keeper.starting = False
        (self.log.warn if level == "warn" else self.log.info)(text)


def level_of(line: str) -> str:
    """Return the level at which a line of the compactor is logged: what it complains of is a warning, and a stack trace
    below the line that says what went wrong is for debugging."""
    if _TRACE.match(line):
        return "debug"
    if " ERROR " in line:
        return "error"
    return "warn" if " WARN " in line or _COMPLAINT.match(line) else "info"


class Compaction:
    """Returns the compactor's command line, once there are Spark and a Java to run it with.

    Args:
        lake: the lake's root.
        log: told when Java has been found.
        options: settings of the compactor: the pause between two rounds of maintenance, and the address of its
            metrics; its own defaults without.
    """

    def __init__(self, lake: str, log: Logger, options: LakeOptions | None = None) -> None:
        self._lake = lake
        self._log = log
        self._options = options

    def __call__(self) -> list[str]:
        """Return the command line. Raises Waiting without Spark, Java 17 or newer, or the program."""
        from lakestream import extras
        from lakestream.lake.errors import JavaMissing, JobMissing
        from lakestream.spark import ENTRY_POINTS

        try:
            extras.require("lake", "the compactor")
            found = extras.load(ENTRY_POINTS, "jars", "lake", "the compactor").find_java()
            compactor = extras.load(ENTRY_POINTS, "compactor", "lake", "the compactor")
            command: list[str] = compactor(self._lake, "--exit-with-parent")
            if self._options is not None:
                command += flags_of(self._options)
        except (extras.ExtraMissing, JavaMissing) as error:
            raise StartPostponed(
                f"{error}. The server serves without it; the compactor starts by itself then"
            ) from None
        except JobMissing as error:
            raise StartPostponed(str(error)) from None
        self._log.info(f"Starting the compactor with Java {found.version} ({found.home})")
        return command


def flags_of(options: LakeOptions) -> list[str]:
    """Return the compactor's flags for these settings."""
    flags = [f"--maintain-every={options.maintain_every_ns / 1e9:g}"]
    for flag, host, port in (
        ("--metrics", options.compactor_metrics_host, options.compactor_metrics_port),
        ("--connect", options.spark_connect_host, options.spark_connect_port),
    ):
        if port:
            flags.append(f"{flag}={f'[{host}]' if ':' in host else host}:{port}")
    flags += [f"--catalog={each}" for each in options.catalogs]
    flags += [f"--iceberg={options.iceberg}"] if options.iceberg else []
    return flags


def welcome(host: str, port: int, lake: str, monitor: str, console: bool, compactor: str) -> str:
    """Return the first lines for the user.

    Args:
        host, port: of the listener for clients.
        lake: the lake's root.
        monitor: URL of the monitoring port.
        console: it has the web console.
        compactor: `host:port` of the compactor's metrics; port 0: there are none.
    """
    url = f"nats://{_reachable(host)}:{port}"
    shown = lake if "://" in lake else os.path.relpath(lake)
    if shown.startswith(".."):
        shown = lake
    quoted, program = shlex.quote(shown), _program()
    shown_at = f"{monitor}/console" if console else f"off ({monitor} has the monitoring pages)"
    metrics = f"{monitor}/metrics" + (
        "" if compactor.endswith(":0") else f", of the compactor http://{compactor}/metrics"
    )
    return f"""
  lakestream is up
    connect   {url}   (any NATS client, JetStream on)
    console   {shown_at}
    metrics   {metrics}
    lake      {lake}
    try       {program} pub orders.de '{{"price": 9.5}}' --create ORDERS --server {url}
              {program} sql --lake {quoted} -q 'SELECT * FROM ORDERS'
              {program} status
    stop      Ctrl-C
"""


def _reachable(host: str) -> str:
    """Return the host of a URL that reaches a listener from this machine."""
    return LOOPBACK if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host


def _program() -> str:
    """Return this program as the user's shell finds it: its name, or its path from here (`.venv/bin/lakestream`)."""
    found = shutil.which("lakestream")
    if found is not None or not os.path.isfile(sys.argv[0]):
        return "lakestream"
    path = os.path.relpath(sys.argv[0])
    return shlex.quote(sys.argv[0] if path.startswith("..") else path)
