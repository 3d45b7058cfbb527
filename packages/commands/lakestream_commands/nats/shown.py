"""Texts for people: durations, sizes and times in and out, records and tables.

Belongs here: values as the options of these commands take them and as their output shows them.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from lakestream.cli.terminal import console, size
from lakestream.protocol.durations import format_duration, parse_duration

_DAYS = re.compile(r"(\d+(?:\.\d+)?)([yMwd])")
_HOURS = {"y": 8760, "M": 720, "w": 168, "d": 24}
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = " KMGT"


def duration(text: str) -> int:
    """Return ns of a duration: Go's (`1h30m`), also with d, w, M (30 days) and y (365 days).

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        return parse_duration(_DAYS.sub(lambda part: f"{float(part[1]) * _HOURS[part[2]]:.12g}h", text))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a duration such as 90s, 1h30m or 7d") from None


def bytes_of(text: str) -> int:
    """Return bytes of a size: `1024`, `64KB`, `1GiB` (both units are powers of 1024, as of nats-server).

    Raises:
        typer.BadParameter: it is none.
    """
    if text == "-1":
        return -1
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size such as 1024, 64KB or 1GB")
    return int(found[1]) << 10 * _POWERS.index(found[2].upper() or " ")


def moment(text: str, *, ahead: bool = False) -> str:
    """Return the time that lies a duration back, or ahead, as RFC 3339. Raises as `duration`."""
    seconds = duration(text) / 1e9
    then = datetime.fromtimestamp(time.time() + (seconds if ahead else -seconds), UTC)
    return then.isoformat().replace("+00:00", "Z")


def clock() -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S")


def at(text: str) -> str:
    """Return a time of an API answer to the second, in UTC; "never" for the zero time."""
    return "never" if not text or text.startswith("0001-") else text[:19].replace("T", " ")


def ago(text: str) -> str:
    """Return how long ago a time of an API answer is."""
    if not text or text.startswith("0001-"):
        return "never"
    seconds = datetime.now(UTC).timestamp() - datetime.fromisoformat(text[:19] + "+00:00").timestamp()
    return format_duration(max(0, int(seconds)) * 1_000_000_000)


def limit(value: int | None, unit: str = "") -> str:
    """Return a limit of a configuration: a number, a size (unit `B`) or a duration (unit `s`); `unlimited`: none."""
    if value is None or value <= 0:
        return "unlimited"
    if unit == "B":
        return size(value)
    return format_duration(value) if unit == "s" else f"{value:,}"


def payload(data: bytes) -> str:
    """Return a payload for a terminal: text where it is UTF-8, else hex digits."""
    from lakestream.cli.results import text_of

    return text_of(data)


def raw(data: bytes) -> None:
    """Print a payload as it is, with a line end."""
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def record(title: str, sections: Sequence[tuple[str, Sequence[tuple[str, object]]]]) -> None:
    """Print a title, and sections of named values in one column; values that are None are left out."""
    width = max((len(name) for _, rows in sections for name, _ in rows), default=0)
    lines = [title, ""]
    for heading, rows in sections:
        shown = [f"{name:>{width + 2}}: {_value(value)}" for name, value in rows if value is not None]
        if shown:
            lines += [*([f"{heading}:", ""] if heading else []), *shown, ""]
    print("\n".join(lines).rstrip())


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers are at the right."""
    from rich.table import Table

    found = Table(title=title)
    listed = [list(row) for row in rows]
    for at_column, name in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[at_column], int) for row in listed)
        found.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        found.add_row(*(_value(cell) for cell in row))
    console().print(found)


def headers_of(message: Any) -> list[tuple[str, str]]:
    """Return the headers of a message of nats-py, without its status."""
    return [(name, value) for name, value in (message.headers or {}).items() if name != "Status"]
