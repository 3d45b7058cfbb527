"""Acts: what a run draws from its seed to do with a cluster, one after the other.

Belongs here: one act, and replaying a list of them. Each act draws from a seed of its own, so an act that is left out
changes nothing in the others but what they meet: this is what makes a run shrinkable (shrink.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tests.sim.events import Events


class Act(msgspec.Struct, frozen=True, array_like=True):
    """A fault, or an operation of a client.

    Attributes:
        at: virtual time in ns since the faults began.
        name: of the fault or operation.
        chance: seed of whatever it draws.
    """

    at: int
    name: str
    chance: int


def replay(events: Events, acts: Sequence[Act], perform: Callable[[Act], None]) -> None:
    """Have acts performed, each when its time has come; they begin now."""
    for act in acts:
        events.after(act.at, lambda act=act: perform(act))  # type: ignore[misc]
