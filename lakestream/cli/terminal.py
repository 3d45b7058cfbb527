"""Output of commands.

Belongs here: the console (colours only on a terminal, and not with NO_COLOR), JSON for scripts, numbers and sizes for
people. Rows of queries are in results.py, progress bars in lake/progress.py.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakestream.cli.results import plain

if TYPE_CHECKING:
    from rich.console import Console

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

WIDE = 200
"""Columns of output that does not go to a terminal."""

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", "k", "M", "G", "T")


def console(*, stderr: bool = False) -> Console:
    """Return a console that writes no colours unless it writes to a terminal and NO_COLOR is not set."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():
        return Console(file=stream, highlight=False, color_system=None, width=WIDE)
    if os.environ.get("NO_COLOR"):
        return Console(file=stream, highlight=False, color_system=None)
    return Console(file=stream, highlight=False)


def quiet_asyncio() -> None:
    """Keep warnings of asyncio off stderr: one is about each TLS connection that a server closes, and means nothing."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)


def print_json(value: Any) -> None:
    """Print a record, or a value of dicts, lists and texts, as JSON on stdout."""
    built = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
    print(json.dumps(plain(built), indent=2, ensure_ascii=False))


def complain(text: object) -> None:
    """Print an error line on stderr."""
    print(f"lakestream: {text}", file=sys.stderr)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 stream`, `2 streams`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(count: float) -> str:
    """Return a number of bytes for people: `512 B`, `1.5 GiB`."""
    return _scaled(count, 1024, _SIZES)


def short(count: float) -> str:
    """Return a number for people in at most six characters: `999`, `12.3k`, `4.56M`."""
    return _scaled(count, 1000, _COUNTS).replace(" ", "")


def _scaled(count: float, step: int, units: tuple[str, ...]) -> str:
    unit = 0
    value = float(count)
    while abs(value) >= step and unit < len(units) - 1:
        value /= step
        unit += 1
    whole = float(count).is_integer() and unit == 0
    digits = 0 if whole or abs(value) >= 100 else 1 if abs(value) >= 10 or unit == 0 else 2
    return f"{value:.{digits}f} {units[unit]}"


def seconds(count: float) -> str:
    """Return a duration for people: `0.35 ms`, `12.0 s`, `3 min`, `5.2 h`, `12 days`."""
    if count < 1:
        return f"{count * 1000:.3g} ms"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if count < limit:
            return f"{count / divisor:.3g} {unit}"
    return f"{count / 86_400:.0f} days"
