"""Cron expressions of six fields, and when they fire next on the clock of a time zone.

Belongs here: pure functions over text and whole seconds. What is accepted and which second comes next is what
nats-server 2.15.1 was measured to say, the days on which clocks change included: the hand below moves over a gap or a
repeated hour the way Go's time package does, which is not always what one would wish for (a day whose midnight does not
exist may be passed over).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache, partial
from typing import Final

import msgspec

MAX_PATTERN = 1024
"""A longer expression (in bytes) is refused, so that reading one takes no noticeable time."""

YEARS_AHEAD: Final = 5
"""An expression that does not fire within this many years is refused."""

_SECOND: Final = 1_000_000_000
_DAY: Final = 86_400
_EPOCH: Final = date(1970, 1, 1).toordinal()
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_WEEKDAYS: Final = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_FIELDS: Final[tuple[tuple[int, int, dict[str, int]], ...]] = (
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _WEEKDAYS),
)
_MAX_INT: Final = 2**63 - 1


Zone = Callable[[int], int]
"""Returns by how many seconds the clocks of a place are east of UTC at this second since the epoch."""


def utc(second: int) -> int:
    """Return 0: UTC itself."""
    return 0


def _local(second: int) -> int:
    return time.localtime(second).tm_gmtoff


def _named(place: tzinfo, second: int) -> int:
    ahead = datetime.fromtimestamp(second, place).utcoffset()
    return ahead.days * _DAY + ahead.seconds if ahead is not None else 0


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """Return a zone by the names of Go's LoadLocation: `UTC`, `Local`, or an IANA name. Raise ValueError."""
    if name == "UTC":
        return utc
    if name == "Local":
        return _local
    from zoneinfo import ZoneInfo  # 1 MiB, and few schedules name a zone

    try:
        return partial(_named, ZoneInfo(name))
    except (OSError, KeyError, ValueError) as error:  # a directory, no such zone, no zone at all
        raise ValueError(f"unknown time zone {name!r}") from error


class Cron(msgspec.Struct, frozen=True):
    """The values at which each field lets an expression fire."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """One of day and weekday is enough: neither field begins with a star."""

    def after(self, ns: int, place: Zone) -> int | None:
        """Return the next ns since the epoch at which it fires, None if that is years away.

        The second that `ns` rounds to does not count: an expression that has just fired goes on to its next time.
        """
        hand = _Hand((ns + _SECOND // 2) // _SECOND + 1, place)
        last = hand.year + YEARS_AHEAD
        while hand.year <= last:
            if (
                self._to_month(hand)
                and self._to_day(hand)
                and self._to_hour(hand)
                and self._to_minute(hand)
                and self._to_second(hand)
            ):
                return hand.at * _SECOND
        return None

    # Each of these moves the hand on until its field matches; False when a larger field has changed by then.
    def _to_month(self, hand: _Hand) -> bool:
        while hand.month not in self.months:
            if hand.first_cut():
                hand.set_wall(hand.year, hand.month, 1)
            hand.next_month()
            if hand.month == 1:
                return False
        return True

    def _to_day(self, hand: _Hand) -> bool:
        while not self._on_day(hand):
            if hand.first_cut():
                hand.set_wall(hand.year, hand.month, hand.day)
            hand.next_day()
            if hand.day == 1:
                return False
        return True

    def _on_day(self, hand: _Hand) -> bool:
        day, weekday = hand.day in self.days, hand.weekday in self.weekdays
        return day or weekday if self.either_day else day and weekday

    def _to_hour(self, hand: _Hand) -> bool:
        while hand.hour not in self.hours:
            if hand.first_cut():
                hand.set_wall(hand.year, hand.month, hand.day, hand.hour * 3600)
            hand.set(hand.at + 3600)
            if hand.hour == 0:
                return False
        return True

    def _to_minute(self, hand: _Hand) -> bool:
        while hand.minute not in self.minutes:
            if hand.first_cut():
                hand.set(hand.at - hand.at % 60)
            hand.set(hand.at + 60)
            if hand.minute == 0:
                return False
        return True

    def _to_second(self, hand: _Hand) -> bool:
        while hand.second not in self.seconds:
            hand.first_cut()
            hand.set(hand.at + 1)
            if hand.second == 0:
                return False
        return True


class _Hand:
    """A second, and what the clocks of a zone show then."""

    __slots__ = ("_cut", "_place", "at", "day", "hour", "minute", "month", "second", "weekday", "year")

    def __init__(self, at: int, place: Zone) -> None:
        self._place = place
        self._cut = False
        self.set(at)

    def set(self, at: int) -> None:
        """Point to this second since the epoch."""
        self.at = at
        days, rest = divmod(at + self._place(at), _DAY)
        day = date.fromordinal(days + _EPOCH)
        self.year, self.month, self.day = day.year, day.month, day.day
        self.weekday = day.isoweekday() % 7
        self.hour, rest = divmod(rest, 3600)
        self.minute, self.second = divmod(rest, 60)

    def set_wall(self, year: int, month: int, day: int, rest: int = 0) -> None:
        """Point to where clocks show `rest` seconds of this day; days beyond the month's end go on in the next.

        When they never show it, to where one of the two offsets around the gap puts it; as Go does.
        """
        wall = (date(year, month, 1).toordinal() + day - 1 - _EPOCH) * _DAY + rest
        offset = self._place(wall)
        self.set(wall - self._place(wall - offset))

    def first_cut(self) -> bool:
        """Return True at the first field that does not match: the fields below it begin anew."""
        first, self._cut = not self._cut, True
        return first

    def next_month(self) -> None:
        """Move to the same day and time in the next month."""
        year, month = (self.year + 1, 1) if self.month == 12 else (self.year, self.month + 1)
        self.set_wall(year, month, self.day, self._rest())

    def next_day(self) -> None:
        """Move to the same time on the next day."""
        self.set_wall(self.year, self.month, self.day + 1, self._rest())

    def _rest(self) -> int:
        return self.hour * 3600 + self.minute * 60 + self.second


@lru_cache(maxsize=1024)
def parse(text: str) -> Cron:
    """Parse an expression of six fields: second, minute, hour, day, month, weekday. Raise ValueError."""
    if len(text) > MAX_PATTERN:
        raise ValueError(f"more than {MAX_PATTERN} characters")
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"{len(_FIELDS)} fields are needed, not {len(fields)}")
    sets, stars = [], []
    for field, (low, high, names) in zip(fields, _FIELDS, strict=True):
        values, star = _field(field, low, high, names)
        if not values:
            raise ValueError(f"{field!r} never matches")
        sets.append(values)
        stars.append(star)
    second, minute, hour, day, month, weekday = sets
    return Cron(second, minute, hour, day, month, weekday, either_day=not (stars[3] or stars[5]))


def _field(text: str, low: int, high: int, names: dict[str, int]) -> tuple[frozenset[int], bool]:
    """Return the values of one field, and True if a star in it leaves them open."""
    values: set[int] = set()
    star = False
    for part in filter(None, text.split(",")):
        found, open_ended = _range(part, low, high, names)
        values.update(found)
        star |= open_ended
    return frozenset(values), star


def _range(text: str, low: int, high: int, names: dict[str, int]) -> tuple[range, bool]:
    """Parse `5`, `5-9`, `5/2` (to the end), `5-9/2`, with `*` or `?` in the place of a number."""
    span, *steps = text.split("/")
    if len(steps) > 1:
        raise ValueError(f"more than one step: {text!r}")
    first, *rest = span.split("-")
    star = first in ("*", "?")
    if star:
        start, end = low, high
    else:
        if len(rest) > 1:
            raise ValueError(f"more than one hyphen: {text!r}")
        start = _number(first, names)
        end = _number(rest[0], names) if rest else start
    step = 1
    if steps:
        step = _number(steps[0], {})
        if not rest:
            end = high
    if step == 0 or not low <= start <= end <= high:
        raise ValueError(f"{text!r} is not within {low} to {high}")
    return range(start, end + 1, step), star and step == 1


def _number(text: str, names: dict[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    digits = text[1:] if text[:1] == "+" else text
    if not (digits.isascii() and digits.isdigit()) or int(digits) > _MAX_INT:
        raise ValueError(f"{text!r} is not a number")
    return int(digits)


def show(ns: int, place: Zone) -> str:
    """Return the time as RFC 3339 on the clocks of a zone, with fractions of a second if there are any."""
    second, fraction = divmod(ns, _SECOND)
    offset = place(second)
    wall = datetime.fromtimestamp(second + offset, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    tail = f".{fraction:09d}".rstrip("0") if fraction else ""
    if not offset:
        return f"{wall}{tail}Z"
    hours, minutes = divmod(abs(offset) // 60, 60)
    return f"{wall}{tail}{'-' if offset < 0 else '+'}{hours:02d}:{minutes:02d}"
