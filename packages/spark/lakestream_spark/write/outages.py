"""Outages of the lake, as the compactor outlasts them.

Belongs here: deciding whether an error comes from a lake that is away, and waiting until it is back. The compactor then
starts anew, with the Spark that it has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lakestream.lake.errors import LakeAway, LeaseLost, StorageFailed, first_line
from lakestream.lake.storage.lake import open_storage, read_id
from lakestream.lake.storage.probe import Probe

LOOK_SECONDS = 2.0
"""Interval of probes of a lake that is away (2 s)."""
TRIES = 5
"""Attempts in a row after errors of a lake that answers, as after a short outage."""
PAUSE_SECONDS = 1.0
"""Pause before the first of them (1 s); each further one is twice as long."""
HEALTHY_SECONDS = 60.0
"""Time of work (60 s) after which an error is the first one again."""


class Outages:
    """Outages of one lake.

    Args:
        lake: the lake's root.
        stopping: ends a wait.
        complain: gets a line when an outage begins and when it ends.
    """

    def __init__(self, lake: str, stopping: threading.Event, complain: Callable[[str], None]) -> None:
        self._probe = Probe(lake)
        self._probe.expect(read_id(open_storage(lake)))
        self._stopping, self._complain = stopping, complain
        self._began, self._failed = time.monotonic(), 0

    def working(self) -> None:
        """Note that work begins."""
        self._began = time.monotonic()

    def outlast(self, error: BaseException) -> bool:
        """Wait until the lake is back, if it is the cause of an error; return False if it is not, or when stopping."""
        if self._stopping.is_set():
            return False
        away = self._look()
        if away is None:
            return self._try_again(error)
        self._complain(str(away))
        while self._look() is not None:
            if self._stopping.wait(LOOK_SECONDS):
                return False
        self._complain(f"the lake at {self._probe.root} is back")
        self._failed = 0
        return True

    def _try_again(self, error: BaseException) -> bool:
        """Return True after a pause if the lake may have been away for a short time."""
        if time.monotonic() - self._began > HEALTHY_SECONDS:
            self._failed = 0
        self._failed += 1
        if self._failed > TRIES or not _is_of_storage(error):
            return False
        pause = PAUSE_SECONDS * 2 ** (self._failed - 1)
        self._complain(f"{first_line(error)}; try {self._failed} of {TRIES}, the next in {pause:g} s")
        return not self._stopping.wait(pause)

    def _look(self) -> LakeAway | None:
        try:
            self._probe.check()
        except LakeAway as error:
            return error
        return None


def _is_of_storage(error: BaseException) -> bool:
    """Return True for errors of files and of object stores, and of a query that these may have ended."""
    if isinstance(error, StorageFailed | LeaseLost):
        return True
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError)  # the JVM has gone
    return type(error).__name__ == "StreamingQueryException"
