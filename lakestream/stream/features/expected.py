"""Optimistic concurrency: publishes that expect a state of the stream (ADR-8).

Belongs here: the rules of `Nats-Expected-Stream`, `Nats-Expected-Last-Sequence` and
`Nats-Expected-Last-Subject-Sequence`. The rule for the last message id is in dedupe.py.
"""

from __future__ import annotations

from lakestream.protocol import headers
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.publishes import Publishes
from lakestream.protocol.subjects import is_literal
from lakestream.stream.core import limits
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

    columnar = frozenset({STREAM, LAST, OF_SUBJECT})

    def passes_run(self, view: View, run: Publishes, begin: int, end: int) -> int:
        if self.columnar.isdisjoint(run.own):
            return end
        name, before = view.config.name.encode(), view.last_seq() - begin
        if STREAM in run.own:
            streams = run.values(STREAM)
            end = next((at for at in range(begin, end) if streams[at] and streams[at] != name), end)
        if LAST in run.own:
            seqs = run.values(LAST)
            end = next((at for at in range(begin, end) if (value := seqs[at]) and not _is(value, before + at)), end)
        return self._of_subject(view, run, begin, end) if OF_SUBJECT in run.own and begin < end else end

    def _of_subject(self, view: View, run: Publishes, begin: int, end: int) -> int:
        """Return the first message whose subject may have another last sequence than it expects."""
        expected, subjects, before = run.values(OF_SUBJECT), run.subjects, view.last_seq() - begin
        settled = view.keeps_last(end - begin, limits.accounted_run(run, begin, end))
        last: dict[bytes, int] = {}
        for at in range(begin, end):
            subject, value = subjects[at], expected[at]
            if value:
                if not settled or not is_literal(subject):
                    return at
                seq = last.get(subject)
                if not _is(value, view.last_of(subject) if seq is None else seq):
                    return at
            last[subject] = before + at + 1
        return end

    def decided_by(self, subject: bytes, header: bytes) -> bytes:
        return (headers.get(header, SUBJECT) or subject) if OF_SUBJECT in header else b""
