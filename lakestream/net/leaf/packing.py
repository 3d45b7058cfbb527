"""Compression of a leaf connection.

Belongs here: the mode that two sides agree on, and the bytes of both directions as S2 streams. What is sent is not
compressed (`s2_uncompressed`, which every server reads): compressing in Python would cost more time than it saves. What
the other side compressed is unpacked.
"""

from __future__ import annotations

from lakestream.config.options import ACCEPT, COMPRESSIONS, OFF
from lakestream.protocol import s2

UNCOMPRESSED = "s2_uncompressed"
"""The mode in which this side writes."""

NOT_SUPPORTED = "not supported"


def agreed(ours: str, theirs: str) -> str:
    """Return the mode of a connection as this side shows it: OFF or UNCOMPRESSED. Raises ValueError for an unknown one.

    Args:
        ours: the configured mode.
        theirs: that of the other side; "": it knows none.
    """
    if theirs in ("", NOT_SUPPORTED):
        return OFF
    if theirs not in COMPRESSIONS:
        raise ValueError(f'unsupported route compression mode "{theirs}"')
    return OFF if OFF in (ours, theirs) or ours == theirs == ACCEPT else UNCOMPRESSED


class LeafPacking:
    """The S2 streams of one connection."""

    def __init__(self) -> None:
        self._decoder = s2.Decoder()
        self._begun = False

    def packed(self, data: bytes) -> bytes:
        """Return bytes of this side as chunks of its stream."""
        begun, self._begun = self._begun, True
        return s2.encode(data) if begun else s2.MAGIC + s2.encode(data)

    def unpacked(self, data: bytes) -> bytes:
        """Return what chunks of the other side's stream hold. Raises S2Error."""
        return b"".join(self._decoder.feed(data))
