"""Headers of message schedules: when a schedule fires, what it produces, and what is refused.

Belongs here: the `Nats-Schedule…` headers as rules over a header block, in the order of nats-server 2.15.1
(docs/internals/streams.md#schedules). Nothing in here keeps state: the schedules of a stream are in schedules.py, cron
expressions in cron.py.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

import msgspec

from lakestream.log.format.record import MAX_SUBJECT, Record
from lakestream.protocol import gotime, headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.durations import parse_duration
from lakestream.protocol.subjects import matches, publishable, valid_subject
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Given
from lakestream.stream.core.publish import IncomingMessage, View
from lakestream.stream.features import cron
from lakestream.stream.features.ttl import parse_ttl

MARK: Final = b"\r\nNats-Schedule"
"""Every header of this module begins so; a block without it means nothing to schedules."""
PATTERN: Final = b"Nats-Schedule"
TARGET: Final = b"Nats-Schedule-Target"
SOURCE: Final = b"Nats-Schedule-Source"
TTL: Final = b"Nats-Schedule-TTL"
ROLLUP: Final = b"Nats-Schedule-Rollup"
ZONE: Final = b"Nats-Schedule-Time-Zone"
SCHEDULER: Final = b"Nats-Scheduler"
NEXT: Final = b"Nats-Schedule-Next"
PURGE: Final = b"purge"
"""As the next time: the schedule is over, and its message goes."""

LATEST_NS: Final = 2**63 - 1
"""Times beyond this (in the year 2262) count as this one: such a schedule never fires."""
SHORTEST_NS: Final = 1_000_000_000
"""Shortest interval of `@every`."""

_SECOND: Final = 1_000_000_000
_NO_TIME: Final = gotime.time_ns(gotime.ZERO)
_NAMED: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_LEFT_OUT: Final = (PATTERN, b"Nats-Expected-", b"Nats-Msg-Id:", b"Nats-TTL:", b"Nats-Rollup:")
"""Beginnings of the lines that are not copied into produced messages."""


# ------------------------------------------------------------------------------------------------ when
class At(msgspec.Struct, frozen=True):
    """`@at`: once."""

    ns: int
    repeats = False

    def after(self, ns: int) -> int | None:
        """Return the only time at which it fires, for every `ns`."""
        return self.ns

    def show(self, ns: int) -> bytes:
        """Return the header value about the next message in the one that it produces."""
        return PURGE


class Every(msgspec.Struct, frozen=True):
    """`@every`: whole seconds plus an interval."""

    interval: int
    repeats = True

    def after(self, ns: int) -> int | None:
        """Return the second that `ns` rounds to, plus the interval."""
        return min((ns + _SECOND // 2) // _SECOND * _SECOND + self.interval, LATEST_NS)

    def show(self, ns: int) -> bytes:
        """Return the next time in UTC."""
        return cron.show(ns, cron.utc).encode()


class Calendar(msgspec.Struct, frozen=True):
    """A cron expression on the clocks of a zone."""

    expression: cron.Cron
    zone: cron.Zone
    repeats = True

    def after(self, ns: int) -> int | None:
        """Return the next time beyond `ns`, None if there is none for years."""
        return self.expression.after(ns, self.zone)

    def show(self, ns: int) -> bytes:
        """Return the next time as clocks in the zone show it."""
        return cron.show(ns, self.zone).encode()


Timing = At | Every | Calendar


def timing(header: bytes) -> Timing | None:
    """Return when a message with this header block fires, None if it is no schedule.

    Raise ApiError 10189, or 10223 for a zone, also where there is nothing else.
    """
    pattern, zone = headers.get(header, PATTERN), headers.get(header, ZONE)
    return _timing(pattern or b"", zone) if pattern or zone is not None else None


@lru_cache(maxsize=1024)
def _timing(pattern: bytes, zone: bytes | None) -> Timing | None:
    try:
        text, place = pattern.decode(), zone.decode() if zone is not None else "UTC"
    except UnicodeDecodeError:
        raise api_error(10189) from None
    try:
        clocks = cron.zone(place)
    except ValueError:
        raise api_error(10223) from None
    if not text:
        return None
    try:
        if text.startswith("@at "):
            ns = _instant(text[4:])
            found: Timing | None = At(max(0, min(ns, LATEST_NS))) if ns != _NO_TIME else None
        elif text.startswith("@every "):
            found = Every(_interval(text[7:]))
        else:
            return Calendar(cron.parse(_NAMED.get(text, text)), clocks)
    except ValueError:
        raise api_error(10189) from None
    if zone is not None:
        raise api_error(10189)  # only what follows a calendar knows zones
    return found


def _instant(text: str) -> int:
    gotime.normal_time(text)
    return 0 if text.startswith("0000") else gotime.time_ns(text)  # the year 0 is one for Go, and not for Python


def _interval(text: str) -> int:
    interval = parse_duration(text)
    if not SHORTEST_NS <= interval <= LATEST_NS:
        raise ValueError(f"{text!r} is shorter than a second, or no time at all")
    return interval


# ------------------------------------------------------------------------------------------------ allowed requests
def check(view: View, message: IncomingMessage, given: Given) -> None:
    """Refuse what a message must not say about schedules; give a schedule the rollup that makes it its subject's only.

    Raise ApiError with the code of the first rule that fails, NotHere.
    """
    if MARK not in message.header:
        return
    _check_schedule(view.config, message)
    _check_end(view, message)


def _check_schedule(config: StreamConfig, message: IncomingMessage) -> None:
    header, subject = message.header, message.subject
    try:
        when = timing(header)
    except ApiError:
        if not config.allow_msg_schedules:
            raise api_error(10188) from None
        raise
    if when is None:
        return
    if not config.allow_msg_schedules:
        raise api_error(10188)
    if when.after(time.time_ns()) is None:
        raise api_error(10189)
    ttl = headers.get(header, TTL)
    if ttl and parse_ttl(ttl) == 0:
        raise api_error(10191)
    if headers.get(header, ROLLUP) not in (None, b"", b"sub"):
        raise api_error(10192)
    if ttl and not config.allow_msg_ttl:
        raise api_error(10166)
    target, source = headers.get(header, TARGET), headers.get(header, SOURCE)
    if source and (source in (subject, target) or not _holds(config, source)):
        raise api_error(10203)
    if not target or target == subject or not _holds(config, target):
        raise api_error(10190)
    rollup = headers.get(header, b"Nats-Rollup")
    if not rollup:
        message.header = headers.append(header, [(b"Nats-Rollup", b"sub")])
    elif rollup.lower() != b"sub":
        raise api_error(10192)


def _holds(config: StreamConfig, subject: bytes) -> bool:
    """Return True if this is one subject, and the stream's."""
    if not valid_subject(subject, wildcards=False):
        return False
    return any(matches(own.encode(), subject) for own in config.subjects)


def _check_end(view: View, message: IncomingMessage) -> None:
    """Refuse all that a client may say about schedulers, except that the schedule of another subject is over."""
    end, scheduler = headers.get(message.header, NEXT), headers.get(message.header, SCHEDULER)
    if not end and not scheduler:
        return
    if end != PURGE or not scheduler or scheduler == message.subject:
        raise api_error(10212)
    if not valid_subject(scheduler, wildcards=False):
        raise api_error(10212)
    if not view.config.allow_msg_schedules:
        raise api_error(10188)
    last = view.last_of(scheduler)
    if last:
        record = view.record(last)
        if record is None or not headers.get(record.header, PATTERN):
            raise api_error(10212)


# ------------------------------------------------------------------------------------------------ produced messages
class Produced(msgspec.Struct, frozen=True):
    """A message that a schedule publishes."""

    subject: bytes
    header: bytes
    data: bytes


def produced(schedule: Record, content: Record | None, due_ns: int, now_ns: int) -> Produced | None:
    """Return what a schedule that was due publishes now, None if it is none.

    Args:
        schedule: its message.
        content: the last message of the subject that it names as its source, if there is one.
        due_ns: when it was due. Where several times were missed, the next one is counted from now.
    """
    header = schedule.header
    target = headers.get(header, TARGET)
    try:
        when = timing(header)
    except ApiError:
        return None
    if when is None or not target or not publishable(target) or len(target) > MAX_SUBJECT:
        return None  # such a one came with an archive: publishing it is refused
    following = when.after(due_ns)
    if when.repeats and following is not None and following < now_ns:
        following = when.after(now_ns)
    if following is None:
        return None
    taken = content or schedule
    lines = [(SCHEDULER, schedule.subject), (NEXT, when.show(following))]
    ttl, rollup = headers.get(header, TTL), headers.get(header, ROLLUP)
    if ttl:
        lines.append((b"Nats-TTL", ttl))
    if rollup:
        lines.append((b"Nats-Rollup", rollup))
    return Produced(target, headers.append(_kept(taken.header), lines), taken.data)


def _kept(header: bytes) -> bytes:
    """Return the lines that go on into the produced message."""
    if not header:
        return b""
    return b"\r\n".join([line for line in header.split(b"\r\n") if not line.startswith(_LEFT_OUT)])


# ------------------------------------------------------------------------------------------------ stored messages
class Meaning(msgspec.Struct, frozen=True):
    """Meaning of a stored message for schedules."""

    first_ns: int | None = None
    """Time at which the message, a schedule, fires first; None for other messages."""
    scheduler: bytes = b""
    """Subject of the schedule that this message changes; b"" for none."""
    next_ns: int | None = None
    """Next time of that schedule; None: it has ended."""
    every_ns: int = 0
    """The interval of one that fires at intervals."""


def meaning(header: bytes, time_ns: int) -> Meaning | None:
    """Return the meaning of a message stored at `time_ns` with this header block, None if it has none.

    Invariant: it depends on the record alone (and, with a time zone, on the node's time zone data), so that every
    replica finds the same.
    """
    try:
        when = timing(header)
    except ApiError:
        when = None
    first = when.after(time_ns) if when is not None else None
    every = when.interval if isinstance(when, Every) else 0
    scheduler, end = headers.get(header, SCHEDULER), headers.get(header, NEXT)
    if not scheduler or not end:
        return Meaning(first, every_ns=every) if first is not None else None
    if end == PURGE:
        return Meaning(first, scheduler)
    try:
        return Meaning(first, scheduler, max(0, min(gotime.time_ns(end.decode()), LATEST_NS)))
    except ValueError:
        return Meaning(first) if first is not None else None
