"""An entry before and after it is agreed on.

Belongs here: the two records that pass between a group and whoever applies its entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.segment_log import Appended

BRIEF_MSGS = 4
BRIEF_BYTES = 16 << 10
"""What one entry may hold so that its append is brief work."""


class Proposal(msgspec.Struct, gc=False):
    """An entry on its way into the log.

    `body` may be pieces, joined before they are written; `count` is the number of messages in it; `context` comes back
    with the committed entry untouched.
    """

    kind: Kind
    body: bytes | list[bytes]
    count: int
    context: object


class Committed(msgspec.Struct, gc=False):
    """An entry that is durable, where it lies, and what its proposer wants to see again."""

    frame: Frame
    at: Appended
    context: object


def brief(entries: Sequence[Frame] | Sequence[Proposal]) -> bool:
    """Whether to append these is brief work (`Io.submit`): a lone publish, or nearly.

    Where more comes at a time, a thread writes while the event loop takes in the next.
    """
    if len(entries) != 1 or entries[0].count > BRIEF_MSGS:
        return False
    body = entries[0].body
    return (len(body) if isinstance(body, bytes) else sum(map(len, body))) <= BRIEF_BYTES
