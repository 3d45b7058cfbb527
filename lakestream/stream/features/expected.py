"""Optimistic concurrency: publishes that expect a state of the stream (ADR-8).

Belongs here: the rules of `Nats-Expected-Stream`, `Nats-Expected-Last-Sequence` and
`Nats-Expected-Last-Subject-Sequence`. The rule for the last message id is in dedupe.py.
"""

from __future__ import annotations

from lakestream.protocol import headers
from lakestream.protocol.api.errors import api_error
from lakestream.stream.core.effect import Given
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.publish import IncomingMessage, PublishRule, View

STREAM = b"Nats-Expected-Stream"
LAST = b"Nats-Expected-Last-Sequence"
OF_SUBJECT = b"Nats-Expected-Last-Subject-Sequence"
SUBJECT = b"Nats-Expected-Last-Subject-Sequence-Subject"

MAX_DIGITS = 20
"""Digits of the largest u64, without leading zeros: a longer number in a header is none that a stream could mean."""
_MAX = (1 << 64) - 1


def check_stream(view: View, message: IncomingMessage, given: Given) -> None:
    """Refuse a message that was meant for another stream."""
    if given[STREAM] != view.config.name.encode():
        raise api_error(10060)


def check_of_subject(view: View, message: IncomingMessage, given: Given) -> None:
    """Refuse a message whose subject has another last sequence."""
    expected, other = given.get(OF_SUBJECT), given.get(SUBJECT)
    if expected is None:
        raise api_error(10193)
    last = view.last_of(other or message.subject)
    if not _is(expected, last):
        raise api_error(10071, seq=last).called(_mismatch(expected, last, "sequence by subject"))


def check_last(view: View, message: IncomingMessage, given: Given) -> None:
    """Refuse a message if the stream has another last sequence."""
    last = view.last_seq()
    if not _is(given[LAST], last):
        raise api_error(10071, seq=last).called(_mismatch(given[LAST], last, "sequence"))


def _is(value: bytes, expected: int) -> bool:
    digits = value.lstrip(b"0")
    return value.isdigit() and len(digits) <= MAX_DIGITS and int(digits or b"0") == expected


def _mismatch(value: bytes, last: int, what: str) -> str:
    """Return the text for a trace; a value that is no number counts as the largest."""
    digits = value.lstrip(b"0")
    number = int(digits or b"0") if value.isdigit() and len(digits) <= len(str(_MAX)) else _MAX
    return f"last {what} mismatch: {min(number, _MAX)} vs {last}"


class Expected(Feature):
    """The expectations of publishers about one stream."""

    rules = (
        PublishRule(check_stream, frozenset({STREAM}), single=20, replicated=20, member=30),
        PublishRule(check_of_subject, frozenset({OF_SUBJECT, SUBJECT}), single=40, replicated=90),
        PublishRule(check_last, frozenset({LAST}), single=50, replicated=80),
    )

    def decided_by(self, subject: bytes, header: bytes) -> bytes:
        return (headers.get(header, SUBJECT) or subject) if OF_SUBJECT in header else b""
