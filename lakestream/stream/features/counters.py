"""Counters: subjects whose messages add up (ADR-49, docs/internals/streams.md#counters).

Belongs here: the rules of `Nats-Incr`, and the value that a message of a counter stream is stored with. Everything is
worked out when the message is judged and written into its record, so that applying it is like applying any message. The
value so far is that of the subject's last message; no other state is kept.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException, InvalidOperation, Rounded

import msgspec

from lakestream.log.format.record import Record
from lakestream.protocol import headers
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import MARK, Given
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.publish import ANY, IncomingMessage, PublishRule, View

INCREMENT = b"Nats-Incr"
SOURCES = b"Nats-Counter-Sources"

MAX_VALUE_DIGITS = 1_000_000
"""Digits of a counter's value; a message that would take it beyond is refused with 10171. An increment is as long as a
header block at most, so that none gets there by adding."""

_NUMBER = re.compile(rb"[+-]?[0-9]+")
_EXCLUDED = (
    b"Nats-Rollup",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
)
"""Headers that an increment can not be combined with."""

# Decimals: adding and printing numbers of any length takes time in proportion to it, which Python's int does not offer.
_EXACT = Context(prec=MAX_VALUE_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Rounded])

Sources = dict[str, dict[str, str] | None]
"""Last values of other counters, by stream and subject."""

_sources: msgspec.json.Decoder[Sources | None] = msgspec.json.Decoder(Sources | None)


class CounterValue(msgspec.Struct, frozen=True):
    """The payload of a counter's message."""

    val: str = ""


_value = msgspec.json.Decoder(CounterValue)


def count(view: View, message: IncomingMessage) -> None:
    """Give a message of a counter stream the value that its subject has with it. Raise ApiError, NotHere."""
    increment = headers.get(message.header, INCREMENT)
    if not increment:
        raise api_error(10169)
    last_seq = view.last_of(message.subject)
    last = view.record(last_seq) if last_seq else None
    before = value_of(last.data) if last is not None else Decimal(0)
    try:
        total = _EXACT.add(before, Decimal(increment.decode("ascii")))
    except DecimalException:
        raise api_error(10171) from None
    value = str(total or Decimal(0)).encode()  # no -0
    message.payload = b'{"val":"%b"}' % value
    message.tail += b',"val":"%b"' % value
    if last is not None:
        message.header = _with_sources(message.header, last.header)
    if 0 < view.max_msg_size < len(message.header) + len(message.payload):
        raise api_error(10054)


def value_of(payload: bytes) -> Decimal:
    """Return the value that a counter's message has. Raise ApiError if it has none."""
    try:
        text = _value.decode(payload).val.encode()
    except DECODE_ERRORS:
        raise api_error(10172) from None
    if not _NUMBER.fullmatch(text) or len(text) > MAX_VALUE_DIGITS:
        raise api_error(10172)
    return Decimal(text.decode("ascii"))


def _with_sources(header: bytes, before: bytes) -> bytes:
    """Return the header block with the values of other counters that the subject's last message has added up."""
    sources = _read_sources(before)
    return headers.replaced(header, SOURCES, _shown_sources(sources)) if sources else header


def _read_sources(header: bytes) -> Sources:
    text = headers.get(header, SOURCES)
    try:
        return (_sources.decode(text) or {}) if text else {}
    except DECODE_ERRORS:
        raise api_error(10172) from None


def _shown_sources(sources: Sources) -> bytes:
    ordered = {
        name: dict(sorted(by_subject.items())) if by_subject is not None else None
        for name, by_subject in sorted(sources.items())
    }
    return dumps(ordered)


def merge(last: Record | None, message: IncomingMessage, origin: str, subject: bytes) -> None:
    """Give a message that came from the counter `subject` of stream `origin` the value that it has here with it.

    A counter of an origin counts with its newest value; the one before is part of the sum already. `last`: the last
    message of the subject here. Raise ApiError.
    """
    if not headers.get(message.header, INCREMENT):
        raise api_error(10169)
    value = value_of(message.payload)
    before = value_of(last.data) if last is not None else Decimal(0)
    sources = _read_sources(last.header) if last is not None else {}
    name = subject.decode("utf-8", "replace")
    known = (sources.get(origin) or {}).get(name, "0")
    number = _NUMBER.match(known.encode())  # a publisher's text: the number at its beginning counts
    try:
        delta = _EXACT.subtract(value, Decimal(number[0].decode("ascii") if number else 0))
        total = _EXACT.add(before, delta)
    except DecimalException:
        raise api_error(10171) from None
    sources[origin] = {**(sources.get(origin) or {}), name: str(value)}
    message.payload = b'{"val":"%b"}' % str(total or Decimal(0)).encode()
    header = headers.replaced(message.header, INCREMENT, str(delta or Decimal(0)).encode())
    message.header = headers.replaced(header, SOURCES, _shown_sources(sources))


def _check(view: View, message: IncomingMessage, given: Given) -> None:
    if message.client is None:  # messages that the server itself stores were counted before
        return
    if not _NUMBER.fullmatch(given[INCREMENT]):
        raise api_error(10171)
    if not view.config.allow_msg_counter:
        raise api_error(10168)
    if message.payload:
        raise api_error(10170)
    if any(headers.get(message.header, name) for name in _EXCLUDED):
        raise api_error(10171)


def _check_member(view: View, message: IncomingMessage, given: Given) -> None:
    if view.config.allow_msg_counter and INCREMENT not in given:
        raise api_error(10169)


def _count(view: View, message: IncomingMessage, given: Given) -> None:
    if not view.config.allow_msg_counter:
        return
    if MARK not in message.header:
        raise api_error(10169)
    if message.client is not None:
        count(view, message)


class Counters(Feature):
    """The counters of one stream."""

    rules = (
        PublishRule(_check, frozenset({INCREMENT}), single=10, replicated=10, member=20),
        PublishRule(_check_member, ANY, member=80),
        PublishRule(_count, single=110, replicated=70),
    )

    def __init__(self) -> None:
        self._counts = False

    def configure(self, config: StreamConfig) -> None:
        self._counts = config.allow_msg_counter

    def active(self, hook: str) -> bool:
        return self._counts

    def judges_every_message(self) -> bool:
        return self._counts

    def decided_by(self, subject: bytes, header: bytes) -> bytes:
        return subject
