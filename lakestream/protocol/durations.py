"""Durations as text.

Belongs here: Go's form `1h2m3.5s`, which headers, ack payloads and advisories use, and uptimes.
"""

from __future__ import annotations

import re

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> int:
    """Parse a Go duration (`1h30m`, `-1.5s`, `0`) to ns. Raises ValueError."""
    sign, rest = 1, text
    if rest[:1] in ("-", "+"):
        sign, rest = (-1 if rest[0] == "-" else 1), rest[1:]
    if rest == "0":
        return 0
    total, end = 0, 0
    for part in _PART.finditer(rest):
        if part.start() != end:
            break
        whole, _, fraction = part.group(1).partition(".")
        unit = _UNITS[part.group(2)]
        total += int(whole or "0") * unit
        if fraction:
            total += int(fraction) * unit // 10 ** len(fraction)
        end = part.end()
    if not rest or end != len(rest):
        raise ValueError(f"invalid duration {text!r}")
    return sign * total


def format_duration(ns: int) -> str:
    """Write ns as Go does: `1.5s`, `2m0s`, `150ms`, `0s`."""
    if ns == 0:
        return "0s"
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    if ns < 1_000_000_000:
        for unit, size in (("ms", 1_000_000), ("µs", 1_000), ("ns", 1)):
            if ns >= size:
                return sign + _decimal(ns, size) + unit
    minutes, rest = divmod(ns, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    text = _decimal(rest, 1_000_000_000) + "s"
    if hours:
        text = f"{hours}h{minutes}m{text}"
    elif minutes:
        text = f"{minutes}m{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    width = len(str(unit)) - 1
    return f"{whole}.{str(rest).zfill(width).rstrip('0')}"


def uptime_text(ns: int) -> str:
    """Return a duration as nats-server's uptime: `3d4h5m6s`, `5m6s`, `6s`."""
    seconds = max(0, ns) // 1_000_000_000
    text, started = "", False
    for unit, size in (("y", 31_536_000), ("d", 86_400), ("h", 3600), ("m", 60)):
        number, seconds = divmod(seconds, size)
        started = started or bool(number)
        if started:
            text += f"{number}{unit}"
    return f"{text}{seconds}s"
