"""Spans of messages with `traceparent`, for OpenTelemetry.

Belongs here: the part of the node that takes a message: its publish, its commit in the log, and the time until its
segment is staged. The commit in the table is the compactor's (packages/spark/lakestream_spark/write/spans.py), delivery
and ack the consumers' (consumer/spans.py).
"""

from __future__ import annotations

from collections import deque

from lakestream.ports import Clock
from lakestream.spans import COMMIT, PUBLISH, STAGE, Parent, Spans, traced
from lakestream.stream.core.batch import After
from lakestream.stream.core.feature import Feature

MAX_UNSTAGED = 1_000
"""Messages of a stream that wait for the span of their staging; further ones push out the oldest."""


class PublishSpans(Feature):
    """Spans of one stream's messages, on the node that leads it. Inactive without an exporter.

    Args:
        label: account, name and uid of the stream.
        spans: the exporter; None: traces are off.
    """

    def __init__(self, label: tuple[str, str, str], clock: Clock, spans: Spans | None) -> None:
        self._label, self._clock, self._spans = label, clock, spans
        self._unwritten: list[_Taken] = []
        self._unstaged: deque[tuple[int, int, Parent]] = deque(maxlen=MAX_UNSTAGED)
        """(sequence, time of the commit, parent), ascending."""

    def active(self, hook: str) -> bool:
        return self._spans is not None

    def prepared(self, subject: bytes, header: bytes, payload: bytes) -> After | None:
        if (parent := traced(header)) is None:
            return None
        taken = _Taken(self, parent, subject, self._clock.now())
        self._unwritten.append(taken)
        return taken.stored

    def before_write(self) -> None:
        if self._unwritten:
            now = self._clock.now()
            for taken in self._unwritten:
                taken.written_ns = now
            self._unwritten = []

    def rewound(self, last_seq: int) -> None:
        self._unwritten = []

    def follow(self) -> None:
        self._unwritten = []
        self._unstaged.clear()

    def committed_one(self, taken: _Taken, seq: int) -> None:
        """Export the spans of a message that is committed."""
        assert self._spans is not None  # Invariant: see `active`.
        now, message = self._clock.now(), (*self._label, seq)
        subject = taken.subject.decode("utf-8", "replace")
        attributes = {"messaging.operation.type": "receive", "lakestream.subject": subject}
        self._spans.message(PUBLISH, taken.parent, message, taken.began_ns, now, attributes)
        self._spans.message(COMMIT, taken.parent, message, taken.written_ns or taken.began_ns, now)
        self._unstaged.append((seq, now, taken.parent))

    def staged(self, through_seq: int) -> None:
        """Export the spans of messages through this sequence: their segments are staged for the compactor."""
        while self._unstaged and self._unstaged[0][0] <= through_seq:
            seq, committed_ns, parent = self._unstaged.popleft()
            if self._spans is not None:
                self._spans.message(STAGE, parent, (*self._label, seq), committed_ns, self._clock.now())


class _Taken:
    """A message on its way into the log. Times in ns since the epoch."""

    __slots__ = ("_owner", "began_ns", "parent", "subject", "written_ns")

    def __init__(self, owner: PublishSpans, parent: Parent, subject: bytes, began_ns: int) -> None:
        self._owner, self.parent, self.subject, self.began_ns = owner, parent, subject, began_ns
        self.written_ns = 0

    def stored(self, seq: int, time_ns: int) -> None:
        self._owner.committed_one(self, seq)
