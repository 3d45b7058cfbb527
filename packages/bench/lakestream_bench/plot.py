"""Plots of series over time: in the terminal, and as SVG.

Belongs here: their layout. Series are lists of values at equal intervals.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

import msgspec

from lakestream.cli.terminal import short

_BLOCKS = " ▁▂▃▄▅▆▇█"
_COLOURS = ("#2f6fde", "#d9541e", "#2a9d55", "#8a4fc7", "#b38600")
WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 48, 40


class Series(msgspec.Struct, frozen=True):
    """Values at equal intervals of `step_s` seconds."""

    name: str
    values: Sequence[float]
    step_s: float


def in_terminal(series: Series, width: int = 60, height: int = 6) -> list[str]:
    """Return lines with a bar for each interval, over an axis in seconds; the largest value is on the left."""
    values = _resampled(series.values, width)
    top = max(values, default=0) or 1
    lines = []
    for level in range(height - 1, -1, -1):
        filled = [min(max(value / top * height - level, 0), 1) for value in values]
        label = short(top) if level == height - 1 else "0" if level == 0 else ""
        lines.append(f"{label:>7} ┤" + "".join(_BLOCKS[round(part * 8)] for part in filled).rstrip())
    length = f"{len(series.values) * series.step_s:.1f} s"
    return [*lines, f"{'':>7} └{'─' * len(values)} {length}"]


def _resampled(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` means of neighbouring values."""
    if len(values) <= width:
        return list(values)
    edges = [round(place * len(values) / width) for place in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def svg(title: str, unit: str, series: Sequence[Series]) -> str:
    """Return a line plot as an SVG document that is readable in light and dark pages."""
    longest = max((len(each.values) * each.step_s for each in series), default=1) or 1
    top = _nice(max((max(each.values, default=0) for each in series), default=0) or 1)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    for step in range(5):
        y = TOP + high - step / 4 * high
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + wide}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(top * step / 4)}</text>')
        x = LEFT + step / 4 * wide
        parts.append(f'<text x="{x:.1f}" y="{TOP + high + 18}" text-anchor="middle">{longest * step / 4:.3g}</text>')
    parts.append(f'<text x="{LEFT + wide / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">seconds</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{TOP - 8}" text-anchor="end">{escape(unit)}</text>')
    for number, each in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{LEFT + (place + 0.5) * each.step_s / longest * wide:.1f},{TOP + high - value / top * high:.1f}"
            for place, value in enumerate(each.values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x = LEFT + 80 * number
        parts.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="37">{escape(each.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _nice(value: float) -> float:
    """Return the next of 1, 2, 2.5, 5 times a power of ten, so that an axis has round numbers."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    return next((power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value), power * 10)
