"""Times as Go writes and reads them.

Belongs here: RFC 3339 with nanoseconds, to and from ns since the epoch. Go drops trailing zeros of the fraction; an
absent time is its zero time, the year 1.
"""

from __future__ import annotations

import re
import time
from datetime import date
from functools import lru_cache
from typing import Final

ZERO: Final = "0001-01-01T00:00:00Z"
"""Go's zero time."""

_SECOND: Final = 1_000_000_000
_EPOCH: Final = date(1970, 1, 1).toordinal()
_CYCLE: Final = 146_097 * 86_400
"""Seconds in 400 years."""
START_NS: Final = -62_167_219_200 * _SECOND
"""First instant of RFC 3339 (the year 0 in UTC)."""
END_NS: Final = 253_402_300_800 * _SECOND
"""First instant beyond RFC 3339 (the year 10000 in UTC)."""
_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
_WHOLE: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)\Z",
)
_STEPS: Final = (
    (re.compile(r"\d{4}"), "2006"),
    (re.compile("-"), "-"),
    (re.compile(r"\d\d"), "01"),
    (re.compile("-"), "-"),
    (re.compile(r"\d\d"), "02"),
    (re.compile("T"), "T"),
    (re.compile(r"\d\d?"), "15"),
    (re.compile(":"), ":"),
    (re.compile(r"\d\d"), "04"),
    (re.compile(":"), ":"),
    (re.compile(r"\d\d(?:[.,]\d+)?"), "05"),
    (re.compile(r"Z|[+-]\d\d:\d\d"), "Z07:00"),
)
_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def format_time(ns: int) -> str:
    """Format ns since the epoch as RFC 3339 in UTC, with at most nine digits of fraction. 0 is Go's zero time."""
    if ns == 0:
        return ZERO
    seconds, fraction = divmod(ns, _SECOND)
    text = _whole_seconds(seconds)
    if not fraction:
        return text + "Z"
    return f"{text}.{fraction:09d}".rstrip("0") + "Z"


@lru_cache(maxsize=256)
def _whole_seconds(seconds: int) -> str:
    """Return the text of a second without its zone. An answer of the API has four times, mostly those of the last."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class Stamps:
    """Formats times of many messages in a row as bytes: the text of one second is made once."""

    __slots__ = ("_prefix", "_second")

    def __init__(self) -> None:
        self._second = START_NS // _SECOND - 1
        self._prefix = b""

    def second(self, ns: int) -> tuple[bytes, int, int]:
        """Return the text of the second that `ns` is in, without a fraction, and its first and last ns."""
        second = ns // _SECOND
        if second != self._second:
            self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
            self._second = second
        return self._prefix, second * _SECOND, (second + 1) * _SECOND

    def format(self, ns: int) -> bytes:
        """Format `ns` (> 0) as RFC 3339."""
        second = ns // _SECOND
        if second != self._second:
            self.second(ns)
        fraction = ns - second * _SECOND
        if fraction % 10:
            return b"%b.%09dZ" % (self._prefix, fraction)
        if not fraction:
            return self._prefix + b"Z"
        return (b"%b.%09d" % (self._prefix, fraction)).rstrip(b"0") + b"Z"


def time_ns(text: str) -> int:
    """Parse RFC 3339 to ns since the epoch (negative before 1970).

    Raises ValueError with the text of Go's time.Parse.
    """
    year, month, day, hour, minute, second, fraction, zone = _parts(text)
    cycles = 0 if year else 1  # Python has no year 0; the calendar repeats every 400 years
    days = date(year + 400 * cycles, month, day).toordinal() - _EPOCH
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - _offset(zone)
    return (seconds - cycles * _CYCLE) * _SECOND + fraction


def normal_time(text: str) -> str:
    """Return the text as Go would print what it parsed: fraction without trailing zeros, `Z` for a zero offset.

    Raises ValueError with the text of Go's time.Parse.
    """
    year, month, day, hour, minute, second, fraction, zone = _parts(text)
    tail = f".{fraction:09d}".rstrip("0") if fraction else ""
    whole = f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}"
    return whole + tail + (zone if _offset(zone) else "Z")


def _parts(text: str) -> tuple[int, int, int, int, int, int, int, str]:
    found = _WHOLE.match(text)
    if found is None:
        raise ValueError(_first_mismatch(text))
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    problem = _out_of_range(year, month, day, hour, minute, second, found.group(8))
    if problem:
        raise ValueError(f"parsing time {_quoted(text)}: {problem} out of range")
    digits = (found.group(7) or "")[:9]
    return year, month, day, hour, minute, second, int(digits.ljust(9, "0")) if digits else 0, found.group(8)


def _out_of_range(year: int, month: int, day: int, hour: int, minute: int, second: int, zone: str) -> str:
    if not 1 <= month <= 12:
        return "month"
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= (28 if month == 2 and not leap else _DAYS[month - 1]):
        return "day"
    if hour > 23:
        return "hour"
    if minute > 59:
        return "minute"
    if second > 59:
        return "second"
    if zone != "Z":
        if int(zone[1:3]) > 24:
            return "time zone offset hour"
        if int(zone[4:6]) > 60:
            return "time zone offset minute"
    return ""


def _offset(zone: str) -> int:
    """Return seconds east of UTC."""
    if zone == "Z":
        return 0
    seconds = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return -seconds if zone[0] == "-" else seconds


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _first_mismatch(text: str) -> str:
    at = 0
    for pattern, element in _STEPS:
        found = pattern.match(text, at)
        if found is None:
            return f'parsing time {_quoted(text)} as "{_LAYOUT}": cannot parse {_quoted(text[at:])} as "{element}"'
        at = found.end()
    return f"parsing time {_quoted(text)}: extra text: {_quoted(text[at:])}"
