"""Probes of a lake.

Belongs here: finding out whether a lake answers, and whether it is the expected one. A directory without the lake's id
is not the lake: it is not mounted, say.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from lakestream.lake.errors import LakeAway, LakeError, LakeSilent
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage, read_id

RETRY_S = 5
"""Seconds after which clients are told to try again (5 s)."""
SILENCE_S = 10.0
"""Time for the first answer of a lake (10 s)."""
NOTICE_S = 2.0
"""Time after which a caller is told that the lake has not answered yet (2 s)."""


def require_answer(
    root: str, notify: Callable[[str], None], silence_s: float = SILENCE_S, notice_s: float = NOTICE_S
) -> None:
    """Read the lake's file, whatever the answer is. Blocks.

    Requests are repeated for more than a minute, and a read of a mounted directory may hang without end. So one thread
    asks first, and is left behind if nothing comes.

    Args:
        root: the lake's root.
        notify: gets a line if the answer takes longer than `notice_s`.

    Raises:
        LakeSilent: there is no answer within `silence_s`.
    """
    path = paths.lake_file(root)

    def ask() -> None:
        with contextlib.suppress(LakeError, OSError):  # whoever reads what is wanted gets the error
            read_id(open_storage(root))

    asking = threading.Thread(target=ask, name="lake probe", daemon=True)
    asking.start()
    asking.join(notice_s)
    if asking.is_alive():
        notify(f"waiting for the lake: reading {path}, at most {silence_s:g} s")
        asking.join(silence_s - notice_s)
    if asking.is_alive():
        raise LakeSilent(path, silence_s)


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
