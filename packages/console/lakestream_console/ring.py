"""A ring of figures: the last hour in fine steps, a day in coarse ones.

Belongs here: memory of a fixed size for several series of numbers over time. Pure: the caller gives the times.

A step has the mean of the figures that were noted within it. The coarse steps are filled from the same figures, not
from fine steps, so that neither depends on when the other turns over.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

FINE_S, FINE_STEPS = 5, 720
"""Length of a fine step (5 s), and their number (1 h)."""

COARSE_S, COARSE_STEPS = 60, 1440
"""Length of a coarse step (1 min), and their number (24 h)."""

_NUMBER_BYTES, _TIME_BYTES, _COUNT_BYTES = 4, 8, 2


def ring_bytes(series: int) -> int:
    """Return the memory of a ring with so many series."""
    return (FINE_STEPS + COARSE_STEPS) * (series * _NUMBER_BYTES + _TIME_BYTES + _COUNT_BYTES)


class _Tier:
    """Steps of one length. A step is at its number modulo `count`; `begins` tells which number that is now."""

    def __init__(self, names: Sequence[str], step_s: int, count: int) -> None:
        self.step_s, self.count = step_s, count
        self.begins = array("q", [-1]) * count
        self.noted = array("H", [0]) * count
        self.values = {name: array("f", [math.nan]) * count for name in names}

    def note(self, at_s: float, figures: Mapping[str, float | None]) -> None:
        number = int(at_s // self.step_s)
        place = number % self.count
        fresh = self.begins[place] != number
        if fresh:
            self.begins[place], self.noted[place] = number, 0
        before = self.noted[place]
        self.noted[place] = before + 1
        for name, values in self.values.items():
            value = figures.get(name)
            old = math.nan if fresh else values[place]
            if value is None:
                values[place] = old
            else:
                values[place] = value if math.isnan(old) else old + (value - old) / (before + 1)

    def read(self, from_s: float, to_s: float) -> tuple[list[int], dict[str, list[float | None]]]:
        numbers = range(int(from_s // self.step_s) + 1, int(to_s // self.step_s) + 1)
        places = [each % self.count if self.begins[each % self.count] == each else -1 for each in numbers]
        times = [each * self.step_s for each in numbers]
        return times, {
            name: [None if at < 0 else _short(values[at]) for at in places] for name, values in self.values.items()
        }


def _short(value: float) -> float | None:
    """Return a figure with the digits that a float of 4 bytes has; None for none."""
    return None if math.isnan(value) else float(f"{value:.6g}")


class FigureRing:
    """Figures over time.

    Args:
        names: of the series.
        kept_s: time for which they are kept, at most a day.
    """

    def __init__(self, names: Sequence[str], kept_s: int = COARSE_S * COARSE_STEPS) -> None:
        fine = min(FINE_STEPS, max(1, kept_s // FINE_S))
        coarse = min(COARSE_STEPS, max(1, kept_s // COARSE_S))
        self._fine, self._coarse = _Tier(names, FINE_S, fine), _Tier(names, COARSE_S, coarse)

    def note(self, at_s: float, figures: Mapping[str, float | None]) -> None:
        """Note figures of a moment, in seconds since the epoch. None: there is no such figure."""
        self._fine.note(at_s, figures)
        self._coarse.note(at_s, figures)

    def read(self, now_s: float, range_s: int) -> tuple[int, list[int], dict[str, list[float | None]]]:
        """Return the length of a step in seconds, the beginnings of the steps of the last `range_s` seconds, and the
        series; None where nothing was noted."""
        tier = self._fine if range_s <= FINE_S * FINE_STEPS else self._coarse
        return tier.step_s, *tier.read(now_s - min(range_s, tier.step_s * tier.count), now_s)
