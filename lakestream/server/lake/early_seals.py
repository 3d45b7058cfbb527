"""Budget of early seals: when a stream's open segment is sealed before it is `seal_age` old.

Belongs here: the decision, from times alone. keeper.py asks for it at each poll and has the segment sealed.

A table is as fresh as its seals are frequent, and each seal is a commit with files of its own. So a stream has credits:
one accrues in each `SHARE` of `seal_age`, up to `SAVED`, and an early seal spends one. After a pause a message is
sealed at the next poll; under continuous load the mean interval is that share. Nothing is sealed early while the table
is behind what is staged already, since the next commit would take both segments, nor without a compactor.
"""

from __future__ import annotations

SHARE = 0.8
"""Mean interval between early seals of a stream, in `seal_age`."""
SAVED = 4
"""Maximum number of credits."""


class EarlySeals:
    """The early seals of one stream.

    Args:
        seal_age_ns: age at which the log seals a segment by itself.
    """

    def __init__(self, seal_age_ns: int) -> None:
        self._every_ns = max(round(seal_age_ns * SHARE), 1)
        self._full_ns = SAVED * self._every_ns
        self._spent_ns = 0
        """Time at which the credits will be complete again."""

    def due(self, now_ns: int, waiting: bool, caught_up: bool) -> bool:
        """Return True, and spend a credit, if the open segment is to be sealed now.

        In any period at most `SAVED` more than one in each interval are due. A segment that waits for a table that has
        caught up is due within one interval.

        Args:
            now_ns: a monotonic clock.
            waiting: the open segment holds messages or saw removals.
            caught_up: a compactor is at work, and the table holds everything that is sealed.
        """
        complete_ns = max(self._spent_ns, now_ns) + self._every_ns
        if not (waiting and caught_up) or complete_ns > now_ns + self._full_ns:
            return False
        self._spent_ns = complete_ns
        return True
