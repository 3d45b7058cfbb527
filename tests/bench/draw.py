"""Charts as plain SVG.

Belongs here: bar and line charts for the benchmark scripts, without any dependency. They are readable on light and dark
pages: no background, middle tones, and the page's own sans-serif font.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

COLOURS = ("#3b82c4", "#e0843a", "#4a9d6b", "#b5589c", "#8a8f3a", "#7a6fc0", "#c2524e", "#4b9aa5")
TEXT = "#7a7f87"
GRID = "#7a7f8755"
WIDTH = 760


def save(path: str | Path, svg: str) -> None:
    """Write a picture; make its directory."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(svg)


def bars(title: str, rows: Sequence[tuple[str, float, str]], unit: str) -> str:
    """Draw horizontal bars; return the SVG.

    Args:
        rows: label, value and a note that is shown behind the value (may be empty).
        unit: unit of the values, shown under the title.
    """
    left, step, top = 250, 30, 62
    most = max((value for _, value, _ in rows), default=0) or 1
    room = WIDTH - left - 210
    parts = [_text(12, 24, title, 16, bold=True), _text(12, 44, unit, 12)]
    for at, (label, value, note) in enumerate(rows):
        y = top + at * step
        parts.append(_text(left - 10, y + 15, label, 12, anchor="end"))
        width = max(1.0, room * value / most)
        colour = COLOURS[0]
        parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="20" rx="2" fill="{colour}"/>')
        parts.append(_text(left + width + 8, y + 15, f"{_number(value)} {note}".strip(), 12))
    return _svg(title, top + len(rows) * step + 8, parts)


def lines(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    *,
    logarithmic: bool = False,
) -> str:
    """Draw lines with dots, both axes from 0; return the SVG.

    Args:
        series: points (x, y) by name, in order of x.
        logarithmic: the x axis has powers of ten, from the one below the first point.
    """
    left, right, top, bottom, height = 70, 20, 84, 50, 400
    points = [point for found in series.values() for point in found]
    x_step, x_most = _scale(max((x for x, _ in points), default=1))
    y_step, y_most = _scale(max((y for _, y in points), default=1))
    wide, high = WIDTH - left - right, height - top - bottom
    ticks = [number * x_step for number in range(round(x_most / x_step) + 1)]
    first = last = 0
    if logarithmic:
        first = math.floor(math.log10(min((x for x, _ in points), default=1)))
        last = max(first + 1, math.ceil(math.log10(max((x for x, _ in points), default=10))))
        ticks = [10.0**power for power in range(first, last + 1)]

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(x) - first) / (last - first) if logarithmic else x / x_most
        return left + wide * share, top + high * (1 - y / y_most)

    parts = [_text(12, 24, title, 16, bold=True), _text(12, 46, y_label, 12)]
    for number in range(round(y_most / y_step) + 1):
        _, y = place(ticks[0], number * y_step)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH - right}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(_text(left - 8, y + 4, _number(number * y_step), 11, anchor="end"))
    for tick in ticks:
        x, _ = place(tick, 0)
        parts.append(_text(x, height - bottom + 18, _number(tick), 11, anchor="middle"))
    parts.append(_text(left + wide / 2, height - 10, x_label, 12, anchor="middle"))
    key = left
    for number, (name, found) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        spots = [place(x, y) for x, y in found]
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        parts.append(f'<rect x="{key}" y="58" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(_text(key + 18, 69, name, 12))
        key += 34 + 7 * len(name)
    return _svg(title, height, parts)


def _scale(most: float) -> tuple[float, float]:
    """Return a round step and a multiple of it that is at least `most`, with at most ten steps."""
    if most <= 0:
        return 1, 1
    power = 10 ** math.floor(math.log10(most))
    step = next(factor * power for factor in (0.1, 0.2, 0.5, 1) if most / (factor * power) <= 10)
    return step, step * math.ceil(most / step - 1e-9)


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _text(x: float, y: float, text: str, size: int, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" fill="{TEXT}">\n{body}\n</svg>\n'
    )
