"""Counters: subjects whose messages add up (ADR-49, docs/internals/streams.md#counters).

Belongs here: what `Nats-Incr` may say, and the value that a message of a counter stream is stored with. Everything is
worked out when the message is judged and written into its record, so that whoever applies it later need not know that
it counts. The value so far is that of the subject's last message; no other state is kept.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException, InvalidOperation, Rounded
from typing import TYPE_CHECKING

import msgspec

from lakestream.protocol import headers
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.stream.core.config import StreamConfig

if TYPE_CHECKING:
    from lakestream.log.format.record import Record
    from lakestream.stream.core.publish import Publish, View

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
"""What an increment does not go with."""

# Decimals: adding and printing numbers of any length takes time in proportion to it, which Python's int does not offer.
_EXACT = Context(prec=MAX_VALUE_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Rounded])

Sources = dict[str, dict[str, str] | None]
"""What other counters told last, by stream and subject."""

_sources: msgspec.json.Decoder[Sources | None] = msgspec.json.Decoder(Sources | None)


class Value(msgspec.Struct, frozen=True):
    """The payload of a counter's message."""

    val: str = ""


_value = msgspec.json.Decoder(Value)


def check_increment(config: StreamConfig, header: bytes, payload: bytes) -> None:
    """Whether an increment, if there is one, may be here at all. Raises ApiError."""
    increment = headers.get(header, INCREMENT)
    if not increment:
        return
    if not _NUMBER.fullmatch(increment):
        raise api_error(10171)
    if not config.allow_msg_counter:
        raise api_error(10168)
    if payload:
        raise api_error(10170)
    if any(headers.get(header, name) for name in _EXCLUDED):
        raise api_error(10171)


def count(view: View, message: Publish) -> None:
    """Give a message of a counter stream the value that its subject has with it. Raises ApiError, NotHere."""
    increment = headers.get(message.header, INCREMENT)
    if not increment:
        raise api_error(10169)
    last_seq = view.last_of(message.subject)
    last = view.record(last_seq) if last_seq else None
    before = stored_value(last) if last is not None else Decimal(0)
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


def stored_value(record: Record) -> Decimal:
    """What a subject's last message counts up to. Raises ApiError when it does not say so."""
    return _number_of(record.data)


def _number_of(payload: bytes) -> Decimal:
    try:
        text = _value.decode(payload).val.encode()
    except msgspec.DecodeError:
        raise api_error(10172) from None
    if not _NUMBER.fullmatch(text) or len(text) > MAX_VALUE_DIGITS:
        raise api_error(10172)
    return Decimal(text.decode("ascii"))


def _with_sources(header: bytes, before: bytes) -> bytes:
    """The header block with what the subject's last message says of other counters that were added up into it."""
    sources = _read_sources(before)
    return headers.replaced(header, SOURCES, _shown_sources(sources)) if sources else header


def _read_sources(header: bytes) -> Sources:
    told = headers.get(header, SOURCES)
    try:
        return (_sources.decode(told) or {}) if told else {}
    except msgspec.DecodeError:
        raise api_error(10172) from None


def _shown_sources(sources: Sources) -> bytes:
    ordered = {
        name: dict(sorted(by_subject.items())) if by_subject is not None else None
        for name, by_subject in sorted(sources.items())
    }
    return dumps(ordered)


def merge(last: Record | None, message: Publish, origin: str, subject: bytes) -> None:
    """Give a message that came from the counter `subject` of stream `origin` the value that it has here with it.

    What a counter of an origin stands for is the value it told last; what it told before is part of the sum already.
    `last`: the last message of the subject here. Raises ApiError.
    """
    if not headers.get(message.header, INCREMENT):
        raise api_error(10169)
    told = _number_of(message.payload)
    before = stored_value(last) if last is not None else Decimal(0)
    sources = _read_sources(last.header) if last is not None else {}
    name = subject.decode("utf-8", "replace")
    known = (sources.get(origin) or {}).get(name, "0")
    number = _NUMBER.match(known.encode())  # a publisher may have said anything: what it begins with counts
    try:
        delta = _EXACT.subtract(told, Decimal(number[0].decode("ascii") if number else 0))
        total = _EXACT.add(before, delta)
    except DecimalException:
        raise api_error(10171) from None
    sources[origin] = {**(sources.get(origin) or {}), name: str(told)}
    message.payload = b'{"val":"%b"}' % str(total or Decimal(0)).encode()
    header = headers.replaced(message.header, INCREMENT, str(delta or Decimal(0)).encode())
    message.header = headers.replaced(header, SOURCES, _shown_sources(sources))
