"""A server and a compactor over one store and lake, each of any release.

Belongs here: starting, replacing and killing the two programs, requests to the server, and waiting until the tables
have what the streams have. The steps of the campaign are in walk.py.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lakestream.lake.storage import paths
from lakestream.lake.table.at import NotATable, open_log
from tests.lake.test_compact_job import Job
from tests.releases import NOW, Release
from tests.servers import Kind, Server
from tests.stored.facts import asked
from tests.wire import Closed, Wire, WireTimeout

CONFIG = 'lake { seal_bytes: 16k, seal_age: "3s", retain_bytes: 0, poll: "100ms", staged_grace: 0 }\n'
SOON_S = 900.0
"""Longest wait for a compactor. Spark starts in minutes on a busy machine; that of 0.1.0 may need several starts then
(`Programs.tend`)."""
POLL_S = 0.5
ATTEMPTS = 20
"""Maximum number of times that a request is repeated while no server answers."""


class Broken(AssertionError):
    """Raised if a promise is broken."""


def until(ready: Callable[[], Any], what: str, seconds: float = SOON_S) -> None:
    """Poll until the answer is true.

    Raises:
        Broken: it was not in time.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise Broken(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL_S)


class Programs:
    """The two programs.

    Attributes:
        repeated: starts of a compactor of an older release that had ended by itself.
    """

    def __init__(self, place: Path) -> None:
        self.server = Server(Kind.OURS, place / "store", config=CONFIG)
        self.lake = place / "store" / "lake"
        self.repeated = 0
        self.compactor: Release | None = None
        self._job: Job | None = None

    @property
    def said(self) -> list[str]:
        """Return the output of the compactor that runs."""
        return [] if self._job is None else list(self._job.lines)

    def serve(self, release: Release, kill: bool) -> None:
        """Start the server of a release in the place of the one that runs.

        Older ones refuse the journal that a killed server of this release leaves: this one starts and stops once more.
        """
        if self.server.running:
            if kill:
                self.server.kill()
                if release != NOW and self.server.environment == NOW.environment:
                    self.server.start()
            if self.server.running and (code := self.server.stop()):
                raise Broken(f"the server ended with {code}\n{self.server.log(40)}")
        self.server.environment = dict(release.environment)
        self.server.start()

    def end_compactor(self, kill: bool) -> None:
        """End the compactor, with SIGKILL or SIGTERM."""
        assert self._job is not None
        if kill:
            self._job.kill()
        else:
            self._job.process.send_signal(signal.SIGTERM)
            self._job.end()

    def compact(self, release: Release) -> None:
        """Start the compactor of a release. Spark's workers import what is in the directory in which a job runs."""
        self.compactor = release
        flags = ("--interval", "0.5", "--maintain-every", "60")
        program = [sys.executable, str(release.job)]
        self._job = Job(self.lake, *flags, program=program, environment=release.environment, cwd=release.tree)

    def tend(self) -> None:
        """Start a compactor of an older release again if it has ended, as `lakestream up` does.

        0.1.0 ends on a machine that is so busy that Spark's Python workers are late, which later ones wait for.

        Raises:
            Broken: one of this release has ended.
        """
        if self._job is None or self.compactor is None or self._job.process.poll() is None:
            return
        if not self.compactor.environment:
            raise Broken("the compactor has ended:\n" + "\n".join(self._job.lines[-40:]))
        self.repeated += 1
        self.compact(self.compactor)

    def close(self) -> None:
        """Kill both."""
        self.server.kill()
        if self._job is not None:
            self._job.kill()

    def log(self) -> str:
        """Return the newest lines of both."""
        return "\n".join([self.server.log(60), *self.said[-60:]])

    def ask(self, subject: str, body: Any = None) -> Any:
        """Return the answer to an API request, which is repeated while nobody answers."""
        for _ in range(ATTEMPTS):
            with contextlib.suppress(OSError, Closed, WireTimeout), Wire(self.server.address, timeout=60) as wire:
                return asked(wire, subject, body)
            time.sleep(0.2)
        raise Broken(f"no answer to {subject}")

    def last(self, stream: str) -> int:
        """Return the last sequence of a stream."""
        return int(self.ask(f"STREAM.INFO.{stream}")["state"]["last_seq"])

    def reached(self, stream: str) -> int:
        """Return the sequence through which the table has its stream."""
        try:
            log = open_log(paths.table(str(self.lake), stream))
            progress = log.progress(log.latest)
        except NotATable:
            return 0
        return 0 if progress is None else progress.last_seq

    def follow(self, streams: Iterable[str]) -> None:
        """Wait until the tables have all that these streams have now."""
        wanted = {stream: self.last(stream) for stream in streams}
        for stream, last in wanted.items():
            until(partial(self._has, stream, last), f"{stream} {last} in its table")

    def _has(self, stream: str, last: int) -> bool:
        self.tend()
        return self.reached(stream) >= last
