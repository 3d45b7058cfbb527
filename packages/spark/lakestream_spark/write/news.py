"""News in the staging area, for a source that waits.

Belongs here: telling that servers may have staged something, without a scan.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage

LOOK_SECONDS = 0.1
"""Interval at which `News` looks for a change."""


class News:
    """Tells when something may have been staged, at the cost of one `stat` call a look.

    Servers touch the staging area after staging (`staging.announce`). In an object store nothing tells: each wait takes
    its full time.

    Args:
        lake: the lake's root.
    """

    def __init__(self, lake: str) -> None:
        self._storage = open_storage(lake)
        self._area = f"{self._storage.root}/{paths.SEGMENTS}"
        self._seen_ns = -1

    def wait(self, seconds: float, stopped: Callable[[float], object] = time.sleep) -> bool:
        """Return True once there may be news since the last call that returned True, False after `seconds`.

        Scan after this call: what is staged during the scan ends the next wait.

        Args:
            seconds: maximum time to wait.
            stopped: waits for so many seconds; a true result ends the wait.
        """
        end = time.monotonic() + seconds
        while (changed_ns := self._storage.touched_ns(self._area)) == self._seen_ns:
            left = end - time.monotonic()
            if left <= 0 or stopped(min(LOOK_SECONDS, left)):
                return False
        self._seen_ns = changed_ns
        return True
