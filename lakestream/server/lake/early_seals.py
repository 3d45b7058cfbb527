"""Budget of early seals: when a stream's open segment is sealed before it is `seal_age` old.

Belongs here: the decision, from times alone. keeper.py asks for it at each poll and has the segment sealed.

A table is as fresh as its seals are frequent, and each seal is a commit with files of its own. So a stream has credits:
one accrues in each `SHARE` of `seal_age`, up to `SAVED`, and each seal spends one, whatever its cause. After a pause a
message is sealed at the next poll; under continuous load the mean interval is that share. Nothing is sealed early while
the table is behind what is staged already, since the next commit would take both segments, nor without a compactor.
"""

from __future__ import annotations

SHARE = 0.75
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
        self._complete_ns = 0
        """Time at which the credits will be complete again."""
        self._sealed_through = -1

    def due(self, now_ns: int, sealed_through: int, waiting: bool, caught_up: bool) -> bool:
        """Return True if the open segment is to be sealed now.

        In any period, early seals and those by age together are at most `SAVED` more than one in each interval. A
        segment that waits for a table that has caught up is due within one interval.

        Args:
            now_ns: a monotonic clock.
            sealed_through: the log index through which segments are sealed; a new one spends a credit.
            waiting: the open segment holds messages or saw removals.
            caught_up: a compactor is at work, and the table holds everything that is sealed.
        """
        if sealed_through != self._sealed_through:
            if self._sealed_through >= 0:
                complete_ns = max(self._complete_ns, now_ns) + self._every_ns
                self._complete_ns = min(complete_ns, now_ns + self._full_ns)
            self._sealed_through = sealed_through
        return waiting and caught_up and self._complete_ns + self._every_ns <= now_ns + self._full_ns
