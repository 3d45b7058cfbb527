"""Republishing: what a stream has stored goes out again under another subject
(docs/internals/streams.md#transforms-and-republishing).

Belongs here: which stored messages are published again, and with which headers. The leader that took a message sends
it, once it is committed and before its pub ack leaves. What an earlier leader proposed and a later one applies is not
sent again, because the earlier leader may have sent it; neither are imported and restored messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakestream.ports import Bus, Single
from lakestream.protocol import headers
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import is_reserved, publishable
from lakestream.protocol.transforms import Transform
from lakestream.stream.core.batch import After
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.view import ProposedView


class Republish(Feature):
    """Publishes what one stream stores, as its configuration says.

    Args:
        name: of the stream.
        unwanted: returns which of some messages the stream does not keep.
    """

    def __init__(
        self,
        name: str,
        bus: Bus,
        view: ProposedView,
        unwanted: Callable[[int, Sequence[bytes]], Sequence[tuple[int, bytes]]],
    ) -> None:
        self._name = name.encode()
        self._bus, self._view, self._unwanted = bus, view, unwanted
        self._headers_only = False
        self._transform: Transform | None = None

    def configure(self, config: StreamConfig) -> None:
        asked = config.republish
        self._transform = None
        if asked is not None and asked.dest:
            self._headers_only = asked.headers_only
            self._transform = Transform(asked.src.encode(), asked.dest.encode())

    def active(self, hook: str) -> bool:
        return self._transform is not None

    def prepared(self, subject: bytes, header: bytes, payload: bytes) -> After | None:
        """Return what publishes the message once it is stored, None when it is not to be published again.

        The subject's last sequence before it is known only now.
        """
        to = None if self._transform is None else self._transform.apply(subject)
        # A request to this server could end the very stream that is just being applied.
        if to is None or not publishable(to) or is_reserved(to):
            return None
        last, headers_only = self._last_of(subject), self._headers_only

        def stored(seq: int, time_ns: int) -> None:
            if self._unwanted(seq, [subject]):
                return
            fields = [
                (b"Nats-Stream", self._name),
                (b"Nats-Subject", subject),
                (b"Nats-Sequence", b"%d" % seq),
                (b"Nats-Time-Stamp", format_time(time_ns).encode()),
                (b"Nats-Last-Sequence", b"%d" % last),
            ]
            if headers_only:
                fields.append((b"Nats-Msg-Size", b"%d" % len(payload)))
            shown = headers.append(header, fields)
            self._bus.send(Single(to, header=shown, payload=b"" if headers_only else payload))

        return stored

    def _last_of(self, subject: bytes) -> int:
        """Return the subject's last sequence once everything in flight is stored; 0 when that leaves it none."""
        batches = self._view.pipeline.batches()
        rollups = (each.seq for batch in batches for each in batch.wide_rollups if each.replaces(subject))
        rolled = max(rollups, default=0)
        last = self._view.last_of(subject)
        return last if last >= rolled else 0
