"""Whom a node dials, and how often.

Belongs here: one place to dial with what is known of it: configured or learnt of, whose it turned out to be, back-off,
and which of its failures are worth a line in the log. No sockets, no clock.
"""

from __future__ import annotations

from random import Random

from lakestream.config.options import RouteUrl

FIRST_DELAY_S = 0.1
"""Pause before the second attempt; it doubles with every further one."""

MAX_DELAY_S = 2.0
"""The longest pause between two attempts."""

FORGET_AFTER = 30
"""Failed attempts in a row (about a minute) after which a node that is not configured is forgotten. Gossip brings it
back for as long as another node is connected to it."""

REPORT_EVERY = 3600
"""Of an unchanged failure every so many attempts get a line, after the first (as nats-server does)."""


class Target:
    """A place to dial.

    Args:
        url: where, and as whom.
        explicit: configured, and dialled for ever; else learnt of.
        name: whose place it is, as far as known.
        retries: of a place that was learnt of, 0: `FORGET_AFTER`.
    """

    def __init__(self, url: RouteUrl, *, explicit: bool, name: str = "", retries: int = 0) -> None:
        self.url = url
        self.explicit = explicit
        self.name = name
        self.myself = False
        self.failures = 0
        self._retries = retries or FORGET_AFTER
        self._reported = ""
        self._same = 0

    @property
    def finished(self) -> bool:
        """Not to be dialled any more."""
        return self.myself or (not self.explicit and self.failures > self._retries)

    def delay(self, random: Random) -> float:
        """Seconds until the next attempt. Two nodes that dial each other must not keep in step: a random part."""
        if not self.failures:
            return FIRST_DELAY_S * random.uniform(0.5, 1)
        return min(MAX_DELAY_S, FIRST_DELAY_S * float(2 ** min(self.failures - 1, 10))) * random.uniform(0.75, 1)

    def reached(self, name: str) -> None:
        """A node answered there."""
        self.name = name
        self.failures = 0
        self._reported = ""

    def failed(self, why: str) -> bool:
        """An attempt failed. Whether that is worth a line: a new reason, or an old one for a long time."""
        self.failures += 1
        if why != self._reported:
            self._reported, self._same = why, 0
            return True
        self._same += 1
        return self._same % REPORT_EVERY == 0
