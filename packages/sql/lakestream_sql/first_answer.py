"""The first answer of a lake.

Belongs here: finding out in time that a lake does not answer at all, before a query waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from lakestream.lake.errors import LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage, read_id

SILENCE_S = 10.0
"""Time for the first answer of a lake (10 s)."""
NOTICE_S = 2.0
"""Time after which a caller is told that the lake has not answered yet (2 s)."""


class LakeSilent(LakeError):
    """Raised when a lake gives no answer at all.

    Args:
        path: the file that was read.
        seconds: time that was waited.
    """

    code = 503

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(
            f"the lake does not answer: reading {path} took more than {seconds:g} s. Check the mount, or the network "
            "to the object store; clients of a server still read what its log has"
        )


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
