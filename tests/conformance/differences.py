"""Where lakestream may answer otherwise than nats-server for good, each with its reason.

What belongs here: lasting differences only. A behaviour that is merely missing is a failing scenario, not an entry.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One allowed difference.

    scenario and where are shell patterns; where is `<label of the entry>/<key>/<key>…`.
    """

    scenario: str
    where: str
    why: str


DIFFERENCES: tuple[Difference, ...] = ()
