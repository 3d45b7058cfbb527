"""Probes of a lake.

Belongs here: finding out whether a lake is there, and whether it is the expected one. A directory without the lake's id
is not the lake: it is not mounted, say.
"""

from __future__ import annotations

from lakestream.lake.errors import LakeAway, LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage, read_id

RETRY_S = 5
"""Seconds after which clients are told to try again (5 s)."""


class Probe:
    """Probes of one lake; from any thread.

    Args:
        root: the lake's root.

    Attributes:
        lake_id: id of the expected lake; "": any.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._storage = open_storage(root, brief=True)
        self.lake_id = ""
        self._otherwise = ""

    @property
    def is_local(self) -> bool:
        """Return True for a lake in a directory."""
        return self._storage.local

    def expect(self, lake_id: str, otherwise: str = "") -> None:
        """Expect this id from now on. `otherwise`: what to do if a lake with another one is meant."""
        self._otherwise, self.lake_id = otherwise, lake_id

    def check(self) -> None:
        """Raise LakeAway unless the lake answers with the expected id. Blocks."""
        try:
            found = read_id(self._storage)
        except (LakeError, OSError) as error:
            raise self.away(str(error)) from error
        if self.lake_id and found != self.lake_id:
            path = paths.lake_file(self._storage.root)
            what = f"another lake is there, {path} says {found}" if found else f"there is no {path}"
            raise self.away(f"{what} ({self._otherwise})" if self._otherwise else what)

    def away(self, reason: str, since: str = "") -> LakeAway:
        """Return the error of an outage."""
        return LakeAway(self.root, reason, RETRY_S, since)
