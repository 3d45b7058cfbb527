"""Republishing: what a stream has stored goes out again under another subject
(docs/internals/streams.md#transforms-and-republishing).

Belongs here: which stored messages are published again, and with which headers. The leader that took a message sends
it, once it is committed and before its pub ack leaves. What an earlier leader proposed and a later one applies is not
sent again: nobody knows whether it was; neither are imported and restored messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakestream.protocol import headers
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import publishable
from lakestream.protocol.transforms import Transform
from lakestream.stream.core.batch import After, Batch
from lakestream.stream.core.config import RePublish

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

_API = b"$JS."


class Republisher:
    """Publishes what one stream stores, as its configuration says."""

    def __init__(self, stream: Stream, config: RePublish) -> None:
        self._stream = stream
        self._name = stream.name.encode()
        self._headers_only = config.headers_only
        self._transform = Transform(config.src.encode(), config.dest.encode())

    @staticmethod
    def of(stream: Stream, config: RePublish | None) -> Republisher | None:
        """What a configuration asks for; None when that is nothing: an empty destination does nothing."""
        return Republisher(stream, config) if config is not None and config.dest else None

    def prepare(self, subject: bytes, header: bytes, payload: bytes) -> After | None:
        """What is to be done once this message is stored, None when it is not to be published again.

        Called when the message gets its sequence: the subject's last sequence before it is known only then.
        """
        to = self._transform.apply(subject)
        if to is None or not publishable(to):
            return None
        stream, last = self._stream, self._last_of(subject)

        def stored(seq: int, time_ns: int) -> None:
            if stream.retention.unwanted(seq, [subject]):
                return
            fields = [
                (b"Nats-Stream", self._name),
                (b"Nats-Subject", subject),
                (b"Nats-Sequence", b"%d" % seq),
                (b"Nats-Time-Stamp", format_time(time_ns).encode()),
                (b"Nats-Last-Sequence", b"%d" % last),
            ]
            if self._headers_only:
                fields.append((b"Nats-Msg-Size", b"%d" % len(payload)))
            shown = headers.append(header, fields)
            body = b"" if self._headers_only else payload
            if to.startswith(_API):
                # A request to this server could end the very stream that is just being applied.
                stream.clock.call_soon(lambda: _publish(stream, to, shown, body))
            else:
                _publish(stream, to, shown, body)

        return stored

    def _last_of(self, subject: bytes) -> int:
        """The subject's last sequence once everything in flight is stored; 0 when that leaves it none."""
        rolled = 0
        for proposal in self._stream.uncommitted():
            if isinstance(proposal.context, Batch) and proposal.context.effects:
                effects = proposal.context.effects
                # A rollup is its batch's last message, or the first one of an atomic batch.
                rolled = max([rolled, *(each.seq for each in (effects[0], effects[-1]) if each.rollup == b"all")])
        last = self._stream.view.last_of(subject)
        return last if last >= rolled else 0


def _publish(stream: Stream, to: bytes, header: bytes, payload: bytes) -> None:
    stream.bus.publish(to, b"", header, payload)
