"""Messages whose rows outlines have to keep.

Belongs here: finding them in a checkpoint and in the footers of segments. An outline has a row for each message of the
segments that it replaces; without pruning, one old message that stays (a key that is never written again) would keep
the rows of all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakestream.log.format.departures import Departures
from lakestream.log.index.sequences import SequenceSet


def needed_rows(there: tuple[bytes, bytes | None] | None, footers: Sequence[bytes | None]) -> SequenceSet | None:
    """Return the sequences of these messages; None: all.

    They are the live ones of the checkpoint, since a replay repeats later removals and needs their subjects; and those
    that the departures in the checkpoint and in the log's segments name, whose subjects readers of the past need.

    Args:
        there: live sequences (`SequenceSet.to_bytes`) and departures (`Departures.to_bytes`) of the checkpoint.
        footers: packed departures of the segments that stay in the log.
    """
    if there is None:
        return None
    needed = SequenceSet.from_bytes(there[0])
    departed = [] if there[1] is None else [Departures.from_bytes(there[1])]
    for each in [*departed, *(Departures.unpack(packed) for packed in footers if packed is not None)]:
        for first, last in each.runs():
            needed.add_run(first, last)
    return needed
