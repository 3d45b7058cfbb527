"""Keepers beside a compactor, as it knows them: of entries in catalogs, and of Iceberg tables.

Belongs here: the thread that the keepers of packages/catalogs and packages/iceberg have in common. The compactor finds
them as entry points of `KEEPERS`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

KEEPERS = "lakestream.keepers"
"""Group of entry points, each of which makes a `Keeper`."""
INACTIVE_SECONDS = 30.0
"""Interval of looks if this compactor works again."""
CREATE, ALTER, DROP = CHANGES = ("create", "alter", "drop")
"""Kinds of changes of entries."""


class Keeper(ABC):
    """Keeps something of a lake's tables beside a compactor, in a thread: it looks after commits, and now and then.

    Args:
        name: of the thread.
        active: false while another compactor works; then nothing happens here.
        least_s: minimum pause between two looks, seconds.
        stop_s: time that a look under way gets at the end, seconds.
    """

    def __init__(self, name: str, active: Callable[[], bool], least_s: float, stop_s: float) -> None:
        self._active, self._least_s, self._stop_s = active, least_s, stop_s
        self._guard, self._announced = threading.Lock(), set[str]()
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def once(self) -> Sequence[Any]:
        """Do what is due."""

    @abstractmethod
    def pause(self) -> float:
        """Return the time until the next look if no commit is announced, seconds."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Report an error that nothing else has caught."""

    @property
    def ending(self) -> bool:
        """Return True once the keeper is to stop."""
        return self._ending.is_set()

    def start(self) -> None:
        """Start, unless it is running."""
        if self._thread.ident is None:
            self._thread.start()

    def note(self, tables: Collection[str]) -> None:
        """Announce commits to tables, or their removal, by their paths. Returns at once."""
        if tables:
            with self._guard:
                self._announced.update(tables)
            self._wake.set()

    def taken(self) -> set[str]:
        """Return the tables that were announced since the last call."""
        with self._guard:
            found, self._announced = self._announced, set()
        return found

    def stop(self) -> None:
        """Stop after what is under way."""
        self._ending.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(self._stop_s)

    def _run(self) -> None:
        while not self.ending:
            if self._active():
                try:
                    self.once()
                except Exception as error:  # it must not end what follows
                    self.failed(error)
            self._ending.wait(self._least_s)
            self._wake.wait(self.pause() if self._active() else INACTIVE_SECONDS)
            self._wake.clear()
