"""An entry before and after it is agreed on.

Belongs here: the two records that pass between a group and whoever applies its entries.
"""

from __future__ import annotations

import msgspec

from lakestream.log.frame import Frame, Kind
from lakestream.log.segment_log import Appended


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
