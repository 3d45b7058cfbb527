"""What was removed while the open segment was open.

Belongs here: the lists that go into the checkpoint, and into the segment's footer when it is sealed. From there the
lake learns which rows to delete.
"""

from __future__ import annotations

from array import array

from lakestream.log.format.departures import Departures


class Removals:
    """Since the segment that begins with entry `index` was begun."""

    def __init__(self) -> None:
        self.index = 0
        self.removed: list[int] = []
        """Sequences that were the stream's first when they went are not in it; see Footer.removed."""
        self.erased = array("Q")
        """Runs (first, last, first, last, …) of those that somebody asked to be removed; see Footer.erased."""
        self.shredded: list[int] = []
        """Those of them whose bytes shall go too; see Footer.shredded."""
        self.any = False
        """Whether anything was removed, listed or not."""
        self.departures: Departures | None = None
        """All of it with its times, if the stream keeps them."""

    def enter(self, index: int) -> None:
        """Begin anew when the log has begun a new segment.

        The old lists are left as they are: the seal that asked for them may be writing them in a thread.
        """
        if index != self.index:
            self.index = index
            self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.removed, self.erased, self.shredded, self.any = [], array("Q"), [], False
        if self.departures is not None:
            self.departures = Departures()
