"""Lifetimes of single messages: the header `Nats-TTL` (ADR-43, docs/internals/streams.md#ttls-and-markers).

Belongs here: the rules of the header, its value and its effect, and the shortest lifetime in a stream with delete
markers. Removing messages when their time has run out is expiry.py's.
"""

from __future__ import annotations

from lakestream.protocol import headers
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.durations import parse_duration
from lakestream.protocol.publishes import Publishes
from lakestream.stream.core.batch import STEP_NS, Batch
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect, EffectKey, Given
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.publish import IncomingMessage, PublishRule, View

HEADER = b"Nats-TTL"
SECOND = 1_000_000_000

MAX_TTL_NS = 1 << 62
"""A longer lifetime counts as this one (146 years), so that a deadline stays below 2^63 ns."""

_MAX_INT64 = (1 << 63) - 1
_MAX_DIGITS = 19
"""Digits of the largest int64."""


def parse_ttl(value: bytes) -> int:
    """Return Nats-TTL in ns (ADR-43): whole seconds, or a Go duration ≥ 1 s cut to seconds.

    -1 for `never`, 0 for an invalid value. Blanks after the value belong to it and make it invalid.
    """
    text = value.decode("utf-8", "replace")
    if text.lower() == "never":
        return -1
    if text.isdigit() and text.isascii():
        digits = text.lstrip("0")
        seconds = int(digits or "0") if len(digits) <= _MAX_DIGITS else _MAX_INT64 + 1
        return min(seconds * SECOND, MAX_TTL_NS) if seconds <= _MAX_INT64 else 0
    try:
        duration = parse_duration(text)
    except ValueError:
        return 0
    if not SECOND <= duration <= _MAX_INT64:
        return 0
    return min(duration // SECOND * SECOND, MAX_TTL_NS)


def raised(header: bytes, config: StreamConfig) -> bytes:
    """Return the header block with a lifetime that is not shorter than that of the stream's delete markers.

    Only where a subject keeps more than its last message: there a marker that outlives the message tells of its end.
    The line that was given goes, and one in whole seconds is appended, as nats-server does it.
    """
    shortest = config.subject_delete_marker_ttl // SECOND
    if shortest <= 0 or config.max_msgs_per_subject == 1:
        return header
    given = headers.get(header, HEADER)
    ttl = parse_ttl(given) if given else 0
    if not 0 < ttl < shortest * SECOND:
        return header
    return headers.append(headers.remove(header, [HEADER]), [(HEADER, b"%d" % shortest)])


TTL: EffectKey[int] = EffectKey("ttl")
"""Lifetime in ns; -1: the message never expires, not even by max_age."""


def _check_enabled(view: View, message: IncomingMessage, given: Given) -> None:
    if not view.config.allow_msg_ttl:
        raise api_error(10166)


def _check_enabled_single(view: View, message: IncomingMessage, given: Given) -> None:
    """Leave an invalid value to the last rule, as nats-server does for streams with one replica."""
    if not view.config.allow_msg_ttl and parse_ttl(given[HEADER]):
        raise api_error(10166)


def _check_value(view: View, message: IncomingMessage, given: Given) -> None:
    if parse_ttl(given[HEADER]) == 0:
        raise api_error(10165)


def _raise(view: View, message: IncomingMessage, given: Given) -> None:
    message.header = raised(message.header, view.config)


def _read(effect: Effect, header: bytes, given: Given, config: StreamConfig) -> None:
    ttl = parse_ttl(given[HEADER]) if config.allow_msg_ttl else 0  # elsewhere a copied one is a header like any
    if ttl:
        TTL.put(effect, ttl)


_ONLY = frozenset({HEADER})


class Ttl(Feature):
    """The lifetimes of one stream's messages, as their publishers ask for them."""

    rules = (
        PublishRule(_check_enabled_single, _ONLY, single=30),
        PublishRule(_check_enabled, _ONLY, replicated=30, member=40),
        PublishRule(_check_value, _ONLY, single=120, replicated=40, member=50),
        PublishRule(_raise, _ONLY, single=130, replicated=130),
    )
    effects = ((HEADER, _read),)
    columnar = _ONLY

    def passes_run(self, view: View, run: Publishes, begin: int, end: int) -> int:
        if HEADER not in run.own:
            return end
        values = run.values(HEADER)[begin:end]
        if all(_stays(each, view.config) for each in set(values)):
            return end
        return begin + next(at for at, each in enumerate(values) if not _stays(each, view.config))

    def taken_run(self, batch: Batch, run: Publishes, begin: int, end: int) -> None:
        if HEADER not in run.own:
            return
        values = run.values(HEADER)[begin:end]
        ttls = {each: parse_ttl(each) for each in set(values) if each}
        seq, time_ns = batch.first_seq + len(batch) - len(values), batch.last_time - (len(values) - 1) * STEP_NS
        for at, value in enumerate(values):
            if value:
                effect = Effect(seq + at, time_ns + at * STEP_NS, run.subjects[begin + at])
                TTL.put(effect, ttls[value])
                batch.act(effect)


def _stays(value: bytes | None, config: StreamConfig) -> bool:
    """Return True if a message with this lifetime, if any, is stored as it is."""
    if not value:
        return True
    ttl = parse_ttl(value)
    if not ttl or not config.allow_msg_ttl:
        return False
    return ttl < 0 or config.max_msgs_per_subject == 1 or ttl >= config.subject_delete_marker_ttl // SECOND * SECOND
