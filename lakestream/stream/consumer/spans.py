"""Spans of deliveries and acks of messages with `traceparent`, for OpenTelemetry.

Belongs here: what one consumer does with such messages. Their publish is features/spans.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakestream.log.format.record import Record
from lakestream.log.format.records import Records
from lakestream.ports import Clock
from lakestream.spans import ACK, DELIVER, HINT, Parent, Spans, traced

MAX_UNACKED = 1_000
"""Deliveries of a consumer that wait for the span of their ack; further ones push out the oldest."""


class DeliverySpans:
    """Spans of one consumer, on the node that leads its stream.

    Args:
        label: account, name and uid of the stream.
    """

    def __init__(self, label: tuple[str, str, str], consumer: str, clock: Clock, spans: Spans) -> None:
        self._label, self._consumer, self._clock, self._spans = label, consumer, clock, spans
        self._unacked: dict[int, tuple[Parent, str, int]] = {}
        """Sequence → parent, name and time of its last delivery."""

    def delivered(self, records: Sequence[Record], first: int) -> None:
        """Export the spans of messages that were sent; `first` is the consumer sequence of the first one."""
        if isinstance(records, Records):
            begin, end = records.offsets[0], records.offsets[-1] + records.lengths[-1]
            if records.buf.find(HINT, begin, end) < 0:
                return  # as nearly always: nothing is decoded
        now = self._clock.now()
        for at, record in enumerate(records, first):
            if (parent := traced(record.header)) is not None:
                before = self._unacked.pop(record.seq, None)
                name = f"{DELIVER}/{self._consumer}/{at}"
                began = before[2] if before is not None else record.time_ns
                self._export(DELIVER, parent, record.seq, name, began, now)
                self._unacked[record.seq] = (parent, name, now)
                if len(self._unacked) > MAX_UNACKED:
                    del self._unacked[next(iter(self._unacked))]

    def acked(self, seqs: Iterable[int]) -> None:
        """Export the spans of acks."""
        for seq in seqs if self._unacked else ():
            if (delivery := self._unacked.pop(seq, None)) is not None:
                parent, below, sent_ns = delivery
                self._export(ACK, parent, seq, f"{ACK}{below}", sent_ns, self._clock.now(), below)

    def _export(
        self, span: str, parent: Parent, seq: int, name: str, start_ns: int, end_ns: int, below: str = ""
    ) -> None:
        group = {"messaging.consumer.group.name": self._consumer}
        self._spans.message(span, parent, (*self._label, seq), start_ns, end_ns, group, name, below)
