"""`lakestream` with faults that a test switches on and off while it runs.

LAKESTREAM_TEST_FAULTS=FILE python faulty_node.py serve -js …

FILE holds JSON and is read again whenever it changes:
    {"sync": "EIO"}          every fsync fails with this error
    {"write": "ENOSPC"}      every write fails with this error
    {"sync_seconds": 0.5}    every fsync takes this much longer
    {"clock_seconds": -60}   the wall clock is shifted by this much
    {"clock_rate": 2}        the wall clock goes twice as fast, from the moment on at which this is read
    {"lake_seconds": 0.5}    every operation on the lake's files takes this much longer
    {"only": "/S-"}          faults affect only files whose path contains this

LAKESTREAM_TEST_BUG=NAME plants a bug of tests/histories/bugs.py in the server, which the checkers must find.

Belongs here: the faults themselves, installed in the log's file layer and the wall clock before the server starts.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.02
LAKE = ("read", "read_entry", "read_end", "read_range", "stat", "list", "tree", "write", "create", "move", "delete")
"""Operations on a lake's files that can be slow."""


class Faults:
    """Faults that are active now, read from the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = -1
        self._clock = time.time_ns
        self._since_ns = 0
        self.now: dict[str, Any] = {}
        self.read()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(POLL_SECONDS):
            self.read()

    def read(self) -> None:
        """Read the file if it has changed."""
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._seen:
                self.now = json.loads(self._path.read_text() or "{}")
                self._since_ns = self._clock()
                self._seen = changed
        except (OSError, ValueError):
            return  # missing or half written: read it next time

    def wall_ns(self) -> int:
        """Return the time of the wall clock."""
        true_ns, rate = self._clock(), self.now.get("clock_rate", 1)
        return true_ns + int(self.now.get("clock_seconds", 0) * 1e9) + int((true_ns - self._since_ns) * (rate - 1))

    def raise_for(self, operation: str, fd: int) -> None:
        """Raise the active error for this operation on this file, if there is one."""
        if not (name := self.now.get(operation)):
            return
        if (only := self.now.get("only")) and only not in os.readlink(f"/proc/self/fd/{fd}"):
            return
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number))


def install(faults: Faults) -> None:
    """Install the faults in the file layer, the lake and the clock."""
    time.time_ns = faults.wall_ns
    time.time = lambda: time.time_ns() / 1e9

    from lakestream.log.format.files import Files

    real_write, real_sync = Files.write, Files.sync

    def write(self: Files, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        faults.raise_for("write", fd)
        real_write(self, fd, buffers, offset)

    def sync(self: Files, fd: int) -> None:
        faults.raise_for("sync", fd)
        if seconds := faults.now.get("sync_seconds"):
            threading.Event().wait(seconds)
        real_sync(self, fd)

    Files.write, Files.sync = write, sync  # type: ignore[method-assign]
    from lakestream.lake.storage.local_storage import LocalStorage

    for name in LAKE:
        setattr(LocalStorage, name, _slow(getattr(LocalStorage, name), faults))


def _slow(real: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    """Return a function that first waits for as long as the faults say."""

    def slow(*arguments: Any, **options: Any) -> Any:
        if seconds := faults.now.get("lake_seconds"):
            threading.Event().wait(seconds)
        return real(*arguments, **options)

    return slow


def plant(name: str) -> None:
    """Plant a bug for the life of the process."""
    from tests.histories.bugs import BUGS

    BUGS[name].plant(ExitStack())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    install(Faults(Path(os.environ["LAKESTREAM_TEST_FAULTS"])))
    if planted := os.environ.get("LAKESTREAM_TEST_BUG"):
        plant(planted)
    from lakestream.cli.main import main

    main()
