"""Signals while a server starts.

Belongs here: signals from the first line of the program until the node, or the supervisor of workers, handles them.

No handler raises. An exception that comes between any two instructions, as KeyboardInterrupt does, surfaces in the
middle of an import, where a traceback is the best outcome: callbacks swallow it, and an extension module may go on
half initialised (msgspec then crashes at its first decoder). Until the node handles signals there is nothing to close:
the files are as after a crash, which every start copes with. So the process ends in the handler itself.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # not imported: `typing` takes longer than all else before the handlers are in place
if TYPE_CHECKING:
    from types import FrameType

    from lakestream.logging import Logger

ENDING = (signal.SIGINT, signal.SIGTERM)
KEPT = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals for a server that is ready: reload, reopen the log file, lame duck mode."""


class EarlySignals:
    """Ends the process on SIGINT and SIGTERM, and keeps the other signals for the node.

    Attributes:
        log: tells of the end, once there is a log.
    """

    def __init__(self) -> None:
        self.log: Logger | None = None
        self._kept: dict[int, None] = {}

    def catch(self) -> None:
        """Handle signals from now on. Idempotent."""
        for number in ENDING:
            signal.signal(number, self._end)
        for number in KEPT:
            signal.signal(number, self._keep)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self.log is not None:
            self.log.info("Initiating Shutdown...")
            self.log.info("Server Exiting..")
            self.log.close()
        os._exit(0)

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._kept[number] = None

    def release(self) -> None:
        """Raise the kept signals again, for the handlers that are in place by now."""
        kept, self._kept = self._kept, {}
        for number in kept:
            signal.raise_signal(signal.Signals(number))


EARLY = EarlySignals()
"""Those of this process; it has one handler for each signal."""
